"""Pictures of an intersection from above."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo.network import Network

GROUND, ROAD, DRIVER, EQUIPPED = (236, 238, 232), (150, 154, 160), (40, 46, 58), (217, 119, 42)  # red, green, blue
AROUND = 150.0  # m from the middle to the edge
LANE, CAR = 1.6, 2.2  # m, of a half


def drawing(
    network: Network, vehicles: NDArray[np.float64], equipped: NDArray[np.bool_], height: int, width: int
) -> NDArray[np.uint8]:
    """(height, width, 3): roads, and vehicles (n, 2) m, those that are `equipped` (n,) in colour."""
    approaches = [name for name, (*_, leads) in network.lanes.items() if leads]
    middle = np.mean([network.shapes[name][-1] for name in approaches], axis=0)
    scale = 2.0 * AROUND / min(height, width)  # m per pixel
    made = np.empty((height, width, 3), np.uint8)
    made[:] = GROUND
    roads = np.concatenate([_along(shape, 0.5 * max(scale, LANE)) for shape in network.shapes.values()])
    for points, half, colour in (
        (roads, LANE, ROAD),
        (vehicles[~equipped], CAR, DRIVER),
        (vehicles[equipped], CAR, EQUIPPED),
    ):
        side = max(1, round(half / scale))
        spread = np.arange(1 - side, side)
        at = np.floor((points - middle) / scale).astype(int)
        columns = (at[:, 0, None, None] + width // 2 + spread[:, None] + 0 * spread).ravel()
        lines = (height // 2 - at[:, 1, None, None] + 0 * spread[:, None] + spread).ravel()
        inside = (columns >= 0) & (columns < width) & (lines >= 0) & (lines < height)
        made[lines[inside], columns[inside]] = colour
    return made


def _along(shape: NDArray[np.float64], apart: float) -> NDArray[np.float64]:
    """Points (n, 2) on a line (k, 2), so far apart."""
    steps = np.linalg.norm(np.diff(shape, axis=0), axis=1)
    place = np.concatenate([[0.0], np.cumsum(steps)])
    wanted = np.arange(0.0, place[-1] + apart, apart)
    return np.stack([np.interp(wanted, place, shape[:, k]) for k in range(2)], axis=1)

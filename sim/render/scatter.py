"""Where things are, as discs from above and from the side: for worlds that are nothing but numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COLOURS = ((214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 127, 14), (148, 103, 189), (23, 190, 207))
PAPER, EDGE = 245, 200
RADIUS = 0.03  # of a pane's side
MARGIN = 0.1  # of the range, around it
PANES = ((0, 1), (1, 2))  # to the right and up

Place = NDArray[np.float32]


def scattered(
    places: Sequence[Place], low: Sequence[Place], high: Sequence[Place], height: int, width: int
) -> NDArray[np.uint8]:
    """Places (2,) or (3,) in m, and from where to where each may go: x, y to the left, y, z to the right."""
    picture = np.full((height, width, 3), PAPER, np.uint8)
    half = width // 2
    picture[:, half - 1 : half + 1] = EDGE
    if not places:
        return picture
    least, most, where = (np.stack([np.pad(one, (0, 3 - len(one))) for one in some]) for some in (low, high, places))
    bottom, top = least.min(axis=0), most.max(axis=0)
    middle, scale = 0.5 * (bottom + top), min(half, height) / max(float((top - bottom).max()) * (1 + 2 * MARGIN), 1e-6)
    y, x = np.mgrid[:height, :half]
    for pane, axes in enumerate(PANES):
        across, down = (where - middle)[:, axes].T * scale
        for k, (right, up) in enumerate(zip(across, down, strict=True)):
            disc = (x - half / 2 - right) ** 2 + (y - height / 2 + up) ** 2 <= (RADIUS * min(half, height)) ** 2
            picture[:, pane * half : (pane + 1) * half][disc] = COLOURS[k % len(COLOURS)]
    return picture

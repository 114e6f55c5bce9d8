"""Intersections that others describe: folders in IntersectionZoo's layout, or any network of SUMO.

IntersectionZoo (Jayawardana et al. 2024): a folder per intersection, with the network `net.net.xml`, whose signal is
called TL and whose approaches A2TL, B2TL ..., and `inflows.txt`, a line per approach: the annual average of vehicles a
day on each of its lanes. A folder of such folders is as many intersections.
"""

from __future__ import annotations

import math
from pathlib import Path

from sim.engines.sumo.demand import Flow, even_flows
from sim.engines.sumo.network import Network, NetworkError, read
from sim.registry import check_named

NETWORK, INFLOWS, SIGNAL = "net.net.xml", "inflows.txt", "TL"
PEAK_HOUR = 0.084  # share of a day's vehicles; theirs
MOST = 900.0  # veh/h and lane; theirs
MOST_BYTES = 10_000


def intersections(name: str) -> tuple[Path, ...]:
    """The networks of that file or folder, in order. NetworkError, naming what is missing."""
    check_named("network", name)
    path = Path(name).expanduser()
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise NetworkError(f"network {name}: there is no such file or folder")
    if (path / NETWORK).is_file():
        return (path / NETWORK,)
    found = sorted(folder / NETWORK for folder in path.iterdir() if (folder / NETWORK).is_file())
    if not found:
        raise NetworkError(f"network {name}: neither it nor a folder in it has a {NETWORK}")
    return tuple(found)


def opened(path: Path, folder: str, inflow: float) -> tuple[Network, list[Flow]]:
    """An intersection and its traffic; where nobody says how much, `inflow` veh/h on each lane."""
    if path.name != NETWORK:
        network = read(path, folder)
        return network, even_flows(network, dict.fromkeys(network.approaches, inflow))
    network = read(path, folder, SIGNAL)
    listed = path.with_name(INFLOWS)
    daily = _numbers(listed)
    if len(daily) != len(network.approaches):
        approaches = ", ".join(network.approaches)
        raise NetworkError(f"{listed} has {len(daily)} lines, {path} has {len(network.approaches)} roads: {approaches}")
    per_lane = {name: min(PEAK_HOUR * day, MOST) for name, day in zip(network.approaches, daily, strict=True)}
    return network, even_flows(network, per_lane)


def _numbers(path: Path) -> list[float]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        words = text.decode("ascii").split()
        found = [float(word) for word in words]
    except OSError as error:
        raise NetworkError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise NetworkError(f"{path} is no list of numbers, one a line") from None
    if len(text) > MOST_BYTES or not all(math.isfinite(number) and number >= 0.0 for number in found):
        raise NetworkError(f"{path}: inflows must be finite, at least 0, and in a short file")
    return found

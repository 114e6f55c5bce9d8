"""Intersections that others describe: folders in IntersectionZoo's layout, or any network of SUMO.

IntersectionZoo (Jayawardana et al. 2024): a folder per intersection, with the network `net.net.xml`, whose signal is
called TL and whose arms have the roads A2TL and TL2A, B2TL and TL2B ..., and `inflows.txt`, a line per arm: the annual
average of vehicles a day on each of its lanes, also of one that nobody comes from. A folder of such folders is as many
intersections.
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
    ends = [edge.split("2") for edge in network.lanes_of if edge.count("2") == 1]  # from and to
    arms = sorted({a for a, b in ends if b == SIGNAL} | {b for a, b in ends if a == SIGNAL})
    if len(daily) != len(arms):
        raise NetworkError(f"{listed} has {len(daily)} lines, {path} has {len(arms)} arms: {', '.join(arms)}")
    per_arm = {arm: min(PEAK_HOUR * day, MOST) for arm, day in zip(arms, daily, strict=True)}
    per_lane = {name: per_arm[name.partition("2")[0]] for name in network.approaches}
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

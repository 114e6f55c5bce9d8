"""Networks for SUMO: made of a context, by netconvert; or read of a stranger's file, and written anew.

SUMO follows `<include>`, and signals that are not fixed write files: so it never sees a stranger's file, only what we
wrote of it, which has nothing but roads, junctions, connections and fixed signals.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo.context import ARMS, TURNS, Context
from sim.engines.sumo.installed import tool

YELLOW, ALL_RED = 3.0, 2.0  # s
PATIENCE = 120.0  # s that netconvert may take
LARGEST = 50_000_000  # bytes of a stranger's network
# What is kept of a network: element -> attributes. Without `type` of signals, `file`s and `include`.
KEPT: dict[str, set[str]] = {
    "location": {"netOffset", "convBoundary", "origBoundary", "projParameter"},
    "type": {"id", "priority", "numLanes", "speed", "oneway", "allow", "disallow"},
    "edge": {"id", "function", "from", "to", "priority", "shape", "spreadType", "length", "crossingEdges"},
    "lane": {"id", "index", "speed", "length", "shape", "width", "allow", "disallow", "endOffset", "acceleration"},
    "tlLogic": {"id", "programID", "offset"},
    "phase": {"duration", "state"},
    "junction": {"id", "type", "x", "y", "z", "incLanes", "intLanes", "shape", "radius"},
    "request": {"index", "response", "foes", "cont"},
    "connection": {"from", "to", "fromLane", "toLane", "via", "tl", "linkIndex", "linkIndex2", "dir", "state", "pass"},
    "roundabout": {"nodes", "edges"},
}
GREEN = "Gg"
ENOUGH = 300.0  # m before a signal from which on vehicles drive


class NetworkError(ValueError):
    """A file that is no network to use; the message names it."""


@dataclass(frozen=True)
class Movement:
    """From one road over a signal to another."""

    origin: str  # edge
    target: str
    link: int  # of the signal
    turn: str  # l | s | r, as SUMO says it
    before: tuple[str, ...] = ()  # edges that lead to `origin` and nowhere else

    @property
    def route(self) -> str:
        """All its edges, as SUMO wants them."""
        return " ".join((*self.before, self.origin, self.target))


@dataclass
class Network:
    """What is known of a network of one signal that vehicles cross."""

    path: str  # of the file that we wrote
    signal: str
    durations: NDArray[np.float64]  # s, of the phases (k,)
    states: tuple[str, ...]  # of them, a letter per link
    offset: float  # s
    movements: tuple[Movement, ...]
    lanes: dict[
        str, tuple[float, float, float, bool]
    ]  # m to the signal, else to its end; limit m/s, grade, if it leads there
    shapes: dict[str, NDArray[np.float64]]  # of lanes, (k, 2) m
    lanes_of: dict[str, int] = field(default_factory=dict)  # how many lanes edges have

    @property
    def approaches(self) -> tuple[str, ...]:
        """The edges that lead to the signal, in the order of their names."""
        return tuple(sorted({movement.origin for movement in self.movements}))


def made(context: Context, folder: str | Path) -> Network:
    """The network of a context; its file is written into the folder, unless it is there."""
    name = hashlib.sha256(json.dumps(context.json(), sort_keys=True).encode()).hexdigest()[:24]
    path = Path(folder) / f"{name}.net.xml"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            root = _converted(context, Path(place))
            _set_signal(root, context)
            whole = Path(place) / path.name
            ElementTree.ElementTree(root).write(whole)
            os.replace(whole, path)  # other processes look for it, too
    return _known(ElementTree.parse(path).getroot(), str(path), str(path))


def _converted(context: Context, place: Path) -> Element:
    """What netconvert makes of it; NetworkError with its words when it does not."""
    nodes, edges = Element("nodes"), Element("edges")
    ElementTree.SubElement(nodes, "node", id="TL", x="0", y="0", z="0", type="traffic_light")
    for k, (name, arm) in enumerate(zip(ARMS, context.arms, strict=False)):
        run = arm.length / math.hypot(1.0, arm.grade)
        x, y = run * math.sin(0.5 * math.pi * k), run * math.cos(0.5 * math.pi * k)
        ElementTree.SubElement(nodes, "node", id=name, x=f"{x:.3f}", y=f"{y:.3f}", z=f"{-run * arm.grade:.3f}")
        road = {"numLanes": str(arm.lanes), "speed": f"{arm.limit:.3f}"}
        ElementTree.SubElement(edges, "edge", {"id": f"{name}2TL", "from": name, "to": "TL", **road})
        ElementTree.SubElement(edges, "edge", {"id": f"TL2{name}", "from": "TL", "to": name, **road})
    for what, root in (("nod", nodes), ("edg", edges), ("con", _connections(context))):
        ElementTree.ElementTree(root).write(place / f"a.{what}.xml")
    files = ["-n", "a.nod.xml", "-e", "a.edg.xml", "-x", "a.con.xml", "-o", "a.net.xml"]
    how = ["--no-turnarounds", "--offset.disable-normalization", "--xml-validation", "never", "--precision", "3"]
    command, environment = tool("netconvert")
    done = subprocess.run(
        [command, *files, *how], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise NetworkError(f"netconvert refuses the intersection: {done.stderr.strip()[-500:]}")
    return ElementTree.parse(place / "a.net.xml").getroot()


def _connections(context: Context) -> Element:
    """From each lane to which road: only the leftmost turns left, and nothing else where left has a phase of its own.

    With one lane, all go from it; where nothing leads left, the leftmost goes straight, too.
    """
    root, apart = Element("connections"), len(context.greens) == 4
    for k, arm in enumerate(context.arms):
        ways = {turn: context.leads_to(k, turn) for turn in TURNS}
        there = {turn: to for turn, to in ways.items() if to < len(context.arms)}
        for lane in range(arm.lanes):  # from the right
            first, last = lane == 0, lane == arm.lanes - 1
            alone = last and not first and apart and "left" in there
            turns = {"right"} if first else set()
            turns |= {"left"} if last else set()
            turns |= set() if alone else {"straight"}
            if not turns & there.keys():
                turns = {"right"}  # of a stem with three lanes, whose middle one has nowhere straight to go
            for turn in turns & there.keys():
                to = context.arms[there[turn]].lanes
                target = to - 1 if turn == "left" else 0 if turn == "right" else min(lane, to - 1)
                ends = {"from": f"{ARMS[k]}2TL", "to": f"TL2{ARMS[there[turn]]}"}
                lanes = {"fromLane": str(lane), "toLane": str(target)}
                ElementTree.SubElement(root, "connection", {**ends, **lanes})
    return root


def _set_signal(root: Element, context: Context) -> None:
    """The context's phases in the place of netconvert's."""
    links = sorted((int(c.get("linkIndex", 0)), c) for c in root.iter("connection") if c.get("tl") == "TL")
    arm = [ARMS.index(c.get("from", "A")[0]) for _, c in links]
    left = [c.get("dir", "").lower() == "l" for _, c in links]
    apart = len(context.greens) == 4
    phases: list[tuple[float, str]] = []
    for k, green in enumerate(context.greens):
        axis, lefts = (k // 2, bool(k % 2)) if apart else (k, False)

        def letter(link: int, axis: int = axis, lefts: bool = lefts) -> str:
            if arm[link] % 2 != axis or (apart and left[link] != lefts):
                return "r"
            return "g" if left[link] and not apart else "G"

        state = "".join(letter(link) for link in range(len(links)))
        stops = "".join("y" if one in GREEN else "r" for one in state)
        phases += [(green, state), (YELLOW, stops), (ALL_RED, "r" * len(links))]
    (logic,) = root.iter("tlLogic")
    for phase in list(logic):
        logic.remove(phase)
    for duration, state in phases:
        ElementTree.SubElement(logic, "phase", duration=f"{duration:g}", state=state)


def read(path: str | Path, folder: str | Path, signal: str = "") -> Network:
    """A stranger's network, written anew into the folder. NetworkError, naming the file, for what is none.

    `signal`: the one that vehicles cross (default: the one with the most links).
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST:
            raise NetworkError(f"{file} has {file.stat().st_size} bytes; at most {LARGEST} are read")
        root = ElementTree.parse(file).getroot()
    except OSError as error:
        raise NetworkError(f"{file} cannot be read: {error.strerror}") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        if isinstance(error, NetworkError):
            raise
        raise NetworkError(f"{file} is no XML: {error}") from None
    if root.tag != "net":
        raise NetworkError(f"{file} is no network of SUMO: it begins with <{root.tag}>, not with <net>")
    clean = Element("net", {name: root.get(name, "") for name in ("version", "junctionCornerDetail") if root.get(name)})
    _copy(root, clean)
    written = Path(folder) / f"{hashlib.sha256(ElementTree.tostring(clean)).hexdigest()[:24]}.net.xml"
    ElementTree.ElementTree(clean).write(written)
    return _known(clean, str(written), str(file), signal)


def _copy(source: Element, target: Element) -> None:
    for one in source:
        if one.tag in KEPT:
            kept = {name: value for name, value in one.attrib.items() if name in KEPT[one.tag]}
            if one.tag == "tlLogic":
                kept["type"] = "static"
            _copy(one, ElementTree.SubElement(target, one.tag, kept))


def _known(root: Element, path: str, said: str, signal: str = "") -> Network:
    """What a network holds; errors name the file as it was `said`."""
    try:
        return _parsed(root, path, said, signal)
    except NetworkError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise NetworkError(f"{said} is malformed: {type(error).__name__} {error}") from None


def _parsed(root: Element, path: str, said: str, signal: str) -> Network:
    links = [c for c in root.iter("connection") if c.get("tl") and not c.get("from", ":").startswith(":")]
    logics = {logic.attrib["id"]: logic for logic in root.iter("tlLogic")}
    counts = {name: sum(c.get("tl") == name for c in links) for name in logics}
    if not any(counts.values()):
        raise NetworkError(f"{said} has no traffic light")
    if signal and not counts.get(signal):
        raise NetworkError(f"{said} has no traffic light {signal!r}; it has {', '.join(sorted(counts))[:200]}")
    signal = signal or max(sorted(counts), key=lambda name: counts[name])
    phases = logics[signal].findall("phase")
    durations = np.array([float(phase.attrib["duration"]) for phase in phases])
    states = tuple(phase.attrib["state"] for phase in phases)
    ours = [c for c in links if c.get("tl") == signal]
    if not len(durations) or not (durations > 0.0).all() or not np.isfinite(durations).all():
        raise NetworkError(f"{said}: the phases of the traffic light {signal!r} must last, got {durations.tolist()}")
    if any(len(state) <= max(int(c.attrib["linkIndex"]) for c in ours) for state in states):
        raise NetworkError(f"{said}: the traffic light {signal!r} has phases without a state for each connection")
    lengths = {edge.attrib["id"]: [float(lane.attrib["length"]) for lane in edge] for edge in root.iter("edge")}
    roads = {name: length[0] for name, length in lengths.items() if length and not name.startswith(":")}
    for ends in ((c.attrib["from"], c.attrib["to"]) for c in ours):
        if not all(end in roads for end in ends):
            raise NetworkError(f"{said}: a connection leads from {ends[0]!r} to {ends[1]!r}, which it does not have")
    before = _before(root, roads, {c.attrib["from"] for c in ours})
    found: dict[tuple[str, str], Movement] = {}
    for c in ours:
        ends, turn = (c.attrib["from"], c.attrib["to"]), c.attrib.get("dir", "s").lower()
        if turn != "t":  # turning round
            found.setdefault(ends, Movement(*ends, int(c.attrib["linkIndex"]), turn, before[ends[0]]))
    to_signal = {name: 0.0 for name in before}
    for origin, edges in before.items():
        for k, name in enumerate(edges):
            to_signal[name] = sum(roads[later] for later in (*edges[k + 1 :], origin))
    lanes, shapes, lanes_of = {}, {}, {}
    for edge in root.iter("edge"):
        for lane in edge.findall("lane"):
            name = lane.attrib["id"]
            points = np.array([[*map(float, p.split(","))][:3] + [0.0] * (2 - p.count(",")) for p in _points(lane)])
            length, limit = float(lane.attrib["length"]), float(lane.attrib["speed"])
            if not (length > 0.0 and limit > 0.0 and math.isfinite(length + limit) and np.isfinite(points).all()):
                raise NetworkError(f"{said}: the lane {name!r} needs a length and a speed above 0")
            run = max(float(np.linalg.norm(np.diff(points[:, :2], axis=0), axis=1).sum()), 1e-3)
            grade = float(np.clip((points[-1, 2] - points[0, 2]) / run, -0.3, 0.3))
            ahead = to_signal.get(edge.attrib["id"])
            lanes[name] = length + (ahead or 0.0), limit, grade, ahead is not None
            shapes[name] = points[:, :2]
        lanes_of[edge.attrib["id"]] = len(edge.findall("lane"))
    offset = float(logics[signal].get("offset", "0"))
    return Network(path, signal, durations, states, offset, tuple(found.values()), lanes, shapes, lanes_of)


def _before(root: Element, roads: dict[str, float], origins: set[str]) -> dict[str, tuple[str, ...]]:
    """The edges that lead to each of these and nowhere else, without a signal between, until the way is long enough."""
    into: dict[str, set[str]] = {}
    out: dict[str, set[str]] = {}
    signals: set[str] = set()
    for c in root.iter("connection"):
        one, other = c.get("from", ":"), c.get("to", ":")
        if one in roads and other in roads and c.get("dir") != "t":
            into.setdefault(other, set()).add(one)
            out.setdefault(one, set()).add(other)
            signals |= {one} if c.get("tl") else set()
    found: dict[str, tuple[str, ...]] = {}
    for origin in origins:
        way = [origin]
        while sum(roads[name] for name in way) < ENOUGH and len(into.get(way[0], ())) == 1:
            (earlier,) = into[way[0]]
            if earlier in signals or earlier in way or len(out[earlier]) > 1:
                break
            way.insert(0, earlier)
        found[origin] = tuple(way[:-1])
    return found


def _points(lane: Element) -> list[str]:
    return lane.attrib["shape"].split()

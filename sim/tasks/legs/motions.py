"""Motions by keyframes: where servos are told to be, and when; in between they go smoothly from one to the next.

Robotis's own OP3 gets up by such motions. Ours are found by a search (`policies.find_motions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import plain_yaml
from sim.perception.files import replace
from sim.registry import check_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.robots.mjcf import Double

REFERENCE = "reference"  # the signal that says where servos are to be told to be now
LYING = ("back", "front")  # which part is below; from a side it gets up as from the nearer of them
STANDS = np.radians(45.0)  # who is tilted by less stands
WAIT = 0.5  # s, from the end of a motion until it is tried again
LARGEST = 1_000_000  # bytes of a file
LONGEST_NUMBER = 40  # characters
MOST, LONGEST, FARTHEST = 100, 60.0, 10.0  # keyframes of a motion; s; rad (m)
# Model of a robot -> the file of its motions that we have.
FILES = {"op3_scene": "op3.yaml", "simple_humanoid": "simple_humanoid.yaml"}


Image = tuple[list[int], list[float]]


@dataclass(frozen=True, eq=False)
class Motion:
    """Servos begin at zero, where the robot stands; keyframes follow one another."""

    seconds: Double  # (k,) from the keyframe before to each
    offsets: Double  # (k, servos) rad (m), from where the robot stands

    @property
    def duration(self) -> float:
        """s, until the last keyframe."""
        return float(self.seconds.sum())

    def then(self, other: Motion) -> Motion:
        """This one, and the other one after it."""
        return Motion(np.concatenate([self.seconds, other.seconds]), np.concatenate([self.offsets, other.offsets]))

    def at(self, time: Double) -> Double:
        """Offsets (n, servos) at times (n,) s: between two keyframes a cubic without speed at its ends."""
        ends = np.concatenate([[0.0], np.cumsum(self.seconds)])
        keys = np.concatenate([np.zeros((1, self.offsets.shape[1])), self.offsets])
        k = np.clip(np.searchsorted(ends, time, side="right") - 1, 0, len(self.seconds) - 1)
        share = np.clip((time - ends[k]) / self.seconds[k], 0.0, 1.0)
        smooth = (share * share * (3.0 - 2.0 * share))[:, None]
        found: Double = keys[k] + (keys[k + 1] - keys[k]) * smooth
        return found


@dataclass(frozen=True, eq=False)
class Timetable:
    """Motions and their mirror images, control step by control step: `Motions` from the back, the front, and images."""

    offsets: Double  # (motions, steps, servos) rad (m); a motion that is over stays as it ended
    ends: NDArray[np.int64]  # (motions,) control steps after which another one may begin

    @staticmethod
    def nearest(gravity: NDArray[Any]) -> NDArray[np.int64]:
        """The number (n,) of the motion to begin with, for the direction of gravity (n, 3) in the body's axes."""
        found: NDArray[np.int64] = (gravity[:, 0] > 0.0) + len(LYING) * (gravity[:, 1] < 0.0)
        return found


class Script:
    """Who gets up by them, in `num` rows: the motion for how each lies, and another one if it does not stand then.

    Where the right side is lower, a robot that is its own mirror image does as its image would.
    """

    def __init__(self, motions: Mapping[str, Motion], rate_hz: float, num: int, mirror: Image | None = None) -> None:
        """`mirror`: places and signs of the servos' mirror image."""
        self.steps = np.array([max(1, round(motions[name].duration * rate_hz)) for name in LYING])
        times = np.arange(1, int(self.steps.max()) + 1) / rate_hz
        ours = np.stack([motions[name].at(times) for name in LYING])
        places, signs = mirror or (list(range(ours.shape[2])), [1.0] * ours.shape[2])
        ends = np.tile(self.steps + round(WAIT * rate_hz), 2)
        self.timetable = Timetable(np.concatenate([ours, ours[:, :, places] * signs]), ends)
        self._motion, self._since = np.zeros((2, num), np.int64)

    def begin(self, rows: NDArray[np.int64] | int, motion: NDArray[np.int64] | int, step: int = 0) -> None:
        """These rows are in that motion from now on, so many control steps after its beginning."""
        self._motion[rows], self._since[rows] = motion, step

    def go_on(self, gravity: Double) -> None:
        """A control step later, with gravity (n, 3) in that direction."""
        self.move()
        over = self._since >= self.timetable.ends[self._motion]
        rows = np.flatnonzero(over & (gravity[:, 2] > -np.cos(STANDS)))
        self.begin(rows, self.timetable.nearest(gravity[rows]))

    def move(self) -> None:
        """A control step later; nobody begins another motion."""
        self._since += 1

    def told(self, row: int) -> Double:
        """Offsets (servos,) of that row's servos in the control step before."""
        table = self.timetable.offsets
        found: Double = table[self._motion[row], min(self._since[row], table.shape[1]) - 1]
        return found

    def reference(self) -> Double:
        """Offsets (n, servos) that each row's servos are to be told now."""
        table = self.timetable.offsets
        found: Double = table[self._motion, np.minimum(self._since, table.shape[1] - 1)]
        return found


Motions = Mapping[str, Motion]  # by how the robot lies at their beginning: some of `LYING`


def motions_of(robot: str, path: str, servos: Sequence[str]) -> dict[str, Motion]:
    """From back and front: those of a file, `read`; without one ours for the robot of that name, else none."""
    if path:
        check_named("motions", path)
    elif robot not in FILES:
        return {}
    found = read(path or Path(__file__).with_name(FILES[robot]), servos)
    if missing := [name for name in LYING if name not in found]:
        raise ValueError(f"{path}: has no motion from the {missing[0]}: policies.find_motions finds one")
    return found


def read(path: str | Path, servos: Sequence[str]) -> dict[str, Motion]:
    """Motions of a YAML file for a robot with these servos, by their joints' names.

    ValueError that names the file for what is none, or for another robot.
    """
    try:
        found = plain_yaml.read(path, LARGEST)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as motions: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as motions: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("servos"), list):
        raise ValueError(f"{path}: a file of motions says servos: [NAME, ...], and keyframes for {', '.join(LYING)}")
    if found["servos"] != list(servos):
        raise ValueError(f"{path}: its motions are for another robot: its servos are not {', '.join(servos)[:500]}")
    return {name: _motion(path, name, rows, len(servos)) for name, rows in found.items() if name != "servos"}


def _motion(path: str | Path, name: Any, rows: Any, servos: int) -> Motion:
    if name not in LYING:
        raise ValueError(f"{path}: {str(name)[:50]!r} is no way to lie: {', '.join(LYING)}")
    if isinstance(rows, list) and len(rows) > MOST:
        raise ValueError(f"{path}: {name} has {len(rows)} keyframes; the most are {MOST}")
    try:
        # Sizes first: what is in the file once may be there a million times by YAML's aliases.
        if not isinstance(rows, list) or any(
            type(r["offsets"]) is not list or len(r["offsets"]) != servos for r in rows
        ):
            raise TypeError
        table = np.array([[_number(v) for v in (row["seconds"], *row["offsets"])] for row in rows])
    except (TypeError, KeyError, ValueError, OverflowError):
        table = np.zeros((0, 0))
    if not len(table):
        raise ValueError(f"{path}: {name} needs keyframes, each with seconds and {servos} offsets")
    seconds, offsets = table[:, 0], table[:, 1:]
    if not ((seconds > 0.0) & (seconds <= LONGEST)).all() or not (np.abs(offsets) <= FARTHEST).all():
        raise ValueError(f"{path}: {name} needs seconds of more than 0 to {LONGEST:g}, and offsets within {FARTHEST:g}")
    return Motion(seconds, offsets)


def _number(value: Any) -> float:
    """Of a number, or of a word: YAML 1.1 takes 5e-2 for one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > LONGEST_NUMBER:
        raise TypeError
    return float(value)


def write(path: Path, servos: Sequence[str], motions: Motions, comment: str) -> None:
    """A file that `read` takes, whole or not at all; `comment` comes first."""
    names = ", ".join(json.dumps(name, ensure_ascii=False) for name in servos)  # `1` and `on` are names, too
    lines = [*(f"# {line}" for line in comment.splitlines()), f"servos: [{names}]"]
    for name, motion in motions.items():
        lines.append(f"{name}:")
        for seconds, offsets in zip(motion.seconds, motion.offsets, strict=True):
            numbers = ", ".join(f"{value:.3g}" if value else "0" for value in np.round(offsets, 3))
            lines.append(f"- {{seconds: {seconds:.2f}, offsets: [{numbers}]}}")
    replace(path, ("\n".join(lines) + "\n").encode())

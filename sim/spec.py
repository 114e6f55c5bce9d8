"""The contract language: what a signal is, and how named signals become vectors. Shared by every layer; numpy only.

Order is written in one place only, the `Group`; everything else is by name, in SI units, at physical scale. Rotations
travel as rotation matrices (9 numbers, row-major, body to world).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.randomize import Bias, Delay, Dropout, Imperfection, Noise

Array = NDArray[np.float32]

DTYPES = {"float32": np.float32, "uint8": np.uint8, "int64": np.int64}  # of a signal's arrays
PICTURE_LIMITS = (0.0, 255.0)
ANY_ROBOT = "any"  # the robot of a policy that flies every robot with its signals and commands


def _like_a_picture(shape: Sequence[int], low: float, high: float) -> bool:
    return len(shape) == 3 and shape[2] == 3 and (low, high) == PICTURE_LIMITS


def undeclared(shape: Sequence[int], low: float, high: float) -> str:
    """The dtype of a signal whose description does not say it: once, what looks like a picture was one."""
    return "uint8" if _like_a_picture(shape, low, high) else "float32"


@dataclass(frozen=True)
class Signal:
    """One named quantity with a fixed shape.

    `unit` is SI ("m", "m/s", "rad/s", "1" for a pure number), `frame` says in which axes ("world": z up; "body": x
    forward, y left, z up). `low` and `high` bound every element. `max_age` (s) is the oldest value that may still be
    used on a robot. `imperfections` exist in simulation only and never leave it. `dtype` is that of its arrays: numbers
    are "float32"; a picture is "uint8", (height, width, 3), 0 to 255, first row on top; tokens, of which low and high
    are the first and the last, are "int64".
    """

    name: str
    shape: tuple[int, ...]
    unit: str = "1"
    frame: str = ""
    low: float = -math.inf
    high: float = math.inf
    max_age: float = 0.1
    imperfections: tuple[Imperfection, ...] = field(default=(), compare=False)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"signal name {self.name!r} is not an identifier (letters, digits and _ only)")
        if not self.shape or any(not isinstance(k, int) or k < 1 for k in self.shape):
            raise ValueError(f"signal {self.name!r}: shape {self.shape} must hold positive integers")
        if not self.low < self.high:
            raise ValueError(f"signal {self.name!r}: low {self.low} must be below high {self.high}")
        if not self.max_age > 0.0:
            raise ValueError(f"signal {self.name!r}: max_age {self.max_age} s must be positive")
        if self.dtype not in DTYPES:
            raise ValueError(f"signal {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.dtype == "uint8" and not _like_a_picture(self.shape, self.low, self.high):
            raise ValueError(
                f"signal {self.name!r}: uint8 is for pictures, (height, width, 3) from 0 to 255, "
                f"not {self.shape} from {self.low} to {self.high}"
            )
        if self.dtype == "int64" and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ValueError(f"signal {self.name!r}: tokens from {self.low} to {self.high} need whole limits")

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture: (height, width, 3), 0 to 255, first row on top. Its arrays are uint8."""
        return self.dtype == "uint8"

    def noise_std(self) -> float:
        """Standard deviation of the white noise, in the signal's unit."""
        return math.sqrt(sum(i.std**2 for i in self.imperfections if isinstance(i, Noise)))

    def bias_std(self) -> float:
        """Standard deviation of the per-episode offset, in the signal's unit."""
        return math.sqrt(sum(i.std**2 for i in self.imperfections if isinstance(i, Bias)))

    def delay_range(self) -> tuple[float, float]:
        """The range of the latency in seconds; latencies add up."""
        delays = [i for i in self.imperfections if isinstance(i, Delay)]
        return sum(d.low for d in delays), sum(d.high for d in delays)

    def dropout_probability(self) -> float:
        """The probability, per control step, that the last value is repeated."""
        kept = math.prod(1.0 - i.probability for i in self.imperfections if isinstance(i, Dropout))
        return 1.0 - kept


Group = tuple[Signal, ...]


def size(group: Group) -> int:
    """The length of the group's vector."""
    return sum(signal.size for signal in group)


def numbers(group: Group) -> Group:
    """The signals that are neither pictures nor tokens."""
    return tuple(signal for signal in group if signal.dtype == "float32")


def pictures(group: Group) -> Group:
    """The signals that are pictures."""
    return tuple(signal for signal in group if signal.is_picture)


def tokens(group: Group) -> Group:
    """The signals that are tokens."""
    return tuple(signal for signal in group if signal.dtype == "int64")


def places(group: Group) -> Group:
    """The signals that say where something is in some frame: vectors of 2 or 3 in m."""
    return tuple(s for s in group if s.unit == "m" and s.frame and s.shape in ((2,), (3,)))


def place_pairs(group: Group) -> list[tuple[str, str]]:
    """Every two places in the same frame, by name: what lies between them decides many tasks."""
    pairs = itertools.combinations(places(group), 2)
    return [(a.name, b.name) for a, b in pairs if (a.shape, a.frame) == (b.shape, b.frame)]


def slices(group: Group) -> dict[str, slice]:
    """Where each signal lies in the group's vector."""
    found: dict[str, slice] = {}
    start = 0
    for signal in group:
        if signal.name in found:
            raise ValueError(f"the group names {signal.name!r} twice")
        found[signal.name] = slice(start, start + signal.size)
        start += signal.size
    return found


def pack(group: Group, values: Mapping[str, Array]) -> Array:
    """Concatenate named values (..., *shape) into one float32 array (..., size).

    Raises KeyError when a signal is missing and ValueError when a shape is wrong; names outside the group are ignored.
    """
    if not all(signal.name in values for signal in group):
        missing = ", ".join(signal.name for signal in group if signal.name not in values)
        raise KeyError(f"missing signal(s) {missing}; got {', '.join(sorted(values)) or 'none'}")
    parts: list[Array] = []
    for signal in group:
        value = np.asarray(values[signal.name], dtype=np.float32)
        rank = len(signal.shape)
        if value.shape[value.ndim - rank :] != signal.shape:
            raise ValueError(f"signal {signal.name!r}: shape {value.shape} does not end in {signal.shape}")
        part = value if rank == 1 else value.reshape(*value.shape[: value.ndim - rank], signal.size)
        if parts and part.shape[:-1] != parts[0].shape[:-1]:
            lead, first = part.shape[:-1], parts[0].shape[:-1]
            raise ValueError(f"signal {signal.name!r}: leading shape {lead} differs from {first} of {group[0].name!r}")
        parts.append(part)
    return np.concatenate(parts, axis=-1) if parts else np.zeros((0,), np.float32)


def unpack(group: Group, vector: Array) -> dict[str, Array]:
    """The inverse of `pack`: views of `vector` (..., size), by name."""
    total = size(group)
    if vector.ndim == 0 or vector.shape[-1] != total:
        raise ValueError(f"a vector of this group has {total} elements, got shape {vector.shape}")
    lead = vector.shape[:-1]
    where = slices(group)
    return {s.name: vector[..., where[s.name]].reshape(*lead, *s.shape) for s in group}


def limits(commands: Group) -> tuple[Array, Array]:
    """Low and high (k,) float32 of commands; ValueError when one has no finite limits."""
    for signal in commands:
        if not (math.isfinite(signal.low) and math.isfinite(signal.high)):
            raise ValueError(f"command {signal.name!r} needs finite limits, got {signal.low} and {signal.high}")
    low = np.concatenate([np.full(s.size, s.low, np.float32) for s in commands])
    high = np.concatenate([np.full(s.size, s.high, np.float32) for s in commands])
    return low, high


def find(group: Group, name: str) -> Signal:
    """The signal of that name; KeyError lists the choices."""
    for signal in group:
        if signal.name == name:
            return signal
    raise KeyError(f"no signal {name!r}; there are: {', '.join(s.name for s in group)}")


def _number(value: float) -> float | None:
    return None if math.isinf(value) else float(value)


def to_json(group: Group) -> list[dict[str, Any]]:
    """A JSON-ready description. Infinite limits become null; simulation's imperfections are left out.

    A dtype that goes without saying is left out, too: files of numbers and pictures were made before there was one.
    """
    return [
        {
            "name": s.name,
            "shape": list(s.shape),
            "unit": s.unit,
            "frame": s.frame,
            "low": _number(s.low),
            "high": _number(s.high),
            "max_age_s": s.max_age,
            **({} if s.dtype == undeclared(s.shape, s.low, s.high) else {"dtype": s.dtype}),
        }
        for s in group
    ]


def from_json(items: Sequence[Mapping[str, Any]]) -> Group:
    """The inverse of `to_json`. Raises ValueError naming the entry and the field when one is missing or malformed."""
    signals = []
    for index, item in enumerate(items):
        try:
            shape = tuple(int(k) for k in item["shape"])
            low = -math.inf if item["low"] is None else float(item["low"])
            high = math.inf if item["high"] is None else float(item["high"])
            signals.append(
                Signal(
                    name=str(item["name"]),
                    shape=shape,
                    unit=str(item["unit"]),
                    frame=str(item["frame"]),
                    low=low,
                    high=high,
                    max_age=float(item["max_age_s"]),
                    dtype=str(item["dtype"]) if "dtype" in item else undeclared(shape, low, high),
                )
            )
        except KeyError as error:
            raise ValueError(f"signal {index} of the description lacks the field {error}") from None
        except TypeError as error:
            raise ValueError(f"signal {index} of the description is malformed: {error}") from None
    group = tuple(signals)
    slices(group)
    return group

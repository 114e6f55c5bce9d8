"""What a policy file says of itself: a stranger's JSON, checked field by field before anything is made of it.

Every error is a ValueError (KeyError for a field that is missing), and nothing here takes memory or time beyond what
the constants below say, whatever the text holds.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.safety.envelope import Envelope
from deploy.trust.text import printable
from sim import spec
from sim.spec import Group, Signal

AnyArray = NDArray[Any]

LARGEST_TEXT = 8 << 20  # bytes of JSON
DEEPEST, MOST_BRACKETS = 24, 200_000  # of its nesting; of its lists and objects
MOST_SIGNALS, MOST_ELEMENTS = 256, 1 << 22  # in each of inputs, outputs and state; in one of them
FEWEST_STEPS, MOST_STEPS = 8, 256  # of the vectors
LARGEST_TOLERANCE = 1e-3
LARGEST_PICTURES = 64 << 20  # bytes, of all vectors' pictures once unpacked
LARGEST_LIMIT = 1e6  # of a command: with wider ones, a tolerance relative to the range would agree with anything
LARGEST_NUMBER = 1e9  # of anything else
WIDEST = 100.0  # by how much the range of a command may exceed the commands of the vectors, when these are compared
LONGEST_TEXT, LONGEST_UNIT = 200, 40  # characters
SLOWEST, QUICKEST = 0.1, 10_000.0  # Hz
OLDEST = 3600.0  # s, of a signal that may still be used
STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")


@dataclass(frozen=True)
class State:
    """One recurrent quantity: graph input `state.NAME`, graph output `next_state.NAME`."""

    name: str
    initial: NDArray[np.float32]  # (*shape)


@dataclass(frozen=True)
class Vectors:
    """A closed-loop test: signals (steps, *shape) in, commands and states after each step (steps, *shape) out.

    Commands must agree within tolerance * `span`, states within tolerance * max(1, |state|).
    """

    tolerance: float
    inputs: dict[str, AnyArray]
    outputs: dict[str, AnyArray]
    state: dict[str, AnyArray]

    @property
    def steps(self) -> int:
        """The number of control steps."""
        return len(next(iter(self.outputs.values())))

    def span(self, command: Signal) -> float:
        """high - low, by which a command's errors are judged: no wider than 100 times what is commanded, 1 of infinity.

        Otherwise a file that permits itself a million would agree with anything.
        """
        span = command.high - command.low
        most = float(np.abs(self.outputs[command.name]).max(initial=0.0))
        return min(span, WIDEST * max(1.0, most)) if math.isfinite(span) else 1.0


@dataclass(frozen=True)
class Contract:
    """The metadata, checked, and what it stands for."""

    metadata: dict[str, Any]
    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    state: tuple[State, ...]
    envelope: Envelope
    vectors: Vectors

    @classmethod
    def read(cls, text: bytes) -> Contract:
        """From the JSON in a policy file. ValueError or KeyError says what is wrong."""
        metadata = parse(text)
        name, task, robot = (_text(metadata, key) for key in ("name", "task", "robot"))
        rate_hz = _number("rate_hz", metadata["rate_hz"], SLOWEST, QUICKEST)
        inputs, outputs = (_signals(key, metadata[key]) for key in ("inputs", "outputs"))
        if not (inputs and outputs):
            raise ValueError("it declares no inputs or no outputs")
        for s in outputs:
            if any(math.isfinite(limit) and abs(limit) > LARGEST_LIMIT for limit in (s.low, s.high)):
                raise ValueError(f"the command {s.name!r} may be {s.low:g} to {s.high:g}; at most {LARGEST_LIMIT:g}")
        state = _states(metadata["state"])
        envelope = _envelope(metadata.get("envelope", {}))
        vectors = _vectors(metadata["vectors"], inputs)
        for key in ("training", "evaluation", "plan", "base", "served"):
            if key in metadata:
                _part(key, metadata[key])
        return cls(metadata, name, task, robot, rate_hz, inputs, outputs, state, envelope, vectors)


def parse(text: bytes) -> dict[str, Any]:
    """A JSON object of bounded size and depth, with each key once and finite numbers only."""
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"it has {len(text)} bytes, more than {LARGEST_TEXT}")
    depth = 0
    for count, bracket in enumerate(BRACKETS.findall(STRINGS.sub(b"", text))):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST or count > 2 * MOST_BRACKETS:
            raise ValueError(f"it nests more than {DEEPEST} deep, or has more than {MOST_BRACKETS} lists and objects")
    found = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    if not isinstance(found, dict):
        raise ValueError(f"it is no object but {_shown(found)}")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("it says something twice")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"it holds the number {name}")


def _shown(value: Any) -> str:
    return printable(repr(value), 80)


def _text(items: Mapping[str, Any], key: str, longest: int = LONGEST_TEXT) -> str:
    value = items[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text: {_shown(value)}")
    if printable(value, longest) != value:
        raise ValueError(f"{key} is no printable text of at most {longest} characters: {printable(value, 80)}")
    return value


def _number(what: str, value: Any, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{what} is {_shown(value)}, not a number from {low:g} to {high:g}")
    return float(value)


def _whole(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{what} is {_shown(value)}, not a whole number from {low} to {high}")
    return value


def _list(what: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what} is {_shown(value)}, not a list of at most {most}")
    return value


def _dict(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_shown(value)}, not an object")
    return value


def _dims(what: str, value: Any) -> tuple[int, ...]:
    made = tuple(_whole(f"a size of {what}", k, 1, MOST_ELEMENTS) for k in _list(f"the shape of {what}", value, 8))
    if math.prod(made) > MOST_ELEMENTS:
        raise ValueError(f"{what} has the shape {made}, more than {MOST_ELEMENTS} numbers")
    return made


def _array(what: str, value: Any) -> AnyArray:
    """Numbers, all finite."""
    made = np.asarray(_list(what, value, MOST_ELEMENTS))
    if made.dtype.kind not in "iuf" and made.size:
        raise ValueError(f"{what} are no numbers: {_shown(value)}")
    if not np.isfinite(made).all() or np.abs(made).max(initial=0.0) > np.finfo(np.float32).max:
        raise ValueError(f"{what} are not all finite numbers")
    return made


def _signals(part: str, items: Any) -> Group:
    for index, item in enumerate(_list(part, items, MOST_SIGNALS)):
        about = _dict(f"signal {index} of the {part}", item)
        if "shape" not in about:
            continue  # `spec.from_json` names every field that is missing
        name = _text(about, "name") if "name" in about else str(index)
        _dims(repr(name), about["shape"])
        for key in {"unit", "frame", "dtype"} & about.keys():
            _text(about, key, LONGEST_UNIT)
        for key in {"low", "high"} & about.keys():
            if about[key] is not None:
                _number(f"{key} of {name!r}", about[key])
        if "max_age_s" in about:
            _number(f"max_age_s of {name!r}", about["max_age_s"], 0.0, OLDEST)
    return spec.from_json(items)


def _states(items: Any) -> tuple[State, ...]:
    states: list[State] = []
    for item in _list("state", items, MOST_SIGNALS):
        about = _dict("a state", item)
        name = _text(about, "name")
        if not name.isidentifier() or name in {s.name for s in states}:
            raise ValueError(f"the state {name!r} is there twice, or its name is no identifier")
        shape = _dims(f"the state {name!r}", about["shape"])
        initial = _array(f"the initial values of {name!r}", about["initial"]).astype(np.float32)
        if initial.shape != shape:
            raise ValueError(f"state {name!r}: initial values do not fit the shape {list(shape)}")
        states.append(State(name, initial))
    return tuple(states)


def _envelope(items: Any) -> Envelope:
    fields = {f.name for f in dataclasses.fields(Envelope)}
    for name, value in _dict("envelope", items).items():
        if name not in fields:
            raise ValueError(
                f"the envelope has no rule {printable(name, 40)!r}; there are: {', '.join(sorted(fields))}"
            )
        if name == "safe":
            for command, rule in _dict("the envelope's safe", value).items():
                named = isinstance(rule, str) and len(rule) <= LONGEST_TEXT
                if not named and _array(f"the safe {printable(command, 40)!r}", rule).ndim > 1:
                    raise ValueError(f"the safe {printable(command, 40)!r} is {_shown(rule)}")
        elif name in ("fence_low", "fence_high"):
            if value is not None and _array(f"the envelope's {name}", value).shape != (3,):
                raise ValueError(f"the envelope's {name} is {_shown(value)}, not three numbers")
        elif name in ("hold_steps", "low_voltage_steps"):
            _whole(f"the envelope's {name}", value, 0, 10**9)
        elif value is not None:
            _number(f"the envelope's {name}", value)
    return Envelope.from_json(items)


def packed(pictures: NDArray[np.uint8]) -> str:
    """Pictures as the vectors hold them."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(pictures).tobytes(), 9)).decode()


def _unpacked(name: str, text: Any, steps: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Pictures (steps, *shape). No more is inflated than that takes."""
    size = steps * math.prod(shape)
    if not isinstance(text, str) or size > LARGEST_PICTURES:
        raise ValueError(f"the vectors' pictures cannot be read: {name!r} are no text, or have {size} bytes")
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the vectors' pictures cannot be read: {error}") from None
    if len(found) != size or not inflating.eof or inflating.unused_data:
        raise ValueError(f"the vectors' pictures cannot be read: {name!r} are not {steps} of {shape}")
    return np.frombuffer(found, np.uint8).reshape(steps, *shape)


def _vectors(given: Any, inputs: Group) -> Vectors:
    items = _dict("vectors", given)
    tolerance = _number("the vectors' tolerance", items["tolerance"])
    if not 0.0 < tolerance <= LARGEST_TOLERANCE:
        raise ValueError(f"vectors state a tolerance of {tolerance}, which is not in (0, {LARGEST_TOLERANCE}]")
    parts = {part: _dict(f"the vectors' {part}", items[part]) for part in ("inputs", "outputs", "state")}
    held = [value for part in parts.values() for value in part.values() if isinstance(value, list)]
    steps = max(map(len, held), default=0)
    if steps > MOST_STEPS:
        raise ValueError(f"it has {steps} test vectors, more than {MOST_STEPS}")
    shapes = {s.name: s.shape for s in spec.pictures(inputs)}
    if sum(steps * math.prod(shapes[name]) for name in parts["inputs"].keys() & shapes) > LARGEST_PICTURES:
        raise ValueError(f"the vectors' pictures have more than {LARGEST_PICTURES} bytes")
    made: dict[str, dict[str, AnyArray]] = {}
    for part, values in parts.items():
        pictures = shapes if part == "inputs" else {}
        made[part] = {
            name: _unpacked(name, value, steps, pictures[name])
            if name in pictures
            else _array(f"the vectors' {part} {printable(name, 40)!r}", value)
            for name, value in values.items()
        }
    if not made["outputs"]:
        raise ValueError("the vectors have no outputs")
    return Vectors(tolerance, **made)


def _part(key: str, value: Any) -> None:
    """The parts that only some readers look at: their types."""
    if value is None and key == "evaluation":
        return
    about = _dict(key, value)
    if key == "plan":
        for name, count in about.items():
            _whole(f"plan.{printable(name, 40)}", count, 0, 10**6)
    elif key == "training" and "task_config" in about:
        _dict("training.task_config", about["task_config"])
    elif key == "base":
        for name in ("seen", "observation", "noise", "chunk"):
            if name in about:
                _text(about, name)
        for name in ("mean", "deviation"):
            if name in about and _array(f"base.{name}", about[name]).ndim != 1:
                raise ValueError(f"base.{name} is no list of numbers")
    elif key == "served":
        _signals("served.commands", about["commands"])
        _number("served.rate_hz", about["rate_hz"], SLOWEST, QUICKEST)
        _whole("served.horizon", about["horizon"], 1, 10**6)
        if math.prod(_dims("served.noise", about["noise"])) < 1 or len(about["noise"]) != 2:
            raise ValueError(f"served.noise is {_shown(about['noise'])}, not rows and columns")
        if about["sha256"] is not None:
            _text(about, "sha256")

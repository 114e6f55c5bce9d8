"""What a foreign network is fed and what its outputs mean, as a person writes it down in YAML (docs/adopt.md).

Everything is checked when it is read; an error names the field and says what to do. The file may be a stranger's, too:
it holds numbers and names, and nothing in it is loaded or run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from deploy.trust import npz
from policies.adoption.fields import EVERYTHING, DescriptionError, Fields, shown
from policies.models.networks import Array
from sim import plain_yaml
from sim.spec import Group, Signal

Made = TypeVar("Made")

LARGEST_FILE, LARGEST_STATISTICS = 1 << 20, 1 << 24  # bytes; the latter packed or not
LONGEST_HISTORY = 1000  # control steps
ORDERS, NEWEST, STARTS = ("term", "frame"), ("first", "last"), ("first", "zero")
MEANINGS = ("value", "range", "position")
SQUASHES = ("none", "tanh")


@dataclass(frozen=True)
class Term:
    """Some numbers of the network's input: scale * squashed(clipped(x[elements] - minus - offset)), `history` times.

    x are `signals`, one after the other; without any the network's own last action, or `constant`.
    """

    signals: tuple[str, ...] = ()
    constant: tuple[float, ...] = ()
    minus: str | None = None
    elements: tuple[str | int, ...] | None = None  # which of them, in which order; None: all
    offset: tuple[float, ...] = (0.0,)
    clip: tuple[float, float] = EVERYTHING
    squash: float | None = None  # z / sqrt(1 + (z / squash)^2), as `sim.terms.Feature`
    scale: tuple[float, ...] = (1.0,)
    history: int = 1  # control steps that the network sees of it

    @property
    def label(self) -> str:
        """How errors and tables call it."""
        return "+".join(self.signals) or ("constant" if self.constant else "last_action")


@dataclass(frozen=True)
class History:
    """How what was seen before is laid out: of each term all its steps, or of each step all its terms."""

    order: str = "term"
    newest: str = "last"
    start: str = "first"  # what stands for the time before an episode: its first value, or zeros


@dataclass(frozen=True)
class Normalisation:
    """clip((x - mean) / std) of the whole input of the network; empty: as it is."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clip: float = math.inf


@dataclass(frozen=True)
class Action:
    """What the network returns: command = offset + scale * clipped(squashed(y)), with one number for each element.

    `means`: "value", the command itself; "range", -1 to 1 are the command's limits (without scale and offset);
    "position", where joints are to be, of a command that is told from where they begin.
    """

    command: str
    elements: tuple[str | int, ...] | None = None  # the network's order; None: the command's
    squash: str = "none"
    clip: tuple[float, float] = EVERYTHING
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)
    means: str = "value"
    initial: float = 0.0  # the last action before the first one


@dataclass(frozen=True)
class Declared:
    """Signals and commands of a robot that is none of ours."""

    robot: str
    rate_hz: float
    signals: Group
    commands: Group
    elements: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Description:
    """Everything but the network."""

    path: str
    name: str
    observation: tuple[Term, ...]
    action: Action
    task: str = ""  # one of ours; "": what is `declared`
    task_settings: dict[str, Any] = field(default_factory=dict)
    declared: Declared | None = None
    estimated: tuple[str, ...] = ()  # what no sensor of the task tells, but an estimator on the robot
    trained_hz: float | None = None  # where a task of ours must run at this rate
    history: History = field(default_factory=History)
    normalisation: Normalisation = field(default_factory=Normalisation)
    network: dict[str, str] = field(default_factory=dict)  # activation, last: of files that hold weights alone


def load(path: str) -> Any:
    """What a file of YAML holds: numbers, texts, lists and fields, each given once. DescriptionError."""
    try:
        return plain_yaml.read(path, LARGEST_FILE)
    except ValueError as error:
        raise DescriptionError(str(error)) from None


def read(path: str) -> Description:
    """The description in a file; DescriptionError names file and field."""
    return from_file(path, parse)


def from_file(path: str, parse: Callable[[str, Any], Made]) -> Made:
    """What `parse` makes of the file's path and content; DescriptionError names file and field."""
    try:
        return parse(path, load(path))
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from None


def parse(path: str, found: Any) -> Description:
    """The description that these values of a YAML file make."""
    fields = Fields("", found)
    network = fields.inner("network")
    about = {key: network.text(key) for key in ("activation", "last") if network.has(key)}
    network.end()
    made = Description(
        **beginning(path, fields),
        observation=tuple(term(item) for item in fields.items("observation")),
        action=action(fields.inner("action", required=True)),
        history=_history(fields.inner("history")),
        normalisation=_normalisation(fields.inner("normalisation"), Path(path).parent),
        network=about,
    )
    fields.end()
    return made


def beginning(path: str, fields: Fields) -> dict[str, Any]:
    """What a description says whatever the network is: its name, and the task or the robot."""
    task = fields.text("task", "")
    settings = fields.raw("task_settings") if fields.has("task_settings") else {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise fields.error("task_settings", f"needs fields and values, got {shown(settings)}")
    if settings and not task:
        raise fields.error("task_settings", "goes with a task")
    return {
        "path": path,
        "name": fields.text("name", Path(path).stem),
        "task": task,
        "task_settings": settings,
        "declared": None if task else _declared(fields),
        "estimated": tuple(map(str, fields.elements("estimated") or ())) if task else (),
        "trained_hz": fields.number("rate_hz", low=0.0, above=True) if task and fields.has("rate_hz") else None,
    }


def term(fields: Fields) -> Term:
    """A term as it is written in YAML."""
    kinds = [kind for kind in ("signal", "constant", "last_action") if fields.has(kind)]
    if len(kinds) != 1:
        given = " and ".join(kinds) or "none of them"
        raise DescriptionError(f"{fields.where}signal: a term has one of signal, last_action, constant; got {given}")
    signals: tuple[str, ...] = ()
    if kinds[0] == "signal":
        named = fields.raw("signal")
        signals = tuple(named) if isinstance(named, list) else (named,)
        if not signals or not all(isinstance(name, str) for name in signals):
            raise fields.error("signal", f"needs the name of a signal, or a list of names, got {shown(named)}")
    if kinds[0] == "last_action" and fields.raw("last_action") is not True:
        raise fields.error("last_action", "is true, or is left out")
    made = Term(
        signals=signals,
        constant=fields.numbers("constant") if kinds[0] == "constant" else (),
        minus=fields.text("minus") if fields.has("minus") else None,
        elements=fields.elements("elements"),
        offset=fields.numbers("offset", (0.0,)),
        clip=fields.limits("clip"),
        squash=fields.number("squash", low=0.0, above=True) if fields.has("squash") else None,
        scale=fields.numbers("scale", (1.0,)),
        history=fields.whole("history", 1, 1, LONGEST_HISTORY),
    )
    fields.end()
    if made.minus is not None and len(signals) != 1:
        raise fields.error("minus", "goes with one signal")
    return made


def action(fields: Fields) -> Action:
    """What the network returns, as it is written in YAML."""
    made = Action(
        command=fields.text("command"),
        elements=fields.elements("elements"),
        squash=fields.text("squash", "none", SQUASHES),
        clip=fields.limits("clip"),
        scale=fields.numbers("scale", (1.0,)),
        offset=fields.numbers("offset", (0.0,)),
        means=fields.text("means", "value", MEANINGS),
        initial=fields.number("initial", 0.0),
    )
    fields.end()
    if made.means == "range" and (made.scale, made.offset) != ((1.0,), (0.0,)):
        raise fields.error("means", "range takes no scale and no offset: the limits of the command say both")
    if 0.0 in made.scale:
        raise fields.error("scale", "is 0: the network would command nothing")
    return made


def _history(fields: Fields) -> History:
    made = History(
        fields.text("order", "term", ORDERS),
        fields.text("newest", "last", NEWEST),
        fields.text("start", "first", STARTS),
    )
    fields.end()
    return made


def _normalisation(fields: Fields, folder: Path) -> Normalisation:
    clip = fields.number("clip", low=0.0, above=True) if fields.has("clip") else math.inf
    if fields.has("file"):
        if fields.has("mean") or fields.has("std"):
            raise fields.error("file", "holds mean and std: leave them out here, or leave out the file")
        made = statistics(_beside(fields, folder), clip)
    else:
        made = Normalisation(fields.numbers("mean", ()), fields.numbers("std", ()), clip)
    fields.end()
    check_statistics(made, fields.where)
    return made


def _beside(fields: Fields, folder: Path) -> Path:
    """The file that is named; a stranger's description names none elsewhere on this machine."""
    file = (folder.resolve() / fields.text("file")).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise fields.error("file", "must be in the folder of the description, or below")
    if not file.is_file():
        raise fields.error("file", f"there is no {fields.text('file')!r:.80} beside the description")
    return file


def check_statistics(made: Normalisation, where: str) -> None:
    """DescriptionError unless mean and std are finite, of one length, and no std is 0."""
    if len(made.mean) != len(made.std):
        raise DescriptionError(f"{where}std: has {len(made.std)} numbers, mean {len(made.mean)}; both or neither")
    for name, values in (("mean", made.mean), ("std", made.std)):
        for index, value in enumerate(values):
            if not math.isfinite(value) or (name == "std" and value <= 0.0):
                needed = "a positive number" if name == "std" else "a finite number"
                raise DescriptionError(f"{where}{name}: number {index} is {value!r}; needs {needed}")


def statistics(path: Path, clip: float = math.inf) -> Normalisation:
    """Of an .npz with mean and std, or var and epsilon (SB3: 1e-8), and perhaps clip; never unpickled."""
    try:
        held = {name: np.asarray(value, np.float64) for name, value in npz.read(str(path), LARGEST_STATISTICS).items()}
    except ValueError as error:
        raise DescriptionError(f"normalisation.file: {path}: is no .npz of numbers: {error}") from None
    if "mean" not in held or not held.keys() & {"std", "var"}:
        raise DescriptionError(f"normalisation.file: {path}: needs mean, and std or var; has {', '.join(held)}")
    with np.errstate(invalid="ignore"):
        std = held["std"] if "std" in held else np.sqrt(held["var"] + held.get("epsilon", np.float64(1e-8)))
    if "clip" in held and clip == math.inf:
        clip = float(held["clip"])
    return Normalisation(tuple(map(float, held["mean"].reshape(-1))), tuple(map(float, std.reshape(-1))), clip)


def _declared(fields: Fields) -> Declared:
    elements: dict[str, tuple[str, ...]] = {}

    def group(key: str) -> Group:
        return tuple(_signal(item, elements) for item in fields.items(key))

    return Declared(
        fields.text("robot"),
        fields.number("rate_hz", low=0.0, above=True),
        group("signals"),
        group("commands"),
        elements,
    )


def _signal(fields: Fields, elements: dict[str, tuple[str, ...]]) -> Signal:
    name, age = fields.text("name"), fields.number("max_age", 0.1, low=0.0, above=True)
    if fields.has("picture"):
        sides = fields.numbers("picture")
        if len(sides) != 2 or not all(1 <= side <= 4096 and side.is_integer() for side in sides):
            raise fields.error("picture", "needs [height, width] in pixels")
        fields.end()
        height, width = map(int, sides)
        return Signal(name, (height, width, 3), low=0.0, high=255.0, max_age=age, dtype="uint8")
    low, high = fields.limits("limits")
    size = fields.whole("size", 1, 1, 10_000)
    if names := fields.elements("elements"):
        if len(names) != size:
            raise fields.error("elements", f"holds {len(names)} names for {size} numbers")
        elements[name] = tuple(map(str, names))
    about = {key: fields.text(key, default) for key, default in (("unit", "1"), ("frame", ""))}
    fields.end()
    try:
        return Signal(name, (size,), about["unit"], about["frame"], low, high, age)
    except ValueError as error:
        raise DescriptionError(f"{fields.where}name: {error}") from None


def spread(values: Sequence[float], size: int, field_name: str) -> Array:
    """One number for all, or one for each of `size`; DescriptionError names the field."""
    if len(values) not in (1, size):
        raise DescriptionError(f"{field_name}: has {len(values)} numbers; needs one, or {size}")
    return np.broadcast_to(np.asarray(values, np.float32), (size,)).copy()


def plain(term: Term) -> Mapping[str, Any]:
    """A term as it is written in YAML, without what goes without saying."""
    kind: dict[str, Any] = {"signal": term.signals[0] if len(term.signals) == 1 else list(term.signals)}
    if not term.signals:
        kind = {"constant": list(term.constant)} if term.constant else {"last_action": True}
    more: dict[str, Any] = {}
    for key, value in (("minus", term.minus), ("elements", term.elements), ("squash", term.squash)):
        if value is not None:
            more[key] = list(value) if isinstance(value, tuple) else value
    for key, numbers, usual in (("offset", term.offset, 0.0), ("scale", term.scale, 1.0)):
        if set(numbers) != {usual}:
            more[key] = numbers[0] if len(set(numbers)) == 1 else list(numbers)
    if term.clip != EVERYTHING:
        more["clip"] = list(term.clip)
    if term.history != 1:
        more["history"] = term.history
    return kind | more

"""Episodes out of a rosbag2 of anybody's robot: messages, each at its own time, become frames at one rate.

A frame at time t has what was newest then; its action is what was newest one step later: what was commanded in that
step. Time is when the bag's recorder received a message. Types are ROS 2's own, from rosbags' tables: definitions
inside a bag are not read, as code is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from deploy.ros2.pictures import LARGEST, PictureError, decode
from deploy.trust.text import printable
from policies.datasets.bounds import PICTURES, VALUES
from policies.datasets.features import Array, DatasetError, Feature
from policies.datasets.images import from_png, size_of
from policies.datasets.recordings import bag_bounds
from policies.datasets.recordings.bag_map import BagMap, Part

NS = 1_000_000_000
XYZW = ("x", "y", "z", "w")


@dataclass
class Recorded:
    """One episode: frames (steps, *shape) by feature, the elements' names, and what was to be done."""

    frames: dict[str, Array]
    elements: dict[str, tuple[str, ...]]
    task: str


def numbers(message: Any, part: Part) -> Array:
    """(n,) float32: the part's numbers of a message. DatasetError names topic and field."""
    value, where = message, f"{part.topic}: {part.field}"
    for name in part.field.split("."):
        if name.startswith("_") or name not in getattr(type(value), "__dataclass_fields__", {}):
            raise DatasetError(f"{where!r:.120}: a {type(value).__name__.replace('__', '/')} has no such field")
        value = getattr(value, name)
    inner = [name for name in XYZW if hasattr(value, name)]
    flat = np.array([getattr(value, name) for name in inner] if inner else value).reshape(-1)
    if flat.dtype.kind not in "biuf" or not flat.size:
        raise DatasetError(f"{where!r:.120}: holds no numbers")
    if part.names:
        known = list(getattr(message, "name", []))
        missing = [name for name in part.names if name not in known]
        if missing or len(known) != flat.size:
            has = printable(", ".join(map(str, known)), 200) or "nothing"
            raise DatasetError(f"{where!r:.120}: {flat.size} numbers are named {has}, not {', '.join(part.names)}")
        flat = flat[[known.index(name) for name in part.names]]
    if part.elements:
        if max(part.elements) >= flat.size:
            raise DatasetError(f"{where!r:.120}: has {flat.size} numbers, no element {max(part.elements)}")
        flat = flat[list(part.elements)]
    return flat.astype(np.float32)


def picture(message: Any, topic: str) -> Array:
    """(height, width, 3) uint8 of an Image or a CompressedImage (JPEG or PNG)."""
    try:
        if hasattr(message, "encoding"):
            data = SimpleNamespace(**{n: getattr(message, n) for n in ("encoding", "height", "width", "step")})
            data.data = message.data.tobytes()
            shown: Array = decode(data, message.height, message.width)
            return shown
        if hasattr(message, "format"):
            return _unpacked(message.data.tobytes())
    except (PictureError, AttributeError) as error:
        raise DatasetError(f"{topic}: {error}") from None
    raise DatasetError(f"{topic}: {type(message).__name__.replace('__', '/')} is no picture")


def _unpacked(content: bytes) -> Array:
    height, width = size_of(content)
    if 3 * height * width > LARGEST:
        raise PictureError(f"it has {width} x {height} pixels, more than {LARGEST} bytes")
    (shown,) = from_png([content], (height, width, 3))
    return np.asarray(shown)


@dataclass
class Clock:
    """The frames of the episode that is being read. Times are ns."""

    map: BagMap
    newest: dict[tuple[str, int], tuple[int, Array]] = field(default_factory=dict)  # (feature, part): when, what
    orders: dict[str, list[str]] = field(default_factory=dict)  # topic: how its first message named its numbers
    recording: bool = True
    told: str = ""
    next: int = 0  # when the frame that is begun is over; 0: none is
    task: str = ""
    began: int = 0
    held: int = 0  # bytes
    frames: dict[str, list[Array]] = field(default_factory=dict)
    dropped: int = 0  # episodes that were too short

    def fresh(self, names: Sequence[str], now: int) -> bool:
        """Whether all of these features have been heard, not too long ago."""
        wanted = [(name, k) for name in names for k in range(len(self.map.features.get(name, (None,))))]
        most = round(self.map.oldest * NS)
        return all(key in self.newest and now - self.newest[key][0] <= most for key in wanted)

    def value(self, name: str) -> Array:
        """What is newest of a feature."""
        if name in self.map.pictures:
            return self.newest[name, 0][1]
        return np.concatenate([self.newest[name, k][1] for k in range(len(self.map.features[name]))])

    def elements(self, name: str) -> tuple[str, ...]:
        """What the numbers of a feature are called."""
        made: list[str] = []
        for k, part in enumerate(self.map.features[name]):
            which = part.elements or range(len(self.newest[name, k][1]))
            order = self.orders.get(part.topic, [])
            made += part.names or [order[index] if index < len(order) else f"{part.field}.{index}" for index in which]
        return tuple(made)

    @cached_property
    def seen(self) -> list[str]:
        """The features of what was there before the robot acted."""
        return [name for name in (*self.map.features, *self.map.pictures) if not name.startswith("action")]

    @cached_property
    def done(self) -> list[str]:
        """The others."""
        return [name for name in self.map.features if name.startswith("action")]

    def take(self, names: Sequence[str]) -> None:
        """The newest of these features belongs to the frame."""
        for name in names:
            value, kept = self.value(name), self.frames.setdefault(name, [])
            if kept and kept[0].shape != value.shape:
                raise DatasetError(f"{name}: its shape changes from {kept[0].shape} to {value.shape}")
            self.held += value.nbytes
            kept.append(value)
        if self.held > PICTURES:
            raise DatasetError(f"an episode has more than {PICTURES} bytes; episodes: {{topic: /NAME}} makes it end")

    def until(self, now: int) -> Iterator[Recorded]:
        """All frames that are over by now; the episodes that end so."""
        step = NS / self.map.fps
        while self.next and self.next < now:
            over = self.next
            if not self.fresh(self.done, over):
                yield from self.end()
                break
            self.take(self.done)
            if not self.recording or not self.fresh(self.seen, over):
                yield from self.end()
                break
            self.take(self.seen)
            self.next = round(self.began + step * len(next(iter(self.frames.values()))))

    def begin(self, now: int) -> None:
        """The first frame, if everything is there."""
        if self.next or not self.recording or not self.fresh(self.seen, now):
            return
        if self.map.told and not self.told:
            raise DatasetError(f"{self.map.told} says nothing before an episode begins: what was to be done?")
        self.task, self.began, self.next = self.map.task or self.told, now, now + round(NS / self.map.fps)
        self.take(self.seen)

    def end(self) -> Iterator[Recorded]:
        """The episode, if it is long enough; its last frame counts once it has an action."""
        steps = min((len(self.frames.get(name, [])) for name in self.done), default=0)
        if steps >= self.map.shortest:
            elements = {name: self.elements(name) for name in self.map.features}
            yield Recorded({name: np.stack(each[:steps]) for name, each in self.frames.items()}, elements, self.task)
        elif steps:
            self.dropped += 1
        self.frames, self.next, self.held = {}, 0, 0

    def check_order(self, part: Part, message: Any) -> None:
        """Numbers that a message names stay where they are, or are chosen by name."""
        order = [str(name)[:100] for name in getattr(message, "name", [])]
        if not part.names and order != self.orders.setdefault(part.topic, order):
            raise DatasetError(f"{part.topic}: its numbers change their order: say which ones, names: [...]")

    def hear(self, topic: str, now: int, message: Any) -> None:
        """A message of a topic in the map."""
        if topic == self.map.told:
            self.told = str(message.data)[:1000]
        if topic == self.map.recording:
            self.recording = bool(message.data)
        for name, parts in self.map.features.items():
            for k, part in enumerate(parts):
                if part.topic == topic:
                    self.check_order(part, message)
                    self.newest[name, k] = now, numbers(message, part)
        for name, source in self.map.pictures.items():
            if source == topic:
                self.newest[name, 0] = now, picture(message, topic)


def episodes(path: str, wanted: BagMap) -> Iterator[Recorded | int]:
    """The episodes of a bag (its folder, or one file of it), in its order; in the end how many were too short.

    DatasetError names what is wrong.
    """
    try:
        from rosbags.rosbag2 import Reader, storage_mcap
        from rosbags.typesys import Stores, get_typestore
    except ModuleNotFoundError:
        raise DatasetError("a bag needs rosbags: pip install 'sim2metal[bags]'") from None
    store = get_typestore(Stores.LATEST)
    clock = Clock(wanted, recording=not wanted.recording)
    try:
        with (
            bag_bounds.bounded(storage_mcap.DECOMPRESSORS),
            bag_bounds.opened(Path(path)) as place,
            Reader(place) as bag,
        ):
            bag_bounds.check_chunks(bag.storage)
            packed = bag.compression_mode == "message"
            if packed:  # each is unpacked here
                bag.storage.metadata = bag.storage.metadata._replace(compression_mode=None)
            chosen = [c for c in bag.connections if c.topic in wanted.topics]
            _check(path, chosen, {c.topic for c in bag.connections}, wanted, store.fielddefs.keys())
            now = 0
            for connection, now, data in bag.messages(chosen):
                yield from clock.until(now)
                content = bag_bounds.unpacked(data, f"{path}: a message of {connection.topic}") if packed else data
                clock.hear(connection.topic, now, store.deserialize_cdr(content, connection.msgtype))
                clock.begin(now)
            yield from clock.until(now + 1)
            yield from clock.end()
    except bag_bounds.ChunkError as error:
        raise DatasetError(f"{path}: {error}") from None
    except DatasetError:
        raise
    except Exception as error:  # of rosbags, SQLite, zstd: a damaged bag ends in many kinds
        raise DatasetError(f"{path}: damaged, or no rosbag2: {type(error).__name__}: {printable(error, 200)}") from None
    yield clock.dropped


def _check(path: str, chosen: list[Any], there: set[str], wanted: BagMap, types: Any) -> None:
    missing = sorted(wanted.topics - there)
    if missing:
        known = printable(", ".join(sorted(there)), 500)
        raise DatasetError(f"{path}: there is no topic {', '.join(missing)}; it has: {known}")
    if strange := [c for c in chosen if c.msgtype not in types]:
        raise DatasetError(
            f"{path}: {strange[0].topic} holds {printable(strange[0].msgtype, 80)}, which is no type of ROS 2 itself: "
            "convert it to one, std_msgs/Float32MultiArray for instance"
        )
    for topic, kind in ((wanted.told, "std_msgs/msg/String"), (wanted.recording, "std_msgs/msg/Bool")):
        if topic and any(c.topic == topic and c.msgtype != kind for c in chosen):
            raise DatasetError(f"{path}: {topic} has to hold {kind}")
    if sum(c.msgcount for c in chosen) > VALUES:
        raise DatasetError(f"{path}: more than {VALUES} messages")


def features_of(wanted: BagMap, episode: Recorded) -> dict[str, Feature]:
    """What the dataset of such an episode holds."""
    made = {}
    for name, values in episode.frames.items():
        kind = ("video" if wanted.film else "image") if name in wanted.pictures else "float32"
        made[name] = Feature(kind, tuple(values.shape[1:]), episode.elements.get(name))
    return made

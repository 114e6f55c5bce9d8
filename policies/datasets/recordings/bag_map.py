"""What of a rosbag2 becomes which feature of a dataset, as a person writes it down in YAML (docs/manipulation.md).

The file may be a stranger's, too: it holds numbers and names, and nothing in it is loaded or run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from policies.adoption.description import load
from policies.adoption.fields import DescriptionError, Fields


@dataclass(frozen=True)
class Part:
    """Some numbers of a topic: a field of its messages, all of it or the named elements."""

    topic: str
    field: str  # "pose.pose.position"; empty: the whole message, of a picture
    names: tuple[str, ...] = ()  # of a message with `name`, as JointState: these, in this order
    elements: tuple[int, ...] = ()  # which numbers of the field, in this order


@dataclass(frozen=True)
class BagMap:
    """A whole map. `features`: name -> its parts, whose numbers follow each other; `pictures`: name -> topic."""

    fps: int  # Hz
    features: dict[str, tuple[Part, ...]]
    pictures: dict[str, str]
    task: str  # what was to be done, or
    told: str  # the topic (std_msgs/String) that says it
    recording: str  # the topic (std_msgs/Bool) that is true during an episode; empty: always
    robot: str | None
    oldest: float  # s: a topic that is silent for longer ends the episode
    shortest: int  # frames; shorter episodes are left out
    film: bool  # pictures as films

    @property
    def topics(self) -> set[str]:
        """All that are read."""
        parts = {part.topic for each in self.features.values() for part in each}
        return parts | {*self.pictures.values()} | {t for t in (self.told, self.recording) if t}


def _topic(fields: Fields) -> str:
    topic = fields.text("topic")
    if not topic.startswith("/"):
        raise fields.error("topic", f"{topic!r:.80} needs a whole name, as in the bag: /NAME")
    return topic


def _part(fields: Fields) -> Part:
    topic = _topic(fields)
    names = tuple(str(name) for name in fields.elements("names") or ())
    elements = fields.elements("elements") or ()
    numbers = tuple(e for e in elements if isinstance(e, int) and e >= 0)
    if len(numbers) != len(elements):
        raise fields.error("elements", "needs a list of numbers from 0")
    if names and elements:
        raise fields.error("names", "goes without elements")
    made = Part(topic, fields.text("field", "data"), names, numbers)
    fields.end()
    return made


def parse(found: Any) -> BagMap:
    """The map that these values of a YAML file make; DescriptionError names the field."""
    fields = Fields("", found)
    features: dict[str, tuple[Part, ...]] = {}
    pictures: dict[str, str] = {}
    inner = fields.inner("features", required=True)
    for name, value in fields.raw("features").items():
        inner.has(name)
        if name.startswith("observation.images."):
            one = Fields(f"features.{name}.", value)
            pictures[name] = _topic(one)
            one.end()
        elif isinstance(value, list):
            features[name] = tuple(_part(item) for item in inner.items(name))
        else:
            features[name] = (_part(Fields(f"features.{name}.", value)),)
    inner.end()
    if not any(name.startswith("observation.") for name in (*features, *pictures)) or "action" not in features:
        raise fields.error("features", "needs one that begins with 'observation.', and 'action'")
    task, told = "", ""
    if isinstance(fields.raw("task"), dict):
        said = fields.inner("task")
        told = _topic(said)
        said.end()
    else:
        task = fields.text("task")
    when = fields.inner("episodes")
    made = BagMap(
        fps=fields.whole("fps", 0, 1, 1000),
        features=features,
        pictures=pictures,
        task=task,
        told=told,
        recording=_topic(when) if when.has("topic") else "",
        robot=fields.text("robot") if fields.has("robot") else None,
        oldest=fields.number("oldest", 0.5, 0.0, above=True),
        shortest=fields.whole("shortest", 2, 1, 1_000_000),
        film=fields.text("pictures", "image", ("image", "video")) == "video",
    )
    when.end()
    fields.end()
    return made


def read(path: str) -> BagMap:
    """The map in a file; DescriptionError names file and field."""
    try:
        return parse(load(path))
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from None

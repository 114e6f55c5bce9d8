"""Faults that a simulated robot can be given in flight: what to do with a message that is about to be published."""

from __future__ import annotations

import copy
from array import array
from collections import deque
from typing import Any

import numpy as np
from sensor_msgs.msg import Image

KINDS = {
    "none": "everything works",
    "silent": "the topic is not published any more",
    "frozen": "the same message again and again, with its old stamp",
    "delayed": "every message comes 0.3 s late",
    "nan": "the values are not numbers",
    "clock": "the robot's clock is 10 s ahead",
    "transport": "nothing is sent and nothing is heard",
    "battery": "the battery is nearly empty",
    "black": "pictures are black",
    "repeated": "the same picture again and again, with new stamps",
    "truncated": "pictures lack their last bytes",
    "encoding": "pictures are 32FC3, and NaN",
    "size": "pictures lack their last row",
}
DELAY, JUMP, EMPTY = 0.3, 10, 3.05  # s, s, V
PICTURES = ("black", "repeated", "truncated", "encoding", "size")


class Fault:
    """`KIND` or `KIND:TOPIC`; without a topic, every topic of the robot's state."""

    def __init__(self, text: str = "none") -> None:
        self.kind, _, self.topic = text.partition(":")
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {text!r}; choices: {', '.join(KINDS)}, or KIND:TOPIC")
        self._kept: dict[str, deque[tuple[float, Any]]] = {}

    def affects(self, topic: str) -> bool:
        """Whether messages on this topic are treated."""
        return self.kind != "none" and self.topic in ("", topic)

    def values(self, topic: str, values: dict[str, Any]) -> dict[str, Any]:
        """What is measured, by name."""
        if self.kind == "nan" and self.affects(topic):
            lost = {n: np.full_like(v, np.nan, np.float32) for n, v in values.items() if v.dtype != np.uint8}
            return {**values, **lost}
        return values

    def message(self, topic: str, message: Any, now: float) -> Any | None:
        """What is sent instead of `message` at the time `now` (s); None: nothing."""
        if not self.affects(topic):
            return message
        if self.kind in PICTURES:
            return self._picture(topic, message) if isinstance(message, Image) else message
        kept = self._kept.setdefault(topic, deque())
        if self.kind in ("silent", "transport"):
            return None
        if self.kind == "frozen":
            if not kept:
                kept.append((now, copy.deepcopy(message)))
            return kept[0][1]
        if self.kind == "delayed":
            kept.append((now, copy.deepcopy(message)))
            return kept.popleft()[1] if now - kept[0][0] >= DELAY else None
        if self.kind == "clock" and hasattr(message, "header"):
            message.header.stamp.sec += JUMP
        return message

    def _picture(self, topic: str, message: Image) -> Image:
        if self.kind == "black":
            message.data = array("B", bytes(len(message.data)))
        elif self.kind == "repeated":
            kept = self._kept.setdefault(topic, deque())
            if not kept:
                kept.append((0.0, message.data))
            message.data = kept[0][1]
        elif self.kind == "truncated":
            message.data = message.data[: len(message.data) // 2]
        elif self.kind == "encoding":
            message.encoding, message.step = "32FC3", 12 * message.width
            nan = np.full((message.height, message.width, 3), np.nan, np.float32)
            message.data = array("B", nan.tobytes())
        else:
            message.height -= 1
            message.data = message.data[: message.height * message.step]
        return message

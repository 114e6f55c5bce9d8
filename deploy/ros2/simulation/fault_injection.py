"""Faults that a simulated robot can be given in flight: what to do with a message that is about to be published."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import numpy as np

KINDS = {
    "none": "everything works",
    "silent": "the topic is not published any more",
    "frozen": "the same message again and again, with its old stamp",
    "delayed": "every message comes 0.3 s late",
    "nan": "the values are not numbers",
    "clock": "the robot's clock is 10 s ahead",
    "transport": "nothing is sent and nothing is heard",
    "battery": "the battery is nearly empty",
}
DELAY, JUMP, EMPTY = 0.3, 10, 3.05  # s, s, V


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
            return {name: np.full_like(value, np.nan, np.float32) for name, value in values.items()}
        return values

    def message(self, topic: str, message: Any, now: float) -> Any | None:
        """What is sent instead of `message` at the time `now` (s); None: nothing."""
        if not self.affects(topic):
            return message
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

"""What a robot is told to do, in words: on the topic `instruction`, by whoever owns it, or by a person beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from std_msgs.msg import String

from deploy.policy_file import PolicyFile
from deploy.ros2 import topics
from deploy.ros2.node.publishers import gids
from deploy.ros2.node.subscriptions import Inbox, Owner, latched_quality
from deploy.teleop.instruction import KEY, tokenised, tokeniser_of
from deploy.trust.text import printable
from sim.spec import Group

TOLD = 200  # characters of a sentence, or of what is wrong with it, for people to read


class Present(Owner):
    """Whose word counts where things are said once: who spoke first, for as long as it is there, in flight as well."""

    def __init__(self, node: Node, topic: str) -> None:
        super().__init__(math.inf)
        self._node, self._topic = node, topic
        self._there: set[bytes] | None = None

    def accepts(self, sender: bytes, arrived: float) -> bool:
        if sender != self.gid and self._there is None:  # once in a look: strangers may come in floods
            self._there = gids(self._node, self._topic)
            self.gid = self.gid if self.gid in self._there else b""
        return super().accepts(sender, arrived)

    def look(self) -> None:
        """Another look begins."""
        self._there = None


class Instructions:
    """The newest sentence that the policy can be told, as the signal of its tokens. What it cannot be told is refused.

    A refused sentence leaves the one before. A sentence does not age: it holds until another one comes.
    """

    def __init__(self, node: Node, policy: PolicyFile) -> None:
        """Nothing is listened to for a policy that is told nothing in words; PolicyFileError for a bad tokeniser."""
        self._node, self._policy, self._tokens = node, policy, dict[str, NDArray[np.int64]]()
        self.sentence, self.refused = "", ""  # what it is told, and why not the last that came; both are printable
        self.signals: Group = (tokeniser_of(policy)[0],) if KEY in policy.metadata else ()
        self.boxes = [Inbox(node, String, topics.INSTRUCTION, latched_quality()) for _ in self.signals]
        self._owners = [Present(node, box.topic) for box in self.boxes]
        for box, owner in zip(self.boxes, self._owners, strict=True):
            box.owner = owner
        self._heard: str | None = None

    def tell(self, sentence: str) -> None:
        """ValueError for a sentence that the policy cannot be told, and for a policy that is told none."""
        signal, tokens = tokenised(self._policy, sentence)
        self._tokens, self.sentence, self.refused = {signal.name: tokens[None]}, printable(sentence, TOLD), ""

    def read(self) -> dict[str, NDArray[np.int64]]:
        """The tokens (1, words) by name of their signal, after a look at the topic; nothing while nothing was said."""
        for owner in self._owners:
            owner.look()
        if any([box.take() for box in self.boxes]) and (said := self.boxes[0].message.data) != self._heard:
            self._heard = said
            try:
                self.tell(said)
                self._node.get_logger().info(f"told: {self.sentence}")
            except ValueError as error:
                self.refused = printable(error, TOLD)
                self._node.get_logger().error(self.refused, throttle_duration_sec=1.0)
        return self._tokens

    def missing(self) -> list[str]:
        """What keeps a flight from beginning: nobody has said what it is to do."""
        if self._tokens or not self.boxes:
            return []
        why = self.refused or "nothing was said"
        return [f"{self.boxes[0].topic}: {why}; it waits for a sentence (std_msgs/msg/String)"]

    def values(self) -> dict[str, Any]:
        """For the diagnostics."""
        told = {"instruction": self.sentence or "none"} if self.boxes else {}
        return told | ({"instruction refused": self.refused} if self.refused else {})

    def close(self) -> None:
        """Unsubscribe."""
        for box in self.boxes:
            box.close()

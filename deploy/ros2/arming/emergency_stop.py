"""The latched emergency stop, as every node keeps it: whoever presses it, all stop, also those who join later."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from deploy.ros2 import topics
from deploy.ros2.arming.armed import Armed
from deploy.ros2.node.publishers import gids, named, same_process
from deploy.ros2.node.subscriptions import NAMES, Letterbox, command_quality, every, latched_quality, sensor_quality

QUALITIES = (sensor_quality(), command_quality(), latched_quality())
LOOK = 0.02  # s between two looks, at most


class EmergencyStop:
    """True on the topic `emergency_stop` stops, whoever says it and however it publishes. Only its owner releases.

    Three subscriptions: one that matches every publisher, also one that repeats nothing; one to which a button with
    ROS 2's default quality repeats what was lost; one that is told what was said before it was there. The
    supervisor (`leads`) repeats what others press, so that it outlives their processes, heeds nobody's False, and
    answers it with True. Everybody else
    believes the False of the supervisor only: of the process whose word on `armed` counts, or, where arming is signed,
    what its beat says (`told`). Where nobody arms, whoever pressed may release.
    """

    def __init__(
        self,
        node: Node,
        service: str,
        pressed: Callable[[], None],
        armed: Armed | None = None,
        leads: bool = False,
    ) -> None:
        """`pressed` is called once per emergency, by whoever looks; `service` presses it; `armed` knows who arms."""
        self.pressed, self.who = False, ""  # by whom
        self._node, self._act, self._leads, self._armed = node, pressed, leads, armed
        self._presser, self._releases = b"", 0
        self._said = False
        if armed is not None and armed.signed:
            armed.told = lambda beat: self.told(beat.emergency, beat.releases)
        self._released_by: dict[bytes, None] = {}  # who has said False since the last True
        self._numbers: dict[bytes, int] = {}  # by publisher: the newest of its messages
        self._lock = threading.RLock()
        others = gids(node, topics.EMERGENCY)
        self._publisher = node.create_publisher(Bool, topics.EMERGENCY, latched_quality())
        self._own = gids(node, topics.EMERGENCY) - others  # what we said ourselves is no news
        self.boxes = [Letterbox(node, Bool, topics.EMERGENCY, q) for q in QUALITIES]
        node.create_service(Trigger, service, self._asked)
        every(node, LOOK, self.look)

    def press(self, who: str = "") -> None:
        """Stop, and tell everyone."""
        with self._lock:
            if not self._said:
                self._say(True)
            self._begin(who)

    def release(self) -> None:
        """The emergency is over, says its owner."""
        with self._lock:
            self.pressed = False
            self._say(False)

    def told(self, emergency: bool, releases: int) -> None:
        """The supervisor has signed whether it is an emergency, and how often it has released one."""
        with self._lock:
            if releases > self._releases and not emergency:
                self._end()
            self._releases = releases
            if emergency:
                self._begin("the supervisor")

    def look(self) -> None:
        """Read what has come; callable from any thread."""
        with self._lock:
            contradicted = False
            for box in self.boxes:
                for letter in box.letters():
                    if letter.sender in self._own:
                        continue
                    if self._is_new(letter.sender, letter.number) and (message := box.opened(letter)) is not None:
                        self._hear(message.data, letter.sender)
                        contradicted = contradicted or not message.data
            if self._leads:
                if self.pressed and contradicted:
                    self._say(True)
            elif self._released_by and not (self._armed and self._armed.signed):
                owner = self._armed.gid if self._armed else self._presser
                if any(same_process(gid, owner) for gid in self._released_by):
                    self._end()
                    self._released_by.clear()

    def _is_new(self, sender: bytes, number: int | None) -> bool:
        """Whether the other subscription has not brought it already."""
        if number is None:
            return True
        if sender not in self._numbers and len(self._numbers) >= NAMES:
            del self._numbers[next(iter(self._numbers))]
        before = self._numbers.get(sender, -1)
        self._numbers[sender] = max(number, before)
        return number > before

    def _hear(self, stop: bool, sender: bytes) -> None:
        if not stop:
            if len(self._released_by) < NAMES:
                self._released_by[sender] = None
            return
        self._released_by.clear()
        if not self.pressed:
            self._presser, who = sender, named(self._node, self.boxes[0].topic, sender)
            if self._leads:
                self.press(who)
            else:
                self._begin(who)

    def _begin(self, who: str) -> None:
        if not self.pressed:
            self.pressed, self.who = True, who
            self._act()

    def _end(self) -> None:
        self.pressed = False
        if self._said:
            self._say(False)  # our own word must not stop those who join later

    def _say(self, value: bool) -> None:
        self._said = value
        self._publisher.publish(Bool(data=value))

    def _asked(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.press("its service")
        response.success, response.message = True, "stopped; the supervisor's service `release` ends it"
        return response

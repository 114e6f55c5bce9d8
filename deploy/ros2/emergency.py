"""The latched emergency stop, as every node keeps it: whoever presses it, all stop, also those who join later."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from deploy.ros2 import topics
from deploy.ros2.polling import latched_quality


class EmergencyStop:
    """True on the topic `emergency_stop` stops, False releases. Only the supervisor's release counts as the end of it.

    The supervisor (`leads`) repeats what others press, so that it outlives their processes, and heeds no one's release.
    """

    def __init__(self, node: Node, service: str, pressed: Callable[[], None], leads: bool = False) -> None:
        """`pressed` is called in the executor's thread, once per emergency; `service` presses it."""
        self.pressed = False
        self._act, self._leads, self._said = pressed, leads, False
        self._publisher = node.create_publisher(Bool, topics.EMERGENCY, latched_quality())
        node.create_subscription(Bool, topics.EMERGENCY, self._heard, latched_quality())
        node.create_service(Trigger, service, self._asked)

    def press(self) -> None:
        """Stop, and tell everyone."""
        if not self._said:
            self._say(True)
        if not self.pressed:
            self.pressed = True
            self._act()

    def release(self) -> None:
        """The emergency is over."""
        self.pressed = False
        self._say(False)

    def _say(self, value: bool) -> None:
        self._said = value
        self._publisher.publish(Bool(data=value))

    def _heard(self, message: Bool) -> None:
        if message.data:
            if self._leads:
                self.press()
            elif not self.pressed:
                self.pressed = True
                self._act()
        elif not self._leads:
            self.pressed = False
            if self._said:
                self._say(False)  # our own word must not stop those who join later

    def _asked(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.press()
        response.success, response.message = True, "stopped; the supervisor's service `release` ends it"
        return response

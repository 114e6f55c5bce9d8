"""Stand-ins of launch_ros's lifecycle: nodes that are asked to change their state, and that tell of their transitions.

Needs rclpy, which is imported when the first such node starts.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.launching import events
from deploy.launching.ros import Node

LOOK = 0.02  # s between two looks at the topics
CONFIGURE, ACTIVATE = 1, 3  # lifecycle_msgs/msg/Transition


@dataclass(kw_only=True)
class ChangeState(events.Event):
    """Some lifecycle nodes are to make a transition, one of lifecycle_msgs.msg.Transition.TRANSITION_..."""

    lifecycle_node_matcher: Callable[[Any], bool]
    transition_id: int


class StateTransition(events.Event):
    """A lifecycle node has made a transition, or is making it."""

    def __init__(self, *, action: LifecycleNode, msg: Any) -> None:
        self.action, self.msg, self.timestamp = action, msg, msg.timestamp
        self.transition, self.start_state, self.goal_state = (
            part.label for part in (msg.transition, msg.start_state, msg.goal_state)
        )


def matches_node_name(node_name: str) -> Callable[[Any], bool]:
    """Whether a node is of that full name."""
    return lambda action: bool(action.node_name == "/" + node_name.removeprefix("/"))


class OnStateTransition(events.EventHandler):
    """When a lifecycle node makes a transition; what is None is not looked at."""

    def __init__(
        self,
        *,
        entities: Any,
        target_lifecycle_node: LifecycleNode | None = None,
        transition: str | None = None,
        start_state: str | None = None,
        goal_state: str | None = None,
        matcher: Callable[[Any], bool] | None = None,
        handle_once: bool = False,
    ) -> None:
        wanted = {
            "action": target_lifecycle_node,
            "transition": transition,
            "start_state": start_state,
            "goal_state": goal_state,
        }

        def matches(event: Any) -> bool:
            if not isinstance(event, StateTransition):
                return False
            return all(value is None or getattr(event, name) == value for name, value in wanted.items())

        super().__init__(matcher=matcher or matches, entities=entities, handle_once=handle_once)


@dataclass(eq=False, kw_only=True)
class LifecycleNode(Node):
    """A node whose state the launch follows and changes; it needs a name and a namespace."""

    name: Any
    namespace: Any
    autostart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked = [CONFIGURE] if self.autostart else []

    def execute(self, context: Any) -> None:
        super().execute(context)
        if not context.is_shutdown:
            context.start(self._follow(context))

    def answer(self, event: events.Event, context: Any) -> None:
        super().answer(event, context)
        if isinstance(event, ChangeState) and event.lifecycle_node_matcher(self):
            self._asked.append(event.transition_id)

    async def _follow(self, context: Any) -> None:
        """Pass on transitions and requests for them while the process runs."""
        import rclpy
        from lifecycle_msgs.msg import Transition, TransitionEvent
        from lifecycle_msgs.srv import ChangeState as Service
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.signals import SignalHandlerOptions

        def told(message: Any) -> None:
            context.emit_event_sync(StateTransition(action=self, msg=message))
            if self.autostart and message.transition.id == CONFIGURE and message.goal_state.label == "inactive":
                self._asked.append(ACTIVATE)

        ros = rclpy.Context()
        rclpy.init(args=[], context=ros, signal_handler_options=SignalHandlerOptions.NO)
        try:
            node = rclpy.create_node("launch_ros", context=ros)
            node.create_subscription(TransitionEvent, f"{self.node_name}/transition_event", told, 10)
            client: Any = node.create_client(Service, f"{self.node_name}/change_state")
            executor = SingleThreadedExecutor(context=ros)
            executor.add_node(node)
            while self in context.running:
                executor.spin_once(timeout_sec=0.0)
                if self._asked and client.service_is_ready():
                    number = self._asked.pop(0)
                    answer = client.call_async(Service.Request(transition=Transition(id=number)))
                    answer.add_done_callback(functools.partial(self._answered, context, number))
                await asyncio.sleep(LOOK)
        finally:
            rclpy.shutdown(context=ros)

    def _answered(self, context: Any, number: int, answer: Any) -> None:
        if not answer.result().success:
            said = f"Failed to make transition {number} for LifecycleNode '{self.node_name}'"
            context.logger.log("ERROR", self.final_name, said)

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
from deploy.launching.context import LaunchContext
from deploy.launching.ros import Node

LOOK = 0.02  # s between two looks at the topics


@dataclass(kw_only=True)
class ChangeState(events.Event):
    """Some lifecycle nodes are to make a transition, one of lifecycle_msgs.msg.Transition.TRANSITION_..."""

    lifecycle_node_matcher: Callable[[Any], bool]
    transition_id: int


@dataclass(kw_only=True)
class StateTransition(events.Event):
    """A lifecycle node has made a transition."""

    action: LifecycleNode
    goal_state: str


class OnStateTransition(events.EventHandler):
    """When a lifecycle node makes a transition."""

    def __init__(self, *, target_lifecycle_node: LifecycleNode, entities: Any) -> None:
        super().__init__(
            matcher=lambda e: isinstance(e, StateTransition) and e.action is target_lifecycle_node, entities=entities
        )


@dataclass(eq=False, kw_only=True)
class LifecycleNode(Node):
    """A node whose state the launch follows and changes; it needs a name and a namespace."""

    name: str
    namespace: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked: list[int] = []  # transitions still to be made

    def execute(self, context: LaunchContext) -> None:
        super().execute(context)
        context.register_event_handler(
            events.EventHandler(
                matcher=lambda e: isinstance(e, ChangeState) and e.lifecycle_node_matcher(self),
                entities=lambda event, _: self._asked.append(event.transition_id),
            )
        )
        context.start(self._follow(context))

    async def _follow(self, context: LaunchContext) -> None:
        """Pass on transitions and requests for them while the process runs."""
        import rclpy
        from lifecycle_msgs.msg import Transition, TransitionEvent
        from lifecycle_msgs.srv import ChangeState as Service
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.signals import SignalHandlerOptions

        def told(message: Any) -> None:
            context.emit_event_sync(StateTransition(action=self, goal_state=message.goal_state.label))

        ros = rclpy.Context()
        rclpy.init(args=[], context=ros, signal_handler_options=SignalHandlerOptions.NO)
        try:
            node = rclpy.create_node("launch_ros", context=ros)
            node.create_subscription(TransitionEvent, f"{self.node_name}/transition_event", told, 10)
            client: Any = node.create_client(Service, f"{self.node_name}/change_state")
            executor = SingleThreadedExecutor(context=ros)
            executor.add_node(node)
            while self.running:
                executor.spin_once(timeout_sec=0.0)
                if self._asked and client.service_is_ready():
                    number = self._asked.pop(0)
                    answer = client.call_async(Service.Request(transition=Transition(id=number)))
                    answer.add_done_callback(functools.partial(self._answered, context, number))
                await asyncio.sleep(LOOK)
        finally:
            rclpy.shutdown(context=ros)

    def _answered(self, context: LaunchContext, number: int, answer: Any) -> None:
        if not answer.result().success:
            said = f"Failed to make transition {number} for LifecycleNode '{self.node_name}'"
            context.log.say("ERROR", self.executable_name(), said)

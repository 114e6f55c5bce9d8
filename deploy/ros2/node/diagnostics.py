"""One line of /diagnostics per node and second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from deploy.ros2.node.subscriptions import every

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
Status = tuple[bytes, str, Mapping[str, Any]]  # level, message, values


class Diagnostics:
    """Publishes what `look` returns."""

    def __init__(self, node: Node, hardware: str, look: Callable[[], Status]) -> None:
        self.node, self.hardware, self.look = node, hardware, look
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        every(node, 1.0, self.publish)

    def publish(self) -> None:
        """Now, also between seconds."""
        level, message, values = self.look()
        pairs = [KeyValue(key=key, value=f"{v:.4g}" if isinstance(v, float) else str(v)) for key, v in values.items()]
        status = DiagnosticStatus(
            level=level,
            name=self.node.get_fully_qualified_name(),
            message=message,
            hardware_id=self.hardware,
            values=pairs,
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.node.get_clock().now().to_msg()
        self._publisher.publish(array)

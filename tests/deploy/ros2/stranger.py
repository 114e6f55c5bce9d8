"""A stranger on the graph, as a process: `python -m tests.deploy.ros2.stranger HZ KIND ...` says what it may not."""

import signal
import sys
import time
from typing import Any

import rclpy
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import BatteryState
from std_msgs.msg import Bool, Float64MultiArray, String, UInt8MultiArray

from deploy.ros2.topics import command_message
from sim.spec import Signal

NAN = float("nan")
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def lost() -> Odometry:
    """A state that is nowhere."""
    message = Odometry()
    message.pose.pose.position.x = NAN
    return message


# by name: topic, message, quality
KINDS: dict[str, tuple[str, Any, Any]] = {
    "arms": ("armed", lambda: Bool(data=True), 1),
    "disarms": ("armed", lambda: Bool(data=False), 1),
    "releases": ("emergency_stop", lambda: Bool(data=False), LATCHED),
    "commands": ("command", lambda: command_message(Signal("motor_command", (4,)), [0.9, 0.1, 0.9, 0.1]), 1),
    "three": ("command", lambda: command_message(Signal("motor_command", (3,)), [0.5] * 3), 1),
    "garbage": ("command", lambda: Float64MultiArray(data=[1e300] * 40), 1),
    "lost": ("odometry", lost, 1),
    "empty": ("battery", lambda: BatteryState(voltage=0.1), 1),
    "stopped": ("state", lambda: String(data="stopped: so says a stranger"), LATCHED),
    "silence": ("heartbeat", lambda: Bool(data=False), 1),
    "beats": ("armed_beat", lambda: UInt8MultiArray(data=bytes(150)), 1),
}


def main() -> None:
    """Until it is interrupted; then it leaves the graph."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started it in the background had it ignored
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Node("stranger")
    period = 1.0 / float(sys.argv[1])
    kinds = [KINDS[name] for name in sys.argv[2:]]
    sends = [(node.create_publisher(type(made()), topic, quality), made()) for topic, made, quality in kinds]
    due = time.monotonic()
    try:
        while True:
            for publisher, message in sends:
                publisher.publish(message)
            due = max(due + period, time.monotonic() - 0.1)
            time.sleep(max(due - time.monotonic(), 0.0))
    except KeyboardInterrupt:
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main()

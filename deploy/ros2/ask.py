"""python -m deploy.ros2.ask do=arm|disarm|release [key=FILE] [namespace=NAME]: ask a supervisor, signed with its key.

Without a key, its services `arm` and `release` are called, as `ros2 service call` does.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy import cli
from deploy.ros2.arming.signed import NONCE, VERBS, Request, Verifier, read_key
from deploy.ros2.node import network
from deploy.system.clock import boottime
from deploy.trust.text import printable

AGAIN = 0.2  # s between two attempts


@dataclass
class Config:
    """Settings."""

    do: str = field(metadata={"help": f"one of: {', '.join(VERBS)}"})
    key: str | None = field(default=None, metadata={"help": "the supervisor's key file (default: it has none)"})
    namespace: str = field(default="", metadata={"help": "of the supervisor"})
    patience: float = field(default=5.0, metadata={"help": "s to wait for the answer"})

    def __post_init__(self) -> None:
        if self.do not in VERBS:
            raise ValueError(f"do={self.do} is not one of {', '.join(VERBS)}")
        if not 0.0 < self.patience <= 600.0:
            raise ValueError(f"patience={self.patience:g} is not in 0 .. 600 s")


def main(argv: Sequence[str]) -> None:
    """Ask, and print the answer; ValueError when there is none, or it is no."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    secret = read_key(config.key) if config.key else None
    rclpy = network.middleware("deploy.ros2.ask")
    rclpy.init()
    try:
        node = rclpy.create_node("ask", namespace=config.namespace or None)
        once = functools.partial(rclpy.spin_once, node, timeout_sec=0.02)
        done, answer = signed(node, config, secret, once) if secret else called(node, config, once)
    finally:
        rclpy.try_shutdown()
    if not done:
        raise ValueError(f"{config.do}: {printable(answer)}")
    print(printable(answer))


def _until(spin: Callable[[], None], seconds: float, condition: Callable[[], Any]) -> bool:
    """Spin until the condition holds, or the time is over."""
    end = boottime() + seconds
    while not condition():
        if boottime() > end:
            return False
        spin()
    return True


def called(node: Any, config: Config, spin: Callable[[], None]) -> tuple[bool, str]:
    """By service: whether it was done, and the answer."""
    from std_srvs.srv import SetBool, Trigger

    release = config.do == "release"
    client = node.create_client(Trigger, "release") if release else node.create_client(SetBool, "arm")
    if not _until(spin, config.patience, client.service_is_ready):
        return False, f"nobody offers the service {client.service_name} {_where()}"
    future = client.call_async(Trigger.Request() if release else SetBool.Request(data=config.do == "arm"))
    if not _until(spin, config.patience, future.done):
        return False, "the supervisor does not answer"
    return future.result().success, future.result().message


def _where() -> str:
    return (
        f"({network.RANGE}={os.environ.get(network.RANGE, '')}, ROS_DOMAIN_ID={os.environ.get('ROS_DOMAIN_ID', '0')})"
    )


def signed(node: Any, config: Config, secret: bytes, spin: Callable[[], None]) -> tuple[bool, str]:
    """By a request that is signed for this session of the supervisor: whether it was done, and the answer."""
    from std_msgs.msg import String, UInt8MultiArray

    from deploy.ros2 import topics
    from deploy.ros2.node.subscriptions import command_quality, sensor_quality

    requests = node.create_publisher(UInt8MultiArray, topics.REQUEST, command_quality())
    challenges = node.create_publisher(UInt8MultiArray, topics.CHALLENGE, command_quality())
    verifier = Verifier(secret, node.resolve_topic_name(topics.BEAT), 1.0)
    answers: dict[str, str] = {}

    def heard(message: Any) -> None:
        verifier.accepts(bytes(message.data), boottime())

    node.create_subscription(UInt8MultiArray, topics.BEAT, heard, sensor_quality())
    node.create_subscription(
        String, topics.ANSWER, lambda m: answers.update([m.data.partition(" ")[::2]]), command_quality(depth=10)
    )
    node.create_timer(AGAIN, lambda: verifier.session or challenges.publish(UInt8MultiArray(data=verifier.challenge)))
    if not _until(spin, config.patience, lambda: verifier.session):
        refused = ", ".join(verifier.refused) or f"nothing is heard {_where()}"
        return False, f"no supervisor with this key: {refused}"
    once = os.urandom(NONCE)

    def ask() -> None:
        request = Request(verifier.session, verifier.number, config.do, once)
        requests.publish(UInt8MultiArray(data=request.sealed(secret, requests.topic_name)))

    timer = node.create_timer(AGAIN, ask)
    if not _until(spin, config.patience, lambda: once.hex() in answers):
        return False, "the supervisor does not answer"
    timer.cancel()
    yes, _, text = answers[once.hex()].partition(" ")
    return yes == "yes", text


if __name__ == "__main__":
    sys.exit(cli.call(main))

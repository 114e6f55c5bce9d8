"""Robot, supervisor and policy as processes on topics: flights, and every fault in flight with its safe end state."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from rclpy.publisher import Publisher
from std_msgs.msg import Bool, Float64MultiArray, String

from deploy.ros2 import topics
from deploy.ros2.arming.interlock import LADDER
from deploy.ros2.node.subscriptions import command_quality, latched_quality
from sim.spec import Signal
from tests.deploy.ros2.bench import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, GENTLE, MOTORS, Graph, flown_again, graph

pytestmark = pytest.mark.timed


def test_lifecycle_and_hover(lab: Graph):
    assert lab.state == "inactive"
    assert not lab.change(ACTIVATE) and lab.state == "inactive"  # not armed
    lab.until(lambda: "not armed" in lab.says("policy"), "the reason")
    lab.fly()
    assert lab.state == "active"
    since = time.monotonic()

    def hovers() -> bool:
        nonlocal since
        since = since if lab.away() < 0.1 else time.monotonic()
        return time.monotonic() - since > 1.5

    lab.until(hovers, "within 0.1 m of the target for 1.5 s")
    lab.until(lambda: lab.says("policy") == "flying", "diagnostics")
    values = {v.key: v.value for v in lab.status["policy"].values}
    assert float(values["steps"]) > 50 and float(values["latency_p50_ms"]) < 20.0 and values["guard"] == "none"
    began = time.monotonic()
    assert lab.change(DEACTIVATE) and lab.state == "inactive"
    lab.landed_within(12.0, began)
    assert not lab.armed()
    assert lab.change(CLEANUP) and lab.state == "unconfigured"
    assert not lab.change(ACTIVATE)
    assert lab.change(CONFIGURE)


@pytest.mark.parametrize("way", ["topic", "supervisor", "policy"])
def test_emergency_stop_in_flight(lab: Graph, way: str):
    lab.fly()
    began = time.monotonic()
    if way == "topic":
        publisher = lab.node.create_publisher(Bool, "emergency_stop", latched_quality())
        lab.until(lambda: publisher.get_subscription_count() >= 3, "found by all")
        began = time.monotonic()
        publisher.publish(Bool(data=True))
    else:
        assert lab.trigger("emergency_stop" if way == "supervisor" else "policy/emergency_stop").success
    lab.until(lab.inactive, "the flight is over")
    lab.stopped_within(1.0, began)
    assert lab.arm().message.startswith("emergency stop")
    assert not lab.change(ACTIVATE)
    if way == "topic":
        lab.node.destroy_publisher(publisher)
    assert lab.trigger("release").success
    lab.until(lambda: lab.arm().success, "armed again")


def test_emergency_stop_works_in_every_state_and_for_those_who_join_later(lab: Graph):
    assert lab.change(CLEANUP)
    assert lab.trigger("policy/emergency_stop").success  # while unconfigured
    lab.until(lambda: lab.heard["emergency_stop"][1].data, "it is told")
    late = Graph(domain=lab.domain)
    try:
        late.until(lambda: "emergency_stop" in late.heard and late.heard["emergency_stop"][1].data, "the last word")
    finally:
        late.close()
    assert lab.change(CONFIGURE)
    assert not lab.arm().success and not lab.change(ACTIVATE)
    assert lab.trigger("release").success
    lab.fly()


def test_a_human_overrides_and_the_policy_does_not_come_back(lab: Graph):
    lab.fly()
    publisher = lab.node.create_publisher(Float64MultiArray, "override/command", command_quality())
    lab.until(lambda: publisher.get_subscription_count() >= 3, "found by robot, policy and supervisor")
    wanted = [0.61] * 4

    def human() -> bool:
        publisher.publish(topics.command_message(MOTORS, np.array(wanted)))
        lab.rest(0.02)
        return bool(np.allclose(lab.heard["executed/command"][1].data, wanted, atol=1e-6))

    assert lab.until(human, "the motors obey the human") < 1.0
    lab.until(lambda: human() and lab.inactive(), "the policy has stepped back")
    for _ in range(5):
        assert human() and lab.armed()
    lab.node.destroy_publisher(publisher)
    lab.until(lambda: lab.states[-1] == "holding: override ended", "it goes down the ladder")
    lab.until(lambda: not lab.armed(), "disarmed")
    assert lab.inactive()


def test_a_second_publisher_of_commands_keeps_a_flight_from_beginning(lab: Graph):
    with commanding(lab):
        lab.until(lambda: lab.arm().success, "armed")  # it is the only one so far
        lab.rest(0.5)
        lab.refused("command has a publisher already: /bench")


@contextmanager
def commanding(lab: Graph) -> Iterator[Publisher]:
    """A publisher of commands, found by its subscribers."""
    publisher = lab.node.create_publisher(Float64MultiArray, "command", command_quality())
    try:
        lab.until(publisher.get_subscription_count, "found")
        yield publisher
    finally:
        lab.node.destroy_publisher(publisher)


def test_who_would_command_beside_another_is_not_armed(lab: Graph):
    def refused() -> bool:
        """Once the supervisor has found both; before, it arms."""
        answer = lab.arm()
        if answer.success:
            lab.arm(False)
            lab.until(lambda: not lab.armed(), "disarmed")
        return "two publishers" in answer.message

    with commanding(lab):
        with commanding(lab):
            lab.until(refused, "refused")
            lab.rest(0.3)
            assert not lab.armed()
        lab.until(lambda: lab.arm().success, "armed")


def test_of_two_who_command_at_once_the_first_is_obeyed(lab: Graph):
    """The robot itself tells them apart, without the policy's or the supervisor's help, also when both are in step."""
    with commanding(lab) as first:
        lab.until(lambda: lab.arm().success, "armed")
        lab.until(lambda: lab.says("robot") == "armed", "heard by the robot")  # which is not armed under commands
        lab.until(lambda: commanded(lab, [(first, 0.3)]) == 0.3, "the first is obeyed")
        with commanding(lab) as second:
            for _ in range(20):
                assert commanded(lab, [(second, 0.9), (first, 0.3), (second, 0.9)]) == 0.3
            lab.until(
                lambda: (
                    commanded(lab, [(first, 0.3)]) == 0.3
                    and any(v.value.startswith("two publishers on /command") for v in lab.status["robot"].values)
                ),
                "the robot names them",
            )


def commanded(lab: Graph, said: list[tuple[Publisher, float]]) -> float:
    """What the motors get, shortly after all that was published."""
    for publisher, value in said:
        publisher.publish(topics.command_message(MOTORS, np.full(4, value)))
    lab.rest(0.02)
    return round(float(lab.heard["executed/command"][1].data[0]), 6)


def test_commands_that_make_no_sense_are_ignored(lab: Graph):
    nameless = Float64MultiArray(data=[0.5] * 4)
    three = topics.command_message(Signal("motor_command", (3,)), np.full(3, 0.5))
    infinite = topics.command_message(MOTORS, np.full(4, np.inf))
    lab.until(lambda: "robot" in lab.status, "diagnostics")
    with commanding(lab) as publisher:
        lab.until(lambda: lab.arm().success, "armed")
        lab.rest(0.4)  # who commanded before is heard no more

        def ignored() -> bool:
            for message in (nameless, three, infinite):
                publisher.publish(message)
                lab.rest(0.1)
            return sum(v.key.startswith("ignored") for v in lab.status["robot"].values) == 3

        lab.until(ignored, "all three are ignored, and counted")
    assert not any(lab.heard["executed/command"][1].data)


def test_an_empty_battery_is_not_armed(lab: Graph):
    assert lab.break_robot("battery")
    lab.until(lambda: "the battery has 3.05 V, less than 3.5 V" in lab.arm().message, "refused")


# Each of these leaves a graph that nobody can use any more.
@flown_again
def test_a_policy_that_hangs_then_one_that_is_killed():
    with graph(supervisor=GENTLE) as lab:
        lab.ready()
        lab.hover()
        began, process = time.monotonic(), lab.processes["policy"]
        os.kill(process.pid, signal.SIGSTOP)
        lab.landed_within(10.0, began)
        assert not lab.armed()
        os.kill(process.pid, signal.SIGCONT)
        lab.until(lab.inactive, "it knows that its flight is over")
        lab.rest(0.3)
        assert not any(lab.heard["executed/command"][1].data)
        lab.ready()
        lab.hover()
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        lab.until(lambda: not lab.armed(), "disarmed")
        lab.landed_within(10.0, began)
        assert "commands lost" in lab.says("supervisor")  # which the robot tells


@flown_again
def test_a_killed_simulator_then_a_killed_supervisor():
    with graph(supervisor=GENTLE) as lab:
        lab.ready()
        lab.fly()
        began = time.monotonic()
        lab.processes["robot"].send_signal(signal.SIGKILL)
        lab.processes["robot"].wait()
        lab.until(lambda: not lab.armed(), "disarmed")
        lab.until(lab.inactive, "the policy gives up")
        assert time.monotonic() - began < 15.0
        lab.start("robot", silence_s=1.0, hold_s=0.3)
        lab.until(lambda: lab.heard["odometry"][0] > began + 1.0 and lab.position()[2] < 0.01, "another robot")
        lab.hover()
        began = time.monotonic()
        lab.processes["supervisor"].send_signal(signal.SIGKILL)
        lab.landed_within(12.0, began)
        lab.until(lab.inactive, "the policy gives up")


@flown_again
def test_a_robot_without_a_flight_controller_is_landed_before_the_node_steps_back():
    """It tells no `state`: nobody would fly it on. The node deactivates, or ends, once it is down."""
    with graph(robot={"remap": "state:=untold"}, supervisor=GENTLE) as lab:
        alone: list[tuple[str, float]] = []  # when its own interlock had to take over, and how high that was

        def hear(message: String) -> None:
            if message.data.startswith(LADDER):
                alone.append((message.data, lab.position()[2]))

        lab.node.create_subscription(String, "untold", hear, latched_quality())
        lab.ready()
        lab.hover()
        began = time.monotonic()
        assert not lab.change(DEACTIVATE)
        lab.until(lambda: lab.says("policy") == "failsafe land: asked to land", "it says so")
        lab.landed_within(12.0, began)
        lab.until(lab.inactive, "now it is over")
        assert "deactivated" in lab.says("policy")
        lab.ready()
        lab.hover()
        began, process = time.monotonic(), lab.processes["policy"]
        process.send_signal(signal.SIGTERM)
        lab.landed_within(12.0, began)
        assert process.wait(60.0) == 0
        assert not alone

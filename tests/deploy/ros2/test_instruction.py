"""A policy that is told in words, on topics: who is listened to, what is refused, and when a new sentence counts."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import String

from deploy.recording.flight_log import read
from deploy.ros2.node.subscriptions import latched_quality
from tests.deploy.ros2.bench import ACTIVATE, CONFIGURE, DEACTIVATE, GENTLE, Graph, graph, ros_arguments, spawn
from tests.deploy.told_policy import obedient

pytestmark = pytest.mark.timed

REACH = {"task": "arm_reach"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the policy, and of its flights' logs."""
    return tmp_path_factory.mktemp("flights")


@pytest.fixture(scope="module")
def told(folder: Path) -> Iterator[Graph]:
    """An arm, its supervisor, and a policy that was told nothing, whose flights are logged."""
    policy = {"policy": obedient(folder / "told.onnx").path, "silence_s": 2.0, "log": str(folder)}
    supervisor = {**GENTLE, "watch": "hand_pose", "silence_s": 2.0, "min_voltage": 0.0, "land_voltage": 0.0}
    with graph(robot=REACH, supervisor=supervisor, policy=policy) as made:
        assert made.change(CONFIGURE)
        yield made


@pytest.fixture
def arm(told: Graph) -> Iterator[Graph]:
    """It stands, armed; what was said before may still hold."""
    told.until(lambda: told.arm().success, "armed")
    yield told
    if told.state == "active":
        told.change(DEACTIVATE)


def speaker(arm: Graph, node: Node | None = None) -> Publisher:
    made = (node or arm.node).create_publisher(String, "instruction", latched_quality())
    arm.until(made.get_subscription_count, "heard")
    return made


def values(arm: Graph) -> dict[str, str]:
    """The policy node's diagnostics."""
    status = arm.status.get("policy")
    return {v.key: v.value for v in status.values} if status else {}


def sideways(arm: Graph) -> float:
    """m/s to the left: what the hand is told to do."""
    return float(arm.heard["executed/command"][1].data[1]) if "executed/command" in arm.heard else 0.0


def fly(arm: Graph) -> None:
    arm.until(lambda: (arm.arm().success and arm.change(ACTIVATE)) or arm.rest(0.2), "active")


def test_it_waits_until_somebody_says_what_to_do(arm: Graph):
    assert not arm.change(ACTIVATE)
    assert "/instruction: nothing was said; it waits for a sentence" in arm.says("policy")
    said = speaker(arm)
    for sentence, why in (
        ("", "has no words"),
        ("dance", "unknown word: 'dance'"),
        ("please go left left left left left", "takes 9 tokens, and 6 are the most"),
        ("left " * 100, "has 500 characters, and 200 are the most"),
        ("left\x1b[2J\u202e", "has an unknown word"),
    ):
        said.publish(String(data=sentence))
        arm.until(lambda why=why: why in values(arm).get("instruction refused", ""), why)
        assert values(arm)["instruction refused"].isprintable() and not arm.change(ACTIVATE)
    said.publish(String(data="please go left"))
    arm.until(lambda: values(arm).get("instruction") == "please go left", "understood")
    assert "instruction refused" not in values(arm)
    arm.node.destroy_publisher(said)


def test_a_new_sentence_counts_from_the_next_plan_and_a_bad_one_leaves_the_last(arm: Graph):
    said = speaker(arm)
    said.publish(String(data="left"))
    fly(arm)
    arm.until(lambda: sideways(arm) > 0.1, "to the left")
    said.publish(String(data="right"))
    arm.until(lambda: sideways(arm) < -0.1, "to the right", 2.0)
    said.publish(String(data="dance\x1b[31m"))
    arm.until(lambda: "unknown word" in values(arm).get("instruction refused", ""), "refused")
    assert values(arm)["instruction"] == "right" and sideways(arm) < -0.1 and arm.state == "active"
    said.publish(String(data="stop"))
    arm.until(lambda: abs(sideways(arm)) < 1e-6, "stopped", 2.0)
    arm.node.destroy_publisher(said)


def test_in_flight_a_stranger_tells_it_nothing_and_is_named(arm: Graph, folder: Path):
    said = speaker(arm)
    said.publish(String(data="left"))
    fly(arm)
    arm.until(lambda: sideways(arm) > 0.1, "to the left")
    other = Node("stranger", context=arm.context)
    stranger = speaker(arm, other)
    try:
        for _ in range(20):
            stranger.publish(String(data="right"))
            arm.rest(0.05)
        arm.until(lambda: any("/instruction: " in v and "/stranger" in v for v in values(arm).values()), "named")
        assert sideways(arm) > 0.1 and values(arm)["instruction"] == "left"
        arm.node.destroy_publisher(said)  # once the first has left, another may follow

        def right() -> bool:
            stranger.publish(String(data="right"))
            arm.rest(0.1)
            return sideways(arm) < -0.1

        arm.until(right, "to the right")
        assert arm.change(DEACTIVATE)
    finally:
        other.destroy_node()
    events = read(str(max(folder.glob("*.mcap"), key=lambda path: path.stat().st_mtime))).events
    told = [(event.text, event.who) for event in events if event.text.startswith("told: ")]
    assert told == [("told: left", "/bench"), ("told: right", "/stranger")]
    assert "battery" not in {event.kind for event in events}  # it has none


def test_a_log_whose_writer_stands_still_breaks_no_flight_down(arm: Graph):
    said = speaker(arm)
    said.publish(String(data="left"))
    fly(arm)
    arm.until(lambda: sideways(arm) > 0.1, "to the left")
    (writer,) = children(arm.processes["policy"].pid, "deploy.recording.writer")
    os.kill(writer, signal.SIGSTOP)
    assert arm.change(DEACTIVATE) and arm.state == "inactive"
    assert "the flight log is incomplete: " in values(arm)["log"]
    arm.node.destroy_publisher(said)


def children(process: int, module: str) -> list[int]:
    """Processes that it has begun with that module."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process and module in (folder / "cmdline").read_text().split("\0"):
                found.append(int(folder.name))
    return found


def test_the_first_sentence_may_be_a_parameter(arm: Graph, tmp_path: Path):
    file = obedient(tmp_path / "told.onnx").path
    for sentence, why in (
        ("dance", "unknown word: 'dance'"),
        ("please, left", "unknown word: ','"),
        ("please left", ""),
    ):
        beside = {"server": "process"}  # where its plans are made, which is no difference here
        words = ros_arguments("/apart", policy=file, instruction=sentence, autostart=True, armed=False, **beside)
        node = spawn("deploy.ros2.policy_node", *words, domain=arm.domain, stderr=subprocess.PIPE)
        if why:
            assert why in node.communicate(timeout=120.0)[1] and node.returncode != 0
            continue
        arm.until(lambda: values(arm).get("instruction") == "please left", "told")
        node.terminate()
        assert "instruction" not in node.communicate(timeout=120.0)[1]  # it waits for topics, not for a sentence


def test_who_is_told_nothing_in_words_refuses_a_sentence(arm: Graph):
    words = ros_arguments("/apart", policy="quad_any", instruction="left", autostart=True)
    node = spawn("deploy.ros2.policy_node", *words, domain=arm.domain, stderr=subprocess.PIPE)
    assert "is told nothing in words" in node.communicate(timeout=120.0)[1] and node.returncode != 0

"""A football robot on ROS 2: the simulated game behind its topics, and one that is played between processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.policy_file import PolicyFile
from deploy.ros2 import topics
from deploy.ros2.pictures import decode
from deploy.ros2.ros2_control import Joints, command_sources, joint_sources
from deploy.ros2.simulation.game import Game
from deploy.ros2.simulation.robot import world
from deploy.safety.limits import limits_of
from sim.env import lens_of, view_of
from sim.spec import Signal, pack
from sim.tasks import make
from tests.deploy.ros2.bench import ROOT, Graph, graph, spawn
from tests.deploy.ros2.domain import own_domain
from tests.deploy.sample_policy import exported
from tests.deploy.vision_policy import seeing


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> PolicyFile:
    return exported(tmp_path_factory.mktemp("seeing") / "seeing.onnx", seeing(make("soccer_vision_1v1")))


def text(settings: dict) -> str:
    """As the robot node takes them."""
    return ",".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def game(**settings) -> Game:
    made = world("", "soccer_vision_1v1", "", "", 500.0, 3, text(settings))
    assert isinstance(made, Game)
    return made


def test_a_race_among_others_is_a_game_without_a_pitch():
    made = world("", "car_race_multi", "", "", 500.0, 3, text({"tracks": 2, "steps": 5, "opponent": "slow"}))
    assert isinstance(made, Game)
    assert {s.name for s in made.task.policy} <= set(made.read()) and "odometry" not in made.read()
    for _ in range(5):
        made.step(np.array([0.0, 1.0], np.float32), moving=True)
    assert made.result == "drawn" and made.scores()["place"] == 3.0


def test_a_game_waits_until_the_robot_is_driven_and_has_an_end():
    played = game(opponent="still", steps=5)
    stands = np.zeros(4, np.float32)
    before = played.read()
    for _ in range(10):
        played.step(stands, moving=False)
    assert played.time == 0.0 and not played.over and played.scores() == {}
    for name, value in played.read().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    for _ in range(5):
        assert not played.over
        played.step(stands, moving=True)
    assert played.over == "the game is over: drawn" and played.result == "drawn"
    assert played.scores()["duration"] == 0.25 and played.status()["result"] == "drawn"
    played.step(stands, moving=True)
    assert played.time == pytest.approx(0.25)
    played.reset()
    assert not played.over and played.status()["game"] == 1 and played.time == 0.0
    played.close()


def test_a_game_is_the_one_that_evaluation_plays(policy: PolicyFile):
    """The same picture and the same end for the same seed, driven by the policy without any ROS 2 between."""
    played = game(opponent="chaser")
    driver = Simulated(make("soccer_vision_1v1"), 1, seed=3)
    policy.reset(1)
    with driver:
        while not driver.done and driver._step < driver.task.episode_steps:
            seen, ours = driver.read().signals, played.read()
            for signal in policy.inputs:
                np.testing.assert_array_equal(ours[signal.name], seen[signal.name][0], err_msg=signal.name)
            commands = policy.step(seen)
            driver.write(commands)
            played.step(pack(driver.commands, commands)[0], moving=True)
    assert played.over and played.scores() == {name: float(v[0]) for name, v in driver.scores().items()}
    assert played.result == {0.0: "lost", 1.0: "won"}[float(driver.scores()["success"][0])]
    played.close()


def test_its_wheels_count_from_where_it_began():
    played = game(opponent="still", vary=False)
    np.testing.assert_allclose(played.read()["odometry"], [0.0, 0.0, 1.0, 0.0], atol=1e-6)
    for _ in range(20):
        played.step(np.array([0.5, 0.0, 0.0, 0.0], np.float32), moving=True)
    x, y, cos, _ = played.read()["odometry"]
    assert 0.3 < x < 0.55 and abs(y) < 0.01 and cos > 0.999  # straight ahead, whichever way it looked
    played.close()


def test_a_larger_camera_averaged_down_shows_what_the_policy_saw():
    small, large = (game(vary=False, height=30 * k, width=40 * k) for k in (1, 16))
    source = topics.image_source(next(s for s in large.signals if s.is_picture))
    message = source.message()
    source.fill(message, large.read())
    assert (message.width, message.height, message.encoding) == (640, 480, "rgb8")
    off = np.abs(decode(message, 30, 40, resize=True).astype(int) - small.read()["camera"])
    assert off.mean() < 3.0 and (off > 40).mean() < 0.02  # edges of coverage and of averaging differ a little
    task = make("soccer_vision_1v1")
    assert large.view == small.view == task.lens.view == view_of(task)
    assert large.lens == small.lens == task.lens.kind == lens_of(task)
    for one in (small, large):
        one.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("opponent=nobody", "opponent 'nobody' is not one of"),
        ("oponent=still", "oponent"),
        ("height=0", "1 to 1000 rows and columns"),
        ("height=30, view=500", "a camera sees 1 to 170 degrees"),
        ("height=high", "height"),
        ("height", "are not like opponent=slow,steps=200"),
        ("steps=3,steps=4", "are not like opponent=slow,steps=200"),
    ],
)
def test_settings_that_make_no_sense(settings: str, complaint: str):
    with pytest.raises(ValueError, match=complaint) as caught:
        world("", "soccer_vision_1v1", "", "", 500.0, 0, settings)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("twist", ["twist", "twist_stamped"])
@pytest.mark.parametrize("way", ["forward", "trajectory"])
@pytest.mark.parametrize("robot", ["differential", "omni"])
def test_commands_and_back(robot: str, way: str, twist: str):
    task = make("soccer_vision_1v1", robot=robot)
    sinks = command_sources(task.commands, Joints(task.robot.name), way, 0.05, twist)
    pan = "pan_controller/" + {"forward": "commands", "trajectory": "joint_trajectory"}[way]
    assert [sink.topic for sink in sinks] == ["cmd_vel", "command/kick", pan]
    values = {s.name: np.linspace(0.1, 0.9, s.size) for s in task.commands}
    read = {}
    for sink in sinks:
        message = sink.message()
        sink.fill(message, values)
        read |= sink.read(message)
    assert read.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(read[name], value)
    (base, *_) = sinks
    message = base.message()
    base.fill(message, values)
    told = message.twist if twist == "twist_stamped" else message
    assert told.linear.x == 0.1 and told.linear.y == (0.9 if robot == "omni" else 0.0) and told.angular.z == 0.1
    with pytest.raises(topics.TopicError, match="twist 'servo' is not one of twist, twist_stamped"):
        command_sources(task.commands, Joints(""), way, 0.05, "servo")


def test_topics_of_a_policy_that_sees(policy: PolicyFile):
    joints = Joints.parse(policy.robot, "", "")
    found = {s.topic: s for s in topics.sources(policy.inputs, joint_sources(policy.inputs, joints))}
    assert [*found] == ["camera/image_raw", "odometry", "signals/ready", "joint_states"]
    message = found["joint_states"].message()
    found["joint_states"].fill(message, {"pan": np.array([0.7])})
    message.name, message.position = ["wheel", *message.name], [9.0, *message.position]
    message.velocity = message.effort = []
    assert message.name[1] == "pan_joint" and found["joint_states"].read(message)["pan"].tolist() == [0.7]
    (named,) = joint_sources(policy.inputs, Joints.parse(policy.robot, "neck", ""))
    with pytest.raises(topics.TopicError, match="it has no joint 'neck'; there are: wheel, pan_joint"):
        named.read(message)
    with pytest.raises(topics.TopicError, match="the policy's camera has one joint, named are 2: a, b"):
        joint_sources(policy.inputs, Joints.parse(policy.robot, "a,b", ""))
    arm = (*policy.inputs, Signal("joint_position", (2,), "rad"))
    (both,) = joint_sources(arm, Joints.parse("x", "a,b", ""))
    message = both.message()
    both.fill(message, {"joint_position": np.array([1.0, 2.0]), "pan": np.array([0.3])})
    assert list(message.name) == ["a", "b", "pan_joint"] and list(message.position) == [1.0, 2.0, 0.3]


def test_its_limits_are_its_own():
    for robot in ("differential", "omni"):
        task = make("soccer_vision_1v1", robot=robot)
        limits = limits_of(task.robot.name)
        assert limits.source == "listed with the robot" and limits.ranges.keys() == {s.name for s in task.commands}
        for s in task.commands:  # no task asks for more
            low, high = limits.ranges[s.name]
            assert low <= s.low and s.high <= high and limits.safe[s.name] == ((0.0,) * s.size,)


CALM = {"fence": 0.0, "max_tilt": 0.0, "max_speed": 0.0, "min_voltage": 0.0, "land_voltage": 0.0}


def field(policy: PolicyFile, settings: dict, **more):
    """The nodes of a game."""
    robot = {"policy": policy.path, "settings": text(settings).replace('"', ""), "hold_s": 0.8}
    return graph(robot=robot, supervisor=CALM, policy={"policy": policy.path, "autostart": True, **more})


def says(lab: Graph, node: str) -> dict[str, str]:
    return {v.key: v.value for v in lab.status[node].values} if node in lab.status else {}


@pytest.mark.timed
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("silent:camera/image_raw", "stale signal"),
        pytest.param("frozen:camera/image_raw", "stale signal", marks=pytest.mark.long),
        pytest.param("truncated", "stale signal", marks=pytest.mark.long),
        ("encoding", "stale signal"),
        ("nan:signals/ready", "non-finite signal"),
    ],
)
def test_a_camera_that_fails_in_a_game_stops_the_robot(policy: PolicyFile, fault: str, reason: str):
    with field(policy, {"opponent": "still", "steps": 10_000}) as lab:
        lab.until(lambda: lab.arm().success, "armed")
        lab.until(lambda: lab.says("policy") == "flying", "it plays")
        assert lab.break_robot(fault)
        lab.until(lambda: lab.says("policy") == f"guard: {reason}", reason)
        began = time.monotonic()
        lab.until(lambda: time.monotonic() - lab.turning > 0.5, "it stands")
        assert lab.turning - began < 1.0
        lab.until(lambda: not lab.armed(), "disarmed")


@pytest.mark.timed
def test_a_covered_lens_is_told_and_a_human_may_end_it(policy: PolicyFile):
    with field(policy, {"opponent": "still", "steps": 10_000}) as lab:
        lab.until(lambda: lab.arm().success, "armed")
        lab.until(lambda: lab.says("policy") == "flying", "it plays")
        assert lab.break_robot("black")
        lab.until(lambda: says(lab, "policy").get("camera", "").startswith("all its pixels are alike"), "it is told")
        assert lab.says("policy") == "flying" and lab.armed()
        assert lab.trigger("policy/emergency_stop").success
        lab.until(lab.inactive, "stopped")


@pytest.mark.timed
def test_a_camera_of_another_kind_keeps_it_from_starting(policy: PolicyFile):
    """Too many pixels, or another lens than the policy's; averaged down, and seen as far across, it plays."""
    large = {"opponent": "still", "steps": 10_000, "width": 80, "height": 60}
    with field(policy, large) as lab:
        lab.until(lambda: lab.arm().success, "armed")
        lab.refused("/camera/image_raw carries something that cannot be read")
    with field(policy, {**large, "view": 60}, resize=True, view=90.0) as lab:
        lab.until(lambda: lab.arm().success, "armed")
        lab.refused("sees 60.0 degrees across, the policy's saw 90")
    with field(policy, large, resize=True, view=120.0, reliable=True) as lab:
        lab.until(lambda: lab.arm().success, "armed")
        lab.until(lambda: lab.says("policy") == "flying", "it plays")


@pytest.mark.timed
def test_a_launched_game_ends_with_its_result(tmp_path: Path):
    policy = exported(tmp_path / "seeing.onnx", seeing(make("soccer_vision_1v1", steps=120)))  # whole ones take 20 s
    with own_domain() as domain:
        given = (f"policy:={policy.path}", "opponent:=chaser", f"log:={tmp_path}", "seed:=1")
        launched = spawn(
            "deploy.launch",
            "launch/soccer.launch.py",
            *given,
            domain=domain,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = launched.communicate(timeout=120.0)
    assert launched.returncode == 0, out
    (line,) = (line for line in out.splitlines() if "]: the game is over" in line and "[robot]" in line)
    result = line.partition("the game is over: ")[2]
    assert result.startswith(("won (success 1", "lost (success 0", "drawn (success 0")) and "ball_in_view" in result, (
        line
    )
    (log,) = tmp_path.glob("*.mcap")
    assert log.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["camera:=wide"], "camera:=wide is not like 640x480"),
        (["resize:=maybe"], "resize:=maybe is not true or false"),
        (["opponents:=still"], "unknown launch argument 'opponents' (did you mean 'opponent'?)"),
    ],
)
def test_wrong_launch_arguments(words: list[str], says: str):
    command = [sys.executable, "-m", "deploy.launch", "launch/soccer.launch.py", "policy:=x.onnx", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60.0)
    assert done.returncode != 0 and says in done.stdout + done.stderr

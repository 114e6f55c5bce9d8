"""This project's launch files, started as a user starts them: live topics, transitions, process exits.

How well it flies is measured elsewhere: this machine may be too busy for real time.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import launch_pytest
import numpy as np
import pytest
from launch import LaunchDescription
from launch.actions import EmitEvent, IncludeLaunchDescription, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_pytest.actions import ReadyToTest
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState as ChangeStateOf
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from deploy.ros2.node.subscriptions import command_quality, latched_quality, sensor_quality
from policies.models.export import export
from tests.deploy.arm_policy import POSE, posing
from tests.deploy.ros2.bench import ACTIVATE, CONFIGURE, Graph

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # s; the machine may be busy
BUSY = re.compile("the link is lost|its answers take|no answer")  # what a Crazyflie's driver then says
PARAMETERS = """
/**/supervisor: {ros__parameters: {silence_s: 5.0, fence: 3.0}}
/**/policy: {ros__parameters: {silence_s: 5.0, settle_s: 0.1}}
/**/robot: {ros__parameters: {silence_s: 5.0, hold_s: 0.9}}
"""


def launch_file(name):
    return str(ROOT / "launch" / f"{name}.launch.py")


def description(name, /, **arguments):
    """A launch file of ours with arguments, and then the test."""
    source = PythonLaunchDescriptionSource(launch_file(name))
    return LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments.items()), ReadyToTest()])


@pytest.fixture
def patient(tmp_path):
    """A parameter file for a machine that is too busy for real time."""
    path = tmp_path / "patient.yaml"
    path.write_text(PARAMETERS)
    return str(path)


@pytest.fixture
def graph(domain):
    """Looks at the topics of one robot, by its namespace."""
    graphs = []

    def look(namespace=""):
        graphs.append(Graph(namespace, domain))
        return graphs[-1]

    yield look
    for one in graphs:
        one.close()


@launch_pytest.fixture
def hover(domain, patient):
    return description("quad_hover", policy="quad_any", transfer="true", arm="false", params_file=patient)


@pytest.mark.timed
@pytest.mark.launch(fixture=hover)
def test_quad_hover_flies_once_it_is_armed(graph, launch_service):
    """Robot, policy and supervisor find each other; the policy node configures itself, and waits for the arming."""
    seen = graph()
    seen.until(lambda: seen.state == "inactive", "configured", PATIENCE)
    seen.until(lambda: {"odometry", "target", "armed"} <= seen.heard.keys(), "topics", PATIENCE)
    assert not seen.armed()
    assert seen.turning == 0.0
    seen.until(lambda: seen.arm().success, "armed", PATIENCE)
    seen.until(lambda: seen.turning > 0.0, "the policy commands the motors", PATIENCE)
    launch_service.shutdown()
    seen.until(launch_service.task.done, "the end", PATIENCE)  # the graph may know a node for ever that has left it
    assert launch_service.task.result() == 0


@launch_pytest.fixture
def on_a_chip(domain, patient):
    return description("quad_hover", policy="quad_any", transfer="true", backend="hil", params_file=patient)


@pytest.mark.timed
@pytest.mark.launch(fixture=on_a_chip)
def test_quad_hover_flies_with_its_policy_on_an_emulated_chip(graph):
    """Where the machine is too busy for a chip beside it, its guard may end a flight before that: it flies again."""
    seen = graph()

    def flies() -> bool:
        if not seen.turning and seen.status.get("policy") and seen.inactive():
            seen.arm()
            seen.rest(0.2)
            seen.change(ACTIVATE)
        return seen.turning > 0.0

    seen.until(flies, "the policy commands the motors", 2.0 * PATIENCE)


@launch_pytest.fixture
def swarm(domain, patient):
    return description("quad_swarm", policy="quad_any", robots="2", prefix="cf", arm="false", params_file=patient)


@pytest.mark.timed
@pytest.mark.launch(fixture=swarm)
def test_quad_swarm_is_several_robots(graph):
    """Each in its namespace, with its own target and its own policy node."""
    both = [graph("/cf0"), graph("/cf1")]
    for seen in both:
        seen.until(lambda seen=seen: "odometry" in seen.heard, "odometry", PATIENCE)
    assert both[0].position("target").tolist() != both[1].position("target").tolist()
    nodes = {"policy", "robot", "supervisor"}
    everywhere = {(name, namespace) for name in nodes for namespace in ("/cf0", "/cf1")}
    found = both[0].node.get_node_names_and_namespaces
    both[0].until(lambda: everywhere <= set(found()), "six nodes", PATIENCE)


@launch_pytest.fixture
def manipulator(domain, tmp_path):
    policy, patient = tmp_path / "posing.onnx", tmp_path / "patient.yaml"
    export(posing(), policy)
    nothing = "min_voltage: 0.0, land_voltage: 0.0"
    patient.write_text(PARAMETERS.replace("fence: 3.0", nothing))
    return description(
        "manipulator",
        policy=str(policy),
        commands="trajectory",
        arm="false",
        params_file=str(patient),
        namespace="left",
    )


@pytest.mark.timed
@pytest.mark.launch(fixture=manipulator)
def test_manipulator_moves_as_its_policy_says_and_stays_where_it_is_disarmed(graph):
    """Joint states and trajectories as ros2_control has them, in a namespace."""
    seen, heard = graph("/left"), {}
    for kind, topic, quality in (
        (JointState, "joint_states", sensor_quality()),
        (JointTrajectory, "arm_controller/joint_trajectory", command_quality()),
        (String, "state", latched_quality()),
    ):
        seen.node.create_subscription(kind, topic, lambda message, topic=topic: heard.update({topic: message}), quality)

    def away():
        message = heard["joint_states"]
        place = dict(zip(message.name, message.position, strict=True))
        return np.abs(np.array([place[f"panda_joint{k}"] for k in range(1, 8)]) - POSE).max()

    seen.until(lambda: seen.state == "inactive" and {"joint_states", "state"} <= heard.keys(), "configured", PATIENCE)
    assert away() > 0.1 and heard["state"].data == "disarmed"
    seen.until(lambda: seen.arm().success, "armed", PATIENCE)
    seen.until(lambda: away() < 0.01, "the pose", PATIENCE)
    assert heard["state"].data == "flying"
    trajectory = heard["arm_controller/joint_trajectory"]
    assert list(trajectory.joint_names) == [f"panda_joint{k}" for k in range(1, 8)]
    assert np.allclose(trajectory.points[0].positions, POSE, atol=1e-6)
    seen.arm(False)
    seen.until(lambda: heard["state"].data != "flying", "stopped")
    seen.until(seen.inactive, "the policy hands over", PATIENCE)
    seen.rest(0.5)
    assert away() < 0.01


@launch_pytest.fixture
def alone(domain, patient):
    remap = "odometry:=mocap/odometry,target:=/goal"
    return description("policy", policy="quad_any", namespace="me", name="pilot", remap=remap, params_file=patient)


@pytest.mark.timed
@pytest.mark.launch(fixture=alone)
def test_the_policy_node_alone_is_remapped_and_driven_by_transitions(graph):
    seen = graph("/me")

    def change(transition):
        return seen.call(ChangeState, "pilot/change_state", transition=Transition(id=transition)).success

    assert seen.call(GetState, "pilot/get_state").current_state.label == "unconfigured"
    assert change(CONFIGURE)
    assert not change(ACTIVATE)  # there are no signals
    subscribers = seen.node.get_subscriptions_info_by_topic
    assert [info.node_name for info in subscribers("/me/mocap/odometry")] == ["pilot"]
    assert [info.node_name for info in subscribers("/goal")] == ["pilot"]


@pytest.fixture
def transitions():
    """Goal states that the launch has seen."""
    return []


@launch_pytest.fixture
def managed(domain, patient, transitions):
    """A launch file that configures the node as soon as it has started."""
    node = LifecycleNode(
        executable=sys.executable,
        arguments=["-m", "deploy.ros2.policy_node"],
        name="pilot",
        namespace="me",
        parameters=[patient, {"policy": "quad_any"}],
        output="screen",
    )
    configure = ChangeStateOf(lifecycle_node_matcher=matches_action(node), transition_id=CONFIGURE)

    def seen(context):
        transitions.append(context.locals.event.goal_state)

    return LaunchDescription(
        [
            RegisterEventHandler(OnProcessStart(target_action=node, on_start=[EmitEvent(event=configure)])),
            RegisterEventHandler(
                OnStateTransition(target_lifecycle_node=node, entities=[OpaqueFunction(function=seen)])
            ),
            node,
            ReadyToTest(),
        ]
    )


@pytest.mark.timed
@pytest.mark.launch(fixture=managed)
def test_a_launch_follows_and_drives_the_transitions_of_the_policy_node(graph, transitions):
    seen = graph("/me")
    seen.until(lambda: "inactive" in transitions, "configured", PATIENCE)
    assert seen.call(GetState, "pilot/get_state").current_state.label == "inactive"


@pytest.fixture
def start(domain):
    """Starts the command, which runs ROS 2's launch where that is installed."""
    started = []

    def run(name, *arguments):
        command = [sys.executable, "-m", "deploy.launch", launch_file(name), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(command, cwd=ROOT, text=True, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


@pytest.fixture
def run(start):
    """Runs the command: (exit status, output)"""

    def wait(name, *arguments):
        process = start(name, *arguments)
        out, _ = process.communicate(timeout=2 * PATIENCE)
        return process.returncode, out

    return wait


@pytest.mark.timed
def test_a_killed_policy_ends_the_launch_with_an_error(start, patient):
    process = start("quad_hover", "policy:=quad_any", "transfer:=true", f"params_file:={patient}")
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := re.search(r"\[policy_node-\d\]: process started with pid \[(\d+)\]", line):
            os.kill(int(found[1]), signal.SIGKILL)
            break
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, "".join(seen) + out
    assert re.search(r"Caught exception in launch.*: policy_node-\d is required and ended with exit code -9", out)
    for name in ("robot_node", "supervisor_node"):
        assert re.search(rf"sending signal 'SIGINT' to process\[{name}-\d\]", out)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["policy:=nobody.onnx"], 1, "there is no file 'nobody.onnx'"),
        (["policy:=quad_any", "seconds:=soon"], 1, "seconds:=soon is not a number, not negative"),
        (["policy:=quad_any", "seed:=1.5"], 1, "seed:=1.5 is not a whole number"),
        (["policy:=quad_any", "arm:=maybe"], 1, "arm:=maybe is not true or false"),
        (["policy:=quad_any", "backend:=real"], 2, "backend:=real is not one of: sim, hil, crazyflie"),
        (
            ["policy:=quad_any", "require_signature:=true", "trust:=nowhere"],
            1,
            "trust=nowhere: there is no such folder",
        ),
        (["policy:=quad_any", "backend:=crazyflie", "require_signature:=true"], 1, "and a signature is required"),
        (["policy:=quad_any", "secs:=3"], 2, "unknown launch argument 'secs'"),
        (["policy:=quad_any", "engine:=fligth"], 2, "engine:=fligth is not one of: flight, mujoco, bullet"),
        ([], 2, "launch argument policy:=... is missing: The policy file"),
    ],
)
def test_bad_input_is_named_in_one_line(run, arguments, status, says):
    code, out = run("quad_hover", *arguments)
    assert code == status, out
    assert any(says in line for line in out.splitlines())
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["policy:=arm.onnx", "commands:=servo"], 2, "commands:=servo is not one of: forward, trajectory"),
        (["policy:=arm.onnx", "remap:=goal"], 1, "remap:=goal: needs from:=to,from:=to"),
        (["policy:=quad_any", "backend:=ros2_control", "joints:=a,b", "seconds:=-1"], 1, "seconds:=-1 is not a number"),
    ],
)
def test_bad_input_of_a_manipulator_is_named_in_one_line(run, arguments, status, says):
    code, out = run("manipulator", *arguments)
    assert code == status and any(says in line for line in out.splitlines()), out
    assert "Traceback" not in out


@pytest.mark.timed
def test_a_crazyflie_lands_and_the_launch_ends(run):
    """A simulated one, over its radio's protocol. Up to three, where a busy machine lost the link of one."""
    for _ in range(3):
        code, out = run("quad_hover", "policy:=quad_any", "backend:=crazyflie", "seconds:=0.5")
        if code == 0 or not BUSY.search(out):
            break
    assert code == 0, out
    assert "[run-2] landed" in out


@pytest.mark.timed
def test_a_launch_ends_when_its_time_is_over(run, patient):
    code, out = run("quad_hover", "policy:=quad_any", "seconds:=1", f"params_file:={patient}")
    assert code == 0, out
    assert len(re.findall(r"sending signal 'SIGINT' to process", out)) == 3


@pytest.mark.timed
def test_an_interrupted_launch_ends_cleanly(start, graph, patient):
    process = start("quad_hover", "policy:=quad_any", "transfer:=true", f"params_file:={patient}")
    seen = graph()
    nodes = {"policy", "robot", "supervisor"}
    seen.until(lambda: nodes <= set(seen.node.get_node_names()), "all nodes", PATIENCE)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    assert out.count("process has finished cleanly") == 3, out


@pytest.mark.timed
def test_each_node_has_an_enclave_of_its_own_where_ros2_is_to_be_secure(tmp_path):
    """With a keystore for that enclave it would begin; here it says that there is none."""
    secure = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_SECURITY_KEYSTORE": str(tmp_path)}
    command = [sys.executable, "-m", "deploy.launch", launch_file("policy"), "policy:=quad_any", "namespace:=quad0"]
    done = subprocess.run(command, env={**os.environ, **secure}, capture_output=True, text=True, timeout=60, cwd=ROOT)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "error: ROS_SECURITY_ENABLE=true, but ROS 2 could not begin" in said
    assert f"'{tmp_path}/enclaves/sim2metal/quad0/policy' does not exist" in said, said

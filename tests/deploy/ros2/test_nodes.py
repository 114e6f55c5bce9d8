"""Nodes as processes: ends, wrong parameters, other policies, two robots in one domain, simulated time, deploy.run."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from deploy import PolicyFile
from deploy.drivers.ros2 import Ros2
from deploy.recording.flight_log import read
from deploy.ros2.node.subscriptions import command_quality
from deploy.ros2.settings import Settings
from deploy.safety.envelope import Envelope
from deploy.trust.content import PRETRAINED
from sim import tasks
from tests.deploy.ros2.bench import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    GENTLE,
    ROOT,
    Graph,
    flown_again,
    graph,
    ros_arguments,
    spawn,
)
from tests.deploy.ros2.domain import own_domain
from tests.deploy.sample_policy import resealed

NODES = ("robot", "supervisor", "policy")


@pytest.fixture
def domain() -> Iterator[int]:
    """Nothing is there."""
    with own_domain() as number:
        yield number


def said(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit status and standard error."""
    _, error = process.communicate(timeout=120.0)
    return process.returncode, error


def node(name: str, domain: int, **parameters: Any) -> "subprocess.Popen[str]":
    return spawn(f"deploy.ros2.{name}_node", *ros_arguments(**parameters), domain=domain, stderr=subprocess.PIPE)


def began(process: "subprocess.Popen[str]") -> bool:
    """Whether `main` has begun: it handles SIGTERM, which Python leaves alone while it starts."""
    mask = Path(f"/proc/{process.pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


class HeldUp(Node):
    """A node whose middleware does not let go of it, with Python's lock held, as Fast DDS does at times."""

    def __init__(self) -> None:
        super().__init__("held_up")
        self.create_timer(0.1, lambda: print("spins", flush=True))  # and wakes Python up

    def close(self) -> None:
        print("safe", flush=True)

    def destroy_node(self) -> None:
        ctypes.PyDLL(None).sleep(60)


def test_a_node_that_the_middleware_holds_up_ends_all_the_same(domain: int):
    words = ("-c", "from deploy.ros2.node import process; process.run('tests.deploy.ros2.test_nodes:HeldUp')")
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    held = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None and held.stdout.readline() == "spins\n"
    held.send_signal(signal.SIGINT)
    assert held.communicate(timeout=120.0)[0].endswith("safe\n")
    assert held.returncode == 0


@pytest.mark.timed
@pytest.mark.parametrize("name", NODES)
def test_interrupted_at_any_moment_a_node_ends_well(name: str, domain: int):
    ends = []
    for pause in (0.0, 0.1, 0.4, 1.5):  # while it imports, ... , spins
        process = node(name, domain)
        while not began(process):
            time.sleep(0.001)
        time.sleep(pause)
        process.send_signal(signal.SIGTERM if pause == 0.1 else signal.SIGINT)
        ends.append(said(process))
    assert [status for status, _ in ends] == [0] * 4, ends
    assert not any("Traceback" in error for _, error in ends), ends


@pytest.mark.parametrize(
    ("name", "parameters", "complaint"),
    [
        ("policy", {"policy": "missing.onnx", "autostart": True}, "there is no file 'missing.onnx'"),
        (
            "policy",
            {"policy": "quad_any", "autostart": True, "controller": "fortran"},
            "unknown controller 'fortran'; choices: onnxruntime, c",
        ),
        ("policy", {"settle_s": -1.0}, "parameter settle_s must be in 0 .. 60: s of good signals"),
        ("robot", {"task": "quad_hoover"}, "did you mean 'quad_hover'?"),
        ("robot", {"publish_hz": 150.0}, "physics_hz 500 is not a multiple of publish_hz 150"),
        ("robot", {"fault": "fire"}, "unknown fault 'fire'"),
        (
            "robot",
            {"task": "arm_reach", "engine": "flight"},
            "arm_reach brings its own physics; it has no engine 'flight'",
        ),
        ("robot", {"task": "arm_reach", "robot": "racer"}, "unexpected keyword argument 'robot'"),
        ("policy", {"commands": "servo"}, "parameter commands: 'servo' is not one of forward, trajectory"),
        ("supervisor", {"watch": "imu"}, "'imu' is not one of odometry, joint_states, hand_pose"),
        ("supervisor", {"fence": "wide"}, "parameter fence must be a float: m from the origin"),
    ],
)
def test_wrong_parameters(name: str, parameters: dict[str, Any], complaint: str, domain: int):
    status, error = said(node(name, domain, **parameters))
    assert status == 2 and error.splitlines()[-1].startswith("error: ") and complaint in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["deploy.run policy=quad_any driver=ros2", "deploy.ros2.policy_node"])
def test_without_ros2(command: str):
    module, *arguments = command.split()
    code = f"import runpy, sys; sys.modules['rclpy'] = None; sys.argv[1:] = {arguments}; "
    code += f"runpy.run_module('{module}', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60.0, cwd=ROOT)
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert "needs rclpy: source your ROS 2, or pip install 'sim2metal[ros]'" in done.stderr


@pytest.mark.timed
def test_a_topic_of_another_type(domain: int):
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    other = Node("other", context=context, namespace="/here")
    other.create_publisher(Float32MultiArray, "odometry", 1)
    arguments = ("policy=quad_any", "driver=ros2", "connect_s=4", "namespace=/here")
    status, error = said(spawn("deploy.run", *arguments, domain=domain, stderr=subprocess.PIPE))
    rclpy.shutdown(context=context)
    assert status == 2, error
    assert "/here/odometry is a std_msgs/msg/Float32MultiArray, not a nav_msgs/msg/Odometry" in error


@pytest.mark.timed
def test_what_it_sent_last_is_told_by_the_driver_itself(domain: int):
    task = tasks.make("car_race", told=True)
    recalled = tuple(signal for signal in task.policy if signal.name.startswith("last_"))
    policy = SimpleNamespace(
        inputs=recalled,
        outputs=task.commands,
        robot=task.robot.name,
        rate_hz=task.rate_hz,
        envelope=Envelope(**task.envelope),
        metadata={},
    )
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    try:
        car, node = (Node(name, context=context) for name in ("car", "driver"))
        for name in ("steering", "speed"):
            car.create_subscription(Float64MultiArray, f"command/{name}", lambda _: None, command_quality())
        driver = Ros2(policy, node, Settings(armed=False))
        assert not [source.topic for source in driver.sources if "last_" in source.topic]
        driver.connect()
        for steering, speed in ((0.0, 0.0), (0.2, 1.5), (-0.1, 0.5)):
            if speed:
                driver.write({"steering": np.array([[steering]]), "speed": np.array([[speed]])})
            reading = driver.read_now()
            assert reading.age["last_speed"] == 0.0
            np.testing.assert_allclose(reading.signals["last_steering"], [[steering]], rtol=1e-6)
            np.testing.assert_allclose(reading.signals["last_speed"], [[speed]], rtol=1e-6)
        driver.finish("the test is over")
        driver.write({"steering": np.array([[0.2]]), "speed": np.array([[1.5]])})  # it stops instead
        np.testing.assert_array_equal(driver.read_now().signals["last_speed"], [[0.0]])
        driver.stop()
    finally:
        rclpy.shutdown(context=context)


@pytest.mark.timed
def test_signals_that_nobody_publishes(domain: int):
    began = time.monotonic()
    command = spawn(
        "deploy.run", "policy=quad_any", "driver=ros2", "connect_s=1", domain=domain, stderr=subprocess.PIPE
    )
    status, error = said(command)
    *_, error = error.splitlines()
    assert status == 2 and error.startswith("error: nothing publishes /odometry (nav_msgs/msg/Odometry)")
    assert "which gives position, rotation, linear_velocity, angular_velocity; there is: nothing" in error
    assert "/signals/target_velocity (std_msgs/msg/Float32MultiArray)" in error and "not armed" in error
    assert time.monotonic() - began < 20.0


@pytest.mark.timed
def test_policies_that_must_not_fly_here(tmp_path: Path):
    ours = tmp_path / "policy.onnx"
    shutil.copy(PRETRAINED / "quad_any.onnx", ours)
    with graph(policy={"policy": str(ours), "log": "/proc/nowhere"}) as lab:
        lab.ready()
        lab.until(lambda: lab.arm().success, "armed")
        resealed(PolicyFile.load(PRETRAINED / "quad_any.onnx"), ours, robot="racer")
        lab.refused("has changed since it was configured")
        assert lab.change(CLEANUP) and lab.change(CONFIGURE)
        lab.refused("the policy is for the robot 'racer', here is 'crazyflie'")
        resealed(PolicyFile.load(PRETRAINED / "quad_any.onnx"), ours, rate_hz=400.0)
        assert lab.change(CLEANUP) and lab.change(CONFIGURE)
        lab.refused("Hz, the policy runs at 400 Hz")
        ours.write_bytes(ours.read_bytes()[:-1])
        assert lab.change(CLEANUP) and not lab.change(CONFIGURE)
        assert "damaged" in lab.says("policy")
        shutil.copy(PRETRAINED / "quad_any.onnx", ours)
        assert lab.change(CONFIGURE)
        lab.until(lambda: lab.change(ACTIVATE), "active")
        lab.until(lambda: any("/proc/nowhere" in v.value for v in lab.status["policy"].values), "it says so")
        assert lab.state == "active"  # a log that cannot be written is no reason not to fly


@pytest.mark.timed
@flown_again
def test_the_supervisor_keeps_the_limits():
    limits = {**GENTLE, "fence": 0.7, "auto_arm": True}  # the target is above 1 m
    with graph(supervisor=limits, policy={"autostart": True}) as lab:
        lab.until(lambda: "geofence" in lab.says("supervisor"), "it left the fence")
        lab.landed_within(20.0, time.monotonic())
        assert not lab.armed()
        lab.rest(0.5)
        assert not lab.armed() and lab.state == "inactive"  # neither arms nor starts again by itself
        assert not lab.break_robot("fire")


@pytest.mark.timed
def test_the_supervisor_keeps_an_arm_within_its_limits():
    limits = {"watch": "hand_pose", "min_voltage": 0.0, "land_voltage": 0.0, "fence": 0.3}  # the hand begins beyond
    with graph(robot={"task": "arm_reach"}, supervisor=limits) as lab:
        lab.until(lambda: lab.arm().message.endswith(" m, more than 0.3"), "geofence")
        assert lab.arm().message.startswith("geofence: 0.") and not lab.armed()


@pytest.mark.timed
@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.long)])
@flown_again
def test_a_robot_in_simulated_time(tmp_path: Path, beside: bool):
    """With compiled C, logged; beside another one in its own namespace, which does not mind."""
    settings = {
        "robot": {"sim_time": True, "seed": 1},
        "policy": {"use_sim_time": True, "controller": "c", "log": str(tmp_path)},
        "supervisor": {"use_sim_time": True, **GENTLE},
    }
    with ExitStack() as held:
        others = [held.enter_context(graph("/one", supervisor=GENTLE))] if beside else []
        lab = held.enter_context(graph("/two", others[0].domain if others else None, **settings))
        lab.until(lambda: together(*others, lab) and lab.away() < 0.1, "in the air, and at its target", 90.0)
        for one in others:
            assert abs(lab.position("target") - one.position("target")).max() > 0.1
        lab.trigger("emergency_stop")
        lab.until(lab.inactive, "it has landed")
        for one in others:
            one.rest(0.3)
            assert one.armed() and one.state == "active"
    log = max(tmp_path.glob("*_two.mcap"), key=lambda path: path.stat().st_size)
    assert log.stat().st_size > 10_000
    events = [(event.kind, event.who) for event in read(str(log)).events if event.kind != "battery"]
    by = "/two/supervisor"
    assert events[0] == ("armed", by) and ("emergency_stop", by) in events
    assert events[-1] == ("end", by)


def together(*labs: Graph) -> bool:
    """Whether all fly; those that do not take off."""
    for lab in labs:
        lab.rest(0.2)
        if not lab.armed():
            lab.ready()
            lab.fly()
    return all(lab.armed() for lab in labs if not lab.rest(0.2))


@pytest.mark.timed
def test_deploy_run_flies_on_topics():
    with graph() as lab:
        lab.ready()
        for _ in range(3):
            lab.until(lambda: lab.arm().success, "armed")
            arguments = ("policy=quad_any", "driver=ros2", "seconds=3", "silence_s=1", "settle=0.2")
            run = spawn("deploy.run", *arguments, domain=lab.domain, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, error = run.communicate(timeout=120.0)
            assert run.returncode == 0 and "latency" in out, error
            if "300 control steps" in out:
                break
            lab.ready()
        assert "300 control steps at 100 Hz" in out and "ended" not in out
        lab.until(lambda: not lab.armed(), "the supervisor notices the end")

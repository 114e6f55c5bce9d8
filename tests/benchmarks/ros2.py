"""Through ROS 2, between processes: from signal to command at 250 Hz, a minute of hovering, and reactions to faults.

python tests/benchmarks/ros2.py [--quick]
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
from std_msgs.msg import Bool, Float64MultiArray

from deploy import PolicyFile
from deploy.ros2 import topics
from deploy.ros2.node.subscriptions import Inbox, command_quality, sensor_quality
from deploy.system.realtime import realtime
from policies.models.controller import FeaturePolicy
from sim.tasks import make
from sim.terms import Feature
from tests.deploy.ros2.bench import GENTLE, Graph, graph
from tests.deploy.sample_policy import exported, random_mlp

RATE = 250.0  # Hz
DEFAULT = {"silence_s": 0.25}
PLACES = 64  # where the robot says that it is, in turn; the command tells which of them the policy saw
FLIGHTS = 5  # per fault


def freeze(node: str) -> Callable[[Graph], None]:
    """A process that stands still."""
    return lambda lab: lab.processes[node].send_signal(signal.SIGSTOP)


def robot(fault: str) -> Callable[[Graph], None]:
    """Something of the robot that breaks."""
    return lambda lab: require(lab.break_robot(fault))


def require(success: bool) -> None:
    """What a benchmark rests on."""
    if not success:
        raise RuntimeError("the fault could not be injected")


CONTROLLERS = {"latency, onnxruntime": "onnxruntime", "latency, compiled C": "c"}
FAULTS: dict[str, Callable[[Graph], None]] = {
    "policy hangs": freeze("policy"),
    "supervisor hangs": freeze("supervisor"),
    "emergency stop": lambda lab: require(lab.trigger("emergency_stop").success),
    "odometry stops": robot("silent:odometry"),
    "odometry freezes": robot("frozen:odometry"),
    "odometry is NaN": robot("nan:odometry"),
    "clock jumps": robot("clock:odometry"),
}
CASES = (*CONTROLLERS, "hover", *FAULTS)
STILL = {
    "rotation": np.eye(3, dtype=np.float32).reshape(9),
    "linear_velocity": np.zeros(3, np.float32),
    "angular_velocity": np.zeros(3, np.float32),
    "target_position": np.array([0.0, 0.0, 1.0], np.float32),
}


def state(place: int) -> dict[str, Any]:
    """The signals of a robot at one of the places."""
    return {"position": np.array([2.0 * place / PLACES - 1.0, 0.0, 1.0], np.float32), **STILL}


def echo(folder: Path) -> PolicyFile:
    """A policy without memory, 18-64-64-4: each place gives another command."""
    task = make("quad_hover", rate_hz=RATE)
    features = tuple(Feature(s.name) for s in task.policy)
    network = random_mlp(np.random.default_rng(0), sum(s.size for s in task.policy), 4, hidden=(64, 64))
    made = FeaturePolicy("echo", "quad_hover", "crazyflie", RATE, task.policy, task.commands, features, 0, 0.0, network)
    return exported(folder / "echo.onnx", made)


class Source:
    """The robot's side: publishes states at the rate, in a thread of its own, and remembers when."""

    def __init__(self, lab: Graph) -> None:
        self.clock = lab.node.get_clock()
        quality = sensor_quality(2.0 / RATE)
        self.topics = {
            source: lab.node.create_publisher(source.message, source.topic, quality)
            for source in (topics.TARGET, topics.ODOMETRY)
        }
        self.armed = lab.node.create_publisher(Bool, topics.ARMED, command_quality())
        self.sent, self.count, self.stopping = np.zeros(PLACES), 0, False  # s, by place
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        due = time.perf_counter()
        with realtime():
            while not self.stopping:
                due += 1.0 / RATE
                time.sleep(max(0.0, due - time.perf_counter()))
                if self.count % 10 == 0:
                    self.armed.publish(Bool(data=True))
                    self.publish(topics.TARGET, 0)
                self.publish(topics.ODOMETRY, self.count % PLACES)
                self.count += 1

    def publish(self, source: topics.Source, place: int) -> None:
        if source is topics.ODOMETRY:
            self.sent[place] = time.perf_counter()
        message = source.message()
        message.header.frame_id = source.frame
        message.header.stamp = self.clock.now().to_msg()
        source.fill(message, state(place))
        self.topics[source].publish(message)


def latency(kind: str, seconds: float, folder: Path) -> dict[str, Any]:
    """From the moment a state is to be published until the command that was made of it is here, in ms."""
    policy = echo(folder)
    commands = np.array([policy.step(state(place))["motor_command"] for place in range(PLACES)])
    lab = Graph()
    inbox = Inbox(lab.node, Float64MultiArray, topics.COMMAND, command_quality())
    source = Source(lab)
    found: list[float] = []
    try:
        lab.start("policy", policy=policy.path, controller=kind, silence_s=1.0, autostart=True)
        lab.until(inbox.take, "the first command", 60.0)
        lab.rest(1.0)
        first, inbox_first = source.count, time.perf_counter()
        with realtime():
            while time.perf_counter() - inbox_first < seconds:
                if inbox.waited(0.1):
                    seen = int(np.abs(commands - inbox.message.data).max(axis=1).argmin())
                    found.append(time.perf_counter() - source.sent[seen])
        return {
            **figures("ms", 1e3 * np.array(found)),
            "share": len(found) / (source.count - first),
            "controller": kind,
        }
    finally:
        source.stopping = True
        source.thread.join()
        lab.close()


def hover(seconds: float) -> dict[str, Any]:
    """The distance from the target in cm, a Crazyflie at 100 Hz."""
    with graph(robot={"priority": 50}) as lab:
        lab.ready()
        lab.fly()
        lab.until(lambda: lab.away() < 0.1, "at the target")
        lab.rest(2.0)
        away, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            lab.rest(0.01)
            away.append(100.0 * lab.away())
        lab.rest(1.1)
        values = {v.key: v.value for v in lab.status["policy"].values}
        return {
            **figures("cm", np.array(away)),
            "node_missed": int(values["missed"]),
            "node_steps": int(values["steps"]),
        }


def reactions(fault: str, flights: int) -> dict[str, Any]:
    """From the fault until the robot is on the ladder (or off), in ms; with the nodes' default timeouts. It lands."""
    inject, found = FAULTS[fault], []
    with graph(robot=DEFAULT | {"hold_s": 0.2, "priority": 50}, supervisor=DEFAULT | GENTLE, policy=DEFAULT) as lab:
        while len(found) < flights:
            lab.ready()
            lab.fly()
            lab.until(lambda: lab.away() < 0.1 or not lab.armed(), "at the target")
            if not lab.armed():
                continue  # the machine stood still for longer than the timeouts
            before, began = len(lab.states), time.monotonic()
            inject(lab)
            end = began + 1.5
            lab.until(lambda: lab.states[before:] or time.monotonic() > end, "a reaction")  # noqa: B023
            found.append(1e3 * (time.monotonic() - began))
            require(lab.break_robot("none"))
            trouble = lab.landing(20.0, began) if fault != "emergency stop" else ""
            if trouble:
                print(f"{fault}: {trouble}", file=sys.stderr)
            for process in lab.processes.values():
                process.send_signal(signal.SIGCONT)
    return figures("ms", np.array(found))


def figures(unit: str, values: np.ndarray) -> dict[str, Any]:
    """Median, 99 % and worst, with the number of values."""
    p50, p99 = np.percentile(values, (50, 99))
    return {"unit": unit, "p50": float(p50), "p99": float(p99), "worst": float(values.max()), "values": len(values)}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """One row per case."""
    seconds = 2.0 if quick else 60.0
    rows: report.Rows = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            if case in CONTROLLERS:
                rows[case] = latency(CONTROLLERS[case], seconds, Path(folder))
            else:
                rows[case] = hover(seconds) if case == "hover" else reactions(case, 1 if quick else FLIGHTS)
        rows[case]["seconds"] = seconds
        print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """One line per case."""
    head = ["", "unit", "median", "99 %", "worst", "values"]
    lines = [
        [c, r["unit"], *(f"{r[k]:.2f}" for k in ("p50", "p99", "worst")), str(r["values"])] for c, r in rows.items()
    ]
    seconds = next(iter(rows.values()))["seconds"]
    text = (
        f"latency: from publishing a state (nav_msgs/Odometry) to the arrival of the command that the policy node, "
        f"another process, made of it; {RATE:g} Hz, {seconds:g} s. hover: quad_any on the simulated Crazyflie, "
        f"distance from the target, {seconds:g} s. The rest: from a fault in flight until the robot begins to hold or "
        "to land (emergency stop: motors off). "
        "ROS 2 kilted from wheels, Fast DDS, rclpy."
    )
    return f"{text}\n\n{report.table(head, lines, texts=2)}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("ros2", CASES, measure, apart=True)

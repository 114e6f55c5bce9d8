"""Where "any quadrotor" ends: the smallest and the largest, quick paths, a rotor lost, a load on a rope.

    python tests/benchmarks/edges.py [policy=FILE] [--quick] [--only nano ...]

In our flight engine with RK4 at 5 ms, at 0, 10 and 20 ms of latency. A file that sees the path ahead is told it; one
that does not flies the same paths. What is flown: README.md.
"""

import dataclasses
import functools
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report

from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from sim import tasks
from sim.conditions import Conditions
from sim.robots.quadrotors import GRAVITY, Quadrotor
from sim.robots.random_quadrotor import ANY, ARM_PER_CUBE_ROOT, YAW_INERTIA

SEED = 20261126  # of vehicles and starts
EPISODES = 200
DELAYS = (0.0, 0.01, 0.02)  # s
CALM = {"position": 0.2, "tilt": 20.0, "velocity": 0.3, "episode_s": 8.0}
LOST = {"damage": 0.0, "damage_at": 3.0}  # 5 s before the end
REST = {"position": 0.0, "tilt": 0.0, "velocity": 0.0, "body_rate": 0.0}


def vehicle(name: str, mass: float, ratio: float, agility: float, rotors: float) -> Quadrotor:
    """A quadrotor of `mass` kg, with a thrust of `ratio` weights, `agility` in rad/s^2 and rotors of so many s."""
    arm = ARM_PER_CUBE_ROOT * mass ** (1.0 / 3.0)
    thrust = ratio * mass * GRAVITY / 4.0
    roll = 2.0 * thrust * arm / agility
    known = {f.name: getattr(ANY, f.name) for f in dataclasses.fields(Quadrotor)}
    scale = thrust / sum(ANY.thrust_curve)
    return Quadrotor(
        **known
        | {
            "name": name,
            "mass": mass,
            "inertia": (roll, roll, 2.0 * YAW_INERTIA * roll),
            "rotor_position": ((arm, -arm), (-arm, -arm), (-arm, arm), (arm, arm)),
            "thrust_curve": tuple(scale * c for c in ANY.thrust_curve),
            "torque_ratio": 0.2 * arm,
            "rise_time": rotors,
            "fall_time": rotors,
            "propeller_radius": 0.8 * arm,
        }
    )


NANO = vehicle("nano", 0.003, 2.0, 4000.0, 0.015)
SMALL = vehicle("small", 0.003, 2.0, 2500.0, 0.020)
MIDDLE = vehicle("middle", 0.5, 2.5, 300.0, 0.050)
LARGE = vehicle("large", 15.0, 2.0, 60.0, 0.12)
STRONG = vehicle("strong", 0.5, 3.0, 300.0, 0.050)
LIFTER = vehicle("lifter", 15.0, 1.8, 30.0, 0.15)


@dataclass(frozen=True)
class Case:
    """A robot, the task's settings and the conditions. In the place of the task's success may count: `tracking`, an RMS
    error below so many m; `within`, never to be further off than that in the last 5 s.
    """

    robot: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)
    tracking: float = 0.0
    within: float = 0.0


def eight(size: float, period: float, tracking: float, robot: str = "edges:MIDDLE") -> Case:
    """A figure-eight of twice that size (m), in so many s."""
    return Case(robot, {**CALM, "path": "figure_eight", "size": size, "period": period}, {}, tracking)


CASES = {
    "nano": Case("edges:NANO"),
    "nano, 2500 rad/s^2": Case("edges:SMALL"),
    "lifter": Case("edges:LIFTER"),
    "lifter, 60 rad/s^2": Case("edges:LARGE"),
    "middle": Case("edges:MIDDLE"),
    "log-uniform": Case("any_log_uniform"),
    "racer": Case("racer"),
    "figure-eight, 2 m in 5.5 s": eight(1.0, 5.5, 0.15),
    "figure-eight, 2 m in 3 s": eight(1.0, 3.0, 0.15),
    "figure-eight, 6 m in 5 s": eight(3.0, 5.0, 0.25),
    "figure-eight, 6 m in 5 s, racer": eight(3.0, 5.0, 0.25, "racer"),
    "30 % of its mass on a rope of 1 m": Case("any_log_uniform", {"episode_s": 8.0}, {"payload": 0.3, "rope": 1.0}),
    "one rotor lost": Case("any_log_uniform", {**REST, "episode_s": 8.0}, LOST, within=1.0),
    "one rotor lost, three weights": Case("edges:STRONG", {**REST, "episode_s": 8.0}, LOST, within=1.0),
}


def fly(policy: PolicyFile, case: Case, delay: float, episodes: int) -> dict[str, float]:
    """Success (or the share within what counts), median error of the last second, median RMS error, in m."""
    settings = {"path": "hold", **case.settings}
    ahead = any(signal.name == "target_preview" for signal in policy.inputs)
    task = tasks.make("quad_any", robot=case.robot, preview=ahead, **settings)
    conditions = Conditions(delay=delay, **case.conditions)
    made = evaluate(policy, task=task, engine="foundation:Fine", episodes=episodes, seed=SEED, conditions=conditions)
    error = made.values["tracking_error"]
    off = np.linalg.norm(made.flight["position"] - made.flight["target_position"], axis=-1)  # (steps, n)
    success = float((error < case.tracking).mean()) if case.tracking else made.success
    if case.within:
        success = float((off[-round(5.0 * task.rate_hz) :].max(axis=0) < case.within).mean())
    middle = float(np.median(made.values["position_error"]))
    return {"success": success, "error_m": middle, "rms_m": float(np.median(error))}


def measure(cases: list[str], quick: bool, path: str = "quad_any") -> report.Rows:
    """Per case: one entry per latency. `path`: the file, if not the shipped one."""
    if path != "quad_any" or not quick:
        return _measure(cases, path, 4 if quick else EPISODES)
    with tempfile.TemporaryDirectory() as folder:
        commands.train(Path(folder), "task=quad_any", "task.preview=true", "task.range=wide", "algorithm.updates=10")
        return _measure(cases, str(Path(folder) / "policy.onnx"), 4)


def _measure(cases: list[str], path: str, episodes: int) -> report.Rows:
    policy = PolicyFile.load(path)
    rows: report.Rows = {}
    for name in cases:
        flown = [fly(policy, CASES[name], delay, episodes) for delay in DELAYS]
        rows[name] = {"policy": Path(path).name, "sha256": policy.sha256, "flights": flown}
        print(f"{name}: {_cells(rows[name])}", file=sys.stderr, flush=True)
    return rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    def length(metres: float) -> str:
        return f"{100 * metres:.1f}" if metres < 5.0 else "lost"

    return [f"{100 * f['success']:.1f} ({length(f['error_m'])}, {length(f['rms_m'])})" for f in row["flights"]]


def markdown(rows: report.Rows) -> str:
    """Success in %, median error of the last second and median RMS error in cm, by latency."""
    lines = [[name, *_cells(row)] for name, row in rows.items()]
    return report.table(["% (cm at the end, cm RMS)", *(f"{1000 * delay:.0f} ms" for delay in DELAYS)], lines)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument.startswith("policy=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    chosen = given[-1].partition("=")[2] if given else "quad_any"
    report.main("edges", CASES, functools.partial(measure, path=chosen))

"""One policy for any quadrotor, beside the published weights of "RAPTOR": the same vehicles, starts and disturbances.

    python tests/benchmarks/foundation.py [policy=FILE] [--quick]

In our flight engine (RK4, 5 ms), in l2f, the simulator in which the published weights were trained, and on airframes
that training never drew, in three engines. What is compared with what: README.md.
"""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report
from arrays import receive, send
from peers import MissingPeerError, interpreter

from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from sim import tasks
from sim.conditions import Conditions
from sim.engines.flight import Flight
from sim.randomize import Array
from sim.robots.quadrotors import GRAVITY, Quadrotor
from sim.rotations import rotation_matrices
from sim.spec import ANY_ROBOT

DEFAULT = report.ROOT / "deploy" / "pretrained" / "quad_any.onnx"
SEED = 20261121  # of vehicles and starts
VEHICLES = {"foundation:Fine": 2000, "foundation:L2f": 500, "foundation:L2fStarts": 500}
AIRFRAMES = ("crazyflie", "crazyflie_decks", "crazyflie_brushless", "stampfly", "racer", "x500", "x500_identified")
ENGINES = {"foundation:Fine": 500, "mujoco": 200, "bullet": 100}  # episodes per airframe and delay
DELAYS = (0.0, 0.01, 0.02)  # s
STEPS, ROUNDS = 5_000, 5  # timed policy steps; the best round counts, as other work shares the machine
GENTLE = {"position": 0.1, "tilt": 10.0, "velocity": 0.2, "body_rate": 0.2}
ATTEMPTS = ("ours", "published")


@dataclass(frozen=True)
class Test:
    """How both policies are flown: the robot, the conditions, the task's settings and the engine."""

    robot: str
    conditions: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)
    engine: str = "foundation:Fine"


DISTURBED: dict[str, tuple[dict[str, float], dict[str, float]]] = {  # conditions, settings of the task
    "no delay": ({}, {}),
    "10 ms of delay": ({"delay": 0.01}, {}),
    "20 ms of delay": ({"delay": 0.02}, {}),
    "30 ms of delay": ({"delay": 0.03}, {}),
    "judged at 10 s": ({}, {"episode_s": 10.0}),
    "wind, 0.1 g": ({"push": 0.1}, {}),
    "sensor noise x 10": ({"noise": 10.0}, {}),
    "+30 % mass in flight": ({"load": 1.3}, {}),
    "one rotor -25 %": ({"damage": 0.75}, {}),
    "rotor lag x 1.3": ({"rotor_lag": 1.3}, {}),
    "from 2 m away, 8 s": ({}, {"position": 2.0, "episode_s": 8.0}),
    "gentle start": ({}, GENTLE),
    "gentle start, 10 ms": ({"delay": 0.01}, GENTLE),
    "start at any attitude": ({}, {"tilt": 180.0}),
}
SAMPLINGS = {"as published": "any_published", "log-uniform": "any_log_uniform"}
ELSEWHERE: dict[str, tuple[str, dict[str, float], str]] = {  # robot, settings of the task, engine
    "our starts": ("any_published", {}, "foundation:L2f"),
    "gentle starts": ("any_published", GENTLE, "foundation:L2f"),
    "its own starts and forces": ("any_published", {"position": 0.0}, "foundation:L2fStarts"),
    "log-uniform vehicles, our starts": ("any_log_uniform", {}, "foundation:L2f"),
}
TESTS = {
    f"{sampling}: {name}": Test(robot, *test)
    for sampling, robot in SAMPLINGS.items()
    for name, test in DISTURBED.items()
} | {
    f"l2f, {name}: {1000 * delay:.0f} ms": Test(robot, {"delay": delay}, settings, engine)
    for name, (robot, settings, engine) in ELSEWHERE.items()
    for delay in DELAYS
}
CASES = (*TESTS, *AIRFRAMES, "the file")


class Fine(Flight):
    """Our flight engine with steps of half the control period: RK4 at 5 ms."""

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cpu") -> None:
        super().__init__(robot, num, dt, device, substeps=2)


class Peer:
    """Another interpreter that answers arrays with an array."""

    def __init__(self, name: str, script: str) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        command = [interpreter(name), str(report.FOLDER / script)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.name, self.process = name, subprocess.Popen(command, env={**os.environ, **one}, **pipes)
        atexit.register(self.end)

    def ask(self, *request: Any) -> Any:
        """Its answer. MissingPeerError when it has ended."""
        assert self.process.stdin and self.process.stdout
        try:
            send(self.process.stdin, *request)
            answer = receive(self.process.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise MissingPeerError(f"{self.name}: its process ended with exit code {self.process.wait()}")
        return answer

    def end(self) -> None:
        """Close stdin, which ends it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@functools.cache
def _start(name: str, script: str) -> Peer | MissingPeerError:
    try:
        return Peer(name, script)
    except MissingPeerError as error:
        return error
    except OSError as error:
        return MissingPeerError(f"the interpreter for {name} cannot be started: {error.strerror}")


def peer(name: str, script: str) -> Peer:
    """One process for each, started when first needed; MissingPeerError if it cannot be."""
    found = _start(name, script)
    if isinstance(found, MissingPeerError):
        raise found
    return found


class PublishedPolicy:
    """The published weights with the interface of `PolicyFile` that the control loop needs.

    What it sees: position and velocity relative to the target, rotation, body rate, its previous action in -1..1. Its
    previous action at the start is the one that is still in the delay line.
    """

    path = "foundation-policy 1.0.2"
    robot = ANY_ROBOT

    def __init__(self, task: tasks.Task) -> None:
        self.rate_hz, self.inputs, self.outputs = task.rate_hz, task.policy, task.commands
        self.initial_action = task.initial_action
        self.process = peer("foundation", "peer_foundation.py")

    def reset(self, n: int = 1) -> None:
        """Begin anew with n vehicles."""
        self.fresh = True
        self.action = np.full((n, 4), self.initial_action, np.float32)

    def step(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Commands in 0..1."""
        seen = [
            signals["position"] - signals["target_position"],
            signals["rotation"],
            signals["linear_velocity"] - signals["target_velocity"],
            signals["angular_velocity"],
            self.action,
        ]
        observation = np.concatenate(seen, axis=1, dtype=np.float32)
        self.action = np.clip(self.process.ask(self.fresh, observation), -1.0, 1.0)
        self.fresh = False
        return {"motor_command": 0.5 * (self.action + 1.0)}


class L2f:
    """l2f as one of our engines (see `sim.engines`): one RK4 step of 10 ms. Parameters are set before `reset`."""

    PARAMETERS = ("mass", "inertia", "rotor_position", "rotor_direction")
    STATE = {"position": 3, "quaternion": 4, "linear_velocity": 3, "angular_velocity": 3, "rotor_speed": 4}

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cpu") -> None:
        if dt != 0.01 or device != "cpu":
            raise ValueError(f"l2f steps 10 ms on the CPU, got {dt} s on {device}")
        self.num, self.dt, self.device = num, dt, device
        self.parameters = {k: np.tile(v, (num, 1)) for k, v in robot.parameters().items()}
        self.process = peer("l2f", "peer_l2f_foundation.py")

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        """Of all vehicles. KeyError for a name that l2f has no counterpart of."""
        assert mask is None
        p = self.parameters
        for name, values in parameters.items():
            if name in ("force", "torque", "wind", "ground_effect"):
                raise KeyError(f"this engine cannot set {name!r}")
            p[name] = np.asarray(values)
        curves = p["thrust_scale"][:, :, None] * p["thrust_curve"][:, None, :]
        lags = [p["rotor_lag"] * p[name] for name in ("rise_time", "fall_time")]
        rows = [
            *(p[k] for k in self.PARAMETERS),
            curves.reshape(self.num, 12),
            p["torque_ratio"],
            *lags,
            *self._start(),
        ]
        self.process.ask("vehicles", np.concatenate(rows, axis=1, dtype=np.float64))

    def _start(self) -> list[Array]:
        """Standard deviation of the constant force in N and largest start position in m, (n, 1) each."""
        return [np.zeros((self.num, 2))]

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        """All vehicles."""
        assert mask is None
        self.state = self.process.ask("reset", np.concatenate([state[k] for k in self.STATE], axis=1, dtype=np.float64))

    def step(self, command: Array) -> None:
        """Ten milliseconds."""
        self.state = self.process.ask("step", command.astype(np.float64))

    def read(self, name: str) -> Array:
        """A state, the rotation matrix or a parameter."""
        if name in self.parameters:
            return self.parameters[name].copy()
        parts = np.split(self.state, np.cumsum(list(self.STATE.values()))[:-1], axis=1)
        values = dict(zip(self.STATE, parts, strict=True))
        return rotation_matrices(values["quaternion"]).reshape(-1, 9) if name == "rotation" else values[name]


class L2fStarts(L2f):
    """With the starts and the constant forces that l2f draws for such vehicles; the task says where the target is."""

    def _start(self) -> list[Array]:
        p = self.parameters
        weight = GRAVITY * p["mass"]
        ratio = 4.0 * p["thrust_curve"].sum(axis=1, keepdims=True) / weight
        share = np.random.default_rng(SEED).uniform(0.0, 0.3, (self.num, 1))
        force = share * (ratio - 1.0) * ratio * p["mass"] / 3.0  # as published: without the acceleration of gravity
        return [force, 10.0 * np.linalg.norm(p["rotor_position"][:, :2], axis=1, keepdims=True)]

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        drawn = self.process.ask("starts", np.zeros((self.num, 1))).astype(np.float64)
        parts = np.split(drawn, np.cumsum(list(self.STATE.values()))[:-1], axis=1)
        own = dict(zip(self.STATE, parts, strict=True))
        super().reset(mask, {**own, "position": own["position"] + state["position"]})


def fly(policy: Any, test: Test, episodes: int) -> dict[str, Any]:
    """Success within 0.3 m and within 0.1 m for the whole last second; median of that second's mean error."""
    task = tasks.make("quad_any", path="hold", robot=test.robot, **test.settings)
    policy = policy or PublishedPolicy(task)
    conditions = Conditions(**test.conditions)
    made = evaluate(policy, task=task, engine=test.engine, episodes=episodes, seed=SEED, conditions=conditions)
    score = made.score
    return {
        "success": made.success,
        "success_ci": made.success_ci,
        "precise": score["precise"].mean,
        "error_m": score["position_error"].median,
        "episodes": episodes,
    }


def attempt(row: dict[str, Any], policy: PolicyFile, test: Test, episodes: int, quick: bool) -> None:
    """Fly ours and the published weights; who cannot be had is named in the row."""
    for name in ATTEMPTS[: 1 if quick else None]:
        try:
            row[name] = fly(policy if name == "ours" else None, test, episodes)
        except MissingPeerError as error:
            row.setdefault("missing", str(error))


def airframe(row: dict[str, Any], policy: PolicyFile, robot: str, quick: bool) -> None:
    """One airframe at every delay: ours in three engines, the published weights in the flight engine."""
    for engine, episodes in {"foundation:Fine": 4}.items() if quick else ENGINES.items():
        for delay in DELAYS:
            one: dict[str, Any] = {}
            ours_only = quick or engine != "foundation:Fine"
            attempt(one, policy, Test(robot, {"delay": delay}, {}, engine), episodes, ours_only)
            row.setdefault("flights", []).append({"engine": engine, "delay": delay, **one})


def the_file(policy: PolicyFile, steps: int) -> dict[str, Any]:
    """Microseconds of a step of one vehicle, all of `PolicyFile.step`; parameters and bytes."""
    import onnx

    content = Path(policy.path).read_bytes()
    weights = [w.dims for w in onnx.load_model_from_string(content).graph.initializer if len(w.dims) == 2]
    signals = {name: values[0] for name, values in policy.vectors.inputs.items()}
    policy.reset()
    rounds = [np.percentile([_timed(policy, signals) for _ in range(steps)], [50, 99]) for _ in range(ROUNDS)]
    p50, p99 = (1e6 * float(value) for value in min(rounds, key=lambda one: one[0]))
    parameters = sum(rows * (columns + 1) for rows, columns in weights)  # every matrix has a bias
    return {"parameters": parameters, "bytes": len(content), "step_us": {"p50": p50, "p99": p99}, "steps": steps}


def _timed(policy: PolicyFile, signals: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    policy.step(signals)
    return time.perf_counter() - began


def measure(cases: list[str], quick: bool, path: Path | None = None) -> report.Rows:
    """Per test: both policies on the same vehicles and starts. `path`: the file, if not the shipped one."""
    if path or not quick:
        return _measure(cases, quick, path or DEFAULT)
    with tempfile.TemporaryDirectory() as folder:
        commands.train(Path(folder), "task=quad_any", "algorithm.updates=10")
        return _measure(cases, quick, Path(folder) / "policy.onnx")


def _measure(cases: list[str], quick: bool, path: Path) -> report.Rows:
    policy = PolicyFile.load(path)
    rows: report.Rows = {}
    for case in cases:
        test = TESTS.get(case)
        if quick and test and test.engine != "foundation:Fine":
            continue
        row: dict[str, Any] = {"policy": path.name, "sha256": policy.sha256}
        if case in AIRFRAMES:
            airframe(row, policy, case, quick)
        elif test:
            attempt(row, policy, test, 4 if quick else VEHICLES[test.engine], quick)
        else:
            row |= the_file(policy, 20 if quick else STEPS)
        print(f"{case}: {row}", file=sys.stderr, flush=True)
        if any(key in row for key in ("ours", "flights", "step_us")):
            rows[case] = row
        else:
            print(f"{case} is left out: {row['missing']}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """Success at 0.3 m (at 0.1 m) in % and the median error in cm."""
    files = ", ".join(sorted({f"{row['policy']} {row['sha256'][:12]}" for row in rows.values()}))
    parts = [
        f"File: {files}. In each cell: % of flights within 0.3 m of the target for the whole last second, in brackets "
        "within 0.1 m; median over flights of the mean error of the last second, cm."
    ]
    missing = {one["missing"] for row in rows.values() for one in (row, *row.get("flights", ())) if "missing" in one}
    parts += [f"Not measured: {reason}." for reason in sorted(missing)]
    parts += [part for part in (_flights(rows), _elsewhere(rows), _airframes(rows), _file(rows)) if part]
    return "\n\n".join(parts)


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    error = "lost" if score["error_m"] is None or score["error_m"] > 2.0 else f"{100 * score['error_m']:.1f}"
    return f"{100 * score['success']:.1f} ({100 * score['precise']:.1f}), {error}"


def _both(row: Mapping[str, Any] | None) -> list[str]:
    return [_cell((row or {}).get(name)) for name in ATTEMPTS]


def _flights(rows: report.Rows) -> str:
    lines = [[name, *(c for s in SAMPLINGS for c in _both(rows.get(f"{s}: {name}")))] for name in DISTURBED]
    lines = [line for line in lines if any(cell != "–" for cell in line[1:])]
    head = ["our flight engine", *(f"{s}: {who}" for s in SAMPLINGS for who in ATTEMPTS)]
    return report.table(head, lines) if lines else ""


def _elsewhere(rows: report.Rows) -> str:
    lines = []
    for name in ELSEWHERE:
        found = [rows.get(f"l2f, {name}: {1000 * delay:.0f} ms") for delay in DELAYS]
        if any(found):
            lines.append([name, *(cell for row in found for cell in _both(row))])
    head = ["l2f 2.0.18", *(f"{1000 * delay:.0f} ms: {who}" for delay in DELAYS for who in ATTEMPTS)]
    return report.table(head, lines) if lines else ""


def _airframes(rows: report.Rows) -> str:
    def cells(row: Mapping[str, Any], engine: str, who: str) -> str:
        flown = [f.get(who) for delay in DELAYS for f in row["flights"] if (f["engine"], f["delay"]) == (engine, delay)]
        return " / ".join(f"{100 * score['success']:.1f}" if score else "–" for score in flown) or "–"

    lines = [
        [
            name,
            *(cells(rows[name], engine, "ours") for engine in ENGINES),
            cells(rows[name], "foundation:Fine", "published"),
        ]
        for name in AIRFRAMES
        if name in rows
    ]
    head = ["airframe", "ours, flight", "MuJoCo", "PyBullet", "published, flight"]
    text = "Real airframes, held out from training; success in % at 0 / 10 / 20 ms of delay."
    return f"{text}\n\n{report.table(head, lines)}" if lines else ""


def _file(rows: report.Rows) -> str:
    row = rows.get("the file")
    if not row:
        return ""
    step = row["step_us"]
    return (
        f"The file: {row['parameters']} parameters, {row['bytes'] / 1000:.1f} kB; a step of one vehicle through "
        f"onnxruntime takes {step['p50']:.0f} µs (p50), {step['p99']:.0f} µs (p99)."
    )


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument.startswith("policy=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    chosen = Path(given[-1].partition("=")[2]) if given else None
    report.main("foundation", CASES, functools.partial(measure, path=chosen))

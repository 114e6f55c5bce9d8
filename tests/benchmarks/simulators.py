"""Environment steps per second of our engines and of other quadrotor simulators, on one core, side by side.

    python tests/benchmarks/simulators.py [--quick]

Every contestant is a process of its own on the same core, one thread. For each number of environments they take turns,
three rounds; the best round counts. Rates are per CPU-second (fair on a shared machine) and per second of wall clock.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import report
from peers import MissingPeerError, interpreter

ROUNDS = 3
SIZES = (1, 256, 4096, 65536)
HORIZON = 64  # of compiled_loop.py
SECONDS = 3.0  # per measurement


@dataclass(frozen=True)
class Contestant:
    """One row. `baseline`: the row of ours that does the same amount of work."""

    process: str  # "ours" or the peer's name
    kind: str  # its name in that process
    integrator: str
    step: str  # what one step advances
    observation: str
    baseline: str = ""
    sizes: tuple[int, ...] = SIZES  # environments; more would take minutes to set up
    steps: int = 1  # of each environment, per call


CONTESTANTS = {
    "flight, kernel": Contestant("ours", "kernel", "RK4", "10 ms", "no"),
    "flight, `step`": Contestant("ours", "step", "RK4", "10 ms", "no"),
    "flight, `step` and `read`": Contestant("ours", "step and read", "RK4", "10 ms", "18 numbers"),
    "quad_hover, `VecEnv.step`": Contestant(
        "ours", "environment", "RK4", "10 ms", "33 numbers, noise, latency, reward, resets"
    ),
    "quad_hover, compiled loop": Contestant(
        "ours", "compiled", "RK4", "10 ms", "33 numbers, noise, latency, reward, resets", "", (256, 4096), HORIZON
    ),
    "the same without noise": Contestant(
        "ours", "compiled, no noise", "RK4", "10 ms", "33 numbers, latency, reward, resets", "", (256, 4096), HORIZON
    ),
    "the same, episodes of 0.5 to 2.5 s": Contestant(
        *("ours", "compiled, short episodes", "RK4", "10 ms", "33 numbers, noise, latency, reward, resets", ""),
        *((256, 4096), HORIZON),
    ),
    "quad_hover, Gymnasium": Contestant(
        "ours", "gymnasium", "RK4", "10 ms", "33 numbers, noise, latency, reward, resets", sizes=(1, 1024)
    ),
    "HalfCheetah-v5, Gymnasium": Contestant(
        "ours", "half cheetah", "Euler", "50 ms in 10 ms", "17 numbers, reward", "quad_hover, Gymnasium", (1,)
    ),
    "our MuJoCo engine": Contestant("ours", "mujoco", "RK4", "10 ms in 2.5 ms", "no", "flight, `step`", SIZES[:3]),
    "our PyBullet engine": Contestant(
        "ours", "bullet", "leapfrog", "10 ms in 2.5 ms", "no", "flight, `step`", SIZES[:3]
    ),
    "l2f 2.0.18, step": Contestant("l2f", "step", "RK4", "10 ms", "no", "flight, `step`"),
    "l2f 2.0.18, step and observe": Contestant(
        "l2f", "step and observe", "RK4", "10 ms", "82 numbers, noise", "flight, `step` and `read`"
    ),
    "crazyflow 0.4.0, its defaults": Contestant(
        "crazyflow", "default", "Euler", "2 ms, attitude control", "no", "flight, `step`"
    ),
    "crazyflow 0.4.0, set like ours": Contestant("crazyflow", "rk4 100 Hz", "RK4", "10 ms", "no", "flight, `step`"),
}


class Process:
    """A contestant's interpreter, waiting for requests."""

    def __init__(self, name: str) -> None:
        python = sys.executable if name == "ours" else interpreter(name)
        script = report.FOLDER / ("ours.py" if name == "ours" else f"peer_{name}.py")
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [python, str(script)],
            env={**os.environ, **one, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(report.ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, kind: str, num: int, seconds: float) -> dict[str, float]:
        """One measurement; other lines that the peer prints are passed over."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([kind, num, seconds]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise MissingPeerError(f"its process ended with exit code {self.process.wait()} at {num} environments")

    def end(self) -> None:
        """Close stdin, which ends it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per contestant and number of environments: the best rates and the seconds it took to set up."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the processes started below inherit it
    names = [name for name in cases if not quick or CONTESTANTS[name].process == "ours"]
    rounds, seconds = (1, 0.02) if quick else (ROUNDS, SECONDS)
    rows: report.Rows = {name: {"rates": {}, "rounds": rounds, "seconds": seconds} for name in names}
    processes: dict[str, Process] = {}
    for needed in dict.fromkeys(CONTESTANTS[name].process for name in names):
        try:
            processes[needed] = Process(needed)
        except MissingPeerError as error:
            _give_up(rows, needed, error)
    sizes = {name: CONTESTANTS[name].sizes[: 1 if quick else None] for name in names}
    for num in sorted({num for each in sizes.values() for num in each}):
        for _ in range(rounds):
            for name, row in rows.items():
                contestant = CONTESTANTS[name]
                if num not in sizes[name] or "missing" in row:
                    continue
                try:
                    one = processes[contestant.process].measure(contestant.kind, num, seconds)
                except (MissingPeerError, BrokenPipeError) as error:
                    _give_up(rows, contestant.process, error)
                    continue
                _keep_best(row["rates"].setdefault(str(num), {}), one, num * contestant.steps)
                print(f"{name} at {num}: {row['rates'][str(num)]}", file=sys.stderr, flush=True)
    for process in processes.values():
        process.end()
    return rows


def _give_up(rows: report.Rows, process: str, error: Exception) -> None:
    for name, row in rows.items():
        if CONTESTANTS[name].process == process:
            row.setdefault("missing", str(error))


def _keep_best(best: dict[str, float], one: dict[str, float], num: int) -> None:
    steps = one["calls"] * num
    for key, rate in (("per_cpu_s", steps / one["cpu"]), ("per_wall_s", steps / one["wall"])):
        best[key] = max(best.get(key, 0.0), rate)
    best["setup_s"] = max(best.get("setup_s", 0.0), one["setup"])


def markdown(rows: report.Rows) -> str:
    """Rates in millions of steps per CPU-second, and how many times faster ours is doing the same work."""
    sizes = sorted({num for row in rows.values() for num in row["rates"]}, key=int)
    rates, ratios = [], []
    for name, row in rows.items():
        c = CONTESTANTS[name]
        cells = [_cell(row["rates"].get(num)) for num in sizes]
        if "missing" in row:
            cells[-1] += f" ({row['missing']})"
        rates.append([name, c.integrator, c.step, c.observation, *cells])
        if c.baseline:
            compared = (rows.get(reference, {"rates": {}})["rates"] for reference in (c.baseline, "flight, kernel"))
            same, kernel = ([_ratio(ours.get(num), row["rates"].get(num)) for num in sizes] for ours in compared)
            ratios.append([name, c.baseline, *(f"{a} ({b})" for a, b in zip(same, kernel, strict=True))])
    head = ["environments", "integrator", "one step", "observation", *sizes]
    how = "; ".join(sorted({f"best of {row['rounds']} rounds of {row['seconds']} s" for row in rows.values()}))
    first = f"Millions of steps per CPU-second, in brackets per second of wall clock; one thread, {how}.\n\n"
    second = "\n\nHow many times faster ours is per CPU-second: called like the peer, in brackets the kernel alone.\n\n"
    return first + report.table(head, rates, 4) + second + report.table(["peer", "compared with", *sizes], ratios, 2)


def _cell(best: dict[str, Any] | None) -> str:
    return f"{best['per_cpu_s'] / 1e6:.3g} ({best['per_wall_s'] / 1e6:.3g})" if best else "–"


def _ratio(ours: dict[str, Any] | None, peer: dict[str, Any] | None) -> str:
    return f"{ours['per_cpu_s'] / peer['per_cpu_s']:.3g}" if ours and peer else "–"


if __name__ == "__main__":
    report.main("simulators", CONTESTANTS, measure)

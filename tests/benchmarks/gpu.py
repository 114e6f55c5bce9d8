"""What a GPU is worth: engines and environments on it, beside one core of the machine that it is in.

    python tests/benchmarks/gpu.py [--quick] [--only "flight" ...]

Each case first compares the GPU's numbers with the CPU's. Several cases may run at once, each in a process of its own:
they compile side by side, and take turns when they are timed.
"""

import fcntl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import report
import torch
from numba import cuda

from sim.engines.car import Cars
from sim.engines.car.cuda import CarsCuda
from sim.engines.car.lidar import angles
from sim.engines.flight import Flight
from sim.engines.flight.cuda import FlightCuda
from sim.engines.pitch import Pitch
from sim.engines.pitch.cuda import PitchCuda
from sim.engines.pitch.rows import COMMAND_ROWS
from sim.engines.vector.blocks import blocks
from sim.engines.vector.simd import LANES
from sim.robots import robot
from sim.robots.cars import CAR_1_10
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS, Ball
from sim.scenes.track import random_track
from sim.tasks import make
from sim.vec_env import VecEnv

MANY, FEW = 1 << 20, 4096  # rows on the GPU, and on a core
ROUNDS, SECONDS = 7, 0.5
BEAMS, TRACKS = 32, 20
TURN = Path(tempfile.gettempdir()) / "sim2metal-gpu-benchmark.lock"


class Contest(NamedTuple):
    """Two who do the same to another number of rows, and by how much their numbers differ."""

    there: Callable[[], object]  # on the GPU; it need not wait for the end
    rows: int
    here: Callable[[], object]
    rows_here: int
    apart: float  # largest difference after the same steps
    steps: int = 1  # that a call of either takes with each row


@contextmanager
def turn() -> Iterator[None]:
    """Nobody else is timed meanwhile."""
    with TURN.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def rate(run: Callable[[], object], rows: int, seconds: float, finished: Callable[[], object]) -> float:
    """Rows per second of the clock, the median of some rounds."""
    run()
    finished()
    began = time.perf_counter()
    run()
    finished()
    calls = max(1, int(seconds / max(time.perf_counter() - began, 1e-6)))
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            run()
        finished()
        found.append(rows * calls / (time.perf_counter() - began))
    return statistics.median(found)


def flight(many: int, few: int) -> Contest:
    """Crazyflies, a control step of 10 ms."""
    rng = np.random.default_rng(0)
    start = {"position": rng.normal(size=(few, 3)), "rotor_speed": rng.uniform(0.3, 0.9, (few, 4))}
    told = rng.uniform(0.4, 0.7, (few, 4)).astype(np.float32)
    here, same = Flight(robot("crazyflie"), few, 0.01), FlightCuda(robot("crazyflie"), few, 0.01)
    for engine in (here, same):
        engine.reset(None, {name: value.astype(np.float32) for name, value in start.items()})
    on_gpu = cuda.to_device(told)
    for _ in range(20):
        here.step(told)
        same.step(on_gpu)
    apart = float(np.abs(same.read("position").copy_to_host() - here.read("position")).max())
    there = FlightCuda(robot("crazyflie"), many, 0.01)
    hover = cuda.to_device(np.full((many, 4), 0.55, np.float32))
    return Contest(lambda: there.step(hover), many, lambda: here.step(told), few, apart)


def _cars(count: int) -> tuple[Cars, np.ndarray]:
    tracks = [random_track(seed) for seed in range(TRACKS)]
    cars, rng = Cars(CAR_1_10, count, 0.05, tracks), np.random.default_rng(0)
    where = np.arange(count) % TRACKS
    cars.on(np.arange(count), where)
    at = [rng.integers(len(track.centre), size=count) for track in tracks]
    centre = np.stack([tracks[w].centre[at[w][k]] for k, w in enumerate(where)])
    heading = np.stack([tracks[w].heading[at[w][k]] for k, w in enumerate(where)])
    state = {"position": centre, "heading": heading, "velocity": np.tile([2.0, 0.0], (count, 1))}
    cars.reset(np.arange(count), {name: value.astype(np.float32) for name, value in state.items()})
    command = rng.uniform(-1.0, 1.0, (blocks(count), 2, LANES)) * np.array([[0.3], [1.0]]) + np.array([[0.0], [2.0]])
    return cars, command.astype(np.float32)


def car(many: int, few: int) -> Contest:
    """Cars between the walls of random tracks, many of them scraping along: a control step of 50 ms."""
    here, told = _cars(few)
    same = CarsCuda(here)
    same.command.copy_to_device(told)
    for _ in range(10):
        here.advance(told)
        same.step()
    away = np.abs(same.state.copy_to_host() - here.arrays()["state"]).max(axis=1)
    plan, command = _cars(many)
    there = CarsCuda(plan)
    there.command.copy_to_device(command)
    return Contest(there.step, many, lambda: here.advance(told), few, float(np.quantile(away, 0.99)))


def lidar(many: int, few: int) -> Contest:
    """Scans of 32 beams."""
    here, _ = _cars(few)
    angle, rows = angles(BEAMS, 4.7), np.arange(few)
    seen = np.zeros((blocks(few), BEAMS, LANES), np.float32)
    here.scan(angle, 0.1, 10.0, rows, 0, seen)
    rays = cuda.to_device(np.stack([np.cos(angle), np.sin(angle)]))

    def there(cars: Cars, count: int) -> tuple[Callable[[], object], Any]:
        engine, everyone = CarsCuda(cars), cuda.to_device(np.arange(count))
        out = cuda.to_device(np.zeros((blocks(count), BEAMS, LANES), np.float32))
        return lambda: engine.scan(rays, 0.1, 10.0, everyone, 0, out), out

    same, out = there(here, few)
    same()
    apart = float(np.quantile(np.abs(out.copy_to_host() - seen), 0.99))
    scan, _ = there(_cars(many)[0], many)
    return Contest(scan, many, lambda: here.scan(angle, 0.1, 10.0, rows, 0, seen), few, apart)


def pitch(many: int, few: int) -> Contest:
    """Matches of one against one, a control step of 50 ms."""
    rng = np.random.default_rng(0)
    told = (rng.uniform(-1.0, 1.0, (few, 2, COMMAND_ROWS)) * (2.0, 2.0, 8.0, 3.0, 1.0)).astype(np.float32)
    how = DIFFERENTIAL, FIELDS[1], Ball()
    here, same, there = Pitch(*how, few, 2, 0.05), PitchCuda(*how, few, 2, 0.05), PitchCuda(*how, many, 2, 0.05)
    half = np.array([here.field.length, here.field.width]) / 2.0 - 0.2
    for engine, count in ((here, few), (same, few), (there, many)):
        places = np.random.default_rng(1).uniform(-half, half, (few, 2, 2)).astype(np.float32)
        engine.reset(np.arange(count), {"position": np.resize(places, (count, 2, 2))})
    commands = cuda.to_device(told)
    for _ in range(10):
        here.step(told)
        same.step(commands)
    away = np.abs(same.read("position").copy_to_host() - here.read("position"))
    every = cuda.to_device(np.resize(told, (many, 2, COMMAND_ROWS)))
    return Contest(lambda: there.step(every), many, lambda: here.step(told), few, float(np.quantile(away, 0.99)))


def quad_hover(many: int, few: int) -> Contest:
    """Whole control steps: sensing, latency, rewards, episodes that end and begin; torch tensors throughout."""
    many //= 8
    apart = vehicles_apart("cuda")
    there, here = (VecEnv(make("quad_hover"), n, device=device) for n, device in ((many, "cuda"), (few, "cpu")))
    action = torch.zeros((many, there.action_size), device="cuda")
    still = torch.zeros((few, here.action_size))
    return Contest(lambda: there.step(action), many, lambda: here.step(still), few, apart)


def vehicles_apart(device: str) -> float:
    """By how many m 64 quadrotors that are told the same are elsewhere there than on the CPU, after 20 steps.

    What begins is drawn on the host; what each device draws for itself, noise and delays, is left out.
    """
    rng, ends = np.random.default_rng(0), []
    told = rng.uniform(-0.2, 0.2, (20, 64, 4)).astype(np.float32)
    for where in ("cpu", device):
        env = VecEnv(make("quad_hover", noise=False, delay_low=0.0, delay_high=0.0), 64, device=where)
        env.autoreset = False
        for action in told:
            step = env.step(torch.from_numpy(action).to(env.device))
        ends.append(step.final_observation["truth"]["position"].cpu())
    return float((ends[0] - ends[1]).abs().max())


WORLDS = 4096


def arm_in_warp(many: int, few: int) -> Contest:
    """Scenes of arm_pick_place in MuJoCo Warp, physics steps, states copied there and back; mj_step on a core.

    What grasps is chaotic: how far apart says the median.
    """
    from arm import Grasping

    few, many = min(few, 16), min(many, WORLDS)
    here, same = Grasping(few, "mujoco"), Grasping(few, "mujoco_warp")
    apart = np.abs(here.env.bench._state - same.env.bench._state)[:, 1:8]  # of its joints, rad
    there = Grasping(many, "mujoco_warp")
    steps = here.env.bench._substeps
    return Contest(there.physics, many, here.single(), few, float(np.median(apart)), steps)


CASES: dict[str, Callable[[int, int], Contest]] = {
    "flight": flight,
    "car": car,
    "lidar": lidar,
    "pitch": pitch,
    "quad_hover": quad_hover,
    "arm in Warp": arm_in_warp,
}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """A row per case: what a second of the GPU's does, and one of a core's."""
    if not cuda.is_available():
        print("gpu: not measured, there is no NVIDIA GPU", file=sys.stderr)
        return {}
    name = cuda.get_current_device().name
    torch.set_num_threads(1)
    rows: report.Rows = {}
    for case in cases:
        began = time.perf_counter()
        contest = CASES[case](*((512, 64) if quick else (MANY, FEW)))
        cuda.synchronize()
        prepared = time.perf_counter() - began
        with turn():
            seconds = 0.02 if quick else SECONDS
            there = rate(contest.there, contest.rows * contest.steps, seconds, cuda.synchronize)
            here = rate(contest.here, contest.rows_here * contest.steps, seconds, lambda: None)
        rows[case] = {
            "gpu": name.decode() if isinstance(name, bytes) else name,
            "rows": contest.rows,
            "per_s": there,
            "core_per_s": here,
            "apart": contest.apart,
            "setup_s": prepared,
        }
        print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """A line per case."""
    lines = [
        [
            name,
            row["gpu"],
            f"{row['rows']:,}",
            f"{row['per_s'] / 1e6:,.2f}",
            f"{row['core_per_s'] / 1e6:,.2f}",
            f"{row['per_s'] / row['core_per_s']:,.0f}",
            "–" if row["apart"] is None else f"{row['apart']:.1e}",
        ]
        for name, row in rows.items()
    ]
    head = ["", "GPU", "rows at once", "M/s on it", "M/s on a core beside it", "ratio", "apart after the same steps"]
    return report.table(head, lines)


if __name__ == "__main__":
    report.main("gpu", CASES, measure)

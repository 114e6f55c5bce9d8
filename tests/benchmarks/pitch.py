"""Football on one core: control steps of matches, and pictures of robots' cameras, ours beside MuJoCo's.

python tests/benchmarks/pitch.py [--quick] [--only camera ...]
"""

import time
from collections.abc import Callable

import numpy as np
import report

from sim.engines.pitch import Pitch
from sim.engines.pitch.camera import Eyes
from sim.engines.pitch.mujoco import MujocoPitch
from sim.engines.pitch.rows import COMMAND_ROWS
from sim.engines.sight.picture import NOISE
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS, Ball

PLAYERS = {"soccer_1v1": 1, "soccer_2v2": 2, "soccer_5v5": 5}
CASES = (*PLAYERS, "camera")
ROUNDS = 3
OURS, THEIRS = 4096, 16  # worlds


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case, what a CPU-second does."""
    rows: report.Rows = {}
    for name in cases:
        ours, theirs = _cameras(quick) if name == "camera" else _matches(PLAYERS[name], quick)
        best = [0.0, 0.0]
        for _ in range(1 if quick else ROUNDS):
            best = [max(was, run()) for was, run in zip(best, (ours, theirs), strict=True)]
        rows[name] = {"per_cpu_s": best[0], "mujoco_per_cpu_s": best[1]}
    return rows


def _rate(run: Callable[[], object], count: int, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        run()
    return count * times / (time.process_time() - began)


def _opened(kind: type[Pitch], players: int, worlds: int) -> Pitch:
    pitch, rng = kind(DIFFERENTIAL, FIELDS[players], Ball(), worlds, 2 * players, 0.05), np.random.default_rng(0)
    half = np.array([pitch.field.length, pitch.field.width]) / 2.0 - 0.2
    angle = rng.uniform(-np.pi, np.pi, (worlds, 2 * players))
    state = {
        "position": rng.uniform(-half, half, (worlds, 2 * players, 2)),
        "ball_position": rng.uniform(-half, half, (worlds, 2)),
        "heading": np.stack([np.cos(angle), np.sin(angle)], axis=-1),
    }
    pitch.reset(np.arange(worlds), state)
    return pitch


def _matches(players: int, quick: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    def of(kind: type[Pitch], worlds: int, times: int) -> Callable[[], float]:
        pitch, rng = _opened(kind, players, worlds), np.random.default_rng(0)
        command = rng.uniform(-1.0, 1.0, (worlds, 2 * players, COMMAND_ROWS)) * (2.0, 2.0, 8.0, 3.0, 1.0)
        pitch.step(command.astype(np.float32))
        return lambda: _rate(lambda: pitch.step(command.astype(np.float32)), worlds, times)

    return of(Pitch, OURS, 2 if quick else 200), of(MujocoPitch, THEIRS, 1 if quick else 20)


def _cameras(quick: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    eyes, theirs = Eyes(_opened(Pitch, 1, 512), 2), _opened(MujocoPitch, 1, THEIRS)
    eyes.looks[:, NOISE] = 0.02
    eyes.see()

    def look() -> None:
        for row in range(THEIRS):
            theirs.scene.see(row, "eye0", eyes.lens.height, eyes.lens.width)

    look()
    few = 1 if quick else 20
    return lambda: _rate(eyes.see, len(eyes.looks), few), lambda: _rate(look, THEIRS, few)


def markdown(rows: report.Rows) -> str:
    """A line per case."""
    lines = []
    for name, row in rows.items():
        what = "pictures" if name == "camera" else "control steps"
        ours, theirs = row["per_cpu_s"], row["mujoco_per_cpu_s"]
        lines.append([name, what, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:,.0f}"])
    return report.table(["", "per CPU-second", "ours", "MuJoCo", "ratio"], lines)


if __name__ == "__main__":
    report.main("pitch", CASES, measure, apart=True)

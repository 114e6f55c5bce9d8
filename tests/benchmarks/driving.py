"""Laps of unseen tracks: `ppo` and `apg` by their recipes, `ppo robust=true`, a car that learns by the clock, and one
that tries for 20 simulated minutes, from a lidar (`sac`) and from pictures (`vision_sac`).

    python tests/benchmarks/driving.py [--quick] [--only "ppo, seed 0" ...]

Who was trained, in runs/driving, is graded again, not trained again. `online_sac` drives ten simulated minutes in ten
minutes of wall time, whatever else the machine does.
"""

import json
import sys
from pathlib import Path
from typing import Any

import commands
import report

SEEDS = (0, 1, 2)
WAYS = ("ppo", "online_sac", "apg", "robust", "sac", "vision_sac")
CASES = [f"{way}, seed {seed}" for way in WAYS for seed in SEEDS]
CONDITIONS = {
    "nominal": ["task.vary=false"],
    "as in training": ["task.vary=true"],
    "reality": ["task.reality=true"],
}
RULES = ["task.touch=ends", "task.laps=1", "task.steps=600"]
LAPS, UNSEEN = 500, 5  # under each condition; the seed of the tracks
SEEN_LAPS = 100  # of who sees pictures
ROBOT = 'algorithm.robot="driver=simulated recovery=true settle=0 seconds=60"'
ONLINE = ["task.touch=costs", "task.reverse=1", "task.steps=1200", "task.laps=20", "algorithm.total_steps=12000", ROBOT]
LEARNS = {"online_sac": ONLINE, "robust": ["robust=true"]}
ALGORITHMS = {"robust": "ppo", "vision_sac": "sac"}  # where the row is called otherwise
TASKS = {"vision_sac": "car_race_vision"}
SENSES = {"robust": ["task.robust=false", "task.told=true"]}  # it is graded as the others are
FEW = ["algorithm.total_steps=2048", "algorithm.num_envs=16", "algorithm.minibatches=2", "task.tracks=2"]
SMALL = {
    "ppo": FEW,
    "robust": FEW,
    "apg": ["algorithm.updates=4", "algorithm.num_envs=16", "algorithm.window=8", "algorithm.ahead=2", "task.tracks=2"],
    "online_sac": ["algorithm.total_steps=200", "algorithm.warmup_steps=64", "algorithm.batch_size=32"],
    "sac": ["algorithm.total_steps=1200", "algorithm.batch_size=32", "task.tracks=2"],
    "vision_sac": [
        *("algorithm.total_steps=700", "algorithm.batch_size=32", "task.tracks=2", "algorithm.evaluation_episodes=4"),
        *("algorithm.estimator.updates=20", "algorithm.estimator.episodes=2"),
    ],
}
FOLDER = report.ROOT / "runs" / "driving"


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per driver: what learning cost, and the laps under each condition."""
    rows: report.Rows = {}
    for name in cases:
        way, _, seed = name.partition(", seed ")
        rows[name] = _learner(way, int(seed), quick)
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def _learner(way: str, seed: int, quick: bool) -> dict[str, Any]:
    folder = FOLDER / ("quick" if quick else "") / f"{way}{seed}"
    said = [*LEARNS.get(way, ()), *(SMALL[way] if quick else ())]
    task, algorithm = TASKS.get(way, "car_race"), ALGORITHMS.get(way, way)
    cost = commands.learned(folder, f"task={task}", f"algorithm={algorithm}", f"seed={seed}", *said)
    laps = 8 if quick else SEEN_LAPS if way in TASKS else LAPS
    return {**cost, "conditions": _laps(folder, SENSES.get(way, []), laps)}


def _laps(folder: Path, senses: list[str], laps: int) -> dict[str, dict[str, Any]]:
    """Condition -> the scores of one lap that ends where a wall is touched."""
    found = {}
    for condition, settings in CONDITIONS.items():
        said = [*RULES, *senses, *settings, f"episodes={laps}", f"seed={UNSEEN}"]
        told = commands.evaluate(folder, *said)
        lap = told["score"]["lap_time"]["median"]
        found[condition] = {"success": told["success"], "success_ci": told["success_ci"], "lap_s": lap}
    return found


def markdown(rows: report.Rows) -> str:
    """A line per driver."""
    lines = []
    for name, row in rows.items():
        laps = row["conditions"].values()
        told = [f"{100 * lap['success']:.1f} ({_ends(lap['success_ci'])}), {lap['lap_s']:.2f} s" for lap in laps]
        lines.append([name, f"{row['seconds']:.0f}", f"{row['cpu_s']:.0f}", *told])
    return report.table(["", "s", "CPU-s", *(f"{name}: laps, %" for name in CONDITIONS)], lines)


def _ends(interval: list[float]) -> str:
    return " to ".join(f"{100 * end:.1f}" for end in interval)


if __name__ == "__main__":
    report.main("driving", CASES, measure, apart=True)

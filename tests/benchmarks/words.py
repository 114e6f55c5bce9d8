"""Seven tasks of Meta-World told in words: one network cloned from ten demonstrations each, by its recipe.

    python tests/benchmarks/words.py [--quick] [--only "seed 0" ...]

It takes the extras [manipulation] and [vla]. Who was trained, in runs/words, is graded again, not trained again.
"""

import json
import sys
from pathlib import Path

import commands
import report

from sim.tasks.external.metaworld_words import EASY

CASES = ["seed 0", "seed 1", "seed 2"]
CONDITIONS = {
    "sentences of learning": ["task.sentences=learned"],
    "unseen sentences": ["task.sentences=held_out"],
    "another task's sentence": ["task.sentences=wrong"],
    "unseen, pictures of all meshes": ["task.sentences=held_out", "task.full=true"],
}
EPISODES, UNSEEN = 140, 5  # twenty of each task; the seed of their states
SMALL = ["algorithm.episodes=7", "algorithm.updates=2", "algorithm.localisation=2", "algorithm.glimpses=7"]
FOLDER = report.ROOT / "runs" / "words"


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per seed: what learning cost, and success under each condition and at each task."""
    rows: report.Rows = {}
    for name in cases:
        folder = FOLDER / ("quick" if quick else "") / name.replace(" ", "")
        said = SMALL if quick else []
        cost = commands.learned(folder, "task=metaworld/words", f"seed={name.removeprefix('seed ')}", *said)
        found = {condition: _success(folder, EPISODES, quick, *told) for condition, told in CONDITIONS.items()}
        each = {task: _success(folder, 20, quick, "task.sentences=held_out", f'task.tasks=["{task}"]') for task in EASY}
        rows[name] = {**cost, "conditions": found, "tasks": each}
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def _success(folder: Path, episodes: int, quick: bool, *told: str) -> dict[str, object]:
    found = commands.evaluate(folder, *told, f"episodes={7 if quick else episodes}", f"seed={UNSEEN}")
    return {"success": found["success"], "success_ci": found["success_ci"]}


def markdown(rows: report.Rows) -> str:
    """A line per seed."""
    lines = []
    for name, row in rows.items():
        told = [f"{100 * one['success']:.1f}" for one in (*row["conditions"].values(), *row["tasks"].values())]
        lines.append([name, f"{row['seconds']:.0f}", f"{row['cpu_s']:.0f}", *told])
    tasks = [f"{task.removesuffix('-v3')}, unseen" for task in EASY]
    return report.table(["success, %", "s", "CPU-s", *CONDITIONS, *tasks], lines)


if __name__ == "__main__":
    report.main("words", CASES, measure, apart=True)

"""Football as it is learned: teachers, then students that see, each from one command; what they are worth.

    python tests/benchmarks/football.py [--quick] [--only "detector, seed 0" ...]

A student's teacher is that of its seed. Whoever has been trained, in runs/football, is graded again, not trained again;
so a benchmark that was stopped goes on. One core learns: on two, run two at once, each --only some. A teacher takes a
quarter of an hour, a student as long or twice that.
"""

import json
import sys
from pathlib import Path
from typing import Any

import commands
import report

SEEDS = (0, 1, 2)
WAYS = ("detector", "pixels")  # of seeing
CASES = [*(f"teacher, seed {seed}" for seed in SEEDS), *(f"{way}, seed {seed}" for seed in SEEDS for way in WAYS)]
EPISODES, CELLS, GAMES = 1000, 200, 500  # unseen games; those under each condition; and against the teacher
UNSEEN = 5  # the seed of the games
SMALL = [  # --quick
    *("task.steps=20", "algorithm.total_steps=2048", "algorithm.num_envs=16", "algorithm.rollout_steps=16"),
    *("algorithm.minibatches=2", "algorithm.evaluate_every=0"),
]
SMALL_STUDENT = ["algorithm.practice_steps=1024", "algorithm.gaze_steps=32768", "algorithm.detector_steps=9000"]
FOLDER = report.ROOT / "runs" / "football"


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per player: what learning cost, and what it won."""
    rows: report.Rows = {}
    for name in cases:
        way, seed = name.split(", seed ")
        rows[name] = _player(way, int(seed), quick)
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def _player(way: str, seed: int, quick: bool) -> dict[str, Any]:
    folder = _learned(way, seed, quick)
    teacher = way == "teacher"
    row = json.loads((folder / "cost.json").read_text()) | {"bytes": (folder / "policy.onnx").stat().st_size}
    judged = commands.evaluate(folder, f"episodes={8 if quick else EPISODES}", f"seed={UNSEEN}")
    row |= {"success": judged["success"], "success_ci": judged["success_ci"]}
    row |= {"ball_in_view": judged["score"]["ball_in_view"]["mean"]} if "ball_in_view" in judged["score"] else {}
    tried = commands.evaluate(folder, "grid=true", f"episodes={2 if quick else CELLS}", f"seed={UNSEEN}")
    row["conditions"] = {cell["condition"]: cell["success"] for cell in tried["conditions"]}
    return row if teacher else row | {"points": _points(folder, _learned("teacher", seed, quick), way, quick)}


def _learned(way: str, seed: int, quick: bool) -> Path:
    """The folder of a player's run, who is trained if nobody has been."""
    folder = FOLDER / ("quick" if quick else "") / f"{way}{seed}"
    said = [f"seed={seed}", "algorithm.threads=1", *(SMALL if quick else ())]
    if way == "teacher":
        said += ["task=soccer_1v1"]
    else:
        teacher = _learned("teacher", seed, quick) / "policy.onnx"
        said += ["task=soccer_vision_1v1", f"task.perception={way}", f"algorithm.teacher={teacher}"]
        said += SMALL_STUDENT if quick else []
    commands.learned(folder, *said)
    return folder


def _points(folder: Path, teacher: Path, way: str, quick: bool) -> float:
    """The share of them against the teacher."""
    path = folder / "tournament.json"
    players = ",".join(str(one / "policy.onnx") for one in (folder, teacher))
    games = ["task=soccer_vision_1v1", f"perception={way}", f"games={2 if quick else GAMES}", f"seed={UNSEEN}"]
    commands.run([sys.executable, "-m", "policies.tournament", f"players={players}", f"json={path}", *games])
    found = json.loads(path.read_text())
    return float(found["won"][0][1] / found["games"])


def markdown(rows: report.Rows) -> str:
    """A line per player."""
    lines = []
    for name, row in rows.items():
        low, high = (f"{100 * end:.1f}" for end in row["success_ci"])
        nominal = row["conditions"]["nominal"]
        lost = {k: 1.0 - won / nominal if nominal else 0.0 for k, won in row["conditions"].items()}
        worst = max((k for k in lost if k != "everything"), key=lambda k: lost[k])
        lines.append(
            [
                name,
                *(f"{row['seconds']:.0f}", f"{row['cpu_s']:.0f}", f"{row['bytes'] / 1e3:.0f}"),
                f"{100 * row['success']:.1f} ({low} to {high})",
                *((f"{100 * row[key]:.0f}" if key in row else "") for key in ("points", "ball_in_view")),
                f"{100 * lost[worst]:.0f}, {worst}",
                f"{100 * lost['everything']:.0f}",
            ]
        )
    head = ["", "s", "CPU-s", "kB", "wins, %", "points against the teacher, %", "ball in view, %"]
    return report.table([*head, "lost at most in one condition, %", "in everything, %"], lines)


if __name__ == "__main__":
    report.main("football", CASES, measure, apart=True)

"""Cloned bases: few and many steps of three samplers, guidance by the goal, and plans that come late.

    python tests/benchmarks/sampling.py [--quick] [--only pick-place ...]

Each base is trained once per seed and exported with different samplers; the files do the same unseen episodes, until
the first success. A late plan counts from its action `delay` on: taken as it is, or made by real-time chunking.
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import report

from policies.algorithms.bc import Bc, BcConfig
from policies.collect import PolicyActor, episodes
from policies.models.chunking import NoiseTable
from policies.models.controller import Policy
from policies.models.export import export
from policies.models.realtime import planned
from sim.env import stream
from sim.rollout import Episode
from sim.tasks import Task, make

PURPOSE = int.from_bytes(b"sampling")  # of the episodes that grade
SCENES, EPISODES, FEWER = 8, 500, 100
SEEDS, LATE_SEEDS = 3, 2
CORRUPTION, DROPOUT = 0.3, 0.1  # of the expert; of the goal
STEPS, GUIDANCE, DELAYS = (3, 5, 20), (0.0, 0.5, 1.0, 2.0), (0, 1, 2, 3)
LATE: dict[str, Any] = {"horizon": 8, "replan": 4}
TASKS = {"pick-place": "metaworld/pick-place-v3", "arm_pick_place": "arm_pick_place"}
KINDS = {"pick-place": ("beso",), "arm_pick_place": ("beso", "flow", "diffusion")}
CASES = (*TASKS, *(f"{name}, late" for name in TASKS))


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case and seed: success of each file, [successes, episodes]; of late plans also how jerky they are."""
    rows: report.Rows = {}
    for case in cases:
        name, _, late = case.partition(", ")
        task: Any = make(TASKS[name], steps=120)
        rows[case] = {"runs": []}
        for seed in range(1 if quick else LATE_SEEDS if late else SEEDS):
            began = time.process_time()
            if late:
                parts = [delayed(task, seed, quick)]
            else:
                parts = [*(sampled(task, seed, quick, kind) for kind in KINDS[name]), guided(task, seed, quick)]
            cost = {"cpu_s": round(time.process_time() - began, 1)}
            rows[case]["runs"].append({key: value for part in (*parts, cost) for key, value in part.items()})
            print(f"{case}, seed {seed}: {rows[case]['runs'][-1]}", file=sys.stderr, flush=True)
    return rows


def cloned(task: Task, seed: int, quick: bool, **settings: Any) -> Bc:
    """A trained base."""
    small = {"updates": 20, "episodes": 8} if quick else {}
    clone = Bc(task, BcConfig(**{"corruption": CORRUPTION, **settings, **small}), seed)
    for _ in clone.learn():
        pass
    return clone


def sampled(task: Task, seed: int, quick: bool, kind: str) -> dict[str, Any]:
    """A kind of base by its steps: `beso` with few and many on more episodes, and how often only one succeeds."""
    clone = cloned(task, seed, quick, kind=kind)
    run, done = {}, {}
    few, _, many = STEPS
    for clone.config.denoise_steps in STEPS:
        count = EPISODES if kind == "beso" and clone.config.denoise_steps in (few, many) else FEWER
        found = [e.succeeded for e in flown(task, clone.controller(), count, quick)]
        run[f"{kind}, {clone.config.denoise_steps} steps"], done[clone.config.denoise_steps] = counted(found), found
    if kind == "beso":
        pairs = list(zip(done[few], done[many], strict=True))
        run[f"only {few} steps, only {many}"] = [sum(a > b for a, b in pairs), sum(b > a for a, b in pairs)]
    return run


def guided(task: Task, seed: int, quick: bool) -> dict[str, Any]:
    """A base that did without its goal now and then, in few steps."""
    clone = cloned(task, seed, quick, kind="beso", denoise_steps=STEPS[0], goal_dropout=DROPOUT)
    run = {}
    for clone.config.guidance in GUIDANCE:
        found = [e.succeeded for e in flown(task, clone.controller(), FEWER, quick)]
        run[f"guidance {clone.config.guidance:g}"] = counted(found)
    return run


def delayed(task: Task, seed: int, quick: bool) -> dict[str, Any]:
    """Late plans of a base that knows nothing of it, and of one that goes on from what is committed."""
    plain, aware = (cloned(task, seed, quick, **LATE, delay=delay).cloning for delay in (0, max(DELAYS)))
    run = {}
    for delay in DELAYS:
        base = plain.denoiser()
        deaf = np.pad(base.see, ((0, 0), (0, delay and delay * base.actions + 1)))  # to what it is told
        for name, made in ("as it is", dataclasses.replace(base, see=deaf)), ("real-time", aware.denoiser(delay)):
            controller = planned(task, made, NoiseTable.normal(made.noise_size), LATE["replan"], delay)
            done = flown(task, controller, FEWER, quick)
            run[f"{name}, {delay}"] = [*counted([e.succeeded for e in done]), *jerk(task, done, delay)]
    return run


def flown(task: Task, controller: Policy, count: int, quick: bool) -> list[Episode]:
    """The first episodes of those that grade, in their order."""
    count = 4 if quick else count
    with tempfile.TemporaryDirectory() as folder:
        act = PolicyActor(export(controller, Path(folder) / "policy.onnx"), min(SCENES, count))
        return sorted(episodes(task, act, count, stream(0, PURPOSE), SCENES), key=lambda e: e.number)


def counted(succeeded: list[bool]) -> list[int]:
    """Successes, and of how many."""
    return [sum(succeeded), len(succeeded)]


def jerk(task: Task, done: list[Episode], delay: int) -> list[float]:
    """Mean squared second difference of the arm's command, which goes from -1 to 1: where plans change, elsewhere."""
    arm, border, inside = task.commands[0], [], []
    for episode in done:
        command = episode.commands[arm.name] * 2.0 / (arm.high - arm.low)
        change = (np.diff(command, 2, axis=0) ** 2).mean(axis=1)  # of steps k, k + 1 and k + 2
        begins = (np.arange(len(change) + 2) - delay) % LATE["replan"] == 0
        begins[: LATE["replan"]] = False  # the first plan takes over from none
        across = begins[1:-1] | begins[2:]
        border.append(change[across])
        inside.append(change[~across])
    return [round(float(np.concatenate(parts).mean()), 4) for parts in (border, inside)]


def markdown(rows: report.Rows) -> str:
    """Success in % of all seeds together, ± half of a 95 % interval (episodes), and how jerky late plans are."""
    totals = {case: _total(row["runs"]) for case, row in rows.items()}
    parts = []
    for late in (False, True):
        some = {case: total for case, total in totals.items() if case.endswith(", late") == late}
        names = dict.fromkeys(name for total in some.values() for name in total)
        lines = [[name, *(total.get(name, "") for total in some.values())] for name in names]
        heading = "late by so many actions: success, %; jerk where plans change; elsewhere" if late else "success, %"
        parts += [report.table([heading, *some], lines)] if some else []
    return "\n\n".join(parts)


def _total(runs: list[dict[str, Any]]) -> dict[str, str]:
    """What the seeds measured, together; with the number of episodes."""
    found = {}
    for name in dict.fromkeys(key for run in runs for key in run if key != "cpu_s"):
        values = np.array([run[name] for run in runs if name in run], float)
        if name.startswith("only"):
            found[name] = " and ".join(f"{value:.0f}" for value in values.sum(axis=0))
            continue
        good, count = values[:, :2].sum(axis=0)
        half = 1.96 * np.sqrt(good / count * (1.0 - good / count) / count)
        rest = "".join(f"; {value:.3f}" for value in values[:, 2:].mean(axis=0))
        found[name] = f"{100 * good / count:.1f} ± {100 * half:.1f} ({count:.0f}){rest}"
    return found


if __name__ == "__main__":
    report.main("sampling", CASES, measure, apart=True)

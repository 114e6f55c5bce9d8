"""python -m policies.evaluate policy=FILE [key=value ...]: fly a policy file in any engine and say how well it does.

The file itself flies, through the control loop that hardware uses, from initial states that training never saw.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from deploy import arguments
from deploy.drivers import simulated
from deploy.drivers.simulated import Conditions, Simulated
from deploy.drivers.tasks import task_for
from deploy.drivers.workcell import Bench, refuse
from deploy.files import write_atomic
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.served import SERVER, connected
from policies import report as reports
from policies import work_report
from policies.controller import Array
from policies.report import FILMED, Report, Score
from sim.robots.quadrotors import Quadrotor
from sim.tasks import Task
from sim.workcell import Manipulation, choose_engine, is_manipulation

DELAYS = (0.0, 0.010, 0.020)  # s
ROTOR_LAGS = (0.6, 1.0, 1.6)
MASS_AND_THRUST = ((1.0, 1.0), (0.85, 0.85), (0.85, 1.15), (1.15, 0.85), (1.15, 1.15))
FORCE = 0.05  # of the weight per axis: the disturbance of "Learning to Fly in Seconds"
GRID_EPISODES = 200  # per cell
SCENES = 10  # of a manipulation task, flown together
OWN = "its own physics"  # instead of an engine's name


@dataclass(kw_only=True)
class Config(simulated.Settings):
    """Settings of the command: those of the simulated driver, and what to write."""

    policy: str = field(metadata={"help": "the policy file"})
    server: str | None = field(default=None, metadata={"help": SERVER})
    episodes: int = field(default=1000, metadata={"help": f"unseen episodes (with grid: {GRID_EPISODES} per cell)"})
    grid: bool = field(
        default=False,
        metadata={"help": "table over delay, rotor lag, mass and thrust, with and without noise and force"},
    )
    plot: str | None = field(default=None, metadata={"help": "write a picture to this file (.png, .pdf, .svg)"})
    video: str | None = field(default=None, metadata={"help": "write a film to this file (.mp4)"})
    json: str | None = field(default=None, metadata={"help": "write the numbers to this file"})


# Scores (n,) by name, the flight (steps, n, k), and the guard's interventions by reason.
_Flown = tuple[dict[str, Array], dict[str, Array], dict[str, int]]


def _fly(policy: PolicyFile, driver: Simulated, transfer: bool) -> _Flown:
    record = run(policy, driver, transfer=transfer)
    if record.interrupted:
        raise KeyboardInterrupt
    flight = driver.flight()
    with np.errstate(over="ignore", invalid="ignore"):  # a lost robot may be anywhere
        return driver.task.score(flight), flight, record.interventions


def _work(
    policy: PolicyFile, task: Manipulation, episodes: int, seed: int, transfer: bool, filmed: int
) -> tuple[dict[str, Array], dict[str, Array], dict[str, int], list[Any]]:
    """The same for a manipulation task, ten scenes at a time, and pictures; the flight is that of the first ten."""
    parts: list[_Flown] = []
    pictures: list[Any] = []
    for num, firsts in _rounds(episodes):
        driver = Bench(task, num, seed)
        try:
            for first in firsts:
                driver.first, driver.filmed = first, 0 if first else min(filmed, num)
                record = run(policy, driver, transfer=transfer)
                if record.interrupted:
                    raise KeyboardInterrupt
                pictures += driver.pictures
                flight = driver.flight()
                parts.append((task.score(flight), flight, record.interventions))
        finally:
            driver.close()
    scores = {name: np.concatenate([p[0][name] for p in parts]) for name in parts[0][0]}
    reasons = {reason for _, _, counts in parts for reason in counts}
    counted = {r: sum(counts.get(r, 0) for _, _, counts in parts) for r in sorted(reasons)}
    return scores, parts[0][1], counted, pictures


def _rounds(episodes: int) -> list[tuple[int, range]]:
    """Sizes of a set of scenes, and the first episode of each of its flights: as few sets as possible are opened."""
    whole = episodes - episodes % SCENES
    rounds = [(SCENES, range(0, whole, SCENES)), (episodes - whole, range(whole, episodes, SCENES))]
    return [(num, firsts) for num, firsts in rounds if firsts]


def evaluate(
    policy: PolicyFile,
    *,
    task: Task | Manipulation | None = None,
    engine: str = "flight",
    episodes: int = 1000,
    seed: int = 0,
    conditions: Conditions | None = None,
    transfer: bool = False,
    filmed: int = 0,
) -> Report:
    """Fly `episodes` unseen episodes of `task` (default: the policy's own) and score them.

    The same seed gives the same initial states under all conditions and in all engines. Of manipulation tasks, the
    first `filmed` episodes are photographed.
    """
    began = time.perf_counter()
    task = task or task_for(policy)
    conditions = conditions or Conditions()
    pictures: list[Any] = []
    if is_manipulation(task):
        choose_engine(task, engine)
        refuse(task, conditions.changed())
        scores, flight, interventions, pictures = _work(policy, task, episodes, seed, transfer, filmed)
    else:
        driver = Simulated(cast(Task, task), episodes, engine, seed, conditions)
        scores, flight, interventions = _fly(policy, driver, transfer)
    succeeded = int(scores["success"].sum())
    return Report(
        policy=policy.path,
        task=task.name,
        robot=task.robot.name,
        engine=getattr(task, "engine", OWN) if is_manipulation(task) else engine,
        episodes=episodes,
        seed=seed,
        success=succeeded / episodes,
        success_ci=reports.wilson(succeeded, episodes),
        score={name: Score.of(values, task.scores[name]) for name, values in scores.items() if name != "success"},
        conditions=conditions.changed(),
        interventions=interventions,
        seconds=time.perf_counter() - began,
        rate_hz=task.rate_hz,
        vehicle=task.robot if isinstance(task.robot, Quadrotor) else None,
        flight=flight,
        pictures=pictures,
    )


def grid(
    policy: PolicyFile,
    *,
    task: Task | None = None,
    engine: str = "flight",
    episodes: int = GRID_EPISODES,
    seed: int = 0,
    transfer: bool = False,
) -> list[dict[str, Any]]:
    """Success over delay x rotor lag x (mass, thrust), without and with sensor noise and force: one dict per cell.

    Every cell flies the same `episodes` initial states, so that cells differ by their conditions only.
    """
    task = task or task_for(policy)
    vehicles = list(itertools.product(ROTOR_LAGS, MASS_AND_THRUST))
    lag, mass, thrust = (np.repeat(v, episodes) for v in zip(*((lag, *rest) for lag, rest in vehicles), strict=True))
    cells = []
    for disturbed, delay in itertools.product((False, True), DELAYS):
        conditions = Conditions(delay, mass, thrust, lag, noise=float(disturbed), force=FORCE * disturbed)
        driver = Simulated(task, len(lag), engine, seed, conditions, copies=len(vehicles))
        scores, _, _ = _fly(policy, driver, transfer)
        succeeded = scores["success"].reshape(len(vehicles), episodes).sum(axis=1)
        for (rotor_lag, (m, t)), count in zip(vehicles, succeeded, strict=True):
            cell = {"delay": delay, "rotor_lag": rotor_lag, "mass": m, "thrust": t, "disturbed": disturbed}
            interval = reports.wilson(int(count), episodes)
            cells.append({**cell, "success": float(count) / episodes, "success_ci": interval, "episodes": episodes})
    return cells


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    write_atomic(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def _run_grid(config: Config, policy: PolicyFile, task: Task, given: set[str]) -> None:
    clash = given & ({f.name for f in dataclasses.fields(Conditions)} | {"plot", "video"})
    if clash:
        raise ValueError(
            f"grid=true goes without {', '.join(sorted(clash))}: it sets all conditions itself and writes a table"
        )
    episodes = config.episodes if "episodes" in given else GRID_EPISODES
    cells = grid(policy, task=task, engine=config.engine, episodes=episodes, seed=config.seed, transfer=config.transfer)
    print(f"{policy.path}: {task.name} with {task.robot.name} on {config.engine}, {episodes} episodes per cell\n")
    print(reports.grid_text(cells))
    if config.json:
        worst = min(cell["success"] for cell in cells)
        _write_json(config.json, {"engine": config.engine, "seed": config.seed, "worst": worst, "cells": cells})


def main(argv: Sequence[str]) -> None:
    """Load, fly, print; write what was asked for."""
    if arguments.wants_help(argv):
        print(f"{__doc__}\n\n{arguments.usage(Config)}")
        return
    (config,) = arguments.parse(argv, Config)
    policy = connected(PolicyFile.load(config.policy), config.server)
    task = task_for(policy, config.task, config.robot, config.transfer)
    if is_manipulation(task):
        refuse(task, [*config.changed(), *(["grid"] if config.grid else [])])
    if config.grid:
        _run_grid(config, policy, task, {argument.partition("=")[0] for argument in argv})
        return
    made = evaluate(
        policy,
        task=task,
        engine=config.engine,
        episodes=config.episodes,
        seed=config.seed,
        conditions=config,
        transfer=config.transfer,
        filmed=FILMED if config.video else 0,
    )
    print(reports.text(made))
    if config.json:
        _write_json(config.json, made.json())
    if config.plot:
        draw = partial(work_report.plot, baselines={}, learning=[]) if is_manipulation(task) else reports.plot
        print(f"plot: {draw(made, config.plot)}")
    if config.video:
        print(f"video: {reports.video(made, config.video)}")


if __name__ == "__main__":
    sys.exit(arguments.call(main))

"""python -m policies.evaluate policy=FILE [key=value ...]: fly a policy file in any engine and say how well it does.

The file itself flies, through the control loop that hardware uses, from initial states that training never saw.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy import cli
from deploy.drivers import simulated
from deploy.drivers.simulated import PICTURE, Simulated, Watch
from deploy.drivers.tasks import task_for
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.remote.split_policy import SERVER, connected
from deploy.safety.grid import TRUSTED
from deploy.system.files import write_atomic
from deploy.teleop.screen import LIVE, NONE, paced, screen, wanted
from deploy.trust.text import printable
from policies.models.export import update_evaluation
from policies.models.networks import Array
from policies.reports import paired
from policies.reports.gaze import Gaze
from policies.reports.paired import Scripted
from policies.reports.told import heard
from policies.runner import grid as grids
from policies.runner import plots
from policies.runner import report as reports
from policies.runner.grid import grid
from policies.runner.report import FILMED, LARGE, SEEING, Report, Score
from policies.tournament import facing
from sim.conditions import Conditions
from sim.env import conditions_of, gaze_of, together, with_engine
from sim.robots import quadrotor
from sim.tasks import Task, agents_of
from sim.tasks import make as make_task
from sim.tasks.abilities import baselines_of, has_places, openings_of


@dataclass(kw_only=True)
class Config(simulated.Settings):
    """Settings of the command: those of the simulated driver, and what to write."""

    policy: str = field(metadata={"help": "the policy file, or with `task` one of its baselines"})
    server: str | None = field(default=None, metadata={"help": SERVER})
    episodes: int = field(default=1000, metadata={"help": f"unseen episodes (with grid: {grids.EPISODES} per cell)"})
    grid: bool = field(
        default=False,
        metadata={
            "help": "table over the conditions that the task declares: a quadrotor's delays, rotor lags, masses and "
            "thrusts, without and with noise and force; a player's games unlike those of training"
        },
    )
    require: float | None = field(
        default=None, metadata={"help": "with grid: exit with status 1 when the worst cell is below this success in %"}
    )
    record: bool = field(
        default=False, metadata={"help": "with grid: write the worst cell into the policy file (its sha256 changes)"}
    )
    opponent: str | None = field(
        default=None,
        metadata={"help": "the other team: one of the task's scripted ones, or a policy file (default: task.opponent)"},
    )
    baseline: str | None = field(
        default=None,
        metadata={
            "help": "another controller of the task (idm, glosa; pursuit, mppi, human, gap) on the same episodes; "
            "with grid: in each condition"
        },
    )
    plot: str | None = field(default=None, metadata={"help": "write a picture to this file (.png, .pdf, .svg)"})
    gaze: str | None = field(
        default=None, metadata={"help": "of robots that turn a camera: write what they looked at (.png, .pdf, .svg)"}
    )
    view: str = field(default=NONE, metadata={"help": LIVE})
    video: str | None = field(default=None, metadata={"help": "write a film to this file (.mp4)"})
    json: str | None = field(default=None, metadata={"help": "write the numbers to this file"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.grid and (self.record or self.require is not None):
            raise ValueError("require and record go with grid=true")
        if self.require is not None and not 0.0 <= self.require <= 100.0:
            raise ValueError(f"require is a success in %, 0 to 100, got {self.require}")


def _rounds(episodes: int, together: int) -> list[tuple[int, range]]:
    """Sizes of a set of worlds, and the first episode of each of its flights: as few sets as possible are opened."""
    whole = episodes - episodes % together
    rounds = [(together, range(0, whole, together)), (episodes - whole, range(whole, episodes, together))]
    return [(num, firsts) for num, firsts in rounds if firsts]


def evaluate(
    policy: PolicyFile | Scripted,
    *,
    task: Task | None = None,
    engine: str = "",
    episodes: int = 1000,
    seed: int = 0,
    conditions: Conditions | None = None,
    transfer: bool = False,
    filmed: int = 0,
    watch: Watch | None = None,
) -> Report:
    """Fly `episodes` unseen episodes of `task` (default: the policy's own) and score them.

    The same seed gives the same initial states under all conditions and in all engines. The first `filmed` episodes are
    photographed, of robots that are not filmed from their flights (half of them of those whose eyes are shown, too).
    `watch` is called at every control step. Of several agents in a world each is scored; of those that come and go, the
    world is. Raises ValueError for a baseline without its `task`.
    """
    began = time.perf_counter()
    if task is None:
        if isinstance(policy, Scripted):
            raise ValueError(f"{policy.path} is a baseline: name its task")
        task = task_for(policy)
    conditions = conditions or Conditions()
    task = with_engine(task, engine)
    vehicle, seeing = quadrotor(task.robot), gaze_of(task)
    filmed = min(filmed, SEEING) if seeing else filmed
    each = agents_of(task) if has_places(task) else 1
    parts: list[dict[str, Array]] = []
    flight: dict[str, Array] = {}
    interventions: Counter[str] = Counter()
    pictures: list[Any] = []
    looks: list[Gaze] = []
    openings = None
    for num, firsts in _rounds(episodes, together(task)):
        driver = Simulated(task, num * agents_of(task), "", seed, conditions)
        driver.size = LARGE if seeing else PICTURE
        if isinstance(policy, Scripted):
            driver.signals = policy.inputs
        try:
            for first in firsts:
                driver.first, driver.filmed = first, 0 if first or vehicle else min(filmed, num)
                told = heard(policy, driver.filmed, driver.agents)
                driver.watch = told.watching(watch) if told else watch
                record = run(policy, driver, transfer=transfer)
                if record.interrupted:
                    raise KeyboardInterrupt
                if told:
                    driver.pictures[:] = told.below(driver.pictures, driver.flight(), task.rate_hz, driver.every)
                parts.append({name: values[::each] for name, values in driver.scores().items()})
                flight, openings = flight or driver.flight(), openings or openings_of(driver.env, 0)
                looks += [Gaze.of(seeing, driver.flight())] if seeing else []
                interventions.update(record.interventions)
                pictures += driver.pictures
        finally:
            driver.close()
    scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    succeeded, scored = int(scores["success"].sum()), len(scores["success"])
    return Report(
        policy=policy.path,
        task=task.name,
        robot=task.robot.name,
        engine=task.engine,
        episodes=episodes,
        seed=seed,
        success=succeeded / scored,
        success_ci=reports.wilson(succeeded, scored),
        score={name: Score.of(values, task.scores[name]) for name, values in scores.items() if name != "success"},
        conditions=conditions.changed(),
        interventions=dict(sorted(interventions.items())),
        seconds=time.perf_counter() - began,
        rate_hz=task.rate_hz,
        vehicle=vehicle,
        flight=flight,
        pictures=pictures,
        agents=driver.agents,
        openings=openings,
        gaze=Gaze.joined(looks) if looks else None,
        values=scores,
    )


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    write_atomic(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def _run_grid(config: Config, policy: PolicyFile, task: Task, given: set[str]) -> None:
    clash = given & ({f.name for f in dataclasses.fields(Conditions)} | {"plot", "video", "gaze", "view"})
    if clash:
        raise ValueError(
            f"grid=true goes without {', '.join(sorted(clash))}: it sets all conditions itself and writes a table"
        )
    if config.record and (config.transfer or given & {"task", "robot", "opponent"}):
        raise ValueError("record=true is for the file's own task and robot")
    episodes = config.episodes if "episodes" in given else grids.EPISODES
    if conditions := conditions_of(task):
        _try_conditions(config, policy, task, conditions, episodes)
        return
    cells = grid(policy, task=task, engine=config.engine, episodes=episodes, seed=config.seed, transfer=config.transfer)
    print(
        f"{printable(policy.path)}: {task.name} with {task.robot.name} on {config.engine}, "
        f"{episodes} episodes per cell\n"
    )
    required = TRUSTED if config.require is None else config.require / 100.0
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(grids.text(cells, required, coloured))
    worst = grids.lowest(cells)
    if config.json:
        content = {"engine": config.engine, "seed": config.seed, "worst": worst["success"], "cells": cells}
        _write_json(config.json, content)
    if config.record:
        undisturbed = [cell for cell in cells if not cell["disturbed"]]
        numbers = {"worst": grids.lowest(undisturbed), "cells": len(undisturbed)}
        found = {**numbers, "engine": config.engine, "seed": config.seed}
        update_evaluation(policy.path, {**(policy.metadata["evaluation"] or {}), "grid": found})
        print(f"recorded in {printable(policy.path)}")
    if config.require is not None and worst["success"] < required:
        raise SystemExit(1)


def _try_conditions(
    config: Config, policy: PolicyFile, task: Task, conditions: Mapping[str, Task], episodes: int
) -> None:
    settings: dict[str, Any] = {"engine": config.engine or task.engine, "seed": config.seed}
    other = {"opponent": config.opponent} if config.opponent else {}
    rows = grids.tried(policy, conditions, episodes=episodes, transfer=config.transfer, **settings)
    where = f"{task.name} with {task.robot.name} on {settings['engine']}"
    print(f"{printable(policy.path)}: {where}, {episodes} episodes each\n")
    print(grids.conditions_text(rows))
    found = {**settings, **other, "conditions": rows}
    if config.json:
        _write_json(config.json, found)
    if config.record:
        update_evaluation(policy.path, {**(policy.metadata["evaluation"] or {}), "held_out": found})
        print(f"recorded in {printable(policy.path)}")
    if config.require is not None and grids.lowest(rows)["success"] < config.require / 100.0:
        raise SystemExit(1)


def _beside(config: Config, policy: PolicyFile | Scripted, task: Task) -> None:
    """The policy and the baseline in each condition, or in the task as it is."""
    conditions = (conditions_of(task) if config.grid else {}) or {task.name: task}
    how: dict[str, Any] = {"episodes": config.episodes, "seed": config.seed, "conditions": config}
    found = {}
    for name, one in conditions.items():
        ours, theirs = (
            evaluate(flown, task=one, engine=config.engine, transfer=config.transfer, **how)
            for flown in (policy, Scripted(one, str(config.baseline)))
        )
        found[name] = paired.differences(ours.values, theirs.values)
    print(f"{printable(policy.path)} beside {config.baseline}: {task.name}, {config.episodes} episodes each\n")
    print(paired.text(policy.path, str(config.baseline), found, task))
    if config.json:
        about = {"policy": policy.path, "baseline": config.baseline, "task": task.name}
        _write_json(config.json, {**about, "episodes": config.episodes, "seed": config.seed, "conditions": found})


def _controller(config: Config, settings: Mapping[str, Any]) -> tuple[PolicyFile | Scripted, Task]:
    """What is evaluated, and in which task: a policy file, or a baseline of the task that is named."""
    if config.task and not os.path.exists(config.policy) and config.policy in baselines_of(config.task):
        task: Task = make_task(config.task, **settings)
        return Scripted(task, config.policy), task
    policy = connected(PolicyFile.load(config.policy), config.server)
    return policy, task_for(policy, config.task, config.robot, config.transfer, {**settings, **config.places()})


def main(argv: Sequence[str]) -> None:
    """Load, fly, print; write what was asked for."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}\n  task.NAME=VALUE: a setting of the task (default: as in training)")
        return
    argv, settings = cli.split(argv, "task")
    (config,) = cli.parse(argv, Config)
    if settings and config.record:
        raise ValueError("record=true is for the file's own task: leave task.... away")
    policy, task = _controller(config, settings)
    for path in filter(None, (config.plot, config.gaze, config.video, config.json)):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # now: an evaluation takes long
    if config.baseline:
        _beside(config, policy, task)
        return
    if isinstance(policy, Scripted) and config.grid:
        raise ValueError(f"grid=true of {policy.path}: name a baseline to compare it with")
    if config.opponent:
        task = facing(task, config.opponent)
        print(f"against {printable(config.opponent)}")
    if config.grid and isinstance(policy, PolicyFile):
        _run_grid(config, policy, task, {argument.partition("=")[0] for argument in argv})
        return
    if config.gaze and gaze_of(task) is None:
        raise ValueError(f"gaze={config.gaze}: {task.name} turns no camera")
    shown = screen(config.view, "Ctrl-C ends it") if wanted(config.view) else None
    try:
        made = evaluate(
            policy,
            task=task,
            engine=config.engine,
            episodes=config.episodes,
            seed=config.seed,
            conditions=config,
            transfer=config.transfer,
            filmed=FILMED if config.video else 0,
            watch=paced(shown, task.rate_hz) if shown else None,
        )
    finally:
        if shown:
            shown.close()
    made.conditions.update({f"task.{name}": value for name, value in settings.items()})
    print(reports.text(made))
    if config.json:
        _write_json(config.json, made.json() | ({"opponent": config.opponent} if config.opponent else {}))
    if config.plot:
        print(f"plot: {plots.drawn(made, config.plot)}")
    if config.gaze and made.gaze is not None:
        print(f"gaze: {plots.gaze(made.gaze, config.gaze)}")
    if config.video:
        reports.video(made, config.video)
        print(f"video: {printable(config.video)}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

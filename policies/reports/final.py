"""What a run tells of its policy at its end: a table on the terminal, numbers, plots and a film in its folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.system.files import write_atomic
from policies.algorithms import Algorithm, HasBaselines, HasSnapshots
from policies.runner.config import Settings
from policies.runner.folder import POLICY
from policies.runner.provenance import lasting
from sim.tasks import Task, grid_of
from sim.tasks.abilities import judged

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile
    from policies.models.controller import Policy
    from policies.runner.report import Report

PARTS = ("evaluation", "grid", "league", "plot", "gaze", "video")  # in this order, where there are such
LEAGUE = "league.json"


def written(
    policy: PolicyFile,
    folder: Path,
    settings: Settings,
    task: Task,
    algorithm: Algorithm,
    steps: int,
    lap: Callable[[str], None],
) -> None:
    """Fly the file, made of so many `steps` of the environment; the scores go into the file, too.

    The worst cell of the task's grid is among them: "grid", null where the task has none. `lap` is told what is done.
    """
    from deploy.remote.split_policy import connected
    from policies.evaluate import evaluate
    from policies.models.export import export, update_evaluation
    from policies.runner import grid as grids
    from policies.runner import plots
    from policies.runner import report as reports
    from policies.runner.plots import beside
    from policies.runner.report import FILMED

    options = settings.options

    def flown(one: PolicyFile, film: bool) -> Report:
        filmed = FILMED if film else 0
        one = connected(one, getattr(getattr(settings.algorithm_config, "base", None), "server", None))
        return evaluate(one, task=judged(task), episodes=options.evaluation_episodes, filmed=filmed)

    report = flown(policy, film=True)
    lap("evaluation")
    found = grids.worst(policy, task) if grid_of(task) else None
    print(f"\n{reports.text(report, found and found['worst'])}\n", flush=True)
    numbers = report.json() | {"grid": found}
    update_evaluation(folder / POLICY, lasting(numbers))
    if found:
        lap("grid")
    baselines: dict[str, Report] = {}
    if isinstance(algorithm, HasBaselines):
        for name, controller in algorithm.baselines().items():
            file = export(controller, folder / "baselines" / f"{name.replace(' ', '_')}.onnx")
            baselines[name] = flown(file, film=not baselines)  # the first one is in the film
        print(f"{plots.text(report, baselines)}\n", flush=True)
        numbers["baselines"] = {name: one.json() for name, one in baselines.items()}
    (folder / "report.json").write_text(json.dumps(numbers, indent=2) + "\n")
    if isinstance(algorithm, HasSnapshots) and (snapshots := algorithm.snapshots()):
        _league(policy, folder, task, snapshots, steps, options.seed, algorithm.rivals())
        lap("league")
    learning = plots.metrics(folder)
    if baselines:  # before above, after below
        before = next(iter(baselines.values())).pictures
        report.pictures[:] = beside(before, report.pictures)
    _attempt("plot", folder / "report.png", partial(plots.drawn, report, baselines=baselines, learning=learning))
    lap("plot")
    if report.gaze is not None:
        _attempt("gaze", folder / "gaze.png", partial(plots.gaze, report.gaze, learning=learning))
        lap("gaze")
    _attempt("video", folder / "video.mp4", partial(reports.video, report))
    lap("video")


def _league(
    policy: PolicyFile,
    folder: Path,
    task: Task,
    snapshots: Mapping[int, Policy],
    steps: int,
    seed: int,
    rivals: Mapping[str, bytes],
) -> None:
    """Everybody plays everybody: table on the terminal, numbers, plot."""
    from policies.reports import league
    from policies.runner import plots

    try:
        table = league.played(task, policy, snapshots, steps, seed, rivals)
    except ValueError as error:
        warn(f"no league: {plain(error)}")
        return
    print(f"{league.text(table)}\n", flush=True)
    write_atomic(folder / LEAGUE, (json.dumps(table.json(), indent=2) + "\n").encode())
    _attempt("league", folder / "league.png", partial(plots.league, table))


def _attempt(kind: str, path: Path, write: Callable[[str], str]) -> None:
    """Write it, or warn: what is learned is worth more than its pictures."""
    try:
        write(str(path))
        print(f"{kind}: {path}", flush=True)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        warn(f"no {kind}: {plain(error)}")


def warn(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"warning: {text}\n")


def plain(error: Exception) -> str:
    """The message; str() of a KeyError is its repr."""
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)

"""A search of settings by the AutoRL protocol (Eimer, Lindauer and Raileanu 2023): tuned on some seeds, told on others.

A trial trains once for each tuning seed; its value is the mean. The best one is then trained for each test seed, which
no trial has seen, beside the settings as they were: only those numbers say what the search has brought.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from policies.cluster.job import JUDGED
from policies.cluster.jobs import Job, Trouble
from policies.runner.report import table

Value = str | int | float | bool
SHOWN = 10  # trials in the table


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched: `choices`, or a range of numbers."""

    key: str
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False  # the logarithm is spread evenly
    whole: bool = False  # whole numbers only


@dataclass(frozen=True)
class Trial:
    """Settings that were tried; `value` is the mean over the tuning seeds, None where one of its runs failed."""

    number: int
    settings: dict[str, Value]
    value: float | None


class Proposals(Protocol):
    """Who says what to try next, and remembers what came of it on disk."""

    def open(self) -> list[Trial]:
        """Trials without an outcome: of a search that was ended in their midst."""

    def ask(self) -> Trial:
        """The next one."""

    def tell(self, trial: Trial) -> None:
        """Its value, or that there is none."""

    def told(self) -> list[Trial]:
        """All that have an outcome, in the order of their numbers."""


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    words: tuple[str, ...]  # for `policies.train`, the same in each run
    trials: int
    tuning: tuple[int, ...]  # seeds
    test: tuple[int, ...]
    metric: str  # "success", or a score of the task: its mean over the episodes
    maximise: bool
    episodes: int  # of an evaluation
    together: int  # trials at a time

    def __post_init__(self) -> None:
        if shared := {*self.tuning} & {*self.test}:
            raise ValueError(
                f"seed {min(shared)} is a tuning seed and a test seed: what was tuned on it would be flattered by it"
            )
        if not self.tuning or not self.test or min((*self.tuning, *self.test)) < 0:
            raise ValueError("tuning_seeds and test_seeds need at least one seed each, none of them negative")
        if self.trials < 1 or self.together < 1 or self.episodes < 1:
            raise ValueError("trials, parallel and episodes must be at least 1")


Make = Callable[[Sequence[str], Path, Sequence[str]], Job]  # words, folder, words of its evaluation
Run = Callable[[Sequence[Job]], Mapping[Path, str]]  # folder -> what went wrong


class Search:
    """One search, in a folder."""

    def __init__(self, plan: Plan, proposals: Proposals, out: Path, make: Make, run: Run) -> None:
        self.plan, self.proposals, self.out = plan, proposals, out
        self._make, self._run = make, run
        self.failed: dict[int, str] = {}  # trial -> why

    def tune(self) -> None:
        """All trials that are missing, some at a time. What was begun before is finished first.

        ValueError when the machine fails: a trial that it broke is no failed one, the search goes on with it.
        """
        while len(told := self.proposals.told()) < self.plan.trials:
            batch = self.proposals.open()
            room = min(self.plan.together, self.plan.trials - len(told)) - len(batch)
            batch += [self.proposals.ask() for _ in range(room)]
            jobs = {trial.number: self._jobs(trial) for trial in batch}
            failed = self._run([job for several in jobs.values() for job in several])
            for trial in batch:
                errors = [failed[job.folder] for job in jobs[trial.number] if job.folder in failed]
                if any(isinstance(error, Trouble) for error in errors):
                    continue
                value = math.nan if errors else float(np.mean([self._value(job) for job in jobs[trial.number]]))
                if errors:
                    self.failed[trial.number] = errors[0]
                self.proposals.tell(Trial(trial.number, trial.settings, value if math.isfinite(value) else None))
            for folder, error in failed.items():
                if isinstance(error, Trouble):
                    where = folder.relative_to(self.out)
                    raise ValueError(f"{where}: {error}; the same line goes on with it once that is mended")

    def best(self) -> Trial:
        """ValueError when every trial has failed."""
        sign = 1.0 if self.plan.maximise else -1.0
        done = [trial for trial in self.proposals.told() if trial.value is not None]
        if not done:
            why = next(iter(self.failed.values()), "see their folders")
            raise ValueError(f"all {self.plan.trials} trials have failed: {why}")
        return max(done, key=lambda trial: (sign * (trial.value or 0.0), -trial.number))

    def test(self) -> dict[str, dict[int, float]]:
        """The names "best" and "as they were" -> test seed -> value. ValueError when one of these runs fails."""
        plan, best = self.plan, self.best()
        jobs = {
            (name, seed): self._job(self.out / "test" / folder, settings, seed)
            for name, folder, settings in (
                ("best", f"trial_{best.number:04d}", best.settings),
                ("as they were", "as_they_were", {}),
            )
            for seed in plan.test
        }
        if failed := self._run([*jobs.values()]):
            folder, why = next(iter(failed.items()))
            raise ValueError(f"{folder.relative_to(self.out)} has failed: {why}")
        found: dict[str, dict[int, float]] = {}
        for (name, seed), job in jobs.items():
            found.setdefault(name, {})[seed] = self._value(job)
        return found

    def _jobs(self, trial: Trial) -> list[Job]:
        folder = self.out / f"trial_{trial.number:04d}"
        return [self._job(folder, trial.settings, seed) for seed in self.plan.tuning]

    def _job(self, folder: Path, settings: Mapping[str, Value], seed: int) -> Job:
        words = [*self.plan.words, *(f"{key}={_word(value)}" for key, value in settings.items()), f"seed={seed}"]
        return self._make(words, folder / f"seed={seed}", [f"episodes={self.plan.episodes}"])

    def _value(self, job: Job) -> float:
        return value_of(json.loads((job.folder / JUDGED).read_text()), self.plan.metric)

    def told(self, test: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
        """Everything, ready for JSON."""
        plan, best = self.plan, self.best()
        return {
            "words": [*plan.words],
            "metric": plan.metric,
            "maximise": plan.maximise,
            "episodes": plan.episodes,
            "tuning_seeds": [*plan.tuning],
            "test_seeds": [*plan.test],
            "trials": [vars(trial) for trial in self.proposals.told()],
            "best": vars(best),
            "test": {name: {"seeds": {str(k): v for k, v in of.items()}, **spread(of)} for name, of in test.items()},
        }

    def text(self, test: Mapping[str, Mapping[int, float]]) -> str:
        """The trials, the best first, and what the test seeds say."""
        plan, sign = self.plan, -1.0 if self.plan.maximise else 1.0
        trials = sorted(self.proposals.told(), key=lambda t: math.inf if t.value is None else sign * t.value)
        keys = list(trials[0].settings)
        rows = [["trial", *keys, f"{plan.metric}, {len(plan.tuning)} tuning seeds"]]
        rows += [
            [str(t.number), *(_short(t.settings[k]) for k in keys), "failed" if t.value is None else f"{t.value:.4g}"]
            for t in trials[:SHOWN]
        ]
        told = [[f"{len(plan.test)} test seeds", "mean", "std", "lowest", "highest"]]
        told += [[name, *(f"{value:.4g}" for value in spread(of).values())] for name, of in test.items()]
        return f"{table(rows)}\n\n{table(told)}"


def value_of(report: Mapping[str, Any], metric: str) -> float:
    """Of a report of `policies.evaluate`; ValueError with the choices when it has no such metric."""
    known = {"success": report["success"], **{name: of["mean"] for name, of in report["score"].items()}}
    if metric not in known:
        raise ValueError(f"metric={metric}: the task's are {', '.join(known)}")
    value = known[metric]
    return math.nan if value is None else float(value)


def spread(found: Mapping[int, float]) -> dict[str, float]:
    """Over seeds."""
    values = np.array([*found.values()])
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": std, "lowest": float(values.min()), "highest": float(values.max())}


def seeds(text: str, what: str) -> tuple[int, ...]:
    """The text "0,1,2" as numbers; ValueError for anything else."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{what}={text}: needs whole numbers, separated by commas") from None
    if len({*found}) < len(found):
        raise ValueError(f"{what}={text}: a seed is given twice")
    return found


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

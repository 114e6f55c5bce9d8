"""A policy beside a baseline, on the same episodes: by how much each score differs, and in which worlds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deploy.policy_file import Vectors
from deploy.trust.text import printable
from policies.models.networks import Array
from policies.runner.report import bootstrap, table
from sim.tasks import Task
from sim.tasks.abilities import baseline_of


class Scripted:
    """A baseline of a task as what the control loop flies, told what is privileged; see `deploy.loop.Policy`."""

    vectors = Vectors(0.0, {}, {}, {})

    def __init__(self, task: Task, name: str) -> None:
        """ValueError with the choices when the task has no such baseline."""
        self.path, self.robot, self.rate_hz = name, task.robot.name, task.rate_hz
        self.inputs, self.outputs = (*task.policy, *task.privileged), task.commands
        self._play = baseline_of(task, name)

    def reset(self, n: int = 1) -> None:
        """What remembers anything sees itself where an episode begins."""

    def step(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return dict(self._play(signals))


def differences(scores: Mapping[str, Array], baseline: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
    """Per score, of the same episodes (n,): both means, and of their ratio less one the 95 % interval over episodes.

    A score whose baseline has a mean of 0 has no ratio (None).
    """
    found: dict[str, dict[str, Any]] = {}
    for name, values in scores.items():
        ours, theirs = values.astype(np.float64), baseline[name].astype(np.float64)
        row: dict[str, Any] = {"mean": float(ours.mean()), "baseline": float(theirs.mean())}
        usual = float(theirs.mean())
        change = (ours - theirs) / usual if usual else None
        row["change"] = None if change is None else float(change.mean())
        row["change_ci"] = None if change is None else bootstrap(change.astype(np.float32))
        found[name] = row
    return found


def text(policy: str, baseline: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]], task: Task) -> str:
    """A table: a line per condition and score."""
    lines: list[Sequence[str]] = [
        ["condition, score", printable(os.path.basename(policy)), baseline, "change", "95 %", "unit"]
    ]
    for condition, scores in conditions.items():
        for name, row in scores.items():
            change, interval = "-", ""
            if row["change"] is not None:
                low, high = row["change_ci"]
                change, interval = f"{100 * row['change']:+.1f} %", f"{100 * low:+.1f} .. {100 * high:+.1f}"
            scale = 100.0 if task.scores[name] == "%" else 1.0
            means = [f"{scale * row[who]:.4g}" for who in ("mean", "baseline")]
            lines.append([f"{condition}, {name}", *means, change, interval, task.scores[name]])
    return table(lines)

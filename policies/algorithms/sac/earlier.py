"""Replay across experiments: experience of earlier runs of the same task, mixed into each batch at a fixed ratio.

As in Tirumala et al. 2023 (arXiv 2311.15951). A run's checkpoint holds its replay; it is data from a stranger, and is
checked before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.algorithms import LearningError
from policies.runner import checkpoint
from policies.runner.folder import CHECKPOINT
from sim.tasks import Task, features_of, history_of, judged_costs

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig


def contract(task: Task, config: SacConfig) -> list[str]:
    """What a replay's numbers mean, and what was rewarded: line by line."""
    made = [f"task {task.name}", f"robot {task.robot.name}", f"rate {task.rate_hz:g} Hz", f"history {history_of(task)}"]
    for kind, group in (("signal", task.policy), ("privileged signal", task.privileged), ("command", task.commands)):
        made += [f"{kind} {s.name} {s.shape} {s.unit} {s.frame} {s.low:g}..{s.high:g}" for s in group]
    made += [f"{part}" for part in (*features_of(task), *judged_costs(task))]
    made += [f"residual {config.residual:g}"] if config.residual else []
    return [*made, f"success_reward {config.success_reward:g}"]


def read(run: str, path: str, wanted: list[str]) -> dict[str, Any]:
    """What the algorithm in that run's folder had kept, learned by this path; ValueError where it is not of use."""
    place = Path(run) / CHECKPOINT
    if not place.is_file():
        raise ValueError(f"algorithm.earlier: {run} is no run of sac, it has no {CHECKPOINT}")
    state = checkpoint.load(place).get("algorithm")
    if not isinstance(state, dict) or not isinstance(state.get("contract"), list):
        raise ValueError(f"algorithm.earlier: {run} is no run of sac, or of an older version")
    kept = "replay" if path == "fused" else "buffer"
    if not isinstance(state.get(kept), dict):
        raise ValueError(f"algorithm.earlier: {run} was not learned by algorithm.path={path}")
    told = [str(line) for line in state["contract"]]
    for there, here in zip(told, wanted, strict=False):
        if there != here:
            raise ValueError(f"algorithm.earlier: {run} learned something else: {there!r} there, {here!r} here")
    if len(told) != len(wanted):
        raise ValueError(
            f"algorithm.earlier: {run} learned something else: {len(told)} parts there, {len(wanted)} here"
        )
    found: dict[str, Any] = state[kept]
    return found


def digest(state: Mapping[str, Any]) -> str:
    """SHA-256 of the arrays and numbers in it."""
    sha = hashlib.sha256()
    for name in sorted(state):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(state[name]).tobytes())
    return sha.hexdigest()


def check_same(saved: Any, now: list[str]) -> None:
    """LearningError unless a run goes on with the experience with which it began."""
    if [str(one) for one in saved] != now:
        raise LearningError("the runs of algorithm.earlier have changed since this run began: it cannot go on exactly")

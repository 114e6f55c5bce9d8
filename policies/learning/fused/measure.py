"""The scores of a policy while it learns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from policies.learning import SCORE
from policies.models.controller import FeaturePolicy
from sim.env import gaze_of, make_env, stream
from sim.randomize import Array
from sim.rollout import rollout
from sim.tasks import Task, agents_of, has_own_world
from sim.tasks.abilities import judged

MEASURING = int.from_bytes(b"measure")  # mixed into the seed: episodes of their own


def measured(task: Task, policy: FeaturePolicy, seed: int, first: int, episodes: int) -> dict[str, float]:
    """The success of a policy on the episodes first ... first + episodes - 1.

    In worlds of their own also how often it saw what it seeks (NAME_in_view), and the median of each other score of the
    task (score_NAME).
    """
    task = judged(task)
    rows = episodes * agents_of(task)
    env = make_env(task, rows, stream(seed, MEASURING), several=True)
    state, numbers = policy.initial_state(rows), range(first, first + episodes)

    def act(signals: Mapping[str, Array], *_: Array) -> Mapping[str, Array]:
        nonlocal state
        commands, state = policy.act(signals, state)
        return commands

    if has_own_world(task):
        played = rollout(task, env, act, numbers, truth=True)
        each = [task.score(one.flight()) for one in played]
        found = {name: np.concatenate([np.ravel(scores[name]) for scores in each]) for name in each[0]}
        means = ["success", *([f"{looks.sought}_in_view"] if (looks := gaze_of(task)) else [])]
        shares = {name: float(np.mean(found.pop(name))) for name in means if name in found}
        return shares | {SCORE + name: float(np.median(values)) for name, values in found.items()}
    env.reset(range(rows), numbers)
    flying, done = np.ones(rows, bool), np.zeros(rows, bool)
    with np.errstate(all="ignore"):  # who is lost goes on falling
        for _ in range(task.episode_steps):
            step = env.step(act(env.observe()))
            flying &= ~step.terminated
            done |= step.success & flying
    return {"success": float(done.mean())}

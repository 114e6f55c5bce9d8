"""Do the signals look like what the policy was trained on? Its own statistics say, before it moves anything.

Only the first moments of episodes are looked at: what comes later depends on the policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from policies.adoption.lerobot.controller import LeRobotPolicy
from policies.models.networks import Array
from sim import spec
from sim.env import make_env, together

OUTSIDE = 0.5  # of what a number ran over in training: so far beyond that, and all episodes begin there
LEAST = 1e-3  # what it ran over counts at least as much
ALIKE = 0.01  # of 0 to 1: cameras whose mean colours are that close tell nothing
COLOUR = 0.05  # so much nearer must a camera's mean colour be that the policy is not shown
STANDARD = (0.485, 0.456, 0.406)  # means of ImageNet, which LeRobot mostly puts in place of a dataset's own


def remarks(policy: LeRobotPolicy, episodes: int, seed: int) -> list[str]:
    """A line for each number and camera that is not as in training. ValueError without a simulator."""
    task = policy.contract.made
    if task is None:
        raise ValueError("needs a task of ours to look at: the description declares its own robot")
    count = min(episodes, together(task))
    env = make_env(task, count, seed)
    try:
        env.reset(range(count), range(count))
        signals = {name: np.array(value) for name, value in env.observe().items()}
    finally:
        env.close()
    return [*_numbers(policy, policy.see(signals)), *_cameras(policy, signals)]


def _numbers(policy: LeRobotPolicy, seen: Array) -> Iterator[str]:
    """Numbers (n, k) that lie where training never was."""
    names = [
        f"{piece.term.label}[{k if piece.places is None else piece.places[k]}]"
        for piece in policy.pieces
        for k in range(piece.size)
    ]
    begin = 0
    for feature, size in policy.folder.numbers.items():
        stats = policy.folder.statistics.get(feature, {})
        if {"min", "max"} <= stats.keys():
            low, high = stats["min"].ravel(), stats["max"].ravel()
            room = OUTSIDE * np.maximum(high - low, LEAST)
            for k in range(size):
                values = seen[:, begin + k]
                if (values < low[k] - room[k]).all() or (values > high[k] + room[k]).all():
                    yield (
                        f"{feature}[{k}] is {names[begin + k]}: {values.min():.3g} to {values.max():.3g} here, "
                        f"{low[k]:.3g} to {high[k]:.3g} in its training"
                    )
        begin += size


def _cameras(policy: LeRobotPolicy, signals: dict[str, NDArray[np.generic]]) -> Iterator[str]:
    """Two cameras whose colours say that they are exchanged, and one that another camera fits better."""
    colours = {
        s.name: np.asarray(signals[s.name], np.float64).mean(axis=(0, 1, 2)) / 255.0
        for s in spec.pictures(policy.contract.inputs)
    }
    known = {
        name: policy.folder.statistics[name]["mean"].astype(np.float64).ravel()
        for name in policy.folder.pictures
        if "mean" in policy.folder.statistics.get(name, {})
    }
    told = policy.description.pictures
    known = {name: mean for name, mean in known.items() if not np.allclose(mean, STANDARD, atol=1e-3)}

    def apart(name: str, signal: str) -> float:
        return float(np.abs(colours[signal] - known[name]).max())

    exchanged = set[str]()
    for one, two in itertools.combinations(known, 2):
        between = float(np.abs(colours[told[one]] - colours[told[two]]).max())
        nearer = apart(one, told[one]) + apart(two, told[two]) - apart(one, told[two]) - apart(two, told[one])
        if between > ALIKE and nearer > between:  # of at most twice that
            exchanged |= {one, two}
            yield f"{one} and {two}: their colours are those of {told[two]} and {told[one]}: exchanged?"
    for name in (name for name in known if name not in exchanged):
        others = colours.keys() - set(told.values())
        nearest = min((told[name], *sorted(others)), key=lambda signal: apart(name, signal))
        if apart(name, told[name]) > apart(name, nearest) + COLOUR:
            yield f"{name} is {told[name]}: its colours are rather those of {nearest}"

"""What a localiser learns from beside the pictures of demonstrations: glimpses of other scenes.

Ten demonstrations show ten scenes, too few to tell where things may be. A scene costs less than a demonstration, and
needs nobody who knows what to do there: the hand moves at random.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from policies.learning.vla.localiser import Sights
from policies.models.controller import physical
from sim import spec
from sim.env import make_env, stream
from sim.tasks.abilities import HasWords, in_pictures, referents_of

GLIMPSES = int.from_bytes(b"glimpses")  # mixed into the seed: other scenes than demonstrations', evaluations'
TOGETHER = 14  # scenes
LOOKS = 3  # at each scene
HOLD = 8  # control steps from one look to the next, by one command


def sights(task: HasWords, pictures: dict[str, Tensor], truth: Tensor, asked: Tensor, scenes: int) -> Sights:
    """Pictures (n, height, width, 3) with true positions (n, objects, 3), m, where a thing was asked for (n,)."""
    pixels = {name: torch.from_numpy(at).float() for name, at in in_pictures(task, truth.numpy()).items()}
    return Sights(pictures, truth, asked if scenes > 1 else torch.zeros_like(asked), pixels)


def glimpses(task: HasWords, count: int, seed: int, scenes: int) -> Sights:
    """At so many episodes, as they begin and go on by chance."""
    own, rows = stream(seed, GLIMPSES), min(TOGETHER, count)
    rng = np.random.default_rng(own)
    names, (objects, _) = [s.name for s in spec.pictures(task.policy)], referents_of(task)
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    places: list[Tensor] = []
    asked: list[int] = []
    with closing(make_env(task, rows, own)) as env:
        for first in range(0, count, rows):
            numbers = range(first, min(first + rows, count))
            some = [*range(len(numbers))]
            env.reset(some, numbers)
            for look in range(LOOKS):
                if look:
                    command = rng.uniform(-1.0, 1.0, (rows, spec.size(task.commands))).astype(np.float32)
                    for _ in range(HOLD):
                        env.step(physical(task.commands, command))
                signals = env.observe()
                for name in names:
                    seen[name].append(torch.from_numpy(signals[name][some]))
                told = np.concatenate([np.asarray(signals[name], np.float32)[some] for name in objects], axis=1)
                places.append(torch.from_numpy(told).unflatten(1, (-1, 3)))
                asked += [task.asked(number, own) for number in numbers]
    pictures = {name: torch.cat(some) for name, some in seen.items()}
    return sights(task, pictures, torch.cat(places), torch.tensor(asked), scenes)

"""Which episodes to practise: of things that are sometimes done and sometimes not, where there is most to learn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.learning.networks import Stateful
from sim.tasks.abilities import HasWords

SETTLED = 0.05  # success this near to 0 or 1: there is little to learn
SELDOM = 0.2  # how often such things are practised, as a share of the others
KEPT = 0.7  # of the running success, per iteration


class Curriculum(Stateful):
    """Draws episodes, and follows the success in each of the things that are asked for."""

    state_values = ("success", "following", "iterations")

    def __init__(self, task: HasWords, seed: int, even: bool, nearing: bool = False) -> None:
        """In worlds of that seed; `even`: every thing as often; `nearing`: the more of it fails, the more often."""
        self.task, self.seed, self.even, self.nearing = task, seed, even, nearing
        things = len(task.instructions)
        self.success = np.full(things, 0.5)  # of each thing, lately
        self.following = np.zeros(things, np.int64)  # the first episode that was not drawn yet
        self.iterations = 0

    def counts(self, total: int) -> NDArray[np.int64]:
        """How many episodes of each thing (things,), one at least, when there are so many in all."""
        if self.even:
            weight = np.ones(len(self.success))
        elif self.nearing:
            weight = np.maximum(1.0 - self.success, SELDOM)
        else:
            settled = np.abs(self.success - 0.5) > 0.5 - SETTLED
            weight = np.where(settled, SELDOM, 1.0)
        wanted = np.maximum(1.0, total * weight / weight.sum())
        counts: NDArray[np.int64] = np.floor(wanted).astype(np.int64)
        for thing in np.argsort(counts - wanted, kind="stable")[: max(0, total - int(counts.sum()))]:
            counts[thing] += 1
        return counts

    def draw(self, total: int) -> list[tuple[int, int]]:
        """(number, thing) of episodes that were never drawn before.

        What succeeds least comes first: its episodes are the longest, and the last ones to end leave others idle.
        """
        drawn = []
        counts = self.counts(total)
        for thing in np.argsort(self.success, kind="stable"):
            for _ in range(counts[thing]):
                number = int(self.following[thing])
                while self.task.asked(number, self.seed) != thing:
                    number += 1
                self.following[thing] = number + 1
                drawn.append((number, int(thing)))
        return drawn

    def learn(self, things: NDArray[np.int64], success: NDArray[np.bool_]) -> dict[int, float]:
        """Take episodes (n,) into account; the success of each thing in them."""
        rates = {thing: float(success[things == thing].mean()) for thing in map(int, np.unique(things))}
        for thing, rate in rates.items():
            self.success[thing] += (1.0 - KEPT if self.iterations else 1.0) * (rate - self.success[thing])
        self.iterations += 1
        return rates

"""What chance decides of episodes as they begin: an episode's number and the seed alone say what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.conditions import Conditions, Draws
from sim.engines import Prepares
from sim.randomize import Array, draw_robots
from sim.tasks import EngineTask

BLOCK = 1024  # episodes that are drawn together; those that nobody asks for cost little
KEPT = 16  # blocks that are remembered
KINDS = ("state", "parameters", "base", "chance", "rest")  # of what is drawn
PRACTICE = int.from_bytes(b"practice")  # mixed into a block's seed

_NOTHING = np.zeros((BLOCK, 0), np.float32)


@dataclass
class Practice:
    """Episodes for learners.

    Their time limits are drawn within `lengths`, as shares of the task's: short ones show more of the beginning, and
    varied ones spread out instead of coinciding. `easy` is the share of episodes whose start is made easier, by a
    random degree each (`EngineTask.easier`). Both may change, which counts from the next episodes drawn.
    """

    lengths: tuple[float, float] = (1.0, 1.0)
    easy: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.lengths[0] <= self.lengths[1] <= 1.0:
            raise ValueError(
                f"lengths are shares of an episode with 0 < shortest <= longest <= 1, got {list(self.lengths)}"
            )
        if not 0.0 <= self.easy <= 1.0:
            raise ValueError(f"easy is a share of episodes, 0..1, got {self.easy}")


class EpisodeDraws:
    """Initial states, vehicles, latencies, time limits, and how conditions turn out, as rows of numbers.

    With `prepares` also what an engine makes of them beforehand.
    """

    def __init__(
        self, task: EngineTask, seed: int, conditions: Conditions, practice: Practice | None, prepares: Prepares | None
    ) -> None:
        self.task, self.conditions, self.practice, self._prepares = task, conditions, practice, prepares
        self.seed, self.motion = seed, (0,)  # of the targets: its shape
        c = conditions
        self._chance = bool(c.change_robots() or c.load != 1.0 or c.wind or c.gust)
        self._latency = np.array([s.delay_range() for s in (*task.policy, *task.commands)]).T  # s, lowest and highest
        self._blocks: dict[int, tuple[Array, Array]] = {}
        self.where: dict[str, dict[str, slice]] = {kind: {} for kind in KINDS}  # the columns of each name
        self.practised: dict[int, Practice] = {}  # how the blocks were drawn that are remembered

    def forget(self, seed: int, practised: Mapping[int, Practice]) -> None:
        """Draw anew from this seed, these blocks as they were."""
        self.seed, self.practised = seed, dict(practised)
        self._blocks.clear()

    def named(self, kind: str, drawn: Array) -> dict[str, Array]:
        """The parts of that kind by name, of rows (count, columns)."""
        return {name: drawn[:, at] for name, at in self.where[kind].items()}

    def rows(self, numbers: NDArray[np.int64]) -> tuple[Array, Array]:
        """What is drawn for these episodes (count, columns), and what is prepared."""
        block, index = np.divmod(numbers, BLOCK)
        which = np.unique(block)
        parts = [self._block(int(k)) for k in which]
        if len(which) == 1:
            return parts[0][0][index], parts[0][1][index]
        drawn, prepared = (np.empty((len(numbers), part.shape[1]), np.float32) for part in parts[0])
        for k, (all_drawn, all_prepared) in zip(which, parts, strict=True):
            rows = np.flatnonzero(block == k)
            drawn[rows], prepared[rows] = all_drawn[index[rows]], all_prepared[index[rows]]
        return drawn, prepared

    def _block(self, number: int) -> tuple[Array, Array]:
        if number not in self._blocks:
            if len(self._blocks) == KEPT:
                oldest = min(self._blocks)
                del self._blocks[oldest]
                self.practised.pop(oldest, None)
            task = self.task
            seeds = np.random.SeedSequence([self.seed, number]).spawn(4)
            starts, vehicles, air, links = (np.random.default_rng(s) for s in seeds)
            limit, state = self._practised(number, task.reset(starts, BLOCK))
            motion = state.pop("motion", np.zeros((BLOCK, 0), np.float32))
            robots = draw_robots(task.robot, task.vary if self.conditions.vary else (), vehicles, BLOCK)
            low, high = self._latency
            latency = links.uniform(low, high, (BLOCK, len(low))) * task.rate_hz
            chance = vars(Draws.of(vehicles, air, BLOCK)) if self._chance else {}
            rest: dict[str, Any] = {"motion": motion.reshape(BLOCK, -1), "latency": latency, "limit": limit}
            self.motion = motion.shape[1:]
            prepared = self._prepares.prepare(BLOCK, state, robots.parameters) if self._prepares else _NOTHING
            drawn = (state, robots.parameters, robots.base, chance, rest)
            parts, end = [np.zeros((BLOCK, 0), np.float32)], 0
            for kind, named in zip(KINDS, drawn, strict=True):
                for name, value in named.items():
                    parts.append(value)
                    self.where[kind][name] = slice(end, end := end + value.shape[1])
            self._blocks[number] = np.concatenate(parts, axis=1, dtype=np.float32), prepared
        return self._blocks[number]

    def _practised(self, number: int, state: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """The time limits (BLOCK, 1) of a block's episodes, and its initial states, some of them easier."""
        limit = np.full((BLOCK, 1), self.task.episode_steps, np.float32)
        if self.practice is None:
            return limit, state
        rng = np.random.default_rng([self.seed, number, PRACTICE])
        how = self.practised.setdefault(number, replace(self.practice))
        shortest, longest = (max(1, round(share * self.task.episode_steps)) for share in how.lengths)
        limit[:] = rng.integers(shortest, longest, (BLOCK, 1), endpoint=True)
        if how.easy > 0.0:
            random = rng.random((2, BLOCK, 1), np.float32)
            state = dict(self.task.easier(state, np.where(random[0] < how.easy, random[1], np.float32(1.0))))
        return limit, state

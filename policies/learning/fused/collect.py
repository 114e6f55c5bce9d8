"""Rollouts of a task that our own engine carries out, for learners: samples by the thousand, by a compiled loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused.network import Perceptron, Scratch, vectors
from policies.learning.fused.rollout import Course, Flight, Pilot, Progress, Seen, exploration, play
from policies.learning.fused.surrogate import Scale, samples_of
from policies.learning.fused.work_queue import WorkQueue
from sim.engines.flight.episodes import Rows
from sim.engines.flight.rows import COMMAND_ROWS, PARAMETER_ROWS, STATE_ROWS
from sim.engines.vector.blocks import blocks
from sim.engines.vector.simd import LANES
from sim.engines.vector.tables import feature_runs
from sim.env import TRAINING, stream
from sim.randomize import Array
from sim.simulation.compiled import CompiledEnv
from sim.simulation.draws import Practice
from sim.spec import limits, size, slices
from sim.tasks import EngineTask, judged_costs
from sim.terms import HISTORY

DUMPS = 3  # files written about vehicles whose state stopped being finite, about
SPARE = 2 * LANES  # episodes that are ready to begin, per block


class Rollouts:
    """`num` vehicles of a task, `horizon` control steps at a time.

    Block b of them takes the episodes num + b, num + b + blocks, ...: neither the order in which blocks are flown nor
    how many threads do it decides anything.
    """

    @classmethod
    def of(
        cls, task: EngineTask, num: int, horizon: int, seed: int, practice: Practice, correlation: float
    ) -> Rollouts | None:
        """None where the task, its engine or the number of vehicles does not allow it."""
        env = CompiledEnv(task, num, stream(seed, TRAINING), practice=practice)
        env.reset(range(num), range(num))
        rows = env.rows()
        return None if rows is None else cls(env, rows, horizon, seed, correlation)

    def __init__(self, env: CompiledEnv, rows: Rows, horizon: int, seed: int, correlation: float) -> None:
        """An environment in the first step of its first `num` episodes, and its `rows`."""
        self.task, self.num, self.horizon, self.env, self.rows = env.task, env.num, horizon, env, rows
        task, num = self.task, self.num
        self.blocks, actions = blocks(num), size(task.commands)
        self.numbers = np.arange(num)  # of the open episodes
        low, high = limits(task.commands)
        self._low, self._half = low, np.float32(0.5) * (high - low)
        where, measured = slices(task.policy), size(task.policy)
        where[HISTORY] = slice(measured, measured + task.history * actions)
        table = feature_runs(task.features, where)
        hidden = [np.arange(at.start, at.stop) for at in self.env.hidden()]
        self.features = int(table.places[:, 3].sum())
        judged = judged_costs(task)
        terms = np.array([k for k, cost in enumerate(task.costs) if cost in judged], np.int64)
        self.seen = Seen(*table, measured, self.features, np.concatenate([np.zeros(0, np.int64), *hidden]), terms)
        self.judged = self.features + len(self.seen.hidden) + len(terms)
        self.widths, b = (vectors(self.features), vectors(self.judged)), self.blocks
        self.samples = samples_of(num, horizon, self.features, self.judged, actions)
        self.counted = np.arange(num * horizon)  # all of them; see `Stepped`
        step, taken, used, final = np.zeros((4, b), np.int64)
        begun, since, gained = np.full(num, -1), np.zeros(num, np.int64), np.zeros(num, np.float32)
        diverged, last = np.zeros((2, b), np.int64)
        remains = np.zeros((b, STATE_ROWS + PARAMETER_ROWS + COMMAND_ROWS), np.float32)
        counted = np.zeros((b, 5))
        self.progress = Progress(step, taken, used, final, begun, since, gained, counted, diverged, last, remains)
        self.diverged, self.dump_dir = 0, Path()  # vehicles whose state stopped being finite; where they are written to
        self.explore = exploration(seed, num, size(task.commands), correlation)
        self.steps = 0
        self._known = self.env.ahead(self.env.motion, np.zeros(num, np.int64), horizon + 1)
        self._ready()

    def _number(self, block: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of a block's episode: the first ones are numbered as the rows are."""
        return self.num + block + self.blocks * index

    def _ready(self) -> None:
        """Have the next episodes of all blocks ready."""
        block, place = np.divmod(np.arange(self.blocks * SPARE), SPARE)
        index = self.progress.taken[block] + (place - self.progress.taken[block]) % SPARE
        self._ahead = self._number(block, index)
        self._spare, self._motion = self.env.episodes(self._ahead, self.horizon + 1)

    def _renew(self) -> None:
        """Have others ready in the place of those that were used."""
        progress = self.progress
        rows = np.flatnonzero(progress.begun >= 0)
        if not len(rows):
            return
        began = progress.begun[rows]
        self.env.motion[rows], self.numbers[rows] = self._motion[began], self._ahead[began]
        block = np.repeat(np.arange(self.blocks), progress.used)
        index = progress.taken[block] + np.concatenate([np.arange(k) for k in progress.used])
        slots = block * SPARE + index % SPARE
        self._ahead[slots] = self._number(block, index + SPARE)
        fresh, self._motion[slots] = self.env.episodes(self._ahead[slots], self.horizon + 1)
        parts: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(self._spare, fresh, strict=True)
        for part, new in parts:
            part[slots] = new
        progress.taken[:] += progress.used
        progress.used[:], progress.begun[:], progress.since[:] = 0, -1, 0

    def flight(self, actor: Perceptron, scale: Scale, std: Array, squashed: bool = False) -> Flight:
        """What all flights of an actor read and write; `std` and `squashed` as `play` has them."""
        course = Course(self.blocks, self.horizon, self.seen, self._spare, SPARE, self._known, self.progress)
        pilot = Pilot(
            *(self.samples, self.widths, actor.net, scale, std, squashed),
            *(self._low, self._half, self.explore),
        )
        return Flight(self.rows, course, pilot)

    def collect(
        self, actor: Perceptron, scale: Scale, std: Array, scratch: Scratch, queue: WorkQueue, squashed: bool = False
    ) -> dict[str, float]:
        """Fill `samples` with the next steps of all vehicles; what is counted of them.

        Whoever looks at the queue helps with the `flight`. RuntimeError where that fails.
        """
        self.env.follow_curriculum(self.steps)
        progress, flight = self.progress, self.flight(actor, scale, std, squashed)
        progress.step[:], progress.final[:], progress.counted[:] = 0, 0, 0.0
        while (progress.step <= self.horizon).any():
            now = self.env.steps - np.repeat(progress.step, LANES)
            self._known[:] = self.env.ahead(self.env.motion, now, self.horizon + 1)
            if not play(queue, True, flight, scratch):
                raise RuntimeError("a thread that helps with the rollout has failed; what it said is above")
            self._renew()
        self.steps += self.num * self.horizon
        self._write_down()
        returned, length, ended, lost, reward = progress.counted.sum(axis=0).tolist()
        metrics = {"reward": reward / (self.num * self.horizon)}
        if ended:
            metrics |= {"episode_return": returned / ended, "episode_length": length / ended, "lost": lost / ended}
        return metrics | {"diverged": float(self.diverged)}

    def _write_down(self) -> None:
        """Count the vehicles whose state stopped being finite, and write some of them down, for replay."""
        progress = self.progress
        for block in np.flatnonzero(progress.diverged):
            if self.diverged < DUMPS:
                row = int(progress.last[block])
                parts = np.split(progress.remains[block], [STATE_ROWS, STATE_ROWS + PARAMETER_ROWS])
                self.dump_dir.mkdir(parents=True, exist_ok=True)
                path = self.dump_dir / f"diverged_{self.steps}_{row}.npz"
                dt = 1.0 / self.task.rate_hz
                np.savez(path, state=parts[0], derived=parts[1], command=parts[2], row=row, dt=dt, seed=self.env.seed)
            self.diverged += int(progress.diverged[block])
        progress.diverged[:] = 0

    def final_ranges(self) -> list[tuple[int, int]]:
        """Where in `samples.judged` the last states of episodes that ran out of time are."""
        first, final = (self.horizon + 1) * self.num, self.progress.final
        places = ((first + int(block) * LANES * self.horizon, int(final[block])) for block in np.flatnonzero(final))
        return [(place, place + count) for place, count in places]

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollouts depend on."""
        arrays = {name: value.copy() for name, value in self._arrays().items()}
        return {**arrays, "env": self.env.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.env.load_state_dict(state["env"])
        for name, value in self._arrays().items():
            value[...] = state[name]
        self.steps = int(state["steps"])
        self._ready()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        progress, explore = self.progress, self.explore
        kept: dict[str, NDArray[Any]] = {"numbers": self.numbers, "taken": progress.taken, "gained": progress.gained}
        return kept | {"stream": explore.stream, "last": explore.last}

"""Model-predictive path integral control (MPPI): imagine many futures of the car, and drive their weighted mean.

After Williams et al. 2017, "Information theoretic MPC for model-based reinforcement learning" (ICRA), algorithm 2: a
plan U is disturbed by noise, each disturbed plan V_k is tried in a model and costs S_k, and the new plan is the mean of
V_k with weights exp(-(S_k - min S) / temperature), normalised. Their term for the noise's own price is left out, which
is their alpha = 1. The model is the engine's own compiled car with the task's nominal numbers and the true friction.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import Cars
from sim.engines.car.plans import imagined
from sim.engines.vector.blocks import to_lanes
from sim.engines.vector.simd import LANES
from sim.env import Array
from sim.experts.pursuit import pursuit
from sim.scenes.track import WIDTH
from sim.spec import limits, pack, unpack

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

PLANS, STEPS = 384, 26  # tried per control step; control steps of a plan, 1.3 s
NOISE = (0.16, 1.2)  # rad and m/s: standard deviation of what disturbs steering and speed
LASTING = 0.75  # correlation of that from one step of a plan to the next
TEMPERATURE = 0.15  # m of the way: what is so much worse than the best counts for 1/e
FIRST, AGAIN = 6, 1  # times that a plan is improved: an episode's first one, and others
BANK = 32  # tables of noise, used in turn
SPARE = 0.03  # m that walls are thought to be nearer than they are seen


class Mppi:
    """Commands for signals (n, k) of rows that go on from call to call; it remembers their plans.

    A row whose `lap` is not above zero begins anew. The table of noise that a row uses follows from how old its plan
    is, so that other rows do not change what it does.
    """

    def __init__(self, task: CarRace, beams: Array, plans: int = PLANS) -> None:
        """`beams` (k,): where those of the lidar look, rad from ahead."""
        if plans < LANES or plans % LANES:
            raise ValueError(f"needs a multiple of {LANES} plans, got {plans}")
        self.task, self.plans = task, plans
        self._beams = np.stack([np.cos(beams), np.sin(beams)], axis=1)
        self._low, self._high = limits(task.commands)
        self._begin(0)

    @functools.cached_property
    def _noise(self) -> Array:
        """(BANK, STEPS, plans, 2): what disturbs plans."""
        fresh = np.random.default_rng(0).standard_normal((BANK, STEPS, self.plans, 2)).astype(np.float32)
        for k in range(1, STEPS):
            fresh[:, k] = LASTING * fresh[:, k - 1] + np.float32(np.sqrt(1.0 - LASTING**2)) * fresh[:, k]
        fresh[:, :, 0] = 0.0  # the plan itself is among them
        made: Array = fresh * np.array(NOISE, np.float32)
        return made

    def _begin(self, num: int) -> None:
        """For so many rows."""
        self._plan = np.zeros((num, STEPS, 2), np.float32)
        self._age, self._push = np.full(num, -1, np.int64), np.zeros((num, 1), np.float32)
        self._model = Cars(self.task.robot, max(num, 1), 1.0 / self.task.rate_hz)

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        num = len(signals["path"])
        if num != len(self._plan):
            self._begin(num)
        anew = (signals["lap"][:, 0] <= 0.0) | (self._age < 0)
        self._age = np.where(anew, 0, self._age + 1)
        self._push[anew] = 0.0
        self._plan = np.concatenate([self._plan[:, 1:], self._plan[:, -1:]], axis=1)
        if anew.any():
            self._plan[anew] = pack(self.task.commands, pursuit(self.task, signals))[anew, None]
        self._set(signals)
        path, room = signals["path"].reshape(num, -1, 2).astype(np.float32), self._room(signals)
        state, parameters = (self._model.arrays()[name] for name in ("state", "parameters"))
        for row in range(num):
            place, lane = divmod(row, LANES)
            one, own = (np.repeat(a[place, None, :, lane, None], LANES, axis=2) for a in (state, parameters))
            for time in range(FIRST if anew[row] else AGAIN):
                noise = self._noise[(self._age[row] + time) % BANK]
                self._plan[row] = self._improved(self._plan[row], noise, one, own, path[row], room[row])
        told = self._plan[:, 0].copy()
        self._model.step(told)
        self._push = self._model.read("push")  # which no sensor tells
        return unpack(self.task.commands, told)

    def _set(self, signals: Mapping[str, Array]) -> None:
        """The model's cars are as what is seen, each in its own axes."""
        rows = np.arange(len(self._plan))
        seen = {"velocity": signals["velocity"], "turning": signals["yaw_rate"], "push": self._push}
        self._model.reset(rows, {**seen, "steering_angle": signals["steering_angle"], "friction": signals["friction"]})

    def _room(self, signals: Mapping[str, Array]) -> Array:
        """(n, 2): m from the centreline ahead to the walls on its left and right, where they are nearest to it."""
        seen = self._beams * signals["lidar"][..., None]
        seen[..., 0] += self.task.robot.lidar
        path = signals["path"].reshape(len(seen), 1, -1, 2)
        begin, along = path[:, :, :-1], np.diff(path, axis=2)
        length = np.maximum(np.linalg.norm(along, axis=-1), 1e-6)
        off = seen[:, :, None] - begin  # (n, beams, parts, 2)
        share = np.clip((off * along).sum(axis=-1) / length**2, 0.0, 1.0)
        away = np.linalg.norm(off - share[..., None] * along, axis=-1)
        left = along[..., 0] * off[..., 1] - along[..., 1] * off[..., 0] > 0.0
        nearest = away.argmin(axis=2)[..., None]
        away, left = (np.take_along_axis(a, nearest, axis=2)[..., 0] for a in (away, left))
        sides = [np.where(side, away, WIDTH).min(axis=1) for side in (left, ~left)]
        made: Array = np.stack(sides, axis=1).astype(np.float32) - np.float32(SPARE)
        return made

    def _improved(self, plan: Array, noise: Array, start: Array, own: Array, path: Array, room: Array) -> Array:
        """A plan (STEPS, 2) after one look at what comes of it and of others near it."""
        tried = np.clip(plan[:, None] + noise, self._low, self._high)  # (STEPS, plans, 2)
        laid = to_lanes(tried.transpose(1, 0, 2).reshape(self.plans, -1))
        cost: NDArray[np.float32] = np.empty((self.plans // LANES, LANES), np.float32)
        steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
        ways = np.concatenate([[0.0], np.cumsum(steps)]).astype(np.float32)
        model, left = self._model, np.empty_like(start)
        h = np.float32(model.dt / model.substeps)
        imagined(start, own, path, ways, room, laid, model.shape, h, model.substeps, left, cost)
        weight = np.exp(-(cost.ravel() - cost.min()) / TEMPERATURE)
        made: Array = np.einsum("k,skc->sc", weight / weight.sum(), tried).astype(np.float32)
        return made

"""Racing for learners that follow gradients: what a window of control steps costs, and its derivative.

Walls are no obstacles here, but cost the more the closer they are, and behind them more still. Whoever has touched one
pays for `BEYOND` control steps, makes no way any more, and begins another episode after the window.

The gradient passes through cars, latency, lidar and odometry. Noise and lost scans add nothing to it; where a ray jumps
from one wall to another, the jump is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import windows
from sim.engines.car.rows import COMMAND_ROWS, PUSH, STATE_ROWS, STEER, STEERING, TURNING, VX
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.engines.vector.simd import LANES
from sim.env import Step
from sim.randomize import Array
from sim.robots.cars import GRAVITY
from sim.tasks.race.world import WEIGHTS, Race

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

MARGIN, TOUCH = 0.4, 0.6  # m from walls where they begin to cost; m of way that a step costs a circle that touches one
ALONG = 0.7  # cosine of the angle to the track from which on it costs
ASIDE = 0.5  # m of way, per step, for no cosine
STILL = 0.03  # m of way per control step of a window: who makes less has spun, or stands
# Sine of the rear tyres' slip angle from which on it costs, and m of way, per step, for the square of what is beyond.
# Tyres hold best at a sine of 0.5; behind it a car spins, and from there no gradient tells how it would not have.
STEADY, SLIDE = 0.33, 2.0
PRICES = windows.Prices(*(np.float32(price) for price in (MARGIN, TOUCH, ALONG, ASIDE, STEADY, SLIDE)))
# To this power is raised where in its range a friction lies (0 to 1): cars that hardly hold are rehearsed more often,
# since nearly all that touch walls are those. With 1 more than half of the laps in the lowest twelfth failed.
SLIPPERY = 1.75
BEYOND = 6  # control steps for which a wall is paid for behind it


class Rehearsal(Race):
    """`num` cars, `steps` control steps at a time; see `sim.tasks.abilities.Rehearsal`."""

    def __init__(self, task: CarRace, num: int, seed: int, steps: int) -> None:
        if task.engine != "car":
            raise ValueError(f"engine {task.engine!r} has no adjoint; gradients of {task.name} run on: car")
        if num % LANES:
            raise ValueError(f"cars rehearse in multiples of {LANES}, got {num}")
        super().__init__(task, num, seed)
        self.cars.solid = False

        def room(rows: int, first: int = steps + 1) -> Array:
            return np.zeros((first, num // LANES, rows, LANES), np.float32)

        self._states, self._by_way, self._by_wall = room(STATE_ROWS), room(STATE_ROWS), room(STATE_ROWS)
        self._arrived, self._seen = room(COMMAND_ROWS, steps), room(self._beams.stop)
        self._rays = np.stack([np.cos(self._angles), np.sin(self._angles)])
        self._wall, self._near = np.zeros((2, steps + 1, num), np.float32)
        self._way, self._change = np.zeros((2, steps, num), np.float32)  # m; of the steering, as a share of its limit
        self._time, self._next = 0, num  # control steps in this window; the next episode's number
        self.reset(range(num), range(num))
        self._note()

    def _varied(self, rng: np.random.Generator) -> dict[str, Array]:
        drawn, nominal = super()._varied(rng), self._nominal["friction"]
        for how in self.task.vary:
            if how.name == "friction":
                share = np.clip((drawn["friction"] / nominal - how.low) / (how.high - how.low), 0.0, 1.0)
                drawn["friction"] = nominal * (how.low + (how.high - how.low) * share**SLIPPERY)
        return drawn

    def _note(self) -> None:
        """Where cars are now, and what it costs."""
        t, arrays = self._time, self.cars.arrays()
        self._states[t], self._seen[t] = arrays["state"], self._table[:, self._beams]
        windows.judge(
            *(arrays["state"], arrays["parameters"], arrays["index"], self.cars.grids.cells, self.cars.shape),
            *(PRICES, self.courses, self.track, self.nearest, self.place),
            *(self._wall[t], self._near[t], self._by_way[t], self._by_wall[t]),
        )

    def step(self, command: Mapping[str, Array]) -> Step:
        t, before = self._time, self._told[:, STEER].copy()
        step = super().step(command)
        self._time = t + 1
        self._arrived[t] = self._actuators.channel.arrived
        self._way[t], self._change[t] = self.place[:, 2], (self._told[:, STEER] - before) / self._high[STEER]
        self._note()
        return step

    def _driving(self) -> NDArray[np.bool_]:
        """(steps + 1, num): who has touched no wall by then."""
        return np.logical_and.accumulate(self._near > 0.0, axis=0)

    def costs(self) -> tuple[Array, NDArray[np.bool_]]:
        """(steps, num) m of way, of each control step, and who was driving before it."""
        on = self._driving()
        cost = (-WEIGHTS["jerk"] * self._change**2 - WEIGHTS["progress"] * self._way) * on[:-1]
        return cost + (self._wall * self._paying(on))[1:], on[:-1]

    def _paying(self, on: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(steps + 1, num): who pays for walls by then."""
        late = np.concatenate([np.repeat(on[:1], BEYOND, axis=0), on])[: len(on)]
        late[0] = False  # that is the window's before
        return late

    def begin_pulling(self) -> None:
        """Prepare for `pull` to be called, from the last control step to the first."""
        on = self._driving()
        made, left = np.zeros_like(self._wall), np.zeros_like(self._wall)
        left[:-1], made[1:] = on[:-1], on[:-1]
        way, wall = (to_lanes(x.T) for x in (WEIGHTS["progress"] * (left - made), self._paying(on)))
        self._slopes = way.transpose(1, 0, 2)[:, :, None] * self._by_way
        self._slopes += wall.transpose(1, 0, 2)[:, :, None] * self._by_wall
        self._pulled = self._slopes[-1].copy()
        jerk = -2.0 * WEIGHTS["jerk"] / self._high[STEER] * self._change * on[:-1]
        self._by_sent = np.zeros_like(self._arrived)
        self._by_sent[:, :, STEER] = to_lanes(jerk.T).transpose(1, 0, 2)
        self._by_sent[:-1, :, STEER] -= to_lanes(jerk[1:].T).transpose(1, 0, 2)

    def pull(self, t: int, limit: float) -> Array:
        """(num, k): the gradient of the sum of `costs` by the commands of step t, which is undone."""
        cars, channel = self.cars, self._actuators.channel
        taps = channel.weights.shape[1] // COMMAND_ROWS
        sent = np.zeros((max(1, taps), *self._arrived.shape[1:]), np.float32)
        windows.pull(
            *(self._states[t], self._arrived[t], cars.arrays()["parameters"], channel.weights, cars.shape),
            *(np.float32(cars.dt / cars.substeps), cars.substeps, np.float32(limit), self._pulled, sent),
        )
        for tap, found in enumerate(sent[: t + 1]):
            self._by_sent[t - tap] += found
        self._pulled += self._slopes[t]
        return from_lanes(self._by_sent[t], self.num)

    def pull_sensed(self, t: int, slopes: Array) -> None:
        """Add what follows from the gradient (num, m) by the policy's signals, one after the other, before step t."""
        arrays, state, task = self.cars.arrays(), self._states[t], self.task
        windows.scan_adjoint(
            *(state, arrays["parameters"], arrays["index"], self.cars.grids.cells, self._rays),
            *(np.float32(task.driven.lidar), np.float32(self._range), self._seen[t]),
            *(np.ascontiguousarray(slopes[:, self._beams]), self._pulled),
        )
        wheel, yaw, steering, *last = to_lanes(slopes[:, self._beams.stop :]).transpose(1, 0, 2)
        if last and t:  # what it was told last
            self._by_sent[t - 1] += np.stack(last, axis=1)
        hold = GRAVITY * arrays["parameters"][:, self.cars.rows("friction").start]
        used = state[:, PUSH] / hold
        self._pulled[:, VX] += wheel * (1.0 + np.clip(used, -1.0, 1.0) / task.driven.longitudinal_stiffness)
        pushing = wheel * state[:, VX] / (hold * task.driven.longitudinal_stiffness)
        self._pulled[:, PUSH] += np.where(np.abs(used) < 1.0, pushing, 0.0)
        self._pulled[:, TURNING] += yaw
        self._pulled[:, STEERING] += steering

    def go_on(self, longest: int) -> tuple[int, NDArray[np.bool_]]:
        """The next window. Who is lost (how many), or has driven for so many steps, begins another episode: (num,)."""
        going = self._way.mean(axis=0) >= STILL
        on = self._driving()[-1] & going & ~self.lost & np.isfinite(self.place).all(axis=1)
        over = ~on | (self.age >= longest)
        rows = np.flatnonzero(over)
        self.reset(rows.tolist(), range(self._next, self._next + len(rows)))
        self._next += len(rows)
        self._time = 0
        self._note()
        return int((~on).sum()), over

    def state_dict(self) -> dict[str, Any]:
        """Between two windows."""
        return {**super().state_dict(), "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._next, self._time = int(state["next"]), 0
        self._note()

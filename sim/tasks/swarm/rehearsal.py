"""Swarms for learners that follow gradients: what a window of control steps costs, and its derivative.

Nobody stops for a touch here: who is too near to others pays for it, and more so where they overlap. Who is lost pays
no more, and its airspace begins another episode after the window. Everybody keeps to the right a little: who meets
head-on must choose a side, and the costs of both sides are the same otherwise.

The gradient passes through vehicles, latency, sensing, downwash, and from each vehicle to the others that see it. Noise
and lost packets add nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import sense_adjoint_blocks, step_adjoint_blocks
from sim.engines.flight.airspace import blow_adjoint, view_adjoint
from sim.engines.flight.pillars import look_around_adjoint
from sim.engines.flight.rows import (
    BODY_RATE,
    COMMAND_ROWS,
    POSITION,
    PUSH,
    QUATERNION,
    SIGNAL_ROWS,
    STATE_ROWS,
    VELOCITY,
)
from sim.engines.vector.blocks import from_lanes, sane, to_lanes
from sim.engines.vector.simd import LANES
from sim.env import Step
from sim.randomize import Array
from sim.spec import slices
from sim.tasks.swarm.places import Places, parted
from sim.tasks.swarm.world import Swarm

if TYPE_CHECKING:
    from sim.tasks.swarm import QuadSwarm


ASIDE = 0.6  # m/s, to the right of the way to its place: far from it the speed aside that costs nothing
ROUND = 1.0  # m from it, where "far" begins
RIGHT = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)  # rows turned, a quarter, to there


class Rehearsal(Swarm):
    """`num` vehicles, `steps` control steps at a time; see `sim.tasks.abilities.Rehearsal`."""

    def __init__(self, task: QuadSwarm, num: int, seed: int, steps: int) -> None:
        if num % LANES or num % task.agents:
            raise ValueError(f"{task.name} rehearses in multiples of {LANES} and of {task.agents} rows, got {num}")
        super().__init__(task, num, seed)

        def room(rows: int, first: int) -> Array:
            return np.zeros((first, num // LANES, rows, LANES), np.float32)

        self._states, self._by_state = room(STATE_ROWS, steps + 1), room(STATE_ROWS, steps + 1)
        self._arrived, self._pushed = room(COMMAND_ROWS, steps), room(1, steps)
        self._orders = np.zeros((steps, *self._order.shape), np.int64)
        self._rounds = np.zeros((steps, *self._round.shape), np.int64)
        self._cost, self._change = np.zeros((steps, num), np.float32), np.zeros((steps, num, COMMAND_ROWS), np.float32)
        self._flies = np.zeros((steps + 1, num), bool)
        where = slices(task.policy)
        self._own, self._near, self._nearing = (
            slice(0, SIGNAL_ROWS),
            where["neighbours"],
            where["neighbours_velocity"],
        )
        self._around = where.get("obstacles")
        self._time, self._next = 0, num // task.agents  # control steps in this window; the next episode's number
        # By which share the first episodes are shorter, so that at any time some begin, some cross and some hold.
        self._early = np.repeat(np.arange(self._next) / self._next, task.agents)
        self.reset(range(num), np.repeat(range(self._next), task.agents).tolist())
        self._begin()

    def _places(self, rng: np.random.Generator) -> Places:
        c = self.task.config
        fewest = min(c.fewest, self.each)
        return parted(c.mode, self.each, fewest, c.radius, rng) if fewest else super()._places(rng)

    def _begin(self) -> None:
        self._time = 0
        self._states[0], self._flies[0] = self.flight.state, True

    def step(self, command: Mapping[str, Array]) -> Step:
        t, before = self._time, self._told
        self._orders[t], self._rounds[t] = self._order, self._round
        step = super().step(command)
        self._time = t + 1
        self._arrived[t], self._states[t + 1] = self._actuators.channel.arrived, self.flight.state
        self._pushed[t] = self.flight.derived[:, PUSH + 2 : PUSH + 3]
        now = self.truth()
        self._flies[t + 1] = self._flies[t] & (now["strayed"][:, 0] == 0.0) & ~self.lost
        self._change[t] = 2.0 * (self._told - before) / (self._high - self._low)
        costs = ("away", "speed", "turning", "tilt", "change", "crowd")
        self._cost[t] = -sum(self.weights[name] * step.terms[name] for name in costs)
        self._slope(now, step.terms["away"], self._by_state[t + 1])
        return step

    def _slope(self, now: Mapping[str, Array], away: Array, out: Array) -> None:
        """How the sum of the costs of a state changes with it, (blocks, STATE_ROWS, LANES)."""
        state = self.flight.state
        out[:] = -self.weights["crowd"] * self._slopes
        (off, far), moving = self._away_from_place(now), self._moving(now)
        # Of the speed aside, which falls with the distance: turned back, and along the way to its place.
        back = (moving @ RIGHT.T - off * (moving * (off @ RIGHT)).sum(axis=1, keepdims=True) / far**2) / far
        slope = -self.weights["away"] * off / away[:, None] - 2.0 * self.weights["speed"] * np.float32(ASIDE) * back
        out[:, POSITION : POSITION + 3] += to_lanes(slope)
        out[:, VELOCITY : VELOCITY + 3] += to_lanes(-2.0 * self.weights["speed"] * moving)
        out[:, BODY_RATE : BODY_RATE + 3] += -2.0 * self.weights["turning"] * state[:, BODY_RATE : BODY_RATE + 3]
        out[:, QUATERNION] += 2.0 * self.weights["tilt"] * state[:, QUATERNION]  # the cost is that of 1 - w^2

    def _moving(self, now: Mapping[str, Array]) -> Array:
        """Velocities (num, 3) relative to those that cost nothing."""
        off, far = self._away_from_place(now)
        moving: Array = now["linear_velocity"] - now["target_velocity"] + np.float32(ASIDE) * (off @ RIGHT) / far
        return moving

    def _away_from_place(self, now: Mapping[str, Array]) -> tuple[Array, Array]:
        """Ways (num, 3) from their places, m, and lengths of these (num, 1), ROUND at least."""
        off = now["position"] - now["target_position"]
        return off, np.sqrt((off * off).sum(axis=1, keepdims=True) + np.float32(ROUND * ROUND))

    def _terms(self, now: Mapping[str, Array], before: Array, ends: NDArray[np.bool_]) -> dict[str, Array]:
        with np.errstate(invalid="ignore", over="ignore"):
            return {**super()._terms(now, before, ends), "speed": (self._moving(now) ** 2).sum(axis=1)}

    def costs(self) -> tuple[Array, NDArray[np.bool_]]:
        """(steps, num) of each control step, and who was flying before it."""
        on = self._flies[1:]
        return np.where(on, np.nan_to_num(self._cost), np.float32(0.0)), self._flies[:-1]

    def begin_pulling(self) -> None:
        """Prepare for `pull` to be called, from the last control step to the first."""
        on = self._flies[1:]
        self._by_state[1:] *= to_lanes(on.T.astype(np.float32)).transpose(1, 0, 2)[:, :, None]
        self._by_state[0] = 0.0
        self._pulled = self._by_state[-1].copy()
        change = -4.0 * self.weights["change"] / (self._high - self._low) * self._change * on[..., None]
        self._by_sent = np.stack([to_lanes(x) for x in change])
        self._by_sent[:-1] -= self._by_sent[1:].copy()

    def pull(self, t: int, limit: float) -> Array:
        """(num, k): the gradient of the sum of `costs` by the commands of step t, which is undone."""
        flight, channel, g = self.flight, self._actuators.channel, self._pulled
        norm = np.sqrt((g * g).sum(axis=1, keepdims=True))
        g *= np.float32(limit) / np.maximum(norm, np.float32(limit))
        after, told = g.copy(), np.zeros_like(self._arrived[t])
        flight.derived[:, PUSH + 2 : PUSH + 3] = self._pushed[t]
        step_adjoint_blocks(self._states[t], flight.derived, self._arrived[t], g, told, flight.substep)
        h = np.float32(flight.dt)
        blow_adjoint(self._states[t], flight.values, flight.derived, self.each, h, after, g)
        taps = channel.weights.shape[1] // COMMAND_ROWS
        if not taps:
            self._by_sent[t] += told
        for tap in range(min(taps, t + 1)):
            share = channel.weights[:, tap * COMMAND_ROWS : (tap + 1) * COMMAND_ROWS]
            self._by_sent[t - tap] += share * told
        g += self._by_state[t]
        return from_lanes(self._by_sent[t], self.num)

    def pull_sensed(self, t: int, slopes: Array) -> None:
        """Add what follows from the gradient (num, m) by the policy's signals, one after the other, before step t."""
        slopes = sane(slopes)
        sense_adjoint_blocks(self._states[t], to_lanes(slopes[:, self._own]), self._pulled)
        near, nearing = (np.ascontiguousarray(slopes[:, at]) for at in (self._near, self._nearing))
        view_adjoint(self._orders[t], near, nearing, self._pulled)
        if self._around:
            around = np.ascontiguousarray(slopes[:, self._around])
            look_around_adjoint(self._states[t], self.each, self._pillars, self._rounds[t], around, self._pulled)

    def go_on(self, longest: int) -> tuple[int, NDArray[np.bool_]]:
        """The next window. Where somebody is lost, or all have flown for so many steps, another episode begins."""
        lost = ~self._flies[-1] | ~np.isfinite(from_lanes(self.flight.state, self.num)).all(axis=1)
        ends = lost | (self.age >= longest * (1.0 - self._early))
        over = np.repeat(ends.reshape(-1, self.each).any(axis=1), self.each)
        self._early[over] = 0.0
        rows = np.flatnonzero(over)
        count = len(rows) // self.each
        self.reset(rows.tolist(), np.repeat(range(self._next, self._next + count), self.each).tolist())
        self._next += count
        self._begin()
        return int(lost.sum()), over

    def state_dict(self) -> dict[str, Array | int]:
        """Between two windows."""
        return {**super().state_dict(), "next": self._next, "early": self._early.copy()}

    def load_state_dict(self, state: Mapping[str, Array | int]) -> None:
        super().load_state_dict(state)
        self._next = int(state["next"])
        self._early[:] = state["early"]
        self._begin()

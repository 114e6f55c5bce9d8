"""Racing through gates for learners that follow gradients: what a window of control steps costs, and its derivative.

The way to go is that to the next gate's middle, and from middle to middle beyond. Beside an opening, near its plane, it
costs to be outside of where a vehicle passes; that pulls sideways, never back. Whoever has hit something, or missed a
gate, pays for `BEYOND` control steps, makes no way any more, and begins another episode after the window.

The gradient passes through vehicles, latency and what is sensed; noise adds nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import Flight, sense_adjoint_blocks, step_adjoint_blocks
from sim.engines.flight.rows import COMMAND_ROWS, SIGNAL_ROWS, SIGNALS, STATE_ROWS
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.engines.vector.simd import LANES
from sim.env import Step
from sim.randomize import Array
from sim.tasks.gates.world import WEIGHTS, GateRace

if TYPE_CHECKING:
    from sim.tasks.gates import QuadGateRace

SPARE = 0.15  # m inside an opening, beyond the vehicle's own radius, that cost nothing
NEAR = 0.8  # m before and behind a gate's plane within which being outside of that costs
OUTSIDE, LOW = 0.4, 0.6  # per m and control step: outside of it, or lower than LOWEST
LOWEST = 0.7  # m
VIEW = 0.02  # per control step, times 1 - the cosine of the angle between the nose and the next gate
BEYOND = 6  # control steps for which that is paid after a crash
PLACE, TURN, SPEED, RATE = (SIGNALS[name] for name in ("position", "rotation", "linear_velocity", "angular_velocity"))


class Rehearsal(GateRace):
    """`num` quadrotors, `steps` control steps at a time; see `sim.tasks.abilities.Rehearsal`."""

    def __init__(self, task: QuadGateRace, num: int, seed: int, steps: int) -> None:
        if task.engine != "flight":
            raise ValueError(f"engine {task.engine!r} has no adjoint; gradients of {task.name} run on: flight")
        if num % LANES:
            raise ValueError(f"quadrotors rehearse in multiples of {LANES}, got {num}")
        super().__init__(task, num, seed)
        assert isinstance(self.vehicles, Flight)
        self.flight: Flight = self.vehicles
        self._states = np.zeros((steps + 1, num // LANES, STATE_ROWS, LANES), np.float32)
        self._arrived = np.zeros((steps, num // LANES, COMMAND_ROWS, LANES), np.float32)
        self._goes, self._after = np.zeros((2, steps + 1, num), np.int64)  # the next gate, and that after it
        self._seen = np.zeros((steps + 1, num, SIGNAL_ROWS), np.float32)  # place, turn, speed and rate
        self._passed_by = np.zeros((steps + 1, num), np.float32)  # m between gates that were passed until then
        self._change = np.zeros((steps, num, COMMAND_ROWS), np.float32)
        self._fine = np.ones((steps + 1, num), bool)  # nothing hit or missed then
        self._time, self._next = 0, num  # control steps in this window; the next episode's number
        ways = [np.linalg.norm(np.roll(t.centre, -1, axis=0) - t.centre, axis=1) for t in self.tracks]
        self._ways = np.zeros(self._centre.shape[:2], np.float32)  # m from each gate to the next
        for k, way in enumerate(ways):
            self._ways[k, : len(way)] = way
        self._behind = np.zeros(num, np.float32)  # m between gates that are passed since the window began
        self.reset(range(num), range(num))
        self._note()

    def _note(self) -> None:
        """Where vehicles are now."""
        t, now, columns = self._time, self._now, self._columns
        self._states[t], self._goes[t], self._after[t] = self.flight.state, self._due(), self._due(1)
        self._passed_by[t] = self._behind
        for at, name in ((PLACE, "position"), (TURN, "rotation"), (RATE, "angular_velocity")):
            self._seen[t, :, at] = now[:, columns[name]]
        self._seen[t, :, SPEED] = self.flight.read("linear_velocity")

    def _judge(self) -> None:
        """What it costs to be there, for the whole window at once."""
        self._left, self._by_left = np.zeros(self._goes.shape), np.zeros_like(self._seen)
        self._price, self._by_price = np.zeros(self._goes.shape), np.zeros_like(self._seen)
        position, rate = self._seen[..., PLACE].astype(np.float64), self._seen[..., RATE]
        rotation = self._seen[..., TURN].reshape(*self._goes.shape, 3, 3)
        to = position - self._centre[self.track, self._goes]  # (steps + 1, num, 3)
        far = np.linalg.norm(to, axis=-1)
        self._left = far - self._passed_by
        self._by_left[..., PLACE] = to / np.maximum(far, 1e-3)[..., None]
        # Outside of the opening, near its plane.
        axes = self._axes[self.track, self._goes]
        place = np.einsum("tnj,tnji->tni", to, axes)
        room = 0.5 * self._size[self.track, self._goes] - self.task.radius - SPARE
        off = np.maximum(np.abs(place[..., 1:]) - np.maximum(room, 0.05), 0.0)
        outside = np.sqrt((off**2).sum(axis=-1) + 1e-6)
        share = OUTSIDE * np.exp(-((place[..., 0] / NEAR) ** 2))
        across = (share / outside)[..., None] * off * np.sign(place[..., 1:])
        by_place = np.einsum("tnik,tnk->tni", axes[..., 1:], across)
        low = np.maximum(LOWEST - position[..., 2], 0.0)
        by_place[..., 2] -= LOW * (low > 0.0)
        # Where the nose points.
        away = np.maximum(far, 0.5)[..., None]
        unit = np.einsum("tnj,tnji->tni", -to, rotation) / away
        by_unit = -VIEW * (np.eye(3)[0] - unit[..., :1] * unit) / away
        by_place -= np.einsum("tnij,tnj->tni", rotation, by_unit)
        self._by_price[..., TURN] = np.einsum("tnj,tni->tnji", -to, by_unit).reshape(*self._goes.shape, 9)
        self._by_price[..., PLACE], self._by_price[..., RATE] = by_place, -2.0 * WEIGHTS["spin"] * rate
        self._price = share * outside + LOW * low + VIEW * (1.0 - unit[..., 0])
        self._price -= WEIGHTS["spin"] * (rate**2).sum(axis=-1)

    def step(self, command: Mapping[str, Array]) -> Step:
        t, told, due = self._time, self._told.copy(), self._due()
        passed = self.passed.copy()
        step = super().step(command)
        self._time = t + 1
        self._arrived[t] = self._actuators.channel.arrived
        self._change[t] = self._told - told
        through = self.passed > passed
        self._behind += through * self._ways[self.track, due]
        finite = np.isfinite(self.flight.state).all(axis=1).reshape(-1)[: self.num]
        self._fine[t + 1] = ~(step.terminated | self.missed) & finite
        self._note()
        return step

    def _racing(self) -> NDArray[np.bool_]:
        """(steps + 1, num): who has hit and missed nothing by then."""
        self._fine[0] = True
        racing: NDArray[np.bool_] = np.logical_and.accumulate(self._fine, axis=0)
        return racing

    def _paying(self, on: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(steps + 1, num): who pays for where it is by then."""
        paying = np.concatenate([np.repeat(on[:1], BEYOND, axis=0), on])[: len(on)]
        paying[0] = False  # that is the window's before
        return paying

    def costs(self) -> tuple[Array, NDArray[np.bool_]]:
        """(steps, num) m of way, of each control step, and who was racing before it."""
        self._judge()
        on = self._racing()
        way = np.where(on[:-1], np.diff(self._left, axis=0), 0.0)
        jerk = -WEIGHTS["jerk"] * (self._change**2).sum(axis=2) * on[:-1]
        cost: Array = np.nan_to_num(WEIGHTS["progress"] * way + jerk + np.where(self._paying(on), self._price, 0.0)[1:])
        return cost, on[:-1]

    def begin_pulling(self) -> None:
        """Prepare for `pull` to be called, from the last control step to the first; `costs` come before."""
        on = self._racing()
        made, left = np.zeros_like(self._left), np.zeros_like(self._left)
        left[:-1], made[1:] = on[:-1], on[:-1]
        way = WEIGHTS["progress"] * (made - left)[:, :, None]
        slopes = way * self._by_left + self._paying(on)[:, :, None] * self._by_price
        self._slopes = np.nan_to_num(slopes).astype(np.float32)
        jerk = -2.0 * WEIGHTS["jerk"] * self._change * on[:-1, :, None]
        self._by_sent = jerk
        self._by_sent[:-1] -= jerk[1:].copy()
        self._pulled = np.zeros_like(self._states[0])
        self._add(self._states.shape[0] - 1, self._slopes[-1])

    def _add(self, t: int, slopes: Array) -> None:
        """A gradient (num, SIGNAL_ROWS) by what is sensed of the state at time t, to that by the state."""
        sense_adjoint_blocks(self._states[t], to_lanes(slopes), self._pulled)

    def pull(self, t: int, limit: float) -> Array:
        """(num, k): the gradient of the sum of `costs` by the commands of step t, which is undone."""
        norm = np.sqrt((self._pulled**2).sum(axis=1, keepdims=True))
        self._pulled *= np.minimum(1.0, limit / np.maximum(norm, 1e-12))
        arrived, flight, weights = np.zeros_like(self._arrived[t]), self.flight, self._actuators.channel.weights
        step_adjoint_blocks(self._states[t], flight.derived, self._arrived[t], self._pulled, arrived, flight.substep)
        if not np.isfinite(self._pulled.sum() + arrived.sum()):  # of who is lost
            np.nan_to_num(self._pulled, copy=False, posinf=0.0, neginf=0.0)
            np.nan_to_num(arrived, copy=False, posinf=0.0, neginf=0.0)
        taps = weights.shape[1] // COMMAND_ROWS
        if not taps:
            self._by_sent[t] += from_lanes(arrived, self.num)
        for tap in range(min(taps, t + 1)):
            share = weights[:, tap * COMMAND_ROWS : (tap + 1) * COMMAND_ROWS]
            self._by_sent[t - tap] += from_lanes(share * arrived, self.num)
        self._add(t, self._slopes[t])
        found: Array = self._by_sent[t]
        return found

    def pull_sensed(self, t: int, slopes: Array) -> None:
        """Add what follows from the gradient (num, m) by the policy's signals, one after the other, before step t."""
        known = self._seen[t]
        rotation, speed, place = known[:, TURN].reshape(-1, 3, 3), known[:, SPEED], known[:, PLACE]
        gravity, velocity, rate, *gates, last = np.split(slopes, (3, 6, 9, 21, 33), axis=1)
        found = np.zeros((self.num, SIGNAL_ROWS), np.float32)
        by_turn = np.einsum("nj,ni->nji", speed, velocity)
        by_turn[:, 2] -= gravity
        for gate, at in zip(gates, (self._goes[t], self._after[t]), strict=True):
            corners = self._corners[self.track, at] - place[:, None]
            each = gate.reshape(-1, 4, 3)
            by_turn += np.einsum("nkj,nki->nji", corners, each)
            found[:, PLACE] -= np.einsum("nij,nkj->ni", rotation, each)
        found[:, TURN], found[:, SPEED] = by_turn.reshape(-1, 9), np.einsum("nij,nj->ni", rotation, velocity)
        found[:, RATE] = rate
        self._add(t, found)
        if t:
            self._by_sent[t - 1] += last

    def go_on(self, longest: int) -> tuple[int, NDArray[np.bool_]]:
        """The next window. Who is lost (how many), or has raced for so many steps, begins another episode: (num,)."""
        on = self._racing()[-1]
        over = ~on | (self.age >= longest)
        rows = np.flatnonzero(over)
        self.reset(rows.tolist(), range(self._next, self._next + len(rows)))
        self._next += len(rows)
        self._time, self._behind[:] = 0, 0.0
        self._note()
        return int((~on).sum()), over

    def state_dict(self) -> dict[str, object]:
        """Between two windows."""
        return {**super().state_dict(), "next": self._next}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        super().load_state_dict(state)
        self._next, self._time = int(state["next"]), 0  # type: ignore[call-overload]
        self._behind[:] = 0.0
        self._note()

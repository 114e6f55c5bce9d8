"""The vehicles that a trainer flies: drawn from the task's declarations, drawn anew when lost or old."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg.fused_network import Layout
from policies.algorithms.apg.fused_plan import TAPS, Batch, Plan, load_dynamics, past_slots
from sim.engines.vector.blocks import blocks, from_lanes
from sim.engines.vector.simd import LANES
from sim.randomize import delay_weights, draw_robots, redraw
from sim.spec import slices
from sim.tasks import EngineTask
from sim.terms import lost

Array = NDArray[np.float32]

DUMPS = 3  # diverged flights that are written down; the rest are only counted
POOL = 512  # vehicles drawn at once; restarts take them one after the other
AGILITY = 300.0  # rad/s^2, of the vehicle whose adjoint has the limit that is set
NOISE_POOL = 509  # time steps of sensor noise, used again from a random place in each window (a prime: no short cycles)


def _views(table: Array, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Named views (n, k) of the columns of a table (n, sum of k), in the order of `sizes`."""
    ends = np.cumsum(list(sizes.values()))
    return {name: table[:, end - k : end] for (name, k), end in zip(sizes.items(), ends, strict=True)}


def _table(columns: Mapping[str, Array]) -> Array:
    """The columns (n, k), by name, side by side."""
    return np.concatenate([np.zeros((POOL, 0), np.float32), *columns.values()], axis=1, dtype=np.float32)


class Vehicles:
    """A batch of vehicles on their task's engine, their targets and their time, window after window."""

    def __init__(
        self,
        task: EngineTask,
        plan: Plan,
        layout: Layout,
        num: int,
        window: int,
        seed: np.random.SeedSequence,
        power: float = 0.0,
    ) -> None:
        if num % LANES:
            raise ValueError(f"the fused trainer flies a multiple of {LANES} vehicles, got {num}")
        self.task, self.plan, self.num, self.window, self.power = task, plan, num, window, power
        self.dynamics = load_dynamics(task.engine)
        self.rng = np.random.default_rng(seed)
        self.dt = 1.0 / task.rate_hz
        self.age = np.zeros(num, np.int64)  # control steps since the start
        self.dump_dir: Path | None = None  # where flights that stopped being finite are written down
        self.diverged = 0  # how many did
        self.nominal = task.robot.parameters()
        self._changing = [v for v in task.vary if v.every is not None]
        self._exogenous = slices(tuple(s for s in task.policy if s.name not in self.dynamics.SIGNALS))
        lanes = blocks(num)

        def room(rows: int, first: int = lanes) -> Array:
            return np.zeros((first, rows, LANES), np.float32)

        self.batch = Batch(
            state=room(self.dynamics.STATE_ROWS),
            parameters=room(self.dynamics.PARAMETER_ROWS),
            taps=room(TAPS),
            past=room(past_slots(plan) * plan.actions),
            hidden=room(max(layout.hidden_size, 1)),
            exogenous=room(plan.exogenous, lanes * (window + 1)),
            noise=self._noise(),
            bias=room(plan.signals),
            leeway=room(1) + np.float32(1.0),
        )
        sizes = self._draw_pool()
        self.motion = np.zeros((num, *self._pool["motion"].shape[1:]), np.float32)
        self._physical, self._original = (
            np.zeros((num, self._pool[name].shape[1]), np.float32) for name in ("physical", "original")
        )
        self.parameters = _views(self._physical, {name: len(value) for name, value in self.nominal.items()})
        self.base = _views(self._original, sizes)  # what changes within a flight is drawn from here
        self.restart(np.ones(num, bool))
        self.prepare()

    def _noise(self) -> Array:
        std = np.zeros(self.plan.signals, np.float32)
        for signal in self.task.policy:
            if signal.name in self.dynamics.SIGNALS:
                std[self.dynamics.SIGNALS[signal.name]] = signal.noise_std()
        if not std.any():
            return np.zeros((1, self.plan.signals, LANES), np.float32)
        drawn = self.rng.standard_normal((NOISE_POOL, self.plan.signals, LANES), np.float32)
        return np.ascontiguousarray(drawn * std[:, None])

    def _draw_pool(self) -> dict[str, int]:
        """Draw POOL vehicles: their rows in the batch, and their motion. Returns the sizes of their base parameters."""
        initial = self.task.reset(self.rng, POOL)
        state = np.tile(self.dynamics.REST, (POOL, 1))
        for name, where in self.dynamics.STATE.items():
            if name in initial:
                state[:, where] = initial[name]
        drawn = draw_robots(self.task.robot, self.task.vary, self.rng, POOL)
        parameters = {name: np.tile(value, (POOL, 1)) for name, value in self.nominal.items()} | drawn.parameters
        low, high = self.task.commands[0].delay_range()
        delay = self.rng.uniform(low, high, POOL) / self.dt
        bias = np.zeros((POOL, self.plan.signals), np.float32)
        for signal in self.task.policy:
            if signal.name in self.dynamics.SIGNALS and signal.bias_std() > 0.0:
                where = self.dynamics.SIGNALS[signal.name]
                bias[:, where] = self.rng.normal(0.0, signal.bias_std(), (POOL, signal.size))
        self._pool = {
            "state": state,
            "parameters": self.dynamics.derive(parameters, self.dt).astype(np.float32),
            "taps": delay_weights(delay, TAPS),
            "bias": bias,
            "motion": initial["motion"],
            "physical": _table(parameters),
            "original": _table(drawn.base),
        }
        self._next = 0
        return {name: value.shape[1] for name, value in drawn.base.items()}

    def restart(self, mask: NDArray[np.bool_]) -> None:
        """Replace the vehicles in `mask` (num,) by fresh ones."""
        index = np.flatnonzero(mask)
        if not len(index):
            return
        if self._next + len(index) > POOL:
            self._draw_pool()
        taken = slice(self._next, self._next + len(index))
        self._next += len(index)
        place, lane = index // LANES, index % LANES
        for name in ("state", "parameters", "taps", "bias"):
            getattr(self.batch, name)[place, :, lane] = self._pool[name][taken]
        self.batch.past[place, :, lane] = self.task.initial_action
        self.batch.hidden[place, :, lane] = 0.0
        self.motion[index] = self._pool["motion"][taken]
        self._physical[index] = self._pool["physical"][taken]
        self._original[index] = self._pool["original"][taken]
        self.age[index] = 0
        if self.power:
            agility = self.dynamics.agility({name: value[index] for name, value in self.parameters.items()})
            self.batch.leeway[place, 0, lane] = (AGILITY / agility) ** self.power
        self._note_moving()
        self._fill_targets(index[~self._moves[index]], 1)  # the others are filled for every window

    def _note_moving(self) -> None:
        self._moves = np.asarray(self.motion[:, :, 1:].any(axis=(1, 2)))  # (num,), whether the target moves

    def _fill_targets(self, index: NDArray[np.intp], times: int) -> None:
        """Write the target signals of the coming window for these vehicles; `times` is 1 for those that stand still."""
        if not len(index):
            return
        time = (self.age[index][:, None] + np.arange(times)) * self.dt  # (n, times)
        signals = self.task.reference(np.repeat(self.motion[index], times, axis=0), time.reshape(-1).astype(np.float32))
        target = self.batch.exogenous.reshape(-1, self.window + 1, self.plan.exogenous, LANES)
        place, lane = index // LANES, index % LANES
        for name, where in self._exogenous.items():
            target[place, :, where, lane] = signals[name].reshape(len(index), times, -1)

    def prepare(self) -> int:
        """Make ready for the next window; returns the noise offset to use."""
        self._before = {name: getattr(self.batch, name).copy() for name in ("state", "past", "hidden")}
        self._fill_targets(np.flatnonzero(self._moves), self.window + 1)
        return int(self.rng.integers(self.batch.noise.shape[0]))

    def signals(self) -> dict[str, Array]:
        """The noise-free signals now, by name, (num, k); call after a window and before the next is prepared."""
        targets = self.batch.exogenous.reshape(-1, self.window + 1, self.plan.exogenous, LANES)[:, -1]
        found = self.dynamics.signals_of(from_lanes(self.batch.state, self.num))
        now = from_lanes(targets, self.num)
        return {**found, **{name: now[:, where] for name, where in self._exogenous.items()}}

    def after_window(self, longest: int) -> int:
        """Count the time of the window just flown; restart vehicles that are lost or older than `longest` steps.

        Returns how many were lost.
        """
        self.age += self.window
        broken = ~np.isfinite(from_lanes(self.batch.state, self.num)).all(axis=1)
        if broken.any():
            self._dump(int(np.flatnonzero(broken)[0]))
            self.diverged += int(broken.sum())
        with np.errstate(invalid="ignore", over="ignore"):
            gone = lost(self.task.bounds, self.signals()) | broken
        self.restart(gone | (self.age >= longest))
        if self._changing:
            self._redraw()
        return int(gone.sum())

    def _redraw(self) -> None:
        """Change what changes within a flight, at the first window's end after it is due."""
        touched = np.zeros(self.num, bool)
        before = np.maximum(self.age - self.window, 0)
        for name, due, values in redraw(self._changing, self.rng, self.base, before, self.age, self.dt):
            self.parameters[name][due] = values
            touched[due] = True
        index = np.flatnonzero(touched)
        if len(index):
            derived = self.dynamics.derive({name: value[index] for name, value in self.parameters.items()}, self.dt)
            self.batch.parameters[index // LANES, :, index % LANES] = derived

    def _dump(self, index: int) -> None:
        """Write down how a window began that did not end in finite numbers, so that it can be flown again."""
        if self.dump_dir is None or self.diverged >= DUMPS:
            return
        place, lane = divmod(index, LANES)
        rows = {name: value[place, :, lane] for name, value in self._before.items()}
        rows |= {name: getattr(self.batch, name)[place, :, lane] for name in ("parameters", "taps", "bias")}
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        np.savez(
            self.dump_dir / f"diverged_{self.diverged}.npz",
            allow_pickle=False,
            **rows,
            motion=self.motion[index],
            age=self.age[index] - self.window,
            window=self.window,
            dt=self.dt,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {
            "diverged": self.diverged,
            "rng": self.rng.bit_generator.state,
            "batch": {name: value.copy() for name, value in self.batch._asdict().items()},
            "pool": {name: value.copy() for name, value in self._pool.items()},
            "physical": self._physical.copy(),
            "original": self._original.copy(),
            "next": self._next,
            "motion": self.motion.copy(),
            "age": self.age.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.rng.bit_generator.state = state["rng"]
        for name, value in state["batch"].items():
            getattr(self.batch, name)[...] = value
        self._pool = {name: np.array(value) for name, value in state["pool"].items()}
        self._physical[...], self._original[...] = state["physical"], state["original"]
        self._next = int(state["next"])
        self.diverged = int(state["diverged"])
        self.motion = np.array(state["motion"])
        self._note_moving()
        self.age = np.array(state["age"])

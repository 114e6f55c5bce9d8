"""What the kernels of analytic policy gradients read and write: a task as tables, its vehicles, a window's tape."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg.fused_network import CHUNK, Layout
from sim.engines.vector.simd import LANES
from sim.engines.vector.tables import cost_table, feature_table
from sim.spec import limits, slices
from sim.tasks import EngineTask

Array = NDArray[np.float32]

# Engines with an adjoint: name -> the module with their equations.
DYNAMICS = {"flight": "sim.engines.flight.dynamics"}

TAPS = 4  # commands that a delay may reach back over: the new one and three past ones
HUGE = np.float32(1e18)  # a value beyond it is lost


def load_dynamics(engine: str) -> ModuleType:
    """The module with the engine's equations; ValueError when it has no adjoint."""
    if engine not in DYNAMICS:
        raise ValueError(f"engine {engine!r} has no adjoint; analytic gradients run on: {', '.join(DYNAMICS)}")
    return importlib.import_module(DYNAMICS[engine])


class Plan(NamedTuple):
    """A task's features and costs as tables over rows.

    Rows seen by features: engine signals, exogenous signals (targets), action history. Rows weighed by costs: engine
    signals, exogenous signals, action, action change.
    """

    signals: int
    exogenous: int
    actions: int
    history: int
    feature_row: NDArray[np.int64]
    feature_minus: NDArray[np.int64]  # -1: nothing is subtracted
    feature_scale: Array
    feature_squash: Array  # 1 / squash, 0 for none
    cost_row: NDArray[np.int64]
    cost_rows: NDArray[np.int64]
    cost_minus: NDArray[np.int64]
    cost_shape: NDArray[np.int64]
    cost_weight: Array
    cost_soft: Array  # softening squared
    cost_offset: Array
    command_centre: Array
    command_half: Array


class Batch(NamedTuple):
    """The vehicles, (blocks, rows, LANES) each; `state`, `past` and `hidden` are carried from window to window."""

    state: Array
    parameters: Array
    taps: Array  # weights over the newest commands: the delay
    past: Array  # (blocks, TAPS or history slots * actions, LANES), oldest first
    hidden: Array  # (blocks, hidden, LANES)
    exogenous: Array  # (blocks * (T + 1), rows, LANES)
    noise: Array  # (pool, signals, LANES), already scaled; one row of zeros for none
    bias: Array  # (blocks, signals, LANES)
    leeway: Array  # (blocks, 1, LANES), times the limit on the state adjoint


class Tape(NamedTuple):
    """Scratch memory for one block of vehicles over a window of T steps."""

    state: Array  # (T + 1, state rows, LANES)
    activation: Array  # (T, network rows, LANES)
    action: Array  # (slots + T, actions, LANES)
    applied: Array  # (T, actions, LANES)
    g_action: Array  # (slots + T, actions, LANES)
    seen: Array  # (1, rows, LANES), and so on: single blocks
    weighed: Array
    g_seen: Array
    g_weighed: Array
    g_state: Array
    g_applied: Array
    g_network: Array  # (CHUNK, network rows, LANES)
    g_hidden: Array
    transposed: Array


def make_plan(task: EngineTask) -> Plan:
    """The tables for this task on its engine; ValueError where the fused kernels cannot express the task."""
    dynamics = load_dynamics(task.engine)
    width = sum(c.size for c in task.commands)
    exogenous = tuple(s for s in task.policy if s.name not in dynamics.SIGNALS)
    for signal in task.policy:
        if signal.delay_range() != (0.0, 0.0) or signal.dropout_probability() > 0.0:
            raise ValueError(f"signal {signal.name!r}: delay and dropout of signals need algorithm.path=torch")
        if signal in exogenous and (signal.noise_std() > 0.0 or signal.bias_std() > 0.0):
            raise ValueError(
                f"signal {signal.name!r}: noise and bias on what the robot is told need algorithm.path=torch"
            )
    rows: dict[str, slice] = dict(dynamics.SIGNALS)
    shift = dynamics.SIGNAL_ROWS
    rows |= {name: slice(w.start + shift, w.stop + shift) for name, w in slices(exogenous).items()}
    after = shift + sum(s.size for s in exogenous)
    seen = {**rows, "history": slice(after, after + width * task.history)}
    weighed = {**rows, "action": slice(after, after + width), "action_change": slice(after + width, after + 2 * width)}

    features, costs = feature_table(task.features, seen), cost_table(task.costs, weighed)
    low, high = (end.astype(np.float64) for end in limits(task.commands))
    return Plan(
        signals=shift,
        exogenous=after - shift,
        actions=width,
        history=task.history,
        feature_row=features.places[:, 0].copy(),
        feature_minus=features.places[:, 1].copy(),
        feature_scale=features.numbers[:, 0].copy(),
        feature_squash=features.numbers[:, 1].copy(),
        cost_row=costs.places[:, 0].copy(),
        cost_rows=costs.places[:, 1].copy(),
        cost_minus=costs.places[:, 2].copy(),
        cost_shape=costs.places[:, 3].copy(),
        cost_weight=costs.numbers[:, 0].copy(),
        cost_soft=costs.numbers[:, 1].copy(),
        cost_offset=costs.numbers[:, 2].copy(),
        command_centre=((high + low) / 2.0).astype(np.float32),
        command_half=((high - low) / 2.0).astype(np.float32),
    )


def past_slots(plan: Plan) -> int:
    """How many past actions are carried: enough for the history and for the delay."""
    return max(plan.history, TAPS - 1)


def make_tape(plan: Plan, layout: Layout, state_rows: int, window: int) -> Tape:
    """Scratch memory for windows of that many steps."""

    def room(first: int, rows: int) -> Array:
        return np.zeros((first, rows, LANES), np.float32)

    seen = plan.signals + plan.exogenous + plan.actions * plan.history
    weighed = plan.signals + plan.exogenous + 2 * plan.actions
    slots = past_slots(plan)
    return Tape(
        state=room(window + 1, state_rows),
        activation=room(window, layout.rows),
        action=room(slots + window, plan.actions),
        applied=room(window, plan.actions),
        g_action=room(slots + window, plan.actions),
        seen=room(1, seen),
        weighed=room(1, weighed),
        g_seen=room(1, seen),
        g_weighed=room(1, weighed),
        g_state=room(1, state_rows),
        g_applied=room(1, plan.actions),
        g_network=room(CHUNK, layout.rows),
        g_hidden=room(1, max(layout.hidden_size, 1)),
        transposed=np.zeros(layout.transposed, np.float32),
    )

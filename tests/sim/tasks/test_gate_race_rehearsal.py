"""Racing through gates for learners that follow gradients: what is said of a window against flying it again."""

from typing import Any

import numpy as np
import pytest

from sim.spec import unpack
from sim.tasks import make
from sim.tasks.gates.rehearsal import BEYOND, Rehearsal

NUM, STEPS = 16, 20
TRUST = 1e9  # no limit


def flown(world: Rehearsal, state: dict[str, Any], told: np.ndarray) -> np.ndarray:
    """The costs (STEPS, NUM) of these commands (STEPS, NUM, 4) from that state on."""
    world.load_state_dict(state)
    for now in told:
        world.step(unpack(world.task.commands, now))
    return world.costs()[0]


@pytest.fixture(scope="module")
def window() -> tuple[Rehearsal, dict[str, Any], np.ndarray]:
    """Vehicles at the beginning of their episodes, and what they are told."""
    world = Rehearsal(make("quad_gate_race", tracks=4, start="anywhere"), NUM, 0, STEPS)
    rng = np.random.default_rng(1)
    hover = world.task.robot.hover_command
    slow = rng.normal(0.0, 0.03, (1, NUM, 4)) + rng.normal(0.0, 0.02, (STEPS, NUM, 4))
    return world, world.state_dict(), np.clip(hover + slow, 0.0, 1.0).astype(np.float32)


@pytest.mark.parametrize("t", [0, 7, 15])
def test_commands_change_costs_as_it_says(window: Any, t: int) -> None:
    """Those of a step, when all others are given: noise, latency and all that varies included."""
    world, state, told = window
    flown(world, state, told)
    world.begin_pulling()
    slopes = np.stack([world.pull(k, TRUST).copy() for k in range(STEPS - 1, -1, -1)])[::-1]
    for motor in range(4):
        change = np.zeros_like(told)
        change[t, :, motor] = 0.02
        ends = [flown(world, state, told + sign * change).sum(axis=0, dtype=np.float64) for sign in (1.0, -1.0)]
        numeric = (ends[0] - ends[1]) / 0.04
        assert numeric.std() > 1e-3
        np.testing.assert_allclose(slopes[t, :, motor], numeric, atol=0.03 * np.abs(numeric).max())


def test_sensors_change_as_it_says(window: Any) -> None:
    """Where a vehicle is, how it is turned and moves, against what it would see then."""
    world, state, told = window
    flown(world, state, told)
    slopes = np.random.default_rng(0).normal(size=(NUM, sum(s.size for s in world.task.policy))).astype(np.float32)
    slopes[:, -4:] = 0.0  # what was told last is no matter of the state
    world.begin_pulling()
    world._pulled[:] = 0.0
    world.pull_sensed(0, slopes)
    by_hand = world._pulled.transpose(0, 2, 1).reshape(NUM, -1)

    def seen(name: str, column: int, by: float) -> np.ndarray:
        world.load_state_dict(state)
        now = {key: np.array(value) for key, value in state["engine"].items()}
        now[name][:, column] += by
        world.vehicles.reset(None, now)
        world._look(np.arange(NUM))
        return np.concatenate([world.truth()[s.name] for s in world.task.policy], axis=1)

    places = (("position", 0, 0), ("position", 2, 2), ("quaternion", 1, 4), ("linear_velocity", 1, 8))
    for name, column, row in (*places, ("angular_velocity", 2, 12)):
        numeric = ((seen(name, column, 1e-2) - seen(name, column, -1e-2)) / 2e-2 * slopes).sum(axis=1)
        np.testing.assert_allclose(by_hand[:, row], numeric, rtol=0.05, atol=0.05 * np.abs(numeric).max(), err_msg=name)


def test_outside_of_an_opening_it_costs_and_after_a_crash_nothing_counts(window: Any) -> None:
    world, state, told = window
    down = np.zeros_like(told)  # rotors stop: they fall
    world.load_state_dict(state)
    rest = {name: np.array(value) for name, value in state["engine"].items()}
    rest["position"][:, 2], rest["linear_velocity"][:, 2] = 0.4, -3.0
    world.vehicles.reset(None, rest)
    for now in down:
        world.step(unpack(world.task.commands, now))
    cost, racing = world.costs()
    assert racing[0].all() and not racing[-1].any()
    ended = racing.argmin(axis=0)
    for row, last in enumerate(ended):
        assert (cost[last + BEYOND + 1 :, row] == 0.0).all() and cost[: last + 1, row].max() > 0.0
    lost, over = world.go_on(10_000)
    assert lost == NUM and over.all() and (world.age == 0).all()


@pytest.mark.parametrize(("num", "engine", "said"), [(10, "flight", "multiples of 16"), (16, "mujoco", "no adjoint")])
def test_what_cannot_be_rehearsed_is_refused(num: int, engine: str, said: str) -> None:
    task = make("quad_gate_race", tracks=1)
    task.engine = engine
    with pytest.raises(ValueError, match=said):
        Rehearsal(task, num, 0, 4)

"""The flight engine: its adjoint against finite differences, its vector instructions, its switchable terms."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from sim.engines import flight
from sim.engines.flight import Flight, dynamics
from sim.engines.vector.blocks import FASTMATH, from_lanes, to_lanes
from sim.engines.vector.simd import LANES
from sim.robots import robot

STEP = 0.01


def random_case(seed: int, n: int = LANES) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State, derived parameters and command in float64: every term switched on, each vehicle different."""
    rng = np.random.default_rng(seed)
    state = np.zeros((n, dynamics.STATE_ROWS))
    state[:, 0:3] = rng.normal(size=(n, 3)) * 0.3 + [0.0, 0.0, 0.6]
    quaternion = rng.normal(size=(n, 4))
    state[:, 3:7] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    state[:, 7:10] = rng.normal(size=(n, 3)) * 2.0
    state[:, 10:13] = rng.normal(size=(n, 3)) * 6.0
    state[:, 13:17] = rng.uniform(0.1, 0.9, (n, 4))
    nominal = {k: np.tile(v.astype(np.float64), (n, 1)) for k, v in robot("crazyflie_decks").parameters().items()}
    for name in ("mass", "inertia", "thrust_scale", "torque_ratio", "rise_time", "fall_time", "drag"):
        nominal[name] = nominal[name] * rng.uniform(0.8, 1.2, nominal[name].shape)
    nominal["wind"] = rng.normal(size=(n, 3))
    nominal["force"] = rng.normal(size=(n, 3)) * 0.02
    nominal["torque"] = rng.normal(size=(n, 3)) * 1e-5
    nominal["ground_effect"] = rng.uniform(0.0, 11.0, (n, 1))
    nominal["propeller_radius"] = rng.uniform(0.1, 0.6, (n, 1))
    command = rng.uniform(0.05, 0.95, (n, 4))
    return state, dynamics.derive(nominal, STEP), command


def advance(state: np.ndarray, derived: np.ndarray, command: np.ndarray, substeps: int = 1) -> np.ndarray:
    lanes = to_lanes(state, np.float64)
    flight.step_blocks(lanes, to_lanes(derived, np.float64), to_lanes(command, np.float64), STEP, substeps)
    return from_lanes(lanes, len(state))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_adjoint_agrees_with_finite_differences(seed: int) -> None:
    state, derived, command = random_case(seed)
    weights = np.random.default_rng(seed + 1).normal(size=state.shape)
    gradient, g_command = to_lanes(weights, np.float64), np.zeros((1, 4, LANES))
    flight.step_adjoint_blocks(
        to_lanes(state, np.float64),
        to_lanes(derived, np.float64),
        to_lanes(command, np.float64),
        gradient,
        g_command,
        STEP,
    )
    by_hand = np.concatenate([from_lanes(gradient, len(state)), from_lanes(g_command, len(state))], axis=1)

    epsilon = 1e-6
    numeric = np.empty_like(by_hand)
    for k in range(by_hand.shape[1]):
        difference = np.zeros(len(state))
        for sign in (1.0, -1.0):
            moved_state, moved_command = state.copy(), command.copy()
            if k < dynamics.STATE_ROWS:
                moved_state[:, k] += sign * epsilon
            else:
                moved_command[:, k - dynamics.STATE_ROWS] += sign * epsilon
            difference += sign * (advance(moved_state, derived, moved_command) * weights).sum(axis=1)
        numeric[:, k] = difference / (2.0 * epsilon)
    np.testing.assert_allclose(by_hand, numeric, rtol=2e-5, atol=2e-6)


def test_step_uses_vector_instructions() -> None:
    fresh = njit(fastmath=FASTMATH, error_model="numpy")(
        flight.step_blocks.py_func
    )  # a cached kernel shows no assembly
    state, derived, command = (to_lanes(x) for x in random_case(0))
    fresh(state, derived, command, np.float32(STEP), 1)
    assembly = "\n".join(fresh.inspect_asm().values())
    packed = len(re.findall(r"\b(vfn?m(?:add|sub)\w*ps|vmulps|fmla\t.*\.4s)\b", assembly))
    scalar = len(re.findall(r"\b(vfn?m(?:add|sub)\w*ss|vmulss)\b", assembly))
    assert packed > 200, f"only {packed} packed multiplications: the loop over lanes did not vectorise"
    assert scalar < 0.02 * packed, f"{packed} packed and {scalar} scalar multiplications"
    assert "gather" not in assembly, "a value is fetched lane by lane"


def test_runge_kutta_converges_with_fourth_order() -> None:
    state, _, command = random_case(3)
    parameters = {k: np.tile(v.astype(np.float64), (LANES, 1)) for k, v in robot("crazyflie").parameters().items()}

    def fly(substeps: int) -> np.ndarray:
        lanes = to_lanes(state, np.float64)
        derived = to_lanes(dynamics.derive(parameters, STEP / substeps), np.float64)
        flight.step_blocks(lanes, derived, to_lanes(command, np.float64), STEP / substeps, substeps)
        return from_lanes(lanes, LANES)

    exact = fly(16)
    coarse, fine = np.abs(fly(1) - exact).max(), np.abs(fly(2) - exact).max()
    assert coarse < 1e-4
    assert fine < coarse / 10.0


def test_ground_effect_lifts_near_the_ground_only() -> None:
    engine = Flight(robot("crazyflie"), 2, STEP)
    engine.set_parameters(None, {"ground_effect": np.full((2, 1), 11.0)})
    hover = np.full((2, 4), engine.robot.hover_command, np.float32)
    engine.reset(None, {"position": np.array([[0, 0, 0.03], [0, 0, 3.0]]), "rotor_speed": hover})
    engine.step(hover)
    climb = engine.read("linear_velocity")[:, 2]
    assert climb[0] > 1e-3
    assert abs(climb[1]) < 1e-4


def test_downwash_pushes_the_lower_vehicle() -> None:
    engine = Flight(robot("crazyflie"), 4, STEP, downwash=2)
    hover = np.full((4, 4), engine.robot.hover_command, np.float32)
    places = np.array([[0, 0, 1.0], [0, 0, 1.5], [0, 0, 1.0], [3.0, 0, 1.5]], np.float32)
    engine.reset(None, {"position": places, "rotor_speed": hover})
    engine.step(hover)
    climb = engine.read("linear_velocity")[:, 2]
    assert climb[0] < -1e-3, "below another vehicle: pushed down"
    np.testing.assert_allclose(climb[1:], 0.0, atol=1e-4)  # above it, and in the other airspace far to the side


def test_wind_carries_and_drag_slows() -> None:
    engine = Flight(robot("crazyflie"), 2, STEP)
    engine.set_parameters(np.array([True, False]), {"wind": np.array([[2.0, 0.0, 0.0]])})
    hover = np.full((2, 4), engine.robot.hover_command, np.float32)
    engine.reset(None, {"linear_velocity": np.array([[0, 0, 0], [1.0, 0, 0]]), "rotor_speed": hover})
    for _ in range(20):
        engine.step(hover)
    velocity = engine.read("linear_velocity")[:, 0]
    assert velocity[0] > 0.01
    assert velocity[1] < 0.99


@pytest.mark.parametrize("num", [1, 15, 16, 17, 40])
def test_a_vehicle_does_not_depend_on_its_neighbours(num: int) -> None:
    rng = np.random.default_rng(0)
    command = rng.uniform(0.2, 0.9, (num, 4)).astype(np.float32)
    position = rng.normal(size=(num, 3)).astype(np.float32)
    together = Flight(robot("crazyflie"), num, STEP)
    together.reset(None, {"position": position})
    alone = Flight(robot("crazyflie"), 1, STEP)
    alone.reset(None, {"position": position[-1:]})
    for _ in range(5):
        together.step(command)
        alone.step(command[-1:])
    np.testing.assert_array_equal(together.read("position")[-1:], alone.read("position"))


def test_partial_reset_touches_only_the_mask() -> None:
    engine = Flight(robot("crazyflie"), 20, STEP)
    engine.step(np.full((20, 4), 0.5, np.float32))
    before = engine.read("linear_velocity")
    mask = np.arange(20) == 7
    engine.reset(mask, {"position": np.array([[1.0, 2.0, 3.0]])})
    np.testing.assert_array_equal(engine.read("linear_velocity")[~mask], before[~mask])
    np.testing.assert_array_equal(engine.read("position")[7], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(engine.read("rotor_speed")[7], 0.0)


def test_unknown_names_are_refused_with_the_choices() -> None:
    engine = Flight(robot("crazyflie"), 1, STEP)
    with pytest.raises(KeyError, match="rotor_speed"):
        engine.read("rotors")
    with pytest.raises(KeyError, match="thrust_scale"):
        engine.set_parameters(None, {"thrust": np.ones((1, 1))})
    with pytest.raises(ValueError, match="airspaces of 3"):
        Flight(robot("crazyflie"), 4, STEP, downwash=3)


def test_commands_of_another_shape_are_refused():
    engine = Flight(robot("crazyflie"), 2, STEP)
    for wrong in (np.zeros((2, 3), np.float32), np.zeros((1, 4), np.float32)):
        with pytest.raises(ValueError, match="2 quadrotors take 4 commands each, got"):
            engine.step(wrong)

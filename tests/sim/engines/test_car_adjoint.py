"""The car's adjoint against central differences in double precision, over states and parameters, at clips, too."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from sim.engines.car import Cars, adjoint, dynamics
from sim.engines.car.grids import PLACE_ROWS
from sim.engines.car.rows import (
    COMMAND_ROWS,
    COS,
    FRICTION,
    PARAMETER_ROWS,
    POWER,
    PUSH,
    SIN,
    SPEED,
    STATE_ROWS,
    STEER,
    STEERING,
    TURNING,
    VX,
    VY,
    Shape,
    shape_of,
)
from sim.engines.vector.blocks import to_lanes
from sim.engines.vector.simd import LANES
from sim.robots.cars import CAR_1_10, CAR_1_18, GRAVITY, REAL_1_10, Car

CARS = [CAR_1_10, CAR_1_18, REAL_1_10]
H, STEPS = np.float32(0.025), 2
STEP = 1e-5  # of the differences
DRIVEN = slice(0, PUSH + 1)  # rows of the state that are no report of walls


@njit
def stepped(s: Any, p: Any, c: Any, shape: Any, h: float, n: int) -> None:
    """Each car alone, in the numbers' own precision."""
    q = np.empty((dynamics.DERIVED_ROWS, s.shape[1]), s.dtype)
    for lane in range(s.shape[1]):
        dynamics.derived(p, q, shape, lane)
        for _ in range(n):
            dynamics.driven(s, q, c, shape, h, lane)


@njit
def pulled(s: Any, p: Any, c: Any, shape: Any, h: float, n: int, g: Any, g_command: Any) -> None:
    """Gradients of each car alone."""
    q, states = np.empty((dynamics.DERIVED_ROWS, s.shape[1]), s.dtype), np.empty((n, *s.shape), s.dtype)
    for lane in range(s.shape[1]):
        adjoint.advance_adjoint(s, p, q, c, shape, h, n, g, g_command, states, lane)


def double(shape: Shape) -> Shape:
    return Shape(*map(np.float64, shape))  # type: ignore[arg-type]


def drawn(seed: int, car: Car, gentle: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, parameters and commands (rows, LANES) of cars that stand, roll, drift and push to their limits.

    Those that are gentle never push with all that their tyres can do.
    """
    rng = np.random.default_rng(seed)
    s = np.zeros((STATE_ROWS, LANES))
    angle = rng.uniform(-np.pi, np.pi, LANES)
    s[COS], s[SIN] = np.cos(angle), np.sin(angle)
    s[VX] = rng.choice([rng.uniform(-2.0, 8.0, LANES), rng.uniform(0.9, 2.1, LANES)])
    s[VY], s[TURNING] = rng.normal(size=LANES) * 0.8, rng.normal(size=LANES) * 2.5
    s[STEERING] = rng.uniform(-1.0, 1.0, LANES) * car.steering_limit
    own = np.concatenate([*car.parameters().values()]).astype(np.float64)
    p = own[:, None] * rng.uniform(0.7, 1.3, (PARAMETER_ROWS, LANES))
    s[PUSH] = rng.uniform(-1.0, 1.0, LANES) * (0.8 if gentle else 1.2) * p[FRICTION] * GRAVITY
    if gentle:
        p[POWER] = 0.8 * p[FRICTION] * GRAVITY
    c = np.zeros((COMMAND_ROWS, LANES))
    c[STEER] = rng.uniform(-1.3, 1.3, LANES) * car.steering_limit
    c[SPEED] = rng.uniform(-2.0, 9.0, LANES)
    return s, p, c


def compared(seed: int, car: Car, transfer: bool, gentle: bool) -> np.ndarray:
    """The largest difference of gradients by hand and by differences, over the latter, of lanes at no clip's edge."""
    shape, (s, p, c) = double(shape_of(car, transfer)), drawn(seed, car, gentle)
    weights = np.random.default_rng(seed + 1).normal(size=s.shape)
    weights[DRIVEN.stop :] = 0.0
    g, g_command = weights.copy(), np.zeros_like(c)
    pulled(s, p, c, shape, float(H), STEPS, g, g_command)
    by_hand = np.concatenate([g[DRIVEN], g_command])

    def end(row: int, by: float) -> np.ndarray:
        moved = np.concatenate([s, c])
        moved[row] += by
        stepped(moved[:STATE_ROWS], p, moved[STATE_ROWS:], shape, float(H), STEPS)
        return (moved[:STATE_ROWS] * weights).sum(axis=0)

    rows = [*range(DRIVEN.stop), *range(STATE_ROWS, STATE_ROWS + COMMAND_ROWS)]
    here, after, before = end(0, 0.0), *(np.stack([end(k, by) for k in rows]) for by in (STEP, -STEP))
    above, below, numeric = (after - here) / STEP, (here - before) / STEP, (after - before) / (2.0 * STEP)
    size = 1.0 + np.abs(numeric).max(axis=0)
    smooth = np.abs(above - below).max(axis=0) < 0.01 * size
    assert smooth.sum() >= LANES - 4
    return (np.abs(by_hand - numeric).max(axis=0) / size)[smooth]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), car=st.sampled_from(CARS), transfer=st.booleans())
def test_it_agrees_with_differences(seed: int, car: Car, transfer: bool) -> None:
    assert compared(seed, car, transfer, gentle=True).max() < 2e-4


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), car=st.sampled_from(CARS), transfer=st.booleans())
def test_only_at_the_end_of_grip_it_is_smaller(seed: int, car: Car, transfer: bool) -> None:
    """There the slope is limited, since the true one is infinite."""
    errors = compared(seed, car, transfer, gentle=False)
    assert np.quantile(errors, 0.6) < 2e-4


def test_clips_let_no_gradient_pass() -> None:
    shape, (s, p, c) = double(shape_of(CAR_1_10, False)), drawn(0, CAR_1_10)
    c[STEER], c[SPEED], s[VX] = 1.1 * CAR_1_10.steering_limit, 20.0, 1.0  # it asks for all of both
    g, g_command = np.ones_like(s), np.zeros_like(c)
    pulled(s, p, c, shape, float(H), STEPS, g, g_command)
    assert not g_command.any() and g[VX].all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), car=st.sampled_from(CARS))
def test_vectors_in_single_precision_say_the_same(seed: int, car: Car) -> None:
    """What trains, against what the differences were compared with."""
    s, p, c = drawn(seed, car, gentle=True)
    weights = np.random.default_rng(seed + 1).normal(size=s.shape)
    exact, g_exact = weights.copy(), np.zeros_like(c)
    pulled(s, p, c, double(shape_of(car, False)), float(H), STEPS, exact, g_exact)
    places = np.concatenate([p, np.zeros((PLACE_ROWS, LANES))])
    lanes = [np.ascontiguousarray(x[None], np.float32) for x in (s, places, c, weights, np.zeros_like(c))]
    adjoint.step_adjoint_blocks(*lanes, shape_of(car, False), H, STEPS)
    for found, wanted in ((lanes[3][0], exact), (lanes[4][0], g_exact)):
        error = np.abs(found - wanted).max(axis=0) / (1.0 + np.abs(exact).max(axis=0))
        assert np.quantile(error, 0.8) < 1e-3  # some are within rounding of a clip's edge


def test_it_is_the_derivative_of_the_engine_s_step() -> None:
    """Of `Cars`, whose numbers are single: a long way by a small change of what it is told."""
    cars, told = Cars(CAR_1_10, LANES, 0.05), np.tile(np.float32([0.1, 4.0]), (LANES, 1))
    start = {"velocity": np.tile([3.0, 0.0], (LANES, 1))}
    told[1] += np.float32([2e-3, 0.0])
    cars.reset(np.arange(LANES), start)
    kept = {name: value.copy() for name, value in cars.arrays().items()}
    cars.step(told)
    moved = cars.read("turning")
    g, g_command = np.zeros_like(kept["state"]), np.zeros((1, COMMAND_ROWS, LANES), np.float32)
    g[:, TURNING] = 1.0
    h, n = np.float32(cars.dt / cars.substeps), cars.substeps
    adjoint.step_adjoint_blocks(kept["state"], kept["parameters"], to_lanes(told), g, g_command, cars.shape, h, n)
    np.testing.assert_allclose(g_command[0, STEER, 0], (moved[1] - moved[0])[0] / 2e-3, rtol=0.01)

"""Vehicles of one airspace: downwash by its formula, closest approaches, who is near whom."""

import math

import numpy as np
import pytest

from sim.engines.flight import Flight, airspace
from sim.engines.flight.rows import POSITION, STATE_ROWS
from sim.engines.flight.together import FlightTogether
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.robots import robot
from sim.tasks import make
from sim.tasks.swarm.world import Swarm

STEP = 0.01
CRAZYFLIE = robot("crazyflie")
HOVER = CRAZYFLIE.hover_command
WEIGHT = 9.81 * CRAZYFLIE.mass


def flying(places: np.ndarray, each: int, speed: np.ndarray | None = None) -> FlightTogether:
    engine, n = FlightTogether(CRAZYFLIE, len(places), STEP, each=each), len(places)
    state = {"position": places, "rotor_speed": np.full((n, 4), HOVER, np.float32)}
    engine.reset(None, state | ({} if speed is None else {"linear_velocity": speed}))
    return engine


def hover(engine: FlightTogether, steps: int = 1) -> None:
    for _ in range(steps):
        engine.step(np.full((engine.num, 4), HOVER, np.float32))


@pytest.mark.parametrize("below", [0.03, 0.2, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("aside", [0.0, 0.1])
def test_downwash_is_that_of_the_formula(below: float, aside: float) -> None:
    engine = flying(np.array([[aside, 0.0, 1.0], [0.0, 0.0, 1.0 + below]], np.float32), 2)
    hover(engine)
    nozzle = 2.0 * math.sqrt(2.0) * CRAZYFLIE.propeller_radius
    share = min(below / nozzle, 1.0, (5.8 * nozzle / below) ** 2)
    wide = (0.5 * nozzle) ** 2 + (0.094 * below) ** 2 + CRAZYFLIE.extent**2
    force = 0.25 * WEIGHT * share * math.exp(-2.0 * math.log(2.0) * aside**2 / wide)
    assert engine.read("wash")[:, 0] == pytest.approx([-force, 0.0], rel=1e-4)
    fell = engine.read("linear_velocity")[:, 2]
    assert fell == pytest.approx([-STEP * force / CRAZYFLIE.mass, 0.0], rel=0.01, abs=1e-5)


def test_downwash_is_what_was_measured() -> None:
    """Shi et al. 2020, figure 3: 8 g at 0.3 m and 4 g at 0.5 m, of vehicles of 34 g."""
    grams = []
    for below in (0.3, 0.5):
        engine = flying(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0 + below]], np.float32), 2)
        hover(engine)
        grams.append(-34.0 * float(engine.read("wash")[0, 0]) / WEIGHT)
    assert grams == pytest.approx([8.0, 4.0], abs=1.0)


def test_whose_rotors_stand_still_blows_on_nobody() -> None:
    engine = flying(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.5]], np.float32), 2)
    engine.state[0, 13:17, 1] = 0.0
    hover(engine)
    assert engine.read("wash").tolist() == [[0.0], [0.0]]


def test_several_blow_on_one_and_only_on_those_of_their_airspace() -> None:
    places = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.5], [0.05, 0.0, 1.6]], np.float32)
    both, alone = flying(np.concatenate([places, places]), 3), flying(places[:2], 2)
    both.state[0, POSITION, 4] = 3.0  # the second one of the second airspace is elsewhere
    hover(both)
    hover(alone)
    wash = both.read("wash")[:, 0]
    assert wash[0] < alone.read("wash")[0, 0] < 0.0 and wash[3] > wash[0] and wash[2] == wash[4] == wash[5] == 0.0


@pytest.mark.parametrize("num", [1, 17])
def test_alone_in_its_airspace_it_flies_as_in_the_engine_for_one(num: int) -> None:
    rng = np.random.default_rng(0)
    engines = [Flight(CRAZYFLIE, num, STEP), FlightTogether(CRAZYFLIE, num, STEP, each=1)]
    places, pushed = rng.normal(size=(num, 3)), rng.normal(size=(num, 3)) * 0.01
    for engine in engines:
        engine.set_parameters(None, {"force": pushed, "mass": np.full((num, 1), 0.03)})
        engine.reset(None, {"position": places})
    for _ in range(20):
        command = rng.uniform(0.2, 0.9, (num, 4)).astype(np.float32)
        for engine in engines:
            engine.step(command)
    np.testing.assert_array_equal(engines[0].state, engines[1].state)
    assert np.isinf(engines[1].read("nearest")).all()


def test_what_happens_in_one_airspace_changes_no_other() -> None:
    rng = np.random.default_rng(1)
    places = rng.uniform(0.0, 1.0, (12, 3)).astype(np.float32)
    one, other = flying(places, 4), flying(places, 4)
    other.reset(np.arange(12) == 5, {"position": np.array([[0.0, 0.0, 3.0]])})
    hover(one, 10)
    hover(other, 10)
    kept = np.r_[0:4, 8:12]
    for name in ("position", "wash", "nearest"):
        np.testing.assert_array_equal(one.read(name)[kept], other.read(name)[kept])
    assert not np.array_equal(one.read("position")[4:8], other.read("position")[4:8])


def test_the_closest_moment_lies_within_a_step() -> None:
    """Past one another at 20 m/s, 5 cm aside: 10 cm before, 10 cm after."""
    places = np.array([[0.1, 0.0, 1.0], [-0.1, 0.05, 1.0], [0.0, 2.0, 1.0]], np.float32)
    engine = flying(places, 3, np.array([[-10.0, 0.0, 0.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32))
    hover(engine)
    nearest = engine.read("nearest")[:, 0]
    assert nearest[:2] == pytest.approx([0.05, 0.05], abs=2e-3)
    assert nearest[2] == pytest.approx(1.952, abs=2e-2)


def test_everybody_is_told_of_others_the_nearest_first() -> None:
    task = make("quad_swarm", vehicles=5, neighbours=6, vary=False)
    env = Swarm(task, 10, 0)
    env.reset(range(10), [0] * 5 + [1] * 5)
    for _ in range(3):
        env.step({"motor_command": np.random.default_rng(0).uniform(0.4, 0.9, (10, 4)).astype(np.float32)})
    now = env.truth()
    for row in range(10):
        mates = [k for k in range(row - row % 5, row - row % 5 + 5) if k != row]
        mates.sort(key=lambda k: np.linalg.norm(now["position"][k] - now["position"][row]))
        for name, of in (("others", "position"), ("others_velocity", "linear_velocity")):
            np.testing.assert_allclose(now[name][row].reshape(-1, 3), now[of][mates] - now[of][row], atol=1e-6)
        told = now["neighbours"][row].reshape(6, 3)
        np.testing.assert_array_equal(told[:4], now["others"][row].reshape(-1, 3))
        np.testing.assert_array_equal(told[4:], np.tile(airspace.ABSENT, (2, 1)))


def test_the_crowds_slopes_agree_with_differences() -> None:
    rng = np.random.default_rng(2)
    state = np.zeros((16, STATE_ROWS))
    state[:, :3] = rng.uniform(0.0, 0.8, (16, 3))

    def paid(values: np.ndarray) -> tuple[float, np.ndarray]:
        cost, slopes = np.zeros(16), np.zeros((1, STATE_ROWS, 16))
        airspace.crowd(to_lanes(values, np.float64), 8, 0.6, cost, slopes)
        return float(cost.sum()), from_lanes(slopes, 16)

    cost, slopes = paid(state)
    assert cost > 1.0
    for row, k in ((0, 0), (3, 1), (9, 2)):
        moved = [state.copy() for _ in range(2)]
        moved[0][row, k] += 1e-6
        moved[1][row, k] -= 1e-6
        assert slopes[row, k] == pytest.approx((paid(moved[0])[0] - paid(moved[1])[0]) / 2e-6, rel=1e-4, abs=1e-5)


def test_downwashs_slopes_agree_with_differences() -> None:
    wash = airspace.wash.py_func
    for place in ((0.03, -0.05, 0.03), (0.1, 0.02, 0.25), (0.1, -0.2, 1.1)):
        slopes = wash(*place, 0.065, 0.063)[1:]
        for k in range(3):
            low, high = [*place], [*place]
            low[k] -= 1e-6
            high[k] += 1e-6
            assert slopes[k] == pytest.approx(
                (wash(*high, 0.065, 0.063)[0] - wash(*low, 0.065, 0.063)[0]) / 2e-6, rel=1e-5
            )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 vehicles cannot be split into airspaces of 3"):
        FlightTogether(CRAZYFLIE, 4, STEP, each=3)
    with pytest.raises(ValueError, match="vehicles in one airspace fly on the CPU only, got device 'cuda'"):
        FlightTogether(CRAZYFLIE, 4, STEP, device="cuda", each=2)


def test_nobody_is_told_of_who_is_beyond_reach_nor_changes_with_them() -> None:
    state, order = np.zeros((3, STATE_ROWS)), np.zeros((3, 2), np.int64)
    state[:, POSITION] = 0.0, 1.0, 60.0
    table, g = np.zeros((1, 24, 16), np.float32), np.zeros((1, STATE_ROWS, 16), np.float32)
    lanes = to_lanes(state)
    airspace.view(lanes, 3, order, 0, 6, 12, 18, 2, table)
    assert order.tolist() == [[1, -1], [0, -1], [-1, -1]]
    told = from_lanes(table, 3)[:, 12:18].reshape(3, 2, 3)
    np.testing.assert_array_equal(told[0], [[1.0, 0.0, 0.0], airspace.ABSENT])
    np.testing.assert_array_equal(told[2], [airspace.ABSENT, airspace.ABSENT])
    airspace.view_adjoint(order, np.ones((3, 6), np.float32), np.zeros((3, 6), np.float32), g)
    assert from_lanes(g, 3)[:, POSITION].tolist() == [0.0, 0.0, 0.0] and not from_lanes(g, 3)[2].any()
    airspace.view_adjoint(order[:, :1], np.eye(3, dtype=np.float32), np.zeros((3, 3), np.float32), g)
    np.testing.assert_array_equal(from_lanes(g, 3)[:, POSITION : POSITION + 3], [[-1, 1, 0], [1, -1, 0], [0, 0, 0]])


def test_who_is_not_a_number_is_nowhere() -> None:
    """In the middle of those who are: nobody sees it, and the others are told as without it."""
    state, order = np.zeros((4, STATE_ROWS)), np.zeros((4, 3), np.int64)
    state[:, POSITION] = 0.0, np.nan, 2.0, 1.0
    table, g = np.zeros((1, 24, 16), np.float32), np.zeros((1, STATE_ROWS, 16), np.float32)
    airspace.view(to_lanes(state), 4, order, 0, 9, 18, 21, 1, table)
    assert order.tolist() == [[3, 2, -1], [-1, -1, -1], [3, 0, -1], [0, 2, -1]]
    assert np.isfinite(table[:, :, :4]).all()
    airspace.view_adjoint(order[:, ::-1].copy(), np.ones((4, 9), np.float32), np.zeros((4, 9), np.float32), g)
    assert from_lanes(g, 4)[:, POSITION].tolist() == [0.0, 0.0, 0.0, 0.0]  # each sees both others, and is seen by both


def test_blocks_are_copies() -> None:
    for values in (np.zeros((16, 1), np.float32), np.zeros((1, 16), np.float32).T, np.zeros((32, 1), np.float32)):
        assert not np.shares_memory(values, to_lanes(values))

"""target=px4: the module's flight in simulation, and every reason to hand back."""

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest

from deploy.mavlink.frames import Axes, heading_of
from deploy.policy_file import PolicyFile
from tests.deploy.codegen.native import spoiled
from tests.deploy.px4.bench import ALL, HOLD, LAND, MODE, OTHER, STILL, TICK, Bench, built, changed, exported

LEANS = {6: math.cos(0.6), 7: math.sin(0.6)}
OVERFLOWS = {0: 3e38, 1: 3e38, 6: math.cos(0.4), 9: math.sin(0.4)}  # in our axes; all that it is told is finite


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return exported(tmp_path_factory.mktemp("px4") / "module")


@pytest.fixture(scope="module")
def library(folder, tmp_path_factory) -> Path:
    return built(folder, tmp_path_factory.mktemp("built"))


@pytest.fixture
def bench(library, tmp_path) -> Bench:
    return Bench(library, tmp_path)


def test_it_registers_a_mode_and_is_silent_until_it_is_chosen(bench):
    assert f"quad_any: mode {MODE}" in bench.said
    for _ in range(20):
        bench.tick(STILL)
    assert bench.counts == [0, 0, 0, 1, 0]
    assert bench.c.bench_check() == 1
    bench.enter()
    assert bench.counts[0] >= 1 and bench.counts[2] == 1
    assert np.isnan(bench.motors[4:]).all() and ((bench.motors[:4] >= 0) & (bench.motors[:4] <= 1)).all()
    bench.mode(OTHER)
    bench.tick(STILL)
    before = bench.counts[0]
    bench.tick(STILL)
    assert bench.counts[0] == before
    bench.c.bench_stop()
    assert bench.counts[4] == 1


def test_interfaces_of_2025_do_too(folder, tmp_path):
    bench = Bench(built(folder, tmp_path, newest=False), tmp_path)
    bench.enter()
    assert bench.counts[0] >= 1 and bench.counts[2] == 1


def test_its_commands_are_the_files_in_px4s_order_and_axes(bench):
    """Signals by the frames of the MAVLink driver, written elsewhere; every fourth sample is a step of the policy."""
    policy, rng = PolicyFile.load("quad_any"), np.random.default_rng(0)
    attitude = np.array([0.8, 0.05, -0.08, 0.55])
    attitude /= np.linalg.norm(attitude)
    start = np.array([3.0, 1.0, -2.0, 0.1, 0.0, 0.0, *attitude, 0.1, 0.2, -0.1])
    bench.enter(start)
    axes = Axes(heading_of(attitude))
    policy.reset()
    target = np.array([3.4, 0.7, -2.3, 0.1, -0.2, 0.05])
    state, told = start, start[:3]
    for step in range(20):
        signals = {
            "position": axes.world(state[:3]),
            "linear_velocity": axes.world(state[3:6]),
            "rotation": axes.rotation(state[6:10]),
            "angular_velocity": state[10:] * [1.0, -1.0, -1.0],
            "target_position": axes.world(told),
            "target_velocity": axes.world(target[3:] if step else np.zeros(3)),
        }
        want = policy.step(signals)["motor_command"].reshape(4)
        assert bench.motors[:4] == pytest.approx(want[[0, 2, 3, 1]], abs=2e-5)
        told = target[:3]
        state = state + rng.normal(0.0, 0.02, 13)
        bench.c.bench_target((ctypes.c_float * 6)(*target))
        for _ in range(4):
            bench.tick(state)
    assert not bench.counts[1]


@pytest.mark.parametrize(
    ("change", "hears", "said"),
    [
        ({0: math.nan}, ALL, "not finite"),
        ({11: math.inf}, ALL, "not finite"),
        ({6: 0.0}, ALL, "not finite"),
        ({}, 6, "stale estimate"),
        ({}, 5, "stale estimate"),
        ({}, 3, "stale estimate"),
        ({0: 12.0}, ALL, "geofence"),
        ({6: math.cos(0.6), 7: math.sin(0.6)}, ALL, "tilt"),
        ({3: 4.0, 4: 4.0}, ALL, "speed"),
        ({12: 40.0}, ALL, "body rate"),
    ],
)
def test_it_hands_back_to_hold(bench, change, hears, said):
    bench.enter()
    for _ in range(8):
        bench.tick(STILL)
    good, state = bench.motors, changed(change)
    ticks = 0
    while not bench.counts[1] and ticks < 50:
        bench.tick(state, hears)
        ticks += 1
    assert f"handed back: {said}" in bench.said
    assert ticks == 1 or (hears != ALL and ticks * TICK <= 100_000 + 2 * TICK)
    assert bench.command() == HOLD
    assert bench.c.bench_check() == 0
    for _ in range(40):
        bench.tick(STILL)
    assert 2 <= bench.counts[1] <= 4  # asked again, not at every sample
    if hears == ALL:
        assert np.array_equal(bench.motors[:4], good[:4])
    assert np.isfinite(bench.motors[:4]).all()
    bench.mode(OTHER)
    bench.tick(STILL)
    assert bench.c.bench_check() == 1  # and may be chosen again


@pytest.mark.parametrize("pause", [49_000, 51_000, -2_000], ids=str)
def test_a_pause_in_flight_ends_it(bench, pause):
    """Every estimate is of now; but what the policy remembers is not, and whatever held it up may again."""
    bench.enter()
    for _ in range(8):
        bench.tick(STILL)
    bench.now += pause - TICK
    bench.tick(STILL)
    late = not 0 <= pause <= 50_000
    assert bench.counts[1] == late and ("handed back: it was late" in bench.said) == late


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize(
    ("change", "said"), [(LEANS, "tilt"), ({3: 9.0}, "speed"), ({12: 40.0}, "body rate"), (OVERFLOWS, "not finite")]
)
def test_motors_are_not_told_before_a_command_of_this_flight(bench, change, said, again):
    """Chosen in the air beyond a limit, or with a first step that is not finite."""
    if again:
        bench.enter()
        for _ in range(40):
            bench.tick(STILL)
        bench.mode(OTHER)
        bench.tick(STILL)
    count = bench.counts[0]
    bench.tick(changed(change))
    if change is not OVERFLOWS:
        assert bench.c.bench_check() == 0
    bench.enter(changed(change))
    for _ in range(40):
        bench.tick(STILL)
    assert bench.counts[0] == count
    assert f"handed back: {said}" in bench.said and bench.command() == HOLD
    bench.mode(OTHER)
    bench.tick(STILL)
    assert bench.c.bench_check() == 1
    bench.enter()
    assert bench.counts[0] > count


def test_where_hold_is_refused_it_lands_and_is_silent_once_another_mode_flies(bench):
    bench.enter()
    for _ in range(2):
        bench.tick(changed(LEANS))
    for tick in range(120):
        bench.tick(STILL)
        if tick * TICK < 190_000:
            assert bench.command() == HOLD
    assert bench.command() == LAND
    asked, told = bench.counts[1], bench.counts[0]
    for _ in range(400):
        bench.tick(STILL)
    assert bench.counts[1] > asked + 10 and bench.counts[0] == told + 400
    bench.mode(OTHER)
    asked, told = bench.counts[1], bench.counts[0]
    for _ in range(40):
        bench.tick(STILL)
    assert (bench.counts[1], bench.counts[0]) == (asked, told)


@pytest.mark.parametrize("counter", range(5))
def test_it_hands_back_when_the_estimate_was_reset(bench, counter):
    bench.c.bench_reset(counter)  # before a flight it does not matter
    bench.tick(STILL)
    bench.enter()
    bench.tick(STILL)
    assert not bench.counts[1]
    bench.c.bench_reset(counter)
    bench.tick(STILL)
    assert "handed back: estimate reset" in bench.said and bench.counts[1] == 1


def test_the_set_point_of_the_mode_before_is_not_obeyed(library, tmp_path):
    told = []
    for target in (None, (5.0, 2.0, -3.0, 1.0, 0.0, 0.0)):
        folder = tmp_path / str(target is None)
        folder.mkdir()
        bench = Bench(library, folder)
        if target:
            bench.c.bench_target((ctypes.c_float * 6)(*target))
        bench.enter()
        told.append(bench.motors[:4])
    assert np.array_equal(*told)


def test_a_flight_begins_when_it_is_armed(bench, library, tmp_path):
    """A recurrent policy would learn of a vehicle that does not answer."""
    bench.mode(MODE, armed=False)
    for _ in range(400):
        bench.tick(STILL)
    assert bench.counts[:3] == [0, 0, 1]
    bench.mode(MODE)
    bench.tick(STILL)
    assert bench.counts[0] == 1
    (tmp_path / "fresh").mkdir()
    fresh = Bench(library, tmp_path / "fresh")
    fresh.enter()
    assert np.array_equal(fresh.motors[:4], bench.motors[:4])
    bench.mode(MODE, armed=False)
    bench.tick(STILL)
    count = bench.counts[0]
    bench.tick(STILL)
    assert bench.counts[0] == count


def test_a_reply_to_an_earlier_start_is_not_its_own(library, tmp_path):
    bench = Bench(library, tmp_path, registers=False, stale=True)
    assert ": mode" not in bench.said and bench.counts[3] == 1
    bench.c.bench_register(MODE)
    bench.tick(STILL)
    assert f"quad_any: mode {MODE}" in bench.said


def test_it_asks_for_its_mode_until_it_has_one(library, tmp_path):
    bench = Bench(library, tmp_path, registers=False)
    for _ in range(1000):  # 2.5 s
        bench.tick(STILL)
    assert bench.counts[3] == 3 and "refused" not in bench.said
    bench.c.bench_refuse()
    bench.tick(STILL)
    assert bench.said.count("quad_any: the commander refused the mode") == 1
    for _ in range(400):
        bench.tick(STILL)
    assert bench.counts[3] == 4
    bench.c.bench_register(MODE)
    bench.tick(STILL)
    for _ in range(800):
        bench.tick(STILL)
    assert bench.counts[3] == 4 and f"mode {MODE}" in bench.said


def test_it_holds_a_simulated_vehicle_in_place(bench):
    """An x500 in our engine: NED and PX4's rotor order by hand."""
    from deploy.crazyflie.simulator.world import DT, World

    world = World("x500", [(0.0, 0.0)])
    turn = math.radians(50.0)
    world.place(
        0,
        position=(0.3, 0.2, 2.0),
        quaternion=(math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)),
        rotor_speed=(0.75,) * 4,
    )

    def state():
        (s,) = world.sense()
        w, x, y, z = s.quaternion
        p, v, r = s.position, s.velocity, s.rate
        return [p[0], -p[1], -p[2], v[0], -v[1], -v[2], w, x, -y, -z, r[0], -r[1], -r[2]]

    bench.enter(state())
    worst = 0.0
    for tick in range(3000):
        fr, bl, fl, br = bench.motors[:4].tolist()
        world.step([(fr, br, bl, fl)])
        bench.now += round(1e6 * DT) - TICK
        bench.tick(state())
        if tick > 2000:
            worst = max(worst, math.dist(world.sense()[0].position, (0.3, 0.2, 2.0)))
    assert bench.counts[1] == 0, bench.said
    assert worst < 0.1
    assert abs(math.radians(world.sense()[0].yaw) - turn) < 0.2  # it kept its heading


def test_a_build_that_computes_wrongly_does_not_start(folder, tmp_path):
    library = ctypes.CDLL(str(built(spoiled(folder, tmp_path), tmp_path)))
    library.bench_said.restype = ctypes.c_char_p
    assert library.bench_start() != 0
    assert b"its self-test fails" in library.bench_said()

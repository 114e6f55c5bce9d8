"""When the module flies, and every reason to hand back."""

import math

import numpy as np
import pytest

from sim.spec import Signal
from tests.deploy.betaflight.bench import FLOW, FLOW_ONLY, GPS, GPS_ONLY, TICK, Bench, built, exported, still, turned
from tests.deploy.betaflight.level import level
from tests.deploy.px4.test_limits import ruled


def test_the_mixer_is_left_alone_until_the_switch(bench):
    bench.c.bench_flags(1, 0)
    for _ in range(20):
        bench.tick()
        assert not bench.flies and bench.c.bench_undisturbed() == 0
    bench.enter(armed=False)
    assert not bench.flies
    bench.enter()
    assert bench.flies and bench.c.bench_undisturbed() == 1 and bench.reason == "fine"
    assert (bench.outputs >= 158.0).all() and (bench.outputs <= 2047.0).all()
    bench.set("box", 0)
    cleared = bench.c.bench_cleared()
    bench.tick()
    assert not bench.flies and bench.c.bench_undisturbed() == 0 and bench.c.bench_cleared() == cleared + 1
    bench.tick()
    assert bench.c.bench_cleared() == cleared + 1


def test_arming_with_the_switch_on_starts_nothing(bench):
    bench.set("box", 1)
    for _ in range(2):  # and so when it is armed again
        bench.c.bench_flags(0, 0)
        bench.tick()
        bench.c.bench_flags(1, 0)
        for _ in range(50):
            bench.tick()
            assert not bench.flies
    bench.set("box", 0)
    bench.tick()
    bench.set("box", 1)
    bench.tick()
    assert bench.flies


@pytest.mark.parametrize("handed_back", [False, True])
def test_arming_again_asks_for_the_switch_anew(bench, handed_back):
    bench.enter()
    if handed_back:
        bench.tick(still(rotation=turned(0.7, 1.2)))
        assert bench.reason == "tilt"
    bench.c.bench_flags(0, 0)
    bench.tick()
    assert not bench.flies
    bench.c.bench_flags(1, 0)
    for _ in range(50):
        bench.tick()
        assert not bench.flies
    bench.enter()
    assert bench.flies


@pytest.mark.parametrize(
    ("change", "told", "said"),
    [
        ({"rates": (math.nan, 0, 0)}, {}, "not finite"),
        ({"position": (math.inf, 0, 0)}, {}, "not finite"),
        ({"rotation": np.zeros((3, 3))}, {}, "not finite"),
        ({}, {"valid": 1}, "no position"),
        ({}, {"valid": 2}, "no position"),
        ({}, {"trust": 0.5}, "no position"),
        ({}, {"trust": 0.0}, "no position"),
        ({"position": (1.0, -2.0, 4.0)}, {}, "the position jumped"),
        ({"rotation": turned(0.7, 1.2)}, {}, "tilt"),
        ({"velocity": (4, 4, 0)}, {}, "speed"),
        ({"rates": (0, 0, 40)}, {}, "body rate"),
        ({}, {"us": 60 * TICK}, "it was late"),
    ],
)
def test_it_hands_back_at_once(bench, change, told, said):
    bench.enter()
    for _ in range(8):
        bench.tick()
    assert bench.flies
    bench.tick(still(**change), **told)
    assert not bench.flies and bench.reason == said and bench.c.bench_undisturbed() == 0
    for _ in range(50):
        bench.tick()
        assert not bench.flies  # until the switch was let go
    bench.enter()
    assert bench.flies and bench.reason == "fine"


def test_a_fence_ends_it_on_the_way(bench):
    bench.enter()
    ticks = 0
    while bench.flies:
        ticks += 1
        bench.tick(still(position=(1.0, -2.0 + 0.004 * ticks, 3.0), velocity=(0.0, 4.0, 0.0)))
    assert bench.reason == "geofence" and 0.004 * ticks == pytest.approx(10.0, abs=0.01)


def test_a_files_geofence_is_in_the_world_of_the_flight(tmp_path):
    """The nose points west: x is west, y south, z up."""
    policy = ruled(tmp_path, fence_low=[-1.0, -1.0, 0.0], fence_high=[3.0, 1e9, 4.0])
    library = built(exported(tmp_path / "fenced", policy.path), tmp_path)
    rotation = turned(math.pi / 2)
    for step, said in {
        (0, 0.3, 0): "geofence",
        (0, -0.3, 0): "fine",
        (0.3, 0, 0): "geofence",
        (-0.3, 0, 0): "fine",
    }.items():
        place = np.array([0.8, 2.8, 3.0])  # x 2.8, y -0.8
        scratch = tmp_path / f"{step}"
        scratch.mkdir()
        bench = Bench(library, scratch)
        bench.enter(still(position=place, rotation=rotation))
        assert bench.flies
        bench.tick(still(position=place + step, rotation=rotation))
        assert bench.reason == said
        bench.enter(still(position=place + step, rotation=rotation))
        assert bench.flies == (said == "fine")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sensors", 1),
        ("features", 1 << 12),
        ("radio", 0),
        ("failsafe", 1),
        ("flip", 1),
        ("launch", 1),
        ("count", 6),
        ("mixer", 26),
        ("reversed", 1),
    ],
)
def test_betaflight_goes_first(bench, name, value):
    bench.enter()
    assert bench.flies
    bench.set(name, value)
    bench.tick()
    assert not bench.flies and bench.reason == "Betaflight forbids it"


def test_a_rescue_goes_first(bench):
    bench.enter()
    assert bench.flies
    bench.c.bench_flags(1, 1 << 11)
    bench.tick()
    assert not bench.flies and bench.reason == "Betaflight forbids it"
    bench.enter(modes=1 << 11)
    assert not bench.flies
    bench.enter()
    assert bench.flies


@pytest.mark.parametrize(
    ("sensors", "source", "trusted"),
    [
        (GPS, 0, False),
        (GPS | FLOW, 0, False),
        (GPS | FLOW, GPS_ONLY, False),
        (GPS | FLOW, FLOW_ONLY, True),
        (FLOW, 0, True),
    ],
)
@pytest.mark.parametrize("lost", [("oriented", 0), ("fix", 0), ("silent", 1)])
def test_where_a_gps_is_heard_its_position_needs_a_fix_news_and_north(bench, sensors, source, trusted, lost):
    """Beside optical flow as well, whose measurements are along the body: which of them feeds it nobody tells."""
    bench.set("sensors", 3 | sensors)
    bench.set("source", source)
    bench.enter()
    assert bench.flies
    bench.set(*lost)
    ticks = 0
    while bench.flies and ticks < 1000:
        bench.tick()
        ticks += 1
    if trusted:
        assert bench.flies
        return
    assert bench.reason == "no position"
    assert ticks * TICK == (pytest.approx(500_000, abs=3 * TICK) if lost[0] == "silent" else TICK)
    bench.enter()
    assert not bench.flies and bench.reason == "no position"


def test_old_news_of_a_gps_is_none_when_a_flight_begins(bench):
    bench.c.bench_flags(1, 0)
    bench.tick()  # heard
    bench.set("silent", 1)
    for _ in range(600):
        bench.tick()
    bench.enter()
    assert not bench.flies and bench.reason == "no position"
    bench.set("box", 0)
    for _ in range(9000):
        bench.tick(us=480_000)  # beyond a turn of the clock
    bench.tick(us=(1 << 32) - 9000 * 480_000 % (1 << 32) - 500_000)
    bench.enter()
    assert not bench.flies
    bench.set("box", 0)
    bench.set("silent", 0)
    bench.tick()
    bench.enter()
    assert bench.flies


def test_a_gps_that_never_said_anything_is_none(library, tmp_path):
    bench = Bench(library, tmp_path, silent=True)
    bench.enter()
    assert not bench.flies and bench.reason == "no position"


def test_a_low_battery_ends_it_after_a_while(tmp_path):
    policy = ruled(tmp_path, min_voltage=14.0, low_voltage_steps=5)
    bench = Bench(built(exported(tmp_path / "low", policy.path), tmp_path), tmp_path)
    bench.enter()
    bench.set("voltage", 1390)
    for _ in range(40):
        bench.tick()
    assert bench.flies
    for _ in range(20):
        bench.tick()
    assert not bench.flies and bench.reason == "low battery"
    bench.set("box", 0)
    bench.tick()
    bench.set("voltage", 0)  # nobody measures it
    bench.enter()
    assert not bench.flies and bench.reason == "low battery"


def test_a_policy_that_is_told_the_voltage_needs_a_meter(tmp_path):
    path = level(tmp_path / "level.onnx", Signal("battery_voltage", (1,), "V"))
    bench = Bench(built(exported(tmp_path / "level", path), tmp_path), tmp_path)
    bench.enter()
    assert bench.flies
    bench.set("voltage", 0)
    bench.tick()
    assert not bench.flies and bench.reason == "low battery"
    bench.enter()
    assert not bench.flies

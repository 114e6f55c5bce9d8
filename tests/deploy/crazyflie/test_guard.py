"""The guard on board: the C against its Python, and in the app every fault within 50 ms."""

import ctypes
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.crazyflie import guard
from deploy.crazyflie.guard import LIMITS, REASONS, Guard, Landing, Seen, allowed
from tests.deploy.crazyflie.board import FORCE, LEGACY, PLACE, Firmware, build, written

WITHIN_MS, AVERAGED_MS = 50, 200
NAN = math.nan


class Limits(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in LIMITS]


class Watched(ctypes.Structure):
    _fields_ = [
        ("home", ctypes.c_float * 3),
        ("motion", ctypes.c_float * 18),
        *((name, ctypes.c_uint32) for name in ("began", "changed", "charged", "powered", "weighed", "span")),
        ("resting", ctypes.c_float),
    ]


class Descent(ctypes.Structure):
    _fields_ = [
        ("place", ctypes.c_float * 3),
        ("began", ctypes.c_uint32),
        ("restless", ctypes.c_uint32),
        ("down", ctypes.c_bool),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = build(written(tmp_path_factory.mktemp("app")))
    native = ctypes.CDLL(str(path))
    native.guard_share.restype = native.landing_height.restype = ctypes.c_float
    native.guard_says.restype = ctypes.c_char_p
    return path, native


@pytest.fixture
def firmware(library):
    made = Firmware(library[0])
    for name, (usual, _, _) in LIMITS.items():
        made.write(name, usual)
    made.write("ramp", 0.0)
    assert made.sound
    return made


def single(x):
    return float(np.float32(x))


def row(seen: Seen):
    return (ctypes.c_float * 21)(*seen.motion, seen.voltage, seen.load, seen.variance)


def seen_of(place, lean, speed, spin, voltage, spread, load=0.0) -> Seen:
    """An estimate of which every number is a float32, as on board."""
    rotation = [0.0] * 8 + [single(math.cos(math.radians(lean)))]
    three = ([single(v) for v in group] for group in (place, (speed, 0, 0), (0, spin, 0)))
    position, velocity, rate = three
    return Seen(position, rotation, velocity, rate, single(voltage), single(load), single(spread * spread))


BAD = [NAN, math.inf, -math.inf]
SHARE = st.sampled_from([-2.0, -1.01, -0.99, 0.0, 0.5, 0.99, 1.01, 2.0, 1e30, *BAD])
PAUSE = st.integers(1, 40) | st.sampled_from([100, 2500, 5000])
VOLTS = st.sampled_from([-1.0, 0.0313, 0.53, 0.9871, 1.0113, 2.17, 1e30, *BAD])  # no mean of which is just the limit
LOOK = st.tuples(PAUSE, st.booleans(), st.sampled_from([0.0, 0.3, 1.0, NAN]), *[SHARE] * 6, VOLTS, SHARE)


@settings(max_examples=60)
@given(
    limits=st.fixed_dictionaries(
        {name: st.floats(least, most).map(single) for name, (_, least, most) in LIMITS.items()}
    ),
    began=st.sampled_from([1000, 2**32 - 40]),
    looks=st.lists(LOOK, min_size=1, max_size=25),
)
def test_the_c_and_its_python_find_the_same_reasons(library, limits, began, looks):
    """Estimates whose numbers are given as shares of the limits, with pauses of 1 ms to 5 s between them."""
    _, native = library
    c_limits, watched, reference = Limits(**limits), Watched(), Guard(dict(limits))
    seen = seen_of((0, 0, 0), 0, 0, 0, 4.2, 0)
    native.guard_begin(ctypes.byref(watched), row(seen), began)
    reference.begin(seen, 0.0)
    now = 0
    for pause, same, load, *share in looks:
        now += pause
        if not same:
            x, y, z, lean, speed, spin, volts, spread = share
            fence = limits["fence"]
            seen = seen_of(
                (x * fence, y * fence, z * limits["height"]),
                lean * limits["tilt"] if math.isfinite(lean) and abs(lean) < 3 else 0.0,
                speed * limits["speed"],
                spin * limits["rate"],
                volts * limits["voltage"],
                spread * limits["spread"] if abs(spread) < 3 else 0.0,
                load,
            )
        native.guard_weigh(ctypes.byref(watched), ctypes.byref(c_limits), row(seen), (began + now) % 2**32)
        reference.weigh(seen, 1e-3 * now)
        found = native.guard_look(ctypes.byref(watched), ctypes.byref(c_limits), row(seen), (began + now) % 2**32)
        assert REASONS[found] == REASONS[reference.look(seen, 1e-3 * now)]
        over = native.guard_time(ctypes.byref(watched), ctypes.byref(c_limits), (began + now) % 2**32)
        assert over == reference.time(1e-3 * now)


@given(share=SHARE, force=st.sampled_from([0.0, 1.0, *BAD]), elapsed=st.integers(0, 12_000), ramp=st.floats(0, 10))
def test_so_they_do_of_a_step_and_of_the_ramp(library, share, force, elapsed, ramp):
    _, native = library
    reference = Guard()
    reference.limits["ramp"] = single(ramp)
    limits = Limits(**reference.limits)
    duration = round(share * 500) if 0.0 <= share < 3.0 else 0
    forces = (ctypes.c_float * 4)(0, 0, force, 0)
    assert native.guard_step(ctypes.byref(limits), forces, duration) == reference.step(list(forces), duration)
    got = native.guard_share(ctypes.byref(limits), elapsed)
    assert got == pytest.approx(reference.share(1e-3 * elapsed), abs=1e-5)


@given(heights=st.lists(st.floats(-0.1, 2.0), min_size=1, max_size=60), speed=st.floats(-3, 3))
def test_landings_are_the_same(library, heights, speed):
    """Whatever the heights: the same height is asked for, and both say at the same time that it is down."""
    _, native = library
    start, velocity = (0.5, -0.25, 1.0), (single(speed), 0.0, 0.0)
    descent, reference = Descent(), Landing(start, velocity, 0.0)
    three = ctypes.c_float * 3
    native.landing_begin(ctypes.byref(descent), three(*start), three(*velocity), 7)
    np.testing.assert_allclose(list(descent.place), reference.place, atol=1e-6)
    for step, height in enumerate(heights):
        now, climb = 100 * step, (0.0, 0.0, 0.0 if step % 7 else 0.04)
        place = (0.5, -0.25, single(height))
        got = native.landing_height(ctypes.byref(descent), three(*place), three(*climb), 7 + now)
        assert got == pytest.approx(reference.height(place, climb, 1e-3 * now), abs=1e-5)
        if abs(got - (place[2] - guard.BELOW)) < 1e-4:
            return  # on the edge, where rounding decides
        assert descent.down == reference.down


def test_the_words_for_people_are_the_same(library):
    _, native = library
    assert tuple(native.guard_says(k).decode() for k in range(len(REASONS))) == REASONS


def test_the_parameters_are_those_of_the_table(library):
    made = Firmware(library[0])
    names = list(made.table("params"))
    assert names == ["mode", *LIMITS, "thrust0", "thrust1", "thrust2"]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("bad", [-1.0, 1e9, NAN, math.inf])
def test_a_parameter_that_is_not_allowed_is_replaced_and_said(firmware, name, bad):
    firmware.attend()
    firmware.write(name, bad)
    firmware.call()
    usual = LIMITS[name][0]
    assert firmware.parameter(name) == pytest.approx(usual) and allowed(name, bad) == usual
    assert int(firmware.logged("replaced")) >> list(LIMITS).index(name) & 1
    (said,) = firmware.attend()
    assert f"policy.{name} is not within " in said and said.endswith(f", now {usual}")
    assert not firmware.attend()


@given(
    airframe=st.sampled_from([(0.0, 0.0, 0.12), (0.00352526, 0.01437313, 0.09223048)]),
    off=st.tuples(*[st.floats(-0.0625, 0.0625, width=32)] * 3),
)
def test_which_thrust_curves_are_near_the_airframe_s(library, airframe, off):
    tuned = [a + b for a, b in zip(airframe, off, strict=True)]
    curve, own = (ctypes.c_float * 3)(*tuned), (ctypes.c_float * 3)(*airframe)
    library[1].guard_near.restype = ctypes.c_bool
    near = library[1].guard_near(curve, own)
    shares = np.linspace(0, 1, 101)
    furthest = np.abs(np.polyval([d for d in reversed(off)], shares)).max() / sum(airframe)
    if abs(furthest - guard.CURVE) > 0.02:
        assert near == (furthest <= guard.CURVE) == guard.near(tuned, airframe)


def test_a_mode_that_there_is_none_of_is_off(firmware):
    firmware.attend()
    firmware.write("mode", 9)
    assert firmware.call()[0] == LEGACY
    assert firmware.parameter("mode") == guard.OFF == allowed("mode", 9)
    assert firmware.attend() == ["POLICY: policy.mode is 0..3, now 0"]


def sway(k: int) -> dict:
    """A flight that is never twice the same."""
    return {"position": (0.01 * math.sin(k), 0, 1), "gyro": (math.sin(0.3 * k), 0, 0)}


def leaning(degrees: float) -> tuple:
    half = math.radians(degrees) / 2
    return (math.sin(half), 0, 0, math.cos(half))


# Fault -> what the firmware says from then on, and the reason.
FAULTS = {
    "estimate": ({"position": (0, NAN, 1)}, guard.ESTIMATE),
    "gyroscope": ({"gyro": (0, math.inf, 0)}, guard.ESTIMATE),
    "set point": ({"target_position": (0, NAN, 1)}, guard.ESTIMATE),
    "frozen": ({"position": (0.5, 0, 1), "gyro": (0, 0, 0)}, guard.STALE),
    "uncertain": ({}, guard.SPREAD),
    "variance unknown": ({}, guard.SPREAD),
    "fence": ({"position": (0, -1.6, 1)}, guard.FENCE),
    "too high": ({"position": (0, 0, 2.1)}, guard.FENCE),
    "too low": ({"position": (0, 0, -0.1)}, guard.FENCE),
    "tilt": ({"quaternion": leaning(61)}, guard.TILT),
    "upside down": ({"quaternion": leaning(180)}, guard.TILT),
    "speed": ({"velocity": (0, 3, 0.5)}, guard.SPEED),
    "endless speed": ({"velocity": (0, 3e38, 0)}, guard.SPEED),
    "rate": ({"gyro": (0, 0, 900)}, guard.RATE),
    "battery empty": ({}, guard.BATTERY),
    "battery unknown": ({}, guard.BATTERY),
    "slow": ({}, guard.SLOW),
}
SETTINGS = {
    "uncertain": ("variance", 0.26),
    "variance unknown": ("variance", NAN),
    "battery empty": ("voltage", 2.69),
    "battery unknown": ("voltage", NAN),
    "slow": ("step_us", 501),
}


@settings(max_examples=60)
@given(fault=st.sampled_from(sorted(FAULTS)), before=st.integers(1, 70))
def test_every_fault_hands_back_within_50_ms(library, fault, before):
    """`before`: calls of 1 ms until it happens. Then the PID controller flies, and stays where the vehicle was."""
    made = Firmware(library[0])
    for name, (usual, _, _) in LIMITS.items():
        made.write(name, usual)
    for k in range(before):
        made.call(**sway(k))
    assert made.logged("flying") and made.logged("reason") == guard.FINE
    change, reason = FAULTS[fault]
    if fault in SETTINGS:
        made.set(*SETTINGS[fault])
    for k in range(WITHIN_MS):
        mode, forces = made.call(**{**sway(before + k), **change})
        if made.logged("reason") != guard.FINE:
            break
    assert REASONS[int(made.logged("reason"))] == REASONS[reason]
    assert not made.logged("flying")
    mode, forces = made.call(**{**sway(before + k), **change})
    blind = fault in ("estimate", "gyroscope")
    assert mode == (FORCE if blind else LEGACY)
    if blind:
        assert forces.tolist() == [0.0] * 4  # nobody can fly: motors off, then the PID controller
    made.call(**sway(0), target_position=(5, 5, 5))
    mode, _ = made.call(**sway(1), target_position=(5, 5, 5))
    assert mode == LEGACY and abs(made.told()[0]) < 1.01 and made.logged("failed")  # nobody's set point but its own


def test_a_flight_ends_with_its_time(firmware):
    firmware.write("seconds", 2.0)
    for k in range(2001):
        firmware.call(**sway(k))
    assert firmware.logged("flying")
    firmware.call(**sway(0))
    assert not firmware.logged("flying") and firmware.logged("reason") == guard.TIME


HOVERING = 0.57  # of the most that the rotors give: by a battery that the firmware's own test passes 0.4 V less


@pytest.fixture
def hovering(firmware):
    """The policy computes as a shadow of a PID controller that hovers: so the load is known."""
    firmware.set("pid_thrust", HOVERING * 65535)
    firmware.write("mode", guard.SHADOW)
    yield firmware
    firmware.set("pid_thrust", 0.0)


def found_after(made, voltages, load=None) -> int:
    """For how many ms, with these voltages, and what the PID controller asks for at each, the guard finds nothing."""
    for k, volts in enumerate(voltages):
        made.set("voltage", volts)
        if load is not None:
            made.set("pid_thrust", 65535 * load(k))
        made.call(**sway(k))
        if made.logged("reason") != guard.FINE:
            assert made.logged("reason") == guard.BATTERY
            return k
    return -1


def test_a_battery_is_low_that_has_less_than_3_v_in_a_hover_for_five_seconds(hovering):
    assert found_after(hovering, [3.02] * 6000) == -1
    k = found_after(hovering, [2.98] * 6000)
    assert 4999 <= k <= 4999 + AVERAGED_MS


@pytest.mark.parametrize("turns", [1, 20])
def test_a_load_that_jitters_hides_no_low_battery(hovering, turns):
    """Between a fifth and nearly all of the most, every `turns` ms: single samples say 3.64 V, the mean 3.38."""
    found_after(hovering, [3.3] * 300)
    k = found_after(hovering, [2.98] * 6000, lambda k: HOVERING + (0.37 if k // turns % 2 else -0.37))
    assert 4999 <= k <= 4999 + 5 * AVERAGED_MS


@pytest.mark.parametrize(("seconds", "volts"), [(6, 2.98), (1, 2.6)])
def test_a_battery_does_not_age_while_pid_flies_in_between(firmware, seconds, volts):
    """Set points are too old for a while, and the battery sags for a moment just as they come again."""
    firmware.set("pid_thrust", HOVERING * 65535)
    for k in range(200):
        firmware.call(**sway(k))
    for k in range(1000 * seconds):
        firmware.call(**sway(k), age=300)
    firmware.set("pid_thrust", 0.0)
    firmware.set("voltage", volts)
    for k in range(20):
        firmware.call(**sway(k))
    assert firmware.logged("flying") and firmware.logged("reason") == guard.FINE


def test_the_times_and_voltages_are_the_same(library):
    """Of guard.h, as the preprocessor reads them, and of guard.py."""
    text = (library[0].parent / "guard.h").read_text()
    found = {name: float(value) for name, value in re.findall(r"^#define GUARD_(\w+) ([\d.]+)f?\s", text, re.M)}
    assert found == {
        "CURVE": guard.CURVE,
        "OLD_MS": 1e3 * guard.OLD,
        "LOW_MS": 1e3 * guard.LOW,
        "ASK_MS": 1e3 * guard.ASK,
        "MEAN_MS": 1e3 * guard.MEAN,
        "EMPTY": guard.EMPTY,
        "EMPTY_MS": 1e3 * guard.EMPTY_FOR,
    }


def test_the_sag_of_a_climb_is_none_of_a_battery_that_is_low(hovering):
    """Full thrust for as long as it likes, 0.3 V below a hover; then that in a hover, four of every five seconds."""
    found_after(hovering, [3.3] * 10)
    hovering.set("pid_thrust", 65535.0)
    assert found_after(hovering, [2.75] * 8000) == -1
    hovering.set("pid_thrust", HOVERING * 65535)
    assert found_after(hovering, ([2.75] * 4000 + [3.1] * 1000) * 2) == -1


def test_the_policy_does_not_take_over_with_a_battery_that_is_low_in_a_hover(hovering):
    """It is asked in the first 100 ms, while nearly all of the forces are the PID controller's."""
    hovering.write("ramp", 10.0)
    hovering.write("mode", guard.FLY)
    assert 100 <= found_after(hovering, [2.98] * 300) <= 100 + WITHIN_MS
    assert hovering.logged("failed") and not hovering.logged("flying")
    hovering.select()
    assert found_after(hovering, [3.02] * 300) == -1 and hovering.logged("flying")


def test_its_time_runs_on_while_pid_flies_in_between(firmware):
    firmware.write("seconds", 2.0)
    for k in range(2003):
        firmware.call(**sway(k), age=300 if 100 < k < 1900 else 0)
    assert firmware.logged("reason") == guard.TIME


def test_handed_back_it_brakes_stays_sinks_and_rests(firmware):
    """The vehicle follows what the PID controller is told, down to a floor at 0.3 m."""
    firmware.call(**sway(0))
    height, states = 1.0, []
    firmware.set("voltage", 2.6)
    for k in range(6000):
        mode, forces = firmware.call(position=(0.001 * (k % 2), 0, height))
        states.append(int(firmware.logged("state")))
        if mode == LEGACY:
            height = max(0.3, float(firmware.told()[2]))
    assert list(dict.fromkeys(states)) == [guard.FLYING, guard.HOLDING, guard.SINKING, guard.DOWN]
    assert height == pytest.approx(0.3)
    assert abs(states.index(guard.DOWN) - (1000 + 30 + 1e3 * (0.7 + guard.BELOW) / guard.SINK + 300)) < 20
    assert mode == FORCE and forces.tolist() == [0.0] * 4
    firmware.select()
    firmware.set("voltage", 4.0)
    firmware.call(**sway(1))
    assert firmware.logged("flying") and firmware.logged("reason") == guard.FINE


def test_handed_back_the_pid_controller_begins_anew(firmware):
    """An empty set point first: so it holds the heading that there is, not the one that the last set point named."""
    firmware.write("ramp", 10.0)
    for k in range(5):
        firmware.call(**sway(k))
    firmware.forget()
    firmware.call(**sway(5), velocity=(9, 0, 0))
    assert firmware.logged("reason") == guard.SPEED and firmware.pid() == [(0, 0), (1, 0)]
    firmware.call(**sway(6))
    assert len(firmware.pid()) == 1


def test_the_watchdog_is_kept_calm_while_it_lands_without_a_client(firmware):
    firmware.call(**sway(0))
    firmware.attend()
    assert firmware.of("relaxed").value == 0
    firmware.call(**sway(1), velocity=(9, 0, 0))
    firmware.attend()
    assert firmware.of("relaxed").value == 0  # the client is there
    firmware.call(**sway(2), age=201, modes=PLACE)
    firmware.attend()
    assert firmware.of("relaxed").value > 0

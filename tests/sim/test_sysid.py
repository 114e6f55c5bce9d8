import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines import make as make_engine
from sim.robots import robot
from sim.sysid import identify
from sim.sysid.fit import Record, TooLittleExcitation, rotor_speeds
from tests.identification_flights import fly, record, truth, wrong

CASES = [("crazyflie", False), ("x500", True)]
CASES += [pytest.param(*one, marks=pytest.mark.long) for one in (("racer", False), ("crazyflie_decks", True))]
CASES += [pytest.param("stampfly", False, marks=pytest.mark.long)]


@settings(deadline=None, max_examples=20)
@given(rise=st.floats(0.005, 0.3), fall=st.floats(0.005, 0.3), seed=st.integers(0, 1000), whole=st.integers(0, 3))
def test_rotor_speeds_are_the_engines(rise, fall, seed, whole):
    vehicle = dataclasses.replace(robot("x500"), rise_time=rise, fall_time=fall)
    engine = make_engine("flight", vehicle, 1, 0.01)
    command = np.random.default_rng(seed).uniform(0.0, 1.0, (25, 4)).astype(np.float32)
    late = np.concatenate([np.repeat(command[:1], whole, axis=0), command])[: len(command)]
    engine.reset(None, {"rotor_speed": command[:1]})
    flown = [command[0]]
    for row in late:
        engine.step(row[None])
        flown.append(engine.read("rotor_speed")[0])
    border, _ = rotor_speeds(command.astype(float), np.array([0.01 * whole]), np.array([rise]), np.array([fall]), 0.01)
    np.testing.assert_allclose(border[0], flown, atol=2e-6)


@pytest.mark.parametrize(("name", "free_curve"), CASES)
def test_known_vehicles_are_recovered(name, free_curve):
    found = identify([record(fly(name))], wrong(robot(name)), mass=robot(name).mass, free_curve=free_curve)
    for key, true in truth(name, found.mean_command).items():
        estimate = found[key]
        assert abs(estimate.value - true) < 2.5 * estimate.margin, estimate  # almost five standard deviations
        if not key.startswith("drag"):
            assert estimate.value == pytest.approx(true, rel=0.02), estimate
    assert found.robot.hover_command == pytest.approx(robot(name).hover_command, rel=0.01)
    assert max(found.residual) < 0.0025  # the noise, and nothing else
    assert found.correlation < 0.1


def test_another_engine_is_recovered():
    found = identify([record(fly("crazyflie", engine="mujoco"))], wrong(robot("crazyflie")))
    known = truth("crazyflie", found.mean_command)
    for key in ("rise_time", "fall_time", "thrust", "inertia_x", "inertia_y", "inertia_z", "yaw_authority"):
        assert found[key].value == pytest.approx(known[key], rel=0.05), key


@pytest.fixture(scope="module")
def flown():
    return record(fly("racer", seconds=20.0))


def test_only_ratios_to_the_mass_are_observable(flown):
    """Twice the mass: the same motion from twice the thrust, inertia and drag."""
    one, two = (identify([flown], robot("racer"), mass=m) for m in (0.75, 1.5))
    assert two["thrust"].value == pytest.approx(2.0 * one["thrust"].value, rel=1e-6)
    assert two["inertia_x"].value == pytest.approx(2.0 * one["inertia_x"].value, rel=1e-6)
    assert two.residual == pytest.approx(one.residual, rel=1e-9)
    assert two.robot.hover_command == pytest.approx(one.robot.hover_command, rel=1e-6)


def test_intervals_widen_with_the_noise(flown):
    rng = np.random.default_rng(0)
    loud = dataclasses.replace(flown, rate=flown.rate + 0.05 * rng.normal(size=flown.rate.shape))
    quiet, noisy = identify([flown], robot("racer")), identify([loud], robot("racer"))
    assert noisy["inertia_x"].margin > 3.0 * quiet["inertia_x"].margin


def test_gyroscopic_moments_tell_torque_ratio_and_yaw_inertia_apart():
    log = record(fly("crazyflie"))
    guess = dataclasses.replace(wrong(robot("crazyflie")), torque_ratio=0.0045)
    held, free = (identify([log], guess, free_torque_ratio=each) for each in (False, True))
    true = truth("crazyflie", free.mean_command)
    assert held["torque_ratio"].value == pytest.approx(0.0045)
    for found in (held, free):  # the ratio is known either way
        assert found["yaw_authority"].value == pytest.approx(true["yaw_authority"], rel=0.01)
    assert free["inertia_z"].value == pytest.approx(true["inertia_z"], rel=0.05)
    assert free["torque_ratio"].value == pytest.approx(robot("crazyflie").torque_ratio, rel=0.05)
    assert free["torque_ratio"].margin > 3.0 * free["yaw_authority"].share * free["torque_ratio"].value


def test_several_flights_are_used_together(flown):
    half = len(flown.command) // 2
    pieces = [
        Record(flown.dt, flown.rotation[i], flown.velocity[i], flown.rate[i], flown.command[i])
        for i in (slice(0, half), slice(half, None))
    ]
    found = identify(pieces, wrong(robot("racer")), one_lag=True, delay=0.013)
    assert found["rise_time"].value == found["fall_time"].value == pytest.approx(0.033, rel=0.02)
    assert (found["delay"].value, found["delay"].margin) == (0.013, 0.0)
    assert found["inertia_x"].value == pytest.approx(robot("racer").inertia[0], rel=0.02)


def still(steps=3000, noise=0.002):
    """A vehicle that hovers at one place."""
    rng = np.random.default_rng(0)
    command = np.full((steps, 4), robot("racer").hover_command)
    velocity, rate = noise * rng.normal(size=(2, steps, 3))
    return Record(0.01, np.tile(np.eye(3), (steps, 1, 1)), velocity, rate, command)


def test_a_hover_is_too_little_excitation():
    with pytest.raises(TooLittleExcitation, match="the flight"):
        identify([still()], robot("racer"))


@pytest.mark.slow
def test_a_nudged_hover_says_what_is_missing():
    quiet = still(1500)
    rng = np.random.default_rng(1)
    nudged = dataclasses.replace(quiet, command=quiet.command + 1e-5 * rng.normal(size=quiet.command.shape))
    with pytest.raises(TooLittleExcitation, match=r"inertia_x = .* \(roll more\)"):
        identify([nudged], robot("racer"))


def test_a_short_flight_is_refused():
    with pytest.raises(TooLittleExcitation, match=r"2\.0 s of flight are too short: needs \d+ s"):
        identify([still(200)], robot("racer"))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mass": -1.0}, "mass must be"), ({"mass": float("nan")}, "mass must be"), ({"delay": 0.5}, r"0\.\.0\.1 s")],
)
def test_bad_options_are_named(flown, options, message):
    with pytest.raises(ValueError, match=message):
        identify([flown], robot("racer"), **options)


def test_bad_records_are_named(flown):
    with pytest.raises(ValueError, match="'any' stands for many"):
        identify([flown], robot("any"))
    with pytest.raises(ValueError, match="at least one record"):
        identify([], robot("racer"))
    with pytest.raises(ValueError, match="one rate"):
        identify([flown, dataclasses.replace(flown, dt=0.02)], robot("racer"))
    with pytest.raises(ValueError, match=r"rate must be \(2000, 3\)"):
        dataclasses.replace(flown, rate=flown.rate[:5])
    with pytest.raises(ValueError, match="velocity has values that are not finite"):
        dataclasses.replace(flown, velocity=flown.velocity * np.nan)
    with pytest.raises(ValueError, match=r"command must be in 0\.\.1"):
        dataclasses.replace(flown, command=flown.command * 65535.0)

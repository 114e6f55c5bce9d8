"""Betaflight's logs, decoded, say the same of a vehicle as ours."""

import csv

import numpy as np
import pytest

from policies.identify import read_records
from sim.robots import robot
from sim.sysid import identify
from tests.identification_flights import fly, record, wrong

GRAVITY = 9.80665


@pytest.fixture(scope="module")
def flown():
    return fly("racer", seconds=20.0)


def quaternions(rotation):
    """(n, 4), real part first and not negative, of rotations near enough to upright."""
    m = rotation.reshape(-1, 3, 3)
    w = 0.5 * np.sqrt(1.0 + m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2])
    off = [m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1]]
    return np.stack([w, *(each / (4.0 * w) for each in off)], axis=1)


def as_betaflight(log, digital=True, unit="deg/s"):
    """Titles and rows, as blackbox_decode writes them: whole numbers where Betaflight's are."""
    velocity, time = log["linear_velocity"], log["time"]
    acceleration = np.gradient(velocity, time, axis=0)
    rotation = log["rotation"].reshape(-1, 3, 3)
    force = np.einsum("nji,nj->ni", rotation, acceleration + np.array([0.0, 0.0, GRAVITY])) / GRAVITY
    low, high = (48.0, 2047.0) if digital else (1000.0, 2000.0)
    motors = np.round(low + (high - low) * log["motor_command"][:, [1, 0, 2, 3]])
    q = np.round(quaternions(log["rotation"])[:, 1:] * 32767.0)
    rates = np.degrees(log["angular_velocity"]) if unit == "deg/s" else log["angular_velocity"]
    titles = ["loopIteration", "time (us)", *(f"gyroADC[{k}] ({unit})" for k in range(3))]
    titles += [f"accSmooth[{k}] (g)" for k in range(3)] + [f"imuQuaternion[{k}]" for k in range(3)]
    titles += [f"motor[{k}]" for k in range(4)] + ["flightModeFlags (flags)"]
    numbers = np.hstack([np.arange(len(time))[:, None], 1e6 * time[:, None], rates, force, q, motors])
    return titles, [[*map(repr, row.tolist()), "ANGLE_MODE|ARM"] for row in numbers]


def write(path, titles, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[f" {title}" for title in titles], *rows])
    return str(path)


@pytest.mark.parametrize(("digital", "unit"), [(True, "deg/s"), (False, "rad/s")])
def test_a_log_of_betaflight_is_the_flight(flown, tmp_path, digital, unit):
    motors = None if digital else "pwm"
    (found,) = read_records(write(tmp_path / "flight.csv", *as_betaflight(flown, digital, unit)), motors=motors)
    expected = record(flown)
    assert found.dt == pytest.approx(0.01, rel=1e-6)
    np.testing.assert_allclose(found.command, expected.command, atol=6e-4)
    np.testing.assert_allclose(found.rate, expected.rate, atol=1e-6)
    np.testing.assert_allclose(found.rotation, expected.rotation, atol=3e-2)  # of which ours has noise
    change = np.diff(found.velocity[::20], axis=0) - np.diff(expected.velocity[::20], axis=0)
    assert np.abs(change).max() < 0.15  # within windows; the whole wanders


def test_the_same_airframe_comes_out(flown, tmp_path):
    true = robot("racer")
    ours = identify([record(flown)], wrong(true))
    theirs = identify(read_records(write(tmp_path / "flight.csv", *as_betaflight(flown))), wrong(true))
    for name in ("thrust", "inertia_x", "inertia_y", "inertia_z", "rise_time"):
        assert theirs[name].value == pytest.approx(ours[name].value, rel=0.08), name


def test_a_bad_log_is_named(flown, tmp_path):
    titles, rows = as_betaflight({name: value[:50] for name, value in flown.items()})

    def refused(titles, rows, said):
        with pytest.raises(ValueError, match=said):
            read_records(write(tmp_path / "flight.csv", titles, rows))

    raw = [title.replace(" (deg/s)", "") for title in titles]
    refused(raw, rows, r"gyroADC\[0\] is in raw numbers, not in deg/s or rad/s; decode it by: blackbox_decode --unit")
    refused([t.replace("accSmooth", "debug") for t in titles], rows, r"Betaflight logged no accSmooth\[0\], accSmooth")
    refused([*titles, "motor[4]"], [[*row, "48"] for row in rows], "more than four rotors")
    refused(titles, [*rows[:9], [*rows[9][:2], "x", *rows[9][3:]]], "gyroADC: could not convert string")
    refused(titles, [*rows[:9], [*rows[9][:2], "nan", *rows[9][3:]]], "of finite numbers are needed")
    refused(titles, [*rows[:9], [*rows[9][:8], "32767", "32767", *rows[9][10:]]], "imuQuaternion is none in row 10")
    refused(titles, [*rows[:9], rows[3]], "time must increase")
    refused(titles, rows[:2], "three rows or more")
    refused(titles, [*rows[:9], rows[9][:-1]], "line 11 has 15 values, the header 16")


def test_a_flight_within_a_pulse_s_range_is_not_guessed(flown, tmp_path):
    part = {name: value[:50] for name, value in flown.items()}
    part["motor_command"] = 0.53 + 0.07 * np.linspace(0.0, 1.0, 200).reshape(50, 4)  # 1107 to 1247
    either = write(tmp_path / "either.csv", *as_betaflight(part))
    with pytest.raises(ValueError, match=r"either.csv: motors' outputs are 1107 to 1247, .* say motors=dshot or moto"):
        read_records(either)
    (found,) = read_records(either, motors="dshot")
    np.testing.assert_allclose(found.command, part["motor_command"], atol=6e-4)
    (found,) = read_records(either, motors="pwm")
    assert found.command.min() == pytest.approx(0.107) and found.command.max() == pytest.approx(0.247)
    for command, seen in ((0.3, "648 to 648"), (0.99, "2027 to 2027")):
        part["motor_command"] = np.full((50, 4), command)
        plain = write(tmp_path / "plain.csv", *as_betaflight(part))
        assert read_records(plain)[0].command.min() == pytest.approx(command, abs=6e-4)
        with pytest.raises(ValueError, match=f"outputs are {seen}, and PWM's 1000 to 2000 us: say motors=dshot"):
            read_records(plain, motors="pwm")


def test_only_a_blackbox_is_asked_for_its_motors(tmp_path):
    other = write(tmp_path / "flight.csv", ["time"], [["0.0"]])
    for path in (other, str(tmp_path / "flight.npz")):
        with pytest.raises(ValueError, match="motors=pwm is for Betaflight's blackbox"):
            read_records(path, motors="pwm")

"""Logs of PX4: a simulated flight, written in its format at rates of its own, comes back as it was."""

import struct

import numpy as np
import pytest

pytest.importorskip("pyulog")

from policies.datasets.recordings import ulog
from policies.identify import read_records
from sim.rotations import quaternion

FORMATS = {
    "vehicle_local_position": ("float vx;float vy;float vz;", "fff"),
    "vehicle_attitude": ("float[4] q;", "4f"),
    "vehicle_angular_velocity": ("float[3] xyz;", "3f"),
    "actuator_motors": ("float[12] control;", "12f"),
}


def written(path, samples, formats=FORMATS):
    """`samples`: (time in us, topic, numbers). The format: PX4's documentation of ULog, version 1."""

    def message(kind: bytes, content: bytes) -> bytes:
        return struct.pack("<H", len(content)) + kind + content

    parts = [b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0), message(b"B", bytes(40))]
    parts += [message(b"F", f"{name}:uint64_t timestamp;{fields}".encode()) for name, (fields, _) in formats.items()]
    numbers = {name: k for k, name in enumerate(formats)}
    parts += [message(b"A", struct.pack("<BH", 0, k) + name.encode()) for name, k in numbers.items()]
    for when, name, values in sorted(samples, key=lambda s: s[0]):
        if name in numbers:
            parts.append(message(b"D", struct.pack(f"<HQ{formats[name][1]}", numbers[name], when, *values)))
    path.write_bytes(b"".join(parts))
    return str(path)


def flight(seconds=4.0, gap=(), off=0.5):
    """A turn and a climb with known rates: samples of each topic, and the truth at a time."""

    def truth(t):
        yaw, roll = 0.8 * t, 0.3 * np.sin(2.0 * t)
        cy, sy, cr, sr = np.cos(yaw), np.sin(yaw), np.cos(roll), np.sin(roll)
        rotation = np.array([[cy, -sy * cr, sy * sr], [sy, cy * cr, -cy * sr], [0.0, sr, cr]])  # body to world, z up
        rates = np.array([0.6 * np.cos(2.0 * t), 0.8 * sr, 0.8 * cr])
        velocity = np.array([np.cos(t), 0.5 * np.sin(t), 0.2])
        return rotation, velocity, rates, 0.5 + 0.1 * np.sin(3.0 * t + np.arange(4))

    samples = []
    for name, period, start in (
        ("vehicle_local_position", 0.01, 0.0),
        ("vehicle_attitude", 0.005, 0.001),
        ("vehicle_angular_velocity", 0.004, 0.002),
        ("actuator_motors", 0.005, 0.0),
    ):
        for t in np.arange(start, seconds, period):
            if gap and gap[0] < t < gap[1] and name == "vehicle_attitude":
                continue
            rotation, velocity, rates, motors = truth(t)
            x, y, z, w = quaternion(rotation.reshape(9))
            sign = -1.0 if int(10 * t) % 2 else 1.0  # the same rotation
            told = {
                "vehicle_local_position": velocity * [1, -1, -1],
                "vehicle_attitude": sign * np.array([w, x, -y, -z]),
                "vehicle_angular_velocity": rates * [1, -1, -1],
                "actuator_motors": [*(motors[[0, 2, 3, 1]] if t > off else [np.nan] * 4), *[np.nan] * 8],
            }
            samples.append((round(1e6 * (t + 5.0)), name, told[name]))
    return samples, truth


def test_a_flight_comes_back_in_our_axes_and_order(tmp_path):
    samples, truth = flight()
    read = ulog.read(written(tmp_path / "a.ulg", samples))
    time = read["time"] - 5.0
    assert time[0] == pytest.approx(0.505, abs=0.01) and np.median(np.diff(time)) == pytest.approx(0.005)
    rotations = np.array([truth(t)[0] for t in time])
    want = np.array([quaternion(r.reshape(9)) for r in rotations])[:, [3, 0, 1, 2]]
    assert np.abs(np.abs((want * read["quaternion"]).sum(axis=1)) - 1.0).max() < 1e-5
    for k, name in ((1, "linear_velocity"), (2, "angular_velocity")):
        assert np.abs(read[name] - [truth(t)[k] for t in time]).max() < 2e-3
    assert np.abs(read["motor_command"] - [truth(t)[3] for t in time]).max() < 0.01  # the last one, held
    (record,) = read_records(str(tmp_path / "a.ulg"))
    assert record.dt == pytest.approx(0.005) and len(record.command) == len(time)


def test_a_gap_begins_another_record(tmp_path):
    samples, _ = flight(gap=(2.0, 2.3))
    first, second = read_records(written(tmp_path / "a.ulg", samples))
    assert len(first.command) == pytest.approx(300, abs=3) and len(second.command) == pytest.approx(340, abs=3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: [x for x in s if x[1] != "actuator_motors"], "lacks actuator_motors"),
        (lambda s: [x for x in s if x[1] != "vehicle_attitude" or x[0] % 200_000 < 4_000], "high-rate profile"),
        (lambda s: [x for x in s if x[1] != "actuator_motors" or x[0] < 5_400_000], "never logged at once"),
    ],
)
def test_what_a_log_lacks_is_named(tmp_path, change, said):
    samples, _ = flight()
    with pytest.raises(ValueError, match=said):
        ulog.read(written(tmp_path / "a.ulg", change(samples)))


@pytest.mark.parametrize(
    "content", [b"", b"ULog\x01\x12\x35\x01", b"PK\x03\x04" * 50, b"ULog\x01\x12\x35\x01" + bytes(200)]
)
def test_files_that_are_none_are_named(tmp_path, content):
    (tmp_path / "a.ulg").write_bytes(content)
    with pytest.raises(ValueError, match="a.ulg: (is no log of PX4|lacks)"):
        ulog.read(str(tmp_path / "a.ulg"))


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path):
    samples, _ = flight()
    path = written(tmp_path / "a.ulg", samples)
    whole = (tmp_path / "a.ulg").read_bytes()
    (tmp_path / "a.ulg").write_bytes(whole[: len(whole) // 2 + 7])
    assert 2.0 < ulog.read(path)["time"][-1] - 5.0 + 0.1 < 2.2

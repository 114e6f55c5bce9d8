import csv
import importlib

import numpy as np
import pytest

from deploy import PolicyFile, cli
from deploy.drivers.simulated import Simulated
from deploy.guard import Guard
from deploy.loop import run
from deploy.recording.recorder import Recorder
from policies.identify import main, read_records
from sim.robots import robot
from sim.sysid import identify
from sim.tasks import make
from tests.identification_flights import DELAY, fly, record, truth

DEGREES = 180.0 / np.pi
ROWS = 50
GUESS = """import dataclasses
from sim.robots.quadrotors import RACER

ROBOT = dataclasses.replace(RACER, inertia=(0.004, 0.004, 0.006), rise_time=0.05, fall_time=0.05)
"""


def crazyflie_columns(log):
    """The same flight as the official client records it: its names, units and whole motor numbers."""
    columns = {"timestamp": np.round(1e3 * log["time"])}
    for k, axis in enumerate("xyz"):
        columns[f"stateEstimate.{axis}"] = log["position"][:, k]
        columns[f"stateEstimate.v{axis}"] = log["linear_velocity"][:, k]
        columns[f"gyro.{axis}"] = DEGREES * log["angular_velocity"][:, k]
    for k, axis in enumerate("wxyz"):
        columns[f"stateEstimate.q{axis}"] = log["quaternion"][:, k]
    for k in range(4):
        columns[f"motor.m{k + 1}"] = np.floor(65535.0 * log["motor_command"][:, k])
    return columns


def write_csv(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return str(path)


@pytest.fixture(scope="module")
def flown():
    return fly("racer", seconds=20.0)


@pytest.fixture
def short(flown):
    return {name: value[:ROWS] for name, value in flown.items()}


def test_a_flight_log_is_the_flight(tmp_path):
    policy = PolicyFile.load("quad_any")
    driver = Simulated(make("quad_any", robot="racer"), 2)
    guard = Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(tmp_path / "f.mcap"), policy, driver, guard, "onnxruntime")
    run(policy, driver, guard, ROWS, log=recorder)
    assert recorder.close() == ""
    records, happened = read_records(str(tmp_path / "f.mcap")), driver.flight()
    assert [r.dt for r in records] == pytest.approx([0.01, 0.01])
    for k, each in enumerate(records):
        np.testing.assert_array_equal(each.rotation.reshape(ROWS, 9), happened["rotation"][:, k])
        np.testing.assert_array_equal(each.command, happened["motor_command"][:, k])
        np.testing.assert_array_equal(each.velocity, happened["linear_velocity"][:, k])


def test_ours_and_the_crazyflies_columns_are_one_flight(short, tmp_path):
    np.savez(tmp_path / "ours.npz", **short)
    theirs = write_csv(tmp_path / "theirs.csv", crazyflie_columns(short))
    ours = {f"{n}.{k}": short[n][:, k] for n in short if n != "time" for k in range(short[n].shape[1])}
    named = write_csv(tmp_path / "ours.csv", {"time": short["time"], **ours})
    (first,), (second,), (third,) = (read_records(p) for p in (str(tmp_path / "ours.npz"), theirs, named))
    for field in ("velocity", "rate", "command", "rotation"):
        np.testing.assert_allclose(getattr(third, field), getattr(first, field), atol=1e-12)
        # The quaternion carries no noise; motor numbers are whole.
        np.testing.assert_allclose(
            getattr(second, field), getattr(first, field), atol=6e-3 if field == "rotation" else 2e-5
        )
    assert first.dt == second.dt == pytest.approx(0.01)


def test_batches_of_flights_are_records(short, tmp_path):
    two = {name: np.stack([value, value], axis=1) for name, value in short.items() if name != "time"}
    np.savez(tmp_path / "two.npz", **two)
    records = read_records(str(tmp_path / "two.npz"), rate_hz=100.0)
    assert [r.command.shape for r in records] == [(ROWS, 4)] * 2


def test_a_gap_begins_another_record(short, tmp_path):
    columns = crazyflie_columns(short)
    columns["timestamp"] = columns["timestamp"] + np.where(np.arange(ROWS) >= 20, 500.0, 0.0)
    records = read_records(write_csv(tmp_path / "gap.csv", columns))
    assert [len(r.command) for r in records] == [20, ROWS - 20]


def put(name, row, value):
    """A change of one value of a log."""

    def change(columns):
        columns[name] = columns[name].copy()
        columns[name][row] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("motor.m3"), r"lacks motor_command \(motor\.m1, motor\.m2, motor\.m3, motor\.m4\)$"),
        (
            lambda c: [c.pop(n) for n in ("gyro.x", "stateEstimate.qw")],
            r"angular_velocity \(gyro.*; quaternion \(state",
        ),
        (lambda c: c.pop("timestamp"), r"no column time \(s\) or timestamp \(ms\); give rate_hz"),
        (lambda c: c.update(timestamp=c["timestamp"][::-1]), "time must increase from row to row; after row 1 not"),
        (put("timestamp", 30, 0.0), "time must increase .* after row 30 not"),
        (put("timestamp", 7, np.nan), r"time is not a finite number in row 8 \(in 1 of 50 rows\)"),
        (lambda c: c.update(timestamp=np.cumsum(np.tile([1.0, 30.0], ROWS // 2))), "unevenly spaced"),
        (lambda c: c.update({"stateEstimate.qw": 0.1 * c["stateEstimate.qw"]}), "not of unit length"),
        (lambda c: c.update({"gyro.x": np.full(ROWS, "fast")}), "could not convert"),
        (lambda c: c.update({"gyro.x": np.full(ROWS, np.nan)}), "angular_velocity is not a finite number in row 1"),
        (put("stateEstimate.vz", 9, np.inf), "linear_velocity is not a finite number in row 10"),
        (put("stateEstimate.qx", 4, np.nan), "attitude is not a finite number in row 5"),
        (put("motor.m2", 4, np.nan), "motor_command is not a finite number in row 5"),
        (put("motor.m2", 4, 7e5), r"command must be in 0\.\.1"),
    ],
)
def test_malformed_logs_are_named(short, tmp_path, change, message):
    columns = crazyflie_columns(short)
    change(columns)
    with pytest.raises(ValueError, match=message):
        read_records(write_csv(tmp_path / "log.csv", columns))


def test_files_that_are_no_logs_are_named(tmp_path):
    (tmp_path / "log.npz").write_bytes(b"PK nothing")
    (tmp_path / "log.csv").write_text("time\n")
    (tmp_path / "quote.csv").write_text('"time,gyro.x\n' + "0.01,0.5\n" * 20_000)
    (tmp_path / "ragged.csv").write_text("time,gyro.x\n1,2\n3\n")
    for name, message in (
        ("log.npz", "not a .npz"),
        ("log.csv", "no rows"),
        ("quote.csv", "quote.csv: field larger than field limit"),
        ("ragged.csv", "line 3 has 1 values, the header 2"),
        ("log.bin", "one of .mcap, .npz, .csv"),
    ):
        with pytest.raises(ValueError, match=message):
            read_records(str(tmp_path / name))


def test_the_command_writes_an_airframe_that_training_takes(flown, tmp_path, monkeypatch, capsys):
    log = write_csv(tmp_path / "flight.csv", crazyflie_columns(flown))
    out = tmp_path / "measured_racer.py"
    (tmp_path / "guessed_racer.py").write_text(GUESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    main([f"log={log}", "robot=guessed_racer:ROBOT", f"out={out}", "mass=0.75"])
    printed = "".join(capsys.readouterr())
    assert "mass 0.75 kg (given)" in printed
    assert "warning" not in printed
    assert "task.robot=measured_racer:ROBOT" in printed
    importlib.invalidate_caches()
    measured = make("quad_hover", robot="measured_racer:ROBOT").robot
    assert measured.name == "measured_racer"
    assert measured.inertia == pytest.approx(robot("racer").inertia, rel=0.02)
    assert measured.rise_time == pytest.approx(truth("racer", 0.5)["rise_time"], rel=0.02)
    assert measured.hover_command == pytest.approx(robot("racer").hover_command, rel=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["robot=racer"], "log=... is missing"),
        (["log=a.csv", "robot=recer"], "did you mean 'racer'"),
        (["log=a.csv", "robot=racer"], "a.csv"),
        (["log=a.csv", "robot=racer", "curve=any"], "one of scale, free"),
        (["log=a.csv", "robot=racer", "out=my-drone.py"], "name of a Python module"),
        (["log=a.csv", "robot=racer", "rate_hz=0"], "rate_hz must be positive"),
        (["log=a.csv", "robot=racer", "motors=oneshot"], "motors 'oneshot' is not one of dshot, pwm"),
    ],
)
def test_bad_arguments_give_one_line(given, message, capsys):
    assert cli.call(main, given) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_a_log_slower_than_its_commands_is_warned_of(flown, tmp_path, capsys):
    slow = {name: value[::2] for name, value in flown.items()}
    np.savez(tmp_path / "slow.npz", **slow)
    main([f"log={tmp_path / 'slow.npz'}", "robot=racer"])
    assert "Commands that change between rows?" in capsys.readouterr().err


def hovering(columns):
    """Columns of 18 s at rest."""
    rng, rows = np.random.default_rng(0), 1800
    still = {name: np.full(rows, values[0] if "stateEstimate.q" in name else 0.0) for name, values in columns.items()}
    still |= {"timestamp": 10.0 * np.arange(rows)}
    still |= {f"stateEstimate.q{axis}": np.full(rows, float(axis == "w")) for axis in "wxyz"}
    still |= {f"motor.m{k}": np.full(rows, 30000.0) for k in (1, 2, 3, 4)}
    noisy = [name for name in still if ".v" in name or "gyro" in name]
    return still | {name: 0.002 * rng.normal(size=rows) for name in noisy}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c, "0.5 s of flight are too short"),
        (lambda c: hovering(c), "the flight says nothing about"),
        (lambda c: {**c, "gyro.x": np.full(ROWS, np.nan)}, "not a finite number"),
        (lambda c: {name: v for name, v in c.items() if name != "motor.m1"}, "lacks motor_command"),
    ],
)
def test_the_command_says_in_one_line_why_it_cannot_tell(short, tmp_path, capsys, change, message):
    log = write_csv(tmp_path / "log.csv", change(crazyflie_columns(short)))
    assert cli.call(main, [f"log={log}", "robot=racer"]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1


def test_true_values_lie_in_their_intervals_as_often_as_promised():
    """95 % intervals of nine quantities, drag among them, over four flights."""
    inside = []
    names = ["thrust", "rise_time", "fall_time"] + [f"{k}_{axis}" for k in ("inertia", "drag") for axis in "xyz"]
    for seed in range(1, 5):
        found = identify([record(fly("crazyflie", 20.0, seed=seed))], robot("crazyflie"), delay=DELAY)
        known = truth("crazyflie", found.mean_command)
        inside += [abs(found[name].value - known[name]) <= found[name].margin for name in names]
    assert np.mean(inside) >= 0.85

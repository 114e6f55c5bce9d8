import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rosbags.highlevel import AnyReader

from deploy import cli
from deploy import replay as replay_command
from deploy import run as run_command
from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import OVERRIDE, REASONS, Guard
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.recording.content import CDR, STEP
from deploy.recording.flight_log import FlightLogError, Layout
from deploy.recording.recorder import Recorder
from deploy.safety.envelope import Envelope
from sim.conditions import Conditions
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover, small

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("policy") / "p.onnx", linear_hover())


def fly(policy, path, steps=100, robots=1, envelope=None, on_step=lambda k: None, conditions=None):
    """A simulated flight with its log; the guard and the driver afterwards."""
    driver = Simulated(make("quad_hover", **CALM), robots, conditions=conditions)
    guard = Guard(policy.inputs, policy.outputs, envelope)
    recorder = Recorder(str(path), policy, driver, guard, "onnxruntime")
    read, count = driver.read, iter(range(steps))

    def hooked():
        reading = read()
        return on_step(next(count)) or reading

    driver.read = hooked
    run(policy, driver, guard, steps, log=recorder)
    assert recorder.close() == ""
    return guard, driver


@pytest.mark.parametrize("robots", [1, 3])
def test_everything_that_happened_is_in_the_log(policy, tmp_path, robots):
    _, driver = fly(policy, tmp_path / "f.mcap", robots=robots)
    flight = flight_log.read(str(tmp_path / "f.mcap"))
    assert flight.complete
    assert flight.policy == Path(policy.path).read_bytes()
    assert (flight.about["sha256"], flight.about["robot"]) == (policy.sha256, "crazyflie")
    happened = driver.flight()
    for s in policy.inputs:
        np.testing.assert_array_equal(flight.values(f"signals.{s.name}"), happened[s.name])
    np.testing.assert_array_equal(flight.values("sent.motor_command"), happened["motor_command"])
    np.testing.assert_allclose(flight.time, 0.01 * np.arange(100), atol=1e-6)


def test_rosbags_reads_it(policy, tmp_path):
    _, driver = fly(policy, tmp_path / "f.mcap")
    with AnyReader([tmp_path / "f.mcap"]) as bag:
        counts = {c.topic: (c.msgtype, c.msgcount) for c in bag.connections}
        messages = [(c.topic, bag.deserialize(raw, c.msgtype)) for c, _, raw in bag.messages()]
    assert counts["/robot/step"] == ("sim2metal_msgs/msg/Step", 100)
    assert counts["/tf"] == ("tf2_msgs/msg/TFMessage", 50)
    assert counts["/events"] == ("sim2metal_msgs/msg/Event", 1)
    steps = [message for topic, message in messages if topic == "/robot/step"]
    poses = [message.transforms[0] for topic, message in messages if topic == "/tf"]
    happened = driver.flight()
    for k in (0, 57, 99):
        np.testing.assert_array_equal(steps[k].signals.position, happened["position"][k, 0])
        np.testing.assert_array_equal(steps[k].sent.motor_command, happened["motor_command"][k, 0])
    where, turned = poses[20].transform.translation, poses[20].transform.rotation
    np.testing.assert_allclose([where.x, where.y, where.z], happened["position"][40, 0])
    want = happened["quaternion"][40, 0]
    sign = np.sign(want[0] * turned.w)
    np.testing.assert_allclose(sign * np.array([turned.w, turned.x, turned.y, turned.z]), want, atol=1e-6)


def faulty(k):
    """Stale, NaN, out of sight: the same list for flight and replay, which only sees what was recorded."""
    if 20 <= k < 23:
        return Reading({}, {})
    return None


@pytest.mark.parametrize("kind", ["calm", "faults", "fence", "emergency"])
def test_replay_computes_every_bit_again(policy, tmp_path, kind, capsys):
    envelope = Envelope(fence_low=(-9.0, -9.0, 0.0), fence_high=(9.0, 9.0, 1.2)) if kind == "fence" else None
    guard = None

    def emergency(k):
        if k == 50:
            guard.stop()

    driver = Simulated(make("quad_hover", **CALM), 2, conditions=Conditions(vary=True))
    guard = Guard(policy.inputs, policy.outputs, envelope)
    recorder = Recorder(str(tmp_path / "f.mcap"), policy, driver, guard, "onnxruntime")
    read, count = driver.read, iter(range(100))
    hook = {"faults": faulty, "emergency": emergency}.get(kind, lambda k: None)

    def hooked():
        usual, k = read(), next(count)
        return hook(k) or usual

    driver.read = hooked
    run(policy, driver, guard, 100, log=recorder)
    recorder.close()
    expected = {"faults": "stale signal", "fence": "geofence", "emergency": "emergency stop"}.get(kind)
    assert (expected in guard.interventions()) == (expected is not None)
    assert cli.call(replay_command.main, [f"log={tmp_path / 'f.mcap'}"]) == 0
    assert capsys.readouterr().out.count("equal, every bit") == 2


def test_replay_finds_one_changed_bit(policy, tmp_path, capsys):
    fly(policy, tmp_path / "f.mcap")
    flight = flight_log.read(str(tmp_path / "f.mcap"))
    steps = flight.steps.copy()
    steps["wanted.motor_command"].view(np.uint32)[42, 0, 3] ^= 1
    computed = replay_command.replay(flight, policy, "onnxruntime")
    assert replay_command.differences(flight, computed)["wanted.motor_command"] == (0, 0.0)
    count, largest = replay_command.differences(replace(flight, steps=steps), computed)["wanted.motor_command"]
    assert count == 1
    assert 0.0 < largest < 1e-6


def test_replay_of_another_policy_tells_how_it_differs(policy, tmp_path, capsys):
    fly(policy, tmp_path / "f.mcap")
    other = linear_hover()
    other.network.layers[0][0][:] *= 0.9
    exported(tmp_path / "other.onnx", other)
    assert cli.call(replay_command.main, [f"log={tmp_path / 'f.mcap'}", f"policy={tmp_path / 'other.onnx'}"]) == 0
    assert "differs on" in capsys.readouterr().out
    exported(tmp_path / "small.onnx", small())
    assert cli.call(replay_command.main, [f"log={tmp_path / 'f.mcap'}", f"policy={tmp_path / 'small.onnx'}"]) == 2
    assert "signals that were not recorded: near, goal, rate" in capsys.readouterr().err


def test_both_policies_commands_are_drawn(policy, tmp_path, capsys):
    image = pytest.importorskip("matplotlib.image")
    fly(policy, tmp_path / "f.mcap", steps=40)
    other = linear_hover()
    other.network.layers[0][0][:] *= 0.9
    exported(tmp_path / "other.onnx", other)
    told = [f"log={tmp_path / 'f.mcap'}", f"policy={tmp_path / 'other.onnx'}", f"plot={tmp_path / 'p.png'}"]
    assert cli.call(replay_command.main, told) == 0
    assert f"plot: {tmp_path / 'p.png'}" in capsys.readouterr().out
    drawn = image.imread(tmp_path / "p.png")[..., :3]
    half = drawn.shape[1] // 2
    red = (drawn[..., 0] > drawn[..., 1] + 0.3).reshape(drawn.shape[:2])
    assert red[:, :half].sum() > 100 and red[:, half:].sum() > 100  # what it would do, and the difference
    told[1] = f"plot={tmp_path / 'same.png'}"
    assert cli.call(replay_command.main, [told[0], told[1]]) == 0
    assert cli.call(replay_command.main, [*told[:1], f"plot={tmp_path / 'p.png'}", "robot=1"]) == 2
    assert "robot=1: the flight has 1, from 0" in capsys.readouterr().err
    assert cli.call(replay_command.main, [*told[:1], "plot=p.pdf"]) == 2


def test_the_same_flight_by_generated_c_replays_too(policy, tmp_path, capsys):
    log = tmp_path / "f.mcap"
    assert cli.call(run_command.main, [f"policy={policy.path}", "controller=c", "seconds=1", f"log={log}"]) == 0
    assert cli.call(replay_command.main, [f"log={log}", "controller=c"]) == 0
    assert capsys.readouterr().out.count("equal, every bit") == 2
    assert flight_log.read(str(log)).about["controller"] == "c"


class Overridden(Simulated):
    def read(self):
        reading = super().read()
        by_hand = {"motor_command": np.full((1, 4), 0.6, np.float32)} if 10 <= self._step < 20 else None
        return replace(reading, override=by_hand)


def test_an_override_is_recorded_and_replayed(policy, tmp_path, capsys):
    driver = Overridden(make("quad_hover", **CALM))
    guard = Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(tmp_path / "f.mcap"), policy, driver, guard, "onnxruntime")
    run(policy, driver, guard, 40, log=recorder)
    recorder.close()
    flight = flight_log.read(str(tmp_path / "f.mcap"))
    assert (flight.steps["verdict"][:, 0] == OVERRIDE).nonzero()[0].tolist() == list(range(10, 20))
    np.testing.assert_array_equal(flight.values("sent.motor_command")[10:20], np.float32(0.6))
    assert cli.call(replay_command.main, [f"log={tmp_path / 'f.mcap'}"]) == 0
    assert capsys.readouterr().out.count("equal, every bit") == 2


def started(policy, log):
    keys = [f"policy={policy.path}", "real_time=true", "seconds=60", f"log={log}"]
    command = [sys.executable, "-m", "deploy.run", *keys]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60.0
    while not log.exists() or log.stat().st_size < 60_000:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@pytest.mark.timed
def test_the_log_of_a_killed_controller_is_whole(policy, tmp_path):
    log = tmp_path / "f.mcap"
    process = started(policy, log)
    process.kill()
    process.communicate()
    until = time.monotonic() + 20.0
    while not (flight := flight_log.read(str(log))).complete:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(flight.steps) > 50
    computed = replay_command.replay(flight, policy, "onnxruntime")
    assert [count for count, _ in replay_command.differences(flight, computed).values()] == [0, 0]


@pytest.mark.timed
def test_sigterm_ends_the_flight_and_finishes_the_log(policy, tmp_path):
    log = tmp_path / "f.mcap"
    process = started(policy, log)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120.0)
    assert process.returncode == 0
    assert "interrupted" in out
    assert flight_log.read(str(log)).complete


def test_without_its_writer_the_controller_flies_on(policy, tmp_path, capfd):
    log, killed = tmp_path / "f.mcap", []
    driver = Simulated(make("quad_hover", **CALM))
    guard = Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(log), policy, driver, guard, "onnxruntime")

    def on_read(read=driver.read):
        if driver._step == 200:
            until = time.monotonic() + 20.0
            while not len(flight_log.read(str(log)).steps):
                assert time.monotonic() < until
                time.sleep(0.01)
            recorder._writer.kill()
            killed.append(True)
        return read()

    driver.read = on_read
    record = run(policy, driver, guard, 500, log=recorder)
    assert killed
    assert record.steps == 500
    assert recorder.close() != ""
    flight = flight_log.read(str(log))
    assert not flight.complete
    assert 0 < len(flight.steps) <= 200


def test_a_full_disk_costs_the_end_of_the_log_but_not_the_flight(policy, tmp_path, capfd):
    log = tmp_path / "f.mcap"
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, usual[1]))
    try:
        with pytest.raises(SystemExit) as ended:
            cli.call(run_command.main, [f"policy={policy.path}", "seconds=20", f"log={log}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert ended.value.code == 1
    shown = capfd.readouterr()
    assert "2000 control steps" in shown.out
    at_once, at_the_end = shown.err.splitlines()
    assert re.fullmatch(
        rf"warning: {log}: nothing is recorded from step \d+ on: File too large; the flight goes on", at_once
    )
    assert at_the_end == f"warning: {log} is incomplete: File too large"
    flight = flight_log.read(str(log))
    assert not flight.complete
    assert 0 < len(flight.steps) < 2000


def test_a_log_that_cannot_be_written_is_known_before_the_flight(policy, tmp_path, capsys):
    for path, reason in (
        (tmp_path / "there.mcap", "the file exists; a log is not overwritten"),
        (Path(policy.path) / "f.mcap", "File exists"),
    ):
        (tmp_path / "there.mcap").touch()
        assert cli.call(run_command.main, [f"policy={policy.path}", f"log={path}"]) == 2
        assert capsys.readouterr().err == f"error: {path}: {reason}\n"
    assert cli.call(run_command.main, [f"policy={policy.path}", "log=flight.csv"]) == 2
    assert "ends in .mcap" in capsys.readouterr().err


def test_a_policy_that_changed_on_disk_is_not_flown(policy, tmp_path):
    copy = tmp_path / "p.onnx"
    copy.write_bytes(Path(policy.path).read_bytes())
    loaded = PolicyFile.load(copy)
    other = linear_hover()
    other.network.layers[0][0][:] *= 0.9
    exported(copy, other)
    driver = Simulated(make("quad_hover", **CALM))
    with pytest.raises(FlightLogError, match="changed after it was loaded"):
        Recorder(str(tmp_path / "f.mcap"), loaded, driver, Guard(loaded.inputs, loaded.outputs), "onnxruntime")


@pytest.fixture(scope="module")
def recorded(policy, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "f.mcap"
    fly(policy, path)
    return path.read_bytes()


@settings(max_examples=30)
@given(share=st.floats(0.0, 0.999))
def test_a_log_that_was_cut_short_is_read_as_far_as_it_goes(recorded, tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "f.mcap"
    path.write_bytes(recorded[: int(share * len(recorded))])
    try:
        flight = flight_log.read(str(path))
    except FlightLogError as error:
        assert "not a" in str(error)
    else:
        assert not flight.complete
        assert len(flight.steps) <= 100


def test_what_is_no_log_is_refused(tmp_path):
    path = tmp_path / "f.mcap"
    path.write_bytes(b"not a log at all")
    with pytest.raises(FlightLogError, match="not an MCAP file"):
        flight_log.read(str(path))
    with pytest.raises(FlightLogError, match="No such file"):
        flight_log.read(str(tmp_path / "none.mcap"))


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple)
KINDS = st.sampled_from(["f4", "u1", "i8"])


@given(st.lists(st.tuples(SHAPES, KINDS), min_size=1, max_size=5))
def test_any_signals_lie_in_memory_as_cdr_wants_them(signals):
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    group = tuple(Signal(f"s{k}", shape) for k, (shape, _) in enumerate(signals))
    types = {f"s{k}": kind for k, (_, kind) in enumerate(signals)}
    layout = Layout(group, types, (Signal("motor", (3,), low=0.0, high=1.0),))
    rng = np.random.default_rng(0)
    record = np.frombuffer(rng.integers(0, 255, layout.dtype.itemsize, np.uint8).tobytes(), layout.dtype)[0]
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(layout.definition(), STEP))
    body = CDR + record.tobytes()[: layout.message_size]
    message = store.deserialize_cdr(body, STEP)
    for name, _, _ in layout.fields:
        value: Any = message
        for part in name.split("."):
            value = getattr(value, part)
        np.testing.assert_array_equal(value, record[name])
    assert len(store.serialize_cdr(message, STEP)) == len(body)


def test_reasons_are_named_in_the_log(policy, tmp_path):
    fly(policy, tmp_path / "f.mcap")
    assert tuple(flight_log.read(str(tmp_path / "f.mcap")).about["reasons"]) == REASONS

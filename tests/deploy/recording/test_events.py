"""How a flight ended is in its log, and the log is never a reason for the end."""

import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy import cli
from deploy import replay as replay_command
from deploy.drivers.simulated import Simulated
from deploy.guard import Envelope, Guard
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.recording.flight_log import EVENTS, FlightLogError
from deploy.recording.recorder import NoRecorder, Recorder, free_path
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> PolicyFile:
    return exported(tmp_path_factory.mktemp("policy") / "p.onnx", linear_hover())


class Hooked(Simulated):
    """Calls `hook` with the reading of each step, and flies on with what it returns."""

    real_time = False
    hook = staticmethod(lambda k, reading: reading)

    def read(self):
        return self.hook(self._step, super().read())


def machine(policy, envelope=None, robots=1):
    return Hooked(make("quad_hover", **CALM), robots), Guard(policy.inputs, policy.outputs, envelope)


def ready(policy, path, **settings):
    driver, guard = machine(policy, **settings)
    return driver, guard, Recorder(str(path), policy, driver, guard, "onnxruntime")


def flown(policy, path, steps=50, hook=None, **settings):
    """The log of a short flight, and how many steps it took."""
    driver, guard, recorder = ready(policy, path, **settings)
    driver.hook = hook or driver.hook
    try:
        record = run(policy, driver, guard, steps, log=recorder)
    finally:
        trouble = recorder.close()
    assert trouble == ""
    return flight_log.read(str(path)), record


def last(flight):
    return flight.events[-1].kind, flight.events[-1].text, flight.events[-1].who


def test_events_are_read_as_they_were_told(policy, tmp_path, capsys):
    path = tmp_path / "f.mcap"
    driver, guard, recorder = ready(policy, path)
    began = time.time_ns()
    for kind in EVENTS[:-1]:
        recorder.event(kind, f"{kind}: ä\0\x1b[31m\n", "the supervisor")
    recorder.event("of no kind that is known", "a" * 5000)
    run(policy, driver, guard, 20, log=recorder)
    assert recorder.close("landed", "a hand") == ""
    flight = flight_log.read(str(path))
    assert [e.kind for e in flight.events] == [*EVENTS[:-1], "diagnostic", "end"]
    assert flight.events[0].text == "armed: ä?\x1b[31m\n"
    assert flight.events[0].who == "the supervisor"
    assert abs(flight.events[0].stamp - began) < 10**9
    assert len(flight.events[-2].text) <= 1000
    assert last(flight) == ("end", "landed", "a hand")
    assert cli.call(replay_command.main, [f"log={path}"]) == 0
    shown = capsys.readouterr().out
    assert "armed: armed: ä?\\x1b[31m\\n (the supervisor)\n" in shown
    assert "the end: landed (a hand)\n" in shown
    assert "\x1b" not in shown


def test_the_end_that_nobody_told_is_derived(policy, tmp_path):
    flight, _ = flown(policy, tmp_path / "over.mcap")
    assert last(flight) == ("end", "the flight was over", "the controller")
    low = Envelope(fence_low=(-9.0, -9.0, 5.0), fence_high=(9.0, 9.0, 9.0))
    flight, _ = flown(policy, tmp_path / "fence.mcap", envelope=low)
    assert last(flight) == ("end", "geofence", "guard")

    def broken(k, reading):
        raise RuntimeError("the motor caught fire")

    with pytest.raises(RuntimeError, match="caught fire"):
        flown(policy, tmp_path / "broken.mcap", hook=broken)
    flight = flight_log.read(str(tmp_path / "broken.mcap"))
    assert last(flight) == ("end", "RuntimeError: the motor caught fire", "the controller")
    assert flight_log.ending(flight, flight.events) == "the end: RuntimeError: the motor caught fire (the controller)"


def test_without_an_end_the_log_says_so(policy, tmp_path):
    path = tmp_path / "f.mcap"
    driver, guard, recorder = ready(policy, path)
    run(policy, driver, guard, 20, log=recorder)
    recorder._line.close()  # all that the writer sees of the controller's death
    recorder._writer.wait(10)
    flight = flight_log.read(str(path))
    assert flight.complete
    assert len(flight.steps) == 20
    want = "the log has no end: the controller died, or the machine lost power"
    assert flight_log.ending(flight, flight.events) == want
    old = replace(flight, about={**flight.about, "ends": False})
    assert flight_log.ending(old, old.events) == ""


def test_events_come_from_any_thread_while_the_loop_flies(policy, tmp_path):
    path = tmp_path / "f.mcap"
    driver, guard, recorder = ready(policy, path)

    def tell(who):
        for k in range(200):
            recorder.event("diagnostic", str(k), who)

    threads = [threading.Thread(target=tell, args=(str(k),)) for k in range(4)]
    for thread in threads:
        thread.start()
    run(policy, driver, guard, 2000, log=recorder)
    for thread in threads:
        thread.join()
    assert recorder.close() == ""
    flight = flight_log.read(str(path))
    assert len(flight.steps) == 2000
    for who in "0123":
        assert [e.text for e in flight.events if e.who == who] == [str(k) for k in range(200)]
    computed = replay_command.replay(flight, policy, "onnxruntime")
    assert [count for count, _ in replay_command.differences(flight, computed).values()] == [0, 0]


@pytest.mark.timed
@pytest.mark.parametrize("real_time", [True, False])
def test_a_writer_that_hangs_does_not_hold_up_the_end(policy, tmp_path, real_time):
    driver, guard = machine(policy)
    driver.real_time = real_time
    recorder = Recorder(str(tmp_path / "f.mcap"), policy, driver, guard, "onnxruntime")
    os.kill(recorder._writer.pid, signal.SIGSTOP)
    driver.real_time = False
    run(policy, driver, guard, 800, log=recorder)
    began = time.monotonic()
    assert "within 0.5 s, and was killed" in recorder.close(patience=0.5 if real_time else 0.05)
    assert time.monotonic() - began < 10.0
    assert recorder._writer.poll() == -signal.SIGKILL


@pytest.mark.timed
def test_a_writer_that_does_not_start_is_waited_for_in_vain_for_so_long(policy, tmp_path, monkeypatch):
    fifo = tmp_path / "f.mcap"
    os.mkfifo(tmp_path / "stuck")
    driver, guard = machine(policy)
    monkeypatch.setattr("deploy.recording.recorder.sys.executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!/bin/sh\nread line < {tmp_path / 'stuck'}\n")
    (tmp_path / "python").chmod(0o755)
    began = time.monotonic()
    with pytest.raises(FlightLogError, match=r"has not opened it within 0\.3 s"):
        Recorder(str(fifo), policy, driver, guard, "onnxruntime", start=0.3)
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("clock", [2_208_988_800.0, -86_400.0, 1e10], ids=["2040", "1969", "2286"])
def test_an_impossible_clock_is_recorded_from_zero(policy, tmp_path, monkeypatch, clock):
    true = time.monotonic_ns()
    monkeypatch.setattr(time, "time_ns", lambda: int(clock * 1e9) + time.monotonic_ns() - true)
    flight, record = flown(policy, tmp_path / "f.mcap")
    assert (record.steps, len(flight.steps)) == (50, 50)
    np.testing.assert_allclose(flight.time, 0.01 * np.arange(50), atol=1e-6)
    assert flight.stamp[0] < 10**9
    assert f"the clock says {clock:.0f} s since 1970" in flight.events[0].text


def test_a_clock_that_becomes_impossible_in_flight_ends_nothing(policy, tmp_path, monkeypatch):
    driver, guard = machine(policy)
    driver.real_time = True
    recorder = Recorder(str(tmp_path / "f.mcap"), policy, driver, guard, "onnxruntime")
    driver.real_time = False
    times = itertools.chain([5 * 10**18, -(10**18)], itertools.repeat(10**18))  # 2128, 1938, 2001
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    assert run(policy, driver, guard, 20, log=recorder).steps == 20
    assert recorder.close() == ""
    stamps = flight_log.read(str(tmp_path / "f.mcap")).stamp.tolist()
    assert stamps == [(2**31 - 1) * 10**9, 0, *[10**18] * 18]


def test_what_cannot_be_recorded_is_left_out_and_told(policy, tmp_path):
    driver, guard, recorder = ready(policy, tmp_path / "f.mcap")

    def step(**changed):
        reading = driver.read()
        sent = {"motor_command": np.full((1, 4), 0.5, np.float32)}
        signals, age = {**reading.signals, **changed.get("signals", {})}, {**reading.age, **changed.get("age", {})}
        wanted = changed.get("wanted", sent)
        recorder.step(0.0, 0.0, replace(reading, signals=signals, age=age), wanted, sent, changed.get("guard", guard))

    with driver:
        guard.reset(1)
        step()
        step(signals={"position": np.zeros((7, 5))})
        step(signals={"position": np.array([[object()] * 3])}, wanted={})
        step(signals={"position": np.full((1, 3), 1e39)}, age={"position": "yesterday"})
        step(signals={"position": np.full((1, 3), 1j)}, guard=None)
        step(age={"position": 1.8e9})
    assert recorder.close() == ""
    flight = flight_log.read(str(tmp_path / "f.mcap"))
    position = flight.values("signals.position")[:, 0, 0]
    assert len(flight.steps) == 6
    assert np.isfinite(position[[0, 5]]).all()
    assert np.isnan(position[[1, 2]]).all()
    assert position[3] == np.inf
    assert np.isnan(flight.values("wanted.motor_command")[2]).all()
    assert np.isinf(flight.values("ages.position")[3]).all()
    assert flight.values("ages.position")[5, 0] <= 3600.0
    told = {event.text.partition(" ")[0] for event in flight.events}
    assert {"signals.position", "ages.position", "wanted.motor_command", "verdict", "reason"} <= told


def test_names_of_logs_are_free_and_plain(policy, tmp_path):
    assert free_path(tmp_path, "/swarm/cf1 2026") == tmp_path / "swarm_cf1_2026.mcap"
    assert free_path(tmp_path, "../../etc\0") == tmp_path / "etc.mcap"
    assert free_path(tmp_path, "..") == tmp_path / "flight.mcap"
    (tmp_path / "a.mcap").touch()
    (tmp_path / "a-2.mcap").touch()
    assert free_path(tmp_path, "a") == tmp_path / "a-3.mcap"


def test_two_robots_of_one_second_both_have_a_log(policy, tmp_path, monkeypatch):
    driver, guard = machine(policy)
    taken = iter([tmp_path / "a.mcap", tmp_path / "a.mcap"])
    real = free_path
    monkeypatch.setattr("deploy.recording.recorder.free_path", lambda *args: next(taken, None) or real(*args))
    warned: list[str] = []
    both = [Recorder.open_or_warn(tmp_path, "a", policy, driver, guard, "onnxruntime", warned.append) for _ in "ab"]
    assert [recorder.close() for recorder in both] == ["", ""]
    assert [Path(recorder.path).name for recorder in both] == ["a.mcap", "a-2.mcap"]
    assert warned == []


def test_without_a_log_the_flight_goes_on(policy, tmp_path):
    (tmp_path / "file").touch()
    driver, guard = machine(policy)
    warned: list[str] = []
    log = Recorder.open_or_warn(tmp_path / "file", "a", policy, driver, guard, "onnxruntime", warned.append)
    assert isinstance(log, NoRecorder)
    assert len(warned) == 1 and warned[0].startswith("this flight is not recorded: ") and "\n" not in warned[0]
    log.event("armed", "by hand")
    assert run(policy, driver, guard, 5, log=log).steps == 5
    assert log.close() == ""

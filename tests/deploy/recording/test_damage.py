"""A damaged log is read around its damage, and a stranger's log opens, imports and runs nothing."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader

from deploy import cli
from deploy import replay as replay_command
from deploy.drivers.simulated import Simulated
from deploy.guard import Guard
from deploy.loop import run
from deploy.recording import flight_log
from deploy.recording.flight_log import FlightLogError
from deploy.recording.recorder import Recorder
from deploy.recording.records import ATTACHMENT, CHUNK, METADATA
from policies.identify import READERS
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover
from tests.fuzz.logs import file_of, parts_of, with_about

ROOT = Path(__file__).parents[3]
STEPS = 200


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("policy") / "p.onnx", linear_hover())


@pytest.fixture(scope="module")
def recorded(policy, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "f.mcap"
    driver, guard = Simulated(make("quad_hover", **CALM), 2), Guard(policy.inputs, policy.outputs)
    recorder = Recorder(str(path), policy, driver, guard, "onnxruntime")
    run(policy, driver, guard, STEPS, log=recorder)
    assert recorder.close() == ""
    return path


def place(log, kind, count=0):
    """Where the so-manieth record of a kind lies: (its first byte, its last)."""
    at = 8
    for each, data in parts_of(log):
        end = at + 9 + len(data)
        if each == kind:
            if count == 0:
                return at, end - 1
            count -= 1
        at = end
    raise AssertionError(f"no record of kind {kind}")


def flipped(log, at):
    made = bytearray(log)
    made[at] ^= 0x10
    return bytes(made)


def replayed(*keys):
    return cli.call(replay_command.main, [str(key) for key in keys])


def test_a_flipped_byte_costs_its_chunk_only(recorded, tmp_path, capsys):
    log, whole = recorded.read_bytes(), flight_log.read(str(recorded))
    assert (whole.gaps, whole.damage) == ([], 0)
    first, last = place(log, CHUNK, 2)
    path = tmp_path / "f.mcap"
    for at in (first, first + 5, first + 25, first + 31, first + 35, first + 40, (first + last) // 2, last):
        path.write_bytes(flipped(log, at))
        flight = flight_log.read(str(path))
        ((index, lost),) = flight.gaps
        assert flight.complete and flight.damage >= 1
        assert len(flight.steps) + lost == STEPS and 0 < lost < 40
        kept = np.r_[0:index, index + lost : STEPS]
        np.testing.assert_array_equal(flight.steps, whole.steps[kept])
        assert flight.events == whole.events
    assert replayed(f"log={path}") == 0
    shown = capsys.readouterr().out
    assert (
        f"{lost} control steps lost between {whole.time[index - 1]:.3f} s and {whole.time[index + lost]:.3f} s" in shown
    )
    assert f"compared are the first {index} control steps: what policy" in shown
    assert shown.count("equal, every bit") == 2


def test_what_is_identified_is_the_longest_stretch_without_a_gap(recorded, tmp_path):
    path = tmp_path / "f.mcap"
    first, last = place(recorded.read_bytes(), CHUNK, 1)
    path.write_bytes(flipped(recorded.read_bytes(), (first + last) // 2))
    flight = flight_log.read(str(path))
    ((index, _),) = flight.gaps
    values = READERS[".mcap"](str(path))
    np.testing.assert_array_equal(values["position"], flight.values("signals.position")[index:])
    np.testing.assert_allclose(np.diff(values["time"]), 0.01, atol=1e-6)


def test_a_flipped_byte_anywhere_costs_little(recorded, tmp_path):
    log, path = recorded.read_bytes(), tmp_path / "f.mcap"
    rng, kept = np.random.default_rng(3), []
    for at in [0, 7, *rng.integers(0, len(log), 60).tolist(), len(log) - 1]:
        path.write_bytes(flipped(log, at))
        kept.append(len(flight_log.read(str(path)).steps))
    assert min(kept) > STEPS - 40


def test_what_it_is_about_is_in_two_places(recorded, tmp_path, capsys):
    log, path = recorded.read_bytes(), tmp_path / "f.mcap"
    first, last = place(log, METADATA)
    path.write_bytes(flipped(log, (first + last) // 2))
    assert flight_log.read(str(path)).about == flight_log.read(str(recorded)).about
    also, end = place(log, METADATA, 1)
    path.write_bytes(flipped(flipped(log, (first + last) // 2), (also + end) // 2))
    with pytest.raises(FlightLogError, match="what the log says about itself is damaged"):
        flight_log.read(str(path))


def test_a_damaged_policy_has_to_be_named(policy, recorded, tmp_path, capsys):
    log, path = recorded.read_bytes(), tmp_path / "f.mcap"
    first, last = place(log, ATTACHMENT)
    path.write_bytes(flipped(log, (first + last) // 2))
    assert len(flight_log.read(str(path)).steps) == STEPS
    assert replayed(f"log={path}") == 2
    assert "the policy in it is lost; policy=FILE names it" in capsys.readouterr().err
    assert replayed(f"log={path}", f"policy={policy.path}") == 0


def test_when_the_beginning_is_lost_nothing_is_compared(recorded, tmp_path, capsys):
    log, path = recorded.read_bytes(), tmp_path / "f.mcap"
    first, last = place(log, CHUNK)
    path.write_bytes(flipped(log, (first + last) // 2))
    flight = flight_log.read(str(path))
    assert flight.gaps[0][0] == 0 and len(flight.steps) > STEPS - 40
    assert replayed(f"log={path}") == 2
    shown = capsys.readouterr()
    assert "control steps lost before the first one here" in shown.out
    assert shown.err == f"error: {path}: there is nothing to compare\n"


@pytest.mark.parametrize("damage", ["cut", "flipped", "cut and flipped", "no end"])
def test_a_repaired_log_is_whole(recorded, tmp_path, damage, capsys):
    log, path, out = recorded.read_bytes(), tmp_path / "f.mcap", tmp_path / "out.mcap"
    first, last = place(log, CHUNK, 1)
    made = flipped(log, (first + last) // 2) if "flipped" in damage else log
    cut = place(log, CHUNK, 4)[0] + 100 if "cut" in damage else len(log) - (20 if damage == "no end" else 0)
    path.write_bytes(made[:cut])
    assert replayed(f"log={path}", f"repair={out}") == 0
    told, found, saved = capsys.readouterr().out, flight_log.read(str(path)), flight_log.read(str(out))
    assert saved.complete and saved.damage == 0 and saved.gaps == found.gaps
    np.testing.assert_array_equal(saved.steps, found.steps)
    assert (saved.about, saved.policy, saved.events) == (found.about, found.policy, found.events)
    count = int(re.search(r"(\d+) messages", told)[1])
    with AnyReader([out]) as bag:
        messages = [bag.deserialize(raw, c.msgtype) for c, _, raw in bag.messages()]
    with out.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        read = list(reader.iter_messages())
        assert reader.get_summary().statistics.message_count == count
    assert len(messages) == len(read) == count
    assert replayed(f"log={out}") == 0
    assert replayed(f"log={path}", f"repair={out}") == 2
    assert "File exists" in capsys.readouterr().err


INJECTED = "*" * 2 + '// */ __attribute__((constructor)) static void ran(void) { system("touch MARKER"); } /*'


def test_a_strangers_log_chooses_neither_controller_nor_files(recorded, tmp_path):
    """The attack of the findings: a log that names the C compiler, and text that ended a comment in what it made."""
    about = dict(flight_log.read(str(recorded)).about)
    text = INJECTED.replace("MARKER", str(tmp_path / "marker"))
    (tmp_path / "evilmod.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\nclass Task: pass\n")
    evil = {
        "controller": "c",
        "policy": "/dev/zero",
        "driver": "evilmod:Task",
        "task": "evilmod:Task",
        "robot": "evilmod:Task",
        "watched": [{**signal, "unit": text, "frame": text} for signal in about["watched"]],
    }
    path = tmp_path / "evil.mcap"
    for controller in ("c", "emulated", "/dev/ttyACM0", "evilmod:Task"):
        path.write_bytes(with_about(recorded.read_bytes(), {**about, **evil, "controller": controller}))
        command = [sys.executable, "-m", "deploy.replay", f"log={path}"]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("equal, every bit") == 2
    assert not (tmp_path / "marker").exists()
    assert replayed(f"log={path}", "controller=/dev/ttyACM0") == 2


def test_what_a_log_says_is_not_for_the_terminal(recorded, tmp_path, capsys):
    about = dict(flight_log.read(str(recorded)).about)
    path = tmp_path / "f.mcap"
    path.write_bytes(with_about(recorded.read_bytes(), {**about, "policy": "\x1b[2J\u202e\n", "robot": "\x9b31m"}))
    assert replayed(f"log={path}") == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown and "\u202e" not in shown
    assert "\\x1b[2J\\u202e\\n" in shown


def test_an_empty_shell_of_a_log_is_refused(recorded, tmp_path):
    path = tmp_path / "f.mcap"
    path.write_bytes(file_of([part for part in parts_of(recorded.read_bytes()) if part[0] != METADATA]))
    with pytest.raises(FlightLogError, match="not a flight log of sim2metal"):
        flight_log.read(str(path))
    with pytest.raises(FlightLogError, match="is not a file"):
        flight_log.read("/dev/zero")
    with pytest.raises(FlightLogError, match="holds more than 0 MB"):
        flight_log.read(str(recorded), memory=0)

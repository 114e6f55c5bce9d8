import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deploy import cli, inspect, sign
from deploy import run as run_command
from deploy.drivers.simulated import Simulated
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.trust import signature
from policies.models.export import update_evaluation
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover, resealed


@pytest.fixture
def path(tmp_path):
    exported(tmp_path / "p.onnx", linear_hover(make("quad_hover", **CALM)), training={"seed": 11, "commit": "abc"})
    return str(tmp_path / "p.onnx")


def test_inspect_shows_contract_provenance_and_scores(path, capsys):
    update_evaluation(path, {"success": 0.975})
    assert cli.call(inspect.main, [f"policy={path}"]) == 0
    shown = capsys.readouterr().out
    for expected in ("position", "rad/s", "body->world", "motor_command", "0 .. 1", "history", "sha256", "100 Hz"):
        assert expected in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["seed", "11"] in rows
    assert ["commit", '"abc"'] in rows
    assert ["success", "0.975"] in rows
    assert "consistent: 16 closed-loop test vectors agree" in shown


def test_inspect_refuses_a_damaged_file(path, capsys):
    content = bytearray(Path(path).read_bytes())
    content[-10] ^= 1
    Path(path).write_bytes(content)
    assert cli.call(inspect.main, [f"policy={path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: damaged")
    assert error.count("\n") == 1


def test_run_flies_only_what_is_signed_if_asked_to(path, tmp_path, capsys):
    assert cli.call(run_command.main, [f"policy={path}", "require_signature=true"]) == 2
    assert "p.onnx: it is not signed, and a signature is required" in capsys.readouterr().err
    signature.new_key(tmp_path / "anna")
    content = sign.sign(Path(path).read_bytes(), path, tmp_path / "anna")
    Path(path).write_bytes(content)
    given = [f"policy={path}", "require_signature=true", f"trust={tmp_path}", "seconds=0.1"]
    assert cli.call(run_command.main, given) == 0
    assert capsys.readouterr().out.endswith("policy quad_hover: signed by anna\n")


def test_run_flies_and_reports(path, capsys):
    assert cli.call(run_command.main, [f"policy={path}", "episodes=30", "seed=2", "delay=0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("limits of crazyflie (listed with the robot): body rate 35 rad/s")
    assert (
        "\nrules that are off: geofence, tilt, speed, battery, slew\n500 control steps at 100 Hz, 30 robot(s)" in shown
    )
    assert float(next(line for line in shown.splitlines() if line.startswith("success")).split()[1]) > 0.8


def test_run_keeps_to_its_envelope(path, capsys):
    assert cli.call(run_command.main, [f"policy={path}", "seconds=0.5", "fence=0.5"]) == 0
    shown = capsys.readouterr().out  # the targets are at least 1 m high
    assert "guard: stopped 1 robot(s): geofence" in shown
    assert "\n50 control steps" in shown


def test_a_policy_file_cannot_call_full_throttle_safe(path, tmp_path, capsys):
    lax = {"safe": {"motor_command": [1, 1, 1, 1]}, "hold_steps": 10**9, "max_body_rate": None, "longest_pause": None}
    wild = resealed(PolicyFile.load(path), tmp_path / "wild.onnx", envelope=lax)
    assert cli.call(run_command.main, [f"policy={wild}", "seconds=0.5"]) == 2
    shown = capsys.readouterr()
    assert "calls motor_command (1, 1, 1, 1) safe; crazyflie (listed with the robot) permits" in shown.err
    assert "control steps" not in shown.out


def test_the_policy_file_brings_its_own_envelope(path, tmp_path, capsys):
    strict = resealed(PolicyFile.load(path), tmp_path / "strict.onnx", envelope={"max_speed": 0.01})
    assert cli.call(run_command.main, [f"policy={strict}", "seconds=0.5"]) == 0
    assert "guard: stopped 1 robot(s): speed" in capsys.readouterr().out
    assert cli.call(run_command.main, [f"policy={strict}", "seconds=0.5", "max_speed=inf"]) == 0
    assert "stopped" not in capsys.readouterr().out
    assert cli.call(inspect.main, [f"policy={strict}"]) == 0
    assert ["max_speed", "0.01"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("envelope", [{"max_sped": 3.0}, {"max_speed": -3.0}, {"max_speed": "fast"}, [3.0]])
def test_a_malformed_envelope_is_refused(path, tmp_path, envelope):
    with pytest.raises(PolicyFileError, match="metadata is malformed"):
        PolicyFile.load(resealed(PolicyFile.load(path), tmp_path / "p.onnx", envelope=envelope))


@pytest.mark.timed
def test_run_in_real_time_counts_deadlines(path, capsys):
    assert cli.call(run_command.main, [f"policy={path}", "seconds=0.3", "real_time=true"]) == 0
    assert "deadlines missed: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["driver=simulatd"], "unknown driver 'simulatd' (did you mean 'simulated'?); choices: crazyflie, "),
        (["engin=flight"], "unknown key 'engin' (did you mean 'engine'?)"),
        (["engine=fligt"], "unknown engine 'fligt' (did you mean 'flight'?); choices: "),
        (["robot=crazyflie_decks"], "is for the robot 'crazyflie', not 'crazyflie_decks'"),
        (["episodes=many"], "'many' is not a whole number"),
        (["max_tilt=-5"], "max_tilt must be positive, got -5.0"),
        (["seconds=1e300"], "seconds must be positive and at most 1e+06, got 1e+300"),
        (["seconds=-1"], "seconds must be positive and at most 1e+06, got -1"),
    ],
)
def test_mistakes_get_one_short_line(path, capsys, argv, message):
    assert cli.call(run_command.main, [f"policy={path}", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [run_command.main, inspect.main])
def test_help_lists_the_keys(command, capsys):
    assert cli.call(command, ["--help"]) == 0
    assert "policy" in capsys.readouterr().out


def test_a_policy_is_required(capsys):
    assert cli.call(run_command.main, []) == 2
    assert "policy=... is missing" in capsys.readouterr().err


def test_tables_align():
    assert inspect.table([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "---  --", "ccc  d"]
    assert np.diff([len(line.rstrip()) for line in inspect.table([["x"], ["y"]])]).tolist() == [0, 0]


class Timer:
    """In the place of threading.Timer: goes off when it is told to."""

    made: list["Timer"] = []

    def __init__(self, seconds, call, arguments, named):
        self.seconds, self.call, self.state = seconds, lambda: call(*arguments, **named), "made"
        self.made.append(self)

    def start(self):
        self.state = "started"

    def cancel(self):
        self.state = "cancelled"


def test_a_long_wait_for_the_first_step_is_explained(monkeypatch, capsys):
    """As where kernels are compiled. Of a robot that is not simulated nothing is said: none are."""
    monkeypatch.setattr(Timer, "made", [])
    monkeypatch.setattr(run_command.threading, "Timer", Timer)
    written: list[str] = []
    driver = SimpleNamespace(watch=None, write=written.append)
    with run_command.explained(driver):
        (timer,) = Timer.made
        assert (timer.seconds, timer.state) == (3.0, "started")
        timer.call()
        driver.write("first")
        assert timer.state == "cancelled" and written == ["first"]
        driver.write("second")
    assert capsys.readouterr().err.startswith("getting ready; it may be compiling kernels") and len(written) == 2
    with pytest.raises(OSError), run_command.explained(driver):
        raise OSError
    assert Timer.made[1].state == "cancelled" and driver.write == written.append
    with run_command.explained(SimpleNamespace(write=written.append)):
        assert len(Timer.made) == 2


def test_a_flight_whose_first_step_takes_long_says_so(path, capsys, monkeypatch):
    monkeypatch.setattr(run_command, "PATIENCE_S", 0.01)
    write = Simulated.write
    monkeypatch.setattr(Simulated, "write", lambda driver, commands: (time.sleep(0.02), write(driver, commands)))
    run_command.main([f"policy={path}", "driver=simulated", "seconds=0.1"])
    said = capsys.readouterr()
    assert said.err.count("getting ready; it may be compiling kernels") == 1 and "10 control steps" in said.out

"""The policy that is shipped: it flies what it promises, and its training command makes another one as good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.drivers.simulated import Simulated
from deploy.loop import HandshakeError, handshake
from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from policies.runner.report import wilson
from sim import tasks
from sim.conditions import Conditions
from sim.robots import ROBOTS, robot
from sim.robots.random_quadrotor import RandomQuadrotor

AIRFRAMES = [name for name in ROBOTS if not isinstance(robot(name), RandomQuadrotor)]


@pytest.fixture(scope="module")
def shipped() -> PolicyFile:
    return PolicyFile.load("quad_any")


def success(policy: PolicyFile, vehicles: str, episodes: int, engine: str = "flight", **conditions: float) -> float:
    task = tasks.make("quad_any", path="hold", robot=vehicles)
    return evaluate(
        policy, task=task, engine=engine, episodes=episodes, seed=11, conditions=Conditions(**conditions)
    ).success


def test_it_is_small_and_says_how_it_was_made(shipped: PolicyFile) -> None:
    training = shipped.metadata["training"]
    assert shipped.robot == "any"
    assert "task=quad_any" in training["argv"] and training["commit"] and training["seed"] == 0
    hidden = training["config"]["algorithm_config"]["hidden"]
    encoder, state = hidden
    inputs, actions = 22, 4
    weights = (inputs + 1) * encoder + 3 * (encoder + 1) * state + 3 * (state + 1) * state + (state + 1) * actions
    assert weights <= 2100


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02])
def test_it_flies_random_vehicles(shipped: PolicyFile, delay: float) -> None:
    assert success(shipped, "any_log_uniform", 300, delay=delay) > 0.95
    assert success(shipped, "any_published", 300, delay=delay) > 0.95


@pytest.mark.parametrize("name", AIRFRAMES)
def test_it_flies_every_airframe(shipped: PolicyFile, name: str) -> None:
    assert success(shipped, name, 200) > 0.95


@pytest.mark.parametrize("engine", ["mujoco", "bullet"])
def test_it_flies_in_other_engines(shipped: PolicyFile, engine: str) -> None:
    assert success(shipped, "any_published", 40, engine) > 0.95
    assert success(shipped, "racer", 20, engine) > 0.95


def test_it_fits_every_quadrotor_and_nothing_that_lacks_its_signals(shipped: PolicyFile) -> None:
    for name in AIRFRAMES:
        handshake(shipped, Simulated(tasks.make("quad_any", robot=name)))
    with pytest.raises(HandshakeError, match="'target_velocity': the driver has none"):
        handshake(shipped, Simulated(tasks.make("quad_hover")))


def test_another_robots_policy_still_does_not_fit(shipped: PolicyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Simulated(tasks.make("quad_any", robot="racer"))
    monkeypatch.setattr(shipped, "robot", "x500")
    with pytest.raises(HandshakeError, match="for the robot 'x500', the driver has 'racer'"):
        handshake(shipped, driver)


@pytest.mark.long
def test_its_training_command_reproduces_its_score(shipped: PolicyFile, tmp_path: Path) -> None:
    argv = [a for a in shipped.metadata["training"]["argv"] if not a.startswith(("out=", "report="))]
    command = [sys.executable, "-m", "policies.train", *argv, f"out={tmp_path}", "report=false"]
    subprocess.run(command, check=True, capture_output=True, timeout=1500)
    again = PolicyFile.load(str(tmp_path / "policy.onnx"))
    for delay in (0.0, 0.02):
        ours, theirs = (round(1000 * success(p, "any_log_uniform", 1000, delay=delay)) for p in (again, shipped))
        assert wilson(ours, 1000)[1] >= wilson(theirs, 1000)[0], f"{ours} against {theirs} of 1000 at {delay} s"

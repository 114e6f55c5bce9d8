"""Policy files of robots from files: no path in them, none opened for them, the same commands in C."""

from pathlib import Path

import numpy as np
import pytest

from deploy import PolicyFile
from deploy.drivers.simulated import Settings, Simulated
from deploy.drivers.tasks import task_for
from deploy.loop import run
from deploy.runtimes import CompiledPolicy
from policies import collect, evaluate
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.runner.config import compose
from sim import spec
from sim.registry import StrangerError
from sim.tasks import make
from tests.sim.robots.test_mjcf import ARM, written


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("somebody"), ARM, "my_arm.xml")


@pytest.fixture(scope="module")
def policy(robot: str, tmp_path_factory: pytest.TempPathFactory) -> PolicyFile:
    task, rng = make("reach", robot=robot, steps=10), np.random.default_rng(0)
    shape = (spec.size(task.commands), spec.size(task.policy))
    network = Mlp([(rng.normal(0.0, 0.3, shape).astype(np.float32), np.zeros(shape[0], np.float32))], "tanh")
    made = export(FeaturePolicy.from_task(task, network), tmp_path_factory.mktemp("policy") / "policy.onnx")
    return PolicyFile.load(made.path)


def test_a_policy_file_tells_no_path_and_opens_none(policy: PolicyFile, robot: str, monkeypatch) -> None:
    assert "somebody" not in str(policy.metadata)
    monkeypatch.chdir(Path(robot).parent)  # even a file that is there is opened only if a person says so
    with pytest.raises(StrangerError, match="names the robot 'my_arm.xml'.*name it yourself with robot="):
        task_for(policy)
    assert task_for(policy, robot=robot).robot.name == task_for(policy, robot="my_arm.xml").robot.name == "simple_arm"


def test_another_model_needs_leave(policy: PolicyFile, tmp_path: Path) -> None:
    longer = written(tmp_path, ARM.replace("0.25", "0.26"))
    with pytest.raises(ValueError, match="not the model that the policy was made for"):
        task_for(policy, robot=longer)
    assert (
        task_for(policy, robot=longer, transfer=True).robot.sha256 != task_for(policy, robot="simple_arm").robot.sha256
    )


def test_it_moves_the_arm_the_same_in_c(policy: PolicyFile, robot: str) -> None:
    flights = []
    for controller in (policy, CompiledPolicy(policy)):
        driver = Simulated.from_config(Settings(robot=robot, episodes=3), policy)
        run(controller, driver)
        flights.append(driver.flight()["joint_position"])
        driver.close()
    np.testing.assert_allclose(*flights, atol=1e-4)


def test_it_is_graded_and_demonstrated_by_commands(policy: PolicyFile, robot: str, tmp_path: Path, capsys) -> None:
    evaluate.main([f"policy={policy.path}", f"robot={robot}", "episodes=2"])
    assert "reach, simple_arm on mujoco, 2 episodes" in capsys.readouterr().out
    collect.main(["task=reach", f"robot={robot}", f"out={tmp_path / 'data'}", "episodes=2"])
    assert "of the new ones 2 succeeded" in capsys.readouterr().out


def test_the_command_line_takes_a_path(robot: str) -> None:
    settings = compose(["task=reach", f"task.robot={robot}", "task.start=[0,0.5,1.0,0]", "algorithm=diffusion"])
    assert settings.task_config.robot == robot and settings.task_config.start == [0.0, 0.5, 1.0, 0.0]

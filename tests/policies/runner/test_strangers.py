"""A file never makes us import what it names: the commands run beside a hostile module, which would leave a marker."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from deploy import cli, export, hil
from deploy import run as run_command
from deploy.crazyflie.app import files as app_files
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from deploy.ros2.simulation.robot import world
from deploy.trust.content import content_of
from policies import evaluate
from policies.runner import checkpoint, config
from policies.runner.cli import main
from policies.runner.config import compose
from policies.runner.mistakes import SettingsError
from sim.registry import StrangerError, load, names_from
from sim.tasks import make
from tests.deploy.sample_policy import exported, linear_hover, resealed

ROOT = Path(__file__).resolve().parents[3]
EVIL = """
from pathlib import Path
Path("marker").write_text("imported")
from sim.robots.quadrotors import CRAZYFLIE as ROBOT
from sim.tasks.quad_hover import QuadHover
class Task(QuadHover):
    name = "evil_hover"
"""


@pytest.fixture(scope="module")
def hover(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("hover") / "p.onnx", linear_hover())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A downloaded folder: the working directory, in which Python finds modules."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    (tmp_path / "crazyflie_evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    assert not (tmp_path / "marker").exists()
    assert not {"evilmod", "crazyflie_evil"} & sys.modules.keys()


def names_task(policy, to):
    return resealed(policy, to / "evil.onnx", task="evilmod:Task")


def names_robot(policy, to):
    training = {"task_config": {**policy.metadata["training"]["task_config"], "robot": "evilmod:ROBOT"}}
    return resealed(policy, to / "evil.onnx", training=training)


COMMANDS = {
    "deploy.run": (run_command.main, ["seconds=0.1"]),
    "policies.evaluate": (evaluate.main, ["episodes=2"]),
    "policies.evaluate grid": (evaluate.main, ["grid=true", "episodes=2"]),
    "deploy.hil": (hil.main, ["episodes=1", "seconds=0.1"]),
}


@pytest.mark.parametrize("names", [names_task, names_robot])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_what_a_file_names(here, hover, capsys, command, names):
    path = names(hover, here)
    main, words = COMMANDS[command]
    assert cli.call(main, [f"policy={path}", *words]) == 2
    error = capsys.readouterr().err
    kind, name = ("task", "evilmod:Task") if names is names_task else ("robot", "evilmod:ROBOT")
    assert f"names the {kind} {name!r}, which is not one of ours: name it yourself with {kind}={name}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("module", ["deploy.run", "policies.evaluate"])
def test_nor_as_a_program_in_that_folder(here, hover, module):
    path = names_task(hover, here)
    ran = subprocess.run(
        [sys.executable, "-m", module, f"policy={path}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 2 and "name it yourself with task=evilmod:Task" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_person_may_name_the_module(tmp_path, hover, monkeypatch):
    (tmp_path / "ours_of_test.py").write_text(EVIL.replace('Path("marker").write_text("imported")', ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    path = names_robot(hover, tmp_path)
    assert task_for(PolicyFile.load(path), robot="ours_of_test:ROBOT").robot.name == "crazyflie"
    own = PolicyFile.load(resealed(hover, tmp_path / "own.onnx", task="evil_hover"))
    assert task_for(own, task="ours_of_test:Task").name == "evil_hover"


def test_nor_does_the_app_or_a_world_of_ros_2(here, hover):
    with pytest.raises(StrangerError, match="names the task"):
        world(str(names_task(hover, here)), "", "", "", 500.0, 0)
    path = str(resealed(hover, here / "evil.onnx", robot="crazyflie_evil:ROBOT"))
    with pytest.raises(StrangerError, match="names the robot 'crazyflie_evil:ROBOT'"):
        app_files(PolicyFile.load(path), content_of(path))
    assert cli.call(export.main, [f"policy={path}", "target=crazyflie", "out=app"]) == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("robot", ["crazyflie"]),
        ("tilt", "90"),
        ("tilt", 1e7),
        ("history", True),
        ("episode_s", 1e300),
        ("episode_s", 9e5),
        ("history", 2**62),
        ("rate_hz", None),
        ("robot", "crazyflie\x1b[2J"),
    ],
)
def test_settings_of_a_task_in_a_file_are_what_they_can_be(tmp_path, hover, capsys, setting, value):
    settings = {**hover.metadata["training"]["task_config"], setting: value}
    path = resealed(hover, tmp_path / "p.onnx", training={"task_config": settings})
    assert cli.call(run_command.main, [f"policy={path}", "seconds=0.1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}") and error.count("\n") == 1 and error.strip().isprintable()


@pytest.mark.parametrize("training", [None, [], "x", {"task_config": 3}, {"task_config": ["robot"]}])
def test_malformed_provenance_is_one_sentence(tmp_path, hover, capsys, training):
    path = resealed(hover, tmp_path / "p.onnx", training=training)
    assert cli.call(run_command.main, [f"policy={path}", "seconds=0.1"]) == 2
    assert "malformed" in capsys.readouterr().err


@pytest.fixture
def run(here, monkeypatch):
    """A downloaded run, as its config.yaml says it."""
    settings = compose(["task=quad_hover", "out=run"])
    (here / "run").mkdir()
    config.write(settings, here / "run" / "config.yaml")
    return here / "run" / "config.yaml"


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (("task",), "task", "evilmod:Task"),
        (("algorithm",), "algorithm", "evilmod:Task"),
        (("options", "engine"), "engine", "evilmod:Engine"),
        (("task_config", "robot"), "robot", "evilmod:ROBOT"),
        (("algorithm_config", "network"), "network", "evilmod:Task"),
    ],
)
def test_a_downloaded_run_is_not_continued_with_its_modules(run, monkeypatch, capsys, place, key, value):
    stored = yaml.safe_load(run.read_text())
    held = stored
    for name in place[:-1]:
        held = held[name]
    held[place[-1]] = value
    run.write_text(yaml.safe_dump(stored))
    monkeypatch.setattr(sys, "argv", ["train", "resume=run", "report=false"])
    from policies import train

    with pytest.raises(SystemExit) as left:
        main(train.train)
    assert left.value.code in (1, 2)
    error = capsys.readouterr().err
    assert f"names the {key} {value!r}" in error and error.count("\n") == 1


def test_naming_the_module_again_must_fit_the_run(run):
    with pytest.raises(SettingsError, match="task is quad_hover, not evilmod:Task"):
        compose(["resume=run", "task=evilmod:Task"])
    with pytest.raises(SettingsError, match=r"task\.robot is crazyflie, not evilmod:ROBOT"):
        compose(["resume=run", "task.robot=evilmod:ROBOT"])
    choices = "only view, report, evaluation_episodes, checkpoint_s, profile, cluster, learners can be set, not seed"
    with pytest.raises(SettingsError, match=choices):
        compose(["resume=run", "seed=3"])


def test_the_tables_hold_nothing_that_a_file_can_reach_past_them(here):
    with names_from("a.onnx", "json:dumps"):
        assert load("thing", "json:dumps", {}) is __import__("json").dumps
        assert make("quad_hover").name == "quad_hover"
        for name in ("evilmod:Task", ":Task", "evilmod:", "os:system", " evilmod:Task", "..evilmod:Task"):
            with pytest.raises(StrangerError):
                load("task", name, {"quad_hover": "sim.tasks.quad_hover:QuadHover"})
    for name in (":Task", "..json:dumps", 3, None, ["json:dumps"]):
        with pytest.raises(ValueError, match="there is no module|is no name"):
            load("task", name, {})


@pytest.mark.parametrize("name", ["load", "hub", "nn", "Tensor", "os", "float31", "__class__"])
def test_a_checkpoint_names_types_of_elements_and_nothing_else(tmp_path, monkeypatch, name):
    def hostile(value, arrays):
        arrays.append(np.zeros(12, np.uint8))
        return {"tensor": [0, name, [3]]}

    import torch

    monkeypatch.setattr(checkpoint, "_encode_tensor", hostile)
    checkpoint.save(tmp_path / "c.npz", {"x": torch.zeros(3)})
    with pytest.raises(checkpoint.CheckpointError, match=f"a tensor of '{name}', which is none of float16"):
        checkpoint.load(tmp_path / "c.npz")

"""A task from outside the project, of one file: every command works on it as the pages say."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from deploy import PolicyFile
from deploy.runtimes import CompiledPolicy
from policies.algorithms import ALGORITHMS, algorithm_class
from sim.tasks import EngineTask, HasTeacher, make
from sim.tasks.abilities import Differentiable, HasSensedReward, HasWords
from tests.sim.test_gym import UNBOUNDED  # which registers them
from tests.test_product import check_cell

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "add.md"
CAR = "tests.outsider.car:Car"


def command(*words: str) -> str:
    """Output of `python -m WORDS` in this folder's project, as a user's shell gives it; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_the_pages_example():
    assert (HERE / "car.py").read_text() in PAGE.read_text()


def test_its_expert_can_drive():
    task = make(CAR)
    world = task.open(50, 0)
    world.reset(range(50), range(50))
    reached = np.zeros(50, bool)
    for _ in range(task.episode_steps):
        reached |= world.step(task.expert(world.observe())).success
    assert reached.mean() > 0.8


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_it_or_says_what_it_lacks(name: str, tmp_path):
    check_cell(make(CAR), name, tmp_path)
    lacking = {EngineTask, Differentiable, HasTeacher, HasSensedReward, HasWords} & {*algorithm_class(name).needs}
    assert bool(lacking) == (not (tmp_path / "policy.onnx").exists())


def check_compiled(policy: PolicyFile) -> None:
    """What is compiled from its C answers as the file itself does, whatever kind of signals it reads."""
    rng, compiled = np.random.default_rng(0), CompiledPolicy(policy)
    compiled.reset(2), policy.reset(2)
    most = {"float32": 1.0, "uint8": 256.0}
    signals = {s.name: rng.uniform(0.0, most[s.dtype], (2, *s.shape)).astype(s.dtype) for s in policy.inputs}
    answers = compiled.step(signals)
    for name, value in policy.step(signals).items():
        np.testing.assert_allclose(answers[name], value, atol=1e-5)


def test_the_commands(tmp_path):
    few = [
        "algorithm.total_steps=8192",
        "algorithm.num_envs=32",
        "algorithm.rollout_steps=32",
        "algorithm.lengths=[1,1]",
    ]
    out = command(
        "policies.train", "task=car:Car", *few, f"out={tmp_path}/run", "evaluation_episodes=20", "quality=default"
    )
    policy = f"{tmp_path}/run/policy.onnx"
    assert out.splitlines()[-1] == f"policy: {policy}" and "no plot" not in out
    assert all((tmp_path / "run" / name).stat().st_size > 1000 for name in ("report.png", "video.mp4"))
    graded = ["task=car:Car", f"policy={policy}", "episodes=30", f"json={tmp_path}/report.json"]
    command("policies.evaluate", *graded, f"video={tmp_path}/film.mp4", f"plot={tmp_path}/plot.png")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["episodes"] == 30 and report["engine"] == "its own physics"
    assert "success" in command("deploy.run", f"policy={policy}", "driver=simulated", "task=car:Car", "episodes=2")
    assert "goal_position" in command("deploy.inspect", f"policy={policy}")
    check_compiled(PolicyFile.load(policy))
    command("policies.collect", "task=car:Car", f"out={tmp_path}/data", "episodes=3")
    assert (tmp_path / "data" / "meta" / "info.json").is_file()


def test_gymnasium():
    env = gymnasium.make("sim2metal/task-v0", task=CAR, render_mode="rgb_array", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNBOUNDED)
        check_env(env.unwrapped)
    env.reset(seed=0)
    assert env.render().shape == (240, 320, 3)
    many = gymnasium.make_vec("sim2metal/task-v0", num_envs=3, task=CAR)
    many.reset(seed=0)
    assert many.step(np.zeros((3, 2), np.float32))[1].shape == (3,)

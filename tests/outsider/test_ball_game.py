"""A game of two players from outside the project: every command works on it, or says in one sentence why not."""

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import parallel_api_test

import sim.gym  # noqa: F401  # which registers it
from deploy import PolicyFile
from policies.algorithms import ALGORITHMS, algorithm_class, check_needs
from policies.algorithms.ppo import Ppo, PpoConfig
from policies.evaluate import evaluate
from policies.models.export import export
from sim.env import NoExpertError
from sim.parallel import TaskParallelEnv
from sim.tasks import HasTeacher, make
from sim.tasks.abilities import Differentiable
from sim.vec_world import vector_env
from tests.outsider.test_car import HERE, PAGE, check_compiled, command
from tests.test_product import learner

GAME = "tests.outsider.ball_game:BallGame"
GAME_FILE = HERE / "ball_game.py"
WITH_CAMERA = pytest.mark.parametrize("camera", [False, True], ids=["numbers", "camera"])


def test_players_see_the_same_world_each_from_its_own_end():
    task = make(GAME, camera=True)
    world = task.open(4, 0)
    world.reset(range(4), [7, 7, 8, 8])
    seen = world.observe()
    for name, other in (("own_position", "other_position"), ("ball_position", "ball_position")):
        np.testing.assert_array_equal(seen[name][::2], -seen[other][1::2])
    np.testing.assert_array_equal(seen["camera"][::2, ..., 1], seen["camera"][1::2, ::-1, ::-1, 1])  # the ball
    assert (seen["own_position"][0] != seen["own_position"][2]).any()


def test_episodes_begin_and_end_for_whole_worlds_and_continue_exactly():
    env, twin = (vector_env(make(GAME, steps=30), 6, seed=1) for _ in range(2))
    env._numbers[:] = twin._numbers
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(50):
        env.world.ball[0, 0] += 0.05  # the first player of the first world wins, the second loses
        step = env.step(2.0 * torch.rand((6, 2), generator=generator) - 1.0)
        done, lost = step.done.reshape(3, 2), step.terminated.reshape(3, 2)
        assert (done[:, 0] == done[:, 1]).all() and not lost[:, 0].any()
        assert (env._numbers[::2] == env._numbers[1::2]).all()
        ended += int(done.sum())
    assert ended >= 6 and len(set(env._numbers)) == 3
    fresh = vector_env(make(GAME, steps=30), 6, seed=1)
    for _ in range(5):
        fresh.step(2.0 * torch.rand((6, 2), generator=generator) - 1.0)
    twin.load_state_dict(fresh.state_dict())
    for name, value in fresh.world.observe().items():
        np.testing.assert_array_equal(value, twin.world.observe()[name], err_msg=name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_it_or_says_why_not(name: str, tmp_path: Path):
    task, kind = make(GAME), algorithm_class(name)
    if "agents" not in kind.takes or {HasTeacher, Differentiable} & {*kind.needs}:
        with pytest.raises(ValueError, match=f"algorithm={name} (does not take several agents|needs a task with)"):
            check_needs(name, kind, task)
        return
    check_needs(name, kind, task)
    if name == "advised_sac":  # whose adviser is the task's expert, by default
        with pytest.raises((ValueError, NoExpertError), match="has no scripted expert"):
            next(learner(task, name).learn())
        return
    algorithm = learner(task, name)
    next(algorithm.learn())
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": name})
    report = evaluate(PolicyFile.load(tmp_path / "policy.onnx"), task=task, episodes=13)
    assert report.episodes == 13 and report.flight["success"].shape[1] == 20  # of the first ten games
    assert report.success <= 0.5  # both cannot win


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_both_learn_from_the_camera_and_c_sees_it_too(name: str, tmp_path: Path):
    task = make(GAME, camera=True, steps=40)
    algorithm = learner(task, name)
    next(algorithm.learn())
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": name})
    policy = PolicyFile.load(tmp_path / "policy.onnx")
    assert [(s.name, s.dtype) for s in policy.inputs] == [("camera", "uint8")]
    assert policy.types["camera"] is np.uint8
    assert evaluate(policy, task=task, episodes=2, filmed=1).pictures[0].shape == (1, 240, 240, 3)
    check_compiled(policy)


@pytest.mark.long  # test_car.py has them for one agent
def test_the_commands(tmp_path):
    few = ["algorithm.total_steps=4096", "algorithm.num_envs=32", "algorithm.rollout_steps=32", "task.steps=60"]
    made = ["policies.train", "task=ball_game:BallGame", *few, f"out={tmp_path}/run", "evaluation_episodes=8"]
    policy = f"{tmp_path}/run/policy.onnx"
    assert command(*made).splitlines()[-1] == f"policy: {policy}"
    assert all((tmp_path / "run" / name).stat().st_size > 1000 for name in ("report.png", "video.mp4"))
    graded = ["task=ball_game:BallGame", f"policy={policy}", "episodes=5", f"json={tmp_path}/report.json"]
    command("policies.evaluate", *graded)
    assert json.loads((tmp_path / "report.json").read_text())["episodes"] == 5
    flown = ("driver=simulated", "task=ball_game:BallGame", "episodes=2")
    assert "4 robot(s)" in command("deploy.run", f"policy={policy}", *flown)
    check_compiled(PolicyFile.load(policy))


@pytest.mark.long
def test_it_learns_to_score():
    config = PpoConfig(total_steps=200_000, num_envs=64, rollout_steps=32, initial_std=0.5, evaluation_episodes=100)
    algorithm = Ppo(make(GAME), config, 0)
    metrics = list(algorithm.learn())
    assert metrics[-1]["success"] > 0.2  # at random: 1 %; when every game is decided: 50 %


def test_gymnasium():
    with pytest.raises(ValueError, match="ball_game has 2 agents in each world: the rows must be a multiple, got 1"):
        gymnasium.make("sim2metal/task-v0", task=GAME)
    envs = gymnasium.make_vec("sim2metal/task-v0", num_envs=6, task=GAME)
    envs.reset(seed=0)
    _, reward, terminated, truncated, _ = envs.step(np.zeros((6, 2), np.float32))
    assert reward.shape == (6,) and not (terminated | truncated).any()


def test_the_page_is_right(monkeypatch):
    page = PAGE.read_text()
    monkeypatch.syspath_prepend(HERE)
    block = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "TaskParallelEnv" in block)
    played: dict[str, Any] = {}
    exec(block, played)
    assert played["seen"].keys() == played["rewards"].keys() == {"agent_0", "agent_1"}
    assert "\nagents, teams = 2, (0, 1)\n" in page and "    agents, teams = 2, (0, 1)\n" in GAME_FILE.read_text()


@WITH_CAMERA
def test_pettingzoo(camera: bool):
    env = TaskParallelEnv(GAME, config={"camera": camera, "steps": 30}, render_mode="rgb_array")
    parallel_api_test(env, num_cycles=70)
    assert env.teams == {"agent_0": 0, "agent_1": 1}
    seen, _ = env.reset(seed=3)
    assert env.render().shape == (240, 320, 3)
    assert all(env.observation_space(name).contains(seen[name]) for name in env.possible_agents)
    again, _ = TaskParallelEnv(GAME, config={"camera": camera}).reset(seed=3)
    assert data_equivalence(seen, again) and not data_equivalence(again, env.reset()[0])


def test_in_pettingzoo_an_episode_ends_for_all():
    env = TaskParallelEnv(GAME)
    env.reset(seed=0)
    for _ in range(30):
        env._world.ball[0, 0] += 0.05
        _, reward, lost, cut, info = env.step({name: np.zeros(2, np.float32) for name in env.agents})
        if not env.agents:
            break
    assert not env.agents and lost == {"agent_0": False, "agent_1": True} and cut == {"agent_0": True, "agent_1": False}
    assert info["agent_0"]["success"] and not info["agent_1"]["success"]
    assert reward["agent_0"] > 0.9 and reward["agent_1"] < -0.9
    with pytest.raises(RuntimeError, match="reset begins the next one"):
        env.step({})

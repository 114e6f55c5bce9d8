"""A robot in an engine from outside the project, of one file: learners, conditions, film, C and Gymnasium take it."""

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from deploy import PolicyFile
from deploy.drivers.simulated import Simulated
from policies.algorithms import ALGORITHMS, algorithm_class
from policies.algorithms.ppo import Ppo, PpoConfig
from policies.evaluate import evaluate
from policies.models.export import export
from policies.runner import plots, report
from sim.conditions import Conditions
from sim.env import make_env
from sim.tasks import make
from tests.outsider.test_car import check_compiled
from tests.sim.test_gym import UNBOUNDED
from tests.test_product import check_cell

ROVER = "tests.outsider.rover:RoverReach"
LACKING = ("apg", "distill", "online_sac", "student", "vla", "vla_rl")  # what they need it has not


def test_its_expert_can_drive():
    task = make(ROVER)
    world = make_env(task, 50, 0)
    world.reset(range(50), range(50))
    for _ in range(task.episode_steps):
        step = world.step(task.expert(world.observe()))
    assert step.success.mean() > 0.9


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in LACKING])
def test_every_algorithm_trains_it(name: str, tmp_path):
    check_cell(make(ROVER), name, tmp_path)
    assert (tmp_path / "policy.onnx").exists()


def test_gradients_through_its_physics_are_refused():
    task = make(ROVER)
    with pytest.raises(ValueError, match="no adjoint"):
        algorithm_class("apg")(task, algorithm_class("apg").Config(), 0)


def test_it_is_graded_drawn_filmed_and_compiled(tmp_path):
    task = make(ROVER)
    learner = Ppo(task, PpoConfig(total_steps=8192, num_envs=32, rollout_steps=32), 0)
    list(learner.learn())
    path = tmp_path / "policy.onnx"
    export(learner.controller(), path)
    policy = PolicyFile.load(path)
    graded = evaluate(policy, task=task, episodes=8, conditions=Conditions(vary=True, noise=1.0), filmed=2)
    assert graded.engine == task.engine and 0.0 < graded.score["distance"].mean < 10.0
    for made in (plots.drawn(graded, str(tmp_path / "plot.png")), report.video(graded, str(tmp_path / "film.mp4"))):
        assert (tmp_path / made).stat().st_size > 1000
    check_compiled(policy)


@pytest.mark.parametrize(("condition", "lacks"), [("mass", "no mass"), ("wind", "no wind"), ("force", "no force and")])
def test_conditions_of_what_it_has_not_are_refused(condition, lacks):
    with pytest.raises(ValueError, match=f"rover cannot be tried with {condition}: it has {lacks}"):
        Simulated(make(ROVER), 2, conditions=Conditions(**{condition: 1.5}))


def test_gymnasium():
    env = gymnasium.make("sim2metal/task-v0", task=ROVER, render_mode="rgb_array", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNBOUNDED)
        check_env(env.unwrapped)
    env.reset(seed=0)
    assert env.render().shape == (240, 320, 3)

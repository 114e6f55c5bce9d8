"""A student that learns to race from pictures from who has a lidar: it learns, and its file does what it does."""

import math

import numpy as np
import pytest

from policies.algorithms.student import Student, StudentConfig
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.models.vision import EncoderConfig
from policies.runner.config import compose
from sim.rollout import rollout
from sim.spec import size, slices
from sim.tasks import make
from sim.tasks.race import BEAMS
from sim.tasks.race.recipes import STUDENT

SMALL = {"tracks": 4, "width": 32, "height": 32, "steps": 100, "vary": False}


@pytest.fixture
def teacher(tmp_path):
    """Who steers to where the lidar sees further, slowly, by one layer."""
    task = make("car_race")
    weight, bias = np.zeros((2, size(task.policy)), np.float32), np.array([0.0, -0.5], np.float32)
    weight[0, slices(task.policy)["lidar"]] = 0.15 * np.sin(np.linspace(-2.0, 2.0, BEAMS))
    return export(FeaturePolicy.from_task(task, Mlp([(weight, bias)])), tmp_path / "teacher.onnx").path


def test_it_learns_from_a_lidar_what_to_do_of_pictures(teacher, tmp_path):
    task = make("car_race_vision", **SMALL)
    sight = EncoderConfig(channels=[8, 8, 8], strides=[4, 2, 2], head="flat")
    settings = {"num_envs": 32, "rollout_steps": 16, "minibatches": 8, "epochs": 3, "hidden": [32, 32]}
    settings |= {"critic_hidden": [16], "learning_rate": 6e-3, "lengths": [1.0, 1.0], "evaluate_every": 0}
    settings |= {"guided": 0.2, "alone": 1.0, "imitation_reward": 0.0, "evaluation_episodes": 4, "sight": sight}
    learner = Student(task, StudentConfig(**settings, total_steps=5_120, teacher=teacher), 0)
    metrics = [*learner.learn()]
    first, last = (np.mean([m["imitation_error"] for m in some]) for some in (metrics[:3], metrics[-5:]))
    assert last < 0.6 * first, (first, last)
    assert all(math.isfinite(m["loss"]) for m in metrics)
    file = export(learner.controller(), tmp_path / "student.onnx")
    assert [s.name for s in file.inputs if s.is_picture] == ["camera"] and [s.name for s in file.state] == ["hidden"]
    assert [s.name for s in file.outputs] == ["steering", "speed"]
    file.verify()
    env = task.open(4, 0)
    file.reset(4)

    def act(seen, numbers, begun):
        file.restart(begun)
        return file.step({s.name: seen[s.name] for s in file.inputs})

    scores = [task.score(episode.flight()) for episode in rollout(task, env, act, range(4))]
    assert len(scores) == 4 and all(np.isfinite([*score.values()]).all() for score in scores)


def test_its_recipe_is_what_a_run_begins_with():
    run = compose(["task=car_race_vision"])
    config = run.algorithm_config
    assert isinstance(config, StudentConfig) and config.sight.strides == STUDENT["algorithm.sight.strides"]
    assert config.total_steps == STUDENT["algorithm.total_steps"] and config.alone == 1.0

"""PPO that hears the task's expert: it learns from it what trial alone does not find, and says what goes with what."""

import copy

import numpy as np
import pytest

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.ppo.tutor import Scripted
from sim.env import NoExpertError
from sim.tasks import make
from tests.policies.toy_reach import ToyReach

FEW = {
    "num_envs": 32,
    "rollout_steps": 16,
    "hidden": [32, 32],
    "critic_hidden": [16],
    "evaluate_every": 0,
    "evaluation_episodes": 4,
    "total_steps": 32 * 16 * 40,
    "averaged": 0.0,
}


def learned(**settings):
    """The policy's difference from the expert (root mean square, m/s) where it was never, and what was said of it."""
    task = ToyReach()
    learner = Ppo(task, PpoConfig(**FEW, **settings), 0)
    metrics = list(learner.learn())
    rng = np.random.default_rng(5)
    signals = {name: rng.uniform(-1.0, 1.0, (200, 2)).astype(np.float32) for name in ("position", "goal")}
    made = learner.controller()
    told, _ = made.act(signals, made.initial_state(200))
    return float(np.sqrt(np.square(told["velocity"] - task.expert(signals)["velocity"]).mean())), metrics


def test_it_learns_what_the_expert_does():
    with_it, metrics = learned(imitation=1.0, alone=1.0, guided=0.25)
    without, silent = learned()
    assert with_it < 0.2 < 0.5 < without
    assert metrics[-1]["imitation_error"] < 0.2 * metrics[2]["imitation_error"]
    assert "imitation_error" not in silent[-1]


def test_the_expert_acts_in_fewer_and_fewer_rows():
    learner = Ppo(ToyReach(), PpoConfig(**FEW, imitation=1.0, final_imitation=0.1, alone=0.25, guided=0.5), 0)
    guided, weights = [], []
    for _ in learner.learn():
        guided.append(learner.path.heard.guided)
        weights.append(float(learner.path.rollouts.samples.heed.reshape(-1)[0]))
    assert guided[0] == 32 and guided[10] == 16 and guided[-1] == 0
    assert weights[0] == weights[10] == 1.0 and weights[-1] == pytest.approx(0.1, rel=0.2)


def test_who_learns_from_it_alone_has_a_rate_of_its_own():
    config = PpoConfig(alone=0.5, alone_rate=1e-2, learning_rate=1e-4, final_learning_rate=1e-5)
    assert config.rate(0.0) == config.rate(0.49) == 1e-2 and 1e-5 < config.rate(0.6) < 1e-4
    assert PpoConfig(alone=0.5, learning_rate=1e-4, final_learning_rate=1e-5).rate(0.0) == 1e-4


@pytest.mark.parametrize("imitation", [0.0, 1.0])
def test_it_goes_on_from_every_iteration(imitation):
    """From those, too, at which somebody's episode has just begun."""
    settings = FEW | {"total_steps": 32 * 16 * 6, "imitation": imitation}

    def made():
        return Ppo(ToyReach(), PpoConfig(**settings), 0)

    whole = made()
    kept = [copy.deepcopy(whole.state_dict()) for _ in whole.learn()]
    signals = {name: np.linspace(-1.0, 1.0, 40, dtype=np.float32).reshape(20, 2) for name in ("position", "goal")}

    def says(learner):
        controller = learner.controller()
        return controller.act(signals, controller.initial_state(20))[0]["velocity"]

    for state in kept[:-1]:
        part = made()
        part.load_state_dict(state)
        for _ in part.learn():
            pass
        np.testing.assert_array_equal(says(part), says(whole))


def test_it_is_cut_off_at_the_commands_limits():
    task = ToyReach()
    told = Scripted(task).act({"position": np.zeros((1, 2)), "goal": np.array([[0.1, 5.0]])})
    np.testing.assert_allclose(told, [[0.4, 1.0]], atol=1e-6)


def test_what_goes_with_it():
    with pytest.raises(NoExpertError):
        Ppo(make("walk"), PpoConfig(**FEW, imitation=1.0), 0)
    with pytest.raises(ValueError, match=r"algorithm\.imitation .*torch"):
        Ppo(ToyReach(), PpoConfig(**FEW, imitation=1.0, path="torch"), 0)
    for wrong in (
        {"imitation": -1.0},
        {"final_imitation": 1.0},
        {"alone": 2.0},
        {"guided": -0.1},
        {"alone_rate": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PpoConfig(**wrong)


@pytest.mark.parametrize("name", ["alone", "alone_rate", "guided"])
def test_what_is_said_of_the_expert_goes_with_imitation(name):
    with pytest.raises(ValueError, match=rf"algorithm\.{name} goes with algorithm\.imitation"):
        Ppo(ToyReach(), PpoConfig(**FEW, **{name: 0.5}), 0)

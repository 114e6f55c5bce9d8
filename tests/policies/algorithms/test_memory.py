"""Learners of chunks on quadrotors see their own past actions, which is how they know their rotors."""

import numpy as np
import pytest

from policies.algorithms.bc import BaseConfig, Bc, BcConfig
from policies.algorithms.dagger import Dagger, DaggerConfig
from policies.collect import ACTION, STATE, _frames, _read, demonstrate, episodes
from policies.models.export import export
from sim.env import make_env
from sim.tasks import make, remembering, sensed
from sim.tasks.quad_hover import QuadHover
from sim.terms import HISTORY
from tests.policies.toy_reach import ToyReach

SMALL = {"kind": "regression", "horizon": 1, "hidden": [32, 32], "corruption": 0.0}


class Flown:
    """A controller at work, that says what it remembers."""

    def __init__(self, controller, num):
        self.controller, self.states, self.remembered = controller, controller.initial_state(num), []

    def __call__(self, signals, numbers, begun):
        fresh = self.controller.initial_state(len(begun))
        self.states = {k: np.where(begun[:, None], fresh[k], v) for k, v in self.states.items()}
        np.testing.assert_allclose(self.states[HISTORY], signals[HISTORY], atol=1e-6)
        self.remembered.append(float(np.abs(np.diff(self.states[HISTORY])).mean()))
        commands, self.states = self.controller.act(signals, self.states)
        return commands


def test_policy_and_environment_remember_the_same():
    task = make("quad_hover", history=3)
    learner = Bc(task, BcConfig(**SMALL, episodes=2, updates=30, noise="none"), 0)
    list(learner.learn())
    flown = Flown(learner.controller(), 2)
    list(episodes(learner.task, flown, 3, 0, num=2))
    assert len(flown.remembered) > 20 and flown.remembered[-1] > 0.01


def test_the_file_has_the_memory_inside(tmp_path):
    task = make("quad_hover", history=2)
    config = BaseConfig(**SMALL, episodes=2, updates=20)
    learner = Dagger(task, DaggerConfig(base=config, total_steps=40, num_envs=2, updates_per_round=5), 0)
    list(learner.learn())
    controller = learner.controller()
    policy = export(controller, tmp_path / "policy.onnx")
    assert {s.name for s in policy.inputs} == {s.name for s in task.policy} and HISTORY not in policy.inputs
    assert policy.states()[HISTORY].shape[-1] == 8
    env = make_env(task, 3, 0)
    env.reset(range(3), range(3))
    policy.reset(3)
    state = controller.initial_state(3)
    for _ in range(8):
        signals = {s.name: env.observe()[s.name] for s in task.policy}
        wanted, state = controller.act(signals, state)
        got = policy.step(signals)
        np.testing.assert_allclose(got["motor_command"], wanted["motor_command"], atol=1e-5)
        env.step(got)


def test_demonstrations_that_are_stored_tell_past_actions_again():
    task = remembering(make("quad_hover", history=4))
    (shown,) = demonstrate(task, 1, 0)
    stored = {name: value for name, value in _frames(make("quad_hover"), shown).items() if name in (STATE, ACTION)}
    np.testing.assert_allclose(_read(task, stored, 0, {}).signals[HISTORY], shown.signals[HISTORY], atol=1e-5)


def test_only_who_declares_it_remembers():
    toy, hover = ToyReach(), make("quad_hover")
    assert remembering(toy) is toy
    seeing = remembering(hover)
    assert [s.name for s in seeing.policy] == [*(s.name for s in hover.policy), HISTORY]
    assert remembering(seeing) is seeing and sensed(seeing) == hover.policy == sensed(hover)


def test_the_expert_flies_what_it_demonstrates():
    """With the declared noise, latency and variation of vehicles; about 2 % are lost before they are upright."""
    shown = list(demonstrate(make("quad_hover"), 64, 3))
    assert np.mean([episode.succeeded for episode in shown]) >= 0.94


@pytest.mark.long
def test_dagger_learns_to_fly():
    """The default recipe, with a quarter of its steps; without past actions nothing ever hovers."""
    recipe = QuadHover.recipes["dagger"]["default"]
    base = {k.rpartition(".")[2]: v for k, v in recipe.items() if k.startswith("algorithm.base.")}
    rest = {k.rpartition(".")[2]: v for k, v in recipe.items() if k.startswith("algorithm.") and "base" not in k}
    config = DaggerConfig(base=BaseConfig(**base), **{**rest, "total_steps": 100_000})
    *_, last = Dagger(make("quad_hover", history=recipe["task.history"]), config, 0).learn()
    assert last["success"] > 0.4

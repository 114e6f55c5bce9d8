"""SAC from pictures by an encoder that learned before to tell what is privileged, and stays as it is."""

import dataclasses

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError, algorithm_class
from policies.algorithms.sac import Sac, SacConfig
from policies.evaluate import evaluate
from policies.learning.state_estimation import StateEstimation, learner
from policies.learning.state_estimation.learner import StateEstimator
from policies.models.export import export
from policies.models.networks.feed_forward import FeedForward
from policies.models.vision import EncoderConfig, EstimatingEncoder
from sim.tasks import make
from tests.policies.resumed import learned, same
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight, drawn

SIGHT = EncoderConfig([4, 4], [2, 2], "flat", shift=0)
ESTIMATOR = StateEstimation(updates=20, episodes=4, batch_size=16, hidden=[16], learning_rate=3e-3)
TINY = SacConfig(
    total_steps=120,
    num_envs=2,
    warmup_steps=20,
    batch_size=16,
    hidden=[16],
    critic_hidden=[16],
    report_every=20,
    evaluation_episodes=4,
    sight=SIGHT,
    estimator=ESTIMATOR,
)


def numbers(*modules):
    return [p.detach().clone() for module in modules for p in module.parameters()]


def estimator_of(path):
    return numbers(path.estimator.encoders, path.estimator.telling)


def test_an_encoder_learns_to_tell_what_is_privileged():
    estimator = StateEstimator(ToySight(), dataclasses.replace(ESTIMATOR, updates=400, episodes=12), SIGHT, 0)
    rows = list(estimator.learn())
    assert [row["progress"] for row in rows] == [0.25, 0.5, 0.75, 1.0]
    assert rows[-1]["untold"] < 0.2 and estimator.finished and not list(estimator.learn())
    goal = np.array([[0.5, -0.5], [-0.7, 0.3]])
    pictures = drawn(goal, np.zeros((2, 2)))
    told = estimator.usual.invert(estimator.look({"camera": torch.from_numpy(pictures)})).numpy()
    np.testing.assert_allclose(told, goal, atol=0.3)  # goals that it never saw
    (encoder,) = estimator.exported().values()
    np.testing.assert_allclose(encoder.see(pictures), estimator.look({"camera": torch.from_numpy(pictures)}), atol=1e-4)
    np.testing.assert_array_equal(encoder.see(pictures)[1:], encoder.see(pictures[1:]))  # each picture by itself


def test_it_sees_first_and_then_tries(tmp_path):
    task = make("car_race_vision", expert="human", width=16, height=16, steps=400, tracks=2, vary=False)
    config = dataclasses.replace(TINY, estimator=dataclasses.replace(ESTIMATOR, episodes=2))
    learner = Sac(task, config, 0)
    path, fused = learner.path, learner.path.path
    before, running = estimator_of(path), learner.learn()
    assert next(running).keys() == {"progress", "env_steps", "untold"}
    taught, actor = estimator_of(path), fused.actor.net.weights.copy()
    assert any(not torch.equal(a, b) for a, b in zip(before, taught, strict=True))
    assert list(running)[-1]["progress"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(taught, estimator_of(path), strict=True))
    assert not np.array_equal(actor, fused.actor.net.weights)
    sensed = sum(s.size for s in task.policy if s.name != "camera")
    assert fused.rollouts.features == sensed + path.estimator.size  # and no pictures

    file = export(learner.controller(), tmp_path / "policy.onnx")
    file.verify()
    assert evaluate(file, episodes=2).episodes == 2
    policy, inner, world = learner.controller(), fused.controller(), fused.rollouts.env
    now, told = world.env.observe(), world.observe()
    assert "camera" not in told
    commands, _ = policy.act(now, policy.initial_state(2))
    wanted, _ = inner.act(told, inner.initial_state(2))
    for name, value in commands.items():
        np.testing.assert_allclose(value, wanted[name], atol=1e-3)


def test_it_continues_exactly():
    config = dataclasses.replace(TINY, estimator=dataclasses.replace(ESTIMATOR, updates=101, batch_size=4))
    whole = Sac(ToySight(), config, 0)
    rows, others = learned(whole.path, lambda: Sac(ToySight(), config, 0).path)
    assert [row["progress"] for row in rows[:2]] == pytest.approx([0.2 * 100 / 101, 0.2])
    for other in (others[0], others[2]):  # while it learned to see, and later
        assert list(other.learn())[-1] == rows[-1]
        same(other.state_dict(), whole.path.state_dict())


@pytest.mark.parametrize(("every", "measured"), [(0, [60]), (40, [40, 60]), (20, [20, 40, 60])])
def test_it_is_measured_as_often_as_it_is_told(every, measured):
    learner = Sac(ToySight(), dataclasses.replace(TINY, evaluate_every=every), 0)
    rows = [row for row in learner.learn() if "success" in row]
    assert [row["env_steps"] / 2 for row in rows] == measured
    with pytest.raises(ValueError, match="evaluate_every must be at least 0"):
        dataclasses.replace(TINY, evaluate_every=-1)


def test_what_does_not_go_is_named():
    for wrong, told in (
        ({"updates": -1}, "estimator.updates >= 0"),
        ({"episodes": 0}, "episodes >= 1"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"corruption": -0.1}, "corruption >= 0"),
    ):
        with pytest.raises(ValueError, match=told):
            StateEstimation(**wrong)
    for beside in ({"residual": 0.5}, {"earlier": ["runs/one"]}, {"real_data": "real"}, {"parts": 2}):
        with pytest.raises(ValueError, match=r"estimator.updates does not go with algorithm.real_data, residual"):
            dataclasses.replace(TINY, **beside)
    with pytest.raises(ValueError, match="updates tells what is in pictures, and toy_reach shows none: set it to 0"):
        Sac(ToyReach(), TINY, 0)
    blind = ToySight()
    blind.privileged = ()
    with pytest.raises(ValueError, match="toy_sight shows 1 pictures and knows 0 privileged signals; set it to 0"):
        Sac(blind, TINY, 0)
    with pytest.raises(ValueError, match="estimator.updates does not go with device=cuda"):
        Sac(ToySight(), TINY, 0, "cuda")
    for beside, told in (({"path": "torch"}, "path=torch"), ({"hidden": [1024]}, "layers of more than 512 units")):
        with pytest.raises(ValueError, match=f"estimator.updates does not go with .*{told}"):
            Sac(ToySight(), dataclasses.replace(TINY, **beside), 0)
    with pytest.raises(ValueError, match="the perceptron takes 3 numbers, the encoder finds 8"):
        EstimatingEncoder(
            StateEstimator(ToySight(), ESTIMATOR, EncoderConfig([4], [8]), 0).encoders.exported()["camera"],
            FeedForward([(np.zeros((2, 3), np.float32), np.zeros(2, np.float32))]),
        )


def test_who_diverges_or_is_told_nothing_finite_is_named(monkeypatch):
    wild = dataclasses.replace(ESTIMATOR, learning_rate=1e30, updates=50)
    with pytest.raises(LearningError, match=r"loss is not finite: lower algorithm.estimator.learning_rate"):
        list(StateEstimator(ToySight(), wild, SIGHT, 0).learn())
    shown = learner.recorded

    def broken(*args):
        episodes = shown(*args)
        episodes[0].signals["goal"][0] = np.nan
        return episodes

    monkeypatch.setattr(learner, "recorded", broken)
    with pytest.raises(LearningError, match="is not finite: take other data"):
        next(StateEstimator(ToySight(), ESTIMATOR, SIGHT, 0).learn())


def test_nobody_who_is_recorded_needs_to_succeed(monkeypatch):
    shown = learner.recorded

    def lost(*args):
        return [dataclasses.replace(e, success=np.zeros_like(e.success)) for e in shown(*args)]

    monkeypatch.setattr(learner, "recorded", lost)
    assert len(list(StateEstimator(ToySight(), ESTIMATOR, SIGHT, 0).learn())) == 1


def test_whoever_learns_otherwise_refuses_it():
    for name in ("advised_sac", "online_sac"):
        with pytest.raises(ValueError, match=f"^{name} .*estimator.updates"):
            algorithm_class(name).Config(estimator=ESTIMATOR)


def test_recordings_that_do_not_tell_it_are_refused(monkeypatch):
    shown = learner.recorded

    def blind(*args):
        return [
            dataclasses.replace(e, signals={k: v for k, v in e.signals.items() if k != "goal"}) for e in shown(*args)
        ]

    monkeypatch.setattr(learner, "recorded", blind)
    with pytest.raises(LearningError, match="does not tell goal, by which pictures are learned: set .*updates=0"):
        next(StateEstimator(ToySight(), ESTIMATOR, SIGHT, 0).learn())

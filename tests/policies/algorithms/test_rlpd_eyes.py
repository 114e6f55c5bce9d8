"""RLPD from pictures: eyes learned offline, of demonstrations elsewhere, then left alone; commands that do not jump."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile
from policies.algorithms import LearningError
from policies.algorithms.rlif import RlifConfig
from policies.algorithms.rlpd import Rlpd, RlpdConfig, SeenConfig
from policies.evaluate import evaluate
from policies.learning.offline.eyes import EyesConfig
from policies.models.denoiser import Onward
from policies.models.export import export
from policies.models.vision import EncoderConfig
from sim.tasks import make
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

EYES = EyesConfig(
    episodes=4, offline_updates=30, batch_size=16, hidden=[16], sight=EncoderConfig([4, 4], [2, 2], shift=1)
)
TINY = RlpdConfig(
    base=SeenConfig(horizon=1, episodes=4, corruption=0.0, eyes=EYES),
    **{"total_steps": 240, "num_envs": 2, "warmup_episodes": 2, "head_start": 8, "hidden": [16], "batch_size": 16},
)


def racing(**changes):
    task = make("car_race_vision", expert="human", width=16, height=16, steps=400, tracks=2, vary=False)
    base = dataclasses.replace(TINY.base, episodes=2, change=0.2, eyes=dataclasses.replace(EYES, episodes=2))
    return task, dataclasses.replace(TINY, base=base, task_reward=1.0, **changes)


def weights(learner):
    return [p.detach().clone() for p in learner.cloning.seeing.encoders.parameters()]


def test_eyes_learn_offline_and_are_then_left_alone(tmp_path):
    task, config = racing()
    learner = Rlpd(task, config, 0)
    before, running = weights(learner), learner.learn()
    assert next(running)["env_steps"] == 0.0
    taught, untrained = weights(learner), [p.detach().clone() for p in learner.training.actor.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(before, taught, strict=True))
    assert list(running)[-1]["env_steps"] == 240.0
    assert all(torch.equal(a, b) for a, b in zip(taught, weights(learner), strict=True))
    assert not torch.equal(untrained[0], next(learner.training.actor.parameters()))
    assert {n: v.shape[1] for n, v in learner.memory.data.items()}["x"] == learner.cloning.observed  # and no pictures

    file: PolicyFile = export(learner.controller(), tmp_path / "policy.onnx")
    file.verify()
    (eye,) = learner.cloning.seeing.encoders.exported().values()
    for weight, _ in eye.layers:  # the encoder is in the file, as it is
        assert any(np.array_equal(weight, held) for held in constants(tmp_path / "policy.onnx"))
    report = evaluate(file, episodes=2)
    assert report.episodes == 2
    jumps = np.abs(np.diff(report.flight["steering"][:, 0, 0])).max(), np.abs(np.diff(report.flight["speed"][:, 0, 0]))
    steering, speed = task.commands
    assert 0.0 < jumps[0] <= 0.2 * steering.high + 1e-5 and jumps[1].max() <= 0.1 * speed.high + 1e-5


def constants(path):
    onnx = pytest.importorskip("onnx")

    return [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]


def test_it_continues_exactly():
    eyes = dataclasses.replace(EYES, pretrain="calql", offline_updates=101, batch_size=4, auxiliary=0.5)
    config = dataclasses.replace(
        TINY, base=dataclasses.replace(TINY.base, eyes=eyes), total_steps=40, warmup_episodes=1
    )
    whole = Rlpd(ToySight(), config, 0)
    rows, (first, *_) = learned(whole, lambda: Rlpd(ToySight(), config, 0))
    assert [row["progress"] for row in rows[:2]] == pytest.approx([0.2 * 100 / 101, 0.2])
    assert list(first.learn())[-1] == rows[-1]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(first), strict=True))


def test_the_encoder_follows_what_is_asked_of_its_numbers():
    still = dataclasses.replace(EYES, sight=dataclasses.replace(EYES.sight, shift=0), offline_updates=1)
    learner = Rlpd(ToySight(), dataclasses.replace(TINY, base=dataclasses.replace(TINY.base, eyes=still)), 0)
    eyes, direction = learner.cloning.seeing, torch.linspace(-1.0, 1.0, learner.cloning.observed)
    asked = []

    class Asking:
        def update(self, batch):
            asked.append(batch)
            (batch["x"] @ direction).sum().backward()
            return {}

    eyes.offline = Asking()
    shown = learner.run.demonstrations
    list(eyes.learn(shown, learner.run.rewards, 1))
    found = [p.grad.clone() for p in eyes.encoders.parameters()]
    learner = Rlpd(ToySight(), learner.config, 0)  # as it was
    pictures = np.concatenate([e.signals["camera"] for e in shown])
    position = np.concatenate([e.signals["position"] for e in shown])
    mean, std = position.mean(0), position.std(0)
    which = [int(np.abs((position - mean) / std - x[:2].detach().numpy()).sum(1).argmin()) for x in asked[0]["x"]]
    eyes = learner.cloning.seeing
    looked = eyes.encoders({"camera": torch.from_numpy(pictures[which])})
    torch.testing.assert_close(looked, asked[0]["x"][:, 2:].detach())
    wanted = torch.autograd.grad((looked @ direction[2:]).sum(), [*eyes.encoders.parameters()])
    torch.testing.assert_close(found, [*wanted])


def test_eyes_learn_to_tell_what_is_privileged():
    class Silent:
        def update(self, batch):
            (0.0 * batch["x"].sum()).backward()
            return {"loss": torch.zeros(())}

    for auxiliary in (0.0, 1.0):
        eyes = dataclasses.replace(EYES, offline_updates=200, auxiliary=auxiliary, learning_rate=3e-3)
        learner = Rlpd(ToySight(), dataclasses.replace(TINY, base=dataclasses.replace(TINY.base, eyes=eyes)), 0)
        learner.cloning.seeing.offline, before = Silent(), weights(learner)
        rows = [row for row in learner.run.begin() if "loss" in row]
        moved = any(not torch.equal(a, b) for a, b in zip(before, weights(learner), strict=True))
        assert moved == bool(auxiliary)
    assert rows[-1]["untold"] < min(0.5, rows[0]["untold"])


def test_recordings_that_do_not_tell_it_are_refused():
    eyes = dataclasses.replace(EYES, auxiliary=1.0)
    learner = Rlpd(ToySight(), dataclasses.replace(TINY, base=dataclasses.replace(TINY.base, eyes=eyes)), 0)
    shown = learner.run.demonstrations
    blind = [dataclasses.replace(e, signals={k: v for k, v in e.signals.items() if k != "goal"}) for e in shown]
    with pytest.raises(LearningError, match="does not tell goal, by which pictures are learned: set .*auxiliary=0"):
        next(learner.cloning.seeing.learn(blind, learner.run.rewards, 1))
    with pytest.raises(ValueError, match="auxiliary must be at least 0"):
        EyesConfig(auxiliary=-1.0)


def test_an_action_goes_on_from_the_one_before():
    rng = np.random.default_rng(0)
    base = Onward(3, 5, 0.25, [3, 4], np.array([-0.4, 0.0], np.float32), np.array([0.4, 8.0], np.float32))
    observation = rng.normal(size=(50, 5)).astype(np.float32)
    observation[:, 3:] = rng.uniform((-0.4, 0.0), (0.4, 8.0), (50, 2))
    chunk = base.sample(observation, 3.0 * rng.normal(size=(50, 6)).astype(np.float32)).reshape(50, 3, 2)
    before = (observation[:, 3:] - [-0.4, 0.0]) / [0.4, 4.0] - 1.0
    jumps = np.diff(np.concatenate([before[:, None], chunk], axis=1), axis=1)
    assert np.abs(chunk).max() <= 1.0 and 0.2499 < np.abs(jumps).max() < 0.2501
    noise = base.chosen(observation, chunk.reshape(50, 6))
    np.testing.assert_allclose(base.sample(observation, noise), chunk.reshape(50, 6), atol=1e-5)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SeenConfig(change=3.0), r"change, of an action in \[-1, 1\], must be between 0 and 2, got 3.0"),
        (lambda: Rlpd(ToyReach(), RlpdConfig(base=SeenConfig(change=0.1)), 0), "which velocity it told last"),
        (lambda: Rlpd(ToyReach(), RlpdConfig(every_step=True, task_reward=1.0), 0), "every_step=true keeps no"),
        (lambda: Rlpd(ToyReach(), RlpdConfig(hindsight=2, task_reward=1.0), 0), "what a task pays under another goal"),
        (lambda: RlifConfig(task_reward=1.0), "RLIF's reward is that nobody intervenes"),
        (lambda: EyesConfig(episodes=0), "needs episodes >= 1 and batch_size >= 1, got 0 and 64"),
    ],
)
def test_what_does_not_fit_is_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()

"""Critics that see what is privileged: the policy does not, its file neither, and a run continues exactly."""

import dataclasses

import numpy as np
import pytest
import torch

from policies import collect
from policies.algorithms import LearningError
from policies.algorithms.bc import BaseConfig, Bc
from policies.algorithms.dsrl import Dsrl
from policies.algorithms.dsrl_na import DsrlNa
from policies.algorithms.rlif import Rlif
from policies.algorithms.rlpd import Rlpd
from policies.datasets import Dataset, Writer
from policies.learning.asymmetric import AsymmetricObservation
from policies.learning.base import Origin
from policies.learning.networks import Normalizer
from policies.models.export import export
from policies.models.vision import EncoderConfig
from sim.env import NoExpertError
from sim.spec import Signal
from tests.policies.algorithms.test_rlpd import small as rlpd_small
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

SIGHT = EncoderConfig(channels=[6, 6], strides=[2, 1], shift=0)
BASE = BaseConfig(horizon=2, hidden=[32, 32], updates=20, episodes=12, corruption=1.4, batch_size=128, sight=SIGHT)


def small(kind, **changes):
    quick = {
        "total_steps": 400,
        "warmup_episodes": 2,
        "head_start": 8,
        "batch_size": 16,
        "hidden": [16],
        "critic_updates": 1,
    }
    return kind.Config(**{"base": BASE, **quick, **changes})


def test_who_sees_what():
    measured = (Signal("position", (2,), "m"),)
    insight = AsymmetricObservation(measured, 5, (Signal("goal", (3,), "m"),))
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_array_equal(insight.policy(x), x[:, :5])
    np.testing.assert_array_equal(insight.judge(torch.from_numpy(x)).numpy(), x[:, [0, 1, 5, 6, 7]])
    assert (insight.size, insight.judged) == (8, 5)
    usual = Normalizer(5)
    usual.update(torch.from_numpy(x[:, :5]))
    insight.normalizer.update(torch.from_numpy(x[:, 5:]))
    np.testing.assert_allclose(insight.normalised(x, usual).numpy(), [[-1.0] * 8, [1.0] * 8])
    assert insight.where() == {"position": slice(0, 2), "goal": slice(5, 8)}
    alike = AsymmetricObservation(measured, 5)
    assert (alike.size, alike.judged) == (5, 5) and alike.judge(torch.from_numpy(x)).shape == (2, 8)


@pytest.mark.parametrize("kind", [Dsrl, DsrlNa])
def test_it_continues_exactly_and_the_file_is_told_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = kind(ToySight(), small(kind, total_steps=200), 0)
    rows, others = learned(whole, lambda: kind(ToySight(), small(kind, total_steps=200), 1))
    second = others[next(k for k, row in enumerate(rows) if row["env_steps"] >= 100.0)]
    assert [*second.learn()][-1] == rows[-1] and rows[-1]["env_steps"] == 200.0
    for controller in (whole.controller(), *whole.baselines().values()):
        assert {s.name for s in export(controller, tmp_path / "policy.onnx").inputs} == {"position", "camera"}
    assert [*whole.baselines()] == ["random noise", "cut noise", "no noise"]


def test_critics_learn_from_where_the_goal_is_and_from_no_picture():
    learner = DsrlNa(ToySight(), small(DsrlNa), 0)
    list(learner.learn())
    batch = learner.memory.sample(200, learner.generator)
    goal = batch["x"][:, -2:] * learner.insight.normalizer.std + learner.insight.normalizer.shift
    assert goal.abs().max() < 1.001 and 0.4 < goal.std() < 0.7  # m; uniform between -1 and 1
    judged, without = learner.insight.judge(batch["x"]), batch["x"].clone()
    without[:, 2:-2] = 0.0  # the points
    assert torch.equal(judged, learner.insight.judge(without)) and judged.shape == (200, 4)
    assert not torch.equal(learner.insight.policy(batch["x"]), learner.insight.policy(without))


@pytest.mark.long
def test_steering_by_those_who_know_improves_what_only_sees():
    from tests.policies.models.test_vision import success

    quick = {
        "total_steps": 2400,
        "warmup_episodes": 15,
        "head_start": 150,
        "hidden": [48, 48],
        "prior_steps": 2000,
        "batch_size": 128,
    }
    base = dataclasses.replace(BASE, updates=350, episodes=80, learning_rate=4e-3, corruption=1.4)
    learner = Dsrl(ToySight(), small(Dsrl, base=base, critic_updates=2, **quick), 0)
    list(learner.learn())
    before, after = success(learner.baselines()["no noise"]), success(learner.controller())
    assert after > 0.6 and after > before + 0.2, (before, after)


def test_interveners_teach_them_too():
    learner = Rlif(ToySight(), small(Rlif), 0)
    rows = list(learner.learn())
    assert rows[-1]["env_steps"] == 400.0 and learner.memory.size > 0


def test_datasets_tell_them_unless_they_come_from_elsewhere(tmp_path):
    config = collect.Config(task="tests.policies.toy_sight:ToySight", out=str(tmp_path / "made"), episodes=12)
    config.corruption = 1.4
    collect.collect(ToySight(), config)
    kept = collect.stored(ToySight(), config.out, 12)
    made = {e.number: e for e in collect.demonstrate(ToySight(), 12, 0, 1.4)}
    for episode in kept:
        np.testing.assert_array_equal(episode.signals["goal"], made[episode.number].signals["goal"])
    learner = DsrlNa(ToySight(), small(DsrlNa, base=dataclasses.replace(BASE, demonstrations=config.out)), 0)
    next(learner.learn())
    assert learner.insight.normalizer.count == sum(len(e.reward) for e in kept)

    seen = {name: f for name, f in collect._features(ToySight()).items() if name != collect.PRIVILEGED}
    with Writer(tmp_path / "real", 10, seen, "point") as writer:
        for number in range(12):
            episode = Dataset(config.out).episode(number)
            writer.add_episode({name: episode[name] for name in seen}, "toy_sight")
    base = dataclasses.replace(BASE, demonstrations=str(tmp_path / "real"))
    with pytest.raises(LearningError, match="demonstration 0 does not tell 'goal', which critics are to see: set algo"):
        next(DsrlNa(ToySight(), small(DsrlNa, base=base), 0).learn())
    next(DsrlNa(ToySight(), small(DsrlNa, base=base, asymmetric=False), 0).learn())
    config.out, config.episodes = str(tmp_path / "real"), 14
    assert collect.collect(ToySight(), config)[0] == 14 and collect.PRIVILEGED not in Dataset(config.out).features


def test_lerobots_policies_do_not_take_for_an_input_what_is_privileged():
    named = collect._features(ToySight())
    inputs = {name for name in named if name.startswith("observation")}  # its dataset_to_policy_features
    assert collect.PRIVILEGED in named and inputs == {"observation.state", "observation.images.camera"}


def test_what_only_demonstrations_can_tell_is_asked_for(tmp_path):
    clone = Bc(ToySight(), Bc.Config(**vars(BASE)), 0)
    list(clone.learn())
    origin = Origin(horizon=2, policy=export(clone.controller(), tmp_path / "base.onnx").path)

    class Unshown(ToySight):
        def expert(self, signals):
            raise NoExpertError("nobody shows it")

    with pytest.raises(LearningError, match="nobody shows it; critics learn from demonstrations .*asymmetric=false"):
        list(Dsrl(Unshown(), small(Dsrl, base=origin), 0).learn())
    assert [*Dsrl(Unshown(), small(Dsrl, base=origin, asymmetric=False), 0).learn()][-1]["env_steps"] == 400.0


def test_learners_without_a_base_see_the_same_as_their_critics():
    class Knowing(ToyReach):
        policy, privileged = ToyReach.policy[:1], ToyReach.policy[1:]

    learner = Rlpd(Knowing(), rlpd_small(total_steps=400), 0)
    assert [*learner.learn()][-1]["env_steps"] == 400.0 and learner.memory.data["x"].shape[1] == 2

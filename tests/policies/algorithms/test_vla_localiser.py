"""The localiser in all that `vla` does: the flow's file, several learners, practice; on a toy."""

import copy
from contextlib import closing

import numpy as np
import pytest
import torch

from policies.algorithms.vla import Vla
from policies.algorithms.vla_rl import VlaRl
from policies.learning.vla.flow import FlowConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.export import export
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.env import make_env
from tests.policies.algorithms.test_vla_rl import cloned, few
from tests.policies.resumed import same
from tests.policies.toy_words import ToyObjects

# Added to all that a softmax weighs: gradients of rounding.
ALIKE = "attention.bias", "localiser.encoders.encoders.camera.2.bias"
OPEN, CLOSE = "open the drawer", "close the drawer"


@pytest.fixture(scope="module")
def task():
    return ToyObjects()


def localising(uncertainty=False, **settings):
    sight = EncoderConfig(channels=[4, 4], strides=[2, 2])
    own = EncoderConfig(channels=[4, 4], strides=[1, 1], shift=0)
    network = TinyConfig(
        width=16,
        layers=1,
        heads=2,
        keypoints=4,
        parallel=True,
        offsets=2,
        looks=False,
        sight=sight,
        localiser=own,
        uncertainty=uncertainty,
    )
    quick = {"grounding": 20, "localisation": 50, "episodes": 4, "learning_rate": 0.02, "network": network}
    return cloned(**quick | settings)


def looked(task, num=200):
    """What is seen as unseen episodes begin."""
    with closing(make_env(task, num, 77)) as env:
        env.reset(range(num), range(num))
        return env.observe() | {"square_position": env.squares.copy()}


def off(policy, seen):
    """By how many m squares are off, the median."""
    localised = policy.grounding.positions(torch.zeros(200, 2), {"camera": torch.from_numpy(seen["camera"])})
    return float((localised - torch.from_numpy(seen["square_position"])).norm(dim=-1).median())


def test_a_flow_acts_on_what_it_localises_and_so_does_its_file(task, tmp_path):
    flow = FlowConfig(readouts=2, hidden=[32, 32], steps=4, noise="none")
    made = Vla(task, localising(True, head="flow", updates=100, learning_rate=0.01, flow=flow), 0)
    rows = [*made.learn()]
    assert rows[-1]["loss"] < rows[-2]["loss"] and rows[-1]["localisation_error"] < 0.3
    policy = made.controller()
    file, state = export(policy, tmp_path / "policy.onnx"), policy.initial_state(2)
    file.reset(2)
    seen = {name: value[:2] for name, value in looked(task).items()}
    signals = {s.name: seen[s.name] for s in task.policy if s.name != "instruction"}
    moved = signals | {"camera": signals["camera"][:, ::-1].copy()}
    acted = []
    for sentences, shown in (([OPEN, CLOSE], signals), ([CLOSE, OPEN], signals), ([OPEN, CLOSE], moved)):
        told = shown | {"instruction": task.words.encode(sentences)[0]}
        wanted, state = policy.act(told, state)
        assert np.allclose(file.step(told)["velocity"], wanted["velocity"], atol=1e-5)
        acted.append(wanted["velocity"])
    assert not np.allclose(acted[0], acted[1], atol=1e-3) and not np.allclose(acted[0], acted[2], atol=1e-3)


def test_errors_that_were_not_expected_leave_the_gradient_of_positions_as_it_is(task):
    def gradients(expected):
        made = Vla(task, localising(True, localisation=1, grounding=1), 0)
        localiser = made.grounding.localiser
        torch.nn.init.constant_(localiser.uncertainty[-1].bias, expected)
        for _ in zip(range(2), made.learn(), strict=False):
            pass
        assert made.stages[1].over
        named = [(name, value.grad) for name, value in localiser.named_parameters()]
        return [[value for name, value in named if name.startswith("uncertainty") is which] for which in (False, True)]

    (usual, _), (steep, head) = gradients(0.0), gradients(-6.0)
    torch.testing.assert_close(steep, usual)
    assert torch.nn.utils.get_total_norm(head) < 1.001


@pytest.mark.parametrize("micro_batch", [0, 4])
def test_shares_of_what_the_localiser_learns_change_nothing_but_the_order_of_sums(task, micro_batch):
    whole, parted = (
        Vla(task, localising(updates=1, localisation=8, batch_size=9, micro_batch=micro_batch, shares=shares), 0)
        for shares in (1, 3)
    )

    def learned(made):
        named = [(name, value) for name, value in made.grounding.named_parameters() if name not in ALIKE]
        return [value.detach().clone() for _, value in named]

    begun = learned(whole)
    rows = [[*made.learn()] for made in (whole, parted)]
    for one, other in zip(*rows, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    ours, theirs = learned(whole), learned(parted)
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=3e-5)
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in zip(begun, ours, strict=True))


def test_in_practice_the_localiser_learns_on(task):
    learner = VlaRl(task, few(clone=localising(), iterations=6, localisation=100), 0)
    rows = [row for row in learner.learn() if "success" in row]
    clone, seen = learner.cloning.average, looked(task)
    assert all(row["localisation_error"] > 0.0 for row in rows)
    for practised in (learner.improvement.policy, learner.improvement.average):
        assert off(practised, seen) < 0.8 * off(clone, seen)
    assert learner.controller().policy is learner.improvement.average


def test_the_clone_is_asked_what_it_would_do_where_objects_are_localised_now(task):
    settings = {"clone": localising(updates=100), "iterations": 2, "critic_alone": 0, "localisation": 20}
    learner = VlaRl(task, few(**settings, learning_rate=1e-9, anchor=1.0), 0)  # nothing but the localiser learns
    rows = [row for row in learner.learn() if "success" in row]
    before, after = (
        some.grounding.positions(torch.zeros(200, 2), {"camera": torch.from_numpy(looked(task)["camera"])})
        for some in (learner.cloning.average, learner.improvement.policy)
    )
    assert float((before - after).norm(dim=-1).median()) > 0.02
    assert rows[-1]["clone_kl"] < 1e-5


def test_in_practice_it_stays_as_it_is_where_it_is_not_to_learn(task):
    learner = VlaRl(task, few(clone=localising(), iterations=2, localisation=0), 0)
    rows = [row for row in learner.learn() if "success" in row]
    assert not any("localisation_error" in row for row in rows)
    localiser = learner.cloning.average.grounding.localiser.state_dict()
    same(localiser, learner.improvement.policy.grounding.localiser.state_dict())


def test_practice_goes_on_exactly_from_where_it_was_saved(task, tmp_path):
    whole, first = (VlaRl(task, few(clone=localising(True), iterations=3, localisation=5), 0) for _ in range(2))
    rows = [*whole.learn()]
    for _ in zip(range(len(rows) - 1), first.learn(), strict=False):
        pass
    assert first.stage() == "it practises"
    checkpoint.save(tmp_path / "checkpoint.npz", copy.deepcopy(first.state_dict()))
    # Whatever it drew must be overwritten.
    second = VlaRl(task, few(clone=localising(True), iterations=3, localisation=5), 1)
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*second.learn()] == rows[-1:]
    same(whole.state_dict(), second.state_dict())


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="localisation must not be negative"):
        few(localisation=-1)

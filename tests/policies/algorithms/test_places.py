"""Agents that come and go: what empty places show teaches nobody anything, and who leaves is done."""

import numpy as np
import pytest

from policies.algorithms import check_needs
from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.sac import Sac
from policies.runner import checkpoint
from sim.tasks import make
from tests.policies.toy_places import AWAY, STAY, PlacesConfig, ToyPlaces

TOY = "tests.policies.toy_places:ToyPlaces"
TINY = {"num_envs": 12, "rollout_steps": 24, "epochs": 2, "minibatches": 2, "hidden": [16], "critic_hidden": [16]}


def learner(path: str, rubbish: int = 0, **settings):
    return Ppo(
        ToyPlaces(PlacesConfig(rubbish)), PpoConfig(**{**TINY, "path": path, "evaluate_every": 0, **settings}), 3
    )


def learned(path: str, rubbish: int):
    algorithm = learner(path, rubbish, total_steps=12 * 24 * 3, evaluation_episodes=1)
    metrics = list(algorithm.learn())
    return algorithm.controller(), metrics


@pytest.mark.parametrize("path", ["fused", "torch"])
def test_nothing_is_learned_from_empty_places(path: str):
    (one, told), (other, again) = learned(path, 0), learned(path, 1)
    seen = {"wanted": np.linspace(-1.0, 1.0, 9, dtype=np.float32)[:, None]}
    np.testing.assert_array_equal(
        one.act(seen, one.initial_state(9))[0]["made"], other.act(seen, other.initial_state(9))[0]["made"]
    )
    for ours, theirs in zip(told, again, strict=True):
        assert ours["reward"] == theirs["reward"] and ours["loss"] == theirs["loss"]
        assert -4.0 < ours["reward"] < 0.0


def test_a_stay_is_an_episode():
    algorithm = learner("fused")
    metrics = next(algorithm.learn())
    assert 1 <= metrics["episode_length"] <= STAY
    samples, counted = algorithm.path.rollouts.samples, algorithm.path.rollouts.counted
    there = ((np.arange(24)[:, None] + 4 * np.arange(12)) % (STAY + AWAY) < STAY).ravel()
    np.testing.assert_array_equal(np.sort(counted), np.flatnonzero(there))
    leaves = there & ~np.roll(there, -12)
    assert (samples.ended[np.flatnonzero(leaves)[:-12]] == -2).all()  # nothing is to come
    assert (samples.ended[np.flatnonzero(there & np.roll(there, -12))[:-12]] == -1).all()


def test_it_continues_exactly(tmp_path):
    whole, first, second = (learner("fused", total_steps=12 * 24 * 4) for _ in range(3))
    for _, metrics in zip(range(2), first.learn(), strict=False):
        assert np.isfinite(metrics["loss"])
    checkpoint.save(tmp_path / "c.pt", first.state_dict())
    second.load_state_dict(checkpoint.load(tmp_path / "c.pt"))
    *_, expected = (metrics for _, metrics in zip(range(3), whole.learn(), strict=False))
    assert next(second.learn())["loss"] == pytest.approx(expected["loss"])


def test_who_cannot_says_so():
    with pytest.raises(ValueError, match="algorithm=sac does not take agents that come and go, which toy_places has"):
        check_needs("sac", Sac, make(TOY))
    with pytest.raises(ValueError, match="toy_places's agents come and go, set algorithm.network=mlp"):
        learner("fused", network="gru", hidden=[16, 16])

"""The score-based kind of base: its sampler is EDM's, its levels are drawn as said, and three steps find the action."""

import numpy as np
import pytest
import torch

from policies.algorithms.bc import BaseConfig, Bc, BcConfig, Cloning
from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.learning import edm
from policies.learning.demonstrations import Demonstrations
from policies.models.chunking import Denoiser
from tests.policies.algorithms.test_expo import agree
from tests.policies.models.test_chunking import base
from tests.policies.models.test_realtime import either_way
from tests.policies.toy_reach import ToyReach


def network(made: Denoiser, seen, x, time):
    """What the base's network says at one time, from its first layer as it was trained."""
    k = int(np.abs(made.schedule.time - time).argmin())
    return made._forward(seen @ made.see.T + x @ made.look.T + made.bias[k])


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_the_sampler_is_eulers_method_on_the_probability_flow(steps):
    made = base("beso", steps=steps)
    rng = np.random.default_rng(0)
    seen, noise = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)
    levels = np.geomspace(3.0, 0.005, steps) if steps > 1 else np.array([3.0])
    x = levels[0] * noise
    for k, level in enumerate(levels):
        total = level**2 + 0.25
        time = np.log(level / 0.005) / np.log(3.0 / 0.005)
        believed = 0.25 / total * x + level * 0.5 / total**0.5 * network(made, seen, x / total**0.5, time)
        slope = (x - believed) / level
        x = x + ((levels[k + 1] if k + 1 < steps else 0.0) - level) * slope
    assert np.abs(made.sample(seen, noise) - x.clip(-1.0, 1.0)).max() < 1e-5
    assert made.schedule.steps == steps and not made.schedule.clip


def test_levels_are_log_logistic_between_their_bounds():
    level = edm.drawn(torch.linspace(0.0, 1.0, 10_001)).numpy()
    assert np.isclose(level[0], 0.005, rtol=1e-3) and np.isclose(level[-1], 3.0, rtol=1e-3)

    def share(s):
        return 1.0 / (1.0 + (0.5 / s) ** 2.0)

    for quantile in (0.1, 0.5, 0.9):
        low, high = share(0.005), share(3.0)
        assert abs(share(np.quantile(level, quantile)) - (low + quantile * (high - low))) < 1e-3


def test_a_perfect_network_says_the_action_at_every_level():
    """From what it sees and what it is to say, the preconditioning gives the action back."""
    generator = torch.Generator().manual_seed(0)
    chunk, noise = torch.rand(50, 6, generator=generator) * 2.0 - 1.0, torch.randn(50, 6, generator=generator)
    uniform = torch.rand(50, generator=generator)
    seen, wanted, time = edm.noised(chunk, noise, uniform)
    level = edm.drawn(uniform)[:, None]
    skip, out, into = edm.preconditioning(level)
    assert torch.allclose(skip * seen / into + out * wanted, chunk, atol=2e-5)
    assert torch.allclose(0.005 * 600.0 ** time[:, None], level, rtol=1e-4)
    assert seen.std() < 1.5 and 0.5 < wanted.std() < 1.5  # what preconditioning is for


def test_three_steps_find_both_ways():
    """Demonstrations go to one of two sides, whatever is seen."""
    config = BaseConfig(kind="beso", horizon=2, denoise_steps=3, hidden=[48, 48], updates=1500)
    cloning = Cloning(ToyReach(), config, torch.Generator().manual_seed(0))
    seen, side = either_way(np.random.default_rng(0))
    list(cloning.learn(Demonstrations(seen, np.repeat(side, 4, axis=1))))
    chunk = cloning.denoiser().sample(seen[:500], np.random.default_rng(1).normal(size=(500, 4)).astype(np.float32))
    left = (chunk < 0.0).mean(axis=1)
    assert np.mean(np.abs(np.abs(chunk) - 0.6)) < 0.25
    assert 0.35 < np.mean(left == 1.0) < 0.65 and np.mean((left == 0.0) | (left == 1.0)) > 0.9


def test_it_continues_exactly():
    def made():
        small = {"horizon": 2, "hidden": [16], "updates": 200, "episodes": 10, "corruption": 0.3}
        config = BcConfig(kind="beso", goal_dropout=0.3, guidance=0.5, delay=1, **small)
        return Bc(ToyReach(), config, 0)

    whole, first, second = made(), made(), made()
    rows = list(whole.learn())
    next(first.learn())
    second.load_state_dict(first.state_dict())
    assert list(second.learn())[-1] == rows[-1] and rows[-1]["loss"] < rows[0]["loss"]
    for a, b in zip(whole.cloning.average.parameters(), second.cloning.average.parameters(), strict=True):
        assert torch.equal(a, b)


def test_it_is_steered_like_any_base(tmp_path):
    config = BaseConfig(kind="beso", denoise_steps=3, horizon=2, hidden=[16], updates=20, episodes=10, corruption=0.3)
    config.goal_dropout, config.guidance = 0.2, 1.0
    tiny = {"warmup_episodes": 2, "head_start": 8, "batch_size": 16, "hidden": [16], "prior_steps": 400}
    learner = Dsrl(ToyReach(), DsrlConfig(base=config, total_steps=400, **tiny), 0)
    assert list(learner.learn())[-1]["progress"] == 1.0
    agree(learner.controller(), tmp_path / "policy.onnx", np.random.default_rng(0))

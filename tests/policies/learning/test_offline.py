"""Learning offline: CQL, Cal-QL and IQL do what their papers define, learn, and continue exactly."""

import math

import pytest
import torch

from policies.algorithms.wsrl import Wsrl, WsrlConfig
from tests.policies.algorithms.test_dsrl import success
from tests.policies.algorithms.test_wsrl import QUICK, small, weights
from tests.policies.toy_reach import ToyReach


def rows(learner, n, returns):
    drawn = {"x": 4, "w": 4, "reward": 1, "discount": 1, "next_x": 4}
    batch = {name: torch.randn(n, size, generator=learner.generator) for name, size in drawn.items()}
    return batch | {"value": torch.full((n, 1), returns)}


@pytest.mark.parametrize("kind", ["cql", "calql"])
def test_the_gap_is_the_definition(kind):
    """In plain loops; with Cal-QL the actor's choices count as much as what was really got, at least."""
    learner = Wsrl(ToyReach(), small(pretrain=kind, samples=3), 0)
    batch, critics = rows(learner, 5, 0.1), learner.critics.ensemble
    chosen = torch.randn(2, 5, 4, generator=learner.generator)
    with torch.no_grad():
        values = critics(torch.cat([batch["x"], batch["w"]], -1))
        state = learner.generator.get_state()
        gap = learner.pretraining.gap(batch, chosen, values)
        learner.generator.set_state(state)
        random = 2.0 * torch.rand(3, 5, 4, generator=learner.generator) - 1.0
        wanted = 0.0
        for row in range(5):
            x = batch["x"][row]
            own = [critics(torch.cat([x, choice[row]])[None])[:, 0] for choice in chosen]
            least = [value.clamp_min(0.1) if kind == "calql" else value for value in own]
            rest = [critics(torch.cat([x, choice[row]])[None])[:, 0] for choice in random]
            everything = torch.stack([*least, *rest, values[:, row]])
            wanted += float((everything.exp().mean(0).log() - values[:, row]).sum()) / 5
    assert math.isclose(float(gap), wanted, rel_tol=1e-4, abs_tol=1e-5)


@pytest.mark.parametrize(
    ("kind", "returns", "pushed"), [("calql", 9.0, False), ("calql", -9.0, True), ("cql", 9.0, True)]
)
def test_only_cal_ql_leaves_values_below_the_returns_alone(kind, returns, pushed):
    learner = Wsrl(ToyReach(), small(pretrain=kind), 0)
    batch = rows(learner, 20, returns)
    chosen = torch.randn(2, 20, 4, generator=learner.generator, requires_grad=True)
    values = learner.critics.ensemble(torch.cat([batch["x"], batch["w"]], -1))
    (slope,) = torch.autograd.grad(learner.pretraining.gap(batch, chosen, values), chosen)
    assert bool(slope.any()) == pushed


def test_cql_values_what_was_recorded_above_the_rest():
    learner = Wsrl(ToyReach(), small(pretrain="cql", imitation=0.0, learning_rate=5e-3, hidden=[48, 48]), 0)
    batch = rows(learner, 64, 0.0) | {"reward": torch.zeros(64, 1), "discount": torch.zeros(64, 1)}
    for _ in range(200):
        learner.pretraining.update(batch)
    with torch.no_grad():
        recorded, other = (
            learner.critics.ensemble(torch.cat([batch["x"], w], -1)).mean()
            for w in (batch["w"], 2.0 * torch.rand(64, 4, generator=learner.generator) - 1.0)
        )
    assert recorded > other + 0.3, (recorded, other)


def test_iql_is_an_expectile_and_imitates_what_was_better():
    """In one state half of the choices got 10 and half nothing."""
    learner = Wsrl(ToyReach(), small(pretrain="iql", learning_rate=3e-3), 0)
    good = torch.arange(64)[:, None] % 2 == 0
    batch = {"x": torch.ones(64, 4), "next_x": torch.ones(64, 4), "w": torch.where(good, 0.5, -0.5).expand(64, 4)}
    batch |= {"reward": 10.0 * good.float(), "discount": torch.zeros(64, 1), "value": torch.zeros(64, 1)}
    for _ in range(400):
        learner.pretraining.update(batch)
    with torch.no_grad():
        value, (mean, _) = learner.pretraining.value(batch["x"][:1])[0, 0], learner.training.actor(batch["x"][:1])
    assert abs(float(value) - 7.0) < 0.7  # 0.7 * (10 - v) = 0.3 * v
    assert bool((mean > 0.4).all()), mean


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("cql", marks=pytest.mark.long), "iql"])
def test_they_learn_from_demonstrations_and_continue_exactly(kind):
    task = ToyReach()
    whole = Wsrl(task, small(base=QUICK.base, pretrain=kind, batch_size=64, hidden=[48, 48], offline_updates=300), 0)
    running = whole.learn()
    next(running)
    second = Wsrl(task, whole.config, 0)
    second.load_state_dict(whole.state_dict())
    for _ in range(3):
        next(running)
    again = second.learn()
    for _ in range(3):
        next(again)
    assert torch.equal(weights(whole), weights(second)) and whole.offline == 300
    untrained = Wsrl(task, whole.config, 0)
    untrained.cloning.normalizer = whole.cloning.normalizer
    before = success(task, untrained.baselines()["before practice"], 50)
    after = success(task, whole.baselines()["before practice"], 100)
    assert after > before + 0.1, (before, after)


def test_settings_of_learning_offline_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="pretrain 'bc' is not one of calql, cql, iql"):
        WsrlConfig(pretrain="bc")
    with pytest.raises(ValueError, match="needs 0.5 <= expectile < 1, got 1.0"):
        WsrlConfig(expectile=1.0)
    with pytest.raises(ValueError, match="needs offline_updates >= 1 and samples >= 1, got 0 and 2"):
        WsrlConfig(offline_updates=0)

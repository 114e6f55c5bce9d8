"""Learning a game in a league: against whom, how often, and that a run continues exactly."""

import numpy as np
import pytest

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.ppo.league import KEPT, LATEST, League
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.env import make_env
from sim.tasks import make

FEW = {
    "num_envs": 64,
    "rollout_steps": 16,
    "hidden": [16, 16],
    "critic_hidden": [16],
    "league": True,
    "league_every": 2,
}


def player(seed: int) -> FeaturePolicy:
    task, rng = make("soccer_1v1"), np.random.default_rng(seed)
    inputs = sum(s.size for s in task.policy)
    return FeaturePolicy.from_task(task, Mlp([(rng.normal(0.0, 0.5, (3, inputs)), np.zeros(3))]))


def test_a_games_number_decides_whom_it_is_played_against():
    league = League(make("soccer_1v1"), 0)
    drawn = [league.drawn(k) for k in range(4000)]
    assert drawn == [league.drawn(k) for k in range(4000)]
    share = np.bincount(drawn, minlength=6) / 4000
    assert share[0] == pytest.approx(LATEST, abs=0.03)
    assert share[1:] == pytest.approx([0.14] * 5, abs=0.03)
    for _ in range(300):
        league.judge(2, 1.0)
        league.judge(5, 0.0)
    share = np.bincount([league.drawn(k) for k in range(4000)], minlength=6) / 4000
    assert share[2] < 0.04 and share[5] < 0.04 and share[3] > 0.18  # neither who always loses nor who always wins


def test_the_other_team_is_played_by_whom_the_league_says():
    task = make("soccer_1v1")
    league = League(task, 0)
    first, second = player(1), player(2)
    league.meet(first, keep=True)
    league.meet(second, keep=False)
    env = make_env(league.training(), 400, 0)
    env.reset(range(400), range(400))
    seen = env._of(slice(1, None))
    env.step({s.name: np.zeros((400, s.size), np.float32) for s in task.commands})
    who = env.opponent.who
    assert set(who) == set(range(6))
    told = env.opponent.act(seen, np.arange(400), np.zeros(400, bool))
    for k, policy in enumerate((second, first)):
        rows = who == k
        expected, _ = policy.act({name: value[rows] for name, value in seen.items()}, {})
        np.testing.assert_allclose(told["drive"][rows], expected["drive"], atol=1e-6)
    for k, play in enumerate(task.opponents.values(), 2):
        rows = who == k
        np.testing.assert_array_equal(told["turn"][rows], play({n: v[rows] for n, v in seen.items()})["turn"])


def test_it_remembers_so_many():
    league = League(make("soccer_1v1"), 0)
    for k in range(5 * KEPT):
        league.meet(player(k), keep=True, steps=10 * k)
        assert 1 <= len(league.past) <= KEPT and league.past[-1] is league.latest
        assert any(policy is league.partner for policy in league.past)
    kept = league.snapshots()
    assert [*kept] == sorted(kept) and next(iter(kept)) == 0 and [*kept][-1] == 10 * (5 * KEPT - 1)
    for steps, policy in kept.items():
        np.testing.assert_array_equal(policy.network.layers[0][0], player(steps // 10).network.layers[0][0])
    other = League(make("soccer_1v1"), 1)
    other.load_state_dict(league.state_dict(), player(0))
    assert [*other.snapshots()] == [*kept]


@pytest.mark.parametrize("network", ["mlp", pytest.param("gru", marks=pytest.mark.long)])
def test_a_run_continues_exactly(network: str):
    config = PpoConfig(**FEW, network=network, total_steps=64 * 16 * 6, evaluate_every=0, evaluation_episodes=4)
    task = make("soccer_1v1", steps=20)
    straight, first, second = (Ppo(task, config, 3) for _ in range(3))
    metrics = [*straight.learn()]
    assert {"points_latest", "points_past", "points_still", "points_chaser"} <= metrics[-1].keys()
    learning = first.learn()
    for _ in range(3):
        next(learning)
    second.load_state_dict(first.state_dict())
    rest = [*second.learn()]
    assert [*second.snapshots()] == [*straight.snapshots()] == [0, 2048, 4096]
    for before, after in zip(metrics[3:], rest, strict=True):
        assert before == pytest.approx(after, rel=1e-6, abs=1e-9)


def test_who_cannot_says_so():
    with pytest.raises(ValueError, match="arm_reach has no opponents to learn against"):
        Ppo(make("arm_reach"), PpoConfig(**FEW), 0)
    with pytest.raises(ValueError, match="league is learned by the fused path only: not algorithm.path=torch"):
        Ppo(make("soccer_1v1"), PpoConfig(**FEW, path="torch"), 0)
    with pytest.raises(ValueError, match="league_every must be at least 1, got 0"):
        PpoConfig(**{**FEW, "league_every": 0})


@pytest.mark.long
def test_it_learns_to_beat_who_stands_still():
    task = make("soccer_1v1", opponent="still")
    recipe = {name.removeprefix("algorithm."): value for name, value in task.recipes["ppo"]["default"].items()}
    config = PpoConfig(**{**recipe, "total_steps": 3_000_000, "num_envs": 512})
    assert [*Ppo(task, config, 0).learn()][-1]["success"] > 0.5

"""Swarms among pillars: where those stand, what vehicles are told of them, what a touch does, who flies around them."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from policies.runner.report import Report, _flown
from sim.env import make_env
from sim.tasks import make
from sim.tasks.swarm import PILLARS, QuadSwarm, places
from sim.tasks.swarm.world import FREE, Swarm


def opened(worlds: int = 2, seed: int = 0, **settings: object) -> Swarm:
    task: QuadSwarm = make("quad_swarm", **{"vehicles": 4, "obstacles": 3, "vary": False, **settings})
    env: Any = make_env(task, worlds * task.agents, seed, several=True)
    env.reset(range(env.num), np.repeat(range(worlds), task.agents).tolist())
    return cast(Swarm, env)


@pytest.mark.parametrize("mode", ["crossing", "sphere", "formation"])
def test_pillars_stand_where_nobody_begins_or_is_to_be(mode: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        start, goal, drift = places.draw(mode, 8, 2.0, rng)
        found = places.pillars(6, 0.15, 2.0, start, goal, np.tile(10.0 * drift, (8, 1)), rng)
        there = found[found[:, 2] > 0.0]
        assert len(there) >= 1 and (found[found[:, 2] == 0.0] == 0.0).all()
        for x, y, radius in there:
            for share in np.linspace(0.0, 1.0, 11):
                for where in (start, goal + 10.0 * share * drift):
                    gap = np.linalg.norm(where[:, :2] - (x, y), axis=1).min() - radius
                    assert gap > places.CLEAR - 1e-3
        apart = np.linalg.norm(there[:, None, :2] - there[None, :, :2], axis=-1)[np.triu_indices(len(there), 1)]
        assert (apart > places.PASSAGE + 0.3).all()
    nowhere = places.pillars(2, 0.5, 0.1, start, start, 0.0 * start, rng)
    assert (nowhere == 0.0).all()  # no room


def test_an_episode_has_its_own_pillars_and_the_flight_is_otherwise_as_it_was() -> None:
    env, again, without = opened(), opened(), opened(obstacles=0)
    np.testing.assert_array_equal(env._pillars, again._pillars)
    assert not np.array_equal(env._pillars[0], env._pillars[1])
    np.testing.assert_array_equal(env.truth()["position"], without.truth()["position"])
    assert "obstacles" not in without.truth() and "obstacles" in {s.name for s in env.task.policy}
    few = opened(1)
    few.reset(range(4), [1] * 4)
    np.testing.assert_array_equal(few._pillars[0], env._pillars[1])


def test_a_touch_ends_it_and_says_so() -> None:
    env = opened(1)
    env._pillars[0] = [[0.0, 0.0, 0.15], [1.0, 0.0, 0.15], [0.0, 0.0, 0.0]]
    state = {"position": [[-0.35, 0, 1.5], [3, 0, 1.5], [3, 1, 1.5], [3, 2, 1.5]], "linear_velocity": [[2, 0, 0]] * 4}
    state["rotor_speed"] = np.full((4, 4), env.task.robot.hover_command)
    env.flight.reset(None, {name: np.asarray(value, np.float32) for name, value in state.items()})
    env._look()
    seen = env.truth()
    np.testing.assert_allclose(seen["obstacles"][0].reshape(PILLARS, 3), [[0.2, 0, 0], [1.2, 0, 0]], atol=1e-5)
    np.testing.assert_allclose(seen["pillars"][0], [0.35, 0, 0.15, 1.35, 0, 0.15, 0, 0, 0], atol=1e-6)
    hover = {"motor_command": np.full((4, 4), env.task.robot.hover_command, np.float32)}
    for _ in range(12):
        step = env.step(hover)
        if step.terminated.any():
            break
    assert step.terminated.tolist() == [True, False, False, False] and step.terms["touched"].tolist() == [1, 0, 0, 0]
    now = env.truth()
    assert now["obstacle_gap"][0] < env.task.robot.extent and now["obstacle_gap"].max() <= FREE
    assert step.terms["crowd"][0] > 0.3 and step.terms["crowd"][1] == 0.0
    log = {name: np.stack([value, value]) for name, value in now.items()}
    log |= {"success": np.zeros((2, 4, 1)), "terminated": np.stack([step.terminated[:, None]] * 2)}
    score = env.task.score(log)
    assert score["touched"].tolist() == [1, 0, 0, 0] and not score["lost"].any()


def test_it_continues_from_what_was_saved() -> None:
    env, other = opened(vary=True), opened(vary=True, seed=1)
    for _ in range(5):
        env.step(env.task.expert(env.truth()))
    other.load_state_dict(env.state_dict())
    for _ in range(5):
        ours, theirs = (one.step(one.task.expert(one.truth())).reward for one in (env, other))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_who_avoids_others_avoids_pillars_and_who_flies_straight_does_not() -> None:
    touched = {}
    for name in ("avoiding", "straight"):
        env = opened(4, radius=1.5, obstacles=4, expert=name, episode_s=8.0)
        assert (env._pillars[:, :, 2] > 0.0).sum() >= 8
        gap, over = np.full(16, np.inf), np.zeros(16, bool)
        for _ in range(env.task.episode_steps):
            step = env.step(env.task.expert(env.truth()))
            gap = np.where(over, gap, np.minimum(gap, env.gap))
            over |= np.repeat((step.terminated | step.success).reshape(4, 4).any(axis=1), 4)
        touched[name] = float((gap < env.task.robot.extent).mean())
    assert touched["avoiding"] == 0.0 < 0.1 < touched["straight"]


@pytest.mark.parametrize(
    "settings", [{"obstacles": 9}, {"obstacles": -1}, {"obstacle_radius": 0.01}, {"obstacle_radius": float("nan")}]
)
def test_wrong_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="obstacles must be between 0 and 8, and obstacle_radius between 0.02 and 0.5"):
        make("quad_swarm", **settings)


def test_a_film_shows_the_pillars_of_the_first_airspace() -> None:
    env = opened(2)
    env._pillars[0, 2] = 0.0
    env._look()
    now = env.truth() | {name: np.zeros((8, 1), np.float32) for name in ("success", "terminated")}
    flight = {name: np.stack([value] * 3) for name, value in now.items()}
    report = SimpleNamespace(flight=flight, openings=None, agents=4, rate_hz=100.0, vehicle=env.task.robot)
    np.testing.assert_allclose(_flown(cast(Report, report))["pillars"], env._pillars[0, :2], atol=1e-5)

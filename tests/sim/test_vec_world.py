"""A task with its own world, as torch tensors for learners that act step by step."""

import numpy as np
import pytest
import torch

from sim.spec import Signal
from sim.tasks import make
from sim.vec_world import WorldVecEnv, vector_env
from tests.policies.toy_reach import Config, ToyReach
from tests.policies.toy_sight import ToySight, drawn


def toward_goal(observation):
    """Actions that bring every point to its goal."""
    seen = observation["policy"]
    return (4.0 * (seen["goal"] - seen["position"])).clamp(-1.0, 1.0)


def test_success_cuts_an_episode_off_and_the_next_one_begins():
    env = WorldVecEnv(ToyReach(), 5, seed=0)
    goals = env.observation["policy"]["goal"].clone()
    for _ in range(24):
        step = env.step(toward_goal(env.observation))
        for row in step.done.nonzero()[:, 0].tolist():
            last = step.final_observation["policy"]
            assert step.truncated[row] and not step.terminated[row]
            assert (last["position"][row] - last["goal"][row]).norm() < 0.1
            assert (step.observation["policy"]["goal"][row] != goals[row]).all()
            goals[row] = step.observation["policy"]["goal"][row]
    assert env._following > 5


def test_an_episode_may_linger_after_success_and_every_such_step_brings_more():
    env = vector_env(ToyReach(), 4, seed=0, linger=3, success_reward=5.0)
    again = vector_env(ToyReach(), 4, seed=0, linger=3, success_reward=5.0)
    since, cut = np.full(4, -1), 0
    for k in range(24):
        step = env.step(toward_goal(env.observation))
        reached = step.reward_terms["success"].numpy() > 0.0
        np.testing.assert_allclose(step.reward, step.reward_terms["reward"].numpy() + 5.0 * reached, atol=1e-6)
        since += reached | (since >= 0)
        over = step.truncated.numpy()
        assert over[since == 3].all() and (k == 23 or not over[(since >= 0) & (since < 3)].any())
        cut += int((since == 3).sum())
        since[step.done.numpy()] = -1
        if (env._since >= 0).any() and not again.total_steps:
            again.load_state_dict(env.state_dict())
            assert (again._since == env._since).all()
    assert cut > 3 and again.total_steps


def test_out_of_bounds_is_lost():
    env = WorldVecEnv(ToyReach(Config(steps=200)), 3, seed=0)
    outcomes = [env.step(torch.ones(3, 2)) for _ in range(40)]
    assert any(bool(step.terminated.any()) for step in outcomes)


def test_a_whole_episode_is_scored_and_seeds_differ():
    env = vector_env(ToyReach(), 20, seed=3)
    assert env.fly(toward_goal)["success"].mean() == 1.0
    first, other = (vector_env(ToyReach(), 20, seed).observation["policy"]["goal"] for seed in (3, 4))
    assert not torch.equal(first, other)


def test_pictures_stay_as_they_are_beside_the_numbers():
    env = WorldVecEnv(ToySight(), 3)
    assert env.feature_size == 2 and env.critic_size == 4  # the position; for critics the goal, too
    for _ in range(24):
        step = env.step(torch.zeros(3, 2))
    for observation in (step.observation, step.final_observation):
        shown = observation["pictures"]["camera"]
        goal, position = (observation[group][name] for group, name in (("privileged", "goal"), ("policy", "position")))
        assert shown.dtype == torch.uint8 and np.array_equal(shown, drawn(goal.numpy(), position.numpy()))
        assert observation["policy"].keys() == {"position"}
    assert step.done.all() and not torch.equal(shown, step.observation["pictures"]["camera"])


def test_tokens_are_refused():
    task = ToySight()
    task.policy = (*task.policy, Signal("words", (4,), low=0, high=99, dtype="int64"))
    with pytest.raises(ValueError, match=r"toy_sight tells its policy tokens \(words\); this algorithm learns from"):
        WorldVecEnv(task, 2)


def test_critics_see_what_is_privileged():
    task = make("arm_push")
    env = WorldVecEnv(task, 2)
    wide = sum(s.size for s in task.policy) + 3 * 3  # and three differences
    assert env.feature_size == env.critic_size == wide
    assert np.isfinite(env.features(env.observation).numpy()).all()

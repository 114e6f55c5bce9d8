"""SimEnv: what an episode is depends on its number and the seed alone; rewards, ends and noise are as declared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.conditions import Conditions
from sim.env import evaluation_env, make_env
from sim.randomize import Vary
from sim.robots.quadrotors import Quadrotor
from sim.simulation import SimEnv
from sim.simulation.draws import BLOCK
from sim.tasks import make


def commands(env, value=0.6):
    return {s.name: np.full((env.num, *s.shape), value, np.float32) for s in env.task.commands}


def flown(env, row, steps=30):
    """What is seen in a row under commands that differ from step to step."""
    seen = [env.observe()]
    for k in range(steps):
        env.step(commands(env, 0.5 + 0.01 * (k % 7)))
        seen.append(env.observe())
    return {name: np.stack([s[name][row] for s in seen]) for name in seen[0]}


@pytest.mark.parametrize("task", ["quad_hover", "quad_track", "quad_any"])
def test_an_episode_is_the_same_in_whatever_batch(task):
    made = make(task) if task != "quad_any" else make(task, robust=True)
    alone, many = make_env(made, 1, seed=3), make_env(made, 7, seed=3)
    alone.reset([0], [BLOCK + 5])
    many.reset(range(7), [9, 2, BLOCK + 5, 0, 1, 700, 3])
    ours, theirs = flown(alone, 0, 300), flown(many, 2, 300)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    assert all(np.isfinite(v).all() for v in ours.values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=9), st.integers(0, 12))
def test_a_row_that_begins_anew_leaves_the_others_alone(numbers, before):
    env, still = (SimEnv(make("quad_hover"), len(numbers) + 1, 1) for _ in range(2))
    for made in (env, still):
        made.reset(range(made.num), [7, *numbers])
    for k in range(before):
        for made in (env, still):
            made.step(commands(made, 0.4 + 0.01 * k))
    env.reset(range(1, env.num), [n + 1 for n in numbers])
    a, b = flown(env, 0, 5), flown(still, 0, 5)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)
    other = SimEnv(make("quad_hover"), 1, 1)
    other.reset([0], [numbers[0] + 1])
    env.reset([1], [numbers[0] + 1])
    for name, value in flown(other, 0, 5).items():
        np.testing.assert_array_equal(value, flown_again(env, name, 5, numbers[0] + 1), err_msg=name)


def flown_again(env, name, steps, number):
    env.reset([1], [number])
    return flown(env, 1, steps)[name]


@pytest.mark.parametrize("task", ["quad_hover", "quad_track"])
def test_a_step_in_one_pass_is_that_in_several(task):
    """Where a load is picked up, and in gusts, there are several."""
    whole, several = (make_env(make(task, variation="wide"), 21, seed=4) for _ in range(2))
    for env in (whole, several):
        env.reset(range(21), range(21))
    assert whole._whole is not None
    several._whole = None
    for k in range(40):
        made, wanted = (env.step(commands(env, 0.5 + 0.02 * (k % 7))) for env in (whole, several))
        np.testing.assert_array_equal(made.reward, wanted.reward)
        np.testing.assert_array_equal(made.terminated, wanted.terminated)
        for name, value in wanted.terms.items():
            np.testing.assert_array_equal(made.terms[name], value)
        ours, theirs = whole.observe() | whole.truth(), several.observe() | several.truth()
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value)
        for env in (whole, several):
            if k % 10 == 9:
                env.reset([3, 17], [100 + k, 200 + k])
            if k == 15:  # by somebody else
                env.engine.set_parameters(np.arange(21) == 5, {"mass": np.full((1, 1), 0.04, np.float32)})


@pytest.mark.parametrize("conditions", [Conditions(wind=5.0), Conditions(vary=True, gust=2.0, load=1.2, force=0.1)])
def test_conditions_of_an_episode_do_not_depend_on_the_one_before(conditions):
    used, fresh = (evaluation_env(make("quad_hover"), 2, 7, conditions) for _ in range(2))
    used.reset([0, 1], [0, 1])
    flown(used, 0, 260)
    used.reset([1], [2])
    fresh.reset([0, 1], [0, 2])
    ours, theirs = flown(used, 1), flown(fresh, 1)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_another_seed_is_another_episode():
    first, second = (SimEnv(make("quad_hover"), 1, seed) for seed in (0, 1))
    for env in (first, second):
        env.reset([0], [0])
    assert (first.observe()["position"] != second.observe()["position"]).all()


def test_the_policy_sees_noise_and_latency_the_truth_none_and_it_is_told_once_per_step():
    env = SimEnv(make("quad_hover"), 200, 0)
    env.reset(range(200), range(200))
    first, again, truth = env.observe(), env.observe(), env.truth()
    np.testing.assert_array_equal(first["position"], again["position"])
    assert (first["position"] - truth["position"]).std() == pytest.approx(0.001, rel=0.1)
    assert first["delay"].min() >= 0.0 and 1.5 < first["delay"].max() <= 2.2
    np.testing.assert_array_equal(first["target_position"], truth["target_position"])


def test_an_episode_ends_when_it_is_lost_and_succeeds_at_its_end_only():
    task = make("quad_hover")
    env = SimEnv(task, 2, 0)
    env.reset([0, 1], [0, 1])
    steps = []
    for _ in range(task.episode_steps):
        command = task.expert(env.observe())
        command["motor_command"][1] = 1.0  # this one climbs away
        steps.append(env.step(command))
    success, lost, reward = (np.stack([getattr(s, n) for s in steps]) for n in ("success", "terminated", "reward"))
    assert not success[:-1].any() and success[-1].tolist() == [True, False]
    assert not lost[:, 0].any() and lost[-1][1] and not lost[0][1]
    assert np.isfinite(reward).all() and reward[-1][0] > reward[-1][1]


def test_a_command_that_is_not_a_number_loses_its_row_and_no_other():
    env = SimEnv(make("quad_hover"), 3, 0)
    env.reset(range(3), range(3))
    command = commands(env)
    command["motor_command"][1, 2] = np.nan
    lost = [env.step(command).terminated for _ in range(5)][-1]
    assert lost.tolist() == [False, True, False]
    assert all(np.isfinite(value[[0, 2]]).all() for value in env.observe().values())


@pytest.mark.parametrize(("task", "share"), [("quad_hover", 0.95), ("quad_track", 0.75)])
def test_the_expert_without_memory_can_do_it(task, share):
    made = make(task)
    env = make_env(made, 100, 5)
    env.reset(range(100), range(100))
    for _ in range(made.episode_steps):
        step = env.step(made.expert(env.observe()))
    assert step.success.mean() > share


def test_rows_are_drawn():
    env = SimEnv(make("quad_hover"), 2, 0)
    env.reset([0, 1], [0, 1])
    pictures = [env.render(row, 60, 80) for row in range(2)]
    assert pictures[0].shape == (60, 80, 3) and (pictures[0] != pictures[1]).any()


class Painted(Quadrotor):
    """A vehicle with a parameter that no equation reads."""

    def parameters(self):
        return {"colour": np.array([1.0, 2.0], np.float32)} | super().parameters()


def test_a_parameter_of_ones_own_varies_too():
    task = make("quad_hover")
    task.robot = Painted(**vars(task.robot))
    task.vary = (*task.vary, Vary("colour", 0.5, 1.5))
    env = make_env(task, 3, seed=0)
    env.reset(range(3), range(3))
    env.step(commands(env))
    colour = env.engine.read("colour")
    assert len(np.unique(colour[:, 0])) == 3
    np.testing.assert_allclose(colour[:, 1], 2.0 * colour[:, 0])

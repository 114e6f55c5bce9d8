"""Rollouts in a compiled loop are those of `SimEnv`, step by step; in a world of its own those of the torch path."""

import numpy as np
import pytest
import torch

from policies.learning.fused import rollout, work_queue
from policies.learning.fused.collect import SPARE, TRAINING, Rollouts
from policies.learning.fused.network import Perceptron, room, vectors
from policies.learning.fused.stepped import Stepped
from policies.learning.fused.surrogate import GOES_ON, LOST, Scale
from sim import terms
from sim.engines.vector import rows as kernels
from sim.engines.vector.blocks import from_lanes
from sim.engines.vector.simd import LANES
from sim.engines.vector.tables import feature_runs
from sim.env import stream
from sim.simulation import SimEnv
from sim.simulation.draws import Practice
from sim.spec import size, slices, unpack
from sim.tasks import judged_costs, make
from sim.vec_world import WorldVecEnv
from tests.policies.toy_reach import ToyReach

TASKS = {
    "hover": ("quad_hover", {"history": 4}),
    "pushed": ("quad_hover", {"history": 1, "robust": True, "noise": 30.0}),
    "tracks": ("quad_track", {}),
    "any": ("quad_any", {}),
}


def flown(task, num, horizon, practice, seed=3):
    """A rollout under an actor with large random weights, and the two that follow it."""
    rollouts = Rollouts.of(task, num, horizon, seed, practice, 0.3)
    actions = size(task.commands)
    actor = Perceptron([rollouts.features, 16, actions], "tanh", np.random.default_rng(1), 1.0, task.initial_action)
    scale = Scale(room(vectors(rollouts.features)), room(vectors(rollouts.features)))
    scale.factor[:] = 1.0
    std = room(3 * vectors(actions))
    std[:1].reshape(-1)[:actions], std[1:2].reshape(-1)[:actions], std[2:].reshape(-1)[:actions] = (
        np.log(0.3),
        1.0,
        1 / 0.3,
    )
    return rollouts, lambda: rollouts.collect(actor, scale, std, actor.scratch(), work_queue.empty())


@pytest.mark.parametrize("kind", TASKS)
def test_the_compiled_loop_is_the_environment(kind):
    name, settings = TASKS[kind]
    task = make(name, **settings)
    num, horizon = 32, 100
    practice = Practice((0.02, 0.1), 0.5)
    rollouts, collect = flown(task, num, horizon, practice)
    env = SimEnv(task, num, stream(3, TRAINING), practice=practice)
    env.reset(range(num), range(num))
    where, measured, actions = slices(task.policy), size(task.policy), size(task.commands)
    where["history"] = slice(measured, measured + task.history * actions)
    table = feature_runs(task.features, where)
    following = np.zeros(2, np.int64)
    low, half = rollouts._low, rollouts._half

    def looked():
        seen, judged = (np.zeros((num, rollouts.features), np.float32) for _ in range(2))
        past = from_lanes(env._past, num)[:, : task.history * actions]
        kernels.features(*table, env.sensed(), past, seen)
        kernels.features(*table, np.ascontiguousarray(env._table[:, :measured]), past, judged)
        now = env.observe()
        costs = [terms.shown(cost.evaluate({**now, **env.truth()}))[:, None] for cost in judged_costs(task)]
        assert len(costs) == 4
        return seen, np.concatenate([judged, *(now[s.name].reshape(num, -1) for s in task.privileged), *costs], axis=1)

    def equal(known, judged):
        """Costs but for the last digit: compiled code fuses multiplications and additions."""
        np.testing.assert_array_equal(known[:, :-4], judged[:, :-4])
        np.testing.assert_allclose(known[:, -4:], judged[:, -4:], rtol=2e-6, atol=3e-7)

    for _ in range(2):
        collect()
        samples = rollouts.samples
        shown = samples.seen[: horizon * num * rollouts.widths[0]].reshape(horizon, num, -1)[:, :, : rollouts.features]
        known = samples.judged.reshape(len(samples.value), -1)[:, : rollouts.judged]
        chosen = samples.action.reshape(horizon, num, -1)[:, :, :actions]
        reward, ended = samples.reward.reshape(horizon, num), samples.ended.reshape(horizon, num)
        finals = lost = 0
        for t in range(horizon):
            seen, judged = looked()
            np.testing.assert_array_equal(shown[t], seen)
            equal(known[t * num : (t + 1) * num], judged)
            told = np.clip(chosen[t], -1.0, 1.0)
            step = env.step(unpack(task.commands, low + (told + np.float32(1.0)) * half))
            np.testing.assert_array_equal(reward[t], step.reward)
            over = env.steps >= env.limit
            np.testing.assert_array_equal(ended[t] == LOST, step.terminated)
            np.testing.assert_array_equal(ended[t] >= 0, over & ~step.terminated)
            late = np.flatnonzero(ended[t] >= 0)
            equal(known[ended[t][late]], looked()[1][late])
            finals, lost = finals + len(late), lost + step.terminated.sum()
            done = np.flatnonzero(ended[t] != GOES_ON)
            for row in done:
                block = row // LANES
                env.reset([row], [num + block + 2 * following[block]])
                following[block] += 1
        assert (finals > 3 and lost > 3) or kind == "any"
        assert (following > SPARE).all()  # more episodes than are ready at once
        equal(known[horizon * num : (horizon + 1) * num], looked()[1])


def test_vehicles_that_diverge_are_counted_written_down_and_begun_anew(tmp_path):
    rollouts, collect = flown(make("quad_hover"), 32, 10, Practice())
    rollouts.dump_dir = tmp_path / "diverged"
    rollouts.rows.state[1, 3, 5] = np.nan  # row 21
    metrics = collect()
    assert metrics["diverged"] == 1.0
    (path,) = rollouts.dump_dir.iterdir()
    with np.load(path) as kept:
        assert kept["row"] == 21 and np.isnan(kept["state"][3]) and np.isfinite(kept["command"]).all()
    samples = rollouts.samples
    assert samples.ended.reshape(10, 32)[0, 21] == LOST and np.isfinite(samples.judged).all()
    assert np.isfinite(samples.seen).all() and np.isfinite(samples.reward).all()
    assert collect()["diverged"] == 1.0


def test_the_curriculum_weighs_the_costs():
    rollouts, collect = flown(make("quad_hover", reward="l2f"), 16, 10, Practice())
    numbers = rollouts.rows.world.rules.numbers
    collect()
    before = numbers[:, 0].copy()
    assert before[0] == 2.5
    rollouts.steps = 100_000
    collect()
    np.testing.assert_allclose(numbers[:, 0], [3.0, before[1], 0.007, 0.007], rtol=1e-5)


def test_an_episode_may_linger_after_success_as_on_the_torch_path(monkeypatch):
    num, horizon, linger, more = 5, 58, 3, 2.0
    rollouts = Stepped(ToyReach(), num, horizon, 0, Practice((1.0, 1.0), 0.0), 0.0, 1, linger, more)

    def expert(first, n, actions, *others):
        seen = rollouts.env.observe()
        chosen = others[-2].action.reshape(num * horizon, -1)
        chosen[first : first + n, :actions] = ToyReach().expert(seen)["velocity"]

    monkeypatch.setattr(rollout, "act", expert)
    rollouts.collect(Perceptron([4, 8, 2], "tanh", np.random.default_rng(0)), None, None, None, work_queue.empty())
    env = WorldVecEnv(ToyReach(), num, 0, "cpu", linger, more)
    cut = 0
    for t in range(horizon):
        seen = {name: value.numpy() for name, value in env.observation["policy"].items()}
        step = env.step(torch.from_numpy(ToyReach().expert(seen)["velocity"]))
        now = slice(t * num, t * num + num)
        np.testing.assert_array_equal(rollouts.samples.reward[now], step.reward)
        np.testing.assert_array_equal(rollouts.samples.ended[now] != GOES_ON, step.done)
        cut += int(step.truncated.sum())
    assert cut > 20 and rollouts.samples.reward.max() == 1.0 + more
    again = Stepped(ToyReach(), num, horizon, 0, Practice((1.0, 1.0), 0.0), 0.0, 1, linger, more)
    again.load_state_dict(rollouts.state_dict())
    np.testing.assert_array_equal(again._since, rollouts._since)
    assert (again._since >= 0).any()


def test_first_episodes_end_at_different_times_and_later_ones_do_not(monkeypatch):
    num, most = 6, ToyReach().episode_steps
    rollouts = Stepped(ToyReach(), num, 2 * most, 0, Practice((1.0, 1.0), 0.0), 0.0, linger=most, staggered=True)

    def still(first, n, actions, *others):
        others[-2].action.reshape(num * 2 * most, -1)[first : first + n, :actions] = 0.0

    monkeypatch.setattr(rollout, "act", still)
    rollouts.collect(Perceptron([4, 8, 2], "tanh", np.random.default_rng(0)), None, None, None, work_queue.empty())
    ended = (rollouts.samples.ended[: num * 2 * most] != GOES_ON).reshape(2 * most, num)
    first = ended.argmax(axis=0)
    assert len(set(first)) > num // 2 and first.max() < most
    rest = [np.flatnonzero(column)[:2] for column in ended.T if column.sum() > 1]
    assert rest and all(second - one == most for one, second in rest)

"""VecEnv: what it promises about observations, imperfections, rewards, resets, divergence and exact continuation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import engines, tasks
from sim.channel import Channel
from sim.randomize import Bias, Delay, Dropout, Noise, Vary
from sim.spec import Signal
from sim.terms import Curriculum, Feature
from sim.vec_env import VecEnv
from tests.sim.vehicles import VEHICLES


def make_env(num_envs=8, seed=0, name="quad_hover", dump_dir=None, lengths=(1.0, 1.0), **config):
    return VecEnv(tasks.make(name, **config), num_envs, seed=seed, dump_dir=dump_dir, lengths=lengths)


def actions(env, steps, seed=0, spread=0.3):
    """(steps, n, k) actions around hover."""
    drawn = torch.randn((steps, env.num_envs, env.action_size), generator=torch.Generator().manual_seed(seed))
    return env.task.initial_action + spread * drawn


def flat(observation):
    groups = [*observation["policy"].values(), *observation["truth"].values(), *observation["privileged"].values()]
    return torch.cat([*groups, observation["history"]], -1)


@pytest.mark.parametrize("name", VEHICLES)
def test_sizes_follow_the_declaration(name):
    env = make_env(5, name=name)
    step = env.step(actions(env, 1)[0])
    for group, declared in (("policy", env.task.policy), ("privileged", env.task.privileged)):
        assert {k: v.shape for k, v in step.observation[group].items()} == {s.name: (5, s.size) for s in declared}
    assert env.features(step.observation).shape == (5, env.feature_size)
    assert env.critic_features(step.observation).shape == (5, env.critic_size)
    assert step.observation["history"].shape == (5, env.task.history * 4)
    assert flat(step.observation).isfinite().all()


def test_same_seed_same_flight_and_another_seed_another():
    first, again, other = make_env(seed=3), make_env(seed=3), make_env(seed=4)
    for action in actions(first, 120):
        a, b, c = first.step(action), again.step(action), other.step(action)
        assert torch.equal(flat(a.observation), flat(b.observation)) and torch.equal(a.reward, b.reward)
    assert not torch.equal(flat(a.observation), flat(c.observation))
    first.seed(4)
    assert torch.equal(flat(first.reset()), flat(VecEnv(first.task, 8, seed=4).observation))


def test_noise_reaches_the_policy_only():
    env = make_env(2000, noise=1.0)
    env.task.policy = tuple(replace(s, imperfections=()) for s in env.task.policy)
    assert torch.equal(
        VecEnv(env.task, 4).observation["policy"]["position"], VecEnv(env.task, 4).observation["truth"]["position"]
    )
    env = make_env(2000)
    step = env.step(torch.full((2000, 4), env.task.initial_action))
    for signal in env.task.policy:
        error = step.observation["policy"][signal.name] - step.observation["truth"][signal.name]
        assert float(error.std()) == pytest.approx(signal.noise_std(), rel=0.1)
    assert torch.equal(step.observation["truth"]["position"], torch.from_numpy(env.engine.read("position")))
    critic = env.critic_features(step.observation)[:, :3]
    assert torch.equal(critic, env.task.features[0].evaluate(step.observation["truth"]))


class Naive:
    """The meaning of a channel, one environment and signal at a time."""

    def __init__(self, first, delay):
        self.seen, self.delay = [first] * 16, delay

    def send(self, value):
        self.seen.insert(0, value)
        whole = int(self.delay)
        part = self.delay - whole
        return (1.0 - part) * self.seen[whole] + part * self.seen[whole + 1]


@settings(deadline=None, max_examples=30)
@given(low=st.floats(0.0, 3.0), width=st.floats(0.0, 4.0), seed=st.integers(0, 99))
def test_latency_is_a_blend_of_past_values(low, width, seed):
    rng = np.random.default_rng(seed)
    group = (Signal("a", (2,), imperfections=(Delay(low / 100, (low + width) / 100),)), Signal("b", (1,)))
    channel = Channel(group, 3, 100.0, "cpu")
    generator = torch.Generator()
    drawn = {k: torch.from_numpy(v) for k, v in channel.draw(rng, 3).items()}
    assert ((drawn["delay"][:, 0] >= low - 1e-4) & (drawn["delay"][:, 0] <= low + width + 1e-4)).all()
    values = torch.from_numpy(rng.normal(size=(12, 3, 3)).astype(np.float32))
    naive = [
        [Naive(float(values[0, i, j]), float(drawn["delay"][i, 0]) if j < 2 else 0.0) for j in range(3)]
        for i in range(3)
    ]
    assert torch.equal(channel.begin(torch.arange(3), drawn, values[0], generator), values[0])
    for value in values[1:]:
        wanted = [[naive[i][j].send(float(value[i, j])) for j in range(3)] for i in range(3)]
        np.testing.assert_allclose(channel.send(value, generator), wanted, atol=1e-4)


def test_offset_is_held_and_dropout_repeats_the_last_message():
    group = (
        Signal("a", (1,), imperfections=(Bias(0.5),)),
        Signal("b", (2,), imperfections=(Noise(0.1), Dropout(0.25))),
    )
    channel, generator = Channel(group, 4000, 100.0, "cpu"), torch.Generator().manual_seed(0)
    drawn = {k: torch.from_numpy(v) for k, v in channel.draw(np.random.default_rng(0), 4000).items()}
    zero = torch.zeros(4000, 3)
    first = channel.begin(torch.arange(4000), drawn, zero, generator)
    assert float(first[:, 0].std()) == pytest.approx(0.5, rel=0.05)
    second = channel.send(zero, generator)
    assert torch.equal(first[:, 0], second[:, 0])
    repeated = first[:, 1:] == second[:, 1:]
    assert torch.equal(repeated[:, 0], repeated[:, 1])  # a message is lost as a whole
    assert float(repeated.float().mean()) == pytest.approx(0.25, abs=0.03)


def test_commands_arrive_with_their_latency():
    env = make_env(3, delay_low=0.015, delay_high=0.015)
    sent = []
    step, env.engine.step = env.engine.step, lambda command: sent.append(command.copy()) or step(command)
    given_actions = actions(env, 6, spread=0.05)
    for action in given_actions:
        privileged = env.step(action).observation["privileged"]
    assert torch.allclose(privileged["delay"], torch.tensor(1.5))
    wanted = 0.5 * (0.5 * (given_actions[4] + given_actions[3]) + 1.0)  # 1.5 control steps old
    np.testing.assert_allclose(sent[5], wanted, atol=1e-6)
    np.testing.assert_allclose(sent[0], 0.5 * (env.task.initial_action + 1.0), atol=1e-6)


def test_history_is_newest_first_and_clipped():
    env = make_env(2)
    for value in (0.1, 0.2, 5.0):
        step = env.step(torch.full((2, 4), value))
    assert torch.allclose(step.observation["history"][0], torch.tensor([1.0, 0.2, 0.1]).repeat_interleave(4))


def test_reward_is_the_weighted_sum_of_terms_and_follows_the_curriculum():
    env = make_env(4)
    env.task.curriculum = (Curriculum("velocity", start=0.01, factor=2.0, every=40, limit=0.05),)
    seen = []
    for action in actions(env, 40):
        step = env.step(action)
        weights = env.reward_weights()
        total = sum(weights[name] * term for name, term in step.reward_terms.items())
        assert torch.allclose(total, step.reward, atol=1e-5)
        seen.append(-weights["velocity"])
    assert seen[8] == 0.01 and seen[9] == 0.02 and seen[-1] == 0.05  # 4 environments: 40 steps after 10 calls
    truth = step.final_observation["truth"]
    distance = (truth["position"] - truth["target_position"]).square().sum(-1)
    assert torch.allclose(step.reward_terms["position"], (distance + env.task.costs[0].softening ** 2).sqrt())
    assert torch.equal(step.reward_terms["alive"], (~step.terminated).float())


def test_time_limit_truncates_and_keeps_the_final_observation():
    env = make_env(6, episode_s=0.05)
    for number, action in enumerate(actions(env, 10, spread=0.05), 1):
        step = env.step(action)
        ended = number % 5 == 0
        assert (step.truncated == ended).all() and not step.terminated.any()
        if ended:
            assert (step.info["episode_length"] == 5).all()
            assert torch.allclose(step.final_observation["history"][:, :4], action)
            assert torch.allclose(step.observation["history"], torch.tensor(env.task.initial_action))
            gap = step.observation["truth"]["position"] - step.final_observation["truth"]["position"]
            assert (gap.abs().sum(-1) > 1e-3).all()
        else:
            assert step.observation is step.final_observation


def test_lost_vehicles_restart_and_the_others_fly_on():
    env, twin = make_env(6, seed=1), make_env(6, seed=1)
    far = torch.tensor([False, True, False, False, True, False])
    moved = env.engine.read("position")
    moved[far.numpy()] += 10.0
    env.engine.reset(far.numpy(), {"position": moved[far.numpy()]})
    action = actions(env, 1)[0]
    step, plain = env.step(action), twin.step(action)
    assert torch.equal(step.terminated, far)
    assert torch.equal(flat(step.final_observation)[~far], flat(plain.observation)[~far])
    assert torch.equal(flat(step.observation)[~far], flat(plain.observation)[~far])
    assert (step.final_observation["truth"]["position"][far].norm(dim=-1) > 5.0).all()
    assert (step.observation["truth"]["position"][far].norm(dim=-1) < 4.0).all()
    assert torch.equal(step.reward_terms["alive"], (~far).float())


def test_partial_reset_touches_only_the_mask():
    env = make_env(9)
    for action in actions(env, 3):
        before = flat(env.step(action).observation)
    mask = torch.arange(9) % 2 == 0
    after = flat(env.reset(mask))
    assert torch.equal(after[~mask], before[~mask]) and not (after[mask] == before[mask]).all(-1).any()
    assert torch.equal(flat(env.reset(torch.zeros(9, dtype=torch.bool))), after)
    lengths = env.step(action).info["episode_length"]
    assert torch.equal(lengths, torch.where(mask, 1, 4))


def test_each_episode_draws_its_vehicle():
    env = make_env(300, episode_s=0.02)
    nominal = env.task.robot.parameters()
    first = env.observation["privileged"]["mass"]
    assert torch.equal(first, torch.from_numpy(env.engine.read("mass")))
    assert (
        0.9 <= float(first.min() / nominal["mass"][0]) < 0.92
        and 1.08 < float(first.max() / nominal["mass"][0]) <= 1.1001
    )
    for action in actions(env, 2):
        step = env.step(action)
    second = step.observation["privileged"]["mass"]
    assert torch.equal(second, torch.from_numpy(env.engine.read("mass"))) and not (first == second).any()
    assert torch.equal(step.final_observation["privileged"]["mass"], first)


def test_gusts_come_within_an_episode_and_a_resume_continues_them():
    task = tasks.make("quad_any", robust=True)
    task.bounds = ()  # they tumble
    first, second = (VecEnv(task, 6, seed=3) for _ in range(2))
    still = torch.full((6, 4), 0.2)
    wind = [first.engine.read("wind")]
    for _ in range(130):
        first.step(still)
        wind.append(first.engine.read("wind"))
    assert [t for t in range(1, 131) if (wind[t] != wind[t - 1]).any()] == [128]
    assert (wind[128] != wind[127]).all()
    second.load_state_dict(first.state_dict())
    for _ in range(140):
        a, b = first.step(still), second.step(still)
    assert torch.equal(a.reward, b.reward)
    assert (first.engine.read("wind") != wind[130]).all()
    assert (first.engine.read("wind") == second.engine.read("wind")).all()
    assert (a.observation["privileged"]["thrust_scale"].numpy() == first.engine.read("thrust_scale")).all()


def test_time_limits_are_drawn_for_every_episode():
    env = make_env(400, lengths=(0.2, 0.5), episode_s=0.1, guidance=1.0)
    lengths = []
    for action in actions(env, 40, spread=0.0):
        step = env.step(action)
        lengths += step.info["episode_length"][step.truncated].tolist()
    assert set(lengths) == {2, 3, 4, 5}
    assert min(lengths.count(k) for k in (2, 3, 4, 5)) > 0.2 * len(lengths)
    with pytest.raises(ValueError, match="lengths are shares of an episode"):
        make_env(2, lengths=(0.5, 0.2))


def test_the_share_of_easy_starts_may_change_and_a_resume_knows_it():
    env, other = (make_env(300, seed=s, episode_s=0.05) for s in (0, 1))
    env.easy = 1.0
    env.seed(5)
    env.reset()
    tilt = env._state["quaternion"][:, 0]
    assert tilt.mean() > 0.94 > 0.9 > make_env(300)._state["quaternion"][:, 0].mean()
    env.easy = 0.0  # counts from the next pool on
    other.load_state_dict(env.state_dict())
    still = torch.zeros(300, 4)
    for _ in range(5):
        a, b = env.step(still), other.step(still)
    assert torch.equal(a.observation["policy"]["position"], b.observation["policy"]["position"])


def test_divergence_is_reset_counted_and_replayable(tmp_path):
    env = make_env(5, dump_dir=tmp_path / "dumps")
    mask = np.arange(5) == 3
    env.engine.set_parameters(mask, {"mass": np.full((1, 1), np.nan, np.float32)})
    action = actions(env, 1)[0]
    step = env.step(action)
    assert env.nan_resets == 1 and torch.equal(step.terminated, torch.from_numpy(mask))
    assert flat(step.observation).isfinite().all() and flat(step.final_observation).isfinite().all()
    assert step.reward.isfinite().all() and float(step.reward[3]) == 0.0
    (path,) = (tmp_path / "dumps").iterdir()
    dump = np.load(path)
    engine = engines.make("flight", env.task.robot, 1, float(dump["dt"]))
    engine.set_parameters(
        None, {k.removeprefix("parameter."): dump[k][None] for k in dump if k.startswith("parameter.")}
    )
    engine.reset(None, {k.removeprefix("state."): dump[k][None] for k in dump if k.startswith("state.")})
    assert np.isfinite(engine.read("linear_velocity")).all()
    engine.step(dump["command"][None])
    assert not np.isfinite(engine.read("linear_velocity")).all()
    assert int(dump["seed"]) == 0 and np.array_equal(dump["actions"][0], action[3])
    for _ in range(4):
        env.engine.set_parameters(mask, {"mass": np.full((1, 1), np.nan, np.float32)})
        env.step(action)
    assert env.nan_resets == 5 and len(list((tmp_path / "dumps").iterdir())) == 3


@pytest.mark.parametrize("name", VEHICLES)
def test_continuing_from_a_saved_state_is_exact(name):
    make = lambda: make_env(7, seed=2, name=name, episode_s=1.0, lengths=(0.1, 0.5))  # noqa: E731
    env = make()
    env.task.policy = (
        replace(env.task.policy[0], imperfections=(Delay(0.0, 0.03), Bias(0.1), Dropout(0.2))),
        *env.task.policy[1:],
    )
    env, other = VecEnv(env.task, 7, seed=2, lengths=(0.1, 0.5)), VecEnv(env.task, 7, seed=77, lengths=(0.1, 0.5))
    plan = actions(env, 260, spread=0.5)
    for action in plan[:130]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    assert torch.equal(flat(other.observation), flat(env.observation))
    for action in plan[130:]:
        a, b = env.step(action), other.step(action)
        assert torch.equal(flat(a.observation), flat(b.observation)) and torch.equal(a.reward, b.reward)
        assert torch.equal(flat(a.final_observation), flat(b.final_observation)) and torch.equal(a.done, b.done)
    assert env.total_steps == other.total_steps == 7 * 260
    with pytest.raises(ValueError, match="saved state has 7 environments, this one has 3"):
        make_env(3, name=name).load_state_dict(env.state_dict())


def test_the_pool_is_refilled_without_repeats(monkeypatch):
    monkeypatch.setattr("sim.vec_env.POOL", 10)
    env = make_env(4, episode_s=0.01)
    starts = [env.observation["truth"]["position"]]
    starts += [env.step(action).observation["truth"]["position"] for action in actions(env, 20)]
    assert len(torch.unique(torch.cat(starts)[:, 0])) == 84


def test_flying_scores_whole_episodes():
    env = make_env(50, guidance=1.0, noise=0.0)
    scores = env.fly(lambda observation: torch.full((50, 4), env.task.initial_action))
    assert set(scores) == set(env.task.scores) and all(value.shape == (50,) for value in scores.values())
    assert scores["success"].mean() < 0.5 and (scores["control_effort"] < 1e-6).all()
    assert env.autoreset


def test_bad_arguments_are_named():
    task = tasks.make("quad_hover")
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        VecEnv(task, 0)
    with pytest.raises(ValueError, match=r"action has shape \(2, 3\), needs \(2, 4\)"):
        VecEnv(task, 2).step(torch.zeros(2, 3))
    task.policy = (*task.policy, Signal("rotor_speed", (4,)))
    with pytest.raises(ValueError, match="cannot sense 'rotor_speed'; it senses: position"):
        VecEnv(task, 2)
    task = tasks.make("quad_hover")
    task.features = (*task.features, Feature("mass"))
    with pytest.raises(ValueError, match="feature uses 'mass', which is not a policy signal"):
        VecEnv(task, 2)
    task = tasks.make("quad_hover")
    task.privileged = (Signal("mass", (2,)),)
    with pytest.raises(ValueError, match="declares 'mass' with 2 elements, it has 1"):
        VecEnv(task, 2)
    task = tasks.make("quad_hover")
    task.curriculum = (Curriculum("speed", 1.0, 1.0, 1, 1.0),)
    with pytest.raises(ValueError, match="curriculum names 'speed'; the costs are: position"):
        VecEnv(task, 2)
    task = tasks.make("quad_hover")
    task.vary = (Vary("colour", 0.0, 1.0),)
    with pytest.raises(KeyError, match="colour"):
        VecEnv(task, 2)

"""The two paths of SAC have one meaning: the same batch gives the same gradients as torch's autograd."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from policies.algorithms import LearningError
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.fused import ROUND, Fused
from policies.algorithms.sac.torch_path import TorchPath
from policies.learning.fused import off_policy, replay
from policies.learning.fused.surrogate import LOST
from policies.learning.fused.symmetry import task_images
from policies.learning.networks import squashed_sample
from policies.runner import checkpoint
from sim import tasks
from sim.engines.vector.streams import QUANTILES
from tests.policies.toy_reach import Config, ToyReach

SMALL = {
    "num_envs": 32,
    "total_steps": 6400,
    "warmup_steps": 640,
    "capacity": 3200,
    "batch_size": 100,
    "hidden": [20, 24],
    "critic_hidden": [24, 20],
    "report_every": 40,
    "evaluation_episodes": 4,
    "initial_alpha": 0.3,
    "critics": 3,
    "target_critics": 2,
    "lengths": [0.02, 0.04],
}


def learner(**settings):
    return Fused(tasks.make("quad_hover", history=4), SacConfig(**(SMALL | settings)), 0)


def ran(sac, rounds=30):
    """After some updates, with a batch drawn."""
    for _ in range(rounds):
        sac._act()
        if sac.iteration > 20:
            sac._update(1)
    config = sac.config
    off_policy.sample(
        *(sac.replay.stored, sac.replay.written, config.n_step, np.float32(config.gamma), sac.stream, QUANTILES),
        sac.batch,
    )
    return sac


def recall(sac, rows):
    """What is remembered of these rows: actions, what critics see, what the actor sees."""
    stored = sac.replay.stored
    wide = (stored.judged + stored.seen) * 16
    table = torch.from_numpy(stored.bits.view(np.float16).reshape(-1, wide)[rows].astype(np.float32))
    both, first = sac.actions + sac.rollouts.judged, stored.judged * 16
    judged = normal(sac, table[:, :both])
    seen = table[:, first : first + sac.rollouts.features]
    seen = (seen - torch.from_numpy(sac.seen.mean)) / torch.from_numpy(sac.seen.std)
    return judged[:, : sac.actions], judged[:, sac.actions :], seen.float()


def normal(sac, values):
    """Actions and, behind them, what critics see, as they see it."""
    mean, std = (torch.from_numpy(part[: values.shape[1]]) for part in sac.usual)
    return ((values - mean) / std).float()


def leaves(network):
    return [torch.tensor(np.array(part), requires_grad=True) for layer in network.views() for part in layer]


def run(parts, x, normal=False):
    for k in range(0, len(parts), 2):
        x = x @ parts[k] + parts[k + 1]
        if k < len(parts) - 2:
            x = torch.relu(functional.layer_norm(x, x.shape[-1:]) if normal else x)
    return x


def said(sac, parts, seen, noise):
    mean, log_std = run(parts, seen).chunk(2, -1)
    return squashed_sample(mean, log_std.clamp(-5.0, 1.0), torch.from_numpy(noise))


def check(network, parts, gradient):
    found = [part for layer in network.views(gradient) for part in layer]
    for leaf, part in zip(parts, found, strict=True):
        assert isinstance(leaf.grad, Tensor) and float(leaf.grad.abs().max()) > 0.0
        scale = float(leaf.grad.abs().max())
        np.testing.assert_allclose(part, leaf.grad.numpy(), rtol=2e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "settings", [{}, {"deterministic": True}, {"n_step": 3, "layer_norm": False}], ids=["sac", "td3", "plain"]
)
def test_gradients_are_those_of_autograd(settings):
    sac = ran(learner(**settings))
    config, batch, rules = sac.config, sac.batch, sac.rules
    _, judged, seen = recall(sac, batch.after)
    alpha, some = np.float32(math.exp(sac.log_alpha[0])), np.array([2, 0])
    scales = sac.scales
    acting = sac.target_actor if config.deterministic else sac.actor
    off_policy.targets(
        *(batch, sac.replay.stored, scales, alpha, acting.net, sac.learner.target_critics, some),
        *(rules, sac.scratches),
    )
    with torch.no_grad():
        if config.deterministic:
            limit = 2.0 * config.smoothing
            smooth = (config.smoothing * torch.from_numpy(batch.next_noise)).clamp(-limit, limit)
            action, density = (torch.tanh(run(leaves(acting), seen)) + smooth).clamp(-1.0, 1.0), torch.zeros(len(seen))
        else:
            action, density = said(sac, leaves(acting), seen, batch.next_noise)
        x = torch.cat((normal(sac, action), judged), -1)
        after = (
            torch.stack([run(leaves(sac.target_critics[k]), x, config.layer_norm)[:, 0] for k in some]).amin(0)
            - alpha * density
        )
        target = config.reward_scale * torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount) * after
    np.testing.assert_allclose(batch.target, target.numpy(), rtol=2e-5, atol=2e-5)

    action, judged, seen = recall(sac, batch.row)
    for critic in sac.critics:
        parts = leaves(critic)
        loss = (
            (run(parts, torch.cat((action, judged), -1), config.layer_norm)[:, 0] - torch.from_numpy(batch.target))
            .square()
            .mean()
        )
        loss.backward()
        gradient = np.zeros_like(critic.gradient)
        found = off_policy.judge(batch, sac.replay.stored, sac.scales[1], critic.net, gradient, sac.scratches[1])
        assert found == pytest.approx(loss.item(), rel=1e-5)
        check(critic, parts, gradient)

    parts = leaves(sac.actor)
    if config.deterministic:
        action, density = torch.tanh(run(parts, seen)), torch.zeros(())
    else:
        action, density = said(sac, parts, seen, batch.noise)
    x = torch.cat((normal(sac, action), judged), -1)
    value = torch.stack([run(leaves(c), x, config.layer_norm)[:, 0] for c in sac.critics[: rules.judges]]).mean(0)
    (alpha * density - value).mean().backward()
    gradient = np.zeros_like(sac.actor.gradient)
    found = off_policy.climb(
        *(batch, sac.replay.stored, scales, alpha, sac.actor.net, sac.learner.critics, gradient, rules, sac.scratches),
        *(sac.gate, sac.push),
    )
    assert found == pytest.approx((density.mean().item(), value.mean().item()), rel=1e-4)
    check(sac.actor, parts, gradient)


@pytest.mark.parametrize("deterministic", [False, True])
def test_resume_is_exact(tmp_path, deterministic):
    settings = {"deterministic": deterministic, "updates_per_step": 2, "total_steps": 32 * 160}
    whole, half, resumed = (learner(**settings) for _ in range(3))
    last = [*whole.learn()][-1]
    going = half.learn()
    next(going)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    next(going)  # what was saved must not change with the learner
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*resumed.learn()][-1] == last
    for name in ("actor", "target_actor"):
        assert np.array_equal(getattr(whole, name).net.weights, getattr(resumed, name).net.weights)
    assert np.array_equal(whole.average, resumed.average)


def test_a_replay_that_does_not_fit_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(replay, "available_memory", lambda: 1e9)
    with pytest.raises(ValueError, match=r"capacity=4000000 takes .* MB, .* lower algorithm.capacity to at most \d+"):
        learner(capacity=4_000_000, total_steps=4_000_000)


def test_a_replay_holds_what_was_flown():
    sac = learner(lengths=[0.02, 0.03], initial_std=0.01)
    ends = lost = 0
    for _ in range(40):
        sac._act()
        samples, stored, n = sac.rollouts.samples, sac.replay.stored, 32
        for t in range(ROUND):
            step = (sac.replay.written - ROUND + t) % stored.steps
            rows = np.arange(n) * stored.steps + step
            action, _, seen = recall(sac, rows)
            action = action.numpy() * sac.usual.std[:4] + sac.usual.mean[:4]
            here = slice(t * n, (t + 1) * n)
            flown = samples.seen.reshape(-1, stored.seen * 16)[here, : seen.shape[1]]
            flown = (flown - sac.seen.mean) / sac.seen.std
            np.testing.assert_allclose(seen, flown, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(
                action, np.clip(samples.action.reshape(-1, 16)[here, : sac.actions], -1.0, 1.0), rtol=1e-3, atol=1e-6
            )
            assert np.array_equal(stored.reward[rows], samples.reward[here])
            ended = stored.ended[rows]
            lost += (ended == LOST).sum()
            over = ended >= 0
            ends += over.sum()
            assert np.array_equal(over, samples.ended[here] >= 0)
            if over.any():
                wide = len(samples.judged) // len(samples.value) * 16
                final = samples.judged.reshape(-1, wide)[samples.ended[here][over], : sac.rollouts.judged]
                found = recall(sac, ended[over])[1].numpy() * sac.usual.std[4:] + sac.usual.mean[4:]
                np.testing.assert_allclose(found, final, rtol=2e-3, atol=1e-4)
    assert ends > 100 and lost >= 0
    # A transition that ran out of time goes on to its end; others to the row behind, unless lost.
    stored, batch = sac.replay.stored, ran(sac, 0).batch
    for row, after, discount in zip(batch.row, batch.after, batch.discount, strict=True):
        ended, env, step = stored.ended[row], row // stored.steps, row % stored.steps
        assert (discount == 0.0) == (ended == LOST)
        assert after == (ended if ended >= 0 else env * stored.steps + (step + 1) % stored.steps)


def test_critics_say_the_same_when_their_inputs_are_normalised_otherwise():
    sac = ran(learner())
    batch, before = sac.batch, sac.usual
    stored, critic = sac.replay.stored, sac.critics[1]

    def loss():
        return off_policy.judge(
            batch, stored, sac.scales[1], critic.net, np.zeros_like(critic.gradient), sac.scratches[1]
        )

    batch.target[:] = 0.0  # the loss is the mean square of what is said
    first = loss()
    for part in sac.moments:  # of other states than before
        part.mean, part.variance = part.mean + 0.1, 2.0 * part.variance
    sac._adapt()
    assert not np.allclose(before.std, sac.usual.std, rtol=0.1)
    assert loss() == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_mirrored_states_have_mirrored_actions(deterministic):
    sac = ran(learner(hidden=[16, 24], deterministic=deterministic))
    seen, judged, actions = task_images(sac.task)
    _, values, x = (part.numpy() for part in recall(sac, sac.batch.row))
    assert len(seen.places) == 4
    parts = leaves(sac.actor)
    with torch.no_grad():
        said = run(parts, torch.from_numpy(x)).numpy()
        for g in range(1, 4):
            image = torch.from_numpy(x[:, seen.places[g]] * seen.signs[g])
            found = run(parts, image).numpy()
            np.testing.assert_allclose(found[:, :4], said[:, :4][:, actions.places[g]] * actions.signs[g], atol=1e-5)
            both = np.concatenate([np.zeros((len(x), 4), np.float32), values], axis=1)
            other = both.copy()
            other[:, 4:] = values[:, judged.places[g]] * judged.signs[g]
            worth = [run(leaves(sac.critics[0]), torch.from_numpy(v), True) for v in (both, other)]
            torch.testing.assert_close(*worth, rtol=1e-4, atol=1e-4)


def test_learning_that_diverges_says_so():
    sac = ran(learner(), 10)
    sac.critics[0].net.weights[:] = np.nan
    with pytest.raises(LearningError, match=r"critics' loss is nan, .* lower algorithm.learning_rate"):
        sac._update(1)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="algorithm.capacity must be at least 224, got 192"):
        learner(capacity=192)
    with pytest.raises(
        ValueError, match="linger and success_reward are for worlds of a task's own, which quad_hover has"
    ):
        Sac(tasks.make("quad_hover"), SacConfig(linger=3), 0)
    with pytest.raises(ValueError, match="linger must be at least 0, got -1"):
        SacConfig(linger=-1)
    with pytest.raises(ValueError, match="algorithm.path=fused does not do layers of more than 512 units"):
        Sac(tasks.make("quad_hover"), SacConfig(path="fused", hidden=[64, 513]), 0)
    with pytest.raises(ValueError, match="algorithm.path 'cuda' is not one of auto, fused, torch"):
        SacConfig(path="cuda")


def test_episodes_of_a_world_of_its_own_linger_as_told():
    wanted = SMALL | {"total_steps": 1600, "linger": 3, "success_reward": 5.0}
    sac = Sac(ToyReach(Config(radius=0.5)), SacConfig(**wanted), 0)
    assert isinstance(sac.path, Fused) and (sac.path.rollouts._linger, sac.path.rollouts._success_reward) == (3, 5.0)
    list(sac.learn())
    assert set(sac.path.replay.stored.reward) == {0.0, 6.0}


def test_the_path_is_chosen_by_what_it_can_do():
    settings = SMALL | {"capacity": 640}
    made = [Sac(tasks.make("quad_hover"), SacConfig(**settings, path=path), 0) for path in ("auto", "torch")]
    assert [type(sac.path) for sac in made] == [Fused, TorchPath]

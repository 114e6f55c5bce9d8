"""Real-time chunking: a new plan begins with what is committed, goes on from it, and all of it is in the file."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.inspect import describe
from deploy.runtimes import CompiledPolicy
from policies.algorithms.bc import BaseConfig, Bc, BcConfig, Cloning
from policies.learning.demonstrations import Demonstrations
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.controller import physical
from policies.models.export import export
from policies.models.realtime import RealTime, planned
from tests.policies.algorithms.test_expo import agree
from tests.policies.models.test_chunking import base, steering
from tests.policies.toy_reach import ToyReach


def aware(horizon, delay, seed=0):
    """A base with random weights that is told `delay` actions."""
    made, rng = base(horizon=horizon, seed=seed), np.random.default_rng(seed)
    more = rng.normal(0.0, 0.5, (len(made.see), 2 * delay + 1)).astype(np.float32)
    return dataclasses.replace(made, see=np.concatenate([made.see, more], axis=1))


def either_way(rng):
    """Observations (n, 4), and one of two sides (n, 1) that has nothing to do with them."""
    return rng.normal(size=(5000, 4)).astype(np.float32), rng.choice(np.float32([-0.6, 0.6]), (5000, 1))


def signals_of(rng, n):
    return {s.name: rng.uniform(-1.0, 1.0, (n, 2)).astype(np.float32) for s in ToyReach.policy}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_committed_is_executed_and_what_follows_is_the_new_plan(data):
    delay = data.draw(st.integers(1, 3))
    replan = data.draw(st.integers(delay, 4))
    horizon = data.draw(st.integers(delay + replan, 8))
    made = aware(horizon, delay, data.draw(st.integers(0, 9)))
    controller = planned(ToyReach(), made, NoiseTable.normal(2 * horizon, rows=4), replan, delay)
    state, rng = controller.initial_state(2), np.random.default_rng(0)
    first, old = None, None
    for number in range(4):
        signals = signals_of(rng, 2)
        seen = np.concatenate([signals["position"], signals["goal"]], axis=1)
        first = controller.chosen.begin(seen) if number == 0 else first
        noise = controller.chosen.table[((first[:, 0] + number) % 4).astype(int)]
        rest = np.zeros((2, 2 * delay), np.float32) if old is None else old[:, replan : replan + delay].reshape(2, -1)
        told = np.concatenate([seen, rest, np.full((2, 1), number > 0, np.float32)], axis=1)
        plan = made.sample(told, noise).reshape(2, horizon, 2)
        if old is not None:
            plan[:, :delay] = old[:, replan : replan + delay]  # to the bit
        for step in range(replan):
            command, state = controller.act(signals, state)
            assert np.array_equal(command["velocity"], physical(ToyReach.commands, plan[:, step])["velocity"])
            signals = signals_of(rng, 2)  # the plan does not look again
        old = plan


@pytest.mark.parametrize(("delay", "replan", "horizon"), [(1, 1, 2), (2, 3, 6), (3, 4, 8)])
def test_what_a_plan_sees_counts_only_after_the_delay(delay, replan, horizon, tmp_path):
    """Two robots that see the same until a re-planning: of the file, by its commands alone."""
    controller = planned(ToyReach(), aware(horizon, delay), NoiseTable.normal(2 * horizon, 5), replan, delay)
    policy, rng = export(controller, tmp_path / "policy.onnx"), np.random.default_rng(0)
    assert policy.metadata["plan"] == {"horizon": horizon, "replan": replan, "delay": delay}
    assert "plan:" in describe(policy)
    policy.reset(2)
    for _ in range(replan):
        policy.step({name: np.repeat(value, 2, axis=0) for name, value in signals_of(rng, 1).items()})
    apart = [np.ptp(policy.step(signals_of(rng, 2))["velocity"], axis=0).max() for _ in range(2 * replan)]
    assert not any(apart[:delay]) and apart[delay] > 1e-3


@pytest.mark.parametrize("kind", ["drawn", "none", "steered"])
def test_it_is_all_in_the_file(kind, tmp_path):
    chosen = {"drawn": NoiseTable.normal(12, rows=5), "none": NoiseTable.none(12), "steered": steering(12)}[kind]
    agree(planned(ToyReach(), aware(6, 2), chosen, 3, 2), tmp_path / "policy.onnx", np.random.default_rng(2))


def test_a_steered_one_is_c(tmp_path):
    policy = export(planned(ToyReach(), aware(4, 2), steering(8), 2, 2), tmp_path / "policy.onnx")
    compiled, rng = CompiledPolicy(policy), np.random.default_rng(1)
    policy.reset(2)
    compiled.reset(2)
    for _ in range(8):
        signals = signals_of(rng, 2)
        assert np.abs(policy.step(signals)["velocity"] - compiled.step(signals)["velocity"]).max() < 1e-5


@pytest.mark.parametrize("kind", ["flow", "diffusion", "beso"])
def test_a_plan_goes_on_from_what_is_committed(kind):
    """Demonstrations go to either side; which, only the first actions tell. Without any, both are planned."""
    config = BaseConfig(kind=kind, horizon=3, denoise_steps=5, hidden=[48, 48], updates=800, batch_size=256)
    cloning = Cloning(ToyReach(), config, torch.Generator().manual_seed(0), delay=2)
    seen, side = either_way(np.random.default_rng(0))
    list(cloning.learn(Demonstrations(seen, np.repeat(side, 6, axis=1))))
    noise = np.random.default_rng(1).normal(size=(500, 6)).astype(np.float32)
    seen, side = seen[:500], side[:500]
    for delay in (1, 2):
        told = np.concatenate([seen, np.repeat(side, 2 * delay, axis=1), np.ones_like(side)], axis=1)
        chunk = cloning.denoiser(delay).sample(told, noise)
        assert np.mean(chunk * side > 0.0) > 0.9 and np.mean(np.abs(chunk - side)) < 0.3
    free = cloning.denoiser().sample(seen, noise)
    assert 0.35 < np.mean(free > 0.0) < 0.65 and np.mean(free * side > 0.0) < 0.6


def test_settings_become_the_controller():
    small = {"hidden": [16], "updates": 1, "episodes": 2}
    made = Bc(ToyReach(), BcConfig(horizon=6, delay=2, **small), 0).controller()
    assert isinstance(made, RealTime) and (made.replan, made.delay) == (4, 2)
    assert made.plan() == {"horizon": 6, "replan": 4, "delay": 2}
    plain = Bc(ToyReach(), BcConfig(horizon=6, replan=5, **small), 0).controller()
    assert type(plain) is ChunkPolicy and plain.plan() == {"horizon": 6, "replan": 5}


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="0 <= delay <= replan <= 4 - delay and replan >= 1, got delay 3 and replan 1"):
        BcConfig(horizon=4, delay=3)
    with pytest.raises(ValueError, match="a plan of 8 actions .* got delay 2 and replan 1"):
        BcConfig(horizon=8, delay=2, replan=1)
    with pytest.raises(ValueError, match="the base takes 4 numbers and gives 2, the signals have 9"):
        planned(ToyReach(), base(horizon=6), NoiseTable.normal(12), 3, 2)

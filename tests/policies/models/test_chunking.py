"""Chunked controllers: numpy and ONNX agree over episodes, plans are executed as they were made, samplers denoise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.algorithms.bc import BaseConfig, Cloning, schedule, signal_share
from policies.learning.demonstrations import Demonstrations
from policies.learning.networks import linear_layers, mlp
from policies.models.chunking import ChunkPolicy, NoiseTable, Schedule, Steering
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from tests.policies.toy_reach import ToyReach


def base(kind="flow", horizon=3, steps=4, seed=0):
    config = BaseConfig(kind=kind, horizon=horizon, denoise_steps=steps, hidden=[24, 24])
    cloning = Cloning(ToyReach(), config, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in cloning.average.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=cloning.generator))
    return cloning.denoiser()


def steering(size, repeat=1, magnitude=1.5):
    network = mlp([4, 16, size], torch.Generator().manual_seed(1), "relu")
    return Steering(Mlp(linear_layers(network), "relu"), magnitude, repeat)


def controllers():
    for kind in ("flow", "diffusion"):
        made = base(kind)
        yield ChunkPolicy.from_task(ToyReach(), made, steering(6), 3)
        yield ChunkPolicy.from_task(ToyReach(), made, steering(2, repeat=3), 2)
        yield ChunkPolicy.from_task(ToyReach(), made, NoiseTable.normal(6, rows=5), 1)
        yield ChunkPolicy.from_task(ToyReach(), made, NoiseTable.none(6), 3)


@pytest.mark.parametrize("index", range(8))
def test_file_and_reference_agree_over_closed_loop_episodes(index, tmp_path):
    controller = list(controllers())[index]
    policy = export(controller, tmp_path / "policy.onnx")
    assert policy.vectors.tolerance <= 1e-4  # ten times what was measured
    policy.reset(7)
    state = controller.initial_state(7)
    rng = np.random.default_rng(index)
    for _ in range(20):
        signals = {s.name: rng.uniform(-1.0, 1.0, (7, 2)).astype(np.float32) for s in controller.inputs}
        wanted, state = controller.act(signals, state)
        assert np.abs(policy.step(signals)["velocity"] - wanted["velocity"]).max() < 1e-5
        for name, value in policy.states().items():
            assert np.abs(value - state[name]).max() < 1e-5


@given(st.integers(1, 5), st.data())
@settings(max_examples=20, deadline=None)
def test_a_plan_is_executed_action_by_action(horizon, data):
    replan = data.draw(st.integers(1, horizon))
    made = base(horizon=horizon)
    controller = ChunkPolicy.from_task(ToyReach(), made, NoiseTable.normal(2 * horizon, rows=4), replan)
    state, rng = controller.initial_state(2), np.random.default_rng(0)
    for chunk_number in range(5):
        signals = {s.name: rng.uniform(-1.0, 1.0, (2, 2)).astype(np.float32) for s in controller.inputs}
        seen = np.concatenate([signals["position"], signals["goal"]], axis=1)
        if chunk_number == 0:
            first = controller.chosen.begin(seen)
        noise = controller.chosen.table[((first[:, 0] + chunk_number) % 4).astype(int)]
        plan = made.sample(seen, noise).reshape(2, horizon, 2)
        for step in range(replan):
            command, state = controller.act(signals, state)
            assert np.allclose(command["velocity"], plan[:, step], atol=1e-6)
            signals = {name: value + 1.0 for name, value in signals.items()}  # the plan does not look again


def test_rows_have_their_own_clocks(tmp_path):
    controller = ChunkPolicy.from_task(ToyReach(), base(), NoiseTable.normal(6, rows=5), 3)
    policy = export(controller, tmp_path / "policy.onnx")
    policy.reset(2)
    signals = {s.name: np.zeros((2, 2), np.float32) for s in controller.inputs}
    policy.step(signals)
    policy.restart(np.array([False, True]))
    assert policy.states()["left"][:, 0].tolist() == [2.0, 0.0]
    policy.step(signals)
    assert policy.states()["left"][:, 0].tolist() == [1.0, 2.0] and policy.states()["draw"][:, 0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["flow", "diffusion"])
def test_a_perfect_network_denoises_to_the_action(kind):
    steps = schedule(kind, 6)
    action, x = np.float32(0.3), np.float32(-1.7)
    noise = x
    for k in range(steps.steps):
        out = action - noise if kind == "flow" else action
        x = steps.keep[k] * x + steps.gain[k] * out
    assert abs(x - action) < 1e-5


def test_the_noise_schedule_keeps_the_variance():
    share, rest = signal_share(torch.linspace(0.0, 1.0, 11))
    assert torch.allclose(share**2 + rest**2, torch.ones(11)) and share[0] == 1.0


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="replan is between 1 and the chunk's 3 actions, got 4"):
        ChunkPolicy.from_task(ToyReach(), base(), steering(6), 4)
    with pytest.raises(ValueError, match="kind 'gan' is not one of flow, diffusion"):
        BaseConfig(kind="gan")
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        BaseConfig(horizon=0)


def test_chunks_after_the_end_hold_the_last_action():
    from policies.collect import demonstrate

    task = ToyReach()
    episode = next(demonstrate(task, 1, 0))
    data = Demonstrations.of([episode], task, 3)
    steps = len(episode.reward)
    chunks = data.chunk.reshape(steps, 3, 2)
    assert np.allclose(chunks[:, 0], episode.commands["velocity"], atol=1e-6)
    assert np.allclose(chunks[-1], episode.commands["velocity"][-1], atol=1e-6)
    assert np.allclose(chunks[0, 2], episode.commands["velocity"][2], atol=1e-6)
    episode.signals["goal"][2, 0] = np.nan
    with pytest.raises(ValueError, match="demonstration 0 holds a value that is not finite"):
        Demonstrations.of([episode], task, 3)


def test_cloning_is_the_same_in_one_go_and_in_two():
    from policies.collect import demonstrate

    task = ToyReach()
    data = Demonstrations.of(list(demonstrate(task, 8, 0)), task, 2)
    config = BaseConfig(horizon=2, hidden=[16], updates=40)
    whole = Cloning(task, config, torch.Generator().manual_seed(0))
    losses = [m["loss"] for m in whole.learn(data, 20)]
    assert losses[1] < losses[0]
    first = Cloning(task, config, torch.Generator().manual_seed(0))
    next(first.learn(data, 20))
    second = Cloning(task, config, torch.Generator().manual_seed(5))
    second.load_state_dict(first.state_dict())
    second.generator.set_state(first.generator.get_state())
    list(second.learn(data, 20))
    for a, b in zip(whole.average.parameters(), second.average.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_schedule_knows_its_length():
    ones = np.ones(3, np.float32)
    assert Schedule(ones, ones, ones, ones, False).steps == 3


def test_episodes_begin_with_different_noise(tmp_path):
    drawn = NoiseTable.normal(6, rows=256)
    policy = export(ChunkPolicy.from_task(ToyReach(), base(), drawn, 3), tmp_path / "policy.onnx")
    policy.reset(50)
    rng = np.random.default_rng(3)
    signals = {s.name: rng.uniform(-1.0, 1.0, (50, 2)).astype(np.float32) for s in policy.inputs}
    policy.step(signals)
    begun = drawn.begin(np.concatenate([signals["position"], signals["goal"]], axis=1))
    assert (policy.states()["draw"] == (begun + 1.0) % 256.0).all() and len(np.unique(begun)) > 35

"""A flow in the place of tokens: it keeps what experts differ in, and does what the words say."""

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from policies.algorithms.bc import embed
from policies.language.minilm import SentenceEncoder
from policies.learning.vla.flow import FlowConfig, TinyFlow
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from sim.spec import Signal
from tests.policies.language.tiny_bert import SIZE, written

PIXELS, NUMBERS, CHUNK = 8, 3, (2, 2)
CAMERA = (Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),)
EITHER, STILL = "open the drawer", "please close the drawer"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(written(tmp_path_factory.mktemp("tiny_bert")))


def made(**settings):
    sight = EncoderConfig(channels=[4, 4], strides=[2, 2])
    config = TinyConfig(width=16, layers=1, heads=2, keypoints=4, sight=sight)
    flow = FlowConfig(**{"readouts": 2, "hidden": [64, 64], "steps": 8} | settings)
    return TinyFlow(CHUNK, NUMBERS, CAMERA, SIZE, config, flow, seed=0)


def observed(policy, encoder, sentences, seed=0):
    """What the flow is told of numbers and pictures that are the same for all sentences."""
    n, rng = len(sentences), np.random.default_rng(seed)
    numbers = torch.from_numpy(rng.normal(size=(n, NUMBERS)).astype(np.float32))
    pictures = {"camera": torch.full((n, PIXELS, PIXELS, 3), 90, dtype=torch.uint8)}
    return policy.observe(policy.tell(*encoder.states(sentences)), numbers, pictures)


@pytest.fixture(scope="module")
def learned(encoder):
    """Asked for one thing, experts go all one way or all the other; asked for the other, they stay."""
    torch.set_num_threads(1)
    policy, n = made(), 64
    sentences = [EITHER, STILL] * (n // 2)
    side = np.where(np.arange(n) // 2 % 2, 0.8, -0.8) * (np.arange(n) % 2 == 0)
    chunk = torch.from_numpy(side[:, None].repeat(4, 1).astype(np.float32))
    generator, optimizer = torch.Generator().manual_seed(0), torch.optim.AdamW([*policy.parameters()], 4e-3)
    for step in range(300):
        loss = policy.loss(observed(policy, encoder, sentences, step), chunk, policy.draw(len(chunk), generator))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    assert not [name for name, p in policy.named_parameters() if p.grad is None]
    return policy


@torch.no_grad()
def drawn(policy, encoder, sentence, n=200):
    noise = np.random.default_rng(1).standard_normal((n, 4)).astype(np.float32)
    return policy.base().sample(observed(policy, encoder, [sentence] * n, 999).numpy(), noise)


def test_it_goes_one_way_or_the_other_and_not_between(learned, encoder):
    chunk = drawn(learned, encoder, EITHER)
    ways = np.sign(chunk.mean(1))
    assert 0.3 < (ways > 0).mean() < 0.7
    assert (np.abs(chunk - 0.8 * ways[:, None]).max(1) < 0.3).mean() > 0.85


def test_the_words_decide_what_it_does(learned, encoder):
    chunk = drawn(learned, encoder, STILL)
    assert (np.abs(chunk).max(1) < 0.2).mean() > 0.9


def test_noise_is_what_steers(learned, encoder):
    """The same noise twice is the same chunk; noise of either sign leads either way."""
    with torch.no_grad():
        seen = observed(learned, encoder, [EITHER] * 2).numpy()
    chunk = learned.base().sample(seen, np.array([[1.5] * 4, [-1.5] * 4], np.float32))
    assert (chunk[0] > 0.5).all() and (chunk[1] < -0.5).all()
    assert np.array_equal(chunk, learned.base().sample(seen, np.array([[1.5] * 4, [-1.5] * 4], np.float32)))


@torch.no_grad()
def test_as_numpy_data_it_does_what_the_network_does(learned, encoder):
    policy = made()
    policy.load_state_dict(learned.state_dict())
    policy.normalise(torch.tensor([[1.0, 5.0, 2.0], [3.0, 9.0, 2.5]]))
    seen = observed(policy, encoder, [EITHER, STILL, EITHER])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    noise = x.numpy().copy()
    measured = (seen[:, :NUMBERS] - policy.mean) / policy.deviation
    for k in range(policy.flow.steps):
        time = torch.full((3,), k / policy.flow.steps)
        x = x + policy.velocity(torch.cat([measured, seen[:, NUMBERS:], x, embed(time)], 1)) / policy.flow.steps
    assert np.allclose(policy.base().sample(seen.numpy(), noise), x.clamp(-1.0, 1.0), atol=1e-5)


@torch.no_grad()
def test_those_who_steer_it_know_what_is_usual(encoder):
    policy = made()
    policy.normalise(torch.tensor([[1.0, 5.0, 2.0], [3.0, 9.0, 2.5]]))
    assert policy.base().mean[:NUMBERS].tolist() == [2.0, 7.0, 2.25]  # before it has learned, what is measured
    seen = observed(policy, encoder, [EITHER, STILL] * 20)
    policy.settle(seen)
    base = policy.base()
    usual = (seen.numpy() - base.mean) / base.deviation
    assert usual.shape[1] == NUMBERS + 16 + 2 * 16 and np.allclose(usual.mean(0), 0.0, atol=1e-4)
    assert usual[:, NUMBERS:].std(0).max() < 1.0 + 1e-4 and base.deviation[:NUMBERS].tolist() == [1.0, 2.0, 0.25]


def test_a_seed_makes_the_same_policy():
    torch.manual_seed(3)  # nothing may depend on it
    one = made().state_dict()
    torch.manual_seed(4)
    assert all(torch.equal(value, one[name]) for name, value in made().state_dict().items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"readouts": 0}, "at least 1; got 0"), ({"hidden": [0]}, "at least 1"), ({"noise": "much"}, "normal, none")],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FlowConfig(**settings)

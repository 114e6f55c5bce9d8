import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from policies.language.minilm import SentenceEncoder
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.tiny import TinyVla
from policies.models.tokens import BinTokens, FastTokens
from policies.models.vision import EncoderConfig
from sim.spec import Signal
from tests.policies.language.tiny_bert import SIZE, written

PIXELS, NUMBERS, HORIZON, ACTIONS = 16, 3, 2, 2
CAMERA = (Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),)
BINS = BinTokens(HORIZON, ACTIONS, bins=16)
FAST = FastTokens.fit(np.random.default_rng(0).uniform(-0.5, 0.5, (200, HORIZON * ACTIONS)), HORIZON, vocabulary=64)
SAID = ["open the drawer", "please close the drawer", "open the window", "push the red ball"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(written(tmp_path_factory.mktemp("tiny_bert")))


def made(tokens=BINS, lively=True, **settings):
    sight = EncoderConfig(channels=[8, 8], strides=[2, 2])
    policy = TinyVla(tokens, NUMBERS, CAMERA, SIZE, TinyConfig(width=32, keypoints=8, sight=sight, **settings), seed=0)
    if lively:  # at first every token is as likely
        torch.nn.init.normal_(policy.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    return policy


def shown(encoder, n=4, seed=0):
    rng = np.random.default_rng(seed)
    words, there = encoder.states([SAID[k % len(SAID)] for k in range(n)])
    pictures = {"camera": torch.from_numpy(rng.integers(0, 256, (n, PIXELS, PIXELS, 3), dtype=np.uint8))}
    return (words, there), torch.from_numpy(rng.normal(size=(n, NUMBERS)).astype(np.float32)), pictures


def prefix_of(policy, told, numbers, pictures):
    return policy.encode(policy.tell(*told), numbers, pictures)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("tokens", [BINS, FAST], ids=["bins", "fast"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
@pytest.mark.parametrize("blurs", [False, True])
def test_what_was_said_is_judged_as_it_was_drawn(encoder, tokens, parallel, temperature, blurs):
    policy = made(tokens, parallel=parallel)
    prefix = prefix_of(policy, *shown(encoder))
    spread = torch.rand(tokens.length, tokens.vocabulary, tokens.vocabulary, generator=torch.Generator().manual_seed(3))
    blur = spread / spread.sum(2, keepdim=True) if blurs else None  # of each place its own
    said = policy.generate(prefix, temperature, torch.Generator().manual_seed(2), blur)
    judged = policy.evaluate(prefix, said.tokens, temperature, blur)
    assert said.tokens.shape == (4, HORIZON * ACTIONS) and judged.value.shape == (4,)
    assert torch.allclose(said.log_probability, judged.log_probability, atol=1e-5)
    assert torch.allclose(said.entropy, judged.entropy, atol=1e-5)
    chunks, _ = policy.detokenise(said.tokens)
    assert np.array_equal(chunks, tokens.decode(said.tokens.numpy())[0])


@pytest.mark.parametrize("parallel", [False, True])
def test_a_blur_gives_what_would_be_said_to_other_tokens(encoder, parallel):
    policy = made(parallel=parallel)
    prefix = prefix_of(policy, *shown(encoder))
    tokens = torch.zeros(4, HORIZON * ACTIONS, dtype=torch.long)
    swap = torch.eye(16).flip(0).repeat(HORIZON * ACTIONS, 1, 1)
    swap[1] = torch.eye(16)
    plain, blurred = policy.likely(prefix, tokens, 0.7), policy.likely(prefix, tokens, 0.7, swap)
    assert torch.allclose(blurred[:, 1], plain[:, 1], atol=1e-5)
    assert torch.allclose(blurred[:, [0, 2, 3]], plain[:, [0, 2, 3]].flip(2), atol=1e-5)
    drawn = policy.generate(prefix, 1e-4, torch.Generator().manual_seed(0), swap).tokens
    assert torch.equal(drawn[:, 0], 15 - policy.generate(prefix, 0.0).tokens[:, 0])


def test_nothing_counts_after_the_end(encoder):
    policy = made(FAST)
    policy.head.bias.data[FAST.end] = 4.0
    prefix = prefix_of(policy, *shown(encoder, 64))
    said = policy.generate(prefix, 1.0, torch.Generator().manual_seed(0))
    after = (said.tokens == FAST.end).cumsum(1).roll(1, 1).bool()
    after[:, 0] = False
    judged = policy.evaluate(prefix, said.tokens, 1.0)
    assert after.any() and not after.all()
    assert (said.tokens[after] == FAST.end).all()
    for value in (said.log_probability, said.entropy, judged.log_probability, judged.entropy):
        assert (value[after] == 0.0).all() and (value[~after] != 0.0).all()


def test_entropy_is_that_of_the_tempered_distribution(encoder):
    policy, seen = made(lively=False), shown(encoder)
    tokens = torch.zeros(4, HORIZON * ACTIONS, dtype=torch.long)
    assert torch.allclose(
        policy.evaluate(prefix_of(policy, *seen), tokens, 1.0).entropy, torch.tensor(np.log(16.0)).float()
    )
    policy = made()
    hot, cold = (policy.evaluate(prefix_of(policy, *seen), tokens, t).entropy.mean() for t in (2.0, 0.5))
    assert cold < hot < np.log(16.0)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_token_knows_those_before_it_and_no_other(encoder, parallel):
    policy = made(parallel=parallel)
    prefix = prefix_of(policy, *shown(encoder))
    tokens = torch.randint(0, 16, (4, 4), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 1] = (other[:, 1] + 1) % 16
    one, two = (policy.evaluate(prefix, some, 1.0).log_probability for some in (tokens, other))
    assert torch.equal(one[:, 0], two[:, 0])
    assert torch.allclose(one[:, 2:], two[:, 2:]) == parallel


def test_the_likeliest_needs_no_generator(encoder):
    policy = made()
    prefix = prefix_of(policy, *shown(encoder))
    greedy = [policy.generate(prefix, 0.0, torch.Generator().manual_seed(s)).tokens for s in (0, 1)]
    assert torch.equal(*greedy)
    drawn = policy.generate(prefix, 1e-4, torch.Generator().manual_seed(3)).tokens
    assert torch.equal(greedy[0], drawn)


def test_a_row_does_not_depend_on_its_neighbours_or_on_padding(encoder):
    policy, (told, numbers, pictures) = made(), shown(encoder)
    tokens = torch.ones(4, HORIZON * ACTIONS, dtype=torch.long)
    whole = policy.evaluate(prefix_of(policy, told, numbers, pictures), tokens, 1.0)
    noisy = torch.where(told[1][..., None], told[0], torch.full_like(told[0], 9.0))
    alone = prefix_of(policy, (noisy[2:3], told[1][2:3]), numbers[2:3], {"camera": pictures["camera"][2:3]})
    assert torch.allclose(
        whole.log_probability[2:3], policy.evaluate(alone, tokens[2:3], 1.0).log_probability, atol=1e-5
    )


def test_a_seed_makes_the_same_policy():
    one, two = made(lively=False).state_dict(), made(lively=False).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("parallel", [False, True])
def test_it_learns_to_do_what_the_words_say_where_the_picture_is_the_same(encoder, parallel):
    torch.set_num_threads(1)
    policy, n = made(lively=False, parallel=parallel), 64
    _, numbers, _ = shown(encoder, n)
    pictures = {"camera": torch.full((n, PIXELS, PIXELS, 3), 90, dtype=torch.uint8)}
    sentences = [SAID[k % 2] for k in range(n)]
    actions = np.where(np.arange(n)[:, None] % 2, 0.8, -0.8) * np.ones(HORIZON * ACTIONS)
    actions[:, 1] = 0.9 * np.tanh(numbers[:, 0].numpy())
    tokens = torch.from_numpy(BINS.encode(actions))
    policy.normalise(numbers)
    told = encoder.states(sentences)
    optimizer = torch.optim.AdamW([*policy.parameters()], 3e-3)
    for _ in range(150):
        loss = -policy.evaluate(prefix_of(policy, told, numbers, pictures), tokens, 1.0).log_probability.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    silent = [name for name, p in policy.named_parameters() if p.grad is None and not name.startswith("worth")]
    assert not silent
    said = policy.generate(prefix_of(policy, told, numbers, pictures), 0.0, torch.Generator())
    assert np.abs(policy.detokenise(said.tokens)[0] - actions).mean() < 0.1
    wrong = encoder.states(sentences[1:] + sentences[:1])
    said = policy.generate(prefix_of(policy, wrong, numbers, pictures), 0.0, torch.Generator())
    moved = policy.detokenise(said.tokens)[0]
    assert (np.sign(moved[:, [0, 2, 3]]) == -np.sign(actions[:, [0, 2, 3]])).mean() > 0.95


def test_each_role_hears_other_words(encoder):
    """Which word comes first."""
    torch.manual_seed(0)
    words = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]]), 3).float()
    place = torch.eye(3).expand(4, 3, 3)
    told = torch.cat([words, place], 2), torch.ones(4, 3, dtype=torch.bool)
    wanted = torch.tensor([0, 2, 0, 1])

    def learned(roles):
        config = TinyConfig(width=4, heads=2, roles=roles, sight=EncoderConfig(channels=[4], strides=[4]))
        policy = TinyVla(BINS, NUMBERS, CAMERA, 6, config, seed=0)
        tell = torch.nn.Linear(4, 3)
        parts = [*policy.hear.parameters(), *policy.counts.parameters(), *policy.gather.parameters()]
        optimizer = torch.optim.Adam([*parts, *tell.parameters()], 1e-2)
        for _ in range(300):
            loss = torch.nn.functional.cross_entropy(tell(policy.tell(*told).heard), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return policy, float(loss.detach())

    policy, left = learned(3)
    assert left < 0.05 and policy.tell(*told).heard.shape == (4, 4)
    assert policy.counts(policy.hear(told[0])).shape == (4, 3, 3)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda p, x: TinyConfig(width=30, heads=4), "heads divide width"),
        (lambda p, x: TinyConfig(offsets=-1), "offsets must not be negative, got -1"),
        (lambda p, x: TinyConfig(encoder_layers=-1), "encoder_layers must not be negative, got -1"),
        (lambda p, x: TinyConfig(roles=0), "roles are at least 1"),
        (lambda p, x: p.generate(x, -1.0, torch.Generator()), "zero or positive"),
        (lambda p, x: p.evaluate(x, torch.zeros(4, 4, dtype=torch.long), 0.0), "temperature is positive"),
    ],
)
def test_bad_settings_are_named(encoder, act, message):
    policy = made()
    with pytest.raises(ValueError, match=message):
        act(policy, prefix_of(policy, *shown(encoder)))

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.learning.vla.reading import reader
from policies.models.tokens import BinTokens, FastTokens, tokens_of
from policies.models.tokens.fast import BREAK, END, merged

HORIZON, ACTIONS = 8, 3
STOP = (0.0, -0.5, 1.0)


def smooth(n: int, seed: int = 0) -> np.ndarray:
    """Chunks (n, HORIZON * ACTIONS) that move as arms do."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.0, 1.0, HORIZON)[:, None]
    start, slope = rng.uniform(-0.6, 0.6, (2, n, 1, ACTIONS))
    return (start + slope * time + 0.3 * slope * time**2).reshape(n, -1)


FAST = FastTokens.fit(smooth(400), HORIZON, vocabulary=256, stop=STOP)
BINS = BinTokens(HORIZON, ACTIONS, stop=STOP)
chunk = arrays(np.float64, (2, HORIZON * ACTIONS), elements=st.floats(-1.5, 1.5))


@given(chunk)
def test_a_bin_is_at_most_its_half_away(chunks):
    tokens = BINS.encode(chunks)
    read, readable = BINS.decode(tokens)
    assert readable.all() and tokens.min() >= 0 and tokens.max() < 256
    assert np.abs(read - chunks.clip(-1, 1)).max() <= 1 / 256 + 1e-6
    assert (BINS.encode(read) == tokens).all()


@given(chunk)
def test_fast_keeps_any_chunk_within_its_rounding(chunks):
    tokens = FAST.encode(chunks)
    read, readable = FAST.decode(tokens)
    assert readable.all() and tokens.max() < FAST.vocabulary
    off = (read - chunks.clip(-1, 1)).reshape(-1, HORIZON, ACTIONS)
    assert np.sqrt((off**2).mean(axis=1)).max() <= 0.5 / FAST.scale + 1e-6


def test_fast_takes_few_tokens_for_what_it_was_fitted_to():
    unseen = smooth(100, seed=1)
    lengths = (FAST.encode(unseen) != END).sum(axis=1)
    plain = FastTokens(HORIZON, ACTIONS)
    assert ((plain.encode(unseen) != END).sum(axis=1) == HORIZON * ACTIONS).all()
    assert lengths.mean() < 0.5 * HORIZON * ACTIONS
    assert np.array_equal(plain.decode(plain.encode(unseen))[0], FAST.decode(FAST.encode(unseen))[0])


@settings(max_examples=200)
@given(st.data())
def test_what_cannot_be_read_stops_the_whole_chunk(data):
    tokens = data.draw(st.sampled_from([BINS, FAST]))
    length = data.draw(st.integers(0, tokens.length + 3))
    words = data.draw(arrays(np.int64, (4, length), elements=st.integers(-3, tokens.vocabulary + 3)))
    read, readable = tokens.decode(words)
    assert read.shape == (4, HORIZON * ACTIONS) and np.isfinite(read).all() and np.abs(read).max() <= 1.0
    assert (read[~readable] == np.tile(np.float32(STOP), HORIZON)).all()


def test_fast_stops_at_each_kind_of_fault():
    good = FAST.encode(smooth(1))
    used = int((good != END).sum())
    early, unknown, more = good.copy(), good.copy(), good.copy()
    early[0, 0] = END
    unknown[0, 0] = FAST.vocabulary
    more[0, used] = 1
    for wrong in (early, unknown, more, good[:, : used - 1]):
        assert not FAST.decode(wrong)[1].any()
    after = good.copy()
    after[0, used + 1 :] = 7  # behind the end nothing counts
    assert FAST.decode(after)[1].all()


SHORT = FAST.shortened(smooth(400))


@pytest.mark.parametrize("tokens", [FAST, SHORT], ids=["fast", "short"])
def test_a_graph_reads_what_was_said_as_we_do(tokens):
    rng = np.random.default_rng(0)
    said = tokens.encode(smooth(400))
    wrong = rng.integers(0, tokens.vocabulary, said.shape)  # hardly any can be read
    few = np.where(rng.uniform(size=said.shape) < 0.1, wrong, said)
    rows = np.concatenate([said, wrong, few])
    rows[np.cumsum(rows == END, axis=1) > 0] = END
    read, readable = tokens.decode(rows)
    assert readable[:400].all() and 0 < readable[400:].sum() < 800
    assert np.allclose(reader(tokens)(torch.from_numpy(rows)), read, atol=1e-6)


def test_a_graph_reads_bins_as_we_do():
    said = np.random.default_rng(0).integers(0, BINS.vocabulary, (50, BINS.length))
    assert np.array_equal(reader(BINS)(torch.from_numpy(said)), BINS.decode(said)[0])


def test_fast_is_as_long_as_the_longest_chunk_and_its_end():
    lengths = (FAST.encode(smooth(400)) != END).sum(axis=1)
    assert SHORT.length == lengths.max() + 1 < FAST.length
    assert np.array_equal(SHORT.encode(smooth(400)), FAST.encode(smooth(400))[:, : SHORT.length])
    with pytest.raises(ValueError, match=f"a chunk takes 1. tokens, and {SHORT.length} are the most"):
        SHORT.encode(np.random.default_rng(0).uniform(-1, 1, (1, HORIZON * ACTIONS)))


@given(
    st.lists(st.sampled_from([1, 2, BREAK]), max_size=30), st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2]))
)
def test_merging_goes_from_the_left(stream, pair):
    expected, k = [], 0
    while k < len(stream):
        hit = tuple(stream[k : k + 2]) == pair
        expected.append(9 if hit else stream[k])
        k += 2 if hit else 1
    assert merged(np.array(stream, np.int64), pair, 9).tolist() == expected


@pytest.mark.parametrize("tokens", [BINS, FAST, SHORT])
def test_a_description_is_all_of_it(tokens):
    again = tokens_of(json.loads(json.dumps(tokens.described())))
    assert again == tokens
    assert np.array_equal(again.encode(smooth(3)), tokens.encode(smooth(3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BinTokens(0, 3), "1 to 4096 numbers"),
        (lambda: BinTokens(10**9, 3), "1 to 4096 numbers"),
        (lambda: BinTokens(4, 3, bins=10**9), "bins are 2 to 4096"),
        (lambda: BinTokens(4, 3, bins=1), "bins are 2 to 4096"),
        (lambda: BinTokens(4, 3, stop=(0.0, 2.0, 0.0)), "stop is an action of 3"),
        (lambda: FastTokens(4, 3, scale=0.0), "scale is positive"),
        (lambda: FastTokens(4, 3, most=13), "takes 1 to 12 tokens"),
        (lambda: FastTokens(4, 3, scale=1e12), "at most 4096"),
        # Each merge doubles the one before it: 2**60 numbers.
        (lambda: FastTokens(4, 3, merges=((1, 1), *((42 + k, 42 + k) for k in range(60)))), "a chunk has 12"),
        (lambda: FastTokens(4, 3, merges=((1, 9999),)), "not yet known"),
        (lambda: FastTokens.fit(smooth(4), HORIZON, vocabulary=16), "vocabulary is at least"),
        (lambda: BINS.encode(np.full((1, 24), np.nan)), "not finite"),
        (lambda: FAST.encode(np.zeros((1, 7))), r"chunks are \(n, 24\)"),
        (lambda: tokens_of({"kind": "words"}), "bins or fast, got 'words'"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

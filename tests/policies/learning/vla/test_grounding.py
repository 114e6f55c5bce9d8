"""Grounding: what words learn alone, and what a policy makes of it."""

import numpy as np
import pytest
import torch

from policies.language.minilm import SentenceEncoder
from policies.learning.vla.controller import SpokenPolicy
from policies.learning.vla.grounding import Grounding, Referents
from policies.learning.vla.localiser import Localiser, Sights
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.tiny import TinyVla
from policies.models.export import export
from policies.models.tokens import BinTokens
from policies.models.vision import EncoderConfig
from sim.spec import Signal
from tests.policies.language.tiny_bert import written

COLOURS, RELATIONS = 3, 4
CAMERA = Signal("camera", (16, 16, 3), "1", "", 0.0, 255.0, dtype="uint8")
OFF = 0.08 * torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
ASKED = [
    (a, where, b) for a in range(COLOURS) for where in range(RELATIONS) for b in range(COLOURS) if a not in (b, where)
]
UNSEEN = [(a, a, b) for a in range(COLOURS) for b in range(COLOURS) if a != b]


def sentence(one):
    """Words (4, 11) "put A RELATION B", each known by what it is and, as by a sentence encoder, by where it is."""
    a, where, b = one
    words = torch.zeros(4, 11)
    words[range(4), [0, 1 + a, 1 + COLOURS + where, 1 + b]] = 1.0
    words[1, 8], words[3, 9] = 1.0, 1.0
    return words


def scene(n, generator):
    return torch.rand(n, 3, 3, generator=generator) * torch.tensor([0.3, 0.4, 0.02])


def truth(positions, asked):
    """Where the objects, the one that moves, and the place where it goes, are (n, 5, 3)."""
    row = torch.arange(len(asked))
    a, where, b = torch.tensor(asked).T
    return torch.cat([positions, positions[row, a][:, None], (positions[row, b] + OFF[where])[:, None]], 1)


def learned(first):
    torch.manual_seed(0)
    grounding = Grounding(11, Referents(3, 2, first), 8)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(grounding.parameters(), 2e-2)
    there = torch.ones(32, 4, dtype=torch.bool)
    for _ in range(400):
        asked = [ASKED[k] for k in torch.randint(len(ASKED), (32,), generator=generator)]
        loss = grounding.loss(torch.stack([sentence(t) for t in asked]), there, truth(scene(32, generator), asked))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return grounding


@pytest.fixture(scope="module")
def grounding():
    return learned(0)


@pytest.mark.parametrize("asked", [ASKED, UNSEEN], ids=["learned", "never_said"])
def test_words_refer_to_what_they_mean(grounding, asked):
    positions = scene(len(asked), torch.Generator().manual_seed(1))
    so = truth(positions, asked)
    grounding.normalise(so)
    words = torch.stack([sentence(one) for one in asked])
    chosen = grounding.resolve(words, torch.ones(len(asked), 4, dtype=torch.bool))
    assert chosen.shape == (len(asked), grounding.kept) and (chosen.sum(1) == 4.0).all()
    read = grounding.targets(chosen, positions).unflatten(1, (2, 3)) * grounding.deviation[3:] + grounding.mean[3:]
    assert (read - so[:, 3:]).norm(dim=-1).max() < 0.01
    # Of the offsets several may have become the same.
    assert torch.allclose(
        grounding.targets(grounding.label(so), positions), grounding.targets(chosen, positions), atol=0.1
    )


def test_what_is_not_there_says_nothing(grounding):
    words, there = sentence((0, 1, 2))[None].repeat(2, 1, 1), torch.ones(2, 6, dtype=torch.bool)
    there[:, 4:] = False
    more = torch.cat([words, torch.randn(2, 2, 11, generator=torch.Generator().manual_seed(0))], 1)
    assert torch.equal(grounding.resolve(more, there), grounding.resolve(words, there[:, :4]))


def test_the_clone_does_not_teach_words_what_they_mean(grounding):
    numbers = scene(4, torch.Generator().manual_seed(0)).flatten(1).requires_grad_()
    words, there = torch.stack([sentence(t) for t in ASKED[:4]]), torch.ones(4, 4, dtype=torch.bool)
    assert not grounding.targets(grounding.resolve(words, there), grounding.positions(numbers, {})).requires_grad


def shown(positions):
    """Pictures (n, 16, 16, 3) of a red and a green square of 3 pixels at positions (n, 2, 3), 0.03 a pixel."""
    pictures = torch.full((len(positions), 16, 16, 3), 60, dtype=torch.uint8)
    corners = (positions[..., :2] / 0.03).round().long()
    for colour in range(2):
        for n, (right, down) in enumerate(corners[:, colour].tolist()):
            pictures[n, down : down + 3, right : right + 3] = torch.tensor([0, 0, 0], dtype=torch.uint8)
            pictures[n, down : down + 3, right : right + 3, colour] = 220
    return {"camera": pictures}


def sights(so, look=shown):
    """The same with what is true."""
    return Sights(look(so), so[:, :2], torch.zeros(len(so), dtype=torch.int64), {})


def table(n, generator):
    """Where two squares, and what is meant, are (n, 3, 3): none is hidden behind the other."""
    at = 0.03 * torch.randint(13, (n, 3, 3), generator=generator)
    at[:, 0, 0], at[:, 1, 0] = at[:, 0, 0].clamp(max=0.12), at[:, 1, 0].clamp(min=0.21)
    return at * torch.tensor([1.0, 1.0, 0.0])


def test_objects_that_nobody_measures_are_localised_in_pictures():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    eyes = EncoderConfig(channels=[8, 4], strides=[1, 1], shift=0)
    seen = Grounding(11, Referents(2, 1, None), 4, Localiser((CAMERA,), 2, eyes, 16, generator))
    so = table(256, generator)
    seen.normalise(so)
    optimizer = torch.optim.Adam(seen.localiser.parameters(), 1e-2)
    for _ in range(150):
        some = so[torch.randint(len(so), (32,), generator=generator)]
        optimizer.zero_grad()
        seen.localisation_errors(sights(some))[1].backward()
        optimizer.step()
    new = table(100, torch.Generator().manual_seed(1))
    off = (seen.positions(torch.zeros(100, 2), shown(new)) - new[:, :2]).norm(dim=-1)
    assert off.median() < 0.01 < 0.05 < (seen.mean[:2] - new[:, :2]).norm(dim=-1).median()


def test_an_uncertain_localiser_says_by_how_much_it_is_off():
    """Of squares of which one is not there in every other picture."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    eyes = EncoderConfig(channels=[8, 4], strides=[1, 1], shift=0)

    def hidden(so):
        pictures = shown(so)["camera"]
        other = pictures[::2]
        other[other[..., 1] == 220] = 60
        return {"camera": pictures}

    seen = Grounding(11, Referents(2, 1, None), 4, Localiser((CAMERA,), 2, eyes, 16, generator, uncertainty=True))
    so = table(256, generator)
    seen.normalise(so)
    optimizer = torch.optim.Adam(seen.localiser.parameters(), 1e-2)
    for _ in range(200):
        some = so[torch.randint(len(so), (32,), generator=generator)]
        optimizer.zero_grad()
        seen.localisation_errors(sights(some, hidden))[1].backward()
        optimizer.step()
    new = table(100, torch.Generator().manual_seed(1))
    said = seen.positions(torch.zeros(100, 2), hidden(new))
    errors, _ = seen.localisation_errors(sights(new, hidden))
    off, expected = (errors / seen.deviation[:2].square()).mean(-1), said[..., 3].exp()
    assert said.shape == (100, 2, 4) and (off[::2, 1].mean() > 5.0 * off[1::2, 1].mean())
    assert expected[::2, 1].mean() > 3.0 * expected[1::2, 1].mean()
    assert 0.5 * off[::2, 1].mean() < expected[::2, 1].mean() < 2.0 * off[::2, 1].mean()
    chosen = torch.zeros(100, seen.kept)
    chosen[:, 1] = 1.0  # the green one
    assert torch.equal(seen.targets(chosen, said)[:, -1], 0.5 * said[:, 1, 3]) and seen.size == 4


def test_uncertainty_needs_heatmaps():
    config = TinyConfig(offsets=4, uncertainty=True, localiser=EncoderConfig(head="flat", shift=0))
    with pytest.raises(ValueError, match="network.localiser.head=flat has not"):
        TinyVla(BinTokens(2, 2, 16), 6, (CAMERA,), 8, config, seed=0, referents=Referents(2, 1, None))


def test_who_neither_measures_nor_looks_is_told():
    with pytest.raises(ValueError, match="nobody measures where objects are, and there is no localiser for them"):
        Grounding(11, Referents(2, 1, None), 4)
    config = TinyConfig(looks=False, offsets=4)
    for referents, looks in ((None, True), (Referents(2, 1, 0), True), (Referents(2, 1, None), False)):
        made = TinyVla(BinTokens(2, 2, 16), 6, (CAMERA,), 8, config, seed=0, referents=referents)
        assert bool(made.eyes) == looks  # of what is in pictures they see more only where nothing is found there


# What is measured, or seen and looked at, too, is exported by `make test-all`: the exporter takes ten seconds for each.
@pytest.mark.parametrize(
    ("first", "looks"),
    [
        pytest.param(0, True, marks=pytest.mark.long, id="measured"),
        pytest.param(None, True, marks=pytest.mark.long, id="seen"),
        pytest.param(None, False, id="found"),
    ],
)
def test_the_file_refers_to_what_the_network_refers_to(first, looks, tmp_path):
    encoder = SentenceEncoder(written(tmp_path))
    last = float(len(encoder.words.vocabulary) - 1)
    inputs = (
        Signal("places", (6,), "m", "world"),
        *(() if first == 0 else (CAMERA,)),
        Signal("instruction", (24,), "1", "", 0.0, last, dtype="int64"),
    )
    sight = EncoderConfig(channels=[8, 8], strides=[2, 2])
    config = TinyConfig(width=32, keypoints=8, sight=sight, parallel=True, offsets=4, looks=looks)
    referents = Referents(2, 1, first)
    policy = TinyVla(BinTokens(2, 2, 16), 6, inputs[1:-1], encoder.size, config, seed=0, referents=referents)
    generator = torch.Generator().manual_seed(1)
    words = policy.grounding
    for weight in (policy.head.weight, words.object_weight, words.offset_weight, policy.measure.weight):
        torch.nn.init.normal_(weight, std=0.5, generator=generator)
    if policy.grounding.localiser:  # noise looks much the same everywhere
        torch.nn.init.normal_(policy.grounding.localiser.affine.weight, std=10.0, generator=generator)
    commands = (Signal("velocity", (2,), "m/s", "world", -2.0, 2.0),)
    told = SpokenPolicy("told", "task", "robot", 20.0, inputs, commands, encoder, policy, 4)
    file = export(told, tmp_path / "policy.onnx")
    rng, state = np.random.default_rng(0), told.initial_state(3)
    file.reset(3)
    for said in (["open the drawer", "push the red ball", "close"], ["close", "push the red ball", "open the door"]):
        signals = {
            "places": rng.normal(size=(3, 6)).astype(np.float32),
            "camera": rng.integers(0, 256, (3, 16, 16, 3), np.uint8),
            "instruction": encoder.words.encode(said, 24)[0],
        }
        signals = {s.name: signals[s.name] for s in inputs}
        wanted, state = told.act(signals, state)
        got = file.step(signals)
        assert np.allclose(got["velocity"], wanted["velocity"], atol=1e-5)
        reference = state["told"][:, -policy.grounding.kept :]
        assert (reference[:, :2].sum(1) == 1.0).all() and (reference[:, 2:].sum(1) == 1.0).all()
    if not looks:  # all that counts of pictures is where things are in them
        assert not policy.eyes and not policy.patch
    moved = {"places": signals["places"] + np.float32(1.0)} if first == 0 else {"camera": 255 - signals["camera"]}
    elsewhere = signals | moved  # what tells where things are
    chunk = told.act(elsewhere, told.initial_state(3))[1]["chunk"]
    assert (chunk != told.act(signals, told.initial_state(3))[1]["chunk"]).any()

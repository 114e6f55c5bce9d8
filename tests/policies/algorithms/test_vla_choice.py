"""Cloning of things that are asked for, among which words choose before there is a clone."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla_rl import VlaRl, VlaRlConfig
from policies.collect import demonstrate
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.pretrained import PretrainedConfig
from policies.learning.vla.shown import asked_of
from policies.models.export import export
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.tasks import make
from tests.policies.language.spoken_words import encoder
from tests.policies.resumed import same
from tests.policies.toy_words import CORNERS, SAID, ToyWords

SIGHT = EncoderConfig(channels=[4], strides=[2], shift=0)
NETWORK = TinyConfig(width=16, layers=1, heads=2, keypoints=4, parallel=True, sight=SIGHT, choice=True)


def cloning(head="tokens", seed=0, task=None, **settings):
    quick = {"episodes": 6, "horizon": 2, "updates": 150, "batch_size": 32, "bins": 16, "grounding": 400}
    config = VlaConfig(**quick | settings, head=head, network=NETWORK, learning_rate=1e-2)
    return Vla(task or ToyWords(), config, seed)


@pytest.fixture(scope="module", params=["tokens", "flow"])
def learned(request):
    """A clone, the first of its rows, and what its words had learned then."""
    made = cloning(request.param)
    learning = made.learn()
    first = next(learning)
    words = copy.deepcopy(made.choices.state_dict())
    rows = [first, *learning]
    return made, rows, words


def went(made, sentence):
    """Towards which corner (2,) the controller goes from the middle."""
    controller = made.controller()
    signals = {
        "position": np.zeros((1, 2), np.float32),
        "camera": np.zeros((1, 8, 8, 3), np.uint8),
        "instruction": made.task.words.encode([sentence])[0],
    }
    return np.sign(controller.act(signals, controller.initial_state(1))[0]["velocity"][0])


def test_words_choose_first_and_the_clone_teaches_them_nothing(learned):
    made, rows, words = learned
    assert rows[0]["grounding_loss"] == rows[0]["loss"] > made.stages[0].metrics()["grounding_loss"]
    assert words["thing_weight"].any()
    final = made.choices.state_dict()
    assert made.stages[0].over and all(
        torch.equal(made.average.choices.state_dict()[name], final[name]) for name in final
    )
    assert made.policy.choices is made.policy.meaning and made.policy.meaning.kept == len(SAID)


def test_a_sentence_that_it_never_heard_costs_nothing(learned):
    made, *_ = learned
    for asked, corner in zip(SAID, CORNERS, strict=True):
        for sentence in (*asked.learned, *asked.held_out):
            assert (went(made, sentence) == np.sign(corner)).all()


def test_nothing_else_is_heard(learned):
    made, *_ = learned
    words, there = made.encoder.states([*SAID[0].learned, *SAID[0].held_out], made.told.shape[0])
    told = made.average.tell(words, there)
    assert told.words.shape[1] == told.heard.shape[1] == 0 and (told.reference == told.reference[0]).all()
    assert told.packed().shape == (3, made.average.kept(24)) == (3, len(SAID))
    heard = made.average.heard(told)
    assert heard.shape == (3, 16) and (heard == heard[0]).all()


# The flow's file is exported by `make test-all`: the exporter takes ten seconds for each.
@pytest.mark.parametrize("learned", ["tokens", pytest.param("flow", marks=pytest.mark.long)], indirect=True)
def test_the_file_chooses_as_the_network_does(learned, tmp_path):
    made, *_ = learned
    controller = made.controller()
    file, state = export(controller, tmp_path / "policy.onnx"), controller.initial_state(2)
    file.reset(2)
    rng = np.random.default_rng(0)
    for said in (["open the drawer", "now close the drawer"], ["close the drawer", "please close the drawer"]):
        signals = {
            "position": rng.uniform(-0.5, 0.5, (2, 2)).astype(np.float32),
            "camera": rng.integers(0, 256, (2, 8, 8, 3), np.uint8),
            "instruction": made.task.words.encode(said)[0],
        }
        wanted, state = controller.act(signals, state)
        assert np.allclose(file.step(signals)["velocity"], wanted["velocity"], atol=1e-5)
    assert (state["told"].sum(1) == 1.0).all()


def test_who_is_killed_goes_on_exactly_where_he_was(tmp_path):
    whole, rows = cloning(updates=60, grounding=60), []
    for row in whole.learn():
        rows.append(row)
        if len(rows) == 3:
            checkpoint.save(tmp_path / "checkpoint.npz", whole.state_dict())
    again = cloning(updates=60, grounding=60)
    again.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*again.learn()] == rows[3:]
    same(whole.state_dict(), again.state_dict())


def test_who_practises_hears_what_words_chose_before():
    clone = dataclasses.replace(cloning().config, updates=20, grounding=40)
    config = VlaRlConfig(clone=clone, iterations=2, episodes=8, num_envs=4, critic_alone=0, critic_hidden=[8])
    made = VlaRl(ToyWords(), config, 0)
    *_, told = made.learn()
    assert told["disagreement"] < 1e-4 and told["clone_kl"] > 0.0
    same(made.improvement.average.choices.state_dict(), made.cloning.average.choices.state_dict())


def test_words_that_mean_positions_have_no_things_to_choose_among(tmp_path):
    task = make("arm_words", cameras=[], encoder=encoder(tmp_path))
    with pytest.raises(ValueError, match=r"network.choice=true is of words that mean no positions.*network.offsets"):
        cloning(task=task)


@pytest.mark.parametrize("head", ["tokens", "flow"])
def test_who_is_told_what_a_scene_is_not_of_stands_still(head):
    made = cloning(head, refused=0.5)
    told, sentences = made._shown()
    index = torch.arange(len(told.asked))
    drawn = made._drawn(told, sentences, index)
    other = drawn["truth"] != told.truth
    assert 0.3 < other.float().mean() < 0.7 and set(drawn["truth"].tolist()) == {0, 1}
    assert (drawn["wanted"][~other] == told.wanted[~other]).all()
    still = drawn["wanted"][other]
    if head == "tokens":
        still = torch.from_numpy(made.head.tokens.decode(still.numpy())[0])
    assert still.abs().max() < 0.1  # the middle of 16 bins
    again = cloning(head)._drawn(told, sentences, index)
    assert (again["truth"] == told.truth).all() and (again["wanted"] == told.wanted).all()


def test_there_is_another_thing_to_refuse(monkeypatch):
    monkeypatch.setattr(ToyWords, "instructions", SAID[:1])
    with pytest.raises(ValueError, match="asked for one thing only: there is no other to refuse"):
        cloning(refused=0.1)
    with pytest.raises(ValueError, match="choice and algorithm.refused go without algorithm.pretrained"):
        VlaConfig(network=NETWORK, pretrained=PretrainedConfig(folder="x"))


def test_what_was_demonstrated_is_not_kept_when_it_is_learned():
    made = cloning(updates=1)
    made._demonstrations()
    state = made.state_dict()
    made.load_state_dict(state)
    assert made._seen is not None
    made.load_state_dict({**state, "done": 1})
    assert made._seen is None


def test_what_several_are_asked_for_by_is_the_first_of_them(monkeypatch):
    task = ToyWords()
    monkeypatch.setattr(task, "instructions", (SAID[0], SAID[0], SAID[1]))
    episodes = [*demonstrate(ToyWords(), 4, 0, 0.0)]
    asked, said = asked_of(episodes, task, task.words)
    assert {*asked} == {0, 2} and len(said) == 3


@pytest.mark.parametrize("settings", [{"refused": 1.0}, {"refused": -0.1}, {"refused": 0.5, "network": TinyConfig()}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match="refused must be in 0..1, below 1, and goes with network.choice=true"):
        VlaConfig(**{"network": NETWORK} | settings)

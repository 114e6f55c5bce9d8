"""Cloning of what was asked for in words."""

import copy

import numpy as np
import pytest
import torch

from policies.algorithms import algorithm_for
from policies.algorithms.vla import Vla, VlaConfig
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.shown import Sentences, asked_of, held
from policies.models.vision import EncoderConfig
from sim.tasks import make
from tests.policies.language.spoken_words import encoder

TASKS = ["drawer-close-v3", "window-close-v3"]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = encoder(tmp_path_factory.mktemp("words"))
    return make("metaworld/words", tasks=TASKS, encoder=folder, steps=120)


@pytest.fixture(scope="module")
def shown(task):
    """What everybody here learns from."""
    return Vla(task, few(), 0)._shown()


def few(**settings):
    network = TinyConfig(width=32, keypoints=8, parallel=True, sight=EncoderConfig(channels=[8, 8], strides=[4, 2]))
    return VlaConfig(**{"episodes": 2, "updates": 40, "batch_size": 16, "bins": 16, "network": network} | settings)


def learner(task, shown, monkeypatch, **settings):
    made = Vla(task, few(**settings), 0)
    monkeypatch.setattr(made, "_shown", lambda: shown)
    return made


def test_the_likelihood_of_the_experts_tokens_rises(task, shown, monkeypatch):
    made = learner(task, shown, monkeypatch, updates=150)
    told = [*made.learn()]
    losses, floors = ([metrics[name] for metrics in told] for name in ("loss", "loss_floor"))
    assert 0.0 < min(floors) == max(floors) <= min(losses)
    assert losses[0] < 4 * np.log(16.0) and losses[-1] < losses[0] - 1.0
    told = shown[0]
    signals = {name: pictures[:4].numpy() for name, pictures in told.pictures.items()}
    signals |= {"hand_position": told.numbers[:4, :3].numpy(), "gripper_opening": told.numbers[:4, 3:].numpy()}
    sentence = task.instructions[int(told.asked[0])].held_out[0]
    signals["instruction"] = np.repeat(task.words.encode([sentence])[0], 4, axis=0)
    controller = made.controller()
    commands, _ = controller.act(signals, controller.initial_state(4))
    assert commands["hand_velocity"].shape == (4, 3) and controller.plan() == {"horizon": 5, "replan": 5}


def test_it_goes_on_exactly_from_where_it_was_saved(task, shown, monkeypatch):
    torch.manual_seed(7)  # nothing may depend on it
    whole, first = (learner(task, shown, monkeypatch, updates=100) for _ in range(2))
    for _ in whole.learn():
        pass
    next(first.learn())
    state = copy.deepcopy(first.state_dict())
    second = learner(task, shown, monkeypatch, updates=100)
    second.load_state_dict(state)
    assert second.done == 50
    for _ in second.learn():
        pass
    ours, theirs = (made.average.state_dict() for made in (whole, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_learned_from(task, shown):
    told, sentences = shown
    assert sorted(set(told.asked.tolist())) == [0, 1] and len(told.wanted) == len(told.numbers)
    words, there = sentences.draw(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0))
    assert words.shape[:2] == there.shape == (3, 24) and not words[~there].any()


def test_every_sentence_that_asks_for_a_thing_is_drawn_and_no_other(task):
    asked = [one.learned[:3] for one in task.instructions]
    sentences = Sentences.of(Vla(task, few(), 0).encoder, asked, 24)
    for thing in (0, 1):
        words, _ = sentences.draw(torch.full((200,), thing), torch.Generator().manual_seed(0))
        found = {states.numpy().tobytes() for states in words}
        assert found == {sentences.words[k].numpy().tobytes() for k in range(3 * thing, 3 * thing + 3)}


def test_a_part_of_a_chunk_is_its_mean_action():
    chunk = np.arange(12, dtype=np.float32).reshape(1, 12)  # six actions of two numbers
    assert held(chunk, 6, 2).tolist() == [[2.0, 3.0, 8.0, 9.0]]


def test_a_sentence_that_is_none_of_the_tasks_stands_for_itself(task):
    from policies.collect import demonstrate

    known, other = demonstrate(task, 2, 0)
    thing = int(known.signals["task"][0].argmax())
    other.signals["instruction"] = task.words.encode(["go ahead"])[0].repeat(len(other.reward), 0)
    asked, said = asked_of([other, known, other], task, task.words)
    assert asked == [2, thing, 2]
    assert said == [*(one.learned for one in task.instructions), ("go ahead",)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": 2}, "parts divide the horizon"),
        ({"updates": 0}, "at least 1"),
        ({"unheard": 1.0}, "unheard < 1"),
        ({"softness": 0.0}, "softness > 0"),
        ({"bins": 1}, "bins are 2 to"),
        ({"tokens": "words"}, "tokens 'words' are not one of bins, fast"),
        ({"tokens": "fast"}, "set algorithm.network.parallel=false"),
    ],
)
def test_bad_settings_are_named(task, settings, message):
    with pytest.raises(ValueError, match=message):
        Vla(task, few(**settings), 0)


def test_it_needs_words_and_others_do_not_take_them(task):
    with pytest.raises(ValueError, match="needs a task with a policy that is told in words"):
        algorithm_for("vla", make("metaworld/reach-v3"))
    with pytest.raises(ValueError, match="does not take token signals"):
        algorithm_for("ppo", task)

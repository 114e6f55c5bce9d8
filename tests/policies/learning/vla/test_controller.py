"""A policy that is told in words, as one file: what it does is what the network does, whatever it is told when."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deploy.loop import HandshakeError, handshake
from deploy.policy_file import PolicyFile
from deploy.teleop.instruction import tokeniser_of
from policies.language.minilm import SentenceEncoder
from policies.learning.vla.controller import SpokenPolicy
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.tiny import TinyVla
from policies.models.export import export
from policies.models.tokens import BinTokens, FastTokens, tokens_of
from policies.models.vision import EncoderConfig
from sim.spec import Signal
from tests.policies.language.tiny_bert import written

PIXELS, HORIZON, WORDS = 16, 4, 24
COMMANDS = (Signal("velocity", (2,), "m/s", "world", -2.0, 2.0),)
SIGHT = EncoderConfig(channels=[8, 8], strides=[2, 2])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(written(tmp_path_factory.mktemp("tiny_bert")))


def controller(encoder, parallel, tokens=None, horizon=HORIZON, values=True, pictures=True):
    last = float(len(encoder.words.vocabulary) - 1)
    inputs = (
        Signal("position", (3,), "m", "world"),
        Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),
        Signal("instruction", (WORDS,), "1", "", 0.0, last, dtype="int64"),
    )
    inputs = inputs if pictures else (inputs[0], inputs[2])
    config = TinyConfig(width=32, keypoints=8, sight=SIGHT, parallel=parallel, patch=2)
    policy = TinyVla(tokens or BinTokens(2, 2, 16), 3, inputs[1:-1], encoder.size, config, seed=0)
    # At first every token is as likely, and words hardly count.
    for layer in (policy.head, policy.hear, *policy.film.values()):
        torch.nn.init.normal_(layer.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    return SpokenPolicy("told", "task", "robot", 20.0, inputs, COMMANDS, encoder, policy, horizon, values=values)


FAST = FastTokens.fit(np.random.default_rng(0).normal(0.0, 0.2, (80, 4)).clip(-1, 1), 2, vocabulary=60)
# torch takes half a minute to export each
IN_TURN = pytest.param((False, None), marks=pytest.mark.long, id="in_turn")
COMPRESSED = pytest.param((False, FAST), marks=pytest.mark.long, id="fast")


@pytest.fixture(scope="module", params=[IN_TURN, COMPRESSED, pytest.param((True, None), id="parallel")])
def made(request, encoder, tmp_path_factory):
    told = controller(encoder, *request.param)
    return told, export(told, tmp_path_factory.mktemp("told") / "policy.onnx")


def seen(encoder, sentences, seed=0):
    rng = np.random.default_rng(seed)
    n = len(sentences)
    return {
        "position": rng.normal(size=(n, 3)).astype(np.float32),
        "camera": rng.integers(0, 256, (n, PIXELS, PIXELS, 3), np.uint8),
        "instruction": encoder.words.encode(sentences, WORDS)[0],
    }


def test_the_file_does_what_the_network_does_when_robots_are_told_other_things(made, encoder):
    told, file = made
    said = [["open the drawer", "close the window"]] * 3 + [["open the drawer", "push the red ball"]] * 3
    state = told.initial_state(2)
    file.reset(2)
    left = []
    for step, sentences in enumerate(said):
        signals = seen(encoder, sentences, step)
        wanted, state = told.act(signals, state)
        got = file.step(signals)
        assert np.allclose(got["velocity"], wanted["velocity"], atol=1e-5)
        left.append(state["left"][:, 0].tolist())
    # The second is told something new after three steps of a chunk of four: it plans anew, the first goes on.
    assert left == [[3.0, 3.0], [2.0, 2.0], [1.0, 1.0], [0.0, 3.0], [3.0, 2.0], [2.0, 1.0]]


def test_words_decide_and_neighbours_do_not(made, encoder):
    told, _ = made
    chunks = []
    for sentence in ("open the drawer", "please push the red ball"):
        signals = seen(encoder, [sentence] * 8)
        _, after = told.act(signals, told.initial_state(8))
        _, alone = told.act({name: value[3:4] for name, value in signals.items()}, told.initial_state(1))
        assert np.allclose(after["chunk"][3:4], alone["chunk"], atol=1e-5)
        chunks.append(after["chunk"])
    assert not np.allclose(*chunks)


def test_each_part_of_a_chunk_is_held(made, encoder):
    told, _ = made
    signals, state = seen(encoder, ["open the drawer"]), told.initial_state(1)
    done = []
    for _ in range(HORIZON):
        command, state = told.act(signals, state)
        done.append(command["velocity"][0])
    assert (done[0] == done[1]).all() and (done[2] == done[3]).all()


def test_the_file_says_how_sure_it_was_and_what_it_thinks_a_state_is_worth(made, encoder):
    told, file = made
    signals, policy = seen(encoder, ["open the drawer", "close the window"]), told.policy
    prefix = policy.encode(
        policy.tell(*encoder.states(["open the drawer", "close the window"])),
        torch.from_numpy(signals["position"]),
        {"camera": torch.from_numpy(signals["camera"])},
    )
    said = policy.generate(prefix, 0.0).tokens
    judged, count = policy.evaluate(prefix, said), (~policy.after(said)).sum(1)
    file.reset(2)
    for _ in range(2):  # while a chunk is carried out they stay as they are
        file.step(signals)
        states = file.states()
        assert np.allclose(states["entropy"][:, 0], (judged.entropy.sum(1) / count).detach(), atol=1e-5)
        assert np.allclose(states["value"][:, 0], judged.value.detach(), atol=1e-5)
    assert states["entropy"].min() > 0.01 and states["entropy"][0] != states["entropy"][1]
    assert {*controller(encoder, True, values=False).initial_state(1)} == {*states} - {"value"}


def test_the_tokeniser_is_in_the_file(made, encoder):
    signal, words = tokeniser_of(PolicyFile.load(made[1].path))
    assert signal.name == "instruction" and words == encoder.words


def test_a_robot_without_the_camera_is_named_before_anything_moves(made):
    told, file = made
    numbers, camera, sentence = told.inputs
    robot = SimpleNamespace(
        robot="robot", rate_hz=20.0, num=1, signals=(numbers, dataclasses.replace(camera, shape=(8, 8, 3)), sentence)
    )
    robot.commands = COMMANDS
    with pytest.raises(HandshakeError, match=r"signal 'camera': shape is \(16, 16, 3\) in the policy, \(8, 8, 3\) in"):
        handshake(file, robot)
    robot.signals = (numbers, sentence)
    with pytest.raises(HandshakeError, match="signal 'camera': the driver has none; it has: position, instruction"):
        handshake(file, robot)
    robot.signals = told.inputs
    handshake(file, robot)


def test_a_policy_may_see_no_pictures(encoder):
    blind = controller(encoder, True, pictures=False)
    signals = seen(encoder, ["open the drawer", "close the window"])
    del signals["camera"]
    signals["position"][1] = signals["position"][0]
    _, state = blind.act(signals, blind.initial_state(2))
    assert [s.name for s in blind.inputs] == ["position", "instruction"]
    assert not np.allclose(*state["entropy"])  # only the words differ


@pytest.mark.long
def test_the_file_of_one_that_sees_no_pictures_does_the_same(encoder, tmp_path):
    blind = controller(encoder, True, pictures=False)
    file = export(blind, tmp_path / "policy.onnx")
    signals = seen(encoder, ["open the drawer", "close the drawer"])
    del signals["camera"]
    file.reset(2)
    wanted, _ = blind.act(signals, blind.initial_state(2))
    assert np.allclose(file.step(signals)["velocity"], wanted["velocity"], atol=1e-5)


def test_what_cannot_be_exported_is_named(encoder):
    with pytest.raises(ValueError, match="by its equal parts, got tokens of 2 actions of 2"):
        controller(encoder, False, horizon=5)
    with pytest.raises(ValueError, match="got tokens of 4 actions of 1"):
        controller(encoder, False, BinTokens(4, 1, 16))


def test_what_is_said_of_fast_tokens_is_read_or_a_stop(encoder):
    told = controller(encoder, False, FAST)
    signals = seen(encoder, ["open the drawer"] * 64)
    _, state = told.act(signals, told.initial_state(64))
    prefix = told.policy.encode(
        told.policy.tell(*encoder.states(["open the drawer"] * 64)),
        torch.from_numpy(signals["position"]),
        {"camera": torch.from_numpy(signals["camera"])},
    )
    said = told.policy.generate(prefix, 0.0).tokens
    chunks, readable = told.policy.detokenise(said)
    assert 8 < readable.sum() < 56 and (chunks[~readable] == 0.0).all()
    assert np.allclose(state["chunk"][:, :2], chunks[:, :2], atol=1e-6)  # held for two steps, of which one is over
    commands, _ = told.act(signals, state)
    assert np.allclose(commands["velocity"][~readable], 0.0)  # the middle of its range


def test_what_the_action_tokens_mean_is_in_the_file(made):
    told, file = made
    assert tokens_of(PolicyFile.load(file.path).metadata["action_tokens"]) == told.policy.tokens

"""Cloning with a flow in the place of tokens, its file, and what dsrl makes of that: on a toy, without the wheel."""

import copy
from contextlib import closing

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFileError
from deploy.remote.subgraph import FileBase
from deploy.teleop.instruction import tokeniser_of
from policies.algorithms import algorithm_for
from policies.algorithms.dsrl import Dsrl
from policies.algorithms.dsrl_na import DsrlNa
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla_rl import VlaRl, VlaRlConfig
from policies.learning.base import Origin
from policies.learning.vla.flow import FlowConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.export import export
from policies.models.vision import EncoderConfig
from sim.env import make_env
from tests.policies.algorithms.test_dsrl import success
from tests.policies.toy_words import ToyWords

HORIZON = 3
OPEN, CLOSE = "open the drawer", "close the drawer"


@pytest.fixture(scope="module")
def task():
    return ToyWords()


def few(**settings):
    sight = EncoderConfig(channels=[4, 4], strides=[2, 2])
    quick = {"horizon": HORIZON, "head": "flow", "episodes": 20, "corruption": 1.0, "updates": 60, "batch_size": 32}
    quick |= {"network": TinyConfig(width=16, layers=1, heads=2, keypoints=4, parallel=True, sight=sight)}
    return VlaConfig(**quick | {"flow": FlowConfig(readouts=2, hidden=[32, 32], steps=4)} | settings)


@pytest.fixture(scope="module")
def clone(task):
    """A poor one."""
    made = Vla(task, few(), 0)
    rows = [*made.learn()]
    assert {*rows[-1]} == {"progress", "env_steps", "loss"} and rows[-1]["progress"] == 1.0
    return made


@pytest.fixture(scope="module")
def file(clone, tmp_path_factory):
    return export(clone.controller(), tmp_path_factory.mktemp("flow") / "policy.onnx", training={"seed": 0})


def steered(task, file, kind=Dsrl, **settings):
    quick = {"total_steps": 200, "warmup_episodes": 2, "head_start": 8, "batch_size": 16, "hidden": [32, 32]}
    origin = Origin(horizon=HORIZON, policy=file.path, episodes=8)
    return kind(task, kind.Config(base=origin, **quick | settings), 0)


def seen(task, sentences, seed=0):
    with closing(make_env(task, len(sentences), seed)) as env:
        env.reset(range(len(sentences)), range(len(sentences)))
        return env.observe() | {"instruction": task.words.encode(sentences)[0]}


def test_it_goes_on_exactly_from_where_it_was_saved(task):
    torch.manual_seed(7)  # nothing may depend on it
    whole, first = (Vla(task, few(updates=60, episodes=4), 0) for _ in range(2))
    for _ in whole.learn():
        pass
    next(first.learn())
    state = copy.deepcopy(first.state_dict())
    second = Vla(task, few(updates=60, episodes=4), 1)  # whatever it drew must be overwritten
    second.load_state_dict(state)
    assert second.done == 50
    for _ in second.learn():
        pass
    ours, theirs = (made.average.state_dict() for made in (whole, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(ours["usual_mean"][2:], torch.zeros(len(ours["usual_mean"]) - 2))


def test_the_file_does_what_the_network_does_when_robots_are_told_other_things(task, clone, file):
    policy = clone.controller()
    state = policy.initial_state(2)
    file.reset(2)
    left = []
    for step, sentences in enumerate([[OPEN, CLOSE]] * 2 + [[OPEN, OPEN]] * 3):
        signals = seen(task, sentences, step)
        wanted, state = policy.act(signals, state)
        assert np.allclose(file.step(signals)["velocity"], wanted["velocity"], atol=1e-5)
        left.append(state["left"][:, 0].tolist())
    # The second is told something new after two steps of a chunk of three: it plans anew, the first goes on.
    assert left == [[2.0, 2.0], [1.0, 1.0], [0.0, 2.0], [2.0, 1.0], [1.0, 0.0]]
    assert tokeniser_of(file)[1] == task.words


def test_the_base_in_the_file_is_the_network_s(task, clone, file, monkeypatch):
    base, policy, signals = FileBase(file), clone.controller(), seen(task, [OPEN, CLOSE, OPEN])
    observation = policy.eye.see(signals)
    encoded, run = [], base.hear.run
    monkeypatch.setattr(base.hear, "run", lambda tokens: encoded.append(tokens) or run(tokens))
    for _ in range(2):
        assert np.allclose(base.see(signals), observation, atol=1e-5)
    assert len(encoded) == 2  # each sentence once
    noise = np.random.default_rng(0).normal(size=(3, 2 * HORIZON)).astype(np.float32)
    assert np.allclose(base.sample(observation, noise), policy.base.sample(observation, noise), atol=1e-5)
    assert (base.observed, base.words) == (2 + 16 + 2 * 16, 16)
    told = observation[:, 2 : 2 + base.words]
    assert np.allclose(told[0], told[2]) and not np.allclose(told[0], told[1], atol=1e-2)


@pytest.mark.parametrize("told", [{}, [], {"heard": "heard", "kept": "kept", "numbers": "many"}])
def test_what_a_stranger_says_of_his_words_is_checked(file, monkeypatch, told):
    monkeypatch.setitem(file.metadata["base"], "told", told)
    with pytest.raises(PolicyFileError, match="what the metadata say of its base is malformed"):
        FileBase(file)


def test_without_noise_its_file_does_the_same_again(task, clone):
    quiet = Vla(task, few(flow=FlowConfig(readouts=2, hidden=[32, 32], steps=4, noise="none")), 0)
    quiet.average.load_state_dict(clone.average.state_dict())
    policy, signals = quiet.controller(), seen(task, [OPEN])
    assert not policy.chosen.table.any() and len(policy.chosen.table) == 1
    first, state = policy.act(signals, policy.initial_state(1))
    state["left"][:] = 0.0
    assert np.array_equal(policy.act(signals, state)[0]["velocity"], first["velocity"])


@pytest.mark.slow
def test_steered_through_its_noise_it_succeeds_more_often(task, file):
    learner = steered(task, file, total_steps=1600, warmup_episodes=10, head_start=100, batch_size=64, prior_steps=2000)
    for _ in learner.learn():
        pass
    rates = {name: success(task, policy, 60) for name, policy in learner.baselines().items()}
    assert success(task, learner.controller(), 60) > max(rates.values()) + 0.15


def test_critics_are_told_what_is_asked_for(task, file):
    insight, signals = steered(task, file).insight, seen(task, [OPEN, CLOSE])
    signals |= {name: value[:1].repeat(2, axis=0) for name, value in signals.items() if name != "instruction"}
    learner = steered(task, file, asymmetric=False)
    for one in (insight, learner.run.insight):
        judged = one.judge(torch.from_numpy(one.see(learner.run.base.eye, signals)))
        assert judged.shape == (2, one.judged) and not torch.allclose(judged[0], judged[1], atol=1e-2)
    assert insight.judged == 2 + 16 + 2 and learner.run.insight.judged == learner.cloning.observed


@pytest.mark.parametrize("kind", [Dsrl, DsrlNa])
def test_the_steered_file_does_what_was_learned_and_can_be_steered_again(task, file, tmp_path, kind):
    learner = steered(task, file, kind)
    for _ in learner.learn():
        pass
    assert learner.provenance()["base"] == {"sha256": file.sha256, "training": file.metadata["training"]}
    policy = learner.controller()
    made = export(policy, tmp_path / "policy.onnx")
    state, signals = policy.initial_state(2), seen(task, [OPEN, CLOSE])
    made.reset(2)
    for _ in range(HORIZON + 1):
        wanted, state = policy.act(signals, state)
        assert np.allclose(made.step(signals)["velocity"], wanted["velocity"], atol=1e-5)
    again, base = FileBase(made), FileBase(file)
    assert np.allclose(again.see(signals), base.see(signals), atol=1e-6) and again.words == base.words
    noise = np.random.default_rng(0).normal(size=(2, 2 * HORIZON)).astype(np.float32)
    assert np.array_equal(again.sample(base.see(signals), noise), base.sample(base.see(signals), noise))


def test_steering_goes_on_exactly_from_where_it_was_saved(task, file):
    whole = steered(task, file)
    rows = [*whole.learn()]
    first = steered(task, file, num_envs=whole.config.num_envs, total_steps=200)
    running = first.learn()
    for _ in range(len(rows) // 2):
        next(running)
    state = copy.deepcopy(first.state_dict())
    second = steered(task, file)
    second.load_state_dict(state)
    assert [*second.learn()] == rows[len(rows) // 2 :]


def test_words_need_a_base_that_was_told_in_words(task):
    with pytest.raises(ValueError, match="no such base is cloned here: set algorithm.base.policy to a file of"):
        Dsrl(task, Dsrl.Config(), 0)
    for name in ("expo", "rlif", "rlpd", "wsrl", "diffusion"):
        with pytest.raises(ValueError, match="does not take token signals"):
            algorithm_for(name, task)
    with pytest.raises(ValueError, match=r"algorithm.clone.head=tokens; dsrl steers a flow"):
        VlaRl(task, VlaRlConfig(clone=few()), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "words"}, "head 'words' is not one of tokens, flow"),
        ({"parts": 3}, "parts=3 and tokens=bins are of head=tokens"),
        ({"tokens": "fast"}, "tokens=fast are of head=tokens"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        few(**settings)

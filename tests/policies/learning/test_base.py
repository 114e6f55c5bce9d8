"""Bases out of policy files: they sample as they did, are steered as a clone is, and become part of one file again."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.remote.subgraph import FileBase, Part
from policies.algorithms import LearningError
from policies.algorithms.bc import BaseConfig, Bc, BcConfig, Cloning
from policies.algorithms.dsrl import Dsrl
from policies.algorithms.dsrl_na import DsrlNa
from policies.algorithms.expo import Expo, Residual
from policies.algorithms.rlif import Rlif
from policies.algorithms.rlpd import Rlpd, SeenConfig
from policies.learning.base import Origin
from policies.models.action_selection import BestOfN
from policies.models.chunking import ChunkPolicy, NoiseTable, Steering
from policies.models.denoiser import guided
from policies.models.export import export
from policies.models.pretrained import Stored
from policies.models.realtime import planned
from policies.models.vision import EncoderConfig
from policies.runner.config import RunError, compose
from policies.train import train
from tests.deploy.sample_policy import small as plain
from tests.policies.algorithms.test_expo import agree, drawn_judges
from tests.policies.models.test_chunking import base, steering
from tests.policies.toy_reach import Config, ToyReach
from tests.policies.toy_sight import ToySight

TOY = "tests.policies.toy_reach:ToyReach"
BASE = BaseConfig(horizon=2, hidden=[32, 32], updates=100, episodes=20, corruption=1.6)
TINY = {"total_steps": 100, "warmup_episodes": 2, "head_start": 8, "batch_size": 16, "num_envs": 1, "hidden": [16, 16]}
TINY |= {"critic_updates": 1, "actor_updates": 1}


def given(path, kind=Dsrl, **changes):
    origin = Origin(horizon=2, policy=str(path), episodes=10, corruption=0.5)
    return kind(ToyReach(), kind.Config(base=origin, **(TINY | changes)), 0)


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.average.parameters()])


@pytest.fixture(scope="module")
def cloned():
    """A cloned policy, before it is a file."""
    clone = Bc(ToyReach(), BcConfig(**vars(BASE)), 0)
    list(clone.learn())
    return clone


@pytest.fixture(scope="module")
def file(cloned, tmp_path_factory):
    path = tmp_path_factory.mktemp("given") / "base.onnx"
    return export(cloned.controller(), path, training={"seed": 0, "commit": "c0ffee"})


def drawn(count, *sizes):
    rng = np.random.default_rng(count)
    return [rng.normal(size=(count, size)).astype(np.float32) for size in sizes]


def bases():
    for kind in ("flow", "diffusion", "beso"):
        yield base(kind)
    made = base()
    yield guided(made, np.array([2, 3]), np.full(24, 0.1, np.float32), 0.7)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("way", ["noise", "steered", "best"])
def test_a_base_out_of_a_file_samples_as_it_did(index, way, tmp_path):
    made = list(bases())[index]
    chosen = {"noise": NoiseTable.normal(6, 5), "steered": steering(2, repeat=3), "best": NoiseTable.normal(18, 5)}[way]
    planner = BestOfN(drawn_judges(6)[2], 3) if way == "best" else None
    policy = export(ChunkPolicy.from_task(ToyReach(), made, chosen, 2, planner), tmp_path / "policy.onnx")
    found = Stored.load(policy.path, ToyReach(), 3)
    for count in (1, 40):
        observation, noise = drawn(count, 4, 6)
        assert np.abs(found.sample(observation, noise) - made.sample(observation, noise)).max() < 1e-5
    assert np.array_equal(found.mean, made.mean) and np.array_equal(found.deviation, made.deviation)


def test_learners_see_what_they_saw_of_the_clone(cloned, file):
    learner, (seen,) = given(file.path), drawn(30, 4)
    assert torch.equal(learner.cloning.see(seen), cloned.cloning.see(seen))
    assert (learner.cloning.size, learner.cloning.observed, learner.cloning.actions) == (4, 4, 2)


@pytest.mark.parametrize("kind", [Dsrl, DsrlNa, Expo])
def test_it_is_improved_as_the_clone_is(kind, cloned, file):
    """From the same state of the generator on, until rounding makes a difference."""
    shown = dataclasses.replace(BASE, episodes=10, corruption=0.5)
    own, other = kind(ToyReach(), kind.Config(base=shown, **TINY), 0), given(file.path, kind)
    own.cloning.load_state_dict(cloned.cloning.state_dict())
    other.generator.set_state(own.generator.get_state())
    for name in ("training", "critics", *(["judges"] if kind is DsrlNa else [])):
        getattr(other, name).load_state_dict(getattr(own, name).state_dict())
    wanted, found = list(own.learn())[-1], list(other.learn())[-1]
    assert found.keys() == wanted.keys() and found["divergence"] > 0.0
    assert found.get("success") == wanted.get("success")
    assert torch.allclose(weights(own), weights(other), atol=1e-3)


@pytest.mark.parametrize("kind", [Dsrl, DsrlNa, Expo, Residual, Rlif])
def test_the_steered_file_is_the_base_s_graph_and_an_actor(kind, file, tmp_path):
    learner = given(file.path, kind)
    list(learner.learn())
    assert learner.provenance()["base"] == {"sha256": file.sha256, "training": file.metadata["training"]}
    rng = np.random.default_rng(0)
    controllers = {"learned": learner.controller(), **learner.baselines()}
    assert {"random noise", "no noise"} <= controllers.keys()
    for name, controller in controllers.items():
        agree(controller, tmp_path / f"{name}.onnx", rng)
    again = given(tmp_path / "learned.onnx").cloning.denoiser()  # what was steered is steered once more
    observation, noise = drawn(20, 4, 4)
    assert np.array_equal(again.sample(observation, noise), FileBase(file).sample(observation, noise))


@pytest.mark.parametrize("kind", [Dsrl, DsrlNa])
def test_it_continues_exactly(kind, file):
    whole = given(file.path, kind, total_steps=200)
    rows = list(whole.learn())
    first = given(file.path, kind, total_steps=200)
    running = first.learn()
    next(running)
    second = given(file.path, kind, total_steps=200)
    second.load_state_dict(first.state_dict())
    assert list(second.learn())[-1] == rows[-1] and rows[-1]["divergence"] > 0.0
    assert torch.equal(weights(whole), weights(second))


def test_without_demonstrations(file):
    """Nobody shows anything, if nothing is to be learned from it."""
    learner = given(file.path, DsrlNa, shown=0.0)
    learner.task.expert = None
    assert list(learner.learn())[-1]["env_steps"] == 100.0 and learner.memory.prior is None


def test_a_base_that_sees_pictures(tmp_path):
    sight = EncoderConfig(channels=[6, 6], strides=[2, 1], shift=0, draws=4)
    config = dataclasses.replace(BASE, updates=20, episodes=4, corruption=0.5, sight=sight)
    clone = Bc(ToySight(), BcConfig(**vars(config)), 0)
    list(clone.learn())
    policy = export(clone.controller(), tmp_path / "base.onnx")
    origin = Origin(horizon=2, policy=policy.path)
    learner = Dsrl(ToySight(), Dsrl.Config(base=origin, **TINY), 0)
    list(learner.learn())
    env = ToySight().open(5, 0)
    env.reset(range(5), range(5))
    seen = learner.insight.policy(learner.run.see(env.observe()))
    assert np.abs(seen - clone.cloning.denoiser().eye.see(env.observe())).max() < 1e-5
    controller = learner.controller()
    steered = export(controller, tmp_path / "steered.onnx")
    steered.reset(5)
    state = controller.initial_state(5)
    own = Steering(learner.controller().chosen.actor, 1.5)
    direct = ChunkPolicy.from_task(
        ToySight(), clone.cloning.denoiser(), own, 2
    )  # the clone itself, with the same actor
    other = direct.initial_state(5)
    for _ in range(12):
        signals = env.observe()
        command, state = controller.act(signals, state)
        wanted, other = direct.act(signals, other)
        made = steered.step(signals)["velocity"]
        assert np.abs(made - command["velocity"]).max() < 1e-5 and np.abs(made - wanted["velocity"]).max() < 1e-5
        env.step(command)


class Slower(ToyReach):
    rate_hz = 5.0


class Renamed(ToyReach):
    name = "toy_push"


class Wider(ToyReach):
    policy = (*ToyReach.policy, dataclasses.replace(ToyReach.policy[0], name="obstacle"))


@pytest.mark.parametrize(
    ("task", "horizon", "message"),
    [
        (Renamed, 2, "is for the task 'toy_reach', not 'toy_push'"),
        (Slower, 2, "runs at 10 Hz, toy_reach at 5 Hz"),
        (Wider, 2, "has other signals than toy_reach as it is set: obstacle"),
        (ToyReach, 3, "plans 2 actions at a time, not 3: set algorithm.base.horizon=2"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(task, horizon, message, file):
    with pytest.raises(PolicyFileError, match=f"base.onnx {message}"):
        Dsrl(task(), Dsrl.Config(base=Origin(horizon=horizon, policy=file.path)), 0)


def test_files_without_a_base_are_refused(tmp_path):
    alone = Rlpd(ToyReach(), Rlpd.Config(base=SeenConfig(horizon=2), **TINY), 0)
    late = Cloning(ToyReach(), BASE, torch.Generator().manual_seed(0), delay=1).denoiser(1)
    refused = {
        "has no base that is steered by noise; algorithm=diffusion makes files": [plain(), alone.controller()],
        "plans 1 actions ahead of what it sees; .* delay=0": [planned(ToyReach(), late, NoiseTable.normal(4), 1, 1)],
    }
    for message, controllers in refused.items():
        for controller in controllers:
            policy = export(controller, tmp_path / "policy.onnx")
            with pytest.raises(PolicyFileError, match=message):
                FileBase(policy)


def test_a_piece_that_is_none_is_refused(file):
    import onnx

    model, named = onnx.load(file.path), file.metadata["base"]
    with pytest.raises(PolicyFileError, match=f"{named['chunk']!r} depends on .*state.draw, which is no part of it"):
        Part(file.path, model, {named["observation"]: (4,)}, named["chunk"])
    with pytest.raises(PolicyFileError, match="cannot be made of .*float32 \\(1, 3\\)"):
        FileBase(file).sample(np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float32))


def test_the_whole_chain(tmp_path):
    """Clone, steer the file; another file in its place is refused when the run is to be continued."""
    tiny = [
        "base.horizon=2",
        "warmup_episodes=2",
        "head_start=8",
        "batch_size=16",
        "num_envs=1",
        "total_steps=100",
        "hidden=[16,16]",
    ]
    clone = ["algorithm=diffusion", "algorithm.horizon=2", "algorithm.updates=20", "algorithm.episodes=8"]
    clone = [f"task={TOY}", *clone, "report=false", f"out={tmp_path}/clone"]
    path = train(compose(clone))
    steer = [f"algorithm.{setting}" for setting in (*tiny, f"base.policy={path}")]
    made = PolicyFile.load(
        str(train(compose([f"task={TOY}", "algorithm=dsrl", *steer, f"out={tmp_path}/run", "report=false"])))
    )
    source = made.metadata["training"]["base"]
    assert source["sha256"] == PolicyFile.load(str(path)).sha256 and source["training"]["seed"] == 0
    export(ChunkPolicy.from_task(ToyReach(Config()), base(horizon=2), NoiseTable.normal(4), 2), path)
    with pytest.raises(RunError, match="policy.onnx is not the file any more whose base this run improves"):
        train(compose([f"resume={tmp_path}/run", f"task={TOY}"]))
    path.unlink()
    with pytest.raises(RunError, match="there is no file"):
        train(compose([f"resume={tmp_path}/run", f"task={TOY}"]))


def test_another_file_than_the_checkpoint_s_is_refused(file, tmp_path):
    state = given(file.path).cloning.state_dict()
    other = export(ChunkPolicy.from_task(ToyReach(), base(horizon=2), NoiseTable.normal(4), 2), tmp_path / "other.onnx")
    with pytest.raises(LearningError, match="other.onnx is not the file any more"):
        given(other.path).cloning.load_state_dict(state)

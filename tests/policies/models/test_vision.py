"""Policies that see: what torch trains, numpy and the file compute; learned from pictures alone; exactly continued."""

import dataclasses

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploy import run
from deploy.policy_file import PolicyFile, PolicyFileError, open_session
from deploy.runtimes import CompiledPolicy
from policies import collect
from policies.algorithms.bc import BaseConfig, Bc, BcConfig, Cloning
from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.algorithms.dsrl_na import DsrlNa
from policies.collect import Config, NoisyExpert, demonstrate, episodes, stored, stream
from policies.datasets import Dataset, DatasetError
from policies.evaluate import evaluate
from policies.learning.demonstrations import Demonstrations
from policies.learning.detection import network
from policies.learning.encoders import Encoders, shifted
from policies.models.chunking import ChunkPolicy, NoiseTable, Steering
from policies.models.export import export, random_signals, serialise
from policies.models.graph import Graph
from policies.models.networks.feed_forward import Mlp
from policies.models.vision import (
    CONTRAST,
    DARK,
    EncoderConfig,
    ObservationEncoder,
    standardised,
    write_standardised,
)
from policies.runner import checkpoint
from policies.runner.config import compose
from sim.spec import Signal
from sim.tasks.arm.push import ArmPush
from sim.tasks.arm.reach import ArmReach, ReachConfig
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

TOY = "tests.policies.toy_sight:ToySight"
SIGHT = EncoderConfig(channels=[6, 6], strides=[2, 1], shift=0, draws=4)
BASE = BaseConfig(
    horizon=2,
    hidden=[32, 32],
    updates=400,
    episodes=80,
    corruption=0.5,
    batch_size=128,
    learning_rate=4e-3,
    sight=SIGHT,
)


def picture(name="camera", height=16, width=16):
    return Signal(name, (height, width, 3), "1", "", 0.0, 255.0, dtype="uint8")


def untrained(task=None, **changes):
    return Cloning(task or ToySight(), dataclasses.replace(BASE, **changes), torch.Generator().manual_seed(0))


class Flown:
    """A controller at work in scenes, blindfolded or not."""

    def __init__(self, controller, num, blind=False):
        self.controller, self.blind = controller, blind
        self.state, self.first = (controller.initial_state(num) for _ in range(2))

    def __call__(self, signals, numbers, begun):
        for name, value in self.state.items():
            value[begun] = self.first[name][begun]
        if self.blind:
            signals = {**signals, "camera": np.zeros_like(signals["camera"])}
        command, self.state = self.controller.act(signals, self.state)
        return command


def success(controller, blind=False):
    flown = episodes(ToySight(), Flown(controller, 10, blind), 60, stream(0, 99), num=10)
    return np.mean([e.succeeded for e in flown])


@given(st.integers(5, 19), st.integers(5, 19), st.lists(st.integers(1, 2), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_numpy_computes_what_torch_trained(height, width, strides):
    config = EncoderConfig(channels=[5, 4, 3][: len(strides)], strides=strides)
    group = (picture("a", height, width), picture("b", width, height))
    eyes = Encoders(group, config, torch.Generator().manual_seed(1))
    shown = random_signals(group, 3, np.random.default_rng(0))
    with torch.no_grad():
        wanted = eyes({name: torch.from_numpy(some) for name, some in shown.items()}).numpy()
    eye = ObservationEncoder(group, eyes.exported())
    assert wanted.shape == (3, eye.size) == (3, eyes.size) and eye.measured == 0
    np.testing.assert_allclose(eye.see(shown), wanted, atol=2e-5)
    np.testing.assert_array_equal(eye.see({n: v[1:2] for n, v in shown.items()}), eye.see(shown)[1:2])


def test_a_channel_finds_where_its_spot_is():
    eyes = Encoders((picture(),), EncoderConfig(channels=[3], strides=[1]), torch.Generator())
    with torch.no_grad():
        eyes.encoders["camera"][0].weight.zero_()
        eyes.encoders["camera"][0].weight[torch.arange(3), torch.arange(3), 1, 1] = 40.0
    seen = np.zeros((1, 16, 16, 3), np.uint8)
    seen[0, 3, 12, 1] = 255  # green
    points = ObservationEncoder((picture(),), eyes.exported()).see({"camera": seen})[0].reshape(3, 2)
    np.testing.assert_allclose(points[1], [2 * 12 / 15 - 1, 2 * 3 / 15 - 1], atol=1e-3)
    np.testing.assert_allclose(points[0], 0.0, atol=1e-6)  # nothing red: the middle


def test_pictures_areshifted_each_by_itself_and_keep_their_edge():
    shown = torch.arange(40 * 6 * 7 * 3).reshape(40, 6, 7, 3)
    moved = shifted(shown, 2, torch.Generator().manual_seed(0))
    found = set()
    for one, other in zip(shown, moved, strict=True):
        row, column = (int(v) for v in torch.nonzero(one[:, :, 0] == other[3, 3, 0])[0])
        found.add((row - 3, column - 3))
        rows = (torch.arange(6) + row - 3).clamp(0, 5)
        assert torch.equal(other, one[rows][:, (torch.arange(7) + column - 3).clamp(0, 6)])
    assert len(found) > 12 and max(max(abs(a), abs(b)) for a, b in found) == 2
    assert shifted(shown, 0, torch.Generator()) is shown


@pytest.fixture(scope="module")
def cloned():
    """A base that has seen the goal in pictures alone."""
    learner = Bc(ToySight(), BcConfig(**{**vars(BASE), "corruption": 0.0}, noise="none"), 0)
    losses = [row["loss"] for row in learner.learn()]
    assert losses[-1] < 0.5 * losses[0]
    return learner


def test_it_learns_what_only_the_picture_tells(cloned):
    assert "goal" not in {s.name for s in cloned.controller().inputs}
    assert success(cloned.controller()) > 0.8 > 0.4 > success(cloned.controller(), blind=True)


def test_file_and_reference_agree_and_the_file_stays_small(cloned, tmp_path):
    base = cloned.cloning.denoiser()
    for controller in (cloned.controller(), ChunkPolicy.from_task(ToySight(), base, NoiseTable.normal(4, rows=50), 2)):
        policy = export(controller, tmp_path / "policy.onnx")
        assert policy.types["camera"] is np.uint8 and policy.size < 150_000
        reference = controller.initial_state(5)
        policy.reset(5)
        rng = np.random.default_rng(1)
        for _ in range(20):
            signals = {s.name: v for s in policy.inputs for v in [random_signals((s,), 5, rng)[s.name]]}
            wanted, reference = controller.act(signals, reference)
            assert np.abs(policy.step(signals)["velocity"] - wanted["velocity"]).max() < 1e-5
            for name, value in policy.states().items():
                assert np.abs(value - reference[name]).max() < 1e-5
    with pytest.raises(PolicyFileError, match="'camera' holds values that are no uint8"):
        policy.step({**signals, "camera": signals["camera"] + 0.5})


def test_pictures_in_the_vectors_are_those_that_were_shown(cloned, tmp_path):
    rng = np.random.default_rng(3)
    flight = {"position": rng.normal(size=(9, 2)), "camera": rng.integers(0, 256, (9, 16, 16, 3), np.uint8)}
    policy = export(cloned.controller(), tmp_path / "policy.onnx", vectors_from=flight)
    np.testing.assert_array_equal(policy.vectors.inputs["camera"], flight["camera"])
    metadata = {k: v for k, v in policy.metadata.items() if k not in ("schema", "digest")}
    for text in ("no base 64!", metadata["vectors"]["inputs"]["camera"][:100]):
        metadata["vectors"] = {**metadata["vectors"], "inputs": {**metadata["vectors"]["inputs"], "camera": text}}
        with pytest.raises(PolicyFileError, match="the vectors' pictures cannot be read"):
            PolicyFile.from_bytes(serialise(onnx.load(tmp_path / "policy.onnx"), metadata), "damaged")


def test_c_computes_the_same(cloned, tmp_path):
    base, rng = cloned.cloning.denoiser(), np.random.default_rng(2)
    actor = Mlp([(rng.normal(size=(base.noise_size, base.observed)), np.zeros(base.noise_size))])
    policy = export(ChunkPolicy.from_task(ToySight(), base, Steering(actor, 1.5), 2), tmp_path / "policy.onnx")
    compiled = CompiledPolicy(policy)
    policy.reset(2), compiled.reset(2)
    for _ in range(10):
        signals = {name: value for s in policy.inputs for name, value in random_signals((s,), 2, rng).items()}
        np.testing.assert_allclose(compiled.step(signals)["velocity"], policy.step(signals)["velocity"], atol=1e-5)


def test_points_are_normalised_in_the_end_and_nothing_else_changes():
    cloning = untrained()
    data = Demonstrations.of(list(demonstrate(ToySight(), 10, 0)), ToySight(), 2)
    assert data.pictures["camera"].dtype == np.uint8 and data.observation.shape[1] == 2
    cloning.normalizer = cloning.normalizer.wider(0)
    noise = np.random.default_rng(0).normal(size=(len(data.chunk), 4)).astype(np.float32)
    observation = cloning.denoiser().eye.see({"position": data.observation, **data.pictures})
    before = cloning.denoiser().sample(observation, noise)
    cloning._settle({name: torch.from_numpy(some) for name, some in data.pictures.items()})
    np.testing.assert_allclose(cloning.denoiser().sample(observation, noise), before, atol=1e-5)
    points = cloning.see(observation)[:, 2:]
    assert points.mean(0).abs().max() < 1e-4 and 0.05 < points.std(0).max() < 1.01


def small(kind, **changes):
    base = dataclasses.replace(BASE, updates=20, episodes=12)
    return kind.Config(
        base=base,
        total_steps=800,
        warmup_episodes=4,
        head_start=8,
        batch_size=16,
        hidden=[16],
        critic_updates=1,
        **changes,
    )


def test_steering_continues_exactly(monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 50)  # as many rows, of half as many steps
    config = dataclasses.replace(small(DsrlNa), total_steps=400)
    whole = DsrlNa(ToySight(), config, 0)
    rows, others = learned(whole, lambda: DsrlNa(ToySight(), config, 1))
    for second in others[:2]:
        assert [*second.learn()][-1] == rows[-1] and rows[-1]["env_steps"] == 400.0


def test_cloning_continues_exactly_from_the_disk(tmp_path):
    config = BcConfig(**{**vars(BASE), "updates": 200, "episodes": 10})
    whole, first, second = (Bc(ToySight(), config, seed) for seed in (0, 0, 1))
    *_, last = whole.learn()
    next(first.learn())
    checkpoint.save(tmp_path / "checkpoint.npz", first.state_dict())
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*second.learn()][-1] == last


@pytest.mark.long
def test_steering_from_pictures_improves_the_base(tmp_path):
    quick = {"total_steps": 2400, "warmup_episodes": 15, "head_start": 150, "hidden": [48, 48], "prior_steps": 2000}
    base = dataclasses.replace(BASE, corruption=1.4, updates=350)
    learner = Dsrl(ToySight(), DsrlConfig(base=base, asymmetric=False, **quick), 0)
    list(learner.learn())
    before = learner.baselines()
    after = success(learner.controller())
    assert after > 0.6 and after > max(success(before[n]) for n in ("random noise", "no noise")) + 0.2
    export(before["best of 16"], tmp_path / "best.onnx")
    assert export(learner.controller(), tmp_path / "policy.onnx").inputs == ToySight.policy


def test_a_dataset_with_pictures_is_read_back(tmp_path):
    task, config = ToySight(), Config(task=TOY, out=str(tmp_path / "data"), episodes=5, corruption=1.0)
    assert collect.collect(task, config)[0] == 5
    made = sorted(demonstrate(task, 5, 0, 1.0), key=lambda e: e.number)
    for a, b in zip(made, stored(task, config.out, 5), strict=True):
        assert b.signals["camera"].dtype == np.uint8 and b.signals.keys() == {"position", "camera", "goal"}
        for name, value in b.signals.items():
            np.testing.assert_array_equal(a.signals[name], value)
    film = dataclasses.replace(config, out=str(tmp_path / "film"), film=True)
    collect.collect(task, film)
    assert Dataset(film.out).features["observation.images.camera"].dtype == "video"
    read = stored(task, film.out, 1)[0].signals["camera"]
    assert read.shape == made[0].signals["camera"].shape
    assert np.abs(read.astype(int) - made[0].signals["camera"]).mean() < 12.0  # a film is not exact


def test_a_dataset_without_the_camera_is_refused(tmp_path):
    collect.collect(ToyReach(), Config(task="toy", out=str(tmp_path), episodes=2))
    task = ToySight()
    task.policy = (*ToyReach.policy, picture())
    with pytest.raises(DatasetError, match=r"has no camera 'observation\.images\.camera'"):
        stored(task, str(tmp_path), 2)


def test_a_corrupted_expert_misjudges_what_the_policy_cannot_measure():
    task = ToySight()
    signals = {"position": np.zeros((1, 2), np.float32), "goal": np.full((1, 2), 0.1, np.float32)}
    signals["camera"] = np.zeros((1, 16, 16, 3), np.uint8)
    told = [NoisyExpert(task, c, 0, 1)(signals, np.zeros(1, int), np.ones(1, bool))["velocity"] for c in (0.0, 1.0)]
    task.corruption = {"velocity": 0.3}
    trembling = NoisyExpert(task, 1.0, 0, 1)(signals, np.zeros(1, int), np.ones(1, bool))["velocity"]
    assert np.abs(told[1] - told[0]).max() > 0.01 and not np.allclose(told[1], trembling)


def test_the_arm_isshifted_by_what_its_camera_sees(tmp_path, capsys):
    task = ArmReach(ReachConfig(cameras=["wrist_camera"], steps=8))
    learner = Bc(task, BcConfig(horizon=2, hidden=[16], updates=3, episodes=2, corruption=0.0, denoise_steps=2), 0)
    task.config.steps = task.episode_steps = 30  # of the demonstrations; the file keeps it
    try:
        list(learner.learn())
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
        return
    policy = export(learner.controller(), tmp_path / "policy.onnx")
    assert policy.size < 200_000 and policy.types["wrist_camera"] is np.uint8
    report = evaluate(policy, episodes=2)
    assert report.task == "arm_reach" and report.episodes == 2
    assert report.flight["wrist_camera"].dtype == np.uint8 and len(report.flight["hand_velocity"]) <= 30
    run.main([f"policy={policy.path}", "seconds=0.2", f"log={tmp_path / 'flight.mcap'}"])
    assert "4 control steps at 20 Hz" in capsys.readouterr().out


def test_cameras_and_encoders_are_settings_of_the_command_line():
    said = ["task=arm_push", "task.cameras=[scene_camera]", "algorithm=dsrl", "algorithm.base.sight.shift=1"]
    settings = compose(said)
    assert [s.name for s in ArmPush(settings.task_config).policy][-1] == "scene_camera"
    assert settings.algorithm_config.base.sight.shift == 1


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"one stride per convolution, got \[16, 32\] and \[2\]"):
        EncoderConfig(channels=[16, 32], strides=[2])
    with pytest.raises(ValueError, match="shift >= 0"):
        EncoderConfig(shift=-1)
    with pytest.raises(ValueError, match=r"picture 'camera' of shape \(16, 16, 3\) has no encoder"):
        ObservationEncoder(ToySight.policy)
    with pytest.raises(ValueError, match="camera 'ceiling' is not one of wrist_camera, scene_camera"):
        ReachConfig(cameras=["ceiling"])


@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.5, 1.5), min_size=3, max_size=3), st.floats(0.0, 30.0))
def test_strength_and_tint_of_the_light_fall_out(seed, gains, more):
    picture = np.random.default_rng(seed).integers(20, 121, (8, 12, 3), np.uint8)
    bright = (picture * np.array(gains) + more).round().clip(0, 255).astype(np.uint8)
    seen, lit = standardised(picture), standardised(bright)
    np.testing.assert_allclose(lit, seen, atol=0.25 * CONTRAST)  # what counts as dark remains
    assert np.abs(standardised(np.full((8, 12, 3), 90, np.uint8))).max() == 0.0


@pytest.mark.parametrize("shape", [(30, 40), (120, 160)], ids=str)
def test_files_and_torch_standardise_as_numpy_does(shape):
    rng = np.random.default_rng(0)
    textured, black = rng.integers(60, 190, (*shape, 3), dtype=np.uint8), np.zeros((*shape, 3), np.uint8)
    pictures = np.stack([textured, np.full_like(black, 201), np.full_like(black, 7), black])
    pictures[2, 0, 0] = 8  # almost even: the sum of squares is small beside the mean's
    graph = Graph()
    made = write_standardised(graph, "camera")
    shown = helper.make_tensor_value_info("camera", TensorProto.UINT8, ["n", *shape, 3])
    told = helper.make_tensor_value_info(made, TensorProto.FLOAT, None)
    whole = helper.make_graph(graph.nodes, "standardised", [shown], [told], graph.constants)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (file,) = open_session("standardised", model.SerializeToString()).run(None, {"camera": pictures})
    wanted = np.stack([standardised(picture) for picture in pictures])
    with torch.no_grad():
        learned = network.standardised(torch.from_numpy(pictures).permute(0, 3, 1, 2).float()).permute(0, 2, 3, 1)
    exact = pictures.astype(np.float64)
    off = exact - exact.mean((1, 2), keepdims=True)
    exact = off / (np.sqrt(np.square(off).mean((1, 2), keepdims=True)) + DARK) * CONTRAST
    for found in (wanted, file, learned.numpy()):
        np.testing.assert_allclose(found, exact, atol=2e-3)
    np.testing.assert_allclose(wanted, exact, atol=1e-4)

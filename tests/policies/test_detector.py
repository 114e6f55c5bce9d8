"""Detectors of pictures: they learn, their file tells what the network does, and a policy before it sees pixels."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from deploy.codegen.host import library
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.runtimes import CompiledPolicy
from policies import join, train_detector
from policies.evaluate import evaluate
from policies.learning.detection.learner import DetectorLearner
from policies.learning.detection.network import Detection, DetectorNetwork
from policies.learning.detection.pictures import Frames, Matches, labels
from policies.models.controller import FeaturePolicy
from policies.models.export import export, random_signals
from policies.models.networks.gru import Gru
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.tasks import make

SMALL = Detection(EncoderConfig([8, 16], [2, 2], "flat", 0), values=4, hidden=16, noise=0.0, shift=0)


CAMERA = {"view": 90.0, "lens": "pinhole"}  # things are larger in its pictures


@pytest.fixture(scope="module")
def frames() -> Frames:
    return Frames.joined(list(Matches(make("soccer_vision_1v1", steps=60, shutter=0.02, **CAMERA), 24, 3)))


@pytest.fixture(scope="module")
def learned(frames: Frames) -> DetectorNetwork:
    network = DetectorNetwork(make("soccer_vision_1v1", **CAMERA), SMALL, 0)
    for k in range(12):
        network.learn(frames, k / 24, 1 / 24)
    return network


@pytest.fixture(scope="module")
def detector(learned: DetectorNetwork, frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    made = learned.exported("soccer_vision_1v1_detector")
    made.settings = dict(CAMERA)
    export(made, path, vectors_from={"camera": frames.pictures[:16]}, training={})
    return str(path)


def student(path: str, **config: object) -> str:
    """An untrained policy that is told what a detector sees."""
    task, rng = make("soccer_vision_1v1", perception="detector", **{**CAMERA, **config}), np.random.default_rng(0)
    sizes = sum(s.size for s in task.policy), sum(s.size for s in task.commands)

    def layer(outputs: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(0.0, 0.3, (outputs, inputs)).astype(np.float32), np.zeros(outputs, np.float32)

    (w_ih, b_ih), (w_hh, b_hh) = layer(24, 16), layer(24, 8)
    network = Gru(layer(16, sizes[0]), w_ih, w_hh, b_ih, b_hh, layer(sizes[1], 8))
    export(FeaturePolicy.from_task(task, network), path)
    return path


def test_pictures_come_with_what_is_in_them(frames: Frames):
    n = len(frames.game)
    assert frames.pictures.shape == (n, 30, 40, 3) and frames.there.shape == frames.bearing.shape == (n, 4)
    assert 0.1 < frames.there.mean() < 0.7 and np.abs(frames.turning).max() > 5.0
    assert (np.abs(frames.bearing[frames.there]) < np.pi / 4).all()
    told = labels(frames, 1)
    np.testing.assert_array_equal(told[..., 0], frames.there)
    orange = (frames.pictures[..., 0] > 1.6 * frames.pictures[..., 1].astype(float)) & (frames.pictures[..., 0] > 90)
    orange[:, :14] = False  # around the pitch there may be anything
    near = frames.there[:, 0] & (frames.distance[:, 0] < 0.8)
    found = orange & near[:, None, None] & (orange.sum(axis=(1, 2)) > 6)[:, None, None]
    rows = found.any(axis=(1, 2))
    columns = (found * np.arange(40)).sum(axis=(1, 2))[rows] / found.sum(axis=(1, 2))[rows]
    assert rows.sum() > 50
    wanted = 19.5 - 20.0 * np.tan(frames.bearing[rows, 0])
    assert np.median(np.abs(columns - wanted)) < 1.0


def test_the_same_games_give_the_same_pictures_whatever_the_batch():
    task = make("soccer_vision_1v1", steps=20)
    few, many = (Frames.joined(list(Matches(task, games, 5))) for games in (3, 6))
    for some in (few, many):
        assert (np.bincount(some.game) <= 20).all() and (np.bincount(some.game) > 0).all()
    whole = {key.tobytes() for key in many.pictures}
    assert all(key.tobytes() in whole for key in few.pictures)


def test_it_learns_and_its_file_tells_the_same(learned: DetectorNetwork, frames: Frames, detector: str):
    told, there = learned.told(frames.pictures), frames.there
    seen = told[..., 0] > 0.0
    assert (seen == there).mean() > 0.75 > 1.0 - there.mean()
    hit = seen & there
    off = np.abs(told[..., 1] - frames.bearing)[hit]
    assert np.median(off) < 0.15
    file = PolicyFile.load(detector)
    file.reset(64)
    given = file.step({"camera": frames.pictures[:64]})
    reference, _ = learned.exported("one").act({"camera": frames.pictures[:64]}, {})
    for k, signal in enumerate(file.outputs):
        np.testing.assert_allclose(given[signal.name], reference[signal.name], atol=2e-4)
        np.testing.assert_allclose(given[signal.name], told[:64, k], atol=2e-4)
    assert set(np.unique(given["seen_ball"][:, 0])) <= {0.0, 1.0}


def test_pictures_of_training_are_moved_up_or_down_and_half_of_them_get_noise():
    task = make("soccer_vision_1v1", **CAMERA)
    rows = np.arange(30)[:, None, None] + np.zeros((64, 30, 40, 3), np.uint8)  # what a pixel shows is its row
    moved = DetectorNetwork(task, dataclasses.replace(SMALL, shift=1), 0)._augmented(torch.from_numpy(rows))
    ways = [np.clip(np.arange(30) + by, 0, 29) for by in (-1, 0, 1)]
    found = [(moved == torch.from_numpy(way)[:, None, None]).flatten(1).all(1) for way in ways]
    assert all(some.any() for some in found) and torch.stack(found).any(0).all()
    grey = torch.full((256, 30, 40, 3), 128, dtype=torch.uint8)
    spread = DetectorNetwork(task, dataclasses.replace(SMALL, noise=0.1), 0)._augmented(grey).flatten(1).std(1)
    assert 0.4 < float((spread == 0.0).float().mean()) < 0.6 and 20.0 < float(spread.max()) < 0.11 * 255


def test_it_continues_from_the_disk_and_others_are_refused(monkeypatch, tmp_path):
    task = make("soccer_vision_1v1", width=16, height=12, steps=40)
    augmented = dataclasses.replace(SMALL, pool=8, noise=0.1, shift=1)
    monkeypatch.setattr("policies.learning.detection.learner.Detection", lambda: augmented)
    straight, first, second = (DetectorLearner(task, 48, 2, 0) for _ in range(3))
    losses, learning = [m["loss"] for m in straight.learn()], first.learn()
    assert len(losses) > 1 and next(learning)["loss"] == losses[0]
    checkpoint.save(tmp_path / "one.npz", first.state_dict())
    state = checkpoint.load(tmp_path / "one.npz")
    second.load_state_dict(state)
    assert [m["loss"] for m in second.learn()] == losses[1:]
    without = {name: value for name, value in state.items() if name != "sees"}
    before = {**state, "sees": "colours"}
    for old in (without, before, {name: value for name, value in state.items() if name != "way"}):
        with pytest.raises(ValueError, match="its detector was learned by an earlier version, .* train anew"):
            second.load_state_dict(old)


def test_pictures_of_another_size_and_lens():
    task = make("soccer_vision_2v2", steps=10, width=32, height=24, view=120.0, lens="fisheye")
    network = DetectorNetwork(task, SMALL, 0)
    some = Frames.joined(list(Matches(task, 2, 0)))
    assert some.pictures.shape[1:] == (24, 32, 3) and some.there.shape[1] == 6
    assert np.isfinite(network.learn(some, 0.0, 1.0)) and network.told(some.pictures).shape == (len(some.game), 6, 3)
    assert float(network.bearings[0]) == pytest.approx(np.radians(60.0), abs=0.05)


def test_a_policy_and_a_detector_become_one_that_sees(detector: str, tmp_path):
    policy, out = student(str(tmp_path / "student.onnx"), latency=1, steps=40), str(tmp_path / "both.onnx")
    file = join.join(join.Config(policy=policy, detector=detector, out=out))
    assert [s.name for s in file.inputs] == ["camera", "velocity", "turning", "ready", "pan"]
    assert file.metadata["training"]["joined"]["policy"]["sha256"] == PolicyFile.load(policy).sha256
    task = task_for(file)
    assert task.config.perception == "pixels" and task.latency == 1 and task.episode_steps == 40
    report = evaluate(file, episodes=3)
    assert report.episodes == 3
    one, two = PolicyFile.load(policy), PolicyFile.load(detector)
    file.reset()
    rng = np.random.default_rng(1)
    for _ in range(20):
        now = {s.name: rng.normal(0.0, 0.5, s.shape).astype(np.float32) for s in file.inputs[1:]}
        now["camera"] = rng.integers(0, 256, (30, 40, 3), np.uint8)
        apart, together = one.step({**now, **two.step(now)}), file.step(now)
        for name, value in apart.items():
            np.testing.assert_allclose(together[name], value, atol=1e-4)


def test_the_joined_file_becomes_c(detector: str, frames: Frames, tmp_path):
    policy, out = student(str(tmp_path / "student.onnx")), str(tmp_path / "both.onnx")
    file = join.join(join.Config(policy=policy, detector=detector, out=out))
    for weights in ("float32", "float16"):
        _, used = library(file, file.content(), weights=weights)
        assert used <= 1.0
    compiled, rng = CompiledPolicy(PolicyFile.load(out)), np.random.default_rng(0)
    even = [np.full((30, 40, 3), value, np.uint8) for value in (0, 7, 201)]
    for picture in (*frames.pictures[:4], rng.integers(0, 256, (30, 40, 3), np.uint8), *even):
        signals = random_signals(file.inputs, 1, rng) | {"camera": picture[None]}
        compiled.reset(1), file.reset(1)
        told, wanted = compiled.step(signals), file.step(signals)
        for name in wanted:
            np.testing.assert_allclose(told[name], wanted[name], atol=1e-4, err_msg=name)


def test_files_that_do_not_fit_are_refused(detector: str, tmp_path):
    policy, out = student(str(tmp_path / "student.onnx")), str(tmp_path / "both.onnx")
    for wrong, said in (
        ({"policy": detector, "detector": detector}, "takes no 'seen_ball'"),
        ({"policy": policy, "detector": policy}, "is no detector but gives drive, turn, kick, look"),
        ({"policy": str(tmp_path / "none.onnx"), "detector": detector}, "there is no file"),
    ):
        with pytest.raises(PolicyFileError, match=said):
            join.join(join.Config(**wrong, out=out))
    narrow = student(str(tmp_path / "narrow.onnx"), view=60.0)
    with pytest.raises(PolicyFileError, match=r"was told of 60(\.0)? degrees, .* sees 90"):
        join.join(join.Config(policy=narrow, detector=detector, out=out))
    assert not (tmp_path / "both.onnx").exists()
    shutil.copy(detector, tmp_path / "damaged.onnx")
    with open(tmp_path / "damaged.onnx", "r+b") as file:
        file.seek(-20, 2)
        file.write(b"\0")
    with pytest.raises(PolicyFileError, match="damaged"):
        join.join(join.Config(policy=policy, detector=str(tmp_path / "damaged.onnx"), out=out))


@pytest.mark.slow
def test_the_command_trains_measures_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("policies.learning.detection.pictures.WORLDS", 16)  # all that are under way are watched
    quick = dataclasses.replace(SMALL, pool=1200, batch_size=64, epochs=6)
    monkeypatch.setattr("policies.learning.detection.learner.Detection", lambda: quick)
    threads = torch.get_num_threads()
    camera = [f"{name}={value}" for name, value in CAMERA.items()]
    train_detector.main([f"out={tmp_path / 'd.onnx'}", "total_steps=3600", "games=8", *camera])
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert "as errors of task.perception=detector:" in said and "turning 3 to 6 rad/s" in said
    file = PolicyFile.load(tmp_path / "d.onnx")
    assert [s.name for s in file.outputs] == ["seen_ball", "seen_goal", "seen_own_goal", "seen_others"]
    errors = file.metadata["evaluation"]["errors"]
    assert 0.0 < errors["bearing"] < 0.3 and file.metadata["training"]["task_config"]["shutter"] == 0.02


def test_settings_that_are_out_of_range_are_refused():
    for wrong, said in (
        ({"out": "d.bin"}, "ends in .onnx"),
        ({"out": "d.onnx", "task": "quad_hover"}, "task 'quad_hover' has no such pictures"),
        ({"out": "d.onnx", "games": 1}, "games >= 4"),
    ):
        with pytest.raises(ValueError, match=said):
            train_detector.Config(**wrong)


def test_any_seed_makes_games():
    """Of a student's seed that of its detector's judges is drawn, and may be large."""
    task = make("soccer_vision_1v1", width=16, height=12)
    assert len(next(iter(Matches(task, 1, 2**31 - 5))).pictures) > 1


@pytest.mark.parametrize(("name", "players"), [("soccer_vision_1v1", 1), ("soccer_vision_2v2", 2)])
def test_matches_go_on_after_any_of_them(monkeypatch, name, players):
    monkeypatch.setattr("policies.learning.detection.pictures.WORLDS", 3)
    task = make(name, width=16, height=12, steps=60)
    whole, told, over = Matches(task, 8, 1), [], []
    for frames in whole:
        told.append(frames)
        over.append([*whole.over])
    assert len(told) == 8 * players and len({len(frames.game) for frames in told}) >= 2
    for count in (1, 3, 4, 7, 8 * players - 1, 8 * players):
        rest = [*Matches(task, 8, 1, over[count - 1])]
        assert len(rest) == 8 * players - count
        for one, other in zip(rest, told[count:], strict=True):
            for some, same in zip(one, other, strict=True):
                np.testing.assert_array_equal(some, same)

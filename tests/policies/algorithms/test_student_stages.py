"""Who learns before a student does: who looks for it, and the detector by which it sees."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.student import Student, StudentConfig
from policies.algorithms.student.gaze import Gaze
from policies.learning.detection.network import DetectorNetwork
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.gru import Gru
from sim.spec import size
from sim.tasks import make
from tests.policies import resumed
from tests.policies.algorithms.test_student import SMALL, chasing
from tests.policies.resumed import same
from tests.policies.test_detector import SMALL as OF_PICTURES

EYES = dataclasses.replace(OF_PICTURES, pool=1000, batch_size=64, epochs=2)
FEW = {**SMALL, "network": "gru", "total_steps": 16 * 8 * 6, "gaze_steps": 1024 * 32, "mirrors": False}


@pytest.fixture
def teacher(tmp_path):
    return export(chasing(make("soccer_1v1")), tmp_path / "teacher.onnx").path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("policies.algorithms.student.eyes.GAMES", 16)
    monkeypatch.setattr("policies.algorithms.student.practice.CRITIC_ALONE", 1)
    monkeypatch.setattr("policies.learning.detection.learner.Detection", lambda: EYES)


def student(teacher, perception="pixels", **settings):
    task = make("soccer_vision_1v1", perception=perception, steps=20)
    settings = {"eyes": "detector", "detector_steps": 3000, "watching": 0.4, **settings}
    return Student(task, StudentConfig(**{**FEW, "teacher": teacher, **settings}), 0)


def learned(one):
    return [*one.learn()]


def kind(metrics):
    """Whose training a row of metrics is of."""
    whose = {"gaze_progress": "gaze", "detector_progress": "eyes", "pull": "practice"}
    return next((name for key, name in whose.items() if key in metrics), "lessons")


@pytest.mark.parametrize("stops", [(2, -4), pytest.param((1, -10, -9, -5, -3, -1), marks=pytest.mark.long)], ids=str)
def test_all_stages_continue_exactly(teacher, stops, tmp_path, monkeypatch):
    settings = {"practice_steps": 16 * 8 * 4, "snapshots": 3}
    straight = student(teacher, **settings)
    straight.dump_to(tmp_path / "diverged")
    metrics, others = resumed.learned(straight, lambda: student(teacher, **settings))
    kinds = [kind(m) for m in metrics]
    assert kinds == ["gaze", *["eyes"] * (len(kinds) - 11), *["lessons"] * 6, *["practice"] * 4] and len(kinds) > 12
    progress = [m["progress"] for m in metrics]
    assert progress == sorted(progress) and progress[-1] == pytest.approx(1.0)
    assert [m["env_steps"] for m in metrics] == sorted(m["env_steps"] for m in metrics)
    taught = []
    learn = DetectorNetwork.learn
    monkeypatch.setattr(DetectorNetwork, "learn", lambda *given: taught.append(1) or learn(*given))
    for count in (stop % len(kinds) for stop in stops):
        second, rows = others[count - 1], []
        if kinds[count - 1] == kinds[count] == "eyes":
            assert second.stage().startswith("its detector learns")
        for row in second.learn():
            if kind(row) == "eyes":
                assert len(taught) <= kinds[count:].count("eyes")
            rows.append(row)
        assert len(taught) == kinds[count:].count("eyes")  # nothing was learned again
        taught.clear()
        assert rows == metrics[count:]
        same(straight.state_dict(), second.state_dict())
    for learner in (straight.gaze.learner, straight.student, straight.practice):
        assert learner.rollouts.dump_dir == tmp_path / "diverged"  # whoever learns writes there
    ages = [int(m["env_steps"]) for m in metrics]
    assert [ages.index(age) - len(ages) + 10 for age in straight.snapshots()] == [0, 3, 6]


def test_who_looks_for_it_learns_no_more_than_it_has_to(teacher, monkeypatch):
    """Continued while it learns, it learns the rest; and then its detector learns as it did."""
    settings = {"gaze_steps": 1024 * 32 * 2}
    straight, rows = student(teacher, **settings), []
    for row in straight.learn():
        if not rows:
            one, state = student(teacher, **settings), copy.deepcopy(straight.state_dict())
        rows.append(row)
        if kind(row) == "eyes":
            break
    assert [kind(row) for row in rows] == ["gaze", "gaze", "eyes"]
    one.load_state_dict(state)
    assert one.stage() == "who looks for it learns"
    taught = []
    learn = DetectorNetwork.learn
    monkeypatch.setattr(DetectorNetwork, "learn", lambda *given: taught.append(1) or learn(*given))
    going_on = one.learn()
    assert [next(going_on) for _ in rows[1:]] == rows[1:] and len(taught) == 1


def test_it_practises_near_to_what_it_was_taught(teacher):
    one = student(teacher, perception="detector", practice_steps=16 * 8 * 6, practice_bound=0.1)
    learning = one.learn()
    while kind(metrics := next(learning)) != "practice":
        taught = one.student.controller()
    np.testing.assert_allclose(one.controller().network.output[0], taught.network.output[0], atol=1e-5)
    assert metrics["change"] < 0.05  # only the critic has learned
    for _ in learning:
        pass
    assert np.abs(one.controller().network.output[0] - taught.network.output[0]).max() > 1e-4
    assert one.practice.rollouts.env.detector is not None


def test_with_the_errors_that_were_measured_its_file_takes_pictures_and_does_what_the_told_one_does(teacher, tmp_path):
    one = student(teacher, float16=False, gaze_steps=0)
    learning = one.learn()
    while "imitation_error" not in next(learning):
        pass
    assert one.student.rollouts.env.detector.errors == one.eyes.learner.errors
    for _ in learning:
        pass
    assert one.student.rollouts.env.detector is None  # and in the end what the detector really tells
    file = export(one.controller(), tmp_path / "student.onnx")
    assert [s.name for s in file.inputs if s.is_picture] == ["camera"]
    told, rng = one.student.controller(), np.random.default_rng(0)
    state = told.initial_state(1)
    file.reset(1)
    for _ in range(5):
        picture = rng.integers(0, 256, (1, 30, 40, 3), np.uint8)
        numbers = {s.name: rng.normal(size=(1, s.size)).astype(np.float32) for s in one.task.policy[1:]}
        found = one.eyes.learner.recognise(picture).reshape(1, -1)
        names = [s for s in told.inputs if s.name.startswith("seen_")]
        parts = np.split(found, np.cumsum([s.size for s in names])[:-1], axis=1)
        commands, state = told.act({**numbers, **dict(zip([s.name for s in names], parts, strict=True))}, state)
        seen = file.step({"camera": picture, **numbers})
        for name, value in commands.items():
            np.testing.assert_allclose(seen[name], value, atol=2e-3)


def test_with_torch_it_learns_from_the_errors_alone(teacher):
    one = student(teacher, path="torch")
    assert learned(one)[-1]["progress"] == 1.0 and not one.state_dict()["watches"]
    assert [s.name for s in one.controller().inputs if s.is_picture] == ["camera"]


def test_a_gaze_is_rewarded_for_what_the_teacher_does_of_what_is_known(teacher):
    one = student(teacher, perception="detector")
    gaze = one.gaze
    assert isinstance(gaze, Gaze) and size(gaze.learner.task.commands) == 1
    env = gaze.learner.rollouts.env
    signals = env.observe()
    nothing = np.zeros((len(env.begun), 1), np.float32)
    np.testing.assert_allclose(gaze.hear(signals, nothing, nothing, nothing), 0.0, atol=1e-6)  # all is known at first
    wrong = {**signals, "tracked_ball": signals["tracked_ball"] + 1.0}
    assert gaze.hear(wrong, nothing, nothing, nothing).mean() > 0.01
    learned(one)
    tutor = one.student.heard.tutor
    assert sorted(tutor.columns) == [0, 1, 2, 3] and tutor.names == one.task.remembered


def test_its_detector_has_the_threads_that_it_is_given(teacher):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        one = student(teacher, gaze_steps=0)
        assert next(kind(metrics) for metrics in one.learn()) == "eyes"
        assert torch.get_num_threads() == one.config.threads == 1
    finally:
        torch.set_num_threads(before)


def test_a_detector_that_learns_too_little_is_told(teacher, monkeypatch):
    monkeypatch.setattr("policies.algorithms.student.eyes.GAMES", 2)
    with pytest.raises(LearningError, match="errors need 100 things .* give algorithm.detector_steps more"):
        learned(student(teacher, detector_steps=1000, gaze_steps=0))


def test_what_does_not_go_together_is_refused(teacher, tmp_path):
    with pytest.raises(ValueError, match="algorithm.eyes=detector goes with algorithm.network=gru"):
        student(teacher, network="tracking_gru")
    with pytest.raises(ValueError, match="algorithm.eyes 'both' is not one of encoder, detector"):
        StudentConfig(eyes="both")
    with pytest.raises(ValueError, match="needs algorithm.practice_steps >= 0, .* got 0, 0.0002 and 3"):
        StudentConfig(practice_bound=3.0)
    with pytest.raises(ValueError, match="gaze_steps >= 0 and detector_steps >= 1000, got -1"):
        StudentConfig(gaze_steps=-1)
    task, rng = make("soccer_1v1"), np.random.default_rng(0)
    shapes = ((8, size(task.policy)), (8,), (24, 8), (24, 8), (24,), (24,), (3, 8), (3,))
    w = [rng.normal(0.0, 0.3, shape).astype(np.float32) for shape in shapes]
    network = Gru((w[0], w[1]), w[2], w[3], w[4], w[5], (w[6], w[7]))
    remembers = export(FeaturePolicy.from_task(task, network), tmp_path / "remembers.onnx").path
    with pytest.raises(ValueError, match="remembers, and cannot teach where to look: set algorithm.gaze_steps=0"):
        student(remembers)

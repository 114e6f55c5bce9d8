"""Success classifiers: learned from labelled frames, judged on held-out episodes, and the reward of every learner."""

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest

from deploy.policy_file import PolicyFile
from policies import collect, train_success
from policies.algorithms import algorithm_class
from policies.algorithms.bc import BaseConfig
from policies.algorithms.rlpd import SeenConfig
from policies.datasets import Dataset, DatasetError
from policies.datasets.labels import UNKNOWN, labelled
from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.models.success import SuccessFromClassifier, success_file
from policies.runner import checkpoint
from policies.train_success import Config, NoThresholdError, Peaks, auroc, calibrate, threshold
from sim.spec import Signal
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

TOY, SEEN = "tests.policies.toy_reach:ToyReach", "tests.policies.toy_sight:ToySight"
LEARNERS = ("dsrl", "dsrl_na", "expo", "residual", "rlpd", "wsrl", "rlif")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset of the toy task whose episodes go on after success, a classifier learned from it, its figures."""
    folder = tmp_path_factory.mktemp("success")
    data, out = str(folder / "data"), str(folder / "success.onnx")
    for episodes, corruption in ((25, 0.2), (40, 1.2)):  # good ones, then others
        config = collect.Config(task=TOY, out=data, episodes=episodes, corruption=corruption, linger=5)
        collect.collect(ToyReach(), config)
    file, figures = train_success.train(Config(task=TOY, data=data, out=out, frames=2))
    return data, file.path, figures


def small(name, path, env_steps):
    wanted = {
        "total_steps": env_steps,
        "warmup_episodes": 2,
        "head_start": 4,
        "batch_size": 16,
        "hidden": [16],
        "success": path,
    }
    shown = {"horizon": 2, "episodes": 10, "corruption": 0.3}
    clones = name not in ("rlpd", "wsrl")
    wanted |= {"base": BaseConfig(**shown, hidden=[16], updates=5) if clones else SeenConfig(**shown)}
    wanted |= {"offline_updates": 10} if name == "wsrl" else {}
    cls = algorithm_class(name)
    return cls(ToyReach(), cls.Config(**wanted), 0)


def test_collecting_lingers_and_labels_tell_of_the_frame_after(made):
    dataset, found = Dataset(made[0]), labelled(ToyReach(), made[0])
    assert 10 < sum(e.succeeds for e in found) < 35
    for k, episode in enumerate(found):
        stored = dataset.episode(k)["next.success"][:, 0]
        assert np.array_equal(episode.label[1:], stored[:-1]) and episode.label[0] == 0
        away = np.linalg.norm(episode.signals["goal"] - episode.signals["position"], axis=1)
        assert np.array_equal(episode.label == 1, away < 0.1)
        if episode.succeeds and len(stored) < 24:
            assert stored.argmax() == len(stored) - 6  # five steps more


def test_the_file_knows_success_on_episodes_that_it_never_saw(made):
    _, path, figures = made
    assert figures.recall > 0.5 and figures.precision > 0.85 and figures.frame_auroc > 0.98, figures
    file = PolicyFile.load(path)
    assert file.metadata["evaluation"]["recall"] == figures.recall
    assert [s.name for s in file.inputs] == ["position", "goal"]
    rng = np.random.default_rng(0)
    goal = rng.uniform(-0.9, 0.9, (300, 2)).astype(np.float32)
    near, far = (goal + r * np.float32([np.cos(1.0), np.sin(1.0)]) for r in (0.02, 0.25))
    file.reset(300)
    answers = [file.step({"position": near, "goal": goal}) for _ in range(2)]
    assert not answers[0]["success"].any() and answers[1]["success"].mean() > 0.8  # two frames in a row
    assert answers[1]["success_probability"].mean() > 0.8
    assert file.step({"position": far, "goal": goal})["success"].mean() < 0.02
    assert not file.step({"position": near, "goal": goal})["success"].any()  # the streak was broken


def test_a_robot_needs_no_torch(made):
    code = (
        "import sys, numpy as np; from deploy.policy_file import PolicyFile; p = PolicyFile.load(sys.argv[1]);"
        "print(p.step({'position': np.zeros(2), 'goal': np.zeros(2)})); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, made[1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "success_probability" in done.stdout, done.stderr


def test_pictures_are_learned_from(tmp_path):
    config = collect.Config(task=SEEN, out=str(tmp_path / "data"), episodes=30, corruption=0.5, linger=6)
    collect.collect(ToySight(), config)
    settings = Config(task=SEEN, data=config.out, out=str(tmp_path / "seen.onnx"), updates=100, frames=1, folds=2)
    file, figures = train_success.train(dataclasses.replace(settings, signals="camera", false_share=0.2))
    assert [s.name for s in file.inputs] == ["camera"] and figures.frame_auroc > 0.85, figures
    with pytest.raises(ValueError, match="does not measure 'goal' in toy_sight; it has: position, camera"):
        train_success.train(dataclasses.replace(settings, signals="goal"))  # privileged


def test_labels_may_come_from_a_file(made, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("episode,frame,label\n3,0-4,0\n3, 6 ,1\n\n5,2,0\n")
    three, five = labelled(ToyReach(), made[0], file=str(path))
    assert three.label[:7].tolist() == [0, 0, 0, 0, 0, UNKNOWN, 1] and (three.label[7:] == UNKNOWN).all()
    assert (five.label == 0).sum() == 1 and not five.succeeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episode,frame\n", "the first line is not episode,frame,label"),
        ('"' + 200_000 * "x", "cannot be read: field larger than field limit"),
        ("episode,frame,label\n0,1,2\n", "line 2 is '0,1,2', not like 3,40-55,1"),
        ("episode,frame,label\n0,1\n", "line 2 is '0,1', not like"),
        ("episode,frame,label\n0,1,0\n99,1,1\n", "line 3: there are episodes 0 to 39"),
        ("episode,frame,label\n0,4-900,1\n", "line 2: there are [0-9]+ frames in"),
        ("episode,frame,label\n0,1,0\n", "no frame is labelled as success$"),
        ("episode,frame,label\n0,1,1\n", "every labelled frame is a success"),
    ],
)
def test_labels_that_make_no_sense_are_named(made, tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DatasetError, match=message):
        labelled(ToyReach(), made[0], file=str(tmp_path / "labels.csv"))


def test_data_that_cannot_be_learned_from_is_named(made, tmp_path):
    plain = str(tmp_path / "plain")
    collect.collect(ToyReach(), collect.Config(task=TOY, out=plain, episodes=4))
    with pytest.raises(DatasetError, match="none shows it; collect with linger=10"):
        labelled(ToyReach(), plain)
    with pytest.raises(DatasetError, match="no feature 'done'; there are"):
        labelled(ToyReach(), plain, column="done")
    seeing = ToyReach()
    seeing.policy = (*ToyReach.policy, ToySight.policy[1])
    with pytest.raises(DatasetError, match="has no camera 'observation.images.camera'"):
        labelled(seeing, plain)
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        labelled(ToyReach(), plain, file="nowhere.csv")
    (tmp_path / "labels.csv").write_text("episode,frame,label\n0,0-3,0\n0,4,1\n")
    with pytest.raises(ValueError, match="1 episode shows success: it takes 2"):
        train_success.train(Config(task=TOY, data=made[0], out="a.onnx", labels=str(tmp_path / "labels.csv")))
    shown = [k for k, e in enumerate(labelled(ToyReach(), made[0])) if e.succeeds][:2]
    lines = [f"{shown[0]},0-2,0", *(f"{k},{len(Dataset(made[0]).episode(k)['action']) - 1},1" for k in shown)]
    (tmp_path / "labels.csv").write_text("\n".join(["episode,frame,label", *lines]))
    with pytest.raises(ValueError, match="labels are of one kind only: label frames of more episodes"):
        train_success.train(
            Config(task=TOY, data=made[0], out="a.onnx", labels=str(tmp_path / "labels.csv"), updates=1)
        )
    with pytest.raises(ValueError, match="ends in .onnx"):
        Config(task=TOY, data=plain, out="success")


def test_another_tasks_data_are_refused(tmp_path):
    task = ToyReach()
    task.name = "arm_reach"
    collect.collect(task, collect.Config(task=TOY, out=str(tmp_path), episodes=2, linger=2))
    with pytest.raises(DatasetError, match="episode 0 is of the task arm_reach, not of toy_reach"):
        labelled(ToyReach(), str(tmp_path))


def test_the_threshold_keeps_false_ones_rare():
    label = np.array([0, 0, 0, 1, 1, 1, 0], np.int8)
    peaks = Peaks.of(np.array([5.0, -1.0, 1.0, 2.0, 3.0, 4.0, 9.0]), label, 2)
    assert (peaks.early, peaks.late) == (-1.0, 3.0)  # two in a row; what comes after success is not early
    assert Peaks.of(np.array([1.0, 7.0]), np.zeros(2, np.int8), 1) == Peaks(7.0, -np.inf)
    good, bad = [Peaks(0.0, 4.0), Peaks(1.0, 6.0)], [Peaks(2.0, -np.inf), Peaks(5.0, -np.inf)]
    assert threshold(good + bad[:1], 0.0) == 3.0  # in the middle of 2 and 4
    assert threshold(good, 0.0, share=0.5) == 3.0  # in the middle of 1 and 5, the median of what can be recognised
    assert threshold(good + bad, 0.0) == 5.5 and threshold(good + bad, 0.25) == 3.0
    with pytest.raises(NoThresholdError, match="more than 0 % of the 2 episodes"):
        threshold([Peaks(7.0, 6.0), bad[0]], 0.0)


def test_auroc_and_calibration():
    label = np.array([0, 0, 1, 1], np.int8)
    assert auroc(np.array([0.0, 1.0, 2.0, 3.0]), label) == 1.0 and auroc(np.zeros(4), label) == 0.5
    rng = np.random.default_rng(0)
    logit = rng.normal(0.0, 2.0, 20_000)
    said = (rng.random(20_000) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int8)
    scale, shift = calibrate(0.5 * logit + 1.0, said)
    assert abs(scale - 2.0) < 0.1 and abs(shift + 2.0) < 0.15, (scale, shift)


class Fixed:
    """A classifier's file that says what it is told."""

    inputs = (Signal("position", (2,)),)
    sha256, path = "0", "fixed.onnx"

    def __init__(self):
        self.say, self.restarted = np.zeros(2), []

    def reset(self, n):
        assert n == 2

    def restart(self, rows):
        self.restarted.append(rows.tolist())

    def step(self, signals):
        assert np.isfinite(signals["position"]).all()
        return {"success": self.say[:, None]}


def test_the_verdict_ends_episodes_and_the_truth_is_counted():
    cell, file = ToyReach().open(2, 0), Fixed()
    judged = SuccessFromClassifier(cell, file)
    stay = {"velocity": np.zeros((2, 2), np.float32)}

    def episode(at_goal, say, lost=False):
        judged.reset([0, 1], [0, 1])
        cell.position[0] = cell.goal[0] if at_goal else cell.goal[0] + 0.5
        if lost:
            cell.position[0] = 3.0
        file.say = np.array([say, 0.0])
        return judged.step(stay).success.tolist()

    assert episode(True, 1.0) == [True, False] and episode(False, 1.0) == [True, False]
    assert episode(True, 0.0) == [False, False] and episode(False, 1.0, lost=True) == [False, False]
    judged.reset([0], [9])
    assert file.restarted[-1] == [True, False]
    judged.reset([0], [10])  # nothing happened in between: no episode
    first = judged.recent[::2] if len(judged.recent) == 8 else judged.recent
    assert (True, True) in first and (True, False) in first and (False, True) in first
    rates = judged.rates()
    assert rates["false_success"] == 0.5 and rates["missed_success"] == 0.5
    cell.position[:] = np.nan
    judged.step(stay)  # a scene that is not finite does not stop the others


def test_scenes_with_a_classifier_continue_exactly(made):
    def scenes():
        rewards = ChunkRewards(10.0, 0.0, 0.9, 2)
        return ChunkRollout(ToyReach(), 3, 3, 4, rewards, judge=success_file(made[1], ToyReach()))

    def drive(some, steps):
        transitions = []
        for _ in range(steps):
            for row in map(int, some.idle()):
                away = some.seen[row, 2:] - some.seen[row, :2]
                some.plan(row, np.zeros(1, np.float32), np.clip(np.tile(away, 4), -1.0, 1.0).astype(np.float32))
            transitions += some.step()
        return transitions

    whole, continued = scenes(), scenes()
    drive(whole, 47)
    continued.load_state_dict(whole.state_dict())
    ends = [(t.reward, t.discount, t.next_x.tolist()) for t in drive(whole, 60)]
    assert ends == [(t.reward, t.discount, t.next_x.tolist()) for t in drive(continued, 60)]
    assert whole.rates() == continued.rates() and whole.rates()["true_success"] > 0.5
    state = whole.state_dict() | {"judged": {"file": "another", "recent": []}}
    with pytest.raises(ValueError, match="is not the classifier that this run began with"):
        continued.load_state_dict(state)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_takes_the_verdict_as_its_reward(made, name):
    learner = small(name, made[1], 400)
    *_, row = learner.learn()
    assert {"success", "true_success"} <= row.keys()
    scenes = learner.run.lessons.scenes if name == "rlif" else learner.run.scenes
    assert scenes.judged.file.sha256 == PolicyFile.load(made[1]).sha256
    if name != "rlif":  # whose rewards are interventions
        said = [verdict for verdict, _ in scenes.judged.recent]
        assert said == scenes.outcomes and 0 < sum(said) < len(said)


def test_a_run_with_a_classifier_continues_exactly(made, tmp_path):
    whole, first, second = (small("dsrl_na", made[1], 800) for _ in range(3))
    *_, last = whole.learn()
    running = first.learn()
    while next(running)["env_steps"] < 400.0:
        pass
    checkpoint.save(tmp_path / "checkpoint.npz", first.state_dict())
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert list(second.learn())[-1] == last


def test_files_that_judge_something_else_are_refused(made, tmp_path):
    class Other(ToyReach):
        name = "toy_other"

    class Blind(ToyReach):
        policy = ToyReach.policy[:1]
        privileged = ToyReach.policy[1:]

    with pytest.raises(ValueError, match="judges toy_reach at 10 Hz, but the task is toy_other at 10 Hz"):
        success_file(made[1], Other())
    with pytest.raises(ValueError, match="needs 'goal', which the robot does not measure in this task"):
        success_file(made[1], Blind())
    with pytest.raises(ValueError, match="there is no file"):
        success_file(str(tmp_path / "none.onnx"), ToyReach())
    shutil.copy("deploy/pretrained/quad_any.onnx", tmp_path / "fly.onnx")
    with pytest.raises(ValueError, match="is no success classifier but gives motor_command"):
        success_file(str(tmp_path / "fly.onnx"), ToyReach())

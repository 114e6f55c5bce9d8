"""A student that learns from a teacher who knows more: who may teach, what it learns, and that it continues exactly."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deploy.policy_file import PolicyFile
from policies.algorithms.ppo.tutor import Lesson, Tutor
from policies.algorithms.student import Student, StudentConfig
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from policies.models.vision import EncoderConfig
from sim.engines.pitch.views import view
from sim.spec import Signal, limits, size
from sim.tasks import make
from sim.tasks.soccer import SightConfig, Soccer, Soccer1v1, SoccerVision1v1
from sim.tasks.tracking import Track
from tests.outsider.test_car import check_compiled
from tests.policies.resumed import same

SMALL = {
    "num_envs": 16,
    "rollout_steps": 8,
    "minibatches": 2,
    "epochs": 1,
    "hidden": [16, 16],
    "head": [],  # as many layers as the teacher below
    "critic_hidden": [16],
    "lengths": [1.0, 1.0],
    "sight": EncoderConfig(channels=[4, 4, 4], head="flat"),
    "evaluate_every": 0,
    "evaluation_episodes": 4,
    "gaze_steps": 0,
}


class Told(SoccerVision1v1):
    """The student is told all but velocities, and sees nothing: it has to remember."""

    name, scores, score = "told", Soccer.scores, Soccer.score

    def __init__(self, config=None):
        super().__init__(config)
        self.lens, self.sees, self.commands = None, False, self.commands[:3]
        so = {s.name for s in view(self.players)}  # nobody's memory of it
        self.privileged = tuple(s for s in self.privileged if s.name in so)
        known = [s for s in self.privileged if not s.name.endswith("velocity")]
        self.policy = (*(s for s in self.policy if s.name not in ("camera", "pan")), *known)
        self.privileged = tuple(s for s in self.privileged if s not in known)
        self.tracks = (Track("ball_velocity"), Track("others_velocity"))


def chasing(task) -> FeaturePolicy:
    """Who drives at the ball, by one layer."""
    columns, weight, at = {}, np.zeros((size(task.commands), size(task.policy)), np.float32), 0
    for signal in task.policy:
        columns[signal.name], at = at, at + signal.size
    weight[0, columns["ball_position"]], weight[1, columns["ball_position"] + 1] = 1.0, 2.0
    weight[0, columns["ball_velocity"]] = 0.5
    return FeaturePolicy.from_task(task, Mlp([(weight, np.zeros(len(weight), np.float32))]))


@pytest.fixture
def teacher(tmp_path):
    return export(chasing(make("soccer_1v1")), tmp_path / "teacher.onnx").path


def shown(env):
    """All signals of an environment."""
    seen = {**env.observation["policy"], **env.observation["privileged"]}
    return {name: value.numpy() for name, value in seen.items()}


def student(task=None, seed=0, **settings):
    config = StudentConfig(**{**SMALL, "total_steps": 16 * 8 * 6, **settings})
    return Student(task or SoccerVision1v1(SightConfig(steps=20)), config, seed)


@given(done=st.floats(0.0, 1.0), guided=st.floats(0.0, 1.0), alone=st.floats(0.0, 0.9))
def test_a_lesson_is_heard_less_and_less(done, guided, alone):
    lesson = Lesson(guided, alone, 2.0, 0.1)
    assert 0.0 <= lesson.guided_share(done) <= 1.0
    assert lesson.guided_share(done) >= lesson.guided_share(min(1.0, done + 0.1))
    assert lesson.weight(done) == pytest.approx(2.0) if lesson.taught(done) else 0.0999 < lesson.weight(done) <= 2.0
    assert lesson.weight(1.0) == pytest.approx(0.1)
    assert Lesson().weight(done) == 0.0 and Lesson().guided_share(done) == 0.0


def test_a_tutor_says_what_its_file_does(teacher):
    learner = student(teacher=teacher)
    env, tutor = learner.student.env, learner.student.tutor
    assert tutor.columns == [0, 1, 2]  # where to look it does not know
    task, seen = make("soccer_1v1"), shown(env)
    action = tutor.act(seen)
    told, _ = chasing(task).act({s.name: seen[s.name] for s in task.policy}, {})
    np.testing.assert_allclose(action[:, 1], told["turn"][:, 0] / 8.0, atol=1e-5)


def test_who_may_teach(teacher):
    task, file = SoccerVision1v1(), PolicyFile.load(teacher)
    with pytest.raises(ValueError, match=r"sees 'others' of shape \(2,\), which soccer_vision_2v2 lacks"):
        Tutor([file], make("soccer_vision_2v2"), 4)
    other = Soccer1v1()
    other.commands = (Signal("drive", (1,), "m/s", "body", -9.0, 9.0), *other.commands[1:])
    file.outputs = other.commands
    with pytest.raises(ValueError, match="commands 'drive' in another way than soccer_vision_1v1"):
        Tutor([file], task, 4)
    file = PolicyFile.load(teacher)
    file.rate_hz = 50.0
    with pytest.raises(ValueError, match="runs at 50 Hz, soccer_vision_1v1 at 20 Hz"):
        Tutor([file], task, 4)


def test_bad_settings_are_named():
    for settings, message in (
        ({"network": "mlp"}, "a student remembers: algorithm.network must be gru or tracking_gru, got 'mlp'"),
        ({"guided": 1.5}, "algorithm.guided and alone are shares of the training"),
        ({"imitation": 0.1, "final_imitation": 0.2}, "0 <= algorithm.final_imitation <= imitation"),
        ({"teacher_steps": -1}, "teacher_steps must not be negative"),
        ({"estimation": -1.0}, "estimation >= 0"),
        ({"snapshots": 2, "network": "tracking_gru"}, "snapshots >= 0, and 0 where algorithm.network is not gru"),
    ):
        with pytest.raises(ValueError, match=message):
            StudentConfig(**settings)


@pytest.mark.parametrize(
    ("network", "path"),
    [("gru", "fused"), *(pytest.param(k, "torch", marks=pytest.mark.long) for k in ("gru", "tracking_gru"))],
)
def test_it_learns_what_it_is_taught(teacher, network, path):
    settings = {
        "num_envs": 64,
        "rollout_steps": 16,
        "hidden": [32, 32],
        "learning_rate": 3e-3,
        "total_steps": 45_000,
        "minibatches": 4,
    }
    settings |= {"network": network, "path": path, "inherit": False, "head": [32]}
    learner = student(Told(SightConfig(start="anywhere")), teacher=teacher, alone=1.0, guided=0.0, **settings)
    metrics = [*learner.learn()]
    first, last = (np.mean([m["imitation_error"] for m in some]) for some in (metrics[:3], metrics[-5:]))
    assert last < 0.2 * first
    assert all(math.isfinite(m["loss"]) for m in metrics)
    assert path == "fused" or all(m["estimation_error"] > 0.0 for m in metrics)


def test_what_the_teacher_does_not_know_is_tried_from_the_beginning(teacher):
    learner = student(teacher=teacher, alone=1.0, imitation=0.0, final_imitation=0.0, guided=0.0, estimation=0.0)
    path = learner.student
    for _ in range(2):
        data, _ = path._collect()
        path._update(data)
    weight = path.actor.output[0].weight.detach()
    before = student(teacher=teacher, estimation=0.0).student.actor.output[0].weight.detach()
    assert torch.equal(weight[:3], before[:3]) and not torch.equal(weight[3], before[3])


def test_it_acts_on_what_it_tracks_as_the_teacher_would(teacher):
    """At first, and as long as that is held."""
    learner = student(teacher=teacher, network="tracking_gru", held=1.0)
    path, observation = learner.student, learner.student.env.observation
    x, judged = path.env.features(observation), path.env.critic_features(observation)
    state = torch.cat([torch.randn(16, 16), judged[:, path.estimated]], -1)
    wanted = torch.from_numpy(path.tutor.act(shown(path.env)))

    def apart():
        with torch.no_grad():
            return float((path.actor.act(path._seen(x), state)[:, :3] - wanted).abs().max())

    assert apart() < 1e-5
    path._update(path._collect()[0])
    assert apart() < 1e-5
    path.lesson = dataclasses.replace(path.lesson, held=0.0)
    path._update(path._collect()[0])
    assert apart() > 1e-4


def test_what_cannot_be_inherited_is_refused(teacher):
    with pytest.raises(ValueError, match=r"teacher has layers of \[\] units, the student.s head of \[8\]: set head"):
        student(teacher=teacher, network="tracking_gru", head=[8])
    task = SoccerVision1v1(SightConfig(steps=20))
    task.tracks = task.tracks[1:]
    with pytest.raises(ValueError, match="sees 'ball_position', which the student neither senses nor tracks"):
        student(task, teacher=teacher, network="tracking_gru")


@pytest.mark.parametrize("network", ["gru", "tracking_gru"])
def test_a_file_of_float16_takes_half_the_space_and_does_the_same_in_c(teacher, tmp_path, network):
    settings = {"network": network, "hidden": [64, 64], "total_steps": 16 * 8 * 2}
    files = {
        half: export(made.controller(), tmp_path / f"{half}.onnx")
        for half in (False, True)
        for made in [student(teacher=teacher, float16=half, **settings)]
    }
    whole, half = (len(files[kind].content()) for kind in (False, True))
    assert half < 0.62 * whole
    check_compiled(files[True])


@pytest.mark.parametrize(("league", "network"), [(False, "gru"), (True, "gru"), (False, "tracking_gru")])
def test_a_run_continues_exactly(teacher, league, network):
    straight, first, second = (student(teacher=teacher, league=league, network=network) for _ in range(3))
    metrics = [*straight.learn()]
    learning = first.learn()
    for _ in range(3):
        next(learning)
    second.load_state_dict(first.state_dict())
    assert [*second.learn()] == metrics[3:]
    same(straight.state_dict(), second.state_dict())
    assert ("points_teacher" in metrics[-1]) == league and metrics[-1]["progress"] == 1.0


def test_a_teacher_is_learned_first_and_both_continue_exactly(monkeypatch):
    recipe = {"num_envs": 32, "rollout_steps": 8, "hidden": [16, 16], "evaluate_every": 0, "evaluation_episodes": 4}
    recipes = {"ppo": {"default": {f"algorithm.{name}": value for name, value in recipe.items()}}}
    monkeypatch.setattr(Soccer1v1, "recipes", recipes)
    straight, first, second = (student(teacher_steps=32 * 8 * 3) for _ in range(3))
    metrics = [*straight.learn()]
    assert len(metrics) == 9 and "teacher_success" in metrics[2] and "imitation_error" in metrics[3]
    assert metrics[2]["progress"] == pytest.approx(0.3) and metrics[-1]["progress"] == 1.0
    assert metrics[-1]["env_steps"] == 32 * 8 * 3 + 16 * 8 * 6
    learning = first.learn()
    for steps in (1, 4):  # in the teacher's training, then in the student's
        for _ in range(steps):
            next(learning)
        second.load_state_dict(first.state_dict())
    assert [*second.learn()] == metrics[5:]
    same(straight.state_dict(), second.state_dict())


def test_threads_change_nothing(teacher):
    one, two = (student(teacher=teacher, threads=threads) for threads in (1, 2))
    assert [*one.learn()] == [*two.learn()]
    same(one.state_dict(), two.state_dict())


@pytest.mark.parametrize(("network", "state"), [("gru", ["hidden"]), ("tracking_gru", ["hidden", "tracked"])])
def test_its_file_does_what_torch_does(teacher, tmp_path, network, state):
    learner = student(teacher=teacher, averaged=0.0, network=network)
    for _ in learner.learn():
        pass
    path, rng = learner.student, np.random.default_rng(0)
    file = export(learner.controller(), tmp_path / "student.onnx")
    assert [s.name for s in file.inputs if s.is_picture] == ["camera"] and [s.name for s in file.state] == state
    file.reset(2)
    state = path.average.initial(2)
    for _ in range(40):
        shown = rng.integers(0, 256, (2, 30, 40, 3), np.uint8)
        seen = {s.name: rng.normal(size=(2, s.size)).astype(np.float32) for s in learner.task.policy[1:]}
        told = file.step({"camera": shown, **seen})
        numbers = torch.from_numpy(np.concatenate([seen[s.name] for s in learner.task.policy[1:]], axis=1))
        with torch.no_grad():
            action, state = path.average(path._seen(numbers), {"camera": torch.from_numpy(shown)}, state)
        command = np.concatenate([told[s.name] for s in learner.task.commands], axis=1)
        low, high = limits(learner.task.commands)
        np.testing.assert_allclose((command - low) / (high - low) * 2.0 - 1.0, action, atol=5e-4)


def test_a_teacher_that_remembers_is_restarted_with_the_episode(tmp_path):
    task = make("soccer_1v1")
    rng = np.random.default_rng(0)
    shapes = ((8, size(task.policy)), (8,), (24, 8), (24, 8), (24,), (24,), (3, 8), (3,))
    w = [rng.normal(0.0, 0.3, shape).astype(np.float32) for shape in shapes]
    network = Gru((w[0], w[1]), w[2], w[3], w[4], w[5], (w[6], w[7]))
    path = export(FeaturePolicy.from_task(task, network), tmp_path / "teacher.onnx").path
    with pytest.raises(ValueError, match=r"remembers: no opponent can, yet; set algorithm.league=false"):
        student(teacher=path, league=True)
    learner = student(teacher=path)
    tutor, env = learner.student.tutor, learner.student.env
    fresh = tutor.act(shown(env))
    tutor.begin(np.array([True] * 8 + [False] * 8))
    again = tutor.act(shown(env))
    assert np.array_equal(again[:8], fresh[:8]) and not np.array_equal(again[8:], fresh[8:])

"""Drills of football: where they begin, when they are won, what is rewarded, and that they share a match's policies."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from deploy import PolicyFile
from policies.evaluate import evaluate
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from sim.env import Env, make_env, with_engine
from sim.experts.soccer import keeper
from sim.parallel import TaskParallelEnv
from sim.spec import size
from sim.tasks import make

DRILLS = ("seek", "shoot", "keep")
ALL = pytest.mark.parametrize("name", [f"soccer_{how}{drill}" for how in ("", "vision_") for drill in DRILLS])


def opened(task: Any, games: int, seed: int = 0) -> Env:
    env = make_env(task, games, seed)
    env.reset(range(games), range(games))
    return env


def played(task: Any, games: int, act: Any = None) -> tuple[float, float]:
    """Shares of the games that are won and lost."""
    env = opened(task, games)
    won, over = np.zeros(games, bool), np.zeros(games, bool)
    for _ in range(task.episode_steps):
        step = env.step((act or task.expert)(env.observe()))
        won |= step.success & ~over
        over |= step.terminated
        assert (step.terminated | ~step.success).all()  # with success it is over
    return float(won.mean()), float((over & ~won).mean())


def nothing(task: Any, rows: int) -> dict[str, np.ndarray]:
    return {s.name: np.zeros((rows, *s.shape), np.float32) for s in task.commands}


@ALL
def test_what_is_sensed_and_commanded_is_a_matchs(name: str):
    for perception in ("pixels", "detector") if "vision" in name else ("",):
        settings = {"perception": perception} if perception else {}
        drill = make(name, **settings)
        match = make("soccer_vision_1v1" if perception else "soccer_1v1", **settings)
        for group in ("policy", "privileged", "commands"):
            assert getattr(drill, group) == getattr(match, group), group
        assert (drill.rate_hz, drill.agents, drill.robot) == (match.rate_hz, 1, match.robot)
    if "vision" in name:
        teacher = make(name, vary=False, steps=70, start="kickoff").teacher_task()
        assert teacher.name == name.replace("vision_", "") and teacher.config.start == "kickoff"
        assert not teacher.config.vary and teacher.episode_steps == 70


@ALL
def test_games_are_decided_by_seed_and_number(name: str):
    settings = {"perception": "detector"} if "vision" in name else {}
    task = make(name, **settings)
    many, one = opened(task, 6), make_env(task, 1, 0)
    one.reset([0], [4])
    for _ in range(20):
        ours, theirs = many.observe(), one.observe()
        for signal, value in theirs.items():
            np.testing.assert_array_equal(value[0], ours[signal][4], err_msg=signal)
        many.step(task.expert(ours))
        one.step(task.expert(theirs))


@pytest.mark.parametrize("engine", ["pitch", "mujoco"])
@pytest.mark.parametrize("drill", DRILLS)
def test_they_begin_as_they_say(drill: str, engine: str):
    task = with_engine(make(f"soccer_{drill}"), engine)
    env = opened(task, 60 if engine == "pitch" else 8)
    place, ball = env.pitch.read("position"), env.pitch.read("ball_position")
    half, wide = 0.5 * task.field.length, 0.5 * task.field.width
    assert (np.abs(place) < [half, wide]).all() and (np.abs(ball) < [half, wide]).all()
    both = np.concatenate([place, ball[:, None]], axis=1)
    apart = np.linalg.norm(both[:, None] - both[:, :, None], axis=-1) + 9.0 * np.eye(3)
    assert apart.min() > 2.0 * task.robot.radius
    env.close()
    if engine == "mujoco":
        return
    if drill == "seek":
        assert min(ball.std(axis=0)) > 0.5 and place[:, 0, 0].std() > 0.5
        behind = env.observe()["ball_position"][:, 0] < 0.0
        assert 0.3 < behind.mean() < 0.7  # it has to be looked for
    if drill == "shoot":
        assert (ball[:, 0] > 0.4).all() and (np.linalg.norm(place[:, 0] - ball, axis=1) < 0.8).all()
        assert (place[:, 1, 0] > 1.7).all() and (np.abs(place[:, 1, 1]) < 0.5).all()
    if drill == "keep":
        assert (place[:, 0, 0] < -1.1).all() and (ball[:, 0] > place[:, 0, 0]).all()
        assert (place[:, 1, 0] > ball[:, 0]).all()
    kickoff = opened(make(f"soccer_{drill}", start="kickoff"), 20).pitch.read("ball_position")
    assert np.abs(kickoff).max() < 0.3


def test_a_ball_is_found_by_its_front_or_its_kicker_alone():
    task = make("soccer_seek", vary=False)
    env = opened(task, 4)
    place, heading = np.zeros((4, 2, 2)), np.tile([1.0, 0.0], (4, 2, 1))
    place[:, 1] = [-1.5, 1.0]
    ball = [[0.2, 0.0], [-0.2, 0.0], [0.125, 0.0], [0.0, 0.2]]
    env.pitch.write(np.arange(4), {"position": place, "heading": heading, "ball_position": ball})
    env.pitch.write(np.arange(4), {"velocity": np.zeros((4, 2, 2)), "ball_velocity": np.zeros((4, 2))})
    env._look()
    told = nothing(task, 4)
    told["drive"][:] = np.array([[1.0], [-1.0], [0.0], [0.0]])
    told["kick"][2] = 1.0
    won = np.zeros(4, bool)
    for step in range(20):
        made = env.step(told)
        won |= made.success
        assert set(made.terms) == {"held", "nearer"} and (made.terms["held"] == made.success).all()
        if step == 0:
            assert made.success.tolist() == [False, False, True, False] and made.reward[2] > 2.8
    assert won.tolist() == [True, False, True, False]  # its back does not find it


def test_a_ball_that_nobody_finds_stays_where_it_is():
    task = make("soccer_seek")
    env = opened(task, 5)
    before = env.pitch.read("ball_position")
    for _ in range(task.episode_steps):
        step = env.step(nothing(task, 5))
        assert not step.terminated.any()
    np.testing.assert_allclose(env.pitch.read("ball_position"), before, atol=1e-5)


def test_a_goal_is_kept_until_the_time_is_over():
    task = make("soccer_keep", steps=40, vary=False)
    env = opened(task, 3)
    away = {"position": np.tile([[1.0, 1.0], [1.5, -1.0]], (3, 1, 1)), "ball_velocity": np.zeros((3, 2))}
    away["ball_position"] = np.array([[0.0, 0.0], [-1.8, 0.0], [1.8, 0.0]])
    away["ball_velocity"][1:, 0] = -3.0, 3.0
    env.pitch.write(np.arange(3), away)
    env.opponent.play = lambda signals: nothing(task, 3)
    found = [env.step(nothing(task, 3)) for _ in range(40)]
    won, over = (np.stack([getattr(step, name) for step in found]) for name in ("success", "terminated"))
    assert not won[:-1, 0].any() and won[-1, 0] and over[-1, 0]  # nothing happened: kept at the end
    assert over[:, 1].any() and not won[:, 1].any()  # a goal against it
    assert won[over[:, 2].argmax(), 2] and over[:, 2].argmax() < 20  # one of its own
    env.reset([0], [7])
    assert not env.step(nothing(task, 3)).success[0]  # the time is the game's own
    twin = opened(task, 3, seed=3)
    twin.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(twin.age, env.age)


def test_scripted_players_show_how_hard_it_is():
    won, lost = played(make("soccer_seek"), 200)
    assert won > 0.95 and lost == 0.0
    idle = {
        drill: played(make(f"soccer_{drill}"), 200, lambda seen: nothing(make("soccer_1v1"), 200)) for drill in DRILLS
    }
    assert idle["seek"][0] == idle["shoot"][0] == 0.0 and idle["keep"][0] < 0.3
    against = {name: played(make("soccer_shoot", opponent=name), 200)[0] for name in ("still", "keeper")}
    assert against["still"] > 0.8 and against["keeper"] < 0.5
    assert played(make("soccer_keep"), 200)[0] > 0.5
    omni = make("soccer_keep", robot="omni")
    assert played(omni, 100, lambda seen: keeper(omni, seen))[0] > 0.5


def test_a_file_of_the_match_is_measured_in_a_drill_and_the_other_way_round(tmp_path):
    match = make("soccer_1v1")
    weight = np.zeros((size(match.commands), size(match.policy)))
    columns, at = {}, 0
    for signal in match.policy:
        columns[signal.name], at = at, at + signal.size
    weight[0, columns["ball_position"]], weight[1, columns["ball_position"] + 1] = 1.0, 2.0  # drives at the ball
    for trained, tried in (("soccer_1v1", "soccer_seek"), ("soccer_seek", "soccer_1v1")):
        task = make(trained)
        file = export(FeaturePolicy.from_task(task, Mlp([(weight, np.zeros(3))])), tmp_path / f"{trained}.onnx").path
        report = evaluate(PolicyFile.load(file), task=make(tried), episodes=20, transfer=True)
        assert report.task == tried and (report.success > 0.5 if tried == "soccer_seek" else report.episodes == 20)


@ALL
def test_in_gymnasium_and_pettingzoo(name: str):
    parallel_api_test(TaskParallelEnv(name, config={"steps": 30}), num_cycles=40)
    env = gymnasium.make(f"sim.gym:sim2metal/{name}-v0", config={"steps": 30}, observation="dict")
    (first, _), (again, _) = env.reset(seed=3), env.reset(seed=3)
    assert all(np.array_equal(first[signal], again[signal]) for signal in first)
    _, reward, *_ = env.step(env.action_space.sample())
    assert np.isfinite(float(reward))
    env.close()


def test_opponents_and_starts_are_the_drills():
    for name, settings, message in (
        ("soccer_seek", {"opponent": "chaser"}, "opponent 'chaser' is not one of still"),
        ("soccer_shoot", {"opponent": "self"}, "opponent 'self' is not one of still, keeper"),
        ("soccer_vision_keep", {"opponent": "still"}, "opponent 'still' is not one of slow, slower, chaser"),
        ("soccer_keep", {"start": "near"}, "start 'near' is not one of drill, kickoff"),
        ("soccer_1v1", {"start": "drill"}, "start 'drill' is not one of kickoff"),
        ("soccer_1v1", {"opponent": "keeper"}, "opponent 'keeper' is not one of still"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name, **settings)

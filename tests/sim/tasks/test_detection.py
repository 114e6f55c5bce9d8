"""A detector's answers: of what it sees alone, with errors of the size it says, the same in any company, late."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.env import make_env
from sim.tasks import make
from sim.tasks.soccer.detection import Detector, Errors, drawn, places, ranked, signals, things

EXACT = Errors(bearing=0, turning=0, near=0, far=0, missed=0, faint=0, imagined=0, aside=0, scale=0)
VIEW = math.radians(90.0)
NOBODY = np.array([False])


def told(places, pan, errors=EXACT, hides=NOBODY, turning=0.0, steps=1, latency=0):
    """(steps, rows, things, 3) of a scene (rows, things, 2) that stands still."""
    rows, kinds, _ = np.shape(places)
    detector = Detector(rows, [1] * kinds, VIEW, 0.09, errors, latency)
    scene = np.array(places, np.float32), hides, np.full(rows, pan, np.float32)
    detector.begin(np.arange(rows), np.arange(rows), *scene)
    made = [detector.told]
    for _ in range(steps - 1):
        detector.step(*scene, np.full(rows, turning, np.float32))
        made.append(detector.told)
    return np.stack(made)


@given(angle=st.floats(-3.1, 3.1), distance=st.floats(0.1, 5.0), pan=st.floats(-2.0, 2.0))
def test_without_errors_it_tells_what_lies_within_its_view(angle, distance, pan):
    where = [distance * math.cos(angle), distance * math.sin(angle)]
    seen = told([[where]], pan)[0, 0, 0]
    off = abs((angle - pan + math.pi) % (2.0 * math.pi) - math.pi)
    if abs(off - VIEW / 2.0) > 1e-3:
        assert seen[0] == (off < VIEW / 2.0)
        bearing = (angle - pan + math.pi) % (2.0 * math.pi) - math.pi
        np.testing.assert_allclose(seen[1:], np.array([bearing, distance]) * seen[0], atol=1e-4)


def test_robots_stand_in_front_of_things():
    hides = np.array([False, True])
    scene = [[[2.0, 0.0], [1.0, 0.05]], [[2.0, 0.0], [1.0, 0.2]], [[1.0, 0.0], [2.0, 0.0]], [[2.0, 0.0], [-1.0, 0.0]]]
    np.testing.assert_array_equal(told(scene, 0.0, hides=hides)[0, :, 0, 0], [0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("distance", [0.5, 3.0])
@pytest.mark.parametrize("turning", [0.0, 5.0])
def test_errors_are_as_large_as_it_says(distance, turning):
    errors = Errors(0.02, 0.01, 0.04, 0.04, 0.1, 0.05, 0.0, 0.02, 0.05)
    seen = told(np.full((400, 1, 2), [distance, 0.0]), 0.0, errors, turning=turning, steps=60)[1:, :, 0]
    share = seen[..., 0].mean()
    assert share == pytest.approx(0.9 - 0.05 * distance, abs=0.02)
    there = seen[..., 0] > 0.0
    angle, away = np.where(there, seen[..., 1], np.nan), np.log(np.where(there, seen[..., 2], np.nan) / distance)
    assert np.nanstd(angle - np.nanmean(angle, axis=0)) == pytest.approx(0.02 + 0.01 * turning, rel=0.05)
    assert np.nanstd(np.nanmean(angle, axis=0)) == pytest.approx(0.02, rel=0.2)  # of a whole game
    assert np.nanstd(away - np.nanmean(away, axis=0)) == pytest.approx(0.04 + 0.04 * distance, rel=0.05)
    assert np.nanstd(np.nanmean(away, axis=0)) == pytest.approx(0.05, rel=0.25)


def test_it_imagines_things_as_often_as_it_says():
    seen = told(np.full((400, 1, 2), [-1.0, 0.0]), 0.5, Errors(imagined=0.2), steps=50)[:, :, 0]
    assert seen[..., 0].mean() == pytest.approx(0.2, abs=0.02)
    assert np.abs(seen[..., 1]).max() <= VIEW / 2.0 + 1e-3  # in the picture


def test_numbers_are_uniform_and_a_seeds_own():
    found = drawn(np.arange(100, dtype=np.uint64), np.arange(100), 50)
    assert found.min() >= 0.0 and found.max() < 1.0 and found.mean() == pytest.approx(0.5, abs=0.02)
    assert np.histogram(found, 10, (0.0, 1.0))[0].min() > 400
    np.testing.assert_array_equal(drawn(np.array([7], np.uint64), np.array([7]), 50)[0], found[7])
    assert len(np.unique(found)) == found.size


@pytest.mark.parametrize("players", [1, 2])
def test_what_is_told_of_is_where_the_match_has_it(players):
    task = make(f"soccer_vision_{players}v{players}", perception="detector", opponent="still", start="anywhere")
    assert [s.name for s in task.policy][: len(things(players))] == [s.name for s in signals(players)]
    env = make_env(task, 6 * players, 0, several=True)
    env.reset(range(6 * players), np.repeat(range(6), players))
    seen = env.observe()
    found, hides = places(seen, env.pitch.shape.half_length)
    np.testing.assert_allclose(found[:, 0], seen["ball_position"])
    np.testing.assert_allclose(found[:, 1], seen["goal"])
    width = np.linalg.norm(found[:, 1] - found[:, 2], axis=1)
    np.testing.assert_allclose(width, task.field.length, atol=1e-4)
    assert hides.sum() == 2 * players - 1
    cos, sin = seen["heading"].T
    back = np.stack([cos * found[:, 2, 0] - sin * found[:, 2, 1], sin * found[:, 2, 0] + cos * found[:, 2, 1]], axis=1)
    np.testing.assert_allclose(seen["position"] + back, [[-task.field.length / 2.0, 0.0]] * 6 * players, atol=1e-4)


def test_nobody_knows_who_is_who_the_nearest_comes_first():
    told_of = np.array([[[1, 0.1, 3.0], [1, -0.2, 1.0], [0, 0, 0], [1, 0.3, 2.0]]], np.float32)
    np.testing.assert_array_equal(ranked(told_of, [1, 3])[0, :, 2], [3.0, 1.0, 2.0, 0.0])
    np.testing.assert_array_equal(ranked(told_of, [2, 2])[0, :, 2], [1.0, 3.0, 2.0, 0.0])


def test_a_game_is_the_same_in_any_company_and_late():
    config = {"perception": "detector", "opponent": "chaser", "start": "anywhere"}
    task, late = (make("soccer_vision_1v1", **config, latency=k) for k in (0, 2))
    alone, many, after = (make_env(t, n, 0) for t, n in ((task, 1), (task, 5), (late, 1)))
    alone.reset([0], [3])
    many.reset(range(5), [0, 1, 2, 3, 4])
    after.reset([0], [3])
    history = []
    for step in range(30):
        now = alone.observe()
        history.append(now["seen_ball"].copy())
        np.testing.assert_array_equal(now["seen_ball"][0], many.observe()["seen_ball"][3])
        np.testing.assert_array_equal(after.observe()["seen_ball"], history[max(0, step - 2)])
        for env, n in ((alone, 1), (many, 5), (after, 1)):
            command = {s.name: np.full((n, *s.shape), 0.3, np.float32) for s in task.commands}
            env.step(command)
    assert np.concatenate(history)[:, 0].any()


@pytest.mark.parametrize("perception", ["detector", "pixels"])
def test_some_games_are_later_than_others(perception):
    """By up to `jitter`, each game always by as much; not where nothing varies."""
    config = {"perception": perception, "start": "anywhere", "width": 16, "height": 12}
    tasks = [make("soccer_vision_1v1", **config, jitter=k) for k in (0, 2)]
    prompt, late = (make_env(task, 12, 0) for task in tasks)
    for env in (prompt, late):
        env.reset(range(12), range(12))
    source = late.detector if perception == "detector" else late.sight
    by = source.late.copy()
    assert {*by} == {0, 1, 2}
    name, history = "seen_ball" if perception == "detector" else "camera", []
    for step in range(6):
        history.append(prompt.observe()[name].copy())
        shown = late.observe()[name]
        for row, k in enumerate(by):
            np.testing.assert_array_equal(shown[row], history[max(0, step - k)][row])
        for env, task in zip((prompt, late), tasks, strict=True):
            env.step({s.name: np.full((12, *s.shape), 0.3, np.float32) for s in task.commands})
    still = make_env(make("soccer_vision_1v1", **config, jitter=2, vary=False, latency=1), 4, 0)
    still.reset(range(4), range(4))
    assert ((still.detector or still.sight).late == 1).all()


def test_it_continues_from_where_it_was_saved():
    task = make("soccer_vision_1v1", perception="detector", opponent="chaser", latency=1)
    first, second = make_env(task, 4, 0), make_env(task, 4, 0)
    for env in (first, second):
        env.reset(range(4), range(4))
    command = {s.name: np.full((4, *s.shape), 0.2, np.float32) for s in task.commands}
    for _ in range(5):
        first.step(command)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        np.testing.assert_array_equal(first.observe()["seen_ball"], second.observe()["seen_ball"])
        first.step(command)
        second.step(command)

"""A memory that forgets nothing, the gaze that it is for, and whoever recognises pictures in a detector's place."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.env import make_env
from sim.spec import size
from sim.tasks import make
from sim.tasks.soccer.tracker import FADES, SLOWS, Tracker, kinds, remembered, signals

VIEW, RADIUS, PERIOD = math.radians(120.0), 0.09, 0.05


def seen(heading=0.0, position=(0.0, 0.0), ball=(1.0, 0.0), speed=(0.0, 0.0), other=(-1.0, 0.5)):
    """What one robot knows, of things at places in the team's axes."""
    cos, sin = math.cos(heading), math.sin(heading)

    def own(vector):
        x, y = vector
        return np.array([[x * cos + y * sin, y * cos - x * sin]], np.float32)

    place = np.subtract
    return {
        "position": np.array([position], np.float32),
        "heading": np.array([[cos, sin]], np.float32),
        "ball_position": own(place(ball, position)),
        "ball_velocity": own(speed),
        "others": own(place(other, position)),
        "others_velocity": own((0.0, 0.0)),
    }


def begun(now):
    tracker = Tracker(1, 1, VIEW, RADIUS, PERIOD)
    tracker.begin(np.array([0]), now)
    return tracker


@given(st.floats(-3.0, 3.0), st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_what_is_in_view_is_known_as_it_is(heading, x, y):
    now = seen(heading, (x, y), speed=(0.3, -0.2))
    bearing = math.atan2(*now["ball_position"][0][::-1])
    tracker = begun(seen())
    tracker.step(now, np.array([bearing]))
    told = tracker.told(now)
    np.testing.assert_allclose(told["tracked_ball"], now["ball_position"], atol=1e-5)
    np.testing.assert_allclose(told["tracked_ball_velocity"], now["ball_velocity"], atol=1e-5)
    assert told["ball_known"] == 1.0


@given(st.floats(-3.0, 3.0), st.integers(1, 10))
def test_what_is_out_of_view_is_where_it_was_whoever_turns(heading, steps):
    first = seen(speed=(0.4, 0.0))
    tracker = begun(first)
    away = np.array([math.pi])  # the camera looks back, where the ball is not
    for _ in range(steps):
        tracker.step(seen(ball=(9.0, 9.0)), away)
    turned = seen(heading, (0.5, -0.5))
    told, speed = tracker.told(turned), 0.4 * SLOWS**steps
    went = PERIOD * 0.4 * (1.0 - SLOWS**steps) / (1.0 - SLOWS)
    expected = seen(heading, (0.5, -0.5), ball=(1.0 + went, 0.0), speed=(speed, 0.0))
    np.testing.assert_allclose(told["tracked_ball"], expected["ball_position"], atol=1e-5)
    np.testing.assert_allclose(told["tracked_ball_velocity"], expected["ball_velocity"], atol=1e-5)
    assert told["ball_known"] == pytest.approx(FADES**steps)


def test_a_robot_hides_what_is_behind_it():
    tracker = begun(seen())
    tracker.step(seen(ball=(2.0, 0.0), other=(1.0, 0.0)), np.zeros(1))
    assert tracker.known.tolist() == [[pytest.approx(FADES), 1.0]]


def test_new_games_leave_the_others_alone():
    two = {name: np.repeat(value, 2, axis=0) for name, value in seen().items()}
    tracker = Tracker(2, 1, VIEW, RADIUS, PERIOD)
    tracker.begin(np.arange(2), two)
    tracker.step(two, np.full(2, math.pi))
    tracker.begin(np.array([1]), two)
    assert tracker.known[0, 0] == pytest.approx(FADES) and tracker.known[1, 0] == 1.0


@pytest.mark.parametrize("players", [1, 2])
def test_its_signals(players):
    told = {s.name: s for s in signals(players)}
    assert sum(s.size for s in told.values()) == 5 * sum(kinds(players).values())
    assert set(remembered(players).values()) <= set(told)
    task = make(f"soccer_vision_{players}v{players}", perception="tracker")
    known = {s.name for s in task.policy}
    assert set(told) <= known and not set(remembered(players)) & known


def test_to_look_is_all_that_is_left_where_hands_play():
    """The same game as with all commands together."""
    task, rng = make("soccer_vision_1v1", perception="tracker", steps=30), np.random.default_rng(0)
    told = []

    def hands(signals):
        told.append(signals["tracked_ball"])
        return {"drive": np.full((4, 1), 0.7), "turn": signals["tracked_ball"][:, 1:], "kick": np.ones((4, 1))}

    gaze = task.gaze_task(hands)
    assert [c.name for c in gaze.commands] == ["look"] and [s.name for s in gaze.policy] == [
        s.name for s in task.policy
    ]
    one, other = make_env(gaze, 4, 3, several=True), make_env(task, 4, 3, several=True)
    for env in (one, other):
        env.reset(range(4), range(4))
    for _ in range(20):
        look = {"look": rng.uniform(-2.0, 2.0, (4, 1))}
        mine = one.step(look)
        theirs = other.step({**hands(other.observe()), **look})
        np.testing.assert_array_equal(mine.reward, theirs.reward)
    assert len(told) == 40
    same = one.observe()
    for name, value in other.observe().items():
        np.testing.assert_array_equal(same[name], value)


@pytest.mark.parametrize("latency", [0, 2])
def test_who_recognises_pictures_is_shown_them_and_tells(latency):
    task = make("soccer_vision_1v1", latency=latency, steps=30, width=16, height=12)
    shown = []

    def recognise(pictures):
        shown.append(pictures.copy())
        means = pictures.reshape(len(pictures), -1).mean(axis=1) / 255.0
        return np.repeat(means[:, None, None], 12, axis=1).reshape(len(pictures), 4, 3).astype(np.float32)

    watched = task.recognised_by(recognise)
    assert size(watched.policy) == size(task.detector_task().policy) and watched.mirrors
    env, plain = make_env(watched, 2, 0, several=True), make_env(task, 2, 0, several=True)
    commands = {c.name: np.full((2, c.size), 0.1) for c in task.commands}
    for one in (env, plain):
        one.reset(range(2), range(2))
    for _ in range(5):
        pictures = plain.observe()["camera"]
        np.testing.assert_array_equal(shown[-1], pictures)
        told = env.observe()
        assert told["seen_ball"].shape == (2, 3)
        np.testing.assert_allclose(told["seen_ball"][:, 0], pictures.reshape(2, -1).mean(axis=1) / 255.0, rtol=1e-6)
        for one in (env, plain):
            one.step(commands)
    env.reset([1], [7])
    assert len(shown[-1]) == 1  # the other game's are not looked at again

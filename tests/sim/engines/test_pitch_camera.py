"""The cameras on the pitch: where things appear, how large, and in which colours."""

import math
from typing import Any

import numpy as np
import pytest

from sim.engines.pitch import Pitch
from sim.engines.pitch.camera import (
    BALL,
    GOAL_OTHER,
    GOAL_OWN,
    GRASS,
    GROUND,
    IS_BALL,
    IS_MATE,
    IS_OPPONENT,
    LINE,
    SKY,
    WALL,
    Eyes,
)
from sim.engines.pitch.mujoco import MujocoPitch
from sim.engines.sight.lens import Lens
from sim.engines.sight.picture import FAR, GAIN_R, NOISE, PANORAMA
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS
from sim.scenes.pitch import Ball as BallOf

FINE = Lens(120, 160, 90.0, 0.0)


def scene(lens: Lens = FINE, robots: int = 2, **state: Any) -> Eyes:
    """Robot 0 looks along x from the point (-1, 0), unless told otherwise; the others are far off."""
    pitch = Pitch(DIFFERENTIAL, FIELDS[1], BallOf(), 1, robots, 0.05)
    place = np.array([[[-1.0, 0.0], *([[-1.9, 1.4]] * (robots - 1))]])
    pitch.reset(np.arange(1), {"position": place, "ball_position": [[-1.9, -1.4]]})
    pitch.write(np.arange(1), {name: np.asarray(value) for name, value in state.items()})
    return Eyes(pitch, 1, lens)


def shown(eyes: Eyes, what: int) -> np.ndarray:
    """Rows and columns (count, 2) of the pixels that show it."""
    return np.argwhere(eyes.see(extra=True)[1][0, 1] == what)


@pytest.mark.parametrize("ahead", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("left", [-0.3, 0.0, 0.4])
@pytest.mark.parametrize("tilt", [0.0, 10.0])
def test_a_ball_appears_where_a_pinhole_camera_shows_it(ahead: float, left: float, tilt: float):
    lens = Lens(120, 160, 90.0, tilt)
    where = shown(scene(lens, ball_position=[[-1.0 + ahead, left]]), IS_BALL)
    down = DIFFERENTIAL.eye[1] - BallOf().radius
    cos, sin = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    depth, below = ahead * cos + down * sin, down * cos - ahead * sin
    focal = 80.0
    middle = (60.0 + focal * below / depth - 0.5, 80.0 - focal * left / depth - 0.5)
    np.testing.assert_allclose(where.mean(axis=0), middle, atol=1.0)
    away = math.hypot(depth, left, below)
    area = math.pi * (focal * BallOf().radius / away) ** 2 * (away / depth) ** 3  # larger at the side
    assert len(where) == pytest.approx(area, rel=0.15, abs=4.0)


def test_turning_and_panning_move_everything():
    ahead = shown(scene(ball_position=[[0.0, 0.0]]), IS_BALL).mean(axis=0)
    angle = math.radians(20.0)
    panned = shown(scene(ball_position=[[0.0, 0.0]], pan=[[[angle], [0.0]]]), IS_BALL).mean(axis=0)
    heading = [[[math.cos(angle), math.sin(angle)], [1.0, 0.0]]]
    turned = shown(scene(ball_position=[[0.0, 0.0]], heading=heading), IS_BALL).mean(axis=0)
    np.testing.assert_allclose(panned, turned, atol=0.1)
    assert panned[1] - ahead[1] == pytest.approx(80.0 * math.tan(angle), abs=1.0)  # to the right


def test_goals_and_players_have_the_colours_of_the_one_who_looks():
    ahead = scene()
    assert len(shown(ahead, GOAL_OTHER)) > 20 and not len(shown(ahead, GOAL_OWN))
    back = scene(heading=[[[-1.0, 0.0], [1.0, 0.0]]])
    assert len(shown(back, GOAL_OWN)) > 20 and not len(shown(back, GOAL_OTHER))
    place = [[[-1.0, 0.0], [0.0, 0.5], [0.0, -0.5], [1.9, 1.4]]]
    eyes = scene(robots=4, position=place)
    mate, opponent = (shown(eyes, what)[:, 1].mean() for what in (IS_MATE, IS_OPPONENT))
    assert mate < 70 < 90 < opponent  # columns
    both = Eyes(eyes.pitch, 4, FINE).see(extra=True)[1][:, 1]
    assert (both[2] == IS_MATE).sum() == 0 or both[2].size  # the other team's own view exists


def test_what_is_near_hides_what_is_far():
    behind = scene(position=[[[-1.0, 0.0], [0.0, 0.0]]], ball_position=[[0.4, 0.0]])
    assert not len(shown(behind, IS_BALL))
    before = scene(position=[[[-1.0, 0.0], [0.0, 0.0]]], ball_position=[[-0.4, 0.0]])
    assert len(shown(before, IS_BALL)) > 30 and len(shown(before, IS_OPPONENT)) > 30


def test_depth_and_segments():
    pictures, extra = scene(position=[[[-1.0, 0.0], [0.5, 0.0]]]).see(extra=True)
    depth, segment = extra[0]
    assert pictures.shape == (1, 120, 160, 3) and extra.shape == (1, 2, 120, 160)
    assert depth[60, 80] == pytest.approx(1.5 - DIFFERENTIAL.radius, abs=0.02)
    bottom = DIFFERENTIAL.eye[1] / (59.5 / 80.0)  # m ahead, where the lowest row meets the ground
    assert depth[119, 80] == pytest.approx(bottom, rel=0.01)
    assert (depth[segment == SKY] == FAR).all() and (segment[0] == SKY).all() and (segment == WALL).any()
    np.testing.assert_allclose(pictures[0, 119, 80] / 255.0, GRASS, atol=0.05)


def test_lines_do_not_break_into_dots_in_coarse_pictures():
    for ahead in (0.4, 0.5, 0.6):  # m to the halfway line, at 4 to 6 pixels below the horizon
        eyes = scene(Lens(30, 40, 90.0, 0.0), position=[[[-ahead, 1.0], [1.9, 1.4]]])
        red = eyes.see()[0][0][17:, :, 0].astype(float)  # which is what grass lacks
        line = (red - red[-1, 20]).max(axis=0)
        assert line.min() > 25.0 and line.min() > 0.45 * line.max()
    far = scene(Lens(30, 40, 90.0, 8.0), ball_position=[[1.8, 0.0]]).see()[0][0].astype(float)
    without = scene(Lens(30, 40, 90.0, 8.0)).see()[0][0].astype(float)
    assert (np.abs(far - without).sum(axis=2) > 15.0).any()  # a ball that is smaller than a pixel is there


def test_light_noise_and_panoramas():
    plain = scene().see()[0].astype(float)
    bright, noisy, elsewhere = scene(), scene(), scene()
    bright.looks[:, GAIN_R] = 1.2
    np.testing.assert_allclose(bright.see()[0][..., 0], np.minimum(1.2 * plain[..., 0], 255.0), atol=1.5)
    noisy.looks[:, NOISE] = 0.02
    first, second = noisy.see()[0].astype(float), noisy.see()[0].astype(float)
    low = plain < 200.0
    assert (first - plain)[low].std() == pytest.approx(0.02 * 255.0, rel=0.05)
    assert abs((first - plain)[low].mean()) < 0.3 and not np.array_equal(first, second)
    elsewhere.looks[:, PANORAMA] = 1
    segment, other = scene().see(extra=True)[1][0, 1], elsewhere.see()[0][0]
    sky, ground = segment == SKY, segment == GROUND
    assert (other[sky] != plain[0][sky]).any() and (other[ground] == plain[0][ground]).all()


def test_some_cameras_alone_see_the_same():
    rng = np.random.default_rng(0)
    pitch = Pitch(DIFFERENTIAL, FIELDS[2], BallOf(), 19, 4, 0.05)
    pitch.reset(
        np.arange(19), {"position": rng.uniform(-1.5, 1.5, (19, 4, 2)), "ball_position": rng.uniform(-1, 1, (19, 2))}
    )
    eyes = Eyes(pitch, 4)
    everything, some = eyes.see()[0], eyes.see(np.array([70, 3]))[0]
    np.testing.assert_array_equal(some, everything[[70, 3]])


def test_lenses_that_see_nothing_are_refused():
    with pytest.raises(ValueError, match="a picture has 1 to 1000 rows and columns, got 0 x 40"):
        Lens(0, 40)
    with pytest.raises(ValueError, match=r"a camera sees 1 to 170 degrees, got 180"):
        Lens(view=180.0)


def test_the_ball_is_orange():
    picture = scene(ball_position=[[-0.6, 0.0]]).see()[0][0] / 255.0
    where = shown(scene(ball_position=[[-0.6, 0.0]]), IS_BALL)
    np.testing.assert_allclose(np.median(picture[tuple(where.T)], axis=0), BALL, atol=0.25)
    assert LINE != IS_BALL


def test_mujoco_shows_the_ball_at_the_same_place():
    for ball in ((-0.2, 0.1), (0.5, -0.4)):
        pitch = MujocoPitch(DIFFERENTIAL, FIELDS[1], BallOf(), 1, 2, 0.05)
        pitch.reset(np.arange(1), {"position": [[[-1.0, 0.0], [-1.9, 1.4]]], "ball_position": [list(ball)]})
        theirs = pitch.scene.see(0, "eye0", 120, 160).astype(float)
        orange = (theirs[..., 0] > 1.5 * theirs[..., 1]) & (theirs[..., 0] > 3.0 * theirs[..., 2])
        ours = shown(Eyes(pitch, 1, FINE), IS_BALL)
        np.testing.assert_allclose(np.argwhere(orange).mean(axis=0), ours.mean(axis=0), atol=0.7)
        assert orange.sum() == pytest.approx(len(ours), rel=0.2)
        pitch.close()


def test_threads_change_no_picture():
    pitch = Pitch(DIFFERENTIAL, FIELDS[1], BallOf(), 64, 2, 0.05)
    rng = np.random.default_rng(0)
    places = rng.uniform(-1.0, 1.0, (64, 2, 2)), rng.uniform(-1.0, 1.0, (64, 2))
    pitch.write(np.arange(64), dict(zip(("position", "ball_position"), places, strict=True)))
    shown = []
    for threads in (1, 2, 3):
        eyes = Eyes(pitch, 1)
        eyes.looks[:, NOISE] = 0.02
        eyes._threads = threads
        eyes._work, eyes._sums = (np.repeat(room[:1], threads, axis=0) for room in (eyes._work, eyes._sums))
        shown.append(eyes.see(extra=True))
    for pictures, extra in shown[1:]:
        np.testing.assert_array_equal(pictures, shown[0][0])
        np.testing.assert_array_equal(extra, shown[0][1])

"""Flights become films, on machines with and without OpenGL."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest

from sim.render import offscreen, software
from sim.render import scene as scenes
from sim.render.caption import BAND, Caption, captioned
from sim.render.scene import BACK, FRONT, GATE, TARGET, film
from sim.robots import robot

CRAZYFLIE = robot("crazyflie")
SIZE = (320, 240)


def recording(steps=40, n=1):
    time = np.linspace(0.0, 1.0, steps)[:, None]
    position = np.stack(
        [0.5 * np.sin(3 * time + np.arange(n)), 0.3 * time + np.zeros(n), 1.0 + 0 * time + np.arange(n) * 0.2], 2
    )
    quaternion = np.tile([1.0, 0.0, 0.0, 0.0], (steps, n, 1))
    return position, quaternion, np.tile([0.0, 0.0, 1.2], (steps, n, 1))


def scene(position, quaternion, target):
    return film(position, quaternion, target, CRAZYFLIE, 100.0, 25, SIZE)


def near(frame, colour, tolerance=0.35):
    """Pixels (m, 2) whose hue is that of `colour`."""
    pixels = frame.astype(float) / 255.0
    hue = pixels - pixels.mean(-1, keepdims=True)
    wanted = np.array(colour) - np.mean(colour)
    cosine = (hue @ wanted) / np.maximum(np.linalg.norm(hue, axis=-1) * np.linalg.norm(wanted), 1e-6)
    rows, columns = np.nonzero((cosine > 0.95) & (np.linalg.norm(hue, axis=-1) > tolerance * np.linalg.norm(wanted)))
    return np.stack([columns, rows], 1)


@pytest.mark.parametrize("n", [1, 3])
def test_the_film_is_an_mp4_that_plays(tmp_path, n):
    path = tmp_path / "flight.mp4"
    used = offscreen.render_flight(path, *recording(100, n), CRAZYFLIE, 100.0, fps=25, size=SIZE, backend="raster")
    assert used == "raster"
    assert [p.name for p in tmp_path.iterdir()] == ["flight.mp4"]
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (25, 1.0)
    raw = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    frames = np.frombuffer(subprocess.run(raw, capture_output=True, check=True).stdout, np.uint8)
    frames = frames.reshape(25, SIZE[1], SIZE[0], 3).astype(int)
    direct = software.Artist(film(*recording(100, n), CRAZYFLIE, 100.0, 25, SIZE)).frame(24)
    assert np.abs(frames[24] - direct).mean() < 3.0  # compression
    assert np.abs(frames[24] - frames[0]).max() > 50


def test_the_vehicle_is_drawn_where_it_is():
    for x, y in [(0.0, 0.0), (0.4, -0.3), (-0.4, 0.3)]:
        position, quaternion, target = recording(1)
        position[:] = [x, y, 1.2]
        shot = scene(position, quaternion, target)
        frame = software.Artist(shot).frame(0)
        expected = software.Camera(shot).project(position[0])[0][0]
        seen = np.concatenate([near(frame, FRONT), near(frame, BACK)])
        assert len(seen) > 30
        assert np.linalg.norm(seen.mean(0) - expected) < 8.0  # px


def test_front_and_back_can_be_told_apart():
    position, quaternion, target = recording(1)
    position[:] = [0.3, 0.3, 1.2]
    for yaw in (0.0, 2.0, 4.0):
        quaternion[:] = [np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]
        shot = scene(position, quaternion, target)
        frame = software.Artist(shot).frame(0)
        ahead = position[0] + 0.1 * np.array([[np.cos(yaw), np.sin(yaw), 0.0]])
        direction = software.Camera(shot).project(ahead)[0][0] - software.Camera(shot).project(position[0])[0][0]
        nose = near(frame, FRONT).mean(0) - near(frame, BACK).mean(0)
        assert nose @ direction > 0.8 * np.linalg.norm(nose) * np.linalg.norm(direction)


def test_the_camera_keeps_the_whole_flight_in_view():
    position, quaternion, target = recording(50, 3)
    shot = scene(position, quaternion, target)
    pixels, _ = software.Camera(shot).project(position.reshape(-1, 3))
    assert (pixels >= 0).all() and (pixels <= SIZE).all()


def test_a_vehicle_that_flies_off_does_not_shrink_the_others():
    position, quaternion, target = recording(50, 2)
    position[:, 1] += np.linspace(0.0, 500.0, 50)[:, None]
    assert scene(position, quaternion, target).radius < 6.0


def test_a_lost_vehicle_stays_where_it_was_last():
    position, quaternion, target = recording(40)
    position[20:] = np.nan
    shot = scene(position, quaternion, target)
    np.testing.assert_array_equal(shot.position[-1], position[19])
    software.Artist(shot).frame(len(shot.position) - 1)
    position[0] = np.nan
    with pytest.raises(ValueError, match="begin with finite"):
        scene(position, quaternion, target)


def test_bad_recordings_and_settings_are_named(tmp_path):
    position, quaternion, target = recording(10)
    with pytest.raises(ValueError, match=r"\(10, 1, 3\)"):
        scene(position, quaternion[:, :, :3], target)
    with pytest.raises(ValueError, match="rate_hz"):
        film(position, quaternion, target, CRAZYFLIE, 0.0, 25, SIZE)
    with pytest.raises(ValueError, match="raster, mujoco"):
        offscreen.render_flight(tmp_path / "a.mp4", position, quaternion, target, CRAZYFLIE, 100.0, backend="opengl")
    with pytest.raises(ValueError, match="even"):
        offscreen.render_flight(tmp_path / "a.mp4", position, quaternion, target, CRAZYFLIE, 100.0, size=(321, 240))


def test_an_interrupted_film_leaves_no_file(tmp_path, monkeypatch):
    def two_frames(shot, backend):
        yield software.Artist(shot).frame(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(offscreen, "frames", two_frames)
    with pytest.raises(KeyboardInterrupt):
        offscreen.render_flight(tmp_path / "flight.mp4", *recording(), CRAZYFLIE, 100.0, size=SIZE)
    assert not list(tmp_path.iterdir())


def test_mujoco_draws_the_same_picture_or_says_what_to_do():
    position, quaternion, target = recording(4)
    position[:] = [0.3, -0.2, 1.2]
    shot = scene(position, quaternion, target)
    try:
        (frame,) = offscreen.frames(shot, "mujoco")
    except RuntimeError as error:  # no OpenGL on this machine
        assert "backend=raster" in str(error)
        return
    assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8
    expected = software.Camera(shot).project(position[0])[0][0]
    seen = np.concatenate([near(frame, FRONT), near(frame, BACK)])
    assert len(seen) > 30
    assert np.linalg.norm(seen.mean(0) - expected) < 8.0


def test_without_opengl_mujoco_names_the_renderer_that_works(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    with pytest.raises(RuntimeError, match="backend=raster"):
        offscreen.frames(scene(*recording(4)), "mujoco")


def test_without_opengl_the_film_is_drawn_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    path = tmp_path / "flight.mp4"
    assert offscreen.render_flight(path, *recording(8), CRAZYFLIE, 100.0, size=SIZE) == "raster"
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("backend", ["raster", "mujoco"])
def test_rotors_turn_as_they_are_told_while_the_vehicle_stands(backend):
    position, quaternion, target = recording(8)
    position[:] = position[0]
    pictures = []
    for told in (None, np.zeros((8, 1, 4))):
        shot = film(position, quaternion, target, CRAZYFLIE, 100.0, 25, SIZE, told)
        try:
            pictures.append([frame.astype(int) for frame in offscreen.frames(shot, backend)])
        except RuntimeError:
            pytest.skip("there is no OpenGL here")
    first, second = pictures[0]
    assert np.abs(second - first).max() > 40
    assert (np.abs(second - first).max(axis=2) > 20).mean() < 0.1  # nothing else moves
    assert np.abs(pictures[1][1] - second).max() > 40  # at another speed


def test_rotors_turn_in_the_directions_of_the_airframe():
    turned = scenes.turned(None, CRAZYFLIE, 50, 2, 100.0)
    assert turned.shape == (50, 2, 4)
    # A rotor's torque on the body is against its turning.
    np.testing.assert_array_equal(np.sign(turned[-1, 0]), -np.sign(CRAZYFLIE.rotor_direction))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 11])
def test_vehicles_of_worlds_of_their_own_are_drawn_beside_one_another(n):
    rng = np.random.default_rng(n)
    goal = np.tile(rng.uniform(-1.0, 1.0, (1, n, 3)), (30, 1, 1))
    flown = goal + 0.4 * rng.uniform(-1.0, 1.0, (30, n, 3))
    place, aim = scenes.apart(flown, goal)
    np.testing.assert_allclose(place - aim, flown - goal, atol=1e-12)  # the same flights
    assert np.ptp(aim[0, :, 2]) < 1e-12
    away = np.linalg.norm(aim[0, :, None] - aim[0], axis=2) + 10.0 * np.eye(n)
    assert away.min() >= 0.9


def test_a_film_ends_when_nothing_moves_any_more():
    goal = np.zeros((1000, 2, 3))
    flown = np.exp(-np.arange(1000) / 50.0)[:, None, None] * np.ones((1000, 2, 3))
    steps = scenes.decided(flown, goal, 100.0)
    off = np.linalg.norm(flown[steps - 1], axis=1)
    assert 200 <= steps < 460 and (off < 0.05).all()
    assert scenes.decided(flown, goal + np.linspace(0.0, 1.0, 1000)[:, None, None], 100.0) == 1000  # a moving target


@pytest.mark.parametrize("backend", ["raster", "mujoco"])
def test_gates_are_drawn_and_the_next_one_is_another_colour(backend):
    position, quaternion, _ = recording(8)
    square = np.array([[0.0, 0.5, 1.9], [0.0, -0.5, 1.9], [0.0, -0.5, 0.9], [0.0, 0.5, 0.9]])
    openings = np.stack([square + np.array([1.5, 0.5, 0.0]), square + np.array([3.0, -0.5, 0.0])])
    counts = []
    for due in (0, 1):
        target = np.tile(openings[due].mean(axis=0), (8, 1, 1))
        which = np.full(8, due)
        shot = film(position, quaternion, target, CRAZYFLIE, 100.0, 25, SIZE, None, openings, which)
        try:
            frame = next(offscreen.frames(shot, backend))
        except RuntimeError:
            pytest.skip("there is no OpenGL here")
        counts.append((len(near(frame, GATE)), len(near(frame, TARGET))))
    assert min(min(pair) for pair in counts) > 20
    assert counts[0] != counts[1]


@pytest.mark.parametrize("backend", ["raster", "mujoco"])
def test_pillars_are_drawn(backend):
    position, quaternion, target = recording(8)
    pictures = []
    for radius in (0.1, 0.3):
        stand = np.array([[0.8, 0.4, radius], [-0.8, -0.4, radius]])
        shot = film(position, quaternion, target, CRAZYFLIE, 100.0, 25, SIZE, pillars=stand)
        without = dataclasses.replace(shot, pillars=np.zeros((0, 3)))
        try:
            drawn, empty = (next(offscreen.frames(one, backend)).astype(int) for one in (shot, without))
        except RuntimeError:
            pytest.skip("there is no OpenGL here")
        pictures.append(int((np.abs(drawn - empty).max(axis=2) > 10).sum()))
    assert 20 < pictures[0] < 0.6 * pictures[1]


def test_a_caption_is_written_below_and_counts_the_time():
    grey = [np.full((60, 320, 3), 90, np.uint8)] * 3
    made = list(captioned(grey, Caption("quad_hover: crazyflie", "success 100 %"), fps=1.0))
    assert all(frame.shape == (60 + BAND, 320, 3) and (frame[:60] == 90).all() for frame in made)
    assert (made[0][60:] > 200).any()
    changed = np.argwhere((made[0] != made[2]).any(axis=2))
    assert len(changed) and changed[:, 1].min() > 160  # the time, on the right
    narrow = list(captioned([np.zeros((10, 64, 3), np.uint8)], Caption("x" * 300, "y" * 300), fps=1.0))
    assert narrow[0].shape == (10 + BAND, 64, 3)

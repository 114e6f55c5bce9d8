"""Pictures of MuJoCo scenes: upright, of the scene given, and plain errors where they cannot be taken."""

from __future__ import annotations

import sys

import mujoco
import numpy as np
import pytest

from sim.render.camera import Camera

SCENE = """<mujoco><visual><global offwidth="20" offheight="30"/><quality shadowsize="1024" offsamples="2"/></visual>
<worldbody><light pos="0 0 3"/><camera name="front" pos="0 -2 0" xyaxes="1 0 0 0 0 1"/>
<geom name="ball" pos="0.3 0 0.4" size="0.15" rgba="1 0 0 1"/><geom type="plane" pos="0 0 -0.5" size="3 3 1"/>
</worldbody></mujoco>"""


@pytest.fixture
def scene():
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def camera(model, *size, **options):
    """A camera; None on a machine without OpenGL, which must say so."""
    try:
        return Camera(model, *size, **options)
    except RuntimeError as error:
        assert "OpenGL" in str(error)
        return None


def red(picture):
    """Mean row and column of the red pixels, as fractions of the picture; how many there are."""
    rows, columns = np.nonzero(picture[..., 0].astype(int) - picture[..., 1] > 40)
    return rows.mean() / picture.shape[0], columns.mean() / picture.shape[1], len(rows)


def test_a_picture_is_upright_and_of_the_size_asked_for(scene):
    model, data = scene
    eye = camera(model, 48, 64)
    if eye is None:
        return
    assert eye.size == (48, 64)
    picture = eye.see(data, "front")
    assert picture.shape == (48, 64, 3) and picture.dtype == np.uint8 and picture.flags.c_contiguous
    row, column, count = red(picture)
    assert row < 0.45 and column > 0.55 and count > 20  # the ball is up and to the right
    model.geom_pos[0] = [-0.3, 0.0, -0.2]
    mujoco.mj_forward(model, data)
    row, column, _ = red(eye.see(data, "front"))
    assert row > 0.5 and column < 0.45
    eye.close()


def test_one_context_serves_many_scenes_and_copies_of_the_model(scene):
    model, data = scene
    eye, other = camera(model, 32, 32), camera(model, 16, 16)
    if eye is None or other is None:
        return
    before = eye.see(data, "front")
    assert other.see(data, "front").shape == (16, 16, 3)
    np.testing.assert_array_equal(eye.see(data, "front"), before)
    blue = mujoco.MjModel.from_xml_string(SCENE.replace("1 0 0 1", "0 0 1 1"))
    picture = eye.see(data, "front", blue)
    assert (picture[..., 2].astype(int) - picture[..., 0] > 40).sum() == red(before)[2]
    other.close()
    np.testing.assert_array_equal(eye.see(data, "front"), before)


def test_the_quick_picture_leaves_out_what_costs_and_the_model_is_left_as_it_was(scene):
    model, data = scene
    quick, fine = camera(model, 64, 64), camera(model, 64, 64, fine=True)
    if quick is None or fine is None:
        return
    screen, quality = model.vis.global_, model.vis.quality
    assert (screen.offwidth, screen.offheight, quality.shadowsize, quality.offsamples) == (20, 30, 1024, 2)
    plain, shaded = quick.see(data, "front"), fine.see(data, "front")
    assert np.abs(plain.astype(int) - shaded).max() > 30  # the ball's shadow, its smooth edge
    assert red(plain)[:2] == pytest.approx(red(shaded)[:2], abs=0.02)


def test_what_cannot_be_seen_is_named(scene):
    model, data = scene
    with pytest.raises(ValueError, match="height 0 and width 64"):
        Camera(model, 0, 64)
    eye = camera(model, 8, 8)
    if eye is None:
        return
    with pytest.raises(KeyError, match="no camera 'back'; there are: front"):
        eye.see(data, "back")
    eye.close()
    eye.close()
    with pytest.raises(RuntimeError, match="closed"):
        eye.see(data, "front")


def test_without_opengl_there_is_a_plain_error(scene, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    with pytest.raises(RuntimeError, match="no OpenGL"):
        Camera(scene[0], 8, 8)

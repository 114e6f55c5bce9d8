"""Any model in a batch: repeatable, whatever the batch and the threads; read by names; a lost world reads NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.scene import Scene
from sim.robots.mjcf import load

ROBOT = load("simple_quadruped", free=True)
DT = 0.02


def opened(num: int, threads: int | None = 1) -> Scene:
    scene = Scene(ROBOT.model, num, DT, threads)
    scene.reset(range(num), np.tile(ROBOT.start, (num, 1)))
    return scene


def controls(seed: int, steps: int, num: int) -> np.ndarray:
    return ROBOT.home + np.random.default_rng(seed).normal(0.0, 0.5, (steps, num, 8))


@settings(max_examples=8)
@given(seed=st.integers(0, 99), row=st.integers(0, 4), threads=st.integers(2, 4))
def test_a_world_depends_on_its_own_start_and_commands_alone(seed: int, row: int, threads: int) -> None:
    batch, threaded, alone = opened(5), opened(5, threads), opened(1)
    for control in controls(seed, 15, 5):
        batch.step(control)
        threaded.step(control)
        alone.step(control[row : row + 1])
    np.testing.assert_array_equal(batch.qpos, threaded.qpos)
    np.testing.assert_array_equal(batch.qpos[row], alone.qpos[0])
    np.testing.assert_array_equal(batch.qvel[row], alone.qvel[0])
    for scene in (batch, threaded, alone):
        scene.close()


@pytest.mark.parametrize("why", ["told NaN", "already NaN", "too fast"])
def test_a_lost_world_reads_nan_and_the_others_go_on(why: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log behind
    scene, twin = opened(3), opened(3)
    for number, control in enumerate(controls(0, 5, 3)):
        twin.step(control)
        if number == 2:
            if why == "told NaN":
                control[1, 0] = np.nan
            qvel = scene.qvel[1:2].copy()
            qvel[:, 8] = {"already NaN": np.nan, "too fast": 1e12}.get(why, 0.0)
            scene.reset([1], scene.qpos[1:2], qvel)
        scene.step(control)
    assert np.isnan(scene.qpos[1]).all() and np.isnan(scene.pose("body", "trunk")[0][1]).all()
    assert np.isnan(scene.sensor("gyro")[1]).all()
    np.testing.assert_array_equal(scene.qpos[[0, 2]], twin.qpos[[0, 2]])
    scene.reset([1], ROBOT.start[None])
    scene.step(np.tile(ROBOT.home, (3, 1)))
    assert np.isfinite(scene.qpos).all()


def test_poses_and_velocities_are_those_of_the_motion() -> None:
    scene = opened(2)
    for control in controls(3, 10, 2):
        scene.step(control)
    before, moving = scene.pose("body", "front_left_shin")[0].copy(), scene.velocity("body", "front_left_shin")[0]
    turning, axes = scene.velocity("site", "imu")[1], scene.pose("site", "imu")[1]
    np.testing.assert_allclose(scene.sensor("gyro"), (axes.transpose(0, 2, 1) @ turning[..., None])[..., 0], atol=1e-9)
    later = Scene(ROBOT.model, 2, 1e-5)
    later.reset(range(2), scene.qpos, scene.qvel)
    later.step(np.tile(ROBOT.home, (2, 1)))
    np.testing.assert_allclose((later.pose("body", "front_left_shin")[0] - before) / 1e-5, moving, atol=0.02)
    position, velocity = scene.joints(["front_left_knee", "front_left_hip"])
    np.testing.assert_array_equal(position, scene.qpos[:, [8, 7]])
    np.testing.assert_array_equal(velocity, scene.qvel[:, [7, 6]])


def test_commands_are_cut_to_the_actuators_ranges() -> None:
    scene, twin = opened(1), opened(1)
    scene.step(np.full((1, 8), 50.0))
    twin.step(ROBOT.model.actuator_ctrlrange[:, 1][None])
    np.testing.assert_array_equal(scene.qpos, twin.qpos)


def test_names_and_shapes_are_listed() -> None:
    scene = opened(2)
    with pytest.raises(KeyError, match="no body 'tail'; there are: world, trunk"):
        scene.pose("body", "tail")
    with pytest.raises(KeyError, match="no sensor 'nose'; there are: gyro"):
        scene.sensor("nose")
    with pytest.raises(KeyError, match="'base' is no joint of one degree of freedom"):
        scene.joints(["base"])
    with pytest.raises(ValueError, match=r"shape \(8,\), not \(2, 8\)"):
        scene.step(np.zeros(8))


def test_cameras_of_the_model_see_it() -> None:
    arm = load("simple_arm")
    scene = Scene(arm.model, 2, DT)
    scene.reset([1], arm.start[None])
    try:
        first, second = (scene.see(row, "front", 32, 40) for row in range(2))
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
    else:
        assert first.shape == (32, 40, 3) and first.std() > 5 and (first != second).any()
    scene.close()

"""Legged robots from files: feet, servos, mirrors, and models that installed packages hold."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from sim.registry import names_from
from sim.robots import mjcf_file
from sim.robots.legs import Legs
from sim.robots.mjcf_file import PACKAGED, place
from sim.robots.mjcf_legged import load
from tests.sim.robots.test_mjcf import written

INSTALLED = [name for name, found in PACKAGED.items() if importlib.util.find_spec(found.module)]
WALKER = Path(mjcf_file.__file__).with_name("simple_quadruped.xml").read_text()


def test_feet_and_mirror_are_found() -> None:
    robot = load("simple_quadruped", [], Legs())
    assert [robot.model.body(foot).name for foot in robot.feet] == [
        f"{end}_{side}_shin" for end in ("front", "back") for side in ("left", "right")
    ]
    assert robot.mirror is not None
    assert robot.reflected(True)[0] == [2, 3, 0, 1, 6, 7, 4, 5]


def test_who_has_a_short_leg_has_no_mirror(tmp_path: Path) -> None:
    lame = WALKER.replace('<body name="front_left_thigh" pos="0.18', '<body name="front_left_thigh" pos="0.13')
    robot = load(written(tmp_path, lame), [], Legs())
    assert robot.mirror is None
    with pytest.raises(ValueError, match="mirror image"):
        robot.reflected(True)


def test_motors_give_way_to_servos_of_their_strength(tmp_path: Path) -> None:
    start, end = WALKER.index("<actuator>"), WALKER.index("</actuator>")
    motors = WALKER[start:end].replace("<position", '<motor gear="2"')
    for old in ("-0.5 2", "-2.4 -0.2"):
        motors = motors.replace(f'ctrlrange="{old}"', 'ctrlrange="-4 4"')
    robot = load(written(tmp_path, WALKER[:start] + motors + WALKER[end:]), [], Legs(stiffness=11.0))
    assert all(actuator.kind == "position" for actuator in robot.actuators)
    np.testing.assert_allclose(robot.physics.actuator_gainprm[:, 0], 11.0)
    np.testing.assert_allclose(robot.physics.actuator_forcerange, np.tile([-8.0, 8.0], (8, 1)))


def test_only_feet_touch_the_floor_unless_told_otherwise() -> None:
    quick, whole = load("simple_quadruped", [], Legs()), load("simple_quadruped", [], Legs(contacts="all"))
    trunk = quick.model.body("trunk").id
    for robot, touches in ((quick, False), (whole, True)):
        geoms = np.flatnonzero(robot.physics.geom_bodyid == trunk)
        assert bool(robot.physics.geom_contype[geoms].any()) is touches


def test_feet_are_felt_where_they_touch_the_floor() -> None:
    robot = load("simple_quadruped", [], Legs())
    model, data = robot.physics, mujoco.MjData(robot.physics)
    data.qpos[:] = robot.start
    mujoco.mj_forward(model, data)
    for number, body in enumerate(robot.feet):
        (shin,) = np.flatnonzero(model.geom_bodyid == body)
        half = data.geom_xmat[shin].reshape(3, 3)[:, 2] * model.geom_size[shin, 1]
        end = min(data.geom_xpos[shin] + half, data.geom_xpos[shin] - half, key=lambda at: at[2])
        sole = data.site(f"foot_{number}").xpos
        np.testing.assert_allclose(sole[:2], end[:2], atol=1e-3)
        assert abs(sole[2]) < 1e-3


OURS = ["simple_humanoid", "simple_quadruped"]


@pytest.mark.parametrize("name", [*OURS, *INSTALLED])
def test_all_parts_lie_on_the_floor_and_none_on_another(name: str) -> None:
    robot = load(name, [], Legs(contacts="floor", timestep=0.01, ball=True))
    model, data = robot.physics, mujoco.MjData(robot.physics)
    data.qpos[:] = robot.start
    data.qpos[robot.place + 3 : robot.place + 7] = [np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0]  # on its face
    data.qpos[robot.ball[0]] += 10.0 * robot.height
    robot.put_down(data.qpos)
    data.ctrl[:] = robot.rest
    for _ in range(200):
        mujoco.mj_step(model, data)
        bodies = model.geom_bodyid[data.contact.geom]
        assert (bodies == 0).any(axis=1).all()  # one of each pair is the floor
    assert data.qpos[robot.place + 2] > 0.02 and data.ncon > 2
    assert data.qpos[robot.ball[0] + 2] == pytest.approx(robot.start[robot.ball[0] + 2], rel=0.1)  # it lies there
    assert model.nmesh == 0 and model.ntexdata < 1000  # copies are made for every episode


@pytest.mark.skipif("op3" not in INSTALLED, reason="its package is not installed")
def test_boxes_are_where_meshes_are() -> None:
    robot = load("op3", [], Legs(contacts="floor"))
    model, whole = robot.physics, robot.model
    data, other = mujoco.MjData(model), mujoco.MjData(whole)
    for m, d in ((model, data), (whole, other)):
        d.qpos[:] = robot.start
        mujoco.mj_kinematics(m, d)
    for body in range(1, model.nbody):
        boxes = np.flatnonzero((model.geom_bodyid == body) & (model.geom_conaffinity > 0))
        meshes = np.flatnonzero(whole.geom_bodyid == body)
        assert len(boxes)
        for box in boxes:
            assert np.linalg.norm(other.geom_xpos[meshes] - data.geom_xpos[box], axis=1).min() < 1e-3


def test_the_ball_is_as_large_to_the_robot_as_a_football() -> None:
    robot = load("simple_humanoid", [], Legs(ball=True))
    model, ball = robot.model, robot.model.body("ball").id
    assert model.body_mass[ball] == pytest.approx(0.0136 * model.body_subtreemass[robot.base], rel=1e-6)
    assert robot.start[robot.ball[0] + 2] == pytest.approx(0.165 * robot.height)  # it lies on the floor
    assert robot.model.nq == robot.physics.nq == load("simple_humanoid", [], Legs()).model.nq + 7
    assert len(robot.joints) == 18 and robot.mirror is not None and robot.legless.sum() == 6


def test_tendons_are_refused(tmp_path: Path) -> None:
    start, end = WALKER.index("<actuator>"), WALKER.index("</actuator>")
    tendon = '<tendon><fixed name="t"><joint joint="front_left_hip" coef="1"/></fixed></tendon>'
    pulled = f'{WALKER[:start]}{tendon}<actuator><motor name="pull" tendon="t" ctrlrange="-1 1"/>{WALKER[end:]}'
    with pytest.raises(ValueError, match="'pull' moves no joint of its own"):
        load(written(tmp_path, pulled), [], Legs())


@pytest.mark.parametrize("name", INSTALLED)
def test_packages_are_not_imported(name: str) -> None:
    with names_from("a file"):  # which may name it: it is of our table
        path = place(name)
    assert path.is_file() and PACKAGED[name].module not in sys.modules


def test_what_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in PACKAGED:
        with pytest.raises(ValueError, match=rf"robot {name}: .*sim2metal\[legs\]"):
            place(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTALLED)
def test_models_of_packages_are_legged_and_symmetric(name: str) -> None:
    robot = load(name, [], Legs(timestep=0.01))
    assert len(robot.feet) == (4 if name == "go1" else 2)
    assert robot.mirror is not None and robot.physics.nmesh == 0
    np.testing.assert_allclose(robot.physics.body_mass, robot.model.body_mass)

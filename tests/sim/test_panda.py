"""The arm's data: kinematics as in the published table, and the same body in MuJoCo and in PyBullet."""

from __future__ import annotations

import mujoco
import numpy as np
import pybullet
import pytest

from sim.robots.panda import DOWN, PANDA
from sim.scenes.tabletop import scene_xml
from tests.sim.arm_urdf import arm_urdf

POSES = np.random.default_rng(3).uniform(PANDA.low, PANDA.high, (20, 7))


def denavit_hartenberg(joints):
    """The hand's 4x4 pose by the published formula: per joint Rx(alpha) Tx(a) Rz(theta) Tz(d), then flange and hand."""
    pi = np.pi
    table = [  # a, d, alpha
        (0.0, 0.333, 0.0),
        (0.0, 0.0, -pi / 2),
        (0.0, 0.316, pi / 2),
        (0.0825, 0.0, pi / 2),
        (-0.0825, 0.384, -pi / 2),
        (0.0, 0.0, pi / 2),
        (0.088, 0.0, pi / 2),
        (0.0, 0.107 + 0.1034, 0.0),
    ]
    pose = np.eye(4)
    for (a, d, alpha), theta in zip(table, [*joints, -pi / 4], strict=True):
        ca, sa, ct, st = np.cos(alpha), np.sin(alpha), np.cos(theta), np.sin(theta)
        pose = pose @ [
            [ct, -st, 0.0, a],
            [st * ca, ct * ca, -sa, -d * sa],
            [st * sa, ct * sa, ca, d * ca],
            [0.0, 0.0, 0.0, 1.0],
        ]
    return pose


@pytest.fixture(scope="module")
def world():
    model = mujoco.MjModel.from_xml_string(scene_xml(PANDA, (), 0.0025))
    return model, mujoco.MjData(model)


@pytest.fixture(scope="module")
def bullet(tmp_path_factory):
    path = tmp_path_factory.mktemp("urdf") / "arm.urdf"
    path.write_text(arm_urdf(PANDA))
    client = pybullet.connect(pybullet.DIRECT)
    body = pybullet.loadURDF(
        str(path), useFixedBase=True, flags=pybullet.URDF_USE_INERTIA_FROM_FILE, physicsClientId=client
    )
    pybullet.setGravity(0.0, 0.0, -9.81, physicsClientId=client)
    yield client, body
    pybullet.disconnect(client)


def test_the_hand_is_where_the_published_table_says():
    position, rotation, _ = PANDA.forward(POSES)
    for k, joints in enumerate(POSES):
        pose = denavit_hartenberg(joints)
        np.testing.assert_allclose(position[k], pose[:3, 3], atol=1e-13)
        np.testing.assert_allclose(rotation[k], pose[:3, :3], atol=1e-13)


def test_the_jacobian_is_the_derivative():
    _, rotation, jacobian = PANDA.forward(POSES)
    for k in range(7):
        step = 1e-6 * np.eye(7)[k]
        (ahead, turned, _), (behind, back, _) = PANDA.forward(POSES + step), PANDA.forward(POSES - step)
        np.testing.assert_allclose(jacobian[:, :3, k], (ahead - behind) / 2e-6, atol=1e-8)
        spin = (turned - back) / 2e-6 @ rotation.transpose(0, 2, 1)
        np.testing.assert_allclose(jacobian[:, 3:, k], spin[:, [2, 0, 1], [1, 2, 0]], atol=1e-8)


def test_the_hand_goes_where_it_is_told_and_at_home_it_points_down():
    home = np.array([PANDA.home])
    position, rotation, _ = PANDA.forward(home)
    np.testing.assert_allclose(rotation[0], DOWN, atol=1e-12)
    goals = position + np.random.default_rng(0).uniform(-0.15, 0.15, (50, 3))
    joints = np.repeat(home, 50, axis=0)
    for _ in range(40):
        joints = PANDA.toward(joints, goals, DOWN)
    reached, turned, _ = PANDA.forward(joints)
    np.testing.assert_allclose(reached, goals, atol=1e-4)
    np.testing.assert_allclose(turned, np.broadcast_to(DOWN, turned.shape), atol=1e-3)
    far = PANDA.toward(joints, goals + 10.0, DOWN)  # out of reach: nothing leaves its limits
    assert (far >= PANDA.low).all() and (far <= PANDA.high).all()


def test_kinematics_do_not_depend_on_the_batch():
    whole = PANDA.toward(POSES, np.full((20, 3), 0.4), DOWN)
    alone = [PANDA.toward(POSES[k : k + 1], np.full((1, 3), 0.4), DOWN)[0] for k in range(20)]
    np.testing.assert_array_equal(whole, alone)


def test_mujoco_has_the_same_kinematics_and_limits(world):
    model, data = world
    position, rotation, jacobian = PANDA.forward(POSES)
    for k, joints in enumerate(POSES):
        data.qpos[:7] = joints
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(data.site("hand").xpos, position[k], atol=1e-12)
        np.testing.assert_allclose(data.site("hand").xmat.reshape(3, 3), rotation[k], atol=1e-12)
        linear, angular = np.zeros((2, 3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, model.site("hand").id)
        np.testing.assert_allclose(np.vstack([linear, angular])[:, :7], jacobian[k], atol=1e-12)
    np.testing.assert_array_equal(model.jnt_range[:7], np.stack([PANDA.low, PANDA.high], axis=1))
    np.testing.assert_array_equal(model.jnt_actfrcrange[:7, 1], [87.0] * 4 + [12.0] * 3)


def test_mujoco_and_pybullet_agree(world, bullet):
    model, data = world
    client, body = bullet
    names = [pybullet.getJointInfo(body, k, physicsClientId=client)[12].decode() for k in range(10)]
    moving = [k for k, name in enumerate(names) if name != "hand"]
    rng = np.random.default_rng(1)
    for joints in POSES:
        position = np.append(joints, rng.uniform(0.0, 0.04, 2))
        velocity = np.append(rng.normal(0.0, 1.0, 7), rng.normal(0.0, 0.1, 2))
        data.qpos[:], data.qvel[:] = position, velocity
        mujoco.mj_forward(model, data)
        for k, angle in zip(moving, position, strict=True):
            pybullet.resetJointState(body, k, angle, physicsClientId=client)
        for k, name in enumerate(names):
            state = pybullet.getLinkState(body, k, computeForwardKinematics=True, physicsClientId=client)
            np.testing.assert_allclose(state[4], data.body(name).xpos, atol=1e-6)
            np.testing.assert_allclose(state[0], data.body(name).xipos, atol=1e-6)
        theirs = np.array(pybullet.calculateMassMatrix(body, position.tolist(), physicsClientId=client))
        ours = np.zeros((9, 9))
        for column, unit in enumerate(np.eye(9)):
            mujoco.mj_mulM(model, data, ours[column], unit)
        ours -= np.diag(model.dof_armature)  # the rotors' inertia, which URDF does not know
        np.testing.assert_allclose(theirs, ours, atol=1e-6)
        torque = pybullet.calculateInverseDynamics(
            body, position.tolist(), velocity.tolist(), [0.0] * 9, physicsClientId=client
        )
        np.testing.assert_allclose(torque, data.qfrc_bias, atol=1e-6)  # gravity, Coriolis, centrifugal: N m


@pytest.mark.parametrize("compensated", [True, False])
def test_the_arm_carries_its_own_weight(compensated):
    xml = scene_xml(PANDA, (), 0.0025)
    model = mujoco.MjModel.from_xml_string(xml if compensated else xml.replace('gravcomp="1"', ""))
    data = mujoco.MjData(model)
    model.actuator_gainprm[:7], model.actuator_biasprm[:7] = 0.0, 0.0  # no servo
    data.qpos[:7] = PANDA.home
    mujoco.mj_step(model, data, 200)
    moved = np.abs(data.qpos[:7] - PANDA.home).max()
    assert moved < 1e-6 if compensated else moved > 0.1

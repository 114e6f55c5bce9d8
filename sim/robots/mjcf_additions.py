"""What a robot's file lacks and a simulation needs: light, floor, free base, actuators; and where it stands.

A file without actuators (every URDF) gets a position servo on each joint. On a fixed base it is critically damped, and
its stiffness is inertia times `SERVO`^2, the inertia being the largest that the joint sees in `POSES` random poses, and
at least such that friction holds the joint no further than `STUCK` from where it should be. On a free base it is such
that the joint's effort limit (without one, what lifts the robot by that leg) is reached at an error of `YIELD`. Limits
of effort in the file hold. Pairs of a URDF's links that touch where it begins never collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.robots.legs import HOLD, ROPE

if TYPE_CHECKING:
    from sim.robots.mjcf import Joint, MjcfRobot

Double = NDArray[np.float64]
SERVO = 30.0  # rad/s, natural frequency of servos that are added on a fixed base
STUCK = 0.01  # rad (m)
YIELD = 0.5  # rad (m), the error at which one that is added on a free base reaches its limit
LAG = 0.03  # s, the ratio of damping to stiffness there
POSES = 64
GRAVITY = 9.81  # m/s^2
HELD = 0.5  # of the base's height at the start: how far above its origin a spring pulls that holds it


def complete(spec: Any, free: bool) -> None:
    """A light; for a robot on a floor that, and a free base, where they are missing."""
    planes = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    if free and not any(geom.type in planes for geom in spec.geoms):
        spec.worldbody.add_geom(type=planes[0], size=[0.0, 0.0, 0.1], rgba=[0.9, 0.9, 0.88, 1.0])
    if not list(spec.lights):
        spec.worldbody.add_light(pos=[0.0, 0.0, 4.0], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    bodies = [body for body in spec.worldbody.bodies if body.find_all("joint")]
    if free and bodies and not list(bodies[0].joints):
        bodies[0].add_freejoint()


def exclude(spec: Any, model: Any, begin: Double) -> bool:
    """Have those pairs of bodies never collide that touch where the robot begins; whether there were any."""
    data = mujoco.MjData(model)
    data.qpos[:] = begin
    mujoco.mj_forward(model, data)
    pairs = {tuple(sorted(int(model.geom_bodyid[g]) for g in contact.geom)) for contact in data.contact}
    pairs = {pair for pair in pairs if 0 not in pair}
    for first, second in sorted(pairs):
        spec.add_exclude(bodyname1=model.body(first).name, bodyname2=model.body(second).name)
    return bool(pairs)


def add_servos(spec: Any, model: Any, joints: Sequence[Joint], begin: Double, free: bool) -> None:
    """A position servo on every joint; see the module's docstring."""
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    full, inertia = np.zeros((model.nv, model.nv)), np.zeros(model.nv)
    for number in range(POSES):
        data.qpos[:] = begin
        if number:
            data.qpos[[j.position for j in joints]] = rng.uniform([j.low for j in joints], [j.high for j in joints])
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fullM(model, data, full)
        inertia = np.maximum(inertia, np.diag(full))
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    weight = GRAVITY * float(model.body_mass.sum())
    for joint in joints:
        number = int(model.dof_jntid[joint.velocity])
        effort = float(model.jnt_actfrcrange[number, 1]) if model.jnt_actfrclimited[number] else 0.0
        if free:
            lever = 1.0 if model.jnt_type[number] == mujoco.mjtJoint.mjJNT_SLIDE else _span(model, number)
            stiffness = max(effort or weight * lever, 1e-3) / YIELD
            damping = stiffness * LAG
        else:
            friction = float(model.dof_frictionloss[joint.velocity])
            stiffness = max(float(inertia[joint.velocity]) * SERVO**2, friction / STUCK, 1e-6)
            damping = 2.0 * stiffness / SERVO
        spec.add_actuator(
            name=joint.name,
            target=joint.name,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            gainprm=[stiffness, *[0.0] * 9],
            biastype=mujoco.mjtBias.mjBIAS_AFFINE,
            biasprm=[0.0, -stiffness, -damping, *[0.0] * 7],
            ctrllimited=True,
            ctrlrange=[joint.low, joint.high],
        )


def _span(model: Any, joint: int) -> float:
    """How far, in m, the bodies' origins beyond a joint are from it at most, where every joint is at zero."""
    body = int(model.jnt_bodyid[joint])
    longest, lengths = 0.0, {body: 0.0}
    for number in range(body + 1, model.nbody):
        parent = int(model.body_parentid[number])
        if parent in lengths:
            lengths[number] = lengths[parent] + float(np.linalg.norm(model.body_pos[number]))
            longest = max(longest, lengths[number])
    return max(longest, 0.05)


def stand(robot: MjcfRobot) -> None:
    """Put a free base where the lowest part of the robot touches the floor below it."""
    model, data = robot.model, mujoco.MjData(robot.model)
    address = int(model.jnt_qposadr[model.body_jntadr[robot.base]])
    robot.start[address + 2] += 10.0
    data.qpos[:] = robot.start
    mujoco.mj_kinematics(model, data)
    tree = model.body_treeid[robot.base]
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE]
    parts = [
        g
        for g in range(model.ngeom)
        if model.body_treeid[model.geom_bodyid[g]] == tree and model.geom_contype[g] | model.geom_conaffinity[g]
    ]
    if planes and parts:
        fall = min(mujoco.mj_geomDistance(model, data, g, planes[0], 1e3, None) for g in parts)
        robot.start[address + 2] -= fall


def hang(spec: Any, base: str, at: Double, axes: Double) -> None:
    """A spring from above to the base, a tendon without stiffness yet. The base is `at` (3,) m, its axes (3, 3)."""
    spec.worldbody.add_site(name=f"{HOLD}_above", pos=[*at[:2], ROPE], group=5)
    spec.body(base).add_site(name=HOLD, pos=axes.T @ [0.0, 0.0, HELD * at[2]], group=5)
    rope = spec.add_tendon(name=HOLD, springlength=[0.0, 0.0])
    rope.wrap_site(f"{HOLD}_above")
    rope.wrap_site(HOLD)

"""A MuJoCo model of a legged robot as Isaac Gym takes it: a URDF of what is stepped, and its servos; or a refusal.

The file is written from the compiled model, not handed on: masses, joints and servos are those that MuJoCo steps, with
what a person's file lacked (`sim.robots.mjcf_legged`), and no other reader has to understand MJCF.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.rotations import rotation_matrices

Double = NDArray[np.float64]
INSTEAD = "engine=mujoco can"
LEGS_ONLY = "isaacgym steps one legged robot on a floor"
FREE, BALL = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
SPHERE, CAPSULE, BOX = mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX
CYLINDER, MESH, PLANE = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_PLANE
SHAPES = {int(kind) for kind in (SPHERE, CAPSULE, BOX, CYLINDER, MESH)}
TOUCH, PLACE, MOVES = (
    int(kind)
    for kind in (mujoco.mjtSensor.mjSENS_TOUCH, mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtSensor.mjSENS_FRAMELINVEL)
)
FAR = 1e3  # m, how far a slide without limits goes
UNLIMITED = 1e5  # N m, of a servo whose file names no limit
# What a model may not have, by the count of it.
WITHOUT = {
    "neq": "equality constraints",
    "ntendon": "tendons",
    "na": "actuators with a state",
    "nmocap": "mocap bodies",
    "npair": "pairs of geoms with contacts of their own",
    "nplugin": "plugins",
    "nhfield": "height fields",
}
# Of one world, what may differ from the common model: by ourselves, and what MuJoCo derives from that.
VARIED = {"body_mass", "body_inertia", "body_ipos", "geom_friction", "actuator_gainprm", "actuator_biasprm"} | {
    "dof_damping",
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "dof_M0", "actuator_acc0", "tendon_invweight0"),
    *("body_sameframe", "dof_length"),
}
LOOKS = ("light_", "cam_", "mat_", "tex_", "geom_rgba", "site_rgba")  # what only pictures depend on


class UnsteppableError(ValueError):
    """What Isaac Gym cannot step as MuJoCo does; the message names it."""


@dataclass(frozen=True)
class Description:
    """What is handed on. Joints and bodies are named by their numbers in the model."""

    urdf: str
    meshes: dict[str, str]  # name of a file beside it -> its content (OBJ)
    base: int  # the body that moves freely
    bodies: list[int]
    joints: list[int]
    armature: list[float]  # kg m^2
    effort: list[float]  # N m, of servos at most
    friction: float  # of feet on the floor

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Those of joints and bodies in the URDF."""
        return [f"joint{j}" for j in self.joints], [f"body{b}" for b in self.bodies]


def describe(model: Any) -> Description:
    """Of the model that is stepped. UnsteppableError names what Isaac Gym has not, or does otherwise."""
    for reason in refused(model):
        raise UnsteppableError(f"isaacgym cannot step {reason}; {INSTEAD}")
    joints = [j for j in range(model.njnt) if model.jnt_type[j] != FREE]
    rubbing = [model.joint(j).name for j in joints if model.dof_frictionloss[model.jnt_dofadr[j]] > 0.0]
    if rubbing:
        names = f"{', '.join(rubbing[:3])}{' ...' if len(rubbing) > 3 else ''}"
        warnings.warn(f"isaacgym leaves out the dry friction (frictionloss) of joints: {names}", stacklevel=3)
    robot, meshes = ElementTree.Element("robot", name="robot"), dict[str, str]()
    bodies = list(range(1, model.nbody))
    for body in bodies:
        _link(robot, model, body, meshes)
    efforts = [_effort(model, joint) for joint in joints]
    for body in bodies:
        if body != _base(model):
            _joint(robot, model, body, dict(zip(joints, efforts, strict=True)))
    ElementTree.indent(robot)
    return Description(
        urdf=ElementTree.tostring(robot, "unicode"),
        meshes=meshes,
        base=_base(model),
        bodies=bodies,
        joints=joints,
        armature=[float(model.dof_armature[model.jnt_dofadr[j]]) for j in joints],
        effort=efforts,
        friction=grip(model),
    )


def refused(model: Any) -> Iterator[str]:
    """Of everything that is not supported, what it is."""
    if model.ntree != 1 or not (model.njnt and model.jnt_type[0] == FREE):
        yield f"anything but a single robot whose base is free: {LEGS_ONLY}"
        return
    for count, what in WITHOUT.items():
        if getattr(model, count, 0):
            yield f"{what}"
    if (model.body_gravcomp != 0.0).any():
        yield "bodies with gravity compensation"
    if model.opt.density or model.opt.viscosity or model.opt.wind.any():
        yield "air that moves or resists"
    fixed = int(model.jnt_bodyid[0])
    for body in range(1, model.nbody):
        if body != fixed and model.body_parentid[body] == 0:
            yield f"{named(model, 'body', body)}, which is fixed to the world"
        if model.body_mass[body] <= 0.0:
            yield f"{named(model, 'body', body)}, which has no mass"
        if model.body_jntnum[body] > 1:
            yield f"{named(model, 'body', body)}, which has more than one joint"
    for joint in range(1, model.njnt):
        if model.jnt_type[joint] in (FREE, BALL):
            yield f"{named(model, 'joint', joint)}, which neither turns about an axis nor slides"
        if model.jnt_stiffness[joint]:
            yield f"{named(model, 'joint', joint)}, which has a spring"
        if np.abs(model.jnt_pos[joint]).max() > 1e-9:
            yield f"{named(model, 'joint', joint)}, which is off its body's origin"
        if model.qpos0[model.jnt_qposadr[joint]]:
            yield f"{named(model, 'joint', joint)}, whose reference is not zero (ref)"
    yield from _refused_servos(model)
    yield from _refused_shapes(model)
    for number in range(model.nsensor):
        known = int(model.sensor_type[number]) in (TOUCH, PLACE, MOVES) and model.sensor_refid[number] < 0
        if not known or int(model.sensor_objtype[number]) != mujoco.mjtObj.mjOBJ_SITE:
            yield f"{named(model, 'sensor', number)}: it tells the forces, places and velocities of feet only"


def _refused_servos(model: Any) -> Iterator[str]:
    served = set()
    for number in range(model.nu):
        gain, bias = model.actuator_gainprm[number], model.actuator_biasprm[number]
        plain = model.actuator_trntype[number] == mujoco.mjtTrn.mjTRN_JOINT and np.isclose(bias[1], -gain[0])
        plain &= int(model.actuator_dyntype[number]) == mujoco.mjtDyn.mjDYN_NONE and not bias[0]
        joint = int(model.actuator_trnid[number, 0])
        if not plain or joint in served:
            yield f"{named(model, 'actuator', number)}: it needs at most one position servo per joint"
        served.add(joint)


def _refused_shapes(model: Any) -> Iterator[str]:
    floors = 0
    for geom in range(model.ngeom):
        if not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        body, kind = int(model.geom_bodyid[geom]), int(model.geom_type[geom])
        name = named(model, "geom", geom)
        if body == 0:
            level = np.allclose(model.geom_quat[geom], (1.0, 0.0, 0.0, 0.0)) and model.geom_pos[geom, 2] == 0.0
            if kind != PLANE or not level or floors:
                yield f"{name}: the floor is to be one level plane at height 0"
            floors += 1
        elif kind not in SHAPES:
            yield f"{name}: {mujoco.mjtGeom(kind).name}"
    if not floors:
        yield f"a world without a floor: {LEGS_ONLY}"
    elif not _on_floor(model):
        yield "a robot that no floor holds"
    if _touching(model):
        yield "robots whose parts touch one another: contacts=feet or floor"


def _colliding(model: Any) -> list[int]:
    """The geoms of bodies that collide with something."""
    both = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    return [int(g) for g in np.flatnonzero(both & (model.geom_bodyid > 0))]


def _floor(model: Any) -> int:
    """The floor's geom."""
    return next(int(g) for g in np.flatnonzero(model.geom_bodyid == 0) if model.geom_type[g] == PLANE)


def _on_floor(model: Any) -> list[int]:
    """The geoms of bodies that collide with the floor."""
    floor = _floor(model)
    touch = (model.geom_contype & model.geom_conaffinity[floor]) | (model.geom_contype[floor] & model.geom_conaffinity)
    return [g for g in _colliding(model) if touch[g]]


def _feet(model: Any) -> set[int]:
    """Bodies whose contacts are sensed."""
    sites = [int(model.sensor_objid[s]) for s in range(model.nsensor) if int(model.sensor_type[s]) == TOUCH]
    return {int(model.site_bodyid[site]) for site in sites}


def _touching(model: Any) -> bool:
    """Whether a part that is no foot may touch another part of the robot."""
    feet, geoms = _feet(model), _colliding(model)
    for one in geoms:
        for other in geoms:
            bodies = {int(model.geom_bodyid[one]), int(model.geom_bodyid[other])}
            if len(bodies) == 2 and not bodies <= feet and model.geom_contype[one] & model.geom_conaffinity[other]:
                return True
    return False


def grip(model: Any) -> float:
    """The coefficient of friction between feet and floor: MuJoCo takes the larger one of both, or what has priority."""
    floor, found = _floor(model), []
    for geom in _on_floor(model):
        rank = int(model.geom_priority[geom]) - int(model.geom_priority[floor])
        own, its = float(model.geom_friction[geom, 0]), float(model.geom_friction[floor, 0])
        found.append(max(own, its) if rank == 0 else own if rank > 0 else its)
    return max(found)


def servos(model: Any, joints: list[int]) -> tuple[Double, Double]:
    """Stiffness and damping of each joint (k,), N m/rad and N m s/rad, what brakes the joint itself included."""
    stiffness = np.zeros(len(joints))
    damping = model.dof_damping[model.jnt_dofadr[joints]].copy()
    for number in range(model.nu):
        at, gear = joints.index(int(model.actuator_trnid[number, 0])), float(model.actuator_gear[number, 0])
        stiffness[at] = gear**2 * model.actuator_gainprm[number, 0]
        damping[at] -= gear**2 * model.actuator_biasprm[number, 2]
    return stiffness, damping


def targets(model: Any, joints: list[int], control: Double) -> Double:
    """What the servos of the joints are told (..., k), rad (m), for a control (..., nu)."""
    told = np.zeros((*control.shape[:-1], len(joints)))
    for number in range(model.nu):
        at = joints.index(int(model.actuator_trnid[number, 0]))
        told[..., at] = control[..., number] / float(model.actuator_gear[number, 0])
    return told


def named(model: Any, kind: str, number: int) -> str:
    """An element as its file calls it, or by its number."""
    name = getattr(model, kind)(number).name
    return f"the {kind} {name!r}" if name else f"{kind} {number} (it has no name)"


def _base(model: Any) -> int:
    return int(model.jnt_bodyid[0])


def _effort(model: Any, joint: int) -> float:
    """The largest torque or force of a joint's servo."""
    most = [UNLIMITED]
    if model.jnt_actfrclimited[joint]:
        most.append(float(model.jnt_actfrcrange[joint, 1]))
    own = (model.actuator_trnid[:, 0] == joint) & model.actuator_forcelimited.astype(bool)
    most += (np.abs(model.actuator_gear[own, 0]) * model.actuator_forcerange[own, 1]).tolist()
    return min(most)


def _numbers(values: Any) -> str:
    return " ".join(f"{float(value):.9g}" for value in np.atleast_1d(values))


def _origin(parent: Any, position: Any, quaternion: Any) -> None:
    """Where something is: URDF turns about fixed axes x, then y, then z."""
    r = rotation_matrices(np.asarray(quaternion, np.float64))
    level = np.hypot(r[0, 0], r[1, 0])
    pitch = np.arctan2(-r[2, 0], level)
    if level > 1e-9:
        roll, yaw = np.arctan2(r[2, 1], r[2, 2]), np.arctan2(r[1, 0], r[0, 0])
    else:  # both turn about the same axis
        roll, yaw = 0.0, np.arctan2(-r[0, 1], r[1, 1])
    ElementTree.SubElement(parent, "origin", xyz=_numbers(position), rpy=_numbers([roll, pitch, yaw]))


def _link(robot: Any, model: Any, body: int, meshes: dict[str, str]) -> None:
    link = ElementTree.SubElement(robot, "link", name=f"body{body}")
    inertial = ElementTree.SubElement(link, "inertial")
    _origin(inertial, model.body_ipos[body], model.body_iquat[body])
    ElementTree.SubElement(inertial, "mass", value=_numbers(model.body_mass[body]))
    x, y, z = (_numbers(value) for value in model.body_inertia[body])
    ElementTree.SubElement(inertial, "inertia", ixx=x, iyy=y, izz=z, ixy="0", ixz="0", iyz="0")
    for geom in _on_floor(model):
        if model.geom_bodyid[geom] == body:
            _shape(link, model, geom, meshes)


def _shape(link: Any, model: Any, geom: int, meshes: dict[str, str]) -> None:
    """The collision shapes of a geom. A capsule touches a plane with its ends only: these are two spheres."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    position, quaternion = model.geom_pos[geom], model.geom_quat[geom]
    places = [position]
    if kind == CAPSULE:
        along = rotation_matrices(np.asarray(quaternion, np.float64))[:, 2] * size[1]
        places = [position + along, position - along]
    for place in places:
        collision = ElementTree.SubElement(link, "collision")
        _origin(collision, place, quaternion)
        shape = ElementTree.SubElement(collision, "geometry")
        if kind in (SPHERE, CAPSULE):
            ElementTree.SubElement(shape, "sphere", radius=_numbers(size[0]))
        elif kind == BOX:
            ElementTree.SubElement(shape, "box", size=_numbers(2.0 * size))
        elif kind == CYLINDER:
            ElementTree.SubElement(shape, "cylinder", radius=_numbers(size[0]), length=_numbers(2.0 * size[1]))
        else:
            name = f"mesh{int(model.geom_dataid[geom])}.obj"
            meshes[name] = _obj(model, int(model.geom_dataid[geom]))
            ElementTree.SubElement(shape, "mesh", filename=name)


def _obj(model: Any, mesh: int) -> str:
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    face, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    lines = [f"v {_numbers(vertex)}" for vertex in model.mesh_vert[first : first + count]]
    lines += [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in model.mesh_face[face : face + faces]]
    return "\n".join(lines) + "\n"


def _joint(robot: Any, model: Any, body: int, efforts: dict[int, float]) -> None:
    number = int(model.body_jntadr[body]) if model.body_jntnum[body] else -1
    if number < 0:
        kind, name = "fixed", f"fixed{body}"
    else:
        turns = "revolute" if model.jnt_limited[number] else "continuous"
        kind, name = "prismatic" if model.jnt_type[number] == SLIDE else turns, f"joint{number}"
    joint = ElementTree.SubElement(robot, "joint", name=name, type=kind)
    ElementTree.SubElement(joint, "parent", link=f"body{int(model.body_parentid[body])}")
    ElementTree.SubElement(joint, "child", link=f"body{body}")
    _origin(joint, model.body_pos[body], model.body_quat[body])
    if number < 0:
        return
    ElementTree.SubElement(joint, "axis", xyz=_numbers(model.jnt_axis[number]))
    limit = {"effort": _numbers(efforts[number]), "velocity": "1000"}
    if kind != "continuous":
        low, high = model.jnt_range[number] if model.jnt_limited[number] else (-FAR, FAR)
        limit |= {"lower": _numbers(low), "upper": _numbers(high)}
    ElementTree.SubElement(joint, "limit", limit)

"""A legged robot from a file: servos on its joints, its feet, its mirror image, and a quick model to learn with.

Motors that are told torques or speeds give way to position servos, of the same largest torque. The feet are those
bodies that touch the floor where the robot begins to stand.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.robots.legs import LAG, Legs
from sim.robots.mjcf import HINGE, Double, MjcfRobot, actuator_kinds, build
from sim.robots.mjcf_additions import GRAVITY, hang
from sim.robots.mjcf_file import attempt

PRESSED = 1e-3  # m: how far a foot is pressed into the floor to see where it touches
TOUCHES = 0.02  # m: what is so near to the floor at the start is a foot
ALIKE, ALIKE_MASS = 0.02, 0.05  # m or rad, and share of a mass: how far a robot's halves may differ
FOOT = "foot_{}"  # names of sites that are added
FLOOR = 1 << 10  # the bit by which parts that are no feet touch the floor
SHAPES = 3  # the group that shapes which collide have by convention
ANYTHING = 0x7FFFFFFF
BALL = "ball"
# Radius by the height of the robot's base, mass by the robot's: FIFA's size 5 (11 cm, 430 g) beside a Booster T1.
BALL_RADIUS, BALL_MASS = 0.165, 0.0136
BOUNCE = (0.04, 0.5)  # MuJoCo's solref: a bounce that steps of 10 ms carry out
ROLLING = 0.05  # of its radius, the coefficient of rolling friction: it slows down by 0.35 m/s^2, as on short grass
# MuJoCo's default solimp. A Go1's feet in its file sink in by 2 cm where it stands, and it bounces on them.
HARD = (0.9, 0.95, 0.001, 0.5, 2.0)
SIZES = {"touch": 1, "position": 3, "velocity": 3}  # of what is sensed of each foot, in this order


@dataclass(frozen=True, eq=False)
class LeggedRobot(MjcfRobot):
    """Commands move its actuators, position servos all of them, around where they begin."""

    physics: Any  # mujoco.MjModel that is stepped: as `model`, which is for pictures, but for `Legs`
    feet: tuple[int, ...]  # bodies, the leftmost of the foremost first
    mirror: tuple[NDArray[np.int64], Double, NDArray[np.int64]] | None  # partner and sign of joints; partner of feet

    @functools.cached_property
    def place(self) -> int:
        """Where the base's position and quaternion begin in qpos."""
        return int(self.model.jnt_qposadr[self.model.body_jntadr[self.base]])

    @functools.cached_property
    def height(self) -> float:
        """m, of its base where it begins."""
        return float(self.start[self.place + 2])

    @functools.cached_property
    def ball(self) -> tuple[int, int]:
        """Where the ball's position begins in qpos, and its velocity in qvel."""
        joint = self.model.joint(BALL)
        return int(joint.qposadr[0]), int(joint.dofadr[0])

    @functools.cached_property
    def served(self) -> list[int]:
        """The joint (number) of each actuator."""
        return [actuator.joint for actuator in self.actuators]

    @functools.cached_property
    def servos(self) -> list[str]:
        """The joint of each actuator, by name."""
        return [self.joints[joint].name for joint in self.served]

    @functools.cached_property
    def rest(self) -> Double:
        """What the actuators are told (nu,) where it begins."""
        return self.home[self.served]

    @functools.cached_property
    def _touching(self) -> tuple[Any, list[tuple[int, int]]]:
        """Data of the physics, and pairs of a part that touches the floor and the floor."""
        model = self.physics
        tree = model.body_treeid[model.geom_bodyid] == model.body_treeid[self.base]
        parts = np.flatnonzero(tree & ((model.geom_contype | model.geom_conaffinity) != 0))
        planes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
        return mujoco.MjData(model), [(int(part), int(plane)) for part in parts for plane in planes]

    def put_down(self, qpos: Double) -> None:
        """Lower or lift the base in joint positions (nq,) so that the lowest part just touches the floor."""
        data, pairs = self._touching
        data.qpos[:] = qpos
        data.qpos[self.place + 2] += 10.0
        mujoco.mj_kinematics(self.physics, data)
        gap = min((mujoco.mj_geomDistance(self.physics, data, *pair, 1e3, None) for pair in pairs), default=10.0)
        qpos[self.place + 2] += 10.0 - gap

    @functools.cached_property
    def legless(self) -> NDArray[np.bool_]:
        """Which joints (k,) no foot hangs on: those of arms, of a head."""
        parent, legs = self.model.body_parentid, set()
        for foot in self.feet:
            body = foot
            while body != self.base:
                legs.add(body)
                body = int(parent[body])
        bodies = self.model.dof_bodyid[self.velocities]
        return np.array([int(body) not in legs for body in bodies])

    def felt(self, sensed: Double) -> dict[str, Double]:
        """Of what the physics' sensors say (n, k): of each foot its contact force, position and velocity."""
        parts = sensed.reshape(len(sensed), len(self.feet), sum(SIZES.values()))
        bounds = np.cumsum([*SIZES.values()])[:-1]
        return dict(zip(SIZES, np.split(parts, bounds, axis=2), strict=True))

    def reflected(self, actuators: bool) -> tuple[list[int], list[float]]:
        """Places and signs of the mirror image of a vector of joints, or actuators."""
        if self.mirror is None:
            raise ValueError(f"robot {self.name} is not its own mirror image")
        partner, sign, _ = self.mirror
        of = self.served if actuators else list(range(len(self.joints)))
        return [of.index(int(partner[joint])) for joint in of], [float(sign[joint]) for joint in of]


def load(path: str, start: Sequence[float], legs: Legs) -> LeggedRobot:
    """The robot in a file, or one by name: see `sim.robots.mjcf.load`."""
    robot = _load(path, start, legs)
    if not legs.ball:
        return robot
    size = BALL_RADIUS * robot.height, BALL_MASS * float(robot.model.body_subtreemass[robot.base])
    robot = _load(path, start, legs, size)
    address = robot.ball[0]
    robot.start[address : address + 7] = [*robot.start[robot.place : robot.place + 2], size[0], 1.0, 0.0, 0.0, 0.0]
    robot.start[address] += robot.height
    return robot


def _load(path: str, start: Sequence[float], legs: Legs, ball: tuple[float, float] = (0.0, 0.0)) -> LeggedRobot:
    """`ball`: its radius (m) and mass (kg); 0: there is none."""
    efforts: dict[str, float] = {}
    added = False

    def adapt(spec: Any) -> None:
        nonlocal added
        _unmotored(spec, path, efforts)
        added = not list(spec.actuators)
        if ball[0]:
            _add_ball(spec, *ball)

    spec, found = build(path, "", start, free=True, adapt=adapt)
    for actuator in found.actuators:
        if actuator.kind != "position":
            raise ValueError(f"robot {path}: {actuator.name!r} moves no joint of its own; legs need servos or motors")
    if added:
        _soften(spec, found, legs, efforts)
        found = dataclasses.replace(found, model=attempt(Path(path), spec.compile))
    feet = _feet(found, path)
    values = {f.name: getattr(found, f.name) for f in dataclasses.fields(MjcfRobot)}
    return LeggedRobot(**values, physics=_physics(spec, found, feet, legs), feet=feet, mirror=_mirror(found, feet))


def _add_ball(spec: Any, radius: float, mass: float) -> None:
    body = spec.worldbody.add_body(name=BALL)
    body.add_freejoint(name=BALL)
    body.add_geom(
        name=BALL,
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=[radius, 0.0, 0.0],
        mass=mass,
        condim=6,
        priority=1,
        friction=[0.7, 0.01 * radius, ROLLING * radius],
        solref=list(BOUNCE),
        contype=ANYTHING,
        conaffinity=ANYTHING,
        rgba=[0.9, 0.45, 0.1, 1.0],
    )


def _unmotored(spec: Any, path: str, efforts: dict[str, float]) -> None:
    """Take away actuators that are no position servos; `efforts` learns the largest torque of each."""
    if not list(spec.actuators):
        return
    model = spec.compile()
    kinds = actuator_kinds(model)
    if all(kind == "position" for kind, _ in kinds):
        return
    for (kind, joint), actuator in zip(kinds, list(spec.actuators), strict=True):
        if joint < 0 or kind == "other":
            raise ValueError(f"robot {path}: {actuator.name!r} moves no joint of its own; legs need servos or motors")
        number = model.actuator(actuator.name).id
        most = []
        if kind == "motor" and model.actuator_ctrllimited[number]:
            most.append(np.abs(model.actuator_ctrlrange[number] * model.actuator_gainprm[number, 0]).max())
        if model.actuator_forcelimited[number]:
            most.append(np.abs(model.actuator_forcerange[number]).max())
        effort = min(most, default=0.0) * abs(float(model.actuator_gear[number, 0]))
        if model.jnt_actfrclimited[joint]:
            limit = float(model.jnt_actfrcrange[joint, 1])
            effort = min(effort, limit) if effort else limit
        efforts[model.joint(joint).name] = effort
    for actuator in list(spec.actuators):
        spec.delete(actuator)


def _soften(spec: Any, robot: MjcfRobot, legs: Legs, efforts: dict[str, float]) -> None:
    """Servos that were added: as `legs` has it, and no stronger than the motors that were there."""
    model = robot.model
    weight = GRAVITY * float(model.body_subtreemass[robot.base])
    height = float(robot.start[int(model.jnt_qposadr[model.body_jntadr[robot.base]]) + 2])
    stiffness = legs.stiffness or weight * height
    damping = legs.damping or LAG * stiffness
    for actuator in spec.actuators:
        actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2] = stiffness, -stiffness, -damping
        if effort := efforts.get(actuator.target, 0.0):
            actuator.forcerange, actuator.forcelimited = [-effort, effort], True


def _standing(robot: MjcfRobot) -> Any:
    """MuJoCo's data of the robot where it begins."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.start
    mujoco.mj_kinematics(robot.model, data)
    mujoco.mj_comPos(robot.model, data)
    return data


def _feet(robot: MjcfRobot, path: str) -> tuple[int, ...]:
    model, data = robot.model, _standing(robot)
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE]
    tree = model.body_treeid[robot.base]
    parts = [
        g
        for g in range(model.ngeom)
        if model.body_treeid[model.geom_bodyid[g]] == tree and model.geom_contype[g] | model.geom_conaffinity[g]
    ]
    near = {
        int(model.geom_bodyid[g])
        for g in parts
        if min((mujoco.mj_geomDistance(model, data, g, p, 1.0, None) for p in planes), default=1.0) < TOUCHES
    }
    if not near or robot.base in near:
        raise ValueError(
            f"robot {path}: it does not begin on feet: start={[0.0] * len(robot.joints)} is where to bend it"
        )
    return tuple(sorted(near, key=lambda body: (-round(data.xpos[body][0], 1), -data.xpos[body][1])))


def _physics(spec: Any, robot: MjcfRobot, feet: Sequence[int], legs: Legs) -> Any:
    """The model that is stepped: without what is only seen, with sensors at the feet, quick if nothing else touches."""
    model, data = robot.model, _standing(robot)
    quick = legs.contacts != "all"
    names = {model.body(body).name for body in feet}
    for sensor in list(spec.sensors):
        spec.delete(sensor)
    fitted = []
    for geom, shape in zip(list(spec.geoms), _shapes(spec), strict=True):
        plane, foot = geom.type == mujoco.mjtGeom.mjGEOM_PLANE, geom.parent.name in names
        if legs.ball and geom.name == BALL:
            continue
        if plane and legs.contacts == "floor":
            geom.contype |= FLOOR
        if quick and not plane and not foot:
            shape &= legs.contacts == "floor"
            geom.contype, geom.conaffinity = 0, FLOOR if shape else 0
            if shape and geom.type == mujoco.mjtGeom.mjGEOM_MESH and geom.parent.explicitinertial:
                geom.type = mujoco.mjtGeom.mjGEOM_BOX  # which MuJoCo fits to the mesh
                fitted.append(geom)
        if quick and foot:
            geom.condim = min(geom.condim, 3)
            geom.solimp = HARD
        if not (geom.contype or geom.conaffinity) and geom.parent.explicitinertial and not geom.name:
            spec.delete(geom)
    if fitted:
        compiled = attempt(Path(robot.name), spec.compile)
        boxes = [compiled.geom(geom.id) for geom in fitted]
        for geom, box in zip(fitted, boxes, strict=True):
            geom.parent.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                contype=0,
                conaffinity=FLOOR,
                size=box.size,
                pos=box.pos,
                quat=box.quat,
                friction=geom.friction,
                condim=geom.condim,
            )
            spec.delete(geom)
    _strip(spec)
    for number, body in enumerate(feet):
        below = data.xmat[body].reshape(3, 3).T @ (_sole(model, data, body) - data.xpos[body])
        site = FOOT.format(number)
        spec.body(model.body(body).name).add_site(name=site, pos=below, size=[0.3] * 3, group=5)
        for kind in (
            mujoco.mjtSensor.mjSENS_TOUCH,
            mujoco.mjtSensor.mjSENS_FRAMEPOS,
            mujoco.mjtSensor.mjSENS_FRAMELINVEL,
        ):
            spec.add_sensor(type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)
    if legs.held:
        hang(spec, robot.model.body(robot.base).name, data.xpos[robot.base], data.xmat[robot.base].reshape(3, 3))
    if legs.timestep:
        spec.option.timestep = legs.timestep
    made = attempt(Path(robot.name), spec.compile)
    if quick:
        _quicken(made)
    made.body_sameframe[robot.base] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE  # or its centre of mass would not move
    if made.nq != model.nq or not np.allclose(made.body_mass, model.body_mass):
        raise ValueError(f"robot {robot.name}: its inertia depends on what is only seen; write <inertial> elements")
    return made


def _shapes(spec: Any) -> list[bool]:
    """Which geoms are the shape of their body: those that collide; where none does, those in the group for it, or all.

    A model to walk with may have colliding feet only.
    """
    geoms = list(spec.geoms)
    bodies: dict[int, list[int]] = {}
    for number, geom in enumerate(geoms):
        bodies.setdefault(geom.parent.id, []).append(number)
    found = [False] * len(geoms)
    for numbers in bodies.values():
        collide = [n for n in numbers if geoms[n].contype or geoms[n].conaffinity]
        for number in collide or [n for n in numbers if geoms[n].group == SHAPES] or numbers:
            found[number] = True
    return found


def _strip(spec: Any) -> None:
    """Take away what only pictures need: megabytes, which every copy of the model would have."""
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
    for texture in spec.textures:  # which materials name, so that they stay, with a single pixel
        texture.file, texture.cubefiles = "", [""] * len(texture.cubefiles)
        texture.builtin, texture.width, texture.height = mujoco.mjtBuiltin.mjBUILTIN_FLAT, 1, 1


def _sole(model: Any, data: Any, body: int) -> Double:
    """The middle of where a foot touches the floor, (3,) m: of all its corners, or below its one sphere."""
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE]
    parts = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
    shapes = [g for g in parts if model.geom_contype[g] | model.geom_conaffinity[g]]
    low = min(mujoco.mj_geomDistance(model, data, g, planes[0], 10.0, None) for g in shapes)
    pressed = mujoco.MjData(model)
    pressed.qpos[:] = data.qpos
    pressed.qpos[2] -= low + PRESSED
    mujoco.mj_kinematics(model, pressed)
    mujoco.mj_comPos(model, pressed)
    mujoco.mj_collision(model, pressed)
    pairs = zip(pressed.contact.pos, pressed.contact.geom, strict=True)
    points = [at for at, pair in pairs if set(pair) & set(shapes) and set(pair) & set(planes)]
    middle = np.mean(points, axis=0) if points else data.xipos[body]
    return np.array([*middle[:2], low])


def _quicken(model: Any) -> None:
    """Explicit steps with implicit damping, which servos get as the joints have it; pyramidal cones."""
    model.opt.cone, model.opt.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    model.opt.iterations, model.opt.ls_iterations = 20, 20
    for i in range(model.nu):
        gear = float(model.actuator_gear[i, 0])
        model.dof_damping[model.jnt_dofadr[model.actuator_trnid[i, 0]]] -= gear**2 * model.actuator_biasprm[i, 2]
        model.actuator_biasprm[i, 2] = 0.0


def _mirror(robot: MjcfRobot, feet: Sequence[int]) -> tuple[NDArray[np.int64], Double, NDArray[np.int64]] | None:
    """The partner and the sign of each joint in the plane between left and right, and the partner of each foot."""
    model, data = robot.model, _standing(robot)
    numbers = [int(model.dof_jntid[joint.velocity]) for joint in robot.joints]
    flip = np.array([1.0, -1.0, 1.0])
    at, axes = data.xanchor[numbers] - data.xpos[robot.base], data.xaxis[numbers]
    mass = model.body_subtreemass[model.jnt_bodyid[numbers]]
    between = at[:, None] * flip - at[None]
    apart = np.linalg.norm(between, axis=2)
    between -= (between * axes).sum(axis=2, keepdims=True) * axes  # where on its axis a joint stands is the same
    beside = np.linalg.norm(between, axis=2)
    turned = -(axes * flip) @ axes.T  # a mirror turns rotations the other way round
    unlike = np.abs(mass[:, None] / mass - 1.0)
    fits = (beside < ALIKE) & (np.abs(turned) > 0.99) & (unlike < ALIKE_MASS)
    partner = np.where(fits, apart, np.inf).argmin(axis=1)
    sign = np.sign(turned[np.arange(len(partner)), partner])
    places = data.xpos[list(feet)] - data.xpos[robot.base]
    gaps = np.linalg.norm(places[:, None] * flip - places[None], axis=2)
    alike = (
        fits.any(axis=1).all()
        and all(joint.kind == HINGE for joint in robot.joints)
        and (partner[partner] == np.arange(len(partner))).all()
        and np.abs(robot.home[partner] * sign - robot.home).max() < ALIKE
        and gaps.min(axis=1).max() < ALIKE
        and {a.joint for a in robot.actuators} == {int(partner[a.joint]) for a in robot.actuators}
    )
    return (partner, sign, gaps.argmin(axis=1)) if alike else None

"""A robot of one's own, from its MJCF or URDF file: joints, actuators, end effector, base; what a file lacks is added.

See `sim.robots.mjcf_additions` for what is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.robots import Robot
from sim.robots.mjcf_additions import add_servos, complete, exclude, stand
from sim.robots.mjcf_file import attempt, place, read
from sim.spec import Group, Signal

Double = NDArray[np.float64]
HINGE, SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
WIDEST = {HINGE: np.pi, SLIDE: 1.0}  # rad, m: of joints without limits
LARGEST = 1000  # joints or actuators of a robot
# (kind of actuator, kind of joint) -> command and unit; a motor's unit is 1 where a gear or gain scales it.
COMMANDS = {
    ("position", HINGE): ("position_target", "rad"),
    ("position", SLIDE): ("slide_target", "m"),
    ("velocity", HINGE): ("velocity_target", "rad/s"),
    ("velocity", SLIDE): ("slide_velocity_target", "m/s"),
    ("motor", HINGE): ("motor", "N m"),
    ("motor", SLIDE): ("slide_motor", "N"),
    ("other", HINGE): ("control", "1"),
}


@dataclass(frozen=True)
class Joint:
    """A joint of one degree of freedom; `position` and `velocity` are where it stands in MuJoCo's qpos and qvel."""

    name: str
    kind: int  # HINGE or SLIDE
    low: float  # rad or m
    high: float
    position: int
    velocity: int


@dataclass(frozen=True)
class Actuator:
    """An actuator. `joint` is the index of the joint that it moves in the robot's list, -1: something else."""

    name: str
    kind: str  # position, velocity, motor; other: a muscle, a tendon, a controller with a state
    joint: int
    low: float  # of what it is told
    high: float
    plain: bool  # whether what it is told is its torque or force

    def command(self, joints: Sequence[Joint]) -> tuple[str, str]:
        """The name and unit of the command that it belongs to."""
        kind = joints[self.joint].kind if self.joint >= 0 else HINGE
        name, unit = COMMANDS[self.kind, kind]
        return name, unit if self.kind != "motor" or self.plain else "1"


@dataclass(frozen=True, eq=False)
class MjcfRobot(Robot):
    """A robot from a file, compiled. Arrays by joint or actuator are in the order of `joints` and `actuators`."""

    sha256: str  # of the file and everything that it refers to
    model: Any  # mujoco.MjModel
    joints: tuple[Joint, ...]
    actuators: tuple[Actuator, ...]
    base: int  # the body that moves freely; 0: it is bolted to the world
    tip: tuple[str, int]  # the end effector: "body" or "site", and its number
    start: Double  # (nq,) where it begins, m and rad; quaternions w x y z

    @cached_property
    def low(self) -> Double:
        """Lower joint limits (k,), rad (m)."""
        return np.array([joint.low for joint in self.joints])

    @cached_property
    def high(self) -> Double:
        """Upper joint limits (k,), rad (m)."""
        return np.array([joint.high for joint in self.joints])

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where the joints stand in qpos (k,)."""
        return np.array([joint.position for joint in self.joints])

    @cached_property
    def velocities(self) -> NDArray[np.int64]:
        """Where the joints stand in qvel (k,)."""
        return np.array([joint.velocity for joint in self.joints])

    @cached_property
    def home(self) -> Double:
        """Joint positions where it begins (k,), rad (m)."""
        return self.start[self.positions]

    @cached_property
    def _kinds(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        slides = np.array([joint.kind == SLIDE for joint in self.joints])
        return ~slides, slides

    def sensed(self) -> Group:
        """The signals of its joints: positions and velocities, of those that turn and of those that slide."""
        turns, slides = (int(kind.sum()) for kind in self._kinds)
        units = (("joint", "rad", turns), ("slide", "m", slides))
        return tuple(
            signal
            for name, unit, count in units
            if count
            for signal in (
                Signal(f"{name}_position", (count,), unit),
                Signal(f"{name}_velocity", (count,), f"{unit}/s"),
            )
        )

    def elements(self) -> dict[str, tuple[str, ...]]:
        """The joint of each number of those signals, by name."""
        names = np.array([joint.name for joint in self.joints])
        found: dict[str, tuple[str, ...]] = {}
        for kind, name in zip(self._kinds, ("joint", "slide"), strict=True):
            found |= dict.fromkeys((f"{name}_position", f"{name}_velocity"), tuple(names[kind].tolist()))
        return {name: joints for name, joints in found.items() if joints}

    def seen(self, position: Double, velocity: Double) -> dict[str, Double]:
        """Those signals for joint positions and velocities (n, k)."""
        turns, slides = self._kinds
        values = {
            "joint_position": position[:, turns],
            "joint_velocity": velocity[:, turns],
            "slide_position": position[:, slides],
            "slide_velocity": velocity[:, slides],
        }
        return {name: value for name, value in values.items() if value.shape[1]}

    def unseen(self, signals: Mapping[str, Any]) -> tuple[Double, Double]:
        """Joint positions and velocities (n, k) that the signals tell: the inverse of `seen`."""
        rows = len(next(iter(signals.values())))
        found = np.zeros((2, rows, len(self.joints)))
        for kind, names in zip(self._kinds, ("joint", "slide"), strict=True):
            if kind.any():
                found[0][:, kind], found[1][:, kind] = signals[f"{names}_position"], signals[f"{names}_velocity"]
        return found[0], found[1]

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Command name -> its actuators."""
        found: dict[str, list[int]] = {}
        for number, actuator in enumerate(self.actuators):
            found.setdefault(actuator.command(self.joints)[0], []).append(number)
        return found

    @cached_property
    def commands(self) -> Group:
        """What it can be told: a signal per kind of actuator, which bounds all of them; each keeps to its own range."""
        made = []
        for name, numbers in self.groups.items():
            group = [self.actuators[i] for i in numbers]
            units = {a.command(self.joints)[1] for a in group}
            low, high = min(a.low for a in group), max(a.high for a in group)
            made.append(Signal(name, (len(group),), units.pop() if len(units) == 1 else "1", "", low, high))
        return tuple(made)

    def forward(self, position: Double, velocity: Double | None = None) -> Iterator[tuple[Any, Double]]:
        """For each row of joint positions and velocities (n, k): MuJoCo's data there, and the tip's place (3,) m.

        The data is one object, which the next row overwrites; velocities and forces are there if velocities are given.
        """
        data, kind = mujoco.MjData(self.model), self.tip[0]
        for row, joints in enumerate(position):
            data.qpos[:], data.qvel[:] = self.start, 0.0
            data.qpos[self.positions] = joints
            if velocity is None:
                mujoco.mj_kinematics(self.model, data)
                mujoco.mj_comPos(self.model, data)
            else:
                data.qvel[self.velocities] = velocity[row]
                mujoco.mj_fwdPosition(self.model, data)
                mujoco.mj_fwdVelocity(self.model, data)
            yield data, (data.site_xpos if kind == "site" else data.xpos)[self.tip[1]].copy()

    def jacobian(self, data: Any) -> Double:
        """What takes joint velocities to the tip's velocity, (3, k), for data of `forward`."""
        jacobian = np.zeros((3, self.model.nv))
        at = mujoco.mj_jacSite if self.tip[0] == "site" else mujoco.mj_jacBody
        at(self.model, data, jacobian, None, self.tip[1])
        found: Double = jacobian[:, self.velocities]
        return found


def load(path: str, tip: str = "", start: Sequence[float] = (), free: bool = False) -> MjcfRobot:
    """The robot in a file (or one of ours by name).

    `tip` names the end effector, a site or body (default: the body farthest down the chain). `start` are the joints'
    first positions, rad (m) (default: the keyframe "home", else the first one, else zero within the limits). `free`: on
    a floor, with a free base; both are added where they are missing.
    """
    return build(path, tip, start, free)[1]


def build(
    path: str,
    tip: str = "",
    start: Sequence[float] = (),
    free: bool = False,
    adapt: Callable[[Any], None] | None = None,
) -> tuple[Any, MjcfRobot]:
    """As `load`, with the `mujoco.MjSpec`, which `adapt` changes first."""
    file = place(path)
    spec, digest = read(file)
    urdf = not spec.compiler.fusestatic and file.suffix.lower() == ".urdf"
    complete(spec, free)
    if adapt is not None:
        adapt(spec)
    added = not list(spec.actuators)
    model = attempt(file, spec.compile)
    joints = _joints(model, path, added)
    _check_base(model, joints, path, free)
    begin = _start(model, joints, path, start, free)
    if urdf and exclude(spec, model, begin):
        model = attempt(file, spec.compile)
    if added:
        add_servos(spec, model, joints, begin, free)
        model = attempt(file, spec.compile)
    actuators = _actuators(model, joints, path)
    name = re.sub(r"[^\w.-]", "_", spec.modelname)[:64]
    name = file.stem if name in ("", "MuJoCo_Model") else name
    base = _base(model, joints)
    made = MjcfRobot(name, digest, model, joints, actuators, base, _tip(model, joints, path, tip), begin)
    if free:
        stand(made)
    return spec, made


def _joints(model: Any, path: str, added: bool) -> tuple[Joint, ...]:
    """Those of the trees that have an actuator (all, where there is none yet): the rest are things, not robots."""
    if model.nv == 0:
        raise ValueError(f"robot {path}: it has no joint that moves")
    trees = set(range(model.ntree))
    moved = _moved(model)
    if not added and -1 not in moved:
        trees = {int(model.dof_treeid[model.jnt_dofadr[joint]]) for joint in moved}
    found = []
    for number in range(model.njnt):
        kind, address = int(model.jnt_type[number]), int(model.jnt_dofadr[number])
        if kind == FREE or int(model.dof_treeid[address]) not in trees:
            continue
        name = model.joint(number).name or f"joint{number}"
        if kind == BALL:
            raise ValueError(f"robot {path}: {name!r} is a ball joint; write it as three hinges")
        limits = model.jnt_range[number] if model.jnt_limited[number] else (-WIDEST[kind], WIDEST[kind])
        low, high = (float(limit) for limit in limits)
        found.append(Joint(name, kind, low, high, int(model.jnt_qposadr[number]), address))
    if not 1 <= len(found) <= LARGEST:
        raise ValueError(f"robot {path}: it has {len(found)} joints that turn or slide, needs 1 to {LARGEST}")
    return tuple(found)


def _moved(model: Any) -> list[int]:
    """The joint that each actuator moves; -1: a tendon, a site, a body."""
    direct = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
    return [int(model.actuator_trnid[i, 0]) if model.actuator_trntype[i] in direct else -1 for i in range(model.nu)]


def _actuators(model: Any, joints: Sequence[Joint], path: str) -> tuple[Actuator, ...]:
    if model.nu > LARGEST:
        raise ValueError(f"robot {path}: it has {model.nu} actuators, at most {LARGEST}")
    numbers = {joint.velocity: k for k, joint in enumerate(joints)}
    found = []
    for i, moved in enumerate(_moved(model)):
        joint = numbers.get(int(model.jnt_dofadr[moved]), -1) if moved >= 0 else -1
        kind = _kind(model, i) if joint >= 0 else "other"
        name = model.actuator(i).name or f"actuator{i}"
        low, high = (float(limit) for limit in model.actuator_ctrlrange[i])
        if not model.actuator_ctrllimited[i]:
            if kind != "position":
                raise ValueError(f"robot {path}: the actuator {name!r} has no ctrlrange; give it one")
            low, high = joints[joint].low, joints[joint].high
        if not low < high:
            raise ValueError(f"robot {path}: the actuator {name!r} has ctrlrange {low:g} {high:g}; give it a wider one")
        plain = bool(model.actuator_gear[i, 0] == 1.0 and model.actuator_gainprm[i, 0] == 1.0)
        found.append(Actuator(name, kind, joint, low, high, plain))
    return tuple(found)


def _kind(model: Any, i: int) -> str:
    """What an actuator on a joint is told, as its gain and bias have it."""
    gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
    stateless = model.actuator_dyntype[i] != mujoco.mjtDyn.mjDYN_INTEGRATOR
    if model.actuator_gaintype[i] != mujoco.mjtGain.mjGAIN_FIXED or gain[0] == 0.0 or not stateless:
        return "other"
    if model.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_NONE:
        return "motor"
    if model.actuator_biastype[i] != mujoco.mjtBias.mjBIAS_AFFINE:
        return "other"
    return "position" if np.isclose(bias[1], -gain[0]) else "velocity" if np.isclose(bias[2], -gain[0]) else "other"


def actuator_kinds(model: Any) -> list[tuple[str, int]]:
    """Of each actuator its kind, and the number of the model's joint that it moves; -1: none of its own."""
    return [(_kind(model, i) if joint >= 0 else "other", joint) for i, joint in enumerate(_moved(model))]


def _base(model: Any, joints: Sequence[Joint]) -> int:
    """The body with the free joint of the robot's first tree; 0: there is none."""
    tree = int(model.dof_treeid[joints[0].velocity])
    for number in range(model.njnt):
        if model.jnt_type[number] == FREE and model.dof_treeid[model.jnt_dofadr[number]] == tree:
            return int(model.jnt_bodyid[number])
    return 0


def _check_base(model: Any, joints: Sequence[Joint], path: str, free: bool) -> None:
    base = _base(model, joints)
    if free and not base:
        raise ValueError(f"robot {path}: its base cannot move freely; give its first body a <freejoint/>")
    if base and not free:
        raise ValueError(f"robot {path}: its base is free; this is for robots that are bolted to the world")


def _start(model: Any, joints: Sequence[Joint], path: str, said: Sequence[float], free: bool) -> Double:
    """Where everything begins (nq,)."""
    places = [joint.position for joint in joints]
    low, high = np.array([j.low for j in joints]), np.array([j.high for j in joints])
    keys = [model.key(i).name for i in range(model.nkey)]
    key = keys.index("home") if "home" in keys else 0
    begin: Double = model.key_qpos[key].copy() if keys else model.qpos0.copy()
    if said:
        names = ", ".join(f"{joint.name} ({joint.low:.4g} to {joint.high:.4g})" for joint in joints)
        if len(said) != len(joints) or not np.isfinite(said).all():
            raise ValueError(f"robot {path}: start takes {len(joints)} numbers, in rad (m), for {names:.2000}")
        if ((np.array(said) < low - 1e-6) | (np.array(said) > high + 1e-6)).any():
            raise ValueError(f"robot {path}: start is beyond the joints' limits: {names:.2000}")
        begin[places] = said
    begin[places] = np.clip(begin[places], low, high)
    return begin


def _tip(model: Any, joints: Sequence[Joint], path: str, name: str) -> tuple[str, int]:
    """The end effector: the site or body of that name, or the body farthest down the chain of joints."""
    kinds: tuple[tuple[str, Any, Callable[[int], Any], int], ...] = (
        ("site", mujoco.mjtObj.mjOBJ_SITE, model.site, model.nsite),
        ("body", mujoco.mjtObj.mjOBJ_BODY, model.body, model.nbody),
    )
    if name:
        for kind, number, _, _ in kinds:
            if (found := mujoco.mj_name2id(model, number, name)) >= 0:
                return kind, found
        names = ", ".join(get(i).name for _, _, get, count in kinds for i in range(count) if get(i).name)
        raise ValueError(f"robot {path}: no site or body {name!r}; there are: {names:.2000}")
    moving = {int(model.jnt_bodyid[model.dof_jntid[joint.velocity]]) for joint in joints}
    depth = np.zeros((model.nbody, 2), int)  # joints, and bodies, between it and the world
    for body in range(1, model.nbody):
        depth[body] = depth[model.body_parentid[body]] + (int(body in moving), 1)
    joints_above = depth[:, 0].max()
    deepest = np.where(depth[:, 0] == joints_above, depth[:, 1], -1)
    return "body", int(deepest.argmax())

"""A legged robot in NVIDIA's Isaac Gym (Preview 4): PhysX steps the worlds, in a process of the Python that has it.

Its binaries exist for Python 3.6 to 3.8 only: so a worker (`sim.engines.isaacgym.worker`) runs under the interpreter
that SIM2METAL_ISAACGYM_PYTHON names, and shares arrays with us. It was written without Isaac Gym at hand: so before its
first step it is compared with MuJoCo, which steps the same worlds in free fall, and refused where they disagree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sim.engines.isaacgym.bridge import Bridge, IsaacGymError, interpreter, on_gpu
from sim.engines.isaacgym.frames import of_point, to_mujoco, to_physx
from sim.engines.isaacgym.model import (
    INSTEAD,
    LOOKS,
    MOVES,
    PLACE,
    TOUCH,
    VARIED,
    Description,
    UnsteppableError,
    describe,
    grip,
    servos,
    targets,
)
from sim.engines.scene import Double, Scene
from sim.rotations import normalised

GRADES = 64  # per unit of friction: PhysX has room for 64 000 materials, and keeps those that were
HIGH = 10.0  # m: from where robots fall that are compared
SPACING = 4.0  # m between the robots of neighbours, which never meet, so that PhysX need not compare them
# How far PhysX may be from MuJoCo after a control step of free fall; and from its own state where it says feet are.
CLOSE = {"positions": 0.03, "velocities": 1.0, "feet": 0.005, "velocities of feet": 0.1}  # m and rad, per second
FEET = {PLACE: "feet", MOVES: "velocities of feet"}


class IsaacScene(Scene):
    """A `Scene` whose worlds are stepped by Isaac Gym: one legged robot on a level floor. `threads` mean nothing to it.

    IsaacGymError says what is missing; UnsteppableError what of the model Isaac Gym does not step as MuJoCo does.
    """

    def __init__(self, model: Any, num: int, dt: float, threads: int | None = None, shown: Any = None) -> None:
        self._description = describe(model)
        super().__init__(model, num, dt, 1, shown)
        self._first = int(self.model.jnt_qposadr[0]), int(self.model.jnt_dofadr[0])  # of the free joint
        self._at = self.model.jnt_qposadr[self._description.joints], self.model.jnt_dofadr[self._description.joints]
        arrays = {name for name in dir(self.model) if isinstance(getattr(self.model, name), np.ndarray)}
        self._plain = {name for name in arrays - VARIED if not name.startswith(LOOKS)}
        self._looked_at: set[int] = set()
        self._sensed = np.zeros((num, self.model.nsensordata))
        self._centre = np.tile(self.model.body_ipos[1:], (num, 1, 1))  # m, of mass, of each body in its axes
        self._origin = np.zeros((num, 3))  # m, of each world in the simulation
        self._origin[:, :2] = SPACING * np.stack(np.divmod(np.arange(num), max(1, int(num**0.5))), axis=1)
        self._after = np.full_like(self._state, np.nan)  # what the last step left: whatever differs was set since
        self._bridge = self.bridge()
        try:
            self.version = self._open()
            for row in range(num):
                self._write(row)
            self._compare()
        except BaseException:
            self.close()
            raise

    def bridge(self) -> Bridge:
        """To a worker that has begun."""
        return Bridge(interpreter())

    def _open(self) -> str:
        told: Description = self._description
        joints, bodies = told.names
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {"robot.urdf": told.urdf, **told.meshes}.items():
                Path(folder, name).write_text(content)
            stiffness, damping = servos(self.model, told.joints)
            plan = {
                "num": self.num,
                "steps": self.substeps,
                "dt": self.dt / self.substeps,
                "gravity": self.model.opt.gravity.tolist(),
                "gpu": on_gpu(),
                "folder": folder,
                "file": "robot.urdf",
                "joints": joints,
                "bodies": bodies,
                "stiffness": stiffness.tolist(),
                "damping": damping.tolist(),
                "effort": told.effort,
                "armature": told.armature,
                "floor": told.friction,
                "height": HIGH,
            }
            return self._bridge.open(plan)

    def vary(self, row: int, change: Callable[[Any], None]) -> None:
        """ValueError names what cannot differ from world to world."""
        super().vary(row, change)
        model = self.models[row]
        if row not in self._looked_at:  # it takes longer than all the rest, and a task changes the same each time
            other = [n for n in self._plain if not np.array_equal(getattr(self.model, n), getattr(model, n))]
            if other:
                raise UnsteppableError(
                    f"isaacgym cannot step worlds that differ in {', '.join(sorted(other))}; {INSTEAD}"
                )
            self._looked_at.add(row)
        factor = model.body_mass[1:] / self.model.body_mass[1:]
        if not np.allclose(model.body_inertia[1:], factor[:, None] * self.model.body_inertia[1:], rtol=1e-6):
            raise UnsteppableError(
                f"isaacgym cannot step worlds whose inertias do not follow from their masses; {INSTEAD}"
            )
        self._write(row)

    def _write(self, row: int) -> None:
        """Tell the worker what that world is like."""
        model, arrays = self.models[row], self._bridge.arrays
        self._centre[row] = model.body_ipos[1:]
        arrays["varied"][row] = 1.0
        arrays["mass"][row] = model.body_mass[1:] / self.model.body_mass[1:]
        arrays["centre"][row] = model.body_ipos[1:] - self.model.body_ipos[1:]
        # PhysX takes the mean of both frictions; the floor's is what it is in the common model.
        both = max(0.0, 2.0 * grip(model) - self._description.friction)
        arrays["friction"][row] = round(both * GRADES) / GRADES
        arrays["stiffness"][row], arrays["damping"][row] = servos(model, self._description.joints)

    @property
    def sensed(self) -> Double:
        """What the feet's sensors say (num, nsensordata), at the end of the last step."""
        return self._sensed

    def _advance(self) -> Double:
        self._bridge.check()
        arrays, (place, speed), joints = self._bridge.arrays, self._first, self._description.joints
        base = self._centre[:, self._description.base - 1]
        qpos, qvel = self.qpos, self.qvel
        arrays["set"][:] = (self._state != self._after).any(axis=1)
        root = to_physx(qpos[:, place : place + 7], qvel[:, speed : speed + 6], base)
        root[:, :3] += self._origin
        arrays["root"][:] = root
        arrays["joint"][:, :, 0], arrays["joint"][:, :, 1] = qpos[:, self._at[0]], qvel[:, self._at[1]]
        arrays["target"][:] = targets(self.model, joints, self._control).transpose(1, 0, 2)
        self._bridge.step()
        arrays["varied"][:] = 0.0
        after = self._state.copy()
        after[:, 0] += self.dt
        positions, velocities = after[:, 1 : 1 + self.model.nq], after[:, 1 + self.model.nq :]
        found = to_mujoco(arrays["root"].astype(np.float64), base)
        found[0][:, :3] -= self._origin
        positions[:, place : place + 7], velocities[:, speed : speed + 6] = found
        positions[:, self._at[0]], velocities[:, self._at[1]] = arrays["joint"][..., 0], arrays["joint"][..., 1]
        self._sense()
        self._after = after.copy()
        return after

    def _sense(self) -> None:
        """The sensors of feet: how hard they press on the floor, where they are, and how they move."""
        model, arrays = self.model, self._bridge.arrays
        for number in range(model.nsensor):
            site, kind = int(model.sensor_objid[number]), int(model.sensor_type[number])
            at, body = int(model.sensor_adr[number]), int(model.site_bodyid[site]) - 1
            if kind == TOUCH:
                self._sensed[:, at] = np.maximum(arrays["contact"][:, body, 2], 0.0)
                continue
            state = arrays["body"][:, body].astype(np.float64)
            where, moves = of_point(state, self._centre[:, body], model.site_pos[site])
            self._sensed[:, at : at + 3] = where - self._origin if kind == PLACE else moves

    def _compare(self) -> None:
        """IsaacGymError where a control step of free fall ends elsewhere than in MuJoCo."""
        rng, model, (place, speed) = np.random.default_rng(0), self.model, self._first
        begin, (low, high) = self._state.copy(), self._limits()
        shape = (self.num, len(self._description.joints))
        qpos, qvel = self.qpos, self.qvel
        qpos[:, place : place + 3] = HIGH
        qpos[:, place + 3 : place + 7] = normalised(rng.standard_normal((self.num, 4)))
        qvel[:, speed : speed + 6] = 2.0 * rng.uniform(-1.0, 1.0, (self.num, 6))
        qpos[:, self._at[0]] = rng.uniform(0.7 * low + 0.3 * high, 0.3 * low + 0.7 * high, shape)
        self._control[:] = 0.0
        for number in range(model.nu):  # servos are told to be where they are
            at = int(model.jnt_qposadr[model.actuator_trnid[number, 0]])
            self._control[:, :, number] = qpos[:, at, None] * model.actuator_gear[number, 0]
        expected, found = Scene._advance(self), self._advance()
        off = disagreement(expected, found, model.nq)
        self._state, self._read = found, {}
        for number in range(model.nsensor):
            site, kind = int(model.sensor_objid[number]), int(model.sensor_type[number])
            if kind in FEET:  # of the state that Isaac Gym says it has
                at, name = int(model.sensor_adr[number]), FEET[kind]
                there = self.pose("site", site)[0] if kind == PLACE else self.velocity("site", site)[0]
                off[name] = max(off.get(name, 0.0), float(np.abs(there - self._sensed[:, at : at + 3]).max()))
        self._state, self._read = begin, {}
        if any(not value < CLOSE[name] for name, value in off.items()):
            said = ", ".join(f"{name} by {value:.3g}" for name, value in off.items())
            raise IsaacGymError(
                f"Isaac Gym {self.version} does not step this robot as MuJoCo does: after {self.dt:g} s of free fall "
                f"they differ in {said} (m, rad, per second); {INSTEAD}"
            )

    def _limits(self) -> tuple[Double, Double]:
        model, joints = self.model, self._description.joints
        limited = model.jnt_limited[joints].astype(bool)
        low, high = model.jnt_range[joints].T
        return np.where(limited, low, -1.0), np.where(limited, high, 1.0)

    def close(self) -> None:
        """End the worker as well."""
        self._bridge.close()
        super().close()


def disagreement(one: Double, other: Double, positions: int) -> dict[str, float]:
    """By how much two batches of states (n, size) differ at most, by part; a quaternion and its negative are one.

    The free joint stands first among the `positions`.
    """
    places = [state[:, 1 : 1 + positions].copy() for state in (one, other)]
    opposite = (places[0][:, 3:7] * places[1][:, 3:7]).sum(axis=1) < 0.0
    places[1][opposite, 3:7] *= -1.0
    speeds = [state[:, 1 + positions :] for state in (one, other)]
    found = {"positions": places, "velocities": speeds}
    return {name: float(np.nan_to_num(np.abs(a - b), nan=np.inf).max()) for name, (a, b) in found.items()}

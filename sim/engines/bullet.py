"""Quadrotors in PyBullet: one client, one body per vehicle on a wide grid, collisions and damping off.

Bullet advances a body by semi-implicit Euler: it kicks the velocity, then drifts with it. Left alone that is of first
order (1 cm after 2 s of free fall at 1 ms), so the kicks here are centred on the drifts: half a kick before the first,
half a kick after the last, the latter as a force over a vanishing time step. That is the leapfrog, of second order.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.rotors import REST, Double, Fleet, rotations
from sim.robots.quadrotors import GRAVITY, Quadrotor

try:
    import pybullet
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("pybullet is not installed: pip install 'sim2metal[bullet]'", name="pybullet") from error

STEP = 0.0025  # s, the longest internal step
INSTANT = 1e-10  # s, the step that only kicks
SPACING = 256.0  # m, between the bodies' origins: keeps Bullet's broad phase idle
IN_BODY = ("mass", "inertia")
XYZW_OF_WXYZ, WXYZ_OF_XYZW = [1, 2, 3, 0], [3, 0, 1, 2]


def body_urdf(robot: Quadrotor) -> str:
    """The airframe as URDF: one link with its mass and inertia."""
    x, y, z = robot.inertia
    return f"""<robot name="{robot.name}"><link name="{robot.name}"><inertial>
  <mass value="{robot.mass:.9g}"/>
  <inertia ixx="{x:.9g}" iyy="{y:.9g}" izz="{z:.9g}" ixy="0" ixz="0" iyz="0"/>
</inertial></link></robot>"""


def _gyroscopic(rate: Double, inertia: Double) -> Double:
    """The torque -w x Jw (n, 3) on a body that turns at `rate`, in body axes."""
    torque: Double = (inertia[:, [1, 2, 0]] - inertia[:, [2, 0, 1]]) * rate[:, [1, 2, 0]] * rate[:, [2, 0, 1]]
    return torque


class Bullet:
    """`num` copies of a quadrotor in one Bullet world without contacts; see `sim.engines.Engine`.

    A vehicle whose state or command is NaN, or larger than 1e6, reads NaN until it is reset; the others fly on.
    """

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cpu") -> None:
        self._fleet = Fleet("bullet", robot, num, dt, device)
        self.robot, self.num, self.dt, self.device = robot, num, dt, device
        steps = max(1, round(dt / STEP))
        self._drift = dt / steps
        self._edges = np.concatenate([[0.0], (np.arange(steps) + 0.5) * self._drift, [dt]])
        self._origin = np.zeros((num, 3))
        side = int(np.ceil(np.sqrt(num)))
        self._origin[:, 0], self._origin[:, 1] = np.divmod(np.arange(num), side)
        self._origin *= SPACING
        self._client = pybullet.connect(pybullet.DIRECT)
        weakref.finalize(self, pybullet.disconnect, self._client)
        self._bodies = self._load(robot)
        self._place(np.arange(num))

    def _load(self, robot: Quadrotor) -> list[int]:
        client = self._client
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "robot.urdf")
            with open(path, "w", encoding="utf-8") as file:
                file.write(body_urdf(robot))
            bodies = [
                pybullet.loadURDF(
                    path, origin.tolist(), flags=pybullet.URDF_USE_INERTIA_FROM_FILE, physicsClientId=client
                )
                for origin in self._origin
            ]
        for body in bodies:
            pybullet.setCollisionFilterGroupMask(body, -1, 0, 0, physicsClientId=client)
            # Bullet would damp velocities by 4 % per second, and clip them at 100 m/s and rad/s.
            pybullet.changeDynamics(
                body, -1, linearDamping=0.0, angularDamping=0.0, maxJointVelocity=1e9, physicsClientId=client
            )
        return bodies

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        self._place(self._fleet.reset(mask, state))

    def step(self, command: Any) -> None:
        fleet = self._fleet
        command = fleet.command(command)
        lost = fleet.lost(command)
        thrusts = fleet.spin(command, self._edges)
        if lost.any():  # Bullet would take a NaN to the other bodies
            thrusts[:, lost] = 0.0
            fleet.body[lost] = REST
            self._place(np.flatnonzero(lost))
        last = len(thrusts) - 1
        turn = rotations(fleet.body[:, 3:7])
        for k, thrust in enumerate(thrusts):
            share = 0.5 if k in (0, last) else 1.0
            # Each kick but the first starts half a drift before the instant for which it stands.
            self._kick(turn, thrust, share, ahead=0.0 if k == 0 else 0.5 * self._drift, drift=k < last)
            turn = self._sense()
        fleet.body[lost] = np.nan

    def read(self, name: str) -> NDArray[np.float32]:
        return self._fleet.read(name)

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        index = self._fleet.set_parameters(mask, parameters)
        if any(name in IN_BODY for name in parameters):
            p = self._fleet.parameters
            for i in index:
                mass, inertia = float(p["mass"][i, 0]), p["inertia"][i].tolist()
                pybullet.changeDynamics(
                    self._bodies[i], -1, mass=mass, localInertiaDiagonal=inertia, physicsClientId=self._client
                )

    def _place(self, index: NDArray[np.intp]) -> None:
        """Carry the state of these vehicles over to Bullet."""
        body = np.where(np.isfinite(self._fleet.body[index]).all(1, keepdims=True), self._fleet.body[index], REST)
        spin = np.einsum("nij,nj->ni", rotations(body[:, 3:7]), body[:, 10:13])
        for row, i in enumerate(index):
            number, position = self._bodies[i], (self._origin[i] + body[row, 0:3]).tolist()
            quaternion = body[row, 3:7][XYZW_OF_WXYZ].tolist()
            pybullet.resetBasePositionAndOrientation(number, position, quaternion, physicsClientId=self._client)
            pybullet.resetBaseVelocity(
                number, body[row, 7:10].tolist(), spin[row].tolist(), physicsClientId=self._client
            )

    def _sense(self) -> Double:
        """Take the state of all vehicles over from Bullet; returns their rotations (num, 3, 3), body to world."""
        client, body = self._client, self._fleet.body
        poses = [pybullet.getBasePositionAndOrientation(i, physicsClientId=client) for i in self._bodies]
        velocities = np.array([pybullet.getBaseVelocity(i, physicsClientId=client) for i in self._bodies])
        body[:, 0:3] = np.array([pose[0] for pose in poses]) - self._origin
        body[:, 3:7] = np.array([pose[1] for pose in poses])[:, WXYZ_OF_XYZW]
        body[:, 7:10] = velocities[:, 0]
        turn = rotations(body[:, 3:7])
        body[:, 10:13] = np.einsum("nji,nj->ni", turn, velocities[:, 1])  # Bullet's are in world axes
        return turn

    def _kick(self, turn: Double, thrust: Double, share: float, ahead: float, drift: bool) -> None:
        """Change the velocities as `share` of a drift's time would; then drift, or do not.

        Forces that depend on velocity are taken at the velocity expected `ahead` seconds from now. Bullet itself adds
        the gyroscopic torque at the present rate, for the duration of its step: that part is taken back.
        """
        mass, inertia = self._fleet.parameters["mass"], self._fleet.parameters["inertia"]
        velocity, rate = self._fleet.body[:, 7:10], self._fleet.body[:, 10:13]
        force, torque = self._wrench(thrust, velocity, rate, turn)
        if ahead:
            acceleration = np.einsum("nij,nj->ni", turn, force) / mass - (0.0, 0.0, GRAVITY)
            force, torque = self._wrench(thrust, velocity + ahead * acceleration, rate + ahead * torque / inertia, turn)
        duration = self._drift if drift else INSTANT
        gain = share * self._drift / duration
        torque = gain * torque - _gyroscopic(rate, inertia)
        client, frame, at = self._client, pybullet.LINK_FRAME, (0.0, 0.0, 0.0)
        pybullet.setTimeStep(duration, physicsClientId=client)
        pybullet.setGravity(0.0, 0.0, -GRAVITY * gain, physicsClientId=client)
        for number, push, twist in zip(self._bodies, (gain * force).tolist(), torque.tolist(), strict=True):
            pybullet.applyExternalForce(number, -1, push, at, frame, physicsClientId=client)
            pybullet.applyExternalTorque(number, -1, twist, frame, physicsClientId=client)
        pybullet.stepSimulation(physicsClientId=client)

    def _wrench(self, thrust: Double, velocity: Double, rate: Double, turn: Double) -> tuple[Double, Double]:
        """Force without gravity, and torque with the gyroscopic one, both (num, 3) in body axes."""
        p = self._fleet.parameters
        force = np.einsum("nji,nj->ni", turn, p["force"])
        force -= p["drag"] * np.einsum("nji,nj->ni", turn, velocity - p["wind"])
        force[:, 2] += thrust.sum(1)
        arm = p["rotor_position"]
        torque = p["torque"] + _gyroscopic(rate, p["inertia"])
        torque[:, 0] += (arm[:, 1::2] * thrust).sum(1)
        torque[:, 1] -= (arm[:, 0::2] * thrust).sum(1)
        torque[:, 2] += (p["rotor_direction"] * p["torque_ratio"] * thrust).sum(1)
        return force, torque

"""Quadrotors in MuJoCo: a rigid body with four rotor sites, written from the airframe's data.

Thrust and yaw reaction act through site actuators and body drag through three more (a force proportional to the
velocity along each body axis), so that MuJoCo's Runge-Kutta sees both turn with the body. A steady wind is a change of
frame: the bodies fly through still air in axes that move with the wind. MuJoCo's own threads step the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines import cores
from sim.engines.rotors import Double, Fleet
from sim.robots.quadrotors import GRAVITY, Quadrotor

try:
    import mujoco
    from mujoco import rollout
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

STEP = 0.0025  # s, the longest internal step
IN_MODEL = ("mass", "inertia", "rotor_position", "rotor_direction", "torque_ratio", "drag")
CONTROL = int(mujoco.mjtState.mjSTATE_CTRL) | int(mujoco.mjtState.mjSTATE_QFRC_APPLIED)
ROTORS, ACTUATORS = slice(0, 4), 7
FORCE, TORQUE = slice(7, 10), slice(10, 13)  # qfrc_applied of a free joint: world force, body torque


def model_xml(robot: Quadrotor, step: float) -> str:
    """The airframe as MJCF: one free body, no floor, no contacts, `step` seconds per integration step."""
    numbers = " ".join
    sites = "".join(
        f'<site name="rotor{k}" pos="{x:.9g} {y:.9g} 0" size="{robot.propeller_radius:.9g}"/>'
        for k, (x, y) in enumerate(robot.rotor_position)
    )
    rotors = "".join(
        f'<general site="rotor{k}" gear="0 0 1 0 0 {direction * robot.torque_ratio:.9g}"/>'
        for k, direction in enumerate(robot.rotor_direction)
    )
    drags = "".join(
        f'<general site="centre" gear="{numbers(str(int(a == axis)) for a in range(6))}" gainprm="0" biastype="affine" '
        f'biasprm="0 0 {-robot.drag[axis]:.9g}"/>'
        for axis in range(3)
    )
    return f"""<mujoco model="{robot.name}">
  <option timestep="{step:.9g}" integrator="RK4" gravity="0 0 {-GRAVITY}">
    <flag contact="disable" constraint="disable" autoreset="disable"/>
  </option>
  <worldbody>
    <body name="{robot.name}">
      <freejoint/>
      <inertial pos="0 0 0" mass="{robot.mass:.9g}" diaginertia="{numbers(f"{j:.9g}" for j in robot.inertia)}"/>
      <site name="centre"/>{sites}
    </body>
  </worldbody>
  <actuator>{rotors}{drags}</actuator>
</mujoco>"""


class Mujoco:
    """`num` copies of a quadrotor, each in a MuJoCo world of its own; see `sim.engines.Engine`.

    A vehicle whose state or command is NaN, or larger than 1e6, reads NaN until it is reset; the others fly on.
    """

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cpu") -> None:
        self._fleet = Fleet("mujoco", robot, num, dt, device)
        self.robot, self.num, self.dt, self.device = robot, num, dt, device
        self._edges = np.linspace(0.0, dt, max(1, round(dt / STEP)) + 1)
        steps = len(self._edges) - 1
        self._nominal = mujoco.MjModel.from_xml_string(model_xml(robot, dt / steps))
        self._models = [self._nominal] * num
        threads = min(cores(), num // 32)  # one pays off from some dozens of vehicles on
        threads = threads if threads > 1 else 0
        self._pool = rollout.Rollout(nthread=threads)
        self._data = [mujoco.MjData(self._nominal) for _ in range(max(1, threads))]
        self._control = np.zeros((num, steps, ACTUATORS + 6))
        self._start = np.zeros((num, 14))  # time, then the body's state
        self._end = np.zeros((num, steps, 14))

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        self._fleet.reset(mask, state)

    def step(self, command: Any) -> None:
        fleet = self._fleet
        command = fleet.command(command)
        lost = fleet.lost(command)
        thrust = fleet.spin(command, self._edges)
        self._control[:, :, ROTORS] = thrust.transpose(1, 0, 2)
        self._control[:, :, FORCE] = fleet.parameters["force"][:, None]
        self._control[:, :, TORQUE] = fleet.parameters["torque"][:, None]
        self._start[:, 1:] = fleet.body
        self._start[:, 8:11] -= fleet.parameters["wind"]
        if lost.any():  # MuJoCo would write a warning file for them
            self._control[lost] = 0.0
            self._start[lost] = 0.0
            self._start[lost, 4] = 1.0
        self._pool.rollout(
            self._models,
            self._data,
            self._start,
            self._control,
            control_spec=CONTROL,
            nstep=self._end.shape[1],
            state=self._end,
            skip_checks=True,
        )
        fleet.body = self._end[:, -1, 1:].copy()
        fleet.body[:, 7:10] += fleet.parameters["wind"]
        fleet.body[:, 0:3] += fleet.parameters["wind"] * self.dt
        fleet.body[lost] = np.nan

    def read(self, name: str) -> NDArray[np.float32]:
        return self._fleet.read(name)

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        index = self._fleet.set_parameters(mask, parameters)
        if any(name in IN_MODEL for name in parameters):
            for i in index:
                self._write_model(i)

    def _write_model(self, i: int) -> None:
        """Carry vehicle i's parameters over to its own copy of the model."""
        if self._models[i] is self._nominal:
            self._models[i] = copy.copy(self._nominal)
        p: dict[str, Double] = {name: self._fleet.parameters[name][i] for name in IN_MODEL}
        model = self._models[i]
        model.body_mass[1] = p["mass"][0]
        model.body_inertia[1] = p["inertia"]
        model.site_pos[1:5, :2] = p["rotor_position"].reshape(4, 2)
        model.actuator_gear[ROTORS, 5] = p["rotor_direction"] * p["torque_ratio"]
        model.actuator_biasprm[4:7, 2] = -p["drag"]
        mujoco.mj_setConst(model, self._data[0])

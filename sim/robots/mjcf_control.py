"""What to tell a robot's actuators so that its joints are where they should be; and how deep it sinks into things."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from sim.robots.mjcf import Double, MjcfRobot
from sim.robots.mjcf_additions import LAG, YIELD


def depth(robot: MjcfRobot, joints: Double) -> float:
    """How deep, in m, things sink into each other at most in this pose (k,) of the joints."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.start
    data.qpos[robot.positions] = joints
    mujoco.mj_kinematics(robot.model, data)
    mujoco.mj_comPos(robot.model, data)
    mujoco.mj_collision(robot.model, data)
    return max((-contact.dist for contact in data.contact), default=0.0)


def servo(robot: MjcfRobot, data: Any, position: Double, velocity: Double, response: float) -> Double:
    """What to tell the actuators (nu,) so that the joints are at `position` (k,) soon and move at `velocity` (k,).

    `data` is `MjcfRobot.forward`'s. Servos are told what holds them there against gravity; motors get the torque that
    brings the joints there like a critically damped oscillator of frequency `response` (rad/s): inverse dynamics.
    """
    model, at = robot.model, robot.velocities
    hold = (data.qfrc_bias - data.qfrc_passive)[at]
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    q, v = data.qpos[robot.positions], data.qvel[at]
    wanted = response**2 * (position - q) + 2.0 * response * (velocity - v)
    torque = full[np.ix_(at, at)] @ wanted + hold
    told = np.zeros(len(robot.actuators))
    for number, actuator in enumerate(robot.actuators):
        j, gear = actuator.joint, float(model.actuator_gear[number, 0])
        gain, bias = float(model.actuator_gainprm[number, 0]), model.actuator_biasprm[number]
        if actuator.kind == "motor":
            told[number] = torque[j] / (gear * gain)
        else:
            force = hold[j] / gear - bias[0] - bias[1] * gear * position[j] - bias[2] * gear * velocity[j]
            told[number] = force / gain
    return told


def hold(robot: MjcfRobot, position: Double, velocity: Double) -> Double:
    """What to tell the actuators (n, nu) so that joints at `position` (n, k) stay where the robot begins.

    Servos are told so; a motor gives its all at an error of `YIELD`, damped with `LAG`. What is no joint's gets zero.
    """
    told = np.zeros((len(position), len(robot.actuators)))
    for number, actuator in enumerate(robot.actuators):
        if actuator.kind == "other":
            continue
        error = robot.home[actuator.joint] - position[:, actuator.joint]
        if actuator.kind == "position":
            told[:, number] = robot.home[actuator.joint]
        elif actuator.kind == "velocity":
            told[:, number] = error / (2.0 * LAG)
        else:
            sign = np.sign(robot.model.actuator_gear[number, 0] * robot.model.actuator_gainprm[number, 0])
            told[:, number] = sign * actuator.high * (error - LAG * velocity[:, actuator.joint]) / YIELD
    return told

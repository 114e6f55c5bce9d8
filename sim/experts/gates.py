"""The time-optimal trajectory, planned with something to spare, and a controller that follows it.

Geometric tracking (Lee, Leok and McClamroch 2010): errors of position and velocity, with the trajectory's acceleration
ahead, make a thrust vector; the vehicle turns its thrust there, as fast as the trajectory's jerk turns it, and its nose
toward the next gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, NoExpertError
from sim.experts.quad_pid import CascadedPid
from sim.experts.time_optimal import Trajectory, start_of, time_optimal
from sim.robots.quadrotors import GRAVITY
from sim.scenes.gates import GateTrack

if TYPE_CHECKING:
    from sim.tasks.gates import QuadGateRace

Double = NDArray[np.float64]
# Of the thrust, and m at frames: what is planned with, so that the racer follows it.
SHARE, MARGIN = 0.5, 0.3
POSITION, VELOCITY = 16.0, 6.0  # 1/s^2 and 1/s, of errors
ATTITUDE, RATES = np.array([250.0, 250.0, 40.0]), np.array([26.0, 26.0, 8.0])  # 1/s^2 per rad, and 1/s
# Of the trajectory's rate of turning, the share that is asked for ahead: rotors lag, and with all of it it overshoots.
# Measured on 64 tracks; so are the gains, and `BLUR` and `LEAD` in `sim.tasks.gates.references`.
AHEAD, WEAK = 0.5, 5.0  # m/s^2: a smaller thrust has no direction to turn


def planned(
    task: QuadGateRace, track: GateTrack, behind: float, share: float = SHARE, margin: float = MARGIN, beyond: int = 0
) -> Trajectory:
    """From rest, so far behind the first gate, through the gates of all laps, and `beyond` more; some seconds."""
    start = start_of(track, 0, behind)
    steps = task.config.plan_steps
    laps = task.config.laps
    return time_optimal(track, task.robot, task.radius, start, 0, laps, share, margin, steps=steps, beyond=beyond)


def check_planned(task: QuadGateRace) -> None:
    """NoExpertError where no trajectory is planned."""
    if not task.planned:
        setting = "task.start=reference" if task.config.start == "anywhere" else "task.reference=true"
        raise NoExpertError(f"following the time-optimal trajectory needs it planned: {setting}")


def follow(task: QuadGateRace, signals: Mapping[str, Any]) -> dict[str, Array]:
    """The "motor_command" (n, 4) for noise-free signals (n, k); NoExpertError where no trajectory is planned."""
    check_planned(task)
    s = {name: np.asarray(value, np.float64) for name, value in signals.items()}
    n = len(s["position"])
    turn = s["rotation"].reshape(n, 3, 3)
    position, velocity, acceleration, jerk = np.split(s["reference"], 4, axis=1)
    own = np.einsum("nij,nj->ni", turn, s["linear_velocity"])
    wanted = acceleration + POSITION * (position - s["position"]) + VELOCITY * (velocity - own)
    wanted[:, 2] += GRAVITY
    thrust = task.robot.mass * np.maximum((turn[:, :, 2] * wanted).sum(axis=1), 0.0)
    size = np.linalg.norm(wanted, axis=1, keepdims=True)
    up = wanted / np.maximum(size, 1e-9)
    gate = np.einsum("nij,nj->ni", turn, s["next_gate"].reshape(n, 4, 3).mean(axis=1))
    gate /= np.maximum(np.linalg.norm(gate, axis=1, keepdims=True), 1e-9)
    left = np.cross(up, gate + turn[:, :, 0])  # half way there: a gate straight below says nothing of the heading
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    goal = np.stack([np.cross(left, up), left, up], axis=2)
    gap = np.einsum("nji,njk->nik", goal, turn)
    gap = gap - gap.transpose(0, 2, 1)
    error = -0.5 * np.stack([gap[:, 2, 1], gap[:, 0, 2], gap[:, 1, 0]], axis=1)
    rate, inertia = s["angular_velocity"], np.array(task.robot.inertia)
    turning = np.einsum("nji,nj->ni", turn, AHEAD * np.cross(up, jerk) / np.maximum(size, WEAK))  # rad/s, body
    torque = inertia * (ATTITUDE * error + RATES * (turning - rate)) + np.cross(rate, inertia * rate)
    pid = CascadedPid(task.robot, task.rate_hz)
    return {"motor_command": pid.motors(thrust, torque, s["rotor_speed"]).astype(np.float32)}

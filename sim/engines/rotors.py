"""What the engines around a general physics library share: a batch's state, parameters and rotors, in float64 numpy.

The library integrates the rigid bodies; rotor speeds follow their commands here, in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import Quadrotor

Double = NDArray[np.float64]

BODY = {
    "position": slice(0, 3),
    "quaternion": slice(3, 7),
    "linear_velocity": slice(7, 10),
    "angular_velocity": slice(10, 13),
}
REST = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
POSITIVE = ("mass", "inertia", "rise_time", "fall_time", "rotor_lag", "propeller_radius")
LARGEST = 1e6  # m, m/s, rad/s: beyond this a vehicle is lost, and its state becomes NaN


def rotations(quaternion: Double) -> Double:
    """Rotation matrices (n, 3, 3), body to world, of unit quaternions (n, 4), w x y z.

    As `sim.rotations.rotation_matrices` but for how the diagonal is rounded, which these engines' flights depend on.
    """
    w, x, y, z = quaternion.T
    a, b, c = 2.0 * x, 2.0 * y, 2.0 * z
    turn = np.empty((len(quaternion), 3, 3))
    turn[:, 0, 0], turn[:, 0, 1], turn[:, 0, 2] = 1.0 - b * y - c * z, a * y - c * w, a * z + b * w
    turn[:, 1, 0], turn[:, 1, 1], turn[:, 1, 2] = a * y + c * w, 1.0 - a * x - c * z, b * z - a * w
    turn[:, 2, 0], turn[:, 2, 1], turn[:, 2, 2] = a * z - b * w, b * z + a * w, 1.0 - a * x - b * y
    return turn


class Fleet:
    """`num` quadrotors: `body` (num, 13), the state in the order of `BODY`; `rotor_speed` (num, 4); `parameters`."""

    def __init__(self, engine: str, robot: Quadrotor, num: int, dt: float, device: str) -> None:
        if num < 1 or not dt > 0.0:
            raise ValueError(f"{engine} needs num >= 1 and dt > 0, got num={num}, dt={dt}")
        if device != "cpu":
            raise ValueError(f"{engine} runs on the cpu only, got device {device!r}")
        self.num = num
        self.body = np.tile(REST, (num, 1))
        self.rotor_speed = np.zeros((num, 4))
        self.parameters = {k: np.tile(v.astype(np.float64), (num, 1)) for k, v in robot.parameters().items()}

    def chosen(self, mask: Any | None) -> NDArray[np.intp]:
        """Indices of the vehicles in `mask` (num,) bool; None means all."""
        if mask is None:
            return np.arange(self.num)
        selected = np.asarray(mask)
        if selected.shape != (self.num,) or selected.dtype != np.bool_:
            raise ValueError(f"the mask must be ({self.num},) bool, got {selected.shape} {selected.dtype}")
        return np.flatnonzero(selected)

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> NDArray[np.intp]:
        """Set the state of the vehicles in `mask`; returns their indices. Names that are no state are a task's own."""
        index = self.chosen(mask)
        body = np.tile(REST, (len(index), 1))
        for name, where in BODY.items():
            if name in state:
                body[:, where] = self._rows(name, state[name], len(index), where.stop - where.start)
        body[:, 3:7] /= np.linalg.norm(body[:, 3:7], axis=1, keepdims=True)
        self.body[index] = body
        self.rotor_speed[index] = self._rows("rotor_speed", state.get("rotor_speed", 0.0), len(index), 4)
        return index

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> NDArray[np.intp]:
        """Set parameters of the vehicles in `mask`; returns their indices."""
        index = self.chosen(mask)
        for name, value in parameters.items():
            if name not in self.parameters:
                raise KeyError(f"a quadrotor has no parameter {name!r}; it has: {', '.join(self.parameters)}")
            rows = self._rows(name, value, len(index), self.parameters[name].shape[1])
            if not np.isfinite(rows).all():
                raise ValueError(f"parameter {name!r} must be finite, got {rows[~np.isfinite(rows)][0]}")
            if name in POSITIVE and not (rows > 0.0).all():
                raise ValueError(f"parameter {name!r} must be positive, got {rows.min()}")
            self.parameters[name][index] = rows
        return index

    def read(self, name: str) -> NDArray[np.float32]:
        """A float32 copy (num, k) of a state, of the rotation, or of a parameter."""
        if name in BODY:
            return self.body[:, BODY[name]].astype(np.float32)
        if name == "rotor_speed":
            return self.rotor_speed.astype(np.float32)
        if name == "rotation":
            return rotations(self.body[:, 3:7]).reshape(self.num, 9).astype(np.float32)
        if name in self.parameters:
            return self.parameters[name].astype(np.float32)
        choices = ", ".join([*BODY, "rotor_speed", "rotation", *self.parameters])
        raise KeyError(f"a quadrotor has no {name!r}; it has: {choices}")

    def lost(self, command: Double) -> NDArray[np.bool_]:
        """Which vehicles (num,) cannot be integrated: something is NaN or astronomically large."""
        sound: NDArray[np.bool_] = (np.abs(self.body) < LARGEST).all(1) & np.isfinite(self.rotor_speed + command).all(1)
        return ~sound

    def command(self, command: Any) -> Double:
        """The command as (num, 4) float64, clipped to [0, 1]."""
        return np.clip(self._rows("command", command, self.num, 4), 0.0, 1.0)

    def spin(self, command: Double, edges: Double) -> Double:
        """Advance the rotors to the last of `edges` (m + 1,), in s from now.

        Returns the mean thrusts (m, num, 4) in N between the edges: the rotor speed r = u + (r0 - u) exp(-t / tau) and
        its square are integrated exactly.
        """
        p = self.parameters
        gap = self.rotor_speed - command
        tau = np.where(gap < 0.0, p["rise_time"], p["fall_time"]) * p["rotor_lag"]
        decay = np.exp(-edges[:, None, None] / tau)  # (m + 1, num, 4)
        share = tau / np.diff(edges)[:, None, None]
        first = share * (decay[:-1] - decay[1:]) * gap
        second = 0.5 * share * (decay[:-1] ** 2 - decay[1:] ** 2) * gap**2
        c0, c1, c2 = (p["thrust_curve"][:, k : k + 1] for k in range(3))
        mean = c0 + c1 * (command + first) + c2 * (command**2 + 2.0 * command * first + second)
        self.rotor_speed = command + gap * decay[-1]
        thrusts: Double = mean * p["thrust_scale"] * self._cushion()
        return thrusts

    def _cushion(self) -> Double:
        """The ground effect's factor (num, 1) on the thrust at the present height."""
        radius = self.parameters["propeller_radius"]
        height = np.maximum(self.body[:, 2:3], radius / 4.0)
        factor: Double = 1.0 + self.parameters["ground_effect"] * (radius / (4.0 * height)) ** 2
        return factor

    def _rows(self, name: str, value: Any, count: int, width: int) -> Double:
        rows = np.asarray(value, np.float64)
        try:
            wide: Double = np.broadcast_to(rows, (count, width))
        except ValueError:
            raise ValueError(f"{name!r} must be ({count}, {width}), got {rows.shape}") from None
        return wide

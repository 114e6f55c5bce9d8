"""An extended Kalman filter of the structure that Bitcraze's firmware has: position, velocity in body axes, attitude.

Nine states: position (3) m, world; velocity (3) m/s, body; attitude error (3) rad, which is folded into a quaternion
after every cycle. It predicts a hundred times a second from averages of gyroscope and accelerometer, and takes every
measurement as it comes, one number at a time. In flight only the accelerometer's z counts. After M. W. Mueller,
M. Hamer, R. D'Andrea: Fusing ultra-wideband range measurements with accelerometers and rate gyroscopes for quadrocopter
state estimation, ICRA 2015, and M. W. Mueller, M. Hehn, R. D'Andrea: Covariance correction step for Kalman filtering
with an attitude, JGCD 2016. Noise figures, bounds and measurement models: kalman_core of the firmware @2a18fc29.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from deploy.crazyflie.simulator.sensed import GRAVITY

Array = NDArray[np.float64]

MOST, LEAST = 100.0, 1e-6  # bounds of a covariance, and of a variance
# Standard deviations at the beginning: m across and up, m/s, rad.
ACROSS, UP, SPEED, ANGLE = 100.0, 1.0, 0.01, 0.01
REVERSION = 0.001  # share per prediction by which the attitude on the ground returns to the initial one
MILLISECOND = 1e-3  # s, of the firmware's loop: its process noise is per loop
NOISE = (
    "kalman.pNAcc_xy",
    "kalman.pNAcc_z",
    "kalman.mNGyro_rollpitch",
    "kalman.mNGyro_yaw",
    "kalman.pNVel",
    "kalman.pNPos",
    "kalman.pNAtt",
)
FURTHEST = 1000.0  # m, rad: no initial value is larger
PIXELS, APERTURE = 35.0, 0.71674  # of the flow sensor: pixels, and what they see at a distance of 1 (2 sin 21 deg)
LOWEST = 0.1  # m: flow is read as if from at least there
CONE = math.radians(7.5)  # half of the ranger's: it sees the nearest point in it


def cross_matrix(v: Array) -> Array:
    """(3, 3), whose product with w is v x w."""
    x, y, z = v.tolist()
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def turned(q: Array, angle: Array) -> Array:
    """The quaternion (w, x, y, z) after a turn by the rotation vector (3) rad in body axes."""
    size = math.sqrt(float(angle @ angle)) + 1e-9
    c, s = math.cos(0.5 * size), math.sin(0.5 * size) / size
    x, y, z = (s * angle).tolist()
    w0, x0, y0, z0 = q.tolist()
    return np.array(
        [
            c * w0 - x * x0 - y * y0 - z * z0,
            x * w0 + c * x0 + z * y0 - y * z0,
            y * w0 - z * x0 + c * y0 + x * z0,
            z * w0 + y * x0 - x * y0 + c * z0,
        ]
    )


def lean(upright: float) -> float:
    """Cosine of the angle at which the ranger sees the nearest point of the floor; `upright`: that of the body's."""
    return math.cos(max(math.acos(min(upright, 1.0)) - CONE, 0.0))


def matrix(q: Array) -> Array:
    """The rotation (3, 3) body to world of a unit quaternion (w, x, y, z)."""
    w, x, y, z = q.tolist()
    return np.array(
        [
            [w * w + x * x - y * y - z * z, 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
            [2.0 * (x * y + w * z), w * w - x * x + y * y - z * z, 2.0 * (y * z - w * x)],
            [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), w * w - x * x - y * y + z * z],
        ]
    )


def _rotated(half: Array) -> Array:
    """(3, 3): what a turn by twice this vector does to the covariance of the attitude, to second order."""
    cross = cross_matrix(half)
    return np.eye(3) - cross + 0.5 * cross @ cross


class Kalman:
    """One vehicle's filter. `parameters` are the vehicle's, group `kalman`."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        self.parameters = parameters
        self._noise: tuple[tuple[float, ...], Array] = (
            (),
            np.zeros(9),
        )  # parameters, and what they add in a millisecond
        self.reset()

    def reset(self) -> None:
        """Begin anew: at rest, at the initial place and heading, as far as those are numbers that can be."""
        given = [self.parameters[f"kalman.initial{name}"] for name in ("X", "Y", "Z", "Yaw")]
        *place, yaw = (value if abs(value) <= FURTHEST else 0.0 for value in given)
        yaw *= 0.5
        self.state = np.zeros(9)
        self.state[:3] = place
        self.initial = np.array([math.cos(yaw), 0.0, 0.0, math.sin(yaw)])
        self.quaternion, self.rotation = self.initial.copy(), matrix(self.initial)
        self.covariance = np.diag([ACROSS, ACROSS, UP, SPEED, SPEED, SPEED, ANGLE, ANGLE, ANGLE]) ** 2
        self.changed = True  # since the end of the last cycle

    @property
    def lost(self) -> bool:
        """Whether it left its bounds, kalman.maxPos and kalman.maxVel."""
        worst = np.abs(self.state[:6])
        return not (
            worst[:3].max() <= self.parameters["kalman.maxPos"] and worst[3:].max() <= self.parameters["kalman.maxVel"]
        )

    def predict(self, force: Array, rate: Array, dt: float, flying: bool) -> None:
        """`dt` seconds with this specific force (3) m/s^2 and body rate (3) rad/s, as measured."""
        self.changed = True
        r, v, spin = self.rotation, self.state[3:6], cross_matrix(rate)
        up = GRAVITY * r[2]
        step = np.eye(9)
        step[:3, 3:6] = dt * r
        step[:3, 6:] = -dt * r @ cross_matrix(v)
        step[3:6, 3:6] -= dt * spin
        step[3:6, 6:] = -dt * cross_matrix(up)
        step[6:, 6:] = _rotated(0.5 * dt * rate)
        self.covariance = step @ self.covariance @ step.T
        push = np.array([0.0, 0.0, force[2]]) if flying else force
        self.state[:3] += r @ (dt * v + 0.5 * dt * dt * push)
        self.state[2] -= 0.5 * dt * dt * GRAVITY
        self.state[3:6] = v + dt * (push - up - spin @ v)
        q = turned(self.quaternion, dt * rate)
        if not flying:
            q = (1.0 - REVERSION) * q + REVERSION * self.initial
        self.quaternion = q / math.sqrt(float(q @ q))

    def add_noise(self, dt: float) -> None:
        """What `dt` seconds add to the variances."""
        p = self.parameters
        known, added = self._noise
        given = tuple([p[name] for name in NOISE])
        if given != known:
            flat, vertical, lean, yaw, velocity, position, still = given
            ms = MILLISECOND
            place = [a * ms * ms + velocity * ms + position for a in (flat, flat, vertical)]
            speed = [a * ms + velocity for a in (flat, flat, vertical)]
            angle = [w * ms + still for w in (lean, lean, yaw)]
            added = np.array([*place, *speed, *angle]) ** 2
            self._noise = given, added
        diagonal = self.covariance.ravel()[::10]
        diagonal += added * (dt / MILLISECOND)
        np.minimum(diagonal, MOST, out=diagonal)

    def take(self, which: Array, error: float, deviation: float) -> None:
        """One measured number: its derivative (9) by the state, what it is more than expected, and how sure it is."""
        self.changed = True
        along = self.covariance @ which
        gain = along / (float(which @ along) + deviation * deviation)
        self.state += gain * error
        self.covariance -= np.outer(gain, along)

    def take_place(self, position: Array, deviation: float) -> None:
        """A measured position (3) m."""
        for k in range(3):
            which = np.zeros(9)
            which[k] = 1.0
            self.take(which, float(position[k] - self.state[k]), deviation)

    def take_yaw(self, error: float, deviation: float) -> None:
        """How much further to the left it looks than is estimated, rad."""
        which = np.zeros(9)
        which[8] = 1.0
        self.take(which, error - float(self.state[8]), deviation)

    def take_attitude(self, quaternion: Array, deviation: float) -> None:
        """A measured attitude (w, x, y, z)."""
        a, b, c, d = (self.quaternion * (1.0, -1.0, -1.0, -1.0)).tolist()
        w, x, y, z = quaternion.tolist()
        rest = a * w - b * x - c * y - d * z
        error = (a * x + b * w + c * z - d * y, a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w)
        for k in range(3):
            which = np.zeros(9)
            which[6 + k] = 1.0
            self.take(which, 2.0 * error[k] / (rest or 1.0) - float(self.state[6 + k]), deviation)

    def take_range(self, distance: float, deviation: float) -> None:
        """The distance in m to the floor, along the body's z."""
        upright = float(self.rotation[2, 2])
        if upright <= 0.1:
            return
        share = 1.0 / lean(upright)
        which = np.zeros(9)
        which[2] = share
        self.take(which, distance - share * float(self.state[2]), deviation)

    def take_flow(self, pixels: tuple[float, float], rate: Array, dt: float, deviation: float) -> None:
        """How far (pixels) the floor moved through the picture in `dt` seconds, along x and y, at this body rate."""
        upright, height = float(self.rotation[2, 2]), max(float(self.state[2]), LOWEST)
        scale = PIXELS * dt / APERTURE
        for k, turn in ((0, -float(rate[1])), (1, float(rate[0]))):
            speed = float(self.state[3 + k])
            which = np.zeros(9)
            which[2] = -scale * upright * speed / height**2
            which[3 + k] = scale * upright / height
            self.take(which, pixels[k] - scale * (speed * upright / height + turn), deviation)

    def close(self) -> None:
        """End of a cycle that changed something: the attitude error goes into the attitude, covariances into bounds."""
        if not self.changed:
            return
        self.changed = False
        angle = self.state[6:].copy()
        self.state[6:] = 0.0
        if np.abs(angle).max() > 1e-4 and np.abs(angle).max() < 10.0:
            q = turned(self.quaternion, angle)
            self.quaternion = q / math.sqrt(float(q @ q))
            turn = _rotated(0.5 * angle)
            self.covariance[6:] = turn @ self.covariance[6:]
            self.covariance[:, 6:] = self.covariance[:, 6:] @ turn.T
        self.rotation = matrix(self.quaternion)
        p = 0.5 * (self.covariance + self.covariance.T)
        np.minimum(p, MOST, out=p)
        diagonal = p.ravel()[::10]
        np.maximum(diagonal, LEAST, out=diagonal)
        self.covariance = p

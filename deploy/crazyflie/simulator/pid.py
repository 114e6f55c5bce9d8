"""The on-board cascade: position -> velocity -> attitude -> body rate -> rotor thrusts, in the firmware's units.

Angles in degrees, pitch inverted (nose up is positive), actuator values of 0..65535. All gains are parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.setpoints import Mode, Modes, Setpoint, Triple

FULL = 65535.0
THRUST_SCALE = 1000.0  # actuator units per unit of the vertical velocity loop
WITHOUT_LIMIT = 5000.0
OVERHEAD = 1.1  # the position loops may ask for this share of the limits on velocity
LEAST_CLIMB = 0.5  # m/s that the limit on vertical velocity never goes below
ANGLES = ("roll", "pitch", "yaw")


def wrap(degrees: float) -> float:
    """The same angle in [-180, 180]."""
    return math.remainder(degrees, 360.0)


class Pid:
    """One loop. The derivative is of the measurement, so that a new set point gives no kick."""

    def __init__(self, dt: float, limit: float = WITHOUT_LIMIT) -> None:
        self.dt, self.limit, self.integral = dt, limit, 0.0

    def reset(self) -> None:
        """Forget the integral."""
        self.integral = 0.0

    def update(self, error: float, slope: float, gains: tuple[float, float, float]) -> float:
        """The control value for an error and the time derivative of what is measured."""
        kp, ki, kd = gains
        self.integral = min(max(self.integral + error * self.dt, -self.limit), self.limit)
        return kp * error + ki * self.integral - kd * slope


class Cascade:
    """One vehicle's controller. `update` gives the four rotors' shares of their maximal thrust."""

    def __init__(
        self, parameters: Mapping[str, float], dt: float, slow: int, mixer: list[tuple[int, int, int]]
    ) -> None:
        """`slow`: position and velocity run every that many steps. `mixer`: per rotor, signs of roll, pitch, yaw."""
        self.parameters, self.slow, self.mixer = parameters, slow, mixer
        self.place = [Pid(dt * slow) for _ in range(3)]
        self.speed = [Pid(dt * slow) for _ in range(3)]
        self.angle = [Pid(dt, limit) for limit in (20.0, 20.0, 360.0)]
        self.spin = [Pid(dt, limit) for limit in (33.3, 33.3, 166.7)]
        self.dt, self.step = dt, 0
        self.modes = Modes()
        self.wanted_angle = [0.0, 0.0, 0.0]  # degrees
        self.wanted_rate = [0.0, 0.0, 0.0]  # degrees/s
        self.wanted_velocity = [0.0, 0.0, 0.0]  # m/s, x and y along the heading
        self.thrust = 0.0
        self.output = [0.0, 0.0, 0.0]
        self._last_rates: Triple | None = None

    def _gains(self, name: str, ends: tuple[str, str, str]) -> tuple[float, float, float]:
        p = self.parameters
        return p[name + ends[0]], p[name + ends[1]], p[name + ends[2]]

    def restart(self, sensed: Sensed) -> None:
        """Forget everything, so that control begins without a bump."""
        for pid in (*self.place, *self.speed, *self.angle, *self.spin):
            pid.reset()
        self.wanted_angle[:2] = sensed.roll, sensed.pitch
        self._last_rates = None

    def update(self, setpoint: Setpoint, sensed: Sensed) -> tuple[float, float, float, float]:
        """Thrust shares (0..1) of the rotors, for the present set point and state."""
        if setpoint.modes != self.modes:
            self.modes = setpoint.modes
            self.restart(sensed)
        self._yaw(setpoint, sensed)
        if self.step % self.slow == 0:
            self._position(setpoint, sensed)
        self.step += 1
        modes = setpoint.modes
        if modes.z is Mode.DISABLE:
            self.thrust = setpoint.thrust
        if modes.x is Mode.DISABLE or modes.y is Mode.DISABLE:
            self.wanted_angle[:2] = setpoint.attitude[:2]
        if self.thrust == 0.0:
            self.restart(sensed)
            self.wanted_angle[2] = sensed.yaw
            self.output = [0.0, 0.0, 0.0]
            return (0.0, 0.0, 0.0, 0.0)
        self._attitude(setpoint, sensed)
        return self._mix()

    def _yaw(self, setpoint: Setpoint, sensed: Sensed) -> None:
        if setpoint.modes.yaw is Mode.VELOCITY:
            self.wanted_angle[2] = wrap(self.wanted_angle[2] + setpoint.rate[2] * self.dt)
        elif setpoint.modes.yaw is Mode.ABSOLUTE or setpoint.modes.quat is Mode.ABSOLUTE:
            self.wanted_angle[2] = setpoint.attitude[2]

    def _position(self, setpoint: Setpoint, sensed: Sensed) -> None:
        p, modes = self.parameters, (setpoint.modes.x, setpoint.modes.y, setpoint.modes.z)
        c, s = math.cos(math.radians(sensed.yaw)), math.sin(math.radians(sensed.yaw))

        def along_heading(v: Triple) -> Triple:
            return v[0] * c + v[1] * s, v[1] * c - v[0] * s, v[2]

        (x, y, z), (px, py, pz) = setpoint.position, sensed.position
        error = along_heading((x - px, y - py, z - pz))
        velocity, acceleration = along_heading(sensed.velocity), along_heading(sensed.acceleration)
        asked = setpoint.velocity if setpoint.along_heading else along_heading(setpoint.velocity)
        for k, axis in enumerate("xyz"):
            self.wanted_velocity[k] = asked[k]
            if modes[k] is Mode.ABSOLUTE:
                gains = self._gains(f"posCtlPid.{axis}", ("Kp", "Ki", "Kd"))
                most = OVERHEAD * max(p[f"posCtlPid.{axis}VelMax"], LEAST_CLIMB if axis == "z" else 0.0)
                self.wanted_velocity[k] = min(max(self.place[k].update(error[k], velocity[k], gains), -most), most)
        push = [
            self.speed[k].update(
                self.wanted_velocity[k] - velocity[k],
                acceleration[k],
                self._gains(f"velCtlPid.v{axis}", ("Kp", "Ki", "Kd")),
            )
            for k, axis in enumerate("xyz")
        ]
        roll, pitch = p["posCtlPid.rLimit"], p["posCtlPid.pLimit"]
        if modes[0] is not Mode.DISABLE and modes[1] is not Mode.DISABLE:
            self.wanted_angle[0] = min(max(-push[1], -roll), roll)
            self.wanted_angle[1] = min(max(-push[0], -pitch), pitch)
        if modes[2] is not Mode.DISABLE:
            half = 0.5 * FULL
            thrust = min(max(push[2] * THRUST_SCALE, -half), half) + p["posCtlPid.thrustBase"]
            self.thrust = min(max(thrust, p["posCtlPid.thrustMin"]), FULL)

    def _attitude(self, setpoint: Setpoint, sensed: Sensed) -> None:
        angles, (x, y, z) = (sensed.roll, sensed.pitch, sensed.yaw), sensed.gyro
        rates = (x, -y, z)  # that of the inverted pitch
        last = self._last_rates or rates
        self._last_rates = rates
        given = (setpoint.modes.roll, setpoint.modes.pitch, Mode.DISABLE)
        for k, name in enumerate(ANGLES):
            gains = self._gains(f"pid_attitude.{name}", ("_kp", "_ki", "_kd"))
            wanted = self.angle[k].update(wrap(self.wanted_angle[k] - angles[k]), rates[k], gains)
            self.wanted_rate[k] = setpoint.rate[k] if given[k] is Mode.VELOCITY else wanted
            gains = self._gains(f"pid_rate.{name}", ("_kp", "_ki", "_kd"))
            slope = (rates[k] - last[k]) / self.dt
            torque = self.spin[k].update(self.wanted_rate[k] - rates[k], slope, gains)
            self.output[k] = min(max(torque, -32767.0), 32767.0)

    def _mix(self) -> tuple[float, float, float, float]:
        roll, pitch, yaw = 0.5 * self.output[0], 0.5 * self.output[1], self.output[2]
        rotors = [self.thrust + r * roll + p * pitch + y * yaw for r, p, y in self.mixer]
        excess = max(0.0, max(rotors) - FULL)  # rather climb less than tip over
        a, b, c, d = (max(0.0, rotor - excess) / FULL for rotor in rotors)
        return a, b, c, d

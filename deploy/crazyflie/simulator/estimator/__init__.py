"""What the vehicle believes of itself: a Kalman filter fed by simulated sensors, or the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from deploy.crazyflie.simulator.estimator.kalman import Kalman
from deploy.crazyflie.simulator.estimator.sensors import Faults, FlowDeck, Imu, Lighthouse, MotionCapture, Places
from deploy.crazyflie.simulator.sensed import GRAVITY, Sensed
from deploy.crazyflie.simulator.setpoints import Triple

SENSORS: dict[str, type[FlowDeck | Places]] = {"flow": FlowDeck, "lighthouse": Lighthouse, "mocap": MotionCapture}
PREDICTION = 0.01  # s between predictions
SETTLING, RESIDUE = 0.05, 1e-5  # s, m^2: how the truth's variance falls after a reset


class Estimator(Protocol):
    """One vehicle's, from power-on to power-off."""

    decks: tuple[str, ...]  # parameters of the group `deck` that are 1
    said: dict[str, float]  # log variables of what it is fed by

    def reset(self, now: float) -> None:
        """Begin anew, at the vehicle's time `now` (s)."""

    def update(self, truth: Sensed, flying: bool) -> Sensed:
        """What is believed after one more cycle. `flying`: as the supervisor has it."""

    def take_external(self, position: Triple, quaternion: tuple[float, ...] | None) -> None:
        """A position in m, and maybe an attitude (w, x, y, z), that a client sent."""

    def variances(self, now: float) -> tuple[float, ...]:
        """Of position (3) m^2 in the world and velocity (3) m^2/s^2 in body axes."""


class TrueState:
    """The estimate is the truth."""

    decks: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._since, self.said = -math.inf, dict[str, float]()

    @classmethod
    def of(cls, parameters: Mapping[str, float]) -> TrueState:
        """For a vehicle with these parameters."""
        return cls()

    def reset(self, now: float) -> None:
        self._since = now

    def update(self, truth: Sensed, flying: bool) -> Sensed:
        return truth

    def take_external(self, position: Triple, quaternion: tuple[float, ...] | None) -> None:
        self.said.update(zip(("locSrv.x", "locSrv.y", "locSrv.z"), position, strict=True))

    def variances(self, now: float) -> tuple[float, ...]:
        return (RESIDUE + math.exp(-(now - self._since) / SETTLING),) * 6


class Estimated:
    """The filter, fed by inertial sensors at every cycle and by what the vehicle is positioned with."""

    def __init__(
        self,
        positioning: str,
        parameters: Mapping[str, float],
        dt: float,
        seed: Sequence[int],
        dropout: float,
        outliers: float,
    ) -> None:
        """`dt`: s per cycle. `dropout`, `outliers`: shares of time and of measurements, see `sensors.Faults`."""
        rng = np.random.default_rng(seed)
        self.parameters, self.dt = parameters, dt
        self.filter, self.imu = Kalman(parameters), Imu(rng, dt)
        self.sensor: FlowDeck | Places = SENSORS[positioning](rng, Faults(rng, dropout, outliers), dt)
        self.decks, self.said = self.sensor.decks, self.sensor.said
        self._every, self._cycle = round(PREDICTION / dt), 0
        self._sum = np.zeros(6)
        self._believed: tuple[Triple, Triple, list[float], list[float]] | None = None

    def reset(self, now: float) -> None:
        self.filter.reset()

    def update(self, truth: Sensed, flying: bool) -> Sensed:
        with np.errstate(all="ignore"):  # a client may write any parameter: the filter begins anew then
            return self._update(truth, flying)

    def _update(self, truth: Sensed, flying: bool) -> Sensed:
        filter, felt = self.filter, self.imu.read(truth)
        self._sum += felt
        self._cycle += 1
        if self._cycle % self._every == 0:
            mean = self._sum / self._every
            filter.predict(mean[3:], mean[:3], PREDICTION, flying)
            self._sum[:] = 0.0
        filter.add_noise(self.dt)
        self.sensor.measure(truth, felt[:3], filter)
        if filter.changed or self._believed is None:
            filter.close()
            if filter.lost:
                filter.reset()
                filter.close()
            x, y, z = filter.state[:3].tolist()
            u, v, w = (filter.rotation @ filter.state[3:6]).tolist()
            self._believed = (x, y, z), (u, v, w), filter.rotation.ravel().tolist(), filter.quaternion.tolist()
        position, velocity, r, quaternion = self._believed
        p, q, s, a, b, c = felt.tolist()
        acceleration = (
            r[0] * a + r[1] * b + r[2] * c,
            r[3] * a + r[4] * b + r[5] * c,
            r[6] * a + r[7] * b + r[8] * c - GRAVITY,
        )
        return Sensed(position, velocity, acceleration, r, quaternion, (p, q, s), truth.rotor_speed)

    def take_external(self, position: Triple, quaternion: tuple[float, ...] | None) -> None:
        self.said.update(zip(("locSrv.x", "locSrv.y", "locSrv.z"), position, strict=True))
        self.filter.take_place(np.array(position), self.parameters["locSrv.extPosStdDev"])
        if quaternion is not None:
            self.filter.take_attitude(np.array(quaternion), self.parameters["locSrv.extQuatStdDev"])

    def variances(self, now: float) -> tuple[float, ...]:
        return tuple(self.filter.covariance.ravel()[:60:10].tolist())

"""What the simulated sensors say, with their noise, rates and delays. Figures without a source are marked assumed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from deploy.crazyflie.simulator.estimator.kalman import APERTURE, PIXELS, Kalman, lean
from deploy.crazyflie.simulator.sensed import GRAVITY, Sensed

Array = NDArray[np.float64]

# BMI088 (data sheet): noise densities, rad/s and m/s^2 per root of Hz.
GYRO_NOISE, FORCE_NOISE = math.radians(0.014), 175e-6 * GRAVITY
# What is left after calibration, standard deviations (assumed): rad/s, m/s^2.
GYRO_BIAS, FORCE_BIAS = math.radians(0.1), 0.005 * GRAVITY
# What the rotors shake at full speed, before the filters, standard deviations (assumed): rad/s, m/s^2.
GYRO_SHAKE, FORCE_SHAKE = 0.1, 2.0
GYRO_CUTOFF, FORCE_CUTOFF = 80.0, 30.0  # Hz: sensors_bmi088_bmp3xx.c

FLOW_PERIOD = 0.01  # s: flowdeck_v1v2.c
COUNT = 0.1  # pixels per count
FLOW_NOISE = 2.0  # counts, standard deviation: motion.flowStdFixed
FLOW_SCALE = 0.03  # standard deviation of the scale between decks and floors (assumed)
MOST_COUNTS = 100  # more is thrown away
BLURRED, SHARP = 0.02, 0.08  # m: PMW3901 sees nothing below, everything above (data sheet: from 80 mm)

RANGE_PERIOD, RANGE_DELAY = 0.025, 0.012  # s: zranger2.c; it looks for 25 ms, the mean of which lies half of that back
RANGE_NOISE, RANGE_NEAR = 0.0025, 2.5  # m at m, standard deviation; grows to
RANGE_FAR_NOISE, RANGE_FAR = 0.2, 4.0  # m at m, beyond which it sees nothing

# Lighthouse: Taffanel et al. 2021 (arXiv 2104.11523): jitter around a millimetre, errors of a few centimetres that
# depend on the place. Motion capture: half a millimetre; camera, network and radio take 15 ms (assumed).
BEAM_PERIOD, BEAM_DELAY, BEAM_NOISE, BEAM_ERROR = 0.01, 0.005, 0.001, 0.015  # s, s, m, m per axis
BEAM_YAW = 0.01  # rad: lighthouse_position_est.c
CAPTURE_PERIOD, CAPTURE_DELAY, CAPTURE_NOISE = 0.01, 0.015, 0.0005  # s, s, m
OUTLIER, OUTLIER_PIXELS = 0.3, 3.0  # m, pixels of flow: standard deviations of what is wrong (assumed)
BURST = 0.3  # s, mean length of a drop-out (assumed)


class LowPass:
    """Butterworth of second order, by the bilinear transform: the sensors' own filters, one cutoff per element."""

    def __init__(self, rate_hz: float, cutoffs: Sequence[float]) -> None:
        k = np.tan(np.pi * np.asarray(cutoffs) / rate_hz)
        scale = 1.0 / (1.0 + math.sqrt(2.0) * k + k * k)
        self.b: Array = k * k * scale
        self.a1: Array = 2.0 * (k * k - 1.0) * scale
        self.a2: Array = (1.0 - math.sqrt(2.0) * k + k * k) * scale
        self._first: Array | None = None
        self._second = np.zeros(len(k))

    def update(self, value: Array) -> Array:
        """The filtered value; it begins at rest on the first one."""
        if self._first is None:
            self._first = self._second = value / (1.0 + self.a1 + self.a2)
        new = value - self.a1 * self._first - self.a2 * self._second
        out: Array = self.b * (new + 2.0 * self._first + self._second)
        self._second, self._first = self._first, new
        return out


class Imu:
    """Gyroscope (3) rad/s and accelerometer (3) m/s^2, body, in one row."""

    def __init__(self, rng: Generator, dt: float) -> None:
        self.rng, wide = rng, math.sqrt(0.5 / dt)
        self.bias = np.concatenate([rng.normal(0.0, GYRO_BIAS, 3), rng.normal(0.0, FORCE_BIAS, 3)])
        self.still = np.repeat([GYRO_NOISE * wide, FORCE_NOISE * wide], 3)
        self.shake = np.repeat([GYRO_SHAKE, FORCE_SHAKE], 3)
        self.filter = LowPass(1.0 / dt, [GYRO_CUTOFF] * 3 + [FORCE_CUTOFF] * 3)

    def read(self, truth: Sensed) -> Array:
        """(6) body rate and specific force, filtered as on board."""
        a, b, c = truth.specific_force
        seen = np.array([*truth.rate, GRAVITY * a, GRAVITY * b, GRAVITY * c])
        effort = 0.25 * sum(truth.rotor_speed)
        return self.filter.update(seen + self.bias + (self.still + effort * self.shake) * self.rng.standard_normal(6))


class Faults:
    """Drop-outs in bursts, and measurements that are wrong."""

    def __init__(self, rng: Generator, dropout: float, outliers: float) -> None:
        """`dropout`: share of the time in which there is nothing; `outliers`: share of wrong measurements."""
        self.rng, self.dropout, self.outliers = rng, dropout, outliers
        self._out = False

    def out(self, elapsed: float) -> bool:
        """Whether there is nothing now, `elapsed` seconds after it was last asked."""
        if self.dropout:
            chance = 1.0 if self._out else self.dropout / (1.0 - self.dropout)
            if self.rng.random() < min(chance * elapsed / BURST, 1.0):
                self._out = not self._out
        return self._out

    def wrong(self, n: int, size: float) -> Array:
        """(n,) added to a measurement: nothing, mostly. `size`: standard deviation."""
        if self.outliers and self.rng.random() < self.outliers:
            return self.rng.normal(0.0, size, n)
        return np.zeros(n)


class FlowDeck:
    """Optical flow of the floor below, and the distance to it. Knows no place and no heading."""

    decks = ("bcFlow2", "bcZRanger2")

    def __init__(self, rng: Generator, faults: Faults, dt: float) -> None:
        self.rng, self.faults, self.dt = rng, faults, dt
        self.scale = 1.0 + rng.normal(0.0, FLOW_SCALE)
        self._along, self._across, self._cycle = 0.0, 0.0, 0
        self._looks = round(FLOW_PERIOD / dt)
        self._ranges = round(RANGE_PERIOD / dt)
        self._past: deque[tuple[float, float]] = deque(maxlen=1 + round(RANGE_DELAY / dt))
        self.said: dict[str, float] = {}  # log variables
        self._steep = math.log(RANGE_FAR_NOISE / RANGE_NOISE) / (RANGE_FAR - RANGE_NEAR)

    def measure(self, truth: Sensed, rate: Array, filter: Kalman) -> None:
        """One cycle; `rate` is what the gyroscope says."""
        height, r, (x, y, z) = truth.position[2], truth.rotation, truth.velocity
        upright = r[8]
        spin = upright / max(height, BLURRED)
        seen = min(max((height - BLURRED) / (SHARP - BLURRED), 0.0), 1.0)
        self._along += seen * ((r[0] * x + r[3] * y + r[6] * z) * spin - truth.rate[1])
        self._across += seen * ((r[1] * x + r[4] * y + r[7] * z) * spin + truth.rate[0])
        self._past.append((height, upright))
        self._cycle += 1
        if self._cycle % self._looks == 0:
            self._look(rate, filter, float(filter.parameters["motion.flowStdFixed"]))
        if self._cycle % self._ranges == 0:
            self._range(*self._past[0], filter)

    def _look(self, rate: Array, filter: Kalman, deviation: float) -> None:
        pixels = self.scale * PIXELS / APERTURE * self.dt * np.array([self._along, self._across]) + self.faults.wrong(
            2, OUTLIER_PIXELS
        )
        self._along = self._across = 0.0
        counts = np.rint(pixels / COUNT + self.rng.normal(0.0, FLOW_NOISE, 2))
        x, y = counts.tolist()
        self.said.update({"motion.deltaX": -y, "motion.deltaY": -x})  # as the sensor is mounted
        if self.faults.out(FLOW_PERIOD) or filter.parameters["motion.disable"] or np.abs(counts).max() >= MOST_COUNTS:
            return
        filter.take_flow((COUNT * x, COUNT * y), rate, FLOW_PERIOD, COUNT * deviation)

    def _range(self, height: float, upright: float, filter: Kalman) -> None:
        if upright <= 0.1:
            return
        distance = height / lean(upright)
        if distance > RANGE_FAR:
            return
        noise = RANGE_NOISE * (1.0 + math.exp(self._steep * (distance - RANGE_NEAR)))
        distance = max(round(distance + self.rng.normal(0.0, noise), 3), 0.0)
        self.said["range.zrange"] = 1e3 * distance
        filter.take_range(distance, noise)


class Places:
    """Positions from outside, late: what Lighthouse and motion capture have in common."""

    decks: tuple[str, ...] = ()
    group = "locSrv"  # of the log variables x, y, z
    period, delay, noise = CAPTURE_PERIOD, CAPTURE_DELAY, CAPTURE_NOISE

    def __init__(self, rng: Generator, faults: Faults, dt: float) -> None:
        self.rng, self.faults = rng, faults
        self.said: dict[str, float] = {}  # log variables
        self._every, self._cycle = round(self.period / dt), 0
        self._past: deque[Sensed] = deque(maxlen=1 + round(self.delay / dt))

    def error(self, position: Array) -> Array:
        """(3) m, by which it is always off at this place."""
        return np.zeros(3)

    def measure(self, truth: Sensed, rate: Array, filter: Kalman) -> None:
        """One cycle."""
        self._past.append(truth)
        self._cycle += 1
        if self._cycle % self._every or self.faults.out(self.period):
            return
        seen = self._past[0]
        noise = self.rng.normal(0.0, self.noise, 3) + self.faults.wrong(3, OUTLIER)
        true = np.array(seen.position)
        place = true + self.error(true) + noise
        self.said.update(zip((f"{self.group}.{axis}" for axis in "xyz"), place.tolist(), strict=True))
        filter.take_place(place, filter.parameters["locSrv.extPosStdDev"])
        self.more(seen, filter)

    def more(self, seen: Sensed, filter: Kalman) -> None:
        """What is measured besides."""


class MotionCapture(Places):
    """Positions without attitude, by radio, as motion capture of a single marker sends them (extpos)."""


class Lighthouse(Places):
    """Positions where the beams of two base stations cross, and the heading."""

    decks, group = ("bcLighthouse4",), "lighthouse"
    period, delay, noise = BEAM_PERIOD, BEAM_DELAY, BEAM_NOISE

    def __init__(self, rng: Generator, faults: Faults, dt: float) -> None:
        super().__init__(rng, faults, dt)
        self.waves = rng.normal(0.0, 1.5, (3, 3))  # rad/m: errors change over a metre or so (assumed)
        self.phases = rng.uniform(0.0, 2.0 * math.pi, 3)

    def error(self, position: Array) -> Array:
        return math.sqrt(2.0) * BEAM_ERROR * np.sin(self.waves @ position + self.phases)

    def more(self, seen: Sensed, filter: Kalman) -> None:
        r, estimate = seen.rotation, filter.rotation
        yaw = math.atan2(r[3], r[0]) - math.atan2(estimate[1, 0], estimate[0, 0])
        filter.take_yaw(math.remainder(yaw, 2.0 * math.pi) + self.rng.normal(0.0, BEAM_YAW), BEAM_YAW)

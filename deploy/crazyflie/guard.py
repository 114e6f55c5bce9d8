"""When a policy on board must not fly on, and how it comes down: as guard.c and landing.c of firmware/crazyflie.

The simulated vehicle flies by this, and the tests hold the C against it. Change both.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OFF, BENCH, SHADOW, FLY = range(4)  # values of policy.mode
MODES = {"off": OFF, "bench": BENCH, "shadow": SHADOW, "fly": FLY}
# Values of policy.state.
BY_PID, ON_BENCH, AS_SHADOW, TAKING_OVER, FLYING, HOLDING, SINKING, DOWN, STOPPED = range(9)
STATES = ("pid", "bench", "shadow", "taking over", "policy", "holding", "landing", "down", "motors off")
# Values of policy.reason.
FINE, COMMAND, ESTIMATE, STALE, SPREAD, FENCE, TILT, SPEED, RATE, BATTERY, SLOW, TIME = range(12)
REASONS = (
    "nothing",
    "the policy's command is not a number",
    "the estimate or the set point is not a number",
    "the estimate is stale",
    "the estimate is uncertain",
    "fence",
    "tilt",
    "speed",
    "body rate",
    "low battery",
    "the policy is too slow",
    "its time is over",
)
# Parameter -> (what holds when nobody says otherwise, least, most); units as in guard.h.
LIMITS = {
    "fence": (1.5, 0.1, 20.0),
    "height": (1.0, 0.1, 20.0),
    "tilt": (60.0, 10.0, 80.0),
    "speed": (3.0, 0.1, 10.0),
    "rate": (15.0, 1.0, 35.0),
    "voltage": (3.4, 2.8, 4.0),
    "sag": (0.7, 0.0, 1.5),
    "spread": (0.5, 0.001, 10.0),
    "slow": (500.0, 50.0, 900.0),
    "cap": (1.0, 0.3, 1.0),
    "ramp": (1.0, 0.0, 10.0),
    "seconds": (30.0, 1.0, 600.0),
}
PARAMETERS: dict[str, tuple[str, float]] = {
    "policy.mode": ("uint8", OFF),  # after a reboot nothing flies but PID until somebody says so
    **{f"policy.{name}": ("float", usual) for name, (usual, _, _) in LIMITS.items()},
}
# Room for `quad_any`, which takes the platform's 0.12 N, on rotors that give the 0.149 N of the airframe `crazyflie`.
CURVE = 0.3  # of an airframe's largest thrust: no further may policy.thrust0..2 be from its own, at any speed
OLD = 0.03  # s that an estimate may stay exactly as it is
LOW, ASK, MEAN = 5.0, 0.1, 0.2  # s that a battery may be low; by when it is asked first; averaged over; why: guard.h
EMPTY, EMPTY_FOR = 2.7, 0.03  # V as measured, s
HOLD, SINK = 1.0, 0.4  # s, m/s
BRAKING, FURTHEST = 3.0, 1.0  # m/s^2, m: a moving vehicle is told to stay that far ahead
BELOW, REST, REST_FOR = 0.3, 0.05, 0.3  # m, m/s, s: it rests when it should be lower, and does not move up or down
ROW = struct.Struct("18d")
TICK = 1e-6  # less than any clock here counts, and than any limit is exact


def allowed(name: str, value: float) -> float:
    """The value of a parameter policy.NAME as the vehicle takes it: what is not allowed becomes the usual one."""
    if name == "mode":
        return value if value in MODES.values() else OFF
    usual, least, most = LIMITS[name]
    return value if least - TICK <= value <= most + TICK else usual  # values by radio are float32


def near(curve: Sequence[float], airframe: Sequence[float]) -> bool:
    """Whether a tuned thrust curve (N: c0, c1, c2) is near enough to the airframe's to be taken."""
    d0, d1, d2 = (tuned - own for tuned, own in zip(curve, airframe, strict=True))
    return all(abs(d0 + (d1 + d2 * u) * u) <= CURVE * sum(airframe) + TICK for u in (0.0, 1 / 3, 2 / 3, 1.0))


def without_load(voltage: float, load: float, sag: float = LIMITS["sag"][0]) -> float:
    """V of a battery as it would be at rest, by what is measured while the rotors give `load` (0..1) of their most."""
    return voltage + sag * load


class Battery:
    """Whether a battery is low, by its mean voltage without load over `MEAN`, or empty: to be weighed all the time."""

    def __init__(self, now: float, low_for: float = 0.0, empty_for: float = EMPTY_FOR) -> None:
        """Watched from `now` (s) on. It counts as low for `low_for` s by then; it may be empty for `empty_for` s."""
        self._charged, self._powered, self._empty_for = now - low_for, now, empty_for
        self._weighed, self._span, self._mean = now, 0.0, 0.0

    def weigh(self, voltage: float, load: float, limits: Mapping[str, float], now: float) -> None:
        """V as measured and the load (0..1) at `now` (s), by `limits` "voltage" and "sag". NaN is nothing seen."""
        if EMPTY <= voltage <= 100.0:
            self._powered = now
        resting, elapsed = without_load(voltage, load, limits["sag"]), min(now - self._weighed, MEAN)
        if not (0.0 <= resting <= 100.0 and elapsed > 0.0):
            return
        self._weighed, self._span = now, min(self._span + elapsed, MEAN)  # a plain mean at first
        self._mean += (resting - self._mean) * (elapsed / self._span)
        if self._span >= ASK - TICK and limits["voltage"] <= self._mean <= 100.0:
            self._charged = now

    def fit(self, now: float) -> bool:
        """Neither low nor empty for too long."""
        return now - self._charged < LOW - TICK and now - self._powered < self._empty_for - TICK


@dataclass(frozen=True)
class Seen:
    """What the guard looks at in one call of the controller."""

    position: Sequence[float]  # (3) m, world
    rotation: Sequence[float]  # (9) body to world, row-major
    velocity: Sequence[float]  # (3) m/s, world
    rate: Sequence[float]  # (3) rad/s, body
    voltage: float  # V, as measured
    load: float  # mean of the forces that the rotors were to give, 0..1
    variance: float  # m^2, of the estimated position: the axis with the largest

    @property
    def motion(self) -> tuple[float, ...]:
        """The estimate as one row of 18 numbers."""
        return (*self.position, *self.rotation, *self.velocity, *self.rate)


@dataclass
class Guard:
    """Watches one flight of a policy, from `begin` on. `limits` are the parameters by name, without "policy."."""

    limits: dict[str, float] = field(default_factory=lambda: {name: usual for name, (usual, _, _) in LIMITS.items()})
    home: tuple[float, ...] = (0.0, 0.0, 0.0)  # m, world: where the policy took over
    began: float = 0.0  # s

    def begin(self, seen: Seen, now: float) -> None:
        """The policy begins to be watched, at `now` (s)."""
        self.home, self.began = tuple(seen.position), now
        self._motion, self._changed = seen.motion, now
        self._battery = Battery(now, LOW - ASK)

    def weigh(self, seen: Seen, now: float) -> None:
        """The battery at `now` (s), in every cycle from the next on, whoever flies."""
        self._battery.weigh(seen.voltage, seen.load, self.limits, now)

    def look(self, seen: Seen, now: float) -> int:
        """The reason why the policy must not fly on, FINE when there is none."""
        limits, motion = self.limits, seen.motion
        if not self._same(motion):
            self._changed = now
        self._motion = motion
        if not all(map(math.isfinite, motion)):
            return ESTIMATE
        if now - self._changed >= OLD - TICK:
            return STALE
        checks = (
            (SPREAD, 0.0 <= seen.variance <= limits["spread"] ** 2),
            (FENCE, self._inside(seen.position)),
            (TILT, seen.rotation[8] >= math.cos(math.radians(limits["tilt"]))),
            (SPEED, math.hypot(*seen.velocity) <= limits["speed"]),
            (RATE, math.hypot(*seen.rate) <= limits["rate"]),
            (BATTERY, self._battery.fit(now)),
        )
        return next((reason for reason, holds in checks if not holds), FINE)

    def _same(self, motion: Sequence[float]) -> bool:
        """NaN is the same as NaN, and 0 is not -0: as bits are."""
        return ROW.pack(*motion) == ROW.pack(*self._motion)

    def _inside(self, position: Sequence[float]) -> bool:
        most = (self.limits["fence"], self.limits["fence"], self.limits["height"])
        return all(abs(p - h) <= m for p, h, m in zip(position, self.home, most, strict=True))

    def time(self, now: float) -> int:
        """TIME when it has flown for long enough."""
        return FINE if now - self.began <= self.limits["seconds"] + TICK else TIME

    def step(self, forces: Sequence[float], duration: float) -> int:
        """Of one step of the policy: its forces, and how many microseconds it took."""
        if not all(map(math.isfinite, forces)):
            return COMMAND
        return FINE if duration <= self.limits["slow"] else SLOW

    def share(self, elapsed: float) -> float:
        """How much of the command is the policy's (0..1) that took over `elapsed` seconds ago."""
        ramp = self.limits["ramp"]
        return elapsed / ramp if elapsed < ramp - TICK else 1.0


class Landing:
    """Where a vehicle is to be that was handed back: it brakes and stays, then sinks until it rests."""

    def __init__(self, position: Sequence[float], velocity: Sequence[float], now: float) -> None:
        """From this place (3) m, at this velocity (3) m/s, at `now` (s)."""
        ahead = (min(max(v * abs(v) / (2.0 * BRAKING), -FURTHEST), FURTHEST) for v in velocity)
        self.place = tuple(p + a for p, a in zip(position, ahead, strict=True))
        self.began = self._restless = now
        self.down = False

    def height(self, position: Sequence[float], velocity: Sequence[float], now: float) -> float:
        """The height in m to be at; `down` once the vehicle rests."""
        height = self.place[2] - SINK * max(now - self.began - HOLD, 0.0)
        if not (height < position[2] - BELOW and -REST < velocity[2] < REST):
            self._restless = now
        self.down = self.down or now - self._restless >= REST_FOR - TICK
        return height

"""How a simulated world differs from the nominal one: heavier, weaker, later, windier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from sim.randomize import Array, Drawn
from sim.robots.quadrotors import GRAVITY

# s. The low-altitude Dryden model (MIL-F-8785C) at its lowest height, 10 feet, in 5 m/s of wind: 4.6 s along the
# wind (75 feet / 5 m/s), 0.6 s up and down (10 feet / 5 m/s). Short gusts are the harder ones.
GUST_TIME = 1.0
SHORTEST_ROPE = 0.01  # m: shorter ones swing too quickly to be simulated


# Which parameters of a robot each condition changes.
CHANGES = {
    "mass": ("mass",),
    "thrust": ("thrust_scale",),
    "rotor_lag": ("rotor_lag",),
    "force": ("force", "mass"),
    "push": ("force", "mass"),
    "wind": ("wind",),
    "gust": ("wind",),
    "damage": ("thrust_scale",),
    "load": ("mass", "inertia"),
    "payload": ("force", "mass"),
}


@dataclass
class Conditions:
    """How the simulated world differs from the nominal one. Numbers, or one per robot (n,)."""

    delay: float | Array | None = field(
        default=None, metadata={"help": "s between command and rotor (default 0; with vary: the task's range)"}
    )
    mass: float | Array = field(default=1.0, metadata={"help": "factor on the mass"})
    thrust: float | Array = field(default=1.0, metadata={"help": "factor on the thrust of every rotor"})
    rotor_lag: float | Array = field(default=1.0, metadata={"help": "factor on the rotors' time constants"})
    noise: float | None = field(
        default=None, metadata={"help": "factor on the task's sensor noise (default 0; with vary: 1)"}
    )
    force: float | Array = field(
        default=0.0, metadata={"help": "constant random force: standard deviation per axis, as a share of the weight"}
    )
    push: float = field(
        default=0.0, metadata={"help": "constant force in a random direction, as a share of the weight"}
    )
    wind: float = field(default=0.0, metadata={"help": "m/s of steady wind from a random direction, horizontal"})
    gust: float = field(
        default=0.0, metadata={"help": "m/s: standard deviation per axis of a wind that changes all the time"}
    )
    gust_time: float = field(default=GUST_TIME, metadata={"help": "s: time constant of the gusts"})
    damage: float = field(
        default=1.0, metadata={"help": "factor on the thrust of one rotor, drawn per robot; 0: the rotor is lost"}
    )
    damage_at: float = field(default=0.0, metadata={"help": "s of the flight after which that rotor is damaged"})
    load: float = field(default=1.0, metadata={"help": "factor on mass and inertia from half way through the flight"})
    payload: float = field(default=0.0, metadata={"help": "load on a rope, as a share of the vehicle's mass"})
    rope: float = field(default=1.0, metadata={"help": "m: length of that rope"})
    vary: bool = field(
        default=False, metadata={"help": "draw vehicles, delays and noise from the task's declared ranges"}
    )

    def __post_init__(self) -> None:
        for name in ("delay", "noise", "force", "push", "wind", "gust", "damage", "damage_at", "payload"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value).all() and np.min(value) >= 0.0):
                raise ValueError(f"{name} must be zero or positive, got {value}")
        for name in ("mass", "thrust", "rotor_lag", "load", "gust_time", "rope"):
            value = getattr(self, name)
            if not (np.isfinite(value).all() and np.min(value) > 0.0):
                what = "must" if name in ("gust_time", "rope") else "is a factor and must"
                raise ValueError(f"{name} {what} be positive, got {value}")
        if self.rope < SHORTEST_ROPE:
            raise ValueError(f"rope must be at least {SHORTEST_ROPE:g} m, got {self.rope:g}")
        for name, needed in (("damage_at", "damage"), ("rope", "payload")):
            if self._is_changed(name) and not self._is_changed(needed):
                raise ValueError(f"{name}={getattr(self, name):g} changes nothing without {needed}: give that, too")

    def changed(self) -> dict[str, Any]:
        """The conditions that are not nominal."""
        return {f.name: getattr(self, f.name) for f in fields(Conditions) if getattr(self, f.name) != f.default}

    def change_robots(self) -> bool:
        """Whether robots begin their episodes otherwise than nominal, or than as they vary."""
        return any(self._is_changed(name) for name in ("mass", "thrust", "rotor_lag", "force", "push", "damage"))

    def _is_changed(self, name: str) -> bool:
        return bool(np.any(np.asarray(getattr(self, name)) != getattr(Conditions, name)))

    def check(self, parameters: Collection[str], robot: str, episode_s: float) -> None:
        """ValueError where a condition changes a parameter that the robot does not have, or comes after the episode."""
        for name, needed in CHANGES.items():
            if self._is_changed(name) and (missing := set(needed).difference(parameters)):
                raise ValueError(f"{robot} cannot be tried with {name}: it has no {' and no '.join(sorted(missing))}")
        if self._is_changed("damage_at") and self.damage_at >= episode_s:
            raise ValueError(f"damage_at={self.damage_at:g} s comes after the episode, which lasts {episode_s:g} s")

    def refused(self, task: str) -> None:
        """ValueError when there are any: of a task whose own world cannot carry them out."""
        if names := ", ".join(self.changed()):
            raise ValueError(f"{task} brings its own physics; it has no {names}")


Cell = dict[str, float]  # fields of Conditions -> value


@dataclass(frozen=True)
class Grid:
    """What a task's policies have to hold under, as real robots of one name differ: every latency with every rotor lag
    with every pair of mass and thrust.
    """

    delay: tuple[float, ...]  # s between command and rotor
    rotor_lag: tuple[float, ...]  # factors on the rotors' time constants
    mass_and_thrust: tuple[tuple[float, float], ...]  # factors

    def cells(self) -> list[Cell]:
        """All combinations, the delay changing slowest."""
        combined = itertools.product(self.delay, self.rotor_lag, self.mass_and_thrust)
        return [{"delay": delay, "rotor_lag": lag, "mass": m, "thrust": t} for delay, lag, (m, t) in combined]


class Gusts:
    """Wind (n, 3) in m/s that changes all the time: an Ornstein-Uhlenbeck process per axis, begun in its steady state.

    The longitudinal gusts of the Dryden model are such a process (MIL-F-8785C).
    """

    def __init__(self, std: float, steps: float, num: int) -> None:
        """`steps`: the time constant in control steps."""
        self.std, self.kept = std, math.exp(-1.0 / steps)
        self.value = np.zeros((num, 3))
        self._rng: list[np.random.Generator] = [np.random.default_rng(0)] * num

    def begin(self, rows: Any, rngs: Sequence[np.random.Generator]) -> None:
        """A new process in each of these rows."""
        for row, rng in zip(rows, rngs, strict=True):
            self._rng[row], self.value[row] = rng, self.std * rng.standard_normal(3)

    def next(self, rows: Any) -> Array:
        """The gusts (count, 3) of this control step in these rows; the next call gives those of the next one."""
        now = self.value[rows].astype(np.float32)
        fresh = math.sqrt(1.0 - self.kept**2) * self.std
        drawn = np.stack([self._rng[row].standard_normal(3) for row in rows])
        self.value[rows] = self.kept * self.value[rows] + fresh * drawn
        return np.asarray(now)


@dataclass
class Draws:
    """What chance decides of the conditions, for n episodes; the same whatever the conditions are."""

    force: Array  # (n, 3), standard normal
    heading: Array  # (n, 3) unit vectors: of the push
    rotor: Array  # (n, 1) which rotor is damaged
    wind: Array  # (n, 3) unit vectors, horizontal

    @classmethod
    def of(cls, vehicles: np.random.Generator, air: np.random.Generator, n: int) -> Draws:
        """Draw them."""
        force, heading = vehicles.normal(0.0, 1.0, (2, n, 3))
        angle = air.uniform(0.0, 2.0 * np.pi, (n, 1))
        wind = np.concatenate([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
        heading = heading / np.linalg.norm(heading, axis=1, keepdims=True)
        rotor = vehicles.integers(4, size=(n, 1))
        return cls(*(value.astype(np.float32) for value in (force, heading, rotor, wind)))


def apply(conditions: Conditions, rows: Any, drawn: Drawn, draws: Draws, nominal: Callable[[str], Array]) -> Drawn:
    """Robots under the conditions: parameters (n, k) by name that are not nominal, as drawn, times factors, and forces.

    `rows` (n,) are the environments that they are for, as conditions may be one number each; `nominal` gives a
    parameter's value (n, k) where none was drawn.
    """
    c, values, base = conditions, dict(drawn.parameters), dict(drawn.base)

    def column(value: float | Array) -> Array:
        given = np.asarray(value, np.float32)
        wide: Array = given if given.ndim == 0 else given[rows][:, None]
        return wide

    def change(name: str, factor: float | Array = 1.0, added: Array | float = 0.0) -> None:
        before = values[name] if name in values else nominal(name)
        values[name] = np.asarray(before * factor + added, np.float32)
        if name in base:  # what is drawn anew in flight starts from here
            base[name] = np.asarray(base[name] * factor + added, np.float32)

    def weight() -> Array:
        return np.asarray(GRAVITY * drawn.parameters.get("mass", nominal("mass")))

    for name, factor in (("mass", c.mass), ("thrust_scale", c.thrust), ("rotor_lag", c.rotor_lag)):
        if np.any(np.asarray(factor) != 1.0):
            change(name, column(factor))
    if np.any(np.asarray(c.force) != 0.0):
        change("force", added=column(c.force) * weight() * draws.force)
    if c.push != 0.0:
        change("force", added=c.push * weight() * draws.heading)
    if c.damage != 1.0 and not c.damage_at:
        change("thrust_scale", np.where(np.arange(4) == draws.rotor, c.damage, 1.0))
    return Drawn(values, base)

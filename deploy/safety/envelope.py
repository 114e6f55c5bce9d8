"""The rules of a flight: when a robot is held or stopped, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.spec import Signal

LAST = "last"  # in `Envelope.safe`: keeps doing what it was told last
ASKED = ("fence", "max_tilt", "max_speed", "max_body_rate", "min_voltage")  # what a person can put in a file's place

SHAPES = {"fence_low": (3,), "max_tilt": (9,)}  # of what these rules read
NORMS = ("max_speed", "max_body_rate")  # these read a vector of any length
POSITIVE = (
    "missed_in_a_row",
    "missed_of_100",
    "longest_pause",
    "max_tilt",
    "max_speed",
    "max_body_rate",
    "max_change",
    "min_voltage",
    "low_voltage_steps",
)


@dataclass(frozen=True)
class Envelope:
    """Limits of a flight. None switches a rule off; a rule on a signal that nobody delivers is an error."""

    hold_steps: int = 5  # how long a bad signal or command is bridged with the last good command
    missed_in_a_row: int | None = 10  # late control steps in a row before the safe command
    missed_of_100: int | None = 50  # late control steps among the last hundred
    longest_pause: float | None = 0.5  # s between two control steps: what was commanded before it says nothing any more
    fence_low: tuple[float, float, float] | None = None  # m, world
    fence_high: tuple[float, float, float] | None = None  # m, world
    max_tilt: float | None = None  # degrees between the body's and the world's z axis
    max_speed: float | None = None  # m/s
    max_body_rate: float | None = None  # rad/s
    max_change: float | None = None  # of a command's range per control step
    min_voltage: float | None = None  # V of the battery
    low_voltage_steps: int = 50  # in a row: it sags under load
    # Command name -> values; or the signal that says where it is, and where it stays; or LAST. Else nearest to 0.
    safe: Mapping[str, tuple[float, ...] | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.hold_steps, int) or self.hold_steps < 0:
            raise ValueError(f"hold_steps must not be negative, got {self.hold_steps!r}")
        if (self.fence_low is None) != (self.fence_high is None):
            raise ValueError("a geofence needs both fence_low and fence_high")
        if self.fence_low is not None and self.fence_high is not None:
            sides = self.fence_low, self.fence_high
            if not all(isinstance(side, tuple) and len(side) == 3 and all(map(_is_number, side)) for side in sides):
                raise ValueError(f"a geofence is three numbers on each side, got {sides[0]!r} and {sides[1]!r}")
            if any(not low < high for low, high in zip(*sides, strict=True)):
                raise ValueError(f"fence_low {sides[0]} must be below fence_high {sides[1]}, three numbers each")
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ValueError(f"{name} must be positive, got {value!r}")

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> Envelope:
        """The inverse of `dataclasses.asdict` by way of JSON, which has no tuples; what is left out has its default."""

        def plain(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}

        return cls(**plain(items) | {"safe": plain(items.get("safe", {}))})

    def places(self) -> dict[str, str]:
        """The commands that stay where they are, and the signals that say where that is."""
        return {command: rule for command, rule in self.safe.items() if isinstance(rule, str) and rule != LAST}

    def needs(self) -> dict[str, str]:
        """The rules that are on, and the signal that each one reads."""
        rules = {
            "fence_low": "position",
            "max_tilt": "rotation",
            "max_speed": "linear_velocity",
            "max_body_rate": "angular_velocity",
            "min_voltage": "battery_voltage",
        }
        return {rule: signal for rule, signal in rules.items() if getattr(self, rule) is not None}


def check(needs: Mapping[str, str], known: Mapping[str, Signal]) -> None:
    """ValueError when a rule's signal is not known, or is of another shape than the rule reads."""
    for rule, name in needs.items():
        if name not in known:
            raise ValueError(f"{rule} needs the signal {name!r}; there are: {', '.join(sorted(known))}")
        shape, wanted = known[name].shape, SHAPES.get(rule)
        if wanted is not None and shape != wanted:
            raise ValueError(f"{rule} needs {name!r} of the shape {wanted}; here it has {shape}")
        if rule in NORMS and len(shape) != 1:
            raise ValueError(f"{rule} needs {name!r} as one vector; here it has the shape {shape}")


def replaced(envelope: Envelope, asked: Mapping[str, float | None]) -> Envelope:
    """The rules with those of `ASKED` that are not None in their place; `fence`: m from the origin on any axis."""
    rules: dict[str, Any] = {rule: value for rule, value in asked.items() if value is not None}
    if (fence := rules.pop("fence", None)) is not None:
        rules |= {"fence_low": (-fence,) * 3, "fence_high": (fence,) * 3}
    return replace(envelope, **rules)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)

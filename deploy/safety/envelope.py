"""The rules of a flight: when a robot is held or stopped, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAST = "last"  # in `Envelope.safe`: keeps doing what it was told last


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
        if self.hold_steps < 0:
            raise ValueError(f"hold_steps must not be negative, got {self.hold_steps}")
        if (self.fence_low is None) != (self.fence_high is None):
            raise ValueError("a geofence needs both fence_low and fence_high")
        if self.fence_low and self.fence_high:
            pairs = list(zip(self.fence_low, self.fence_high, strict=True))
            if len(pairs) != 3 or any(not low < high for low, high in pairs):
                raise ValueError(
                    f"fence_low {self.fence_low} must be below fence_high {self.fence_high}, three numbers each"
                )
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

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

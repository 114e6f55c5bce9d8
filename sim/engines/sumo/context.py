"""A signalised intersection as numbers: its context, from which a network is made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

ARMS = "ABCD"  # clockwise from the north, as IntersectionZoo names them
TURNS = ("left", "straight", "right")
MOST_LANES, LONGEST, STEEPEST = 6, 2000.0, 0.15
SHORTEST = 60.0  # m: the junction itself takes up to 30
FASTEST = 40.0  # m/s
BUSIEST = 1800.0  # veh/h and lane: what flows without a signal


class ContextError(ValueError):
    """An intersection that cannot be; the message names the field."""


def _within(name: str, value: Any, low: float, high: float) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits:
        raise ContextError(f"{name} must be between {low:g} and {high:g}, got {value!r}")


@dataclass(frozen=True)
class Arm:
    """One road into the intersection, and the one back, with as many lanes."""

    lanes: int
    length: float  # m
    limit: float  # m/s
    grade: float  # rise over run towards the intersection
    inflow: float  # veh/h, over all lanes
    turns: tuple[float, float, float]  # shares that turn left, go straight, turn right

    def check(self, name: str) -> None:
        """ContextError naming the field that cannot be, of the arm of that name."""
        _within(f"arm {name}: lanes", self.lanes, 1, MOST_LANES)
        if not isinstance(self.lanes, int):
            raise ContextError(f"arm {name}: lanes must be whole, got {self.lanes!r}")
        _within(f"arm {name}: length", self.length, SHORTEST, LONGEST)
        _within(f"arm {name}: limit", self.limit, 1.0, FASTEST)
        _within(f"arm {name}: grade", self.grade, -STEEPEST, STEEPEST)
        _within(f"arm {name}: inflow", self.inflow, 0.0, BUSIEST * self.lanes)
        if len(self.turns) != len(TURNS):
            raise ContextError(f"arm {name}: turns are three shares ({', '.join(TURNS)}), got {self.turns!r}")
        for turn, share in zip(TURNS, self.turns, strict=True):
            _within(f"arm {name}: turns, {turn}", share, 0.0, 1.0)
        if not math.isclose(sum(self.turns), 1.0, abs_tol=1e-6):
            raise ContextError(f"arm {name}: turns must add up to 1, got {sum(self.turns):.6g}")


@dataclass(frozen=True)
class Context:
    """Of three or four arms, clockwise from the north; a missing fourth is the western one.

    `greens` are the phases (s): two (north and south, east and west; who turns left gives way), or four (north and
    south straight, then left, then east and west).
    """

    arms: tuple[Arm, ...]
    greens: tuple[float, ...] = (30.0, 30.0)
    penetration: float = 1.0 / 3.0  # share of vehicles that are equipped
    diesel: float = 0.3  # share of cars
    electric: float = 0.0  # share of cars
    trucks: float = 0.05  # share of vehicles
    temperature: float = 20.0  # degrees Celsius

    def __post_init__(self) -> None:
        if len(self.arms) not in (3, 4):
            raise ContextError(f"arms: an intersection has three or four, got {len(self.arms)}")
        for name, arm in zip(ARMS, self.arms, strict=False):
            arm.check(name)
        for k, arm in enumerate(self.arms):
            for turn, share in zip(TURNS, arm.turns, strict=True):
                if share > 0.0 and self.leads_to(k, turn) >= len(self.arms):
                    raise ContextError(f"arm {ARMS[k]}: turns, {turn} leads to no arm, but {share:g} go there")
        if len(self.greens) not in (2, 4):
            raise ContextError(f"greens: there are two or four phases, got {len(self.greens)}")
        for k, arm in enumerate(self.arms):
            if len(self.greens) == 4 and arm.lanes < 2 and self.leads_to(k, "left") < len(self.arms):
                raise ContextError(
                    f"arm {ARMS[k]}: lanes must be at least 2 where left has a phase of its own (greens)"
                )
        for k, green in enumerate(self.greens):
            _within(f"greens, phase {k + 1}", green, 5.0, 180.0)
        for name in ("penetration", "diesel", "electric", "trucks"):
            _within(name, getattr(self, name), 0.0, 1.0)
        if self.diesel + self.electric > 1.0:
            raise ContextError(f"diesel and electric are shares of cars: {self.diesel:g} + {self.electric:g} is over 1")
        _within("temperature", self.temperature, -50.0, 60.0)

    @staticmethod
    def leads_to(arm: int, turn: str) -> int:
        """The arm to which that turn from an arm leads, where there are four."""
        return (arm + 1 + TURNS.index(turn)) % len(ARMS)

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Context:
        """The inverse; ContextError naming what is missing or unknown."""
        try:
            arms = tuple(Arm(**{**arm, "turns": tuple(arm["turns"])}) for arm in values["arms"])
            return cls(**{**values, "arms": arms, "greens": tuple(values.get("greens", cls.greens))})
        except KeyError as error:
            raise ContextError(f"a context lacks {error}") from None
        except (TypeError, AttributeError) as error:
            raise ContextError(f"a context is malformed: {error}") from None

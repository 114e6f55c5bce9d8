"""What drivers and autopilots of quadrotors have in common: what an estimator on board tells, and how a flight went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sim.spec import Group, Signal

STATE: Group = (
    Signal("position", (3,), "m", "world"),
    Signal("rotation", (9,), "1", "body->world"),
    Signal("linear_velocity", (3,), "m/s", "world"),
    Signal("angular_velocity", (3,), "rad/s", "body"),
)
TARGET: Group = (
    Signal("target_position", (3,), "m", "world"),
    Signal("target_velocity", (3,), "m/s", "world"),
)
HEADING = Signal("target_heading", (2,), "1", "world")  # cosine and sine
AHEAD = (1.0, 0.0)  # along x
OLDEST = min(signal.max_age for signal in STATE)  # s


def sensed(battery_age: float) -> Group:
    """What such a driver tells: targets for 1 s, the battery's voltage for `battery_age` s."""
    targets = (replace(signal, max_age=1.0) for signal in (*TARGET, HEADING))
    return (*STATE, *targets, Signal("battery_voltage", (1,), "V", max_age=battery_age))


def too_late(unseen: float) -> str:
    """Why nobody should fly by a state that may have been on its way for so long (s); empty: somebody may."""
    late = f"its answers take {unseen:.2f} s, so what it tells may be that old: too old to fly by ({OLDEST:g} s)"
    return f"{late}; stamps=false counts ages from arrival" * (unseen > OLDEST)


def tracking_error(errors: Sequence[float], rate_hz: float) -> list[str]:
    """A line of the report, of distances from the target in m, one per control step; none without any."""
    last = errors[-round(rate_hz) :]
    return [f"position_error   {sum(last) / len(last):.4g} m (last second)"] if last else []

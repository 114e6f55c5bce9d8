"""The failsafe ladder of a flying robot: hold -> land -> off. Which fault takes which rung is the table below.

hold   brake and stay, for `HOLD_S`: by the policy itself with its set point moved, or by the fallback
land   come down, at `DESCENT` near the ground and quicker above; until the ground, or for as long as that may take
off    motors off, for good: on the ground, at an emergency stop, or where the attitude is lost

The fallback (`fallback.py`) takes over where the policy itself is the trouble, or does not see what it needs. A robot
on the ladder never climbs back: it has to be landed and started again. After a human's override it begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.safety.dead_reckoning import SENSED
from deploy.safety.fallback import Fallback
from sim.spec import Group

Array = NDArray[Any]
Bools = NDArray[np.bool_]

NONE, HOLD, LAND, OFF = 0, 1, 2, 3
RUNGS = ("none", "hold", "land", "off")
STILL = ("target_acceleration", "target_preview_velocity", "target_preview_acceleration")  # zeros at a set point
TARGETS = ("target_position", "target_velocity", "target_preview", *STILL)
HEADING = "target_heading"  # where the nose is told to point: not moved, and without it the last good one stands in
ATTITUDE = "rotation"

HOLD_S = 2.0  # s on the rung `hold`
DESCENT, FASTEST = 0.4, 1.0  # m/s on the rung `land`: near the ground, and high up
NEAR = 0.5  # m above the ground; from there on a metre per second quicker for every metre of height
LAND_S = 5.0  # s beyond what the height takes at `DESCENT`; then off
BRAKING = 3.0  # m/s^2: where a moving robot is told to stop lies that far ahead
BRAKING_MOST = 3.0  # m, per axis
BELOW = 0.1  # m below the ground that the set point goes, so that the robot arrives
HIGHEST = 1e4  # m
TOUCH = 0.05  # m above the ground: it has arrived
REST, REST_S = 0.05, 0.5  # m/s, s: nor does it sink any more, where the ground is higher than believed
SEEN_S = 0.1  # s for which it must be seen there, or astray: one wrong position means nothing
STRAY = 1.0  # m from the set point: a policy that lets it get so far does not fly it any more
BLIND = 4  # control steps for which the attitude may be missing, once it was stopped


@dataclass(frozen=True)
class Way:
    """What a fault leads to: the first rung, and whether the policy itself may still fly it."""

    first: int
    own: bool = False


# By the guard's reason. What is said of a bad signal does not hold for a set point: see `Ladder._way`.
WAYS = {
    "stale signal": Way(LAND),
    "non-finite signal": Way(LAND),
    "signal out of range": Way(LAND),
    "malformed signal": Way(LAND),
    "non-finite command": Way(HOLD),
    "policy failed": Way(HOLD),
    "policy late": Way(HOLD),
    "geofence": Way(HOLD),
    "tilt": Way(HOLD),
    "speed": Way(HOLD),
    "body rate": Way(HOLD),
    "low battery": Way(LAND, own=True),
    "deadlines missed": Way(HOLD, own=True),
    "clock jump": Way(HOLD, own=True),
    "asked to land": Way(LAND, own=True),
    "emergency stop": Way(OFF),
    # What a robot notices by itself, whoever commands it:
    "commands lost": Way(HOLD),
    "override ended": Way(HOLD),
    "arming lost": Way(HOLD),
    "disarmed": Way(LAND),
}


def stopping_place(position: Array, velocity: Array) -> Array:
    """Where (3,) m a robot is told to stay that is here (3,) m, at this velocity (3,) m/s: it needs room to brake."""
    ahead = velocity * np.linalg.norm(velocity) / (2.0 * BRAKING)
    return np.asarray(position + np.clip(ahead, -BRAKING_MOST, BRAKING_MOST))


class Ladder:
    """The rungs of `n` robots. The guard asks it what a robot gets that it has stopped."""

    def __init__(
        self, inputs: Group, rate_hz: float, ground: float = 0.0, fence: tuple[Any, Any] | None = None
    ) -> None:
        """`inputs` of the policy. `ground`: its height in m, world; `fence` (low, high): where set points may lie."""
        self.rate_hz, self.ground, self.fence = rate_hz, ground, fence
        self.fallback = Fallback(rate_hz)
        self.steers = "target_position" in {s.name for s in inputs}
        self.reset(1)

    def reset(self, n: int) -> None:
        """Begin a flight of `n` robots."""
        self.active = False
        self.rung = np.zeros(n, np.int8)
        self.own = np.zeros(n, bool)  # flown by the policy itself, with its set point moved
        self.goal, self.velocity = np.zeros((n, 3)), np.zeros((n, 3))  # the set point: m, m/s, world
        self._left = np.zeros(n, np.int64)  # control steps on this rung
        self._still = np.zeros(n, np.int64)  # control steps at rest while landing
        self._down, self._far = np.zeros((2, n), np.int64)  # control steps near the ground; far from the set point
        self._unseen = np.zeros(n, np.int64)  # control steps without attitude
        self.fallback.reset(n)

    def restart(self) -> None:
        """Somebody else flies them now: whoever is stopped begins anew afterwards, wherever they are then."""
        self.rung[:], self.own[:] = NONE, False

    def aim(self, signals: dict[str, Array], broken: Mapping[str, Bools]) -> dict[str, Array]:
        """The policy's signals (n, k), with the set point of the robots that it flies itself down the ladder.

        To be asked at every control step; `broken` as in `commands`.
        """
        unseen = broken.get(ATTITUDE)
        self._unseen = np.where(unseen, self._unseen + 1, 0) if unseen is not None else 0 * self._unseen
        if not (self.active and self.own.any()):
            return signals
        moved = {"target_position": self.goal, "target_velocity": self.velocity}
        made = dict(signals)
        for name in TARGETS:
            if name in signals:
                told = signals[name]
                ahead = np.zeros_like(told) if name in STILL else np.tile(self.goal, (1, told.shape[1] // 3))
                values = moved.get(name, ahead)
                made[name] = np.where(self.own[:, None], values, told).astype(told.dtype)
        return made

    def commands(
        self,
        reasons: Sequence[str],
        wanted: Array,
        signals: Mapping[str, Array],
        broken: Mapping[str, Bools],
        emergency: bool = False,
    ) -> tuple[NDArray[np.int8], Array]:
        """The rung (n,) and the motor command (n, 4) of robots that were stopped for `reasons` (n; "none": it was not).

        `wanted` (n, 4): what the policy says; `signals` (n, k): what is known, of which `broken` (n,) is not measured
        now. What it returns of robots that are off, or not on the ladder, means nothing.
        """
        stopped = np.array([reason != "none" for reason in reasons])
        new = stopped & (self.rung == NONE)
        if new.any():
            self.active = True
            self.fallback.take_over(signals, new)
        state = self.fallback.state(signals, broken, self.ground)
        for robot in np.flatnonzero(stopped).tolist():
            if new[robot]:
                self._enter(robot, self._way(reasons[robot], broken, robot), state)
            elif self.rung[robot] in (HOLD, LAND):
                self._descend(robot, state)
            if emergency or self._unseen[robot] > BLIND:
                self.rung[robot] = OFF
        flying = (self.rung == HOLD) | (self.rung == LAND)
        self.own &= flying & np.isfinite(wanted).all(axis=1)
        for name in SENSED:
            self.own &= ~broken[name] if name in broken else True
        if (flying & ~self.own).any():
            wanted = np.where(self.own[:, None], wanted, self.fallback.command(state, self.goal, self.velocity))
        return self.rung, wanted

    def _way(self, reason: str, broken: Mapping[str, Bools], robot: int) -> Way:
        """What the table says; but where only the set point is bad, the policy itself can stay."""
        bad = {name for name, which in broken.items() if which[robot]}
        set_point = "signal" in reason and bad and bad <= {*TARGETS, HEADING}
        return Way(HOLD, own=True) if set_point and self.steers else WAYS[reason]

    def _enter(self, robot: int, way: Way, state: Mapping[str, Array]) -> None:
        position, velocity = state["position"][robot], state["linear_velocity"][robot]
        slow = np.linalg.norm(velocity) < DESCENT and not self.fallback.reckoning.blind[robot]
        stands = slow and position[2] <= self.ground + TOUCH  # nothing to hold: landing ends at once
        self.own[robot] = way.own and self.steers
        self._take(robot, max(way.first, LAND) if stands else way.first, stopping_place(position, velocity))

    def _take(self, robot: int, rung: int, goal: Array) -> None:
        self.rung[robot] = rung
        self.goal[robot] = np.clip(goal, *self.fence) if self.fence is not None else goal
        self.velocity[robot, 2] = 0.0
        height = min(max(float(self.goal[robot, 2]) - self.ground, 0.0), HIGHEST)
        self._left[robot] = round((HOLD_S if rung == HOLD else LAND_S + height / DESCENT) * self.rate_hz)

    def _descend(self, robot: int, state: Mapping[str, Array]) -> None:
        """One control step on `hold` or `land`."""
        position, sinking = state["position"][robot], -state["linear_velocity"][robot, 2]
        self._left[robot] -= 1
        far = np.linalg.norm(position - self.goal[robot]) > STRAY
        self._far[robot] = self._far[robot] + 1 if far else 0
        if self.own[robot] and self._far[robot] > SEEN_S * self.rate_hz:
            self.own[robot] = False
            self.goal[robot] = position
        if self.rung[robot] == HOLD:
            if self._left[robot] <= 0:
                self._take(robot, LAND, self.goal[robot])
            return
        height = self.goal[robot, 2] - self.ground
        speed = min(max(DESCENT + height - NEAR, DESCENT), FASTEST)
        self.velocity[robot, 2] = -speed
        self.goal[robot, 2] = max(self.goal[robot, 2] - speed / self.rate_hz, self.ground - BELOW)
        resting = abs(sinking) < REST and position[2] - self.goal[robot, 2] > BELOW and not self.own[robot]
        self._still[robot] = self._still[robot] + 1 if resting else 0
        self._down[robot] = self._down[robot] + 1 if position[2] <= self.ground + TOUCH else 0
        arrived = self._down[robot] > SEEN_S * self.rate_hz or self._still[robot] > REST_S * self.rate_hz
        if self._left[robot] <= 0 or (arrived and not self.fallback.reckoning.blind[robot]):
            self.rung[robot] = OFF

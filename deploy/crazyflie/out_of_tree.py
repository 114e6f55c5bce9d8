"""The app on board, as firmware/crazyflie/src/flight.c: who flies while stabilizer.controller is 6."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from deploy.crazyflie.guard import (
    AS_SHADOW,
    BENCH,
    BY_PID,
    COMMAND,
    DOWN,
    ESTIMATE,
    FINE,
    FLY,
    FLYING,
    HOLD,
    HOLDING,
    LIMITS,
    OFF,
    ON_BENCH,
    PARAMETERS,
    REASONS,
    SHADOW,
    SINKING,
    STOPPED,
    TAKING_OVER,
    TICK,
    Guard,
    Landing,
    Seen,
    allowed,
    near,
)
from deploy.crazyflie.simulator.setpoints import PLACE, ZERO, Mode, Setpoint

if TYPE_CHECKING:
    from deploy.crazyflie.simulator.onboard import Onboard
    from deploy.crazyflie.simulator.sensed import Sensed

Shares = tuple[float, float, float, float]  # of the largest force, per rotor
NOTHING: Shares = (0.0, 0.0, 0.0, 0.0)
OLDEST = 0.2  # s, of a set point; then the PID controller takes over
STANDS = 0.5  # s for which a thrust curve that is not near has to stand, before it is put right
BIT_OF_MODE, BIT_OF_CURVE = 31, 30  # of `replaced`
CURVE = tuple(f"policy.thrust{k}" for k in range(3))


def stay(place: tuple[float, ...], height: float) -> Setpoint:
    """To be over this place (x, y, ...) m at this height, with the heading as it is."""
    return Setpoint(modes=replace(PLACE, yaw=Mode.VELOCITY), position=(place[0], place[1], height))


class OutOfTree:
    """Between the policy and the PID controller. `select` when controller 6 is chosen, then `update` in every cycle."""

    def __init__(
        self,
        policy: Onboard | None,
        parameters: dict[str, float],
        pid: Callable[[Setpoint, bool], Shares],
        say: Callable[[str], None],
    ) -> None:
        """`parameters` of the vehicle. `pid` flies by it, told whether it did so in the last cycle."""
        self.policy, self.parameters, self.pid_flies, self.say = policy, parameters, pid, say
        self.guard, self.replaced, self.age = Guard(), 0, 0.0
        self._airframe = policy.curve if policy is not None else (0.0, 0.0, 0.0)  # N: c0, c1, c2
        self._obeyed: list[float] = []  # the parameters as they were taken last
        self._written, self._wrote, self._near = self._airframe, 0.0, True  # the tuned curve; s, since when; if near
        self.select()

    def select(self) -> None:
        """Controller 6 was chosen anew."""
        self.state, self.reason, self.chosen = BY_PID, FINE, OFF
        self.failed = self._begun = self._computed = self._piloted = False
        self._selected, self._since = True, 0.0
        self.force = self.pid = NOTHING  # what the policy and the PID controller ask for
        self._load = 0.0  # mean of what the rotors got in the last cycle
        self._descent: Landing | None = None

    def leave(self) -> None:
        """Another controller was chosen."""
        self.state = BY_PID
        if self.policy is not None:
            self.policy.stop()

    @property
    def flying(self) -> bool:
        """Whether the policy flies, if only in part."""
        return self.state in (TAKING_OVER, FLYING)

    @property
    def landing(self) -> bool:
        """Whether it was handed back and is still in the air."""
        return self.state in (HOLDING, SINKING)

    @property
    def told(self) -> tuple[int, int, int, int]:
        """The log variables flying, failed, state, reason."""
        return self.flying, self.failed, self.state, self.reason

    def update(
        self, setpoint: Setpoint, sensed: Sensed, now: float, voltage: float, variance: float, in_the_air: bool
    ) -> Shares:
        """The forces that the rotors get, at `now` (s): V of the battery, m^2 of the estimator's position."""
        seen = Seen(sensed.position, sensed.rotation, sensed.velocity, sensed.rate, voltage, self._load, variance)
        shares = self._decide(setpoint, sensed, seen, now, in_the_air)
        self._load = sum(shares) / len(shares)
        return shares

    def _decide(self, setpoint: Setpoint, sensed: Sensed, seen: Seen, now: float, in_the_air: bool) -> Shares:
        self._now, self._sensed, self._setpoint, self._seen = now, sensed, setpoint, seen
        self._obey(in_the_air)
        if self._begun:
            self.guard.weigh(seen, now)
        self.age = now - setpoint.time
        fresh = setpoint.is_position and self.age <= OLDEST + TICK
        computed, self._computed = self._computed, False
        blind = not all(map(math.isfinite, self._seen.motion))
        if blind and self.chosen == FLY and computed:
            self._find(ESTIMATE)
        if blind:
            self.state, self._piloted = STOPPED, False
            return NOTHING
        if self.chosen == FLY and self.reason != FINE:
            return self._come_down()
        if self.chosen == FLY and fresh:
            return self._fly(computed)
        if self.chosen == BENCH:
            self._begin()
            self._pilot(setpoint if fresh else stay(self.guard.home, self.guard.home[2]))
            self._consider(fresh, computed)
            self.state = ON_BENCH
            return NOTHING
        shares = self._pilot(setpoint)
        self.state = BY_PID
        if self.chosen == SHADOW:
            self._begin()
            self._consider(fresh, computed)
            self.state = AS_SHADOW
        return shares

    def _obey(self, in_the_air: bool) -> None:
        values = [self.parameters[key] for key in PARAMETERS]
        if values != self._obeyed:
            self._limit()
            self._obeyed = [self.parameters[key] for key in PARAMETERS]
        if self.policy is not None:
            self._obey_curve(self.policy)
        mode = int(self.parameters["policy.mode"])
        if self._selected:
            self.chosen = SHADOW if mode == BENCH and in_the_air else mode
        if mode == OFF:
            self.chosen = OFF
        self._selected = False

    def _limit(self) -> None:
        """What is not allowed becomes the usual value."""
        for bit, name in enumerate([*LIMITS, "mode"]):
            key = f"policy.{name}"
            value = self.parameters[key]
            taken = allowed(name, value)
            if taken != value:
                self.parameters[key] = taken
                self.replaced |= 1 << (BIT_OF_MODE if name == "mode" else bit)
                bounds = "0..3" if name == "mode" else f"within {LIMITS[name][1]}..{LIMITS[name][2]}"
                self.say(f"POLICY: {key} is not {bounds}, now {taken:g}\n")
            if name != "mode":
                self.guard.limits[name] = taken

    def _obey_curve(self, policy: Onboard) -> None:
        """Its three numbers come by radio, one by one: those that are not near may be half of a curve that is."""
        c0, c1, c2 = (self.parameters[key] for key in CURVE)
        written = c0, c1, c2
        if written != self._written:
            self._written, self._wrote, self._near = written, self._now, near(written, self._airframe)
        if self._near:
            policy.curve = (c0, c1, c2)
        elif self._selected or self._now - self._wrote >= STANDS - TICK:
            policy.curve = self._written = self._airframe
            self._near = True
            self.parameters.update(zip(CURVE, self._airframe, strict=True))
            self.replaced |= 1 << BIT_OF_CURVE
            self.say("POLICY: policy.thrust0..2 are too far from the airframe's curve, now its own\n")

    @property
    def _answered(self) -> bool:
        """Whether `force` is what the policy asked for since it began."""
        return self.policy is not None and self.policy.answered

    def _begin(self) -> None:
        if not self._begun:
            self.guard.begin(self._seen, self._now)
        self._begun = True

    def _find(self, reason: int) -> None:
        self.reason = reason
        said = "handed back" if self.chosen == FLY else "would hand back"
        self.say(f"POLICY: {said}: {REASONS[reason]}\n")

    def _pilot(self, setpoint: Setpoint) -> Shares:
        self.pid = self.pid_flies(setpoint, self._piloted)
        self._piloted = True
        return self.pid

    def _compute(self, setpoint: Setpoint, computed: bool) -> int:
        """The policy's step, when it is due: what it asks for is in `force`."""
        if self.policy is None:
            return COMMAND
        if not computed:
            self.policy.stop()
        self._computed = True
        thrusts = self.policy.update(setpoint, self._sensed)
        if not self.policy.answered:
            return FINE
        if thrusts is None:
            return COMMAND
        cap, most = self.guard.limits["cap"], self.policy.most
        a, b, c, d = (t / most if not t / most > cap else cap for t in thrusts)
        reason = self.guard.step((a, b, c, d), self.policy.duration)
        if reason == FINE:
            self.force = (max(a, 0.0), max(b, 0.0), max(c, 0.0), max(d, 0.0))
        return reason

    def _fly(self, computed: bool) -> Shares:
        self._begin()
        if not (computed and self._answered):
            self._since = self._now
        guard = self.guard
        reason = guard.look(self._seen, self._now) or guard.time(self._now) or self._compute(self._setpoint, computed)
        if reason != FINE:
            self._find(reason)
            return self._come_down()
        share = guard.share(self._now - self._since) if self._answered else 0.0
        self.state = TAKING_OVER if share < 1.0 else FLYING
        if share >= 1.0:
            self._piloted = False
            return self.force
        own = self._pilot(self._setpoint)
        a, b, c, d = (p + share * (f - p) for p, f in zip(own, self.force, strict=True))
        return a, b, c, d

    def _come_down(self) -> Shares:
        """The PID controller brakes, stays, lands."""
        position, velocity = self._sensed.position, self._sensed.velocity
        if self._descent is None:
            self._descent, self.failed = Landing(position, velocity, self._now), True
            # Anew, also where it flew in part: to hold the heading that it has now, not the one of the last set point,
            # and without the integrals that grew against the policy.
            self._piloted = False
        descent = self._descent
        height = descent.height(position, velocity, self._now)
        if descent.down:
            self.state, self._piloted = DOWN, False
            return NOTHING
        self.state = SINKING if self._now - descent.began > HOLD + TICK else HOLDING
        return self._pilot(stay(descent.place, height))

    def _consider(self, fresh: bool, computed: bool) -> None:
        """The policy computes, and somebody else flies or nobody: what the guard would say first stays in `reason`."""
        x, y, z = self.guard.home
        told = self._setpoint if fresh else replace(self._setpoint, position=(x, y, z), velocity=ZERO)
        found = self.guard.look(self._seen, self._now)
        step = self._compute(told, computed)
        if step != FINE:
            self._computed = False
        if self.reason == FINE and (found or step):
            self._find(found or step)


def parameters(policy: Onboard) -> dict[str, tuple[str, float]]:
    """The parameters that the app adds, with type and default."""
    return {**PARAMETERS, **{key: ("float", value) for key, value in zip(CURVE, policy.curve, strict=True)}}

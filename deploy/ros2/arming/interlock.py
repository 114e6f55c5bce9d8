"""What a robot's motors get, as a flight controller decides it: the policy's commands, a human's, its own, or nothing.

    disarmed --armed--> armed --command--> flying --override--> override
    flying, override --commands or arming lost, the override ended--> holding --> landing --> stopped
    flying, override --disarmed--> landing
    anything --emergency stop, or any trouble on the ground--> stopped --told to disarm--> disarmed

Commands may stay away for `hold_s`. The last one is held for `BRIDGE_S` of it; then, in the air, the pilot keeps the
robot where it is, as nobody stays upright under motor commands that do not change. After `hold_s` the robot goes down
the ladder of `deploy/safety`: which trouble begins on which rung, and for how long, is the table there; `pilot` flies
it with the robot's own sensors. A robot without one is stopped at once. Nobody commands a robot that is on the ladder,
and one that has stopped stays so until it was told to disarm and is armed anew, while nobody commands: neither a lost
link that comes back nor a restarted program starts it again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.ros2.simulation.pilot import Pilot

Array = NDArray[Any]

DISARMED, ARMED, FLYING, OVERRIDE, STOPPED = "disarmed", "armed", "flying", "override", "stopped"
HOLDING, LANDING = "holding", "landing"
RUNGS = {"hold": HOLDING, "land": LANDING, "off": STOPPED}
LADDER = (HOLDING, LANDING)
COMMANDED = (FLYING, OVERRIDE)
AIRBORNE = (*COMMANDED, *LADDER)
BRIDGE_S = 0.06  # s for which the last command is held


class Interlock:
    """Times are in seconds of one clock that never jumps."""

    def __init__(self, safe: Array, hold_s: float, silence_s: float, pilot: Pilot | None = None) -> None:
        """`safe` (k,): for motors that may not turn; `silence_s`: the oldest `armed` that still counts."""
        self.safe, self.hold_s, self.silence_s, self.pilot = safe, hold_s, silence_s, pilot
        self.state, self.reason = DISARMED, ""
        self.emergency = False
        self.contested = ""  # who speaks on `armed` beside its owner
        self._armed, self._heard = False, -math.inf
        self._command, self._override = (safe, -math.inf), (safe, -math.inf)  # values, when they came
        self._own, self._bridging = safe, False  # what the pilot says; whether it stands in for who commands

    def arm(self, now: float, armed: bool) -> None:
        """`armed` was heard."""
        self._armed, self._heard = armed, now
        if armed:
            return
        if self.state in COMMANDED:
            self._leave("disarmed")
        elif self.state not in LADDER:
            self.state, self.reason = DISARMED, ""

    def command(self, now: float, values: Array) -> None:
        """A command of the policy arrived; `values` are those of all topics."""
        self._command = values, now

    def override(self, now: float, values: Array) -> None:
        """A human's command arrived."""
        self._override = values, now

    def stop(self, reason: str) -> None:
        """Motors off."""
        if self.state != STOPPED:
            self.state, self.reason = STOPPED, reason

    def reset(self) -> None:
        """The robot was put back at its start; what was flying it lands no more."""
        if self.state in LADDER:
            self.stop(self.reason)
        if self.pilot:
            self.pilot.reset()

    def motors(self, now: float) -> Array:
        """What the motors get now (k,)."""
        self._decide(now)
        given = {FLYING: self._command, OVERRIDE: self._override}.get(self.state)
        if given is not None:
            return self._bridged(now, *given)
        if self.state in LADDER and self.pilot:
            rung, self._own = self.pilot.fly(self.reason)
            self.state = RUNGS[rung]
        self._bridging = False
        return self._own if self.state in LADDER else self.safe

    def _bridged(self, now: float, values: Array, arrived: float) -> Array:
        """The commands of who flies it, or the pilot's, while they are late."""
        late = now - arrived > BRIDGE_S
        if self.pilot and late and not self.pilot.grounded():
            self._bridging = True
            return self.pilot.fly("commands lost")[1]
        if self.pilot and self._bridging:
            self.pilot.resume()
        self._bridging = False
        return values

    def _leave(self, reason: str) -> None:
        """Nobody commands it any more: down the ladder, or off."""
        if self.pilot is None or self.pilot.grounded() or self.state not in COMMANDED:
            self.stop(reason)
        else:
            self.state, self.reason = HOLDING, reason  # the pilot knows the rung

    def _decide(self, now: float) -> None:
        commanded, overridden = (now - heard <= self.hold_s for _, heard in (self._command, self._override))
        heard = now - self._heard <= self.silence_s
        if self.state == DISARMED and heard and self._armed:
            self.reason = self._against_arming(commanded, overridden)
            self.state = DISARMED if self.reason else ARMED
        if self.state in (DISARMED, STOPPED):
            return
        if self.emergency:
            self.stop("emergency stop")
        elif self.state in LADDER:
            return
        elif not heard:
            self._leave("arming lost")
        elif overridden:
            self.state = OVERRIDE
        elif self.state == OVERRIDE:
            self._leave("override ended")
        elif self.state == FLYING and not commanded:
            self._leave("commands lost")
        elif self.state == ARMED and commanded and np.any(self._command[0]):
            self.state = FLYING
            if self.pilot:
                self.pilot.reset()

    def _against_arming(self, commanded: bool, overridden: bool) -> str:
        """Why it does not become armed though it is told to."""
        if self.emergency:
            return "emergency stop"
        if commanded or overridden:
            return "somebody commands it already; it is armed in silence only"
        return self.contested

    @property
    def summary(self) -> str:
        """State and reason."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

"""What a robot's motors get, as a flight controller decides it: nothing, the policy's commands, or a human's.

    disarmed --armed--> armed --command--> flying --override--> override
    armed, flying, override --anything wrong--> stopped --told to disarm--> disarmed

Commands are held for `hold_s` when they stay away; then, as at any trouble, the motors stop, and stay so until it was
told to disarm and is armed anew, while nobody commands: neither a lost link that comes back nor a restarted program
starts them again.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

DISARMED, ARMED, FLYING, OVERRIDE, STOPPED = "disarmed", "armed", "flying", "override", "stopped"


class Interlock:
    """Times are in seconds of one clock that never jumps."""

    def __init__(self, safe: Array, hold_s: float, silence_s: float) -> None:
        """`safe` (k,): for motors that may not turn; `silence_s`: the oldest `armed` that still counts."""
        self.safe, self.hold_s, self.silence_s = safe, hold_s, silence_s
        self.state, self.reason = DISARMED, ""
        self.emergency = False
        self.contested = ""  # who speaks on `armed` beside its owner
        self._armed, self._heard = False, -math.inf
        self._command, self._override = (safe, -math.inf), (safe, -math.inf)  # values, when they came

    def arm(self, now: float, armed: bool) -> None:
        """`armed` was heard."""
        self._armed, self._heard = armed, now
        if not armed and self.state != DISARMED:
            if self.state in (FLYING, OVERRIDE):
                self.stop("disarmed")
            else:
                self.state, self.reason = DISARMED, ""
        elif not armed:
            self.reason = ""

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

    def motors(self, now: float) -> Array:
        """What the motors get now (k,)."""
        self._decide(now)
        return {FLYING: self._command, OVERRIDE: self._override}.get(self.state, (self.safe, 0.0))[0]

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
        elif not heard:
            self.stop("armed is not heard any more")
        elif overridden:
            self.state = OVERRIDE
        elif self.state == OVERRIDE:
            self.stop("the override ended")
        elif self.state == FLYING and not commanded:
            self.stop("no commands")
        elif self.state == ARMED and commanded and self._command[0].any():
            self.state = FLYING

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

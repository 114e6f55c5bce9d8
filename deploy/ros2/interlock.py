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
        self._armed, self._heard = False, -math.inf
        self._command, self._override = (safe, -math.inf), (safe, -math.inf)  # values, when they came
        self._senders: dict[str, bytes] = {}  # by topic

    def arm(self, now: float, armed: bool) -> None:
        """`armed` was heard."""
        self._armed, self._heard = armed, now
        if not armed and self.state != DISARMED:
            if self.state in (FLYING, OVERRIDE):
                self.stop("disarmed")
            else:
                self.state, self.reason = DISARMED, ""

    def command(self, now: float, values: Array, sender: bytes, topic: str = "") -> None:
        """A command of the policy arrived; `values` are those of all topics."""
        if now - self._command[1] > self.hold_s:
            self._senders.clear()
        if self._senders.setdefault(topic, sender) != sender and self.state in (ARMED, FLYING):
            self.stop("two publishers of commands")
        self._command, self._senders[topic] = (values, now), sender

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
        if self.state == DISARMED and heard and self._armed and not (self.emergency or commanded or overridden):
            self.state = ARMED
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

    @property
    def summary(self) -> str:
        """State and reason."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

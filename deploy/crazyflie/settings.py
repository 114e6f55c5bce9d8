"""Settings of driver=crazyflie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from deploy.crazyflie.guard import LIMITS, MODES, OFF


@dataclass
class Settings:
    """Settings of the Crazyflie driver."""

    uri: str = field(default="udp://127.0.0.1:19850", metadata={"help": "radio://0/80/2M/E7E7E7E7E7 or udp://..."})
    robot: str = field(default="crazyflie", metadata={"help": "which airframe it is"})
    onboard: bool = field(default=True, metadata={"help": "the policy flies on the vehicle, as controller 6"})
    mode: str = field(
        default="fly",
        metadata={"help": "on board: fly; shadow (PID flies, the policy computes); bench (no take-off, motors off)"},
    )
    board: str = field(
        default="", metadata={"help": f"what the guard on board allows, as cap=0.7,seconds=5; of: {', '.join(LIMITS)}"}
    )
    board_log: str | None = field(
        default=None, metadata={"help": "what policy and PID controller on board ask for, to this file (.csv)"}
    )
    unprotected: bool = field(
        default=False, metadata={"help": "onboard=false by radio: nothing stops the motors when the link is lost"}
    )
    height: float = field(default=0.5, metadata={"help": "m above the start, to take off to and to hold"})
    voltage: float = field(default=3.5, metadata={"help": "V below which it does not take off"})
    empty: float = field(
        default=LIMITS["voltage"][0],
        metadata={"help": "V, reckoned without load, below which, in flight and for five seconds, it lands"},
    )
    connect_s: float = field(default=15.0, metadata={"help": "s in which it must be connected and know its position"})
    cache: str | None = field(default=None, metadata={"help": "folder in which to remember the firmware's tables"})
    link_loss_s: float = field(default=0.4, metadata={"help": "s without data after which the link counts as lost"})
    stamps: bool = field(
        default=True,
        metadata={"help": "false: ages count from arrival, as for a simulator that is slower than the clock"},
    )
    transfer: bool = field(default=False, metadata={"help": "allow another robot than the policy was made for"})

    def __post_init__(self) -> None:
        for name in ("height", "connect_s", "link_loss_s"):
            if not (getattr(self, name) > 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if MODES.get(self.mode, OFF) == OFF:
            raise ValueError(f"mode={self.mode}: is fly, shadow or bench")
        if not self.onboard and (self.mode != "fly" or self.board or self.board_log):
            raise ValueError("mode, board and board_log are of a policy on board: they need onboard=true")
        if self.board_log is not None and not self.board_log.endswith(".csv"):
            raise ValueError(f"board_log={self.board_log}: the name of such a log ends in .csv")
        self.allowances()

    def allowances(self) -> dict[str, float]:
        """What `board` says, by parameter; ValueError when it says nothing."""
        found = {}
        for part in filter(None, self.board.split(",")):
            name, _, value = part.partition("=")
            if name.strip() not in LIMITS:
                raise ValueError(f"board: there is no {part!r}; choices: {', '.join(LIMITS)}")
            try:
                found[name.strip()] = float(value)
            except ValueError:
                raise ValueError(f"board: {part!r} has no number") from None
        return found

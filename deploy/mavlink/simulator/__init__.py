"""A simulated multicopter that speaks MAVLink as PX4 does: what driver=mavlink is rehearsed on.

Its airframe flies in the engine `flight`; its controllers are a plain cascade of ours, not PX4's. What a client can
tell follows PX4's documentation of offboard mode, and PX4-Autopilot's mavlink_receiver and commander (main, 2026).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Config:
    """Settings of the simulation."""

    uri: str = field(
        default="udpout://127.0.0.1:14540",
        metadata={"help": "where clients listen, or udpin://HOST:PORT: where they call"},
    )
    robot: str = field(default="x500", metadata={"help": "airframe: x500, racer, crazyflie, ..."})
    heading: float = field(default=0.0, metadata={"help": "degrees from north that its nose points at the start"})
    rate_gain: float = field(default=20.0, metadata={"help": "1/s, of its rate loop about roll and pitch"})
    yaw_gain: float = field(default=8.0, metadata={"help": "1/s, of its rate loop about yaw"})
    hover_thrust: float = field(default=0.5, metadata={"help": "share of the thrust that carries it (MPC_THR_HOVER)"})
    offboard_loss_s: float = field(
        default=1.0, metadata={"help": "s without set points until it lands by itself (COM_OF_LOSS_T)"}
    )
    offboard_loss_action: int = field(
        default=4, metadata={"help": "what it says that it does then (COM_OBL_RC_ACT); it lands whatever that is"}
    )
    arms: bool = field(default=True, metadata={"help": "false: it refuses, as one that fails its checks"})
    refuses_hold: bool = field(default=False, metadata={"help": "true: it does not hold its place, only land"})
    odometry: bool = field(default=True, metadata={"help": "false: it has no ODOMETRY, only the parts of it"})
    voltage: float = field(default=16.2, metadata={"help": "V of its battery"})
    seconds: float | None = field(default=None, metadata={"help": "how long to run (default: until interrupted)"})

    def __post_init__(self) -> None:
        for name in ("rate_gain", "yaw_gain", "offboard_loss_s"):
            if not (getattr(self, name) > 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0.05 <= self.hover_thrust <= 0.95:
            raise ValueError(f"hover_thrust is 0.05 to 0.95, got {self.hover_thrust:g}")
        if not (math.isfinite(self.heading) and 0.0 <= self.voltage < 65.0):
            raise ValueError(f"needs a heading and 0 to 65 V, got {self.heading:g} and {self.voltage:g}")

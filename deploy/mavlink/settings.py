"""Settings of driver=mavlink."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sim.robots import ROBOTS


@dataclass
class Settings:
    """Settings of the MAVLink driver."""

    uri: str = field(
        default="udpin://127.0.0.1:14540",
        metadata={
            "help": "udpin://HOST:PORT: listen there, as for PX4's offboard link; udpout://HOST:PORT: call there"
        },
    )
    robot: str | None = field(
        default=None,
        metadata={
            "help": "airframe whose rotors the policy commands (default: the policy's own; x500 where it flies any)"
        },
    )
    height: float = field(default=1.5, metadata={"help": "m above the start, to take off to and to hold"})
    heading: str = field(
        default="start", metadata={"help": "the world's x axis: start (where the nose points before) or north"}
    )
    rate_gain: float = field(
        default=20.0, metadata={"help": "1/s: what the vehicle's rate loop makes of an error in roll or pitch rate"}
    )
    yaw_gain: float = field(default=8.0, metadata={"help": "1/s: the same of yaw"})
    most_rate: float = field(default=8.0, metadata={"help": "rad/s: no faster turn is asked for, about any axis"})
    hover_thrust: float | None = field(
        default=None, metadata={"help": "share of the thrust that carries it (default: its parameter MPC_THR_HOVER)"}
    )
    connect_s: float = field(
        default=15.0, metadata={"help": "s in which it must answer and know its position; parameters take 3 s more"}
    )
    link_loss_s: float = field(default=0.5, metadata={"help": "s without its state after which the link is lost"})
    stamps: bool = field(
        default=True,
        metadata={"help": "false: ages count from arrival, as for a simulator that is slower than the clock"},
    )
    transfer: bool = field(default=False, metadata={"help": "allow another robot than the policy was made for"})

    def __post_init__(self) -> None:
        for name in ("height", "rate_gain", "yaw_gain", "most_rate", "connect_s", "link_loss_s"):
            if not (getattr(self, name) > 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.heading not in ("start", "north"):
            raise ValueError(f"heading={self.heading}: is start or north")
        if self.hover_thrust is not None and not 0.05 <= self.hover_thrust <= 0.95:
            raise ValueError(f"hover_thrust is 0.05 to 0.95 of the thrust, got {self.hover_thrust:g}")
        if self.robot is not None and self.robot not in ROBOTS and ":" not in self.robot:
            raise ValueError(f"robot={self.robot}: nobody lists it; choices: {', '.join(ROBOTS)}")
        parsed(self.uri)


def parsed(uri: str) -> tuple[bool, str, int]:
    """Whether to listen (else: call), host and port of a link; ValueError."""
    kind, _, place = uri.partition("://")
    host, _, port = place.rpartition(":")
    if kind not in ("udpin", "udpout") or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"uri={uri}: needs udpin://HOST:PORT or udpout://HOST:PORT (a serial line: by mavlink-router)")
    return kind == "udpin", host, int(port)

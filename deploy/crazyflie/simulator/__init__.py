"""A simulated Crazyflie: its on-board software as far as a client can tell, and its world.

Behaviour follows bitcraze/crazyflie-firmware @2a18fc29 (August 2026) and the packets of cflib 0.1.34.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

POSITIONING = ("flow", "lighthouse", "mocap", "truth")


@dataclass
class Config:
    """Settings of the simulation."""

    uri: str = field(
        default="udp://127.0.0.1:19850", metadata={"help": "of the first vehicle, the others follow; port 0: free ones"}
    )
    vehicles: int = field(default=1, metadata={"help": "vehicles in one airspace, one port each"})
    robot: str = field(default="crazyflie", metadata={"help": "airframe: crazyflie, crazyflie_decks, ..."})
    policy: str | None = field(default=None, metadata={"help": "policy file on board, as stabilizer.controller 6"})
    runtime: str = field(
        default="file", metadata={"help": "what runs it: file (onnxruntime), c (compiled), chip (emulated STM32F405)"}
    )
    spacing: float = field(default=1.0, metadata={"help": "m between the vehicles' starts, along y"})
    battery: float = field(default=4.1, metadata={"help": "V at the beginning, without load"})
    resistance: float = field(
        default=0.15, metadata={"help": "Ohm, of battery and wires: how the voltage sags; 0.3: old"}
    )
    positioning: str = field(
        default="flow",
        metadata={"help": f"what feeds the state estimator: {', '.join(POSITIONING)} (the estimate is the truth)"},
    )
    dropout: float = field(default=0.02, metadata={"help": "share of the time without flow or position, in bursts"})
    outliers: float = field(default=5e-4, metadata={"help": "share of flow or positions that are wrong"})
    seed: int = field(default=0, metadata={"help": "of what sensors and drop-outs do"})
    auto_arm: bool | None = field(
        default=None, metadata={"help": "arm without being asked (default: as compiled, brushed ones do)"}
    )
    seconds: float | None = field(default=None, metadata={"help": "how long to run (default: until interrupted)"})

    def __post_init__(self) -> None:
        if not 1 <= self.vehicles <= 100:
            raise ValueError(f"vehicles must be in 1..100, got {self.vehicles}")
        if not 3.0 <= self.battery <= 4.3:
            raise ValueError(f"battery must be in 3.0..4.3 V, got {self.battery:g}")
        if self.positioning not in POSITIONING:
            raise ValueError(f"positioning must be one of {', '.join(POSITIONING)}, got {self.positioning!r}")
        for name in ("dropout", "outliers"):
            if not 0.0 <= getattr(self, name) <= 0.5:
                raise ValueError(f"{name} must be in 0..0.5, got {getattr(self, name):g}")
        if not 0.0 <= self.resistance <= 1.0:
            raise ValueError(f"resistance must be in 0..1 Ohm, got {self.resistance:g}")
        if not (math.isfinite(self.spacing) and self.spacing >= 0.0):
            raise ValueError(f"spacing must not be negative, got {self.spacing:g}")

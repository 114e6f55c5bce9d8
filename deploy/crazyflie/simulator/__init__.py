"""A simulated Crazyflie: its on-board software as far as a client can tell, and its world.

Behaviour follows bitcraze/crazyflie-firmware @2a18fc29 (August 2026) and the packets of cflib 0.1.34.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


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
    battery: float = field(default=4.1, metadata={"help": "V at the beginning"})
    auto_arm: bool = field(default=False, metadata={"help": "arm without being asked, the default of brushed vehicles"})
    seconds: float | None = field(default=None, metadata={"help": "how long to run (default: until interrupted)"})

    def __post_init__(self) -> None:
        if not 1 <= self.vehicles <= 100:
            raise ValueError(f"vehicles must be in 1..100, got {self.vehicles}")
        if not 3.0 <= self.battery <= 4.3:
            raise ValueError(f"battery must be in 3.0..4.3 V, got {self.battery:g}")
        if not (math.isfinite(self.spacing) and self.spacing >= 0.0):
            raise ValueError(f"spacing must not be negative, got {self.spacing:g}")

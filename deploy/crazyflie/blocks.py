"""The log variables that driver=crazyflie lives by, in blocks: each comes in one packet, every control step."""

from __future__ import annotations

from deploy.crazyflie.board_log import ASKED, STATUS
from deploy.crazyflie.link import Block

# At most 26 bytes and 9 variables each.
SENSED: dict[str, Block] = {
    "translation": dict.fromkeys((f"stateEstimate.{v}" for v in ("x", "y", "z", "vx", "vy", "vz")), "float"),
    "rotation": {
        **dict.fromkeys((f"stateEstimate.{v}" for v in ("qw", "qx", "qy", "qz")), "float"),
        **dict.fromkeys(("gyro.x", "gyro.y", "gyro.z", "pm.vbat"), "FP16"),
        "supervisor.info": "uint16_t",
    },
    "rest": {
        **dict.fromkeys((f"kalman.varP{axis}" for axis in "XYZ"), "float"),
        **dict.fromkeys((f"motor.m{index}" for index in (1, 2, 3, 4)), "uint16_t"),
    },
}


def blocks(onboard: bool) -> dict[str, Block]:
    """By name; `onboard`: with what the policy on the vehicle says of itself."""
    return {**SENSED, "rest": {**SENSED["rest"], **STATUS}, "policy": ASKED} if onboard else SENSED

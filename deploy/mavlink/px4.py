"""What PX4 means by MAVLink's free numbers: its flight modes (px4_custom_mode.h), and names of what it refuses."""

from __future__ import annotations

OFFBOARD, HOLD, LAND = (6, 0), (4, 3), (4, 6)  # main mode, mode within it
MODES = {
    (1, 0): "manual",
    (2, 0): "altitude",
    (3, 0): "position",
    (4, 1): "ready",
    (4, 2): "take-off",
    HOLD: "hold",
    (4, 4): "mission",
    (4, 5): "return",
    LAND: "land",
    (4, 9): "precision landing",
    (5, 0): "acro",
    OFFBOARD: "offboard",
    (7, 0): "stabilized",
}
SET_MODE, ARM, SET_INTERVAL = 176, 400, 511  # MAV_CMD: a flight mode, motors on or off, how often a message comes
RESULTS = ("accepted", "refused for now", "refused", "not supported", "failed", "in progress", "cancelled")
ACCEPTED, DENIED, IN_PROGRESS = 0, 2, 5
FORCE = 21196.0  # MAV_CMD_COMPONENT_ARM_DISARM: whatever speaks against it; disarming so stops the motors in flight


def mode_of(custom_mode: int) -> tuple[int, int]:
    """Main mode and mode within it, of a heartbeat's."""
    return custom_mode >> 16 & 0xFF, custom_mode >> 24 & 0xFF


def custom_mode(mode: tuple[int, int]) -> int:
    """The inverse of `mode_of`."""
    return mode[0] << 16 | mode[1] << 24


def name_of(mode: tuple[int, int]) -> str:
    """For people."""
    return MODES.get(mode, f"{mode[0]}.{mode[1]}")


def result_of(result: int) -> str:
    """What a vehicle answered a command, for people."""
    return RESULTS[result] if 0 <= result < len(RESULTS) else f"answered {result}"

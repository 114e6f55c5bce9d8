"""How a legged robot from a file is carried out."""

from __future__ import annotations

from dataclasses import dataclass

CONTACTS = ("feet", "floor", "all")
# Servos of ours have a stiffness of the robot's weight times its height, and this ratio of damping to stiffness (s):
# for a Go1 33 N m/rad and 0.5 N m s/rad, where MuJoCo Playground has 35 and 0.5.
LAG = 0.015
HOLD = "hold"  # name of the spring that may hold the base, and of its site
ROPE = 20.0  # m: so high that a spring's force hardly changes while the robot moves


@dataclass(frozen=True)
class Legs:
    """How a legged robot is carried out."""

    stiffness: float = 0.0  # N m/rad, of servos that take the place of motors; 0: by weight and length of the legs
    damping: float = 0.0  # N m s/rad; 0: `LAG` times that
    # feet: nothing but feet and floor touch, in pyramidal cones; floor: all parts touch the floor, but not one another;
    # all: as the file has it
    contacts: str = "feet"
    timestep: float = 0.0  # s, of the physics; 0: the file's
    held: bool = False  # whether worlds may hold the base from above: by a spring that is fixed `ROPE` above it
    ball: bool = False  # whether there is one, which all touch that touch the floor; as large as a football to a T1

    def __post_init__(self) -> None:
        if self.contacts not in CONTACTS:
            raise ValueError(f"contacts {self.contacts!r} is not one of {', '.join(CONTACTS)}")
        if min(self.stiffness, self.damping, self.timestep) < 0.0 or self.timestep > 0.02:
            raise ValueError("needs stiffness >= 0, damping >= 0 and 0 <= timestep <= 0.02")

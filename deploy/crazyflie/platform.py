"""What the firmware is compiled with for one kind of vehicle, and the thrust its rotors may give.

A controller commands every rotor's thrust as a share of THRUST_MAX; the firmware cuts it to 0..1 and gives the PWM
ratio that reaches this thrust at the present voltage. THRUST_MAX is what a rotor still gives when the battery is low,
less than it could when full (bitcraze/crazyflie-firmware pull request 1526): of the 0.149 N at 21 702 rpm that the
airframe `crazyflie` has, 0.12 N are used, so a policy's commands above u = 0.898 do no more than 0.898. Below
THRUST_MIN, where the motors' curve is not known, the rotor stops: u < 0.294 there.
"""

from __future__ import annotations

from typing import NamedTuple


class Platform(NamedTuple):
    """The firmware's build, and its limits in N per rotor."""

    build: str  # the parameters' column in simulator/contents
    least: float  # THRUST_MIN
    most: float  # THRUST_MAX

    def thrust(self, share: float) -> float:
        """The thrust in N that a commanded share of the largest gives."""
        thrust = self.most * min(max(share, 0.0), 1.0)
        return thrust if thrust >= self.least else 0.0


# platform_defaults_cf2.h (propellers of the 2.1+, as compiled by default) and platform_defaults_cf21bl.h.
CRAZYFLIE_2 = Platform("cf2", 0.0128175784, 0.12)
BRUSHLESS = Platform("cf21bl", 0.0213626307, 0.2)


def platform(robot: str) -> Platform:
    """The platform of a Crazyflie airframe by name."""
    return BRUSHLESS if robot.startswith("crazyflie_brushless") else CRAZYFLIE_2

"""What the firmware is compiled with for one kind of vehicle, and the thrust its rotors may give.

A controller commands every rotor's thrust as a share of THRUST_MAX; the firmware cuts it to 0..1 and gives the PWM
ratio that reaches this thrust at the present voltage. THRUST_MAX is what a rotor still gives when the battery is low,
less than it could when full (bitcraze/crazyflie-firmware pull request 1526): of the 0.149 N at 21 702 rpm that the
airframe `crazyflie` has, 0.12 N are used, so a policy's commands above u = 0.898 do no more than 0.898. Below
THRUST_MIN, where the motors' curve is not known, the rotor stops: u < 0.294 there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

LEAST_VOLTAGE = 2.0  # V: below, the battery's measurement is not believed, and the motors stop


class Platform(NamedTuple):
    """The firmware's build, its limits in N per rotor, and its motors' curve."""

    build: str  # the parameters' column in simulator/contents
    least: float  # THRUST_MIN
    most: float  # THRUST_MAX
    curve: tuple[float, float, float, float]  # N per rotor = c0 + c1 v + c2 v^2 + c3 v^3, v in V: VMOTOR2THRUST0..3
    auto_arms: bool  # without CONFIG_MOTORS_REQUIRE_ARMING

    def thrust(self, share: float) -> float:
        """The thrust in N that a commanded share of the largest gives."""
        thrust = self.most * min(max(share, 0.0), 1.0)
        return thrust if thrust >= self.least else 0.0

    def thrust_at(self, volts: float) -> float:
        """The thrust in N of a rotor whose motor is at this voltage."""
        c0, c1, c2, c3 = self.curve
        return max(c0 + volts * (c1 + volts * (c2 + volts * c3)), 0.0)

    def volts(self, thrust: float) -> float:
        """The motor's voltage that gives a thrust in N: the one real root of the cubic (Cardano)."""
        c0, c1, c2, c3 = self.curve
        shift = -c2 / (3.0 * c3)
        half = shift**3 + (c2 * c1 - 3.0 * c3 * (c0 - thrust)) / (6.0 * c3 * c3)
        root = math.sqrt(half**2 + (c1 / (3.0 * c3) - shift**2) ** 3)
        return math.cbrt(half + root) + math.cbrt(half - root) + shift

    def ratio(self, thrust: float, supply: float) -> float:
        """The PWM ratio (above 1: out of reach) for a thrust in N per rotor, when the supply has this many V."""
        if supply < LEAST_VOLTAGE or thrust < self.least:
            return 0.0
        return self.volts(thrust) / supply


# platform_defaults_cf2.h (propellers of the 2.1+, as compiled by default) and platform_defaults_cf21bl.h.
CRAZYFLIE_2 = Platform(
    "cf2", 0.0128175784, 0.12, (-0.0247653792, 0.0652379353, -0.0267925050, 0.0067767893), auto_arms=True
)
BRUSHLESS = Platform(
    "cf21bl", 0.0213626307, 0.2, (-0.0140589267, 0.0426527326, 0.0018327760, 0.0020576975), auto_arms=False
)


def platform(robot: str) -> Platform:
    """The platform of a Crazyflie airframe by name."""
    return BRUSHLESS if robot.startswith("crazyflie_brushless") else CRAZYFLIE_2

"""The battery and the motors on it: voltage falls with what was drawn and with what is drawn, thrust with voltage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deploy.crazyflie.platform import Platform
from deploy.crazyflie.simulator.sensed import GRAVITY

if TYPE_CHECKING:
    from sim.robots.quadrotors import Quadrotor

EMPTY, FULL_VOLTAGE = 3.0, 4.2  # V
# V without load at 0, 10, .. 90 % of charge (pm_stm32f4.c of Bitcraze's firmware, LiPoTypicalChargeCurve) and at 100 %.
CURVE = (3.00, 3.78, 3.83, 3.87, 3.89, 3.92, 3.96, 4.00, 4.04, 4.10, 4.20)
# Per build: mAh of the battery that comes with it; A that everything but the motors draws; A per gram of thrust, and
# per square gram. cf2: fitted to the table of 16 thrusts in the firmware's docs/functional-areas/pwm-to-thrust.md.
# cf21bl: 350 mAh last for 10 minutes of hovering (Bitcraze's data sheet), taken as proportional to thrust.
SUPPLIES = {"cf2": (250.0, 0.24, 0.0584, 2.44e-4), "cf21bl": (350.0, 0.24, 0.043, 0.0)}
LAG = 0.01  # s, of the current behind the PWM: inductance of motors and wires (assumed)
HOUR = 3600.0  # s

Ratios = tuple[float, float, float, float]  # PWM ratios or rotor speed commands, fractions 0..1


def _at(share: float) -> float:
    """V without load at a share (0..1) of the charge."""
    place = min(max(share, 0.0), 1.0) * (len(CURVE) - 1)
    k = min(int(place), len(CURVE) - 2)
    return CURVE[k] + (place - k) * (CURVE[k + 1] - CURVE[k])


def _share(voltage: float) -> float:
    """The share (0..1) of the charge at a voltage without load."""
    if voltage >= CURVE[-1]:
        return 1.0
    k = min(max(bisect_right(CURVE, voltage) - 1, 0), len(CURVE) - 2)
    return max((k + (voltage - CURVE[k]) / (CURVE[k + 1] - CURVE[k])) / (len(CURVE) - 1), 0.0)


class Battery:
    """One cell. Behind its resistance (that of connector and wires included) the voltage sags by what is drawn."""

    def __init__(self, voltage: float, capacity: float = 250.0, resistance: float = 0.15) -> None:
        """V without load at the beginning, mAh, Ohm."""
        self.charge, self.capacity, self.resistance = _share(voltage), capacity, resistance
        self.voltage = self.lowest = voltage  # V as the vehicle measures it: now, and the lowest so far

    def draw(self, current: float, dt: float) -> None:
        """`dt` seconds at this current in A."""
        self.charge = max(0.0, self.charge - 1e3 * current * dt / (HOUR * self.capacity))
        self.voltage = max(_at(self.charge) - self.resistance * current, 0.0)
        self.lowest = min(self.lowest, self.voltage)

    @property
    def level(self) -> float:
        """Percent, as pm.batteryLevel: by the voltage alone, in steps of ten."""
        return 10.0 * min(sum(self.voltage > step for step in CURVE[:-1]), 9) if self.voltage >= EMPTY else 0.0


class Power:
    """Battery and motors of one vehicle."""

    def __init__(self, robot: Quadrotor, platform: Platform, battery: Battery) -> None:
        self.robot, self.platform, self.battery = robot, platform, battery
        _, self.idle, self.per_gram, self.per_square = SUPPLIES[platform.build]
        self.current = self.idle  # A

    def turn(self, ratios: Sequence[float], dt: float) -> Ratios:
        """The rotor speed commands (fractions 0..1 of the airframe's) that PWM ratios make; draws the current."""
        voltage = self.battery.voltage
        thrusts = [self.platform.thrust_at(ratio * voltage) for ratio in ratios]
        grams = 1e3 * sum(thrusts) / GRAVITY
        wanted = self.idle + grams * (self.per_gram + grams * self.per_square)
        self.current += (wanted - self.current) * min(dt / LAG, 1.0)
        self.battery.draw(self.current, dt)
        a, b, c, d = (min(self.robot.command_for(thrust), 1.0) for thrust in thrusts)
        return a, b, c, d

"""Voltage, current and thrust: the battery, the motors, and what the firmware makes of them."""

import math

import numpy as np
import pytest

from deploy.crazyflie.platform import BRUSHLESS, CRAZYFLIE_2, Platform
from deploy.crazyflie.simulator.battery import CURVE, SUPPLIES, Battery, Power
from sim.robots import robot
from tests.deploy.crazyflie.bench import Bench

DT = 0.002


@pytest.mark.parametrize("platform", [CRAZYFLIE_2, BRUSHLESS])
def test_the_motors_curve_and_its_inverse(platform: Platform):
    for thrust in np.linspace(platform.least, platform.most, 20):
        assert platform.thrust_at(platform.volts(thrust)) == pytest.approx(thrust, rel=1e-9)
    assert platform.ratio(0.9 * platform.least, 4.0) == platform.ratio(platform.most, 1.9) == 0.0
    assert platform.thrust_at(0.0) == 0.0


def test_the_largest_thrust_needs_what_the_firmware_says():
    """0.12 N at 3.08 V: Bitcraze chose it so that a battery that is nearly empty still gives it."""
    assert CRAZYFLIE_2.volts(0.12) == pytest.approx(3.08, abs=0.01)


def test_charge_and_voltage():
    for k, voltage in enumerate(CURVE):
        assert Battery(voltage).charge == pytest.approx(k / 10)
    assert Battery(4.3).charge == 1.0
    battery = Battery(4.0, capacity=250.0, resistance=0.2)
    battery.draw(2.0, 45.0)  # 25 mAh: a tenth
    assert battery.charge == pytest.approx(0.6) and battery.voltage == pytest.approx(3.96 - 0.4)
    assert battery.lowest == battery.voltage and battery.level == 10.0
    battery.draw(4.0, 3600.0)
    assert battery.charge == 0.0 and battery.level == 0.0


@pytest.mark.parametrize(("name", "minutes"), [("crazyflie", (6.0, 9.0)), ("crazyflie_brushless", (8.0, 11.0))])
def test_a_battery_lasts_as_bitcraze_says(name: str, minutes: tuple[float, float]):
    """Hovering: about 7 minutes, and 10 for the Brushless."""
    airframe = robot(name)
    platform = BRUSHLESS if "brushless" in name else CRAZYFLIE_2
    power = Power(airframe, platform, Battery(4.2, SUPPLIES[platform.build][0], 0.15))
    hover, seconds = airframe.mass * 9.81 / 4.0, 0.0
    while power.battery.charge > 0.02:
        ratio = min(platform.ratio(hover, power.battery.voltage), 1.0)
        for _ in range(10):
            speeds = power.turn([ratio] * 4, 0.1)
        if seconds > 1.0 and power.battery.charge > 0.2:  # first it sags
            assert airframe.thrust(speeds[0]) == pytest.approx(hover, rel=2e-2)
        seconds += 1.0
    assert minutes[0] * 60.0 < seconds < minutes[1] * 60.0


def test_current_and_thrust_are_those_of_the_thrust_stand():
    """docs/functional-areas/pwm-to-thrust.md of the firmware: 28.6 g at 2.11 A, 57.9 g at 4.44 A."""
    _, idle, a, b = SUPPLIES["cf2"]
    for grams, amperes in ((10.9, 0.94), (28.6, 2.11), (41.7, 3.06), (57.9, 4.44)):
        assert idle + grams * (a + grams * b) == pytest.approx(amperes, rel=0.06)


def test_voltage_sags_under_thrust_and_recovers():
    bench = Bench(battery=4.1, resistance=0.2)
    rest = bench.firmware.battery.voltage
    assert rest == pytest.approx(4.1 - 0.2 * 0.24, abs=5e-3)
    bench.fly(0.7)
    assert 0.3 < rest - bench.firmware.battery.voltage < 0.5  # 2 A
    assert bench.firmware.logs.read("pm.vbat") == bench.firmware.battery.voltage
    assert bench.firmware.supply == pytest.approx(bench.firmware.battery.voltage, abs=0.05)
    bench.client.plan.land(0.0, 1.0)
    bench.run(2.0)
    assert rest - bench.firmware.battery.voltage < 0.03
    bench.close()


def test_the_compensation_gives_the_same_thrust_from_any_battery_and_pwm_does_not():
    heights = []
    for voltage in (3.8, 4.2):
        bench = Bench(battery=voltage, resistance=0.1)
        bench.fly(1.0)
        heights.append(bench.position[2])
        bench.close()
    assert heights[0] == pytest.approx(heights[1], abs=0.01)
    power = [Power(robot("crazyflie"), CRAZYFLIE_2, Battery(voltage, 250.0, 0.0)) for voltage in (3.8, 4.2)]
    weak, strong = (each.turn([0.6] * 4, DT)[0] for each in power)
    assert strong > 1.05 * weak


def test_what_is_out_of_reach_is_taken_from_all_rotors():
    bench = Bench()
    bench.firmware.battery.voltage, bench.firmware.supply = 2.6, 2.6
    shares = (1.0, 0.8, 0.6, 0.4)
    ratios = bench.firmware._ratios(shares)
    wanted = [bench.firmware.platform.volts(0.12 * share) / 2.6 for share in shares]
    assert max(ratios) == pytest.approx(1.0)
    np.testing.assert_allclose(np.subtract(wanted, ratios), wanted[0] - 1.0)
    bench.close()


def test_a_low_battery_is_said_after_five_seconds():
    bench = Bench(battery=3.1)
    assert bench.firmware.logs.read("pm.state") == 0
    bench.run(5.1)
    assert bench.firmware.logs.read("pm.state") == 3
    bench.close()


@pytest.mark.parametrize(("name", "arms"), [("crazyflie", True), ("crazyflie_brushless", False)])
def test_who_arms_itself(name: str, arms: bool):
    """cf2_defconfig does, cf21bl_defconfig (CONFIG_MOTORS_REQUIRE_ARMING) does not."""
    bench = Bench(robot=name, auto_arm=None)
    bench.run(0.1)
    assert bench.firmware.supervisor.armed is arms
    assert bench.state == ("READY_TO_FLY" if arms else "CHECKS_PASSED")
    bench.firmware.parameters["powerDist.idleThrust"] = 7000
    bench.run(0.1)
    assert max(bench.firmware.ratios) == 0.0  # one that arms itself never idles, one that is not armed neither
    bench.close()


def test_the_unit_of_thrust_is_the_newton():
    airframe = robot("crazyflie")
    assert airframe.thrust(airframe.command_for(0.1)) == pytest.approx(0.1)
    assert airframe.command_for(0.2) > 1.0 and airframe.command_for(-1.0) == 0.0
    assert math.isclose(airframe.hover_command, airframe.command_for(airframe.mass * 9.81 / 4.0), rel_tol=1e-3)

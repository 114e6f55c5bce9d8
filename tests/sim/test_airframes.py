"""Every airframe in the table is physically plausible and says where its numbers come from."""

from __future__ import annotations

import numpy as np
import pytest

from sim.robots import ROBOTS, robot
from sim.robots.quadrotors import GRAVITY
from sim.robots.random_quadrotor import RandomQuadrotor

AIRFRAMES = [name for name in ROBOTS if not isinstance(robot(name), RandomQuadrotor)]


@pytest.mark.parametrize("name", AIRFRAMES)
def test_it_can_fly(name):
    airframe = robot(name)
    assert airframe.name == name
    assert 0.01 < airframe.mass < 10.0
    assert airframe.thrust_to_weight > 1.2
    assert 0.0 < airframe.hover_command < 1.0
    assert 4.0 * airframe.thrust(airframe.hover_command) == pytest.approx(airframe.mass * GRAVITY)
    u = np.linspace(0.05, 1.0, 50)
    assert (np.diff([airframe.thrust(x) for x in u]) > 0.0).all()


@pytest.mark.parametrize("name", AIRFRAMES)
def test_its_inertia_is_that_of_a_body_of_its_size(name):
    airframe = robot(name)
    jx, jy, jz = airframe.inertia
    assert min(jx, jy, jz) > 0.0
    assert jx + jy >= jz and jy + jz >= jx and jz + jx >= jy
    arm = np.linalg.norm(airframe.rotor_position, axis=1)
    # No heavier than all mass at the rotors; no lighter than a ball of a tenth of that size.
    assert airframe.mass * (0.1 * arm.min()) ** 2 < jz < airframe.mass * arm.max() ** 2


@pytest.mark.parametrize("name", AIRFRAMES)
def test_its_rotors_are_in_the_stated_order_and_balance(name):
    airframe = robot(name)
    position = np.array(airframe.rotor_position)
    np.testing.assert_array_equal(np.sign(position), [[1, -1], [-1, -1], [-1, 1], [1, 1]])
    np.testing.assert_allclose(position.sum(0), 0.0, atol=1e-12)
    assert sum(airframe.rotor_direction) == 0.0
    assert set(np.abs(airframe.rotor_direction)) == {1.0}
    neighbours = np.linalg.norm(position - np.roll(position, 1, axis=0), axis=1)
    assert (neighbours > 2.0 * airframe.propeller_radius).all()


@pytest.mark.parametrize("name", AIRFRAMES)
def test_its_time_constants_and_ratios_are_plausible(name):
    airframe = robot(name)
    assert 0.001 < airframe.rise_time < 0.5 and 0.001 < airframe.fall_time < 0.5
    assert 0.001 < airframe.torque_ratio < 0.2
    # Drag never exceeds what would stop the vehicle within half a second.
    assert all(0.0 <= d / airframe.mass < 2.0 for d in airframe.drag)
    if airframe.max_rpm is not None:
        tip_speed = airframe.max_rpm * 2.0 * np.pi / 60.0 * airframe.propeller_radius
        assert 20.0 < tip_speed < 300.0  # m/s, below the speed of sound


@pytest.mark.parametrize("name", AIRFRAMES)
def test_its_numbers_have_a_source(name):
    source = robot(name).source
    assert len(source) > 20
    assert any(mark in source for mark in ("@", "arXiv", "docs/", "lotf/"))


def test_an_unknown_robot_lists_the_choices():
    with pytest.raises(ValueError, match="did you mean 'crazyflie'"):
        robot("crazyfly")

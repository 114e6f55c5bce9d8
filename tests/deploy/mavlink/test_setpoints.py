"""Which commands MAVLink carries, and motor commands as body rates."""

import numpy as np
import pytest

from deploy.mavlink.setpoints import Motors, Position, Rates, SetPointError, Velocity, carrier_of
from sim.robots import robot
from sim.robots.quadrotors import MOTOR_COMMAND
from sim.spec import Signal

X500 = robot("x500")
GAINS = (20.0, 20.0, 8.0)


def carried(*commands):
    return carrier_of(commands, X500, GAINS, 8.0)


def test_carriers_are_found_by_what_commands_are():
    rates, thrust = Signal("spin", (3,), "rad/s", "body"), Signal("push", (1,), low=0.0, high=1.0)
    assert isinstance(carried(MOTOR_COMMAND), Motors)
    assert isinstance(carried(Signal("v", (3,), "m/s", "world", -1.0, 1.0)), Velocity)
    assert isinstance(carried(Signal("p", (3,), "m", "world", -1.0, 1.0)), Position)
    both = carried(thrust, rates)
    assert isinstance(both, Rates) and [c.name for c in both.commands] == ["spin", "push"]


@pytest.mark.parametrize(
    "commands",
    [
        (Signal("steering", (1,), "rad", low=-1.0, high=1.0),),
        (Signal("motor_command", (6,), low=0.0, high=1.0),),
        (Signal("v", (3,), "m/s", "body", -1.0, 1.0),),
        (Signal("v", (3,), "m/s", "world"),),
        (Signal("spin", (3,), "rad/s", "body"), Signal("push", (1,), "N", low=0.0, high=1.0)),
    ],
)
def test_what_it_does_not_carry_is_named(commands):
    with pytest.raises(SetPointError, match=rf"MAVLink has no set point for these commands: .*{commands[-1].name}"):
        carried(*commands)


def test_motors_that_carry_it_ask_for_no_turn_and_the_thrust_it_hovers_at():
    motors = Motors(X500, GAINS, 8.0, hover=0.62)
    rates, share = motors.rates(np.full(4, X500.hover_command), (0.1, -0.2, 0.3))
    np.testing.assert_allclose(rates, (0.1, -0.2, 0.3), atol=1e-12)
    assert share == pytest.approx(0.62)


def test_each_rotor_turns_it_as_it_should():
    """Front right, back right, back left, front left: by hand, what more of one does."""
    motors = Motors(X500, GAINS, 8.0)
    u = X500.hover_command
    for rotor, signs in enumerate([(-1, -1, -1), (-1, 1, 1), (1, 1, -1), (1, -1, 1)]):
        told = np.full(4, u)
        told[rotor] += 0.05
        rates, _ = motors.rates(told, np.zeros(3))
        assert np.array_equal(np.sign(rates), signs)
    told = np.full(4, u)
    told[2:] += 0.05
    extra = X500.thrust(u + 0.05) - X500.thrust(u)
    rates, _ = motors.rates(told, np.zeros(3))
    assert rates[0] == pytest.approx(
        2 * extra * 0.174 / X500.inertia[0] / 20.0
    )  # roll, left up: torque / inertia / gain
    assert np.abs(Motors(X500, GAINS, 3.0).rates((0.0, 0.0, 1.0, 1.0), np.zeros(3))[0]).max() == 3.0

"""A load on a rope swings, falls free when the rope is slack, and pulls with its weight at rest."""

import numpy as np
import pytest

from sim.conditions import SHORTEST_ROPE, Conditions
from sim.robots.quadrotors import GRAVITY
from sim.simulation.slung import STRETCH, Slung


def hung(share=0.3, length=1.0):
    load = Slung(share, length, 1, 0.01)
    zero = np.zeros((1, 3), np.float32)
    return load, load.begin(np.array([0]), np.array([[2.0]], np.float32), zero, zero, zero)


def test_at_rest_it_pulls_with_its_weight():
    load, first = hung()
    for force in (first, *(load.pull(np.zeros((1, 3))) for _ in range(200))):
        np.testing.assert_allclose(force[0], [0.0, 0.0, -0.6 * GRAVITY], rtol=1e-3, atol=1e-3)


def test_it_swings_with_the_period_of_a_pendulum():
    load, _ = hung(length=1.0)
    load.velocity[0, 0] = 0.2
    along = []
    for _ in range(1000):
        load.pull(np.zeros((1, 3)))
        along.append(load.place[0, 0])
    ups = np.flatnonzero((np.array(along[:-1]) < 0.0) & (np.array(along[1:]) >= 0.0))
    assert 0.01 * np.diff(ups).mean() == pytest.approx(2.0 * np.pi * np.sqrt((1.0 + STRETCH) / GRAVITY), rel=0.01)


def test_a_rope_does_not_push():
    load, _ = hung()
    for step in range(8):  # the vehicle falls faster than the load
        force = load.pull(np.array([[0.0, 0.0, -0.1 * (step + 1)]]))
    np.testing.assert_array_equal(force, 0.0)
    assert load.velocity[0, 2] < -0.7


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"payload": -1.0}, "payload must be"),
        ({"rope": 0.0}, "rope must be"),
        ({"payload": 0.2, "rope": 1e-4}, "rope must be at least 0.01 m, got 0.0001"),
        ({"rope": 2.0}, "rope=2 changes nothing without payload"),
    ],
)
def test_wrong_conditions_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Conditions(**wrong)


def test_on_the_shortest_rope_it_hangs_still():
    load, _ = hung(length=SHORTEST_ROPE)
    for _ in range(200):
        force = load.pull(np.zeros((1, 3)))
    np.testing.assert_allclose(force[0], [0.0, 0.0, -0.6 * GRAVITY], rtol=1e-3, atol=1e-3)

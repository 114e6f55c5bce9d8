"""Axes of MAVLink and ours, by what one sees: noses, right wings, climbs."""

import math

import numpy as np
import pytest

from deploy.mavlink.frames import Axes, body, heading_of

EAST = math.pi / 2.0
LOOKS_EAST = (math.cos(EAST / 2.0), 0.0, 0.0, math.sin(EAST / 2.0))  # a turn about down, as a compass counts


def test_north_is_ahead_east_is_right_down_is_down():
    axes = Axes()
    np.testing.assert_allclose(axes.world((1.0, 0.0, 0.0)), [1, 0, 0], atol=1e-15)
    np.testing.assert_allclose(axes.world((0.0, 1.0, 0.0)), [0, -1, 0], atol=1e-15)
    np.testing.assert_allclose(axes.world((0.0, 0.0, -2.0)), [0, 0, 2], atol=1e-15)


def test_where_the_nose_pointed_is_ahead():
    axes = Axes(heading_of(LOOKS_EAST))
    assert axes.heading == pytest.approx(EAST)
    np.testing.assert_allclose(axes.world((0.0, 3.0, -1.0)), [3, 0, 1], atol=1e-12)  # east of it: ahead
    np.testing.assert_allclose(axes.world((1.0, 0.0, 0.0)), [0, 1, 0], atol=1e-12)  # north of it: to its left
    np.testing.assert_allclose(axes.rotation(LOOKS_EAST), np.eye(3).reshape(9), atol=1e-12)


def test_there_and_back():
    axes = Axes(0.7)
    np.testing.assert_allclose(axes.ned(axes.world((1.0, 2.0, 3.0))), [1, 2, 3], atol=1e-12)


def test_attitudes():
    c, s = math.cos(0.15), math.sin(0.15)
    right_wing_down = Axes().rotation((c, s, 0.0, 0.0)).reshape(3, 3)
    assert right_wing_down[:, 1] @ [0.0, 0.0, 1.0] > 0.29  # the left wing is up
    nose_up = Axes().rotation((c, 0.0, s, 0.0)).reshape(3, 3)
    assert nose_up[2, 0] > 0.29
    to_the_right = Axes().rotation((c, 0.0, 0.0, s)).reshape(3, 3)
    assert to_the_right[1, 0] < -0.29  # the nose went to negative y: to the right
    np.testing.assert_allclose(body((1.0, 2.0, 3.0)), [1, -2, -3])

"""A policy that only keeps level: it sees attitude and body rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deploy.drivers.quadrotor import STATE
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.robots.quadrotors import MOTOR_COMMAND
from sim.spec import Signal
from sim.terms import Feature
from tests.deploy.sample_policy import exported

LEAN, RATE = 0.5, 1.0  # of the pre-activation, per leaning and per 10 rad/s


def level(path: Path, *more: Signal) -> Path:
    """Writes it to `path`; 100 Hz, rotors near half of their speed. It is told `more`, and makes nothing of it."""
    inputs = tuple(s for s in STATE if s.name in ("rotation", "angular_velocity")) + more
    weight = np.zeros((4, 12 + sum(s.size for s in more)))
    left, forward = np.array([-1.0, -1.0, 1.0, 1.0]), np.array([1.0, -1.0, -1.0, 1.0])
    weight[:, 7] = -LEAN * left  # the height of the left side over the middle
    weight[:, 9] = -RATE * left
    weight[:, 6] = -LEAN * forward
    weight[:, 10] = RATE * forward
    features = (Feature("rotation"), Feature("angular_velocity", scale=0.1), *(Feature(s.name) for s in more))
    network = Mlp([(weight, np.zeros(4))])
    controller = FeaturePolicy("level", "none", "none", 100.0, inputs, (MOTOR_COMMAND,), features, 0, 0.5, network)
    return Path(exported(path, controller).path)

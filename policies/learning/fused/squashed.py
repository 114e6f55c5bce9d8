"""Actions that are the hyperbolic tangent of Gaussian numbers, their densities and the gradients of both.

As `policies.learning.networks.squashed_sample` has them. An actor makes the means of all actions, then the logarithms
of their standard deviations.
"""

from __future__ import annotations

import math

import numpy as np

from policies.learning.fused.dense import ONE, ZERO
from sim.engines.vector.activations import tanh
from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import LANES

LOG_STD = (-5.0, 1.0)  # bounds of the exploration's log standard deviation, before squashing
LOWEST, HIGHEST = (np.float32(x) for x in LOG_STD)
HALF, TWO = np.float32(0.5), np.float32(2.0)
LOG_TWO, HALF_LOG_TAU = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


@inlined
def chosen(values, place, index, actions, noise):
    """An action from what an actor made, values from `place` on, and its deviation times noise, before squashing."""
    mean, log_std = _said(values, place, index, actions)
    pushed = np.float32(math.exp(min(max(log_std, LOWEST), HIGHEST))) * noise
    return tanh(mean + pushed), pushed


@inlined
def _said(values, place, index, actions):
    second = actions + index
    return (
        values[place + index // LANES, index % LANES],
        values[place + second // LANES, second % LANES],
    )


@inlined
def log_density(values, place, index, actions, noise, pushed):
    """Of that action; of the logarithm of 1 - tanh(u)^2 as `squashed_sample` has it."""
    mean, log_std = _said(values, place, index, actions)
    u = -TWO * (mean + pushed)
    softplus = max(u, ZERO) + np.float32(math.log1p(math.exp(-abs(u))))
    slope = TWO * (LOG_TWO + HALF * u - softplus)
    return -HALF * noise * noise - min(max(log_std, LOWEST), HIGHEST) - HALF_LOG_TAU - slope


@inlined
def write_slopes(values, place, index, actions, slopes, action, pushed, toward, weight):
    """The gradient with regard to the actor's values of `toward` times the action and `weight` times its density."""
    log_std, second = _said(values, place, index, actions)[1], actions + index
    g = toward * (ONE - action * action) + TWO * weight * action
    slopes[place + index // LANES, index % LANES] = g
    free = LOWEST <= log_std <= HIGHEST
    slopes[place + second // LANES, second % LANES] = g * pushed - weight if free else ZERO

"""Targets that move: per axis, a centre plus sinusoids. Covers set points, figure-eights and smooth random paths.

`motion` is (n, 3, 1 + 3 K): centre (m), then K times amplitude (m), angular frequency (rad/s), phase (rad).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.randomize import Array
from sim.terms import namespace


def hold(centre: Array) -> Array:
    """Motion (n, 3, 1) that stays at `centre` (n, 3)."""
    return np.ascontiguousarray(centre[:, :, None], dtype=np.float32)


def at_rest(motion: Array) -> bool:
    """Whether no motion (n, ...) has sinusoids."""
    return motion.shape[2:] == (1,)


def figure_eight(rng: np.random.Generator, n: int, size: Any, period: Any, centre: Array) -> Array:
    """Motion (n, 3, 4) along x = size sin(wt), y = size/2 sin(2wt) in the horizontal plane, from a random phase.

    Sizes in m and periods in s may be one number each, or one per motion (n,).
    """
    omega = 2.0 * np.pi / period
    phase = rng.uniform(0.0, 2.0 * np.pi, n)
    motion = np.zeros((n, 3, 4), np.float32)
    motion[:, :, 0] = centre
    motion[:, 0, 1], motion[:, 0, 2], motion[:, 0, 3] = size, omega, phase
    motion[:, 1, 1], motion[:, 1, 2], motion[:, 1, 3] = size / 2.0, 2.0 * omega, 2.0 * phase
    return motion


def smooth_random(
    rng: np.random.Generator, n: int, speed: float, acceleration: float, waves: int, centre: Array
) -> Array:
    """Motion (n, 3, 1 + 3 waves): random frequencies and phases, scaled so that neither bound (m/s, m/s^2) is exceeded.

    The bounds hold for the sum over waves and axes in the worst case; each path's own level is drawn in [0, 1] of them.
    """
    omega = np.exp(rng.uniform(np.log(0.5), np.log(4.0), (n, 3, waves)))
    share = rng.dirichlet(np.ones(3 * waves), n).reshape(n, 3, waves)
    level = rng.uniform(0.0, 1.0, (n, 1, 1))
    amplitude = level * share * np.minimum(speed / omega, acceleration / omega**2)
    motion = np.zeros((n, 3, 1 + 3 * waves), np.float32)
    motion[:, :, 0] = centre
    motion[:, :, 1::3], motion[:, :, 2::3] = amplitude, omega
    motion[:, :, 3::3] = rng.uniform(0.0, 2.0 * np.pi, (n, 3, waves))
    return motion


def widen(motion: Array, waves: int) -> Array:
    """The same motion with room for `waves` sinusoids (the added ones have no amplitude)."""
    n, axes, width = motion.shape
    wide = np.zeros((n, axes, 1 + 3 * waves), np.float32)
    wide[:, :, :width] = motion
    return wide


def move_start(state: dict[str, Array], path: Array) -> None:
    """Let the targets of `state`, at rest so far, follow `path` (n, 3, m); the robots start as far away as before."""
    start = np.zeros(len(path), np.float32)
    state["position"] += position_at(path, start) - position_at(state["motion"], start)
    state["linear_velocity"] += velocity_at(path, start)
    state["motion"] = path


def _waves(motion: Any, time: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Amplitude (n, 3), angular frequency (n, 3) and argument (n, 3) of each sinusoid at `time` (n,)."""
    for first in range(1, motion.shape[-1], 3):
        omega = motion[..., first + 1]
        yield motion[..., first], omega, omega * time[:, None] + motion[..., first + 2]


def position_at(motion: Any, time: Any) -> Any:
    """Position (n, 3) in m at `time` (n,) in s; numpy arrays or torch tensors."""
    xp = namespace(motion)
    position = motion[..., 0]
    for amplitude, _, argument in _waves(motion, time):
        position = position + amplitude * xp.sin(argument)
    return position


def velocity_at(motion: Any, time: Any) -> Any:
    """Velocity (n, 3) in m/s at `time` (n,) in s; numpy arrays or torch tensors."""
    xp = namespace(motion)
    velocity = 0.0 * motion[..., 0]
    for amplitude, omega, argument in _waves(motion, time):
        velocity = velocity + amplitude * omega * xp.cos(argument)
    return velocity


def acceleration_at(motion: Any, time: Any) -> Any:
    """Acceleration (n, 3) in m/s^2 at `time` (n,) in s; numpy arrays or torch tensors."""
    xp = namespace(motion)
    acceleration = 0.0 * motion[..., 0]
    for amplitude, omega, argument in _waves(motion, time):
        acceleration = acceleration - amplitude * omega**2 * xp.sin(argument)
    return acceleration

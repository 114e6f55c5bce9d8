"""Flying past others: optimal reciprocal collision avoidance on top of a cascaded PID.

ORCA (van den Berg, Guy, Lin and Manocha 2011, "Reciprocal n-body collision avoidance"): of the velocities that lead to
no collision within a horizon, if everybody does half of what it takes, the nearest to the one that leads to the target.
In three dimensions as in the authors' RVO2-3D. Here the half-spaces are met by projecting onto one after the other, the
nearest vehicle's last, not by a linear program. Heights count half: the air below somebody is as good as taken.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.experts.quad_pid import CascadedPid, Gains
from sim.robots.quadrotors import GRAVITY, Quadrotor

if TYPE_CHECKING:
    from sim.tasks.swarm import QuadSwarm

Double = NDArray[np.float64]

# Ours.
SPEED = 1.2  # m/s, toward the target
SLOWER = 2.0  # 1/s: near it, the speed per m
APART, HORIZON = 0.40, 1.5  # m between centres that it keeps, and s for which it looks ahead
REACTION = 0.3  # s within which those who are closer than that part
STRETCH = np.array([1.0, 1.0, 0.5])  # of what is between vehicles
BERTH = 0.15  # m that it keeps between itself and a pillar
ASIDE = 0.35  # rad by which everybody keeps to the right, far from its target: who meets head-on must choose a side
PASSES = 12
TINY = 1e-9
FAR = 1e3  # m
LEVEL = np.array([1.0, 1.0, 0.0])


@functools.lru_cache(maxsize=8)
def _pid(robot: Quadrotor, rate_hz: float) -> CascadedPid:
    return CascadedPid(robot, rate_hz)


def _flown(task: QuadSwarm, signals: Mapping[str, Array], velocity: Double) -> dict[str, Array]:
    """The commands that bring vehicles to this velocity (n, 3), m/s, world; what they weigh and bear is known."""
    weight = signals["mass"][:, 0] / task.robot.mass / signals["thrust_scale"].mean(axis=1)
    missing = GRAVITY * (weight - 1.0) - signals["wash"][:, 0] / signals["mass"][:, 0]
    told = velocity + (missing / Gains().velocity[2])[:, None] * np.array([0.0, 0.0, 1.0])
    where = {"target_position": signals["position"], "target_velocity": told}
    return _pid(task.robot, task.rate_hz).reflex({**signals, **where})


def _wanted(signals: Mapping[str, Array], aside: float) -> Double:
    """The velocity (n, 3) that leads to the target, or a little to the right of it."""
    off = np.asarray(signals["target_position"] - signals["position"], np.float64)
    far = np.linalg.norm(off, axis=1, keepdims=True)
    way = off * np.minimum(SLOWER, SPEED / np.maximum(far, TINY))
    turned = -aside * np.clip(far[:, 0] - 0.5, 0.0, 1.0)
    cos, sin = np.cos(turned), np.sin(turned)
    x, y = way[:, 0] * cos - way[:, 1] * sin, way[:, 0] * sin + way[:, 1] * cos
    made: Double = np.stack([x, y, way[:, 2]], axis=1) + signals["target_velocity"]
    return made


def _others(signals: Mapping[str, Array]) -> tuple[Double, Double]:
    """The half-spaces of the other vehicles, which do half of what it takes."""
    n = len(signals["position"])
    place = signals["others"].reshape(n, -1, 3) * STRETCH
    nearing = -signals["others_velocity"].reshape(n, -1, 3) * STRETCH  # its own, relative to theirs
    return _half_spaces(place, nearing, np.asarray(signals["linear_velocity"], np.float64) * STRETCH, APART, 0.5)


def _pillars(signals: Mapping[str, Array], extent: float) -> tuple[Double, Double]:
    """Those of pillars, which do nothing, and have no height, for vehicles that reach so far, m."""
    told = np.asarray(signals["pillars"], np.float64).reshape(len(signals["position"]), -1, 3)
    radius, there = told[..., 2:], told[..., 2:] > 0.0
    place = np.where(there, told * LEVEL, FAR)
    level = np.asarray(signals["linear_velocity"], np.float64) * LEVEL
    return _half_spaces(place, np.broadcast_to(level[:, None], place.shape), level, radius + extent + BERTH, 1.0)


def _half_spaces(
    place: Double, nearing: Double, own: Double, apart: Double | float, share: float
) -> tuple[Double, Double]:
    """Of each thing (n, things, 3) there: a velocity on the plane, and its normal toward what is allowed.

    `nearing`: its velocity relative to it; `own` (n, 3); `share`: of what it takes to keep `apart` m.
    """
    square = (place**2).sum(axis=-1, keepdims=True)
    inside = square < apart**2
    ahead = np.where(inside, REACTION, HORIZON)
    # The velocity obstacle is a cone with a round tip.
    tip = nearing - place / ahead
    length = np.linalg.norm(tip, axis=-1, keepdims=True)
    along = (tip * place).sum(axis=-1, keepdims=True)
    round_ = inside | ((along < 0.0) & (along**2 > apart**2 * length**2))
    forward = (place * nearing).sum(axis=-1, keepdims=True)
    crossed = (np.cross(place, nearing) ** 2).sum(axis=-1, keepdims=True)
    rest = (nearing**2).sum(axis=-1, keepdims=True) - crossed / np.maximum(square - apart**2, TINY)
    scale = (forward + np.sqrt(np.maximum(forward**2 - square * rest, 0.0))) / np.maximum(square, TINY)
    way = np.where(round_, tip, nearing - scale * place)
    reach = np.where(round_, apart / ahead, apart * scale)
    far = np.linalg.norm(way, axis=-1, keepdims=True)
    normal = way / np.maximum(far, TINY)
    return own[:, None] + share * (reach - far) * normal, normal


def avoiding(task: QuadSwarm, signals: Mapping[str, Array]) -> dict[str, Array]:
    """To its target, around whoever is in its way; noise-free signals (n, k), the privileged ones too."""
    velocity = _wanted(signals, ASIDE) * STRETCH
    point, normal = _others(signals)
    if task.config.obstacles:  # the first: they are met last
        pillars = _pillars(signals, task.robot.extent)
        point, normal = (np.concatenate(both, axis=1) for both in zip(pillars, (point, normal), strict=True))
    for _ in range(PASSES):
        for k in range(point.shape[1] - 1, -1, -1):
            short = ((point[:, k] - velocity) * normal[:, k]).sum(axis=1, keepdims=True)
            velocity = velocity + np.maximum(short, 0.0) * normal[:, k]
        fast = np.linalg.norm(velocity, axis=1, keepdims=True)
        velocity = velocity * np.minimum(1.0, 1.5 * SPEED / np.maximum(fast, TINY))
    return _flown(task, signals, velocity / STRETCH)


def straight(task: QuadSwarm, signals: Mapping[str, Array]) -> dict[str, Array]:
    """Straight to its target, whoever is in its way."""
    return _flown(task, signals, _wanted(signals, 0.0))

"""The fastest way through gates: a point mass whose thrust is bounded, from rest, along a smooth path.

The path is a cubic spline through a point of every opening and a free one between two. Its speed is the fastest that
the thrust allows, exactly (time-optimal path parameterisation, by reachability: Pham and Pham 2018, arXiv 1707.07239).
Its points are moved to where that takes the least time (BFGS, numeric gradients). What comes out is a local optimum of
paths of this kind. As in "Time-optimal planning" by point masses (Foehn et al. 2021, Science Robotics 6;
Romero et al. 2022, arXiv 2108.13365) thrust turns at once, so it is a bound that no vehicle reaches which must turn
itself; with `share` of the thrust and `margin` at the frames, it is a reference that one follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import GRAVITY, Quadrotor
from sim.scenes.gates import BAR, GateTrack

Double = NDArray[np.float64]
DENSE = 12  # points of a span, of which there are two from gate to gate
STEPS, SLOPE = 40, 1e-4  # of BFGS at most, and by how much variables are moved to find slopes
LENGTHS = np.array([2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01])  # of a step, that are tried
GAINED = 1e-4  # s: less is no progress
# What the path must not do costs time: to pass a gate at a smaller cosine to its axis; to be lower than so many m (and
# a radius), or in a frame, s per squared m of each point.
STEEPEST, LOWEST, PRICE = 0.3, 0.2, 20.0


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A path in time, at points that are not equally far apart."""

    time: Double  # (m,) s, from rest at 0
    position: Double  # (m, 3) m, world
    velocity: Double  # (m, 3) m/s
    acceleration: Double  # (m, 3) m/s^2, which holds from this point to the next
    gates: NDArray[np.int64]  # the points in the gates' planes, in order of flight

    def at(self, time: Double) -> tuple[Double, Double, Double]:
        """Position, velocity and acceleration (n, 3) at these times (n,); before and after, those of the ends."""
        when = np.clip(time, 0.0, self.time[-1])
        return (
            _interpolated(when, self.time, self.position),
            _interpolated(when, self.time, self.velocity),
            _interpolated(when, self.time, self.acceleration),
        )


def _interpolated(at: Double, x: Double, values: Double) -> Double:
    return np.stack([np.interp(at, x, values[:, k]) for k in range(values.shape[1])], axis=1)


def start_of(track: GateTrack, gate: int, behind: float) -> Double:
    """(3,) m: where who begins with this gate hovers, so far behind it."""
    ahead = track.axes[gate, :, 0]
    made: Double = track.centre[gate] - behind * ahead
    made[2] = max(made[2], 0.5)
    return made


def spline(knots: Double, at: Double) -> tuple[Double, Double, Double]:
    """Matrices (points, knots): from values at knots to those of a natural cubic spline, and its derivatives, there."""
    n, h = len(knots), np.diff(knots)
    bend, right = np.eye(n), np.zeros((n, n))  # of second derivatives
    for k in range(1, n - 1):
        bend[k, k - 1 : k + 2] = h[k - 1], 2.0 * (h[k - 1] + h[k]), h[k]
        right[k, k - 1 : k + 2] = 6.0 / h[k - 1], -6.0 / h[k - 1] - 6.0 / h[k], 6.0 / h[k]
    second = np.linalg.solve(bend, right)
    span = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, n - 2)
    one, wide = np.eye(n), h[span][:, None]
    b = (at - knots[span])[:, None] / wide
    a = 1.0 - b
    lower, upper, bent, more = one[span], one[span + 1], second[span], second[span + 1]
    value = a * lower + b * upper + ((a**3 - a) * bent + (b**3 - b) * more) * wide**2 / 6.0
    slope = (upper - lower) / wide + ((3.0 * b**2 - 1.0) * more - (3.0 * a**2 - 1.0) * bent) * wide / 6.0
    return value, slope, a * bent + b * more


def fastest(slope: Double, bend: Double, step: Double, most: float, limit: float) -> tuple[Double, Double]:
    """Squared speeds (n, m) of the parameter along paths, and its accelerations (n, m - 1), from rest.

    `slope` and `bend` (n, m, 3) are the paths' derivatives by it, `step` (m - 1,) its steps. The specific force
    (acceleration + gravity) is at most `most`, speed at most `limit`.
    """
    from sim.engines.flight.gates import speeds

    n, count = slope.shape[:2]
    x, u = np.empty((n, count)), np.empty((n, count - 1))
    speeds(np.ascontiguousarray(slope), np.ascontiguousarray(bend), step, most, limit, *np.empty((2, count)), x, u)
    return x, u


class _Paths:
    """Splines from a start through the gates of some laps, as they follow from variables (n, k)."""

    def __init__(self, track: GateTrack, start: Double, gates: NDArray[np.int64], room: Double) -> None:
        """`room` (gates, 2): m from the middles of the openings that may be used."""
        self.start, self.centre, self.across = start, track.centre[gates], track.axes[gates][:, :, 1:]
        self.room, count = room, len(gates)
        ends = np.concatenate([start[None], self.centre])
        self.middle = 0.5 * (ends[:-1] + ends[1:])
        points = np.empty((2 * count + 1, 3))
        points[::2], points[1::2] = ends, self.middle
        knots = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
        share = np.arange(DENSE) / DENSE
        self.at = np.append((knots[:-1, None] + share * np.diff(knots)[:, None]).ravel(), knots[-1])
        self.step, self.maps = np.diff(self.at), spline(knots, self.at)
        self.gates = 2 * DENSE * np.arange(1, count + 1)
        self.count = count

    @property
    def first(self) -> Double:
        """The middles of the openings, and half way between them."""
        return np.zeros(5 * self.count)

    def points(self, variables: Double) -> Double:
        """(n, knots, 3) m."""
        n, split = len(variables), 2 * self.count
        off = self.room * np.tanh(variables[:, :split].reshape(n, self.count, 2))
        made = np.empty((n, 2 * self.count + 1, 3))
        made[:, 0] = self.start
        made[:, 2::2] = self.centre + np.einsum("gij,ngj->ngi", self.across, off)
        made[:, 1::2] = self.middle + 3.0 * variables[:, split:].reshape(n, self.count, 3)
        return made

    def derivatives(self, variables: Double) -> tuple[Double, Double, Double]:
        """Position, slope and bend (n, m, 3) of the paths."""
        points = self.points(variables)
        position, slope, bend = (made @ points for made in self.maps)
        return position, slope, bend


def _least(cost: Callable[[Double], Double], first: Double, steps: int) -> Double:
    """Variables (k,) from `first` on that cost less, by BFGS with numeric slopes; `cost` (n,) of (n, k)."""
    x, inverse = first, np.eye(len(first))
    nudge = SLOPE * np.eye(len(first))
    slope_before: Double | None = None
    moved = np.zeros_like(first)
    for _ in range(steps):
        found = cost(np.concatenate([x[None], x + nudge]))
        now, slope = found[0], (found[1:] - found[0]) / SLOPE
        if slope_before is not None:
            change = slope - slope_before
            along = float(change @ moved)
            if along > 1e-9:
                shift = np.eye(len(x)) - np.outer(moved, change) / along
                inverse = shift @ inverse @ shift.T + np.outer(moved, moved) / along
        way = -inverse @ slope
        if way @ slope >= 0.0:
            inverse, way = np.eye(len(x)), -slope
        way *= min(1.0, 0.5 / max(float(np.abs(way).max()), 1e-12))
        tried = cost(x + LENGTHS[:, None] * way)
        best = int(tried.argmin())
        if tried[best] > now - GAINED:
            if slope_before is None:
                break
            slope_before, inverse = None, np.eye(len(first))  # once more, straight down
            continue
        moved, slope_before = LENGTHS[best] * way, slope
        x = x + moved
    return x


def check_flyable(track: GateTrack, robot: Quadrotor, radius: float, share: float, margin: float) -> None:
    """ValueError where the thrust is too small for a trajectory, or an opening; see `time_optimal`."""
    most = share * robot.thrust_to_weight
    if most <= 1.0:
        raise ValueError(f"{robot.name} has {most:.2f} of its weight as thrust: it cannot fly {track.name}")
    if (0.5 * track.size - radius - margin).min() < 0.0:
        raise ValueError(
            f"{track.name}: an opening leaves no room for {robot.name}, which is {2.0 * radius:.2f} m wide"
        )


def time_optimal(
    track: GateTrack,
    robot: Quadrotor,
    radius: float,
    start: Double,
    first: int = 0,
    laps: int = 1,
    share: float = 1.0,
    margin: float = 0.0,
    limit: float = 50.0,
    steps: int = STEPS,
    beyond: int = 0,
) -> Trajectory:
    """From rest at `start` (3,) m through all gates `laps` times and `beyond` more, beginning with gate `first`.

    A sphere of `radius` m keeps `margin` m from frames where it crosses their planes. The thrust is at most `share` of
    the robot's, the speed at most `limit` m/s. Fewer `steps` of the search are quicker, and what they find is slower.
    ValueError where an opening, or the thrust, is too small.
    """
    check_flyable(track, robot, radius, share, margin)
    most = share * robot.thrust_to_weight * GRAVITY
    gates = (first + np.arange(laps * len(track.yaw) + beyond)) % len(track.yaw)
    paths = _Paths(track, start, gates, 0.5 * track.size[gates] - radius - margin)

    from sim.engines.flight.gates import touching

    def duration(variables: Double) -> Double:
        position, slope, bend = paths.derivatives(variables)
        x, _ = fastest(slope, bend, paths.step, most, limit)
        root = np.sqrt(x)
        through = np.einsum("gi,ngi->ng", track.axes[gates][:, :, 0], slope[:, paths.gates])
        steep = np.minimum(through / np.linalg.norm(slope[:, paths.gates], axis=-1) - STEEPEST, 0.0)
        inside = np.empty(len(position))
        touching(position, track.centre, track.axes, track.size, BAR, radius + 0.5 * margin, inside)
        low = np.maximum(radius + LOWEST - position[..., 2], 0.0)
        made: Double = (2.0 * paths.step / (root[:, :-1] + root[:, 1:])).sum(axis=1) + 10.0 * (steep**2).sum(axis=1)
        made += PRICE * (inside + (low**2).sum(axis=1))
        return made

    best = _least(duration, paths.first, steps)[None]
    position, slope, bend = paths.derivatives(best)
    x, u = fastest(slope, bend, paths.step, most, limit)
    root = np.sqrt(x[0])
    time = np.concatenate([[0.0], np.cumsum(2.0 * paths.step / (root[:-1] + root[1:]))])
    pushed = np.append(u[0], 0.0)
    acceleration = bend[0] * x[0][:, None] + slope[0] * pushed[:, None]
    return Trajectory(time, position[0], slope[0] * root[:, None], acceleration, paths.gates)

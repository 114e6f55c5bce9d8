"""Several cars on one track: they touch, and lidars see them.

Circles along cars, the same that walls touch (`walls.py`), meet those of other cars. The bumper takes the velocity
toward the other car, as equal and opposite impulses where they touch, and rubs with Coulomb friction. All contacts of a
world are found from one snapshot, so that their order decides nothing; a car that touches in several places gets a
share of each impulse (Jacobi's method), with which no contact can add energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import Array, Cars, step_blocks
from sim.engines.car.grids import Grids
from sim.engines.car.lidar import rays_of
from sim.engines.car.rows import COS, IMPACT, INERTIA, MASS, SIN, TOUCHED, TURNING, VX, VY, X, Y
from sim.engines.vector.blocks import blocks, inlined, kernel
from sim.engines.vector.simd import LANES
from sim.robots.cars import Car
from sim.scenes.track import Track

# Rows of what there was between cars in the last step.
MET, RAN, HIT = range(3)
CONTACT_ROWS = 3
BETWEEN = {
    "met": slice(0, 1),  # 1: another car touched it
    "ran_into": slice(1, 2),  # m/s at which it ran into another one, the fastest
    "hit": slice(2, 3),  # m/s at which another one ran into it
}
CIRCLES = 3
# Of a car in the snapshot: its place, heading, velocity in the world, and turning; and what contacts change.
PX, PY, PC, PS, PU, PV, PW, PM, PJ, PLACES = range(10)
DX, DY, GX, GY, SPIN, CHANGES = range(6)


@inlined
def _circle(number, reach):
    """How far ahead of a car's centre of mass the middle of a circle is."""
    return (number - 1) * reach


@inlined
def _touching(cars, a, b, i, j, shape):
    """Circle i of car a and j of car b: how deep they are in one another (0: apart), and the normal from a to b."""
    ahead, other = _circle(i, shape.reach), _circle(j, shape.reach)
    x = cars[b, PX] + other * cars[b, PC] - cars[a, PX] - ahead * cars[a, PC]
    y = cars[b, PY] + other * cars[b, PS] - cars[a, PY] - ahead * cars[a, PS]
    far = math.sqrt(x * x + y * y)
    if not 0.0 < far < 2.0 * shape.radius:  # nor is there a normal where they are in the same place, or nowhere
        return 0.0, 1.0, 0.0
    return 2.0 * shape.radius - far, x / far, y / far


@inlined
def _pushed(changes, cars, k, share, x, y, gx, gy):
    """What an impulse (gx, gy) at a place (x, y) from its centre of mass adds to what changes car k."""
    changes[k, GX] += share * gx / cars[k, PM]
    changes[k, GY] += share * gy / cars[k, PM]
    changes[k, SPIN] += share * (x * gy - y * gx) / cars[k, PJ]


@kernel
def meet(state, parameters, between, worlds, each, shape):
    """Cars of one world, `each` rows that follow one another, touch each other, in place: state, and `between`
    (blocks, CONTACT_ROWS, LANES), whose rows keep the most of what they held.
    """
    cars, changes, count = np.empty((each, PLACES)), np.empty((each, CHANGES)), np.empty(each)
    reach = 2.0 * (shape.reach + shape.radius)
    for first in range(0, worlds * each, each):
        for k in range(each):
            place, lane = (first + k) // LANES, (first + k) % LANES
            s, p, c = state[place], parameters[place], cars[k]
            c[PX], c[PY], c[PC], c[PS] = s[X, lane], s[Y, lane], s[COS, lane], s[SIN, lane]
            vx, vy = s[VX, lane], s[VY, lane]
            c[PU], c[PV], c[PW] = vx * c[PC] - vy * c[PS], vx * c[PS] + vy * c[PC], s[TURNING, lane]
            c[PM], c[PJ] = p[MASS, lane], p[INERTIA, lane]
        changes[:], count[:], some = 0.0, 0.0, False
        for a in range(each):
            for b in range(a + 1, each):
                x, y = cars[b, PX] - cars[a, PX], cars[b, PY] - cars[a, PY]
                if not x * x + y * y < reach * reach:
                    continue
                for i in range(CIRCLES):
                    for j in range(CIRCLES):
                        if _touching(cars, a, b, i, j, shape)[0] > 0.0:
                            count[a] += 1.0
                            count[b] += 1.0
                            some = True
        if not some:
            continue
        for a in range(each):
            for b in range(a + 1, each):
                if count[a] == 0.0 or count[b] == 0.0:
                    continue
                fastest, who = -1.0, 0.0
                for i in range(CIRCLES):
                    for j in range(CIRCLES):
                        depth, nx, ny = _touching(cars, a, b, i, j, shape)
                        if depth <= 0.0:
                            continue
                        share, half = 1.0 / max(count[a], count[b]), shape.radius - 0.5 * depth
                        ahead, other = _circle(i, shape.reach), _circle(j, shape.reach)
                        ax, ay = ahead * cars[a, PC] + half * nx, ahead * cars[a, PS] + half * ny
                        bx, by = other * cars[b, PC] - half * nx, other * cars[b, PS] - half * ny
                        ua, va = cars[a, PU] - cars[a, PW] * ay, cars[a, PV] + cars[a, PW] * ax
                        ub, vb = cars[b, PU] - cars[b, PW] * by, cars[b, PV] + cars[b, PW] * bx
                        own, theirs = ua * nx + va * ny, -(ub * nx + vb * ny)  # toward each other
                        nearing = max(own + theirs, 0.0)
                        light, heavy = 1.0 / cars[a, PM], 1.0 / cars[b, PM]
                        arm_a, arm_b = ax * ny - ay * nx, bx * ny - by * nx
                        direct = light + heavy + arm_a * arm_a / cars[a, PJ] + arm_b * arm_b / cars[b, PJ]
                        push = nearing / direct
                        # Rubbing, of what is left of the velocity across once they have pushed: tangent (-ny, nx).
                        turn_a, turn_b = ax * nx + ay * ny, bx * nx + by * ny
                        mixed = arm_a * turn_a / cars[a, PJ] + arm_b * turn_b / cars[b, PJ]
                        across = (vb - va) * nx - (ub - ua) * ny + mixed * push
                        rub = across / (light + heavy + turn_a * turn_a / cars[a, PJ] + turn_b * turn_b / cars[b, PJ])
                        most = shape.wall_friction * push
                        rub = min(max(rub, -most), most)
                        gx, gy = push * nx + rub * ny, push * ny - rub * nx  # what b gets
                        _pushed(changes, cars, a, share, ax, ay, -gx, -gy)
                        _pushed(changes, cars, b, share, bx, by, gx, gy)
                        apart = share * depth / (light + heavy)
                        changes[a, DX] -= apart * light * nx
                        changes[a, DY] -= apart * light * ny
                        changes[b, DX] += apart * heavy * nx
                        changes[b, DY] += apart * heavy * ny
                        if nearing > fastest:
                            fastest, who = nearing, own - theirs
                if fastest >= 0.0:
                    for k, faster in ((a, who > 0.0), (b, who < 0.0)):
                        m = between[(first + k) // LANES]
                        lane = (first + k) % LANES
                        m[MET, lane] = 1.0
                        row = RAN if faster or who == 0.0 else HIT
                        m[row, lane] = max(m[row, lane], np.float32(fastest))
        for k in range(each):
            if count[k] > 0.0:
                s, lane = state[(first + k) // LANES], (first + k) % LANES
                c, d = cars[k], changes[k]
                s[X, lane], s[Y, lane] = c[PX] + d[DX], c[PY] + d[DY]
                s[VX, lane] += d[GX] * c[PC] + d[GY] * c[PS]
                s[VY, lane] += d[GY] * c[PC] - d[GX] * c[PS]
                s[TURNING, lane] = c[PW] + d[SPIN]


@kernel
def hide(state, rays, count, ahead, longest, half, side, rows, each, first, out):
    """Beams end at the other cars of their world, rectangles (2 half) x (2 side) m around their centres of mass.

    As `lidar.scan`, whose ranges in `out` become shorter.
    """
    for row in rows:
        s, lane, o = state[row // LANES], row % LANES, out[row // LANES]
        cos, sin = s[COS, lane], s[SIN, lane]
        x, y = s[X, lane] + ahead * cos, s[Y, lane] + ahead * sin
        begin = row - row % each
        for other in range(begin, begin + each):
            if other == row:
                continue
            t, there = state[other // LANES], other % LANES
            c, d = t[COS, there], t[SIN, there]
            u, v = x - t[X, there], y - t[Y, there]
            px, py = u * c + v * d, v * c - u * d  # of the lidar, in the axes of the other car
            if not px * px + py * py < (longest + half + side) ** 2:  # nor where it is no number
                continue
            cross, along = sin * c - cos * d, cos * c + sin * d  # its heading there
            for beam in range(count):
                b, w = rays[0, beam], rays[1, beam]
                dx, dy = b * along - w * cross, b * cross + w * along
                near, far = np.float32(0.0), o[first + beam, lane]
                # Slabs (Kay and Kajiya 1986).
                for at, step, size in ((px, dx, half), (py, dy, side)):
                    if abs(step) > np.float32(1e-9):
                        one, two = (-size - at) / step, (size - at) / step
                        near, far = max(near, min(one, two)), min(far, max(one, two))
                    elif not abs(at) < size:
                        far = np.float32(-1.0)
                if near <= far:
                    o[first + beam, lane] = near


class CarsTogether(Cars):
    """As `Cars`, with `each` cars in a world, rows that follow one another, on the same track.

    More state names, of the last step: met (1: another car touched it), ran_into (m/s at which it ran into another one,
    the fastest) and hit (m/s at which another one ran into it). Who of two ran into the other is who moved faster
    toward where they touched; where both were as fast, both have.
    """

    def __init__(
        self,
        car: Car,
        num: int,
        dt: float,
        tracks: Sequence[Track] | Grids = (),
        load_transfer: bool = False,
        each: int = 1,
    ) -> None:
        super().__init__(car, num, dt, tracks, load_transfer)
        if each < 1 or num % each:
            raise ValueError(f"{num} cars do not make worlds of {each}")
        self.each = each
        self._between = np.zeros((blocks(num), CONTACT_ROWS, LANES), np.float32)

    def _rows(self, name: str) -> tuple[Array, slice]:
        return (self._between, BETWEEN[name]) if name in BETWEEN else super()._rows(name)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**super().arrays(), "between": self._between}

    def reset(self, worlds: NDArray[np.int64], state: Any) -> None:
        self._between[worlds // LANES, :, worlds % LANES] = 0.0
        super().reset(worlds, state)

    def advance(self, told: Array) -> None:
        state, cells = self._state, self.grids.cells
        walls = np.zeros_like(state[:, [TOUCHED, IMPACT]])
        self._between[:] = 0.0
        for _ in range(self.substeps):
            step_blocks(state, self._parameters, self._index, cells, told, self.shape, self._h, 1)
            walls = np.maximum(walls, state[:, [TOUCHED, IMPACT]])
            meet(state, self._parameters, self._between, self.num // self.each, self.each, self.shape)
        state[:, [TOUCHED, IMPACT]] = walls

    def scan(self, angle: Array, ahead: float, longest: float, rows: NDArray[np.int64], first: int, out: Array) -> None:
        super().scan(angle, ahead, longest, rows, first, out)
        size = np.float32(0.5 * self.car.length), np.float32(0.5 * self.car.width)
        rays = rays_of(angle).reshape(2, -1)
        hide(self._state, rays, len(angle), np.float32(ahead), np.float32(longest), *size, rows, self.each, first, out)

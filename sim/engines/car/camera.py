"""What cars see of their tracks: pictures by casting a ray through each pixel, from below the tops of the walls.

A floor with patches and lines along its edges, walls with panels, above them a panorama, looked up by direction. How
far walls are is found for directions in the plane, as lidars find it, sixteen at once; each pixel looks it up there.
Lines and the tops of walls cover shares of pixels, as those of `sim.engines.pitch.camera` do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.car.grids import INDEX_ROWS, PER_METRE, PLACE_ROWS, distance, grid, in_cells
from sim.engines.car.lidar import traced
from sim.engines.car.rows import COS, PARAMETER_ROWS, SIN, STATE_ROWS, X, Y
from sim.engines.sight.lens import Lens
from sim.engines.sight.picture import (
    FAR,
    HALF,
    LOOKS,
    ONE,
    PANORAMA,
    RAISED,
    TILT,
    TINY,
    TURNED,
    YAWED,
    ZERO,
    Cameras,
    Order,
    covered,
    developed,
    looked_up,
    unit,
)
from sim.engines.vector.blocks import block, borrowed, inlined, kernel
from sim.engines.vector.simd import ALL, LANES
from sim.scenes.track import HEIGHT

if TYPE_CHECKING:
    from sim.engines.car import Cars

Array = NDArray[np.float32]

# What a pixel shows, by the largest share: the values of the segmentation.
SKY, GROUND, LINE, WALL = range(4)
# Columns of looks behind those of all cameras: colours (3 each), and by which share patches and panels differ.
FLOOR, LINES, WALLS, PATCHES = LOOKS, LOOKS + 3, LOOKS + 6, LOOKS + 9
CAR_LOOKS = LOOKS + 10
COLOURS = (0.30, 0.31, 0.33, 0.92, 0.92, 0.90, 0.66, 0.62, 0.56)
USUAL = 0.1  # of PATCHES
# m from a wall to the middle of the line along it; its half width.
EDGE, HALF_LINE = np.float32(0.12), np.float32(0.025)
PATCH = np.float32(0.5)  # m: side of a patch of the floor; panels of walls are twice as long
VECTORS = 16  # of directions in which walls are looked for: four for each column of a picture 64 wide
NEAREST = np.float32(0.01)  # m: how near a wall is at least
TWO = np.float32(2.0)


class Mount(NamedTuple):
    """Where cameras are, in m: ahead of the centre of mass, and above the ground; walls' height; `top` of panoramas."""

    eye: np.float32
    high: np.float32
    wall: np.float32
    top: np.float32


@inlined
def around(ahead, left):
    """A direction as a number that grows to the left, -2 to 2, 0 ahead: the place on a square that stands on its tip.

    Along each of its sides one over the distance to a straight wall is linear in it.
    """
    place = left / max(abs(ahead) + abs(left), TINY)
    return place if ahead >= ZERO else (TWO - place if left >= ZERO else -TWO - place)


@inlined
def on_square(place):
    """The point on that square: ahead, left."""
    ahead = ONE - abs(place)
    return ahead, place if ahead >= ZERO else (TWO - place if place > ZERO else -TWO - place)


@inlined
def differing(x, y):
    """-1 to 1: how the patch with these whole numbers differs from others."""
    mixed = (np.int64(x) * 73856093) ^ (np.int64(y) * 19349663)
    return np.float32((mixed ^ (mixed >> 7)) & 255) / np.float32(127.5) - ONE


@inlined
def floor_at(rgb, look, cells, first, columns, right, top, u, v, gx, gy, flat_x, flat_y, across, along):
    """The floor's colour at a place (in cells: u, v); whether it is a line.

    A pixel's footprint is `across` wide and, in the direction flat_x, flat_y, `along` deep.
    """
    away, nx, ny = distance(cells, first, columns, right, top, u, v)
    steep = math.sqrt(nx * nx + ny * ny) + TINY
    straight = min(abs(flat_x * nx + flat_y * ny) / steep, ONE)
    print = along * straight + across * math.sqrt(ONE - straight * straight)
    patch = differing(math.floor(gx / PATCH), math.floor(gy / PATCH))
    light = ONE + look[PATCHES] * patch * unit(PATCH / along)  # those that are smaller than a pixel even out
    line = covered(away - EDGE, HALF_LINE, print)
    for k in range(3):
        floor = light * look[FLOOR + k]
        rgb[k] = floor + line * (look[LINES + k] - floor)
    return LINE if line > HALF else GROUND


@kernel
def see_rows(
    state, parameters, index, cells, mount, optics, looks, panoramas, seeds, work, sums, which, turning, out, extra
):
    """Pictures out (count, height, width, 3) of the cameras of the cars `which` (count,); see `Order`."""
    cells, rays = borrowed((cells, optics.rays))
    height, width = rays.shape[0], rays.shape[1]
    ways: Any = np.empty((2, VECTORS, LANES), np.float32)
    nearness, last = np.empty(VECTORS * LANES, np.float32), VECTORS * LANES - 1
    for picture in range(out.shape[0]):
        car = which[picture]
        place, lane, look = car // LANES, car % LANES, looks[car]
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g = block(index, place, INDEX_ROWS)
        first, columns, right, top = grid(p, g, lane)
        cos, sin = s[COS, lane], s[SIN, lane]
        x, y, high = s[X, lane] + mount.eye * cos, s[Y, lane] + mount.eye * sin, mount.high + look[RAISED]
        u, v = in_cells(p, x, y, lane)
        yaw_cos, yaw_sin = np.float32(math.cos(look[YAWED])), np.float32(math.sin(look[YAWED]))
        cos, sin = cos * yaw_cos - sin * yaw_sin, sin * yaw_cos + cos * yaw_sin
        tilt_cos, tilt_sin = np.float32(math.cos(look[TILT])), np.float32(math.sin(look[TILT]))
        panorama = panoramas[int(look[PANORAMA])]
        # Directions, all of them, and between the outermost those in which walls are looked for.
        low, most = TWO, -TWO
        for row in range(height):
            for column in range(width):
                ahead = rays[row, column, 0] * tilt_cos + rays[row, column, 2] * tilt_sin
                way = around(ahead, rays[row, column, 1])
                low, most, work[row, column, 3] = min(low, way), max(most, way), way
        step = (most - low) / np.float32(last)
        for k in range(last + 1):
            ahead, left = on_square(low + np.float32(k) * step)
            nearness[k] = math.sqrt(ahead * ahead + left * left)
            ways[0, k // LANES, k % LANES] = (ahead * cos - left * sin) / nearness[k]
            ways[1, k // LANES, k % LANES] = (ahead * sin + left * cos) / nearness[k]
        for k in range(VECTORS):
            far = traced(cells, first, columns, right, top, u, v, ways[0][k, ALL], ways[1][k, ALL], FAR)
            ways[0][k, ALL] = max(far, NEAREST)
        for k in range(last + 1):
            nearness[k] /= ways[0, k // LANES, k % LANES]
        per_step = ONE / max(step, TINY)
        for row in range(height):
            for column in range(width):
                here, pixel = work[row, column], rays[row, column, 3]
                ahead, left, up = rays[row, column, 0], rays[row, column, 1], rays[row, column, 2]
                ahead, up = ahead * tilt_cos + up * tilt_sin, up * tilt_cos - ahead * tilt_sin
                at = (here[3] - low) * per_step
                k = min(int(at), last - 1)
                near = nearness[k] + (at - np.float32(k)) * (nearness[k + 1] - nearness[k])
                near *= abs(ahead) + abs(left)  # one over what the ray is long at the wall
                dx, dy = ahead * cos - left * sin, ahead * sin + left * cos
                if -up > high * near:
                    far = -high / up
                    flat = math.sqrt(ahead * ahead + left * left) + TINY
                    across = far * pixel
                    deep = across / -up
                    gx, gy, cu, cv = x + far * dx, y + far * dy, u + PER_METRE * far * dx, v + PER_METRE * far * dy
                    flat_x, flat_y = dx / flat, dy / flat
                    here[4] = floor_at(
                        *(here, look, cells, first, columns, right, top, cu, cv, gx, gy, flat_x, flat_y, across, deep)
                    )
                    here[3] = far
                else:
                    far = ONE / near
                    share = unit(HALF + (mount.wall - high - far * up) / (far * pixel))
                    if share < ONE:
                        looked_up(here, panorama, dx, dy, up, look[TURNED], mount.top)
                    panel = differing(
                        math.floor(HALF * (x + far * dx) / PATCH), math.floor(HALF * (y + far * dy) / PATCH)
                    )
                    light = ONE + look[PATCHES] * panel
                    for k in range(3):
                        here[k] += share * (light * look[WALLS + k] - here[k])
                    here[3], here[4] = (far, WALL) if share > HALF else (FAR, SKY)
        developed(work, sums, abs(turning[picture]), optics.swing, look, seeds, car, out[picture])
        if extra.shape[0]:
            extra[picture, 0], extra[picture, 1] = work[:, :, 3], work[:, :, 4]


class Eyes(Cameras):
    """A camera on each car. `looks` (cars, CAR_LOOKS): also what colours its track has."""

    def __init__(self, cars: Cars, lens: Lens | None = None, panorama: Array | None = None) -> None:
        """ValueError where the camera is higher than the walls."""
        super().__init__(cars.num, lens, panorama, self._drawn, CAR_LOOKS)
        self.cars, (ahead, high) = cars, cars.car.eye
        if high >= HEIGHT:
            raise ValueError(f"the camera of {cars.car.name} is {high} m above the ground, walls {HEIGHT} m high")
        self._mount = Mount(np.float32(ahead), np.float32(high), np.float32(HEIGHT), self.top)
        self.looks[:, FLOOR:PATCHES], self.looks[:, PATCHES] = COLOURS, USUAL

    def _drawn(self, order: Order) -> None:
        arrays = self.cars.arrays()
        see_rows(
            *(arrays["state"], arrays["parameters"], arrays["index"], self.cars.grids.cells, self._mount),
            *(self.optics, self.looks, self.panoramas, self.seeds, *order),
        )

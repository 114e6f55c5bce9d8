"""Pictures as cameras make them: how each of them sees, and how light becomes bytes.

What is in them is drawn by whoever knows the scene, a pixel's colour as the light from there, 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines import cores
from sim.engines.sight.lens import Lens
from sim.engines.sight.panorama import OVERHEAD, landscapes
from sim.engines.vector.blocks import inlined, kernel

Array = NDArray[np.float32]

SHARE = 20_000  # pixels for which another thread is worth it: a millisecond
FAR = np.float32(30.0)  # m: what depth says of the sky
ZERO, HALF, ONE, TINY = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(1e-6)
PI = np.float32(math.pi)
# Columns of what differs from camera to camera.
GAIN_R, GAIN_G, GAIN_B, LIFT, TILT, RAISED, PANORAMA, TURNED, NOISE = range(9)
# How long it looks (s); the gain of its next picture; the share of the way to METERED by which that then changes; by
# what share of it light differs from picture to picture.
SHUTTER, EXPOSURE, ADAPTS, FLICKER = range(9, 13)
YAWED = 13  # to the left of where it is told to look, rad
LOOKS = 14
METERED = np.float32(0.45)  # mean of a picture that automatic exposure aims at, 0..1
LEAST, MOST = np.float32(0.25), np.float32(4.0)  # exposures


@inlined
def unit(value):
    """Clipped to 0..1."""
    return min(max(value, ZERO), ONE)


@inlined
def covered(distance, half, print):
    """The share of a pixel, whose footprint has this width, that a line at this distance from its middle covers."""
    width = half + half
    return unit((half + HALF * print - abs(distance)) / min(print, width)) * min(width / print, ONE)


@inlined
def looked_up(rgb, panorama, dx, dy, dz, turned, top):
    """The panorama (rows, columns, 3) in this direction, see `panorama.py`."""
    rows, columns = panorama.shape[0], panorama.shape[1]
    around = (math.atan2(dy, dx) / (PI + PI) + turned) * columns
    column = math.floor(around) % columns
    up = dz / math.sqrt(dx * dx + dy * dy + TINY)
    up = up if up < ONE else ONE + ONE - ONE / up
    row = rows - 1 - min(max(int(up * rows / top), 0), rows - 1)
    for k in range(3):
        rgb[k] = panorama[row, column, k]


@inlined
def noisy(seed):
    """The next number of a stream, and one roughly normal from it: four bytes added up."""
    seed = (seed * np.uint32(1664525) + np.uint32(1013904223)) & np.uint32(0xFFFFFFFF)
    mixed_up = seed ^ (seed >> np.uint32(15))
    total = (mixed_up & np.uint32(255)) + ((mixed_up >> np.uint32(8)) & np.uint32(255))
    total += ((mixed_up >> np.uint32(16)) & np.uint32(255)) + (mixed_up >> np.uint32(24))
    return seed, (np.float32(total) - np.float32(510.0)) / np.float32(147.8)


@kernel
def blurred(work, sums, swept, swing):
    """Smear a picture (height, width, 5) along its rows by the angle `swept` (rad): means over what passed by.

    `sums` (width + 1, 3): room. What passed beyond the picture's edge is not known, and counts as what did not.
    """
    height, width = work.shape[0], work.shape[1]
    for row in range(height):
        sums[0, :] = ZERO
        for column in range(width):
            for k in range(3):
                sums[column + 1, k] = sums[column, k] + work[row, column, k]
        for column in range(width):
            half = HALF * max(swept * swing[column], ONE)  # a pixel is one wide
            low, high = max(column + HALF - half, ZERO), min(column + HALF + half, np.float32(width))
            first, last = int(low), min(int(high), width - 1)
            for k in range(3):
                begin = sums[first, k] + (low - first) * (sums[first + 1, k] - sums[first, k])
                end = sums[last, k] + (high - last) * (sums[last + 1, k] - sums[last, k])
                work[row, column, k] = (end - begin) / (high - low)


@kernel
def developed(work, sums, turning, swing, look, seeds, camera, out):
    """What was drawn in `work` (height, width, 5), as bytes in out (height, width, 3).

    Blurred as the camera turns (rad/s), in its light, with noise from its own stream; its exposure adapts.
    """
    height, width = out.shape[0], out.shape[1]
    swept = turning * look[SHUTTER]
    if swept > TINY:
        blurred(work, sums, swept, swing)
    seed, noise, exposure, total = seeds[camera], look[NOISE], look[EXPOSURE], ZERO
    if look[FLICKER] > ZERO:
        seed, drawn = noisy(seed)
        exposure *= max(ONE + look[FLICKER] * drawn, ZERO)
    for row in range(height):
        for column in range(width):
            here = work[row, column]
            for k in range(3):
                value = here[k] * look[k] * exposure + look[LIFT]
                if noise > ZERO:
                    seed, drawn = noisy(seed)
                    value += noise * drawn
                value = unit(value)
                total += value
                out[row, column, k] = np.uint8(np.float32(255.0) * value + HALF)
    seeds[camera] = seed
    if look[ADAPTS] > ZERO:
        mean = max(total / np.float32(3 * height * width), np.float32(0.02))
        look[EXPOSURE] = min(max(look[EXPOSURE] * (METERED / mean) ** look[ADAPTS], LEAST), MOST)


class Order(NamedTuple):
    """Some of the pictures that are asked for, and room to make them in."""

    work: Array  # (height, width, 5): what is drawn: light, depth (m) and segment
    sums: Array  # (width + 1, 3)
    which: NDArray[np.int64]  # cameras (count,)
    turning: Array  # (count,) rad/s
    out: NDArray[np.uint8]  # (count, height, width, 3)
    extra: Array  # (count, 2, height, width), or empty where nobody asks


class Cameras:
    """So many cameras with one kind of lens; `draw` makes their pictures.

    `looks` (cameras, columns): how each of them sees, the first LOOKS as above.
    """

    def __init__(
        self, count: int, lens: Lens | None, panorama: Array | None, draw: Callable[[Order], None], columns: int = LOOKS
    ) -> None:
        """`panorama`: what is around, as `panorama.table` makes it; ours if nobody has one."""
        self.lens, self._draw = lens or Lens(), draw
        self.optics, height, width = self.lens.optics(), self.lens.height, self.lens.width
        self.looks = np.zeros((count, columns), np.float32)
        self.looks[:, :3], self.looks[:, EXPOSURE], self.looks[:, TILT] = 1.0, 1.0, math.radians(self.lens.tilt)
        self.panoramas = landscapes(4) if panorama is None else panorama
        self.top = np.float32(1.0 if panorama is None else OVERHEAD)  # of panoramas
        self.seeds = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761)
        self._threads = cores()
        self._work = np.zeros((self._threads, height, width, 5), np.float32)
        self._sums = np.zeros((self._threads, width + 1, 3), np.float32)

    def see(
        self, cameras: NDArray[np.int64] | None = None, extra: bool = False, turning: Array | None = None
    ) -> tuple[NDArray[np.uint8], Array]:
        """Pictures (count, height, width, 3) of these cameras, or all; with `extra` depth (m) and segmentation, too.

        Those are (count, 2, height, width). `turning` (count,) is how fast they turn (rad/s), which blurs.
        """
        which = np.arange(len(self.looks)) if cameras is None else cameras
        count, height, width = len(which), self.lens.height, self.lens.width
        out = np.empty((count, height, width, 3), np.uint8)
        more = np.empty((count * extra, 2, height, width), np.float32)
        turning = np.zeros(count, np.float32) if turning is None else np.asarray(turning, np.float32)

        def part(k: int, of: int) -> None:
            some = slice(count * k // of, count * (k + 1) // of)
            self._draw(Order(self._work[k], self._sums[k], which[some], turning[some], out[some], more[some]))

        shares = min(self._threads, max(1, count * height * width // SHARE))
        if shares == 1:
            part(0, 1)
        else:
            with ThreadPoolExecutor(shares - 1) as pool:
                others = [pool.submit(part, k, shares) for k in range(1, shares)]
                part(0, shares)
                for other in others:
                    other.result()
        return out, more

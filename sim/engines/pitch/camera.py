"""What robots see of a match: pictures by casting a ray through each pixel, of scenes that formulas describe.

Grass with lines, boards, goals, the ball and the other robots; above the boards a panorama, looked up by direction.
Lines, the ball and robots cover shares of pixels (their edges are as wide as a pixel's footprint), so that they do not
break into dots in coarse pictures. Own goal and team are drawn in one colour, those of the others in another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch.rows import BALL_RADIUS, BALL_X, BALL_Y, COS, PAN, ROBOT_ROWS, ROBOTS, SIN, X, Y
from sim.engines.sight.lens import Lens
from sim.engines.sight.picture import (
    FAR,
    HALF,
    ONE,
    PANORAMA,
    PI,
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
from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import LANES

if TYPE_CHECKING:
    from sim.engines.pitch import Pitch

Array = NDArray[np.float32]

GRASS, WHITE, BOARD, BALL = (0.16, 0.42, 0.18), (0.92, 0.93, 0.92), (0.55, 0.56, 0.58), (0.95, 0.45, 0.08)
OWN, OTHER = (0.15, 0.30, 0.85), (0.92, 0.78, 0.12)
COLOURS = np.array([GRASS, WHITE, BOARD, BALL, OWN, OTHER], np.float32)
# What a pixel shows, by the largest share: the values of the segmentation.
SKY, GROUND, LINE, WALL, GOAL_OWN, GOAL_OTHER, IS_BALL, IS_MATE, IS_OPPONENT = range(9)
HALF_LINE = np.float32(0.025)  # m
MARGIN = np.float32(1.1)  # of what is looked at, around things


class Stage(NamedTuple):
    """What does not change: numbers of the pitch and of the robots, in m."""

    half_length: np.float32
    half_width: np.float32
    half_goal: np.float32
    depth: np.float32
    circle: np.float32
    wall: np.float32
    radius: np.float32
    front: np.float32
    tall: np.float32
    eye: np.float32  # ahead of the axis
    high: np.float32  # above the ground
    top: np.float32  # of panoramas


@inlined
def mixed(rgb, colour, share, light):
    """Lay a colour over what is there."""
    for k in range(3):
        rgb[k] += share * (light * COLOURS[colour, k] - rgb[k])


@inlined
def scenery(rgb, x, y, high, dx, dy, dz, pixel, stage, side, panorama, turned):
    """Ground, boards and goals, or the panorama above them: into rgb; what it is, and how far (m)."""
    # To the boards, seen from above.
    to_x = (stage.half_length - x) / dx if dx > TINY else ((-stage.half_length - x) / dx if dx < -TINY else FAR)
    to_y = (stage.half_width - y) / dy if dy > TINY else ((-stage.half_width - y) / dy if dy < -TINY else FAR)
    to_wall, what, light = min(to_x, to_y), WALL, ONE if to_x < to_y else np.float32(0.88)
    if to_x < to_y and abs(y + to_x * dy) < stage.half_goal:  # into a goal
        what = GOAL_OTHER if (dx > ZERO) == (side > ZERO) else GOAL_OWN
        behind = to_x + stage.depth / abs(dx)
        edge = stage.half_goal if dy > ZERO else -stage.half_goal
        beside = (edge - y) / dy if abs(dy) > TINY else FAR
        to_wall, light = min(behind, beside), ONE if behind < beside else np.float32(0.8)
    to_ground = -high / dz if dz < -TINY else FAR
    if to_ground < to_wall:
        gx, gy = x + to_ground * dx, y + to_ground * dy
        flat = math.sqrt(dx * dx + dy * dy) + TINY
        fx, fy = abs(dx) / flat, abs(dy) / flat
        across = to_ground * pixel
        along = across / (abs(dz) + TINY)
        print_x, print_y = across * fy + along * fx, across * fx + along * fy  # the pixel's on the ground
        stripe = ONE if math.floor(gx + gx) % 2 == 0 else np.float32(0.92)
        for k in range(3):
            rgb[k] = stripe * COLOURS[0, k]
        away = math.sqrt(gx * gx + gy * gy)
        line = covered(gx, HALF_LINE, print_x)
        line = max(line, covered(abs(gx) - stage.half_length + HALF_LINE, HALF_LINE, print_x))
        line = max(line, covered(abs(gy) - stage.half_width + HALF_LINE, HALF_LINE, print_y))
        nx, ny = abs(gx) / (away + TINY), abs(gy) / (away + TINY)
        line = max(line, covered(away - stage.circle, HALF_LINE, print_x * nx + print_y * ny))
        mixed(rgb, 1, line, ONE)
        return LINE if line > HALF else GROUND, to_ground
    print = to_wall * pixel
    share = unit(HALF + (stage.wall - high - to_wall * dz) / print)
    if share < ONE:
        looked_up(rgb, panorama, dx, dy, dz, turned, stage.top)
    mixed(rgb, 2 if what == WALL else (4 if what == GOAL_OWN else 5), share, light)
    return (what, to_wall) if share > HALF else (SKY, FAR)


@kernel
def see_rows(
    state, parameters, players, robots, stage, optics, looks, panoramas, seeds, work, sums, which, turning, out, extra
):
    """Pictures out (count, height, width, 3) of the cameras `which` (count,): of the first `robots` of each world.

    `turning` (count,) is how fast each turns, in rad/s. `work` (height, width, 5) and `sums` (width + 1, 3) are room
    for one. `extra`: depth (m) and segmentation (count, 2, height, width), or an empty array where nobody asks.
    """
    rays, spans = optics.rays, optics.spans
    height, width = rays.shape[0], rays.shape[1]
    order, away = np.empty(2 * players, np.int64), np.empty(2 * players, np.float32)
    for index in range(out.shape[0]):
        camera = which[index]
        world, robot = camera // robots, camera % robots
        s, lane, look = state[world // LANES], world % LANES, looks[camera]
        at = ROBOTS + ROBOT_ROWS * robot
        side = ONE if robot < players else -ONE
        cos, sin = s[at + COS, lane], s[at + SIN, lane]
        x, y, high = s[at + X, lane] + stage.eye * cos, s[at + Y, lane] + stage.eye * sin, stage.high + look[RAISED]
        pan = s[at + PAN, lane] + look[YAWED]
        pan_cos, pan_sin = np.float32(math.cos(pan)), np.float32(math.sin(pan))
        cos, sin = cos * pan_cos - sin * pan_sin, sin * pan_cos + cos * pan_sin
        tilt_cos, tilt_sin = np.float32(math.cos(look[TILT])), np.float32(math.sin(look[TILT]))
        panorama = panoramas[int(look[PANORAMA])]
        for row in range(height):
            for column in range(width):
                ahead, left, up = rays[row, column, 0], rays[row, column, 1], rays[row, column, 2]
                ahead, up = ahead * tilt_cos + up * tilt_sin, up * tilt_cos - ahead * tilt_sin
                dx, dy = ahead * cos - left * sin, ahead * sin + left * cos
                here = work[row, column]
                pixel = rays[row, column, 3]
                what, far = scenery(here, x, y, high, dx, dy, up, pixel, stage, side, panorama, look[TURNED])
                here[3], here[4] = far, what
        # The ball and the others, the farthest first.
        count = 0
        for k in range(2 * players):
            if k == robot:
                continue
            to = ROBOTS + ROBOT_ROWS * k
            distance = math.hypot(s[to + X, lane] - x, s[to + Y, lane] - y)
            place = count
            while place > 0 and away[place - 1] < distance:
                away[place], order[place] = away[place - 1], order[place - 1]
                place -= 1
            away[place], order[place] = distance, k
            count += 1
        distance = math.hypot(s[BALL_X, lane] - x, s[BALL_Y, lane] - y)
        place = count
        while place > 0 and away[place - 1] < distance:
            away[place], order[place] = away[place - 1], order[place - 1]
            place -= 1
        away[place], order[place] = distance, -1
        for k in range(count + 1):
            ball = order[k] < 0
            to = ROBOTS + ROBOT_ROWS * max(order[k], 0)
            ox, oy = (s[BALL_X, lane], s[BALL_Y, lane]) if ball else (s[to + X, lane], s[to + Y, lane])
            size = parameters[world // LANES, BALL_RADIUS, lane] if ball else stage.radius
            tall = size + size if ball else stage.tall
            ahead, left = (ox - x) * cos + (oy - y) * sin, (oy - y) * cos - (ox - x) * sin
            if ahead < -size and optics.ahead:
                continue
            # Columns in which it may be; close by it may be anywhere.
            low, most = 0, width
            near = ahead * tilt_cos - max(tall - high, -high) * tilt_sin
            far = ahead * tilt_cos - min(tall - high, -high) * tilt_sin
            near, far = min(near, far), max(near, far)
            wide = MARGIN * size / math.sqrt(near * near + left * left + TINY)
            if near > np.float32(2.0) * size:
                one, other = left / near, left / far
                rightmost, leftmost = min(one, other), max(one, other)
                rightmost = (rightmost - wide) / max(ONE + rightmost * wide, TINY)
                leftmost = (leftmost + wide) / max(ONE - leftmost * wide, TINY)
                while low < width and spans[low, 0] > leftmost:
                    low += 1
                while most > low and spans[most - 1, 1] < rightmost:
                    most -= 1
            ours = (order[k] < players) == (robot < players)
            colour = 3 if ball else (4 if ours else 5)
            for row in range(height):
                for column in range(low, most):
                    forth, aside, up = rays[row, column, 0], rays[row, column, 1], rays[row, column, 2]
                    forth, up = forth * tilt_cos + up * tilt_sin, up * tilt_cos - forth * tilt_sin
                    flat = math.sqrt(forth * forth + aside * aside) + TINY
                    near = (ahead * forth + left * aside) / flat  # along the ray, seen from above
                    if near < TINY:
                        continue
                    off = (left * forth - ahead * aside) / flat
                    tall_at = high + near * up / flat
                    print = near * rays[row, column, 3]
                    if ball:
                        down = tall_at - size
                        apart = math.sqrt(off * off + down * down * flat * flat / (flat * flat + up * up))
                        share = unit((size + HALF * print - apart) / min(print, size + size))
                        share *= min(PI * size * size / (print * print), ONE)
                        light = np.float32(0.75) + np.float32(0.25) * down / size
                    else:
                        share = covered(off, size, print)
                        share *= unit(HALF + (tall - tall_at) / print) * unit(HALF + tall_at / print)
                        light = np.float32(0.7) + np.float32(0.3) * off / size
                    if share > ZERO:
                        here = work[row, column]
                        mixed(here, colour, share, light)
                        if share > HALF:
                            # To its surface, along the camera's axis.
                            if ball:
                                steep = flat * flat + up * up
                                back = math.sqrt(max(size * size - apart * apart, ZERO) / steep)
                                here[3] = max((near * flat - (high - size) * up) / steep - back, TINY)
                            else:
                                here[3] = max((near - math.sqrt(max(size * size - off * off, ZERO))) / flat, TINY)
                            here[4] = IS_BALL if ball else (IS_MATE if ours else IS_OPPONENT)
        developed(work, sums, abs(turning[index]), optics.swing, look, seeds, camera, out[index])
        if extra.shape[0]:
            extra[index, 0], extra[index, 1] = work[:, :, 3], work[:, :, 4]


class Eyes(Cameras):
    """The cameras of the first `robots` robots of each world of a pitch."""

    def __init__(self, pitch: Pitch, robots: int, lens: Lens | None = None, panorama: Array | None = None) -> None:
        super().__init__(pitch.num * robots, lens, panorama, self._drawn)
        self.pitch, self.robots = pitch, robots
        robot, field, shape = pitch.robot, pitch.field, pitch.shape
        rest = (field.depth, field.circle, field.wall, robot.radius, robot.front, robot.height, *robot.eye)
        numbers = (shape.half_length, shape.half_width, shape.half_goal, *rest, self.top)
        self._stage = Stage(*(np.float32(value) for value in numbers))

    def _drawn(self, order: Order) -> None:
        arrays: dict[str, Any] = self.pitch.arrays()
        see_rows(
            *(arrays["state"], arrays["parameters"], self.pitch.robots // 2, self.robots, self._stage),
            *(self.optics, self.looks, self.panoramas, self.seeds, *order),
        )

"""A football match from above, as a picture for people."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sim.scenes.pitch import Field
    from sim.tasks.soccer import Soccer

Double = NDArray[np.float64]
Colour = tuple[float, float, float]

BORDER = 0.15  # m around the boards and goals
LINE = 0.025  # m, half the width of a line
GAZE = 0.3  # m, length of the line that shows where a camera looks
GRASS, STRIPE, BOARD, WHITE = (0.16, 0.47, 0.22), (0.18, 0.51, 0.25), (0.28, 0.30, 0.33), (0.93, 0.94, 0.93)
BALL, FRONT, SEEING = (0.96, 0.52, 0.10), (0.12, 0.12, 0.14), (1.0, 1.0, 1.0)
FRAME = 3  # pixels around what a camera sees
# Rows of 3 pixels, each an octal digit.
GLYPHS = {
    **{"0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711"},
    **{"5": "74717", "6": "74757", "7": "71222", "8": "75757", "9": "75717", ".": "00002", "-": "00700"},
}
TEAMS = ((0.16, 0.36, 0.85), (0.93, 0.80, 0.16))  # blue and yellow


class Canvas(NamedTuple):
    """A picture with where its pixels are, in m: x (1, width), y (height, 1)."""

    picture: NDArray[np.float32]
    x: Double
    y: Double
    pixel: float

    def paint(self, distance: Double, colour: Colour) -> None:
        """Where the distance (m) from a shape is negative, with edges one pixel wide."""
        share = np.clip(0.5 - distance / self.pixel, 0.0, 1.0)[..., None]
        self.picture[:] += share * (np.array(colour) - self.picture)

    def paint_near(self, place: Double, reach: float, shape: Callable[[Canvas], Double], colour: Colour) -> None:
        """A small shape, whose distance is asked for only within reach (m) of a place."""
        columns = slice(*np.searchsorted(self.x[0], (place[0] - reach, place[0] + reach)))
        rows = slice(*np.searchsorted(-self.y[:, 0], (-place[1] - reach, -place[1] + reach)))
        part = Canvas(self.picture[rows, columns], self.x[:, columns], self.y[rows], self.pixel)
        part.paint(shape(part), colour)


@functools.lru_cache(maxsize=8)
def _empty(field: Field, height: int, width: int) -> Canvas:
    """The pitch without anybody on it."""
    half = np.array([field.length / 2 + field.depth, field.width / 2]) + BORDER
    pixel = max(2.0 * half[0] / width, 2.0 * half[1] / height)
    x, y = (np.arange(width)[None] + 0.5 - width / 2) * pixel, (height / 2 - np.arange(height)[:, None] - 0.5) * pixel
    canvas = Canvas(np.empty((height, width, 3), np.float32), x, y, pixel)
    canvas.picture[:] = BOARD
    length, side = field.length / 2, field.width / 2
    inside = np.maximum(np.abs(x) - length, np.abs(y) - side)
    canvas.paint(inside, GRASS)
    canvas.paint(np.maximum(inside, np.abs(np.mod(x, 1.0) - 0.5) - 0.25), STRIPE)
    goals = np.maximum(np.abs(np.abs(x) - length - field.depth / 2) - field.depth / 2, np.abs(y) - field.goal / 2)
    canvas.paint(goals, WHITE)
    for line in (np.abs(inside), np.abs(x) + 0.0 * y, np.abs(np.hypot(x, y) - field.circle)):
        canvas.paint(np.maximum(line - LINE, inside), WHITE)
    return canvas


def from_above(
    task: Soccer, read: Mapping[str, NDArray[np.float32]], robot: int, height: int, width: int
) -> NDArray[np.uint8]:
    """Position and heading (robots, 2), pan (robots, 1) and ball_position (2,) as (height, width, 3).

    A ring marks this robot; lines show where cameras look.
    """
    body, canvas = task.robot, _empty(task.field, height, width)
    canvas = canvas._replace(picture=canvas.picture.copy())
    reach = 1.3 * body.radius + 2.0 * LINE
    places, headings = (read[name].astype(np.float64) for name in ("position", "heading"))
    for k, (place, heading) in enumerate(zip(places, headings, strict=True)):

        def away(part: Canvas, place: Double = place) -> Double:
            distance: Double = np.hypot(part.x - place[0], part.y - place[1])
            return distance

        def ahead(part: Canvas, place: Double = place, heading: Double = heading) -> Double:
            distance: Double = (part.x - place[0]) * heading[0] + (part.y - place[1]) * heading[1]
            return distance

        def shape(part: Canvas) -> Double:
            return np.maximum(away(part) - body.radius, ahead(part) - body.front)

        if k == robot:
            canvas.paint_near(place, reach, lambda part: np.abs(away(part) - 1.3 * body.radius) - 0.5 * LINE, SEEING)
        canvas.paint_near(place, reach, shape, TEAMS[k // task.players])
        canvas.paint_near(place, reach, lambda part: np.maximum(shape(part), body.front - 0.02 - ahead(part)), FRONT)
        if task.sees:
            angle = float(read["pan"][k, 0])
            cos, sin = np.cos(angle), np.sin(angle)
            looks = np.array([heading[0] * cos - heading[1] * sin, heading[1] * cos + heading[0] * sin])

            def gaze(part: Canvas, place: Double = place, looks: Double = looks) -> Double:
                """From a line ahead of the camera."""
                along = (part.x - place[0]) * looks[0] + (part.y - place[1]) * looks[1]
                off: Double = np.hypot(
                    part.x - place[0] - along.clip(0.0, GAZE) * looks[0],
                    part.y - place[1] - along.clip(0.0, GAZE) * looks[1],
                )
                return off - 0.4 * LINE

            canvas.paint_near(place, GAZE + LINE, gaze, SEEING)
    ball = read["ball_position"].astype(np.float64)
    canvas.paint_near(ball, reach, lambda part: np.hypot(part.x - ball[0], part.y - ball[1]) - task.ball.radius, BALL)
    return np.round(255.0 * canvas.picture).astype(np.uint8)


def letters(text: str, scale: int) -> NDArray[np.bool_]:
    """Digits, points, colons and dashes as a mask, 5 * scale tall."""
    made = np.zeros((5, 4 * len(text)), bool)
    for k, one in enumerate(text):
        rows = GLYPHS.get(one, "00000")
        made[:, 4 * k : 4 * k + 3] = [[int(row) >> 2 - column & 1 for column in range(3)] for row in rows]
    return made[:, :-1].repeat(scale, axis=0).repeat(scale, axis=1)


def written(picture: NDArray[np.uint8], text: str, colour: Colour, middle: int, top: int, scale: int) -> None:
    """Write into a picture (height, width, 3), around that column, where there is room for it."""
    mask = letters(text, scale)
    left = middle - mask.shape[1] // 2
    part = picture[top : top + mask.shape[0], max(left, 0) : max(left, 0) + mask.shape[1]]
    if left >= 0 and part.shape[:2] == mask.shape:
        part[mask] = np.round(255.0 * np.array(colour))


def enlargement(eyes: tuple[int, int], count: int, height: int, width: int) -> int:
    """By how much pictures of so many cameras (rows, columns) can be enlarged in a strip; 0: there is no room."""
    scale = min((height - 2 * FRAME) // eyes[0], (width // count - 2 * FRAME) // eyes[1])
    return max(0, scale)


def strip(eyes: NDArray[np.uint8], teams: Sequence[int], height: int, width: int) -> NDArray[np.uint8]:
    """Pictures of cameras (count, rows, columns, 3) side by side, each in a frame of its team's colour."""
    count, rows, columns, _ = eyes.shape
    scale = enlargement((rows, columns), count, height, width)
    made = np.full((height, width, 3), np.round(255.0 * np.array(FRONT)), np.uint8)
    tall, wide = rows * scale + 2 * FRAME, columns * scale + 2 * FRAME
    top, space = (height - tall) // 2, (width - count * wide) / max(1, count - 1)
    for k, (picture, team) in enumerate(zip(eyes, teams, strict=True)):
        left = round(k * (wide + space))
        made[top : top + tall, left : left + wide] = np.round(255.0 * np.array(TEAMS[team]))
        inside = made[top + FRAME : top + tall - FRAME, left + FRAME : left + wide - FRAME]
        inside[:] = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    return made


def scoreboard(picture: NDArray[np.uint8], seconds: float, goals: tuple[int, int], top: int, bottom: int) -> None:
    """Write the time and, in the teams' colours, the goals into the middle of these rows of a picture."""
    middle, scale = picture.shape[1] // 2, max(1, picture.shape[1] // 100)
    line = 6 * scale
    first = (top + bottom - 2 * line) // 2
    written(picture, f"{seconds:.1f}", WHITE, middle, first, scale)
    written(picture, "-", WHITE, middle, first + line, scale)
    for team, side in ((0, -1), (1, 1)):
        written(picture, str(goals[team]), TEAMS[team], middle + side * 5 * scale, first + line, scale)

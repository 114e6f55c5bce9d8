"""A small renderer in numpy that needs no graphics library: draws a `Film` with soft-edged discs and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.render import scene as colours
from sim.render.scene import FIELD_OF_VIEW, Double, Film, axes
from sim.scenes.gates import BAR

Picture = NDArray[np.float32]
Colour = Sequence[float]


class Camera:
    """A perspective view of the film's scene."""

    def __init__(self, film: Film) -> None:
        self.axes = axes()
        self.eye = film.centre - film.distance * self.axes[2]
        self.focal = 0.5 * film.height / np.tan(np.radians(FIELD_OF_VIEW / 2.0))  # px
        self.middle = np.array([film.width / 2.0, film.height / 2.0])

    def project(self, points: Double) -> tuple[Double, Double]:
        """Pixels (m, 2) and depths (m,) in m of points (m, 3)."""
        local = (points - self.eye) @ self.axes.T
        depth = np.maximum(local[:, 2], 1e-3)
        return self.middle + self.focal * local[:, :2] / depth[:, None], depth

    def rays(self, width: int, height: int) -> Double:
        """The direction (height, width, 3) in which each pixel looks."""
        x = (np.arange(width) + 0.5 - self.middle[0]) / self.focal
        y = (np.arange(height) + 0.5 - self.middle[1]) / self.focal
        direction: Double = (
            x[None, :, None] * self.axes[0]
            + y[:, None, None] * self.axes[1]
            + np.ones((height, width, 1)) * self.axes[2]
        )
        return direction


def background(film: Film, camera: Camera) -> Picture:
    """The sky and a floor with a grid of 0.5 m, (height, width, 3)."""
    rays = camera.rays(film.width, film.height)
    down = -rays[..., 2]
    height = camera.eye[2] - film.ground
    distance = np.where(down > 1e-6, height / np.maximum(down, 1e-6), np.inf)
    haze = np.clip(1.5 - distance / (4.0 * film.distance), 0.0, 1.0)[..., None]
    spacing = 0.5
    line = np.zeros(distance.shape)
    for axis in (0, 1):
        place = camera.eye[axis] + np.where(np.isfinite(distance), distance, 0.0) * rays[..., axis]
        # How many metres of floor one pixel covers along this axis: lines stay one pixel wide.
        cover = np.maximum(np.abs(np.gradient(place, axis=1)) + np.abs(np.gradient(place, axis=0)), 1e-4)
        off = np.abs((place / spacing + 0.5) % 1.0 - 0.5) * spacing
        line = np.maximum(line, np.clip(1.2 - off / cover, 0.0, 1.0) * np.clip(spacing / cover / 6.0, 0.0, 1.0))
    floor = np.array(colours.GROUND) + line[..., None] * (np.array(colours.LINES) - np.array(colours.GROUND))
    up = np.clip(-down / 0.35, 0.0, 1.0)[..., None]
    sky = np.array(colours.HORIZON) + up * (np.array(colours.SKY) - np.array(colours.HORIZON))
    picture: Picture = (haze * floor + (1.0 - haze) * sky).astype(np.float32)
    return picture


def _blend(picture: Picture, rows: slice, columns: slice, cover: NDArray[np.floating], colour: Colour) -> None:
    patch = picture[rows, columns]
    patch += cover[..., None].astype(np.float32) * (np.asarray(colour, np.float32) - patch)


def _box(picture: Picture, low: Double, high: Double) -> tuple[slice, slice, Double, Double] | None:
    """The pixels between two corners: their slices and their coordinates; None when outside the picture."""
    left, top = np.floor(np.maximum(low, 0.0)).astype(int)
    right = min(int(np.ceil(high[0])) + 1, picture.shape[1])
    bottom = min(int(np.ceil(high[1])) + 1, picture.shape[0])
    if right <= left or bottom <= top:
        return None
    return slice(top, bottom), slice(left, right), np.arange(left, right) + 0.5, np.arange(top, bottom)[:, None] + 0.5


def draw_path(picture: Picture, points: Double, radius: float, colour: Colour, alpha: Double | float = 1.0) -> None:
    """A line with round joints through pixels (m, 2); `radius` in px; `alpha` may differ per segment (m - 1,)."""
    # Lines thinner than a pixel fade instead of breaking up.
    opacity = np.broadcast_to(np.asarray(alpha) * min(1.0, 2.0 * radius), len(points) - 1)
    radius = max(radius, 0.5)
    whole = _box(picture, points.min(0) - radius - 1.0, points.max(0) + radius + 1.0)
    if whole is None:
        return
    # Covered first and blended once, so that overlapping joints are no darker than the rest.
    cover: Picture = np.zeros(picture[whole[0], whole[1]].shape[:2], np.float32)
    local = points - (whole[1].start, whole[0].start)
    for start, end, strength in zip(local[:-1], local[1:], opacity, strict=True):
        box = _box(cover, np.minimum(start, end) - radius - 1.0, np.maximum(start, end) + radius + 1.0)
        if box is None:
            continue
        rows, columns, x, y = box
        along = end - start
        t = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / max(float(along @ along), 1e-9), 0.0, 1.0)
        away = np.hypot(x - start[0] - t * along[0], y - start[1] - t * along[1])
        patch = cover[rows, columns]
        np.maximum(patch, strength * np.clip(radius - away + 0.5, 0.0, 1.0), out=patch, casting="same_kind")
    _blend(picture, whole[0], whole[1], cover, colour)


def draw_disc(
    picture: Picture, middle: Double, axes: Double, colour: Colour, alpha: float = 1.0, rim: float = 0.0
) -> None:
    """A disc whose radii project to the columns of `axes` (2, 2) px; with `rim`, its edge of that many px is opaque."""
    left, size, _ = np.linalg.svd(axes)
    size = np.maximum(size, 0.8)
    reach = np.abs(left) @ size + 1.0
    box = _box(picture, middle - reach, middle + reach)
    if box is None:
        return
    rows, columns, x, y = box
    u = ((x - middle[0]) * left[0, 0] + (y - middle[1]) * left[1, 0]) / size[0]
    v = ((x - middle[0]) * left[0, 1] + (y - middle[1]) * left[1, 1]) / size[1]
    r = np.hypot(u, v)
    # Distance to the edge in px, to first order.
    inside = (1.0 - r) / np.maximum(np.hypot(u / size[0], v / size[1]) / np.maximum(r, 1e-6), 1e-6)
    cover = alpha * np.clip(inside + 0.5, 0.0, 1.0)
    if rim:
        cover = np.maximum(cover, np.clip(inside + 0.5, 0.0, 1.0) * np.clip(rim - inside + 0.5, 0.0, 1.0))
    _blend(picture, rows, columns, cover, colour)


class Artist:
    """Draws one frame of a film after another."""

    def __init__(self, film: Film) -> None:
        self.film = film
        self.camera = Camera(film)
        self.background = background(film, self.camera)
        for k in range(film.target.shape[1]):
            if np.ptp(film.target[:, k], axis=0).any():
                pixels = self.camera.project(film.target[:, k])[0]
                draw_path(self.background, pixels, 0.8, colours.TARGET, 0.35)
        for corners in film.openings:
            self._bars(self.background, corners, colours.GATE)
        for x, y, radius in film.pillars:
            self._rod(self.background, np.array([[x, y, film.ground], [x, y, film.top]]), radius, colours.PILLAR, 0.6)
        self.arms = film.enlargement * np.array([[x, y, 0.0] for x, y in film.robot.rotor_position])
        self.rotor = film.enlargement * film.robot.propeller_radius

    def frame(self, index: int) -> NDArray[np.uint8]:
        """Frame `index` as (height, width, 3) uint8."""
        film, picture = self.film, self.background.copy()
        for k in range(film.position.shape[1]):
            self._shadow(picture, film.position[index, k], film.rotation[index, k])
        if len(film.openings):
            self._bars(picture, film.openings[film.due[index]], colours.TARGET)
        for k in range(film.position.shape[1]):
            self._target(picture, film.target[index, k])
            self._trail(picture, film.trail(index)[:, k], colours.TRAILS[k % len(colours.TRAILS)])
        depth = self.camera.project(film.position[index])[1]
        for k in np.argsort(-depth):
            self._vehicle(picture, film.position[index, k], film.rotation[index, k], film.spin[index, k])
        return (np.clip(picture, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)

    def _bars(self, picture: Picture, corners: Double, colour: Colour) -> None:
        """Along the edges of an opening with corners (4, 3)."""
        self._rod(picture, corners[[0, 1, 2, 3, 0]], 0.5 * BAR, colour)

    def _disc(
        self, picture: Picture, centre: Double, axes: Double, colour: Colour, alpha: float, rim: float = 0.0
    ) -> None:
        """A disc around `centre` (3,) m, spanned by the rows of `axes` (2, 3) m."""
        pixel = self.camera.project(np.stack([centre, centre + axes[0], centre + axes[1]]))[0]
        draw_disc(picture, pixel[0], (pixel[1:] - pixel[0]).T, colour, alpha, rim)

    def _rod(
        self, picture: Picture, points: Double, radius: float, colour: Colour, alpha: Double | float = 1.0
    ) -> None:
        """A rod of `radius` m through points (m, 3) m."""
        pixel, depth = self.camera.project(points)
        draw_path(picture, pixel, radius * self.camera.focal / float(depth.mean()), colour, alpha)

    def _shadow(self, picture: Picture, position: Double, turn: Double) -> None:
        flat = np.eye(3)[:2] * self.rotor
        for arm in self.arms:
            centre = position + turn @ arm
            centre[2] = self.film.ground
            self._disc(picture, centre, flat, colours.SHADOW, 0.35)

    def _target(self, picture: Picture, target: Double) -> None:
        foot = np.array([target[0], target[1], self.film.ground])
        self._rod(picture, np.stack([foot, target]), 0.003, colours.TARGET, 0.5)
        pixel, depth = self.camera.project(target[None])
        radius = 0.025 * self.film.radius * self.camera.focal / float(depth[0])
        draw_disc(picture, pixel[0], radius * np.eye(2), colours.TARGET, 0.35, rim=1.5)

    def _trail(self, picture: Picture, points: Double, colour: Colour) -> None:
        if len(points) > 1:
            fresh = np.linspace(0.0, 1.0, len(points))[1:]
            self._rod(picture, points, 0.005 * self.film.radius, colour, 0.1 + 0.8 * fresh)

    def _vehicle(self, picture: Picture, position: Double, turn: Double, spin: Double) -> None:
        size = float(np.linalg.norm(self.arms[0]))
        lifted = position + 0.10 * size * turn[:, 2]
        hubs = lifted + self.arms @ turn.T
        order = np.argsort(-self.camera.project(hubs)[1])
        for k in order:
            self._rod(picture, np.stack([position, position + turn @ self.arms[k]]), 0.06 * size, colours.FRAME)
        self._rod(picture, position + np.outer([-0.3, 0.35], size * turn[:, 0]), 0.16 * size, colours.FRAME)
        for k in order:
            colour = colours.FRONT if self.film.robot.rotor_position[k][0] > 0.0 else colours.BACK
            self._disc(picture, hubs[k], self.rotor * turn[:, :2].T, colour, 0.35)
            blade = self.rotor * (np.cos(spin[k]) * turn[:, 0] + np.sin(spin[k]) * turn[:, 1])
            self._rod(picture, np.stack([hubs[k] - blade, hubs[k] + blade]), 0.09 * self.rotor, colour)
            self._rod(picture, np.stack([position + turn @ self.arms[k], hubs[k]]), 0.05 * size, colours.FRAME)


def frames(film: Film) -> Iterator[NDArray[np.uint8]]:
    """All frames of the film, (height, width, 3) uint8 each."""
    artist = Artist(film)
    for index in range(len(film.position)):
        yield artist.frame(index)

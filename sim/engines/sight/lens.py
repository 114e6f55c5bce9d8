"""Lenses: which way each pixel of a camera looks, as tables that cost nothing while pictures are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Double = NDArray[np.float64]

KINDS = ("pinhole", "fisheye")
WIDEST = {"pinhole": 170.0, "fisheye": 200.0}  # degrees to the corners
ROUNDS = 30  # of Newton's method


class Optics(NamedTuple):
    """A lens as a kernel takes it."""

    rays: Array  # (height, width, 4): ahead, left, up; and how wide the pixel is where the ray is this long
    spans: Array  # (width, 2): the least and the most that rays of a column go left per ahead
    swing: Array  # (width,): pixels by which a thing there moves per rad of turning
    ahead: bool  # no ray looks back


@dataclass(frozen=True)
class Lens:
    """A camera, and how it looks at the world.

    A ray at the angle a from the axis meets the picture at focal * u * (1 + distortion * u^2) from its middle. Of a
    pinhole u is tan a, and distortion its first radial coefficient (Brown 1966): below 0 barrels, above 0 cushions. Of
    a fisheye u is a, equidistant, as Kannala and Brandt 2006 have it.
    """

    height: int = 30  # pixels
    width: int = 40
    view: float = 90.0  # degrees, across
    tilt: float = 8.0  # degrees below the horizon
    kind: str = "pinhole"  # pinhole | fisheye
    distortion: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 1000 and 1 <= self.width <= 1000):
            raise ValueError(f"a picture has 1 to 1000 rows and columns, got {self.height} x {self.width}")
        if self.kind not in KINDS:
            raise ValueError(f"lens {self.kind!r} is not one of {', '.join(KINDS)}")
        if not 1.0 <= self.view <= 170.0:
            raise ValueError(f"a camera sees 1 to 170 degrees, got {self.view}")
        if not -89.0 <= self.tilt <= 89.0:
            raise ValueError(f"a camera is tilted by -89 to 89 degrees, got {self.tilt}")
        if not -1.0 <= self.distortion <= 1.0:
            raise ValueError(f"distortion must be between -1 and 1, got {self.distortion}")
        corner = math.hypot(1.0, self.height / self.width) * self._bent(self._edge)
        if self.distortion < 0.0 and corner >= self._bent(1.0 / math.sqrt(-3.0 * self.distortion)):
            raise ValueError(
                f"distortion {self.distortion:g} folds a picture of {self.view:g} degrees: take less of either"
            )
        across = 2.0 * math.degrees(self._angle(float(self._straight(np.array(corner)))))
        if across >= WIDEST[self.kind]:
            raise ValueError(
                f"a {self.kind} sees {WIDEST[self.kind]:g} degrees from corner to corner, got {across:.0f}: lower view"
            )

    @property
    def focal(self) -> float:
        """In pixels."""
        return 0.5 * self.width / self._bent(self._edge)

    @property
    def _edge(self) -> float:
        """u at the left and right edge."""
        half = math.radians(self.view) / 2.0
        return math.tan(half) if self.kind == "pinhole" else half

    def _angle(self, u: float) -> float:
        return math.atan(u) if self.kind == "pinhole" else u

    def _bent(self, u: float) -> float:
        return u * (1.0 + self.distortion * u * u)

    def _straight(self, bent: Double) -> Double:
        """u of what `_bent` makes of it, by Newton's method."""
        u = np.minimum(bent, 1.0 / math.sqrt(-3.0 * self.distortion)) if self.distortion < 0.0 else bent.copy()
        for _ in range(ROUNDS if self.distortion else 0):
            slope = np.maximum(1.0 + 3.0 * self.distortion * u * u, 1e-3)
            u = u - (u * (1.0 + self.distortion * u * u) - bent) / slope
        return u

    def optics(self) -> Optics:
        """The tables. Rays of a pinhole go 1 ahead, those of a fisheye are 1 long."""
        focal, height, width = self.focal, self.height, self.width
        rays = np.ones((height, width, 4), np.float32)
        left = (width / 2.0 - np.arange(width) - 0.5) / focal
        up = ((height / 2.0 - np.arange(height) - 0.5) / focal)[:, None]
        rays[..., 1], rays[..., 2], rays[..., 3] = left, up, 1.0 / focal
        if self.distortion or self.kind == "fisheye":
            bent = np.maximum(np.hypot(left, up), 1e-9)
            u = self._straight(bent)
            if self.kind == "pinhole":
                rays[..., 1], rays[..., 2] = left * u / bent, up * u / bent
            else:
                rays[..., 0], sine = np.cos(u), np.sin(u)
                rays[..., 1], rays[..., 2] = left * sine / bent, up * sine / bent
            # A pixel's area: how much u grows along the radius, and with it how wide a ring of it is.
            along = 1.0 / (1.0 + 3.0 * self.distortion * u * u)
            rays[..., 3] = np.sqrt(along * u / bent) / focal
        return Optics(rays, _spans(rays), _swing(rays), bool(rays[..., 0].min() > 0.0))


def _spans(rays: Array) -> Array:
    """See `Optics`; with a pixel more on either side. Without bounds where rays look aside or back."""
    with np.errstate(divide="ignore", invalid="ignore"):
        aside = rays[..., 1] / rays[..., 0]
        more = 1.5 * rays[..., 3] * np.linalg.norm(rays[..., :3], axis=-1) / rays[..., 0] ** 2
    wide = (rays[..., 0] < 0.05).any(axis=0)
    low, high = (aside - more).min(axis=0), (aside + more).max(axis=0)
    return np.stack([np.where(wide, -np.inf, low), np.where(wide, np.inf, high)], axis=1).astype(np.float32)


def _swing(rays: Array) -> Array:
    """See `Optics`: in the picture's middle row."""
    middle = rays[len(rays) // 2]
    angle = np.unwrap(np.arctan2(middle[:, 1], middle[:, 0]).astype(np.float64))
    if len(angle) < 2:
        return np.zeros(len(angle), np.float32)
    swing: Array = (1.0 / np.maximum(np.abs(np.gradient(angle)), 1e-6)).astype(np.float32)
    return swing

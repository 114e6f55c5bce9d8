"""What robots with cameras see: pictures, late by some control steps, differing from episode to episode."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.engines.sight.lens import Lens
from sim.engines.sight.panorama import loaded, table
from sim.engines.sight.picture import (
    ADAPTS,
    FLICKER,
    GAIN_B,
    GAIN_G,
    GAIN_R,
    LIFT,
    NOISE,
    PANORAMA,
    RAISED,
    SHUTTER,
    TILT,
    TURNED,
    YAWED,
    Cameras,
)
from sim.env import Array
from sim.tasks import PLACE

LARGEST = 2_000_000  # pixels of a camera that are kept: a picture and the late ones
# What of pictures can be unlike all of training.
EVERYTHING = "everything"
OF_CAMERAS = ("camera", "latency")
OF_PICTURES = ("background", "light")
PURPOSE = int.from_bytes(b"held out")  # mixed into the seed of an episode, which is the same but for this
BACKGROUNDS = 1  # seed of panoramas; those of training have 0
SLOWEST, FASTEST = 0.05, 0.5  # share of the way to its exposure that an automatic one goes per picture


@dataclass
class CameraConfig:
    """Settings of a camera. Where games vary, `shutter` and `flicker` are the most that they draw."""

    width: int = Lens.width  # pixels
    height: int = Lens.height
    view: float = Lens.view  # degrees, across
    tilt: float = Lens.tilt  # degrees below the horizon
    lens: str = Lens.kind  # pinhole | fisheye
    distortion: float = Lens.distortion  # of it, radial: below 0 barrels, above 0 cushions
    shutter: float = 0.0  # s that a picture is exposed: what turns meanwhile is blurred
    auto_exposure: bool = False  # it aims at pictures of one brightness, within some pictures
    flicker: float = 0.0  # by what share of it light differs from picture to picture
    panorama: str = field(default="", metadata={PLACE: True})  # a picture of all directions (default: ours)

    def optics(self) -> Lens:
        """The lens of these settings. ValueError when there is none."""
        return Lens(self.height, self.width, self.view, self.tilt, self.lens, self.distortion)

    def around(self) -> Array | None:
        """The panorama of that file, as the cameras take it, or None. ValueError when it is none."""
        return table(loaded(self.panorama), self.view / self.width) if self.panorama else None

    def check(self, latency: int) -> None:
        """ValueError names what is out of range."""
        self.optics()
        if self.width * self.height * (latency + 1) > LARGEST:
            raise ValueError(
                f"{latency + 1} pictures of {self.width} x {self.height} are more than {LARGEST} pixels: "
                "lower width, height or latency"
            )
        if not 0.0 <= self.shutter <= 0.1:
            raise ValueError(f"shutter must be between 0 and 0.1 s, got {self.shutter:g}")
        if not 0.0 <= self.flicker <= 0.5:
            raise ValueError(f"flicker is a share, 0 to 0.5, got {self.flicker:g}")


class Sight:
    """The pictures of all cameras of `eyes`, each its `late` control steps old, or as old as its game.

    `latency` is the most of that, and what it is unless told otherwise.
    """

    def __init__(self, eyes: Cameras, latency: int) -> None:
        self.eyes = eyes
        shape = (len(eyes.looks), eyes.lens.height, eyes.lens.width, 3)
        self._frames = [np.zeros(shape, np.uint8) for _ in range(latency + 1)]  # the newest first
        self.late = np.full(len(eyes.looks), latency, np.int64)  # control steps
        self._shown: NDArray[np.uint8] | None = None  # of `pictures`, until the next ones

    @property
    def pictures(self) -> NDArray[np.uint8]:
        """What is seen now (cameras, height, width, 3)."""
        if self._shown is None:
            first, *others = range(len(self._frames) - 1, -1, -1)
            self._shown = self._frames[first]
            if (self.late != first).any():
                self._shown = self._shown.copy()
                for k in others:
                    self._shown[self.late == k] = self._frames[k][self.late == k]
        return self._shown

    def begin(self, cameras: NDArray[np.int64]) -> None:
        """New games: these cameras have seen nothing before."""
        now = self.eyes.see(cameras)[0]
        self._frames = [frame.copy() for frame in self._frames]  # who was shown the old ones keeps them
        self._shown = None
        for frame in self._frames:
            frame[cameras] = now

    def step(self, turning: Array) -> None:
        """A control step later; `turning` (cameras,) is how fast they turn, in rad/s."""
        self._frames, self._shown = [self.eyes.see(turning=turning)[0], *self._frames[:-1]], None

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that the next pictures depend on; whoever writes into it is seen."""
        self._shown = None
        frames: Iterable[tuple[str, NDArray[np.generic]]] = ((f"frame{k}", f) for k, f in enumerate(self._frames))
        return {"looks": self.eyes.looks, "seeds": self.eyes.seeds, "late": self.late, **dict(frames)}


def usual_looks(nominal: Array, config: CameraConfig) -> Array:
    """How a game's cameras (count, LOOKS) see where games do not vary."""
    looks = nominal.copy()
    looks[:, SHUTTER], looks[:, FLICKER] = config.shutter, config.flicker
    looks[:, ADAPTS] = FASTEST * config.auto_exposure
    return looks


def varied_looks(nominal: Array, panoramas: int, rng: np.random.Generator, config: CameraConfig) -> Array:
    """How one game's cameras (count, LOOKS) differ: light, colour, where they are and point, what is around.

    And how long they look, how they adapt to light, and how that flickers, as far as `config` has them do it.
    """
    looks, count = usual_looks(nominal, config), len(nominal)
    light = rng.uniform(0.7, 1.3)
    looks[:, [GAIN_R, GAIN_G, GAIN_B]] = light * rng.uniform(0.9, 1.1, 3)
    looks[:, LIFT], looks[:, NOISE] = rng.uniform(-0.05, 0.05), rng.uniform(0.0, 0.03)
    looks[:, PANORAMA], looks[:, TURNED] = rng.integers(panoramas), rng.random()
    looks[:, TILT] += np.radians(rng.uniform(-2.0, 2.0, count))
    looks[:, RAISED] += rng.uniform(-0.01, 0.01, count)
    if config.shutter:
        looks[:, SHUTTER] *= rng.random()
    if config.flicker:
        looks[:, FLICKER] *= rng.random()
    if config.auto_exposure:
        looks[:, ADAPTS] = rng.uniform(SLOWEST, FASTEST)
    return looks


def beyond(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> Array:
    """At least `low` and at most `high` away from zero, to either side."""
    made: Array = rng.choice([-1.0, 1.0], shape) * rng.uniform(low, high, shape)
    return made


def yaw(held_out: Collection[str], count: int, rng: np.random.Generator) -> Array:
    """How far an episode's cameras look to the left of where they are told to (count,), rad; training has none."""
    drawn = np.radians(beyond(1.0, 3.0, rng, (count,)))
    return drawn if "camera" in held_out else np.zeros(count)


def strange_looks(held_out: Collection[str], usual: Array, panoramas: int, rng: np.random.Generator) -> Array:
    """How one episode's cameras (count, LOOKS) see, of how they usually would."""
    looks, count = usual.copy(), len(usual)
    background = rng.integers(panoramas), rng.random()
    light = 1.0 + beyond(0.35, 0.5, rng)
    colours, lift, noise = np.ones(3), beyond(0.06, 0.1, rng), rng.uniform(0.035, 0.05)
    colours[rng.integers(3)] += beyond(0.25, 0.35, rng)  # a cast, as bright as none
    colours /= colours.mean()
    tilt, raised = np.radians(beyond(2.5, 4.0, rng, (count,))), beyond(0.012, 0.02, rng, (count,))
    if "background" in held_out:
        looks[:, PANORAMA], looks[:, TURNED] = background
    if "light" in held_out:
        looks[:, [GAIN_R, GAIN_G, GAIN_B]], looks[:, LIFT], looks[:, NOISE] = light * colours, lift, noise
    if "camera" in held_out:
        looks[:, TILT] += tilt
        looks[:, RAISED] += raised
    looks[:, YAWED] = yaw(held_out, count, rng)
    return looks

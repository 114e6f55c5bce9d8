"""Games unlike those of training: what a policy loses in them says how it will do where it has never been.

Where games vary (`task.vary`), `match.VARY` and `sight.varied_looks` say within which ranges. What is held out lies
beyond them, or at their ends: friction and masses, as the targets of such tests mostly have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sim.engines.sight.picture import GAIN_B, GAIN_G, GAIN_R, LIFT, NOISE, PANORAMA, RAISED, TILT, TURNED, YAWED
from sim.env import Array

EVERYTHING = "everything"
OF_ALL = ("friction", "mass")
OF_CAMERAS = ("camera", "latency")
OF_PICTURES = ("background", "light")
PURPOSE = int.from_bytes(b"held out")  # mixed into the seed of a game: the game is the same but for this
BACKGROUNDS = 1  # seed of panoramas; those of training have 0
END = 0.2  # by which friction and masses differ, as a share: training's most
FRICTION, MASS = ("sliding", "rolling", "grip"), ("ball_mass", "mass")


def beyond(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> Array:
    """At least `low` and at most `high` away from zero, to either side."""
    made: Array = rng.choice([-1.0, 1.0], shape) * rng.uniform(low, high, shape)
    return made


def parameters(held_out: Collection[str], nominal: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Any]:
    """What friction and masses one game has: all surfaces are as slippery, each body is too light or too heavy."""
    friction = 1.0 + beyond(END, END, rng)
    masses = {name: 1.0 + beyond(END, END, rng, nominal[name].shape) for name in MASS}
    factors: dict[str, Any] = dict.fromkeys(FRICTION, friction) if "friction" in held_out else {}
    factors |= masses if "mass" in held_out else {}
    return {name: nominal[name] * factor for name, factor in factors.items()}


def yaw(held_out: Collection[str], count: int, rng: np.random.Generator) -> Array:
    """How far to the left of where they are told to look one game's cameras look (count,), rad; training has none."""
    drawn = np.radians(beyond(1.0, 3.0, rng, (count,)))
    return drawn if "camera" in held_out else np.zeros(count)


def strange_looks(held_out: Collection[str], usual: Array, panoramas: int, rng: np.random.Generator) -> Array:
    """How one game's cameras (count, LOOKS) see, of how they usually would."""
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

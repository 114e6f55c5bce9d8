"""Games unlike those of training: what a policy loses in them says how it will do where it has never been.

Where games vary (`task.vary`), `match.VARY` and `sight.varied_looks` say within which ranges. What is held out lies
beyond them (`sight.strange_looks`), or at their ends: friction and masses, as the targets of such tests mostly have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sim.env import Array
from sim.tasks.sight import beyond

OF_ALL = ("friction", "mass")
END = 0.2  # by which friction and masses differ, as a share: training's most
FRICTION, MASS = ("sliding", "rolling", "grip"), ("ball_mass", "mass")


def parameters(held_out: Collection[str], nominal: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Any]:
    """What friction and masses one game has: all surfaces are as slippery, each body is too light or too heavy."""
    friction = 1.0 + beyond(END, END, rng)
    masses = {name: 1.0 + beyond(END, END, rng, nominal[name].shape) for name in MASS}
    factors: dict[str, Any] = dict.fromkeys(FRICTION, friction) if "friction" in held_out else {}
    factors |= masses if "mass" in held_out else {}
    return {name: nominal[name] * factor for name, factor in factors.items()}

"""Pictures that arrive in time and in order, and yet tell nothing: a covered lens, a camera that shows the past.

That is no reason to stop: a robot may face a wall, or stand in a scene in which nothing moves. It is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group, pictures

ALIKE = 16  # of 255: pixels that differ by less show nothing, but a sensor's noise
MOST = (1.0, 99.0)  # percentiles between which they have to: some pixels are always hot
TELL = 1.0  # s after which it is told while it lasts
BLANK, SAME = "blank", "same"
SAYS = {BLANK: "all its pixels are alike", SAME: "it shows the very same picture"}


def blank(picture: NDArray[Any]) -> bool:
    """Whether a picture (height, width, 3) is black, or of any other single colour."""
    low, high = np.percentile(picture.reshape(-1, picture.shape[-1]), MOST, axis=0)
    return bool((high - low < ALIKE).all())


class PictureWatch:
    """Looks at the pictures of one robot, or of the first of several, at every control step. Times are in s."""

    def __init__(self, signals: Group) -> None:
        self._cameras = [s.name for s in pictures(signals)]
        self.begin()

    def begin(self) -> None:
        """A flight begins."""
        self.steps = 0
        self.counts = {name: dict.fromkeys(SAYS, 0) for name in self._cameras}  # control steps of each kind
        self._since: dict[tuple[str, str], float] = {}  # when it began, of what lasts
        self._before: dict[str, NDArray[Any]] = {}
        self._blank: dict[str, bool] = {}
        self._now = -math.inf

    def look(self, seen: Mapping[str, Any], now: float) -> None:
        """At what was measured, (n, *shape) by name: anything at all."""
        since = dict[tuple[str, str], float]()
        for name in self._cameras:
            given = seen.get(name)
            if not isinstance(given, np.ndarray) or given.ndim != 4 or not given.size:
                continue  # which the guard says
            picture, before = given[0], self._before.get(name)
            same = before is not None and np.array_equal(before, picture)
            if not same:
                self._before[name], self._blank[name] = picture.copy(), blank(picture)
            if what := BLANK if self._blank[name] else SAME if same else "":
                self.counts[name][what] += 1
                since[name, what] = self._since.get((name, what), now)
        self.steps += bool(self._cameras)
        self._since, self._now = since, now  # at once: others ask meanwhile

    def troubles(self) -> dict[str, str]:
        """What lasts, by camera."""
        long = {key: self._now - since for key, since in self._since.items() if self._now - since >= TELL}
        return {name: f"{SAYS[what]} for {seconds:.1f} s" for (name, what), seconds in long.items()}

    def report(self) -> list[str]:
        """For the end of a flight."""
        found = [(name, what, k) for name, counts in self.counts.items() for what, k in counts.items() if k]
        return [f"{name}: {SAYS[what]} on {k} of {self.steps} control steps" for name, what, k in found]

"""Pictures of scenes, drawn when somebody looks, and only of scenes that have moved since."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.spec import Group


class PictureCache:
    """What was shown last of `num` scenes, by the signals (height, width, 3) that show it."""

    def __init__(self, signals: Group, num: int) -> None:
        self.names = tuple(s.name for s in signals)
        self.moved: set[int] = set()  # rows whose pictures are out of date
        self._shown = {s.name: np.zeros((num, *s.shape), np.uint8) for s in signals}

    def see(self, look: Callable[[int], Mapping[str, NDArray[np.uint8]]]) -> dict[str, Array]:
        """Name -> pictures (num, height, width, 3). `look` draws a row's; who was shown the last ones keeps them."""
        if self.names and self.moved:
            self._shown = {name: pictures.copy() for name, pictures in self._shown.items()}
            for row in self.moved:
                for name, picture in look(row).items():
                    self._shown[name][row] = picture
            self.moved = set()
        return dict(self._shown)

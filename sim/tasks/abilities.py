"""What few tasks can do besides, and who asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.randomize import Array
from sim.tasks import OwnWorld


@runtime_checkable
class HasSensedReward(OwnWorld, Protocol):
    """A task that can be judged by what its robot senses, and so learned where the robot is."""

    def sensed_reward(self, signals: Mapping[str, Array]) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """Of policy signals (n, *shape) after a step: its reward (n,), and whether it is success, or lost."""

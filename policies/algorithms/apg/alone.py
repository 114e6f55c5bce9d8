"""What one robot of several has learned with nobody else around, as the first weights of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg import ApgConfig, Fused
from policies.algorithms.apg import fused_network as network
from sim.engines.vector.simd import LANES
from sim.tasks import EngineTask

Array = NDArray[Any]

RATE = 1e-2  # the learning rate, at first


def learned_alone(alone: EngineTask, config: ApgConfig, seed: int, features: int) -> list[tuple[Array, Array]]:
    """(W, b) of each layer, for so many features. Those that only others add are not looked at yet."""
    config = replace(config, updates=config.solo, num_envs=2 * LANES, episode_windows=4, learning_rate=RATE)
    path = Fused(alone, config, seed)
    for _ in path.learn():
        pass
    (weight, bias), *rest = network.matrices(path.layout, path.weights)
    return [(np.pad(weight, ((0, 0), (0, features - path.layout.features))), bias), *rest]

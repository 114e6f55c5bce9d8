"""A policy that sees and remembers, and needs no training: its weights are drawn."""

import numpy as np

from policies.models.controller import FeaturePolicy
from policies.models.networks.gru import Gru
from policies.models.vision import FlatEncoder
from sim.spec import pictures, size


def seeing(task, seed: int = 0) -> FeaturePolicy:
    """Of a task with one camera."""
    rng = np.random.default_rng(seed)
    layers = [(rng.normal(0.0, 0.02, (4, 3 if k == 0 else 4, 3, 3)).astype(np.float32), np.zeros(4)) for k in range(3)]
    (camera,) = pictures(task.policy)
    eye = FlatEncoder(camera.shape, [(w, b.astype(np.float32)) for w, b in layers], [2, 2, 2])
    inputs = eye.size + sum(s.size for s in task.policy if not s.is_picture)
    told = size(task.commands)
    shapes = ((8, inputs), (8,), (24, 8), (24, 8), (24,), (24,), (told, 8), (told,))
    w = [rng.normal(0.0, 0.2, shape).astype(np.float32) for shape in shapes]
    gru = Gru((w[0], w[1]), w[2], w[3], w[4], w[5], (w[6], w[7]))
    return FeaturePolicy.from_task(task, gru, encoders={"camera": eye})

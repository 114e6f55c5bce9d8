"""A policy that sees and remembers, and needs no training: its weights are drawn."""

import numpy as np

from policies.models.controller import FeaturePolicy, Gru
from policies.models.vision import FlatEncoder


def seeing(task, seed: int = 0) -> FeaturePolicy:
    """Of a task with one camera of 40 x 30 pixels."""
    rng = np.random.default_rng(seed)
    layers = [(rng.normal(0.0, 0.02, (4, 3 if k == 0 else 4, 3, 3)).astype(np.float32), np.zeros(4)) for k in range(3)]
    eye = FlatEncoder((30, 40, 3), [(w, b.astype(np.float32)) for w, b in layers], [2, 2, 2])
    inputs = eye.size + sum(s.size for s in task.policy if not s.is_picture)
    shapes = ((8, inputs), (8,), (24, 8), (24, 8), (24,), (24,), (4, 8), (4,))
    w = [rng.normal(0.0, 0.2, shape).astype(np.float32) for shape in shapes]
    gru = Gru((w[0], w[1]), w[2], w[3], w[4], w[5], (w[6], w[7]))
    return FeaturePolicy.from_task(task, gru, encoders={"camera": eye})

"""numba-cuda, for the engines on an NVIDIA GPU."""

from __future__ import annotations

import os

from numba import config

try:
    from numba import cuda
except ImportError as error:  # pragma: no cover - numba always brings a `cuda` module of some kind
    raise ValueError("engines on a GPU need numba-cuda: pip install 'sim2metal[cuda]'") from error

if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few rows are no mistake: they are what the learner asked for

__all__ = ["cuda"]

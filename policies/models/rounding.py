"""Weights rounded to float16: `policies.models.graph.Graph.weight` stores them so, in half the space."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from policies.models.controller import FeaturePolicy
from policies.models.graph import HALF, LEAST


def halved(policy: FeaturePolicy) -> FeaturePolicy:
    """The policy with the weights of its network and encoders rounded; ValueError for one too large for that."""
    encoders = {name: _rounded(encoder) for name, encoder in policy.encoders.items()}
    return dataclasses.replace(policy, network=_rounded(policy.network), encoders=encoders)


def _rounded(part: Any) -> Any:
    """The same where it holds no weights."""
    if isinstance(part, np.ndarray) and part.dtype == np.float32 and part.ndim > 1 and part.size >= LEAST:
        if not np.abs(part).max() < HALF:
            raise ValueError(
                f"a weight of {np.abs(part).max():g} is too large for float16: set algorithm.float16=false"
            )
        return part.astype(np.float16).astype(np.float32)
    if isinstance(part, list | tuple) and any(isinstance(one, list | tuple | np.ndarray) for one in part):
        return type(part)(_rounded(one) for one in part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = [f for f in dataclasses.fields(part) if f.init]
        return dataclasses.replace(part, **{f.name: _rounded(getattr(part, f.name)) for f in fields})
    return part

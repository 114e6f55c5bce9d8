"""Tensors in a stranger's .pt or .pth file, read without running anything in it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from deploy.policy_file import PolicyFileError
from policies.models.networks import Array

MOST = 1_000_000  # entries


def load(path: str, content: bytes) -> Any:
    """Dictionaries, lists, numbers and tensors; PolicyFileError for everything else, which is not loaded."""
    import torch

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's and torch's own share no base
        said = " ".join(str(error).split())
        if "weights_only" in said.lower() or "unsupported" in said.lower():
            said = "it holds more than tensors, and what else is in it could run: save the state_dict alone"
        raise PolicyFileError(f"{path}: not read: {said[:200]}") from None


def arrays(path: str, held: Any, prefix: str = "") -> dict[str, Array]:
    """The finite float tensors of a dictionary by name, those of dictionaries in it as NAME.INNER."""
    import torch

    found: dict[str, Array] = {}
    for name, value in held.items() if isinstance(held, dict) else ():
        if isinstance(value, dict) and prefix.count(".") < 4:
            found |= arrays(path, value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_sparse:
            number = value.detach().to(torch.float32).numpy()
            if not np.isfinite(number).all():
                raise PolicyFileError(f"{path}: the tensor {prefix}{name!s:.80} is not finite")
            found[f"{prefix}{name}"] = number
        if len(found) > MOST:
            raise PolicyFileError(f"{path}: holds more than {MOST} tensors")
    return found

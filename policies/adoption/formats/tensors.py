"""Tensors in a stranger's .pt or .pth file, read without running anything in it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from deploy.policy_file import PolicyFileError
from deploy.trust.onnx_limits import Limits
from policies.models.networks import Array

MOST = 1_000_000  # entries
DEEPEST = 5  # dictionaries in one another


def load(path: str, content: bytes) -> Any:
    """Dictionaries, lists, numbers and tensors; PolicyFileError for everything else, which is not loaded."""
    import torch

    _check_packing(path, content)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's and torch's own share no base
        said = " ".join(str(error).split())
        if "weights_only" in said.lower() or "unsupported" in said.lower():
            said = "it holds more than tensors, and what else is in it could run: save the state_dict alone"
        raise PolicyFileError(f"{path}: not read: {said[:200]}") from None


def _check_packing(path: str, content: bytes) -> None:
    """PolicyFileError for what is packed: torch never does that, and would unpack it whatever comes out."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            packed = [info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return  # older than torch's zips, or none: torch says so
    if packed:
        raise PolicyFileError(f"{path}: not read: {packed[0]!r:.80} in it is compressed: save it with torch.save")


def arrays(path: str, held: Any, prefix: str = "") -> dict[str, Array]:
    """The finite float tensors of a dictionary by name, those of dictionaries in it as NAME.INNER.

    PolicyFileError where they would take more memory than a policy file may: a file of 2 kB can hold views of one
    number as a matrix of any size, or one tensor under many names.
    """
    import torch

    found: dict[str, Array] = {}
    most = left = Limits.declared().memory
    for name, value in _entries(path, held, prefix, [MOST]):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_sparse:
            continue
        left -= 4.0 * value.numel()
        if left < 0.0:
            raise PolicyFileError(
                f"{path}: its tensors would take more than {most / 2**20:.0f} MB; if you trust it, "
                "SIM2METAL_MEMORY_MB=... allows more"
            )
        number = value.detach().to(torch.float32).numpy()
        if not np.isfinite(number).all():
            raise PolicyFileError(f"{path}: the tensor {name!s:.80} is not finite")
        found[name] = number
    return found


def _entries(path: str, held: Any, prefix: str, left: list[int], depth: int = 1) -> Iterator[tuple[str, Any]]:
    """All that is no dictionary, by name; `left`: how many more, for one dictionary may be in another many times."""
    for name, value in held.items() if isinstance(held, dict) else ():
        left[0] -= 1
        if left[0] < 0:
            raise PolicyFileError(f"{path}: holds more than {MOST} entries")
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _entries(path, value, f"{prefix}{name}.", left, depth + 1)
        else:
            yield f"{prefix}{name}", value

"""Which sources these are: nodes of one cluster must have the same, from the same wheel or the same commit."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("sim", "deploy", "policies")
DIGITS = 12


def source_digest(root: Path = ROOT) -> str:
    """The beginning of the SHA-256 of every module of ours, with its name."""
    whole = hashlib.sha256()
    for path in sorted(path for layer in LAYERS for path in (root / layer).rglob("*.py")):
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:DIGITS]

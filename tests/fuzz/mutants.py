"""Mutants of bytes and of JSON, from a seed: what the fuzzers of this folder feed to readers of strangers' data.

FUZZ in the environment is how many each of them tries; the default keeps the tests short.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np

HOSTILE: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1,
        2**31,
        2**40,
        2**63,
        2**64,
        -(2**63),
        10**400,
        0.5,
        1e39,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "../../etc/passwd",
        "/dev/zero",
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "a" * 5000,
        "{x.__class__}",
        "{0!r:>99}",
    ),
    *([], {}, [[]], [None], {"": {}}, [1e999] * 3, ["evilmod:Task"], "evilmod:Task", {"a": [1, {"b": 2}]}, [2**40] * 9),
]
TRICKY = (
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\xff" * 8,
    b"{",
    b"[",
    b'"',
    b"\x1b[2J",
    b"\x91",
    b"\xdd\xff\xff\xff\xff",
)


def rounds(few: int) -> int:
    """How many mutants to try."""
    return int(os.environ.get("FUZZ", few))


def bytes_of(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one to eight changes: bits, bytes, pieces cut, doubled, moved, swapped for tricky ones."""
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        if not made:
            return bytes(made)
        at, size = int(rng.integers(len(made))), int(rng.integers(1, 17))
        kind = rng.integers(6)
        if kind == 0:
            made[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            made[at : at + size] = rng.bytes(size)
        elif kind == 2:
            del made[at : at + size]
        elif kind == 3:
            made[at:at] = made[at : at + size]
        elif kind == 4:
            tricky = TRICKY[int(rng.integers(len(TRICKY)))]
            made[at : at + len(tricky)] = tricky
        else:
            del made[at:]
    return bytes(made)


def _places(tree: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place, *(found for key, each in inner for found in _places(each, (*place, key)))]


def json_of(tree: Any, rng: np.random.Generator) -> Any:
    """The tree with one to three of its values replaced, removed, renamed or nested."""
    made = copy.deepcopy(tree)
    for _ in range(int(rng.integers(1, 4))):
        places = [place for place in _places(made) if place]
        if not places:
            return made
        *way, last = places[int(rng.integers(len(places)))]
        held = made
        for key in way:
            held = held[key]
        kind = rng.integers(8)
        if kind == 0:
            del held[last]
        elif kind == 1 and isinstance(held, dict):
            held[str(HOSTILE[int(rng.integers(16, 26))])] = held.pop(last)
        elif kind == 2:
            held[last] = [held[last]]
        else:
            held[last] = copy.deepcopy(HOSTILE[int(rng.integers(len(HOSTILE)))])
    return made

"""What a Crazyflie's tables of contents have: every parameter and log variable of Bitcraze's firmware, from table.csv.

The names, types and defaults of bitcraze/crazyflie-firmware @2a18fc29 (2026.08+2), as `make cf2_defconfig` and
`make cf21bl_defconfig` compile them. Made by release/crazyflie_contents.py.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

PARAMETER, LOG = "parameter", "log"
Row = dict[str, str]


@cache
def _rows() -> tuple[Row, ...]:
    with (files(__name__) / "table.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def _of(what: str, build: str) -> list[Row]:
    return [row for row in _rows() if row["what"] == what and row[build]]


def parameters(build: str) -> dict[str, tuple[str, float]]:
    """group.name -> type, with " read-only" or " persistent", and default. `build`: cf2 or cf21bl."""

    def kind(row: Row) -> str:
        return " ".join([row["type"], *(flag for flag in row["flags"].split() if flag != "core")])

    return {row["name"]: (kind(row), float(row[build])) for row in _of(PARAMETER, build)}


def variables(build: str) -> dict[str, str]:
    """group.name -> type of every log variable. `build`: cf2 or cf21bl."""
    return {row["name"]: row["type"] for row in _of(LOG, build)}

"""What a flight log says about itself, before anything is done with it: a stranger may have written it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

TYPES = {"f4": "float32", "f8": "float64", "u1": "uint8", "i4": "int32", "u4": "uint32", "i8": "int64"}
LONGEST = 1000  # characters of a text
SIGNALS = 500
ROBOTS = 10_000
STEP = 16 << 20  # bytes of one control step of all robots
ELEMENTS = 1 << 22  # of one signal
GUARDED = ("inputs", "outputs", "watched", "reach")
TEXTS = ("policy", "sha256", "task", "robot", "driver", "controller", "started")


class AboutError(ValueError):
    """It is not what a recorder writes; the message says where."""


def parse(text: bytes) -> dict[str, Any]:
    """The JSON of a log's metadata. Raises AboutError."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        raise AboutError("is not JSON") from None
    if not isinstance(about, dict) or not isinstance(about.get("version"), int):
        raise AboutError("has no version")
    return about


def check(about: Mapping[str, Any]) -> None:
    """Raises AboutError for what is missing, of another type, or absurd."""
    for name in TEXTS:
        if not isinstance(about.get(name), str) or len(about[name]) > LONGEST:
            raise AboutError(f"{name} is not a text of at most {LONGEST} characters")
    rate = about.get("rate_hz")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 < rate <= 1e6:
        raise AboutError("rate_hz is not a number from 0 to 1e6")
    if not isinstance(about.get("real_time"), bool) or not isinstance(about.get("guard", {}), dict):
        raise AboutError("real_time is missing, or the guard's settings are malformed")
    robots = about.get("robots")
    if isinstance(robots, bool) or not isinstance(robots, int) or not 1 <= robots <= ROBOTS:
        raise AboutError(f"robots is not a number from 1 to {ROBOTS}")
    reasons = about.get("reasons")
    if not isinstance(reasons, list) or not 1 <= len(reasons) <= 255:
        raise AboutError("reasons is not a list")
    if not all(isinstance(reason, str) and len(reason) <= LONGEST for reason in reasons):
        raise AboutError("reasons are not texts")
    _check_groups(about, robots)


def _groups(about: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, signals) of all that are described, also those within the guard's settings."""
    parts = [(part, about.get(part)) for part in ("watched", "commands")]
    guard = about.get("guard", {part: [] for part in GUARDED})  # older logs have none
    return parts + [(f"guard {part}", guard.get(part)) for part in GUARDED]


def _check_groups(about: Mapping[str, Any], robots: int) -> None:
    types = about.get("types")
    if not isinstance(types, dict) or not all(isinstance(kind, str) and kind in TYPES for kind in types.values()):
        raise AboutError(f"types are not among {', '.join(TYPES)}")
    size = 0
    for part, group in _groups(about):
        if not isinstance(group, list) or len(group) > SIGNALS or (part == "commands" and not group):
            raise AboutError(f"{part} is not a list of at most {SIGNALS} signals")
        for item in group:
            elements = _elements(part, item)
            weight = int(types.get(item["name"], "f4")[1]) if part == "watched" else 8
            size += 64 + elements * (weight if part in ("watched", "commands") else 0)
    if size * robots > STEP:
        raise AboutError(f"a control step has more than {STEP} bytes")


def _elements(part: str, item: Any) -> int:
    """How many numbers a signal has."""
    if not isinstance(item, dict):
        raise AboutError(f"{part} are not signals")
    for name in ("name", "unit", "frame"):
        if not isinstance(item.get(name), str) or len(item[name]) > LONGEST:
            raise AboutError(f"a signal of {part} has no {name}")
    shape = item.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 8:
        raise AboutError(f"a signal of {part} has no shape")
    if not all(isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= ELEMENTS for k in shape):
        raise AboutError(f"a signal of {part} has an impossible shape")
    for name in ("low", "high", "max_age_s"):
        value = item.get(name)
        if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
            raise AboutError(f"a signal of {part} has no {name}")
        if value is not None and (abs(value) > 1e30 or math.isnan(value)):
            raise AboutError(f"a signal of {part} has an impossible {name}")
    elements = math.prod(shape)
    if elements > ELEMENTS:
        raise AboutError(f"a signal of {part} has {elements} elements")
    return elements

"""Fields of a person's (or a stranger's) YAML: each is taken once, and of its type; errors name it."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

EVERYTHING = (-math.inf, math.inf)


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxdict, _BRIEF.maxlist, _BRIEF.maxstring, _BRIEF.maxother = 2, 4, 6, 80, 80


def shown(value: Any) -> str:
    """A value for an error, briefly: nested aliases of YAML may stand for gigabytes, which are not written out."""
    return _BRIEF.repr(value)[:80]


class DescriptionError(ValueError):
    """A field of the description is missing, malformed or contradicts another; the message names it."""


class Fields:
    """The fields of one mapping; each is taken once, and `end` refuses what nobody asked for."""

    def __init__(self, where: str, found: Any) -> None:
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise DescriptionError(f"{where}: needs fields and values (KEY: VALUE), got {shown(found)}")
        self.where, self._found, self._known = where, found, [""]

    def __iter__(self) -> Iterator[str]:
        """The names of its fields."""
        return iter(self._found)

    def error(self, key: str, what: str) -> DescriptionError:
        """One that names the field."""
        return DescriptionError(f"{self.where}{key}: {what}")

    def has(self, key: str) -> bool:
        """Whether the field is given, and not empty."""
        self._known.append(key)
        return self._found.get(key) is not None

    def raw(self, key: str) -> Any:
        """What it holds; DescriptionError where it is missing."""
        if not self.has(key):
            raise self.error(key, "is missing")
        return self._found[key]

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        """A word, one of the choices if there are any."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, str) or not value or len(value) > 200:
            raise self.error(key, f"needs a name, got {shown(value)}")
        if choices and value not in choices:
            raise self.error(key, f"{shown(value)} is not one of {', '.join(choices)}")
        return value

    def number(self, key: str, default: float | None = None, low: float = -math.inf, above: bool = False) -> float:
        """A finite number of at least `low`, or `above` it."""
        if default is not None and not self.has(key):
            return default
        value = _number(self.raw(key))
        if value is None or not math.isfinite(value) or not (value > low if above else value >= low):
            bound = "" if low == -math.inf else f" {'above' if above else 'of at least'} {low:g}"
            raise self.error(key, f"needs a finite number{bound}, got {shown(self._found[key])}")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number within these."""
        value = self._found[key] if self.has(key) else default
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"needs a whole number from {low} to {high}, got {shown(value)}")
        return value

    def numbers(self, key: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """A number, or a list of them."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        items = value if isinstance(value, list) else [value]
        made = [_number(item) for item in items]
        for index, number in enumerate(made):
            if number is None or not math.isfinite(number):
                raise self.error(key, f"number {index} is {shown(items[index])}; all must be finite numbers")
        if not made:
            raise self.error(key, "is empty")
        return tuple(number for number in made if number is not None)

    def limits(self, key: str) -> tuple[float, float]:
        """[low, high], or one number for both sides; nothing: no limits."""
        if not self.has(key):
            return EVERYTHING
        value = self._found[key]
        pair = [_number(v) for v in value] if isinstance(value, list) else [_number(value)]
        if len(pair) == 1 and pair[0] is not None:
            pair = [-pair[0], pair[0]]
        if len(pair) != 2 or pair[0] is None or pair[1] is None or not pair[0] < pair[1]:
            raise self.error(key, f"needs [low, high] with low below high, got {shown(value)}")
        return pair[0], pair[1]

    def elements(self, key: str) -> tuple[str | int, ...] | None:
        """Names or numbers, each of them once."""
        if not self.has(key):
            return None
        value = self._found[key]
        if not isinstance(value, list) or not value or not all(type(v) in (str, int) for v in value):
            raise self.error(key, f"needs a list of names (or of numbers from 0), got {shown(value)}")
        if twice := [v for k, v in enumerate(value) if v in value[:k]]:
            raise self.error(key, f"holds {shown(twice[0])} twice; each element goes once")
        return tuple(value)

    def items(self, key: str) -> Iterator[Fields]:
        """The fields of each entry of a list."""
        value = self.raw(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, f"needs a list, got {shown(value)}")
        for index, item in enumerate(value):
            yield Fields(f"{self.where}{key}[{index}].", item)

    def inner(self, key: str, required: bool = False) -> Fields:
        """The fields of a mapping in it."""
        return Fields(f"{self.where}{key}.", self.raw(key) if required or self.has(key) else {})

    def end(self) -> None:
        """DescriptionError for a field that does not exist."""
        for key in self._found:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                known = ", ".join(filter(None, dict.fromkeys(self._known)))
                raise self.error(key[:80], f"there is no such field{hint}; there are: {known}")


def _number(value: Any) -> float | None:
    """YAML 1.1 takes 5e-2 for a word."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if type(value) in (int, float) else None

"""Which settings are searched, in hydra's own grammar, and which have one value.

`choice(a,b)`, `interval(low,high)`, `int(interval(low,high))`, `tag(log,interval(low,high))`.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.cluster.search import Dimension, Value
from policies.runner.mistakes import SettingsError, explained

RESERVED = {"seed": "tuning_seeds and test_seeds", "out": "out", "cluster": "cluster", "resume": "the same out"}


def space_of(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[Dimension, ...]]:
    """The words with one value, and the dimensions. SettingsError when they make no sense, or nothing is searched."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides([*words])
    except Exception as error:
        raise explained(error) from error
    if said := [p.key_or_group for p in parsed if p.key_or_group in RESERVED]:
        raise SettingsError(f"a search has its own {said[0]}: {RESERVED[said[0]]}=...")
    fixed = tuple(word for word, p in zip(words, parsed, strict=True) if not p.is_sweep_override())
    space = tuple(_dimension(p.key_or_group, p.value()) for p in parsed if p.is_sweep_override())
    if not space:
        raise SettingsError("nothing is searched: write a setting as choice(a,b) or tag(log,interval(low,high))")
    return fixed, space


def _dimension(key: str, value: object) -> Dimension:
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, QuotedString

    if isinstance(value, ChoiceSweep):
        choices: list[Value] = []
        for item in value.list:
            plain = item.text if isinstance(item, QuotedString) else item
            if not isinstance(plain, str | int | float | bool):
                raise SettingsError(f"{key}: {plain} cannot be searched: only words, numbers, true and false can")
            choices.append(plain)
        return Dimension(key, choices=tuple(choices))
    if isinstance(value, IntervalSweep) and value.start is not None and value.end is not None:
        low, high, log = value.start, value.end, "log" in value.tags
        if not low < high or (log and low <= 0):
            raise SettingsError(f"{key}: an interval goes from low to high, above 0 where it is logarithmic")
        return Dimension(key, low=low, high=high, log=log, whole=isinstance(low, int) and isinstance(high, int))
    raise SettingsError(f"{key}: write choice(a,b), interval(low,high) or tag(log,interval(low,high))")

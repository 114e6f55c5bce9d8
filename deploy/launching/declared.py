"""Launch arguments on the command line: read, checked against what a launch file declares, listed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from deploy.cli import ArgumentError

# Read by ROS 2's own launch, whatever a file declares.
SETTINGS = ("launch-prefix", "launch-prefix-filter", "sigterm_timeout", "sigkill_timeout", "emulate_tty")


def given(words: Sequence[str]) -> dict[str, str]:
    """{name: value} of name:=value ...; of a repeated name the last, as for ros2 launch."""
    pairs = {}
    for word in words:
        name, sign, value = word.partition(":=")
        if not sign or not name:
            raise ArgumentError(f"{word!r} is not of the form name:=value")
        pairs[name] = value
    return pairs


def _only_if(argument: Any) -> bool:
    """Whether the argument is declared under a condition, as only ROS 2's own class knows."""
    return bool(getattr(argument, "_conditionally_included", False))


def check(pairs: dict[str, str], declared: Sequence[Any], text: str = "") -> None:
    """ArgumentError for an argument that the launch file does not know, one that is missing, or a wrong choice.

    An undeclared name that stands in the file's text in quotes is left to it: its functions may use it.
    """
    names = [argument.name for argument in declared]
    for name in pairs:
        if name not in (*names, *SETTINGS) and f"'{name}'" not in text and f'"{name}"' not in text:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ArgumentError(f"unknown launch argument {name!r}{hint}; arguments: {', '.join(names)}")
    for argument in declared:
        value = pairs.get(argument.name)
        if value is None and argument.default_value is None and not _only_if(argument):
            raise ArgumentError(f"launch argument {argument.name}:=... is missing: {argument.description}")
        if value is not None and argument.choices and value not in argument.choices:
            raise ArgumentError(f"{argument.name}:={value} is not one of: {', '.join(argument.choices)}")


def _described(default: Any) -> str:
    """A default value as `ros2 launch` shows it: a text, or ROS 2's own list of substitutions."""
    return repr(default) if isinstance(default, str) else " + ".join(part.describe() for part in default)


def shown(declared: Sequence[Any]) -> list[str]:
    """The lines that `ros2 launch --show-args` prints."""
    lines = ["Arguments (pass arguments as '<name>:=<value>'):"]
    for argument in declared:
        lines += ["", f"    '{argument.name}':{'*' if _only_if(argument) else ''}", f"        {argument.description}"]
        if argument.default_value is not None:
            lines.append(f"        (default: {_described(argument.default_value)})")
    if any(map(_only_if, declared)):
        lines += ["", "* argument(s) which are only used if specific conditions occur"]
    return lines if declared else [*lines, "", "  No arguments."]

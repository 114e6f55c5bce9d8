"""Reads `key=value` arguments into dataclasses: the grammar of the training commands, without their libraries.

A field without a default must be given; its metadata "help" explains it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from deploy.system import extras, interrupts, streams
from deploy.trust.text import printable

# What bad input ends in, and an installation that lacks something.
EXPECTED = (ValueError, OSError, OverflowError, MemoryError, RecursionError, ImportError)
LONGEST = 2000  # characters of an error


class ArgumentError(ValueError):
    """The command line is wrong; the message says what and lists the choices."""


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _plain_type(annotation: Any) -> tuple[type, bool]:
    """(int, True) for `int | None`, (int, False) for `int`."""
    if isinstance(annotation, types.UnionType):
        named = [a for a in typing.get_args(annotation) if a is not type(None)]
        return named[0], True
    return annotation, False


def _value(key: str, text: str, annotation: Any) -> Any:
    kind, may_be_none = _plain_type(annotation)
    if may_be_none and text in ("null", "none"):
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        value = kind(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"{key}={text}: {text!r} is not {_KINDS[kind]}") from None
    if kind is float and value != value:
        raise ArgumentError(f"{key}={text}: needs a number, not NaN")
    return value


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key.isidentifier():
            raise ArgumentError(f"{argument!r} is not of the form key=value")
        if key in pairs:
            raise ArgumentError(f"{key} is given twice")
        pairs[key] = value
    return pairs


def split(arguments: Sequence[str], name: str) -> tuple[list[str], dict[str, Any]]:
    """Arguments without those of the form NAME.key=value, and these: key -> value, read as JSON where it is that.

    Raises ArgumentError for one without a key or given twice.
    """
    rest, found = [], {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not key.startswith(f"{name}."):
            rest.append(argument)
            continue
        setting = key.removeprefix(f"{name}.")
        if not equals or not setting.isidentifier():
            raise ArgumentError(f"{argument!r} is not of the form {name}.key=value")
        if setting in found:
            raise ArgumentError(f"{key} is given twice")
        found[setting] = json_or_text(text)
    return rest, found


def json_or_text(text: str) -> Any:
    """What a value of a setting says, read as JSON where it is that."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def value_of(arguments: Sequence[str], key: str, default: str) -> str:
    """The text given for one key: for commands whose other keys depend on it."""
    return next((a.partition("=")[2] for a in reversed(arguments) if a.startswith(f"{key}=")), default)


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether the user asked for the list of keys."""
    return any(a in ("help", "-h", "--help") for a in arguments)


def usage(*configs: type) -> str:
    """One line per key: name, default, explanation."""
    rows = []
    for config in configs:
        for f in dataclasses.fields(config):
            default = "(required)" if f.default is dataclasses.MISSING else f"{f.default}".lower()
            rows.append((f.name, default, f.metadata.get("help", "")))
    widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
    return "\n".join(f"  {name:{widths[0]}}  {default:{widths[1]}}  {help}" for name, default, help in rows)


def parse(arguments: Sequence[str], *configs: type) -> list[Any]:
    """One instance per dataclass, from arguments that may name the fields of any of them.

    Raises ArgumentError for an unknown, repeated, missing or ill-typed key, with the choices.
    """
    hints = [typing.get_type_hints(config) for config in configs]
    fields = {f.name: (k, f) for k, config in enumerate(configs) for f in dataclasses.fields(config)}
    found: list[dict[str, Any]] = [{} for _ in configs]
    for key, text in _pairs(arguments).items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ArgumentError(f"unknown key {key!r}{hint}; keys: {', '.join(fields)}")
        index = fields[key][0]
        found[index][key] = _value(key, text, hints[index][key])
    for key, (index, f) in fields.items():
        if f.default is dataclasses.MISSING and key not in found[index]:
            raise ArgumentError(f"{key}=... is missing: {f.metadata.get('help', '')}")
    return [config(**values) for config, values in zip(configs, found, strict=True)]


def explained(error: BaseException, needs: str = "") -> str:
    """What went wrong, in one line that is safe to print: an error may quote a stranger's file.

    `needs`: the extras of the command, see `deploy.system.extras`.
    """
    if isinstance(error, ImportError):
        text = extras.missing(error, needs)
    elif isinstance(error, MemoryError):
        text = f"this needs more memory than there is{f': {error}' if str(error) else ''}"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, RecursionError):
        text = "something in the input is nested too deeply"
    else:
        text = str(error) or type(error).__name__
    return printable(text, LONGEST)


def call(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None, needs: str = "") -> int:
    """Run a command; on bad input print one short line. Returns the exit status. SIM2METAL_TRACEBACK=1 shows where.

    The status is 2 for bad input, 130 for an interrupt. A mistake of the program is not hidden. `needs`: the extras
    that the command needs whatever it is told, for who has only the base.
    """
    streams.opened()
    try:
        with interrupts.come_again():
            main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except EXPECTED as error:
        if isinstance(error, BrokenPipeError) and streams.is_gone():
            return streams.GONE
        if os.environ.get("SIM2METAL_TRACEBACK"):
            raise
        print(f"error: {explained(error, needs)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0

"""Tables of contents: name -> "module:Attribute", imported lazily. Every package's table is looked up through here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# While names come from a file: what the file is called, and the names that a person typed beside it.
_stranger: ContextVar[tuple[str, frozenset[str]] | None] = ContextVar("_stranger", default=None)


class StrangerError(ValueError):
    """A file names a module to import, or a file to open, which only a person may; the message says how."""


@contextmanager
def names_from(source: str, *typed: str | None) -> Iterator[None]:
    """Inside, a file (`source`) chose the names: only entries of the tables are loaded, and the names in `typed`.

    A file never makes us import what it names: "module:Attribute" of another's choice would run another's code. Nor
    does it make us open files (`check_named`). `typed`
    are names that the person at this machine gave, for the same call. StrangerError for every other name.
    """
    token = _stranger.set((source, frozenset(name for name in typed if name)))
    try:
        yield
    finally:
        _stranger.reset(token)


def check_named(kind: str, name: str) -> None:
    """StrangerError where names come from a file and no person typed this one."""
    stranger = _stranger.get()
    if stranger and name not in stranger[1]:
        raise StrangerError(
            f"{stranger[0]} names the {kind} {name!r}, which is not one of ours: name it yourself with {kind}={name}"
        )


def load(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """The object that `name` stands for: an entry of the table, or "package.module:Attribute" from outside the project.

    Raises ValueError with the choices (and the nearest one) when there is no such entry, StrangerError for a module
    that nobody typed (`names_from`).
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r} is no name; choices: {', '.join(sorted(table))}")
    target = table.get(name, name)
    if ":" not in target:
        near = difflib.get_close_matches(name[:100], table, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"unknown {kind} {name!r}{hint}; choices: {', '.join(sorted(table))}, or module:Attribute")
    if name not in table:
        check_named(kind, name)
    module_name, attribute = target.split(":", 1)
    absent = ValueError(f"{kind} {name!r}: there is no module {module_name!r}")
    if not all(part.isidentifier() for part in module_name.split(".")):  # relative, empty: no module has such a name
        raise absent
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise  # the module exists and lacks one of its own dependencies: say which
        raise absent from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ValueError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}") from None

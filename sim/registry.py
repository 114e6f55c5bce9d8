"""Tables of contents: name -> "module:Attribute", imported lazily. Every package's table is looked up through here.

Another's package adds names by entry points, in the groups of GROUPS. It is imported when a name of its is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Kind -> the group of entry points in which a package of others declares such names.
GROUPS = {
    "task": "sim2metal.tasks",
    "robot": "sim2metal.robots",
    "engine": "sim2metal.engines",
    "algorithm": "sim2metal.algorithms",
    "driver": "sim2metal.drivers",
}

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


def plugins(kind: str) -> dict[str, list[EntryPoint]]:
    """What installed packages of others declare: name -> who does. Nothing of theirs is imported."""
    from importlib.metadata import entry_points  # which takes longer to import than most tables do

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUPS[kind]) if kind in GROUPS else ():
        found.setdefault(point.name, []).append(point)
    return found


def package_of(point: EntryPoint) -> str:
    """The distribution that declares it, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _plugged(kind: str, name: str, points: list[EntryPoint]) -> Any:
    """The object that another's package declares; ValueError, which names the package, where it cannot be had."""
    check_named(kind, name)
    if len(points) > 1:
        raise ValueError(f"{kind} {name!r} is declared by {' and by '.join(map(package_of, points))}: keep one of them")
    try:
        return points[0].load()
    except Exception as error:
        what = f"{kind} {name!r} of the package {package_of(points[0])} ({points[0].value})"
        raise ValueError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


def load(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """The object that `name` stands for.

    It is an entry of the table, one that another's package declares (`plugins`), or "package.module:Attribute" from
    outside the project. Raises ValueError with the choices (and the nearest one) when there is no such entry, and where
    another's package is broken; StrangerError for what is not ours and nobody typed (`names_from`).
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r} is no name; choices: {', '.join(sorted(table))}")
    target = table.get(name, name)
    if ":" not in target:
        others = plugins(kind)
        if name in others:
            return _plugged(kind, name, others[name])
        choices = sorted({*table, *others})
        near = difflib.get_close_matches(name[:100], choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"unknown {kind} {name!r}{hint}; choices: {', '.join(choices)}, or module:Attribute")
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
    except SyntaxError as error:  # a person's own file, half written
        raise ValueError(f"{kind} {name!r}: {error.filename}, line {error.lineno}: {error.msg}") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ValueError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}") from None


def enter_gymnasium() -> None:
    """What Gymnasium calls while it is imported (entry point "gymnasium.envs"): enters our tasks into its registry.

    A version that ours do not fit (below 1.1) still has to import for everybody else: it gets a warning, no error.
    """
    try:
        importlib.import_module("sim.gym")  # importing registers
    except ImportError as error:
        warnings.warn(f"sim2metal's tasks are not in this gymnasium, which is not 1.1 or newer: {error}", stacklevel=2)

"""Tables of contents: name -> "module:Attribute", imported lazily. Every package's table is looked up through here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any


def load(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """The object that `name` stands for: an entry of the table, or "package.module:Attribute" from outside the project.

    Raises ValueError with the choices (and the nearest one) when there is no such entry.
    """
    target = table.get(name, name)
    if ":" not in target:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"unknown {kind} {name!r}{hint}; choices: {', '.join(sorted(table))}, or module:Attribute")
    module_name, attribute = target.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise  # the module exists and lacks one of its own dependencies: say which
        raise ValueError(f"{kind} {name!r}: there is no module {module_name!r}") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ValueError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}") from None

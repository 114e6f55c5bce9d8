"""python -m deploy.command.listing [tasks|robots|engines|algorithms|drivers|policies]: what can be named, a line each.

Nothing is imported: a package of others is named, not loaded.
"""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Sequence

from deploy import cli
from deploy.command.names import POLICIES, TABLES, described, purposes
from deploy.trust.text import printable
from sim.registry import package_of, plugins

KINDS = {**{f"{kind}s": kind for kind in TABLES}, POLICIES: ""}
NARROWEST = 60  # columns of a terminal that says less


def rows(kind: str) -> list[tuple[str, str]]:
    """Names of a kind (a key of KINDS) and what each is, ours first."""
    if kind == POLICIES:
        return [*purposes()]
    others = plugins(KINDS[kind])
    theirs = [(name, f"of the package {package_of(point)}") for name, points in others.items() for point in points]
    return [*described(KINDS[kind]), *((printable(name), printable(said)) for name, said in theirs)]


def main(argv: Sequence[str]) -> None:
    """Print one table, or all of them."""
    if cli.wants_help(argv):
        print(__doc__)
        return
    for kind in argv:
        if kind not in KINDS:
            near = difflib.get_close_matches(kind[:100], KINDS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise cli.ArgumentError(f"cannot list {kind!r}{hint}; choices: {', '.join(KINDS)}")
    columns = max(shutil.get_terminal_size((120, 24)).columns, NARROWEST)
    for number, kind in enumerate(argv or KINDS):
        if len(argv) != 1:
            print(f"{chr(10) if number else ''}{kind}")
        found = rows(kind)
        width = max((len(name) for name, _ in found), default=0)
        for name, said in found:
            line = f"  {name:{width}}  {said}"
            print(line if len(line) <= columns else f"{line[: columns - 3]}...")


if __name__ == "__main__":
    sys.exit(cli.call(main))

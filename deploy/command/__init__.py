"""sim2metal COMMAND [key=value ...]: every `python -m` command of ours by one name.

A command is the module that the table names, run as `python -m` runs it: its settings, its help, its exit status. Only
that module is imported. One thing differs: the working directory is not on Python's path, so that a folder of the
user's that is called `sim`, `policies` or `deploy` hides none of ours. It is searched, after everything else, when the
command line itself names a module there (`task=elevator:Elevator`).
"""

from __future__ import annotations

import difflib
import os
import re
import runpy
import sys
from collections.abc import Sequence

from deploy import cli
from deploy.command.table import COMMANDS, GROUPS, summary
from deploy.system import extras

HELP = ("help", "-h", "--help")
VERSION = ("version", "-V", "--version")
MODULE = re.compile(r"[=,\s][A-Za-z_][\w.]*:[A-Za-z_]\w*")  # key=module:Attribute


def main() -> int:
    """Carry out what the command line says; the exit status, where the command itself does not exit."""
    words = sys.argv[1:]
    name = words[0].replace("-", "_") if words else ""
    if words and words[0] in VERSION:
        return cli.call(_version, words[1:])
    if name in HELP[:1] and words[1:]:  # help COMMAND
        name, words = words[1].replace("-", "_"), [*words[1:], "--help"]
    if not words or words[0] in HELP:
        return cli.call(_help, words[1:])
    if name not in COMMANDS:
        return cli.call(_unknown, words)
    return run(COMMANDS[name], words[1:])


def run(module: str, arguments: Sequence[str]) -> int:
    """Run a module of ours with these arguments; 2, and one line, where a package is missing."""
    sys.argv[1:] = arguments
    here = os.getcwd() if any(MODULE.search(argument) for argument in arguments) else ""
    if here and not sys.flags.safe_path and not {"", here} & {*sys.path}:
        sys.path.append(here)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in (*extras.EXTRAS, *extras.BASE) or os.environ.get(
            "SIM2METAL_TRACEBACK"
        ):
            raise
        return _without(module, arguments, extras.missing(error))
    except KeyboardInterrupt:  # while it was imported: afterwards it sees to that itself
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _without(module: str, arguments: Sequence[str], missing: str) -> int:
    """A command that cannot even be imported: its help says at least what it is for."""
    if not cli.wants_help(arguments):
        print(f"error: {missing}", file=sys.stderr)
        return 2
    return cli.call(lambda _: print(f"{module}: {summary(module)}\n\nIts settings are not shown: {missing}"), ())


def _version(_: Sequence[str]) -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"sim2metal {version('sim2metal')}")
    except PackageNotFoundError:
        print("sim2metal (not installed)")


def _help(_: Sequence[str]) -> None:
    lines = ["sim2metal COMMAND [key=value ...]"]
    width = max(map(len, COMMANDS))
    for group, commands in GROUPS.items():
        lines += ["", group, *(f"  {name:{width}}  {summary(module)}" for name, module in commands.items())]
    print("\n".join([*lines, "", "sim2metal COMMAND --help: its settings"]))


def _unknown(words: Sequence[str]) -> None:
    near = difflib.get_close_matches(words[0][:100].replace("-", "_"), COMMANDS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise cli.ArgumentError(f"unknown command {words[0]!r}{hint}; sim2metal --help lists them")

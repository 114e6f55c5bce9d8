"""What a kind of page is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import number
from deploy.loop import HandshakeError, handshake
from deploy.policy_file import PolicyFile
from sim.spec import Group

ROWS = """\
typedef struct {{
    float {members};
}} {type};

#define {count_of} {count}
static const {type} {name}[{count_of}] __attribute__((unused)) = {{
{rows}}};
"""
FILE = """\
/* {what}: made by `python -m deploy.export`; do not edit. */
#ifndef {guard}_H
#define {guard}_H

{text}
#endif
"""


class VehicleError(ValueError):
    """No page flies or drives what the policy is for; the message says why."""


def check_contract(policy: PolicyFile, does: str, signals: Group, commands: Group) -> None:
    """VehicleError, with all differences, unless the policy is fed and obeyed like that; a page `does` what it does."""
    vehicle: Any = SimpleNamespace(robot=policy.robot, rate_hz=policy.rate_hz, signals=signals, commands=commands)
    try:
        handshake(policy, vehicle)
    except HandshakeError as error:
        raise VehicleError(f"a page {does}: {error}") from None


def check_rate(policy: PolicyFile, does: str) -> None:
    """VehicleError for a rate that a page does not keep."""
    if not 1.0 <= policy.rate_hz <= 1000.0:
        raise VehicleError(f"a page {does} 1 to 1000 times a second, {policy.path} wants {policy.rate_hz:g}")


@dataclass(frozen=True)
class Kind:
    """Pages of one kind of vehicle; their sources lie in that folder of firmware/web.

    `check` raises VehicleError, with all differences, for a policy that is fed or obeyed otherwise. `headers` are what
    its C includes, name -> text; `told` is what the page must know.
    """

    folder: str
    robots: tuple[str, ...]
    what: str  # such vehicles, in words
    noun: str  # what gives commands to what, for the page's first line
    check: Callable[[PolicyFile], None]
    headers: Callable[[PolicyFile], dict[str, str]]
    told: Callable[[PolicyFile], dict[str, Any]]
    sources: tuple[str, ...]  # C
    scripts: tuple[str, ...]  # JavaScript; each uses those before it


def struct_rows(name: str, kind: str, columns: Sequence[dict[str, NDArray[Any]]]) -> str:
    """C: a struct type `kind` of floats, and the array `name` of what `columns` hold, each name -> values."""
    rows = ("{" + ", ".join(_value(v) for v in row.values()) + "}" for row in columns)
    members = ", ".join(f"{n}[{v.size}]" if v.ndim else n for n, v in columns[0].items())
    filled = {"members": members, "type": kind, "name": name, "count_of": name.upper(), "count": len(columns)}
    return ROWS.format(**filled, rows=",\n".join(rows))


def _value(value: NDArray[Any]) -> str:
    return "{" + ", ".join(map(number, value)) + "}" if value.ndim else number(float(value))


def header(guard: str, what: str, *text: str) -> str:
    """A C header of our making."""
    return FILE.format(guard=guard, what=what, text="\n".join(text))


def offsets(row: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Where each parameter of `struct_rows` lies in C: name, offset in bytes, size."""
    found, at = [], 0
    for name, value in row.items():
        found.append({"name": name, "offset": at, "size": value.size})
        at += value.size * np.dtype(np.float32).itemsize
    return found

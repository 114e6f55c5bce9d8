"""How far a policy file says that it can be trusted: the worst cell of its task's grid of conditions, as measured.

`evaluation.grid` in the metadata is null where the task has no grid, and missing where nobody flew it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deploy.policy_file import PolicyFile
from deploy.trust.text import printable

TRUSTED = 0.95  # success in the worst cell from which on a policy needs no warning
CELL = ("delay", "rotor_lag", "mass", "thrust")


def where(cell: Mapping[str, Any]) -> str:
    """A cell in words: "delay 20 ms, rotor lag 0.4, mass 1.15, thrust 0.85"."""
    factors = (f"{name.replace('_', ' ')} {cell[name]:g}" for name in CELL[1:])
    return ", ".join([f"delay {1000.0 * cell['delay']:g} ms", *factors])


def _number(value: Any) -> float:
    """A number from a file that anyone may have written; NaN where it is none."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
    return float(value) if sound else math.nan


def worst_cell(policy: PolicyFile) -> dict[str, float] | None:
    """The worst cell, with its "success" (0 to 1) of "episodes"; None where the file has no such numbers."""
    found: Any = policy.metadata.get("evaluation")
    for key in ("grid", "worst"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    cell = {name: _number(found.get(name)) for name in (*CELL, "success", "episodes")}
    return cell if all(math.isfinite(value) for value in cell.values()) else None


def _gridless(policy: PolicyFile) -> bool:
    """Whether the policy was evaluated on a task that has no grid."""
    evaluation = policy.metadata.get("evaluation")
    return isinstance(evaluation, Mapping) and "grid" in evaluation and evaluation["grid"] is None


def summary(policy: PolicyFile) -> str:
    """One line: what the file says of its worst cell."""
    cell = worst_cell(policy)
    if cell is None:
        return f"worst cell of its grid: {'its task has none' if _gridless(policy) else 'never measured'}"
    share = f"{100.0 * cell['success']:.1f} % of {cell['episodes']:g} flights"
    return f"worst cell of its grid: success {share}, at {where(cell)}"


def trust_warning(policy: PolicyFile) -> str:
    """What whoever is about to fly this file on a robot should know first; empty where there is nothing to say."""
    cell = worst_cell(policy)
    if cell is None and _gridless(policy):
        return ""
    name = printable(policy.name)
    if cell is None:
        return (
            f"nobody measured how {name} does on a robot that differs from its model "
            "(python -m policies.evaluate policy=FILE grid=true record=true measures it)"
        )
    if cell["success"] >= TRUSTED:
        return ""
    share = f"{100.0 * cell['success']:.1f} %"
    return f"{name} succeeds in only {share} of its flights on a robot that differs from its model: {where(cell)}"

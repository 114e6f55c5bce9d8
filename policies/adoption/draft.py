"""A description to begin with: what the file and the task tell, and "?" where a person must say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from deploy.trust.text import printable
from policies.adoption.contract import Contract
from policies.adoption.description import Term, plain
from policies.adoption.found import UNKNOWN, Found
from sim.tasks import Task, features_of, history_of, initial_action
from sim.terms import HISTORY

HEAD = """\
# What the network is fed, in its order, and what it returns; fields and examples: docs/adopt.md.
# Replace every {unknown}, and check what stands here: a file that is fed in another order loads, and falls.
"""


def draft(found: Found, contract: Contract | None, typed: Mapping[str, Any], path: str) -> str:
    """The YAML text. `contract`: of the task that was named, with these settings, if one was."""
    sections: list[tuple[str, dict[str, Any]]] = []
    if contract is not None:
        sections.append(
            ("a task of ours: its signals, commands and rate", task_section(contract, typed) | _rate(found))
        )
    else:
        sections.append(("the robot: what it senses and takes", _robot(found)))
    if contract is not None and (hidden := _hidden(found.observation, contract)):
        sections.append(("no sensor of the task tells it: an estimator on the robot must", {"estimated": hidden}))
    if found.about:
        sections.append(("of the network", {"network": found.about}))
    made = contract.made if contract else None
    terms = _without(found.observation, contract) or (_terms(made) if made else [{"signal": UNKNOWN}])
    history = found.history or ({"newest": "first"} if made and history_of(made) > 1 else {})
    sections.append((f"these make the {found.network.inputs} numbers that the network takes", {"observation": terms}))
    if history:
        sections.append(("how what was seen before is laid out", {"history": history}))
    if found.normalisation:
        sections.append(("the whole input, normalised", {"normalisation": found.normalisation}))
    sections.append(
        (f"what the {found.network.outputs} numbers that it returns do", {"action": _action(found, contract)})
    )
    remarks = list(found.remarks)
    if found.statistics.mean:
        remarks.append("The file brings its own normalisation.")
    return written(path, remarks, sections)


def written(path: str, remarks: Sequence[str], sections: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The text of these sections, each with what it is about, made from the file `path`."""
    lines = "".join(f"# {printable(line)}\n" for line in remarks)
    body = "\n".join(f"# {about}\n{_yaml(values)}" for about, values in sections)
    return f"{HEAD.format(unknown=repr(UNKNOWN))}# Made from {path!r}.\n{lines}\n{body}"


def _without(terms: Sequence[Mapping[str, Any]], contract: Contract | None) -> list[dict[str, Any]]:
    """The terms, without what is subtracted where the task has no such signal: there it is always zero."""
    known = {s.name for s in contract.inputs} if contract else {term.get("minus") for term in terms}
    return [{k: v for k, v in term.items() if k != "minus" or v in known} for term in terms]


def _hidden(terms: Sequence[Mapping[str, Any]], contract: Contract) -> list[str]:
    """What the terms read of the signals that the task's policies are not told."""
    names = [term.get("signal") for term in terms]
    return [name for name in contract.hidden if name in names]


def _yaml(values: Mapping[str, Any]) -> str:
    style = None if any(isinstance(value, (dict, list)) for value in values.values()) else False  # never all in {}
    written: str = yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=style, width=110)
    return written


def task_section(contract: Contract, typed: Mapping[str, Any]) -> dict[str, Any]:
    """The task and its settings."""
    return {"task": contract.task, **({"task_settings": dict(typed)} if typed else {})}


def _robot(found: Found) -> dict[str, Any]:
    signals = found.signals or [{"name": UNKNOWN, "size": found.network.inputs, "unit": "1"}]
    commands = found.commands or [
        {"name": UNKNOWN, "size": found.network.outputs, "unit": "1", "limits": [UNKNOWN, UNKNOWN]}
    ]
    return {"robot": UNKNOWN, "rate_hz": UNKNOWN, **_rate(found), "signals": signals, "commands": commands}


def _rate(found: Found) -> dict[str, float]:
    return {} if found.rate_hz is None else {"rate_hz": found.rate_hz}


def _terms(task: Task) -> list[dict[str, Any]]:
    """What networks trained here see of the task, as its Gymnasium environment shows it."""
    made: list[Term] = []
    for feature in features_of(task):
        if feature.signal == HISTORY:
            made.append(Term(history=history_of(task)))
        else:
            made.append(Term((feature.signal,), minus=feature.minus, scale=(feature.scale,), squash=feature.squash))
    return [dict(plain(term)) for term in made]


def _action(found: Found, contract: Contract | None) -> dict[str, Any]:
    names = [s.name for s in contract.outputs] if contract else [c["name"] for c in found.commands] or [UNKNOWN]
    told: dict[str, Any] = {"command": names[0], **found.action}
    if contract is None:
        if told.get("means") == "position":
            told["means"] = "value"  # of a robot that is told positions
        return told
    if told.get("clip") == [UNKNOWN, UNKNOWN] and contract.made is not None:
        told["clip"] = [-1.0, 1.0]  # what Gymnasium's environments of our tasks take
    if "means" not in told:
        told["means"] = "range" if told.get("clip") == [-1.0, 1.0] or "tanh" in told.values() else "value"
        if told["means"] == "range" and {"scale", "offset"} & told.keys():
            told["means"] = "value"
    if contract.made is not None and history_of(contract.made):
        told["initial"] = float(initial_action(contract.made))
    return told

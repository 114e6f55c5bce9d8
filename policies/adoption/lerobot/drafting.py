"""A description of a policy of LeRobot to begin with: what its folder and the task tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.adoption.contract import Contract
from policies.adoption.draft import task_section, written
from policies.adoption.found import UNKNOWN
from policies.adoption.lerobot.folder import ACTION, PLACE, STATE, Folder
from sim import spec
from sim.spec import Group

CAMERAS = "observation.images."


def draft(folder: Folder, contract: Contract | None, typed: Mapping[str, Any]) -> str:
    """The YAML text. `contract`: of the task that was named, with these settings, if one was."""
    about = "a task of ours: its signals, commands and rate" if contract else "the robot: what it senses and takes"
    sections = [(about, task_section(contract, typed) if contract else _robot(folder))]
    told = " and of ".join(f"the {size} of {name}" for name, size in folder.numbers.items())
    sections.append((f"these make {told}, in its order", {"observation": _terms(folder, contract)}))
    if folder.pictures:
        sections.append(("which camera is which", {"pictures": _pictures(folder, contract)}))
    sections.append((f"what the {folder.actions} numbers of an action do, in its order", _actions(folder, contract)))
    remarks = ["It brings its own normalisation: signals and commands are in the units of its dataset."]
    remarks += [f"{name} in its training: {_range(folder, name)}" for name in (*folder.numbers, ACTION)]
    return written(Path(folder.path).name, [line for line in remarks if UNKNOWN not in line], sections)


def _range(folder: Folder, name: str) -> str:
    """The least and the most of each element, as far as the statistics tell."""
    found = folder.statistics.get(name, {})
    if not {"min", "max"} <= found.keys():
        return UNKNOWN
    return ", ".join(f"{low:.3g} to {high:.3g}" for low, high in zip(found["min"], found["max"], strict=True))


def _name(picture: str) -> str:
    return picture.removeprefix(CAMERAS)


def _robot(folder: Folder) -> dict[str, Any]:
    signals: list[dict[str, Any]] = [
        {"name": name.removeprefix("observation."), "size": size, "unit": UNKNOWN}
        for name, size in folder.numbers.items()
    ]
    signals += [{"name": _name(name), "picture": [*size]} for name, size in folder.pictures.items()]
    command = {"name": ACTION, "size": folder.actions, "unit": UNKNOWN, "limits": [UNKNOWN, UNKNOWN]}
    return {"robot": UNKNOWN, "rate_hz": UNKNOWN, "signals": signals, "commands": [command]}


def _fits(group: Group, size: int) -> list[str]:
    return [s.name for s in group] if spec.size(group) == size else [UNKNOWN]


def _terms(folder: Folder, contract: Contract | None) -> list[dict[str, Any]]:
    """The task's numbers in its order, as `policies.collect` writes them, where they are as many."""
    if contract is None:
        return [{"signal": name.removeprefix("observation.")} for name in folder.numbers]
    names: list[str] = []
    for name, size in folder.numbers.items():
        group = spec.numbers(contract.inputs) if name == STATE else ()
        names += _fits(group, size)
    assert names or PLACE not in folder.numbers
    return [{"signal": name} for name in names or [UNKNOWN]]


def _pictures(folder: Folder, contract: Contract | None) -> dict[str, str]:
    """The cameras of the same name."""
    known = None if contract is None else [s.name for s in spec.pictures(contract.inputs)]
    return {name: _name(name) if known is None or _name(name) in known else UNKNOWN for name in folder.pictures}


def _actions(folder: Folder, contract: Contract | None) -> dict[str, Any]:
    names = [ACTION] if contract is None else _fits(contract.outputs, folder.actions)
    return {"action": [{"command": name} for name in names]}

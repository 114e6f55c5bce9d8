"""Policies of LeRobot: pictures and numbers in, chunks of actions out; `policies.adopt from=lerobot`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from policies.adoption.fields import DescriptionError
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.adoption.lerobot.controller import LeRobotPolicy, Planner
    from policies.adoption.lerobot.folder import Folder


class Asked(Protocol):
    """What was asked for (`policies.adopt`)."""

    file: str
    description: str
    task: str


def planner_of(folder: Folder, steps: int = 0) -> Planner:
    """The network of a folder; `steps`: evaluations of one that takes noise away, 0: as many as the folder says.

    PolicyFileError names the folder's file where its numbers make no network.
    """
    from deploy.policy_file import PolicyFileError
    from policies.adoption.lerobot import act, diffusion, planners

    if folder.kind == "act" and steps:
        raise DescriptionError("sampler: ACT takes no noise away")
    try:
        if folder.kind == "act":
            return planners.ActPlanner(*act.from_act(folder))
        return planners.DiffusionPlanner(*diffusion.from_diffusion(folder, steps))
    except PolicyFileError:
        raise
    except (ValueError, ArithmeticError, RuntimeError) as error:  # as the math of its schedule, or torch, say it
        why = " ".join(str(error).split())[:200]
        raise PolicyFileError(f"{folder.settings.path}: its numbers make no {folder.kind} network: {why}") from None


def draft(path: str, task: Task | None, typed: Mapping[str, Any]) -> str:
    """A description to begin with."""
    from policies.adoption.contract import of_task
    from policies.adoption.lerobot.drafting import draft as made
    from policies.adoption.lerobot.folder import read

    return made(read(path), of_task(task, pictures=True) if task else None, typed)


def adopted(asked: Asked, settings: Mapping[str, Any]) -> tuple[LeRobotPolicy, list[Path]]:
    """The policy as its description says, and the files that it was read from, in the order of their names."""
    from policies.adoption.contract import contract_of
    from policies.adoption.lerobot.controller import LeRobotPolicy
    from policies.adoption.lerobot.description import read as read_description
    from policies.adoption.lerobot.folder import read

    description = read_description(asked.description)
    folder = read(asked.file)
    try:
        planner = planner_of(folder, description.steps)
        contract = contract_of(description, settings, asked.task, pictures=True)
        policy = LeRobotPolicy(description, contract, folder, planner)
    except DescriptionError as error:
        raise DescriptionError(f"{asked.description}: {error}") from None
    return policy, [Path(asked.file) / name for name in folder.files]


def remarks(policy: Any, episodes: int, seed: int) -> list[str]:
    """What is not as its statistics say of its training, when so many episodes begin."""
    from policies.adoption.lerobot import fit

    return fit.remarks(policy, episodes, seed)

"""What a foreign file tells by itself: its network, and some of what a description says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.policy_file import PolicyFileError
from policies.adoption.description import Normalisation
from policies.adoption.networks import ForeignGraph
from policies.models.networks import Array, Layer, Network
from policies.models.networks.activations import ACTIVATIONS
from policies.models.networks.feed_forward import FeedForward

UNKNOWN = "?"  # in a draft: what a person must say


@dataclass
class Found:
    """The network of a file, its statistics, and what a draft can take over from it."""

    network: Network
    statistics: Normalisation = field(default_factory=Normalisation)  # in the file; a description then has none
    about: dict[str, str] = field(default_factory=dict)  # network.activation and the like, as a draft says them
    action: dict[str, Any] = field(default_factory=dict)
    observation: list[dict[str, Any]] = field(default_factory=list)  # terms; empty: the task's
    signals: list[dict[str, Any]] = field(default_factory=list)  # where it is of no task of ours
    commands: list[dict[str, Any]] = field(default_factory=list)
    rate_hz: float | None = None  # at which it was trained
    history: dict[str, str] = field(default_factory=dict)
    normalisation: dict[str, Any] = field(default_factory=dict)  # what a person must say of it
    remarks: list[str] = field(default_factory=list)  # what a person should know who reads the draft


Told = Mapping[str, str]  # the description's `network`: activation, output


def from_onnx(path: str, told: Told) -> Found:
    """The network of any ONNX file; `output` names which of its outputs is the action."""
    only(path, told, "output")
    return Found(ForeignGraph(path, told.get("output", "")))


def only(path: str, told: Told, *known: str) -> None:
    """PolicyFileError for what the description says of a network that this kind of file does not take."""
    for key in told:
        if key not in known:
            raise PolicyFileError(
                f"{path}: network.{key} says nothing of this kind of file; it takes {', '.join(known)}"
            )


def perceptron(path: str, layers: list[Layer], activation: str) -> FeedForward:
    """Of a file's weights; PolicyFileError names the file when they do not fit."""
    if activation not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        raise PolicyFileError(f"{path}: network.activation: {activation!r:.40} is not one of {choices}: say it")
    try:
        return FeedForward(layers, activation)
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from None


def layers_of(path: str, tensors: Mapping[str, Array], prefix: str) -> list[Layer]:
    """W and b of PREFIX.NUMBER.weight and .bias, in the order of the numbers."""
    names = {name for name in tensors if name.startswith(f"{prefix}.")}
    numbers = sorted({int(name.split(".")[-2]) for name in names if name.split(".")[-2].isdecimal()})
    wanted = {f"{prefix}.{number}.{kind}" for number in numbers for kind in ("weight", "bias")}
    if not names or names != wanted:
        odd = ", ".join(sorted(names ^ wanted)[:4]) or "nothing"
        raise PolicyFileError(f"{path}: {prefix} is no chain of linear layers (NUMBER.weight, NUMBER.bias): {odd}")
    return [(tensors[f"{prefix}.{k}.weight"], tensors[f"{prefix}.{k}.bias"]) for k in numbers]


Source = Callable[[str, Told], Found]

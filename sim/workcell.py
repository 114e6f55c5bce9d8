"""Manipulation: tasks that bring their own physics (third-party benchmarks, or our arm), behind one protocol.

A `Manipulation` declares signals, commands and rates, as every task does; `open` gives the live scenes, a `Workcell`.
Batches are numpy arrays: contact physics run on the CPU's cores. An episode is decided by its number and the seed
alone, whatever the batch it is in, so that two policies can be compared on the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sim.registry import load
from sim.spec import Group

Array = NDArray[Any]


class NoExpertError(ValueError):
    """The task has no scripted expert."""


@dataclass(frozen=True)
class Manipulator:
    """The robot of a task, by name: policies are made for it."""

    name: str


@dataclass
class Outcome:
    """What one control step brought, per scene (n,)."""

    reward: Array  # float32, the benchmark's own
    success: Array  # bool: the task is done now
    lost: Array  # bool: it cannot be done any more (a state that is not finite, something out of reach)


class Workcell(Protocol):
    """`num` scenes with a robot each, stepped together."""

    num: int

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin these episodes (numbers >= 0) in these scenes."""

    def read(self) -> dict[str, Array]:
        """Every declared signal now, noise-free, by name (num, *shape): float32, images uint8 (num, h, w, 3)."""

    def step(self, command: Mapping[str, Array]) -> Outcome:
        """Advance every scene one control step under commands by name (num, *shape), clipped to their limits."""

    def picture(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """The scene for people, (height, width, 3)."""

    def close(self) -> None:
        """Free what it holds."""


class Manipulation(Protocol):
    """What a manipulator should do. An episode ends with success, when lost, or after `episode_steps`."""

    Config: type
    name: str
    robot: Manipulator
    rate_hz: float
    episode_steps: int
    policy: Group
    privileged: Group
    commands: Group
    envelope: dict[str, Any]  # when and how a real robot is stopped: fields of deploy.safety.envelope.Envelope
    scores: dict[str, str]  # name -> unit of what `score` returns
    goal: str  # the signal that says what to achieve; "" where there is none
    corruption: dict[str, float]  # signal or command -> standard deviation at which the expert is mediocre

    def open(self, num: int, seed: int) -> Workcell:
        """The live scenes. `seed` and an episode's number decide everything about that episode."""

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """A scripted expert's commands (n, *shape) for noise-free signals; NoExpertError when there is none."""

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """What users care about, per episode (n,), from recordings (steps, n, k); "success" is 0 or 1."""


def is_manipulation(task: object) -> TypeGuard[Manipulation]:
    """Whether a task brings its own physics; the others are carried out by an engine."""
    return hasattr(task, "open")


def choose_engine(task: Manipulation, engine: str) -> None:
    """Have another engine of the task's `engines` step its scenes; ValueError when it is none of them.

    The default engine of other tasks, "flight", changes nothing.
    """
    engines: Mapping[str, str] = getattr(task, "engines", {})
    if engine in engines:
        load("engine", engine, engines)  # says now what is not installed
        task.engine = engine  # type: ignore[attr-defined]  # what has engines to choose from has this
    elif engine != "flight":
        choices = f"; it has {', '.join(engines)}" if engines else ""
        raise ValueError(f"{task.name} brings its own physics; it has no engine {engine!r}{choices}")


def stream(seed: int, purpose: int) -> int:
    """A seed of episodes for that purpose (training, evaluation, ...), which no other purpose shares."""
    return int(np.random.SeedSequence([seed, purpose]).generate_state(1)[0])


def outcome_scores(flight: Mapping[str, Array], rate_hz: float) -> dict[str, Array]:
    """Of a recorded flight: "success" (0 or 1) and "duration" (s until then, else of all), (n,) float32."""
    success = flight["success"][..., 0]  # (steps, n)
    reached = success.any(axis=0)
    steps: Array = np.where(reached, success.argmax(axis=0) + 1, len(success))
    return {"success": np.asarray(reached, np.float32), "duration": np.asarray(steps / rate_hz, np.float32)}

"""Env, the one protocol of simulated worlds: what every task is trained, evaluated, filmed and deployed in.

A task is carried out by one of our engines (`sim.simulation.SimEnv`), or brings a world of its own: third-party
benchmarks, or our arm. Batches are numpy arrays. An episode is decided by its number and the seed alone, whatever the
batch it is in, so that two policies can be compared on the same episodes.
"""

from __future__ import annotations

import copy
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.cluster import current
from sim.conditions import Conditions
from sim.engines import ENGINES, cores
from sim.registry import load
from sim.spec import Group
from sim.tasks import EngineTask, HasExpert, HasOpponents, HasSeparateWorlds, OwnWorld, Task, agents_of
from sim.tasks.opponents import Play

Array = NDArray[Any]
AnyTask = TypeVar("AnyTask", bound=Task)
TOGETHER = 1000  # episodes that our engines step at once
SCENES = 10  # the same of other worlds: contact physics, and pictures
TRAINING = int.from_bytes(b"training")  # mixed into the seed: other episodes than evaluation's, demonstrations'
SHARE = 4  # worlds for which a worker is worth it: with 2, Meta-World's steps take 30 % more CPU time, with 4 only 15


class NoExpertError(ValueError):
    """The task has no scripted expert."""


class WorldError(RuntimeError):
    """A world of others failed: whose, in which row, and why."""

    def __init__(self, task: str, row: int, reason: str) -> None:
        super().__init__(f"{task}, row {row}: {reason}")
        self.row, self.reason = row, reason


@contextmanager
def world_of(task: str, row: int) -> Iterator[None]:
    """What a world raises in this row becomes a WorldError."""
    try:
        yield
    except WorldError as error:  # of a world within this one
        raise WorldError(task, row, error.reason) from error
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"
        raise WorldError(task, row, reason) from error


@dataclass
class Step:
    """What one control step brought, per row (n,)."""

    reward: Array  # float32, the task's own
    success: Array  # bool: the task is done now
    terminated: Array  # bool: nothing that follows counts; without success it cannot be done any more (out of reach)
    terms: Mapping[str, Array] = field(default_factory=dict)  # of the reward, by name, unweighted, where it has any


class Env(Protocol):
    """`num` robots in worlds that are stepped together; a row is one of them, mostly alone in its world.

    An episode ends with success, when terminated, or after the task's `episode_steps`; whoever steps begins the next.
    The agents of a `MultiAgent` task are rows that follow one another: they begin and end together.
    """

    num: int  # worlds x agents

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin these episodes (numbers >= 0) in these rows; in all of a world's rows the same one."""

    def observe(self) -> dict[str, Array]:
        """Every declared signal now, by name (num, *shape): float32, images uint8 (num, h, w, 3).

        The policy's as the robot senses them, the privileged ones noise-free.
        """

    def truth(self) -> dict[str, Array]:
        """The same noise-free, and what a film needs: for scores and reports."""

    def step(self, command: Mapping[str, Array]) -> Step:
        """Advance every row one control step under commands by name (num, *shape), clipped to their limits."""

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """A picture for people, (height, width, 3)."""

    def close(self) -> None:
        """Free what it holds."""


@runtime_checkable
class Saves(Protocol):
    """An environment that can be saved in the midst of its episodes."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an environment with the same arguments, exactly."""


@runtime_checkable
class HasWorkers(Protocol):
    """An environment whose rows are stepped by other processes."""

    def worker_metrics(self) -> dict[str, float]:
        """`workers_replaced`: how many died."""


@runtime_checkable
class SensesTogether(Protocol):
    """An environment that has all that its policy senses in one array."""

    def sensed(self) -> Array:
        """The policy's numbers, one signal after the other, (blocks, size, LANES), until the next step or reset."""


def sensor(env: Env, group: Group) -> Callable[[], Array]:
    """The same of any environment with this policy."""
    if isinstance(env, SensesTogether):
        return env.sensed

    from sim.engines.vector.blocks import to_lanes  # compiled, which costs time to import

    def sensed() -> Array:
        now = env.observe()
        return to_lanes(np.concatenate([now[s.name].reshape(env.num, -1) for s in group], axis=1))

    return sensed


def make_env(task: Task, num: int, seed: int, several: bool = False, workers: int = 1) -> Env:
    """`num` rows of a task. `seed` and an episode's number decide everything about that episode.

    `workers` processes step them (`workers_for`), which changes no result: of the cluster that was entered, if one was.
    ValueError for several agents in a world, unless the caller can do with `several`, whose worlds must be whole.
    """
    if not several and agents_of(task) > 1:
        raise ValueError(f"{task.name} has {agents_of(task)} agents in each world; this is done with one at a time")
    whole_worlds(task, num)
    count = workers_for(task, num, workers)
    if isinstance(task, HasSeparateWorlds) and count > 1:
        if nodes := current():
            return nodes.workers(task, num, seed, count)
        from sim.workers import Workers

        return Workers(task, num, seed, count)
    if isinstance(task, OwnWorld):
        return task.open(num, seed)
    from sim.simulation import SimEnv  # with the physics of the task's engine

    return SimEnv(carried_out(task), num, seed)


def evaluation_env(task: Task, num: int, seed: int, conditions: Conditions) -> Env:
    """`num` rows in which a robot is stepped as a real one: nominal, but for these conditions."""
    whole_worlds(task, num)
    if isinstance(task, OwnWorld):
        conditions.refused(task.name)
        return task.open(num, seed)
    from sim.simulation import SimEnv

    return SimEnv(carried_out(task), num, seed, conditions, judged=False)


@runtime_checkable
class HasConditions(Task, Protocol):
    """A task that declares other worlds than those in which it is learned, for its policies to be tried in."""

    def conditions(self) -> Mapping[str, Task]:
        """Itself in each, by a name for it; the nominal one first."""


def conditions_of(task: Task) -> Mapping[str, Task]:
    """Those worlds, if it declares some."""
    return task.conditions() if isinstance(task, HasConditions) else {}


def workers_for(task: Task, rows: int, asked: int) -> int:
    """How many processes step so many rows when `asked` for; 1 is this process alone.

    0: one per core, if each has `SHARE` worlds. ValueError for several where there can be only one.
    """
    if asked < 0:
        raise ValueError(f"workers must be at least 1, or 0 for one per core, got {asked}")
    if not isinstance(task, HasSeparateWorlds):
        if asked > 1:
            raise ValueError(f"{task.name} has no worlds that other processes could step: set workers=1")
        return 1
    worlds = rows // agents_of(task)
    there = nodes.cpus if (nodes := current()) else cores()
    return min(asked, worlds) if asked else max(1, min(there, worlds // SHARE))


def saves(env: Env) -> Saves | None:
    """The environment, if it can be saved."""
    return env if isinstance(env, Saves) else None


def worker_metrics(env: Env) -> dict[str, float]:
    """What there is to tell of the processes that step an environment, if any do."""
    return env.worker_metrics() if isinstance(env, HasWorkers) else {}


def whole_worlds(task: Task, rows: int) -> None:
    """ValueError unless so many rows are whole worlds."""
    if rows % (agents := agents_of(task)):
        raise ValueError(f"{task.name} has {agents} agents in each world: the rows must be a multiple, got {rows}")


def episode_numbers(task: Task, rows: int, first: int = 0) -> NDArray[np.int64]:
    """(rows,): a number for each world, from `first` on."""
    return first + np.arange(rows) // agents_of(task)


def for_whole_worlds(agents: int, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask (..., n) of rows with all that share a world with one of them: what is over for one is over for all."""
    worlds = rows.reshape(*rows.shape[:-1], -1, agents)
    return rows if agents == 1 else np.repeat(worlds.any(axis=-1), agents, axis=-1)


def carried_out(task: Task) -> EngineTask:
    """A task that our engines carry out; ValueError for one that brings its own physics."""
    if isinstance(task, OwnWorld):
        raise ValueError(f"{task.name} brings its own physics: this needs a task of an engine ({', '.join(ENGINES)})")
    made: EngineTask = task  # type: ignore[assignment]  # the other kind of tasks
    return made


def with_engine(task: AnyTask, engine: str) -> AnyTask:
    """The task in another engine (empty: its own); ValueError with the choices when it cannot be carried out there."""
    if not engine or engine == task.engine:
        return task
    if isinstance(task, OwnWorld):
        if engine not in task.engines:
            choices = f"; it has {', '.join(task.engines)}" if task.engines else ""
            raise ValueError(f"{task.name} brings its own physics; it has no engine {engine!r}{choices}")
        load("engine", engine, task.engines)  # says now what is not installed
    else:
        load("engine", engine, ENGINES)
    made = copy.copy(task)
    made.engine = engine
    return made


def ends_early(task: Task) -> bool:
    """Whether an evaluated episode is over as soon as its world has decided it; a vehicle flies to the end."""
    return isinstance(task, OwnWorld)


@runtime_checkable
class HasCameras(Protocol):
    """A task whose cameras see so far, through a lens whose `kind` is pinhole or fisheye (equidistant)."""

    view: float  # degrees, across
    lens: Any


def view_of(task: Task) -> float:
    """Degrees that its cameras see across; NaN where it does not say so."""
    return task.view if isinstance(task, HasCameras) else math.nan


def lens_of(task: Task) -> str:
    """The kind of its cameras' lens."""
    return str(task.lens.kind) if isinstance(task, HasCameras) and task.lens else "pinhole"


def game_of(task: Task) -> HasOpponents | None:
    """The task, if it is a game against others, which has an end."""
    return task if isinstance(task, HasOpponents) else None


def together(task: Task) -> int:
    """How many episodes of a task are worth stepping at once."""
    return SCENES if isinstance(task, OwnWorld) else TOGETHER


def expert_of(task: Task) -> HasExpert:
    """The task, if it has a scripted expert; NoExpertError otherwise."""
    if not isinstance(task, HasExpert):
        raise NoExpertError(f"{task.name} has no scripted expert")
    return task


def replay(
    env: Env, numbers: Sequence[int], sent: Sequence[Sequence[Array]], commands: Callable[[Array], Mapping[str, Array]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Bring every row back into its episode by doing again what was sent in it: physics need not be saved.

    `sent` are the actions (k,) of each row since its episode began, `commands` makes those of all rows (num, k) known
    to the environment. Yields the rows that have just begun, or just moved.
    """
    lengths = [len(actions) for actions in sent]
    longest = max(lengths)
    still = np.zeros_like(next((actions[0] for actions in sent if len(actions)), np.zeros(0, np.float32)))
    for step in range(longest):
        begins = [row for row, length in enumerate(lengths) if length == longest - step]
        env.reset(begins, [int(numbers[row]) for row in begins])
        yield begins, []
        at = [step - (longest - length) for length in lengths]
        env.step(commands(np.stack([row[k] if k >= 0 else still for row, k in zip(sent, at, strict=True)])))
        yield [], [row for row, k in enumerate(at) if k >= 0]
    fresh = [row for row, length in enumerate(lengths) if not length]
    env.reset(fresh, [int(numbers[row]) for row in fresh])
    yield fresh, []


def stream(seed: int, purpose: int) -> int:
    """A seed of episodes for that purpose (training, evaluation, ...), which no other purpose shares."""
    return int(np.random.SeedSequence([seed, purpose]).generate_state(1)[0])


def outcome_scores(flight: Mapping[str, Array], rate_hz: float) -> dict[str, Array]:
    """Of a recorded flight: "success" (0 or 1) and "duration" (s until then, else of all), (n,) float32.

    A flight goes on until all worlds are decided: success after one that was lost is none.
    """
    success = flight["success"][..., 0] != 0.0  # (steps, n)
    if "terminated" in flight:
        success = success & undecided(flight)
    reached = success.any(axis=0)
    steps: Array = np.where(reached, success.argmax(axis=0) + 1, len(success))
    return {"success": np.asarray(reached, np.float32), "duration": np.asarray(steps / rate_hz, np.float32)}


def undecided(flight: Mapping[str, Array]) -> NDArray[np.bool_]:
    """(steps, n): the control steps of a recorded flight up to success or loss; what comes after them says nothing."""
    over = (flight["success"] != 0.0)[..., 0] | (flight["terminated"] != 0.0)[..., 0]
    before: NDArray[np.bool_] = np.cumsum(over, axis=0) - over == 0
    return before


@runtime_checkable
class HasGaze(Protocol):
    """A task whose robot turns a camera, to see something."""

    rate_hz: float
    gaze: str  # the signal that says where it looks: rad from ahead to the left, (1,)
    view: float  # degrees that it sees across
    sought: str  # what it should see, in a word

    def bearing(self, flight: Mapping[str, Array]) -> Array:
        """Where that really was, of a recorded flight: rad from ahead to the left, (steps, n)."""


def gaze_of(task: Task) -> HasGaze | None:
    """The task, if its robot turns a camera."""
    return task if isinstance(task, HasGaze) else None


@runtime_checkable
class LooksAround(Protocol):
    """A task whose robot looks where it chooses; whoever knows everything has no reason to."""

    remembered: Mapping[str, str]  # signals of the truth -> those of a memory that forgets nothing

    def gaze_task(self, hands: Play) -> Task:
        """Nothing but to look; `hands` command all else. It tells all these signals."""


def looks_around(task: Task) -> LooksAround | None:
    """The task, if it is one."""
    return task if isinstance(task, LooksAround) else None


@runtime_checkable
class ShowsThings(Protocol):
    """A task with pictures of things; what a detector should tell of them is known."""

    def detector_task(self) -> Task:
        """The same, told by a detector, with its errors, in the place of pictures."""

    def recognised_by(self, recognise: Any) -> Task:
        """That one, where `recognise` tells what is in the pictures."""


def shows_things(task: Task) -> bool:
    """Whether it is one."""
    return isinstance(task, ShowsThings)


def in_view(task: HasGaze, flight: Mapping[str, Array], gaze: Array) -> NDArray[np.bool_]:
    """Whether what is sought lay in the picture of a camera that looks there (rad, (steps, n)), whoever hides it."""
    off = task.bearing(flight) - gaze
    shown: NDArray[np.bool_] = np.abs((off + np.pi) % (2.0 * np.pi) - np.pi) < np.radians(task.view) / 2.0
    return shown

"""What few tasks can do besides, and who asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.env import Env
from sim.language import Instructions
from sim.language.folder import tokeniser
from sim.language.wordpiece import WordPiece
from sim.randomize import Array
from sim.scenes.gates import Openings
from sim.tasks import EngineTask, HasExpert, MultiAgent, OwnWorld, Task, make
from sim.tasks.opponents import Play

if TYPE_CHECKING:
    from sim.experts.gap import Gap
    from sim.tasks.legs.motions import Timetable


@runtime_checkable
class HasSensedReward(OwnWorld, Protocol):
    """A task that can be judged by what its robot senses, and so learned where the robot is."""

    def sensed_reward(self, signals: Mapping[str, Array]) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """Of policy signals (n, *shape) after a step: its reward (n,), and whether it is success, or lost."""


@runtime_checkable
class ChecksExpert(HasExpert, Protocol):
    """A task with an expert that some settings lack."""

    def check_expert(self) -> None:
        """NoExpertError with these settings, in one sentence that names what to set."""


def check_expert(task: Task) -> None:
    """NoExpertError where it is known before anybody is asked that a task's expert cannot show anything."""
    if isinstance(task, ChecksExpert):
        task.check_expert()


@runtime_checkable
class HasPractice(Task, Protocol):
    """A task whose settings may begin episodes where they are learned from, but not judged."""

    def judged(self) -> Task:
        """The same, with the episodes that judge."""


def judged(task: Task) -> Task:
    """The task whose episodes judge who learned this one."""
    return task.judged() if isinstance(task, HasPractice) else task


class Rehearsal(Env, Protocol):
    """Worlds that know how the cost of a window of control steps changes with every command of it."""

    def costs(self) -> tuple[Array, NDArray[np.bool_]]:
        """Of each control step of the window (steps, num), and who counted before it."""

    def begin_pulling(self) -> None:
        """Prepare for `pull` to be called, from the window's last control step to its first."""

    def pull(self, t: int, limit: float) -> Array:
        """(num, k): the gradient of the sum of the costs by the commands of step t, which is undone.

        `limit` bounds the norm of the gradient by a row's state.
        """

    def pull_sensed(self, t: int, slopes: Array) -> None:
        """Add what follows from the gradient (num, m) by the policy's signals, one after the other, before step t."""

    def go_on(self, longest: int) -> tuple[int, NDArray[np.bool_]]:
        """The next window. Who is lost, or older than so many control steps, begins another episode.

        How many are lost, and which rows (num,) begin.
        """

    def state_dict(self) -> dict[str, Any]:
        """All that the next window depends on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""


@runtime_checkable
class HasRehearsal(OwnWorld, Protocol):
    """A task whose own world can be differentiated, and so learned by analytic gradients."""

    def rehearsal(self, num: int, seed: int, steps: int) -> Rehearsal:
        """So many rows, so many control steps in a window, with their first episodes begun."""


@runtime_checkable
class HasAlone(HasRehearsal, Protocol):
    """A task of several robots, each of which can first be learned with nobody else: by its engine's adjoint."""

    def alone(self) -> EngineTask:
        """One robot of it. Its features are the task's first ones: as many numbers, which mean the same."""


Differentiable = EngineTask | HasRehearsal  # by its engine's adjoint, if that has one, or by its world's


@runtime_checkable
class HasPlaces(MultiAgent, Protocol):
    """A task whose agents come and go: a row is a place for one after the other.

    Between two a place is empty for a control step at least. What an agent does until it leaves is learned from, as if
    it were an episode of its own; a step in an empty place counts for nothing. What is scored is the world, the same
    for all of its places.
    """

    present: str  # the privileged signal that is 1 where somebody is, else 0


@runtime_checkable
class HasControllers(Task, Protocol):
    """A task with controllers that policies are compared with."""

    baselines: Mapping[str, Play]  # by name, the one to be better than first


@runtime_checkable
class HasTimetable(Task, Protocol):
    """A task whose policy is told what keyframes say now: a policy file finds that out by itself."""

    timetable: Timetable | None  # None: it is told nothing of them


@runtime_checkable
class HasWords(Task, Protocol):
    """A task whose policy is told in words what to do, by the tokens of a sentence encoder."""

    instructions: tuple[Instructions, ...]  # of each thing that it may be asked for

    @property
    def encoder(self) -> Path:
        """The folder of the sentence encoder."""

    def asked(self, episode: int, seed: int) -> int:
        """Which of these things there is to do in the episode of that number, in worlds of that seed."""


@runtime_checkable
class RefersToObjects(HasWords, Protocol):
    """A task that tells where objects are, in m. Words may mean positions: of an object, or at an offset from one."""

    object_positions: tuple[str, ...]  # the signals (3 k,): of the k objects that words may refer to, or pictures show
    target_positions: tuple[str, ...]  # the privileged signals (3,) of what words mean; none: it is told, or words
    # mean no positions


def referents_of(task: HasWords) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The signals of the objects that words may refer to, and those of the targets that they mean."""
    return (task.object_positions, task.target_positions) if isinstance(task, RefersToObjects) else ((), ())


@runtime_checkable
class HasViews(HasWords, Protocol):
    """A task that knows from where its pictures are taken."""

    def in_pictures(self, positions: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Where positions (..., 3), m, are in each picture (..., 2): right and down, -1 to 1 from edge to edge."""


def in_pictures(task: HasWords, positions: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The same; of nothing where that is not known."""
    return task.in_pictures(positions) if isinstance(task, HasViews) else {}


@runtime_checkable
class HasHeading(Task, Protocol):
    """A task whose robot is told where its nose should point. It is the same in every direction of the compass, so its
    policies learn one and are told the world as seen from there.
    """

    heading: str  # the signal: cosine and sine (2,) of the angle from the world's x; "": it is told none


def heading_of(task: Task) -> str:
    """The signal that tells the nose's direction, if there is one."""
    return task.heading if isinstance(task, HasHeading) else ""


@runtime_checkable
class HasGap(OwnWorld, Protocol):
    """A task with a controller that sees a lidar alone and is data, so that it fits into a policy file."""

    gap: Gap  # of the policy's first features, which are the lidar's


@runtime_checkable
class HasJoints(Task, Protocol):
    """A task of a robot whose joints have names."""

    def elements(self) -> dict[str, tuple[str, ...]]:
        """Of each signal and command with a number for each joint: their names, in its order."""

    def zero(self, command: str) -> NDArray[Any]:
        """Where a command (k,) of zero puts its joints, rad (m)."""


def words_of(task: Task) -> WordPiece | None:
    """What makes tokens of a sentence for a task that is told in words, else none."""
    return tokeniser(task.encoder) if isinstance(task, HasWords) else None


def gap_of(task: Task) -> Gap:
    """That controller; ValueError for a task that has none, or none for what its robot senses."""
    if not isinstance(task, HasGap) or task.policy[0].name != "lidar":
        raise ValueError(f"algorithm.residual corrects a controller that sees a lidar; {task.name} has none")
    return task.gap


@runtime_checkable
class HasOpenings(Protocol):
    """An environment of vehicles that fly through openings."""

    def openings(self, row: int) -> Openings:
        """Those of a row's episode."""


def openings_of(env: Env, row: int) -> Openings | None:
    """What is flown through there, if anything is."""
    return env.openings(row) if isinstance(env, HasOpenings) else None


@runtime_checkable
class Rests(Protocol):
    """An environment whose rows can be left out."""

    def rest(self, rows: Sequence[int]) -> None:
        """Nothing happens in these rows until they begin an episode, and what they show is nobody's business."""


def rest(env: Env, rows: Sequence[int]) -> None:
    """Leave these rows out, whose episodes are over, where that is possible: it saves time."""
    if isinstance(env, Rests):
        env.rest(rows)


def present(task: Task, signals: Mapping[str, Array]) -> NDArray[np.bool_]:
    """In which rows (n,) somebody is: in all, where nobody comes and goes."""
    if not isinstance(task, HasPlaces):
        return np.ones(len(next(iter(signals.values()))), bool)
    there: NDArray[np.bool_] = signals[task.present][:, 0] > 0.5
    return there


def has_places(task: Task) -> bool:
    """Whether agents come and go in it."""
    return isinstance(task, HasPlaces)


def joints_of(task: Task) -> HasJoints | None:
    """The task, if the joints of its robot have names."""
    return task if isinstance(task, HasJoints) else None


def rehearsable(task: Task) -> HasRehearsal | None:
    """The task, if its own world can be differentiated."""
    return task if isinstance(task, HasRehearsal) else None


def alone_of(task: Task) -> EngineTask:
    """One robot of the task with nobody else; ValueError where that is not known."""
    if not isinstance(task, HasAlone):
        raise ValueError(f"algorithm.solo: {task.name} does not say what one of its robots is alone; set it to 0")
    return task.alone()


def baseline_of(task: Task, name: str) -> Play:
    """The baseline of that name; ValueError with the choices when there is none."""
    if not isinstance(task, HasControllers):
        raise ValueError(f"{task.name} has no baselines to compare with")
    if name not in task.baselines:
        raise ValueError(f"{task.name} has no baseline {name!r}; choices: {', '.join(task.baselines)}")
    return task.baselines[name]


def baselines_of(name: str) -> Mapping[str, Play]:
    """Those of the task of that name, as it is by default."""
    task = make(name)
    return task.baselines if isinstance(task, HasControllers) else {}


def timetable_of(task: Task) -> Timetable | None:
    """By which a policy finds out what keyframes say now; None: it is not told that, or there are none."""
    return task.timetable if isinstance(task, HasTimetable) else None

"""The table of tasks: name -> "module:Class", imported when asked for; and the protocols that a task file follows.

`Task` is what all declare. Most are carried out by one of our engines (`EngineTask`), some bring a world of their own
(`OwnWorld`). What else a task can do, an algorithm asks for by a protocol: `HasExpert`, `Relabelable`, `MultiAgent`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from sim.conditions import Grid
from sim.randomize import Array, Vary
from sim.registry import load
from sim.robots.quadrotors import Quadrotor
from sim.spec import Group, Signal, numbers, pictures, size
from sim.tasks.opponents import Opponent, Play
from sim.tasks.tracking import Track
from sim.terms import HISTORY, Bound, Cost, Curriculum, Feature, Mirror

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from sim.env import Env

TASKS = {
    "quad_hover": "sim.tasks.quad_hover:QuadHover",
    "quad_track": "sim.tasks.quad_track:QuadTrack",
    "quad_any": "sim.tasks.quad_any:QuadAny",
    "quad_gate_race": "sim.tasks.gates:QuadGateRace",
    "quad_gate_race_vision": "sim.tasks.gates.vision:QuadGateRaceVision",
    "quad_swarm": "sim.tasks.swarm:QuadSwarm",
    "arm_reach": "sim.tasks.arm.reach:ArmReach",
    "arm_push": "sim.tasks.arm.push:ArmPush",
    "arm_pick_place": "sim.tasks.arm.pick_place:ArmPickPlace",
    "arm_words": "sim.tasks.arm.words:ArmWords",
    "soccer_1v1": "sim.tasks.soccer:Soccer1v1",
    "soccer_2v2": "sim.tasks.soccer:Soccer2v2",
    "soccer_5v5": "sim.tasks.soccer:Soccer5v5",
    "soccer_vision_1v1": "sim.tasks.soccer:SoccerVision1v1",
    "soccer_vision_2v2": "sim.tasks.soccer:SoccerVision2v2",
    "soccer_seek": "sim.tasks.soccer.seek:Seek",
    "soccer_shoot": "sim.tasks.soccer.shoot:Shoot",
    "soccer_keep": "sim.tasks.soccer.keep:Keep",
    "soccer_vision_seek": "sim.tasks.soccer.seek:VisionSeek",
    "soccer_vision_shoot": "sim.tasks.soccer.shoot:VisionShoot",
    "soccer_vision_keep": "sim.tasks.soccer.keep:VisionKeep",
    "car_race": "sim.tasks.race:CarRace",
    "car_race_vision": "sim.tasks.race.vision:CarRaceVision",
    "car_race_multi": "sim.tasks.race.multi:CarRaceMulti",
    "reach": "sim.tasks.mjcf_reach:MjcfReach",
    "velocity": "sim.tasks.legs.velocity:Velocity",
    "walk": "sim.tasks.legs.walk:Walk",
    "get_up": "sim.tasks.legs.get_up:GetUp",
    "kick": "sim.tasks.legs.kick:Kick",
    "traffic_eco": "sim.tasks.traffic:TrafficEco",
}
# Collections of tasks by others, FAMILY/NAME: each entry is a function, NAME -> the task class.
FAMILIES = {
    "metaworld": "sim.tasks.external.metaworld:task",
    "gymnasium": "sim.tasks.external.gymnasium_robotics:task",
    "libero": "sim.tasks.external.libero:task",
    "learned": "sim.tasks.external.learned:task",
}
PLACE = "place"  # in a setting's metadata: it says where something is on this machine, which is nobody else's business
IDENTITY = "sha256"  # the setting that says which robot's files a policy was made with, where a task has them

# Algorithm -> name of the recipe -> setting -> value; see `policies.algorithms.HasRecipes`.
Recipes = dict[str, dict[str, dict[str, Any]]]


class Task(Protocol):
    """What a robot should do: signals, commands, rates and scores.

    `policy` are the signals that the robot can measure, `privileged` those that only a critic may see. An episode ends
    with success, when lost, or after `episode_steps`.
    """

    Config: type
    name: str
    robot: Any  # with a name; the engine knows more of it
    algorithm: str  # that trains it, unless another is named
    engine: str  # that carries it out, unless another is asked for (`sim.env.with_engine`)
    rate_hz: float
    episode_steps: int
    policy: Group
    privileged: Group
    commands: Group
    envelope: dict[str, Any]  # when and how a real robot is stopped: fields of deploy.safety.envelope.Envelope
    scores: dict[str, str]  # name -> unit of what `score` returns
    goal: str  # the signal that says what to achieve; "" where there is none

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """What users care about, per episode: name -> (n,), from recordings (steps, n, k); "success" is 0 or 1."""


@runtime_checkable
class OwnWorld(Task, Protocol):
    """A task that brings its own physics."""

    engines: Mapping[str, str]  # table of those it can be carried out in; empty: its own only

    def open(self, num: int, seed: int) -> Env:
        """The live worlds. `seed` and an episode's number decide everything about that episode."""


@runtime_checkable
class HasSeparateWorlds(OwnWorld, Protocol):
    """One whose rows share nothing and are stepped one after the other: other processes can do it (`sim.workers`).

    It can be pickled. What is sensed is the truth, and rewards have no terms.
    """

    separate: bool


@runtime_checkable
class HasExpert(Protocol):
    """A task that can show how it is done."""

    corruption: dict[str, float]  # signal or command -> standard deviation at which the expert is mediocre

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """A scripted expert's commands (n, *shape) for noise-free signals, the privileged ones too."""


@runtime_checkable
class HasTeacher(Task, Protocol):
    """A task that somebody can learn first who is told what is privileged; he may lack some commands."""

    def teacher_task(self) -> Task: ...


@runtime_checkable
class HasRecipes(Protocol):
    """A task with settings by which algorithms learn it."""

    recipes: Recipes


@runtime_checkable
class HasGrid(Protocol):
    """A task that declares a grid of conditions under which a controller is tried."""

    grid: Grid | None  # None: not with these settings


@runtime_checkable
class Relabelable(Protocol):
    """A task whose episodes can be told again with another goal: the one that was achieved."""

    goal: str
    achieved: str  # the signal that should become equal to it; "" where there is none

    def reached(self, achieved: Array, goal: Array) -> Any:
        """Whether what was achieved (n, k) counts as the goal (n, k), (n,) bool."""


@runtime_checkable
class HasMirrors(Protocol):
    """A task that is the same in mirrors."""

    mirrors: tuple[Mirror, ...]  # whatever their order, they lead to the same image


@runtime_checkable
class HasReward(Protocol):
    """A task whose reward is written in torch, in the place of its costs."""

    def reward(self, signals: Mapping[str, Any]) -> Any:
        """(n,) of signals by name (n, k)."""


@runtime_checkable
class HasGripper(Protocol):
    """A task with a gripper that does not close at its command's lowest value."""

    closed: float  # the command that closes it


@runtime_checkable
class MultiAgent(Protocol):
    """A task of several agents in each world, all with the same signals, commands and policy.

    The rows of its Env are worlds x agents; those of a world follow one another. They begin the same episode together,
    and it ends for all of them when it does for one. Reward, success and being lost are each agent's own.
    """

    agents: int  # in each world
    teams: tuple[int, ...]  # of each of them


@runtime_checkable
class HasOpponents(Task, Protocol):
    """A game against others, who act within its worlds."""

    opponents: Mapping[str, Play]  # scripted ones, the easiest first
    opponent_senses: Group  # what they are told

    def against(self, opponent: Callable[[int], Opponent], practice: bool = True) -> Task:
        """The same, where `opponent(rows)` makes who acts in so many rows of the other team; to learn it, or not."""


@runtime_checkable
class HasFeatures(Protocol):
    """A task that says what a small network sees best of its signals."""

    features: tuple[Feature, ...]


@runtime_checkable
class HasTracks(Protocol):
    """A task that says which privileged signals can be remembered while the robot moves."""

    tracks: tuple[Track, ...]
    ego_motion: tuple[str, str]  # signals of the policy: its velocity (m/s, ahead and to the left), turning (rad/s)


@runtime_checkable
class EngineTask(Task, Protocol):
    """A task that an engine carries out: the environment, the trainers and the exported graph do what it declares.

    Privileged signals are states or parameters of the engine by name, and "delay" in control steps. `motion` below
    describes the moving target of one episode.
    """

    robot: Quadrotor
    features: tuple[Feature, ...]
    history: int  # how many of its own past actions the policy sees
    initial_action: float  # [-1, 1]: what the history holds, and the robot executes, before the first command
    costs: tuple[Cost, ...]
    bounds: tuple[Bound, ...]  # beyond them it is lost; time limits are the environment's business
    alive_bonus: float  # added to the reward per step, for learners that care about termination
    curriculum: tuple[Curriculum, ...]
    vary: tuple[Vary, ...]

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """Initial states by engine name, (n, k), and "motion" (n, 3, m)."""

    def easier(self, state: Mapping[str, Array], difficulty: Array) -> dict[str, Array]:
        """Starts that `reset` drew, moved toward the easiest as `difficulty` (n, 1) falls from 1 to 0.

        To learners without gradients the hardest ones alone teach nothing.
        """

    def reference(self, motion: Any, time: Any) -> dict[str, Any]:
        """The target signals (n, k) at `time` (n,) seconds into the episode; numpy arrays or torch tensors.

        They do not change where the motion is at rest (`targets.at_rest`).
        """


def features_of(task: Task) -> tuple[Feature, ...]:
    """What a policy's network sees of a task's numbers: what it declares, else all, one after the other."""
    return task.features if isinstance(task, HasFeatures) else tuple(Feature(s.name) for s in numbers(task.policy))


def judged_costs(task: Task) -> tuple[Cost, ...]:
    """Of the costs that a task declares those of a state, not of an action: critics see them, too (`terms.shown`).

    A value is a sum of costs to come. That it begins with these need not be learned; how far a hovering vehicle is from
    its target, to the centimetre, is hard to learn.
    """
    signals = {s.name for s in (*task.policy, *task.privileged)}
    costs = task.costs if isinstance(task, EngineTask) else ()
    return tuple(cost for cost in costs if cost.signal in signals)


def agents_of(task: Task) -> int:
    """How many agents each of its worlds has."""
    return task.agents if isinstance(task, MultiAgent) else 1


def teams_of(task: Task) -> tuple[int, ...]:
    """The team of each of a world's agents."""
    return task.teams if isinstance(task, MultiAgent) else (0,)


def remembering(task: Task) -> Task:
    """The task whose policy also sees its own past actions ("history", newest first), if it declares any.

    For networks that take signals as they are. Nothing is remembered beside pictures.
    """
    if not history_of(task) or pictures(task.policy) or task.policy != sensed(task):
        return task
    made = copy.copy(task)
    past = Signal(HISTORY, (history_of(task) * size(task.commands),), low=-1.0, high=1.0)
    made.policy = (*task.policy, past)
    return made


def sensed(task: Task) -> Group:
    """The policy's signals that come from outside: all but its own past actions."""
    return tuple(s for s in task.policy if s.name != HISTORY)


def initial_action(task: Task) -> float:
    """[-1, 1]: what an untrained policy does."""
    return task.initial_action if isinstance(task, EngineTask) else 0.0


def history_of(task: Task) -> int:
    """How many of its own past actions a task's policy sees."""
    return task.history if isinstance(task, EngineTask) else 0


def mirrors_of(task: Task) -> tuple[Mirror, ...]:
    """The mirrors in which a task is the same."""
    return task.mirrors if isinstance(task, HasMirrors) else ()


def varied(task: Task) -> tuple[Vary, ...]:
    """The parameters of the robot that vary."""
    return task.vary if isinstance(task, EngineTask) else ()


def grid_of(task: Task) -> Grid | None:
    """The grid of conditions that a task declares, if it does."""
    return task.grid if isinstance(task, HasGrid) else None


def with_opponents(task: Task) -> HasOpponents:
    """The task, if it is a game against others; ValueError otherwise."""
    if not isinstance(task, HasOpponents):
        raise ValueError(f"{task.name} has no opponents to learn against")
    return task


def tracks_of(task: Task) -> HasTracks:
    """The task, if it says what can be remembered; ValueError otherwise."""
    if not isinstance(task, HasTracks):
        raise ValueError(f"{task.name} does not say what can be tracked: algorithm.network=gru remembers it, too")
    return task


def recipes_of(kind: Any, algorithm: str) -> dict[str, dict[str, Any]]:
    """The recipes that a class of tasks has for an algorithm."""
    return kind.recipes.get(algorithm, {}) if isinstance(kind, HasRecipes) else {}


def reward_of(task: Task) -> Callable[[Mapping[str, Any]], Any] | None:
    """The reward that takes the place of a task's costs, if it has one."""
    return task.reward if isinstance(task, HasReward) else None


def closed(task: Task, gripper: Signal) -> float:
    """The value of that command that closes the gripper."""
    return task.closed if isinstance(task, HasGripper) else gripper.low


def relabelable(task: Task) -> Relabelable | None:
    """The task, if its goals can be replaced by what was achieved."""
    return task if isinstance(task, Relabelable) and task.goal and task.achieved else None


def has_own_world(task: Task) -> TypeIs[OwnWorld]:
    """Whether it brings its own physics, instead of being carried out by one of our engines."""
    return isinstance(task, OwnWorld)


def task_class(name: str) -> Any:
    """The task class of that name, of "family/name" or of "module:Class"; ValueError lists the choices."""
    family, _, member = name.partition("/")
    if family in FAMILIES and member:
        return load("family of tasks", family, FAMILIES)(member)
    return load("task", name, TASKS)


def make(name: str, **config: Any) -> Any:
    """A task by name, with fields of its `Config` set by keyword."""
    cls = task_class(name)
    try:
        made = cls(cls.Config(**config))
    except TypeError as error:
        choices = ", ".join(f.name for f in dataclasses.fields(cls.Config))
        raise ValueError(f"task {name!r}: {error}; its settings are: {choices}") from None
    check_declared(made)
    return made


def remade(task: Any) -> tuple[Callable[[], Any], tuple[()]]:
    """What `pickle` keeps of a task of a family: its name and settings. TypeError for one derived from it."""
    if type(task) is not task_class(task.name):
        raise TypeError(f"{type(task).__qualname__} is not {task.name} itself")
    return functools.partial(make, task.name, **dataclasses.asdict(task.config)), ()


def check_declared(task: Any) -> None:
    """ValueError when a task does not declare what every task does, or neither its world nor what an engine needs."""
    kind = OwnWorld if "open" in dir(task) else EngineTask
    members = sorted({name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})})
    if missing := [name for name in members if name not in dir(task)]:
        raise ValueError(f"the task {task.name!r} does not declare {', '.join(missing)}: see sim.tasks.{kind.__name__}")
    if (agents := agents_of(task)) > 1 and not (kind is OwnWorld and len(task.teams) == agents):
        raise ValueError(f"the task {task.name!r} needs a world of its own and a team for each of its {agents} agents")

"""The table of algorithms: name -> "module:Class", imported when asked for; and the protocol that they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sim.registry import load
from sim.spec import tokens
from sim.tasks import EngineTask, HasExpert, HasTeacher, Task, agents_of
from sim.tasks.abilities import Differentiable, HasSensedReward, HasWords, has_places

if TYPE_CHECKING:
    from policies.models.controller import Policy

ALGORITHMS = {
    "advised_sac": "policies.algorithms.advice:AdvisedSac",
    "online_sac": "policies.algorithms.online_sac:OnlineSac",
    "apg": "policies.algorithms.apg:Apg",
    "distill": "policies.algorithms.distill:Distill",
    "ppo": "policies.algorithms.ppo:Ppo",
    "sac": "policies.algorithms.sac:Sac",
    "streaming": "policies.algorithms.streaming:Streaming",
    "student": "policies.algorithms.student:Student",
    "dagger": "policies.algorithms.dagger:Dagger",
    "diffusion": "policies.algorithms.bc:Bc",
    "dsrl": "policies.algorithms.dsrl:Dsrl",
    "dsrl_na": "policies.algorithms.dsrl_na:DsrlNa",
    "expo": "policies.algorithms.expo:Expo",
    "hg_dagger": "policies.algorithms.hg_dagger:HgDagger",
    "residual": "policies.algorithms.expo:Residual",
    "rlif": "policies.algorithms.rlif:Rlif",
    "rlpd": "policies.algorithms.rlpd:Rlpd",
    "vla": "policies.algorithms.vla:Vla",
    "vla_rl": "policies.algorithms.vla_rl:VlaRl",
    "wsrl": "policies.algorithms.wsrl:Wsrl",
}


class LearningError(Exception):
    """Learning cannot begin or go on, for a reason that one sentence explains."""


class LostBaseError(LearningError):
    """The base does not answer any more. Learning can go on from its last checkpoint."""


class LostLearnerError(LearningError):
    """One of several learners is gone: the update that they share cannot go on, but from its last checkpoint."""


class Algorithm(Protocol):
    """One way to learn a controller for a task. Logging, checkpoints, export and evaluation live in `policies.train`.

    `Config` is a mutable dataclass. What an algorithm may be besides: `HasRecipes`, `HasBaselines`, `HasProvenance`,
    `HasSnapshots`, `HasStages`, `GoesBy`, `CutBy`.
    """

    Config: type
    needs: tuple[type | UnionType, ...]  # abilities of a task, of `sim.tasks`, without which it learns nothing
    takes: tuple[str, ...]  # of DEMANDS: what else a task may ask of it; "learners": several share it, see `CutBy`

    def __init__(self, task: Task, config: Any, seed: int, device: str = "cpu") -> None: ...

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget, yielding metrics; every yield is a safe point for `state_dict`.

        Metrics hold "progress" (0..1), "env_steps", "loss" or "reward", and "success" (0..1) when it is known.
        """

    def controller(self) -> Policy:
        """What has been learned so far: raw signals to commands, in the form that `policies.models.export` writes."""

    def dump_to(self, folder: Path) -> None:
        """Write down there, for replay, the flights whose state stops being finite (a few; training goes on)."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs: nested dicts and lists of arrays, tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there: N steps, save, load and N more equal 2N steps bit for bit on a CPU."""


@runtime_checkable
class HasBaselines(Protocol):
    """An algorithm that improves on something, with which the report compares."""

    def baselines(self) -> dict[str, Policy]:
        """Controllers by name, worst first."""


@runtime_checkable
class HasProvenance(Protocol):
    """An algorithm that may begin with what others trained."""

    def provenance(self) -> dict[str, Any]:
        """What the policy file tells of that."""


@runtime_checkable
class HasStages(Protocol):
    """An algorithm in which others learn first, whom a run that is continued finds where they were."""

    def stage(self) -> str:
        """Who learns now, in words."""


@runtime_checkable
class HasSnapshots(Protocol):
    """An algorithm that may learn a game against itself as it was."""

    def snapshots(self) -> dict[int, Policy]:
        """Some of what it was, by the environment steps until then, the oldest first; empty where it kept none."""

    def rivals(self) -> dict[str, bytes]:
        """Others who play in its league's table: policy files by name."""


@runtime_checkable
class HasRecipes(Protocol):
    """An algorithm with settings that `quality=NAME` and `robust=true` stand for; a task has its own, per algorithm."""

    recipes: dict[str, dict[str, Any]]  # name -> "algorithm.KEY" or "task.KEY" -> value


@runtime_checkable
class GoesBy(Protocol):
    """An algorithm that learns by another's recipes, where a task has none for itself."""

    goes_by: str


@runtime_checkable
class CutBy(Protocol):
    """An algorithm that `takes` learners, and is cut into parts for them by another setting than `parts`."""

    cut_by: str  # its name; 0 there is as many as learners


def cut_by(kind: Any) -> str:
    """The setting that cuts a class of algorithms for learners."""
    return kind.cut_by if isinstance(kind, CutBy) else "parts"


def goes_by(name: str, kind: Any) -> tuple[str, ...]:
    """The algorithms for which a task may have recipes that this one learns by, the nearest first."""
    return (name, kind.goes_by) if isinstance(kind, GoesBy) else (name,)


def recipes_of(kind: Any) -> dict[str, dict[str, Any]]:
    """The recipes of a class of algorithms."""
    return kind.recipes if isinstance(kind, HasRecipes) else {}


ABILITIES: dict[type | UnionType, str] = {
    EngineTask: "an engine that carries it out, features and costs",
    Differentiable: "an engine that carries it out, features and costs, or a world that can be differentiated",
    HasExpert: "a scripted expert",
    HasTeacher: "a teacher who knows more",
    HasWords: "a policy that is told in words what to do",
    HasSensedReward: "a reward that is worked out from what its robot senses",
}


DEMANDS: dict[str, tuple[str, Callable[[Task], bool]]] = {
    "agents": ("several agents in a world", lambda task: agents_of(task) > 1),
    "places": ("agents that come and go", has_places),
    "tokens": ("token signals", lambda task: bool(tokens(task.policy))),
}


def check_needs(name: str, kind: Any, task: Task) -> None:
    """ValueError, one sentence, when the task lacks what the algorithm needs, or asks for what it does not take."""
    for said in ("needs", "takes"):
        if said not in dir(kind):
            raise ValueError(f"algorithm={name} does not say what it `{said}`: see policies.algorithms.Algorithm")
    for ability in kind.needs:
        if not isinstance(task, ability):
            raise ValueError(f"algorithm={name} needs a task with {ABILITIES[ability]}; {task.name} has none")
    for demand, (what, asked) in DEMANDS.items():
        if demand not in kind.takes and asked(task):
            raise ValueError(f"algorithm={name} does not take {what}, which {task.name} has")


def algorithm_class(name: str) -> Any:
    """The algorithm class of that name, or of "module:Class"; ValueError lists the choices."""
    return load("algorithm", name, ALGORITHMS)


def algorithm_for(name: str, task: Task) -> Any:
    """The same; ValueError also where it does not fit the task."""
    kind = algorithm_class(name)
    check_needs(name, kind, task)
    return kind

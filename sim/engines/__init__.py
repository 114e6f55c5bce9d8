"""The table of physics engines, and their protocol. The same task runs on every engine that can do its robot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.registry import load
from sim.robots.quadrotors import Quadrotor

if TYPE_CHECKING:
    from sim.engines.vector.rows import Outcome, World

ENGINES = {
    "flight": "sim.engines.flight:Flight",
    "mujoco": "sim.engines.mujoco:Mujoco",
    "bullet": "sim.engines.bullet:Bullet",
}
# Of tasks that bring their own physics, for arms at tables: see `sim.engines.workbench`.
BENCHES = {
    "mujoco": "sim.engines.workbench:Workbench",
    "mujoco_warp": "sim.engines.mujoco_warp:WarpBench",
}
# Likewise, for robots on legs: see `sim.engines.scene`.
LEGS = {
    "mujoco": "sim.engines.scene:Scene",
    "mujoco_warp": "sim.engines.warp_scene:WarpScene",
    "isaacgym": "sim.engines.isaacgym:IsaacScene",
}


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(Protocol):
    """A batch of `num` robots. Arrays are float32 numpy; where device is "cuda", with `__cuda_array_interface__`.

    Quadrotor state names: position (3, m, world), quaternion (4, w x y z, body to world), linear_velocity (3, m/s,
    world), angular_velocity (3, rad/s, body), rotor_speed (4, fraction 0..1). Derived: rotation (9, row-major, body to
    world). Parameters: the names of `Quadrotor.parameters()`.
    """

    num: int
    dt: float  # s, the control period: what one `step` advances
    device: str

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        """Set the state of the robots in `mask` (num,) bool (None: all) from name -> (count, k).

        Names left out take their rest value: zero, identity rotation, rotors still.
        """

    def step(self, command: Any) -> None:
        """Advance every robot by `dt` under `command` (num, k), held."""

    def read(self, name: str) -> Any:
        """A copy (num, k) of a state, a derived signal or a parameter, by name."""

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        """Set physical parameters of the robots in `mask` from name -> (count, k); others keep theirs."""


@runtime_checkable
class Prepares(Protocol):
    """An engine that can work out beforehand with what episodes begin."""

    def prepare(self, count: int, state: Mapping[str, Any], parameters: Mapping[str, Any]) -> NDArray[np.float32]:
        """(count, columns), from what is to be reset and set; parameters left out are nominal."""

    def begin(self, robots: NDArray[np.int64], prepared: NDArray[np.float32]) -> None:
        """Begin with rows (count, columns) of that."""


class Reads(Protocol):
    """Writes some signals into their columns of an array (blocks, k, LANES) at each call, always the same array."""

    def __call__(self, table: NDArray[np.float32], robots: NDArray[np.int64] | None = None) -> None:
        """Of these robots (count,), at least; None: of all."""


@runtime_checkable
class ReadsTogether(Protocol):
    """An engine that reads several signals at once faster than one after the other."""

    def reader(self, where: Mapping[str, slice]) -> Reads:
        """Of these signals, into these columns."""


@runtime_checkable
class StepsWhole(Protocol):
    """A reader whose engine carries out a control step at once, from the commands to the rewards."""

    def whole_step(
        self, told: NDArray[np.float32], known: NDArray[np.float32], world: World, log: Any, outcome: Outcome
    ) -> bool:
        """Under commands told (num, k), which `log` takes, with known (num, columns) of what no engine knows.

        As step by step: `sim.engines.vector.rows` says what. Whether some row that is not lost has made its last step.
        """


def reader(engine: Engine, where: Mapping[str, slice]) -> Reads:
    """The same of any engine."""
    if isinstance(engine, ReadsTogether):
        return engine.reader(where)
    from sim.engines.vector.rows import tell  # compiled, which costs time to import

    everyone = np.arange(engine.num)

    def read(table: NDArray[np.float32], robots: NDArray[np.int64] | None = None) -> None:
        for name, at in where.items():
            tell(np.asarray(engine.read(name), np.float32), everyone, at.start, table)

    return read


@runtime_checkable
class HasPictures(Protocol):
    """An engine that can show its robots to people."""

    def render(self, row: int, height: int, width: int, goal: NDArray[np.float32]) -> NDArray[np.uint8]:
        """One of them and its goal, (height, width, 3)."""


def render(
    engine: Engine, robot: Any, row: int, goal: NDArray[np.float32], height: int, width: int
) -> NDArray[np.uint8]:
    """A picture for people, of a vehicle as the film shows it; ValueError where nobody can draw it."""
    if isinstance(engine, HasPictures):
        return engine.render(row, height, width, goal)
    if not isinstance(robot, Quadrotor):
        raise ValueError(f"{type(engine).__name__} draws no pictures of {robot.name!r}: it has no render(...)")
    from sim.render.offscreen import picture

    position, quaternion = (np.asarray(engine.read(name))[row] for name in ("position", "quaternion"))
    return picture(robot, position, quaternion, goal, height, width)


def known(task: Any) -> dict[str, str]:
    """The engines that a class of tasks may name: its own, and those of any."""
    return {**ENGINES, **BENCHES, **LEGS, **getattr(task, "engines", {})}


def make(name: str, robot: Quadrotor, num: int, dt: float, device: str = "cpu") -> Engine:
    """The engine of that name, or of "module:Class", with `num` copies of the robot.

    An engine class whose GPU version lives elsewhere names it in its attribute `cuda`.
    """
    engine_class = load("engine", name, ENGINES)
    if device != "cpu" and hasattr(engine_class, "cuda"):
        engine_class = load("engine", "cuda", {"cuda": engine_class.cuda})
    engine: Engine = engine_class(robot, num, dt, device)
    return engine

"""The table of drivers, and the protocol they share. A driver names what it offers before it connects to anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from deploy.system.clock import boottime
from deploy.system.interrupts import ending
from sim.registry import load
from sim.spec import Group

DRIVERS = {
    "simulated": "deploy.drivers.simulated:Simulated",
    "crazyflie": "deploy.drivers.crazyflie:Crazyflie",
    "mavlink": "deploy.drivers.mavlink:Mavlink",
    "ros2": "deploy.drivers.ros2:Ros2",
}


@dataclass(frozen=True)
class Reading:
    """What a driver measured: signals (n, *shape) by name, and the age of each in seconds (a number or (n,)).

    `override` are the commands (n, *shape) of a human who has taken over; they go before the policy's.
    """

    signals: Mapping[str, NDArray[Any]]
    age: Mapping[str, float | NDArray[np.floating[Any]]]
    override: Mapping[str, NDArray[Any]] | None = None


class Driver(Protocol):
    """`num` robots of one kind. Attributes are readable before connecting; `with driver:` connects, then stops."""

    Config: ClassVar[type]  # a dataclass: what `deploy.run` accepts for this driver
    signals: Group
    commands: Group
    robot: str
    rate_hz: float  # how often it wants a command
    num: int
    steps: int | None  # how many control steps a flight lasts; None: until interrupted
    real_time: bool  # False: as fast as it goes
    done: bool  # the flight is over, whatever steps are left: it has landed, or will not fly again
    lands: bool  # by its own controller, a robot that gets the safe command, or is handed back: see `carry_out`

    @property
    def falls(self) -> bool:
        """Whether a robot in the air falls when its commands stop: the loop lands it before it ends a flight."""

    @classmethod
    def from_config(cls, config: Any, policy: PolicyFile) -> Driver:
        """The driver that the settings describe, for that policy; ValueError when they make no sense."""

    def connect(self) -> None:
        """Return once fresh signals arrive. Must not move anything."""

    def read(self) -> Reading:
        """The newest measurement."""

    def write(self, commands: Mapping[str, NDArray[Any]]) -> None:
        """Send commands (n, *shape) by name, already checked."""

    def stop(self) -> None:
        """Leave the robot in a safe state and disconnect; called once, also after an error."""

    def emergency_stop(self) -> None:
        """The motors off now, whatever the robot's own controller would do; from any thread."""

    def report(self) -> list[str]:
        """Lines about the flight that just ended."""

    def __enter__(self) -> Self:
        """Connect."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""


@runtime_checkable
class Paced(Protocol):
    """A driver that follows the rhythm of its robot, not that of this computer."""

    def clock(self) -> float:
        """s, of the loop's control steps."""


@runtime_checkable
class Episodic(Protocol):
    """A driver each flight of which is `num` episodes, numbered from `first` on; `read` then tells how they ended."""

    first: int
    num: int

    def read(self) -> Reading:
        """The newest measurement."""


@runtime_checkable
class Scored(Protocol):
    """A driver that knows how its robots did what they were to do: a simulated one."""

    def scores(self) -> Mapping[str, NDArray[Any]]:
        """Of the last flight, name -> (n,)."""


@runtime_checkable
class Transferable(Protocol):
    """Settings of a driver that may fly policies made for another robot."""

    transfer: bool


def clock_of(driver: Driver) -> Callable[[], float]:
    """What the loop reads the time from."""
    return driver.clock if isinstance(driver, Paced) else boottime


def another_episode(driver: Driver) -> Reading | None:
    """Have the next flight be other episodes, and say how these ended; None where a robot's flights are not such."""
    if not isinstance(driver, Episodic):
        return None
    driver.first += driver.num
    return driver.read()


def scores_of(driver: Driver) -> dict[str, float]:
    """How the last flight was, in the mean of its robots; nothing where the driver does not know, or they are lost."""
    if not isinstance(driver, Scored):
        return {}
    means = {name: float(values.mean()) for name, values in driver.scores().items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def carry_out(driver: Driver, commands: Mapping[str, NDArray[Any]], stopped: bool) -> None:
    """Send commands (n, *shape). A robot with a controller of its own is handed back instead once it is `stopped`.

    That is what a driver's `hand_back()` does: called in place of `write`, at every control step from then on.
    """
    hand_back = getattr(driver, "hand_back", None) if stopped else None  # by name: wrapped drivers pass it on
    if hand_back is None:
        driver.write(commands)
    else:
        hand_back()


def transfers(config: Any) -> bool:
    """Whether these settings of a driver allow another robot than the policy was made for."""
    return isinstance(config, Transferable) and config.transfer


class Entered:
    """`with` for drivers: connects, then stops."""

    def connect(self) -> None: ...

    def abandon(self) -> None:
        """Undo what was begun of connecting, which has failed."""

    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ending() as asked:
            self.stop()
        if error is None and asked():
            raise KeyboardInterrupt  # no other flight may follow


class Connecting(Entered):
    """The same for simulations, which break nothing."""

    lands, falls = False, False

    def emergency_stop(self) -> None:
        """The guard's safe command is all there is."""


def driver_class(name: str) -> Any:
    """The driver class of that name, or of "module:Class"; ValueError lists the choices."""
    return load("driver", name, DRIVERS)

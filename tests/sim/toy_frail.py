"""A task whose worlds other processes may step, and that dies or fails when a file says so."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sim.spec import Signal
from tests.policies import toy_reach


@dataclass
class Config(toy_reach.Config):
    folder: str = "."  # a file "kill", "fault" or "always" in it ends a worker, "raise" is an error of its last row


class Frail(toy_reach.ToyReach):
    """`toy_reach`; "kill" and "fault" happen once, "always" again and again."""

    Config = Config
    name = "toy_frail"
    separate = True

    def open(self, num, seed):
        return Cell(self, num, seed)


class Cell(toy_reach.Cell):
    def step(self, command):
        folder = Path(self.task.config.folder)
        if (folder / "always").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        for name, number in (("kill", signal.SIGKILL), ("fault", signal.SIGSEGV)):
            try:
                (folder / name).unlink()
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), number)
        if (folder / "raise").exists():
            from sim.env import world_of

            with world_of(self.task.name, self.num - 1):
                raise ArithmeticError("the ball is nowhere")
        return super().step(command)

    def render(self, row, height, width):
        return super().render(int(self.position[row, 0] * 50.0) + 127, height, width)


def frail(folder=".", kind=Frail):
    """A task that listens to the files in this folder."""
    return kind(Config(folder=str(folder)))


class Untold(Frail):
    """It cannot be pickled."""

    def __init__(self, config=None):
        super().__init__(config)
        self.secret = lambda: None


class Seen(Frail):
    """Signals and commands of several shapes and types."""

    policy = (*Frail.policy, Signal("camera", (4, 5, 3), dtype="uint8", low=0, high=255))

    def open(self, num, seed):
        return SeenCell(self, num, seed)


class SeenCell(Cell):
    def observe(self):
        found = super().observe()
        shade = (100.0 * abs(found["position"])).clip(0.0, 255.0).astype("uint8")[:, None, None, :1]
        return found | {"camera": shade.repeat(4, 1).repeat(5, 2).repeat(3, 3)}

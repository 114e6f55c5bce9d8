"""python -m policies.find_motions robot=op3 lying=back out=FILE.yaml [key=value ...]: keyframes by which it gets up.

A search (CMA-ES, Hansen 2016, arXiv 1604.00772) tries motions in the task `get_up` and keeps what is rewarded most
where it ends. Left and right do the same, where the robot is its own mirror image. With over=true it rolls over, and
goes on with the file's motion from there. `task.motions=FILE` takes a file with motions from the back and the front.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from sim.tasks import make
from sim.tasks.legs.motions import LYING, Motion, read, write

if TYPE_CHECKING:
    from sim.tasks.legs.get_up import GetUp

Double = NDArray[np.float64]
RISES, STANDS = 0.6, 0.8  # s: from the last keyframe to standing, and how long it is judged then
UNIT = 0.5  # rad and s: of the numbers that are searched for
FASTEST, SLOWEST = 0.5, 1.65  # by which a keyframe's time may differ from UNIT
BEFORE = 0.1  # weight of the reward until then


@dataclass
class Config:
    """Settings of the command."""

    out: str = field(metadata={"help": "the file (.yaml); its other motions stay"})
    robot: str = field(default="simple_humanoid", metadata={"help": "with legs"})
    lying: str = field(default="back", metadata={"help": "where it begins: back, front"})
    over: bool = field(default=False, metadata={"help": "roll over, then do as from there"})
    refine: bool = field(default=False, metadata={"help": "go on from the file's motion"})
    keyframes: int = field(default=4, metadata={"help": "before it stands"})
    reach: float = field(default=2.2, metadata={"help": "rad: how far servos go from where it stands"})
    generations: int = field(default=200, metadata={"help": "of the search"})
    population: int = field(default=24, metadata={"help": "motions in each"})
    starts: int = field(default=2, metadata={"help": "from which each is tried"})
    spread: float = field(default=1.0, metadata={"help": "of the search at first, in units of 0.5 rad"})
    vary: float = field(default=0.0, metadata={"help": "how much differs from one try to the next: task.vary"})
    seed: int = field(default=0, metadata={"help": "of the search"})

    def __post_init__(self) -> None:
        if self.lying not in LYING:
            raise ValueError(f"lying={self.lying}: it lies on one of {', '.join(LYING)}")
        if min(self.keyframes, self.generations, self.starts) < 1 or self.population < 4 or self.keyframes > 20:
            raise ValueError("needs 1 <= keyframes <= 20, generations >= 1, starts >= 1 and population >= 4")
        if self.over and self.refine:
            raise ValueError("refine=true goes on from a whole motion: not with over=true")
        if not self.spread > 0.0 or self.seed < 0:
            raise ValueError(f"needs spread > 0 and seed >= 0, got {self.spread:g} and {self.seed}")
        if not self.out.endswith(".yaml"):
            raise ValueError(f"out={self.out}: the name of the file ends in .yaml")


class Body:
    """Motions of a robot as numbers (n,): what each pair of servos does, or each servo, and when."""

    def __init__(self, task: GetUp, keyframes: int, reach: float, symmetric: bool) -> None:
        servos = len(task.robot.actuators)
        partner, sign = list(range(servos)), [1.0] * servos
        if symmetric and task.robot.mirror is not None:
            partner, sign = task.robot.reflected(True)
        self.partner, self.sign = np.array(partner), np.array(sign)
        middle = self.partner == np.arange(servos)
        self.free = np.flatnonzero((np.arange(servos) < self.partner) | (middle & (self.sign > 0.0)))
        self.keyframes, self.reach, self.servos = keyframes, reach, servos

    def motion(self, numbers: Double) -> Motion:
        """That of numbers (n,): keyframes, then their times, then standing."""
        told = numbers[: -self.keyframes].reshape(self.keyframes, -1) * UNIT
        offsets = np.zeros((self.keyframes + 1, self.servos))
        offsets[:-1, self.partner[self.free]] = told * self.sign[self.partner[self.free]]
        offsets[:-1, self.free] = told
        times = UNIT * np.clip(np.exp(0.3 * numbers[-self.keyframes :]), FASTEST, SLOWEST)
        return Motion(np.append(times, RISES), np.clip(offsets, -self.reach, self.reach))

    def numbers(self, motion: Motion) -> Double:
        """The inverse."""
        offsets, times = motion.offsets[:-1, self.free] / UNIT, np.log(motion.seconds[:-1] / UNIT) / 0.3
        return np.concatenate([offsets.ravel(), times])

    def begin(self) -> Double:
        """Numbers to begin with: all that it does is to stand."""
        return np.zeros(self.keyframes * (len(self.free) + 1))


def episodes_of(task: GetUp, lying: str, count: int, seed: int) -> list[int]:
    """Numbers of episodes that begin with that side below rather than with the other one, and the left one lower."""
    env = task.open(16 * count, seed)
    env.reset(range(env.num), range(env.num))
    ahead, left, _ = env.truth()["projected_gravity"].T
    env.close()
    fits = ((ahead < 0.0) == (lying == "back")) & (left >= 0.0)
    return [int(number) for number in np.flatnonzero(fits)[:count]]


def worth(task: GetUp, motions: Sequence[Motion], episodes: Sequence[int], seed: int, over: float = 0.0) -> Double:
    """What each motion is worth (n,), in the mean of the episodes: the reward, mostly while it should stand.

    With `over` how far gravity points ahead (1) or back (-1) in its axes, in the end.
    """
    rows = len(motions) * len(episodes)
    env = task.open(rows, seed)
    env.reset(range(rows), list(episodes) * len(motions))
    last, stands = max(m.duration for m in motions), round(STANDS * task.rate_hz)
    steps = min(task.episode_steps, round(last * task.rate_hz) + (0 if over else stands))
    times = np.arange(1, steps + 1) / task.rate_hz
    told = np.repeat(np.stack([m.at(times) for m in motions]), len(episodes), axis=0)
    parts, values = {name: list(numbers) for name, numbers in task.moves.items()}, []
    for t in range(steps):
        step = env.step({name: told[:, t, part] for name, part in parts.items()})
        values.append(over * env.truth()["projected_gravity"][:, 0] if over else step.reward)
    env.close()
    found = np.stack(values, axis=1).reshape(len(motions), len(episodes), steps).astype(np.float64)
    ends: Double = found[..., -stands:].mean(axis=(1, 2))
    return ends if over else ends + BEFORE * found[..., :-stands].mean(axis=(1, 2))


def find(config: Config) -> Motion:
    """Search, and write down the distribution's middle now and then. ValueError for a file that lacks something."""
    from cmaes import CMA

    settings = {"robot": config.robot, "reach": config.reach, "vary": config.vary, "lying": 1.0}
    task: GetUp = make("get_up", **settings)
    out, joints = Path(config.out), task.robot.servos
    known = read(out, joints) if out.is_file() else {}
    body = Body(task, config.keyframes, config.reach, symmetric=not config.over)
    begin, after = body.begin(), None
    if config.refine:
        if config.lying not in known or len(known[config.lying].seconds) != config.keyframes + 1:
            raise ValueError(f"{out} has no motion of {config.keyframes} keyframes for {config.lying} to go on from")
        begin = body.numbers(known[config.lying])
    if config.over:
        after = known.get(LYING[1 - LYING.index(config.lying)])
        if after is None:
            raise ValueError(f"{out} has no motion from the other side to go on with: search for that first")
    turned = 0.0 if after is None else 1.0 if config.lying == "back" else -1.0
    search = CMA(begin, config.spread, seed=config.seed, population_size=config.population)
    episodes = episodes_of(task, config.lying, max(16, config.starts), config.seed)
    comment = f"How {task.robot.name} gets up, by policies.find_motions: s from keyframe to keyframe, rad."
    for generation in range(config.generations):
        first = generation * config.starts
        starts = [episodes[(first + k) % len(episodes)] for k in range(config.starts)]
        tried = [search.ask() for _ in range(config.population)]
        found = worth(task, [body.motion(numbers) for numbers in tried], starts, config.seed, turned)
        search.tell([*zip(tried, -found, strict=True)])  # it looks for the least
        motion = body.motion(search.mean)
        known[config.lying] = motion if after is None else motion.then(after)
        if generation % 10 == 9 or generation + 1 == config.generations:
            write(out, joints, known, comment)
            print(f"{config.lying} {generation + 1}: {found.mean():.2f}, best {found.max():.2f}", flush=True)
    return known[config.lying]


def main(argv: Sequence[str]) -> None:
    """Search, and say where the file is."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    motion = find(config)
    print(f"motions: {config.out}, from the {config.lying} in {motion.duration:.1f} s")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="motions"))

"""Learning on the chip, flown: a robot unlike the one that its policy was trained for, and what of its error goes away.

Each flight: the policy alone on the nominal robot and on the changed one, by onnxruntime; then the chip, which learns a
residual for `seconds` on the changed one, keeps what it learned and flies on. The guard watches all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from deploy.drivers.simulated import Changed, Simulated
from deploy.drivers.tasks import task_for
from deploy.guard import Guard
from deploy.loop import Policy, run
from deploy.mcu.boards import STM32F405
from deploy.mcu.cost import Measured
from deploy.mcu.policy import OnChip
from deploy.mcu.residual import PLACE, TARGET
from deploy.policy_file import PolicyFile

Floats = NDArray[np.float32]

LEARNED_S = 60.0  # s of learning, unless said otherwise
SETTLED_S = 10.0  # s of a flight without learning
LEAST_S = 15.0  # s of learning: before that the actor has hardly begun
WINDOW_S = 5.0  # s over which an error is averaged, the last of a flight


@dataclass
class Flown:
    """One flight. Errors in m, means over `WINDOW_S`."""

    seed: int
    nominal: float  # of the policy alone on the nominal robot
    before: float  # ... on the changed one
    learning: float  # of the chip in the last seconds of learning, explored around what it learned
    after: float  # ... when it keeps that
    halved_s: float | None  # s of flight after which half of the change's error stayed away; None: it did not
    residual: float  # learned, a share of the command's range
    status: str
    updates: int

    @property
    def gone(self) -> float:
        """The share of the change's error that is gone; NaN where the conditions changed nothing."""
        change = self.before - self.nominal
        return (self.before - self.after) / change if change else math.nan


@dataclass
class Adaptation:
    """What came of it."""

    policy: str
    port: str
    seconds: float  # of learning
    conditions: dict[str, float]
    flights: list[Flown] = field(default_factory=list)
    interventions: dict[str, int] = field(default_factory=dict)  # of the guard, in control steps, by reason
    instructions: int | None = None  # of the costliest control step; None: a real chip does not count them
    cycles: int = 0
    load: float = 0.0  # of the processor at 168 MHz, were every step as costly
    flash: int | None = None  # bytes
    memory: int | None = None
    stack: int | None = None
    lost: int = 0  # steps without an answer
    refused: dict[str, int] = field(default_factory=dict)  # steps, by the chip's reason
    wall_seconds: float = 0.0  # of the chip's flights


def error(flight: Mapping[str, Floats]) -> Floats:
    """How far the robot was from its target, (steps,), m."""
    away: Floats = np.linalg.norm(flight[PLACE][:, 0] - flight[TARGET][:, 0], axis=-1)
    return away


def halved(errors: Floats, level: float, window: int) -> int | None:
    """Control steps after which the mean over a window stays at or below `level`; None: it does not."""
    means = [float(errors[k : k + window].mean()) for k in range(0, len(errors) - window + 1, window)]
    above = [k for k, mean in enumerate(means) if not mean <= level]
    first = above[-1] + 1 if above else 0
    return first * window if first < len(means) else None


class Trial:
    """A task's flights under conditions, from the starts of evaluation."""

    def __init__(self, policy: PolicyFile, engine: str, conditions: Changed) -> None:
        self.policy, self.task, self.engine, self.conditions = policy, task_for(policy), engine, conditions
        self.nominal = Changed(noise=conditions.noise)
        self.window = round(WINDOW_S * policy.rate_hz)
        self.interventions: dict[str, int] = {}

    def fly(self, policy: Policy, seed: int, conditions: Changed, seconds: float) -> Floats:
        """One flight's errors (steps,), m."""
        driver = Simulated(self.task, 1, self.engine, seed, conditions)
        guard = Guard(policy.inputs, policy.outputs, self.policy.envelope)
        record = run(policy, driver, guard, round(seconds * policy.rate_hz))
        for reason, count in record.interventions.items():
            self.interventions[reason] = self.interventions.get(reason, 0) + count
        return error(driver.flight())

    def flown(self, chip: OnChip, seed: int, seconds: float) -> Flown:
        """The policy alone, and the chip."""
        nominal, before = (
            float(self.fly(self.policy, seed, conditions, SETTLED_S)[-self.window :].mean())
            for conditions in (self.nominal, self.conditions)
        )
        steps = round(seconds * chip.rate_hz)
        chip.lesson = (seed, steps)
        errors = self.fly(chip, seed, self.conditions, seconds + SETTLED_S)
        told = chip.learned()
        half = halved(errors[:steps], 0.5 * (nominal + before), self.window)
        return Flown(
            seed=seed,
            nominal=nominal,
            before=before,
            learning=float(errors[steps - self.window : steps].mean()),
            after=float(errors[-self.window :].mean()),
            halved_s=None if half is None else half / chip.rate_hz,
            residual=told.mean,
            status=told.status,
            updates=told.updates,
        )


def adapt(trial: Trial, chip: OnChip, seeds: range, seconds: float, cost: Measured | None) -> Adaptation:
    """All flights, one after the other, each learned from nothing."""
    made = Adaptation(chip.path, "", seconds, trial.conditions.changed())
    began = time.perf_counter()
    made.flights = [trial.flown(chip, seed, seconds) for seed in seeds]
    made.wall_seconds = time.perf_counter() - began
    made.interventions, seen = trial.interventions, chip.statistics
    made.lost, made.refused = seen.lost, dict(seen.faults)
    made.cycles = cost.cycles if cost else max(seen.cycles, default=0)
    made.load = made.cycles * chip.rate_hz / STM32F405.clock_hz
    if cost:
        made.instructions, made.flash, made.memory, made.stack = cost.instructions, cost.flash, cost.memory, cost.stack
    return made


def describe(made: Adaptation) -> list[str]:
    """The lines that the command prints."""
    changed = ", ".join(f"{name} {value:g}" for name, value in made.conditions.items())
    lines = [f"{made.seconds:g} s of learning on {made.port}, with {changed}; errors in cm, over {WINDOW_S:g} s"]
    lines.append("  seed  nominal  before  learning   after  gone, %  half after, s  residual  status")
    for f in made.flights:
        half = "never" if f.halved_s is None else f"{f.halved_s:.0f}"
        errors = f"{100 * f.nominal:9.2f}{100 * f.before:8.2f}{100 * f.learning:10.2f}{100 * f.after:8.2f}"
        rest = f"{100 * f.gone:9.0f}{half:>15}{f.residual:10.3f}  {f.status}, {f.updates} updates"
        lines.append(f"{f.seed:6}{errors}{rest}")
    intervened = ", ".join(f"{reason}: {count} steps" for reason, count in made.interventions.items())
    counted = "" if made.instructions is None else f"{made.instructions} instructions, "
    lines.append(f"the guard {'intervened: ' + intervened if intervened else 'let every command pass'}")
    lines.append(
        f"costliest step: {counted}{made.cycles} cycles, {100 * made.load:.1f} % of the processor at 168 MHz"
        " if every step were that one"
    )
    if made.memory is not None:
        lines.append(f"image: {made.flash} bytes of flash, {made.memory} of memory and {made.stack} of stack")
    lines += [f"steps REFUSED by the chip {count}: {why}" for why, count in made.refused.items()]
    return [*lines, f"steps lost {made.lost}; {made.wall_seconds:.0f} s of this machine"]

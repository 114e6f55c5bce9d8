"""python -m deploy.hil policy=FILE [port=emulated|qemu|/dev/ttyACM0] [key=value ...]: the policy runs on a chip.

The one control loop of `deploy.loop`, with the simulated robot as its driver and a policy that runs on the chip. Every
episode is flown twice, by the chip and by onnxruntime, from the same start. What sees pictures, whose bytes turn the
last bit of a number into another picture, is compared along onnxruntime's flight: the chip is shown the same.
The status is 1 where they flew differently (of float32 weights), or the chip refused or did not answer; 2, with an
error, where the image hangs: for 30 s of this computer's time when emulated, for 60 s on QEMU.
With `learn=true` the chip learns in flight what a changed robot needs more than the policy says: `deploy.mcu.learning`.
The status is then 1 where it refused or did not answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.codegen import source, toolchain
from deploy.codegen.cores import CORES
from deploy.codegen.structs import clipped, struct_type
from deploy.drivers.simulated import Changed, Simulated
from deploy.drivers.tasks import task_for
from deploy.loop import Policy, run
from deploy.mcu import learning
from deploy.mcu.boards import BOARDS, STM32F405
from deploy.mcu.cost import Measured, measure
from deploy.mcu.emulator import Chip
from deploy.mcu.policy import OnChip, Statistics, flew
from deploy.mcu.ports import BAUD, EmulatedPort, Port, SerialPort
from deploy.mcu.qemu import QemuPort
from deploy.mcu.residual import Residual
from deploy.policy_file import PolicyFile
from deploy.sign import TRUST
from deploy.trust.text import printable
from sim.spec import Signal, pictures

SAME_COMMAND = 5e-3  # of its range: how far two flights may differ; the loop multiplies what float32 rounds
SAME_POSITION = 1e-4  # m

Floats = NDArray[np.float32]


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "the policy file"})
    port: str = field(
        default="emulated", metadata={"help": "emulated, qemu (where installed), or the serial device of a board"}
    )
    board: str = field(default=STM32F405.name, metadata={"help": f"one of: {', '.join(BOARDS)}"})
    episodes: int = field(default=10, metadata={"help": "flights, one after the other"})
    seconds: float | None = field(
        default=None, metadata={"help": "length of a flight (default: the task's), or of the learning in it (60)"}
    )
    learn: bool = field(default=False, metadata={"help": "learn on the chip what the conditions below change"})
    engine: str = field(default="", metadata={"help": "physics engine (default: the task's own)"})
    seed: int = field(default=0, metadata={"help": "of the initial states"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    weights: str = field(default="float32", metadata={"help": f"emulated: one of: {', '.join(source.WEIGHTS)}"})
    compiler: str = field(default="auto", metadata={"help": f"one of: {', '.join(toolchain.COMPILERS)}"})
    json: str | None = field(default=None, metadata={"help": "write the report to this file"})

    def __post_init__(self) -> None:
        if self.board not in BOARDS:
            raise ValueError(f"unknown board {self.board!r}; choices: {', '.join(BOARDS)}")
        if self.port == "qemu" and self.board != STM32F405.name:
            raise ValueError(f"QEMU has no {self.board}: port=emulated has it")
        if self.learn and self.board != STM32F405.name:
            raise ValueError(f"learn=true is for board={STM32F405.name}, not {self.board}")
        if self.episodes < 1 or (self.seconds is not None and not self.seconds > 0.0):
            raise ValueError(f"needs episodes >= 1 and seconds > 0, got {self.episodes} and {self.seconds}")


@dataclass
class Report:
    """What came of it. Differences are the largest between a flight by the chip and by onnxruntime; lost ones aside.

    Of what sees pictures: between the chip and onnxruntime in the same flight.
    """

    policy: str
    port: str
    episodes: int
    seconds: float  # simulated, of each flight
    success: float
    success_onnxruntime: float
    position_error: float | None  # m, mean over the episodes, as the task scores it
    shown: bool  # whether the chip was shown what onnxruntime saw, for the differences
    compared: int  # episodes
    command_difference: float  # of the command's range
    position_difference: float  # m
    round_trip_p50: float  # s; emulated or qemu: the time on a 921 600 baud line and the estimated computation
    round_trip_p99: float  # s
    instructions: int | None  # per step; None: a real chip does not count them
    cycles: int  # per step: estimated when emulated, measured on a real chip
    load: float  # of the board's processor
    board: str
    flash: int | None  # bytes of the whole image; None: a real chip does not say
    memory: int | None  # bytes, static
    stack: int | None  # bytes
    repeated: int
    lost: int
    refused: dict[str, int]  # steps, by the chip's reason: it restarted, or what it was told or computed is not finite
    answered: int  # steps
    wall_seconds: float  # of the chip's flights

    @property
    def whole(self) -> bool:
        """Whether the chip flew all flights: it refused nothing, and answered all but a few steps."""
        return flew(self.answered, self.lost, self.refused)

    @property
    def equal(self) -> bool:
        """Whether chip and onnxruntime flew the same."""
        same = self.command_difference <= SAME_COMMAND and self.position_difference <= SAME_POSITION
        alike = self.shown or self.success == self.success_onnxruntime
        return self.whole and self.compared > 0 and same and alike


def build(
    policy: PolicyFile,
    folder: Path,
    compiler: str = "auto",
    weights: str = "float32",
    residual: Residual | None = None,
    board: str = STM32F405.name,
) -> tuple[Path, Measured]:
    """The image of a policy in `folder`, proven and measured on the emulated chip; with what learns beside it."""
    files = source.Source(policy, policy.content(), weights).files()
    for name, text in (files | (residual.files(policy) if residual else {})).items():
        (folder / name).write_text(text)
    image = toolchain.image(folder, compiler, core=CORES[BOARDS[board].core], board=board)
    return image, measure(Chip(image, count=True, board=BOARDS[board]), policy, residual=residual)


def _range(command: Signal) -> float:
    """Of a command; 1 where it has no limits: as a share of infinity every difference is nothing."""
    span = command.high - command.low
    return span if np.isfinite(span) else 1.0


def _apart(command: Signal, ours: Floats, theirs: Floats) -> float:
    """How far apart they are as a share of its range: within its limits, which the chip keeps to, onnxruntime not."""
    return float(np.abs(clipped(command, ours) - clipped(command, theirs)).max()) / _range(command)


class Listening:
    """A policy as onnxruntime computes it, with a chip that is asked the same and not obeyed."""

    def __init__(self, policy: PolicyFile, chip: OnChip, difference: float = 0.0) -> None:
        """`difference`: the largest so far, as a share of the command's range."""
        self.policy, self.chip, self.difference, self.statistics = policy, chip, difference, Statistics()
        self.path, self.robot, self.rate_hz, self.vectors = policy.path, policy.robot, policy.rate_hz, policy.vectors
        self.inputs, self.outputs = policy.inputs, policy.outputs

    def reset(self, n: int = 1) -> None:
        """Both begin a flight."""
        self.policy.reset(n)
        self.chip.reset(n)

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Onnxruntime's commands."""
        counted, self.chip.statistics = self.chip.statistics, self.statistics
        wanted, asked = self.policy.step(signals), self.chip.step(signals)
        self.chip.statistics = counted
        apart = max(_apart(s, wanted[s.name], asked[s.name]) for s in self.outputs)
        if np.isfinite(apart):  # it answered
            self.difference = max(self.difference, apart)
        return wanted


def fly(policy: Policy, driver: Simulated, steps: int | None) -> tuple[dict[str, Any], dict[str, Floats]]:
    """One flight: the task's scores, and what happened."""
    run(policy, driver, steps=steps)
    flight = driver.flight()
    return {name: float(np.mean(value)) for name, value in driver.task.score(flight).items()}, flight


def _differences(policy: PolicyFile, ours: dict[str, Floats], theirs: dict[str, Floats]) -> tuple[float, float]:
    """As long as both last: a game is over when somebody scores."""
    both = min(len(flight[policy.outputs[0].name]) for flight in (ours, theirs))
    ours, theirs = ({name: value[:both] for name, value in flight.items()} for flight in (ours, theirs))
    commands = max(_apart(s, ours[s.name], theirs[s.name]) for s in policy.outputs)
    return commands, float(np.abs(ours["position"] - theirs["position"]).max()) if "position" in ours else 0.0


def evaluate(
    policy: PolicyFile, chip: OnChip, config: Config, cost: Measured | None, conditions: Changed | None = None
) -> Report:
    """Fly all episodes by the chip and by onnxruntime, and compare."""
    task = task_for(policy)
    steps = task.episode_steps if config.seconds is None else max(1, round(config.seconds * policy.rate_hz))
    scores: list[dict[str, Any]] = []
    reference: list[dict[str, Any]] = []
    apart, compared = (0.0, 0.0), 0
    wall = 0.0
    for episode in range(config.episodes):
        flown = [Simulated(task, 1, config.engine, config.seed + episode, conditions) for _ in range(2)]
        began = time.perf_counter()
        score, ours = fly(chip, flown[0], steps)
        wall += time.perf_counter() - began
        scores.append(score)
        listening = Listening(policy, chip, apart[0]) if pictures(policy.inputs) else None
        score, theirs = fly(listening or policy, flown[1], steps)
        reference.append(score)
        if listening is not None:
            apart, compared = (listening.difference, 0.0), compared + listening.statistics.whole
        elif scores[-1]["success"] or score["success"]:  # a tumbling vehicle multiplies the last bit by millions
            apart = tuple(map(max, apart, _differences(policy, ours, theirs)))  # type: ignore[assignment]
            compared += 1
    seen = chip.statistics
    cycles = cost.cycles if cost else max(seen.cycles, default=0)
    mean = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    trips = seen.round_trips or [float("nan")]
    return Report(
        policy=policy.path,
        port=config.port,
        episodes=config.episodes,
        seconds=steps / policy.rate_hz,
        success=mean["success"],
        success_onnxruntime=float(np.mean([score["success"] for score in reference])),
        position_error=mean.get("position_error"),
        shown=bool(pictures(policy.inputs)),
        compared=compared,
        command_difference=apart[0],
        position_difference=apart[1],
        round_trip_p50=float(np.percentile(trips, 50)),
        round_trip_p99=float(np.percentile(trips, 99)),
        instructions=cost.instructions if cost else None,
        cycles=cycles,
        load=cycles * policy.rate_hz / BOARDS[config.board].clock_hz,
        board=config.board,
        flash=cost.flash if cost else None,
        memory=cost.memory if cost else None,
        stack=cost.stack if cost else None,
        repeated=seen.repeated,
        lost=seen.lost,
        refused=dict(seen.faults),
        answered=len(seen.round_trips),
        wall_seconds=wall,
    )


def describe(report: Report, policy: PolicyFile) -> list[str]:
    """The lines that the command prints."""
    estimated = report.port in ("emulated", "qemu")
    error = "" if report.position_error is None else f", position error {100 * report.position_error:.1f} cm"
    faster = report.episodes * report.seconds / report.wall_seconds
    counted = "" if report.instructions is None else f"{report.instructions} instructions, "
    size = (
        []
        if report.flash is None
        else [f"image: {report.flash} bytes of flash, {report.memory} of memory and {report.stack} of stack"]
    )
    same = "equal" if report.equal else "NOT EQUAL"
    apart = (
        f"largest difference between the two flights: {report.command_difference:.2g} of the command's range, "
        f"{report.position_difference:.2g} m: {same} within {SAME_COMMAND:g} and {SAME_POSITION:g} m"
    )
    if report.shown:
        apart = (
            f"largest difference from onnxruntime that is shown the same: {report.command_difference:.2g} of the "
            f"command's range: {same} within {SAME_COMMAND:g}"
        )
    slow = report.round_trip_p50 > 1.0 / policy.rate_hz
    return [
        f"{report.episodes} flights of {report.seconds:g} s at {policy.rate_hz:g} Hz by the chip on {report.port}, "
        f"{faster:.1f} times as fast as real time",
        f"success {100 * report.success:.1f} % (onnxruntime {100 * report.success_onnxruntime:.1f} %){error}",
        apart if report.compared else "chip and onnxruntime were not compared: no flight succeeded",
        *size,
        f"one step: {counted}{report.cycles} {'estimated' if estimated else 'measured'} cycles, "
        f"{100 * report.load:.2f} % of the {BOARDS[report.board].speed}",
        f"round trip{' (estimated)' if estimated else ''}: "
        f"median {1e3 * report.round_trip_p50:.2f} ms, 99 % below {1e3 * report.round_trip_p99:.2f} ms",
        *(["which is longer than a control step: a camera has to be the chip's own, not at the end of a line"] * slow),
        f"requests repeated {report.repeated}, steps answered {report.answered}, lost {report.lost}",
        *(f"steps REFUSED by the chip {count}: {why}" for why, count in report.refused.items()),
    ]


def connect(
    policy: PolicyFile,
    port: str,
    compiler: str = "auto",
    weights: str = "float32",
    residual: Residual | None = None,
    board: str = STM32F405.name,
) -> tuple[OnChip, Measured | None]:
    """The policy on an emulated chip (ours or QEMU's), just built, or on the board at a serial device."""
    line: Port
    if port not in ("emulated", "qemu"):
        line = SerialPort(port)
        return OnChip(policy, line, patience=max(0.05, 0.5 / policy.rate_hz)), None
    with tempfile.TemporaryDirectory() as folder:
        image, cost = build(policy, Path(folder), compiler, weights, residual, board)
        if port == "qemu":
            line = QemuPort(image, cost.seconds)
        else:
            line = EmulatedPort(Chip(image, board=BOARDS[board]), cost.seconds)
    # Each of four attempts has a quarter of it; a picture alone takes 40 ms on the line.
    trip = 10.0 * struct_type(policy).itemsize / BAUD + cost.seconds
    try:
        return OnChip(policy, line, patience=max(0.05, 6.0 * trip)), cost
    except BaseException:
        line.close()
        raise


def learn(policy: PolicyFile, config: Config, conditions: Changed) -> None:
    """Let the chip learn a residual under these conditions, and report. ValueError when they change nothing."""
    if not conditions.changed().keys() - {"noise"}:
        raise cli.ArgumentError("learn=true needs a robot unlike the nominal one, such as mass=1.3")
    seeds = range(config.seed, config.seed + config.episodes)
    seconds = learning.LEARNED_S if config.seconds is None else config.seconds
    if not seconds >= learning.LEAST_S:
        raise cli.ArgumentError(f"seconds={seconds:g}: learning takes at least {learning.LEAST_S:g} s")
    if not 0 <= config.seed < 2**32 - config.episodes:
        raise cli.ArgumentError(f"seed={config.seed}: needs a number from 0, below 2^32")
    chip, cost = connect(policy, config.port, config.compiler, config.weights, Residual(), config.board)
    with closing(chip):
        made = learning.adapt(learning.Trial(policy, config.engine, conditions), chip, seeds, seconds, cost)
    made.port = config.port
    print("\n".join(printable(line, cli.LONGEST) for line in learning.describe(made)))
    if config.json:
        flights = [asdict(f) | {"gone": f.gone} for f in made.flights]
        Path(config.json).write_text(json.dumps(asdict(made) | {"flights": flights}, indent=1) + "\n")
    if not chip.statistics.whole:
        raise SystemExit(1)


def main(argv: Sequence[str]) -> None:
    """Build, connect, fly, report."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config, Changed)}")
        return
    config, conditions = cli.parse(argv, Config, Changed)
    policy = PolicyFile.load(config.policy, config.trust)
    if config.learn:
        learn(policy, config, conditions)
        return
    chip, cost = connect(policy, config.port, config.compiler, config.weights, board=config.board)
    with closing(chip):
        report = evaluate(policy, chip, config, cost, conditions)
    print("\n".join(printable(line, cli.LONGEST) for line in describe(report, policy)))
    if config.json:
        Path(config.json).write_text(json.dumps({**asdict(report), "equal": report.equal}, indent=1) + "\n")
    unequal = report.compared > 0 and config.weights == "float32" and not report.equal  # others are rounded
    if unequal or not report.whole:
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train,firmware"))

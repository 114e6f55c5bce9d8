"""What a policy costs on the emulated chip, its functions called one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.structs import packed, struct_type, unpacked
from deploy.mcu.boards import STM32F405, Board
from deploy.mcu.emulator import STACKED, Chip, Cost, EmulatorError
from deploy.mcu.residual import PLACE, SPEED, TARGET, Residual
from deploy.policy_file import PolicyFile

LIBRARY = (
    "compute",
    "information",
    "larger",
    "memory",
    "patch",
    "pixel",
    "policy_",
    "quantised",
    "vector_",
    "weights_",
    "indices_",
)
NEAR = 0.01  # m from its target: there a residual is learned


def places(board: Board, state: int = 0) -> tuple[int, int, int]:
    """The addresses of a policy's state of so many bytes, signals and commands, beyond what the image uses itself."""
    begin = board.ram[0]
    return begin + 0x10000, begin + 0x10000 + max(0x1000, -(-state // 8) * 8), begin + 0x18000


@dataclass(frozen=True)
class Measured:
    """The costliest control step: instructions, estimated cycles, stack in bytes. Sizes in bytes."""

    instructions: int
    cycles: int
    stack: int
    flash: int  # of the whole image
    policy_flash: int  # of policy.c: code, weights and test vectors
    memory: int  # static
    selftest: float  # the worst disagreement of the vectors, as a share of the tolerance
    board: Board = STM32F405

    @property
    def seconds(self) -> float:
        """At the board's clock."""
        return self.cycles / self.board.clock_hz


def state_bytes(policy: PolicyFile) -> int:
    """Of a `policy_state`."""
    return 4 * sum(s.initial.size for s in policy.state)


class Bench:
    """Calls the policy's functions on a chip, without its serial link."""

    def __init__(self, chip: Chip, policy: PolicyFile) -> None:
        self.chip, self.policy = chip, policy
        self.command_size = 4 * sum(s.size for s in policy.outputs)
        self.state, self.signals, self.commands = places(chip.board, state_bytes(policy))
        self.reset()

    def reset(self) -> None:
        self.chip.call("policy_reset", self.state)

    def show(self, signals: Mapping[str, NDArray[Any]]) -> tuple[int, int, int]:
        """Put signals into the chip's memory; the arguments of policy_step."""
        self.chip.write(self.signals, packed(self.policy, signals))
        return self.state, self.signals, self.commands

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]] | None:
        """The commands; None when the chip refuses signals that are not finite."""
        if not self.chip.call("policy_step", *self.show(signals)) & 1:
            return None
        return unpacked(self.policy, self.chip.read(self.commands, self.command_size))


def selftest(chip: Chip) -> float:
    """The share of the tolerance that the worst test vector uses on this chip."""
    state, _, _ = places(chip.board)
    return float(np.frombuffer(chip.call_float("policy_selftest", state).to_bytes(4, "little"), "<f4")[0])


def measure(chip: Chip, policy: PolicyFile, samples: int = 1, residual: Residual | None = None) -> Measured:
    """Cost and correctness of the image. `chip` counts (`count=True`). EmulatorError when the self-test fails.

    With the `residual` that learns in it, the costliest step is one in which it does.
    """
    begin, top = chip.board.ram[0], sum(chip.board.ram)
    state = places(chip.board)[0]
    end = max((at + size for at, size in chip.sizes.values() if begin <= at < top), default=begin)
    if end > state:
        raise EmulatorError(f"{chip.path}: uses {end - begin} bytes of memory; only {state - begin} can be measured")
    _check_room(chip, policy)
    worst = selftest(Chip(chip.path, core=chip.core, board=chip.board))  # all vectors: too slow where each is counted
    if not worst <= 1.0:
        raise EmulatorError(f"{chip.path}: the self-test fails on the emulated chip: {worst:.3g} tolerances")
    bench = Bench(chip, policy)
    costs = []
    for k in range(max(samples, 1)):
        signals = {name: value[k % len(value)] for name, value in policy.vectors.inputs.items()}
        costs.append(chip.measure("policy_step", *bench.show(signals)))
    if residual is not None:
        costs.append(_learning(chip, bench, residual))
    bench.reset()
    ours = {n: (at, size) for n, (at, size) in chip.sizes.items() if n.startswith(LIBRARY)}
    return Measured(
        instructions=max(c.instructions for c in costs),
        cycles=max(c.cycles for c in costs),
        stack=max(c.stack for c in costs),
        flash=chip.flash_bytes,
        policy_flash=sum(size for at, size in ours.values() if not begin <= at < top),
        memory=sum(size for at, size in chip.sizes.values() if begin <= at < top),
        selftest=worst,
        board=chip.board,
    )


def _check_room(chip: Chip, policy: PolicyFile) -> None:
    """EmulatorError when the policy's state, signals or commands do not fit beside the image."""
    state, signals, commands = places(chip.board, state_bytes(policy))
    needed = {
        "state and signals": (signals + struct_type(policy).itemsize - state, commands - state),
        "commands": (4 * sum(s.size for s in policy.outputs), sum(chip.board.ram) - STACKED - commands),
    }
    for what, (size, room) in needed.items():
        if size > room:
            raise EmulatorError(f"{chip.path}: its {what} need {size} bytes of memory; only {room} can be measured")


def _learning(chip: Chip, bench: Bench, residual: Residual) -> Cost:
    """The costliest step of a flight on the spot in which the actor has begun to learn, too."""
    policy, rng = bench.policy, np.random.default_rng(0)
    signals = {name: value[0] for name, value in policy.vectors.inputs.items()}
    begins = residual.begins(policy.rate_hz)
    chip.call("residual_begin", 1, 10 * begins)
    costs = []
    for step in range(begins + 2 * residual.period(policy.rate_hz)):
        place, speed = signals[TARGET] + NEAR * rng.uniform(-1.0, 1.0, 3), NEAR * rng.uniform(-1.0, 1.0, 3)
        arguments = bench.show(signals | {PLACE: place, SPEED: speed})
        if step < begins:
            chip.call("residual_step", *arguments)
        else:
            costs.append(chip.measure("residual_step", *arguments))
    chip.call("residual_reset")
    return max(costs, key=lambda cost: cost.cycles)

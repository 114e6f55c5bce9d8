"""Families of processor cores on unicorn: their registers, how their functions are called, what instructions take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from deploy.codegen.cores import CORTEX_M, RISC_V, Core
from deploy.mcu.boards import Board
from deploy.mcu.processors.cortex_m import CortexM
from deploy.mcu.processors.riscv import RiscV


class Processor(Protocol):
    """One emulated core. `machine`: unicorn's, whose memory is the chip's; `RETURN`: how a function ends."""

    RETURN: bytes
    machine: Any

    def power_on(self, board: Board) -> int:
        """Registers as after a reset; the address of the first instruction."""

    def start(self, address: int, until: int) -> None:
        """Run to `until`, or until the machine is stopped."""

    def at(self) -> int:
        """The address of the next instruction."""

    def calls(self, stack: int, back: int, arguments: tuple[int, ...]) -> None:
        """Registers as a function finds them that returns to `back`: up to four whole numbers or pointers."""

    def result(self) -> int:
        """A function's, if it is a whole number."""

    def float_result(self) -> int:
        """The bits of a function's result, if it is a float."""

    def block_cost(self, code: bytes, address: int) -> tuple[int, int]:
        """Instructions and estimated cycles of a straight piece of code, a branch at its end taken."""


FAMILIES: dict[str, Callable[[Core], Processor]] = {CORTEX_M: CortexM, RISC_V: RiscV}

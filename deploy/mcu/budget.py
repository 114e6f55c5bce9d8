"""What a policy takes of a microcontroller, measured or estimated, and what a target has to give."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploy.codegen import cycles
from deploy.codegen.source import Source
from deploy.mcu.boards import STM32F405
from deploy.mcu.cost import Measured


class BudgetError(ValueError):
    """The policy takes more than its target has; the message says of what, and what to do."""


@dataclass(frozen=True)
class Demand:
    """Of one control step its seconds and its stack in bytes; flash and static memory in bytes. `how`: we know it."""

    seconds: float
    flash: int
    memory: int
    stack: int
    how: str

    @classmethod
    def estimated(cls, source: Source) -> Demand:
        """From the operators, for a Cortex-M4F at the STM32F405's clock."""
        program = source.program
        flash = cycles.flash(program.lines, program.constants, source.vector_bytes)
        how = "estimated from its operators, Cortex-M4F at 168 MHz"
        return cls(program.cycles / STM32F405.clock_hz, flash, program.memory_bytes, cycles.STACK, how)

    @classmethod
    def measured(cls, cost: Measured) -> Demand:
        """On the emulated chip, whose cycles are estimated per instruction."""
        how = f"measured on the emulated {cost.board.speed}"
        return cls(cost.seconds, cost.flash, cost.memory, cost.stack, how)

    def __str__(self) -> str:
        return (
            f"one step takes {1e6 * self.seconds:.0f} us, flash {self.flash}, memory {self.memory}, "
            f"stack {self.stack} bytes ({self.how})"
        )


@dataclass(frozen=True)
class Budget:
    """The most that a target gives: microseconds per step, bytes of flash and static memory. `why`: so many us."""

    us: float = math.inf
    why: str = ""
    flash: float = math.inf
    memory: float = math.inf

    def check(self, demand: Demand) -> str:
        """A sentence for the one who exports; BudgetError when something is too much."""
        us = 1e6 * demand.seconds
        if us > self.us:
            raise BudgetError(
                f"{demand}: more than {self.us:.0f} us, {self.why}; a smaller network fits, or a lower rate where "
                f"that is the limit; if you know better: budget_us={math.ceil(us)}"
            )
        for what, taken, most in (("flash", demand.flash, self.flash), ("memory", demand.memory, self.memory)):
            if taken > most:
                raise BudgetError(f"{demand}: {what} has {most:.0f} bytes to give; weights=int8 takes a quarter")
        share = f", {us / self.us:.0%} of {self.us:.0f} us: {self.why}" if math.isfinite(self.us) else ""
        return f"{demand}{share}"

"""A RISC-V core of 32 bits on unicorn.

Espressif says of the ESP32-C3's core that it has four stages, in order, and publishes no timings. Cycles are those of a
core of that kind that is documented, OpenHW's CV32E40P (its user manual, "Pipeline Details"): a branch counts as taken,
a division as the longest; with memory that answers at once. The floating point unit is that core's with latencies of 1.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from deploy.codegen.cores import Core
from deploy.mcu.boards import Board

_BRANCHES = {"beq", "bne", "blt", "bge", "bltu", "bgeu", "beqz", "bnez", "blez", "bgez", "bltz", "bgtz"}
_JUMPS = {"j", "jal", "jr", "jalr", "ret"}
_LOADS = {"lb", "lh", "lw", "lbu", "lhu", "lwsp", "flw", "flwsp"}
_STORES = {"sb", "sh", "sw", "swsp", "fsw", "fswsp"}
_SLOW = {"mulh": 5, "mulhu": 5, "mulhsu": 5, "div": 35, "divu": 35, "rem": 35, "remu": 35, "fdiv.s": 19, "fsqrt.s": 19}
_CSR = 4  # of mstatus, mtvec and the like
_OVERWRITES = {"mv", "li", "lui", "addi4spn", *_LOADS}  # of compressed instructions; the others also read their target


def instruction_cycles(mnemonic: str) -> int:
    """Cycles of one instruction, before any wait for another's result."""
    name = mnemonic.removeprefix("c.")
    if name in _BRANCHES:
        return 3
    if name in _JUMPS:
        return 2
    return _CSR if name.startswith("csr") else _SLOW.get(name, 1)


@cache
def _disassembler() -> Any:
    import capstone

    return capstone.Cs(capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV32 | capstone.CS_MODE_RISCVC)


def block_cost(code: bytes, address: int) -> tuple[int, int]:
    """Instructions and cycles of a straight piece of code, with the waits for results that are used at once.

    A result that the next block waits for, of the last instruction of this one, is not counted. What an instruction
    reads goes by capstone's text: a compressed one ("c.") also reads the register that it writes, unless it is one of
    `_OVERWRITES`.
    """
    instructions = cycles = 0
    written = late = ""  # the register that the last instruction writes; and the same, if that takes until the next
    for _, _, mnemonic, operands in _disassembler().disasm_lite(code, address):
        name = mnemonic.removeprefix("c.")
        registers = operands.replace("(", ",").replace(")", "").replace(" ", "").split(",")
        writes = name not in _BRANCHES | _STORES | {"j", "jr", "ret"}
        reads = registers[1:] if writes and (name in _OVERWRITES or name == mnemonic) else registers
        instructions += 1
        cycles += instruction_cycles(mnemonic)
        cycles += bool(late) and late in reads
        cycles += name in _JUMPS and bool(written) and written in (["ra"] if name == "ret" else registers)
        written = registers[0] if writes else ""
        late = written if name in _LOADS or (name.startswith("f") and name not in _SLOW) else ""
    return instructions, cycles


class RiscV:
    """See `Processor`."""

    RETURN = bytes.fromhex("8280")

    def __init__(self, core: Core) -> None:
        import unicorn
        from unicorn import riscv_const

        library: Any = unicorn
        names = self._names = cast(Any, riscv_const)
        self.core = core
        self.machine: Any = library.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV32)
        self.machine.ctl_set_cpu_model(getattr(names, core.model))
        self._arguments = tuple(getattr(names, f"UC_RISCV_REG_A{k}") for k in range(4))

    def power_on(self, board: Board) -> int:
        if self.core.fpu:  # before the image does it: functions can be called at once
            self.machine.reg_write(self._names.UC_RISCV_REG_MSTATUS, 0x2000)
        return board.flash[0] + board.vectors

    def start(self, address: int, until: int) -> None:
        self.machine.emu_start(address, until)

    def at(self) -> int:
        return int(self.machine.reg_read(self._names.UC_RISCV_REG_PC))

    def calls(self, stack: int, back: int, arguments: tuple[int, ...]) -> None:
        for register, value in zip(self._arguments, arguments, strict=False):
            self.machine.reg_write(register, value)
        self.machine.reg_write(self._names.UC_RISCV_REG_SP, stack)
        self.machine.reg_write(self._names.UC_RISCV_REG_RA, back)

    def result(self) -> int:
        return int(self.machine.reg_read(self._names.UC_RISCV_REG_A0))

    def float_result(self) -> int:
        return int(self.machine.reg_read(self._names.UC_RISCV_REG_FA0)) & 0xFFFFFFFF if self.core.fpu else self.result()

    def block_cost(self, code: bytes, address: int) -> tuple[int, int]:
        return block_cost(code, address)

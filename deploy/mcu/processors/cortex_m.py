"""A Cortex-M on unicorn.

Cycles are a Cortex-M4F's, whichever it is: its published timings (ARM DDI 0439, one table for the core and one for the
floating point unit), with flash that answers at once.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, cast

from deploy.codegen.cores import Core
from deploy.mcu.boards import Board


def _listed(operands: str) -> int:
    """The number of registers in the braces of a load or store of several."""
    count = 0
    for item in operands[operands.index("{") + 1 : operands.index("}")].split(","):
        first, _, last = item.strip().partition("-")
        count += int(last[1:]) - int(first[1:]) + 1 if last else 1
    return count * (2 if "{d" in operands.replace(" ", "") else 1)


_FLOAT = {"vdiv": 14, "vsqrt": 14, "vfma": 3, "vfms": 3, "vfnma": 3, "vfnms": 3, "vmla": 3, "vmls": 3, "vnmla": 3}
_SLOW = {"udiv": 12, "sdiv": 12, "mla": 2, "mls": 2, "tbb": 4, "tbh": 4, "bl": 3, "blx": 3, "bx": 3}  # the worst case
_BRANCHES = {"b", "cbz", "cbnz", "beq", "bne", "bhs", "blo", "bmi", "bpl", "bvs", "bvc", "bhi", "bls", "bge", "blt"}
_BRANCHES |= {"bgt", "ble", "bcs", "bcc"}
_ARITHMETIC = ("vadd", "vsub", "vmul", "vnmul", "vdiv", "vsqrt", "vfm", "vfn", "vml", "vnml")


def instruction_cycles(mnemonic: str, operands: str) -> int:
    """Cycles of one instruction; a branch counts as taken."""
    name = mnemonic.partition(".")[0]
    if name.startswith(("vldm", "vstm", "vpush", "vpop", "ldm", "stm", "push", "pop")):
        return 1 + _listed(operands) + (3 if "pc" in operands else 0)
    if name.startswith(("ldrd", "strd")):
        return 3
    if name.startswith(("ldr", "str", "vldr", "vstr")):
        return 2 + (3 if operands.startswith("pc") else 0)
    if name in _BRANCHES:
        return 3
    return _FLOAT.get(name[:5], _FLOAT.get(name[:4], _SLOW.get(name, 1)))


@cache
def _disassembler() -> Any:
    import capstone

    return capstone.Cs(capstone.CS_ARCH_ARM, capstone.CS_MODE_THUMB | capstone.CS_MODE_MCLASS)


def block_cost(code: bytes, address: int) -> tuple[int, int]:
    """Instructions and cycles of a straight piece of code, with the FPU's wait for a result that is used at once."""
    instructions = cycles = 0
    fresh = ""  # the register that the last floating-point operation is still computing
    for _, _, mnemonic, operands in _disassembler().disasm_lite(code, address):
        instructions += 1
        cycles += instruction_cycles(mnemonic, operands)
        target, _, sources = operands.partition(", ")
        cycles += bool(fresh) and fresh in sources.replace(",", " ").split()
        fresh = target if mnemonic.startswith(_ARITHMETIC) else ""
    return instructions, cycles


class CortexM:
    """See `Processor`."""

    RETURN = bytes.fromhex("7047")

    def __init__(self, core: Core) -> None:
        import unicorn
        from unicorn import arm_const

        library: Any = unicorn
        names = self._names = cast(Any, arm_const)
        self.core = core
        self.machine: Any = library.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self.machine.ctl_set_cpu_model(getattr(names, core.model))
        self._arguments = (names.UC_ARM_REG_R0, names.UC_ARM_REG_R1, names.UC_ARM_REG_R2, names.UC_ARM_REG_R3)

    def power_on(self, board: Board) -> int:
        stack, entry = struct.unpack("<II", bytes(self.machine.mem_read(board.flash[0] + board.vectors, 8)))
        self.machine.reg_write(self._names.UC_ARM_REG_SP, stack)
        if self.core.fpu:
            self.machine.reg_write(self._names.UC_ARM_REG_FPEXC, 0x40000000)  # what CPACR does on the chip
        return int(entry) & ~1

    def start(self, address: int, until: int) -> None:
        self.machine.emu_start(address | 1, until)  # Thumb

    def at(self) -> int:
        return int(self.machine.reg_read(self._names.UC_ARM_REG_PC)) & ~1

    def calls(self, stack: int, back: int, arguments: tuple[int, ...]) -> None:
        for register, value in zip(self._arguments, arguments, strict=False):
            self.machine.reg_write(register, value)
        self.machine.reg_write(self._names.UC_ARM_REG_SP, stack)
        self.machine.reg_write(self._names.UC_ARM_REG_LR, back | 1)

    def result(self) -> int:
        return int(self.machine.reg_read(self._names.UC_ARM_REG_R0))

    def float_result(self) -> int:
        return int(self.machine.reg_read(self._names.UC_ARM_REG_S0)) if self.core.fpu else self.result()

    def block_cost(self, code: bytes, address: int) -> tuple[int, int]:
        return block_cost(code, address)

"""A chip in this process, by itself an STM32F405: runs an image on unicorn, counts instructions, estimates cycles.

Instruction counts are exact. Cycles are estimated from the Cortex-M4's published timings (ARM DDI 0439, one table for
the core and one for the floating point unit) with flash that answers at once; a real chip at 168 MHz also waits for its
flash now and then. Peripherals: a serial port with a queue in each direction, SysTick and the cycle counter.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from deploy.codegen.cores import CORES, Core
from deploy.mcu.boards import STM32F405, Board

RAM = 0x20000000  # of every board here
PERIPHERALS, PERIPHERALS_SIZE = 0x40000000, 0x200000
PINS, PINS_SIZE = 0x50000000, 0x1000  # of chips that have them there
SYSTEM, SYSTEM_SIZE = 0xE0000000, 0x100000
SYSTICK, CYCLE_COUNTER, RESET_REGISTER = 0xE000E010, 0xE0001004, 0xE000ED0C
RESET_REQUEST = 0x05FA0004
PAINT = 0xA5  # what the stack holds before it is used


class EmulatorError(RuntimeError):
    """The image cannot be loaded, or the emulated chip faulted or hangs."""


@dataclass(frozen=True)
class Cost:
    """What a call cost: instructions, estimated cycles, bytes of stack."""

    instructions: int
    cycles: int
    stack: int


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


class Chip:
    """A running image. `sent` holds what it has sent by its serial port; `incoming` is what it receives."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        count: bool = False,
        patience: float = 30.0,
        core: Core | None = None,
        board: Board = STM32F405,
    ) -> None:
        """Load an ELF file. `count` measures every instruction, which is some fifty times slower.

        `patience`: seconds of this machine that a call or the start may take before it counts as hanging. `core`: what
        the image was built for, if not the board's; cycles are estimated as a Cortex-M4F's, whichever it is.
        """
        import unicorn
        from unicorn import arm_const

        self._arm: Any = arm_const
        self._unicorn: Any = unicorn
        self.path, self.counting, self.patience = os.fspath(path), count, patience
        self.board, self.core = board, core or CORES[board.core]
        self._flash, self._return = board.flash[0], sum(board.flash) - 16  # where functions called from here return to
        self.symbols: dict[str, int] = {}
        self.sizes: dict[str, tuple[int, int]] = {}  # symbol -> address, bytes
        self._segments: list[tuple[int, bytes]] = []
        self._load()
        self.incoming: deque[int] = deque()
        self.sent = bytearray()
        self.milliseconds_due = self._milliseconds = 0
        self._build(count)
        self.reset()

    def _load(self) -> None:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile

        try:
            with open(self.path, "rb") as file:
                elf = ELFFile(file)
                for segment in elf.iter_segments("PT_LOAD"):
                    if segment["p_filesz"]:
                        self._segments.append((int(segment["p_paddr"]), segment.data()))
                table: Any = elf.get_section_by_name(".symtab")
                named = [s for s in table.iter_symbols() if s.name] if table else []
                self.symbols = {s.name: int(s["st_value"]) for s in named}
                self.sizes = {s.name: (int(s["st_value"]), int(s["st_size"])) for s in named if s["st_size"]}
        except (ELFError, OSError) as error:
            raise EmulatorError(f"{self.path}: not a firmware image: {error}") from None
        self.flash_bytes = sum(
            len(data) for start, data in self._segments if 0 <= start - self._flash < self.board.flash[1]
        )

    def _build(self, count: bool) -> None:
        """Hooks come before the first instruction: unicorn does not put them into code that it already translated."""
        unicorn = self._unicorn
        machine = self._machine = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        machine.ctl_set_cpu_model(getattr(self._arm, self.core.model))
        machine.mem_map(*self.board.flash)
        machine.mem_map(RAM, self.board.ram)
        for start, size in ((PERIPHERALS, PERIPHERALS_SIZE), (PINS, PINS_SIZE), (SYSTEM, SYSTEM_SIZE)):
            machine.mmio_map(start, size, self._reader(start), None, self._writer(start), None)
        self._costs: dict[tuple[int, int], tuple[int, int]] = {}
        self._blocks: Counter[tuple[int, int]] = Counter()
        if count:
            machine.hook_add(unicorn.UC_HOOK_BLOCK, self._on_block)
        if "board_idle" in self.symbols:
            idle = self.symbols["board_idle"] & ~1
            machine.hook_add(unicorn.UC_HOOK_CODE, self._on_idle, begin=idle, end=idle)

    def reset(self) -> None:
        """Power on: memory as in the image, registers from the vector table."""
        machine, arm = self._machine, self._arm
        machine.mem_write(RAM, bytes([PAINT]) * self.board.ram)
        for start, data in self._segments:
            machine.mem_write(start, data)
        self.incoming.clear()
        self.sent.clear()
        self.restarts = getattr(self, "restarts", -1) + 1
        self._reset_wanted = self._booted = False
        stack, entry = struct.unpack("<II", bytes(machine.mem_read(self._flash + self.board.vectors, 8)))
        machine.reg_write(arm.UC_ARM_REG_SP, stack)
        if self.core.fpu:
            machine.reg_write(arm.UC_ARM_REG_FPEXC, 0x40000000)  # what CPACR does on the chip
        self._at = entry

    def _on_block(self, machine: Any, address: int, size: int, data: Any) -> None:
        self._blocks[address, size] += 1

    def _on_idle(self, machine: Any, address: int, size: int, data: Any) -> None:
        if not self.incoming and not self.milliseconds_due:
            self._stopped = True
            machine.emu_stop()

    def _reader(self, base: int) -> Callable[..., int]:
        serial, ready = self.board.serial, self.board.ready

        def read(machine: Any, offset: int, size: int, data: Any) -> int:
            address = base + offset
            if address == serial.status:
                return serial.waiting if self.incoming else serial.empty
            if address == serial.received:
                return self.incoming.popleft() if self.incoming else 0
            if address == self.board.microseconds:
                self._milliseconds += self.milliseconds_due
                self.milliseconds_due = 0
                return 1000 * self._milliseconds & 0xFFFFFFFF
            if address == SYSTICK and self.milliseconds_due:
                self.milliseconds_due -= 1
                return 1 << 16
            if address == CYCLE_COUNTER:
                return self._counted()[1] & 0xFFFFFFFF
            return ready.get(address, 0)

        return read

    def _writer(self, base: int) -> Callable[..., None]:
        sent = self.board.serial.sent

        def write(machine: Any, offset: int, size: int, value: int, data: Any) -> None:
            if base + offset == sent:
                self.sent.append(value & 0xFF)
            if base + offset == RESET_REGISTER and value == RESET_REQUEST:
                self._reset_wanted = self._stopped = True
                machine.emu_stop()

        return write

    def _counted(self) -> tuple[int, int]:
        """Instructions and cycles of all blocks so far."""
        instructions = cycles = 0
        for (address, size), times in self._blocks.items():
            cost = self._costs.get((address, size))
            if cost is None:
                cost = self._costs[address, size] = block_cost(bytes(self._machine.mem_read(address, size)), address)
            instructions += times * cost[0]
            cycles += times * cost[1]
        return instructions, cycles

    def _start(self, address: int, until: int, patience: float) -> None:
        """`patience` 0: without limit. Watching the clock costs unicorn a thread per call, 0.5 ms."""
        try:
            self._stopped = False
            self._machine.emu_start(address | 1, until, timeout=round(1e6 * patience))
        except self._unicorn.UcError as error:
            where = self._machine.reg_read(self._arm.UC_ARM_REG_PC)
            raise EmulatorError(f"{self.path}: the chip faulted at {where:#x}: {error}") from None
        if not self._stopped and self._machine.reg_read(self._arm.UC_ARM_REG_PC) & ~1 != until:
            where = self._machine.reg_read(self._arm.UC_ARM_REG_PC)
            raise EmulatorError(f"{self.path}: the chip hangs at {where:#x}; stopped after {patience:g} s")

    def run(self) -> bytes:
        """Let the image run until it idles; what it has sent meanwhile."""
        self._start(self._at, self._return, 0.0 if self._booted else self.patience)
        if self._reset_wanted:
            self.reset()
            return self.run()
        self._at, self._booted = self._machine.reg_read(self._arm.UC_ARM_REG_PC) | 1, True
        out = bytes(self.sent)
        self.sent.clear()
        return out

    def address(self, symbol: str) -> int:
        """Where a function or variable is; KeyError lists what there is."""
        if symbol not in self.symbols:
            raise KeyError(f"{self.path} has no symbol {symbol!r}; it has: {', '.join(filter(None, self.symbols))}")
        return self.symbols[symbol] & ~1

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the chip's memory."""
        return bytes(self._machine.mem_read(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into the chip's memory."""
        self._machine.mem_write(address, data)

    def call(self, function: str | int, *arguments: int) -> int:
        """Call a function, by name or address, with up to four integers or pointers; its integer result."""
        machine, arm = self._machine, self._arm
        registers = (arm.UC_ARM_REG_R0, arm.UC_ARM_REG_R1, arm.UC_ARM_REG_R2, arm.UC_ARM_REG_R3)
        for register, value in zip(registers, arguments, strict=False):
            machine.reg_write(register, value)
        machine.reg_write(arm.UC_ARM_REG_SP, RAM + self.board.ram)
        machine.reg_write(arm.UC_ARM_REG_LR, self._return | 1)
        self._start(function if isinstance(function, int) else self.address(function), self._return, self.patience)
        return int(machine.reg_read(arm.UC_ARM_REG_R0))

    def call_float(self, symbol: str, *arguments: int) -> int:
        """Call a function that returns a float; the bits of it."""
        whole = self.call(symbol, *arguments)
        return int(self._machine.reg_read(self._arm.UC_ARM_REG_S0)) if self.core.fpu else whole

    def measure(self, function: str | int, *arguments: int) -> Cost:
        """Call a function and say what it cost. Needs `count=True`."""
        if not self.counting:
            raise ValueError("this chip was made without count=True")
        lowest = RAM + self.board.ram - 16384
        self.write(lowest, bytes([PAINT]) * 16384)
        self._blocks.clear()
        self.call(function, *arguments)
        left = self.read(lowest, 16384)
        instructions, cycles = self._counted()
        return Cost(instructions, cycles, 16384 - (len(left) - len(left.lstrip(bytes([PAINT])))))

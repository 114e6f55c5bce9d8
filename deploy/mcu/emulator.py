"""A chip in this process, by itself an STM32F405: runs an image on unicorn, counts instructions, estimates cycles.

Instruction counts are exact. Cycles are estimated as `deploy.mcu.processors` says, with flash that answers at once; a
real chip also waits for its flash now and then. Peripherals: a serial port with a queue in each direction, and what
counts milliseconds and cycles.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from deploy.codegen.cores import CORES, Core
from deploy.mcu.boards import STM32F405, Board
from deploy.mcu.processors import FAMILIES

SYSTICK, CYCLE_COUNTER = 0xE000E010, 0xE0001004  # of a Cortex-M
PAINT = 0xA5  # what the stack holds before it is used
PAGE = 0x1000
STACKED = 16384  # bytes of stack that are looked at
LOOK = 0.05  # s between two looks at the clock
MOST_RESTARTS = 100  # one after the other


class EmulatorError(OSError):
    """The image cannot be loaded, or the emulated chip faulted or hangs."""


@dataclass(frozen=True)
class Cost:
    """What a call cost: instructions, estimated cycles, bytes of stack."""

    instructions: int
    cycles: int
    stack: int


class _Patience:
    """Ends emulations that take too long, of all chips in one thread: unicorn's own costs one per call, 0.5 ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[int, tuple[float, Callable[[], object]]] = {}  # by chip: when (s), and how
        self._thread: threading.Thread | None = None

    @contextmanager
    def limited(self, seconds: float, stop: Callable[[], object]) -> Iterator[None]:
        """Inside, `stop` is called once so many seconds have passed, again and again."""
        with self._lock:
            self._ends[id(stop)] = time.monotonic() + seconds, stop
            if self._thread is None or not self._thread.is_alive():  # nor does a forked process have it
                self._thread = threading.Thread(target=self._look, name="patience", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._ends[id(stop)]

    def _look(self) -> None:
        while True:
            time.sleep(LOOK)
            with self._lock:  # held while it stops one: the next emulation must not be stopped for this one
                now = time.monotonic()
                for end, stop in self._ends.values():
                    if now > end:
                        with suppress(Exception):  # this thread goes on whatever becomes of one chip
                            stop()


_PATIENCE = _Patience()


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

        `patience`: seconds of this machine that the image may take, after it was started, called or given something,
        until it idles; then it counts as hanging. `core`: what the image was built for, if not the board's.
        """
        import unicorn

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
        self.processor = FAMILIES[self.core.family](self.core)
        machine, board = self.processor.machine, self.board
        machine.mem_map(*board.flash, unicorn.UC_PROT_ALL if board.constants is None else unicorn.UC_PROT_EXEC)
        if board.constants is not None:
            machine.mem_map(board.constants, board.flash[1], unicorn.UC_PROT_READ)
        machine.mem_map(*board.ram)
        for function in board.rom:
            machine.mem_map(function // PAGE * PAGE, PAGE)
            machine.mem_write(function, self.processor.RETURN)
        for start, size in board.registers:
            machine.mmio_map(start, size, self._reader(start), None, self._writer(start), None)
        self._costs: dict[tuple[int, int], tuple[int, int]] = {}
        self._blocks: Counter[tuple[int, int]] = Counter()
        if count:
            machine.hook_add(unicorn.UC_HOOK_BLOCK, self._on_block)
        if "board_idle" in self.symbols:
            idle = self.symbols["board_idle"] & ~1
            machine.hook_add(unicorn.UC_HOOK_CODE, self._on_idle, begin=idle, end=idle)

    def reset(self) -> None:
        """Power on: memory as in the image, registers as the chip has them."""
        machine, board = self.processor.machine, self.board
        machine.mem_write(board.ram[0], bytes([PAINT]) * board.ram[1])
        for start, data in self._segments:
            machine.mem_write(start, data)
            if board.constants is not None:
                machine.mem_write(start - board.flash[0] + board.constants, data)
        self.incoming.clear()
        self.sent.clear()
        self.restarts = getattr(self, "restarts", -1) + 1
        self._reset_wanted = False
        self._at = self.processor.power_on(board)

    def _on_block(self, machine: Any, address: int, size: int, data: Any) -> None:
        self._blocks[address, size] += 1

    def _on_idle(self, machine: Any, address: int, size: int, data: Any) -> None:
        if not self.incoming and not self.milliseconds_due:
            self._stopped = True
            machine.emu_stop()

    def _reader(self, base: int) -> Callable[..., int]:
        serial, ready, (timer, ticks) = self.board.serial, self.board.ready, self.board.timer

        def read(machine: Any, offset: int, size: int, data: Any) -> int:
            address = base + offset
            if address == serial.status:
                return serial.waiting if self.incoming else serial.empty
            if address == serial.received:
                return self.incoming.popleft() if self.incoming else 0
            if address == timer:
                self._milliseconds += self.milliseconds_due
                self.milliseconds_due = 0
                return ticks * self._milliseconds & 0xFFFFFFFF
            if address == SYSTICK and self.milliseconds_due:
                self.milliseconds_due -= 1
                return 1 << 16
            if address == CYCLE_COUNTER:
                return self._counted()[1] & 0xFFFFFFFF
            return ready.get(address, 0)

        return read

    def _writer(self, base: int) -> Callable[..., None]:
        sent, restart = self.board.serial.sent, self.board.restart

        def write(machine: Any, offset: int, size: int, value: int, data: Any) -> None:
            if base + offset == sent:
                self.sent.append(value & 0xFF)
            if (base + offset, value) == restart:
                self._reset_wanted = self._stopped = True
                machine.emu_stop()

        return write

    def _counted(self) -> tuple[int, int]:
        """Instructions and cycles of all blocks so far."""
        instructions = cycles = 0
        for (address, size), times in self._blocks.items():
            cost = self._costs.get((address, size))
            if cost is None:
                cost = self._costs[address, size] = self.processor.block_cost(self.read(address, size), address)
            instructions += times * cost[0]
            cycles += times * cost[1]
        return instructions, cycles

    def _start(self, address: int, until: int) -> None:
        self._stopped = False
        try:
            with _PATIENCE.limited(self.patience, self.processor.machine.emu_stop):
                self.processor.start(address, until)
        except self._unicorn.UcError as error:
            raise EmulatorError(f"{self.path}: the chip faulted at {self.processor.at():#x}: {error}") from None
        where = self.processor.at()
        if not self._stopped and where != until:
            raise EmulatorError(f"{self.path}: the chip hangs at {where:#x}; stopped after {self.patience:g} s")

    def run(self) -> bytes:
        """Let the image run until it idles; what it has sent meanwhile."""
        for _ in range(MOST_RESTARTS):
            self._start(self._at, self._return)
            if not self._reset_wanted:
                break
            self.reset()
        else:
            raise EmulatorError(f"{self.path}: the chip restarts for ever")
        self._at = self.processor.at()
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
        return bytes(self.processor.machine.mem_read(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into the chip's memory."""
        self.processor.machine.mem_write(address, data)

    def call(self, function: str | int, *arguments: int) -> int:
        """Call a function, by name or address, with up to four integers or pointers; its integer result."""
        self.processor.calls(sum(self.board.ram), self._return, arguments)
        self._start(function if isinstance(function, int) else self.address(function), self._return)
        return self.processor.result()

    def call_float(self, symbol: str, *arguments: int) -> int:
        """Call a function that returns a float; the bits of it."""
        self.call(symbol, *arguments)
        return self.processor.float_result()

    def measure(self, function: str | int, *arguments: int) -> Cost:
        """Call a function and say what it cost. Needs `count=True`."""
        if not self.counting:
            raise ValueError("this chip was made without count=True")
        lowest = sum(self.board.ram) - STACKED
        self.write(lowest, bytes([PAINT]) * STACKED)
        self._blocks.clear()
        self.call(function, *arguments)
        left = self.read(lowest, STACKED)
        instructions, cycles = self._counted()
        return Cost(instructions, cycles, STACKED - (len(left) - len(left.lstrip(bytes([PAINT])))))

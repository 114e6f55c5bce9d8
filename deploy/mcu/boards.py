"""Boards that firmware/ has a clock and a serial port for, and how the emulator plays their chips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.codegen.cores import CORES


@dataclass(frozen=True)
class Serial:
    """A serial port as its program sees it: addresses, and what its status reads when a byte waits, and when none."""

    status: int
    waiting: int
    empty: int
    received: int
    sent: int


RAM = 0x20000000  # of every Cortex-M here
REGISTERS = ((0x40000000, 0x200000), (0x50000000, 0x1000), (0xE0000000, 0x100000))  # theirs: chip, pins, core


@dataclass(frozen=True)
class Board:
    """One board. `core`: of deploy.codegen.cores. Pieces of memory are where they begin, and their bytes.

    Of the flash not more is emulated than that. `constants`: where it is read as data, if another bus does that.
    """

    name: str  # of its folder in firmware/, and of its target
    chip: str
    core: str
    clock_hz: float
    flash: tuple[int, int]
    ram: tuple[int, int]
    serial: Serial
    wiring: str  # of the serial line
    constants: int | None = None
    vectors: int = 0  # bytes from the beginning of the flash to what a reset goes by: a table, or an instruction
    timer: tuple[int, int] = (0, 0)  # its address and ticks in 1 ms, where the core has no counter of its own
    registers: tuple[tuple[int, int], ...] = REGISTERS
    restart: tuple[int, int] = (0xE000ED0C, 0x05FA0004)  # the address of a register, and what written there restarts it
    rom: tuple[int, ...] = ()  # functions of the chip's ROM that the image calls, which do nothing here
    ready: Mapping[int, int] = field(default_factory=dict, hash=False)  # address -> what it reads: clocks run at once

    @property
    def speed(self) -> str:
        """For people."""
        return f"{self.chip} at {self.clock_hz / 1e6:g} MHz"


STM32F405 = Board(
    name="stm32f405",
    chip="STM32F405",
    core="cortex-m4f",
    clock_hz=168e6,
    flash=(0x08000000, 1 << 20),
    ram=(RAM, 128 << 10),
    serial=Serial(0x40011000, waiting=1 << 7 | 1 << 5, empty=1 << 7, received=0x40011004, sent=0x40011004),
    wiring="PA9 sends, PA10 receives",
    ready={0x40023800: 1 << 25},
)
NRF52840 = Board(
    name="nrf52840",
    chip="nRF52840",
    core="cortex-m4f",
    clock_hz=64e6,
    flash=(0x00000000, 1 << 20),
    ram=(RAM, 256 << 10),
    serial=Serial(0x40002108, waiting=1, empty=0, received=0x40002518, sent=0x4000251C),
    wiring="P0.06 sends, P0.08 receives",
    ready={0x40000100: 1, 0x4000211C: 1},
)
RP2350 = Board(
    name="rp2350",
    chip="RP2350",
    core="cortex-m33f",
    clock_hz=150e6,
    flash=(0x10000000, 1 << 20),
    ram=(RAM, 512 << 10),
    serial=Serial(0x40070018, waiting=0, empty=1 << 4, received=0x40070000, sent=0x40070000),
    wiring="GPIO 0 sends, GPIO 1 receives",
    ready={
        0x40020008: 0xFFFFFFFF,  # out of reset
        0x40048004: 1 << 31,
        0x40050000: 1 << 31,
        0x40010038: 1 << 2,
        0x40010044: 3,
    },
)
RP2040 = Board(
    name="rp2040",
    chip="RP2040",
    core="cortex-m0plus",
    clock_hz=125e6,
    flash=(0x10000000, 1 << 20),
    ram=(RAM, 256 << 10),
    serial=Serial(0x40034018, waiting=0, empty=1 << 4, received=0x40034000, sent=0x40034000),
    wiring="GPIO 0 sends, GPIO 1 receives",
    vectors=0x100,  # behind the second stage
    timer=(0x40054028, 1000),
    ready={
        0x4000C008: 0xFFFFFFFF,  # out of reset
        0x40024004: 1 << 31,
        0x40028000: 1 << 31,
        0x40008038: 1 << 2,
        0x40008044: 3,
    },
)
TEENSY41 = Board(
    name="teensy41",
    chip="i.MX RT1062",
    core="cortex-m7f",
    clock_hz=600e6,
    flash=(0x60000000, 1 << 20),
    ram=(RAM, 128 << 10),
    serial=Serial(0x40198014, waiting=1 << 23 | 1 << 21, empty=1 << 23, received=0x4019801C, sent=0x4019801C),
    wiring="pin 1 sends, pin 0 receives",
    vectors=0x2000,  # behind the boot ROM's tables
    ready={0x40080000: 1 << 31, 0x400D8000: 1 << 31},
)
ESP32C3 = Board(
    name="esp32c3",
    chip="ESP32-C3",
    core="rv32imc",
    clock_hz=160e6,
    flash=(0x42000000, 1 << 20),
    constants=0x3C000000,
    ram=(0x3FC80000, 320 << 10),
    serial=Serial(0x6000001C, waiting=1, empty=0, received=0x60000000, sent=0x60000000),
    wiring="GPIO 21 sends, GPIO 20 receives",
    vectors=8,  # behind what its boot ROM looks for
    timer=(0x60023044, 16000),
    registers=((0x60000000, 0x100000),),
    restart=(0x60008000, 1 << 31),
    rom=(0x40001960,),
    ready={0x60023004: 1 << 29},
)
BOARDS = {board.name: board for board in (STM32F405, NRF52840, RP2350, RP2040, TEENSY41, ESP32C3)}


def bearer(core: str) -> Board:
    """A board that the core could be on: one of its family's."""
    return next(board for board in BOARDS.values() if CORES[board.core].family == CORES[core].family)

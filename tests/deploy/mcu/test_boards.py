"""Boards besides the STM32F405, on their emulated chips; and the one table of boards and autopilots in the docs.

`python -m tests.deploy.mcu.test_boards` writes the table anew; its measured numbers are tested here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from deploy import cli, export, hil
from deploy.codegen.cores import CORES, CORTEX_M
from deploy.export import TARGETS
from deploy.mcu.boards import BOARDS
from deploy.mcu.emulator import Chip
from deploy.mcu.policy import OnChip
from deploy.mcu.ports import EmulatedPort
from deploy.policy_file import PolicyFile

PAGE = Path(__file__).parents[3] / "docs" / "microcontroller.md"
BEGIN, END = "<!-- table: python -m tests.deploy.mcu.test_boards -->", "<!-- end of boards -->"
POLICY = "quad_any"
# Instructions and estimated cycles of a step; flash of the policy, static memory and stack in bytes: built by zig.
MEASURED = {
    "stm32f405": (8002, 13483, 12752, 983, 192),
    "nrf52840": (8002, 13483, 12752, 983, 192),
    "rp2350": (7853, 13406, 12712, 983, 192),
    "rp2040": (441088, 773225, 12660, 987, 272),
    "teensy41": (7838, 13426, 12732, 983, 192),
    "esp32c3": (286651, 413815, 13644, 995, 204),
}
NO, UNKNOWN = "no", "not measured"
LIBRARY = "`arduino`, `platformio`, `zephyr`"
EXAMPLES = "the examples, against declarations"


@dataclass(frozen=True)
class Row:
    """How far one board or autopilot was tried. Empty `step`: measured, see MEASURED."""

    what: str
    target: str
    emulated: str
    built: str
    flown: str
    step: str = ""
    bytes: str = ""


ROWS = (
    Row("STM32F405", "`stm32f405`", "unicorn; QEMU, which repeats bit for bit", "an image", "HIL, on both"),
    Row("nRF52840 (development kit)", "`nrf52840`", "unicorn", "an image", "HIL"),
    Row("RP2350 (Pico 2)", "`rp2350`", "unicorn, its Cortex-M33", "an image", "HIL"),
    Row(
        "Crazyflie 2.1+, Brushless",
        "`crazyflie`",
        "the self-test, in the linked firmware on unicorn",
        "into its firmware (2026.08), without a warning",
        "simulated Crazyflie, with the guard on board",
        "8 249 instructions in that firmware",
        "not measured; stack 180",
    ),
    Row("RP2040 (Pico)", "`rp2040`", "unicorn, a Cortex-M0+; its second stage, too", "an image", "HIL"),
    Row("Teensy 4.1", "`teensy41`", "unicorn, a Cortex-M7F; not its boot ROM", "an image", "HIL"),
    Row("nRF53, STM32U5", LIBRARY, "the C, on a Cortex-M33F", EXAMPLES, NO, "7 853 instructions", "12 712 / 983 / 192"),
    Row("ESP32-C3", "`esp32c3`", "unicorn, its RV32IMC; not its boot ROM", "an image", "HIL"),
    Row("ESP32-P4", LIBRARY, "the C, on an RV32IMAFC", "the C", NO, "26 818 instructions", "12 730 / 995 / 88"),
    Row("ESP32, -S2, -S3 (Xtensa)", LIBRARY, NO, "no: no compiler here", NO, UNKNOWN, UNKNOWN),
    Row(
        "a computer with ROS 2",
        "`ros2_control`",
        "not needed",
        "by g++ and zig, against ros2_control's headers and declarations of rclcpp",
        "driven update by update, not flown",
        "about 2.0 us of a Xeon thread, with the guard",
        UNKNOWN,
    ),
    Row("a browser", "`page`, `wasm`", "not needed", "a page, a module", "in the page", UNKNOWN, UNKNOWN),
    Row(
        "PX4, a mode of its own",
        "`px4`",
        NO,
        "a module, against declarations of PX4's classes",
        "an x500 in our engine; not in PX4's simulator",
        UNKNOWN,
        UNKNOWN,
    ),
    Row(
        "PX4's `mc_raptor`",
        "`raptor`",
        NO,
        "rl_tools' loader and executor read the weights",
        "its equations in our engine",
        "as `mc_raptor`",
        UNKNOWN,
    ),
    Row(
        "Betaflight 2026.6",
        "`betaflight`",
        "the C, on a Cortex-M4F",
        "into its simulator (SITL), with its own flags; for a Cortex-M4F against declarations",
        "an x500 of our engine, by its SITL",
        "as STM32F405",
        UNKNOWN,
    ),
    Row(
        "a Crazyflie by radio",
        "none: `driver=crazyflie`",
        "not needed",
        "not needed",
        "a simulated Crazyflie, over UDP",
    ),
    Row("PX4 over MAVLink", "none: `driver=mavlink`", "not needed", "not needed", "a simulated vehicle, over UDP"),
    Row("a file for other tools", "`safetensors`", "not needed", "the weights", NO, "no program", "no program"),
)


def spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def line(row: Row) -> str:
    """One row of the table."""
    step, size = row.step or "on a computer", row.bytes or "not needed"
    if row.target.strip("`") in BOARDS:
        board = BOARDS[row.target.strip("`")]
        instructions, cycles, flash, memory, stack = MEASURED[board.name]
        microseconds = f"{1e6 * cycles / board.clock_hz:.0f} us at {board.clock_hz / 1e6:g} MHz"
        step = f"{spaced(instructions)} instructions, about {microseconds}"
        size = f"{spaced(flash)} / {memory} / {stack}"
    return f"| {row.what} | {row.target} | {step} | {size} | {row.emulated} | {row.built} | {row.flown} | {NO} |"


def table() -> str:
    """All of it."""
    head = f"| board | `target=` | one step of `{POLICY}` | flash / memory / stack, bytes | emulated | built "
    head += "| flown in simulation | on hardware |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(line, ROWS)])


def test_the_docs_have_the_table() -> None:
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert written == table(), f"run: python -m {__name__}"


def test_every_target_and_board_has_a_row() -> None:
    named = " ".join(row.target for row in ROWS)
    missing = [target for target in TARGETS if target != "c" and f"`{target}`" not in named]
    assert not missing and MEASURED.keys() == BOARDS.keys()


@pytest.fixture(scope="module")
def policy():
    return PolicyFile.load(POLICY)


@pytest.fixture(scope="module")
def images(policy, tmp_path_factory):
    return {name: hil.build(policy, tmp_path_factory.mktemp(name), "zig", board=name) for name in BOARDS}


@pytest.mark.parametrize("name", BOARDS)
def test_the_numbers_of_the_table_are_what_the_chips_count(images, name):
    cost = images[name][1]
    counted = (cost.instructions, cost.cycles, cost.policy_flash, cost.memory, cost.stack)
    for got, said in zip(counted, MEASURED[name], strict=True):
        assert abs(got - said) <= 0.1 * said  # another version of the compiler; libraries of floats differ by half
    assert 0.0 < cost.selftest < 1.0 and cost.seconds == cost.cycles / BOARDS[name].clock_hz


@pytest.mark.parametrize("name", BOARDS)
def test_the_image_is_where_the_board_looks_for_it(images, name):
    board = BOARDS[name]
    with images[name][0].open("rb") as file:
        elf = ELFFile(file)
        start, first = min((s["p_paddr"], s.data()) for s in elf.iter_segments("PT_LOAD") if s["p_filesz"])
        (handler,) = elf.get_section_by_name(".symtab").get_symbol_by_name("reset_handler")
    assert start == board.flash[0]
    if CORES[board.core].family == CORTEX_M:
        assert struct.unpack_from("<II", first, board.vectors) == (sum(board.ram), handler["st_value"] | 1)
    else:
        assert handler["st_value"] == start + board.vectors
    told = struct.pack("<5I", 0xFFFFDED3, 0x10210142, 0x000001FF, 0, 0xAB123579)  # what the RP2350's boot ROM wants
    assert (first[:4096].find(told) > 0) == (name == "rp2350")


@pytest.mark.parametrize("name", [name for name in BOARDS if name != "stm32f405"])
def test_another_board_flies_like_onnxruntime(policy, images, name):
    image, cost = images[name]
    chip = OnChip(policy, EmulatedPort(Chip(image, board=BOARDS[name]), cost.seconds), patience=0.05)
    config = hil.Config(policy.path, board=name, episodes=1, seconds=2.0, seed=1)
    report = hil.evaluate(policy, chip, config, cost)
    assert report.success == 1.0 and report.equal and report.lost == report.repeated == 0
    assert any(f"% of the {BOARDS[name].speed}" in line for line in hil.describe(report, policy))
    chip.port.read(0.3)
    assert np.isnan(
        chip.step({s.name: np.zeros((1, *s.shape), np.float32) for s in policy.inputs})["motor_command"]
    ).all()


def crc32(data: bytes) -> int:
    """Of MPEG-2: what the RP2040's boot ROM computes."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 1 << 31 else 0)) & 0xFFFFFFFF
    return value


def flashed(path: Path, start: int, size: int) -> bytes:
    """The first bytes of an image's flash."""
    with path.open("rb") as file:
        parts = [(s["p_paddr"], s.data()) for s in ELFFile(file).iter_segments("PT_LOAD") if s["p_filesz"]]
    whole = bytearray(b"\xff" * size)
    for at, data in parts:
        data = data[: max(0, start + size - at)]
        whole[at - start : at - start + len(data)] = data
    return bytes(whole)


def test_the_second_stage_of_an_rp2040_is_what_its_boot_rom_runs(images):
    """In RAM, where the ROM copies it: it has the flash read by 03h, and goes on by the image's vectors."""
    import unicorn
    from unicorn import arm_const as arm

    assert crc32(b"123456789") == 0x0376E6E7
    image = flashed(images["rp2040"][0], BOARDS["rp2040"].flash[0], 4096)
    assert crc32(image[:252]) == struct.unpack_from("<I", image, 252)[0]
    stack, entry = struct.unpack_from("<II", image, 256)
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
    machine.ctl_set_cpu_model(arm.UC_CPU_ARM_CORTEX_M0)
    written: list[tuple[int, int]] = []
    for base in (0x18000000, 0xE000E000):

        def write(uc, offset, size, value, data, base=base):
            written.append((base + offset, value))

        machine.mmio_map(base, 0x1000, lambda *_: 0, None, write, None)
    machine.mem_map(0x10000000, 0x10000)
    machine.mem_write(0x10000000, image)
    machine.mem_map(0x20040000, 0x2000)
    machine.mem_write(0x20041F00, image[:256])
    machine.emu_start(0x20041F01, entry & ~1, timeout=1_000_000, count=100)
    assert machine.reg_read(arm.UC_ARM_REG_PC) == entry & ~1
    assert machine.reg_read(arm.UC_ARM_REG_MSP) == stack == sum(BOARDS["rp2040"].ram)
    assert written == [
        (0x18000008, 0),  # off
        (0x18000004, 0),
        (0x18000014, 4),  # the clock's divisor
        (0x18000000, 0x001F0300),
        (0x180000F4, 0x03000218),
        (0x18000008, 1),
        (0xE000ED08, 0x10000100),
    ]


class Resets(Chip):
    """A chip of Raspberry Pi's whose blocks leave reset when they are told to and have a clock; UART0's is clk_peri."""

    held, clocked, asked = 0xFFFFFFFF, False, 0

    def _reader(self, base):
        read, (resets, _, _) = super()._reader(base), RESETS_OF[self.board.name]

        def answer(machine, offset, size, data):
            self.asked += base + offset == resets + 8
            waiting = 0 if self.clocked else RESETS_OF[self.board.name][2]
            ours = {resets: self.held, resets + 8: ~(self.held | waiting) & 0xFFFFFFFF}
            return ours[base + offset] if base + offset in ours else read(machine, offset, size, data)

        return answer

    def _writer(self, base):
        write, (resets, clock, _) = super()._writer(base), RESETS_OF[self.board.name]

        def take(machine, offset, size, value, data):
            if base + offset == resets:
                self.held = value
            self.clocked |= base + offset == clock and bool(value & 1 << 11)
            write(machine, offset, size, value, data)

        return take


# Where RESETS and CLK_PERI_CTRL are, and UART0's bit, by both chips' datasheets.
RESETS_OF = {"rp2040": (0x4000C000, 0x40008048, 1 << 22), "rp2350": (0x40020000, 0x40010048, 1 << 26)}


@pytest.mark.parametrize("name", RESETS_OF)
def test_a_block_is_waited_for_when_it_has_its_clock(images, name):
    chip = Resets(images[name][0], board=BOARDS[name])
    chip.run()
    assert chip.clocked and not chip.held & RESETS_OF[name][2]
    assert chip.asked == 2  # no turn more than one for what runs by itself, and one for UART0


def test_a_teensy_has_the_tables_of_its_boot_rom(images):
    """Offsets and values by the manual of the i.MX RT1060 (9.6.3.1, 9.7.1)."""
    path, start = images["teensy41"][0], BOARDS["teensy41"].flash[0]
    image = flashed(path, start, 0x3000)

    def word(at: int) -> int:
        return struct.unpack_from("<I", image, at)[0]

    assert [word(at) for at in (0x000, 0x004, 0x044, 0x050)] == [0x42464346, 0x56010000, 0x00010101, 8 << 20]
    assert [word(at) for at in (0x080, 0x084)] == [0x08180403, 0x00002404]  # 03h, 24 bits of address; read
    assert [word(at) for at in (0x1C0, 0x1C4, 0x1C8, 0x1D0)] == [256, 4096, 1, 65536]
    assert word(0x1000) & 0xF0FFFFFF == 0x402000D1 and word(0x1014) == start + 0x1000
    assert word(0x1004) == start + BOARDS["teensy41"].vectors
    data = word(0x1010) - start
    with path.open("rb") as file:
        end = max(s["p_paddr"] + s["p_filesz"] for s in ELFFile(file).iter_segments("PT_LOAD") if s["p_filesz"])
    assert word(data) == start and 0 <= word(data + 4) - (end - start) < 16 and word(data + 8) == 0


class Noting(Chip):
    """Notes what its image writes to registers, and which of them it asks."""

    def __init__(self, path, board):
        self.written, self.touched = [], set()
        super().__init__(path, board=board)

    def _reader(self, base):
        read = super()._reader(base)

        def answer(machine, offset, size, data):
            self.touched.add(base + offset)
            return read(machine, offset, size, data)

        return answer

    def _writer(self, base):
        write = super()._writer(base)

        def take(machine, offset, size, value, data):
            self.written.append((base + offset, value))
            self.touched.add(base + offset)
            write(machine, offset, size, value, data)

        return take


def test_a_teensy_reads_ahead_only_where_something_is(images):
    """Regions of the MPU as the Armv7-M manual (B3.5) has them: of those an address lies in, the last one counts."""
    board = BOARDS["teensy41"]
    chip = Noting(images["teensy41"][0], board=board)
    chip.run()
    control, base, attributes, caches = 0xE000ED94, 0xE000ED9C, 0xE000EDA0, 0xE000ED14
    order = [at for at, value in chip.written if at == caches or (at == control and value == 1)]
    assert order == [control, caches] and (control, 0) == next(w for w in chip.written if w[0] == control)
    regions, number = {}, None
    for at, value in chip.written:
        if at == base and value & 1 << 4:
            number, start = value & 15, value & ~31
        if at == attributes:
            regions[number] = (start, 2 << (value >> 1 & 31), value) if value & 1 else (0, 0, 0)
    assert all(start % size == 0 for start, size, _ in regions.values() if size) and [*regions] == [*range(16)]

    def rule(address):
        """Permissions (0 none, 3 all, 6 to read), never executed, TEX, C and B."""
        value = next(v for start, size, v in reversed(regions.values()) if start <= address < start + size)
        return value >> 24 & 7, value >> 28 & 1, value >> 19 & 7, value >> 17 & 1, value >> 16 & 1

    begin, (ram, ram_bytes), peripherals = board.flash[0], board.ram, {at for at in chip.touched if at < 0xE0000000}
    nothing, code, data, device = (0, 1, 0, 0, 0), (6, 0, 0, 1, 0), (3, 1, 1, 0, 0), (3, 1, 0, 0, 1)
    assert {rule(at) for at in (begin, begin + (8 << 20) - 1)} == {code}
    assert {rule(at) for at in (ram, ram + ram_bytes - 1)} == {data}
    assert len(peripherals) > 10 and {rule(at) for at in peripherals} == {device}
    beyond = (0, begin - 1, begin + (8 << 20), ram - 1, ram + ram_bytes, 0x3FFFFFFF, 0x70000000, 0xDFFFFFFF)
    assert {rule(at) for at in beyond} == {nothing}


def test_an_image_is_exported_for_a_board(tmp_path, capsys):
    assert cli.call(export.main, [f"policy={POLICY}", "target=rp2350", f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "policy.elf for RP2350 at 150 MHz; its serial line: GPIO 0 sends, GPIO 1 receives" in said
    assert "measured on the emulated RP2350 at 150 MHz" in said and "self-test on the emulated chip: passed" in said
    assert (tmp_path / "policy.elf").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["board=rp2041"], "unknown board 'rp2041'; choices: stm32f405, nrf52840, rp2350, rp2040, teensy41, esp32c3"),
        (["board=rp2350", "port=qemu"], "QEMU has no rp2350: port=emulated has it"),
        (["board=rp2350", "learn=true"], "learn=true is for board=stm32f405, not rp2350"),
    ],
)
def test_boards_that_are_not_there_are_refused(capsys, arguments, message):
    assert cli.call(hil.main, [f"policy={POLICY}", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_board_names_a_core_and_a_folder():
    for board in BOARDS.values():
        assert board.core in CORES and board.ram[1] >= 128 << 10


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")

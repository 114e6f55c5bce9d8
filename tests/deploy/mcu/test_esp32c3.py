"""The ESP32-C3: how it starts, what its RISC-V core is counted to take, and the table of costs in the docs.

`python -m tests.deploy.mcu.test_esp32c3` measures the table anew and writes it.
"""

import itertools
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from deploy.codegen import source, toolchain
from deploy.codegen.cores import CORES, GCC, RISC_V, Core
from deploy.codegen.structs import packed
from deploy.mcu.boards import BOARDS, bearer
from deploy.mcu.cost import Bench, Measured, measure, places
from deploy.mcu.emulator import Chip, EmulatorError
from deploy.mcu.processors.riscv import block_cost
from deploy.policy_file import PolicyFile
from policies.models.export import random_signals
from tests.deploy.codegen.native import Native
from tests.deploy.mcu.test_emulator import hover_size
from tests.deploy.sample_policy import exported

PAGE = Path(__file__).parents[3] / "docs" / "microcontroller.md"
BEGIN, END = "<!-- table: python -m tests.deploy.mcu.test_esp32c3 -->", "<!-- end of costs -->"
BOARD = BOARDS["esp32c3"]
IMC, IMAFC = "rv32imc", "rv32imafc"
NETWORKS = ("22-64-64-4 tanh", "quad_any")
CASES = list(itertools.product(NETWORKS, (IMC, IMAFC), ("float32", "int8", "w8a8")))
COMPILERS = ["zig", *(["gcc"] if shutil.which(GCC[RISC_V]) else [])]
CODE = BOARD.ram[0] + 0x8000  # where the tests put code of their own
TELL_PLL = BOARD.rom[0]


def built(policy: PolicyFile, folder: Path, core: Core, weights: str = "float32", compiler: str = "zig") -> Path:
    for name, text in source.Source(policy, policy.content(), weights).files().items():
        (folder / name).write_text(text)
    return toolchain.image(folder, compiler, core=core, board=BOARD.name)


def of(network: str, folder: Path) -> PolicyFile:
    return exported(folder / "p.onnx", hover_size()) if network in NETWORKS[:1] else PolicyFile.load(network)


def cost(case: tuple[str, str, str], folder: Path) -> Measured:
    network, name, weights = case
    policy, core = of(network, folder), CORES[name]
    return measure(Chip(built(policy, folder, core, weights), count=True, core=core, board=BOARD), policy)


def line(case: tuple[str, str, str], told: Measured) -> str:
    """One row of the table; no time is known of a core with an FPU."""
    network, name, weights = case
    spaced = [f"{n:,}".replace(",", " ") for n in (told.instructions, told.cycles, told.policy_flash)]
    time = f"{spaced[1]} | {1e6 * told.seconds:.0f}" if name == IMC else "- | -"
    return f"| {network} | `{name}` | {weights} | {spaced[0]} | {time} | {spaced[2]} | {told.memory} | {told.stack} |"


HEAD = """| | core | weights | instructions | estimated cycles | us at 160 MHz | flash of the policy | memory | stack |
|---|---|---|---:|---:|---:|---:|---:|---:|"""


def rows() -> dict[tuple[str, str, str], str]:
    """Of the docs, by their first three columns."""
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    assert text.startswith(HEAD)
    return {tuple(cell.strip(" `") for cell in row.split("|")[1:4]): row for row in text.splitlines()[2:]}


def test_the_text_names_the_shares_of_its_table():
    """Of a control period of 10 ms, and w8a8 beside int8."""
    us = {
        (network, weights): float(row.split("|")[6]) for (network, core, weights), row in rows().items() if core == IMC
    }
    mlp = {weights: us[NETWORKS[0], weights] for weights in ("float32", "int8", "w8a8")}
    text = PAGE.read_text().partition(END)[2]
    share = {weights: f"{round(100 * value / 10_000)} %" for weights, value in mlp.items()}
    assert f"a control period of 10 ms by {share['float32']} in float32 and by {share['int8']} in int8" in text
    assert f"`w8a8` takes {share['w8a8']}, {mlp['w8a8'] / mlp['int8']:.2f} of int8's" in text
    assert us["quad_any", "w8a8"] > us["quad_any", "int8"] and "there it saves nothing more" in text


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_docs_say_what_it_takes(tmp_path, case):
    told = cost(case, tmp_path)
    said, now = (
        [int(cell.replace(" ", "")) for cell in row.split("|")[4:-1] if cell.strip() != "-"]
        for row in (rows()[case], line(case, told))
    )
    assert len(said) == len(now) == (6 if case[1] == IMC else 4) and rows().keys() == set(CASES)
    for was, value in zip(said, now, strict=True):
        assert abs(value - was) <= 0.1 * was  # another version of the compiler
    assert 0.0 < told.selftest < 0.5


@pytest.mark.thinned
@pytest.mark.parametrize("weights", ["float32", "float16", "int8", "w8a8"])
@pytest.mark.parametrize("name", [IMC, IMAFC])
def test_it_computes_the_same_bits_as_this_machine(tmp_path, name, weights):
    policy = of(NETWORKS[CORES[name].fpu], tmp_path)  # a square root's last bit, quad_any's, is another without an FPU
    chip = Chip(built(policy, tmp_path, CORES[name], weights), core=CORES[name], board=BOARD)
    bench, native = Bench(chip, policy), Native(policy.path, weights=weights)
    native.reset()
    signals = random_signals(policy.inputs, 30, np.random.default_rng(1))
    for step in range(30):
        now = {key: value[step] for key, value in signals.items()}
        ours, theirs = bench.step(now), native.step(now)
        assert {key: value.tobytes() for key, value in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}


@pytest.fixture(scope="module", params=COMPILERS)
def image(request, tmp_path_factory):
    return built(PolicyFile.load("quad_any"), tmp_path_factory.mktemp("c3"), CORES[IMC], compiler=request.param)


def test_the_flash_is_what_the_boot_rom_starts_directly(image):
    """By Espressif's description: magic words, then the first instruction; read as code and as data at equal places."""
    with image.open("rb") as file:
        elf = ELFFile(file)
        loaded = [s for s in elf.iter_segments("PT_LOAD") if s["p_filesz"]]
        code, constants, data = loaded
        assert code.data()[:8].hex() == "1d04dbae1d04dbae"
        assert elf["e_entry"] == code["p_vaddr"] + 8 == 0x42000008
        assert code["p_paddr"] == code["p_vaddr"] == BOARD.flash[0]
        assert constants["p_paddr"] - BOARD.flash[0] == constants["p_vaddr"] - BOARD.constants == code["p_filesz"]
        symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".symtab").iter_symbols()}
    assert data["p_paddr"] == constants["p_paddr"] + constants["p_filesz"]
    assert data["p_vaddr"] == BOARD.ram[0] == symbols["data_start"]
    assert symbols["data_load"] - BOARD.constants == data["p_paddr"] - BOARD.flash[0]


class Watched(Chip):
    """Notes what is written to registers, what the PLL is told, and with `count` every instruction."""

    def _build(self, count):
        import unicorn

        self.written, self.told, self.instructions = [], [], 0
        super()._build(count)
        machine, arguments = self.processor.machine, [10, 11, 12, 13, 14, 15]  # x10 on: a0 to a5
        names = [getattr(unicorn.riscv_const, f"UC_RISCV_REG_X{k}") for k in arguments]
        note = lambda uc, *_: self.told.append(tuple(uc.reg_read(name) for name in names))  # noqa: E731
        machine.hook_add(unicorn.UC_HOOK_CODE, note, begin=TELL_PLL, end=TELL_PLL)
        if count:
            machine.hook_add(unicorn.UC_HOOK_CODE, self._count)

    def _count(self, *_):
        self.instructions += 1

    def _writer(self, base):
        write = super()._writer(base)

        def take(machine, offset, size, value, data):
            self.written.append((base + offset, value))
            write(machine, offset, size, value, data)

        return take


def test_it_starts_as_esp_idf_does(image):
    chip = Watched(image, board=BOARD)
    chip.run()
    order = [at for at, _ in chip.written]
    last = dict(chip.written)
    for key, register, secret in (
        (0x600080A8, 0x60008090, 0x50D83AA1),  # the RTC's watchdog
        (0x600080B0, 0x600080AC, 0x8F1D312A),  # the super watchdog
        (0x6001F064, 0x6001F048, 0x50D83AA1),  # the first timer group's
    ):
        at = order.index(key)
        assert order[at : at + 3] == [key, register, key] and chip.written[at][1] == secret and last[key] == 0
    assert not last[0x60008090] >> 31 and last[0x600080AC] >> 31 and not last[0x6001F048] >> 31
    values = {register: 0 for register in range(16)}
    for block, host, register, highest, lowest, value in chip.told:
        assert (block, host) == (0x66, 0) and value < 2 << highest - lowest
        mask = (2 << highest) - (1 << lowest)
        values[register] = values[register] & ~mask | value << lowest
    assert {k: v for k, v in values.items() if v} == {4: 0x6B, 2: 0x50, 3: 8, 6: 0x63, 9: 2}  # 480 MHz from 40 MHz
    assert last[0x600C0008] & 3 == 1 and last[0x600C0058] == 1 << 10  # a third of them, and run from there
    clock = last[0x60000014]
    baud = 40e6 / ((clock & 0xFFF) + (clock >> 20) / 16)
    assert last[0x60000078] >> 20 & 3 == 3 and abs(baud / 921600 - 1) < 1e-3
    assert last[0x60000020] == 0x1000001C and last[0x60000080] >> 31


def test_a_fault_or_an_interrupt_restarts_it(image):
    import unicorn

    chip = Chip(image, board=BOARD)
    chip.run()
    vectors = chip.processor.machine.reg_read(unicorn.riscv_const.UC_RISCV_REG_MTVEC)
    assert vectors % 256 == 1 and not chip.processor.machine.reg_read(unicorn.riscv_const.UC_RISCV_REG_MSTATUS) & 8
    for cause in (0, 7, 31):
        chip.call(vectors - 1 + 4 * cause)
        before = chip.restarts
        said = chip.run()
        assert chip.restarts == before + 1 and said[:2] == b"\xa5\x5a"


def test_code_is_not_read_as_data(image):
    """On the chip that works for whole words only: the emulated one refuses it, so that no image does."""
    chip = Chip(image, board=BOARD)
    loads = {"code": "3705004208418280", "constants": "3705003c08418280"}  # lui a0; c.lw a0, 0(a0); ret
    chip.write(CODE, bytes.fromhex(loads["constants"]))
    assert chip.call(CODE) == 0xAEDB041D
    chip.write(CODE + 64, bytes.fromhex(loads["code"]))
    with pytest.raises(EmulatorError, match=f"faulted at {CODE + 64 + 4:#x}"):
        chip.call(CODE + 64)


def test_instructions_and_stack_are_exact(image):
    policy = PolicyFile.load("quad_any")
    chip = Watched(image, count=True, patience=300.0, board=BOARD)
    state, signals, commands = places(BOARD)
    now = {name: value[0] for name, value in random_signals(policy.inputs, 1, np.random.default_rng(0)).items()}
    chip.write(signals, packed(policy, now))
    chip.instructions = 0
    told = chip.measure("policy_step", state, signals, commands)
    assert told.instructions == chip.instructions > 10_000
    # c.addi16sp -64; sw zero, 0(sp); c.li a0, 10; 1: c.addi a0, -1; c.bnez a0, 1b; c.addi16sp 64; ret
    chip.write(CODE, struct.pack("<HIHHHHH", 0x7139, 0x00012023, 0x4529, 0x157D, 0xFD7D, 0x6121, 0x8082))
    told = chip.measure(CODE)
    assert told.instructions == 3 + 2 * 10 + 2 and told.stack == 64
    assert told.cycles == 3 + (1 + 3) * 10 + 1 + 2


def test_a_loop_takes_what_the_manual_of_the_cv32e40p_says(image):
    """Ten times: a load (1), its use by mulhu at once (1 of waiting, 5), lw (1), a use later (1), divu (3 to 35: 35),
    addi (1), a branch that is taken (3). Around it li, lui and ret (1, 1, 2)."""
    code = (
        0x00A00293,  # li t0, 10
        0x3FC90537,  # lui a0, 0x3fc90: some memory
        0x00052583,  # 1: lw a1, 0(a0)
        0x02B5B633,  # mulhu a2, a1, a1
        0x00452683,  # lw a3, 4(a0)
        0xFFF28293,  # addi t0, t0, -1
        0x00D60733,  # add a4, a2, a3
        0x02B757B3,  # divu a5, a4, a1
        0xFE0294E3,  # bnez t0, 1b
        0x00008067,  # ret
    )
    chip = Chip(image, count=True, patience=300.0, board=BOARD)
    chip.write(CODE, struct.pack(f"<{len(code)}I", *code))
    told = chip.measure(CODE)
    assert told.instructions == 2 + 7 * 10 + 1
    assert told.cycles == 1 + 1 + (1 + (1 + 5) + 1 + 1 + 1 + 35 + 3) * 10 + 2


@pytest.mark.parametrize(
    ("code", "cycles"),
    [
        ("08410505", 3),  # c.lw a0, 0(a0); c.addi a0, 1: waits for what is loaded
        ("08418505", 2),  # ...; c.addi a1, 1
        ("08412e85", 2),  # ...; c.mv a0, a1, which does not read a0
        ("084188c1", 3),  # ...; c.sw a0, 0(a1)
        ("97000000e7800000", 4),  # auipc ra, 0; jalr ra: waits for the register that it goes by
        ("d3f5a60053f5b500", 3),  # fadd.s fa1, fa3, fa0; fadd.s fa0, fa1, fa1
    ],
)
def test_a_result_that_is_used_at_once_costs_a_cycle_more(code, cycles):
    assert block_cost(bytes.fromhex(code), CODE) == (2, cycles)


def test_a_core_is_tried_on_a_board_of_its_family():
    assert {name: bearer(name).name for name in (IMC, IMAFC, "cortex-m3")} == {
        IMC: "esp32c3",
        IMAFC: "esp32c3",
        "cortex-m3": "stm32f405",
    }


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    lines = [HEAD]
    for each in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            lines.append(line(each, cost(each, Path(scratch))))
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}")

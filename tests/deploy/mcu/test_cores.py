"""The C proves itself on every core that is emulated, with and without an FPU."""

import re

import numpy as np
import pytest

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.codegen.cores import CORES, M4F
from deploy.codegen.source import Source
from deploy.mcu.boards import bearer
from deploy.mcu.cost import Bench
from deploy.mcu.emulator import Chip
from policies.models.export import random_signals
from tests.deploy.codegen.native import Native
from tests.deploy.mcu.test_emulator import hover_size
from tests.deploy.sample_policy import exported


def said(capsys, tmp_path, *more: str) -> tuple[int, str]:
    status = cli.call(export.main, ["policy=quad_any", f"out={tmp_path / 'out'}", *more])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.parametrize("core", CORES)
def test_the_self_test_passes_and_instructions_are_counted(capsys, tmp_path, core):
    status, text = said(capsys, tmp_path, "target=c", f"core={core}")
    assert status == 0
    worst = re.search(rf"self-test on an emulated {re.escape(CORES[core].name)}: passed, the worst at ([\d.]+)", text)
    count = re.search(r"one step takes (\d+) instructions there", text)
    assert 0.0 < float(worst[1]) < 0.1  # it computed: one that reads the answer from another register says 0
    assert (7_000 < int(count[1]) < 30_000) == CORES[core].fpu and int(count[1]) < 1_000_000
    assert (tmp_path / "out" / "policy.c").is_file()


@pytest.mark.thinned
@pytest.mark.parametrize("weights", ["int8", "w8a8"])
@pytest.mark.parametrize("core", CORES)
def test_rounded_products_are_the_same_bits_on_every_core(tmp_path, core, weights):
    """With and without the instructions for them."""
    policy = exported(tmp_path / "p.onnx", hover_size())
    for name, text in Source(policy, policy.content(), weights).files().items():
        (tmp_path / name).write_text(text)
    board = bearer(core)
    chip = Chip(toolchain.image(tmp_path, core=CORES[core], board=board.name), core=CORES[core], board=board)
    bench, native = Bench(chip, policy), Native(policy.path, weights=weights)
    signals = random_signals(policy.inputs, 5, np.random.default_rng(1))
    for step in range(5):
        now = {name: 10.0 ** (step - 2) * value[step] for name, value in signals.items()}
        ours, theirs = bench.step(now), native.step(now)
        for name, value in ours.items():
            np.testing.assert_array_equal(value, theirs[name])


@pytest.mark.parametrize(("core", "board"), [("rv32imc", "stm32f405"), ("cortex-m3", "esp32c3")])
def test_a_core_of_another_family_than_the_boards_is_refused(tmp_path, core, board):
    with pytest.raises(toolchain.ToolchainError, match=f"^{board} .*, no {CORES[core].name}: core is one of "):
        toolchain.image(tmp_path, core=CORES[core], board=board)


def test_a_library_is_proved_too(capsys, tmp_path):
    status, text = said(capsys, tmp_path, "target=arduino", "core=cortex-m33f")
    assert status == 0 and "self-test on an emulated Cortex-M33F: passed" in text


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("target=c", "core=cortex-m9"), f"one of {', '.join(CORES)}"),
        (("target=crazyflie", f"core={M4F}"), "of target=c|arduino|platformio|zephyr"),
        (("target=c", f"core={M4F}", "budget_us=100"), "budget_us goes without core"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, tmp_path, more, reason):
    status, text = said(capsys, tmp_path, *more)
    assert status == 2 and reason in text and not (tmp_path / "out").exists()

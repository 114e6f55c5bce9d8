"""The emulated STM32F405: what it counts, what it finds wrong, and what a policy costs on it."""

import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import helper

from deploy import cli, export, hil
from deploy.codegen.structs import packed
from deploy.hil import build
from deploy.mcu.boards import RAM, STM32F405
from deploy.mcu.cost import Bench, measure, places
from deploy.mcu.emulator import Chip, EmulatorError
from deploy.mcu.policy import OnChip
from deploy.mcu.ports import EmulatedPort
from deploy.mcu.processors.cortex_m import block_cost, instruction_cycles
from deploy.policy_file import PolicyFile
from policies.models.controller import FeaturePolicy
from policies.models.export import random_signals
from sim.spec import Signal
from sim.terms import Feature
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.sample_policy import exported, random_gru, random_mlp, small

STATE, SIGNALS, COMMANDS = places(STM32F405)
CODE = RAM + 0x8000  # where the tests put code of their own


def hover_size(rng=None) -> FeaturePolicy:
    """22-64-64-4 with tanh: the size that the targets are stated for."""
    rng = rng or np.random.default_rng(0)
    inputs = (Signal("position", (3,), "m"), Signal("rotation", (9,)), Signal("linear_velocity", (3,), "m/s"))
    inputs += (Signal("angular_velocity", (3,), "rad/s"),)
    outputs = (Signal("motor_command", (4,), low=0.0, high=1.0),)
    features = (*(Feature(s.name) for s in inputs), Feature("history"))
    network = random_mlp(rng, 22, 4, hidden=(64, 64))
    return FeaturePolicy("hover_size", "none", "bench", 100.0, inputs, outputs, features, 1, 0.0, network)


@pytest.fixture(scope="module", params=["zig", *(["gcc"] if shutil.which("arm-none-eabi-gcc") else [])])
def hover(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hover")
    policy = exported(folder / "p.onnx", hover_size())
    image, measured = build(policy, folder, request.param)
    return policy, image, measured, request.param


def test_a_22_64_64_4_policy_keeps_to_its_targets(hover):
    _, _, measured, _ = hover
    assert measured.instructions <= 24_000
    assert measured.cycles <= 34_000
    assert measured.stack <= 600
    assert measured.policy_flash <= 27 * 1024  # with its test vectors
    assert measured.selftest < 0.1


@pytest.mark.parametrize(("weights", "share"), [("float16", 0.6), ("int8", 0.4), ("w8a8", 0.47)])
def test_smaller_weights_take_less_flash(hover, tmp_path, weights, share):
    policy, _, measured, compiler = hover
    smaller = build(policy, tmp_path, compiler, weights=weights)[1]
    assert smaller.policy_flash < share * measured.policy_flash
    assert smaller.cycles < 1.2 * measured.cycles


def test_signals_are_not_put_into_a_large_memory(tmp_path):
    """6 kB of state: signals lay in it, whatever was measured then."""
    nodes = [
        helper.make_node("ReduceSum", ["state.h", "1"], ["sum"], keepdims=1),
        helper.make_node("Add", ["sum", "x"], ["y"]),
        helper.make_node("Slice", ["state.h", "0", "most", "1"], ["kept"]),
        helper.make_node("Concat", ["x", "kept"], ["next_state.h"], axis=1),
    ]
    constants = {"0": np.array([0]), "1": np.array([1]), "most": np.array([1494])}
    state = {"h": np.where(np.arange(1500) // 100 == 10, 0.5, 0.0)}
    policy = PolicyFile.load(policy_of(tmp_path / "p.onnx", nodes, {"x": (6,)}, {"y": (6,)}, constants, state))
    bench = Bench(Chip(build(policy, tmp_path)[0]), policy)
    for step, wanted in enumerate(policy.vectors.outputs["y"]):
        got = bench.step({"x": policy.vectors.inputs["x"][step]})
        np.testing.assert_allclose(got["y"], wanted, atol=1e-4)


def test_int8_weights_and_inputs_take_two_fifths_of_the_time_of_a_large_network(tmp_path):
    rng = np.random.default_rng(0)
    constants = {
        name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in {"w0": (24, 256), "w1": (256, 256), "w2": (256, 4), "b0": (256,), "b2": (4,)}.items()
    }
    nodes = [helper.make_node("Gemm", ["x", "w0", "b0"], ["a"]), helper.make_node("Tanh", ["a"], ["b"])]
    nodes += [helper.make_node("Gemm", ["b", "w1", "b0"], ["c"]), helper.make_node("Tanh", ["c"], ["d"])]
    nodes += [helper.make_node("Gemm", ["d", "w2", "b2"], ["y"])]
    policy = PolicyFile.load(policy_of(tmp_path / "p.onnx", nodes, {"x": (24,)}, {"y": (4,)}, constants))
    cost = {}
    for weights in ("float32", "int8", "w8a8"):
        (tmp_path / weights).mkdir()
        cost[weights] = build(policy, tmp_path / weights, weights=weights)[1].cycles
    assert cost["w8a8"] <= 0.4 * cost["float32"] and cost["int8"] < 0.65 * cost["float32"]


def test_every_input_takes_the_same_instructions(hover):
    policy, image, measured, _ = hover
    chip = Chip(image, count=True)
    signals = random_signals(policy.inputs, 30, np.random.default_rng(0))
    costs = set()
    for step in range(30):
        size = 10.0 ** (step % 7 - 3)  # from tiny to far beyond saturation
        chip.write(SIGNALS, packed(policy, {name: size * value[step] for name, value in signals.items()}))
        costs.add(chip.measure("policy_step", STATE, SIGNALS, COMMANDS))
    assert len(costs) == 1
    assert costs.pop().instructions == measured.instructions


@pytest.mark.thinned
@pytest.mark.parametrize("weights", ["float32", "float16", "int8", "w8a8"])
@pytest.mark.parametrize("network", ["mlp", "gru"])
def test_the_chip_computes_the_same_bits_as_this_machine(tmp_path, network, weights):
    policy = exported(tmp_path / "p.onnx", hover_size() if network == "mlp" else small(random_gru))
    image, _ = build(policy, tmp_path, weights=weights)
    bench, native = Bench(Chip(image), policy), Native(policy.path, weights=weights)
    signals = random_signals(policy.inputs, 50, np.random.default_rng(1))
    native.reset()
    for step in range(50):
        now = {name: value[step] for name, value in signals.items()}
        ours, theirs = bench.step(now), native.step(now)
        for name, value in ours.items():
            np.testing.assert_array_equal(value, theirs[name])


def test_the_chip_refuses_what_is_not_finite(hover):
    policy, image, _, _ = hover
    bench = Bench(Chip(image), policy)
    signals = {name: value[0].copy() for name, value in policy.vectors.inputs.items()}
    first = bench.step(signals)
    bench.reset()
    assert bench.step({**signals, "position": np.full(3, np.nan, np.float32)}) is None
    np.testing.assert_array_equal(bench.step(signals)["motor_command"], first["motor_command"])


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("vldmia r1!, {s16, s17, s18, s19, s20, s21, s22, s23}", 9),
        ("vpush {d8, d9, d10}", 7),
        ("push {r4, r5, r6, r7, lr}", 6),
        ("pop.w {r4, pc}", 6),
        ("vmul.f32 s0, s1, s2", 1),
        ("vfma.f32 s0, s1, s2", 3),
        ("vdiv.f32 s0, s1, s2", 14),
        ("ldr.w r0, [r1, #4]", 2),
        ("vstr s0, [r1]", 2),
        ("bne #0x8000000", 3),
        ("bl #0x8000000", 3),
        ("udiv r0, r1, r2", 12),
        ("add.w r0, r1, r2, lsl #23", 1),
        ("bic r0, r1, #1", 1),
        ("bfi r0, r1, #0, #4", 1),
        ("ldm r0!, {r12, lr}", 3),
        ("smlad r4, r12, r3, r4", 1),
        ("sxtb16 r4, r4, ror #8", 1),
        ("lsl.w r12, r12, #8", 1),
        ("ssat r2, #20, r2", 1),
        ("pkhtb r4, r4, r2, asr #16", 1),
        ("strd r4, r5, [r0], #8", 3),
        ("vcvt.s32.f32 s0, s0, #16", 1),
        ("vmov r2, s0", 1),
    ],
)
def test_cycles_are_those_of_the_manual(text, cycles):
    mnemonic, _, operands = text.partition(" ")
    assert instruction_cycles(mnemonic, operands) == cycles


def test_a_result_that_is_used_at_once_costs_a_cycle_more():
    multiply, add = bytes.fromhex("20ee810a"), bytes.fromhex("70ee201a")  # vmul s0, s1, s2; vadd s3, s0, s1
    assert block_cost(multiply + multiply, CODE) == (2, 2)
    assert block_cost(multiply + add, CODE) == (2, 3)
    assert block_cost(add + multiply, CODE) == (2, 2)


def test_instructions_and_stack_are_exact(hover):
    chip = Chip(hover[1], count=True)
    # push {r4, lr}; sub sp, #64; str r0, [sp]; movs r1, #10; 1: subs r1, #1; bne 1b; add sp, #64; pop {r4, pc}
    code = bytes.fromhex("10b5 90b0 0090 0a21 0139 fdd1 10b0 10bd".replace(" ", ""))
    chip.write(CODE, code)
    cost = chip.measure(CODE)
    assert cost.instructions == 4 + 2 * 10 + 2
    assert cost.stack == 8 + 64


def test_arguments_and_results_pass(hover):
    chip = Chip(hover[1])
    chip.write(CODE, bytes.fromhex("40187047"))  # adds r0, r0, r1; bx lr
    assert chip.call(CODE, 40, 2) == 42
    assert not chip.counting
    with pytest.raises(ValueError, match="count=True"):
        chip.measure(CODE)


def test_a_hanging_chip_is_stopped(hover):
    chip = Chip(hover[1], patience=0.2)
    chip.write(CODE, bytes.fromhex("fee7"))  # b .
    with pytest.raises(EmulatorError, match="hangs"):
        chip.call(CODE)


def hang(chip, symbol):
    """That function of the image never comes back any more."""
    chip.write(chip.address(symbol), bytes.fromhex("fee7"))
    chip.processor.machine.ctl_flush_tb()


def test_a_chip_that_hangs_after_its_boot_ends_its_flight(hover, monkeypatch, capsys):
    """Within its patience, by one line and a status that is not 0: it had hung for ever."""
    policy, image, cost, _ = hover
    chip = Chip(image)
    port = EmulatedPort(chip)
    board = OnChip(policy, port, patience=0.05)
    board.reset()
    now = {name: value[:1] for name, value in policy.vectors.inputs.items()}
    assert np.isfinite(board.step(now)["motor_command"]).all()
    hang(chip, "policy_step")
    chip.patience = 0.3  # s; until here a busy machine may take its time
    began = time.monotonic()
    monkeypatch.setattr(hil, "connect", lambda *given, **named: (board, cost))
    monkeypatch.setattr(hil, "evaluate", lambda policy, flown, config, cost, conditions: flown.step(now))
    assert cli.call(hil.main, [f"policy={policy.path}"]) == 2
    assert time.monotonic() - began < 10.0
    assert "the chip hangs at" in capsys.readouterr().err


def test_one_chips_patience_does_not_stop_another(hover):
    """One hangs while the other, in another thread, is called again and again."""
    hung, busy, counted = Chip(hover[1]), Chip(hover[1]), []
    usual = hung.patience
    hung.write(CODE, bytes.fromhex("fee7"))
    busy.write(CODE, bytes.fromhex("40187047"))

    def calls():
        while not done.is_set():
            counted.append(busy.call(CODE, len(counted), 1))

    done, thread = threading.Event(), threading.Thread(target=calls)
    thread.start()
    try:
        with pytest.raises(EmulatorError, match="hangs"):
            hung.patience = 0.5  # s
            hung.call(CODE)
        hung.patience = usual  # what follows may take long on a busy machine
        assert hung.call("policy_reset", STATE) is not None  # nor is the next call of the same one
    finally:
        done.set()
        thread.join()
    assert counted == list(range(1, len(counted) + 1)) and counted


def test_a_chip_that_restarts_for_ever_is_an_error(hover, monkeypatch):
    chip = Chip(hover[1])
    chip.run()
    monkeypatch.setattr(chip, "_start", lambda address, until: setattr(chip, "_reset_wanted", True))
    with pytest.raises(EmulatorError, match="restarts for ever"):
        chip.run()


def test_a_fault_says_where(hover):
    chip = Chip(hover[1])
    chip.write(CODE, bytes.fromhex("4ff0c04000687047"))  # mov.w r0, #0x60000000; ldr r0, [r0]; bx lr
    with pytest.raises(EmulatorError, match="faulted at 0x20008"):
        chip.call(CODE)


def test_an_unknown_function_is_named_with_the_choices(hover):
    with pytest.raises(KeyError, match=r"no symbol 'policy_fly'; it has: .*policy_step"):
        Chip(hover[1]).address("policy_fly")


def looking(path, size):
    """A policy of one small convolution over an image of bytes."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32), "s": np.float32(1 / 255)}
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=1),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Mul", ["planes", "s"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "w"], ["seen"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["seen"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["y"]),
    ]
    return PolicyFile.load(
        policy_of(path, nodes, {"image": (size, size, 3)}, {"y": (8,)}, weights, kinds={"image": "|u1"})
    )


def test_a_policy_that_sees_runs_on_the_chip(tmp_path):
    assert build(looking(tmp_path / "p.onnx", 20), tmp_path)[1].selftest < 0.5


def test_one_that_fills_the_memory_is_not_measured(tmp_path):
    with pytest.raises(EmulatorError, match="bytes of memory; only 65536 can be measured"):
        build(looking(tmp_path / "p.onnx", 64), tmp_path)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"x": (8000,), "y": (1,)}, "its state and signals need 36096 bytes of memory; only 32768 can be measured"),
        ({"x": (1,), "y": (8000,)}, r"its commands need 32000 bytes of memory; only \d+ can be measured"),
    ],
)
def test_what_does_not_fit_beside_the_image_is_named(hover, shapes, said):
    """It was told with the size of the image, which fits."""
    image = hover[1]
    group = {name: (Signal(name, shape),) for name, shape in shapes.items()}
    told = SimpleNamespace(inputs=group["x"], outputs=group["y"], state=(), types={"x": "<f4"})
    with pytest.raises(EmulatorError, match=said):
        measure(Chip(image), told)


def test_what_is_no_image_is_refused(tmp_path):
    (tmp_path / "x.elf").write_bytes(b"nothing")
    with pytest.raises(EmulatorError, match="not a firmware image"):
        Chip(tmp_path / "x.elf")


def test_the_command_proves_its_image(hover, tmp_path, capsys):
    policy, _, measured, compiler = hover
    given = [f"policy={policy.path}", "target=stm32f405", f"out={tmp_path}", f"compiler={compiler}"]
    assert cli.call(export.main, given) == 0
    shown = capsys.readouterr().out
    assert "self-test on the emulated chip: passed" in shown
    assert f"one step: {measured.instructions} instructions" in shown
    assert (tmp_path / "policy.elf").stat().st_size > 0

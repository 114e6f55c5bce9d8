"""What an export says a policy takes of its chip, and what is too much."""

import numpy as np
import pytest
from onnx import helper

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.codegen.cycles import PRODUCT
from deploy.codegen.source import Source
from deploy.hil import build
from deploy.mcu.budget import Budget, BudgetError, Demand
from deploy.mcu.cost import measure
from deploy.mcu.emulator import Chip
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.test_operators import GRAPHS, R
from tests.deploy.mcu.test_emulator import hover_size
from tests.deploy.sample_policy import exported

F = np.float32
LARGE = one_node("Gemm", "w", constants={"w": R.normal(size=(256, 64)).astype(F) / F(16)}, shape=(256,), result=(64,))
ESTIMATED = {"a layer": LARGE, **{name: GRAPHS[name] for name in ("Conv", "MaxPool", "LSTM", "LayerNormalization")}}


def estimate(path, weights="float32"):
    policy = PolicyFile.load(path)
    return Demand.estimated(Source(policy, content_of(str(path)), weights))


def measured(path, folder, weights="float32"):
    policy = PolicyFile.load(path)
    for name, text in Source(policy, content_of(str(path)), weights).files().items():
        (folder / name).write_text(text)
    return Demand.measured(measure(Chip(toolchain.image(folder), count=True), policy))


@pytest.mark.parametrize("weights", PRODUCT)
def test_the_estimate_of_a_network_is_near_what_the_emulator_counts(tmp_path, weights):
    path = exported(tmp_path / "p.onnx", hover_size()).path
    guess, counted = estimate(path, weights), measured(path, tmp_path, weights)
    assert 0.7 < guess.seconds / counted.seconds < 1.4
    assert 0.7 < guess.flash / counted.flash < 1.4
    assert guess.memory <= counted.memory
    assert guess.stack >= counted.stack


@pytest.mark.parametrize("name", ESTIMATED)
def test_the_estimate_of_an_operator_is_near_what_the_emulator_counts(tmp_path, name):
    path = policy_of(tmp_path / "p.onnx", **ESTIMATED[name])
    assert 0.7 < estimate(path).seconds / measured(path, tmp_path).seconds < 1.4


def all_at_once(count):
    """A graph of elementwise operators whose results are all needed again after the last of them."""
    nodes = [helper.make_node("Mul", ["x", f"c{k}"], [f"a{k}"]) for k in range(count)]
    nodes += [helper.make_node("Sin", [f"a{k}"], [f"b{k}"]) for k in range(count)]
    total = "x"
    for k in reversed(range(count)):
        nodes.append(helper.make_node("Mul", [total, f"b{k}"], [f"d{k}"]))
        nodes.append(helper.make_node("Add", [f"d{k}", f"a{k}"], [f"e{k}"]))
        total = f"e{k}"
    nodes.append(helper.make_node("Tanh", [total], ["y"]))
    constants = {f"c{k}": F(0.1 + 0.01 * k) for k in range(count)}
    return {"nodes": nodes, "inputs": {"x": (4,)}, "outputs": {"y": (4,)}, "constants": constants}


def test_no_graph_takes_more_stack_than_is_promised(tmp_path):
    """On a Crazyflie the task of a slow policy has as much, and behind it is other memory."""
    path = policy_of(tmp_path / "p.onnx", **all_at_once(60))
    assert measured(path, tmp_path).stack <= estimate(path).stack


def said(capsys, path, out, *more):
    status = cli.call(export.main, [f"policy={path}", f"out={out}", *more])
    return status, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("target", "how"), [("c", "estimated"), ("crazyflie", "estimated"), ("stm32f405", "measured on the emulated")]
)
def test_every_export_says_what_a_step_takes(tmp_path, capsys, target, how):
    status, text = said(capsys, "quad_any", tmp_path / "out", f"target={target}")
    assert status == 0
    assert "one step takes " in text and f"bytes ({how}" in text and " us, flash " in text


@pytest.mark.parametrize("target", ["c", "crazyflie", "stm32f405"])
def test_more_than_the_budget_is_refused_and_nothing_is_written(tmp_path, capsys, target):
    status, text = said(capsys, "quad_any", tmp_path / "out", f"target={target}", "budget_us=20")
    assert status == 2
    assert "more than 20 us, as budget_us says" in text
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_the_stabilizer_task_has_its_own(tmp_path, capsys, monkeypatch):
    """1 667 us: what was measured of a network 24-256-256-4. At 100 Hz a task of its own has 3 000."""
    monkeypatch.setattr(Demand, "estimated", lambda source: Demand(1667e-6, 300_000, 3_000, 256, "estimated"))
    vehicle = tmp_path / "out" / "src" / "vehicle.h"
    status, text = said(capsys, "quad_any", tmp_path / "out", "target=crazyflie")
    assert status == 0 and "56% of 3000 us: 30% of the processor at 100 Hz, in a task of its own" in text
    assert "#define POLICY_TASK 1" in vehicle.read_text()
    status, text = said(capsys, "quad_any", tmp_path / "out", "target=crazyflie", "budget_us=1666")
    assert status == 2 and "more than 1666 us, as budget_us says" in text


def test_what_takes_a_third_of_the_processor_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Demand, "estimated", lambda source: Demand(3001e-6, 300_000, 3_000, 256, "estimated"))
    status, text = said(capsys, "quad_any", tmp_path / "out", "target=crazyflie")
    assert status == 2 and not (tmp_path / "out").exists()
    assert "more than 3000 us, 30% of the processor at 100 Hz" in text and "budget_us=3001" in text
    assert said(capsys, "quad_any", tmp_path / "out", "target=crazyflie", "budget_us=3001")[0] == 0
    assert "#define POLICY_TASK 1" in (tmp_path / "out" / "src" / "vehicle.h").read_text()


def test_flash_and_memory_have_an_end():
    demand = Demand(1e-6, 800_000, 40_000, 256, "estimated")
    with pytest.raises(BudgetError, match="flash has 700000 bytes to give; weights=int8"):
        Budget(flash=700_000).check(demand)
    with pytest.raises(BudgetError, match="memory has 30000 bytes to give"):
        Budget(memory=30_000).check(demand)


def test_of_an_image_that_is_too_large_the_linker_is_quoted(tmp_path):
    weight = R.normal(size=(512, 640)).astype(F)
    path = policy_of(tmp_path / "p.onnx", **one_node("Gemm", "w", constants={"w": weight}, shape=(512,), result=(640,)))
    with pytest.raises(toolchain.ToolchainError, match="overflow"):
        build(PolicyFile.load(path), tmp_path)

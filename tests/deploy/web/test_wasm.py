"""A policy as WebAssembly, run by node, against onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from deploy import PolicyFile, cli, export
from deploy.codegen.source import Source
from deploy.policy_file import FLOAT32
from deploy.web import wasm
from policies.models.export import random_signals
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.sample_policy import exported, random_gru, random_mlp, small
from tests.deploy.web.node import needs_node, ran

PRETRAINED = "deploy/pretrained/quad_any.onnx"


def written(folder, policy: str, *options: str):
    """The folder that the command fills."""
    assert cli.call(export.main, [f"policy={policy}", "target=wasm", f"out={folder}", *options]) == 0
    return folder


@needs_node
@pytest.mark.parametrize("kind", ["quad_any", "gru", "mlp"])
def test_the_module_commands_what_onnxruntime_commands(tmp_path, kind):
    path = PRETRAINED
    if kind != "quad_any":
        path = exported(tmp_path / "p.onnx", small({"gru": random_gru, "mlp": random_mlp}[kind], history=3)).path
    policy = PolicyFile.load(path)
    signals = random_signals(policy.inputs, 60, np.random.default_rng(3))
    steps = [{name: value[k].ravel().tolist() for name, value in signals.items()} for k in range(60)]
    made = ran("steps.mjs", written(tmp_path / "out", path), told=steps)
    assert made["imports"] == []
    assert made["used"] < 0.1
    assert made["contract"]["sha256"] == policy.sha256
    policy.reset()
    for step, got in zip(steps, made["commands"], strict=True):
        want = policy.step({s.name: np.float32(step[s.name]).reshape(s.shape) for s in policy.inputs})
        for signal in policy.outputs:
            tolerated = policy.vectors.tolerance * (signal.high - signal.low)
            assert np.abs(np.ravel(want[signal.name]) - got[signal.name]).max() <= tolerated


@needs_node
def test_a_signal_that_is_missing_or_not_finite_changes_nothing(tmp_path):
    policy = exported(tmp_path / "p.onnx", small(random_gru, history=1))
    good = {name: value[0].ravel().tolist() for name, value in policy.vectors.inputs.items()}
    steps = [{**good, "rate": [0.0]}, {**good, "rate": ["NaN", 0.0]}, {"near": good["near"]}, good]
    *bad, last = ran("steps.mjs", written(tmp_path / "out", policy.path), told=steps)["commands"]
    assert bad[0] == "TypeError: signal rate: needs 2 numbers"
    assert bad[1] == "RangeError: a signal or a result is not finite"
    assert bad[2] == "TypeError: signal goal: needs 3 numbers"
    for name, want in policy.vectors.outputs.items():
        np.testing.assert_allclose(last[name], want[0].ravel(), atol=1e-5)


@needs_node
def test_bytes_and_numbers_lie_where_the_module_says(tmp_path):
    """One uint8 before floats: what C pads, JavaScript must skip."""
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=1), helper.make_node("Concat", ["c", "y"], ["z"], axis=1)]
    path = policy_of(tmp_path / "p.onnx", nodes, {"x": (3,), "y": (2,)}, {"z": (5,)}, kinds={"x": "|u1"})
    steps = [{"x": [1, 2, 250], "y": [0.5, -4.0]}]
    made = ran("steps.mjs", written(tmp_path / "out", str(path)), told=steps)
    assert [told["offset"] for told in made["contract"]["inputs"]] == [0, 4]
    assert made["commands"] == [{"z": [1, 2, 250, 0.5, -4.0]}]


@needs_node
def test_a_build_that_computes_otherwise_does_not_load(tmp_path):
    policy = exported(tmp_path / "p.onnx")
    source = Source(policy, policy.content())
    source.expected = ({k: v + FLOAT32.type(0.01) for k, v in source.expected[0].items()}, source.expected[1])
    (tmp_path / "policy.wasm").write_bytes(wasm.module(source, {}, {}, "auto"))
    (tmp_path / "policy.mjs").write_bytes((wasm.WEB / "policy.mjs").read_bytes())
    with pytest.raises(AssertionError, match=r"self-test failed: \d+"):
        ran("steps.mjs", tmp_path, told=[])


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("compiler=gcc", "gcc makes no WebAssembly; compiler=zig does"),
        ("budget_us=5", "budget_us is for microcontrollers; target=wasm has none"),
    ],
)
def test_what_webassembly_cannot_have_is_refused(tmp_path, capsys, option, why):
    command = [f"policy={PRETRAINED}", "target=wasm", f"out={tmp_path / 'out'}", option]
    assert cli.call(export.main, command) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_lengths_are_leb128():
    assert wasm.section("ab", b"x" * 200) == b"\0\xcb\x01\x02ab" + b"x" * 200

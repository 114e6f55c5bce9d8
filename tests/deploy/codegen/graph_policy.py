"""Policy files around arbitrary ONNX nodes, for the tests of the C generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from deploy.policy_file import open_session
from policies.models.export import serialise
from sim import spec
from sim.spec import Signal

KINDS = {"<f4": TensorProto.FLOAT, "|u1": TensorProto.UINT8}


def policy_of(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    constants: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
    kinds: dict[str, str] | None = None,
    steps: int = 8,
    opset: int = 18,
) -> Path:
    """Write a policy file with these nodes; its test vectors are what onnxruntime makes of random signals.

    `inputs` and `outputs` are shapes without the batch; `state` holds initial values of state.NAME.
    """
    kinds, state = kinds or {}, {name: np.asarray(v, np.float32) for name, v in (state or {}).items()}

    def values(shapes: dict[str, tuple[int, ...]]) -> list[Any]:
        return [helper.make_tensor_value_info(n, KINDS[kinds.get(n, "<f4")], ["N", *s]) for n, s in shapes.items()]

    shapes = {name: value.shape for name, value in state.items()}
    before = values(inputs) + values({f"state.{n}": s for n, s in shapes.items()})
    after = values(outputs) + values({f"next_state.{n}": s for n, s in shapes.items()})
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    model = helper.make_model(
        helper.make_graph(nodes, "test", before, after, tensors),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8 if opset < 20 else 10,
    )
    rng = np.random.default_rng(0)
    signals = {
        name: rng.integers(0, 256, (steps, *shape)).astype(np.uint8)
        if name in kinds
        else rng.normal(size=(steps, *shape)).astype(np.float32)
        for name, shape in inputs.items()
    }
    session = open_session("the test's model", model.SerializeToString())
    carried = {f"state.{name}": value[None] for name, value in state.items()}
    results: list[list[Any]] = []
    for step in range(steps):
        made = session.run(None, {**{n: v[step : step + 1] for n, v in signals.items()}, **carried})
        carried = dict(zip(carried, made[len(outputs) :], strict=True))
        results.append([value[0].tolist() for value in made])
    columns = [list(column) for column in zip(*results, strict=True)]
    metadata = {
        "name": "test",
        "task": "none",
        "robot": "bench",
        "rate_hz": 100.0,
        "inputs": spec.to_json(tuple(Signal(n, s) for n, s in inputs.items())),
        "outputs": spec.to_json(tuple(Signal(n, s) for n, s in outputs.items())),
        "state": [{"name": n, "shape": list(v.shape), "initial": v.tolist()} for n, v in state.items()],
        "training": {},
        "evaluation": None,
        "vectors": {
            "tolerance": 1e-5,
            "inputs": {n: v.tolist() for n, v in signals.items()},
            "outputs": dict(zip(outputs, columns, strict=False)),
            "state": dict(zip(state, columns[len(outputs) :], strict=True)),
        },
    }
    path.write_bytes(serialise(model, metadata))
    return path


def one_node(
    operator: str,
    *inputs: str,
    constants: dict[str, Any] | None = None,
    shape: tuple[int, ...] = (6,),
    result: tuple[int, ...] = (6,),
    **attributes: Any,
) -> dict[str, Any]:
    """A graph of one operator between the signal x and the command y: arguments of `policy_of`."""
    return {
        "nodes": [helper.make_node(operator, ["x", *inputs], ["y"], name="the_node", **attributes)],
        "inputs": {"x": shape},
        "outputs": {"y": result},
        "constants": constants,
    }

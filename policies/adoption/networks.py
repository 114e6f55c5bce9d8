"""Networks in the ONNX files of others, and what else such a file says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from deploy.policy_file import PolicyFileError
from deploy.remote.subgraph import Part
from deploy.trust.onnx_limits import Limits
from deploy.trust.onnx_reader import OnnxError
from deploy.trust.onnx_reader import read as read_graph
from deploy.trust.reading import read_regular
from policies.models.graph import OPSET, Graph
from policies.models.networks import Array


class ForeignGraph:
    """The network in an ONNX file: one input (n, inputs), one output (n, outputs), rows apart from one another."""

    def __init__(self, path: str, output: str = "") -> None:
        """PolicyFileError when the file is no ONNX graph, takes or returns something else, or mixes its rows."""
        self.path = path
        model = _model(path)
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in held]
        outputs = [value.name for value in model.graph.output]
        if not output and len(outputs) > 1:
            output = next((name for name in ("actions", "action") if name in outputs), "")
        output = output or outputs[0]
        if output not in outputs:
            raise PolicyFileError(f"{path}: network.output: {output!r} is not one of {', '.join(outputs)}")
        if len(outputs) > 1 and len(inputs) > 1:
            more = ", ".join(value.name for value in inputs[1:])
            raise PolicyFileError(
                f"{path}: takes {more} beside {inputs[0].name}: networks with a state are not adopted"
            )
        if len(inputs) != 1:
            found = ", ".join(value.name for value in inputs) or "none"
            raise PolicyFileError(f"{path}: the network's inputs are {found}; it must take one vector")
        sizes = [axis.dim_value for axis in inputs[0].type.tensor_type.shape.dim]
        if len(sizes) != 2 or sizes[1] < 1 or inputs[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise PolicyFileError(
                f"{path}: the network's input {inputs[0].name!r} is {sizes}; it must be (N, k) numbers of float32"
            )
        self._part = Part(path, model, {inputs[0].name: (sizes[1],)}, output)
        self._inputs = int(sizes[1])
        self._outputs = self._try()

    def _try(self) -> int:
        """How many numbers it returns, found by running it on one row and on three."""
        x = np.random.default_rng(0).normal(size=(3, self._inputs)).astype(np.float32)
        alone, together = [self._part.run(x[k : k + 1]) for k in range(3)], self._part.run(x)
        if together.ndim != 2 or together.shape[0] != 3 or together.shape[1] < 1 or together.dtype != np.float32:
            raise PolicyFileError(
                f"{self.path}: of 3 rows the network makes {together.dtype} {together.shape}; it must make (3, k) of "
                "float32: export it with a free batch size"
            )
        if not np.allclose(np.concatenate(alone), together, rtol=1e-4, atol=1e-5):
            raise PolicyFileError(f"{self.path}: a row of the network's output depends on other rows")
        outputs: int = together.shape[1]
        return outputs

    @property
    def inputs(self) -> int:
        return self._inputs

    @property
    def outputs(self) -> int:
        return self._outputs

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        return self._part.run(x), {}

    def write(self, graph: Graph, x: str) -> str:
        return graph.inline(self._part, x)


def _model(path: str) -> onnx.ModelProto:
    """The graph of a file, in the opset that we write, without the notes of its exporter."""
    content = onnx_content(path)
    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # protobuf's DecodeError is no public name of onnx
        raise PolicyFileError(f"{path}: is no ONNX file: {' '.join(str(error).split())[:200]}") from None
    _strip(model)
    _bring_in(path, model)
    try:
        opset = int(read_graph(model.SerializeToString()).opset)
        if opset != OPSET:
            model = version_converter.convert_version(model, OPSET)
    except OnnxError as error:
        raise PolicyFileError(f"{path}: not read: {error}") from None
    except (RuntimeError, ValueError) as error:  # of the converter
        said = " ".join(str(error).split())[:200]
        raise PolicyFileError(f"{path}: cannot be brought from opset {opset} to {OPSET}: {said}") from None
    return model


def _bring_in(path: str, model: onnx.ModelProto) -> None:
    """Weights that torch's exporter leaves in a file beside (policy.onnx.data), which is then read, but no other."""
    held: dict[str, bytes] = {}
    taken = dict[str, int]()  # bytes of each: a file of 1 kB may name the same ones as often as it likes
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        told = {entry.key: entry.value for entry in tensor.external_data}
        place = told.get("location", "")
        own = f"{os.path.basename(path)}.data"
        if place not in (own, "policy.onnx.data"):
            raise PolicyFileError(
                f"{path}: its weights are in {place!r:.80}, which is not read, but only {own} beside it; "
                "onnx.save(onnx.load(FILE), NEW) puts all into one file"
            )
        if place not in held:
            held[place] = onnx_content(os.path.join(os.path.dirname(path), place))
        try:
            start, size = int(told.get("offset", "0")), int(told["length"])
        except (KeyError, ValueError):
            start, size = 0, -1
        if not 0 <= start <= start + size <= len(held[place]):
            raise PolicyFileError(f"{path}: the weights {tensor.name!r:.80} are not in {place}")
        taken[place] = taken.get(place, 0) + size
        if taken[place] > len(held[place]):
            raise PolicyFileError(f"{path}: its weights overlap in {place}")
        tensor.raw_data = held[place][start : start + size]
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _strip(model: onnx.ModelProto) -> None:
    """Leave out what tells where in somebody's code a node comes from; every node has a name of its own."""
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    used = {"", "ai.onnx", *(node.domain for node in model.graph.node)}
    for index in reversed(range(len(model.opset_import))):
        if model.opset_import[index].domain not in used:  # tf2onnx declares ai.onnx.ml in every file
            del model.opset_import[index]
    for holder in (model, model.graph):
        holder.ClearField("metadata_props")
        holder.ClearField("doc_string")
    model.graph.ClearField("value_info")
    things: Sequence[Any] = [*model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output]
    for thing in things:
        thing.ClearField("metadata_props")
        thing.ClearField("doc_string")


def onnx_content(path: str) -> bytes:
    """The bytes of a file that is not too large to be loaded; PolicyFileError when it cannot be read."""
    try:
        return read_regular(path, Limits.declared().memory / 3)
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}; if you trust it, SIM2METAL_MEMORY_MB=... allows more") from None


def notes(path: str) -> dict[str, str]:
    """The metadata that an exporter wrote into an ONNX file, as texts by name."""
    try:
        model = onnx.load_from_string(onnx_content(path))
    except PolicyFileError:
        raise
    except Exception as error:  # see `_model`
        raise PolicyFileError(f"{path}: is no ONNX file: {' '.join(str(error).split())[:200]}") from None
    return {entry.key: entry.value for entry in model.metadata_props}

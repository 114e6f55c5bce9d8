"""Torch modules as ONNX nodes among others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from policies.models.graph import OPSET, Graph

if TYPE_CHECKING:
    import torch


def spliced(graph: Graph, module: torch.nn.Module, examples: tuple[Any, ...], given: tuple[str, ...]) -> str:
    """Torch's own ONNX export of a module with one output, fed with these tensors; the name of its output.

    `examples` are inputs for two rows; any number of rows goes. ValueError for a module that takes more than standard
    ONNX. Weights that are numbers of float16 take half the space.
    """
    import onnx.compose
    import torch
    from onnx import numpy_helper

    rows = torch.export.Dim("N")
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            examples,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=tuple(_free(example, rows) for example in examples),
            verbose=False,
        )
    assert program is not None
    model = onnx.compose.add_prefix(program.model_proto, f"torch_{graph.made}/")
    if model.functions or any(opset.domain for opset in model.opset_import):
        raise ValueError("this torch module exports to operators outside of standard ONNX")
    names = {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        names[tensor.name] = (
            graph.weight(value) if value.dtype == "float32" else graph.constant(value, value.dtype.type)
        )
    names |= dict(zip((value.name for value in model.graph.input), given, strict=True))
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    graph.nodes.extend(model.graph.node)
    output: str = model.graph.output[0].name
    return output


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about its own code, and about what is not installed and not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*treespec.*", FutureWarning)
        warnings.filterwarnings("ignore", ".*axis name.*", UserWarning)
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def _free(example: Any, rows: Any) -> Any:
    """The same structure, in which each tensor's first size is any."""
    return tuple(_free(one, rows) for one in example) if isinstance(example, tuple) else {0: rows}

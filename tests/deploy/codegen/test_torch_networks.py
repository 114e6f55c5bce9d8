"""Networks as torch's exporter writes them, as C: against onnxruntime, with float32 and with int8 weights."""

import warnings

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from deploy.policy_file import PolicyFile
from policies.models.graph import OPSET
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.codegen.torch_networks import NETWORKS

# The exporter takes seconds per network: these are exported every time, the others by `make test-all`. What operators
# do one by one, test_every_operator.py tests; attention alone is in test_export_torch_c.py.
OFTEN = {"gelu", "top k", "embedding", "mixture of experts", "einsum", "transformer, norm first", "u-net"}
OFTEN |= {"gru, both ways", "dilated convolutions over time", "impala", "dilated, same"}


def exported(path, network, opset=OPSET):
    """The network as a policy file, from torch's exporter."""
    torch.manual_seed(0)
    module = network.make().eval()
    example = torch.zeros(2, *network.shape, dtype=torch.uint8 if network.bytes else torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        model = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            opset_version=opset,
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        ).model_proto
        shape = tuple(module(example).shape[1:])
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kinds = {"x": "|u1"} if network.bytes else {}
    return policy_of(
        path, list(model.graph.node), {"x": network.shape}, {"y": shape}, constants, kinds=kinds, opset=opset
    )


def signal(network, size, rng):
    if network.bytes:
        return rng.integers(0, 256, network.shape, np.uint8)
    return (size * rng.normal(size=network.shape)).astype(np.float32)


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS])
def test_a_network_of_torch_in_c_is_what_onnxruntime_computes(tmp_path, name):
    network = NETWORKS[name]
    path = exported(tmp_path / "p.onnx", network)
    native, policy, rng = Native(path), PolicyFile.load(path), np.random.default_rng(1)
    assert native.selftest < 0.5
    for size in (0.01, 1.0, 3.0) * 7:
        now = {"x": signal(network, size, rng)}
        want, got = policy.step(now), native.step(now)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5 * max(0.2, np.abs(want["y"]).max()))
    assert Native(path, weights="int8").selftest < 0.7


@pytest.mark.parametrize("name", ["gelu", "attention"])
def test_a_newer_opset_is_c_as_well(tmp_path, name):
    """From 20 on torch writes GELU as one operator."""
    native = Native(exported(tmp_path / "p.onnx", NETWORKS[name], opset=20))
    assert native.selftest < 0.5

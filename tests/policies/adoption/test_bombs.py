"""Small files of which much would come out: they are refused before it does."""

import struct
import zipfile

import h5py
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from deploy.policy_file import PolicyFileError
from policies.adoption.formats.rl_tools import from_rl_tools
from policies.adoption.formats.rsl_rl import from_rsl_rl
from policies.adoption.found import from_onnx

MANY = 20_000  # a matrix of so many rows and columns: 1.6 GB as float32


def sparse(path, size):
    """A tar of one member that keeps nothing and says that it has so many bytes (GNU's old sparse format)."""
    header = bytearray(512)

    def put(place, text):
        header[place : place + len(text)] = text

    put(0, b"actor/meta")
    put(100, b"0000644\0")
    put(124, b"%011o\0" % 0)
    put(156, b"S")
    put(257, b"ustar  \0")
    put(483, b"%011o\0" % size)
    put(148, b" " * 8)
    put(148, b"%06o\0 " % sum(header))
    path.write_bytes(bytes(header) + bytes(1024))
    return path


def test_a_sparse_member_of_an_archive_is_refused(tmp_path):
    with pytest.raises(PolicyFileError, match="is not what an archive of rl_tools holds"):
        from_rl_tools(str(sparse(tmp_path / "a.tar", MANY**2)), {})


def test_layers_that_were_never_written_are_counted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("actor").attrs["type"] = "sequential"
        for k in range(4):
            layer = file.create_group(f"actor/layers/{k}")
            layer.attrs.update(type="dense", activation_function="IDENTITY")
            for name, shape in (("weights", (5000, 5000)), ("biases", (5000,))):
                layer.create_dataset(f"{name}/parameters", shape, "f4", chunks=(1000, *shape[1:]))
    assert (tmp_path / "a.h5").stat().st_size < 100_000
    with pytest.raises(PolicyFileError, match="takes too much memory"):
        from_rl_tools(str(tmp_path / "a.h5"), {})


def state(**tensors):
    return {"model_state_dict": {f"actor.0.{name}": value for name, value in tensors.items()}}


def test_one_number_as_a_large_matrix_is_refused(tmp_path):
    one = torch.zeros(1)
    torch.save(state(weight=one.expand(MANY, MANY), bias=one.expand(MANY)), tmp_path / "a.pt")
    with pytest.raises(PolicyFileError, match="would take more than 256 MB"):
        from_rsl_rl(str(tmp_path / "a.pt"), {})


def test_one_tensor_under_many_names_is_refused(tmp_path):
    same = torch.zeros(1000, 1000)
    torch.save({"model_state_dict": {f"actor.{k}.weight": same for k in range(100)}}, tmp_path / "a.pt")
    with pytest.raises(PolicyFileError, match="would take more than 256 MB"):
        from_rsl_rl(str(tmp_path / "a.pt"), {})


def test_dictionaries_that_hold_one_another_are_counted(tmp_path):
    held = {}
    for _ in range(4):
        held = dict.fromkeys(range(2000), held)
    torch.save(held, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 200_000
    with pytest.raises(PolicyFileError, match="more than 1000000 entries"):
        from_rsl_rl(str(tmp_path / "a.pt"), {})


def test_a_compressed_checkpoint_is_refused(tmp_path):
    torch.save(state(weight=torch.zeros(2000, 2000), bias=torch.zeros(2000)), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "a.pt", "w", 8) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    from_rsl_rl(str(tmp_path / "whole.pt"), {})
    with pytest.raises(PolicyFileError, match="is compressed"):
        from_rsl_rl(str(tmp_path / "a.pt"), {})


def test_weights_beside_a_graph_are_taken_once(tmp_path):
    content = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
    (tmp_path / "a.onnx.data").write_bytes(content)

    def write(places):
        tensors = []
        for k, place in enumerate(places):
            tensor = TensorProto(name=f"w{k}", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "a.onnx.data"), ("offset", place), ("length", 8)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
        nodes = [helper.make_node("Mul", ["x", "w0"], ["a"]), helper.make_node("Add", ["a", "w1"], ["y"])]
        x, y = (helper.make_tensor_value_info(name, 1, ["N", 2]) for name in "xy")
        graph = helper.make_graph(nodes, "g", [x], [y], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
        return str(tmp_path / "a.onnx")

    network = from_onnx(write([0, 8]), {}).network
    assert network.forward(np.float32([[1.0, 1.0]]), {})[0] == pytest.approx(np.float32([[4.0, 6.0]]))
    with pytest.raises(PolicyFileError, match="overlap"):
        from_onnx(write([0, 8, 0]), {})
    assert onnx.load(tmp_path / "a.onnx", load_external_data=False).graph.initializer[2].name == "w2"

"""deploy.export target=safetensors: the numbers of a policy file for other tools, and the format that they are in."""

import json
import struct
import tracemalloc

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from deploy import cli, export
from deploy.hub.weights import FILE
from deploy.policy_file import PolicyFile
from deploy.trust import safetensors
from tests.deploy.sample_policy import exported

TENSORS = {
    "whole": np.arange(6, dtype=np.int64).reshape(2, 3),
    "real": np.array([1.5, np.nan, -0.0], np.float32),
    "none": np.zeros((0, 3), np.float16),
    "alone": np.array(7, np.uint8),
    "so": np.array([True, False]),
}


def same(one, two):
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def test_weights_come_back_bit_by_bit_with_the_contract(tmp_path):
    exported(tmp_path / "p.onnx")
    told = [f"policy={tmp_path / 'p.onnx'}", "target=safetensors", f"out={tmp_path / 'w'}"]
    assert cli.call(export.main, told) == 0
    tensors, texts = safetensors.read(str(tmp_path / "w" / FILE), 1e9)
    stored = onnx.load(tmp_path / "p.onnx").graph.initializer
    assert {t.name for t in stored} == tensors.keys() != set()
    assert all(same(tensors[t.name], numpy_helper.to_array(t)) for t in stored)
    policy = PolicyFile.load(tmp_path / "p.onnx")
    contract = json.loads(texts["sim2metal"])
    assert contract == {key: value for key, value in policy.metadata.items() if key != "vectors"}
    for more in ("weights=int8", "budget_us=5"):
        assert cli.call(export.main, [*told, more]) == 2


def test_the_format_is_the_librarys():
    library = pytest.importorskip("safetensors.numpy")
    content = safetensors.to_bytes(TENSORS, {"about": "ü"})
    theirs = library.load(content)
    assert theirs.keys() == TENSORS.keys() and all(same(theirs[name], value) for name, value in TENSORS.items())
    ours, texts = safetensors.from_bytes(library.save(TENSORS, {"about": "ü"}))
    assert ours.keys() == TENSORS.keys() and all(same(ours[name], value) for name, value in TENSORS.items())
    assert texts == {"about": "ü"}


def test_a_brain_float_is_read_as_a_float():
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + struct.pack("<HH", 0x3FC0, 0xC000)
    tensors, _ = safetensors.from_bytes(content)
    assert tensors["x"].dtype == np.float32 and tensors["x"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "does not fill its place"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "begins at 4"),
        ({"x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, "its tensors are 0 bytes"),
        ({"x": {"dtype": "F8", "shape": [1], "data_offsets": [0, 1]}}, "dtype 'F8'"),
        ({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "no shape"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "does not fill"),
        ({"x": 3}, "dtype None"),
        ({"__metadata__": {"a": 1}}, "more than texts"),
        ([], "no object"),
    ],
)
def test_what_contradicts_itself_is_refused(header, what):
    text = json.dumps(header).encode()
    with pytest.raises(safetensors.SafetensorsError, match=what):
        safetensors.from_bytes(struct.pack("<Q", len(text)) + text + bytes(4))


@given(st.data())
def test_a_damaged_file_is_refused_or_read(data):
    content = bytearray(safetensors.to_bytes(TENSORS, {"about": "it"}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for damaged in (bytes(content), cut):
        try:
            safetensors.from_bytes(damaged)
        except safetensors.SafetensorsError as error:
            assert str(error)


def told(header):
    """A file of this header, and nothing behind it."""
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        b'{"x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "x": {"dtype": "U8"}}',
        b'{"y": {"dtype": "F32", "x": [0], "x": [0, 0]}}',
        b'{"__metadata__": {"x": "a", "x": "b"}}',
    ],
)
def test_names_that_are_there_twice_are_refused(header):
    with pytest.raises(safetensors.SafetensorsError, match="its header names 'x' twice"):
        safetensors.from_bytes(told(header))


def test_a_header_takes_no_more_memory_than_the_file_may(tmp_path):
    path, header = tmp_path / "x.safetensors", b'{"x":[' + b'{"":{}},' * 40_000 + b"0]}"
    path.write_bytes(told(header))
    tracemalloc.start()
    try:
        with pytest.raises(safetensors.SafetensorsError, match=f"its header has {len(header)} bytes, more than 25000"):
            safetensors.read(str(path), 1e6)
        assert tracemalloc.get_traced_memory()[1] < 2e6  # the file, and what reads it
    finally:
        tracemalloc.stop()
    with pytest.raises(safetensors.SafetensorsError, match="more than 10000000"):
        safetensors.from_bytes(told(b" " * 10_000_001))

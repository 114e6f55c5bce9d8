"""The bytes of an ONNX model as plain data, read strictly: before onnxruntime sees them, and without the onnx library.

Of the protobuf messages of onnx.proto (ModelProto, GraphProto, ...) only those fields are known that a policy needs.
Anything else is an error, and so is a field given twice that stands once: readers that merge such messages and readers
that take the last one would see two different graphs. Weights are not copied: of a large tensor only its sizes stay.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_FIELDS = 400_000  # in a file
DEEPEST = 32  # messages inside messages; a graph in a graph takes three
LONGEST_NAME = 1024  # bytes
KEPT = 4096  # elements of a tensor whose values are read: sizes and axes are that short

# TensorProto.DataType -> numpy. Text, complex numbers and the small float formats are no business of a policy.
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
}


class OnnxError(ValueError):
    """The bytes are not a plain ONNX model; the message says what stands where."""


class Kind(NamedTuple):
    """What a field holds. `name` is empty for one that is skipped."""

    name: str
    type: str  # "int", "float", "text", "bytes" (where they lie), "skip", "refuse" or the name of a message
    many: bool = False


def _message(text: str) -> dict[int, Kind]:
    """`number name type` per field, a star for a repeated one."""
    kinds = {}
    for entry in text.split(";"):
        number, name, kind = entry.split()
        kinds[int(number)] = Kind(name, kind.rstrip("*"), kind.endswith("*"))
    return kinds


MESSAGES: dict[str, dict[int, Kind]] = {
    "Model": _message(
        "1 ir_version int; 2 producer_name skip; 3 producer_version skip; 4 domain skip; 5 model_version skip;"
        "6 doc_string skip; 7 graph Graph; 8 opset_import Opset*; 14 metadata_props Entry*; 20 training_info refuse;"
        "25 functions refuse; 26 configuration refuse"
    ),
    "Opset": _message("1 domain text; 2 version int"),
    "Entry": _message("1 key text; 2 value bytes"),
    "Graph": _message(
        "1 node Node*; 2 name skip; 5 initializer Tensor*; 10 doc_string skip; 11 input Value*; 12 output Value*;"
        "13 value_info skip; 14 quantization_annotation refuse; 15 sparse_initializer refuse; 16 metadata_props skip"
    ),
    "Node": _message(
        "1 input text*; 2 output text*; 3 name text; 4 op_type text; 5 attribute Attribute*; 6 doc_string skip;"
        "7 domain text; 8 overload refuse; 9 metadata_props skip; 10 device_configurations refuse"
    ),
    "Attribute": _message(
        "1 name text; 2 f float; 3 i int; 4 s bytes; 5 t Tensor; 6 g Graph; 7 floats float*; 8 ints int*;"
        "9 strings bytes*; 10 tensors refuse; 11 graphs refuse; 13 doc_string skip; 14 tp refuse;"
        "15 type_protos refuse; 20 type int; 21 ref_attr_name refuse; 22 sparse_tensor refuse; 23 sparse_tensors refuse"
    ),
    "Tensor": _message(
        "1 dims int*; 2 data_type int; 3 segment refuse; 4 float_data bytes; 5 int32_data bytes; 6 string_data refuse;"
        "7 int64_data bytes; 8 name text; 9 raw_data bytes; 10 double_data bytes; 11 uint64_data refuse;"
        "12 doc_string skip; 13 external_data refuse; 14 data_location int; 16 metadata_props skip"
    ),
    "Value": _message("1 name text; 2 type Type; 3 doc_string skip; 4 metadata_props skip"),
    "Type": _message(
        "1 tensor_type TensorType; 4 sequence_type refuse; 5 map_type refuse; 6 denotation skip;"
        "8 sparse_tensor_type refuse; 9 optional_type refuse"
    ),
    "TensorType": _message("1 elem_type int; 2 shape Shape"),
    "Shape": _message("1 dim Dim*"),
    "Dim": _message("1 dim_value int; 2 dim_param text; 3 denotation skip"),
}
SCALARS = frozenset({"int", "float", "text", "bytes"})
PLACES = ("raw_data", "float_data", "int32_data", "int64_data", "double_data")  # of a tensor's values
Span = tuple[int, int]  # first byte and the one after the last


@dataclass(frozen=True)
class Tensor:
    """A constant: `data` unless it is large."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: NDArray[Any] | None


@dataclass(frozen=True)
class Declared:
    """An input or output of a graph: its sizes, None where one is free; no shape at all for an inner graph's."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any] | None


@dataclass(frozen=True)
class Node:
    """One operator. An input that was left out is the empty name."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]  # int, float, bytes, tuple of these, Tensor or Graph

    def __str__(self) -> str:
        return f"the operator {self.operator} (node {self.name!r})"


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they are computed."""

    nodes: tuple[Node, ...]
    constants: tuple[Tensor, ...]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]


@dataclass(frozen=True)
class Model:
    """A graph, the version of ONNX's operators it speaks, and the text that travels with it."""

    graph: Graph
    opset: int
    entries: tuple[tuple[str, Span], ...]  # metadata in the file's order: key, and where its value lies


class _Reader:
    """Reads messages of one file. Every place is a (first, last + 1) pair of positions."""

    def __init__(self, content: bytes) -> None:
        self.content, self.fields = content, 0

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """(value, position after it)."""
        value = shift = 0
        while at < end and shift < 70:
            byte = self.content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    raise OnnxError("a number has more than 64 bits")
                return value, at
            shift += 7
        raise OnnxError("a number does not end")

    def message(self, name: str, start: int, end: int, depth: int = 0) -> dict[str, Any]:
        """The fields by name: tuples for those that may repeat; what is absent is left out."""
        if depth > DEEPEST:
            raise OnnxError(f"its messages are nested more than {DEEPEST} deep")
        kinds = MESSAGES[name]
        found: dict[str, Any] = {}
        seen = 0
        at = start
        content = self.content
        while at < end:
            self.fields += 1
            key = content[at]
            if key < 0x80:
                at += 1
            else:
                key, at = self.varint(at, end)
            number, wire = key >> 3, key & 7
            kind = kinds.get(number)
            if kind is None:
                raise OnnxError(f"{name} has the field {number}, which a policy has no use for")
            if kind.type == "refuse":
                raise OnnxError(f"{name} has {kind.name}, which a policy file must not have")
            if not kind.many and kind.type != "skip":
                if seen >> number & 1:
                    raise OnnxError(f"{name} has {kind.name} twice")
                seen |= 1 << number
            value, at = self.field(wire, at, end)
            if kind.type == "skip":
                continue
            made = self.typed(name, kind, wire, value, depth)
            if kind.many:
                found.setdefault(kind.name, []).extend(made if isinstance(made, list) else [made])
            else:
                found[kind.name] = made
        if self.fields > MOST_FIELDS:
            raise OnnxError(f"it has more than {MOST_FIELDS} fields")
        return found

    def field(self, wire: int, at: int, end: int) -> tuple[Any, int]:
        """(value, position after it): a number, or where the bytes lie."""
        if wire == 0:
            return self.varint(at, end)
        if wire == 2:
            length, at = self.varint(at, end)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise OnnxError(f"wire type {wire} at byte {at}")
        if at + length > end:
            raise OnnxError(f"what begins at byte {at} is longer than what holds it")
        return (at, at + length), at + length

    def typed(self, where: str, kind: Kind, wire: int, value: Any, depth: int) -> Any:
        """A field's value; a list when several stand in one."""
        if kind.type == "int" and wire == 0:
            return value - (1 << 64) if value >> 63 else value
        if kind.type == "float" and wire == 5:
            return struct.unpack_from("<f", self.content, value[0])[0]
        if wire == 2 and kind.type == "text":
            return self.text(value)
        if wire == 2 and kind.type == "bytes":
            return value
        if wire == 2 and kind.type not in SCALARS:
            return self.message(kind.type, value[0], value[1], depth + 1)
        if wire == 2 and kind.many:
            return self.packed(kind, *value)
        raise OnnxError(f"{where}.{kind.name} has wire type {wire}")

    def packed(self, kind: Kind, start: int, end: int) -> list[Any]:
        if kind.type == "float":
            if (end - start) % 4 or (end - start) // 4 > KEPT:
                raise OnnxError(f"{kind.name} holds {end - start} bytes")
            return list(struct.unpack_from(f"<{(end - start) // 4}f", self.content, start))
        if end - start > 10 * KEPT:
            raise OnnxError(f"{kind.name} holds {end - start} bytes")
        values = []
        while start < end:
            value, start = self.varint(start, end)
            values.append(value - (1 << 64) if value >> 63 else value)
        return values

    def text(self, span: Span) -> str:
        if span[1] - span[0] > LONGEST_NAME:
            raise OnnxError(f"a name has {span[1] - span[0]} bytes; at most {LONGEST_NAME} are read")
        try:
            return self.content[span[0] : span[1]].decode()
        except UnicodeDecodeError:
            raise OnnxError(f"the name at byte {span[0]} is no UTF-8") from None

    def tensor(self, fields: dict[str, Any]) -> Tensor:
        """Checked: as many values as its shape says, in the file itself."""
        name = fields.get("name", "")
        shape = _shape(name, fields.get("dims", ()))
        dtype = DTYPES.get(fields.get("data_type", 0))
        if dtype is None:
            raise OnnxError(f"the tensor {name!r} has the element type {fields.get('data_type', 0)}")
        if fields.get("data_location", 0):
            raise OnnxError(f"the tensor {name!r} lies outside of the file")
        held = [
            part for part in ("raw_data", "float_data", "int32_data", "int64_data", "double_data") if part in fields
        ]
        size = math.prod(shape)
        if len(held) > 1 or (size and not held):
            raise OnnxError(f"the tensor {name!r} of shape {shape} has its values in {', '.join(held) or 'no field'}")
        if not held:
            return Tensor(name, shape, dtype, np.zeros(shape, dtype))
        start, end = fields[held[0]]
        stored = dtype if held[0] == "raw_data" else _stored(name, held[0], dtype)
        if stored is None:  # varints: each ends with a byte below 128
            whole = np.frombuffer(self.content, np.uint8, end - start, start)
            count = int(np.count_nonzero(whole < 0x80))
        else:
            count = (end - start) // stored.itemsize if (end - start) % stored.itemsize == 0 else -1
        if count != size:
            raise OnnxError(f"the tensor {name!r} of shape {shape} holds {end - start} bytes in {held[0]}")
        if size > KEPT:
            return Tensor(name, shape, dtype, None)
        if stored is None:
            values = self.packed(Kind(held[0], "int", True), start, end)
            if held[0] == "int32_data" and not all(-(2**31) <= v < 2**31 for v in values):
                raise OnnxError(f"the tensor {name!r} holds numbers beyond its type")
            return Tensor(name, shape, dtype, np.array(values, np.int64).astype(dtype).reshape(shape))
        little = np.frombuffer(self.content, stored.newbyteorder("<"), size, start)
        return Tensor(name, shape, dtype, little.astype(dtype).reshape(shape))

    def attribute(self, fields: dict[str, Any]) -> Any:
        held = [part for part in ("f", "i", "s", "t", "g", "floats", "ints", "strings") if part in fields]
        types = dict(zip((1, 2, 3, 4, 5, 6, 7, 8), ("f", "i", "s", "t", "g", "floats", "ints", "strings"), strict=True))
        wanted = types.get(fields.get("type", 0))
        if len(held) > 1 or (held and wanted not in (None, held[0])) or (not held and wanted is None):
            raise OnnxError(f"the attribute {fields.get('name', '')!r} does not hold what its type says")
        part = held[0] if held else wanted
        value = fields.get(str(part), ())
        if part == "t":
            return self.tensor(value or {})
        if part == "g":
            return self.graph(value or {})
        if part == "s":
            return self.content[slice(*(value or (0, 0)))][:LONGEST_NAME]
        if part == "strings":
            return tuple(self.content[slice(*span)][:LONGEST_NAME] for span in value)
        if part in ("f", "i") and not held:
            return 0.0 if part == "f" else 0
        return tuple(value) if part in ("floats", "ints") else value

    def node(self, fields: dict[str, Any]) -> Node:
        operator, outputs = fields.get("op_type", ""), tuple(fields.get("output", ()))
        name = fields.get("name") or next(iter(outputs), "")
        if fields.get("domain", "") not in ("", "ai.onnx"):
            raise OnnxError(f"the operator {operator!r} (node {name!r}) is of the domain {fields['domain']!r}")
        attributes: dict[str, Any] = {}
        for item in fields.get("attribute", ()):
            if item.get("name", "") in attributes:
                raise OnnxError(f"the operator {operator!r} (node {name!r}) has {item.get('name')!r} twice")
            attributes[item.get("name", "")] = self.attribute(item)
        return Node(operator, name, tuple(fields.get("input", ())), outputs, attributes)

    def declared(self, fields: dict[str, Any]) -> Declared:
        name = fields.get("name", "")
        kind = fields.get("type", {}).get("tensor_type")
        if kind is None:
            return Declared(name, None, None)
        dtype = DTYPES.get(kind.get("elem_type", 0))
        if dtype is None:
            raise OnnxError(f"{name!r} has the element type {kind.get('elem_type', 0)}")
        dims = kind["shape"].get("dim", ()) if "shape" in kind else None
        return Declared(name, None if dims is None else tuple(d.get("dim_value") for d in dims), dtype)

    def graph(self, fields: dict[str, Any]) -> Graph:
        return Graph(
            tuple(self.node(item) for item in fields.get("node", ())),
            tuple(self.tensor(item) for item in fields.get("initializer", ())),
            tuple(self.declared(item) for item in fields.get("input", ())),
            tuple(self.declared(item) for item in fields.get("output", ())),
        )


def _shape(name: str, dims: Any) -> tuple[int, ...]:
    if len(dims) > 16 or not all(0 <= k < 2**31 for k in dims):
        raise OnnxError(f"the tensor {name!r} has the shape {tuple(dims)[:17]}")
    return tuple(dims)


def _stored(name: str, part: str, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """How a list of numbers holds this type: None for varints."""
    homes = {
        "float_data": ("f4",),
        "double_data": ("f8",),
        "int32_data": ("i4", "i1", "u1", "b1"),
        "int64_data": ("i8",),
    }
    if dtype.str[1:] not in homes[part]:
        raise OnnxError(f"the tensor {name!r} keeps {dtype} in {part}")
    return None if part.startswith("int") else dtype


def read(content: bytes) -> Model:
    """The model in these bytes. OnnxError says what is wrong, and is the only error."""
    reader = _Reader(content)
    fields = reader.message("Model", 0, len(content))
    if "graph" not in fields:
        raise OnnxError("there is no ONNX graph in it")
    opsets = fields.get("opset_import", ())
    if len(opsets) != 1 or opsets[0].get("domain", "") not in ("", "ai.onnx"):
        domains = ", ".join(repr(o.get("domain", "")) for o in opsets)
        raise OnnxError(f"its operators are of the domains {domains or '(none)'}, not ONNX's own")
    entries = tuple((item.get("key", ""), item.get("value", (0, 0))) for item in fields.get("metadata_props", ()))
    return Model(reader.graph(fields["graph"]), opsets[0].get("version", 0), entries)

"""Tensors in the safetensors format: a header of JSON, then numbers. Nothing in such a file can run.

8 bytes, little-endian: the header's length; the header: name -> dtype, shape, [begin, end) in what follows, and under
"__metadata__" texts; then the numbers, little-endian, row by row, without gaps (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.reading import read_regular

LONGEST_HEADER = 10_000_000  # bytes; the format allows 100 MB, of which Python's objects are gigabytes
GROWTH = 40  # bytes that Python's objects take for one of the header, at most: 33 were measured, of {"":{}}
MOST = 1_000_000  # tensors
TEXTS = "__metadata__"
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
BRAIN = "BF16"  # the upper half of a float32: read as that
CODES = {np.dtype(kind).str.lstrip("<|="): code for code, kind in DTYPES.items()}


class SafetensorsError(ValueError):
    """The file is no safetensors file, or too large; the message says why."""


def to_bytes(tensors: Mapping[str, NDArray[Any]], texts: Mapping[str, str] | None = None) -> bytes:
    """The file of these tensors, in the order of their names, and texts beside them."""
    header: dict[str, Any] = {TEXTS: dict(texts)} if texts else {}
    parts, end = list[bytes](), 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):  # so that all are aligned
        value = np.asarray(tensors[name])
        code = CODES.get(value.dtype.newbyteorder("<").str.lstrip("<|="))
        if code is None or name == TEXTS:
            raise SafetensorsError(f"the tensor {name!r} of {value.dtype} cannot be stored as safetensors")
        part = value.astype(DTYPES[code]).tobytes()
        header[name] = {"dtype": code, "shape": list(value.shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + b"".join(parts)


def read(path: str, most: float) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The tensors by name, and the texts. OSError when it cannot be read, SafetensorsError when it is not one.

    A file of more than `most` bytes is not read, nor one whose header would take more than that.
    """
    try:
        return from_bytes(read_regular(path, most), most)
    except SafetensorsError:
        raise
    except ValueError as error:  # too large
        raise SafetensorsError(str(error)) from None


def from_bytes(content: bytes, most: float = math.inf) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The same of a file's content."""
    longest = min(LONGEST_HEADER, most / GROWTH)
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else -1
    if not 2 <= length <= len(content) - 8:
        raise SafetensorsError("it is no safetensors file: its header does not fit into it")
    if length > longest:
        raise SafetensorsError(f"its header has {length} bytes, more than {int(longest)}")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=_once)
    except SafetensorsError:
        raise
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"it is no safetensors file: its header is no JSON: {error}") from None
    if not isinstance(header, dict) or len(header) > MOST:
        raise SafetensorsError(f"its header is no object of at most {MOST} tensors")
    texts = header.pop(TEXTS, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise SafetensorsError(f"{TEXTS} holds more than texts")
    data = memoryview(content)[8 + length :]
    spans = {name: _span(name, entry) for name, entry in header.items()}
    end = 0
    for name, (_, _, begin, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != end:
            raise SafetensorsError(f"the tensor {name!r:.80} begins at {begin}, and what is before it ends at {end}")
        end = stop
    if end != len(data):
        raise SafetensorsError(f"its tensors are {end} bytes, it holds {len(data)}")
    return {name: _array(data[begin:stop], code, shape) for name, (code, shape, begin, stop) in spans.items()}, texts


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose names are each there once; others would read another file than we."""
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise SafetensorsError(f"its header names {twice!r:.80} twice")
    return found


def _span(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Code, shape, begin and end of a tensor, which agree with each other."""
    told = entry if isinstance(entry, dict) else {}
    code: Any = told.get("dtype")
    shape: Any = told.get("shape")
    place: Any = told.get("data_offsets")
    if code not in (*DTYPES, BRAIN):
        raise SafetensorsError(f"the tensor {name!r:.80} has the dtype {code!r:.40}, which is not read")
    for numbers, length in ((shape, 32), (place, 2)):
        if (
            not isinstance(numbers, list)
            or len(numbers) > length
            or not all(type(n) is int and n >= 0 for n in numbers)
        ):
            raise SafetensorsError(f"the tensor {name!r:.80} has no shape and data_offsets of whole numbers")
    size = 2 if code == BRAIN else np.dtype(DTYPES[code]).itemsize
    if len(place) != 2 or place[1] - place[0] != math.prod(shape) * size:
        raise SafetensorsError(f"the tensor {name!r:.80} of shape {shape} does not fill its place {place}")
    return code, tuple(shape), place[0], place[1]


def _array(part: memoryview, code: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if code == BRAIN:
        return (np.frombuffer(part, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    return np.frombuffer(part, DTYPES[code]).reshape(shape)

"""Checkpoints: one file that holds a tree of plain values, arrays and tensors, whole or not at all, without pickle.

The file is an uncompressed npz (`numpy.load` opens it). Its member "tree" is the JSON of the tree, in which arrays are
references to the other members; its last 64 bytes (the archive's comment) are the SHA-256 of the rest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from deploy.system.files import sync_folder
from deploy.trust import npz

SCHEMA = 1
DIGEST = 64  # bytes, hexadecimal SHA-256
CHUNK = 1 << 20
KINDS, VERSIONS = "biufc", ((1, 0),)  # of arrays, and of numpy's format
TENSORS = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
)  # element types: a checkpoint names nothing else of torch

Tree = dict[str, Any]


class CheckpointError(ValueError):
    """The file is no checkpoint, or is damaged."""


def save(path: str | os.PathLike[str], tree: Tree) -> None:
    """Write the tree. A crash, a kill or a full disk at any moment leaves the previous file of that name whole.

    The tree holds dicts (keys: str, int, float, bool or None), lists, tuples, numpy arrays and scalars, torch tensors,
    str, bool, int, float and None; TypeError names the place of anything else. OSError when it cannot be written.
    """
    target = Path(path)
    made = _encoded(tree)
    temporary = target.with_name(target.name + ".tmp")  # in the same folder: os.replace cannot cross file systems
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "x+b") as file:  # a link of that name in a stranger's folder would lead out of it
            _write(file, *made)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def load(path: str | os.PathLike[str]) -> Tree:
    """The tree that `save` wrote; tensors come back as CPU tensors.

    Raises FileNotFoundError, or CheckpointError when the file is something else, truncated or changed.
    """
    return loads(Path(path).read_bytes(), path)


def dumps(tree: Tree) -> bytes:
    """The bytes that `save` would write."""
    file = io.BytesIO()
    _write(file, *_encoded(tree))
    return file.getvalue()


def loads(content: bytes, path: str | os.PathLike[str]) -> Tree:
    """The tree in these bytes, which are said to be from `path`; CheckpointError as `load`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            marked = "tree" in archive.namelist() and len(archive.comment) == DIGEST
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        marked = False
    if not marked:
        raise CheckpointError(f"{path}: not a checkpoint, or a truncated one ({len(content)} bytes)")
    if _digest(io.BytesIO(content)) != content[-DIGEST:]:
        raise CheckpointError(f"{path}: damaged, its {len(content)} bytes do not match their checksum")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist(), len(content))
            description = json.loads(archive.read("tree"))
            if description["schema"] != SCHEMA:
                raise CheckpointError(
                    f"{path}: has schema {description['schema']!r:.40}, this version reads schema {SCHEMA}"
                )
            decoded: Tree = _decode(description["tree"], _Arrays(archive))
    except CheckpointError as error:
        raise CheckpointError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except (zipfile.BadZipFile, ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # Its checksum is right: somebody else wrote it.
        raise CheckpointError(f"{path}: malformed: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(decoded, dict):
        raise CheckpointError(f"{path}: malformed: it holds no tree")
    return decoded


def _encoded(tree: Tree) -> tuple[str, list[np.ndarray[Any, Any]]]:
    arrays: list[np.ndarray[Any, Any]] = []
    return json.dumps({"schema": SCHEMA, "tree": _encode(tree, arrays, "")}), arrays


def _write(file: BinaryIO, description: str, arrays: list[np.ndarray[Any, Any]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = b"0" * DIGEST
        archive.writestr("tree", description)
        for index, array in enumerate(arrays):
            with archive.open(f"{index}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    digest = _digest(file)
    file.seek(-DIGEST, os.SEEK_END)
    file.write(digest)


def _digest(file: BinaryIO) -> bytes:
    """The hexadecimal SHA-256 of all but the last `DIGEST` bytes."""
    left = file.seek(0, os.SEEK_END) - DIGEST
    file.seek(0)
    sha = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(CHUNK, left))
        sha.update(chunk)
        left -= len(chunk)
    return sha.hexdigest().encode()


def _encode(value: Any, arrays: list[np.ndarray[Any, Any]], where: str) -> Any:
    """The JSON form of a value: plain values as they are, everything else as {kind: content}."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if key is not None and type(key) not in (bool, int, float, str):
                raise TypeError(f"checkpoint: the key {key!r} at {where or 'the top'} is a {type(key).__name__}")
        return {"dict": [[key, _encode(item, arrays, f"{where}.{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in KINDS:
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return _encode_tensor(value, arrays)
    raise TypeError(f"checkpoint: {where.lstrip('.') or 'the tree'} is a {type(value).__name__}, which is not storable")


def _encode_tensor(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Bytes and a dtype's name: numpy lacks some of torch's types (bfloat16)."""
    import torch

    flat = value.detach().cpu().contiguous().reshape(-1)
    arrays.append(flat.view(torch.uint8).numpy().copy() if flat.numel() else np.empty(0, np.uint8))
    return {"tensor": [len(arrays) - 1, str(value.dtype).removeprefix("torch."), list(value.shape)]}


class _Arrays:
    """Those of an archive, each of which is taken once: whoever names one a thousand times gets none of them."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive, self._taken = archive, set[int]()

    def take(self, index: Any) -> np.ndarray[Any, Any]:
        if type(index) is not int or index in self._taken:
            raise CheckpointError(f"the array {index!r:.40} is named twice, or is none")
        self._taken.add(index)
        name = f"{index}.npy"
        with self._archive.open(name) as file:  # not read whole: a replay buffer would be there twice
            return npz.array(file, self._archive.getinfo(name).file_size, KINDS, VERSIONS)


def _check_members(members: list[zipfile.ZipInfo], length: int) -> None:
    """CheckpointError when more could come out of an archive than the bytes that it has."""
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{member.filename[:40]} in it is compressed, and a checkpoint never is")
    if sum(member.file_size for member in members) > length:
        raise CheckpointError("malformed: what it holds overlaps")


def _decode(value: Any, arrays: _Arrays) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _decode(item, arrays) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_decode(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "tensor":
        import torch

        index, name, shape = content
        if name not in TENSORS:
            raise CheckpointError(f"it holds a tensor of {name!r}, which is none of {', '.join(TENSORS)}")
        dtype = getattr(torch, name)
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(arrays.take(index)).view(dtype).reshape(shape)
    if kind not in ("array", "scalar"):
        raise CheckpointError(f"it holds a {kind!r:.40}, which is unknown")
    array = arrays.take(content)
    return array if kind == "array" else array[()]

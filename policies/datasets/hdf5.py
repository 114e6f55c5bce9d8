"""What a stranger's file of HDF5 holds. All of it lies in this file: nothing else is opened for it."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from policies.datasets.features import DatasetError

if TYPE_CHECKING:
    import h5py

DEEPEST = 8  # groups in each other
MEMBERS = 10_000  # of a group, and of those in it
VALUES = 1 << 26  # numbers of a dataset
CHUNK = 1 << 26  # bytes that are unpacked together
SMALL = 1 << 22  # bytes of a chunk that may be larger than all that is in it


def _library() -> Any:
    """h5py. DatasetError without it."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise DatasetError("the HDF5 format needs h5py: pip install 'sim2metal[datasets]'") from None
    return h5py


def opened(file: Path | BinaryIO) -> h5py.File:
    """The file, to be read. DatasetError without h5py, or where it is no HDF5."""
    h5py = _library()
    try:
        return h5py.File(file)
    except OSError as error:
        raise DatasetError(f"is no HDF5: {error}") from None


def member(group: h5py.Group, name: str, most: int = VALUES) -> h5py.Group | h5py.Dataset:
    """What a group holds under a name: a group, or numbers that memory can hold, at most so many.

    Links, data kept in other files and objects are refused. DatasetError says which name it was.
    """
    import h5py

    if name not in group:
        raise DatasetError(f"{group.file.filename}: there is no {name!r}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DatasetError(f"{group.file.filename}: {name!r} is a link, which is not followed")
    held = group[name]
    if isinstance(held, h5py.Group):
        return held
    if not isinstance(held, h5py.Dataset) or held.is_virtual or held.external:
        raise DatasetError(f"{group.file.filename}: {name!r} keeps its data in another file, or is none")
    jpeg = h5py.check_vlen_dtype(held.dtype) == np.dtype(np.uint8)
    if held.size is None or held.size > most or not (jpeg or held.dtype.kind in "biufS"):
        raise DatasetError(f"{group.file.filename}: {name!r} holds {held.dtype} of shape {held.shape}")
    chunk = math.prod(held.chunks or ()) * held.dtype.itemsize
    if chunk > min(CHUNK, max(SMALL, held.nbytes)):
        raise DatasetError(
            f"{group.file.filename}: {name!r} of shape {held.shape} is packed by {held.chunks}, {chunk >> 20} MiB"
        )
    return held


def address(held: h5py.Group | h5py.Dataset) -> int:
    """Where it lies in its file: the same for two names of the same."""
    import h5py

    return int(h5py.h5o.get_info(held.id).addr)


def group(within: h5py.Group, name: str) -> h5py.Group:
    """The group of that name. DatasetError where it is none."""
    import h5py

    found = member(within, name)
    if not isinstance(found, h5py.Group):
        raise DatasetError(f"{within.file.filename}: {name!r} is no group")
    return found


def array(within: h5py.Group, name: str, most: int = VALUES) -> h5py.Dataset:
    """The numbers of that name. DatasetError where there are none, or more than so many."""
    import h5py

    found = member(within, name, most)
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "biuf":
        raise DatasetError(f"{within.file.filename}: {name!r} holds no numbers")
    return found


def tree(group: h5py.Group, name: str, depth: int = 0, left: list[int] | None = None) -> Any:
    """What a group holds under a name: nested maps, with datasets at their ends. `left`: how much more is read."""
    import h5py

    left = [MEMBERS] if left is None else left  # groups may hold one another, again and again
    left[0] -= 1
    if depth > DEEPEST or left[0] < 0:
        raise DatasetError(
            f"{group.file.filename}: its groups are nested too deeply, or hold more than {MEMBERS} things"
        )
    held = member(group, name)
    if not isinstance(held, h5py.Group):
        return held
    return {each: tree(held, each, depth + 1, left) for each in held}


def text(group: h5py.Group, name: str) -> str:
    """A text among a group's attributes; "" where there is none, or it is something else."""
    if name not in group.attrs:
        return ""
    found = group.attrs[name] if group.attrs.get_id(name).shape == () else ""
    found = found.decode(errors="replace") if isinstance(found, bytes) else found
    return str(found) if isinstance(found, str) else ""


def made(attributes: Mapping[str, Mapping[str, str]], arrays: Mapping[str, NDArray[Any]]) -> io.BytesIO:
    """A file in memory: groups with attributes, and arrays, by path. DatasetError without h5py."""
    h5py = _library()
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for path, told in attributes.items():
            file.require_group(path).attrs.update(told)
        for path, values in arrays.items():
            file[path] = values
    content.seek(0)
    return content

"""Arrays in numpy's .npz, a zip: no more comes out of a stranger's than is allowed, and nothing is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Collection
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.reading import read_regular

MOST = 10_000  # arrays
KINDS = "biuf"  # of their dtypes: numbers
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read(path: str, most: float) -> dict[str, NDArray[Any]]:
    """The arrays of numbers by name: `most` bytes, packed or not. OSError; ValueError, which does not name the file."""
    content = read_regular(path, most)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > MOST or sum(member.file_size for member in members) > most:
                raise ValueError(f"it unpacks to more than {int(most)} bytes, or {MOST} arrays")
            if sum(member.compress_size for member in members) > len(content):
                raise ValueError("its arrays overlap")  # each may be small and take long to unpack
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        SyntaxError,
        TypeError,
    ) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """What a member unpacks to, no more of it than it says: reading all at once unpacks all before it is cut."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # of others no part can be unpacked
        raise ValueError(f"{member.filename[:40]} in it is compressed as numpy never does: numpy.savez_compressed does")
    with archive.open(member) as file:
        content = file.read(member.file_size + 1)
    return array(io.BytesIO(content), len(content), KINDS)


def array(file: IO[bytes], size: int, kinds: str, versions: Collection[tuple[int, int]] = HEADERS) -> NDArray[Any]:
    """Of an .npy of `size` bytes, with dtypes of these kinds; read as it comes, so that it is not there twice.

    ValueError: its header is held against its size before anything is made of it.
    """
    version = np.lib.format.read_magic(file)
    if version not in versions:
        raise ValueError(f"an array is of version {version} of numpy's format")
    shape, _, dtype = HEADERS[version](file)
    if dtype.kind not in kinds or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"an array of {dtype} {shape} is not as long as it says, or holds no numbers")
    file.seek(0)
    made: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return made

"""Arrays of strangers: as many bytes as they say, and no more than was allowed."""

import io
import os
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from deploy.trust import npz
from policies.adoption.description import statistics
from policies.adoption.fields import DescriptionError


def header(shape, descr="<f8"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_what_numpy_writes_is_read(tmp_path):
    arrays = {"x": np.arange(6.0).reshape(2, 3), "n": np.int32(7), "t": np.asfortranarray(np.eye(3, dtype=np.float32))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = npz.read(str(tmp_path / "a.npz"), 1 << 20)
        assert found.keys() == arrays.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header((1 << 40,)) + bytes(8), "not as long as it says"),
        (header((1,), "|O") + bytes(8), "holds no numbers"),
        (header((-1,)), "not as long as it says"),
        (b"\x93NUMPY\x07\x00", "of version"),
        (b"pickled", "magic"),
        (header((0, 1 << 70)), "too large"),
        (bytes(1 << 21), "unpacks to more than 1048576 bytes"),
    ],
    ids=range(7),
)
def test_what_is_none_is_one_sentence(tmp_path, content, said):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(ValueError, match=said) as error:
        npz.read(str(tmp_path / "a.npz"), 1 << 20)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_numpy_never_packs_is_not_unpacked(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", kind) as archive:
        archive.writestr("x.npy", header((4,)) + bytes(32))
    with pytest.raises(ValueError, match=r"x\.npy in it is compressed as numpy never does"):
        npz.read(str(tmp_path / "a.npz"), 1 << 20)


def directory(path, field, value):
    """Write a number of four bytes into the entry of the first member in a zip's directory, at its end."""
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02") + field
    content[place : place + 4] = value.to_bytes(4, "little")
    path.write_bytes(content)


def test_one_that_lies_about_its_size_is_not_unpacked_whole(tmp_path):
    path = tmp_path / "a.npz"
    said = header((4,)) + bytes(32)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", said + bytes(1 << 26))
    directory(path, 16, zlib.crc32(said))
    directory(path, 24, len(said))
    tracemalloc.start()
    np.testing.assert_array_equal(npz.read(str(path), 1 << 20)["x"], np.zeros(4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


def test_arrays_in_one_place_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(100), y=np.zeros(100))
    directory(path, 20, path.stat().st_size)  # its packed length
    with pytest.raises(ValueError, match="its arrays overlap"):
        npz.read(str(path), 1 << 20)


def test_other_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match="not a zip"):
        npz.read(str(tmp_path / "a.npy"), 1 << 20)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        npz.read(str(tmp_path / "pipe"), 1 << 20)
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.arange(1000.0))
    for place in range(0, len(whole.getvalue()), 7):
        broken = bytearray(whole.getvalue())
        broken[place] ^= 0xFF
        (tmp_path / "b.npz").write_bytes(broken)
        try:
            npz.read(str(tmp_path / "b.npz"), 1 << 20)
        except ValueError as error:
            assert "\n" not in str(error)


def test_statistics_that_unpack_to_much_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "stats.npz", mean=np.zeros(1 << 22), std=np.ones(1 << 22))
    assert (tmp_path / "stats.npz").stat().st_size < 1 << 20
    with pytest.raises(DescriptionError, match=r"stats\.npz: is no \.npz of numbers: it unpacks to more than"):
        statistics(tmp_path / "stats.npz")

"""YAML of strangers: plain values, in bounded time and memory."""

import os
import tracemalloc
from pathlib import Path

import pytest

from policies.adoption.description import load as load_description
from policies.adoption.fields import DescriptionError
from sim.plain_yaml import load, read
from sim.scenes.occupancy import read_occupancy
from sim.tasks.legs import motions

# Six lines by which PyYAML's own loader makes 20^6 pairs.
NEST = "a0: &a0 {k: 1}\n" + "".join(f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 20)}]}}\n" for k in range(1, 7))


def test_values_are_as_in_yaml():
    found = load(b"a: &x [1, 0.5, on, ~]\nb: *x\nc: {d: 1:30:00, e: '<<'}\n=: 2\n")
    assert found == {"a": [1, 0.5, True, None], "b": found["a"], "c": {"d": 5400, "e": "<<"}, "=": 2}
    assert found["a"] is found["b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (NEST.encode(), r"merge keys \(<<\) are not read"),
        (b"a: 1\nb: {c: 1, c: 2}", "'c' is given twice"),
        (b"a: \xff", "codec can't decode"),
        (b"a: " + b":".join([b"1"] * 10_000), "a number is too long"),
        (b"a: " + b":".join([b"1"] * 300) + b".5", "a number is too long"),
        (b"a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"[" * 1_000_000, "more than 100 brackets are open"),
        (b"- " * 10_000, "recursion"),
        (b"a: 2026-99-99", "month"),
    ],
)
def test_other_content_is_refused_in_a_line(content: bytes, said: str):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=said) as error:
            load(content)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith("is not YAML: ") and "\n" not in str(error.value)


def test_merge_keys_are_refused_by_all_who_read_yaml(tmp_path: Path):
    path = tmp_path / "nest.yaml"
    path.write_text(NEST)
    with pytest.raises(DescriptionError, match="merge keys"):
        load_description(str(path))
    for reader in (read_occupancy, lambda p: motions.read(p, ["hip"])):
        with pytest.raises(ValueError, match=r"nest\.yaml: .*merge keys"):
            reader(path)


def test_only_regular_files_of_some_bytes_are_read(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    assert read(path, 4) == {"a": 1}
    with pytest.raises(ValueError, match="has at most 3 bytes"):
        read(path, 3)
    os.mkfifo(tmp_path / "fifo.yaml")
    for odd in ("fifo.yaml", ".", "absent", "a\0b"):
        with pytest.raises(OSError):
            read(tmp_path / odd, 100)
    for reader in (read_occupancy, lambda p: motions.read(p, ["hip"])):
        with pytest.raises(ValueError, match="no regular file"):
            reader(tmp_path / "fifo.yaml")

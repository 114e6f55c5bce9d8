"""Checkpoints: every tree comes back, damage is found, and no accident destroys the previous file."""

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from policies.runner import checkpoint
from policies.runner.checkpoint import CheckpointError

ROOT = Path(__file__).resolve().parents[3]
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none())
DTYPES = ("float32", "float64", "int64", "uint64", "uint8", "bool", "complex64")
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3)))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 2**130),
    st.floats(),
    st.text(max_size=10),
    ARRAYS,
    ARRAYS.map(lambda a: torch.from_numpy(a.copy())),
    st.floats(width=32).map(np.float32),
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(KEYS, inner, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a, b) -> bool:
    """Equal in type, shape and bits; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b or (a != a and b != b)


@given(TREES)
def test_every_tree_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "checkpoint.npz"
    checkpoint.save(path, tree)
    assert same(checkpoint.load(path), tree)


def test_random_generators_and_optimisers_continue(tmp_path):
    rng = np.random.default_rng(3)
    torch.manual_seed(5)
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.Adam([weight], lr=0.1)
    (weight**2).sum().backward()
    optimiser.step()
    tree = {
        "numpy": rng.bit_generator.state,
        "torch": torch.get_rng_state(),
        "adam": optimiser.state_dict(),
        "half": torch.arange(4.0).to(torch.bfloat16),
    }
    checkpoint.save(tmp_path / "c.npz", tree)
    expected = rng.normal(), torch.rand(1)
    loaded = checkpoint.load(tmp_path / "c.npz")
    rng.bit_generator.state = loaded["numpy"]
    torch.set_rng_state(loaded["torch"])
    optimiser.load_state_dict(loaded["adam"])
    assert (rng.normal(), torch.rand(1)) == expected
    assert torch.equal(loaded["half"], tree["half"])
    assert loaded["half"].dtype == torch.bfloat16
    assert set(np.load(tmp_path / "c.npz").files) >= {"tree", "0"}  # an npz that numpy reads


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"a": {"b": [1, {2, 3}]}}, r"a\.b\[1\] is a set"),
        ({"f": print}, "f is a builtin"),
        ({"o": np.array([{}])}, "o"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, tree, place):
    with pytest.raises(TypeError, match=place):
        checkpoint.save(tmp_path / "c.npz", tree)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, {"step": 7, "weight": np.arange(4.0)})
    return path


def test_any_changed_byte_is_found(small):
    content = small.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        small.write_bytes(changed)
        with pytest.raises(CheckpointError):
            checkpoint.load(small)


def test_any_truncation_is_found(small):
    content = small.read_bytes()
    for length in range(len(content)):
        small.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=str(length)):
            checkpoint.load(small)


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    (tmp_path / "policy.onnx").write_bytes(b"\x08\x07" * 500)
    for name in ("other.npz", "policy.onnx"):
        with pytest.raises(CheckpointError, match=f"{name}: not a checkpoint"):
            checkpoint.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "absent.npz")


def test_unknown_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SCHEMA", 99)
    checkpoint.save(tmp_path / "c.npz", {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="schema 99, this version reads schema 1"):
        checkpoint.load(tmp_path / "c.npz")


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_full_disk_leaves_the_previous_one(small, monkeypatch, function):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, function, full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(small, {"step": 8})
    monkeypatch.undo()
    assert checkpoint.load(small)["step"] == 7
    assert list(small.parent.iterdir()) == [small]  # what was half written gives its space back


@pytest.mark.parametrize(
    "moment", ["checkpoint._write", "checkpoint._digest", "checkpoint.os.fsync", "checkpoint.os.replace"]
)
def test_killed_at_each_moment_of_a_write(small, moment):
    code = f"""
import os, signal, sys
from policies.runner import checkpoint
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
{moment} = die
checkpoint.save(sys.argv[1], {{"step": 8}})
"""
    done = subprocess.run([sys.executable, "-c", code, str(small)], cwd=ROOT)
    assert done.returncode == -9
    assert checkpoint.load(small)["step"] == 7
    checkpoint.save(small, {"step": 9})
    assert checkpoint.load(small)["step"] == 9
    assert list(small.parent.iterdir()) == [small]  # the leftover of the killed one was taken over


def test_killed_at_random_times(tmp_path):
    path = tmp_path / "checkpoint.npz"
    code = """
import sys
import numpy as np
from policies.runner import checkpoint
for step in range(10**9):
    checkpoint.save(sys.argv[1], {"step": step, "weight": np.full(300_000, float(step))})
"""
    rng = random.Random(0)
    for _ in range(8):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, env=os.environ)
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.03))
        process.kill()
        process.wait()
        loaded = checkpoint.load(path)
        assert (loaded["weight"] == loaded["step"]).all()

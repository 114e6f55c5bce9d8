"""How kernels are compiled: once, however many processes want them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config, njit

from sim.engines.vector import blocks
from sim.engines.vector.blocks import WAIT, _locked

MODULE = """
import sys
from sim.engines.vector.blocks import kernel

@kernel
def inner(x):
    return x * x

@kernel
def outer(x):
    return inner(x) + 1.0

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(outer(3.0), *(sum(found.values()) for found in outer.stats[1:]) if hasattr(outer, "stats") else ())
"""
LONG = 120.0  # s: two may have little of a core


@contextlib.contextmanager
def wanting(tmp_path: Path, **environment: str):
    """A process that wants the kernels once it is told to."""
    (tmp_path / "kernels.py").write_text(MODULE)
    root = Path(__file__).resolve().parents[3]
    env = {name: value for name, value in os.environ.items() if name != WAIT}
    env |= {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root), **environment}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, tmp_path / "kernels.py"], env=env, **pipes)
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen) -> list[str]:
    """What the kernel gives, how often it was compiled, how often taken from the disk; or the error's last line."""
    out, error = process.communicate("\n", timeout=LONG)
    return out.split() if process.returncode == 0 else error.splitlines()[-1:]


def test_of_processes_that_want_a_kernel_one_compiles_it(tmp_path: Path, monkeypatch):
    pytest.importorskip("fcntl")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    with wanting(tmp_path) as patient:
        with _locked("__main__.outer"):
            patient.stdin.write("\n")
            patient.stdin.flush()
            with wanting(tmp_path, **{WAIT: "0"}) as hurried:
                assert told(hurried) == ["10.0", "0", "1"]
            assert patient.poll() is None
        assert told(patient) == ["10.0", "1", "0"]


def test_a_wait_that_is_no_number_is_named(tmp_path: Path):
    with wanting(tmp_path, **{WAIT: "long"}) as process:
        said = f"ValueError: {WAIT}='long' in the environment is no number of seconds; 0 waits for nobody"
        assert told(process) == [said]


def test_without_a_compiler_kernels_are_plain_functions(tmp_path: Path):
    with wanting(tmp_path, NUMBA_DISABLE_JIT="1") as process:
        assert told(process) == ["10.0"]


def test_who_calls_a_building_block_from_python_gets_it_whole():
    """Also with types for which compiled code has called it before."""

    @blocks.inlined
    def half(x):
        return 0.5 * x

    @blocks.part
    def twice(x):
        return half(x) + half(x)

    called = njit(lambda x: twice(x))
    assert called(3.0) == twice(3.0) == 2.0 * half(3.0) == 3.0
    assert half(5) == 2.5

"""How kernels are compiled: once, however many processes want them."""

import os
import subprocess
import sys
from pathlib import Path

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
    print(outer(3.0), sum(outer.stats.cache_misses.values()), sum(outer.stats.cache_hits.values()))
"""


def test_of_processes_that_want_a_kernel_one_compiles_it(tmp_path: Path):
    file = tmp_path / "kernels.py"
    file.write_text(MODULE)
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, file], env=env, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0].split() for process in processes)
    assert said == [["10.0", "0", "1"], ["10.0", "1", "0"]]

"""Runs commands as an installation of the base dependencies alone would: python base_only.py '["deploy.run ...", ...]'.

Prints the JSON of [exit status, standard error] of each. One interpreter forks for each command: starting one anew for
every command takes most of a minute.
"""

import importlib
import json
import os
import runpy
import shlex
import sys
import tempfile
import traceback
from importlib.machinery import PathFinder

BASE = {"numpy", "onnxruntime", "mcap", "lz4", "zstandard", "_cffi_backend", "flatbuffers", "packaging", "google"}
OURS = {"sim", "policies", "deploy", "firmware"}


class Base:
    """Finds nothing else, wherever it lies."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in BASE | OURS or top in sys.stdlib_module_names or PathFinder.find_spec(top) is None:
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(command: str) -> int:
    module, *words = shlex.split(command)
    sys.orig_argv = [sys.executable, "-m", module, *words]
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forked(command: str) -> tuple[int, str]:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(said.fileno(), 2)
            status = run(command)
            sys.stderr.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode()


if __name__ == "__main__":
    sys.meta_path.insert(0, Base)
    importlib.import_module("deploy.policy_file")  # what nearly all need
    print(json.dumps([forked(command) for command in json.loads(sys.argv[1])]))

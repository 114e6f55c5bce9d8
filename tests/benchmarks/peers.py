"""Interpreters with other projects' packages: each in a virtual environment of its own, made when first asked for."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PEERS = {
    "l2f": ("l2f==2.0.18", "numpy"),  # built from source: about 5 minutes and 7 GB of memory, needs g++
    "crazyflow": ("crazyflow==0.4.0",),
    "foundation": ("foundation-policy==1.0.2", "h5py", "numpy"),
    "emx": ("emx-onnx-cgen==1.4.0",),
}


class MissingPeerError(Exception):
    """A peer cannot be measured here; the message says why."""


def interpreter(name: str) -> str:
    """A Python that has the peer's packages: $SIM2METAL_L2F_PYTHON and so on, or one in the cache folder."""
    if python := existing(name):
        return python
    requirements, folder = PEERS[name], _folder(name)
    python = str(folder / "bin" / "python")
    print(f"installing {requirements[0]} for the comparison (minutes) ...", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements])
    if done.returncode:
        raise MissingPeerError(f"{requirements[0]} could not be installed")
    (folder / "complete").touch()
    return python


def existing(name: str) -> str | None:
    """That Python, where it need not be made first."""
    folder = _folder(name)
    made = str(folder / "bin" / "python") if (folder / "complete").exists() else None
    return os.environ.get(f"SIM2METAL_{name.upper()}_PYTHON") or made


def version(name: str) -> str | None:
    """Of the peer, as its own Python says; None where there is none."""
    if (python := existing(name)) is None:
        return None
    ask = f"import importlib.metadata; print(importlib.metadata.version({PEERS[name][0].partition('==')[0]!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() or None


def _folder(name: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sim2metal" / "peers" / PEERS[name][0].replace("==", "-")

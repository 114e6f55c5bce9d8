"""What the readers of strangers' files share: bounds, errors of one line, files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from sim.registry import check_named

LARGEST = 500_000_000  # bytes of a file
MOST = 20_000_000  # points, vertices or faces in it


class FormatError(ValueError):
    """A file that cannot be read as what it is said to be: which one, and why."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


def content(path: Path) -> bytes:
    """All of a file. FormatError where it is none, or too large; StrangerError where no person named it."""
    check_named("file", str(path))
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise FormatError(path, str(reason)) from None
    if not stat.S_ISREG(about.st_mode):
        raise FormatError(path, "it is no file")
    if about.st_size > LARGEST:
        raise FormatError(path, f"more than {LARGEST // 10**6} MB are not read")
    return path.read_bytes()


def replace(path: Path, data: bytes) -> None:
    """Write a file so that it holds either what it held or all of the new. OSError names it."""
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path}: it is there, and is no file")
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()

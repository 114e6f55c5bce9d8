"""One process at a time in a folder: a training or a recording holds the lock for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = ".lock"  # in the folder; who holds it is written there, the lock itself is the system's


class BusyError(ValueError):
    """Another process works in the folder; the message says which one, and where."""


class Lock:
    """Held from construction until `release`, or until the process is gone: the system lets go of a killed one's.

    Raises BusyError when another process (or another Lock of this one) holds it, OSError when the folder cannot be
    written to. A file system without locks costs a warning.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._descriptor = self._taken()
        os.ftruncate(self._descriptor, 0)
        try:
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError:  # a full disk: the lock holds, its holder has no name
            os.ftruncate(self._descriptor, 0)

    def _taken(self) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise BusyError(f"{self._path.parent} is in use by {holder}") from None
            except OSError as error:
                sys.stderr.write(f"warning: {self._path.parent} cannot be locked against others: {error.strerror}\n")
            if self._is_the_file(descriptor):
                if os.fstat(descriptor).st_nlink == 1:
                    return descriptor
                os.close(descriptor)  # what is written into it would be written into another file, too
                raise OSError(errno.EMLINK, f"{NAME} in it is a hard link; remove it", os.fspath(self._path))
            os.close(descriptor)  # its holder removed it between our two calls: there is another file, or none

    def _is_the_file(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others in. Harmless when called again."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)  # still locked: whoever waits for this very file finds it gone
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(descriptor: int) -> str:
    """Of a lock that somebody else holds: "process 4242 on HOST"."""
    text = os.pread(descriptor, 300, 0).decode("ascii", "replace")
    found = re.fullmatch(r"(\d+) ([\w.-]+)\n", text, re.ASCII)
    return f"process {found[1]} on {found[2]}" if found else "another process"

"""Files that are whole or not there, and errors that name them. Used by every command that writes one."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that, whatever happens, `path` holds either the old content or all of the new.

    Its folder is made. A device or a pipe (/dev/stdout) is written to and stays. Raises OSError, which names `path`.
    """
    if is_special(Path(path)):
        with named(path), open(path, "wb") as file:
            file.write(content)
        return
    replace_all([(Path(path), content)])


def is_special(path: Path) -> bool:
    """Whether something is there that must not be replaced by a file: /dev/null, a pipe."""
    return path.exists() and not (path.is_file() or path.is_dir())


def replace_all(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write all files, in this order. A full disk leaves all as they were, a kill the later ones.

    Their folders are made. Raises OSError, which names the file.
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for path, content in files:
            if is_special(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            with named(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            with named(path):
                staged.append((path.with_name(f".{path.name}.{os.getpid()}.tmp"), path))  # os.replace: the same disk
                staged[-1][0].unlink(missing_ok=True)
                with open(staged[-1][0], "xb") as file:  # a link of that name would lead elsewhere
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
        for temporary, path in staged:
            with named(path):
                os.replace(temporary, path)
                sync_folder(path.parent)  # before the next one: the order holds in a power cut too
    except BaseException:
        for temporary, _ in staged:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system get the name of this file: a failed write has none, or a temporary file's."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{os.fspath(path)}: {error}") from error
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error

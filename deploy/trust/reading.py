"""Files that others name: read without waiting and without more memory than allowed."""

from __future__ import annotations

import json
import os
import stat
from typing import Any


def read_regular(path: str | os.PathLike[str], most: float) -> bytes:
    """The content of a regular file of at most `most` bytes.

    A FIFO, a device or a folder is an OSError, as is a file that cannot be read; a larger one a ValueError.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not make us wait
    except ValueError as error:  # a NUL byte in its name
        raise OSError(0, str(error)) from None
    with open(file, "rb") as opened:
        about = os.fstat(file)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(0, "Is a directory")
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "it is no regular file")
        content = opened.read(int(most) + 1) if about.st_size <= most else b""  # st_size: 0 in /proc
    if about.st_size > most or len(content) > most:
        raise ValueError(f"it has {max(about.st_size, len(content))} bytes, more than {int(most)}")
    return content


def read_json_object(path: str | os.PathLike[str], most: float) -> dict[str, Any]:
    """The object that a JSON file of at most `most` bytes holds; ValueError, which does not name the file."""
    try:
        found = json.loads(read_regular(path, most))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found

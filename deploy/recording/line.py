"""What goes from the control loop to the process that writes its log: blocks, each with its kind, number and size.

Standard library only: the writing process opens the file before it has imported anything that takes time.
"""

from __future__ import annotations

import struct
from typing import IO

HEAD = struct.Struct("<BII")  # kind, number, bytes that follow
HEADER, POLICY, STEP, EVENT = range(4)
OPENED, RUNNING, DONE = "opened", "running", "done"  # lines that the writer answers; any other is its trouble
TAKEN = "the file exists; a log is not overwritten"


def block(kind: int, number: int, data: bytes) -> bytes:
    """One block as it is sent."""
    return HEAD.pack(kind, number & 0xFFFFFFFF, len(data)) + data


def next_block(line: IO[bytes]) -> tuple[int, int, bytes] | None:
    """Kind, number and content of the next whole one; None when the other side is gone."""
    head = line.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, number, size = HEAD.unpack(head)
    data = line.read(size)
    return (kind, number, data) if len(data) == size else None

"""Threads that share work in parts without a lock, and without a call into Python between one part and the next.

Waking a sleeping thread takes up to a millisecond, as long as a minibatch: so helpers stay in compiled code, look for
parts to do, and sleep only when there have been none for a while. Whoever is free takes the next part. Who did it
changes nothing: parts are the same for any number of threads, and what they make is put together in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from sim.engines.vector.blocks import inlined

Board = NDArray[np.int64]
LINE = 8  # numbers in one line of the cache
WORD, DONE, STOPPED, FAILED = range(0, 4 * LINE, LINE)  # places on the board
FLIGHT, VALUES, GRADIENTS = range(3)  # kinds of parts
# The bits of WORD: how many parts nobody has taken, their kind; those above count the announcements.
LEFT, KIND, ANNOUNCED = 0xFFFFFFFF, 32, 40
PATIENCE = 400_000  # looks at the board before a helper sleeps: about a millisecond
NAP = 100  # us

_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def _load(typing_context, board, place):  # Numba's compiler protocol
    """board[place], after all that was written before it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_at(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(board, types.intp), generate


@intrinsic
def _store(typing_context, board, place, value):
    """board[place] = value, after all that was written before."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _at(context, builder, signature, arguments), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), generate


@intrinsic
def _add(typing_context, board, place, value):
    """Add to board[place]; what it was before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(board, types.intp, types.int64), generate


@intrinsic
def _swap(typing_context, board, place, expected, value):
    """board[place] = value if it was what was expected; whether it was."""

    def generate(context, builder, signature, arguments):
        pointer = _at(context, builder, signature, arguments)
        found = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(board, types.intp, types.int64, types.int64), generate


def _at(context, builder, signature, arguments):
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]])


@inlined
def announce(board, kind, count):
    """There are `count` parts to do, of that kind; all parts before are done."""
    _store(board, DONE, 0)
    announced = (_load(board, WORD) >> ANNOUNCED) + 1
    _store(board, WORD, (announced << ANNOUNCED) | (kind << KIND) | count)


@inlined
def waiting(board):
    """The kind of the parts that nobody has taken, or -1 where there is none."""
    word = _load(board, WORD)
    return (word >> KIND) & 0xFF if word & LEFT else -1


@inlined
def claim(board, kind):
    """A part of that kind that nobody else does, or -1 where there is none."""
    while True:
        word = _load(board, WORD)
        if word & LEFT == 0 or (word >> KIND) & 0xFF != kind:
            return -1
        if _swap(board, WORD, word, word - 1):
            return (word & LEFT) - 1


@inlined
def finish(board):
    """A claimed part is done."""
    _add(board, DONE, 1)


@inlined
def finished(board, count):
    """Wait until all are; False where a helper has failed."""
    while _load(board, DONE) < count:
        if _load(board, FAILED):
            return False
    return True


@inlined
def rest(looks):
    """After so many looks at a board without a part."""
    if looks > PATIENCE:
        _sleep(NAP)


@inlined
def stopped(board):
    """Whether helpers are to go."""
    return _load(board, STOPPED) != 0


def board() -> Board:
    """Without a part."""
    return np.zeros(4 * LINE, np.int64)


@contextmanager
def helped(on: Board, by: int, helps: Callable[[int], None]) -> Iterator[None]:
    """While entered, helpers 1 ... `by` each run `helps`(number), which looks at the board until it is `stopped`."""

    def help(number: int) -> None:
        try:
            helps(number)
        except BaseException:
            on[FAILED] = 1
            raise

    on[:] = 0
    threads = [threading.Thread(target=help, args=(k,), daemon=True) for k in range(1, by + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        on[STOPPED] = 1
        for thread in threads:
            thread.join()

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

WorkQueue = NDArray[np.int64]
LINE = 8  # numbers in one line of the cache
WORD, DONE, STOPPED, FAILED = range(0, 4 * LINE, LINE)  # places in it
FLIGHT, VALUES, GRADIENTS = range(3)  # kinds of parts
# The bits of WORD: how many parts nobody has taken, their kind; those above count the times something was published.
LEFT, KIND, PUBLISHED = 0xFFFFFFFF, 32, 40
PATIENCE = 400_000  # looks at it before a helper sleeps: about a millisecond
NAP = 100  # us

_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def _load(typing_context, queue, place):  # Numba's compiler protocol
    """queue[place], after all that was written before it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_at(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(queue, types.intp), generate


@intrinsic
def _store(typing_context, queue, place, value):
    """queue[place] = value, after all that was written before."""

    def generate(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _at(context, builder, signature, arguments), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(queue, types.intp, types.int64), generate


@intrinsic
def _add(typing_context, queue, place, value):
    """Add to queue[place]; what it was before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(context, builder, signature, arguments), arguments[2], "seq_cst")

    return types.int64(queue, types.intp, types.int64), generate


@intrinsic
def _swap(typing_context, queue, place, expected, value):
    """queue[place] = value if it was what was expected; whether it was."""

    def generate(context, builder, signature, arguments):
        pointer = _at(context, builder, signature, arguments)
        found = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(queue, types.intp, types.int64, types.int64), generate


def _at(context, builder, signature, arguments):
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [arguments[1]])


@inlined
def publish(queue, kind, count):
    """There are `count` parts to do, of that kind; all parts before are done."""
    _store(queue, DONE, 0)
    published = (_load(queue, WORD) >> PUBLISHED) + 1
    _store(queue, WORD, (published << PUBLISHED) | (kind << KIND) | count)


@inlined
def waiting(queue):
    """The kind of the parts that nobody has taken, or -1 where there is none."""
    word = _load(queue, WORD)
    return (word >> KIND) & 0xFF if word & LEFT else -1


@inlined
def claim(queue, kind):
    """A part of that kind that nobody else does, or -1 where there is none."""
    while True:
        word = _load(queue, WORD)
        if word & LEFT == 0 or (word >> KIND) & 0xFF != kind:
            return -1
        if _swap(queue, WORD, word, word - 1):
            return (word & LEFT) - 1


@inlined
def finish(queue):
    """A claimed part is done."""
    _add(queue, DONE, 1)


@inlined
def finished(queue, count):
    """Wait until all are; False where a helper has failed."""
    while _load(queue, DONE) < count:
        if _load(queue, FAILED):
            return False
    return True


@inlined
def rest(looks):
    """After so many looks at a queue without a part."""
    if looks > PATIENCE:
        _sleep(NAP)


@inlined
def stopped(queue):
    """Whether helpers are to go."""
    return _load(queue, STOPPED) != 0


def empty() -> WorkQueue:
    """Without a part."""
    return np.zeros(4 * LINE, np.int64)


@contextmanager
def helper_threads(on: WorkQueue, by: int, helps: Callable[[int], None]) -> Iterator[None]:
    """While entered, helpers 1 ... `by` each run `helps`(number), which looks at the queue until it is `stopped`."""

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

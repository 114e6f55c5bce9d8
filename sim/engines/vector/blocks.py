"""How this project compiles with Numba: blocks of 16 vehicles side by side, so that the scalar equations become
vector instructions.

A batch of n vehicles is stored as (blocks, rows, LANES): the sixteen values of one quantity lie next to each other. A
kernel loops over blocks, takes each as a (rows, LANES) array (`block`), and computes on whole rows (`simd.ALL`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, config, njit, types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic
from numpy.typing import NDArray

from sim.engines.vector.simd import LANES

# Multiplications and additions may fuse, divisions may become products. No reassociation: the compiler would be free to
# round differently in the code that it runs at once and in the code that it caches, and a seed must decide the result.
FASTMATH = {"contract", "nsz", "arcp"}
OPTIONS: dict[str, Any] = {"fastmath": FASTMATH, "error_model": "numpy"}
WAIT = "SIM2METAL_COMPILE_WAIT_S"  # environment: the longest wait for another process that compiles the same
PATIENCE = 120.0  # s, without it; then the other may have been stopped


def _cache_folder() -> Path:
    """A writable folder for compiled kernels, one per content of the sources that kernels are built from.

    Numba notices a change of a kernel's own file only; kernels inline functions of these files, so their content
    names the folder.
    """
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for source in sorted((*folder.glob("*.py"), *folder.parent.glob("*/*.py"))):
        digest.update(source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sim2metal"
    try:
        base.mkdir(parents=True, exist_ok=True)
        writable = os.access(base, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        user = os.getuid() if sys.platform != "win32" else os.environ.get("USERNAME", "user")
        base = Path(tempfile.gettempdir()) / f"sim2metal-{user}"
    return base / f"kernels-{digest.hexdigest()[:12]}"


if not config.CACHE_DIR:
    config.CACHE_DIR = str(_cache_folder())


def kernel(function: Any) -> Any:
    """Compile an entry point: cached on disk, releases the GIL.

    Of processes that want it at the same time one compiles it, and the others take it from the disk.
    """
    made = njit(cache=True, nogil=True, no_cfunc_wrapper=True, **OPTIONS)(function)
    if hasattr(made, "compile"):  # NUMBA_DISABLE_JIT=1 leaves the function as it is
        made.compile = _one_by_one(made.compile, f"{function.__module__}.{function.__qualname__}")
    return made


def _one_by_one(compiled: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """A dispatcher's `compile`, which first looks on the disk, for one process at a time."""

    def compiled_alone(signature: Any) -> Any:
        # A thread that waits for another process holds the compiler as one that compiles does: the order of the two
        # locks is always the same, and kernels call each other in no circle.
        with global_compiler_lock, _locked(name):
            return compiled(signature)

    return compiled_alone


def _patience() -> float:
    """Seconds; ValueError where the environment says what is none."""
    told = os.environ.get(WAIT, "").strip()
    try:
        found = float(told or PATIENCE)
    except ValueError:
        found = -1.0
    if not found >= 0.0:
        raise ValueError(f"{WAIT}={told!r} in the environment is no number of seconds; 0 waits for nobody")
    return found


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold this lock among processes with the same cache; go without one where there is none."""
    patience = _patience()
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):  # Windows; a folder that cannot be written or has no locks
            import fcntl

            folder = Path(config.CACHE_DIR)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"
            file, end = held.enter_context(path.open("wb")), time.monotonic() + patience
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which no child inherits
                    break
                if time.monotonic() >= end:
                    break
                time.sleep(0.02)
        yield


def part(function: Any) -> Any:
    """Compile a large building block, called by kernels that are compiled once."""
    return _building_block(function, OPTIONS)


def inlined(function: Any) -> Any:
    """Compile a building block that disappears into its caller. Also callable from CUDA kernels."""
    if config.ENABLE_CUDASIM:  # Numba's CUDA simulator runs kernels, and all they call, as plain Python
        return function
    return _building_block(function, {"forceinline": True, **OPTIONS})


def _building_block(function: Any, options: dict[str, Any]) -> Any:
    """Compile for callers that are compiled, without what calls from Python or C need, a seventh of the time.

    Whoever calls it from Python gets another one, that is compiled whole.
    """
    made = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)
    if hasattr(made, "overloads"):  # NUMBA_DISABLE_JIT=1 leaves the function as it is
        whole = functools.cache(lambda: njit(**options)(function))

        def added(result: Any) -> None:
            made.overloads[tuple(result.signature.args)] = result  # and not to what calls from Python look up

        made.add_overload, made._compile_for_args = added, lambda *_: whole()
    return made


@intrinsic
def _pointer(typing_context, array, index):  # Numba's compiler protocol
    """A typed pointer to array[index, 0, 0]."""

    def generate(context, builder, signature, arguments):
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        shape = cgutils.unpack_tuple(builder, view.shape, array_type.ndim)
        strides = cgutils.unpack_tuple(builder, view.strides, array_type.ndim)
        zero = context.get_constant(types.intp, 0)
        where = [arguments[1]] + [zero] * (array_type.ndim - 1)
        return cgutils.get_item_pointer2(context, builder, view.data, shape, strides, array_type.layout, where)

    return types.CPointer(array.dtype)(array, types.intp), generate


def _unowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        view = context.make_array(kind)(context, builder, value)
        view.meminfo = view.meminfo.type(None)
        return view._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts = [_unowned(context, builder, k, builder.extract_value(value, i)) for i, k in enumerate(kind.types)]
        return context.make_tuple(builder, kind, parts)
    return value


@intrinsic
def borrowed(typing_context, value):
    """The same arrays, or tuples of them, without counting references to them, which costs more than most loops.

    Whoever calls must hold them meanwhile.
    """

    def generate(context, builder, signature, arguments):
        return _unowned(context, builder, signature.args[0], arguments[0])

    return value(value), generate


@functools.partial(_building_block, options={"forceinline": True})
def block(array, index, rows):
    """array[index] as a (rows, LANES) array; pass `rows` as a module constant so that the compiler knows every
    stride.
    """
    return carray(_pointer(array, index), (rows, LANES))


@functools.partial(_building_block, options={"forceinline": True})
def run(array, index):
    """Sixteen numbers of array (LANES * blocks,) as a (1, LANES) array."""
    return carray(_pointer(array, index * LANES), (1, LANES))


def launch(n: int, threads: int) -> tuple[int, int]:
    """How a CUDA kernel is launched for n threads: so many blocks of so many."""
    return -(-n // threads), threads


def blocks(n: int) -> int:
    """How many blocks hold n vehicles."""
    return -(-n // LANES)


def to_lanes(values: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
    """(n, rows) -> (blocks, rows, LANES), a copy; the last block is filled up by repeating the last vehicle."""
    n, rows = values.shape
    if n % LANES:
        values = np.concatenate([values, np.repeat(values[-1:], blocks(n) * LANES - n, axis=0)])
    return np.array(values.reshape(-1, LANES, rows).transpose(0, 2, 1), dtype=dtype, order="C")


def sane(values: NDArray[Any]) -> NDArray[Any]:
    """As `np.nan_to_num`; what has nothing to mend is no copy, and takes a tenth of the time."""
    mended: NDArray[Any] = values if np.isfinite(values).all() else np.nan_to_num(values)
    return mended


def from_lanes(values: NDArray[Any], n: int) -> NDArray[Any]:
    """(blocks, rows, LANES) -> (n, rows), a copy."""
    return values.transpose(0, 2, 1).copy().reshape(-1, values.shape[1])[:n]  # of one column, too

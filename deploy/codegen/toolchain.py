"""C compilers: zig from the ziglang wheel, or GCC for these cores and the machine's own cc where they are installed.

WebAssembly comes from zig alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.codegen.cores import CORES, GCC, M4F, Core
from deploy.codegen.source import FIRMWARE
from deploy.mcu.boards import BOARDS
from deploy.trust.interpreter import python

COMPILERS = ("auto", "zig", "gcc")
# Multiply and add stay apart: on a Cortex-M4 faster than fused (2 cycles, not 3), and the same bits everywhere.
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fno-math-errno")
HOST = ("-O2", "-shared", "-fPIC", "-nostdlib")  # what it may call, this process has; no libc to be built by zig
# -Os: what matters is assembly anyway; loops unrolled by the compiler cost flash and win 3 %. -g1 keeps the symbols.
BARE: tuple[str, ...] = (
    "-Os",
    "-g1",
    "-ffreestanding",
    "-nostdlib",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-unwind-tables",
)
BARE += ("-fno-asynchronous-unwind-tables", "-Wl,--gc-sections", "-Wl,--entry=reset_handler")
LINK = FIRMWARE / "link"
STM32F405 = "stm32f405"
CORTEX_M4F = CORES[M4F].flags
SOFT = {"zig": (), "gcc": ("-lgcc",)}  # floats without an FPU: zig adds its library unless told not to
# No libc: copies are instructions, which browsers and node know since 2020 and 2021.
WASM = ("-target", "wasm32-freestanding", "-O2", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all")

TOO_LARGE = re.compile(r"overflow|will not fit", re.I)  # what linkers say of an image: how many bytes are too many


class ToolchainError(ValueError):
    """No compiler, or it refused the source; the message says which and why."""


def _zig() -> list[str] | None:
    """The command of the ziglang wheel."""
    return [*python(), "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def choose(compiler: str, gcc: str) -> tuple[str, list[str]]:
    """The kind of compiler to use, and its command; `gcc` is the name of one that goes first where it is installed."""
    if compiler not in COMPILERS:
        raise ToolchainError(f"unknown compiler {compiler!r}; choices: {', '.join(COMPILERS)}")
    found = {"gcc": [gcc] if shutil.which(gcc) else None, "zig": _zig()}
    for kind, command in found.items():
        if compiler in ("auto", kind) and command:
            return kind, command
    missing = {"gcc": f"{gcc} is not", "zig": "the package 'ziglang' is not"}
    what = missing.get(compiler, f"neither the package 'ziglang' nor {gcc} is")
    raise ToolchainError(f"{what} installed; pip install 'sim2metal[firmware]' brings zig")


def run(command: Sequence[str | os.PathLike[str]]) -> None:
    """Run a compiler; ToolchainError with its first complaints when it fails."""
    done = subprocess.run([os.fspath(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.splitlines()
        said = [line for line in lines if TOO_LARGE.search(line)] or [line for line in lines if "error" in line]
        said = said or lines[-1:]
        raise ToolchainError(f"{' '.join(map(str, command[:4]))} ...: {'; '.join(said[:3])}")


def _sources(folder: Path) -> list[Path]:
    """policy.c and, where something is learned beside it, residual.c."""
    residual = folder / "residual.c"
    return [folder / "policy.c", *[residual] * residual.exists()]


def host_library(folder: Path, compiler: str = "auto", flags: Sequence[str] = ()) -> Path:
    """Build policy.c in `folder`, and residual.c if it is there, as a shared library for this machine; its path."""
    _, command = choose(compiler, "cc")
    library = folder / "policy.so"
    run([*command, *FLAGS, *HOST, *flags, *_sources(folder), "-o", library])
    return library


def beneath(core: Core = CORES[M4F], board: str = STM32F405) -> list[Path]:
    """What a program stands on: sources from reset to main, and the board's clock and serial line."""
    return [LINK / "common.c", *sorted((LINK / core.family).glob("*.c")), FIRMWARE / board / "board.c"]


def headers(core: Core = CORES[M4F]) -> list[str]:
    """Where board.h is, and what its family of cores has beside it."""
    return [f"-I{LINK}", f"-I{LINK / core.family}"]


def linker_script(folder: Path, core: Core = CORES[M4F], board: str = STM32F405) -> Path:
    """Written into `folder`: the board's memory, and where the parts of an image go."""
    parts = [FIRMWARE / board / f"{board}.ld", LINK / core.family / "sections.ld"]
    script = folder / "link.ld"
    script.write_text("".join(part.read_text() for part in parts))
    return script


def image(
    folder: Path, compiler: str = "auto", flags: Sequence[str] = (), core: Core = CORES[M4F], board: str = STM32F405
) -> Path:
    """Build what is in `folder` with firmware/link and the `board`'s folder into an ELF image; the image's path.

    With another `core` than the board's it is for a chip like that one with that core in it, which only the emulator
    has: one of the same family, ToolchainError otherwise.
    """
    if core.family != (family := CORES[BOARDS[board].core].family):
        fitting = ", ".join(name for name, one in CORES.items() if one.family == family)
        raise ToolchainError(f"{board} starts as its family of cores does, no {core.name}: core is one of {fitting}")
    kind, command = choose(compiler, GCC[core.family])
    sources = [*_sources(folder), LINK / "main.c", *beneath(core, board)]
    script: list[str | Path] = ["-T", linker_script(folder, core, board), *headers(core), "-I", folder]
    built = folder / "policy.elf"
    bare = BARE if core.fpu else [*(flag for flag in BARE if (kind, flag) != ("zig", "-nostdlib"))]
    soft = () if core.fpu else SOFT[kind]
    run([*command, *core.flags[kind], *FLAGS, *bare, *flags, *script, *sources, *soft, "-o", built])
    return built


def webassembly(folder: Path, sources: Sequence[Path], compiler: str = "auto") -> bytes:
    """Build policy.c in `folder` and `sources` into a WebAssembly module that imports nothing; the module."""
    if compiler == "gcc":
        raise ToolchainError("gcc makes no WebAssembly; compiler=zig does")
    _, command = choose("zig", "")
    built = folder / "policy.wasm"
    include: list[str | Path] = ["-I", folder, *(part for source in sources for part in ("-I", source.parent))]
    run([*command, *WASM, *FLAGS, *include, folder / "policy.c", *sources, "-o", built])
    return built.read_bytes()

"""The module's C++ against declared headers, and one that runs it as PX4 would."""

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np

from deploy import cli, export
from deploy.codegen import toolchain

HEADERS = Path(__file__).parent / "headers"
MODE, OTHER = 23, 4  # nav_state of ours, and another
REQUEST = 0x73696D32  # of the mode's registration
TICK = 2500  # us
ALL = 7
STILL = (1.0, -2.0, -3.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
HOLD, LAND = [176.0, 1.0, 4.0, 3.0], [176.0, 1.0, 4.0, 6.0]  # set mode: auto, loiter or land
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")


def exported(out: Path, policy: object = "quad_any") -> Path:
    """The module's folder."""
    assert cli.call(export.main, [f"policy={policy}", "target=px4", f"out={out}"]) == 0
    return out


def changed(change: dict[int, float]) -> list[float]:
    return [change.get(place, value) for place, value in enumerate(STILL)]


def built(folder: Path, scratch: Path, newest: bool = True) -> Path:
    """A library of the module and its bench; with the interfaces of today, or those of 2025."""
    headers = scratch / "headers"
    for name in re.findall(r"#include <(.*?\.hp?p?)>", (folder / "module.hpp").read_text()):
        if newest or "setpoint_config" not in name:
            path = headers / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#pragma once\n#include "px4_stub.hpp"\n')
    _, command = toolchain.choose("zig", "cc")
    cpp = [*command[:-1], "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fPIC", "-O1", *WARNINGS]
    include = ["-I", folder, "-I", headers, "-I", HEADERS, '-DMODULE_NAME="sim2metal_policy"']
    toolchain.run([*cpp, *include, "-c", folder / "module.cpp", "-o", scratch / "module.o"])
    toolchain.run([*cpp, *include, "-c", HEADERS / "bench.cpp", "-o", scratch / "bench.o"])
    plain = ("-Wconversion", "-Wdouble-promotion", *WARNINGS)
    sources = [folder / f"{name}.c" for name in ("flight", "signals", "policy")]
    out = scratch / "module.so"
    toolchain.run(
        [
            *command,
            *toolchain.FLAGS,
            *toolchain.HOST,
            *plain,
            *sources,
            scratch / "module.o",
            scratch / "bench.o",
            "-o",
            out,
        ]
    )
    return out


class Bench:
    """The module, started afresh."""

    def __init__(self, library: Path, scratch: Path, registers: bool = True, stale: bool = False) -> None:
        own = scratch / "own.so"  # its memory is its own
        shutil.copy(library, own)
        self.c = ctypes.CDLL(str(own))
        self.c.bench_said.restype = ctypes.c_char_p
        self.now = 1_000_000
        if stale:
            self.c.bench_stale_reply(ctypes.c_uint64(self.now - 500_000), ctypes.c_uint64(REQUEST))
        assert self.c.bench_start() == 0
        self.tick(STILL)
        if registers:
            self.c.bench_register(MODE)
            self.tick(STILL)

    def tick(self, state, hears: int = ALL) -> None:
        self.now += TICK
        self.c.bench_tick(ctypes.c_uint64(self.now), (ctypes.c_float * 13)(*map(float, state)), hears)

    def enter(self, state=STILL) -> None:
        self.tick(state)
        self.mode(MODE)
        self.tick(state)

    def mode(self, mode: int, armed: bool = True) -> None:
        self.c.bench_mode(mode, int(armed))

    def command(self) -> list[float]:
        values = (ctypes.c_float * 4)()
        self.c.bench_command(values)
        return list(values)

    @property
    def motors(self) -> np.ndarray:
        values = (ctypes.c_float * 12)()
        self.c.bench_motors(values)
        return np.array(values)

    @property
    def counts(self) -> list[int]:
        values = (ctypes.c_int * 5)()
        self.c.bench_counts(values)
        return list(values)

    @property
    def said(self) -> str:
        return self.c.bench_said().decode()

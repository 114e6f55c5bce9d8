"""The module's C against declared headers, and a loop that runs it as Betaflight would."""

import ctypes
import math
import re
import shutil
from pathlib import Path

import numpy as np

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.codegen.cores import CORES, M4F

HEADERS = Path(__file__).parent / "headers"
TICK = 1000  # us
FIELDS = ("sensors", "features", "radio", "failsafe", "flip", "launch", "box", "voltage")
FIELDS = (*FIELDS, "count", "mixer", "reversed", "fix", "source", "oriented", "silent")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wdouble-promotion", "-Wold-style-definition", "-Werror")
GPS, FLOW = 1 << 5, 1 << 7  # beside gyroscope and accelerometer
GPS_ONLY, FLOW_ONLY = 1, 2  # sources of the position; 0: either
LOW, HIGH = 48.0, 2047.0  # of the motors' outputs
SOURCES = ("sim2metal", "flight", "signals", "policy")


def exported(out: Path, policy: object = "quad_any", *more: str) -> Path:
    """The module's folder."""
    assert cli.call(export.main, [f"policy={policy}", "target=betaflight", f"out={out}", *more]) == 0
    return out


def headers_for(folder: Path, scratch: Path, estimator: bool = True) -> list[str]:
    """Flags of a compiler: Betaflight's headers, of 2026.6, or of 2025.12 without its estimate of the position."""
    headers = scratch / "headers"
    for name in re.findall(r'#include "(.*?/.*?|platform\.h)"', (folder / "sim2metal.c").read_text()):
        if estimator or "position_estimator" not in name:
            path = headers / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#pragma once\n#include "betaflight_stub.h"\n')
    return ["-I", str(folder), "-I", str(headers), "-I", str(HEADERS)]


def built(folder: Path, scratch: Path) -> Path:
    """A library of the module and its bench, with -ffast-math where sim2metal.mk leaves Betaflight's."""
    _, command = toolchain.choose("zig", "cc")
    include = headers_for(folder, scratch)
    flags = ["-std=gnu17", *toolchain.HOST, *WARNINGS]
    fast, exact = scratch / "sim2metal.o", scratch / "module.so"
    toolchain.run([*command, *flags, "-ffast-math", *include, "-c", folder / "sim2metal.c", "-o", fast])
    sources = [fast, *(folder / f"{name}.c" for name in SOURCES[1:]), HEADERS / "bench.c"]
    toolchain.run([*command, *flags, "-ffp-contract=off", *include, *sources, "-o", exact])
    return exact


def for_the_chip(folder: Path, scratch: Path, estimator: bool = True) -> int:
    """Compiled for an STM32F405; bytes of what was made."""
    _, command = toolchain.choose("zig", "cc")
    include = headers_for(folder, scratch, estimator)
    made = []
    for name in SOURCES:
        out = scratch / f"{name}.o"
        flags = [*CORES[M4F].flags["zig"], "-std=gnu17", "-Os", "-ffreestanding", *WARNINGS]
        toolchain.run([*command, *flags, *include, "-c", folder / f"{name}.c", "-o", out])
        made.append(out.stat().st_size)
    return sum(made)


class Bench:
    """The module, started afresh: level, at rest, at a place of its own."""

    def __init__(self, library: Path, scratch: Path, silent: bool = False) -> None:
        own = scratch / "own.so"  # its memory is its own
        shutil.copy(library, own)
        self.c = ctypes.CDLL(str(own))
        self.c.bench_reason.restype = ctypes.c_char_p
        self.now = 0xFFFFFFFF - 20 * TICK  # the clock wraps in the first ticks
        self.sticks()
        self.set("silent", int(silent))
        self.tick()

    def set(self, name: str, value: int) -> None:
        self.c.bench_set(FIELDS.index(name), value)

    def sticks(self, roll: float = 0.0, pitch: float = 0.0, throttle: float = 1300.0) -> None:
        self.c.bench_sticks(*map(ctypes.c_float, (roll, pitch, throttle)))

    def tick(self, state=None, trust: float = 0.95, valid: int = 3, us: int = TICK) -> None:
        self.now = (self.now + us) & 0xFFFFFFFF
        told = (ctypes.c_float * 18)(*map(float, still() if state is None else state))
        self.c.bench_tick(ctypes.c_uint32(self.now), told, ctypes.c_float(trust), valid)

    def enter(self, state=None, armed: bool = True, modes: int = 0) -> None:
        """By the switch; armed a turn before."""
        self.c.bench_flags(int(armed), modes)
        self.set("box", 0)
        self.tick(state)
        self.set("box", 1)
        self.tick(state)

    @property
    def outputs(self) -> np.ndarray:
        values = (ctypes.c_float * 4)()
        self.c.bench_motors(values)
        return np.array(values)

    @property
    def flies(self) -> bool:
        return bool((self.outputs >= 0.0).all())

    @property
    def commands(self) -> np.ndarray:
        """0 to 1, front right, back right, back left, front left."""
        return ((self.outputs - LOW) / (HIGH - LOW))[[1, 0, 2, 3]]

    def target(self, place, yaw: float, *legs: tuple[tuple[float, float, float], int]) -> tuple[np.ndarray, np.ndarray]:
        """Sticks (forward, left, up), for so many steps each -> the target's position and velocity, flight's world."""
        sticks = np.array([stick for stick, _ in legs], np.float32)
        to = (ctypes.c_float * 6)(*[math.nan] * 6)
        floats = [
            (ctypes.c_float * len(x))(*x) for x in (place, (math.cos(yaw), math.sin(yaw)), sticks.ravel().tolist())
        ]
        self.c.bench_target(*floats, (ctypes.c_int * len(legs))(*[n for _, n in legs]), len(legs), to)
        return np.array(to[:3]), np.array(to[3:])

    @property
    def reason(self) -> str:
        return self.c.bench_reason().decode()


def state_of(position, velocity, rotation, rates) -> np.ndarray:
    """As Betaflight has it, of what is in m, m/s, body to north-west-up and rad/s."""
    enu = [np.array([-v[1], v[0], v[2]]) * 100.0 for v in map(np.asarray, (position, velocity))]
    return np.concatenate([*enu, np.asarray(rotation).ravel(), np.degrees(rates)])


def turned(yaw: float, roll: float = 0.0) -> np.ndarray:
    """Body to world."""
    c, s, a, b = math.cos(yaw), math.sin(yaw), math.cos(roll), math.sin(roll)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ [[1, 0, 0], [0, a, -b], [0, b, a]]


def still(**change) -> np.ndarray:
    usual = {"position": (1.0, -2.0, 3.0), "velocity": (0, 0, 0), "rotation": turned(0.7), "rates": (0, 0, 0)}
    return state_of(**usual | change)

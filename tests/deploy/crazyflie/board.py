"""The app for the Crazyflie's firmware as a library of this machine, and the firmware around it: bench.c."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.crazyflie.guard import FLY, LIMITS

QUAD_ANY = "deploy/pretrained/quad_any.onnx"
HEADERS = Path(__file__).parent / "headers"
SOURCES = ("flight.c", "compute.c", "guard.c", "landing.c", "signals.c", "policy.c")
FORCE, LEGACY = 2, 0  # control modes
PLACE, ANY_SPEED, NOTHING = (1, 1, 1), (2, 2, 2), (0, 0, 0)  # modes of x, y, z


class Input(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_float * 3) for name in ("position", "velocity")),
        ("quaternion", ctypes.c_float * 4),
        *((name, ctypes.c_float * 3) for name in ("gyro", "target_position", "target_velocity")),
        ("modes", ctypes.c_int * 3),
        ("velocity_body", ctypes.c_int),
        *((name, ctypes.c_uint32) for name in ("timestamp", "now", "step")),
        ("target_yaw", ctypes.c_float),
    ]


class Entry(ctypes.Structure):
    """Of the tables of parameters and log variables."""

    _fields_ = [("type", ctypes.c_uint8), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


# Nothing that a random state would break, and no mixing with the PID controller.
WIDE = {"fence": 20.0, "height": 20.0, "tilt": 80.0, "speed": 10.0, "rate": 35.0, "ramp": 0.0}
KINDS = {
    "logs": {1: ctypes.c_uint8, 3: ctypes.c_uint32, 7: ctypes.c_float},
    "params": {8: ctypes.c_uint8, 6: ctypes.c_float},
}


def written(folder: Path, path: str = QUAD_ANY, *, own_task: bool = False) -> Path:
    """The app's sources; `own_task` for a policy that would not need one."""
    assert cli.call(export.main, [f"policy={path}", "target=crazyflie", f"out={folder}"]) == 0
    if own_task:
        vehicle = folder / "src" / "vehicle.h"
        vehicle.write_text(vehicle.read_text().replace("#define POLICY_TASK 0", "#define POLICY_TASK 1"))
    return folder / "src"


def build(source: Path, *flags: str) -> Path:
    _, command = toolchain.choose("zig", "cc")
    library = source / "app.so"
    files = [*(source / name for name in SOURCES), HEADERS / "bench.c"]
    include = ["-I", source, "-I", HEADERS]
    toolchain.run([*command, *toolchain.FLAGS, *toolchain.HOST, *flags, *include, *files, "-o", library])
    return library


class Firmware:
    """The app as the firmware runs it: booted, and called every millisecond."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.controllerOutOfTreeTest.restype = ctypes.c_bool
        self.now, self.forces = 5000, (ctypes.c_float * 4)()
        self.late, self._left = 1, 0  # ms that a step takes in a task of its own; what is left of one
        self.tables: dict[str, dict[str, Any]] = {}
        self.booted_in = self.parameter("mode")  # of a library that nobody has opened before
        self.set("voltage", 4.0)
        self.set("variance", 1e-4)
        for name in ("step_us", "in_the_air", "relaxed"):
            self.set(name, 0)
        for name, (usual, _, _) in LIMITS.items():
            self.write(name, WIDE.get(name, usual))
        self.write("mode", FLY)
        self.boot()

    def of(self, name: str) -> ctypes.c_float | ctypes.c_int:
        """A variable of bench.c."""
        kind = ctypes.c_float if name in ("voltage", "variance") or name.startswith("pid_") else ctypes.c_int
        return kind.in_dll(self.library, name)

    def set(self, name: str, value: float) -> None:
        self.of(name).value = value

    def attend(self) -> list[str]:
        """One turn of the app's own task, and what it said after its greeting."""
        said = (ctypes.c_char * 2000).in_dll(self.library, "said")
        said.value = b""
        self.library.bench_attend()
        return said.value.decode().splitlines()[1:]

    def told(self) -> np.ndarray:
        """Where the PID controller was last told to be."""
        return np.array((ctypes.c_float * 3).in_dll(self.library, "pid_place"))

    def write(self, parameter: str, value: float) -> None:
        self.table("params")[parameter].value = value

    def parameter(self, name: str) -> float:
        return self.table("params")[name].value

    def select(self) -> None:
        """Controller 6 anew."""
        self.library.controllerOutOfTreeInit()

    def boot(self) -> bool:
        self.library.controllerOutOfTreeInit()
        self.forget()
        self.sound = self.library.controllerOutOfTreeTest()
        return self.sound

    def forget(self) -> None:
        ctypes.c_int.in_dll(self.library, "pid_calls").value = 0

    def table(self, kind: str) -> dict[str, Any]:
        """Where the app's parameters ("params") or log variables ("logs") are, by name."""
        if kind not in self.tables:
            found = {}
            for entry in (Entry * 100).in_dll(self.library, f"{kind}_policy"):
                if entry.type == 0:
                    break
                found[entry.name.decode()] = KINDS[kind][entry.type].from_address(entry.address)
            self.tables[kind] = found
        return self.tables[kind]

    def logged(self, name: str) -> float:
        return self.table("logs")[name].value

    def call(self, modes=PLACE, age=0, **values) -> tuple[int, np.ndarray]:
        """One call: the control mode and the normalised forces."""
        self.now += 1
        given = {"quaternion": (0, 0, 0, 1), "position": (0, 0, 1), "target_position": (0, 0, 1), **values}
        given = {name: tuple(value) if np.ndim(value) else value for name, value in given.items()}
        data = Input(modes=modes, timestamp=self.now - age, now=self.now, step=self.now, **given)
        mode = self.library.bench_step(ctypes.byref(data), self.forces)
        if self._left == 0 and self.of("notified").value:
            self._left = self.late
        if self._left == 1:
            self.library.bench_work()
        self._left = max(self._left - 1, 0)
        return mode, np.array(self.forces)

    def finish(self) -> None:
        """The step that is under way, now."""
        self._left = 0
        self.library.bench_work()

    def pid(self) -> list[tuple[int, int]]:
        """(mode of x, step) of the PID controller's calls since the last question, at most four."""
        calls = ctypes.c_int.in_dll(self.library, "pid_calls").value
        modes = (ctypes.c_int * 4).in_dll(self.library, "pid_modes")
        steps = (ctypes.c_uint32 * 4).in_dll(self.library, "pid_steps")
        self.forget()
        return [(modes[k], steps[k]) for k in range(min(calls, 4))]

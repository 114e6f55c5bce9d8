"""Starts the worker under the Python that has Isaac Gym, and speaks with it; see `sim.engines.isaacgym.worker`.

The shared memory has no name: nothing of it can stay behind. The worker ends with the socket, is killed where it does
not answer, and ends by itself if this process is killed.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

from sim.engines.isaacgym import worker

PYTHON = "SIM2METAL_ISAACGYM_PYTHON"  # environment: the interpreter that has Isaac Gym
DEVICE = "SIM2METAL_ISAACGYM_DEVICE"  # environment: where PhysX runs
DEVICES = ("gpu", "cpu")
USUAL = "python3.8"
INSTALL = (
    "engine=isaacgym needs NVIDIA's Isaac Gym (Preview 4), which exists for Python 3.6 to 3.8, of which 3.8 is needed: "
    "download it from developer.nvidia.com/isaac-gym, install it there (pip install -e python), and say where that is: "
    f"{PYTHON}=/path/to/python3.8"
)
OLDEST = (3, 8)
OURS = ("PYTHONPATH", "PYTHONHOME")  # environment of our Python, which would mislead another
HELLO, OPENING, STEPPING = 60.0, 600.0, 120.0  # s: how long it may be silent then
CLOSING = 5.0  # s: how long it may take to end by itself
TOLD = 600  # characters of what it printed at last


class IsaacGymError(ValueError):
    """Isaac Gym is not there, or its worker failed; the message says what to do, or what it said."""


def interpreter() -> str:
    """The Python that has Isaac Gym: the environment says so, or it is the first python3.8 on the path.

    Only this machine's owner says which program is run: no setting of a task, thus no policy file.
    """
    if not hasattr(os, "memfd_create"):
        raise IsaacGymError("engine=isaacgym runs on Linux only, as NVIDIA's Isaac Gym does")
    named = os.environ.get(PYTHON, "")
    found = shutil.which(named or USUAL)
    if found is None:
        tried = f"{PYTHON}={named}, which is no program" if named else f"{USUAL}, which is not on the path"
        raise IsaacGymError(f"tried {tried}; {INSTALL}")
    return found


def on_gpu() -> bool:
    """Where PhysX is to run, as the environment says."""
    device = os.environ.get(DEVICE, DEVICES[0])
    if device not in DEVICES:
        raise IsaacGymError(f"{DEVICE}={device} is not one of {', '.join(DEVICES)}")
    return device == DEVICES[0]


class Bridge:
    """A worker and the arrays that both share. Every answer that does not come is an IsaacGymError."""

    def __init__(self, python: str, program: str | Path = worker.__file__) -> None:
        self.python = python
        self.arrays: worker.Arrays = {}
        self._memory: mmap.mmap | None = None
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the bridge
        self._descriptor = os.memfd_create("isaacgym")
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs:
            handed = theirs.fileno(), self._descriptor
            command = [python, str(program), *map(str, handed)]
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,  # Isaac Gym prints as it is imported
                    stderr=self._printed,
                    pass_fds=handed,
                    env={name: value for name, value in os.environ.items() if name not in OURS},
                )
            except OSError as error:
                _release(None, ours, self._descriptor, self._printed)
                raise IsaacGymError(f"cannot run {python}: {error.strerror}; {INSTALL}") from error
        self._end = weakref.finalize(self, _release, self.process, ours, self._descriptor, self._printed)
        self._greeted()

    def _greeted(self) -> None:
        try:
            hello = self._answer("hello", HELLO)
        except IsaacGymError as error:
            raise IsaacGymError(f"{error}; {INSTALL}") from error
        if hello.get("protocol") != worker.PROTOCOL:
            self.close()
            raise IsaacGymError(f"{self.python}: its worker speaks protocol {hello.get('protocol')}, not ours")
        version = str(hello.get("python"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            self.close()
            raise IsaacGymError(f"{self.python} is Python {version}; {INSTALL}")

    def open(self, plan: dict[str, Any], silent: float = OPENING) -> str:
        """Have it make a simulation of a plan (see `worker.IsaacGym`); the version of Isaac Gym. Fills `arrays`."""
        wanted = worker.shapes(plan["num"], len(plan["joints"]), len(plan["bodies"]), plan["steps"])
        os.ftruncate(self._descriptor, worker.room(wanted))
        self._memory = mmap.mmap(self._descriptor, worker.room(wanted))
        self.arrays = worker.views(self._memory, wanted)
        return str(self.ask({"do": "open", "plan": plan}, "open", silent).get("version", ""))

    def check(self) -> None:
        """IsaacGymError where there is no worker any more."""
        if self.process.poll() is not None or not self._end.alive:
            raise self._lost("is gone")

    def step(self, silent: float = STEPPING) -> None:
        """Have it carry out what the arrays say."""
        self.ask({"do": "step"}, "stepped", silent)

    def ask(self, message: dict[str, Any], wanted: str, silent: float) -> dict[str, Any]:
        """Its answer, which is to come within `silent` seconds."""
        self.check()
        try:
            worker.send(self._channel, message)
        except OSError as error:
            raise self._lost("is gone") from error
        return self._answer(wanted, silent)

    def _answer(self, wanted: str, silent: float) -> dict[str, Any]:
        self._channel.settimeout(silent)
        try:
            found = worker.receive(self._channel)
        except TimeoutError as error:
            raise self._lost(f"did not answer for {silent:g} s, and was ended") from error
        except OSError as error:
            raise self._lost("is gone") from error
        except ValueError as error:
            raise self._lost(f"said what is no message ({error}), and was ended") from error
        if found is None:
            raise self._lost("is gone")
        if found.get("is") == "error":
            kind, what = str(found.get("kind")), str(found.get("what"))
            self.close()
            if kind == "ModuleNotFoundError":
                raise IsaacGymError(f"tried {self.python}: {what}; {INSTALL}")
            raise IsaacGymError(f"Isaac Gym's worker ({self.python}) failed: {kind}: {what}")
        if found.get("is") != wanted:
            raise self._lost(f"answered {str(found.get('is'))[:50]!r}, not {wanted!r}, and was ended")
        return found

    def _lost(self, how: str) -> IsaacGymError:
        """What to say of a worker that is of no use any more; ends it."""
        if not self._end.alive:
            return IsaacGymError(f"Isaac Gym's worker ({self.python}) was closed")
        self.process.kill()
        self.process.wait()
        said = _tail(self._printed)
        self.close()
        return IsaacGymError(f"Isaac Gym's worker ({self.python}) {how}{f'; it printed {said!r}' if said else ''}")

    def close(self) -> None:
        """End the worker and free what both shared."""
        self.arrays = {}
        self._memory = None
        self._end()


def _tail(printed: IO[bytes]) -> str:
    """The last of what a worker printed, in one line."""
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - 4 * TOLD))
    return " ".join(printed.read(4 * TOLD).decode(errors="replace").split())[-TOLD:]


def _release(
    process: subprocess.Popen[bytes] | None, channel: socket.socket, descriptor: int, printed: IO[bytes]
) -> None:
    channel.close()  # upon which it ends
    if process is not None:
        try:
            process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    os.close(descriptor)
    printed.close()

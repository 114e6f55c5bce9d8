"""A controller manager for tests: the generated controller compiled, loaded as a shared object, and told line by line.

The headers in ros2/ and ros2_control/ declare what the controller uses, from the public interfaces of both.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.codegen import toolchain
from deploy.codegen.source import Source
from deploy.libraries.ros2_control import Package
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of

HERE = Path(__file__).parent
HEADERS = ("-I", HERE / "ros2", "-I", HERE / "ros2_control")
STRICT = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-ffp-contract=off")
NAME = "flown"  # what the controller is called


def compilers() -> list[str]:
    return [name for name, there in (("gcc", shutil.which("g++")), ("zig", True)) if there]


def command(compiler: str) -> list[str]:
    return ["g++"] if compiler == "gcc" else [*toolchain.choose("zig", "")[1][:-1], "c++"]


def objects(folder: Path, compiler: str, to: Path) -> list[Path]:
    """What becomes of a package's sources, built as its CMakeLists.txt says, and stricter."""
    source, kind, run = folder / "src", "-fvisibility=hidden", command(compiler)
    made = [to / "controller.o", to / "policy.o"]
    toolchain.run([*run, *STRICT, kind, "-fPIC", *HEADERS, "-c", source / "controller.cpp", "-o", made[0]])
    c = [*run[:-1], "gcc" if compiler == "gcc" else "cc"]
    toolchain.run([*c, *toolchain.FLAGS, "-O2", kind, "-fPIC", "-c", source / "policy.c", "-o", made[1]])
    return made


def compiled(folder: Path, compiler: str) -> Path:
    """The controller of a package in `folder`; the shared object."""
    built = folder / f"{folder.name}.so"
    toolchain.run([*command(compiler), "-shared", *objects(folder, compiler, folder), "-o", built])
    return built


def manager(folder: Path, compiler: str) -> Path:
    """The program that loads controllers."""
    built = folder / "manager"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic")
    toolchain.run([*command(compiler), *flags, *HEADERS, HERE / "manager.cpp", "-ldl", "-o", built])
    return built


@dataclass
class Built:
    """One policy's package, compiled."""

    policy: PolicyFile
    package: Package
    library: Path
    manager: Path


def build(path: str, folder: Path, program: Path, compiler: str) -> Built:
    """Generate and compile."""
    content = content_of(path)
    policy = PolicyFile.from_bytes(content, path)
    package = Package(policy, Source(policy, content))
    for name, text in package.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Built(policy, package, compiled(folder, compiler), program)


@dataclass(frozen=True)
class Update:
    """What one update did."""

    fine: bool
    allocated: int
    commands: np.ndarray  # float64, in the order of the command interfaces


class Flown:
    """A controller in the manager. With `parameters` beside its own; at `rate` Hz, by default the policy's."""

    def __init__(self, built: Built, parameters: Mapping[str, Any] | None = None, rate: float | None = None) -> None:
        self.built, self.rate = built, rate or built.policy.rate_hz
        self.process = subprocess.Popen(
            [built.manager, built.library, NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.now = 1_800_000_000_000_000_000  # ns
        for name, value in (parameters or {}).items():
            kind = "double" if isinstance(value, float) else "strings" if isinstance(value[0], str) else "doubles"
            self.ask(kind, name, *np.atleast_1d(value))
        self.configured = self.ask("configure", int(self.rate))
        names = self.ask("names").split("|")
        self.states, self.commands, self.references, *_ = [one.split() for one in (*names, "", "")]

    def ask(self, *words: Any) -> str:
        """One line there, one back."""
        said = " ".join(float(w).hex() if isinstance(w, float | np.floating) else str(w) for w in words)
        print(said, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), f"it died of: {said}"
        return answer.strip()

    def activate(self, without: str = "") -> str:
        return self.ask("activate", without)

    def lead(self, values: Iterable[float]) -> None:
        """All its references, in their order; NaN: nothing new."""
        self.ask("lead", *map(float, values))

    def set(self, values: Iterable[float]) -> None:
        """All state interfaces, in their order."""
        self.ask("states", *map(float, values))

    def update(self, after: float | None = None) -> Update:
        """The next update, `after` seconds."""
        self.now += round(1e9 * (1.0 / self.rate if after is None else after))
        how, allocated, *commands = self.ask("update", self.now).split()
        return Update(how == "OK", int(allocated), np.array([float.fromhex(c) for c in commands]))

    def told(self) -> dict[str, float]:
        """The state interfaces of its own."""
        words = self.ask("told").split()
        return {k.removeprefix(f"{NAME}/"): float.fromhex(v) for k, v in zip(words[::2], words[1::2], strict=True)}

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(10.0)
        self.process.stdout.close()

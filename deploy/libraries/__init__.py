"""A policy's C as a library folder: for the Arduino IDE, for PlatformIO, and as a module of Zephyr.

Each has the same C as target=c, and an example that runs the self-test on the board and times a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from deploy.codegen.source import FIRMWARE, Source
from deploy.policy_file import PolicyFile
from deploy.trust.text import printable

VERSION = "1.0.0"  # of the library: the policy is known by its SHA-256
APART = "-ffp-contract=off"  # multiply and add stay apart: the same bits everywhere
SKETCH, SAMPLE = FIRMWARE / "libraries" / "arduino" / "SelfTest.ino", FIRMWARE / "libraries" / "zephyr" / "main.c"


def name_of(policy: PolicyFile) -> str:
    """A name that all three take: letters, digits and underscores, a letter first."""
    plain = re.sub(r"\W+", "_", policy.name, flags=re.ASCII).strip("_")[:50]
    return f"policy_{plain}" if plain else "policy"


def about(policy: PolicyFile) -> str:
    """One line for people."""
    what = f"{policy.name}: a controller for {policy.robot}, {policy.rate_hz:g} Hz, sha256 {policy.sha256[:16]}"
    return printable(what, 200).replace("\\", "/")


def _sources(source: Source) -> dict[str, str]:
    return {f"src/{name}": text for name, text in source.files().items()}


def arduino(policy: PolicyFile, source: Source) -> dict[str, str]:
    """Path in the folder -> text: Arduino's library specification 1.5."""
    properties = {
        "name": name_of(policy),
        "version": VERSION,
        "author": "python -m deploy.export",
        "maintainer": "python -m deploy.export",
        "sentence": about(policy),
        "paragraph": "C without an operating system or an allocator, with its own test vectors.",
        "category": "Device Control",
        "architectures": "*",
        "includes": "policy.h",
    }
    lines = "".join(f"{key}={value}\n" for key, value in properties.items())
    sketch = {"examples/SelfTest/SelfTest.ino": SKETCH.read_text()}
    return {"library.properties": lines, **_sources(source), **sketch}


def platformio(policy: PolicyFile, source: Source) -> dict[str, str]:
    """The same for PlatformIO's library.json; the example is for its Arduino framework."""
    manifest = {
        "name": name_of(policy),
        "version": VERSION,
        "description": about(policy),
        "keywords": ["robotics", "control", "neural network"],
        "headers": "policy.h",
        "frameworks": "*",
        "platforms": "*",
        "build": {"flags": [APART]},
        "examples": [{"name": "SelfTest", "base": "examples/SelfTest", "files": ["SelfTest.cpp"]}],
    }
    sketch = {"examples/SelfTest/SelfTest.cpp": f"#include <Arduino.h>\n\n{SKETCH.read_text()}"}
    return {"library.json": json.dumps(manifest, indent=2) + "\n", **_sources(source), **sketch}


def zephyr(policy: PolicyFile, source: Source) -> dict[str, str]:
    """The same as a module of Zephyr (ZEPHYR_EXTRA_MODULES=DIR), with a sample."""
    sources = _sources(source)
    compiled = " ".join(name for name in sources if name.endswith(".c"))
    switch = "SIM2METAL_POLICY"
    cmake = f"if(CONFIG_{switch})\n  zephyr_library()\n  zephyr_library_sources({compiled})\n"
    cmake += f"  zephyr_include_directories(src)\n  zephyr_library_compile_options({APART})\nendif()\n"
    kconfig = f'config {switch}\n\tbool "A policy as C: {name_of(policy)}"\n'
    sample = "cmake_minimum_required(VERSION 3.20.0)\n"
    sample += "list(APPEND ZEPHYR_EXTRA_MODULES ${CMAKE_CURRENT_SOURCE_DIR}/../..)\n"
    sample += "find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})\nproject(selftest)\n"
    sample += "target_sources(app PRIVATE src/main.c)\n"
    return {
        "zephyr/module.yml": f"name: {name_of(policy)}\nbuild:\n  cmake: .\n  kconfig: Kconfig\n",
        "CMakeLists.txt": cmake,
        "Kconfig": kconfig,
        **sources,
        "samples/selftest/CMakeLists.txt": sample,
        "samples/selftest/prj.conf": f"CONFIG_{switch}=y\nCONFIG_PRINTK=y\nCONFIG_FPU=y\n",
        "samples/selftest/src/main.c": SAMPLE.read_text(),
    }


LIBRARIES: dict[str, Callable[[PolicyFile, Source], dict[str, str]]] = {
    "arduino": arduino,
    "platformio": platformio,
    "zephyr": zephyr,
}
USE = {
    "arduino": "put the folder into your sketchbook's libraries/, then File > Examples > {name} > SelfTest",
    "platformio": "lib_deps = symlink://{folder}; examples/SelfTest/SelfTest.cpp as src/main.cpp tries it",
    "zephyr": "west build -b BOARD {folder}/samples/selftest",
}

"""Where a row comes from: the machine, the code, and the versions of what it was measured with."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import peers

ROOT = Path(__file__).parents[2]
CODE = ("sim", "policies", "deploy", "firmware", "constraints.txt", "tests/benchmarks")  # that numbers depend on
ALWAYS = ("numpy", "onnxruntime")


def machine() -> str:
    """The processor in words, with the numbers that tell generations apart which call themselves the same."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = told.get("model name", "unknown processor")
    if {"cpu family", "model"} <= told.keys():
        model += f" (family {told['cpu family']}, model {told['model']})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GB"


def code(root: Path = ROOT) -> str:
    """Twelve digits that change with any file that a number could depend on; documents and results are none."""
    digest = hashlib.sha256()
    for part in CODE:
        place = root / part
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and _counts(file):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:12]


def _counts(file: Path) -> bool:
    if file.parent.name == "benchmarks":
        return file.suffix == ".py" and not file.name.startswith("test_")
    return "__pycache__" not in file.parts and file.suffix != ".md"


def commit(root: Path = ROOT) -> str:
    """The checkout's, with a plus sign where the code was changed since; a dash where there is no git."""
    told = _said(["git", "-C", str(root), "rev-parse", "--short=9", "HEAD"])
    results = [f":!tests/benchmarks/{name}" for name in ("*.json", "*.md", "*.png")]
    changed = _said(["git", "-C", str(root), "status", "--porcelain", "--", *CODE, *results])
    return f"{told}{'+' if changed else ''}" if told else "–"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python, of these packages, and of peers in their own environments; who is not there is left out."""
    found: dict[str, str | None] = {"Python": platform.python_version()}
    for name in (*ALWAYS, *packages):
        if name in peers.PEERS:
            found[peers.PEERS[name][0].partition("==")[0]] = peers.version(name)
        elif name.startswith("$"):  # a checkout
            found[name[1:]] = _said(
                ["git", "-C", os.environ.get(name[1:], "/nowhere"), "rev-parse", "--short=9", "HEAD"]
            )
        else:
            found[name] = _installed(name)
    return {name: version for name, version in found.items() if version}


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _said(command: list[str]) -> str:
    """What it prints; nothing when it fails or there is no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

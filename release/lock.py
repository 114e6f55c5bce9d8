"""Writes requirements/*.lock: every file that an installation fetches, by its hash. `python release/lock.py` (network).

Linux x86-64, the Python that runs this (3.11 for what is committed), versions from constraints.txt. Only what the
default package index says counts: neither local files nor other indices, whose files may differ from everybody else's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
# File -> extras. What needs torch is not here: the tested build of it for CPUs is none of the default index's files.
LOCKS: dict[str, tuple[str, ...]] = {
    "base": (),
    "train": ("train",),
    "tools": ("train", "bullet", "firmware", "crazyflie", "ros", "watch", "datasets", "serve", "trust"),
}


def canonical(name: str) -> str:
    """A distribution's name as indices spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(extras: tuple[str, ...]) -> list[str]:
    """What pyproject.toml asks for: the base, and these extras with the extras that they include."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            inner = re.fullmatch(r"sim2metal\[([\w,-]+)\]", line)
            found += wanted(tuple(inner[1].split(","))) if inner else [line]
    return sorted(set(found))


def resolved(requirements: list[str]) -> dict[str, tuple[str, str]]:
    """Canonical name -> (version, SHA-256) of each file that pip would fetch."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_") or key == "PIP_CERT"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(ROOT / "constraints.txt"), *requirements]
        subprocess.run(command, check=True, env={**environment, "PIP_CONFIG_FILE": os.devnull})
        installs = json.loads(report.read_text())["install"]
    made = {}
    for install in installs:
        metadata, archive = install["metadata"], install["download_info"]["archive_info"]
        made[canonical(metadata["name"])] = (metadata["version"], archive["hashes"]["sha256"])
    return made


def text(found: dict[str, tuple[str, str]], extras: tuple[str, ...]) -> str:
    """The lock file."""
    what = f"sim2metal[{','.join(extras)}]" if extras else "sim2metal"
    lines = [f"# Files of {what} for Linux x86-64 and Python 3.11. Made by release/lock.py from constraints.txt."]
    for name, (version, digest) in sorted(found.items()):
        lines += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return "\n".join(lines) + "\n"


def read(path: Path) -> dict[str, tuple[str, str]]:
    """The inverse of `text`."""
    entry = re.compile(r"([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})\n")
    return {name: (version, digest) for name, version, digest in entry.findall(path.read_text())}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, extras in LOCKS.items():
        found = resolved(wanted(extras))
        (FOLDER / f"{name}.lock").write_text(text(found, extras))
        print(f"requirements/{name}.lock: {len(found)} files")

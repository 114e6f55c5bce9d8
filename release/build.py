"""python release/build.py [FOLDER]: the wheel of the last commit, its bill of materials, SHA256SUMS. No network.

Same commit, same bytes, wherever and whenever: built from what git has, dated as the commit (or SOURCE_DATE_EPOCH),
with the setuptools that constraints.txt names.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parents[1]
BACKEND = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"


def git(*words: str) -> bytes:
    """What git says in this checkout."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def wheel(folder: Path, commit: str, epoch: int) -> Path:
    """The wheel of a commit."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        with tarfile.open(
            fileobj=io.BytesIO(git("-c", "tar.umask=0022", "archive", "--format=tar", commit))
        ) as archive:
            archive.extractall(source, filter="tar")
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", f"import os; os.umask(0o022); {BACKEND}", str(folder.resolve())]
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: no wheel was built: {done.stderr.strip().splitlines()[-1]}")
    return folder / done.stdout.splitlines()[-1]


def sha256(path: Path) -> str:
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(folder: Path, commit: str = "HEAD") -> list[Path]:
    """Build all three files."""
    folder.mkdir(parents=True, exist_ok=True)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct", commit))
    built = wheel(folder, commit, epoch)
    bill = folder / f"{built.name.removesuffix('.whl')}.cdx.json"
    bill.write_text(json.dumps(sbom.document(epoch, sha256(built)), indent=2) + "\n")
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in (built, bill)))
    return [built, bill, sums]


if __name__ == "__main__":
    changed = git("status", "--porcelain", "--untracked-files=no").decode()
    if changed:
        sys.stderr.write("warning: the checkout has changes, which are not in the release: it is of the last commit\n")
    print(*main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")), sep="\n")

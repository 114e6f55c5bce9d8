"""The notebooks of docs/ run from top to bottom, and are committed without what they print."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def cells(path, kind):
    """The texts of a notebook's cells of that kind."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == kind]


def test_there_are_two():
    assert [path.name for path in NOTEBOOKS] == ["first_flight.ipynb", "from_a_log.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_holds_no_output(path):
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(path, as_version=4))
    found = json.loads(path.read_text(encoding="utf-8"))
    for cell in found["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert str(ROOT) not in path.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    code = cells(path, "code")
    assert len(code) > 4
    program = "\n".join(f"exec(compile({text!r}, 'cell {k}', 'exec'))" for k, text in enumerate(code))
    (tmp_path / "notebook.py").write_text(program, encoding="utf-8")  # worlds in other processes need a file
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "notebook.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert len(list(tmp_path.rglob("policy.onnx"))) == 1

"""What `thinned` leaves for `make test` has each value of a matrix, and no more than it takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to load all plugins takes seconds
MATRIX = """
import pytest

@pytest.mark.thinned
@pytest.mark.parametrize("a", [1, 2, 3, 4])
@pytest.mark.parametrize("b", ["x", "y", pytest.param("z", marks=pytest.mark.long)])
def test_matrix(a, b): pass

@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", range(9))
def test_list(n): pass

@pytest.mark.parametrize("n", range(2))
def test_whole(n): pass
"""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> dict[str, list[str]]:
    """Tests by the words after -m."""
    folder = tmp_path_factory.mktemp("thinned")
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    thinned: some\n    long: rest\n    slow: slow\n")
    (folder / "test_a.py").write_text(MATRIX)
    found = {}
    for words in ("not long", "long"):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", words]
        done = subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True, check=True)
        found[words] = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    return found


def test_each_value_is_there(chosen):
    often = [name for name in chosen["not long"] if name.startswith("test_matrix")]
    assert len(often) == 4
    assert {name[-4:-1].split("-")[0] for name in often} | {name[-2] for name in often} == {*"xy", *"1234"}
    assert sorted(name[12] for name in often) == ["x", "x", "y", "y"]


def test_of_a_list_so_many_are_there_evenly_spread(chosen):
    assert [name for name in chosen["not long"] if "list" in name] == ["test_list[0]", "test_list[3]", "test_list[6]"]


def test_the_rest_is_long_and_what_is_not_marked_stays(chosen):
    assert len(chosen["long"]) == 12 - 4 + 9 - 3 and "test_whole[1]" in chosen["not long"]

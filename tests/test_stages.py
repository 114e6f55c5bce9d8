"""What `make test` says of its stages is true of all."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sim.engines.vector.blocks import WAIT
from tests import stages

SETTINGS = """[pytest]
markers =
    timed: last
    waits: timed, beside the others
    slow: long
    long: only on request
"""
PASSES = "def test_{0}(): pass\n"
FAILS = "def test_{0}(): assert 1 > 2\n"
MARKED = "import pytest\n\n@pytest.mark.{1}\n"


@pytest.fixture
def staged(tmp_path):
    """Runs files of tests in their stages: (exit status, the last line, all lines)."""
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # processes that start quickly

    def run(files, *words):
        for name, content in files.items():
            (tmp_path / f"test_{name}.py").write_text(content)
        command = [sys.executable, stages.__file__, *words, "-p", "xdist", "-ra"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        return done.returncode, lines[-1], lines

    return run


def test_all_stages_are_counted_and_what_fails_is_named(staged):
    status, last, lines = staged(
        {
            "a": PASSES.format("one") + FAILS.format("two"),
            "b": (MARKED + FAILS).format("three", "timed") + PASSES.format("four"),
            "c": (MARKED + FAILS).format("five", "long"),
        }
    )
    assert status == 1
    assert last.strip("=").startswith(" 2 failed, 2 passed in ")
    assert lines[-3:-1] == ["FAILED test_a.py::test_two", "FAILED test_b.py::test_three"]
    assert lines.index("== side by side") < lines.index("== timed")


UNSTEADY = """
import pathlib, pytest

@pytest.mark.{mark}
def test_{name}():
    tried = pathlib.Path("{name}.tried")
    tried.write_text("x" + (tried.read_text() if tried.exists() else ""))
    assert len(tried.read_text()) > 1
"""


def test_what_is_timed_has_a_second_try_and_is_named(staged):
    files = {"a": UNSTEADY.format(name="one", mark="timed") + PASSES.format("two")}
    status, last, lines = staged(files)
    assert status == 0 and last.strip("=").startswith(" 2 passed in ")
    assert "UNSTEADY test_a.py::test_one: passed at the second try" in lines and "== timed, once more" in lines


def test_an_error_before_a_test_has_a_second_try_too(staged):
    fixture = ("@pytest.mark.timed\ndef test_one", "@pytest.fixture\ndef it")
    setup = UNSTEADY.format(name="one", mark="timed").replace(*fixture)
    status, last, _ = staged({"a": setup + "\n" + MARKED.format("", "timed") + "def test_one(it): pass\n"})
    assert status == 0 and last.strip("=").startswith(" 1 passed in ")


def test_who_fails_and_cannot_end_either_counts_as_one(staged):
    """A launch whose process crashed: its test fails, and its end is an error."""
    ends = """
@pytest.fixture
def it():
    yield
    assert len(pathlib.Path("one.tried").read_text()) > 1

"""
    first = UNSTEADY.format(name="one", mark="timed").replace("test_one()", "test_one(it)")
    first = first.replace("import pathlib, pytest\n", "import pathlib, pytest\n" + ends)
    others = "".join(UNSTEADY.format(name=name, mark="timed") for name in ("two", "three"))
    status, last, lines = staged({"a": first, "b": others})
    assert status == 0 and last.strip("=").startswith(" 3 passed in "), lines
    assert len([line for line in lines if line.startswith("UNSTEADY ")]) == 3


def test_what_fails_twice_has_failed(staged):
    twice = UNSTEADY.format(name="one", mark="timed") + (MARKED + FAILS).format("two", "timed")
    status, last, lines = staged({"a": twice, "b": (MARKED + FAILS).format("three", "slow")})
    assert status == 1 and last.strip("=").startswith(" 2 failed, 1 passed in ")
    assert lines[-3:-1] == ["FAILED test_b.py::test_three", "FAILED test_a.py::test_two"]
    assert "UNSTEADY test_a.py::test_one: passed at the second try" in lines


def test_many_timed_tests_that_fail_are_no_accident(staged):
    many = "".join(UNSTEADY.format(name=name, mark="timed") for name in ("one", "two", "three", "four"))
    status, last, lines = staged({"a": many})
    assert status == 1 and last.strip("=").startswith(" 4 failed in ") and "== timed, once more" not in lines


def test_a_stage_that_does_not_come_to_its_end_is_an_error(staged):
    crash = "def test_two(): import os; os._exit(9)\n"
    files = {"a": MARKED.format("", "long") + PASSES.format("one"), "b": MARKED.format("", "timed") + crash}
    status, last, lines = staged(files, "all")
    assert status == 9
    assert last.strip("=").startswith(" 1 passed, 1 error in ") and lines[-2] == "FAILED no closing line, exit status 9"


ASKS = """
import os

def test_what_is_idle():
    assert os.sched_getscheduler(0) == {0}
    assert os.environ.get({1!r}) == {2!r}  # no compiler with time to spare is waited for
"""


@pytest.mark.timed  # itself: the other stage is idle, and hands that down
@pytest.mark.skipif(not stages.may_run_beside(os.cpu_count() or 1), reason="nothing runs beside")
def test_what_is_timed_has_the_cores_whenever_it_wants_them(staged):
    ours = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK  # which tests of real time leave behind
    asks = (
        ASKS.format("os.SCHED_IDLE", WAIT, os.environ.get(WAIT)),
        ASKS.format(ours, WAIT, "0").replace("def", MARKED.format("", "timed") + "def"),
    )
    status, last, lines = staged(dict(zip("ab", asks, strict=True)))
    assert status == 0 and last.strip("=").startswith(" 2 passed in "), "\n".join(lines)
    assert lines.index("== side by side") < lines.index("== timed")


def test_one_stage_follows_the_other_where_nothing_may_run_beside(monkeypatch, capsys):
    first, second = (stages.Stage(name, [name]) for name in ("one", "two"))
    told = []
    monkeypatch.setattr(stages, "watched", lambda command, *_: told.append((command, _[-1])) or 0)
    stages.run(first, [second], beside=False)
    assert told == [(["one"], False), (["two"], False)] and capsys.readouterr().out == "== one\n== two\n"


@pytest.mark.parametrize("breaks", ["one", "three"])
def test_what_the_others_printed_is_shown_also_where_one_breaks(monkeypatch, capsys, breaks):
    def watched(command, counts, failures, show, *_):
        if command == [breaks]:
            raise OSError("no more processes")
        show(f"said by {command[0]}\n")
        return 0

    monkeypatch.setattr(stages, "watched", watched)
    first, *timed = (stages.Stage(name, [name]) for name in ("one", "two", "three", "four"))
    with pytest.raises(OSError, match="no more processes"):
        stages.run(first, timed, beside=True)
    shown = capsys.readouterr().out
    assert all((f"said by {name}\n" in shown) == (name != breaks) for name in ("one", "two", "three", "four"))


def test_a_stage_without_tests_has_not_failed():
    counts, failures = Counter(), []
    done = [sys.executable, "-c", "print('=== no tests ran in 0.01s ==='); raise SystemExit(5)"]
    assert stages.watched(done, counts, failures) == 0
    assert (counts, failures) == (Counter(), [])


def test_one_core_has_no_workers():
    first, timed, waiting = stages.commands(1, False, ["tests/sim"]).values()
    assert first[2:] == ["pytest", "-m", "not timed and not long", "tests/sim"]
    assert timed[2:] == ["pytest", "-m", "timed and not waits and not long", "tests/sim"]
    assert waiting[2:] == ["pytest", "-m", "timed and waits and not long", "tests/sim"]
    assert stages.commands(64, True, [])["side by side"][3:5] == ["-n", "8"]
    assert "-n" in stages.commands(2, False, [])["side by side"] and "-n" not in stages.commands(2, False, [])["timed"]


def test_what_is_timed_is_found_without_importing_the_rest(tmp_path, monkeypatch):
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "test_a.py").write_text(MARKED.format("", "timed") + PASSES.format("one"))
    (tmp_path / "tests" / "test_b.py").write_text(PASSES.format("two"))
    monkeypatch.chdir(tmp_path)
    chosen = "timed and not waits and not long"
    assert stages.commands(2, False, [])["timed"][3:] == ["-m", chosen, "tests/deep/test_a.py"]
    assert stages.commands(2, False, ["-x"])["timed"][3:] == ["-m", chosen, "-x"]
    assert stages.WAITING not in stages.commands(2, False, [])
    (tmp_path / "tests" / "test_c.py").write_text(MARKED.format("", "waits") + PASSES.format("three"))
    assert stages.commands(2, False, [])[stages.WAITING][-1] == "tests/test_c.py"


def test_what_waits_runs_beside_what_is_timed_and_all_are_counted(staged, tmp_path):
    """Each waits for a file of the other."""
    meets = """
import pathlib, time

def test_{0}():
    pathlib.Path("{0}").touch()
    end = time.monotonic() + {2}
    while not pathlib.Path("{1}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert pathlib.Path("{1}").exists()
"""
    (tmp_path / "tests").mkdir()  # whose names tell that there are some
    (tmp_path / "tests" / "test_marks.py").write_text("# mark.waits\n")
    patience = 60.0 if stages.may_run_beside(os.cpu_count() or 1) else 0.0
    timed = MARKED.format("", "timed")
    waits = timed + "@pytest.mark.waits\n"
    one, two = meets.format("one", "two", patience), meets.format("two", "one", patience)
    status, last, lines = staged(
        {
            "a": PASSES.format("zero"),
            "b": one.replace("def", timed + "def", 1),
            "c": two.replace("def", waits + "def", 1),
        }
    )
    assert lines.index("== timed") < lines.index("== timed, waiting")
    if patience:
        assert status == 0 and last.strip("=").startswith(" 3 passed in ")


def test_the_closing_line_is_like_pytests():
    counts = Counter(passed=3, failed=1, skipped=2)
    assert stages.closing_line(counts, 61.5).strip("=") == " 1 failed, 3 passed, 2 skipped in 61.50s (0:01:01) "
    assert stages.CLOSING.fullmatch(stages.closing_line(Counter(passed=3), 3.0))[1] == "3 passed"


def test_the_garbage_collector_is_off_while_tests_are_collected_only(tmp_path):
    """Also in the process whose xdist workers collect."""
    conftest = Path(__file__).with_name("conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(
        conftest + "\n\ndef pytest_unconfigure():\n    print('on:', gc.isenabled())\n"
    )
    (tmp_path / "test_on.py").write_text(
        "import gc\n\nOFF = not gc.isenabled()\n\ndef test_on():\n    assert OFF and gc.isenabled()\n"
    )
    for words in ([], ["-p", "xdist", "-n", "1"]):
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *words, "."]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 and "on: True" in done.stdout and "1 passed" in done.stdout, done.stdout

"""Standard output that nobody reads, that is closed, or full: no traceback, and a status that says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [["policies.train", "--help"], ["deploy.inspect", "policy=quad_any"]]


def started(words: list[str], buffered: bool, **streams) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, **streams)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", COMMANDS)
def test_pipe_that_nobody_reads_ends_the_command_in_silence(words, buffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = started(words, buffered, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", COMMANDS)
def test_closed_output_is_no_error(words):
    done = started(words, True, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", COMMANDS)
def test_full_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = started(words, False, stdout=full)
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines()[0] == "error: No space left on device" and "Traceback" not in done.stderr

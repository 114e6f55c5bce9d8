"""Files are whole or not there, and errors name them: with the system's limit of a file's size as the disk's end."""

import contextlib
import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from deploy import cli, export
from deploy.system.files import named, replace_all, write_atomic
from policies import evaluate
from sim.render.offscreen import write_film


@contextlib.contextmanager
def disk_of(size: int):
    """Every file ends after so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path):
    path = tmp_path / "a" / "file"
    write_atomic(path, b"old")
    with disk_of(100), pytest.raises(OSError) as raised:
        replace_all([(tmp_path / "first", b"1"), (path, bytes(1000))])
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert (files(tmp_path), path.read_bytes()) == ([path], b"old")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_at_any_call_names_the_file(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left on device: '.*/file'"):
        write_atomic(tmp_path / "file", b"new")
    assert files(tmp_path) == []


def test_device_or_pipe_is_written_to_and_never_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, link):
        write_atomic(path, b"report")
        assert os.read(reader, 100) == b"report"
    os.close(reader)
    with pytest.raises(FileExistsError):
        replace_all([(pipe, b"x")])
    with pytest.raises(OSError, match="it is there, and is no file"):
        write_film(pipe, iter([np.zeros((480, 640, 3), np.uint8)]), 25)
    assert pipe.is_fifo() and link.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_file_where_a_folder_is_needed_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=f"'{tmp_path}/file'"):
        write_atomic(tmp_path / "file" / "report.json", b"x")


def test_error_without_a_number_keeps_its_words():
    with pytest.raises(OSError, match=r"^x\.mp4: ffmpeg says no$"), named("x.mp4"):
        raise OSError("ffmpeg says no")


@pytest.mark.parametrize("target", ["c", "crazyflie"])
def test_export_to_a_full_disk_leaves_no_file(tmp_path, capsys, target):
    with disk_of(1000):
        status = cli.call(export.main, ["policy=quad_any", f"target={target}", f"out={tmp_path / 'out'}"])
    assert status == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/out/") and files(tmp_path) == []


@pytest.mark.parametrize(("key", "name"), [("json", "report.json"), ("plot", "report.png"), ("video", "film.mp4")])
def test_evaluation_to_a_full_disk_names_the_file_and_the_reason(tmp_path, capsys, key, name):
    words = ["policy=quad_any", "episodes=2", f"{key}={tmp_path / name}"]
    with disk_of(200):
        status = cli.call(evaluate.main, words)
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    reason = "ffmpeg was ended by SIGXFSZ" if key == "video" else "File too large"
    assert line == f"error: {tmp_path / name}: {reason}"
    assert files(tmp_path) == []


def test_film_into_a_folder_that_is_not_there(tmp_path, capfd):
    with pytest.raises(OSError, match=r"x/film\.mp4: .*No such file or directory"):
        write_film(tmp_path / "x" / "film.mp4", iter([np.zeros((480, 640, 3), np.uint8)] * 30), 25)
    assert capfd.readouterr().err == ""

"""logger=wandb and logger=trackio: the rows of a run go there, too, and nothing of theirs ends a training."""

import json
import sqlite3
import sys
import time
from types import SimpleNamespace

import pytest

from policies.runner import loggers
from policies.runner.config import Options
from policies.runner.log import Log
from policies.runner.mistakes import SettingsError

ROWS = [{"env_steps": 100.0, "reward": 1.5}, {"env_steps": 200.0, "reward": 2.5}]


def logged(name, folder):
    """A run's rows through its log; what stands in metrics.jsonl."""
    with Log(folder, logger=loggers.begun(name, folder, {"task": "quad_hover"})) as log:
        for row in ROWS:
            log.write(row)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Library:
    """Stands for either library: what it was told."""

    def __init__(self, fails=()):
        self.rows, self.fails, self.told, self.finished = [], fails, {}, False

    def init(self, **told):
        if "init" in self.fails:
            raise RuntimeError("api_key not configured (no-tty)")
        self.told = told
        return self

    def log(self, values, step):
        if "log" in self.fails:
            raise OSError("no network")
        self.rows.append((step, values))

    def finish(self):
        self.finished = True


def test_rows_are_the_axis_as_long_as_nobody_has_stepped(tmp_path, monkeypatch):
    library, cloning = Library(), {"env_steps": 0.0, "loss": 2.0}
    monkeypatch.setitem(sys.modules, "wandb", library)
    for before in ({}, {"rows": 2, "step": 0}):  # the second goes on with what the first left
        with Log(tmp_path, **before, logger=loggers.begun("wandb", tmp_path, {})) as log:
            for row in (cloning, cloning, {"env_steps": 100.0, "loss": 1.0})[: 3 if before else 2]:
                log.write(row)
    assert [step for step, _ in library.rows] == [1, 2, 3, 4, 100]
    first, second = sorted(tmp_path.glob("events.out.tfevents.*"))
    restart = b"\x10\x03:\x02\x08\x01"  # step 3, SessionLog.START
    assert restart in second.read_bytes() and restart not in first.read_bytes()


def test_the_axis_never_goes_back(tmp_path, monkeypatch):
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)
    with Log(tmp_path, logger=loggers.begun("wandb", tmp_path, {})) as log:
        for steps in (0.0, 0.0, 0.0, 2.0, 0.0, 7.0):
            log.write({"env_steps": steps, "loss": 1.0})
    assert [step for step, _ in library.rows] == [1, 2, 3, 3, 5, 7]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_every_row_goes_there_and_the_folder_keeps_its_own(name, tmp_path, monkeypatch):
    library = Library()
    monkeypatch.setitem(sys.modules, name, library)
    rows = logged(name, tmp_path)
    assert library.rows == [(100, ROWS[0]), (200, ROWS[1])] and library.finished
    assert library.told["config"] == {"task": "quad_hover"} and library.told["project"] == "sim2metal"
    assert [row["reward"] for row in rows] == [1.5, 2.5]
    assert next(tmp_path.glob("events.out.tfevents.*")).stat().st_size > 50
    again = loggers.identity(tmp_path)
    assert again == loggers.identity(tmp_path) != loggers.identity(tmp_path.parent)


def test_a_library_that_fails_later_costs_its_rows_and_not_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", Library(fails=("log",)))
    assert len(logged("wandb", tmp_path)) == 2
    assert capsys.readouterr().err == "warning: wandb no longer gets the metrics: no network\n"


def test_a_library_that_does_not_begin_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", Library(fails=("init",)))
    with pytest.raises(
        loggers.LoggerError, match=r"^logger=wandb: api_key not configured .*\(WANDB_MODE=offline needs"
    ):
        loggers.begun("wandb", tmp_path, {})


def test_names_that_are_none_and_libraries_that_are_missing_are_refused_at_once(monkeypatch):
    with pytest.raises(SettingsError, match="did you mean 'wandb'"):
        Options(logger="wandbe")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'sim2metal\[trackio\]'"):
        Options(logger="trackio")
    assert Options().logger == "tensorboard"
    assert loggers.begun("tensorboard", SimpleNamespace(), {}) is None


def test_wandb_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="without sim2metal[wandb]")
    for key, value in {
        "MODE": "offline",
        "SILENT": "true",
        "DATA_DIR": str(tmp_path),
        "CACHE_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    logged("wandb", tmp_path)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    end = time.monotonic() + 60.0  # a process of its own writes it, which may still be at it (0.31.0)
    while b"reward" not in file.read_bytes() and time.monotonic() < end:
        time.sleep(0.1)
    assert b"reward" in file.read_bytes() and b"quad_hover" in file.read_bytes()


def test_trackio_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="without sim2metal[trackio]")
    logged("trackio", tmp_path)
    (file,) = (tmp_path / "trackio").glob("sim2metal*.db")
    with sqlite3.connect(file) as database:
        held = database.execute("select step, metrics from metrics order by step").fetchall()
    assert [(step, json.loads(text)["reward"]) for step, text in held] == [(100, 1.5), (200, 2.5)]

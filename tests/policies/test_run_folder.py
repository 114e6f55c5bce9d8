"""A run's folder belongs to one process at a time, and a run that is ended says what it leaves: with real processes."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policies import train
from policies.datasets import DatasetError, Writer
from policies.runner import checkpoint
from policies.runner import folder as folders
from policies.runner.config import RunError, compose
from policies.runner.lock import NAME, BusyError, Lock
from policies.runner.mistakes import SettingsError
from policies.runner.stop import Stop
from tests.policies.demonstrations import STATE

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PATIENCE = 120  # s, on a busy machine
TOY = ["algorithm=toy_algorithm:Toy", "report=false"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def begun():
    """Begins trainings in processes of their own; whichever is left is killed."""
    processes: list[subprocess.Popen] = []

    def begin(*words: str, command: tuple[str, ...] = ("-m", "policies.train")) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, *command, *words], env=ENVIRONMENT, **pipes))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def until(there, process: subprocess.Popen) -> None:
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def ended(process: subprocess.Popen, number: int) -> tuple[int, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out + err


@pytest.fixture
def training(tmp_path, begun):
    """A run that trains, and has a checkpoint."""
    process = begun(*TOY, "algorithm.updates=100000", "algorithm.pause=0.01", "checkpoint_s=0.01", f"out={tmp_path}/a")
    until((tmp_path / "a" / "checkpoint.npz").exists, process)
    return process, tmp_path / "a"


def test_a_run_that_trains_is_not_continued_by_another_process_until_it_is_dead(training, begun):
    process, folder = training
    holder = re.escape(f"{folder} is in use by process {process.pid} on {socket.gethostname()}: wait for its end, or ")
    for words in ([f"resume={folder}", TOY[0]], [*TOY, f"out={folder}"]):
        with pytest.raises(RunError, match=holder + "stop it"):
            train.train(compose(words))
    other = begun(f"resume={folder}", TOY[0])
    out, err = other.communicate(timeout=PATIENCE)
    assert (other.returncode, out, err.count("\n")) == (1, "", 1)
    assert f"in use by process {process.pid}" in err
    process.kill()
    process.wait()
    with pytest.raises(RunError, match="already holds a run; continue it"):
        train.train(compose([*TOY, f"out={folder}"]))
    folders.opened(compose([f"resume={folder}", TOY[0]]))[1].release()


def test_a_run_does_not_begin_among_what_others_left(tmp_path, capsys):
    def begun_in(folder):
        folders.opened(compose([*TOY, f"out={folder}"]))[1].release()

    for name, message in (
        ("metrics.jsonl", "already holds metrics.jsonl, which a run writes: choose another out=DIR"),
        ("events.out.tfevents.1.sim2metal.2", "already holds events.out.tfevents.1.sim2metal.2, which a run writes"),
        ("mine/metrics.jsonl", r"holds other runs, as .*/mine: choose a folder of its own, as out=.*/new"),
        ("task/mine/metrics.jsonl", "holds other runs, as .*/task/mine: "),
    ):
        folder = tmp_path / name.replace("/", "_")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
        with pytest.raises(RunError, match=message):
            begun_in(folder)
        assert not (folder / "config.yaml").exists()
    begun_in(tmp_path / "new")
    assert capsys.readouterr().out == ""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")
    begun_in(tmp_path / "notes")
    told = f"{tmp_path / 'notes'} already holds todo.txt: the run's files come beside them\n"
    assert capsys.readouterr().out == told and (tmp_path / "notes" / "todo.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_listed_is_one_sentence(tmp_path, monkeypatch):
    def refused(folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(Path, "iterdir", refused)
    said = f"^cannot see what {tmp_path}/run holds: Permission denied; choose another out=DIR$"
    with pytest.raises(RunError, match=said):
        folders.opened(compose([*TOY, f"out={tmp_path}/run"]))
    assert not (tmp_path / "run" / NAME).exists()


def test_of_processes_that_begin_in_one_folder_one_trains(tmp_path, begun):
    words = [*TOY, "algorithm.updates=100", "algorithm.pause=0.02", f"out={tmp_path}/run"]
    processes = [begun(*words) for _ in range(4)]
    results = [(p.communicate(timeout=PATIENCE), p.returncode) for p in processes]
    assert sorted(status for _, status in results) == [0, 1, 1, 1]
    for (_, err), status in results:
        assert status == 0 or "in use by" in err or "already holds a run" in err
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 100
    assert not (tmp_path / "run" / NAME).exists()


def test_lock_is_the_systems_and_not_the_files(tmp_path):
    (tmp_path / NAME).write_text("1 a.machine.that.died\n")
    with Lock(tmp_path), pytest.raises(BusyError, match=f"in use by process {os.getpid()} on "):
        Lock(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with Lock(tmp_path):
        (tmp_path / NAME).write_text("\x1b[2J; rm -rf /\n")
        with pytest.raises(BusyError, match=f"^{re.escape(str(tmp_path))} is in use by another process$"):
            Lock(tmp_path)


def test_lock_that_its_holder_removes_in_between_is_taken_anew(tmp_path, monkeypatch):
    first, flock = Lock(tmp_path), folders.Lock.__init__.__globals__["fcntl"].flock

    def late(descriptor, how):
        first.release()
        flock(descriptor, how)

    monkeypatch.setattr("policies.runner.lock.fcntl.flock", late)
    second = Lock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(BusyError):
        Lock(tmp_path)
    second.release()


def test_dataset_that_is_recorded_is_not_recorded_by_another_process(tmp_path, begun):
    code = "import sys, time; from pathlib import Path; from policies.runner.lock import Lock\n"
    code += "lock = Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    holder = begun(str(tmp_path), command=("-c", code))
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DatasetError, match=f"in use by process {holder.pid} on .*choose another folder"):
        Writer(tmp_path, 10, STATE)
    holder.kill()
    holder.wait()
    Writer(tmp_path, 10, STATE).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_training_that_is_ended_says_how_it_goes_on(training, number):
    process, folder = training
    status, said = ended(process, number)
    assert status == 128 + number
    assert f"{number.name}: saving a checkpoint after this update; a second one ends at once" in said
    way_on = f"continue with: python -m policies.train resume={folder} {TOY[0]}"
    assert re.search(rf"^{number.name} at \d+%; {way_on}$", said, re.M)
    assert checkpoint.load(folder / "checkpoint.npz")["algorithm"]["done"] > 0
    assert not (folder / NAME).exists()


def test_second_signal_ends_at_once_and_says_what_is_left(tmp_path, begun):
    process = begun(*TOY, "algorithm.pause=60", f"out={tmp_path}/run")
    until((tmp_path / "run" / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline().startswith("SIGTERM: saving a checkpoint")
    status, said = ended(process, signal.SIGTERM)
    assert (status, said.splitlines()[-1]) == (143, "SIGTERM at 0%; nothing is saved yet")


@pytest.mark.parametrize("stage", ["policies.train.built", "policies.runner.cli.compose"])
def test_signal_while_it_starts(tmp_path, stage):
    code = f"""
import os, signal, sys, policies.train, policies.runner.cli
def press(*_):
    os.kill(os.getpid(), signal.SIGTERM)
{stage} = press
policies.train.main()
"""
    words = [sys.executable, "-c", code, *TOY, f"out={tmp_path}/run"]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 143
    assert (done.stdout + done.stderr).startswith("SIGTERM while starting; nothing")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            "policies.models.export.export",
            "SIGTERM while the file was written; continue with: python -m policies.train resume=",
        ),
        ("policies.train._report", "SIGTERM while reporting; {run}/policy.onnx is whole"),
    ],
)
def test_signal_after_the_training(tmp_path, monkeypatch, capsys, stage, said):
    monkeypatch.setattr(stage, lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        train.train(compose([*TOY[:1], f"out={tmp_path}/run"]))
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert said.format(run=tmp_path / "run") in capsys.readouterr().out
    assert checkpoint.load(tmp_path / "run" / "checkpoint.npz")["algorithm"]["done"] == 20


def test_stop_gives_the_handlers_back():
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (stop.name, stop.status) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_device_that_cannot_be_used_is_named(monkeypatch):
    def made(error):
        def kind(*given, **how):
            raise error

        monkeypatch.setattr(train, "algorithm_for", lambda name, task: kind)
        train.built(compose([*TOY, "device=cuda"]))

    lacks = "the package 'torch' is not installed; pip install 'sim2metal\\[rl,cuda\\]' brings it"
    with pytest.raises(SettingsError, match=lacks):
        made(ModuleNotFoundError(name="torch"))
    without = "^device=cuda cannot be used: Torch not compiled with CUDA enabled; use device=cpu$"
    with pytest.raises(train.RefusedError, match=without):
        made(AssertionError("Torch not compiled with CUDA enabled"))
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "zeros", lambda *given, **how: None)
    with pytest.raises(RuntimeError, match="^shapes differ$"):  # the device is there: it is no fault of it
        made(RuntimeError("shapes differ"))


def test_whoever_goes_on_names_modules_again():
    words = ["task=mine.races:Oval", "seed=1", "robot=my robots/arm.urdf", "algorithm.hidden=[64]"]
    assert folders.continued(Path("my runs/it's"), words) == [r"resume='my runs/it\'s'", words[0], words[2]]

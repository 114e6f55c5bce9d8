"""The training loop: the run's folder, exact continuation after any end, and what it says when things go wrong."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from deploy import PolicyFile
from policies import train
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from policies.runner import checkpoint, config, provenance
from policies.runner.config import RunError, compose
from policies.runner.folder import new_folder
from policies.runner.log import Log, Progress
from policies.runner.stop import Stop

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def settings(out: Path, *words: str, algorithm: str = "Toy") -> config.Settings:
    return compose([f"algorithm=toy_algorithm:{algorithm}", f"out='{out}'", "report=false", *words])


def resumed(folder: Path, *words: str) -> config.Settings:
    """With the modules of ours that the run names: see tests/policies/runner/test_strangers.py."""
    lines = (folder / "config.yaml").read_text().splitlines()
    modules = [line.replace(": ", "=", 1) for line in lines if line.startswith(("task: toy", "algorithm: toy"))]
    return compose([f"resume='{folder}'", *modules, *words])


def rows(folder: Path) -> list[dict[str, float]]:
    """The metrics without the time at which they were taken."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "cpu_seconds")} for line in lines]


def weights(folder: Path) -> np.ndarray:
    return checkpoint.load(folder / "checkpoint.npz")["algorithm"]["weight"]


def same_run(a: Path, b: Path) -> bool:
    """Bit for bit: weights, metrics, and what the policy files compute."""
    policies = [PolicyFile.load(folder / "policy.onnx") for folder in (a, b)]
    vectors = [policy.metadata["vectors"] for policy in policies]
    return (weights(a) == weights(b)).all() and rows(a) == rows(b) and vectors[0] == vectors[1]


def test_folder_holds_the_whole_run(tmp_path, capsys):
    made = train.train(settings(tmp_path / "run", "seed=4"))
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"policy: {made}" == f"policy: {tmp_path}/run/policy.onnx"
    assert "s start + " in out[-2]
    policy = PolicyFile.load(made)
    training = policy.metadata["training"]
    assert (training["seed"], training["config"]["algorithm"]) == (4, "toy_algorithm:Toy")
    assert training["versions"]["numpy"] == np.__version__
    assert [v["name"] for v in training["randomisation"]["vary"]] == ["mass", "thrust_scale", "rotor_lag"]
    assert training["randomisation"]["signals"]["position"] == [{"kind": "Noise", "std": 0.001}]
    assert len(rows(made.parent)) == 20
    timing = json.loads((made.parent / "timing.json").read_text())
    assert timing["total"] == pytest.approx(timing["start"] + timing["training"] + timing["export"], abs=1e-3)
    modules = {"algorithm": "toy_algorithm:Toy"}
    assert config.read(made.parent / "config.yaml", modules) == settings(tmp_path / "run", "seed=4")
    assert checkpoint.load(made.parent / "checkpoint.npz")["algorithm"]["done"] == 20


def test_same_seed_gives_the_same_bytes_where_the_date_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(provenance, "DISTRIBUTIONS", ("numpy",))  # a report leaves more in memory than there was
    words = ["report=true", "evaluation_episodes=2", "task.episode_s=1"]
    first, second = (train.train(settings(tmp_path / name, *words)) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    metadata = PolicyFile.load(first).metadata
    assert metadata["training"]["date"] == "2023-11-14T22:13:20+00:00"
    assert "seconds" not in metadata["training"] and "policy" not in metadata["evaluation"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(RunError, match="SOURCE_DATE_EPOCH=yesterday: it needs whole seconds"):
        train.train(settings(tmp_path / "c"))


def test_tensorboard_reads_the_events(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train.train(settings(tmp_path / "run")).parent
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    loss = events.Scalars("loss")
    assert [e.step for e in loss] == [16 * k for k in range(1, 21)]
    assert [e.value for e in loss] == pytest.approx([row["loss"] for row in rows(folder)], rel=1e-6)
    assert abs(loss[0].wall_time - time.time()) < 60


def test_report_follows_the_file(tmp_path, capsys):
    made = train.train(settings(tmp_path / "run", "report=true", "evaluation_episodes=20", "task.episode_s=2"))
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"policy: {made}"
    assert "position_error" in captured.out
    report = json.loads((made.parent / "report.json").read_text())
    assert (report["episodes"], report["engine"]) == (20, "flight")
    assert (made.parent / "report.png").stat().st_size > 10_000
    assert (made.parent / "video.mp4").stat().st_size > 5_000
    assert captured.err == ""
    assert PolicyFile.load(made).metadata["evaluation"]["success"] == report["success"]


@pytest.mark.parametrize(("algorithm", "code"), [("Interrupted", 130), ("Terminated", 143)])
def test_interrupted_run_continues_exactly(tmp_path, capsys, algorithm, code):
    train.train(settings(tmp_path / "whole"))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as left:
        train.train(settings(tmp_path / "parts", algorithm=algorithm))
    assert left.value.code == code
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert f"at 35%; continue with: python -m policies.train resume={tmp_path}/parts" in capsys.readouterr().out
    assert len(rows(tmp_path / "parts")) == 7
    assert not (tmp_path / "parts" / "policy.onnx").exists()
    train.train(resumed(tmp_path / "parts"))
    assert same_run(tmp_path / "whole", tmp_path / "parts")


def test_finished_run_can_be_exported_again(tmp_path):
    train.train(settings(tmp_path / "whole"))
    train.train(settings(tmp_path / "again"))
    (tmp_path / "again" / "policy.onnx").unlink()
    train.train(resumed(tmp_path / "again"))
    assert same_run(tmp_path / "whole", tmp_path / "again")


def test_second_interruption_ends_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    try:
        with Stop() as stop:
            stop.wait()
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signal == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.timed
def test_killed_run_continues_exactly(tmp_path):
    words = ["algorithm.updates=60", "checkpoint_s=0.02"]
    train.train(settings(tmp_path / "whole", *words))
    folder = tmp_path / "parts"
    command = [sys.executable, "-m", "policies.train", "algorithm=toy_algorithm:Toy", "report=false", f"out={folder}"]
    paths = os.pathsep.join([str(ROOT), str(HERE)])
    process = subprocess.Popen(
        [*command, *words, "algorithm.pause=0.02"], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL
    )
    while not (folder / "checkpoint.npz").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.15)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = checkpoint.load(folder / "checkpoint.npz")["algorithm"]["done"]
    assert 0 < done < 60
    train.train(resumed(folder))
    assert same_run(tmp_path / "whole", folder)


def test_sweep_leaves_a_folder_per_run(tmp_path, monkeypatch, capsys):
    words = ["algorithm=toy_algorithm:Toy", "report=false", f"out={tmp_path}", "algorithm.nan_at=3,-1"]
    monkeypatch.setattr(sys, "argv", ["train", "-m", *words])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as left:
        train.main()
    assert left.value.code == 1
    captured = capsys.readouterr()
    assert "the loss is nan after 48 environment steps" in captured.err
    assert captured.out.splitlines()[-1] == f"policy: {tmp_path}/algorithm.nan_at=-1/policy.onnx"
    assert not (tmp_path / "algorithm.nan_at=3" / "policy.onnx").exists()


def test_nan_stops_before_the_checkpoint_is_spoilt(tmp_path):
    with pytest.raises(RunError, match=r"the loss is nan after 80 environment steps.*there is no earlier checkpoint"):
        train.train(settings(tmp_path / "a", "algorithm.nan_at=5"))
    with pytest.raises(RunError, match=r"the loss is nan.*of 0 s ago is whole, continue with resume=.*/b"):
        train.train(settings(tmp_path / "b", "algorithm.nan_at=5", "checkpoint_s=1e-9"))
    assert checkpoint.load(tmp_path / "b" / "checkpoint.npz")["algorithm"]["done"] == 4


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_report_that_cannot_be_drawn_costs_a_warning(tmp_path, monkeypatch, capsys):
    def no_film(*_):
        raise RuntimeError("no film today")

    monkeypatch.setattr("policies.runner.report.video", no_film)
    monkeypatch.setattr("policies.runner.report.plot", no_film)
    made = train.train(settings(tmp_path / "run", "report=true", "evaluation_episodes=4", "task.episode_s=2"))
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["warning: no plot: no film today", "warning: no video: no film today"]
    assert captured.out.splitlines()[-1] == f"policy: {made}"


def test_full_disk_while_training_costs_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "_write", full_disk)
    made = train.train(settings(tmp_path / "run", "checkpoint_s=1e-9"))
    captured = capsys.readouterr()
    assert captured.err.count("warning") == 1
    assert f"cannot write {tmp_path}/run/checkpoint.npz: No space left on device" in captured.err
    assert captured.out.splitlines()[-1] == f"policy: {made}"
    assert PolicyFile.load(made).metadata["task"] == "quad_hover"


def test_full_disk_from_the_start_promises_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config, "write", full_disk)
    with pytest.raises(RunError, match=rf"cannot make the run's folder {tmp_path}/run: No space left on device$"):
        train.train(settings(tmp_path / "run"))
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(checkpoint, "_write", full_disk)
    monkeypatch.setattr("policies.models.export.export", full_disk)
    with pytest.raises(RunError, match="No space left on device; no checkpoint could be written either: make room, t"):
        train.train(settings(tmp_path / "run"))
    assert "there is no earlier checkpoint" in capsys.readouterr().err
    with pytest.raises(RunError, match=r"has no checkpoint.npz: that run was ended before the first one"):
        train.train(resumed(tmp_path / "run"))


def test_full_disk_at_the_report_costs_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("policies.models.export.update_evaluation", full_disk)
    made = train.train(settings(tmp_path / "run", "report=true", "evaluation_episodes=2", "task.episode_s=1"))
    captured = capsys.readouterr()
    assert captured.err == f"warning: the report is not whole: {tmp_path}/run: No space left on device\n"
    assert captured.out.splitlines()[-1] == f"policy: {made}"


def test_full_disk_where_a_run_continues_costs_no_row(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        train.train(settings(tmp_path / "run", algorithm="Interrupted"))
    before = rows(tmp_path / "run")
    events = len(list((tmp_path / "run").glob("events.*")))
    opened = io.open

    def full(path, mode="r", *rest, **more):
        return full_disk() if "events." in str(path) and "w" in mode else opened(path, mode, *rest, **more)

    monkeypatch.setattr("builtins.open", full)
    train.train(resumed(tmp_path / "run"))
    monkeypatch.undo()
    assert "metrics are no longer recorded: No space left on device" in capsys.readouterr().err
    assert rows(tmp_path / "run") == before and len(list((tmp_path / "run").glob("events.*"))) == events


def test_full_disk_at_the_end_loses_nothing(tmp_path, monkeypatch):
    words = ["algorithm.updates=60", "checkpoint_s=1e-9"]
    train.train(settings(tmp_path / "whole", *words))
    monkeypatch.setattr("policies.models.export.export", full_disk)
    with pytest.raises(RunError, match=r"cannot write .*policy.onnx: No space left on device.*resume="):
        train.train(settings(tmp_path / "run", *words))
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(HERE))
    train.train(resumed(tmp_path / "run"))
    assert same_run(tmp_path / "whole", tmp_path / "run")


def test_full_disk_on_ctrl_c_says_what_is_left(tmp_path, monkeypatch):
    saved = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda path, tree: full_disk() if tree["log"]["rows"] == 7 else saved(path, tree)
    )
    with pytest.raises(RunError, match=r"No space left on device; the checkpoint of 0 s ago is whole"):
        train.train(settings(tmp_path / "run", "checkpoint_s=1e-9", algorithm="Interrupted"))
    assert checkpoint.load(tmp_path / "run" / "checkpoint.npz")["algorithm"]["done"] == 6


def test_times_go_on_where_a_run_continues_and_stop_with_it(tmp_path):
    with Log(tmp_path, seconds=100.0, cpu_seconds=50.0) as log:
        log.write({"env_steps": 1})
    row, times = json.loads((tmp_path / "metrics.jsonl").read_text()), (log.seconds, log.cpu_seconds)
    assert 100.0 <= row["seconds"] <= times[0] and 50.0 <= row["cpu_seconds"] <= times[1] < 60.0
    sum(range(10**6))
    assert (log.seconds, log.cpu_seconds) == times


def test_the_time_of_other_processes_counts_while_they_live_and_after(tmp_path):
    busy = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"
    with Log(tmp_path) as log:
        child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        while_it_lived = log.cpu_seconds
        child.communicate()
        assert 0.4 < while_it_lived <= log.cpu_seconds + 0.02


def test_weights_that_are_not_finite_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "toy_algorithm.Toy.controller",
        lambda self: FeaturePolicy.from_task(self.task, Mlp([(self.goal * np.nan, self.goal[:, 0])])),
    )
    with pytest.raises(RunError, match="a weight is not finite"):
        train.train(settings(tmp_path / "run"))


def test_full_disk_stops_the_log_not_the_training(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with Log(tmp_path) as log:
        for step in range(2000):
            log.write({"env_steps": step, "loss": 1.0})
        log.write({"env_steps": 2000, "loss": 1.0})
    assert log.rows == 2001
    assert capsys.readouterr().err.count("No space left on device") == 1


@pytest.mark.parametrize("name", ["config.yaml", "checkpoint.npz", "policy.onnx"])
def test_folder_of_another_run_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("another run's")
    way_on = "; continue it with resume=" if name == "checkpoint.npz" else " without a checkpoint; choose another out="
    with pytest.raises(RunError, match=f"{tmp_path} already holds a run{way_on}"):
        train.train(settings(tmp_path))
    assert (tmp_path / name).read_text() == "another run's"


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=f"cannot make the run's folder {tmp_path}/file"):
        train.train(settings(tmp_path / "file"))


def test_runs_of_one_second_have_their_own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [new_folder(Path("runs/quad_hover")) for _ in range(3)]
    assert len(set(made)) == 3
    assert all(folder.is_dir() for folder in made)


def test_engine_that_the_algorithm_refuses(tmp_path):
    with pytest.raises(RunError, match="toy needs no engine, and refuses 'bullet'"):
        train.train(settings(tmp_path / "run", "engine=bullet"))
    assert not (tmp_path / "run").exists()


def test_engine_that_the_task_has_not_got(tmp_path):
    words = ["task=tests.policies.toy_reach:ToyReach", "algorithm=diffusion", f"out={tmp_path / 'run'}"]
    with pytest.raises(RunError, match="toy_reach brings its own physics; it has no engine 'mujoco_warp'"):
        train.train(compose([*words, "engine=mujoco_warp"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("spoil", ["absent", "truncated", "foreign", "weights"])
def test_checkpoint_that_cannot_be_continued(tmp_path, spoil, monkeypatch):
    folder = train.train(settings(tmp_path / "run")).parent
    path = folder / "checkpoint.npz"
    if spoil == "absent":
        path.unlink()
    elif spoil == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif spoil == "weights":  # as torch says it

        def load(algorithm, state):
            raise RuntimeError("Error(s) in loading state_dict for Net")

        monkeypatch.setattr("toy_algorithm.Toy.load_state_dict", load)
    else:
        checkpoint.save(path, {"algorithm": {"weight": np.ones(3)}, "log": {"rows": 1}})
    expected = {
        "absent": "has no checkpoint.npz",
        "truncated": "not a checkpoint",
        "foreign": "does not fit",
        "weights": "does not fit",
    }
    with pytest.raises(RunError, match=expected[spoil]):
        train.train(resumed(folder))


def test_training_starts_without_heavy_libraries(tmp_path):
    command = [sys.executable, "-m", "policies.train", "algorithm=toy_algorithm:Spy", f"out={tmp_path}/run"]
    paths = os.pathsep.join([str(ROOT), str(HERE)])
    done = subprocess.run(
        [*command, "report=false"], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("modules:")]
    heavy = {"torch", "numba", "tensorboard", "matplotlib", "mujoco", "pybullet", "gymnasium", "imageio"}
    assert heavy & set(line.split()) == set()
    assert done.stdout.splitlines()[-1] == f"policy: {tmp_path}/run/policy.onnx"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_success_and_time_left(monkeypatch, terminal):
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    now = [0.0]
    monkeypatch.setattr("policies.runner.log.time.perf_counter", lambda: now[0])
    ready = threading.Event()
    ready.set()
    with Progress("quad_hover apg", ready) as progress:
        for step in range(11):
            now[0] = 6.0 * step
            measured = {"success": 0.93} if step == 1 else {}
            progress.update({"progress": step / 10, "loss": 1.25, **measured})
    text = shown.getvalue()
    for part in ("quad_hover apg", "success 93%", "loss 1.25", "30 s left", "100%"):
        assert part in text
    assert terminal or len(text.splitlines()) == 10


def test_long_wait_is_explained(monkeypatch, capsys):
    monkeypatch.setattr("policies.runner.log.PATIENCE_S", 0.01)
    with Progress("quad_hover apg", threading.Event()) as progress:
        time.sleep(0.1)
        progress.update({"progress": 0.1})
    assert "quad_hover apg: getting ready" in capsys.readouterr().out


def test_commit_is_of_this_project_only(tmp_path, monkeypatch):
    commit = provenance.git_commit()
    assert commit is None or len(commit.removesuffix("+changes")) == 40
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    inside = tmp_path / "site-packages" / "policies" / "runner" / "provenance.py"
    inside.parent.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(inside))
    assert provenance.git_commit() is None


def test_start_of_the_process_is_known():
    began = train.process_start()
    assert began < time.perf_counter()
    cpu_time = time.process_time()
    assert time.perf_counter() - began > 0.5 * cpu_time - 0.05

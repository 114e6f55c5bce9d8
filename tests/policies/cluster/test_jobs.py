"""Runs as jobs: the same as typed by hand, continued elsewhere when somebody is lost, with errors in one line."""

import errno
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy import PolicyFile
from policies.cluster import multirun
from policies.cluster.job import JUDGED, Part, performed
from policies.cluster.jobs import LOSSES, Here, Job, Jobs, Trouble
from policies.runner import checkpoint, cli
from policies.runner.config import RunError, combinations, compose
from policies.runner.lock import BusyError
from policies.runner.mistakes import SettingsError
from policies.train import train
from sim.cluster import ClusterError, LostError

HERE = Path(__file__).parents[1]
WORDS = ("algorithm=toy_algorithm:Toy", "report=false")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def told(policy: Path):
    """All that a file says, but for the process that made it: what else it had in memory, and its arguments."""
    metadata = dict(PolicyFile.load(policy).metadata)
    training = {key: value for key, value in metadata["training"].items() if key not in ("versions", "argv")}
    return {key: value for key, value in metadata.items() if key != "digest"} | {"training": training}


def weights(folder: Path):
    return checkpoint.load(folder / "checkpoint.npz")["algorithm"]["weight"]


class Frail:
    """A node that is lost when so many checkpoints have come from it; the next one is not."""

    def __init__(self, *lives: int) -> None:
        self.lives, self.begun, self.cancelled = [*lives], [], False

    def perform(self, job, order, kept):
        self.begun.append(sorted(kept))
        life = self.lives.pop(0) if self.lives else 10**6
        parts = performed(order, kept)
        try:
            for part in parts:
                yield part
                life -= "checkpoint.npz" in part.files
                if life <= 0:
                    raise LostError("its node is gone")
        finally:
            parts.close()

    def cancel(self) -> None:
        self.cancelled = True


def test_a_job_is_the_run_that_a_person_types(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    words = (*WORDS, "seed=4")
    job = Job(words, tmp_path / "job", ("episodes=3", "seed=7"))
    assert Jobs(Here(1), 1).run([job]) == {} and job.done
    assert capsys.readouterr().out == f"policy: {tmp_path}/job/policy.onnx\n"
    made = train(compose([*words, f"out='{tmp_path}/mine'"]))
    assert told(made) == told(tmp_path / "job" / "policy.onnx")
    assert (weights(made.parent) == weights(tmp_path / "job")).all()
    assert compose([*words, f"out='{tmp_path}/job'"]).options.out in (tmp_path / "job" / "config.yaml").read_text()
    assert json.loads((tmp_path / "job" / JUDGED).read_text())["episodes"] == 3
    capsys.readouterr()
    assert Jobs(Here(1), 1).run([job]) == {} and capsys.readouterr().out == ""  # it is not done again


def test_a_lost_job_is_continued_from_its_checkpoint(tmp_path, capsys):
    words = (*WORDS, "algorithm.pause=0.1", "checkpoint_s=0.3")
    node = Frail(2, 1)
    assert Jobs(node, 1).run([Job(words, tmp_path / "lost")]) == {}
    assert node.begun[0] == [] and "checkpoint.npz" in node.begun[1] and "metrics.jsonl" in node.begun[2]
    assert capsys.readouterr().out.count("it continues from its checkpoint") == 2
    train(compose([*words, f"out='{tmp_path}/whole'"]))
    assert (weights(tmp_path / "lost") == weights(tmp_path / "whole")).all()
    vectors = [PolicyFile.load(tmp_path / name / "policy.onnx").metadata["vectors"] for name in ("lost", "whole")]
    assert vectors[0] == vectors[1]
    rows = [len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) for name in ("lost", "whole")]
    assert rows == [20, 20]  # none twice, none missing


class Gone(Frail):
    """Every node is lost at once."""

    def perform(self, job, order, kept):
        self.begun.append([])
        raise LostError("its node is gone")
        yield


def test_what_fails_is_told_in_one_line_and_does_not_stop_the_rest(tmp_path):
    gone = Gone()
    (error,) = Jobs(gone, 1, lambda text: None).run([Job(WORDS, tmp_path / "a")]).values()
    assert error == f"{LOSSES} workers or nodes were lost under it, one after the other: its node is gone"
    assert isinstance(error, Trouble)
    bad, good = (Job((*WORDS, f"algorithm.nan_at={k}"), tmp_path / f"nan{k}") for k in (3, -1))
    failed = Jobs(Here(2), 2, lambda text: None).run([bad, good])
    assert [*failed] == [bad.folder] and failed[bad.folder].startswith("the loss is nan after 48 environment steps")
    assert good.done and not bad.done


class Ending:
    """Where runs end in these ways, one after the other: a status, and what it said last."""

    def __init__(self, *ends, files=None) -> None:
        self.ends, self.files = [*ends], files or {}

    def perform(self, job, order, kept):
        yield Part(self.files)
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        status, said = end
        yield Part({"policy.onnx": b""} if status == 0 else {}, status, said)

    def cancel(self) -> None:
        pass


CUDA = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CPU = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
RAY = "Task was killed due to the node running low on memory"


def test_what_was_ended_is_tried_again(tmp_path):
    said = []
    ends = [(-15, ""), (143, "SIGTERM at 12%"), (1, "x._ArrayMemoryError: no 9 GiB"), (0, "no MemoryError")]
    assert Jobs(Ending(*ends), 1, said.append).run([Job(WORDS, tmp_path / "a")]) == {}
    assert [line.count("begins anew") for line in said] == [1, 1, 1, 0] and "ended by signal 15" in said[0]
    ended = Ending(*[(143, "")] * LOSSES)
    (error,) = Jobs(ended, 1, said.append).run([Job(WORDS, tmp_path / "b")]).values()
    assert error.startswith(f"{LOSSES} workers") and isinstance(error, Trouble)  # somebody did that


@pytest.mark.parametrize("end", [(-9, ""), (-7, ""), (1, "MemoryError"), (1, CUDA), (1, CPU), LostError(RAY)], ids=str)
def test_who_runs_out_of_memory_where_it_did_before_has_failed(tmp_path, end):
    (error,) = Jobs(Ending(end, end, (0, "")), 1, print).run([Job(WORDS, tmp_path / "a")]).values()
    assert error.startswith("2 workers") and not isinstance(error, Trouble)  # it takes all memory: its settings
    moving = Ending(end, end, (0, ""), files={"checkpoint.npz": b""})
    assert Jobs(moving, 1, print).run([Job(WORDS, tmp_path / "b")]) == {}  # it gets on, so others took the memory


@pytest.mark.parametrize("error", [BusyError("a is in use"), ClusterError("the cluster is away")], ids=str)
def test_what_the_cluster_lacks_is_no_fault_of_the_run(tmp_path, error):
    (said,) = Jobs(Ending(error), 1, print).run([Job(WORDS, tmp_path / "a")]).values()
    assert isinstance(said, Trouble) and said == str(error)


def test_a_full_disk_is_no_fault_of_the_run(tmp_path):
    full = (1, f"error: cannot write a/policy.onnx: {os.strerror(errno.ENOSPC)}; make room, then continue with ...")
    (tmp_path / "file").write_text("")
    for where, folder in ((Ending(full), "a"), (Ending(), "file/b")):
        (error,) = Jobs(where, 1, print).run([Job(WORDS, tmp_path / folder)]).values()
        assert isinstance(error, Trouble) and error.startswith("cannot write ")


def test_a_run_here_waits_for_all_of_its_cpus(tmp_path, monkeypatch):
    under_way, most = [], []

    def busy(order, kept):
        cpus = int(order.words[0])
        under_way.append(cpus)
        most.append(sum(under_way))
        time.sleep(0.05)
        under_way.remove(cpus)
        yield Part({"policy.onnx": b""}, 0)

    monkeypatch.setattr("policies.cluster.jobs.performed", busy)
    jobs = [Job((str(k),), tmp_path / f"{n}", cpus=k) for n, k in enumerate([2, 1, 3, 1, 9, 1, 1])]
    assert Jobs(Here(3), 3, lambda text: None).run(jobs) == {}
    assert len(most) == 7 and max(cpus for cpus in most if cpus < 9) <= 3 and most.count(9) == 1


def test_a_node_writes_only_into_the_runs_folder(tmp_path):
    class Liar(Frail):
        def perform(self, job, order, kept):
            from policies.cluster.job import Part

            yield Part({"../elsewhere": b"x"})

    failed = Jobs(Liar(), 1).run([Job(WORDS, tmp_path / "run")])
    assert failed == {tmp_path / "run": "a node sends a file '../elsewhere', which is outside of the run's folder"}
    assert not (tmp_path / "elsewhere").exists()


def test_an_interrupt_ends_what_is_under_way(tmp_path):
    node = Frail()
    jobs = Jobs(node, 1, lambda text: None)
    begun = threading.Event()

    def waited(*_, **__):
        begun.set()
        raise KeyboardInterrupt

    words = (*WORDS, "algorithm.pause=0.5", "algorithm.updates=1000")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("policies.cluster.jobs.wait", waited)
        jobs.run([Job(words, tmp_path / "run")])
    assert begun.is_set() and node.cancelled


def test_combinations_are_those_of_a_sweep_here(tmp_path, monkeypatch, capsys):
    words = ["algorithm=toy_algorithm:Toy", "seed=1,0", "algorithm.updates=2", "report=false", f"out='{tmp_path}/here'"]
    monkeypatch.setattr("sys.argv", ["train", "-m", *words])
    cli.main(lambda settings: Path(settings.options.out).mkdir(parents=True, exist_ok=True))
    fixed, _ = combinations(words)
    assert fixed["out"] == f"{tmp_path}/here" and fixed["algorithm"] == "toy_algorithm:Toy"
    ran: list[Job] = []

    class Nodes:
        cpus = 3

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(multirun, "entered", lambda cluster: Nodes())
    monkeypatch.setattr(multirun, "run", lambda jobs, where, together: ran.extend(jobs))
    multirun.sweep([*words[:-1], f"out='{tmp_path}/there'", "cluster=ray:2"])
    assert sorted(job.folder.name for job in ran) == sorted(
        path.name for path in (tmp_path / "here").iterdir() if path.is_dir()
    )
    assert ran[0].words == ("algorithm=toy_algorithm:Toy", "seed=1", "algorithm.updates=2", "report=false")
    (tmp_path / "there" / "seed=0").mkdir(parents=True)
    (tmp_path / "there" / "seed=0" / "x").touch()
    with pytest.raises(RunError, match="seed=0 already holds something"):
        multirun.sweep([*words[:-1], f"out='{tmp_path}/there'", "cluster=ray:2"])
    with pytest.raises(SettingsError, match="one folder as out=DIR, and no resume"):
        multirun.sweep(["resume=x", "cluster=ray"])
    with pytest.raises(SettingsError, match="a sweep has one cluster"):
        multirun.sweep(["seed=0,1", "cluster=ray,ray:2"])
    with pytest.raises(SettingsError, match="unknown setting 'algorithm.updatse'"):
        multirun.sweep(["seed=0,1", "algorithm.updatse=1", "cluster=ray"])


def test_without_ray_one_line_says_what_brings_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sim.cluster.nodes", raising=False)
    monkeypatch.setattr("sys.argv", ["train", "-m", *WORDS, "seed=0,1", "cluster=ray", f"out={tmp_path}/x"])
    with pytest.raises(SystemExit) as left:
        cli.main(train)
    assert left.value.code == 2 and not (tmp_path / "x").exists()
    said = "error: the package 'ray' is not installed; pip install 'sim2metal[cluster]' brings it\n"
    assert capsys.readouterr().err == said


def test_one_run_says_what_of_it_can_go_elsewhere(tmp_path):
    with pytest.raises(SettingsError, match=r"cluster=ray: of one run, the worlds of algorithm.workers=2 .*toy"):
        train(compose([*WORDS, "cluster=ray", f"out='{tmp_path}/a'"]))
    with pytest.raises(SettingsError, match=r"write ray \(on this machine\)"):
        compose([*WORDS, "cluster=slurm"])
    assert not os.listdir(tmp_path)

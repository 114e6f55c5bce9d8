"""With Ray itself, two nodes on this machine: the same as here, whatever is killed. Needs the extra [cluster]."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from deploy import PolicyFile
from policies.cluster.jobs import Job, Jobs, There
from policies.learning.parallel import group
from policies.runner import checkpoint
from policies.runner.config import RunError, compose
from policies.train import train
from sim import env
from sim.cluster import ClusterError, Place, entered, prepare
from sim.env import make_env, worker_metrics
from tests.sim.toy_frail import frail

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    # Of Ray's own, which leaves sockets and log files to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT, HERE = Path(__file__).resolve().parents[3], Path(__file__).resolve().parents[1]
TOY = ("algorithm=toy_algorithm:Toy", "report=false")
COST = 10.0  # s that a killed worker may cost


@pytest.fixture(scope="module")
def nodes():
    """One cluster for all: it takes ten seconds to begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        with entered("ray:2") as made:
            yield made


def listening() -> set[str]:
    """Addresses on which processes below this one listen."""
    mine, parents = {os.getpid()}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        words = stat.read_text().rpartition(")")[2].split()
        parents[int(stat.parent.name)] = int(words[1])
    for _ in range(5):
        mine |= {process for process, parent in parents.items() if parent in mine}
    sockets = set()
    for process in mine:
        for file in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets |= {*re.findall(r"socket:\[(\d+)\]", os.readlink(file))}
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                found.add(words[1].partition(":")[0])
    return found


def test_nodes_here_listen_on_this_machine_alone(nodes):
    assert len(nodes.alive()) == 2 and nodes.cpus >= 2
    assert listening() == {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, and as IPv6 writes it
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) >= 32
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_killed_worker_costs_little_and_no_data(nodes, tmp_path):
    task, rng = frail(tmp_path), np.random.default_rng(0)
    with closing(make_env(task, 6, 5, workers=2)) as far, closing(task.open(6, 5)) as near:
        for one in (far, near):
            one.reset(range(6), range(6))
        for k in range(30):
            command = {"velocity": rng.uniform(-0.3, 0.3, (6, 2)).astype(np.float32)}
            if k in (10, 20):
                (tmp_path / "kill").touch()
            began = time.monotonic()
            there = far.step(command)
            took = time.monotonic() - began
            here = near.step(command)
            assert took < COST
            np.testing.assert_array_equal(there.reward, here.reward)
            np.testing.assert_array_equal(there.terminated, here.terminated)
            for name, value in near.observe().items():
                np.testing.assert_array_equal(far.observe()[name], value)
        assert worker_metrics(far) == {"workers_replaced": 2.0}


def test_a_run_whose_worlds_are_elsewhere_is_the_run_here(nodes, tmp_path, monkeypatch):
    told = ["num_envs=4", "rollout_steps=4", "minibatches=1", "total_steps=64", "workers=2"]
    words = ["task=tests.sim.toy_frail:Frail", "algorithm=ppo", "report=false", *(f"algorithm.{w}" for w in told)]
    made = [train(compose([*words, f"out='{tmp_path}/there'"]))]  # in the cluster that is entered
    monkeypatch.setattr(env, "current", lambda: None)
    made.append(train(compose([*words, f"out='{tmp_path}/here'"])))
    rows = [json.loads(line) for line in (made[0].parent / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["workers_replaced"] == 0.0
    vectors = [PolicyFile.load(path).metadata["vectors"] for path in made]
    assert vectors[0] == vectors[1]
    gc.collect()  # the learner, and with it its workers: others need their CPUs


def test_learners_on_nodes_are_those_here(nodes, tmp_path, monkeypatch):
    told = ["path=torch", "num_envs=8", "rollout_steps=4", "total_steps=96", "hidden=[8]", "evaluate_every=0"]
    words = ["task=quad_hover", "algorithm=ppo", "report=false", *(f"algorithm.{w}" for w in told), "algorithm.parts=2"]
    one, two = (train(compose([*words, f"learners={n}", f"out='{tmp_path}/{n}'"])) for n in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    with pytest.raises(RunError, match="learners=9 needs 8 CPUs, the cluster has "):
        train(compose([*words[:-1], "learners=9", "algorithm.num_envs=9", f"out='{tmp_path}/9'"]))
    monkeypatch.setattr(group, "JOINING", 3.0)
    taken = nodes.stream(busy, cpus=1), nodes.stream(busy, cpus=1)  # both CPUs, for longer than that
    assert [next(one) for one in taken] == [None, None]
    before = time.monotonic()
    with pytest.raises(RunError, match="not all of 2 learners have begun within 3 s"):
        train(compose([*words, "learners=2", f"out='{tmp_path}/late'"]))
    assert time.monotonic() - before < 20.0


def test_what_nobody_has_listened_to_ends_as_it_is_closed(nodes):
    nodes.room(0, 0, "nothing")
    for forget in (lambda made: made.close(), lambda made: None):
        made = nodes.stream(busy, cpus=1)
        assert len(nodes._running) == 1
        forget(made)
        del made
        gc.collect()
        assert not nodes._running
    until = time.monotonic() + 30.0
    while ray.available_resources().get("CPU", 0.0) < nodes.cpus:
        assert time.monotonic() < until
        time.sleep(0.1)


def busy():
    """It has a CPU and keeps it."""
    yield
    for _ in range(600):
        time.sleep(0.1)


def test_jobs_are_the_runs_that_a_person_types(nodes, tmp_path):
    """The same digest; and of one whose process is killed in its midst, the same weights."""
    slow = (*TOY, "algorithm.pause=0.2", "checkpoint_s=0.5", "seed=2")
    jobs = [Job((*TOY, f"seed={seed}"), tmp_path / f"{seed}") for seed in (0, 1)] + [Job(slow, tmp_path / "2")]
    said: list[str] = []
    runs = Jobs(There(nodes), 3, said.append)
    killed = [False]

    class Killer(There):
        def perform(self, job, order, kept):
            for part in super().perform(job, order, kept):
                yield part
                if job is jobs[2] and "checkpoint.npz" in part.files and not killed[0]:
                    killed[0] = True
                    kill_streaming()

    runs._where = Killer(nodes)
    assert runs.run(jobs) == {}
    assert killed[0] and sum("it continues from its checkpoint" in line for line in said) == 1
    for seed in (0, 1):
        typed = [sys.executable, "-m", "policies.train", *TOY, f"seed={seed}", f"out={tmp_path}/typed{seed}"]
        path = os.pathsep.join([str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        subprocess.run(typed, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
        files = [tmp_path / name / "policy.onnx" for name in (f"{seed}", f"typed{seed}")]
        digests = [PolicyFile.load(file).metadata["digest"] for file in files]
        assert digests[0] == digests[1]
    whole = train(compose([*slow, f"out='{tmp_path}/whole'"]))
    weights = [checkpoint.load(d / "checkpoint.npz")["algorithm"]["weight"] for d in (whole.parent, tmp_path / "2")]
    assert (weights[0] == weights[1]).all()


def kill_streaming() -> None:
    """SIGKILL for the worker that performs the job."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command.read_text().startswith("ray::performed"):
                os.kill(int(command.parent.name), signal.SIGKILL)
        except OSError:
            continue


def test_a_node_that_is_lost_takes_nothing_with_it(nodes, tmp_path):
    task, still = frail(tmp_path), {"velocity": np.full((4, 2), 0.05, np.float32)}
    extra = nodes._here.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
    count = nodes.cpus
    with closing(make_env(task, count, 5, workers=count)) as far, closing(task.open(count, 5)) as near:
        still = {"velocity": np.full((count, 2), 0.05, np.float32)}
        for one in (far, near):
            one.reset(range(count), range(count))
            one.step(still)
        nodes._here.remove_node(extra)
        spare = nodes._here.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
        for _ in range(3):
            far.step(still), near.step(still)
            np.testing.assert_array_equal(far.observe()["position"], near.observe()["position"])
        assert worker_metrics(far)["workers_replaced"] == 1.0
    nodes._here.remove_node(spare)


def test_what_is_not_there_is_said(nodes):
    with pytest.raises(ClusterError, match=r"workers=99 needs 99 CPUs, the cluster has \d+ on \d+ nodes"):
        nodes.workers(frail(), 99, 0, 99)
    nodes.room(1, 0, "each", 2)
    with pytest.raises(ClusterError, match="each needs 1 CPUs and 0 GPUs of a node, 99 times; the nodes have"):
        nodes.room(1, 0, "each", 99)
    with pytest.raises(ClusterError, match="this process is in a cluster already"), entered("ray"):
        pass
    assert prepare(Place(1)) is None
    command = [sys.executable, "-m", "policies.train", "-m", "seed=0,1", "cluster=ray:127.0.0.1:6399", *TOY]
    path = os.pathsep.join([str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: there is no Ray cluster at 127.0.0.1:6399 (")


def test_what_a_node_raises_is_one_sentence(nodes):
    from sim.cluster.source import source_digest

    assert nodes.mapped(source_digest, [(), ()]) == [source_digest()] * 2
    with pytest.raises(ClusterError, match="^a node cannot do it: TypeError: unsupported operand"):
        nodes.mapped(source_digest, [("no path",)])


def test_other_versions_are_refused(nodes, monkeypatch):
    from sim.cluster import nodes as module

    nodes._compare()
    changed = {**module.about(), "numpy": "9.9.9"}
    monkeypatch.setattr(nodes, "_ours", lambda: changed)
    with pytest.raises(ClusterError, match=r"node 127.0.0.1 has numpy \S+, not 9.9.9: install the same there"):
        nodes._compare()

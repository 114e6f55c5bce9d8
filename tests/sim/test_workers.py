"""Worlds in other processes: the same as in this one, and what happens when one of them ends."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.runner.config import RunError, compose
from policies.train import train
from sim.engines import cores
from sim.env import SHARE, WorldError, make_env, worker_metrics, workers_for
from sim.tasks import make
from sim.vec_world import vector_env
from tests.policies.toy_reach import ToyReach
from tests.sim.toy_frail import Seen, Untold, frail

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 10.0  # s


def commands(task, num, rng):
    return {s.name: rng.uniform(s.low, s.high, (num, *s.shape)).astype(np.float32) for s in task.commands}


def flown(task, num, workers, steps=12):
    """What is seen and what comes of random commands; some episodes begin anew in between."""
    rng, found = np.random.default_rng(0), []
    with closing(make_env(task, num, 5, workers=workers)) as env:
        env.reset(range(num), range(num))
        for k in range(steps):
            found.append(env.observe())
            step = env.step(commands(task, num, rng))
            found.append({"reward": step.reward, "success": step.success, "terminated": step.terminated})
            if k % 5 == 2:
                env.reset([num - 1, 0], [10 + k, 20 + k])
        return [*found, env.observe(), env.truth(), {"picture": env.render(num - 1, 6, 8)}]


def check_same(task, num, *workers):
    alone = flown(task, num, 1)
    for count in workers:
        for one, other in zip(alone, flown(task, num, count), strict=True):
            assert one.keys() == other.keys()
            for name, value in one.items():
                np.testing.assert_array_equal(other[name], value)
                assert (other[name].dtype, other[name].shape) == (value.dtype, value.shape)


def test_the_number_of_workers_changes_nothing():
    check_same(frail(kind=Seen), 5, 2, 3, 9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("metaworld/pick-place-v3", marks=pytest.mark.long),
        "metaworld/MT10",
        "gymnasium/FetchPickAndPlace-v4",
    ],
)
def test_worlds_of_others_are_the_same_in_other_processes(name: str):
    check_same(make(name), 3, 2)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(processes):
    end = time.monotonic() + PATIENCE
    while any(map(alive, processes)):
        assert time.monotonic() < end, f"of {processes} some are still there"
        time.sleep(0.05)


def processes_of(env):
    return [worker._process.pid for worker in env._workers]


@pytest.mark.parametrize(("how", "said"), [("kill", "was ended by SIGKILL"), ("fault", "was ended by SIGSEGV")])
def test_a_worker_that_dies_is_replaced(how: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task, still = frail(tmp_path), {"velocity": np.zeros((4, 2), np.float32)}
    with closing(make_env(task, 4, 5, workers=2)) as env, closing(task.open(4, 5)) as alone:
        for one in (env, alone):
            one.reset(range(4), range(4))
            one.step({"velocity": np.full((4, 2), 0.1, np.float32)})
        before = processes_of(env)
        (tmp_path / how).touch()
        with caplog.at_level(logging.WARNING):
            step = env.step(still)
        alone.step(still)
        rows = np.flatnonzero(step.terminated).tolist()
        assert rows in ([0, 1], [2, 3])
        assert f"the worker of rows {rows[0]} to {rows[1]} {said} and is replaced (1 so far)" in caplog.text
        assert worker_metrics(env)["workers_replaced"] == 1.0 and len({*before} & {*processes_of(env)}) == 1
        assert not step.reward[rows].any() and not step.success[rows].any()
        assert env.step(still).terminated[rows].all()  # until they begin anew
        alone.step(still)
        for one in (env, alone):
            one.reset(rows, [7, 8])
        for _ in range(3):
            moved = {"velocity": np.full((4, 2), 0.2, np.float32)}
            ours, theirs = env.step(moved), alone.step(moved)
            assert not ours.terminated.any()
            np.testing.assert_array_equal(ours.reward, theirs.reward)
            np.testing.assert_array_equal(env.observe()["position"], alone.observe()["position"])


def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path: Path):
    env = make_env(frail(tmp_path), 4, 5, workers=2)
    env.reset(range(4), range(4))
    (tmp_path / "always").touch()
    still = {"velocity": np.zeros((4, 2), np.float32)}
    with pytest.raises(WorldError, match="toy_frail, row 0: the worker of rows 0 to 1 was ended by SIGKILL 3 times"):
        for _ in range(3):
            env.step(still)


def test_an_error_names_task_and_row_and_leaves_nobody_behind(tmp_path: Path):
    env = make_env(frail(tmp_path), 4, 5, workers=2)
    env.reset(range(4), range(4))
    (tmp_path / "raise").touch()
    processes = processes_of(env)
    with pytest.raises(WorldError, match=r"^toy_frail, row 1: ArithmeticError: the ball is nowhere \(toy_frail.py:\d+"):
        env.step({"velocity": np.zeros((4, 2), np.float32)})
    wait_until_gone(processes)


def test_a_worker_per_core_has_worlds_enough():
    with_worlds = [workers_for(frail(), rows, 0) for rows in (1, SHARE, 2 * SHARE, 1000)]
    assert with_worlds == [1, 1, min(2, cores()), min(250, cores())]
    assert [workers_for(frail(), 3, asked) for asked in (1, 2, 5)] == [1, 2, 3]
    assert workers_for(ToyReach(), 1000, 0) == 1


def chunks(workers):
    """Scenes that have executed some chunks, and what came of them."""
    rng, rollout = (
        np.random.default_rng(0),
        ChunkRollout(frail(), 3, 4, 2, ChunkRewards(1.0, 0.0, 0.9, 2), workers=workers),
    )
    return rollout, lambda: [made for _ in range(9) for made in stepped(rollout, rng)]


def stepped(rollout, rng):
    for row in rollout.idle():
        rollout.plan(row, np.zeros(1, np.float32), rng.uniform(-1.0, 1.0, 4).astype(np.float32))
    return rollout.step()


def test_chunks_are_executed_by_workers_and_continued():
    (alone, first), (shared, same) = chunks(1), chunks(2)
    for one, other in zip(first(), same(), strict=True):
        np.testing.assert_array_equal(one.next_x, other.next_x)
        assert (one.reward, one.discount) == (other.reward, other.discount)
    assert shared.rates()["workers_replaced"] == 0.0 and "workers_replaced" not in alone.rates()
    again, _ = chunks(2)
    again.load_state_dict(alone.state_dict())
    np.testing.assert_array_equal(again.seen, shared.seen)
    for rollout in (alone, shared, again):
        rollout.close()


def test_tensors_come_from_workers():
    alone, shared = (vector_env(frail(), 4, seed=3, workers=count) for count in (1, 2))
    for _ in range(30):
        one, other = (env.step(torch.full((4, 2), 0.3)) for env in (alone, shared))
        for name, value in one.observation["policy"].items():
            assert torch.equal(value, other.observation["policy"][name])
        assert torch.equal(one.reward, other.reward) and torch.equal(one.truncated, other.truncated)
    assert shared.worker_metrics() == {"workers_replaced": 0.0} and not alone.worker_metrics()
    again = vector_env(frail(), 4, seed=4, workers=2)
    again.load_state_dict(shared.state_dict())
    assert torch.equal(again.observation["policy"]["position"], shared.observation["policy"]["position"])


def test_what_cannot_be_done_in_other_processes_is_refused():
    with pytest.raises(ValueError, match="toy_reach has no worlds that other processes could step: set workers=1"):
        make_env(ToyReach(), 4, 0, workers=2)
    with pytest.raises(ValueError, match="quad_hover has no worlds that other processes could step"):
        make_env(make("quad_hover"), 4, 0, workers=2)
    with pytest.raises(ValueError, match=r"toy_frail cannot be told to another process .*: set workers=1"):
        make_env(frail(kind=Untold), 4, 0, workers=2)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        make_env(frail(), 4, 0, workers=-1)


def test_a_run_ends_with_what_a_world_says(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    words = ["num_envs=4", "workers=2", "rollout_steps=4", "minibatches=1", "total_steps=64", "evaluation_episodes=2"]
    told = [f"task.folder='{tmp_path}'", f"out='{tmp_path}/run'", "report=false"]
    run = compose(["task=tests.sim.toy_frail:Frail", "algorithm=ppo", *told, *(f"algorithm.{word}" for word in words)])
    (tmp_path / "raise").touch()
    with pytest.raises(
        RunError, match=r"^toy_frail, row 1: ArithmeticError: the ball is nowhere \(toy_frail.py:\d+\)$"
    ):
        train(run)
    (tmp_path / "raise").unlink()
    (tmp_path / "kill").touch()
    shutil.rmtree(tmp_path / "run")
    folder = train(run).parent
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["workers_replaced"] for row in rows] == [1.0] * 4 and rows[0]["lost"] == 1.0
    assert "toy_frail: the worker of rows" in caplog.text


PARENT = """
import sys, time
import numpy as np
from sim.env import make_env
from tests.sim.toy_frail import frail
env = make_env(frail(), 4, 0, workers=2)
env.reset(range(4), range(4))
print(*[worker._process.pid for worker in env._workers], flush=True)
while True:
    env.step({"velocity": np.zeros((4, 2), np.float32)})
"""


def script(text: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs it, in a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_parent_ends_its_workers(number: int):
    """Neither a process nor a name of shared memory is left: it has none."""
    with script(PARENT) as parent:
        processes = [*map(int, parent.stdout.readline().split())]
        maps = Path(f"/proc/{processes[0]}/maps").read_text()
        assert len(processes) == 2 and "/memfd:worlds (deleted)" in maps and "/dev/shm" not in maps
        os.killpg(parent.pid, number)  # as a terminal does
        said = parent.communicate(timeout=PATIENCE)[1]
    wait_until_gone(processes)
    assert said.count("Traceback") == (number == signal.SIGINT)  # the parent's own, in a script without `Stop`

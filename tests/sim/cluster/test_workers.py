"""Rows that are stepped elsewhere: the same as here, whoever is lost on the way. Without Ray."""

import logging
from contextlib import closing

import numpy as np
import pytest

from sim import cluster
from sim.cluster import ClusterError, LostError, Place, entered, place_of
from sim.cluster.source import source_digest
from sim.cluster.workers import ClusterWorkers, Rows
from sim.env import WorldError, make_env, worker_metrics
from tests.sim.toy_frail import Untold, frail


class Near:
    """A worker in this process, which is lost after so many answers; who takes its place is not, if they are all."""

    def __init__(self, told: bytes, life: list[int]) -> None:
        self._rows, self._left, self._asked, self.ended = Rows(told), life.pop(0) if life else 10**6, None, False

    def ask(self, what, *told):
        self._asked = (what, *told)

    def answer(self):
        self._left -= 1
        if self._left < 0:
            raise LostError("its node is gone")
        return self._rows.do(*self._asked)

    def end(self):
        self.ended = True


def workers(task, num, count, *lives):
    left = [*lives]
    return ClusterWorkers(task, num, 5, count, lambda told: Near(told, left))


def flown(env, steps=12):
    """What is seen and what comes of random commands; some episodes begin anew in between."""
    rng, found = np.random.default_rng(0), []
    with closing(env):
        env.reset(range(env.num), range(env.num))
        for k in range(steps):
            step = env.step({"velocity": rng.uniform(-0.3, 0.3, (env.num, 2)).astype(np.float32)})
            found.append({**env.observe(), "reward": step.reward, "success": step.success, "lost": step.terminated})
            if k % 5 == 2:
                env.reset([env.num - 1, 0], [10 + k, 20 + k])
        return [*found, env.truth(), {"picture": env.render(env.num - 1, 6, 8)}]


@pytest.mark.parametrize(
    ("count", "lives", "replaced"),
    [(2, (), 0), (3, (), 0), (2, (7,), 1), (2, (4, 9), 2), (2, (10**6, 1), 1), (1, (5, 1), 2)],
)
def test_who_is_lost_changes_nothing(count: int, lives: tuple[int, ...], replaced: int):
    task = frail()
    far = workers(task, 5, count, *lives)
    for one, other in zip(flown(make_env(task, 5, 5)), flown(far), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)
            assert (other[name].dtype, other[name].shape) == (value.dtype, value.shape)
    assert worker_metrics(far) == {"workers_replaced": replaced}


def test_a_loss_is_told_and_one_after_the_other_ends_the_run(caplog: pytest.LogCaptureFixture):
    far = workers(frail(), 4, 2, 3, 10**6, 0, 0)
    far.reset(range(4), range(4))
    still = {"velocity": np.zeros((4, 2), np.float32)}
    with caplog.at_level(logging.WARNING), pytest.raises(WorldError) as ended:
        for _ in range(4):
            far.step(still)
    said = "toy_frail: the worker of rows 0 to 1 was lost (its node is gone); another does again what it did (1 so far)"
    assert said in caplog.text
    assert "row 0: the worker of rows 0 to 1 was lost 3 times, each within 1000 control steps: its node" in str(
        ended.value
    )


def test_an_error_of_a_world_names_its_row(tmp_path):
    far = workers(frail(tmp_path), 4, 2)
    far.reset(range(4), range(4))
    (tmp_path / "raise").touch()
    with pytest.raises(WorldError, match=r"^toy_frail, row 1: ArithmeticError: the ball is nowhere \(toy_frail.py:\d+"):
        far.step({"velocity": np.zeros((4, 2), np.float32)})
    with pytest.raises(ValueError, match=r"toy_frail cannot be told to another process .*: set workers=1"):
        workers(frail(kind=Untold), 4, 2)


class Four:
    """A cluster of four CPUs."""

    cpus = 4

    def workers(self, task, num, seed, count):
        return count


def test_worlds_are_opened_in_the_cluster_that_was_entered():
    token = cluster._entered.set(Four())
    try:
        assert make_env(frail(), 40, 0, workers=3) == 3
        assert make_env(frail(), 40, 0, workers=0) == 4  # one per CPU there
        with closing(make_env(frail(), 4, 0)) as here:
            assert not worker_metrics(here)
    finally:
        cluster._entered.reset(token)


def test_what_the_setting_says():
    assert place_of("ray") == Place(1) and place_of("ray:3") == Place(3)
    assert place_of("ray:10.0.0.7:6379") == Place(0, "10.0.0.7:6379") == place_of("ray:10.0.0.7:6379")
    for wrong in ("rya", "ray:", "ray:host", "slurm:4", "ray:a b:3"):
        with pytest.raises(ClusterError, match=r"write ray \(on this machine\), ray:2"):
            place_of(wrong)
    with pytest.raises(ClusterError, match="between 1 and 16 nodes"):
        place_of("ray:99")
    with entered("") as none:
        assert none is None is cluster.current()


def test_the_digest_is_of_every_module(tmp_path):
    for layer in ("sim", "deploy"):
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "a.py").write_text("x = 1\n")
    before = source_digest(tmp_path)
    (tmp_path / "sim" / "note.txt").write_text("no module")
    assert source_digest(tmp_path) == before and len(before) == 12
    (tmp_path / "deploy" / "a.py").rename(tmp_path / "deploy" / "b.py")
    assert source_digest(tmp_path) != before

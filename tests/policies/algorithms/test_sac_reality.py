"""SAC with real transitions among simulated ones: who is told apart, what counts how much, and what is refused."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from policies import collect
from policies.algorithms import LearningError
from policies.algorithms.advice import AdvisedSacConfig
from policies.algorithms.online_sac import OnlineSacConfig
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.reality import LAST, REAL, SIMULATED, Gap
from policies.datasets import DatasetError
from sim import tasks
from tests.policies.resumed import learned, same
from tests.policies.toy_reach import Cell, ToyReach

TINY = {
    "num_envs": 4,
    "total_steps": 400,
    "warmup_steps": 40,
    "batch_size": 16,
    "report_every": 30,
    "evaluation_episodes": 2,
    "hidden": [16],
    "critic_hidden": [16],
}


class Slow(ToyReach):
    """Its robot has been given half of the speed: what stands for reality."""

    def open(self, num, seed):
        return Tired(self, num, seed)


class Tired(Cell):
    def step(self, command):
        return super().step({"velocity": 0.5 * command["velocity"]})


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A dataset of 20 episodes, by a mediocre expert in reality."""
    folder = str(tmp_path_factory.mktemp("real") / "data")
    collect.collect(Slow(), collect.Config(task="toy_reach", out=folder, episodes=20, corruption=1.0))
    return folder


def learner(folder, seed=0, task=None, **settings):
    return Sac(task or ToyReach(), SacConfig(**(TINY | {"real_data": folder} | settings)), seed)


def told(generator, real_speed=1.0, aside=0.0, updates=400, batch=128):
    """Discriminators of points that move by what is commanded; the real ones as fast, and at other places."""
    gap = Gap(2, 2, 1e-3, torch.Generator().manual_seed(0), "cpu")

    def drawn(n):
        real = torch.arange(n) % 2 == 0
        x, action = torch.randn((2, n, 2), generator=generator).unbind()
        x[real] += aside
        moved = torch.where(real, real_speed, 1.0)[:, None] * action
        return x, action, x + moved + 0.05 * torch.randn((n, 2), generator=generator), real

    for _ in range(updates):
        gap.learn(*drawn(batch), generator)
    *parts, real = drawn(2000)
    return gap, gap.likelier(*parts), real, parts


def test_two_dynamics_are_told_apart():
    _, likelier, real, _ = told(torch.Generator().manual_seed(1), real_speed=0.5)
    assert (likelier[real] > 0.0).float().mean() > 0.85 and likelier[real].mean() > 1.0
    assert (likelier[~real] < 0.0).float().mean() > 0.85 and likelier[~real].mean() < -1.0


def test_of_equal_dynamics_all_count_the_same_wherever_they_were_seen():
    """The real ones were seen elsewhere, which one discriminator knows as well as the other."""
    gap, likelier, real, (x, action, next_x) = told(torch.Generator().manual_seed(1), aside=1.0)
    whole, before = gap._logits(x, action, gap.usual(next_x - x))
    assert before[real].mean() > 0.5 and whole[~real].mean() < -0.5
    weights = likelier[~real].clamp_max(0.0).exp()
    assert weights.mean() > 0.9 and likelier.abs().mean() < 0.15


def test_a_dataset_becomes_transitions(real):
    task, path = ToyReach(), learner(real).path
    episodes, rows = collect.stored(task, real, 1000), path.buffer.prior.data
    kinds = [e.succeeded or len(e.reward) == task.episode_steps for e in episodes]  # that are not lost
    lengths = [len(e.reward) - ok for e, ok in zip(episodes, kinds, strict=True)]
    assert len(rows["x"]) == sum(lengths) and any(kinds) and (rows["origin"] != SIMULATED).all()
    first = episodes[0]
    seen = np.concatenate([first.signals["position"], first.signals["goal"]], axis=1)
    n = lengths[0]
    np.testing.assert_array_equal(rows["x"][:n], seen[:n])
    np.testing.assert_array_equal(rows["next_x"][: n - 1], seen[1:n])
    np.testing.assert_allclose(rows["action"][:n], first.commands["velocity"][:n], atol=1e-6)
    np.testing.assert_array_equal(rows["terms"][:n, 0], first.reward[:n])
    batch = path.buffer.prior.sample(5, torch.Generator().manual_seed(0), 1, 0.9)
    assert batch["discount"].tolist() == pytest.approx([0.9] * 5)


def test_who_ends_early_without_success_is_lost(real):
    task, path = ToyReach(), learner(real).path
    long = next(e for e in collect.stored(task, real, 1000) if e.succeeded)
    cut = dataclasses.replace(long, success=np.zeros_like(long.success))
    rows, whole = path._transitions(cut), path._transitions(long)
    assert rows["lost"].tolist() == [False] * (len(long.reward) - 1) + [True]
    assert rows["origin"].tolist() == [REAL] * (len(long.reward) - 1) + [LAST]
    assert len(whole["lost"]) == len(long.reward) - 1 and not whole["lost"].any()


def test_simulated_transitions_count_less_where_reality_is_another(real, tmp_path):
    """The same data as reality, and data as the simulation makes them."""
    alike = str(tmp_path / "alike")
    collect.collect(ToyReach(), collect.Config(task="toy_reach", out=alike, episodes=20, corruption=1.0))
    counted = []
    for folder in (real, alike):
        path = learner(folder, total_steps=4 * 300, batch_size=128, real_penalty=0.0).path
        list(path.learn())
        batch = path.buffer.sample(2000, torch.Generator().manual_seed(0), 1, 0.9)
        weights = path._importance(batch)
        assert (weights[batch["origin"] != SIMULATED] == 1.0).all() and (weights <= 1.0).all()
        counted.append(float(weights[batch["origin"] == SIMULATED].mean()))
    assert counted[0] < 0.7 and counted[1] > counted[0] + 0.1, counted


def test_critics_think_less_of_what_hardly_happens(real):
    path = learner(real, real_penalty=1.0).path
    batch = {"origin": torch.tensor([SIMULATED, SIMULATED, REAL, REAL])}
    path._likelier = torch.tensor([-5.0, 1.0, 0.0, 0.0])
    values = torch.zeros((2, 4), requires_grad=True)
    path._critic_regulariser(batch, values).backward()
    down, usual, up, _ = values.grad[0].tolist()
    assert down > 0.99 and 0.0 < usual < 0.01 and up == pytest.approx(-0.5)
    batch["origin"][:] = REAL
    assert path._critic_regulariser(batch, values) == 0.0


def test_a_run_goes_on_exactly_with_the_same_data(real, tmp_path):
    whole = learner(real, 3)
    rows, others = learned(whole, lambda: learner(real, 3))
    for k, other in enumerate(others):
        assert [*other.learn()] == rows[k + 1 :]
    same(others[0].state_dict(), whole.state_dict())
    assert whole.provenance()["real_data"]["sha256"] == whole.path.real_digest
    assert np.isfinite([row["likelier"] for row in rows[1:]]).all()
    more = str(tmp_path / "other")
    collect.collect(Slow(), collect.Config(task="toy_reach", out=more, episodes=5, seed=1))
    with pytest.raises(LearningError, match="real_data has changed since this run began"):
        learner(more, 3).load_state_dict(whole.state_dict())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"path": "fused"}, "path=fused does not do algorithm.real_data"),
        ({"n_step": 3}, "real_data goes with n_step=1 only, got 3"),
        ({"earlier": ["runs/one"]}, r"real_data goes with earlier=\[\] only"),
        ({"real_share": 1.0}, "real_share must be between 0 and 1, got 1"),
        ({"real_penalty": float("nan")}, "real_penalty must be at least 0"),
        ({"task": tasks.make("quad_hover")}, "takes tasks with a world of their own and no pictures, not quad_hover"),
        ({"task": tasks.make("car_race")}, "data was recorded at 10 Hz, but 20 Hz is needed"),
    ],
)
def test_what_does_not_go_together_is_refused(real, wrong, said):
    with pytest.raises(ValueError, match=said):
        learner(real, **wrong)


@pytest.mark.parametrize("kind", [AdvisedSacConfig, OnlineSacConfig])
def test_others_refuse_it(kind):
    with pytest.raises(ValueError, match="real_data must be empty"):
        kind(real_data="data/real")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("observation.state", lambda rows: [rows[0], [np.nan] * 4, *rows[2:]], "'observation.state' is not a finite"),
        ("action", lambda rows: [[0.0]] * len(rows), "'action' in episode 0: .* numbers for .* frames of shape"),
    ],
)
def test_a_dataset_that_is_damaged_is_refused(name, wrong, said, tmp_path):
    folder = tmp_path / "data"
    collect.collect(Slow(), collect.Config(task="toy_reach", out=str(folder), episodes=2))
    for path in sorted(folder.glob("meta/episodes/*/*.parquet")):  # as LeRobot writes it: without checksums
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    path = min(folder.glob("data/*/*.parquet"))
    table = pq.read_table(path).replace_schema_metadata(None)
    column = pa.array(wrong(table[name].to_pylist()), pa.list_(pa.float32()))
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
    with pytest.raises(DatasetError, match=said):
        learner(str(folder))

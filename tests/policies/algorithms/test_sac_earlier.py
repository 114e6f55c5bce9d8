"""SAC with experience of earlier runs: how much of it, which, that a run goes on exactly, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.algorithms import LearningError
from policies.algorithms.sac import Sac, SacConfig
from policies.learning.fused import off_policy, replay
from policies.runner import checkpoint
from sim import tasks
from sim.engines.vector.streams import QUANTILES
from tests.policies.resumed import same

FEW = {
    "num_envs": 32,
    "total_steps": 32 * 48,
    "warmup_steps": 32 * 8,
    "capacity": 32 * 40,
    "batch_size": 50,
    "hidden": [16, 16],
    "critic_hidden": [16, 16],
    "report_every": 8,
    "evaluation_episodes": 2,
    "lengths": [0.02, 0.04],
}


def sac(seed=0, task="quad_hover", **wanted):
    return Sac(tasks.make(task), SacConfig(**(FEW | wanted)), seed)


def kept(learner, folder):
    """A run's folder, as `policies.train` leaves it."""
    folder.mkdir()
    checkpoint.save(folder / "checkpoint.npz", {"algorithm": learner.state_dict(), "log": {}})
    return str(folder)


def trained(seed, **wanted):
    learner = sac(seed, **wanted)
    list(learner.learn())
    return learner


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two earlier runs of the fused path, and their folders; the second has other numbers of environments and steps."""
    made = [trained(7), trained(8, num_envs=16, total_steps=16 * 40, capacity=16 * 60, warmup_steps=16 * 8)]
    folder = tmp_path_factory.mktemp("runs")
    return made, [kept(learner, folder / f"run{k}") for k, learner in enumerate(made)]


@pytest.fixture(scope="module")
def torch_runs(tmp_path_factory):
    made = [trained(seed, path="torch", total_steps=32 * 12) for seed in (7, 8)]
    folder = tmp_path_factory.mktemp("torch")
    return made, [kept(learner, folder / f"run{k}") for k, learner in enumerate(made)]


def drawn(path, count=40):
    """Transitions of so many batches: rows, the ones that follow, rewards, discounts."""
    found, rules = [], path.rules
    for _ in range(count):
        off_policy.sample(
            *(path.replay.stored, path.replay.written, rules.n_step, rules.gamma, path.stream, QUANTILES), path.batch
        )
        found.append([np.copy(part) for part in (path.batch.row, path.batch.after, *path.batch[2:4])])
    return [np.stack(part) for part in zip(*found, strict=True)]


def content(path, rows):
    """What is stored in these rows."""
    stored = path.replay.stored
    return stored.bits.reshape(-1, (stored.judged + stored.seen) * stored.bits.shape[1])[rows]


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_fixed_share_of_each_batch_is_what_the_earlier_runs_would_draw(runs, n_step):
    made, folders = runs
    plain, mixed = sac(n_step=n_step), sac(n_step=n_step, earlier=folders, earlier_share=0.3)
    for learner in (plain, mixed):
        for _ in range(6):
            learner.path._act()
    old, own = 15, plain.path.replay.own // (plain.path.replay.stored.judged + plain.path.replay.stored.seen)
    row, after, reward, discount = drawn(mixed.path)
    assert (row[:, :old] >= own).all() and (row[:, old:] < own).all()
    for part, other in zip((row, after, reward, discount), drawn(plain.path), strict=True):
        np.testing.assert_array_equal(part[:, old:], other[:, old:])  # its own are the same as without
    theirs = set()
    for one in made:
        one.path.rules = mixed.path.rules
        many = [part.reshape(-1) for part in drawn(one.path, 400)]
        seen = content(one.path, many[0]), content(one.path, many[1]), *many[2:]
        theirs |= {(a.tobytes(), b.tobytes(), float(r), float(d)) for a, b, r, d in zip(*seen, strict=True)}
    every = mixed.path.replay.stored.earlier
    where = content(mixed.path, every.row), content(mixed.path, every.after), every.reward, every.discount
    here = {(a.tobytes(), b.tobytes(), float(r), float(d)) for a, b, r, d in zip(*where, strict=True)}
    assert len(every.row) == 32 * (40 - n_step) + 16 * (40 - n_step)
    assert theirs <= here and len(theirs) > 0.9 * len(here)
    for part in (row, after):
        assert set(part[:, :old].reshape(-1)) <= {*every.row, *every.after}


def test_a_run_with_earlier_ones_goes_on_exactly(runs, tmp_path):
    _, folders = runs
    straight, first, second = (sac(3, earlier=folders) for _ in range(3))
    rows = [*straight.learn()]
    learning = first.learn()
    for _ in range(3):
        next(learning)
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, first.state_dict())
    second.load_state_dict(checkpoint.load(path))
    assert [*second.learn()] == rows[3:]
    same(second.state_dict(), straight.state_dict())
    alone = trained(3)
    assert len(straight.state_dict()["replay"]["bits"]) == len(alone.state_dict()["replay"]["bits"])
    assert (straight.path.actor.net.weights != alone.path.actor.net.weights).any()
    told = straight.provenance()["earlier"]
    assert told["share"] == 0.5 and len(set(told["sha256"])) == 2 and alone.provenance() == {}


def test_a_run_does_not_go_on_with_other_experience(runs):
    _, folders = runs
    state = sac(earlier=folders).state_dict()
    with pytest.raises(LearningError, match=r"the runs of algorithm.earlier have changed since this run began"):
        sac(earlier=folders[::-1]).load_state_dict(state)
    with pytest.raises(LearningError, match=r"the runs of algorithm.earlier have changed"):
        sac().load_state_dict(state)


def test_it_learns_a_run_of_a_run(runs, tmp_path):
    _, folders = runs
    again = kept(trained(5, earlier=folders), tmp_path / "again")
    assert len(sac(earlier=[again]).path.replay.stored.earlier.row) == 32 * 39  # its own only


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.sampled_from(
        [
            "bits nan",
            "bits short",
            "bits kind",
            "reward nan",
            "reward kind",
            "ended far",
            "ended -3",
            "envs",
            "written",
            "gone",
        ]
    ),
    where=st.floats(0.0, 0.999),
)
def test_a_strangers_replay_is_refused(runs, damage, where):
    learner = runs[0][0]
    state = {name: np.copy(value) for name, value in learner.path.replay.state_dict().items()}
    wide = learner.path.replay.stored.judged + learner.path.replay.stored.seen
    assert replay.checked(state, wide, 1)["envs"] == 32
    name = damage.split()[0]
    at = int(where * len(state["reward"]))
    match damage:
        case "bits nan":
            state["bits"][at, at % 16] = np.float16(np.inf if at % 2 else np.nan).view(np.uint16)
        case "bits short":
            state["bits"] = state["bits"][: at * wide]
        case "bits kind" | "reward kind":
            state[name] = state[name].astype(np.float64)
        case "reward nan":
            state["reward"][at] = np.nan
        case "ended far":
            state["ended"][at] = len(state["bits"]) // wide + at
        case "ended -3":
            state["ended"][at] = -3
        case "envs":
            state["envs"] = np.int64(-1 if at % 2 else 31)
        case "written":
            state["written"] = np.int64(2)
        case "gone":
            del state["ended"]
    with pytest.raises((ValueError, KeyError)):
        replay.checked(state, wide, 1)


def test_what_is_no_such_run_is_refused_in_one_line(runs, torch_runs, tmp_path):
    _, folders = runs
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    content = bytearray(Path(folders[0], "checkpoint.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged" / "checkpoint.npz").write_bytes(content)
    (tmp_path / "other").mkdir()
    checkpoint.save(tmp_path / "other" / "checkpoint.npz", {"algorithm": {"iteration": 3}})
    for run, message in (
        ("empty", "is no run of sac, it has no checkpoint.npz"),
        ("damaged", "damaged, its .* bytes do not match their checksum"),
        ("other", "is no run of sac, or of an older version"),
        (torch_runs[1][0], "was not learned by algorithm.path=fused"),
    ):
        with pytest.raises(ValueError, match=message):
            sac(earlier=[str(tmp_path / run)])
    with pytest.raises(
        ValueError, match="run0 learned something else: 'task quad_hover' there, 'task quad_track' here"
    ):
        sac(task="quad_track", earlier=folders)
    with pytest.raises(ValueError, match=r"run1 cannot be used: it has 40 steps .* too few for n_step=39"):
        sac(earlier=folders[1:], n_step=39, total_steps=32 * 80, capacity=32 * 80)
    with pytest.raises(ValueError, match="earlier_share must be between 0 and 1, got 1"):
        SacConfig(earlier_share=1.0)


def test_the_torch_path_mixes_them_too(torch_runs, tmp_path):
    made, folders = torch_runs
    wanted = {"path": "torch", "total_steps": 32 * 16, "report_every": 4, "batch_size": 20}
    straight, first, second = (sac(3, earlier=folders, earlier_share=0.25, **wanted) for _ in range(3))
    buffer = straight.path.buffer
    assert buffer.prior.whole == sum(one.path.buffer.size for one in made)
    straight.path._act()
    batch = buffer.sample(4000, torch.Generator().manual_seed(0), 1, 0.98)
    both = [{row.numpy().tobytes() for row in one.path.buffer.data["x"]} for one in made]
    found = [row.numpy().tobytes() for row in batch["x"]]
    shares = [np.mean([row in rows for row in found]) for rows in both]
    assert shares == pytest.approx([0.125, 0.125], abs=0.03)
    straight = sac(3, earlier=folders, earlier_share=0.25, **wanted)
    rows = [*straight.learn()]
    learning = first.learn()
    for _ in range(2):
        next(learning)
    checkpoint.save(tmp_path / "checkpoint.npz", first.state_dict())
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*second.learn()] == rows[2:]
    same(second.state_dict(), straight.state_dict())


def test_a_strangers_transitions_are_refused(torch_runs, tmp_path):
    made, _ = torch_runs
    for k, (name, value) in enumerate(
        [
            ("x", lambda x: x[:, :-1]),
            ("action", lambda x: x.double()),
            ("terms", lambda x: torch.full_like(x, torch.nan)),
            ("lost", lambda x: x.float()),
            ("more", None),
        ]
    ):
        state = made[0].state_dict()
        state["buffer"]["data"][name] = value(state["buffer"]["data"][name]) if value else torch.zeros(3)
        (tmp_path / f"{k}").mkdir()
        checkpoint.save(tmp_path / f"{k}" / "checkpoint.npz", {"algorithm": state})
        with pytest.raises(ValueError, match=rf"{k} cannot be used: it"):
            sac(path="torch", earlier=[str(tmp_path / f"{k}")])

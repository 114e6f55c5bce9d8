"""traffic_eco: intersections in processes of their own, their vehicles as rows, and who drives better."""

import importlib.util
import itertools
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from deploy import PolicyFile
from policies.evaluate import evaluate
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.reports.paired import Scripted, differences
from sim.engines.sumo.context import Arm, Context
from sim.engines.sumo.network import NetworkError, made
from sim.env import WorldError, conditions_of, worker_metrics
from sim.parallel import TaskParallelEnv
from sim.registry import StrangerError, names_from
from sim.tasks import check_declared, make
from sim.tasks.abilities import baseline_of, present
from sim.tasks.traffic.folders import intersections

SMALL = {"places": 6, "steps": 40, "warmup": 60}


def driven(task, worlds=1, episode=4, steps=30, seed=2, act=None):
    """What is seen, and what it earns; by default everybody is told something."""
    rng, found = np.random.default_rng(0), []
    with closing(task.open(worlds * task.agents, seed)) as env:
        env.reset(range(env.num), np.repeat(episode + np.arange(worlds), task.agents))
        for _ in range(steps):
            signals = env.observe()
            told = rng.uniform(-1.0, 2.0, (env.num, 1)).astype(np.float32)
            step = env.step(act(signals) if act else {"acceleration": told})
            found.append({**signals, "reward": step.reward})
    return found


def same(one, other, rows=slice(None)):
    for a, b in zip(one, other, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name][rows], b[name][rows], err_msg=name)


def test_seed_and_number_decide_an_episode():
    task = make("traffic_eco", **SMALL)
    check_declared(task)
    first = driven(task)
    same(first, driven(task))
    other = driven(task, episode=5)
    assert any((a["speed"] != b["speed"]).any() for a, b in zip(first, other, strict=True))


def test_signals_are_within_what_is_declared_and_empty_places_are_still():
    task = make("traffic_eco", **SMALL)
    moments, freed = driven(task, worlds=2, steps=100), 0
    for before, after in itertools.pairwise(moments):
        there = present(task, after)
        for s in (*task.policy, *task.privileged):
            assert after[s.name].shape == (12, 1) and after[s.name].dtype == np.float32
            assert (after[s.name] >= s.low).all() and (after[s.name] <= s.high).all(), s.name
        assert not any(after[s.name][~there].any() for s in task.policy)
        freed += int((present(task, before) & ~there).sum())
    assert freed > 0 and 0.2 < np.mean([m["present"].mean() for m in moments]) < 1.0
    rewards = np.stack([m["reward"] for m in moments])
    assert np.isfinite(rewards).all() and (rewards < 0.0).any()


def test_a_place_is_empty_between_two_vehicles():
    task = make("traffic_eco", **{**SMALL, "places": 2, "penetration": 1.0})
    moments = driven(task, steps=60, act=baseline_of(task, "idm"))
    jumps = [  # but for those who come within reach of the signal, or pass it
        (np.abs(b["distance"] - a["distance"]) > 40.0) & (a["present"] > 0.0) & (b["present"] > 0.0)
        for a, b in itertools.pairwise(moments)
    ]
    assert not np.any(
        [
            jump & (a["distance"] < 300.0) & (b["distance"] < 300.0)
            for jump, a, b in zip(jumps, moments, moments[1:], strict=False)
        ]
    )
    assert all((m["present"] == 1.0).any() for m in moments[5:])


def test_a_process_that_is_killed_is_replaced():
    task, still = make("traffic_eco", **SMALL), {"acceleration": np.zeros((12, 1), np.float32)}
    with closing(task.open(12, 2)) as env:
        env.reset(range(12), [0] * 6 + [1] * 6)
        env.step(still)
        os.kill(env._workers[1]._process.pid, signal.SIGKILL)
        step = env.step(still)
        assert step.terminated.tolist() == [False] * 6 + [True] * 6
        assert worker_metrics(env) == {"workers_replaced": 1.0}
        env.reset(range(6, 12), [2] * 6)
        assert not env.step(still).terminated.any()
        folder = Path(env.task.folder)
        assert len(list(folder.glob("*.net.xml"))) >= 2
    assert not folder.exists()


def test_who_is_told_the_most_drives_as_his_driver():
    """Nobody equipped, and all equipped who are left to their drivers, is the same traffic."""
    scores = []
    for penetration in (0.0, 1.0):
        task = make("traffic_eco", **{**SMALL, "places": 100, "penetration": penetration})
        moments = driven(task, steps=40, act=baseline_of(task, "idm"))
        scores.append(task.score({name: np.stack([m[name] for m in moments]) for name in moments[0]}))
    for name, value in scores[0].items():
        np.testing.assert_allclose(scores[1][name][0], value[0], rtol=1e-5, err_msg=name)


def test_advice_saves_emissions_and_keeps_the_throughput():
    task = make("traffic_eco", steps=400, penetration=1.0 / 3.0)
    found = [evaluate(Scripted(task, name), task=task, episodes=2, seed=5) for name in ("glosa", "idm")]
    saved = differences(found[0].values, found[1].values)
    assert saved["co2"]["change"] < -0.01
    assert saved["throughput"]["change"] > -0.02
    assert saved["success"]["mean"] == 1.0 and len(found[0].values["co2"]) == 2  # a score per world, not per place


def test_scores_are_what_they_say():
    task = make("traffic_eco", **SMALL)
    steps, told = 10, {"vehicles": 4.0, "speed": 40.0, "emission": 8.0, "stops": 0.1, "arrived": 0.5, "faults": 0.0}
    score = task.score({f"world_{name}": np.full((steps, 3, 1), value, np.float32) for name, value in told.items()})
    expected = {"success": 1.0, "co2": 200.0, "throughput": 3600.0, "mean_speed": 10.0, "stops": 0.2}
    for name, value in expected.items():
        np.testing.assert_allclose(score[name], [value] * 3, rtol=1e-6, err_msg=name)
    assert score.keys() == task.scores.keys()


def test_families_are_other_intersections():
    conditions = conditions_of(make("traffic_eco"))
    assert list(conditions) == ["mixed", "few_lanes", "steep", "busy", "fast"]
    assert all(task.config.family == name for name, task in conditions.items())


def test_a_policy_is_a_file_that_is_fed_by_name(tmp_path: Path):
    task = make("traffic_eco", **SMALL)
    size = sum(1 for _ in task.features)
    layers = [(np.zeros((1, size), np.float32), np.full(1, 9.0, np.float32))]
    export(FeaturePolicy.from_task(task, Mlp(layers, "tanh")), tmp_path / "p.onnx", training={"algorithm": "ppo"})
    policy = PolicyFile.load(tmp_path / "p.onnx")
    assert [s.name for s in policy.inputs] == [s.name for s in task.policy]
    assert [(s.name, s.unit, s.low, s.high) for s in policy.outputs] == [("acceleration", "m/s^2", -2.0, 2.0)]
    ours = evaluate(policy, task=task, episodes=1)
    theirs = evaluate(Scripted(task, "idm"), task=task, episodes=1)
    np.testing.assert_array_equal(ours.values["co2"], theirs.values["co2"])


def test_pettingzoo():
    env = TaskParallelEnv("traffic_eco", config=SMALL, render_mode="rgb_array")
    try:
        seen, _ = env.reset(seed=3)
        assert len(seen) == 6 and all(env.observation_space(name).contains(seen[name]) for name in seen)
        _, rewards, lost, _, _ = env.step({name: np.zeros(1, np.float32) for name in env.agents})
        assert len(rewards) == 6 and not any(lost.values())
        picture = env.render()
        assert picture.shape == (240, 320, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) >= 3
    finally:
        env.close()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two intersections in IntersectionZoo's layout."""
    city = tmp_path_factory.mktemp("zoo") / "city"
    for k, lanes in enumerate((1, 2)):
        folder = city / str(k)
        folder.mkdir(parents=True)
        arms = (Arm(lanes, 150.0, 13.0, 0.0, 0.0, (0.1, 0.8, 0.1)),) * 4
        network = made(Context(arms), folder)
        Path(network.path).rename(folder / "net.net.xml")
        (folder / "inflows.txt").write_text("5000.0\n4000\n5000.0\n20000.0")
    return city


@pytest.fixture
def folders(zoo: Path, tmp_path: Path) -> Path:
    """A copy of them, to be spoilt."""
    return Path(shutil.copytree(zoo, tmp_path / "city"))


def test_folders_of_intersections_zoo(folders: Path):
    assert [path.parent.name for path in intersections(str(folders))] == ["0", "1"]
    task = make("traffic_eco", network=str(folders), **SMALL)
    assert {float(m["world_vehicles"][0, 0]) > 0.0 for m in driven(task, steps=5)} == {True}
    file = make("traffic_eco", network=str(folders / "0" / "net.net.xml"), **SMALL)
    same(driven(file, steps=3), driven(file, steps=3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1000\n", "inflows.txt has 1 lines, .* has 4 arms: A, B, C, D"),
        ("a\nb\nc\nd", "inflows.txt is no list of numbers"),
        ("-1\n2\n3\n4", "inflows.txt: inflows must be finite, at least 0"),
        ("nan\n2\n3\n4", "inflows.txt: inflows must be finite, at least 0"),
        (None, "inflows.txt cannot be read: No such file"),
    ],
)
def test_bad_inflows_are_refused_by_name(folders: Path, text: str | None, said: str):
    file = folders / "0" / "inflows.txt"
    file.unlink() if text is None else file.write_text(text)
    task = make("traffic_eco", network=str(folders / "0"), **SMALL)
    with closing(task.open(6, 0)) as env, pytest.raises(WorldError, match=said):
        env.reset(range(6), [0] * 6)


def test_what_is_no_network_is_refused(tmp_path: Path):
    with pytest.raises(NetworkError, match="network .*nowhere: there is no such file or folder"):
        intersections(str(tmp_path / "nowhere"))
    with pytest.raises(NetworkError, match=r"neither it nor a folder in it has a net\.net\.xml"):
        intersections(str(tmp_path))
    with names_from("p.onnx"), pytest.raises(StrangerError, match="p.onnx names the network"):
        intersections(str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"family": "flat"}, "family 'flat' is not one of mixed"),
        ({"emissions": "moves"}, "emissions 'moves' is not one of hbefa4"),
        ({"penetration": 2.0}, "penetration must be between 0 and 1"),
        ({"inflow": -1.0}, "inflow must be between 0 and 1800"),
        ({"standing": -1.0}, "standing must be between 0 and 1000"),
        ({"places": 0}, "places must be between 1 and 200"),
    ],
)
def test_impossible_settings_are_refused(setting, said):
    with pytest.raises(ValueError, match=said):
        make("traffic_eco", **setting)


def test_without_sumo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sim2metal\[traffic\]'") as missing:
        make("traffic_eco").open(24, 0)
    assert missing.value.name == "libsumo"


def test_phemlight_drives_too():
    task = make("traffic_eco", **{**SMALL, "emissions": "phemlight5"})
    hbefa = driven(make("traffic_eco", **SMALL), steps=3)
    phemlight = driven(task, steps=3)
    assert all((a["world_emission"] != b["world_emission"]).any() for a, b in zip(hbefa, phemlight, strict=True))

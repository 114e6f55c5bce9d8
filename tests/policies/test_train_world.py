"""Learned worlds: what they predict, where they end, what they refuse, and learning inside one."""

import dataclasses
import json
import os
import pickle
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from deploy import cli
from deploy.policy_file import PolicyFile
from policies import collect, train_in_world, train_world
from policies.algorithms import algorithm_class
from policies.algorithms.bc import BaseConfig
from policies.collect import demonstrate, stored
from policies.learning.base import Origin
from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.learning.demonstrations import folders
from policies.learning.world import Moments
from policies.learning.world.self_imitation import SelfImitation, SelfImitationConfig
from policies.models.export import export
from policies.train_success import NoThresholdError, Peaks
from policies.train_world import Config, train
from sim.engines.learned import LearnedWorld, WorldFileError, differences
from sim.env import Step, make_env
from sim.spec import Signal, size
from sim.tasks import make
from tests.policies import resumed
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

TOY = "tests.policies.toy_reach:ToyReach"
TOLD = ToyReach.policy


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Episodes with and without success, that go on after it."""
    folder = str(tmp_path_factory.mktemp("world") / "data")
    for episodes, corruption in ((30, 0.5), (70, 1.5)):
        made = collect.Config(task=TOY, out=folder, episodes=episodes, corruption=corruption, linger=5)
        collect.collect(ToyReach(), made)
    return folder


@pytest.fixture(scope="module")
def path(data):
    out = f"{data}.npz"
    certain = {"frames": 1, "false_share": 0.02, "recognised": 1.0}
    train(Config(task=TOY, data=data, out=out, hidden=64, updates=1500, success_updates=1500, **certain))
    return out


def learned(path, **settings):
    return make(f"learned/{TOY}", world=path, **{"steps": 24, "anywhere": 0.0} | settings)


def test_what_changes_and_what_success_is_are_right_on_held_out_episodes(path):
    world = LearnedWorld.load(path, TOLD, 2)
    loop, success = world.report["open_loop_m"], world.report["success"]
    assert loop["1"]["off"] < 0.1 * loop["1"]["moved"] and loop["5"]["off"] < 0.1 * loop["5"]["moved"]
    assert success["precision"] > 0.8 and success["recall"] > 0.5 and success["frame_auroc"] > 0.98
    rng = np.random.default_rng(1)
    state = rng.uniform(-0.8, 0.8, (200, 4)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (200, 2)).astype(np.float32)
    after, _ = world.after(state, np.zeros_like(state), action, rng.integers(5, size=200))
    assert np.abs(after[:, :2] - state[:, :2] - 0.1 * action).mean() < 0.01
    assert np.abs(after[:, 2:] - state[:, 2:]).max() < 1e-3  # a goal stays
    near = state.copy()
    near[:, :2] = near[:, 2:] + 0.03
    assert (world.believed(near) > world.bar).mean() > 0.8 and (world.believed(state) > world.bar).mean() < 0.1


def test_where_nothing_was_recorded_members_disagree_and_the_episode_is_lost(path):
    task = learned(path)
    world, n = task.world, 100
    rng = np.random.default_rng(0)
    known = world.moments[rng.integers(len(world.moments), size=n)]
    action = rng.uniform(-1.0, 1.0, (n, 2)).astype(np.float32)
    far = known + np.float32(4.0)
    member = np.zeros(n, np.int64)
    near, beyond = (world.after(one, np.zeros_like(one), action, member)[1] for one in (known, far))
    assert (near > world.cut).mean() < 0.05 and (beyond > world.cut).mean() > 0.3 and beyond.mean() > 3.0 * near.mean()
    for penalty in (True, False):
        env = learned(path, penalty=penalty).open(1, 0)
        env.reset([0], [0])
        env._state[:] = far[beyond.argmax()]
        ends = env.step({"velocity": action[beyond.argmax(), None]})
        assert env._apart[0] > world.cut and ends.terminated[0] == penalty and not ends.success[0]


def reached(task, n=60):
    """The expert inside: what looked like success (steps, n), what was success (steps, n), and each row's member."""
    env, expert, looked, success = make_env(task, n, 3), ToyReach(), [], []
    env.reset(range(n), range(n))
    for _ in range(task.episode_steps):
        success.append(env.step({"velocity": expert.expert(env.observe())["velocity"]}).success)
        looked.append(task.world.believed(env._state) > task.world.bar)
    return np.stack(looked), np.stack(success), env._member


def test_success_has_to_last_and_a_majority_has_to_see_it(path):
    task = learned(path)
    task.world = dataclasses.replace(task.world, frames=3)
    looked, success, _ = reached(task)
    first = success.argmax(axis=0)[success.any(axis=0)]
    assert first.min() >= 2
    for row, step in zip(np.flatnonzero(success.any(axis=0)), first, strict=True):
        assert looked[step - 2 : step + 1, row].all()
    moves = task.world.moves
    drift = np.zeros_like(moves.biases[-1])
    drift[1:, :, :2] = 5.0  # all but the first are carried away
    biases = (*moves.biases[:-1], moves.biases[-1] + drift)
    apart = dataclasses.replace(task.world, moves=dataclasses.replace(moves, biases=biases), cut=np.inf)
    for agree, some in ((0.2, True), (0.6, False)):
        task = learned(path, agree=agree)
        task.world = apart
        _, success, member = reached(task)
        assert success[:, member == 0].any() == some
    with pytest.raises(ValueError, match="agree, a share of the members"):
        learned(path, agree=1.1)


def test_a_threshold_lets_through_as_few_wrong_ones_as_there_have_to_be():
    good, bad = [Peaks(0.0, 4.0), Peaks(1.0, 6.0)], [Peaks(9.0, -np.inf), *[Peaks(2.0, -np.inf)] * 7]
    bar, share = train_world.bar_of(good + bad, 0.0, 1.0)
    assert bar == 3.0 and share == pytest.approx(0.1)  # one of ten is wrong
    assert train_world.bar_of(good + bad[1:], 0.0, 1.0) == (3.0, 0.0)
    with pytest.raises(NoThresholdError):
        train_world.bar_of([*good, *bad[:1] * 8], 0.0, 1.0)


def test_what_a_world_calls_success_is_compared_with_what_it_never_saw(path, data, tmp_path):
    world = LearnedWorld.load(path, TOLD, 2)
    collect.collect(ToyReach(), collect.Config(task=TOY, out=str(tmp_path), episodes=30, linger=5, seed=9))
    told = train_world.verdicts(world, train_world.recorded(ToyReach(), [str(tmp_path)]))
    assert told["recognised"] > 20 and told["precision"] == told["recognised"] / (told["recognised"] + told["false"])
    nobody = train_world.verdicts(dataclasses.replace(world, bar=1e9), train_world.recorded(ToyReach(), [data], 5))
    assert nobody == {"recognised": 0, "false": 0, "precision": None}


def test_own_successes_are_cloned_and_learning_continues_exactly(tmp_path):
    shown = str(tmp_path)
    collect.collect(ToyReach(), collect.Config(task=TOY, out=shown, episodes=30, corruption=0.2, linger=5))
    base = Origin(horizon=2, hidden=[64], updates=400, demonstrations=shown)
    config = SelfImitationConfig(base, iterations=3, episodes=60, num_envs=30, updates=300, alike=2)

    def anew():
        return SelfImitation(ToyReach(), config, 0)

    rows, others = resumed.learned(anew(), anew)
    first = next(row for row in rows if "success" in row)
    assert rows[-1]["success"] > first["success"] + 0.1 and rows[-1]["progress"] == 1.0
    assert rows[-1]["env_steps"] > first["env_steps"] > 0.0 and rows[-1]["kept"] > first["kept"]
    for k in (1, 5, 10):
        continued = others[k]
        assert [*continued.learn()] == rows[k + 1 :]
        resumed.same(continued.state_dict(), others[-1].state_dict())
    for wrong in ({"iterations": 0}, {"added": -1.0}, {"shown": 1.0}, {"alike": 0}, {"num_envs": 75}, {"num_envs": 70}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SelfImitationConfig(**wrong)
    with pytest.raises(ValueError, match="own successes are kept as numbers"):
        SelfImitation(ToySight(), SelfImitationConfig(), 0)


def test_demonstrations_may_lie_in_several_folders(data, tmp_path):
    assert folders(data) == [data] and folders(f"{data},{tmp_path}") == [data, str(tmp_path)]
    odd = tmp_path / "a,b"
    odd.mkdir()
    assert folders(str(odd)) == [str(odd)]
    for wrong, why in ((f"{data},", "a comma without a folder"), (f"{data},{data}/", "names the same folder twice")):
        with pytest.raises(ValueError, match=why):
            folders(wrong)


def test_the_base_is_recorded_until_it_has_succeeded_often_enough(tmp_path, monkeypatch, data):
    asked = []

    def here(module, *words):
        asked.append(next(int(word[9:]) for word in words if word.startswith("episodes=")))

    found = stored(ToyReach(), data, 40)
    monkeypatch.setattr(train_in_world, "step", here)
    monkeypatch.setattr(train_in_world, "stored", lambda *_: found[: asked[-1]])
    many = sum(episode.succeeded for episode in found[:20])
    config = train_in_world.Config(task=TOY, demonstrations=data, out=str(tmp_path), episodes=10, most=35)
    told = train_in_world._measured(dataclasses.replace(config, successes=many), "base.onnx", 0)
    assert asked in ([10, 20], [10]) and told.successes >= many
    asked.clear()
    assert train_in_world._measured(dataclasses.replace(config, successes=99), "base.onnx", 0).episodes == 35
    assert asked == [10, 20, 30, 35]
    asked.clear()  # it was interrupted as it recorded on: it asks for the same numbers
    monkeypatch.setattr(train_in_world, "stored", lambda task, folder, count: found[: max(asked[-1], 25)][:count])
    assert train_in_world._measured(dataclasses.replace(config, successes=99), "base.onnx", 0).episodes == 35
    assert asked == [10, 20, 30, 35]
    asked.clear()
    train_in_world._measured(dataclasses.replace(config, successes=99), "other.onnx", 1)
    assert asked == [10]
    with pytest.raises(ValueError, match="most >= episodes"):
        dataclasses.replace(config, most=5)


def test_the_threshold_is_reported_and_what_is_missed_is_warned_of(path, monkeypatch, capsys):
    world = LearnedWorld.load(path, TOLD, 2)
    success = world.report["success"]
    assert success["false_share"] == 0.02 and 0 < success["standing_out"] <= success["successes"]
    assert f"{success['standing_out']} successes stand out from all others; 2.0 %" in train_world.text(world)
    monkeypatch.setattr(train_world, "train", lambda config: world)
    for recall, warned in ((0.4, True), (0.5, False)):
        success["recall"] = recall
        train_world.main([f"task={TOY}", "data=somewhere", "out=world.npz"])
        assert ("less than recognised=0.5 of the successes" in capsys.readouterr().out) == warned


@pytest.mark.parametrize(("precision", "warned"), [(None, True), (0.6, True), (0.95, False)])
def test_a_world_that_sees_successes_that_are_none_is_warned_of(path, monkeypatch, capsys, precision, warned):
    world = LearnedWorld.load(path, TOLD, 2)
    world.report["success"]["precision"] = precision
    monkeypatch.setattr(train_world, "train", lambda config: world)
    train_world.main([f"task={TOY}", "data=somewhere", "out=world.npz"])
    assert ("what it calls success is too often none" in capsys.readouterr().out) == warned


def test_an_episode_is_decided_by_its_number_and_begins_at_a_recorded_moment(path):
    task = learned(path, anywhere=0.5)
    one, other = task.open(2, 7), task.open(3, 7)
    one.reset([0, 1], [4, 5])
    other.reset([2, 0, 1], [4, 5, 6])
    command = np.float32([[0.5, -1.0], [0.2, 0.4]])
    for _ in range(5):
        one.step({"velocity": command})
        other.step({"velocity": np.stack([command[1], command[0], command[0]])})
    assert np.allclose(one._state, other._state[[2, 0]], atol=1e-5)
    begun = learned(path).open(40, 0)
    begun.reset(range(40), range(40))
    starts = task.world.moments[task.world.first]
    assert all((row == starts).all(axis=1).any() for row in begun._state)
    anywhere = learned(path, anywhere=1.0).open(40, 0)
    anywhere.reset(range(40), range(40))
    assert not all((row == starts).all(axis=1).any() for row in anywhere._state)
    assert anywhere.render(0, 40, 80).std() > 1.0


def test_the_expert_succeeds_inside_and_who_stands_still_does_not(path):
    task, expert = learned(path), ToyReach()
    won = {}
    for name in ("expert", "nobody"):
        env = make_env(task, 100, 3)
        env.reset(range(100), range(100))
        done = np.zeros(100, bool)
        for _ in range(task.episode_steps):
            command = expert.expert(env.observe())
            done |= env.step({"velocity": command["velocity"] * (name == "expert")}).success
        won[name] = done.mean()
    assert won["expert"] > 0.7 and won["nobody"] < 0.1, won


def test_any_learner_of_the_task_learns_inside(path, data):
    base = BaseConfig(horizon=2, hidden=[16], updates=20, episodes=10, demonstrations=data)
    cls = algorithm_class("dsrl")
    wanted = {"total_steps": 200, "warmup_episodes": 2, "batch_size": 16, "hidden": [16], "base": base}
    learner = cls(learned(path), cls.Config(**wanted), 0)
    steps = [metrics["env_steps"] for metrics in learner.learn()]
    assert steps[-1] >= 200
    assert learner.controller().task == TOY
    again = pickle.loads(pickle.dumps(learner.task))
    assert np.array_equal(again.world.moments, learner.task.world.moments) and again.episode_steps == 24


def test_to_be_lost_is_worth_no_more_than_never_to_succeed():
    class Lost(ToyReach):
        def open(self, num, seed):
            env = super().open(num, seed)
            env.step = lambda command: Step(np.zeros(1, np.float32), np.zeros(1, bool), np.ones(1, bool))
            return env

    rewards = ChunkRewards(0.0, -1.0, 0.9, 1)
    rollout = ChunkRollout(Lost(), 0, 1, 2, rewards)
    rollout.plan(0, np.zeros(1), np.zeros(4, np.float32))
    (lost,) = rollout.step()
    assert lost.reward == rewards.worst == pytest.approx(-10.0) and lost.discount == 0.0


def damaged(path, tmp_path, **changed):
    """A copy of the file with other arrays."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    out = tmp_path / f"{len([*tmp_path.iterdir()])}.npz"
    np.savez(out, allow_pickle=False, **{**arrays, **changed})
    return str(out)


def described(path, tmp_path, **changed):
    """A copy that says something else of itself."""
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes()) | changed
    return damaged(path, tmp_path, about=np.frombuffer(json.dumps(about).encode(), np.uint8))


def test_files_that_are_none_are_refused(path, tmp_path):
    short = tmp_path / "short.npz"
    with open(path, "rb") as file:
        short.write_bytes(file.read()[:2000])
    told = {"kind": "learned world", "version": 1, "task": "quad_hover", "report": {}}
    told |= {"names": ["position", "goal"], "bar": 0.0, "cut": 1.0}
    other = np.frombuffer(json.dumps(told).encode(), np.uint8)
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, about=np.array([{"a": 1}], object))
    for file, complaint in (
        (str(tmp_path / "none.npz"), "there is no such file; make it with: python -m policies.train_world"),
        (str(short), "not a learned world, or damaged"),
        (str(pickled), "not a learned world, or damaged"),
        (damaged(path, tmp_path, moments=np.full((5, 4), np.nan)), "damaged .*not finite"),
    ):
        with pytest.raises(WorldFileError, match=complaint):
            learned(file)
    for file, complaint in (
        (damaged(path, tmp_path, about=other), "it was learned of quad_hover, not of"),
        (damaged(path, tmp_path, **{"moves.w0": np.zeros((5, 3, 64), np.float32)}), "shapes do not fit"),
        (described(path, tmp_path, frames=0), "frames, bar and cut are 0"),
        (described(path, tmp_path, frames=float("inf")), "damaged .*infinity"),
        (described(path, tmp_path, bar=float("nan")), "frames, bar and cut are 1, nan"),
        (damaged(path, tmp_path, first=np.array([10**6])), "recorded moments do not fit"),
    ):
        with pytest.raises(WorldFileError, match=complaint):
            learned(file)
    with pytest.raises(ValueError, match=r"needs task.world=FILE.npz; make it with: python -m policies.train_world"):
        learned("")
    with pytest.raises(ValueError, match="steps >= 1"):
        learned(path, steps=0)


def test_what_cannot_be_learned_from(data, tmp_path):
    out = str(tmp_path / "w.npz")
    some = str(tmp_path / "some")
    collect.collect(ToyReach(), collect.Config(task=TOY, out=some, episodes=12, corruption=0.5))
    with pytest.raises(ValueError, match="episode shows success: it takes 2"):
        train(Config(task=TOY, data=some, out=out, updates=10))
    with pytest.raises(ValueError, match="3 episodes of two steps or more; it takes 4"):
        train(Config(task=TOY, data=data, out=out, episodes=3))
    with pytest.raises(ValueError, match="pictures or is told words"):
        train_world.train(Config(task="tests.policies.toy_sight:ToySight", data=data, out=out))
    assert ToySight.policy != TOLD
    (episode,) = demonstrate(ToyReach(), 1, 0)
    episode.signals["goal"][0, 0] = np.nan
    with pytest.raises(ValueError, match="episode 0 holds a value that is not finite"):
        Moments.of(episode, TOLD, ToyReach())
    assert len(stored(ToyReach(), data, 5)) == 5
    for wrong in ({"out": "w.onnx"}, {"folds": 1}, {"held_out": 1.0}, {"updates": 0}, {"recognised": 0.0}):
        with pytest.raises(ValueError):
            Config(**{"task": TOY, "data": data, "out": out} | wrong)


def test_positions_are_told_as_seen_from_one_another():
    at = (Signal("hand", (3,), "m", "world"), Signal("turn", (4,)), Signal("thing", (3,), "m", "world"))
    assert differences((*at, Signal("place", (2,), "m", "world"))) == [(7, 0, 3)]


INSIDE = "algorithm.iterations=1 algorithm.episodes=20 algorithm.num_envs=10 algorithm.updates=20 task.steps=24"
SMALL = [
    *("episodes=6", "successes=0", "linger=5", "cloning=algorithm.hidden=[16] algorithm.updates=30"),
    *(f"inside={INSIDE}", "world=updates=60 hidden=16 success_updates=300 false_share=0.2 frames=1 recognised=1"),
]


@pytest.mark.parametrize("task", [pytest.param("arm_reach", marks=pytest.mark.long), TOY])
def test_in_rounds_whoever_is_recorded_is_measured_and_the_best_is_kept(tmp_path, capfd, monkeypatch, path, task):
    demonstrations, out = tmp_path / "shown", tmp_path / "out"
    collect.main([f"task={task}", f"out={demonstrations}", "episodes=20", "corruption=0.5", "linger=5"])
    if task == TOY:  # who is trained takes a process each; here the second of three has learned
        cls = algorithm_class("diffusion")
        for name, updates in (("base", 1), ("inside", 400), ("again", 1)):
            config = cls.Config(horizon=2, hidden=[32], updates=updates, demonstrations=path[:-4])
            learner = cls(ToyReach(), config, len(name))
            list(learner.learn())
            export(learner.controller(), tmp_path / f"{name}.onnx")
        by_name = {"policies.collect": collect.main, "policies.train_world": train_world.main}

        def here(module, *words):
            if module != "policies.train":
                return by_name[module]([word for word in words if word])
            (folder,) = (Path(word[4:].strip("'")) for word in words if word.startswith("out="))
            folder.mkdir(parents=True)
            name = "again" if "round_2" in str(folder) else folder.name
            return shutil.copy(tmp_path / f"{name}.onnx", folder / "policy.onnx")

        monkeypatch.setattr(train_in_world, "step", here)
    said = [f"task={task}", f"demonstrations={demonstrations}", f"out={out}", *SMALL]
    train_in_world.main([*said, "rounds=1"])
    (first,) = json.loads((out / "rounds.json").read_text())
    worlds = {file: file.stat().st_mtime_ns for file in out.glob("round_*/world.npz")}
    train_in_world.main([*said, "rounds=2"])  # it goes on
    rows = json.loads((out / "rounds.json").read_text())
    assert rows[0] == first and [row["recorded"] for row in rows] == [6, 12]
    assert worlds and all(file.stat().st_mtime_ns == then for file, then in worlds.items())
    shares = [rows[0]["base"], *(row["after"] for row in rows)]
    assert task != TOY or shares[1] > max(shares[0], shares[2])
    files = [out / "base", out / "round_1" / "inside", out / "round_2" / "inside"]
    best = files[shares.index(max(shares))] / "policy.onnx"
    assert (out / "policy.onnx").read_bytes() == best.read_bytes()
    PolicyFile.load(out / "policy.onnx")
    told = capfd.readouterr().out
    assert f"policy: {out}/policy.onnx" in told and "95 % interval" in told
    made = make(task)
    world = LearnedWorld.load(out / "round_2" / "world.npz", (*made.policy, *made.privileged), size(made.commands))
    assert world.report["episodes"] == 32  # demonstrations, the base's and the first round's


def test_what_was_begun_otherwise_is_not_mixed_in_and_nothing_is_deleted(tmp_path, monkeypatch):
    told = []

    def trained(module, *words):
        told.append(words)
        (folder,) = (Path(word[4:].strip("'")) for word in words if word.startswith("out="))
        folder.mkdir(parents=True)
        (folder / "policy.onnx").touch()

    monkeypatch.setattr(train_in_world, "step", trained)
    own = tmp_path / "my runs" / "inside" / "thesis.txt"
    own.parent.mkdir(parents=True)
    own.touch()
    made = train_in_world._train(own.parent, "task=one")
    assert own.exists() and made == str(own.parent.with_name("inside_2") / "policy.onnx")
    assert told == [("task=one", "report=false", f"out='{tmp_path}/my runs/inside_2'")]
    assert train_in_world._train(own.parent, "task=one") == made and len(told) == 1
    config = train_in_world.Config(task=TOY, demonstrations="shown", out=str(tmp_path))
    train_in_world._check(config, tmp_path / "settings.json")
    train_in_world._check(dataclasses.replace(config, rounds=7), tmp_path / "settings.json")
    with pytest.raises(ValueError, match="was begun with seed=0: take another out, or that seed"):
        train_in_world._check(dataclasses.replace(config, seed=1), tmp_path / "settings.json")
    with pytest.raises(ValueError, match="a comma parts folders of data"):
        dataclasses.replace(config, demonstrations="a,b")


def test_an_interrupt_is_passed_on_and_waited_for(tmp_path, monkeypatch):
    program = tmp_path / "slow.py"
    program.write_text(
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path / 'saved')!r}, 'w').close(), sys.exit(143)))\n"
        f"open({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def tell():
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    with pytest.raises(KeyboardInterrupt):
        train_in_world.step("slow")
    assert (tmp_path / "saved").exists()


def test_a_step_that_fails_is_named(tmp_path, capfd):
    said = [f"task={TOY}", f"demonstrations={tmp_path / 'none'}", f"out={tmp_path / 'out'}"]
    assert cli.call(train_in_world.main, said) == 2
    told = capfd.readouterr().err
    assert "policies.train" in told and "exit status 1; the same command goes on from there" in told
    with pytest.raises(ValueError, match="rounds >= 1"):
        train_in_world.Config(task=TOY, demonstrations="a", out="b", rounds=0)

"""Collecting episodes: by an expert as bad as asked, by a policy file; continued, read back, refused by name."""

import dataclasses

import numpy as np
import pytest
import torch

from policies import collect
from policies.algorithms.bc import BaseConfig, Cloning
from policies.collect import Config, PolicyActor, demonstrate, episodes, stored, stream
from policies.datasets import Dataset, DatasetError
from policies.learning.demonstrations import demonstrations
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from sim.env import NoExpertError
from sim.language import instructions_of
from sim.tasks import make
from tests.policies.toy_reach import RATE, ToyReach

TOY = "tests.policies.toy_reach:ToyReach"


def rate(corruption, count=100):
    return np.mean([e.succeeded for e in demonstrate(ToyReach(), count, 0, corruption)])


def test_corruption_is_a_knob():
    perfect, mediocre, bad = rate(0.0), rate(1.0), rate(3.0)
    assert perfect == 1.0 and 0.05 < bad < mediocre - 0.1 < 0.8


def test_an_episode_does_not_depend_on_its_neighbours():
    ten = {e.number: e for e in demonstrate(ToyReach(), 10, 3, 1.0)}
    four = {e.number: e for e in demonstrate(ToyReach(), 10, 3, 1.0, first=6)}
    assert sorted(ten) == list(range(10)) and sorted(four) == [6, 7, 8, 9]
    for number, episode in four.items():
        assert np.array_equal(episode.commands["velocity"], ten[number].commands["velocity"])
        assert np.array_equal(episode.signals["position"], ten[number].signals["position"])
    assert not np.array_equal(ten[0].signals["goal"][0], next(demonstrate(ToyReach(), 1, 4)).signals["goal"][0])


def test_episodes_end_with_success_or_time():
    for episode in demonstrate(ToyReach(), 30, 1, 2.0):
        assert not episode.success[:-1].any()
        assert episode.success[-1] or len(episode.reward) == 24 or np.abs(episode.signals["position"]).max() > 1.5


def test_a_dataset_is_continued_and_read_back(tmp_path):
    task = ToyReach()
    config = Config(task=TOY, out=str(tmp_path / "data"), episodes=6, corruption=1.0)
    assert collect.collect(task, config)[0] == 6
    assert collect.collect(task, dataclasses.replace(config, episodes=10))[0] == 10
    assert collect.collect(task, config)[0] == 10  # nothing to do
    made = sorted(demonstrate(task, 10, 0, 1.0), key=lambda e: e.number)
    read = stored(task, config.out, 10)
    assert len(Dataset(config.out)) == 10 and Dataset(config.out).fps == RATE
    for a, b in zip(made, read, strict=True):
        assert a.succeeded == b.succeeded and np.array_equal(a.reward, b.reward)
        for name in ("position", "goal"):
            assert np.array_equal(a.signals[name], b.signals[name])
        assert np.array_equal(a.commands["velocity"], b.commands["velocity"])
    whole = demonstrations(task, BaseConfig(demonstrations=config.out, episodes=10), 0)
    assert np.array_equal(whole.chunk, demonstrations(task, BaseConfig(episodes=10), 0).chunk)


def test_a_policy_file_collects(tmp_path):
    task, config = ToyReach(), BaseConfig(horizon=2, hidden=[16], updates=150)
    cloning = Cloning(task, config, torch.Generator().manual_seed(0))
    list(cloning.learn(demonstrations(task, BaseConfig(horizon=2, episodes=40, corruption=0.0), 0)))
    file = export(ChunkPolicy.from_task(task, cloning.denoiser(), NoiseTable.none(4), 2), tmp_path / "policy.onnx")
    flown = {e.number: e for e in episodes(task, PolicyActor(file, 3), 7, stream(0, 1), num=3)}
    alone = {e.number: e for e in episodes(task, PolicyActor(file, 1), 7, stream(0, 1), num=1)}
    for number, episode in flown.items():  # each begins with a fresh state, whoever flies beside it
        assert np.allclose(episode.commands["velocity"], alone[number].commands["velocity"], atol=1e-5)
    collect.main([f"task={TOY}", f"out={tmp_path / 'data'}", f"policy={tmp_path / 'policy.onnx'}", "episodes=3"])
    assert len(Dataset(tmp_path / "data")) == 3


@pytest.mark.parametrize("flaw", ["rate", "shape", "names", "missing"])
def test_other_data_is_refused(tmp_path, flaw):
    collect.collect(ToyReach(), Config(task=TOY, out=str(tmp_path), episodes=2))
    task = ToyReach()
    signal = task.policy[0]
    if flaw == "rate":
        task.rate_hz = 25.0
    elif flaw == "shape":
        task.policy = (dataclasses.replace(signal, shape=(3,)), task.policy[1])
    elif flaw == "names":
        task.policy = (dataclasses.replace(signal, name="place"), task.policy[1])
    folder = tmp_path / "elsewhere" if flaw == "missing" else tmp_path
    with pytest.raises(
        DatasetError, match={"rate": "25 Hz", "shape": "shape", "names": "place", "missing": "elsewhere"}[flaw]
    ):
        stored(task, str(folder), 2)


def test_the_pid_shows_how_to_hover(tmp_path):
    with pytest.raises(NoExpertError, match="quad_any has no expert for the robot 'any': its vehicles all differ"):
        collect.main(["task=quad_any", f"out={tmp_path / 'any'}"])
    task = make("quad_hover")
    shown = list(collect.demonstrate(task, 3, seed=0))
    assert [e.succeeded for e in shown] == [True] * 3 and len(shown[0].reward) == task.episode_steps
    assert set(shown[0].signals) == {s.name for s in (*task.policy, *task.privileged)}


def test_bad_arguments_are_explained(tmp_path):
    with pytest.raises(ValueError, match="needs episodes >= 1"):
        collect.main([f"task={TOY}", f"out={tmp_path / 'x'}", "episodes=0"])
    assert not (tmp_path / "x").exists()


def test_a_dataset_says_in_words_what_was_to_be_done(tmp_path):
    task = make("metaworld/drawer-close-v3")
    whole = Config(task=task.name, out=str(tmp_path / "whole"), episodes=3, words=True)
    collect.collect(task, whole)
    parts = dataclasses.replace(whole, out=str(tmp_path / "parts"))
    for count in (2, 3):
        collect.collect(task, dataclasses.replace(parts, episodes=count))
    said = Dataset(whole.out).episode_tasks
    assert said == Dataset(parts.out).episode_tasks and len(set(said)) > 1
    assert {*said} <= {*instructions_of(task.name).learned}
    index = Dataset(whole.out).columns("task_index")
    assert {Dataset(whole.out).tasks[k] for k in np.unique(index)} == {*said}
    assert len(stored(task, whole.out, 3)) == 3  # read like any other


def test_a_task_without_words_says_so_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="has no instructions in words; these have"):
        collect.main([f"task={TOY}", f"out={tmp_path / 'x'}", "words=true"])
    assert not (tmp_path / "x").exists()

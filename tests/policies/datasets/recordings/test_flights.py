"""A flight log of ours becomes a dataset, laid out as policies.collect does."""

import numpy as np
import pytest

from deploy import cli
from deploy.recording import flight_log
from policies.datasets.reader import Dataset
from policies.datasets.recordings import __main__ as command
from policies.datasets.recordings import flights
from tests.deploy.recording.test_flight_log import fly
from tests.deploy.sample_policy import exported, linear_hover


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("policy") / "p.onnx", linear_hover())


def test_what_was_seen_and_sent_is_in_the_dataset(policy, tmp_path, capsys):
    _, driver = fly(policy, tmp_path / "f.mcap", robots=2)
    words = [f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'data'}"]
    assert cli.call(command.main, words) == 0
    assert "2 episodes added, 2 there" in capsys.readouterr().out
    dataset, happened = Dataset(tmp_path / "data"), driver.flight()
    assert dataset.fps == 100 and dataset.lengths.tolist() == [100, 100]
    assert dataset.episode_tasks == [policy.task] * 2 and dataset.info["robot_type"] == "crazyflie"
    names = dataset.features["observation.state"].names
    for robot in range(2):
        frames = dataset.episode(robot)
        for s in policy.inputs:
            columns = [names.index(f"{s.name}.{k}") for k in range(s.size)]
            np.testing.assert_array_equal(frames["observation.state"][:, columns], happened[s.name][:, robot])
        np.testing.assert_array_equal(frames["action"], happened["motor_command"][:, robot])
    assert dataset.features["action"].names == tuple(f"motor_command.{k}" for k in range(4))


def test_where_something_is_not_finite_an_episode_ends(policy, tmp_path):
    fly(policy, tmp_path / "f.mcap", steps=30)
    flight = flight_log.read(str(tmp_path / "f.mcap"))
    flight.steps["signals.position"][10, 0, 1] = np.nan
    flight.steps["sent.motor_command"][12, 0, 0] = np.inf
    *found, short = flights.episodes(flight)
    assert [len(each["action"]) for each in found] == [10, 17] and short == 1


def test_what_is_no_log_is_one_sentence(tmp_path, capsys):
    (tmp_path / "f.mcap").write_bytes(b"nothing")
    assert cli.call(command.main, [f"log={tmp_path / 'f.mcap'}", f"out={tmp_path / 'data'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "needs bag=DIR map=FILE, or log=FILE"),
        (["bag=a"], "go together"),
        (["bag=a", "map=b", "fps=3"], "go with log=FILE"),
        (["log=a", "fps=-1"], "needs a rate in Hz"),
    ],
)
def test_arguments_that_make_no_sense(capsys, words, reason):
    assert cli.call(command.main, ["out=x", *words]) == 2
    assert reason in capsys.readouterr().err

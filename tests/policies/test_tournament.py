"""A league of policy files and scripted players: who beats whom, ratings, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import tournament
from policies.models.controller import FeaturePolicy, Mlp
from policies.models.export import export
from sim.spec import size
from sim.tasks import make


def named(name, task):
    return tournament.player(name, task)


@given(gaps=st.lists(st.floats(-300.0, 300.0), min_size=1, max_size=4))
def test_ratings_are_those_that_made_the_results(gaps):
    elo = np.array([*gaps, 0.0])
    expected = 1.0 / (1.0 + 10.0 ** ((elo[None] - elo[:, None]) / 400.0))
    won = 1e6 * expected * (1.0 - np.eye(len(elo)))
    np.testing.assert_allclose(tournament.ratings(won) - tournament.FIRST, elo, atol=0.5)


def test_nobody_is_infinitely_better():
    won = np.array([[0.0, 10.0], [0.0, 0.0]])
    assert 300.0 < tournament.ratings(won)[0] - 1000.0 < 700.0 and tournament.ratings(won)[1] == 1000.0


def test_sides_do_not_matter_but_who_plays():
    task = make("soccer_1v1", opponent="self", steps=300)
    chaser, still = named("chaser", task), named("still", task)
    first, second = tournament.match(task, (chaser, still), 30, 0), tournament.match(task, (still, chaser), 30, 0)
    assert first.mean() > 0.75 and second.mean() < 0.25
    assert set(np.concatenate([first, second])) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(first, tournament.match(task, (chaser, still), 30, 0))
    assert (tournament.match(task, (still, still), 4, 0) == 0.5).all()


def test_all_games_at_once_are_those_of_each_pair():
    task = tournament.with_both_sides(make("soccer_1v1", steps=120))
    assert task.agents == 2 and task.config.steps == 120
    players = [named(name, task) for name in ("chaser", "still", "slower")]
    won = tournament.contest(task, players, 8, 3)
    np.testing.assert_array_equal(won + won.T, 8.0 * (1.0 - np.eye(3)))
    np.testing.assert_array_equal(won, tournament.contest(task, players, 8, 3, together=5))
    first = tournament.match(task, (players[0], players[1]), 4, 3).sum()
    second = tournament.match(task, (players[1], players[0]), 4, 3).sum()
    assert won[0, 1] == first + 4 - second > 4.0


def test_files_play_whoever_sees_less(tmp_path, capsys):
    task, rng = make("soccer_1v1"), np.random.default_rng(0)
    weight = rng.normal(0.0, 0.5, (size(task.commands), size(task.policy)))
    file = export(FeaturePolicy.from_task(task, Mlp([(weight, np.zeros(3))])), tmp_path / "random.onnx").path
    out = tmp_path / "league.json"
    players = f"players={file},chaser,still"
    tournament.main([players, "task=soccer_vision_1v1", "perception=detector", "games=20", f"json={out}"])
    said, found = capsys.readouterr().out, json.loads(out.read_text())
    assert "random.onnx - chaser:" in said and "Elo" in said
    won = np.array(found["won"])
    np.testing.assert_allclose(won + won.T, 20.0 * (1.0 - np.eye(3)))
    assert found["elo"][1] > found["elo"][0] and found["elo"][2] == 1000.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["players=chaser"], "at least two play"),
        (["players=chaser,still", "games=5"], "games must be even"),
        (["players=chaser,nobody.onnx"], "there is no file 'nobody.onnx'"),
        (["players=chaser,still", "task=quad_hover"], "quad_hover has no opponents to learn against"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tournament.main(arguments)


def test_a_file_of_another_game_is_refused(tmp_path):
    task = make("soccer_2v2")
    network = Mlp([(np.zeros((3, size(task.policy))), np.zeros(3))])
    file = export(FeaturePolicy.from_task(task, network), tmp_path / "other.onnx").path
    with pytest.raises(ValueError, match="senses 'mates'"):
        tournament.main([f"players={file},chaser", "task=soccer_1v1"])

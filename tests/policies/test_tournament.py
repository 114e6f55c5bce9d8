"""A league of policy files and scripted players: who beats whom, ratings, and what is refused."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import cli
from policies import evaluate, tournament
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.spec import size, slices
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


class Elsewhere:
    """A cluster that is this process, where there is no such file."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def mapped(self, work, told):
        self.file.rename(self.file.with_suffix(".away"))
        return [work(*one) for one in told]


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


def test_files_play_whoever_sees_less_here_and_elsewhere(tmp_path, capsys, monkeypatch):
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
    monkeypatch.setattr(tournament, "entered", lambda cluster: nullcontext(Elsewhere(file)))
    words = [players, "task=soccer_vision_1v1", "perception=detector", "games=20"]
    tournament.main([*words, "cluster=ray", f"json={tmp_path}/there.json"])
    assert json.loads((tmp_path / "there.json").read_text()) == found and capsys.readouterr().out == said


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


def exported(folder, name="soccer_1v1", seed=0, network=None):
    task, rng = make(name), np.random.default_rng(seed)
    weight = rng.normal(0.0, 0.5, (size(task.commands), size(task.policy)))
    network = network or Mlp([(weight, np.zeros(len(weight)))])
    return export(FeaturePolicy.from_task(task, network), folder / f"{name}{seed}.onnx").path


def test_an_evaluation_takes_another_opponent(tmp_path, capsys):
    task, out, won = make("soccer_1v1"), tmp_path / "report.json", {}
    at, weight = slices(task.policy)["ball_position"].start, np.zeros((3, size(task.policy)))
    weight[0, at], weight[1, at + 1] = 1.0, 2.0  # drives at the ball, and kicks
    file = exported(tmp_path, network=Mlp([(weight, np.array([0.0, 0.0, 1.0]))]))
    for opponent in ("still", "chaser", file):
        evaluate.main([f"policy={file}", "episodes=20", f"opponent={opponent}", f"json={out}"])
        said, found = capsys.readouterr().out, json.loads(out.read_text())
        assert f"against {opponent}" in said and found["opponent"] == opponent
        won[opponent] = found["success"], found["score"]["duration"]["mean"]
    assert len(set(won.values())) == 3  # other games
    evaluate.main([f"policy={file}", "episodes=20", f"json={out}"])
    own = json.loads(out.read_text())
    assert (own["success"], own["score"]["duration"]["mean"]) == won["chaser"] and "opponent" not in own
    evaluate.main([f"policy={file}", "episodes=20", f"opponent={file}", "grid=true", f"json={out}"])
    found = json.loads(out.read_text())
    assert [row["condition"] for row in found["conditions"]][::4] == ["nominal", "everything"]
    assert found["opponent"] == file and found["conditions"][0]["lost"] in (0.0, None)


def test_an_opponent_that_remembers_forgets_with_its_game(tmp_path):
    task, rng = make("soccer_1v1"), np.random.default_rng(0)

    def drawn(*shape):
        return rng.normal(0.0, 0.5, shape)

    inside = (drawn(8, size(task.policy)), np.zeros(8)), drawn(12, 8), drawn(12, 4), np.zeros(12), np.zeros(12)
    file = exported(tmp_path, network=Gru(*inside, (drawn(size(task.commands), 4), np.zeros(size(task.commands)))))
    other = tournament.facing(task, file).opponent(3)
    seen = {s.name: np.repeat(drawn(1, *s.shape), 3, axis=0).astype(np.float32) for s in task.policy}
    nobody, first = np.zeros(3, bool), other.act(seen, np.arange(3), np.ones(3, bool))
    second = other.act(seen, np.arange(3), nobody)
    assert np.abs(second["turn"] - first["turn"]).max() > 1e-4  # it remembers
    kept = other.state_dict()
    third = other.act(seen, np.arange(3), np.array([False, True, False]))
    np.testing.assert_allclose(third["turn"][1], first["turn"][1], atol=1e-6)
    assert np.abs(third["turn"][0] - first["turn"][0]).max() > 1e-4
    other.load_state_dict(kept)
    again = other.act(seen, np.arange(3), np.array([False, True, False]))
    np.testing.assert_array_equal(again["turn"], third["turn"])


def test_opponents_that_cannot_play_are_refused(tmp_path, capsys):
    file = exported(tmp_path)
    for arguments, message in (
        ([f"policy={file}", "opponent=nobody"], "opponent 'nobody' is neither one of still, slow, slower, chaser nor"),
        ([f"policy={file}", f"opponent={tmp_path}/none.onnx"], "none.onnx"),
        (["policy=quad_any", "opponent=chaser"], "quad_any has no opponents to learn against"),
    ):
        assert cli.call(evaluate.main, [*arguments, "episodes=2"]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    with pytest.raises(ValueError, match="senses 'others' .*, which an opponent in soccer_2v2 lacks"):
        tournament.facing(make("soccer_2v2"), file)

"""Cloning of what is grounded: words and the localiser first, then the rest."""

import copy
import dataclasses

import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig, stages
from policies.algorithms.vla_rl import VlaRl, VlaRlConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.tasks import make
from sim.tasks.abilities import referents_of
from sim.tasks.arm.words import ToldTables
from tests.policies.language.spoken_words import encoder
from tests.policies.resumed import same


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make("arm_words", cameras=[], encoder=encoder(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def seen(task):
    """The same by one camera."""
    return make("arm_words", cameras=["front_camera"], encoder=str(task.encoder))


def cloning(task, head="tokens", **settings):
    network = TinyConfig(width=16, layers=1, heads=2, keypoints=4, parallel=True, sight=EncoderConfig(), **settings)
    quick = {"horizon": 5, "episodes": 2, "updates": 60, "batch_size": 16, "bins": 16}
    quick |= {"grounding": 20, "localisation": 20}
    return Vla(task, VlaConfig(**quick, head=head, network=network), 0)


@pytest.fixture(scope="module")
def shown(task):
    return cloning(task, offsets=4)._shown()


def learner(task, shown, monkeypatch, **settings):
    made = cloning(task, **{"offsets": 4} | settings)
    if made.config.head == "tokens":  # a flow learns other things
        monkeypatch.setattr(made, "_shown", lambda: shown)
    return made


@pytest.fixture(scope="module")
def looked_at(seen):
    """The same with pictures."""
    return cloning(seen, offsets=4)._shown()


def localising(seen, looked_at, monkeypatch, **settings):
    made = cloning(seen, **{"offsets": 4, "looks": False} | settings)
    monkeypatch.setattr(made, "_shown", lambda: looked_at)
    return made


@pytest.fixture(scope="module")
def saved(seen, looked_at):
    """Rows of a run that tells something within its stages, its states after each, who it was, and what makes more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "REPORT", 15)
        torch.manual_seed(7)  # nothing may depend on it
        whole, rows, states = localising(seen, looked_at, patch), [], []
        for row in whole.learn():
            rows.append(row)
            states.append(copy.deepcopy(whole.state_dict()))
        yield rows, states, whole, lambda: localising(seen, looked_at, patch)


@pytest.mark.parametrize("head", ["tokens", "flow"])
def test_words_learn_first_and_then_nothing_more(task, shown, monkeypatch, head):
    made = learner(task, shown, monkeypatch, head=head)
    before = copy.deepcopy(made.grounding.state_dict())
    learning = made.learn()
    assert next(learning)["grounding_loss"] > 0.0 == made.done
    grounding = copy.deepcopy(made.grounding.state_dict())
    assert not torch.equal(before["object_weight"], grounding["object_weight"])
    assert {row["grounding_loss"] for row in learning} == {made.stages[0].metrics()["grounding_loss"]}
    for policy in (made.policy, made.average):
        assert all(torch.equal(value, grounding[name]) for name, value in policy.grounding.state_dict().items())


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        (0, "words learn what they refer to"),
        (1, "the localiser learns"),
        (2, "the localiser learns"),
        (3, "the clone learns"),
        (4, "the clone learns"),
    ],
    ids=["words", "between", "localiser", "before", "clone"],
)
def test_who_is_killed_goes_on_exactly_where_he_was(saved, tmp_path, row, stage):
    rows, states, whole, anew = saved
    checkpoint.save(tmp_path / "checkpoint.npz", states[row])
    again = anew()
    again.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert again.stage() == stage and again.stages[1].done == [0, 0, 15, 20, 20][row]
    assert [*again.learn()] == rows[row + 1 :]
    same(whole.state_dict(), again.state_dict())


def test_what_learns_first_is_part_of_the_progress(saved):
    rows, *_ = saved
    progress, losses = ([row[name] for row in rows] for name in ("progress", "loss"))
    assert progress == pytest.approx([1.5 / 82, 2 / 82, 17 / 82, 22 / 82, 72 / 82, 1.0])  # 0.1 * 20 + 20 + 60 updates
    assert losses == [
        *(rows[k][name] for k, name in enumerate(["grounding_loss"] * 2 + ["localisation_loss"] * 2)),
        *losses[4:],
    ]
    assert {*rows[4]} >= {"grounding_loss", "localisation_error", "loss_floor"} and rows[3]["env_steps"] == 0.0


@pytest.mark.parametrize("looks", [True, False])
def test_the_localiser_learns_first_and_then_nothing_more(seen, looked_at, monkeypatch, looks):
    made = localising(seen, looked_at, monkeypatch, looks=looks)
    before = copy.deepcopy(made.grounding.localiser.state_dict())
    learning = made.learn()
    while not made.stages[1].over:
        next(learning)
    localiser = copy.deepcopy(made.grounding.localiser.state_dict())
    moved = {name for name, value in localiser.items() if not torch.equal(before[name], value)}
    assert moved == {*localiser} - {"mean", "deviation"}  # of one scene
    told = {row["localisation_error"] for row in learning}
    assert told == {made.stages[1].metrics()["localisation_error"]} and min(told) > 0.0
    assert looked_at[0].positions.shape == (len(looked_at[0].wanted), 3, 3)
    for policy in (made.policy, made.average):
        same(policy.grounding.localiser.state_dict(), localiser)


def test_the_localiser_learns_by_a_rate_of_its_own(seen, looked_at, monkeypatch):
    made = localising(seen, looked_at, monkeypatch)
    for stage, wanted in zip(made.stages, ("learning_rate", "localisation_learning_rate"), strict=True):
        assert stage.optimizer.defaults["lr"] == stage.rate == getattr(made.config, wanted)
    assert made.stages[0].rate != made.stages[1].rate


def test_an_uncertainty_without_a_localiser_is_refused(task, seen):
    for told, offsets in ((task, 4), (seen, 0)):
        with pytest.raises(ValueError, match="uncertainty=true is of a localiser.*offsets be over 0.*places true"):
            cloning(told, offsets=offsets, uncertainty=True)


def test_the_clone_is_shown_what_is_localised(seen, monkeypatch):
    made = cloning(seen, offsets=4, looks=False)
    told, sentences = made._shown()
    made.grounding.normalise(told.truth)
    told.positions = told.truth[:, :3] + 0.01
    drawn = made._drawn(told, sentences, torch.arange(16))
    usual = 5.0 * made.config.jitter * made.grounding.deviation[:3]
    assert ((drawn["positions"] - told.positions[:16]).abs() < usual).all()
    assert not any("camera" in name for name in drawn)
    torch.nn.init.normal_(made.policy.head.weight)
    elsewhere = {**drawn, "positions": drawn["positions"] + 0.1}
    assert made._loss(drawn) != made._loss(elsewhere)


def test_who_is_told_what_is_meant_is_not_grounded(task, tmp_path):
    told = make("arm_words", cameras=[], meaning=True, encoder=encoder(tmp_path))
    assert (
        referents_of(task) == (("cube_position",), ("object_position", "goal_position")) and not referents_of(told)[1]
    )
    assert cloning(told, offsets=4).grounding is None and cloning(task, offsets=0).grounding is None


def test_demonstrations_that_do_not_tell_it_are_named(task, monkeypatch):
    made = cloning(task, offsets=4)
    episodes, shown = made._demonstrations()
    signals = {name: value for name, value in episodes[1].signals.items() if name != "goal_position"}
    robots = dataclasses.replace(episodes[1], signals=signals)
    monkeypatch.setattr(made, "_demonstrations", lambda: ([episodes[0], robots], shown))
    with pytest.raises(LearningError, match="demonstration 1 does not tell goal_position.*network.offsets=0"):
        next(made.learn())


def test_what_practice_asks_for_is_what_the_table_wants(task, monkeypatch):
    two = make("arm_words", cameras=[], colours=["red", "green"], encoder=str(task.encoder))
    clone = dataclasses.replace(cloning(two, offsets=4).config, updates=1, grounding=1)
    config = VlaRlConfig(clone=clone, iterations=1, episodes=6, num_envs=6, critic_alone=0, critic_hidden=[8])
    made, begun = VlaRl(two, config, 0), []
    reset = ToldTables.reset

    def spied(env, rows, episodes):
        reset(env, rows, episodes)
        begun.extend(zip(episodes, env.wanted[[*rows]], strict=True))

    draw, drawn = made.curriculum.draw, []
    monkeypatch.setattr(made.curriculum, "draw", lambda total: drawn.extend(draw(total)) or drawn)
    made._prepare()  # its demonstrations are of another stream
    monkeypatch.setattr(ToldTables, "reset", spied)
    made.cloning.done = clone.updates
    (told,) = made.learn()
    assert told["env_steps"] >= 6 and told["disagreement"] < 1e-4
    assert begun == [(number, two.possible[thing]) for number, thing in drawn]
    assert sorted(thing for _, thing in drawn) == [*range(len(two.instructions))]


def test_bad_settings_are_named():
    for name in ("grounding", "localisation"):
        with pytest.raises(ValueError, match="grounding and localisation are at least 1"):
            VlaConfig(**{name: 0})

"""The arm told in words: every scene allows whatever is asked for, and the words alone say what it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from policies.collect import demonstrate
from sim import spec
from sim.language.folder import installed
from sim.language.relations import Thing, instructions
from sim.tasks import make
from sim.tasks.arm.words import APART, BESIDE, KNOWN
from tests.policies.language.spoken_words import encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder(tmp_path_factory.mktemp("words"))


def made(folder, **settings):
    return make("arm_words", **{"encoder": folder} | settings)


def begun(task, episodes, seed=0):
    env = task.open(len(episodes), seed)
    env.reset(range(len(episodes)), episodes)
    return env


def obeyed(task, episodes, seed=3):
    """Who succeeded of those who do what the words mean; without pictures."""
    env, done = begun(task, episodes, seed), np.zeros(len(episodes), bool)
    for _ in range(70):
        if done.all():
            break
        done |= env.step(task.expert(env._state())).success
    env.close()
    return done


def told(task, episodes, seed=0):
    """What was said, what was wanted, and what the words mean."""
    env = begun(task, episodes, seed)
    tokens = env._state()["instruction"]
    said = [" ".join(task.words.vocabulary[k] for k in row if k)[6:-6] for row in tokens]
    found = said, [task.things[k] for k in env.wanted], [task.things[k] for k in env.meant]
    env.close()
    return found


def spoken(sentences):
    return {" ".join(sentence.split()) for sentence in sentences}


@pytest.mark.parametrize("many", [30, pytest.param(200, marks=pytest.mark.long)])
def test_the_expert_does_what_is_said(folder, many):
    assert obeyed(made(folder), range(many)).mean() >= 0.95


@pytest.mark.parametrize(
    "settings",
    [
        {"colours": ["blue", "yellow"]},
        {"colours": ["yellow", "red", "green", "blue"]},
        {"combinations": "held_out"},
        {"control": "joint"},
    ],
    ids=str,
)
def test_the_expert_does_it_whatever_the_settings(folder, settings):
    assert obeyed(made(folder, **settings), range(12)).all()


@pytest.mark.parametrize("settings", [{}, {"combinations": "held_out"}], ids=str)
def test_who_obeys_the_wrong_sentence_fails(folder, settings):
    assert obeyed(made(folder, sentences="wrong", **settings), range(30)).sum() <= 1


def test_demonstrations_hold_what_was_seen_and_meant(folder):
    task = made(folder)
    try:
        shown = [*demonstrate(task, 2, 0)]
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
        return
    for episode in shown:
        assert episode.succeeded and (episode.signals["instruction"] == episode.signals["instruction"][0]).all()
        assert episode.signals["front_camera"].shape[1:] == episode.signals["side_camera"].shape[1:] == (64, 64, 3)
        score = task.score(episode.flight())
        assert set(score) == set(task.scores) and score["named_cube"] == 1.0
        meant = task.things[int(episode.signals["meant"][0].argmax())]
        other = next(k for k, thing in enumerate(task.things) if thing.moved != meant.moved)
        mistaken = {**episode.flight(), "meant": np.eye(len(task.things))[None, [other]]}
        assert task.score(mistaken)["named_cube"] == 0.0


def test_the_policy_is_not_told_where_things_are(folder):
    task = made(folder)
    assert [s.name for s in task.policy] == [
        "joint_position",
        "gripper_opening",
        "hand_position",
        "front_camera",
        "side_camera",
        "instruction",
    ]
    hidden = {"object_position", "goal_position", "cube_position", "meant"}
    assert hidden <= {s.name for s in task.privileged} and not hidden & {s.name for s in task.policy}


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"cameras": []}, {"cube_position"}),
        ({"cameras": [], "meaning": True}, {"cube_position", "object_position", "goal_position"}),
        ({"cameras": ["front_camera"], "meaning": True}, {"front_camera", "object_position", "goal_position"}),
    ],
)
def test_a_policy_may_be_told_what_it_cannot_see_to_find_out_what_it_cannot_do(folder, settings, shown):
    task, plain = made(folder, **settings), made(folder)
    seen, hidden = ({s.name for s in group} for group in (task.policy, task.privileged))
    assert seen - {s.name for s in plain.policy} == shown - {"front_camera"} and not seen & hidden
    assert {s.name for s in spec.pictures(task.policy)} == {*settings["cameras"]}
    assert hidden | seen >= {"object_position", "object_rotation", "goal_position", "cube_position", "meant"}
    assert obeyed(task, range(4)).all()
    env = begun(task, range(4))
    signals = env._state()
    for row, thing in enumerate(env.meant):
        cubes = signals["cube_position"][row].reshape(-1, 3)
        reference = cubes[task.config.colours.index(task.things[thing].reference)]
        np.testing.assert_allclose(
            signals["object_position"][row], cubes[task.config.colours.index(task.things[thing].moved)]
        )
        assert np.linalg.norm(signals["goal_position"][row] - reference) == pytest.approx(BESIDE, abs=1e-5)
    env.close()


@pytest.mark.parametrize("colours", [["red", "blue"], ["red", "green", "blue"], ["red", "green", "blue", "yellow"]])
def test_everything_that_can_be_asked_for_is_possible_and_nothing_is_done(folder, colours):
    task = made(folder, colours=colours)
    env = begun(task, range(20))
    poses = env.bench.block_poses
    assert poses.shape == (20, len(colours), 7)
    for a, b in itertools.combinations(range(len(colours)), 2):
        assert np.linalg.norm(poses[:, a, :2] - poses[:, b, :2], axis=1).min() > APART
    for number, thing in enumerate(task.things):
        meaning = task.meaning(poses, np.full(20, number))
        assert (task.distance(meaning) > task.close).all()
        goal, moved = meaning["goal_position"][:, None], colours.index(thing.moved)
        others = np.delete(poses[..., :3], moved, axis=1)
        assert np.linalg.norm(goal - others, axis=2).min() > 0.06  # a cube fits between
        assert (goal > (0.3, -0.3, 0.0)).all() and (goal < (0.7, 0.3, 0.1)).all()  # the hand gets there
    env.close()


def test_relations_are_those_of_who_looks_through_the_front_camera(folder):
    task = made(folder)
    poses = np.zeros((1, 3, 7))
    poses[..., 3] = 1.0
    where = {t: task.meaning(poses, np.array([k]))["goal_position"][0] for k, t in enumerate(task.things)}
    ahead, right = np.array([-1.0, 0.0]), np.array([0.0, 1.0])  # of the camera, along the table
    for relation, way in (("behind", ahead), ("front", -ahead), ("right", right), ("left", -right)):
        np.testing.assert_allclose(where[Thing("red", relation, "blue")][:2], BESIDE * way, atol=1e-6)


def test_the_picture_has_them_where_the_words_say(folder):
    env = begun(made(folder), [0])
    nominal = env.bench.block_poses.copy()
    try:
        for relation, axis, sign in (("left", 1, -1), ("right", 1, 1), ("front", 0, 1), ("behind", 0, -1)):
            nominal[0, :, :2] = (0.5, 0.0), (0.35, -0.25), (0.35, 0.25)  # red, and the others elsewhere
            nominal[0, 2, :3] = nominal[0, 0, :3]
            thing = Thing("red", relation, "blue")
            nominal[0, 0, :3] = env.task.meaning(nominal, np.array([env.task.things.index(thing)]))["goal_position"][0]
            env.bench._state[0, env.bench._block] = nominal.ravel()
            picture = env.bench.see(0, "front_camera", None, 64, 64).astype(int)
            red, blue = (np.argwhere(_is(picture, channel)).mean(0) for channel in (0, 2))
            assert sign * (red - blue)[axis] > 3.0, relation  # pixels; rows grow downwards, to the front
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
    env.close()


def _is(picture, channel):
    """Which pixels are mostly of this channel."""
    return picture[..., channel] > 2 * np.delete(picture, channel, axis=2).max(2)


@pytest.mark.parametrize("sentences", ["learned", "held_out"])
@pytest.mark.parametrize("combinations", ["learned", "held_out"])
def test_a_sentence_is_one_of_those_that_ask_for_what_is_wanted(folder, sentences, combinations):
    task = made(folder, sentences=sentences, combinations=combinations)
    asked = {told.task: spoken(getattr(told, sentences)) for told in task.instructions}
    said, wanted, meant = told(task, range(60))
    assert wanted == meant and len({*wanted}) > 5
    assert all(sentence in asked[" ".join(thing)] for sentence, thing in zip(said, wanted, strict=True))
    assert all(thing.unseen == (combinations == "held_out") for thing in wanted)
    known = [task.instructions[task.asked(number, 0)].task for number in range(60)]  # without a scene
    assert known == [" ".join(thing) for thing in wanted]


@pytest.mark.parametrize("combinations", ["learned", "held_out"])
@pytest.mark.parametrize("colours", [["green", "yellow"], ["red", "green", "blue"]])
def test_a_wrong_sentence_asks_for_something_else(folder, colours, combinations):
    task = made(folder, sentences="wrong", colours=colours, combinations=combinations)
    for sentence, wanted, meant in zip(*told(task, range(40)), strict=True):
        assert sentence in spoken(instructions(meant).held_out) and meant not in (wanted, wanted.converse)
        assert wanted.unseen == (combinations == "held_out") and not meant.unseen


def test_seed_and_episode_decide_about_everything(folder):
    task = made(folder)
    for one, other in zip(told(task, [4, 6]), told(task, [6, 4]), strict=True):
        assert one == other[::-1]
    assert told(task, range(8))[0] != told(task, range(8), seed=1)[0]
    first, again, other = (begun(task, [5], seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.bench.block_poses, again.bench.block_poses)
    assert not np.array_equal(first.bench.block_poses, other.bench.block_poses)
    for env in (first, again):
        for _ in range(20):
            env.step(task.expert(env._state()))
    np.testing.assert_array_equal(first.bench.block_poses, again.bench.block_poses)
    for env in (first, again, other):
        env.close()


def test_a_robust_episode_keeps_its_colours(folder):
    task = made(folder, robust=True)
    env = begun(task, range(2))
    nominal, (first, second) = env.bench._nominal, env.bench._models
    for name in ("block", "block1", "block2"):
        assert (first.geom(name).rgba == nominal.geom(name).rgba).all()
        assert first.geom(name).size[0] != second.geom(name).size[0]
    env.close()


def test_a_cube_in_the_air_and_one_that_is_off_the_table_count(folder):
    task = made(folder)
    env = begun(task, range(3))
    thing = task.things[env.wanted[0]]
    moved, goal = task.config.colours.index(thing.moved), env._judged()["goal_position"]
    still = {"hand_velocity": np.zeros((3, 3)), "gripper_target": np.full((3, 1), 0.08)}
    cubes = env.bench._state[:, env.bench._block].reshape(3, 3, 7)
    cubes[0, moved, :3] = goal[0] + (0.01, -0.01, 0.0)
    cubes[1, task.config.colours.index(task.things[env.wanted[1]].moved), :3] = goal[1] + (0.0, 0.0, 0.05)
    cubes[2, 2, 0] = 0.95  # whichever it is
    env.bench._state[:, env.bench._block] = cubes.reshape(3, -1)
    outcome = env.step(still)
    assert outcome.success.tolist() == [True, False, False]
    assert outcome.terminated.tolist() == [False, False, True]
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"colours": ["red"]}, "at least two, got red"),
        ({"colours": ["red", "red"]}, "different ones"),
        ({"colours": []}, "got none"),
        ({"colours": ["red", "mauve"]}, "colour 'mauve' is not one of red, green, blue, yellow"),
        ({"sentences": "shouted"}, "is not one of learned, held_out, wrong"),
        ({"combinations": "wrong"}, "combinations 'wrong' is not one of learned, held_out"),
        ({"cameras": ["side_camera"] * 2}, "cameras are different ones, got side_camera, side_camera"),
        ({"cameras": ["eye"]}, "camera 'eye' is not one of wrist_camera"),
        ({"encoder": "/nowhere"}, "no folder of a sentence encoder"),
        ({"steps": 0}, "between 1 and 1000"),
    ],
)
def test_bad_settings_are_named(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        made(folder, **settings)


@pytest.mark.skipif(installed() is not None, reason="the extra [vla] is installed")
def test_without_an_encoder_it_can_be_described_but_not_opened():
    task = make("arm_words")
    assert task.policy[-1].high == KNOWN - 1
    with pytest.raises(ValueError, match=r"install the extra \[vla\]"):
        task.open(1, 0)

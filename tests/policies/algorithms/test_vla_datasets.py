"""Cloning of what a dataset shows and its episodes' texts say."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from policies import collect
from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.datasets import Dataset, Writer
from policies.datasets.images import to_png
from policies.learning.demonstrations import Demonstrations, demonstrated
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from sim.tasks import make
from tests.policies.language.spoken_words import encoder

TASKS = ["drawer-close-v3", "window-close-v3"]
FRONT = collect.PICTURES + "front_camera"
SIGHT = EncoderConfig(channels=[8, 8], strides=[4, 2])
CONFIG = VlaConfig(
    episodes=2, updates=5, batch_size=8, bins=16, network=TinyConfig(width=32, keypoints=8, parallel=True, sight=SIGHT)
)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make("metaworld/words", tasks=TASKS, encoder=encoder(tmp_path_factory.mktemp("words")), steps=120)


@pytest.fixture(scope="module")
def ours(task, tmp_path_factory):
    """As our command writes them."""
    folder = tmp_path_factory.mktemp("ours") / "data"
    collect.collect(task, collect.Config(task=task.name, out=str(folder), episodes=2))
    return folder


def copied(folder, out, texts, change=lambda frames: frames, features=None):
    """As others write them: no checksums, nothing privileged, their own words."""
    read = Dataset(folder)
    kept = {n: f for n, f in read.features.items() if n not in (collect.PRIVILEGED, collect.REWARD, collect.SUCCESS)}
    kept |= features or {}
    with Writer(out, round(read.fps), kept) as writer:
        for number, text in enumerate(texts):
            episode = read.episode(number)
            writer.add_episode(change({name: episode[name] for name in kept}), text)
    for path in out.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    return out


def cloning(task, folder):
    return Vla(task, dataclasses.replace(CONFIG, demonstrations=str(folder)), 0)


def test_a_dataset_of_the_expert_is_as_good_as_the_expert(task, ours):
    shown = [demonstrated(task, config, 0) for config in (cloning(task, ours).config, CONFIG)]
    for stored, made in zip(*shown, strict=True):
        assert stored.signals.keys() == made.signals.keys()
        for name, value in stored.signals.items():
            assert np.array_equal(value, made.signals[name]) and value.dtype == made.signals[name].dtype
    for text, thing in zip(Dataset(ours).episode_tasks, task.instructions, strict=True):
        assert text in {" ".join(sentence.split()) for sentence in thing.learned}


def test_words_of_others_stand_for_themselves(task, ours, tmp_path):
    said = ["close the drawer", "Shut it, please"]  # one is the task's own
    made = cloning(task, copied(ours, tmp_path / "theirs", said))
    told, sentences = made._shown()
    assert told.asked.unique().tolist() == [0, len(TASKS)]
    own = [len(thing.learned) for thing in task.instructions]
    assert sentences.first.diff().tolist() == [*own, 1]
    words, there = made.encoder.states(said[1:], 24)
    assert (sentences.words[-1] == words[0]).all() and (sentences.there[-1] == there[0]).all()
    losses = [metrics["loss"] for metrics in made.learn()]
    assert made.done == CONFIG.updates and np.isfinite(losses).all()


def test_words_of_others_are_things_to_choose_among(task, ours, tmp_path):
    folder = copied(ours, tmp_path / "theirs", ["close the drawer", "Shut it, please"])
    network = dataclasses.replace(CONFIG.network, choice=True)
    config = dataclasses.replace(CONFIG, demonstrations=str(folder), network=network, grounding=2)
    made = Vla(task, config, 0)
    assert made.policy.meaning.kept == len(TASKS) + 1  # nobody shows the task's second thing
    told, _ = made._shown()
    assert told.truth.unique().tolist() == [0, len(TASKS)]
    assert np.isfinite([metrics["loss"] for metrics in made.learn()]).all()
    assert Vla(task, dataclasses.replace(config, demonstrations=""), 0).policy.meaning.kept == len(TASKS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "has no text that says what was asked for"),
        ("?!", "unknown word: '[?]'"),
        ("metaworld/drawer-close-v3", "tells the name of a task, metaworld/drawer-close-v3, and no sentence"),
        ("metaworld/words", "tells the name of a task"),
        ("\u95a2 \u6570", "unknown word: '\u95a2'"),
        ("close the drawer " * 8, "takes 26 tokens, and 24 are the most"),
    ],
)
def test_what_cannot_be_told_is_named_with_its_episode(task, ours, tmp_path, text, message):
    folder = copied(ours, tmp_path / "theirs", ["close the drawer", text])
    with pytest.raises(LearningError, match=f"theirs: episode 1.*{message}.*record it again with policies.collect"):
        next(cloning(task, folder).learn())


def test_other_pictures_are_named_with_what_records_the_right_ones(task, ours, tmp_path):
    small = {FRONT: dataclasses.replace(Dataset(ours).features[FRONT], shape=(32, 32, 3))}
    folder = copied(ours, tmp_path / "small", ["close the drawer"], lambda f: f | {FRONT: f[FRONT][:, ::2, ::2]}, small)
    with pytest.raises(
        LearningError, match=r"front_camera' has shape \(32, 32, 3\), but \(64, 64, 3\) is needed: polic"
    ):
        next(cloning(task, folder).learn())
    blind = make("metaworld/drawer-close-v3", steps=120)
    collect.collect(blind, collect.Config(blind.name, str(tmp_path / "blind"), episodes=1, words=True))
    with pytest.raises(LearningError, match=r"blind.* is needed: policies.collect task=metaworld/words records what"):
        next(cloning(task, tmp_path / "blind").learn())


def test_a_picture_of_another_size_is_named_with_its_episode(task, ours, tmp_path):
    folder = copied(ours, tmp_path / "theirs", ["close the drawer"] * 2)
    (path,) = [p for p in folder.glob("data/*/*.parquet") if p.name == "file-001.parquet"]
    table = pq.read_table(path)
    row = {"bytes": to_png(np.zeros((32, 32, 3), np.uint8)), "path": "frame-000000.png"}
    column = [row, *table[FRONT].to_pylist()[1:]]
    where = table.column_names.index(FRONT)
    pq.write_table(table.set_column(where, FRONT, pa.array(column, table.schema.field(FRONT).type)), path)
    with pytest.raises(LearningError, match=r"front_camera' in episode 1: pictures have shape \(32, 32, 3\), not \(64"):
        next(cloning(task, folder).learn())


def test_fast_tokens_are_fitted_to_what_is_shown_and_learned(task, ours):
    network = dataclasses.replace(CONFIG.network, parallel=False)
    config = dataclasses.replace(
        CONFIG, demonstrations=str(ours), tokens="fast", parts=5, vocabulary=80, updates=100, network=network
    )
    made = Vla(task, config, 0)
    shown = Demonstrations.of(demonstrated(task, config, 0), task, config.horizon)
    tokens = made.head.tokens.encode(shown.chunk)  # every action is said: five of four numbers
    longest = int((tokens != made.head.tokens.end).sum(axis=1).max())
    assert made.head.tokens.vocabulary <= 80 and made.head.tokens.length == min(longest + 1, 20)
    assert np.abs(made.head.tokens.decode(tokens)[0] - shown.chunk).max() < 0.12
    told = [*made.learn()]
    first, last = (metrics["loss"] for metrics in told)
    assert 0.0 == told[0]["loss_floor"] < last < first - 1.0 and first < made.head.tokens.length * np.log(80.0)
    again = Vla(task, config, 0)  # who goes on fits the same tokens to the same demonstrations
    again.load_state_dict(made.state_dict())
    assert again.head.tokens == made.head.tokens and again.done == 100
    signals = demonstrated(task, config, 0)[0].signals
    controller = again.controller()
    _, state = controller.act({name: signals[name][:8] for name in signals}, controller.initial_state(8))
    assert state["chunk"].shape == (8, 20) and (state["entropy"] > 0.0).all()

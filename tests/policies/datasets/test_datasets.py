"""Datasets of demonstrations: what is written comes back, LeRobot's are read, what is wrong is named."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from policies.datasets import Dataset, DatasetError, Feature, Writer, images
from policies.datasets import __main__ as command
from policies.datasets.check import problems
from tests.policies.demonstrations import ALL, SCENE, STATE, assert_episode, episode, write

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden/lerobot_v3"  # written by lerobot 0.4.4: write_lerobot_v3.py
FEATURES = st.builds(
    Feature,
    st.sampled_from(["float32", "float64", "int8", "int64", "uint8", "bool"]),
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=3),
)


@st.composite
def recordings(draw):
    names = st.text("abc.äß", min_size=1, max_size=4)
    features = draw(st.dictionaries(names, FEATURES, min_size=1, max_size=3))

    def frames(steps):
        finite = {"min_value": -(2.0**120), "max_value": 2.0**120}  # whose squares are finite
        arrays = {n: (f.numpy, (steps, *f.shape)) for n, f in features.items()}
        return {n: draw(hnp.arrays(d, s, elements=finite if d.kind == "f" else None)) for n, (d, s) in arrays.items()}

    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    tasks = [draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=70)) for _ in steps]
    return features, [frames(n) for n in steps], tasks


@settings(max_examples=20)
@given(recordings(), st.booleans())
def test_every_recording_comes_back(tmp_path_factory, recording, reopen):
    features, episodes, tasks = recording
    folder = tmp_path_factory.mktemp("dataset")
    writer = Writer(folder, 7, features)
    for frames, task in zip(episodes, tasks, strict=True):
        writer.add_episode(frames, task)
        if reopen:
            writer.close()
            writer = Writer(folder, 7, features)
    writer.close()
    dataset = Dataset(folder)
    assert dataset.features == features and dataset.fps == 7 and dataset.episode_tasks == tasks
    assert dataset.tasks == list(dict.fromkeys(tasks))
    for index, frames in enumerate(episodes):
        assert_episode(dataset, index, frames)
    for name in features:
        np.testing.assert_array_equal(dataset.columns(name), np.concatenate([frames[name] for frames in episodes]))
    assert not list(problems(dataset))


def test_pictures_and_films_come_back(tmp_path):
    dataset = Dataset(write(tmp_path / "d", features=ALL))
    for seed, steps in enumerate((4, 1, 3)):
        assert_episode(dataset, seed, episode(seed, steps, ALL))
    assert not list(problems(dataset))
    assert dataset.columns("observation.images.wrist").shape == (8, 16, 24, 3)
    np.testing.assert_allclose(dataset.columns("timestamp")[:, 0], [0, 0.1, 0.2, 0.3, 0, 0, 0.1, 0.2], atol=1e-7)
    np.testing.assert_array_equal(dataset.columns("index")[:, 0], np.arange(8))
    np.testing.assert_array_equal(dataset.columns("task_index")[:, 0], [0] * 4 + [1] + [0] * 3)


def test_a_rounded_time_finds_its_picture(tmp_path):
    shown = (np.arange(12, dtype=np.uint8) * 20)[:, None, None, None] + np.zeros((1, 16, 16, 3), np.uint8)
    images.write_film(tmp_path / "film.mp4", shown, 30)
    for k in (0, 1, 6, 11):
        for error in (-2e-6, 0.0, 2e-6):
            found = images.read_film(tmp_path / "film.mp4", k / 30 + error, min(2, 12 - k), 30, (16, 16, 3))
            assert np.abs(found.astype(int) - shown[k : k + 2]).max() <= 3
    with pytest.raises(DatasetError, match="2 pictures of shape .* but 3 needed"):
        images.read_film(tmp_path / "film.mp4", 10 / 30, 3, 30, (16, 16, 3))


def test_statistics_are_those_of_all_frames(tmp_path):
    dataset = Dataset(write(tmp_path / "d", lengths=(50, 1, 30, 20), features=STATE | SCENE))
    for name, axes, scale in (("observation.state", 0, 1.0), ("observation.images.scene", (0, 1, 2), 255.0)):
        values, found = dataset.columns(name) / scale, dataset.stats[name]
        for key, expected in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
            np.testing.assert_allclose(found[key].reshape(3), expected(values, axis=axes), rtol=1e-6)
        assert found["count"] == 101
    one = Dataset(write(tmp_path / "one", lengths=(200,), features=STATE | SCENE))
    for key, share in (("q01", 0.01), ("q50", 0.5), ("q90", 0.9)):
        expected = np.quantile(one.columns("action"), share, axis=0)
        np.testing.assert_allclose(one.stats["action"][key], expected, rtol=1e-6)
        expected = np.quantile(one.columns("observation.images.scene") / 255.0, share, axis=(0, 1, 2), method="higher")
        np.testing.assert_allclose(one.stats["observation.images.scene"][key].reshape(3), expected, atol=1.1 / 255)
    stored = json.loads((dataset.folder / "meta/stats.json").read_text())
    assert stored["action"]["mean"] == dataset.stats["action"]["mean"].tolist()


def test_a_dataset_of_lerobot_is_read():
    dataset = Dataset(GOLDEN)
    assert dataset.lengths.tolist() == [5, 3] and dataset.tasks == ["push the block", "lift the block"]
    for k, steps in enumerate((5, 3)):
        t, found = np.arange(steps), dataset.episode(k)
        assert found.task == dataset.tasks[k]
        np.testing.assert_array_equal(found["observation.state"], np.stack([t, t * 0 + k, t * k + 0.5], axis=1))
        np.testing.assert_array_equal(found["observation.grid"][:, 0], np.stack([t, t * 0 + 1], axis=1))
        np.testing.assert_array_equal(found["next.success"][:, 0], t == 4)
        scene = np.stack([20 * t, t * 0 + 100 * k, t * 0 + 128], axis=1)
        np.testing.assert_array_equal(found["observation.images.scene"][:, 3, 5], scene)
        np.testing.assert_allclose(found["observation.images.wrist"].mean(axis=(1, 2, 3)), 40 * t + 20 * k + 20, atol=2)
    assert not list(problems(dataset)) and not dataset.checksums


def test_statistics_agree_with_those_of_lerobot(tmp_path):
    """Its own of all episodes from its own of each; and ours of each with its: all but the quantiles of few values."""
    theirs = Dataset(GOLDEN)
    stored = json.loads((GOLDEN / "meta/stats.json").read_text())
    for name, each in theirs.stats.items():
        for key, value in each.items():
            np.testing.assert_allclose(value, np.array(stored[name][key], float), rtol=1e-6, atol=1e-9)
    with Writer(tmp_path / "d", 10, theirs.features) as writer:
        for k in range(2):
            writer.add_episode(theirs.episode(k), theirs.episode_tasks[k])
    ours = Dataset(tmp_path / "d")
    assert ours.rows.select(theirs.rows.column_names).schema.equals(theirs.rows.schema)
    for name, each in ours.stats.items():
        for key in ("min", "max", "mean", "count", *(() if ".images." in name else ("std",))):
            atol = 0.02 if theirs.features.get(name, Feature("", ())).dtype == "video" else 1e-6  # coded twice
            np.testing.assert_allclose(each[key], theirs.stats[name][key], rtol=1e-6, atol=atol)


def test_a_dataset_of_lerobot_is_continued(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "d")
    features = Dataset(GOLDEN).features
    frames = episode(2, 4, features)
    with Writer(tmp_path / "d", 10, features) as writer:
        assert writer.add_episode(frames, "lift the block") == 2
    dataset = Dataset(tmp_path / "d")
    assert dataset.episode_tasks == ["push the block", "lift the block", "lift the block"]
    assert_episode(dataset, 2, frames)
    assert_episode(dataset, 1, dict(Dataset(GOLDEN).episode(1)))
    assert not list(problems(dataset))


def test_rows_are_spread_over_files(tmp_path, monkeypatch):
    monkeypatch.setattr("policies.datasets.writer.ROWS", 3)
    monkeypatch.setattr("policies.datasets.layout.CHUNK", 2)
    write(tmp_path / "d", lengths=(1, 2, 3, 4))
    first = tmp_path / "d/meta/episodes/chunk-000/file-000.parquet"
    before = first.stat().st_mtime_ns
    write(tmp_path / "d", lengths=(5, 1, 1))
    assert first.stat().st_mtime_ns == before
    dataset = Dataset(tmp_path / "d")
    assert dataset.lengths.tolist() == [1, 2, 3, 4, 5, 1, 1] and len(dataset.rows_files) == 3
    assert not list(problems(dataset))
    assert dataset.data_paths[5] == "data/chunk-002/file-001.parquet"
    (tmp_path / "d/meta/episodes/chunk-001/file-000.parquet").unlink()
    with pytest.raises(DatasetError, match="rows of 1 episodes are missing"):
        Dataset(tmp_path / "d")
    first.unlink()
    with pytest.raises(DatasetError, match="lacks rows"):
        Dataset(tmp_path / "d")


def altered(**changes):
    return {**episode(0, 4), **changes}


NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0.0)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (altered(**{"observation.state": NAN}), "'observation.state' is not a finite number in frame 2"),
        (altered(**{"observation.state": np.full((4, 3), 1e300)}), "not a finite number in frame 0"),
        (altered(**{"observation.state": np.zeros((4, 2))}), r"must be \(steps, 3\), got \(4, 2\)"),
        (altered(**{"next.success": np.zeros(4, bool)}), r"must be \(steps, 1\), got \(4,\)"),
        (altered(**{"next.success": np.zeros((4, 1))}), "must be bool, got float64"),
        (altered(action=np.zeros((3, 2))), "the same number of frames"),
        ({name: value[:0] for name, value in episode(0, 4).items()}, "one or more"),
        (altered(speed=np.zeros((4, 1))), "'speed' is no feature; features: observation.state"),
        ({"action": np.zeros((4, 2))}, "is missing"),
    ],
)
def test_bad_frames_are_refused(tmp_path, frames, message):
    with Writer(tmp_path, 10, STATE) as writer:
        with pytest.raises(DatasetError, match=message):
            writer.add_episode(frames, "task")
        with pytest.raises(DatasetError, match="task"):
            writer.add_episode(episode(0, 4), "")
        writer.add_episode(episode(0, 4), "task")
    assert_episode(Dataset(tmp_path), 0, episode(0, 4))
    with pytest.raises(DatasetError, match="closed"):
        writer.add_episode(episode(0, 4), "task")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "at least one"),
        ({"a/b": Feature("float32", (1,))}, "no '/'"),
        ({"timestamp": Feature("float32", (1,))}, "none of timestamp"),
        ({"a": Feature("float16", (1,))}, "'float16' is not one of float32"),
        ({"a": Feature("float32", ())}, r"a scalar has shape \(1,\)"),
        ({"a": Feature("image", (4, 4))}, "height, width, 3"),
        ({"a": Feature("video", (15, 16, 3))}, "even height and width"),
    ],
)
def test_features_that_cannot_be_written(tmp_path, features, message):
    with pytest.raises(DatasetError, match=message):
        Writer(tmp_path / "d", 10, features)
    assert not (tmp_path / "d").exists()


def test_writers_that_do_not_fit(tmp_path):
    write(tmp_path / "d")
    with pytest.raises(DatasetError, match="fps 10, not 20"):
        Writer(tmp_path / "d", 20, STATE)
    with pytest.raises(DatasetError, match="'action'"):
        Writer(tmp_path / "d", 10, STATE | {"action": Feature("float32", (4,))})
    with pytest.raises(DatasetError, match="observation.images.scene"):
        Writer(tmp_path / "d", 10, STATE | SCENE)
    with pytest.raises(DatasetError, match="whole number"):
        Writer(tmp_path / "d", 0.5, STATE)
    with Writer(tmp_path / "d", 10, STATE), pytest.raises(DatasetError, match=rf"in use by process {os.getpid()} on "):
        Writer(tmp_path / "d", 10, STATE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").touch()
    with pytest.raises(DatasetError, match="holds 'thesis.tex'"):
        Writer(tmp_path / "other", 10, STATE)


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(DatasetError, match="is not a dataset"):
        Dataset(tmp_path / "nowhere")
    with Writer(tmp_path / "empty", 10, STATE):
        pass
    with pytest.raises(DatasetError, match="has no episodes"):
        Dataset(tmp_path / "empty")
    shutil.copytree(GOLDEN, tmp_path / "d")
    path = tmp_path / "d/meta/info.json"
    info = path.read_text()
    path.write_text(info.replace("v3.0", "v2.1"))
    with pytest.raises(DatasetError, match="v2.1.*convert"):
        Dataset(tmp_path / "d")
    path.write_text(info[:-3])
    with pytest.raises(DatasetError, match="info.json is damaged"):
        Dataset(tmp_path / "d")
    path.write_text(info.replace('"total_frames": 8', '"total_frames": 9'))
    assert any("does not count 2 episodes, 8 frames" in problem for problem in problems(Dataset(tmp_path / "d")))
    path.write_text(info)
    rows = tmp_path / "d/meta/episodes/chunk-000/file-000.parquet"
    rows.write_bytes(rows.read_bytes()[:-100])  # as a killed lerobot leaves it
    with pytest.raises(DatasetError, match="damaged or cut short"):
        Dataset(tmp_path / "d")


def test_what_others_write_wrongly_is_named(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "d")
    path = tmp_path / "d/data/chunk-000/file-000.parquet"
    table = pq.read_table(path)

    def reading(name, column):
        pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
        return Dataset(tmp_path / "d")

    states = table["observation.state"].to_pylist()
    states[6][1] = float("nan")
    dataset = reading("observation.state", pa.array(states, pa.list_(pa.float32(), 3)))
    assert dataset.episode(0)["observation.state"].shape == (5, 3)
    with pytest.raises(DatasetError, match="'observation.state' is not a finite number in frame 1 of episode 1"):
        dataset.episode(1)["observation.state"]
    dataset = reading("action", pa.array([[0.0]] * 8))
    with pytest.raises(DatasetError, match=r"'action' in episode 0: 5 numbers for 5 frames of shape \(2,\)"):
        dataset.columns("action")
    dataset = reading("index", pa.array(range(3, 11)))
    with pytest.raises(DatasetError, match="does not have the frames of episode 0"):
        dataset.columns("action")
    pq.write_table(table.drop_columns("action"), path)
    with pytest.raises(DatasetError, match="has no column 'action'"):
        Dataset(tmp_path / "d").columns("action")
    shutil.rmtree(tmp_path / "d/videos")
    with pytest.raises(DatasetError, match=r"file-000.mp4 is missing; it holds episodes 0 to 1"):
        Dataset(tmp_path / "d").episode(1)["observation.images.wrist"]


def test_what_is_required(tmp_path):
    dataset = Dataset(GOLDEN)
    dataset.require(["action", "observation.images.wrist"], fps=10)
    dataset.require({"action": (2,)})
    with pytest.raises(DatasetError, match="recorded at 10 Hz, but 50 Hz"):
        dataset.require(fps=50)
    with pytest.raises(DatasetError, match="no camera 'observation.images.top'; there are"):
        dataset.require(["observation.images.top"])
    with pytest.raises(DatasetError, match=r"'action' has shape \(2,\), but \(4,\)"):
        dataset.require({"action": (4,)})
    with pytest.raises(KeyError, match="no feature 'x'"):
        dataset.read("x", 0)
    with pytest.raises(IndexError):
        dataset.episode(2)


def test_the_command(tmp_path, capsys):
    folder = f"folder={write(tmp_path / 'd', features=ALL)}"
    film, recording = tmp_path / "film.mp4", tmp_path / "episode.rrd"
    command.main([folder, "check=true", "episode=2", f"video={film}", f"rerun={recording}"])
    told = capsys.readouterr().out
    assert "3 episodes of toy" in told and "everything is whole" in told and "every file" in told
    assert film.stat().st_size > 500 and recording.stat().st_size > 500
    with pytest.raises(ValueError, match="episode=3"):
        command.main([folder, "episode=3"])
    with pytest.raises(ValueError, match="ends in .mp4"):
        command.main([folder, "video=film.avi"])
    (tmp_path / "d/data/chunk-000/file-000.parquet").write_bytes(b"")
    with pytest.raises(DatasetError, match="1 problem"):
        command.main([folder, "check=true"])
    with pytest.raises(DatasetError, match="no cameras"):
        command.main([f"folder={write(tmp_path / 'e')}", f"video={film}"])

"""Datasets of strangers: no path leads out of the folder, no number of theirs takes more memory than the files have."""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy import cli
from policies.datasets import Dataset, DatasetError, Writer, bounds, footer, minari
from policies.datasets.__main__ import main
from policies.datasets.features import Feature
from policies.datasets.images import from_png, read_film, to_png, write_film
from policies.datasets.layout import to_parquet

GOLDEN = Path(__file__).resolve().parents[3] / "tests/golden"
INFO, ROWS, DATA = "meta/info.json", "meta/episodes/chunk-000/file-000.parquet", "data/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """As others write them: without checksums."""
    folder = tmp_path_factory.mktemp("theirs") / "dataset"
    with Writer(folder, 20, {"state": Feature("float32", (3,)), "film": Feature("video", (4, 6, 3))}) as writer:
        writer.add_episode({"state": np.ones((5, 3), "f4"), "film": np.zeros((5, 4, 6, 3), np.uint8)}, "a task")
    for path in folder.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    return folder


@pytest.fixture
def copied(theirs, tmp_path):
    shutil.copytree(theirs, tmp_path / "dataset")
    return tmp_path / "dataset"


def change_info(folder, **changed):
    (folder / INFO).write_text(json.dumps(json.loads((folder / INFO).read_text()) | changed))


def change_rows(folder, name, value):
    table = pq.read_table(folder / ROWS)
    column = pa.array([value])
    pq.write_table(table.set_column(table.column_names.index(name), name, column), folder / ROWS)


def one_line(folder, capsys, *words):
    assert cli.call(main, [f"folder={folder}", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and error[:-1].isprintable()
    return error


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("../outside.parquet", "lies outside of the folder"),
        ("/etc/passwd", "lies outside of the folder"),
        ("/dev/zero", "lies outside of the folder"),
        ("data/../../outside.parquet", "lies outside of the folder"),
        ("{chunk_index.__class__.__mro__}", "more than the fields"),
        ("{chunk_index:999999999d}", "more than the fields"),
        ("{chunk_index!r:>99}", "more than the fields"),
        ("{chunk_index:{file_index}d}", "more than the fields"),
        ("{0}", "more than the fields"),
        ("{secret}", "names 'secret'"),
        ("{episode_index:3d}\x00", "cannot be the name of a file"),
        ("x" * 600, "is no pattern of a path"),
        (["data"], "is no pattern of a path"),
        (None, "is no pattern of a path"),
        ("data", "is no file"),
        ("a/{chunk_index:03d}\x1b[2J", "is missing"),
    ],
)
def test_paths_stay_inside_and_formats_are_plain(copied, capsys, pattern, reason):
    (copied.parent / "outside.parquet").write_bytes((copied / DATA).read_bytes())
    change_info(copied, data_path=pattern)
    assert reason in one_line(copied, capsys, "check=true") or reason == "is missing"
    change_info(copied, data_path=json.loads((copied / INFO).read_text())["data_path"], video_path=pattern)
    one_line(copied, capsys, "check=true")


def test_links_do_not_lead_out_either(copied, tmp_path, capsys):
    shutil.copy(copied / DATA, tmp_path / "outside.parquet")
    (copied / DATA).unlink()
    (copied / DATA).symlink_to(tmp_path / "outside.parquet")
    assert "lies outside of the folder" in one_line(copied, capsys)
    (copied / DATA).unlink()
    (copied / DATA).symlink_to("/dev/zero")
    assert "lies outside of the folder" in one_line(copied, capsys)
    (copied / DATA).unlink()
    (copied / DATA).symlink_to(copied / "data" / "moved.parquet")  # inside it may
    shutil.copy(tmp_path / "outside.parquet", copied / "data" / "moved.parquet")
    assert Dataset(copied).episode(0)["state"].shape == (5, 3)
    os.mkfifo(copied / "meta" / "pipe")
    (copied / "meta" / "tasks.parquet").unlink()
    (copied / "meta" / "tasks.parquet").symlink_to(copied / "meta" / "pipe")
    assert cli.call(main, [f"folder={copied}", "check=true"]) == 2
    assert "is no file" in capsys.readouterr().out
    shutil.rmtree(copied / "data")
    (tmp_path / "elsewhere").mkdir()
    (copied / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="data is a link out of the dataset"):
        Writer(copied, 20, {"state": Feature("float32", (3,))})


def test_a_cache_of_downloads_links_to_its_blobs(copied, tmp_path):
    cache = tmp_path / "cache"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    shutil.move(copied, cache / "snapshots" / "abc")
    data = cache / "snapshots" / "abc" / DATA
    shutil.move(data, cache / "blobs" / "123")
    data.symlink_to("../../../../blobs/123")
    assert Dataset(cache / "snapshots" / "abc").episode(0)["state"].shape == (5, 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"features": []},
        {"features": {}},
        {"features": {"x": 1}},
        {"features": {"x": {"dtype": "float32", "shape": [2**40]}}},
        {"features": {"x": {"dtype": "float32", "shape": [10**300, 10**300]}}},
        {"features": {"x": {"dtype": "float32", "shape": [-1]}}},
        {"features": {"x": {"dtype": "float32", "shape": [1] * 40}}},
        {"features": {"x": {"dtype": "video", "shape": [3]}}},
        {"features": {"x": {"dtype": "object\x1b[2J", "shape": [1]}}},
        {"fps": 0},
        {"fps": "20"},
        {"fps": 1e300},
        {"fps": True},
        {"total_episodes": "many"},
        {"codebase_version": 3},
        {"codebase_version": "v2\x1b[2J"},
    ],
)
def test_what_a_dataset_says_of_itself_is_one_line_at_worst(copied, capsys, changed):
    change_info(copied, **changed)
    one_line(copied, capsys)


def test_a_column_of_other_numbers_than_it_says(copied, capsys):
    table = pq.read_table(copied / DATA)
    index = table.column_names.index("frame_index")
    pq.write_table(table.set_column(index, "frame_index", pa.array([0.0, 1.5, float("nan"), 3.0, 4.0])), copied / DATA)
    with pytest.raises(DatasetError, match="'frame_index' in episode 0: numbers that do not fit into int64"):
        Dataset(copied).read("frame_index", 0)


def test_a_description_that_is_none(copied, capsys):
    for text in ("[]", "[" * 100_000, "", "\xff", '{"codebase_version": "v3.0"}', " " * (bounds.LARGEST_TEXT + 1)):
        (copied / INFO).write_text(text)
        one_line(copied, capsys)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length", 2**40),
        ("length", 2**62),
        ("length", 6),
        ("length", -1),
        ("length", 5.5),
        ("length", None),
        ("length", "five"),
        ("dataset_from_index", 2**40),
        ("dataset_from_index", None),
        ("data/chunk_index", -1),
        ("data/file_index", 2**60),
        ("tasks", 7),
        ("tasks", [None, "\x1b[2J"]),
        ("episode_index", "0"),
        ("videos/film/from_timestamp", None),
        ("videos/film/from_timestamp", float("nan")),
        ("videos/film/from_timestamp", 1e300),
    ],
)
def test_numbers_of_episodes_are_those_of_the_files(copied, capsys, name, value):
    change_rows(copied, name, value)
    if name == "tasks" and isinstance(value, list):
        cli.call(main, [f"folder={copied}"])
        shown = capsys.readouterr().out
        assert r"None; \x1b[2J" in shown and "\x1b" not in shown
        return
    one_line(copied, capsys, "check=true")


def packed(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False, **options)
    return sink.getvalue().to_pybytes()


def test_a_small_file_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(bounds, "VALUES", 10**6)
    content = packed(pa.table({"x": np.zeros(10**6 + 1, np.int8)}))
    assert len(content) < 1 << 16
    with pytest.raises(ValueError, match="at most 1000000 and 1073741824 are read"):
        bounds.table(content)
    monkeypatch.setattr(bounds, "LARGEST", 1 << 20)
    with pytest.raises(ValueError, match="at most 1000000 and 1048576 are read"):
        bounds.table(packed(pa.table({"x": np.zeros(10**6, np.float32)}), compression="zstd", use_dictionary=False))
    monkeypatch.setattr(bounds, "LARGEST", 1 << 30)
    monkeypatch.setattr(bounds, "TEXT", 1 << 20)
    monkeypatch.setattr(bounds, "TEXTS", 1 << 24)
    text = pa.DictionaryArray.from_arrays([0] * 4000, ["a" * 10**6])  # a megabyte in each of 4000 rows
    content = packed(pa.table({"x": text}))
    assert len(content) < 1 << 20
    with pytest.raises(ValueError, match="its texts have more than 16777216 bytes"):
        bounds.table(content)


def test_our_reader_of_footers_agrees_with_pyarrow(theirs):
    for path in theirs.rglob("*.parquet"):
        rows, held = footer.columns(path.read_bytes())
        found = pq.ParquetFile(path).metadata
        group = found.row_group(0)
        columns = [group.column(k) for k in range(found.num_columns)]
        assert rows == found.num_rows
        assert [(c.path, c.values) for c in held] == [(c.path_in_schema, c.num_values) for c in columns]
    content = to_parquet(pa.table({"a": [1], "b": ["x"]}))
    for cut in range(len(content)):
        with pytest.raises(ValueError, match="no Parquet file|damaged|longer|nested|of type|of more|empty"):
            footer.columns(content[:cut])


def test_a_picture_is_as_large_as_it_is_said_to_be(monkeypatch):
    small, large = np.zeros((4, 6, 3), np.uint8), np.zeros((3000, 3000, 3), np.uint8)
    assert from_png([to_png(small)], (4, 6, 3)).shape == (1, 4, 6, 3)
    with pytest.raises(DatasetError, match=r"pictures have shape \(3000, 3000, 3\), not \(4, 6, 3\)"):
        from_png([to_png(large)], (4, 6, 3))
    for bad in (b"", b"%PDF-1.4", b"%!PS-Adobe\nquit", None, to_png(small)[:40]):
        with pytest.raises(DatasetError, match="damaged"):
            from_png([bad], (4, 6, 3))


def test_a_film_is_an_mp4_and_as_large_as_it_is_said_to_be(tmp_path):
    write_film(tmp_path / "large.mp4", np.zeros((3, 400, 600, 3), np.uint8), 10)
    with pytest.raises(DatasetError, match="needed"):
        read_film(tmp_path / "large.mp4", 0.0, 3, 10, (4, 6, 3))
    with pytest.raises(DatasetError, match="too many to read"):
        read_film(tmp_path / "large.mp4", 0.0, 2**40, 10, (4, 6, 3))
    lists = {
        "concat": f"ffconcat version 1.0\nfile '{tmp_path}/large.mp4'\n",
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/large.mp4\n#EXT-X-ENDLIST\n",
    }
    for name, text in lists.items():
        (tmp_path / f"{name}.mp4").write_text(text)
        with pytest.raises(DatasetError, match="is damaged"):
            read_film(tmp_path / f"{name}.mp4", 0.0, 3, 10, (400, 600, 3))


@pytest.fixture
def hdf5(tmp_path):
    shutil.copytree(GOLDEN / "minari_hdf5", tmp_path / "source")
    return tmp_path / "source"


def convert(source, to):
    return minari.convert(str(source), str(to / "out"), 20)


@pytest.mark.parametrize(
    "attack", ["external link", "soft link", "external data", "virtual", "object", "huge", "loop", "gone"]
)
def test_hdf5_holds_its_own_data(hdf5, tmp_path, attack):
    with h5py.File(tmp_path / "outside.hdf5", "w") as outside:
        outside["rewards"] = np.zeros(3)
    with h5py.File(hdf5 / "data/main_data.hdf5", "r+") as file:
        group = file["episode_0"]
        if attack != "loop":
            del group["rewards"]
        if attack == "external link":
            group["rewards"] = h5py.ExternalLink(str(tmp_path / "outside.hdf5"), "/rewards")
        elif attack == "soft link":
            group["rewards"] = h5py.SoftLink("/episode_1/rewards")
        elif attack == "external data":
            group.create_dataset("rewards", (3,), "f4", external=[("/etc/passwd", 0, 12)])
        elif attack == "virtual":
            layout = h5py.VirtualLayout((3,), "f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "outside.hdf5"), "rewards", (3,))
            group.create_virtual_dataset("rewards", layout)
        elif attack == "object":
            group.create_dataset("rewards", (3,), h5py.string_dtype())
        elif attack == "huge":
            group.create_dataset("rewards", (2**40,), "f4", chunks=(1024,))
        elif attack == "loop":
            group["infos/again"] = group
    with pytest.raises(
        DatasetError, match="is a link|in another file|holds object|holds float32 of shape|too deeply|KeyError"
    ):
        convert(hdf5, tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"observation_space": "[" * 100_000},
        {"observation_space": '{"type": "Box", "dtype": "float32", "shape": [1099511627776]}'},
        {"observation_space": '{"type": "Box", "dtype": "O", "shape": [3]}'},
        {"observation_space": '{"type": "Box", "dtype": "f4,f4", "shape": ["3"]}'},
        {"observation_space": 3},
        {"total_episodes": "x"},
        {"total_episodes": 10**9},
        {"total_episodes": -1},
        {"data_format": ["hdf5"]},
        {"data_format": "arrow"},
    ],
)
def test_minari_s_description_is_one_sentence_at_worst(hdf5, tmp_path, changed):
    path = hdf5 / "data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(DatasetError) as caught:
        convert(hdf5, tmp_path)
    assert "\n" not in str(caught.value)

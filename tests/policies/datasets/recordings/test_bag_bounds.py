"""Bags of strangers that would compute or unpack without end are refused; packed ones of rosbag2's are read."""

import os
import shutil
import sqlite3
import struct

import apsw
import lz4.frame
import numpy as np
import pytest
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin, Writer, storage_mcap

from policies.datasets.features import DatasetError
from policies.datasets.recordings import bag_bounds, bags
from tests.policies.datasets.recordings.test_bags import STORE, command_of, now_of, written

TEXT = "fps: 20\ntask: x\nfeatures:\n  observation.x: {topic: /commands}\n  action: {topic: /commands}\n"


def commands(folder, mode=CompressionMode.NONE, storage=StoragePlugin.SQLITE3):
    writer = Writer(folder, version=9, storage_plugin=storage)
    if mode != CompressionMode.NONE:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connection = writer.add_connection("/commands", "std_msgs/msg/Float32MultiArray", typestore=STORE)
        for ms in range(0, 1000, 50):
            writer.write(connection, now_of(ms), STORE.serialize_cdr(command_of(ms), "std_msgs/msg/Float32MultiArray"))
    return folder


def read(tmp_path, folder):
    *found, _ = bags.episodes(str(folder), written(tmp_path / "map.yaml", TEXT))
    return found


@pytest.mark.parametrize(
    ("mode", "storage"),
    [
        (CompressionMode.NONE, StoragePlugin.SQLITE3),
        (CompressionMode.MESSAGE, StoragePlugin.SQLITE3),
        (CompressionMode.FILE, StoragePlugin.SQLITE3),
        (CompressionMode.MESSAGE, StoragePlugin.MCAP),
        (CompressionMode.STORAGE, StoragePlugin.MCAP),
    ],
)
def test_what_is_packed_is_read_as_before(tmp_path, mode, storage):
    (episode,) = read(tmp_path, commands(tmp_path / "bag", mode, storage))
    np.testing.assert_array_equal(episode.frames["observation.x"][:, 0], 50 * np.arange(len(episode.frames["action"])))


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW schema AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT count(*) AS schema_version FROM n",
        "CREATE TABLE messages (id INTEGER, topic_id INTEGER, timestamp INTEGER, data AS (zeroblob(900000000)))",
        "CREATE VIRTUAL TABLE messages USING fts5(id, topic_id, timestamp, data)",
        "CREATE TRIGGER t AFTER INSERT ON topics BEGIN SELECT 1; END",
    ],
)
def test_a_database_that_computes_is_refused(tmp_path, sql):
    folder = commands(tmp_path / "bag")
    (file,) = folder.glob("*.db3")
    with sqlite3.connect(file) as database:
        if "TABLE messages" in sql:
            database.execute("DROP TABLE messages")
        if "VIEW schema" in sql:
            database.execute("DROP TABLE schema")
        database.execute(sql)
    database.close()
    for path in (folder, file):
        with pytest.raises(DatasetError, match="its database computes what it holds"):
            read(tmp_path, path)


def compute(file, sql):
    """A view of a bag's database in words that only the SQLite of rosbags may know."""
    database = apsw.Connection(str(file))
    database.execute("DROP TABLE schema")
    database.execute(sql)
    database.close()


def test_a_packed_database_that_computes_is_refused(tmp_path):
    folder = commands(tmp_path / "bag", CompressionMode.FILE)
    (file,) = folder.glob("*.zstd")
    plain = tmp_path / "plain.db3"
    plain.write_bytes(bag_bounds.zstd().decompress(file.read_bytes()))
    compute(plain, "CREATE VIEW schema AS SELECT 4 AS schema_version")
    file.write_bytes(bag_bounds.zstd().compress(plain.read_bytes()))
    with pytest.raises(DatasetError, match="its database computes what it holds"):
        read(tmp_path, folder)


def test_a_database_that_only_a_newer_sqlite_understands_is_refused(tmp_path):
    folder = commands(tmp_path / "bag")
    (file,) = folder.glob("*.db3")
    compute(file, "CREATE VIEW schema AS SELECT 4 AS schema_version, group_concat(1 ORDER BY 1) AS all_of_them")
    with pytest.raises(DatasetError, match="its database (computes|is damaged)"):
        read(tmp_path, folder)


def test_a_view_that_calls_itself_a_table_is_refused(tmp_path):
    folder = commands(tmp_path / "bag")
    (file,) = folder.glob("*.db3")
    compute(file, "CREATE VIEW schema AS SELECT 4 AS schema_version")
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET type = 'table' WHERE name = 'schema'")
    database.close()
    with pytest.raises(DatasetError, match="its database (computes|is damaged)"):
        read(tmp_path, folder)


@pytest.mark.parametrize("sign", ["%2F", "?x=", "#"])
def test_a_name_that_sqlite_reads_as_another_is_refused(tmp_path, sign):
    """The file of that name is plain; what SQLite opens is not."""
    folder = commands(tmp_path / "bag")
    (file,) = folder.glob("*.db3")
    decoy = file.with_name(f"sub{sign}e.db3")
    shutil.copy(file, decoy)
    (folder / "sub").mkdir()
    compute(shutil.copy(file, folder / "sub/e.db3"), "CREATE VIEW schema AS SELECT 4 AS schema_version")
    said = folder / "metadata.yaml"
    said.write_text(said.read_text().replace("bag.db3", f"'{decoy.name}'"))
    for path in (folder, decoy):
        with pytest.raises(DatasetError, match=r"a database whose path has one of % \? # may be another"):
            read(tmp_path, path)


def test_what_a_bag_says_of_itself_is_bounded(tmp_path, monkeypatch):
    folder = commands(tmp_path / "bag")
    (file,) = folder.glob("*.db3")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DatasetError, match=r"bag.db3: there is no such file"):
        read(tmp_path, folder)
    monkeypatch.setattr(bag_bounds, "METADATA", 100)
    with pytest.raises(DatasetError, match="no rosbag2 says so much of itself"):
        read(tmp_path, folder)


def test_a_bag_of_mcap_may_be_called_as_it_likes(tmp_path):
    assert read(tmp_path, commands(tmp_path / "run#3 50%", storage=StoragePlugin.MCAP))


def test_a_message_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds, "LARGEST", 1 << 20)
    folder = commands(tmp_path / "bag", CompressionMode.MESSAGE)
    (file,) = folder.glob("*.db3")
    with sqlite3.connect(file) as database:
        database.execute("UPDATE messages SET data = ?", [bag_bounds.zstd().compress(bytes(1 << 21))])
    database.close()
    with pytest.raises(DatasetError, match="bag: a message of /commands unpacks to more than 1 MB"):
        read(tmp_path, folder)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds, "AT_LEAST", 1 << 20)
    folder = commands(tmp_path / "bag", CompressionMode.FILE)
    (file,) = folder.glob("*.zstd")
    file.write_bytes(bag_bounds.zstd().compress(bytes(1 << 24)))
    with pytest.raises(DatasetError, match="unpacks to more than 1 MB"):
        read(tmp_path, folder)


SKIPPED = struct.pack("<II", 0x184D2A50, 4) + b"none"  # a frame that holds nothing


def test_a_file_is_held_to_its_size_however_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds, "AT_LEAST", 1 << 20)
    folder = commands(tmp_path / "bag", CompressionMode.FILE)
    (file,) = folder.glob("*.zstd")
    whole = file.read_bytes()
    file.write_bytes(SKIPPED + whole)
    assert read(tmp_path, folder)
    file.write_bytes(SKIPPED + bag_bounds.zstd().compress(bytes(1 << 24)))
    with pytest.raises(DatasetError, match="unpacks to more than 1 MB"):
        read(tmp_path, folder)
    file.write_bytes(whole[:-3])
    with pytest.raises(DatasetError, match="is cut off"):
        read(tmp_path, folder)


@pytest.mark.parametrize("limit", ["WHOLE", "SPARE"])
def test_a_bag_fills_no_disk(tmp_path, monkeypatch, limit):
    """Of its own size it may be; all its files together are too large, or leave the disk too little."""
    folder = commands(tmp_path / "bag", CompressionMode.FILE)
    (file,) = folder.glob("*.zstd")
    size = len(bag_bounds.zstd().decompress(file.read_bytes()))
    shutil.copy(file, folder / "more.db3.zstd")
    said = folder / "metadata.yaml"
    said.write_text(said.read_text().replace("- bag.db3.zstd", "- bag.db3.zstd\n  - more.db3.zstd", 1))
    assert read(tmp_path, folder)
    free = bag_bounds.shutil.disk_usage(tmp_path)._replace(free=3 * size)
    monkeypatch.setattr(bag_bounds.shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(bag_bounds, "SPARE", 0)
    assert read(tmp_path, folder)
    monkeypatch.setattr(bag_bounds, limit, 3 * size // 2)
    with pytest.raises(DatasetError, match=r"more.db3.zstd \(of at most .* unpacks to more than"):
        read(tmp_path, folder)


@pytest.mark.parametrize("packing", ["zstd", "lz4"])
def test_packed_bytes_are_read_to_their_end(packing):
    pack = bag_bounds.zstd().compress if packing == "zstd" else lz4.frame.compress
    unpack = bag_bounds.unpackers()[packing]
    content = bytes(range(256)) * 10_000
    one = pack(content)
    assert unpack(one, len(content)) == content
    assert unpack(one + SKIPPED + one, 2 * len(content)) == 2 * content
    with pytest.raises(DatasetError, match="a chunk of MCAP unpacks to more than"):
        unpack(one + one, 2 * len(content) - 1)
    with pytest.raises(DatasetError, match="more than 1000 frames"):
        unpack(1001 * pack(b""), 1)
    for cut in (one[:-3], one[:5], one + one[:-3]):
        with pytest.raises(DatasetError, match="is cut off"):
            unpack(cut, 1 << 30)
    with pytest.raises(DatasetError, match="is empty"):
        unpack(b"", 1)


@pytest.mark.parametrize("packing", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [100, 1 << 62])
def test_a_chunk_becomes_no_more_than_it_says(monkeypatch, packing, size):
    monkeypatch.setattr(bag_bounds, "CHUNK", 1000)
    pack = bag_bounds.zstd().compress if packing == "zstd" else lz4.frame.compress
    unpack = bag_bounds.unpackers()[packing]
    assert unpack(pack(b"abc"), 3) == b"abc"
    with pytest.raises(DatasetError, match="a chunk of MCAP unpacks"):
        unpack(pack(bytes(1 << 20)), size)


def chunked(path, sizes, times=None, compression=CompressionType.ZSTD):
    """An MCAP file of chunks, each with one message of so many zeros at its time (ms)."""
    with path.open("wb") as stream:
        writer = McapWriter(stream, chunk_size=1, compression=compression)
        writer.start("ros2", "test")
        schema = writer.register_schema("std_msgs/msg/Float32MultiArray", "ros2msg", b"float32[] data")
        channel = writer.register_channel("/commands", "cdr", schema)
        for k, size in enumerate(sizes):
            when = now_of(50 * k if times is None else times[k])
            writer.add_message(channel, when, bytes(size), when)
        writer.finish()
    return path


def unindexed(path):
    """The same without its summary: then rosbags goes through the whole file."""
    content = bytearray(path.read_bytes())
    content[-28:-20] = bytes(8)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("index", [True, False])
def test_a_large_chunk_is_refused_by_the_name_of_its_file(tmp_path, monkeypatch, compression, index):
    """By rosbags itself, whichever way it reads: it asks our unpackers."""
    monkeypatch.setattr(bag_bounds, "CHUNK", 1 << 20)
    path = chunked(tmp_path / "large.mcap", [100, 1 << 21], compression=compression)
    with pytest.raises(DatasetError, match=r"large.mcap: a chunk of MCAP (has|unpacks to) more than 1 MB"):
        read(tmp_path, path if index else unindexed(path))


def test_rosbags_asks_the_bounded_ones_while_a_bag_is_read_and_then_its_own(tmp_path):
    """Two at once, of which the first is left alone before its end."""
    table, before = storage_mcap.DECOMPRESSORS, dict(storage_mcap.DECOMPRESSORS)
    folder = commands(tmp_path / "bag", CompressionMode.STORAGE, StoragePlugin.MCAP)
    one, other = (bags.episodes(str(folder), written(tmp_path / "map.yaml", TEXT)) for _ in range(2))
    bomb = bag_bounds.zstd().compress(bytes(1000))
    assert len(next(one).frames["action"]) and len(next(other).frames["action"])
    for reader in (one, other):
        assert table.keys() == bag_bounds.unpackers().keys()
        with pytest.raises(bag_bounds.ChunkError, match="a chunk of MCAP unpacks"):
            storage_mcap.decompress(bomb, "zstd", 10, 0)
        reader.close()
    assert table == before and storage_mcap.decompress(bomb, "zstd", 1000, 0) == bytes(1000)


def test_chunks_of_one_time_are_in_memory_together_and_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds, "HELD", 3 << 20)
    sizes = [1 << 20] * 5
    one_by_one = chunked(tmp_path / "a.mcap", sizes)
    with Reader(one_by_one) as bag:
        bag_bounds.check_chunks(bag.storage)
        assert len(bag.storage.chunks) == 5  # what the check goes by, in this rosbags
    together = chunked(tmp_path / "b.mcap", sizes, times=[7] * 5)
    with pytest.raises(DatasetError, match=r"b.mcap: chunks of MCAP with more than 3 MB are of the same time"):
        read(tmp_path, together)

"""Bags of strangers that would compute or unpack without end are refused; packed ones of rosbag2's are read."""

import sqlite3

import lz4.frame
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer, storage_mcap

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


def test_a_message_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds.unpacked, "__defaults__", (1 << 20,))
    folder = commands(tmp_path / "bag", CompressionMode.MESSAGE)
    (file,) = folder.glob("*.db3")
    with sqlite3.connect(file) as database:
        database.execute("UPDATE messages SET data = ?", [bag_bounds.zstd().compress(bytes(1 << 21))])
    database.close()
    with pytest.raises(DatasetError, match="something in it unpacks to more than 1 MB"):
        read(tmp_path, folder)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_bounds, "AT_LEAST", 1 << 20)
    folder = commands(tmp_path / "bag", CompressionMode.FILE)
    (file,) = folder.glob("*.zstd")
    file.write_bytes(bag_bounds.zstd().compress(bytes(1 << 24)))
    with pytest.raises(DatasetError, match="would unpack to more than 1 MB"):
        read(tmp_path, folder)


@pytest.mark.parametrize("packing", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [100, 1 << 62])
def test_a_chunk_becomes_no_more_than_it_says(monkeypatch, packing, size):
    monkeypatch.setattr(bag_bounds, "CHUNK", 1000)
    pack = bag_bounds.zstd().compress if packing == "zstd" else lz4.frame.compress
    unpack = bag_bounds.unpackers()[packing]
    assert unpack(pack(b"abc"), 3) == b"abc"
    with pytest.raises(DatasetError, match="something in it unpacks"):
        unpack(pack(bytes(1 << 20)), size)


def test_rosbags_asks_the_bounded_ones(tmp_path):
    read(tmp_path, commands(tmp_path / "bag", storage=StoragePlugin.MCAP))
    with pytest.raises(DatasetError, match="something in it unpacks"):
        storage_mcap.decompress(bag_bounds.zstd().compress(bytes(1000)), "zstd", 10, 0)

"""Files of a dataset: where they lie, parquet tables that carry their own checksum, writing many as one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from policies.datasets import bounds
from policies.datasets.features import CAMERA, NUMBERS, DatasetError, Feature

VERSION = "v3.0"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
CHUNK = 1000  # files in a folder
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
SEAL = b"sim2metal.checksums"  # their key in the footer of a parquet file
SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})"')
ZEROS = b"0" * 64


def sha256(content: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def constants_digest(info: Mapping[str, Any]) -> str:
    """Of everything in meta/info.json that does not change when episodes are added."""
    constants = {key: value for key, value in info.items() if not key.startswith("total_") and key != "splits"}
    return sha256(json.dumps(constants, sort_keys=True).encode())


def to_json(tree: Any) -> bytes:
    """As LeRobot formats it."""
    return json.dumps(tree, indent=4, ensure_ascii=False).encode()


def to_parquet(table: pa.Table, checksums: Mapping[str, Any] | None = None) -> bytes:
    """The file of a table. With `checksums`, they and the file's own SHA-256 are in its footer under SEAL."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="snappy", use_dictionary=False) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))
        if checksums is not None:
            writer.add_key_value_metadata({SEAL: json.dumps({"sha256": ZEROS.decode(), **checksums})})
    content: bytes = sink.getvalue().to_pybytes()
    if checksums is None:
        return content
    head, _, tail = content.rpartition(ZEROS)  # the last: the footer follows the data
    return head + sha256(content).encode() + tail


def read_parquet(folder: Path, name: str, holds: str) -> tuple[pa.Table, dict[str, Any] | None]:
    """A table and the checksums in its footer, None when it has none. Raises DatasetError when it is damaged."""
    try:
        content = bounds.content(folder, name)
    except FileNotFoundError:
        raise DatasetError(f"{folder}: {name} is missing; it holds {holds}") from None
    try:
        sealed = _is_sealed(content)
        table = bounds.table(content)
        footer = pq.ParquetFile(pa.BufferReader(content)).metadata.metadata if sealed else {}
        return table, _checksums(json.loads(footer[SEAL])) if sealed else None
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise DatasetError(f"{folder}: {name} is damaged or cut short ({why}); it holds {holds}") from None


def _checksums(found: Any) -> dict[str, Any]:
    """ValueError unless these are what `to_parquet` was given."""
    files = found.get("files", {}) if isinstance(found, dict) else None
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise ValueError("its checksums are malformed")
    return {"files": {}, "constants": "", **found}


def _is_sealed(content: bytes) -> bool:
    """Whether a file carries its own checksum. ValueError when that is wrong."""
    seals = SEALED.findall(content)
    if not seals and SEAL not in content:  # one flipped byte cannot hide both
        return False
    if not seals or sha256(ZEROS.join(content.rsplit(seals[-1], 1))).encode() != seals[-1]:
        raise ValueError("its checksum is wrong")
    return True


def read_info(folder: Path) -> dict[str, Any]:
    """meta/info.json. Raises DatasetError for a folder without, another version, or an unreadable one."""
    if not (folder / INFO).is_file():
        raise DatasetError(f"{folder} is not a dataset: it has no {INFO}")
    info = bounds.description(folder, INFO)
    with bounds.malformed(f"{folder}: {INFO} is damaged"):
        version = str(info["codebase_version"])
        info["features"], info["data_path"]
        fps, total = info["fps"], info.get("total_episodes", 0)
        if type(fps) not in (int, float) or not 0 < fps <= bounds.FASTEST or type(total) is not int:
            raise ValueError(f"fps {fps!r:.40}, total_episodes {total!r:.40}")
    if not version.startswith("v3."):
        convert = "lerobot.datasets.v30.convert_dataset_v21_to_v30 converts from v2.1"
        raise DatasetError(f"{folder} is in LeRobot's format {version:.40}, but only v3 is read; {convert}")
    return info


def features_of(info: Mapping[str, Any], folder: Path) -> dict[str, Feature]:
    """All features in meta/info.json, with those that LeRobot adds."""
    found = {}
    entries = info["features"]
    if not isinstance(entries, dict) or not 0 < len(entries) <= bounds.FEATURES:
        raise DatasetError(f"{folder}: {INFO} is damaged: its features are no map of 1 to {bounds.FEATURES}")
    for name, entry in entries.items():
        with bounds.malformed(f"{folder}: {INFO} is damaged at feature {name!r}"):
            names = entry.get("names")
            listed = tuple(map(str, names)) if isinstance(names, list) else None  # others nest names: not ours to judge
            feature = Feature(str(entry["dtype"]), tuple(int(k) for k in entry["shape"]), listed)
            found[name] = bounds.checked(name, feature)
        if found[name].dtype not in (*NUMBERS, *CAMERA, "string"):
            choices = ", ".join((*NUMBERS, *CAMERA, "string"))
            raise DatasetError(f"{folder}: feature {name!r} has dtype {found[name].dtype!r:.40}, not one of {choices}")
    return found


@dataclass(frozen=True)
class Rows:
    """One file of rows, one row per episode; `checksums` is None when it was not written by us."""

    table: pa.Table
    checksums: dict[str, Any] | None
    indices: tuple[int, int]  # of chunk and file


def read_rows(folder: Path, info: Mapping[str, Any]) -> list[Rows]:
    """All files of rows. Raises DatasetError when one is damaged or missing, or meta/info.json is not theirs."""
    found = []
    for path in sorted(folder.glob("meta/episodes/chunk-*/file-*.parquet")):
        table, checksums = read_parquet(folder, path.relative_to(folder).as_posix(), "rows of episodes")
        with bounds.malformed(f"{folder}: {path.name} is no name of a file of rows"):
            chunk, file = (int(name.rpartition("-")[2]) for name in (path.parent.name, path.stem))
        found.append(Rows(table, checksums, (chunk, file)))
    with bounds.malformed(f"{folder}: meta/episodes is damaged"):
        numbers = [number for rows in found for number in rows.table["episode_index"].to_pylist()]
    if numbers != list(range(len(numbers))):
        raise DatasetError(f"{folder}: meta/episodes lacks rows of episodes: a file is missing")
    sealed = [rows.checksums for rows in found if rows.checksums is not None]
    if sealed and sealed[-1]["constants"] != constants_digest(info):
        raise DatasetError(f"{folder}: {INFO} is damaged or was changed: it is not the one of the episodes")
    if found and found[-1].checksums is not None and info.get("total_episodes", 0) > len(numbers):
        raise DatasetError(f"{folder}: rows of {info['total_episodes'] - len(numbers)} episodes are missing at the end")
    return found


def joined(rows: Sequence[Rows]) -> pa.Table:
    """One table of all episodes."""
    return pa.concat_tables([each.table for each in rows], promote_options="permissive") if rows else pa.table({})


def read_tasks(folder: Path) -> list[str]:
    """What was to be done, by task index."""
    table, _ = read_parquet(folder, TASKS, "the tasks")
    with bounds.malformed(f"{folder}: {TASKS} is damaged"):
        (column,) = (name for name in table.column_names if name != "task_index")  # pandas' index: its name varies
        order = np.argsort(table["task_index"].to_numpy())
        texts = table[column].to_pylist()
        return [str(texts[k]) for k in order]


def file_after(chunk: int, file: int) -> tuple[int, int]:
    """Indices of the next file."""
    return (chunk, file + 1) if file + 1 < CHUNK else (chunk + 1, 0)

"""Recording episodes into a dataset that is whole after every one of them, whatever happens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from deploy.system.files import named, replace_all
from policies.datasets import images, layout
from policies.datasets.bounds import own
from policies.datasets.features import (
    COUNTERS,
    Array,
    DatasetError,
    Feature,
    checked_features,
    checked_frames,
    to_arrow,
)
from policies.datasets.stats import Stats, Totals, episode_stats, stats_in
from policies.runner.lock import BusyError, Lock

ROWS = 100  # episodes in a file of rows; the newest file is written anew with every episode
SCRATCH = ".film.tmp.mp4"
DATA = "data"


@dataclass(frozen=True)
class State:
    """What the next episode builds on."""

    next: Mapping[str, tuple[int, int]]  # "data" or a film's feature -> chunk and file of the next episode
    episodes: int = 0
    frames: int = 0
    tasks: tuple[str, ...] = ()
    totals: Totals = field(default_factory=Totals)
    rows: pa.Table | None = None  # of the newest file of rows
    rows_from: int = 0  # its first episode
    rows_at: tuple[int, int] = (0, 0)  # its chunk and file
    checksums: Mapping[str, str] = field(default_factory=dict)  # of the files of its episodes


class Writer:
    """Adds episodes to the dataset in `folder`: a new one, or one that stopped at any moment.

    Every episode has its own data file, and a film for each feature of dtype "video". It belongs to the dataset from
    the moment that its row is there: one rename. What a killed writer left of an episode is removed and named in
    `dropped`. `fps` is the control rate (Hz). Raises DatasetError when the folder holds something else, is damaged, has
    another rate or other features, or when another process is writing to it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], fps: int, features: Mapping[str, Feature], robot_type: str | None = None
    ) -> None:
        self.folder = Path(folder)
        if not (isinstance(fps, int) and fps > 0):
            raise DatasetError(f"fps must be a whole number of Hz, got {fps!r}")
        self.fps = fps
        self.features = checked_features(features)
        self.dropped: tuple[str, ...] = ()
        self._all = self.features | COUNTERS
        self._films = [name for name, feature in self.features.items() if feature.dtype == "video"]
        self._info = _constants(self._all, fps, robot_type)
        self.folder.mkdir(parents=True, exist_ok=True)
        own(self.folder)
        try:
            self._lock: Lock | None = Lock(self.folder)
        except BusyError as error:
            raise DatasetError(f"{error}: wait for its end, or choose another folder") from None
        try:
            self._state = self._opened()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Number of episodes."""
        return self._state.episodes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. Nothing is pending: an episode is on the disk when `add_episode` returns."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def add_episode(self, frames: Mapping[str, Array], task: str) -> int:
        """Write one episode: name -> (steps, *shape) of every feature, and what was to be done. Returns its index.

        Raises DatasetError for frames that are missing, unknown, not finite, or of another shape or type; OSError
        when the disk is full. Then the dataset is as it was, and the next episode can be added.
        """
        if self._lock is None:
            raise DatasetError(f"{self.folder}: this writer is closed")
        if not (isinstance(task, str) and task):
            raise DatasetError(f"task must say what was to be done, got {task!r}")
        old = self._state
        values = checked_frames(frames, self.features)
        steps = len(next(iter(values.values())))
        tasks = old.tasks if task in old.tasks else (*old.tasks, task)
        values |= _counters(steps, self.fps, old.episodes, old.frames, tasks.index(task))
        stats = {name: episode_stats(value, self._all[name]) for name, value in values.items()}
        files = self._recorded(values)
        new = replace(
            old,
            next={key: layout.file_after(*at) for key, at in old.next.items()},
            episodes=old.episodes + 1,
            frames=old.frames + steps,
            tasks=tasks,
            totals=old.totals.plus({name: {key: v[None] for key, v in each.items()} for name, each in stats.items()}),
            rows=_with_row(old.rows, self._row(steps, task, stats)),
            checksums={**old.checksums, **{name: layout.sha256(content) for name, content in files.items()}},
        )
        if tasks != old.tasks:
            files[layout.TASKS] = _tasks_file(tasks)
        seal = {"constants": layout.constants_digest(self._info), "files": new.checksums}
        # From this rename on the episode is there. What follows is derived, and renewed by the next writer.
        files[_path(layout.EPISODES_PATH, old.rows_at)] = layout.to_parquet(new.rows, seal)
        files |= derived(self._info, new)
        replace_all([(self.folder / name, content) for name, content in files.items()])
        self._state = new if new.episodes - old.rows_from < ROWS else _with_new_rows(new)
        return old.episodes

    def _recorded(self, values: Mapping[str, Array]) -> dict[str, bytes]:
        """The data file and the films of an episode: name -> content."""
        columns: dict[str, pa.Array] = {}
        for name, value in values.items():
            feature = self._all[name]
            if feature.dtype == "image":
                columns[name] = pa.array(
                    [{"bytes": images.to_png(v), "path": f"frame-{k:06d}.png"} for k, v in enumerate(value)]
                )
            elif feature.dtype != "video":
                columns[name] = to_arrow(value, feature)
        files = {_path(self._info["data_path"], self._state.next[DATA]): layout.to_parquet(pa.table(columns))}
        for name in self._films:
            scratch = self.folder / SCRATCH
            try:
                with named(self.folder):
                    images.write_film(scratch, values[name], self.fps)
                files[_path(self._info["video_path"], self._state.next[name], name)] = scratch.read_bytes()
            finally:
                scratch.unlink(missing_ok=True)
        return files

    def _row(self, steps: int, task: str, stats: Mapping[str, Stats]) -> pa.Table:
        """What meta/episodes says about the next episode."""
        state = self._state
        row: dict[str, Any] = {"episode_index": state.episodes, "tasks": [task], "length": steps}
        row |= dict(zip(("data/chunk_index", "data/file_index"), state.next[DATA], strict=True))
        row |= {"dataset_from_index": state.frames, "dataset_to_index": state.frames + steps}
        for name in self._films:
            where = (*state.next[name], 0.0, steps / self.fps)
            keys = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            row |= {f"videos/{name}/{key}": value for key, value in zip(keys, where, strict=True)}
        row |= {f"stats/{name}/{key}": v.tolist() for name, each in stats.items() for key, v in each.items()}
        row |= dict(zip(("meta/episodes/chunk_index", "meta/episodes/file_index"), state.rows_at, strict=True))
        return pa.table({name: pa.array([value]) for name, value in row.items()})

    def _opened(self) -> State:
        """Begin, or continue behind the last whole episode."""
        empty = State(next=dict.fromkeys([DATA, *self._films], (0, 0)))
        if not (self.folder / layout.INFO).exists():
            found = [
                path.name for path in self.folder.iterdir() if path.name != "meta" and not path.name.startswith(".")
            ]
            if found:
                raise DatasetError(f"{self.folder} is no dataset but holds {found[0]!r}; choose another folder")
            replace_all([(self.folder / layout.INFO, layout.to_json(self._info | counts(0, 0, 0)))])
            return empty
        info = layout.read_info(self.folder)
        self._agree(info)
        self._info = {key: value for key, value in info.items() if key not in counts(0, 0, 0)}
        rows = layout.read_rows(self.folder, info)
        state = self._continued(layout.joined(rows), rows) if rows else empty
        self.dropped = tuple(self._drop(state))
        if rows and rows[-1].checksums is not None:
            stale = [(name, text) for name, text in derived(self._info, state).items() if self._differs(name, text)]
            replace_all([(self.folder / name, content) for name, content in stale])
        return state

    def _continued(self, table: pa.Table, rows: list[layout.Rows]) -> State:
        last = {name: table[name][-1].as_py() for name in table.column_names if not name.startswith("stats/")}
        places = {DATA: DATA} | {name: f"videos/{name}" for name in self._films}
        state = State(
            next={
                key: layout.file_after(last[f"{at}/chunk_index"], last[f"{at}/file_index"])
                for key, at in places.items()
            },
            episodes=len(table),
            frames=last["dataset_to_index"],
            tasks=tuple(layout.read_tasks(self.folder)),
            totals=Totals().plus({name: stats_in(table, name, f) for name, f in self._all.items()}),
            rows_at=rows[-1].indices,
        )
        if rows[-1].checksums is None or len(rows[-1].table) >= ROWS:
            return _with_new_rows(state)
        begun = len(table) - len(rows[-1].table)
        return replace(state, rows=rows[-1].table, rows_from=begun, checksums=rows[-1].checksums["files"])

    def _differs(self, name: str, content: bytes) -> bool:
        path = self.folder / name
        return not path.exists() or path.read_bytes() != content

    def _drop(self, state: State) -> Iterator[str]:
        """Remove what a killed writer left of the next episode; the names of the files."""
        paths = [_path(self._info["data_path"], state.next[DATA])]
        paths += [_path(self._info["video_path"], state.next[name], name) for name in self._films]
        left = [self.folder / path for path in paths]
        left += self.folder.rglob(".*.tmp*")
        for path in filter(Path.exists, left):
            path.unlink()
            yield path.relative_to(self.folder).as_posix()

    def _agree(self, info: Mapping[str, Any]) -> None:
        """Take over how the dataset describes itself. Raises DatasetError when it is another one."""
        if info["fps"] != self.fps:
            raise DatasetError(f"{self.folder} has fps {info['fps']}, not {self.fps}")
        there = {k: v for k, v in layout.features_of(info, self.folder).items() if k not in COUNTERS}
        for name in [*self.features, *there]:
            mine, theirs = self.features.get(name), there.get(name)
            if mine is None or theirs is None or (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
                raise DatasetError(f"{self.folder}: feature {name!r} is {theirs or 'not'} there, here {mine or 'none'}")
        self.features = there
        self._all = self.features | COUNTERS


def _path(pattern: str, indices: tuple[int, int], video_key: str = "") -> str:
    return pattern.format(video_key=video_key, chunk_index=indices[0], file_index=indices[1])


def derived(info: Mapping[str, Any], state: State) -> dict[str, bytes]:
    """What LeRobot reads beside the rows: totals and statistics. `info` has the constants."""
    return {
        layout.INFO: layout.to_json({**info, **counts(state.episodes, state.frames, len(state.tasks))}),
        layout.STATS: layout.to_json(state.totals.json()),
    }


def _counters(steps: int, fps: int, episode: int, first: int, task: int) -> dict[str, Array]:
    """What LeRobot adds to every frame; `first` is the frames before this episode."""
    frame = np.arange(steps)
    columns = (frame / fps, frame, np.full(steps, episode), first + frame, np.full(steps, task))
    return {
        name: column.astype(feature.numpy)[:, None]
        for (name, feature), column in zip(COUNTERS.items(), columns, strict=True)
    }


def _constants(features: Mapping[str, Feature], fps: int, robot_type: str | None) -> dict[str, Any]:
    """What stays in meta/info.json."""
    described = {name: feature.json() for name, feature in features.items()}
    for name, feature in features.items():
        if feature.dtype == "video":
            size = {"video.height": feature.shape[0], "video.width": feature.shape[1], "video.channels": 3}
            coding = {"video.codec": "h264", "video.pix_fmt": "yuv420p", "video.is_depth_map": False}
            described[name]["info"] = size | coding | {"video.fps": fps, "has_audio": False}
    films = any(feature.dtype == "video" for feature in features.values())
    return {
        "codebase_version": layout.VERSION,
        "robot_type": robot_type,
        "chunks_size": layout.CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if films else None,
        "features": described,
    }


def counts(episodes: int, frames: int, tasks: int) -> dict[str, Any]:
    """What grows in meta/info.json."""
    splits = {"train": f"0:{episodes}"} if episodes else {}
    return {"total_episodes": episodes, "total_frames": frames, "total_tasks": tasks, "splits": splits}


def _tasks_file(tasks: tuple[str, ...]) -> bytes:
    """As pandas writes a frame whose index are the texts: LeRobot looks them up there."""
    index = "__index_level_0__"
    kinds = (("task_index", "int64", "int64"), (index, "unicode", "object"))
    columns = [{"name": n, "field_name": n, "pandas_type": p, "numpy_type": k, "metadata": None} for n, p, k in kinds]
    about = {"index_columns": [index], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    table = pa.table({"task_index": range(len(tasks)), index: tasks})
    return layout.to_parquet(table.replace_schema_metadata({"pandas": json.dumps(about)}), {})


def _with_row(rows: pa.Table | None, row: pa.Table) -> pa.Table:
    return row if rows is None else pa.concat_tables([rows, row]).combine_chunks()


def _with_new_rows(state: State) -> State:
    return replace(state, rows=None, rows_from=state.episodes, rows_at=layout.file_after(*state.rows_at), checksums={})

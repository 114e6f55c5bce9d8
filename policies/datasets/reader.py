"""Reading a dataset: checked when it is read, pictures decoded when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from policies.datasets import bounds, images, layout
from policies.datasets.features import COUNTERS, Array, DatasetError, Feature, not_finite, to_numpy
from policies.datasets.stats import Stats, Totals, stats_in

MOST = 2**40  # of a number that counts frames or files


class Episode(Mapping[str, Array]):
    """Name -> (steps, *shape) of every feature. Pictures are decoded each time they are asked for."""

    def __init__(self, dataset: Dataset, index: int) -> None:
        self._dataset = dataset
        self.index = index
        self.task: str = dataset.episode_tasks[index]

    def __getitem__(self, name: str) -> Array:
        return self._dataset.read(name, self.index)

    def __contains__(self, name: object) -> bool:
        return name in self._dataset.features

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset.features)

    def __len__(self) -> int:
        return len(self._dataset.features)


class Dataset:
    """The dataset in `folder`, in LeRobot's format v3, whoever wrote it.

    Every file is compared with its checksum when it is read; LeRobot writes none. DatasetError names the folder, the
    file, the episode: missing folder or file, another version, no episodes, damage, numbers that are not finite.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        with bounds.malformed(f"{self.folder}: what it says of itself is damaged"):
            self._describe()

    def _describe(self) -> None:
        """What is read before any frame."""
        self.info = layout.read_info(self.folder)
        self._all = layout.features_of(self.info, self.folder)
        self.features: dict[str, Feature] = {name: f for name, f in self._all.items() if name not in COUNTERS}
        self.fps: float = self.info["fps"]
        self.rows_files = layout.read_rows(self.folder, self.info)
        self.rows = layout.joined(self.rows_files)
        if not len(self.rows):
            raise DatasetError(f"{self.folder} has no episodes")
        self.checksums: dict[str, str] = {
            name: digest
            for rows in self.rows_files
            if rows.checksums
            for name, digest in rows.checksums["files"].items()
        }
        self.lengths: Array = self._whole("length", 1, bounds.VALUES)  # (episodes,) frames
        self.episode_tasks: list[str] = ["; ".join(map(str, tasks)) for tasks in self._column("tasks")]
        self._starts: Array = self._whole("dataset_from_index", 0)
        self.data_paths = self._paths("data_path", "data")  # of the numbers and images, per episode
        films = [name for name, feature in self.features.items() if feature.dtype == "video"]
        self.film_paths = {name: self._paths("video_path", f"videos/{name}", video_key=name) for name in films}
        self._tables: dict[str, pa.Table] = {}  # numbers of the data files read so far
        self._images_of: dict[str, tuple[str, pa.Table]] = {}  # camera -> the data file last read and its images

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.rows)

    @cached_property
    def tasks(self) -> list[str]:
        """What was to be done, by task_index."""
        return layout.read_tasks(self.folder)

    @cached_property
    def stats(self) -> dict[str, Stats]:
        """Feature -> "min", "max", "mean", "std", "count", "q01", ... of all episodes, from those of each."""
        return {name: self.totals[name] for name, feature in self._all.items() if feature.dtype != "string"}

    @cached_property
    def totals(self) -> Totals:
        """What `stats` and meta/stats.json come from."""
        return Totals().plus({n: stats_in(self.rows, n, f) for n, f in self._all.items() if f.dtype != "string"})

    def require(self, features: Mapping[str, tuple[int, ...]] | Iterable[str] = (), fps: float | None = None) -> None:
        """Raises DatasetError when features are missing or of another shape, or the control rate (Hz) is another."""
        if fps is not None and self.fps != fps:
            raise DatasetError(f"{self.folder} was recorded at {self.fps:g} Hz, but {fps:g} Hz is needed")
        shapes = features if isinstance(features, Mapping) else {}
        for name in features:
            if name not in self.features:
                kind = "camera" if ".images." in name else "feature"
                raise DatasetError(f"{self.folder} has no {kind} {name!r}; there are: {', '.join(self.features)}")
            found = self.features[name].shape
            if found != tuple(shapes.get(name, found)):
                raise DatasetError(f"{self.folder}: {name!r} has shape {found}, but {shapes[name]} is needed")

    def episode(self, index: int) -> Episode:
        """One episode. IndexError when there is none of that number."""
        return Episode(self, range(len(self))[index])

    def columns(self, name: str) -> Array:
        """All frames of all episodes, (frames, *shape)."""
        return np.concatenate([self.read(name, index) for index in range(len(self))])

    def read(self, name: str, index: int) -> Array:
        """One feature of one episode, (steps, *shape). The counters ("timestamp", "index", ...) can be read too."""
        if name not in self._all:
            raise KeyError(f"{self.folder} has no feature {name!r}; there are: {', '.join(self._all)}")
        feature = self._all[name]
        if feature.dtype == "video":
            return self._film(name, index)
        if feature.dtype == "image":
            return self._images(name, index)
        path = self.data_paths[index]
        if path not in self._tables:
            self._tables[path] = self._table(path, [n for n, f in self._all.items() if not f.is_camera])
        rows = self._rows_of(self._tables[path], index)
        try:
            found = to_numpy(rows[name], feature.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                values = found.astype(feature.numpy)  # a copy: arrow's memory is not to be written
            if values.dtype.kind in "biu" and not np.array_equal(values, found):
                raise ValueError(f"numbers that do not fit into {feature.dtype}")
        except (ValueError, TypeError, ArithmeticError) as error:
            raise DatasetError(f"{self.folder}: {name!r} in episode {index}: {error}") from None
        bad = not_finite(values)
        if bad is not None:
            raise DatasetError(f"{self.folder}: {name!r} is not a finite number in frame {bad} of episode {index}")
        return values

    def verified(self, path: str) -> bytes:
        """A file of data or film. Raises DatasetError when it is missing or does not have its checksum."""
        try:
            content = bounds.content(self.folder, path)
        except FileNotFoundError:
            raise DatasetError(f"{self.folder}: {path} is missing; it holds {self.holds(path)}") from None
        if path in self.checksums and layout.sha256(content) != self.checksums[path]:
            raise DatasetError(f"{self.folder}: {path} is damaged: its checksum is wrong; it holds {self.holds(path)}")
        return content

    def holds(self, path: str) -> str:
        """The episodes of which a file holds something, in words."""
        episodes = [
            k for paths in (self.data_paths, *self.film_paths.values()) for k, p in enumerate(paths) if p == path
        ]
        return f"episode {episodes[0]}" if len(episodes) == 1 else f"episodes {min(episodes)} to {max(episodes)}"

    def _paths(self, pattern: str, key: str, **names: str) -> list[str]:
        """A file per episode."""
        chunks, files = (self._whole(f"{key}/{which}", 0) for which in ("chunk_index", "file_index"))
        paths = []
        with bounds.malformed(f"{self.folder}: {layout.INFO}: {pattern}"):
            form = self.info[pattern]
            for index, (chunk, file) in enumerate(zip(chunks, files, strict=True)):
                said = {"chunk_index": chunk, "file_index": file, "episode_index": index, **names}
                paths.append(bounds.filled(form, said))
        for path in dict.fromkeys(paths):
            bounds.inside(self.folder, path)
        return paths

    def _whole(self, name: str, least: int, most: int = MOST) -> Array:
        """A column of whole numbers from `least` to `most`; DatasetError for anything else."""
        column = np.asarray(self._column(name))
        if column.dtype.kind not in "iu" or column.ndim != 1 or (column < least).any() or (column > most).any():
            raise DatasetError(f"{self.folder}: meta/episodes: {name!r} is not {least} to {most} everywhere")
        return column.astype(np.int64)

    def _column(self, name: str) -> Any:
        """A column of the rows: numbers as an array."""
        try:
            column = self.rows[name]
        except KeyError:
            raise DatasetError(f"{self.folder}: meta/episodes has no column {name!r}") from None
        return column.to_pylist() if pa.types.is_nested(column.type) else column.to_numpy()

    def _table(self, path: str, columns: list[str]) -> pa.Table:
        """Some columns of a data file."""
        try:
            return bounds.table(self.verified(path), columns)
        except DatasetError:
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            why = str(error).partition("\n")[0]
            raise DatasetError(f"{self.folder}: {path} is damaged ({why}); it holds {self.holds(path)}") from None

    def _rows_of(self, table: pa.Table, index: int) -> pa.Table:
        """The rows of an episode in the table of its file."""
        first, steps = int(self._starts[index]), int(self.lengths[index])
        with bounds.malformed(f"{self.folder}: {self.data_paths[index]} is damaged"):
            rows = table.slice(max(0, first - int(table["index"][0].as_py())), steps) if len(table) else table
        if len(rows) != steps or not np.array_equal(rows["index"].to_numpy(), np.arange(first, first + steps)):
            raise DatasetError(f"{self.folder}: {self.data_paths[index]} does not have the frames of episode {index}")
        return rows

    def _images(self, name: str, index: int) -> Array:
        path = self.data_paths[index]
        if self._images_of.get(name, ("",))[0] != path:  # LeRobot has many episodes in a file
            self._images_of[name] = path, self._table(path, ["index", name])
        rows = self._rows_of(self._images_of[name][1], index)
        shape = self._all[name].shape
        try:
            with bounds.malformed("a picture is damaged"):
                found = images.from_png(rows[name].combine_chunks().field("bytes").to_pylist(), shape)
        except DatasetError as error:
            raise DatasetError(f"{self.folder}: {name!r} in episode {index}: {error}") from None
        return found

    def _film(self, name: str, index: int) -> Array:
        path = self.film_paths[name][index]
        if path in self.checksums or not (self.folder / path).exists():  # LeRobot's are large: not read for nothing
            self.verified(path)
        with bounds.malformed(f"{self.folder}: meta/episodes is damaged"):
            start = float(self._column(f"videos/{name}/from_timestamp")[index])
        steps = int(self.lengths[index])
        return images.read_film(bounds.inside(self.folder, path), start, steps, self.fps, self._all[name].shape)

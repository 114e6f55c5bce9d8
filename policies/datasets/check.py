"""Looking for damage in all of a dataset."""

from __future__ import annotations

from collections.abc import Iterator

from policies.datasets import layout
from policies.datasets.features import DatasetError
from policies.datasets.reader import Dataset
from policies.datasets.writer import counts


def problems(dataset: Dataset) -> Iterator[str]:
    """One sentence for each: every file is compared with its checksum, every number and picture is read."""
    files = dict.fromkeys([*dataset.data_paths, *(path for paths in dataset.film_paths.values() for path in paths)])
    damaged = set()
    for path in files:
        try:
            dataset.verified(path)
        except DatasetError as error:
            damaged.add(path)
            yield str(error)
    for index in range(len(dataset)):
        for name in dataset.features:
            path = dataset.film_paths.get(name, dataset.data_paths)[index]
            try:
                if path not in damaged:
                    dataset.read(name, index)
            except DatasetError as error:
                yield str(error)
    there = [file for top in ("data", "videos") for file in (dataset.folder / top).rglob("*") if file.is_file()]
    for name in sorted(file.relative_to(dataset.folder).as_posix() for file in there):
        if name not in files:
            yield f"{dataset.folder}: {name} belongs to no episode: its writer was killed, the next one removes it"
    yield from _derived_problems(dataset)


def _derived_problems(dataset: Dataset) -> Iterator[str]:
    """Of the files that follow from the rows."""
    try:
        tasks = dataset.tasks
    except DatasetError as error:
        yield str(error)
        return
    frames, episodes = int(dataset.lengths.sum()), len(dataset)
    grown = counts(episodes, frames, len(tasks))
    if dataset.rows_files[-1].checksums is None:  # others format these files in their own way
        if {key: dataset.info.get(key) for key in grown} != grown:
            counted = f"{episodes} episodes, {frames} frames, {len(tasks)} tasks"
            yield f"{dataset.folder}: {layout.INFO} does not count {counted}"
        return
    constants = {key: value for key, value in dataset.info.items() if key not in grown}
    for name, content in ((layout.INFO, constants | grown), (layout.STATS, dataset.totals.json())):
        path = dataset.folder / name
        if not path.is_file() or path.read_bytes() != layout.to_json(content):
            yield f"{dataset.folder}: {name} is not what the episodes say: a new Writer on the folder renews it"

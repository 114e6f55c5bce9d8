"""Labelled frames of a dataset: which of them show success, by a column of it or by a small file.

A column whose name begins with "next." tells of the frame after it, as in LeRobot's format; others of their own frame.
A file has the header `episode,frame,label` and in each line an episode's number, a frame or a range of frames such as
40-55, and 1 or 0; frames that it does not name are not used.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.collect import SUCCESS, stored
from policies.datasets import Dataset, DatasetError
from policies.models.networks import Array
from sim.tasks import FAMILIES, TASKS, Task

HEADER = ["episode", "frame", "label"]
UNKNOWN = -1

Labels = NDArray[np.int8]


@dataclass
class Labelled:
    """One episode: signals by name (n, *shape), and of each frame whether it shows success: 1, 0, or UNKNOWN (n,)."""

    signals: dict[str, Array]
    label: Labels

    @property
    def succeeds(self) -> bool:
        """Whether some frame shows success."""
        return bool((self.label == 1).any())


def labelled(task: Task, folder: str, column: str = SUCCESS, file: str = "", count: int = 0) -> list[Labelled]:
    """The first `count` episodes (0: all) that have a label; DatasetError when the folder or the file is no good."""
    dataset = Dataset(folder)
    for index, text in enumerate(dataset.episode_tasks):
        ours = text in TASKS or text.partition("/")[0] in FAMILIES
        if ours and text != task.name:
            raise DatasetError(f"{folder}: episode {index} is of the task {text}, not of {task.name}")
    episodes = stored(task, folder, count or len(dataset))
    if file:
        labels = _of_file(Path(file), [len(episode.reward) for episode in episodes], folder)
    else:
        dataset.require({column: (1,)})
        labels = [_of_column(dataset.episode(k)[column][:, 0], column) for k in range(len(episodes))]
    found = [Labelled(episode.signals, label) for episode, label in zip(episodes, labels, strict=True)]
    found = [episode for episode in found if (episode.label != UNKNOWN).any()]
    if not any(episode.succeeds for episode in found):
        hint = (
            ""
            if file
            else ": where episodes end with success, none shows it; collect with linger=10, or set labels=FILE"
        )
        raise DatasetError(f"{file or folder}: no frame is labelled as success{hint}")
    if not any((episode.label == 0).any() for episode in found):
        raise DatasetError(f"{file or folder}: every labelled frame is a success; label some that are none")
    return found


def _of_column(values: Array, column: str) -> Labels:
    label: Labels = (values > 0.5).astype(np.int8)
    return np.concatenate([[np.int8(0)], label[:-1]]) if column.startswith("next.") else label


def _of_file(path: Path, lengths: list[int], folder: str) -> list[Labels]:
    labels = [np.full(length, UNKNOWN, np.int8) for length in lengths]
    try:
        rows = list(csv.reader(path.read_text().splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error if isinstance(error, csv.Error) else getattr(error, "strerror", "it is no text")
        raise DatasetError(f"labels={path}: cannot be read: {why}") from None
    if not rows or [cell.strip() for cell in rows[0]] != HEADER:
        raise DatasetError(f"labels={path}: the first line is not {','.join(HEADER)}")
    for number, row in enumerate(rows[1:], 2):
        if row:
            episode, first, last, label = _line(row, f"labels={path}: line {number}")
            if not episode < len(labels) or not first <= last < len(labels[episode]):
                known = f"episodes 0 to {len(labels) - 1}" if episode >= len(labels) else f"{lengths[episode]} frames"
                raise DatasetError(f"labels={path}: line {number}: there are {known} in {folder}")
            labels[episode][first : last + 1] = label
    return labels


def _line(row: list[str], where: str) -> tuple[int, int, int, int]:
    """Episode, first and last frame, label."""
    try:
        episode, frames, label = (cell.strip() for cell in row)
        first, _, last = frames.partition("-")
        read: Any = (int(episode), int(first), int(last or first), ("0", "1").index(label))
    except ValueError:
        raise DatasetError(f"{where} is {','.join(row)!r}, not like 3,40-55,1") from None
    if min(read) < 0:
        raise DatasetError(f"{where} has a negative number")
    return read  # type: ignore[no-any-return]

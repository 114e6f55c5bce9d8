"""python -m policies.datasets folder=DIR [check=true] [episode=N video=FILE.mp4] [rerun=FILE.rrd]: look at a dataset.

A table of the episodes and features; with check=true every file is compared with its checksum and read. `video` is a
film of an episode's cameras side by side, `rerun` a file for Rerun's viewer with its signals and pictures over time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deploy import cli
from deploy.trust.text import printable
from policies.datasets.check import problems
from policies.datasets.features import DatasetError
from policies.datasets.images import write_film
from policies.datasets.reader import Dataset
from policies.runner.report import table

LONGEST = 1000  # characters of a line


@dataclass
class Config:
    """Settings of the command."""

    folder: str = field(metadata={"help": "the dataset"})
    episode: int = field(default=0, metadata={"help": "the one to show"})
    video: str | None = field(default=None, metadata={"help": "write a film of its cameras (.mp4)"})
    rerun: str | None = field(default=None, metadata={"help": "write a file for Rerun's viewer (.rrd)"})
    check: bool = field(default=False, metadata={"help": "read everything and compare it with its checksum"})

    def __post_init__(self) -> None:
        for name, suffix in (("video", ".mp4"), ("rerun", ".rrd")):
            path = getattr(self, name)
            if path is not None and not path.endswith(suffix):
                raise ValueError(f"{name}={path}: the name of the file ends in {suffix}")


def summary(dataset: Dataset) -> str:
    """What there is, as text."""
    lengths, episodes = dataset.lengths, len(dataset)
    spread = f"{lengths.min()} to {lengths.max()}, median {np.median(lengths):g}"
    lines = [
        f"{dataset.folder}: {episodes} episodes of {dataset.info.get('robot_type') or 'an unnamed robot'}",
        f"frames   {lengths.sum()} at {dataset.fps:g} Hz, {lengths.sum() / dataset.fps:.1f} s; per episode {spread}",
    ]
    if "next.success" in dataset.features:
        successes = sum(bool(dataset.episode(k)["next.success"].any()) for k in range(episodes))
        lines.append(f"success  {successes} of {episodes} ({100 * successes / episodes:.1f} %)")
    lines += [
        f"task     {dataset.episode_tasks.count(task):5} x {task}" for task in dict.fromkeys(dataset.episode_tasks)
    ]
    paths = [*dataset.data_paths, *(path for each in dataset.film_paths.values() for path in each)]
    known = sum(path in dataset.checksums for path in paths)
    lines.append(
        f"checksum {'none' if not known else 'every file' if known == len(paths) else f'{known} of {len(paths)}'}"
    )
    rows = [["feature", "type", "shape", "elements"]]
    for name, feature in dataset.features.items():
        rows.append(
            [
                name,
                feature.dtype,
                " x ".join(map(str, feature.shape)),
                "" if feature.is_camera else ", ".join(feature.names or ()),
            ]
        )
    lines = [printable(line, LONGEST) for line in lines]
    return "\n".join(lines) + "\n\n" + table([[printable(cell) for cell in row] for row in rows])


def film(dataset: Dataset, index: int, path: str) -> None:
    """The cameras of an episode side by side."""
    episode = dataset.episode(index)
    cameras = [name for name, feature in dataset.features.items() if feature.is_camera]
    if not cameras:
        raise DatasetError(f"{dataset.folder} has no cameras to film; rerun=FILE.rrd shows the signals")
    height = max(dataset.features[name].shape[0] for name in cameras)
    wide = []
    for name in cameras:
        pictures = episode[name]
        wide.append(np.pad(pictures, ((0, 0), (0, height - pictures.shape[1]), (0, 0), (0, 0))))
    whole = np.concatenate(wide, axis=2)
    even = [(0, size % 2) for size in whole.shape[1:3]]  # the film format's demand
    write_film(Path(path), np.pad(whole, ((0, 0), *even, (0, 0))), round(dataset.fps))


def recording(dataset: Dataset, index: int, path: str) -> None:
    """Signals and pictures of an episode as a file for Rerun."""
    try:
        import rerun as rr
    except ModuleNotFoundError:
        raise ValueError("rerun=FILE needs Rerun: pip install 'sim2metal[watch]'") from None
    stream = rr.RecordingStream("sim2metal")
    try:
        stream.save(path)
    except RuntimeError as error:
        raise ValueError(f"rerun={path}: {error}") from None
    stream.send_recording_name(f"{dataset.folder.name}, episode {index}")
    for name, values in dataset.episode(index).items():
        entity, feature = name.replace(".", "/"), dataset.features[name]
        times = [rr.TimeColumn("time", duration=np.arange(len(values)) / dataset.fps)]
        if feature.is_camera:
            height, width, _ = feature.shape
            layout = rr.components.ImageFormat(width=width, height=height, color_model="RGB", channel_datatype="U8")
            stream.log(entity, rr.Image.from_fields(format=layout), static=True)
            stream.send_columns(entity, times, rr.Image.columns(buffer=values.reshape(len(values), -1)))
        else:
            if feature.names:
                stream.log(entity, rr.SeriesLines(names=list(feature.names)), static=True)
            numbers = values.reshape(len(values), -1).astype(np.float64)
            stream.send_columns(entity, times, rr.Scalars.columns(scalars=numbers))
    stream.disconnect()


def main(argv: Sequence[str]) -> None:
    """Read, print; write what was asked for."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    dataset = Dataset(config.folder)
    if not 0 <= config.episode < len(dataset):
        raise ValueError(f"episode={config.episode}: {config.folder} has 0 to {len(dataset) - 1}")
    if config.check:
        found = list(problems(dataset))
        print("\n".join(printable(each, LONGEST) for each in found) or "everything is whole")
        if found:
            raise DatasetError(f"{config.folder} has {len(found)} problem(s)")
    print(summary(dataset))
    if config.video is not None:
        film(dataset, config.episode, config.video)
        print(f"\nfilm of episode {config.episode}: {config.video}")
    if config.rerun is not None:
        recording(dataset, config.episode, config.rerun)
        print(f"\nepisode {config.episode}, to be opened with: rerun {config.rerun}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

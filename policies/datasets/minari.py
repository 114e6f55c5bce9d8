"""python -m policies.datasets.minari source=DIR out=DIR fps=HZ: a dataset of Minari (0.5 and later) as one of ours.

`source` is the folder that holds Minari's `data`, in its HDF5, Arrow or Parquet format. Observations become
"observation.state", or "observation.KEY" for each in a dict, pictures "observation.images.KEY"; actions "action";
further "next.reward", "next.done" and, where the infos have "success", "next.success". Real numbers become float32.
Every frame is what was seen and what was then done: the observation after the last action is left out, as are texts.
Minari does not record the control rate: say it. An import that was interrupted continues.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deploy import cli
from policies.datasets import bounds, hdf5, images
from policies.datasets.features import Array, DatasetError, Feature, to_numpy
from policies.datasets.writer import Writer

Space = Mapping[str, Any]  # Gymnasium's, as Minari describes it in JSON
Signal = tuple[str, ...]  # the keys under which an episode has it
Tree = Mapping[str, Any]
NUMBERS = ("Box", "Discrete", "MultiDiscrete")  # other spaces are left out
REWARD, DONE = Feature("float32", (1,)), Feature("bool", (1,))
SUCCESS = ("infos", "success")


@dataclass
class Config:
    """Settings of the command."""

    source: str = field(metadata={"help": "the dataset of Minari"})
    out: str = field(metadata={"help": "the new dataset"})
    fps: int = field(metadata={"help": "control steps per second (Hz)"})
    task: str | None = field(default=None, metadata={"help": "what was to be done (default: Minari's name)"})


def _leaves(space: Space, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Space]]:
    """(keys, space) of everything in nested dicts and tuples."""
    if space["type"] not in ("Dict", "Tuple"):
        yield keys, space
        return
    inner = space["subspaces"]
    for key, each in inner.items() if isinstance(inner, dict) else enumerate(inner):
        yield from _leaves(each, (*keys, str(key)))


def _feature(space: Space) -> Feature:
    shape = tuple(space.get("shape") or (len(space.get("nvec", [1])),))
    if any(type(size) is not int for size in shape) or len(str(space.get("dtype"))) > len("datetime64"):
        raise ValueError(f"a space of shape {shape!r:.80}")
    if space["type"] == "Box" and space["dtype"] == "uint8" and len(shape) == 3 and shape[2] == 3:
        return Feature("image", shape)
    kind = np.dtype(space.get("dtype", "int64"))
    return bounds.checked("it", Feature("float32" if kind.kind == "f" else str(kind), shape))


def _signals(metadata: Mapping[str, Any]) -> tuple[dict[str, Signal], dict[str, Feature]]:
    """By our names: where Minari has the signals, and what they are."""
    signals, features = {}, {}
    for part, root, alone in (("observations", "observation", "observation.state"), ("actions", "action", "action")):
        for keys, space in _leaves(json.loads(metadata[f"{part[:-1]}_space"])):
            if space["type"] in NUMBERS:
                feature = _feature(space)
                inner = ("images", *(keys or ("camera",))) if feature.is_camera else keys
                name = ".".join((root, *inner)) if inner else alone
                signals[name], features[name] = (part, *keys), feature
    return signals, features


def _episodes(folder: Path, form: str, count: int) -> Iterator[Tree]:
    """What is stored of each episode: nested, with datasets of HDF5 or arrays of Arrow at its ends."""
    if form != "hdf5":
        for index in range(count):
            yield {name: _tree(column) for name, column in _table(folder, index, form)}
        return
    with hdf5.opened(bounds.inside(folder, "main_data.hdf5")) as file:
        for index in range(count):
            yield hdf5.tree(file, f"episode_{index}")


def _table(folder: Path, index: int, form: str) -> Iterator[tuple[str, pa.Array]]:
    """The columns of an episode in Arrow's or Parquet's format."""
    names = sorted(path.relative_to(folder).as_posix() for path in (folder / str(index)).glob("part-*"))
    if not names:
        raise DatasetError(f"{folder}: there is no episode {index}")
    files = [bounds.content(folder, name) for name in names]
    if form == "parquet":
        tables = [bounds.table(file) for file in files]
    else:
        tables = [pa.ipc.open_file(pa.BufferReader(file)).read_all() for file in files]
    table = pa.concat_tables(tables)
    if table.nbytes > bounds.LARGEST:
        raise DatasetError(f"{folder}: episode {index} has {table.nbytes} bytes, at most {bounds.LARGEST} are read")
    for name in table.column_names:
        yield name, table[name].combine_chunks()


def _tree(column: pa.Array) -> Any:
    if not pa.types.is_struct(column.type):
        return column
    return {each.name: _tree(column.field(each.name)) for each in column.type}


def _stored(tree: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        tree = tree[key if key in tree else f"_index_{key}"]  # HDF5's name of an element of a tuple
    return tree


def _frames(stored: Any, rows: slice, feature: Feature) -> Array:
    """(steps, *shape), from numbers or from pictures as JPEG."""
    stored = stored[rows]
    if feature.is_camera and isinstance(stored, pa.Array) and pa.types.is_binary(stored.type):
        return images.from_png(stored.to_pylist(), feature.shape)
    if feature.is_camera and not isinstance(stored, pa.Array) and stored.ndim != 4:
        return images.from_png((bytes(each) for each in stored), feature.shape)
    values: Array = to_numpy(pa.chunked_array([stored]), feature.shape) if isinstance(stored, pa.Array) else stored
    return values.reshape(len(stored), *feature.shape).astype(feature.numpy)


def _converted(tree: Tree, signals: Mapping[str, Signal], features: Mapping[str, Feature]) -> dict[str, Array]:
    """The frames of an episode."""
    seen = next(keys for keys in signals.values() if keys[0] == "observations")
    steps = len(_stored(tree, seen)) - 1
    frames = {name: _frames(_stored(tree, keys), slice(steps), features[name]) for name, keys in signals.items()}
    ends = [_frames(tree[name], slice(steps), DONE) for name in ("terminations", "truncations")]
    frames |= {"next.reward": _frames(tree["rewards"], slice(steps), REWARD), "next.done": ends[0] | ends[1]}
    if "next.success" in features:  # the infos begin with those of the reset
        frames["next.success"] = _frames(_stored(tree, SUCCESS), slice(1, steps + 1), DONE)
    return frames


def convert(source: str, out: str, fps: int, task: str | None = None) -> int:
    """Import what is not yet in `out`; the number of episodes there. Raises DatasetError naming what is wrong."""
    folder = Path(source) / "data"
    what = f"{source} is no dataset of Minari 0.5 or later: data/metadata.json"
    try:
        metadata = bounds.description(folder, "metadata.json")
        with bounds.malformed(what):
            signals, features = _signals(metadata)
            form, episodes = metadata["data_format"], int(metadata["total_episodes"])
    except OSError as error:
        raise DatasetError(f"{what}: {error}") from None
    if form not in ("hdf5", "arrow", "parquet"):
        raise DatasetError(f"{source}: format {form!r} is not one of hdf5, arrow, parquet")
    if episodes < 1:
        raise DatasetError(f"{source} has no episodes")
    with bounds.malformed(f"{source}: what is stored does not fit data/metadata.json"):
        features |= {"next.reward": REWARD, "next.done": DONE}
        trees = _episodes(folder, form, episodes)
        first = next(trees)
        if "infos" in first and "success" in first["infos"]:
            features["next.success"] = DONE
        with Writer(out, fps, features) as writer:
            for index, tree in enumerate(itertools.chain([first], trees)):
                if index == len(writer):
                    frames = _converted(tree, signals, features)
                    writer.add_episode(frames, task or metadata.get("dataset_id") or source)
    return episodes


def main(argv: Sequence[str]) -> None:
    """Convert and tell."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    episodes = convert(config.source, config.out, config.fps, config.task)
    print(f"{config.out}: {episodes} episodes; python -m policies.datasets folder={config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

"""Mutants of datasets: each is read or refused in a sentence, in bounded memory, and nothing outside is opened."""

import contextlib
import io
import json
import resource
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.cli import explained
from policies.datasets import Dataset, DatasetError, Writer
from policies.datasets.__main__ import summary
from policies.datasets.check import problems
from policies.datasets.features import Feature
from tests.fuzz.mutants import HOSTILE, bytes_of, json_of, rounds

INFO = "meta/info.json"
TABLES = ("meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet", "data/chunk-000/file-000.parquet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small dataset as others write them: without checksums, so that a mutant is looked at closely."""
    folder = tmp_path_factory.mktemp("fuzz") / "whole"
    features = {"state": Feature("float32", (3,)), "action": Feature("int64", (1,)), "eye": Feature("image", (4, 6, 3))}
    rng = np.random.default_rng(0)
    with Writer(folder, 20, features) as writer:
        frames = {"state": rng.normal(size=(5, 3)).astype("f4"), "action": np.arange(5)[:, None]}
        writer.add_episode({**frames, "eye": rng.integers(0, 255, (5, 4, 6, 3), np.uint8)}, "a task")
    for path in folder.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert Dataset(folder).episode(0)["state"].shape == (5, 3)
    return folder


def use(folder):
    dataset = Dataset(folder)
    summary(dataset)
    list(problems(dataset))
    for name in dataset.features:
        dataset.read(name, 0)


def table_of(table, rng):
    """A column of it with hostile values, of another type, gone, or doubled."""
    index = int(rng.integers(table.num_columns))
    name, kind = table.column_names[index], rng.integers(5)
    if kind == 0:
        return table.drop_columns([name])
    if kind == 1:
        return pa.concat_tables([table] * int(rng.integers(2, 5)))
    values = table[name].to_pylist()
    values[int(rng.integers(len(values)))] = HOSTILE[int(rng.integers(len(HOSTILE)))]
    for made in (values, [values[-1]] * len(values), [str(value) for value in values]):
        try:
            column = pa.array(made) if kind == 2 else pa.array(made, table[name].type)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
            continue
        return table.set_column(index, name, column)
    return table.slice(0, int(rng.integers(len(table) + 1)))


def mutate(folder, rng):
    kind = rng.integers(3)
    if kind == 0:
        tree = json_of(json.loads((folder / INFO).read_text()), rng)
        (folder / INFO).write_bytes(json.dumps(tree).encode("utf-8", "surrogatepass"))
        return
    name = (INFO, *TABLES)[int(rng.integers(4))] if kind == 1 else TABLES[int(rng.integers(3))]
    path = folder / name
    if kind == 1:
        path.write_bytes(bytes_of(path.read_bytes(), rng))
    else:
        made = io.BytesIO()
        with contextlib.suppress(pa.ArrowNotImplementedError):  # what Parquet does not hold
            pq.write_table(table_of(pq.read_table(path), rng), made)
            path.write_bytes(made.getvalue())


def test_mutants_of_datasets(whole, tmp_path):
    read = refused = 0
    slowest = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(rounds(60)):
        folder = tmp_path / "mutant"
        shutil.copytree(whole, folder)
        mutate(folder, np.random.default_rng(seed))
        began = time.monotonic()
        try:
            use(folder)
            read += 1
        except (DatasetError, MemoryError) as error:  # a size that malloc refuses is a sentence too
            refused += 1
            assert explained(error).isprintable()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.monotonic() - began)
        shutil.rmtree(folder)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"datasets: {read} read, {refused} refused, slowest {slowest:.2f} s, {more:.0f} MB more")
    assert refused > 0 and read > 0 and slowest < 5.0 and more < 512.0

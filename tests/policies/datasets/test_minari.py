"""Minari's datasets become ours: two small ones that minari 0.5.4 wrote (tests/golden/write_minari.py)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from policies.datasets import Dataset, DatasetError, minari
from policies.datasets.check import problems

GOLDEN = Path(__file__).resolve().parents[3] / "tests/golden"


@pytest.mark.parametrize("form", ["hdf5", "arrow"])
def test_every_format_becomes_ours(tmp_path, form, capsys):
    minari.main([f"source={GOLDEN / f'minari_{form}'}", f"out={tmp_path}", "fps=20", "task=count"])
    assert "2 episodes" in capsys.readouterr().out
    dataset = Dataset(tmp_path)
    assert dataset.fps == 20 and dataset.tasks == ["count"] and dataset.lengths.tolist() == [3, 4]
    for k, steps in enumerate((3, 4)):
        t, found = np.arange(steps), dataset.episode(k)
        np.testing.assert_array_equal(found["observation.state"], np.stack([t, t * 0 + k, t * 0 + 0.5], axis=1))
        np.testing.assert_array_equal(found["observation.goals.0"][:, 1], t / 2)
        np.testing.assert_array_equal(found["observation.goals.1"][:, 1, 0], t)
        np.testing.assert_allclose(found["observation.images.scene"].mean(axis=(1, 2, 3)), 20 * t, atol=1)
        np.testing.assert_array_equal(found["action"], np.stack([-t, t / 4], axis=1))
        np.testing.assert_array_equal(found["next.reward"][:, 0], t + 1)
        for name in ("next.done", "next.success"):
            np.testing.assert_array_equal(found[name][:, 0], t == steps - 1)
    assert not list(problems(dataset))


def test_an_interrupted_import_continues(tmp_path):
    shutil.copytree(GOLDEN / "minari_arrow", tmp_path / "source")
    path = tmp_path / "source/data/metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {"total_episodes": 1}))
    assert minari.convert(str(tmp_path / "source"), str(tmp_path / "out"), 20) == 1
    path.write_text(json.dumps(metadata))
    assert minari.convert(str(tmp_path / "source"), str(tmp_path / "out"), 20) == 2
    dataset = Dataset(tmp_path / "out")
    assert dataset.lengths.tolist() == [3, 4] and dataset.tasks == ["golden/arrow-v0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_episodes": 0}, "has no episodes"),
        ({"data_format": "csv"}, "'csv' is not one of hdf5, arrow, parquet"),
        ({"action_space": '{"type": "Discrete", "n": 3}'}, "does not fit data/metadata.json"),
        ({"action_space": "{}"}, "no dataset of Minari"),
        ({"observation_space": '{"type": "Dict", "subspaces": {"x": {"type": "Discrete"}}}'}, "does not fit"),
    ],
)
@pytest.mark.parametrize("form", ["hdf5", "arrow"])
def test_what_is_wrong_is_named(tmp_path, form, change, message):
    shutil.copytree(GOLDEN / f"minari_{form}", tmp_path / "source")
    path = tmp_path / "source/data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DatasetError, match=message):
        minari.convert(str(tmp_path / "source"), str(tmp_path / "out"), 20)
    with pytest.raises(DatasetError, match="no dataset of Minari"):
        minari.convert(str(tmp_path / "nowhere"), str(tmp_path / "out"), 20)

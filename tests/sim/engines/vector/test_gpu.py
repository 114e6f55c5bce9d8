"""What numba-cuda says where few rows are on a GPU."""

import importlib

import pytest
from numba import config

from sim.engines.vector import gpu


@pytest.mark.parametrize(("told", "left"), [(None, 0), ("1", 1)])
def test_warnings_about_few_rows_stay_if_somebody_asked_for_them(monkeypatch, told, left):
    monkeypatch.setattr(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 1)
    monkeypatch.delenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", raising=False)
    if told:
        monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", told)
    importlib.reload(gpu)
    assert left == config.CUDA_LOW_OCCUPANCY_WARNINGS

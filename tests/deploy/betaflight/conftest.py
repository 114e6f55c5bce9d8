"""The module, exported and built once."""

from pathlib import Path

import pytest

from tests.deploy.betaflight.bench import Bench, built, exported


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return exported(tmp_path_factory.mktemp("betaflight") / "sim2metal")


@pytest.fixture(scope="session")
def library(folder, tmp_path_factory) -> Path:
    return built(folder, tmp_path_factory.mktemp("built"))


@pytest.fixture
def bench(library, tmp_path) -> Bench:
    return Bench(library, tmp_path)

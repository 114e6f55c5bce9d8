"""README and docs as a site: `make docs`."""

import os
import subprocess
import sys

import pytest

from release.pages import ROOT, linked, placed, relinked, source


def test_links_lead_on_in_the_site():
    assert (source("index.md"), source("train.md")) == ("README.md", "docs/train.md")
    assert source("tests/benchmarks/results.md") == "tests/benchmarks/results.md"
    assert (placed("README.md"), placed("docs/train.md")) == ("index.md", "train.md")
    for page, text, wanted in (
        ("index.md", "[a](docs/train.md#it)", "[a](train.md#it)"),
        ("index.md", "![a](docs/flight_and_grasp.gif)", "![a](flight_and_grasp.gif)"),
        ("train.md", "[a](deploy.md)", "[a](deploy.md)"),
        ("train.md", "[a](notebooks/first_flight.ipynb)", "[a](notebooks/first_flight.md)"),
        ("notebooks/first_flight.md", "[a](../train.md) [b](from_a_log.ipynb)", "[a](../train.md) [b](from_a_log.md)"),
        ("api.md", "[a](../README.md#twelve-nouns)", "[a](index.md#twelve-nouns)"),
        ("results.md", "[a](../tests/benchmarks/README.md)", "[a](tests/benchmarks/README.md)"),
        ("tests/benchmarks/README.md", "[a](results.md)", "[a](results.md)"),
        ("tests/benchmarks/README.md", "[a](../../docs/train.md)", "[a](../../train.md)"),
        ("train.md", "[a](https://example.org/docs/train.md) [b](nothing.md) [c](#here)", None),
    ):
        assert relinked(text, page) == (wanted or text)


def test_what_is_linked_to_comes_along():
    text = "[a](../tests/benchmarks/README.md) [b](train.md) [c](../../elsewhere.md) [d](../LICENSE)"
    assert linked(text, "results.md") == {"tests/benchmarks/README.md", "LICENSE"}


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    made = (tmp_path / "site/index.html").read_text()
    assert "one ONNX file that is the whole controller" in made and 'href="train.html"' in made
    notebook = (tmp_path / "site/notebooks/first_flight.html").read_text()
    assert 'href="from_a_log.html"' in notebook and "train.html" in notebook
    assert "PolicyFile" in (tmp_path / "site/api.html").read_text()

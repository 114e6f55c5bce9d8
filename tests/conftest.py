"""Settings for all tests: hypothesis without time limits and with the same examples on every machine."""

import os

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads wait for each other when another process is busy

hypothesis.settings.register_profile("sim2metal", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("sim2metal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hil-port", default="emulated", help="serial device of a board that runs --hil-policy")
    parser.addoption("--hil-policy", default=None, help="the policy file that was exported to that board")

"""Settings for all tests: hypothesis without time limits and with the same examples on every machine."""

import os
import signal
from collections import Counter

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads wait for each other when another process is busy

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: what is started inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("sim2metal", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("sim2metal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hil-port", default="emulated", help="serial device of a board that runs --hil-policy")
    parser.addoption("--hil-policy", default=None, help="the policy file that was exported to that board")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests begin first: then no worker is at work long after the others have nothing to do."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])

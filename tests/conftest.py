"""Settings for all tests: hypothesis without time limits and with the same examples everywhere; what is thinned."""

import functools
import gc
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Hashable
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads wait for each other when another process is busy

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: what is started inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("sim2metal", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("sim2metal")


gc.disable()  # until all tests are there: to look at what stays anyway took a third of the time of collecting them


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What there is then is looked at no more: two million objects, a second each time.

    It is called in every process, also in one that lets xdist's workers collect, and also if collecting fails.
    """
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup() -> None:
    """Torch's exporter looks up all operators that it knows for each network, for a second: here once per opset."""
    registry = getattr(sys.modules.get("torch.onnx._internal.exporter._registration"), "ONNXRegistry", None)
    if registry and not hasattr(registry.from_torchlib, "cache_info"):
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hil-port", default="emulated", help="serial device of a board that runs --hil-policy")
    parser.addoption("--hil-policy", default=None, help="the policy file that was exported to that board")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of matrices marked `thinned` all but a covering set are `long`.

    Files with slow tests begin first: then no worker is at work long after the others have nothing to do.
    """
    matrices = defaultdict[Any, list[Any]](list)
    for item in items:
        if item.get_closest_marker("thinned") and not item.get_closest_marker("long"):
            matrices[item.path, item.name.partition("[")[0]].append(item)
    for variants in matrices.values():
        taken = covering(variants)
        for k, item in enumerate(variants):
            if k not in taken:
                item.add_marker(pytest.mark.long)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def covering(variants: list[Any]) -> set[int]:
    """Which of them to take, so that each value of each parameter is there once; or, of `thinned(n)`, n evenly spread.

    Greedy: always one of those that bring the most new values, and of these one whose values are taken least often.
    """
    (few,) = variants[0].get_closest_marker("thinned").args or (0,)
    if few:
        return {k * len(variants) // few for k in range(few)}
    values = [{(name, known(value)) for name, value in item.callspec.params.items()} for item in variants]
    missing, often, taken = set[Any]().union(*values), Counter[Any](), set[int]()
    while missing:
        best = max(range(len(values)), key=lambda k: (len(values[k] & missing), -sum(often[v] for v in values[k])))
        taken.add(best)
        missing -= values[best]
        often.update(values[best])
    return taken


def known(value: object) -> object:
    """The same for the same value, which may be an array."""
    return (type(value), value) if isinstance(value, Hashable) else id(value)

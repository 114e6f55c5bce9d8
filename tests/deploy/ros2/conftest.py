from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.deploy.ros2.bench import Graph


@pytest.fixture(scope="module")
def running() -> "Iterator[Graph]":
    """A robot, a policy and a supervisor on ROS 2, which is imported only here."""
    from tests.deploy.ros2.bench import GENTLE, graph

    with graph(supervisor=GENTLE) as made:
        yield made


@pytest.fixture
def lab(running: "Graph") -> "Graph":
    """They stand, and have been told nothing."""
    running.ready()
    return running

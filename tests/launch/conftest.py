"""Launch tests: by ROS 2's launch_pytest where that is installed, elsewhere by the little of it that these tests use.

Each test has a ROS domain of its own, on this machine only: no two tests hear each other, also of different sessions.
"""

import asyncio
import functools
import importlib.util
import sys
from types import ModuleType

import pytest

from deploy import launch as runner
from deploy.launching import stand_in
from deploy.launching.actions import Action
from deploy.ros2.node.network import PEERS, PROFILES, RANGE, keep_to_this_machine
from tests.deploy.ros2.domain import own_domain

REAL = runner.real_launch() and importlib.util.find_spec("launch_pytest") is not None


@pytest.fixture(autouse=True)
def domain(monkeypatch, tmp_path):
    """A ROS domain of its own, as a number, for this process and its children."""
    with own_domain() as number:
        for name in ("ROS_LOCALHOST_ONLY", PEERS, RANGE, *PROFILES):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
        here: dict[str, str] = {}
        keep_to_this_machine(here)
        for name, value in here.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "log"))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        yield number


class ReadyToTest(Action):
    """The test begins when this is visited."""

    def __init__(self):
        super().__init__()
        self.reached = asyncio.Event()

    def execute(self, context):
        self.reached.set()


def launch_fixture(function):
    """Stands in for launch_pytest.fixture: the function returns a LaunchDescription with one ReadyToTest."""
    function.is_launch = True
    return pytest.fixture(function)


def pytest_configure(config):
    config.addinivalue_line("markers", "launch(fixture): a test of what that fixture launches")
    if not REAL:
        stand_in.install()
        for name, contents in {
            "launch_pytest": {"fixture": launch_fixture},
            "launch_pytest.actions": {"ReadyToTest": ReadyToTest},
        }.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(contents)


if not REAL:

    @pytest.fixture
    def event_loop():
        loop = asyncio.new_event_loop()
        yield loop
        loop.close()

    @pytest.fixture
    def launch_service(event_loop):
        import launch

        service = launch.LaunchService()
        yield service
        service.shutdown()
        assert event_loop.run_until_complete(service.task) == 0

    @pytest.fixture
    def launch_context(launch_service):
        return launch_service.context

    def pytest_collection_modifyitems(items):
        for item in items:
            if mark := item.get_closest_marker("launch"):
                item.fixturenames += ["event_loop", mark.kwargs["fixture"].__name__]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef, request):
        description = yield
        if getattr(fixturedef.func, "is_launch", False):
            service, loop = map(request.getfixturevalue, ("launch_service", "event_loop"))
            service.include_launch_description(description)
            task = loop.create_task(service.run_async())
            (ready,) = (entity for entity in description.entities if isinstance(entity, ReadyToTest))
            reached = loop.create_task(ready.reached.wait())
            loop.run_until_complete(asyncio.wait([task, reached], return_when="FIRST_COMPLETED"))
        return description

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        """The test in a thread, while the launch goes on in this one."""
        if pyfuncitem.get_closest_marker("launch") is None:
            return None
        loop = pyfuncitem.funcargs["event_loop"]
        names = pyfuncitem._fixtureinfo.argnames
        test = functools.partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
        loop.run_until_complete(loop.run_in_executor(None, test))
        return True

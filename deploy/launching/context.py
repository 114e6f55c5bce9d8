"""Stand-in of `launch.LaunchContext`: what holds while a launch runs; and what its actions and errors are."""

from __future__ import annotations

import asyncio
import itertools
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

from deploy.launching.events import Event, EventHandler
from deploy.launching.log import Log

ELSEWHERE = "needs ROS 2's own `ros2 launch`, which is not installed"


class LaunchError(ValueError):
    """The launch file or its arguments are wrong; the message is one sentence."""


def unsupported(name: str) -> LaunchError:
    """What to say about a part of ROS 2's launch that is not here."""
    return LaunchError(f"{name} {ELSEWHERE}")


def sentence(error: BaseException) -> str:
    """What an error says, in one line; of a setting that is not here, also who has it."""
    text = error.args[0] if isinstance(error, LookupError) and error.args else error
    text = " ".join(str(text).split()) or type(error).__name__
    unknown = isinstance(error, TypeError) and "unexpected keyword argument" in text
    return f"{text}; if ROS 2 has it, it {ELSEWHERE}" if unknown else text


class Action(ABC):
    """Something that a launch description may contain."""

    @abstractmethod
    def execute(self, context: LaunchContext) -> Iterable[Action] | None:
        """Do it; what is to be done next."""


class LaunchContext:
    """Arguments, environment and event handlers, and the work that goes on in the background."""

    def __init__(self, *, argv: Iterable[str] | None = None) -> None:
        self.argv = list(argv or [])
        self.launch_configurations: dict[str, str] = {}
        self.environment = os.environ
        self.locals = SimpleNamespace(event=None)  # the event that is being answered
        self.log = Log()
        self.numbers = itertools.count(1)  # of processes
        self.parameter_files = itertools.count(1)
        self.handlers: list[EventHandler] = []
        self.events: deque[Event] = deque()  # still to be answered
        self.tasks: set[asyncio.Task[None]] = set()  # the launch lasts until they are done
        self.ending = asyncio.Event()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_shutdown(self) -> bool:
        """Whether the launch is ending."""
        return self.ending.is_set()

    def visit(self, entity: Any) -> None:
        """Do an action, and what follows from it."""
        if not isinstance(entity, Action):
            raise LaunchError(f"{entity!r} stands in a launch description, but is no action")
        for inside in entity.execute(self) or ():
            self.visit(inside)

    def register_event_handler(self, event_handler: EventHandler) -> None:
        """Answer its events from now on."""
        self.handlers.append(event_handler)

    def emit_event_sync(self, event: Event) -> None:
        """Queue an event. From any thread."""
        self.events.append(event)
        self.wake()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(lambda _: self.wake())

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the launch ends."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except TimeoutError:
            return

    def wake(self) -> None:
        """Look again whether there is something to do. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def woken(self) -> None:
        """Return when there may be something to do."""
        self._loop = asyncio.get_running_loop()
        if not self.events:
            await self._wake.wait()
        self._wake.clear()

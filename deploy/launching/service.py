"""Stand-in of `launch.LaunchService`: visit a description, then answer events till all is done."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable

from deploy.launching import events
from deploy.launching.actions import LaunchDescription
from deploy.launching.context import LaunchContext, sentence


class LaunchService:
    """Runs descriptions. `run()` gives 0, or 1 when a description or the answer to an event raised an error.

    It never asks anything, so `noninteractive` changes nothing.
    """

    def __init__(self, *, argv: Iterable[str] | None = None, noninteractive: bool = True) -> None:
        self.context = LaunchContext(argv=argv)
        self.task: asyncio.Task[int] | None = None
        self._descriptions: list[LaunchDescription] = []
        self._failed = False

    def include_launch_description(self, launch_description: LaunchDescription) -> None:
        """A description to visit."""
        self._descriptions.append(launch_description)

    def run(self) -> int:
        """Visit the descriptions; return when everything has ended."""
        return asyncio.run(self.run_async())

    async def run_async(self) -> int:
        """`run` within a running event loop."""
        self.task = asyncio.current_task()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._interrupted, number)
        self.context.log.say("INFO", "launch", f"All log files can be found below {self.context.log.folder}")
        for description in self._descriptions:
            self._guarded(self.context.visit, description)
        while self._work_left():
            await self.context.woken()
        return int(self._failed)

    def shutdown(self) -> None:
        """End everything. From any thread."""
        self.context.emit_event_sync(events.Shutdown(reason="LaunchService.shutdown() called"))

    def _work_left(self) -> bool:
        """Do what can be done now; whether there is something to wait for."""
        context = self.context
        while True:
            while context.events:
                self._guarded(self._answer, context.events.popleft())
            for task in [task for task in context.tasks if task.done()]:
                context.tasks.remove(task)
                self._guarded(task.result)
            if context.events:
                continue
            if context.tasks or context.is_shutdown:
                return bool(context.tasks)
            context.emit_event_sync(events.Shutdown(reason="idle"))

    def _answer(self, event: events.Event) -> None:
        context = self.context
        if isinstance(event, events.Shutdown):
            context.ending.set()
        context.locals.event = event
        try:
            for handler in [handler for handler in context.handlers if handler.matches(event)]:
                for entity in handler.handle(event, context):
                    context.visit(entity)
        finally:
            context.locals.event = None

    def _guarded(self, function: Callable[..., object], *arguments: object) -> None:
        """Call; an error ends the launch."""
        try:
            function(*arguments)
        except Exception as error:
            if os.environ.get("SIM2METAL_TRACEBACK"):
                traceback.print_exc()
            message = sentence(error)
            self.context.log.say("ERROR", "launch", f"Caught exception in launch: {message}")
            self._failed = True
            self.context.emit_event_sync(events.Shutdown(reason=message))

    def _interrupted(self, number: signal.Signals) -> None:
        if self.context.is_shutdown:
            self.context.log.say("WARNING", "launch", f"{number.name} again: already shutting down")
            return
        self.context.log.say("WARNING", "launch", f"user interrupted ({number.name})")
        self.context.emit_event_sync(events.Shutdown(reason=number.name))

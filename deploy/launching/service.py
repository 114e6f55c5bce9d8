"""Stand-ins of LaunchContext and LaunchService: visit a description, then answer events till all is done."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Coroutine, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from deploy.launching import events
from deploy.launching.actions import Action, LaunchDescription, LaunchDescriptionEntity, LaunchError

_COLOURS = {"WARNING": "33", "ERROR": "31"}  # as ROS 2's nodes colour their levels


class Log:
    """Lines to the screen and to files in a folder of their own, named and formatted as ros2 launch does."""

    def __init__(self) -> None:
        self._files: dict[str, IO[str]] = {}
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the files are: below ROS_LOG_DIR, ROS_HOME/log or ~/.ros/log. Created on first use."""
        if self._folder is None:
            home = Path(os.environ.get("ROS_HOME") or Path.home() / ".ros")
            above = Path(os.environ.get("ROS_LOG_DIR") or home / "log").expanduser()
            now = f"{time.strftime('%Y-%m-%d-%H-%M-%S')}-{time.time_ns() % 10**9:09}"
            name = f"{now}-{socket.gethostname()}-{os.getpid()}"
            try:
                (above / name).mkdir(parents=True)
            except OSError as error:
                raise LaunchError(f"cannot write logs below {above}: {error.strerror}; set ROS_LOG_DIR") from None
            self._folder = above / name
        return self._folder

    def _file(self, name: str) -> IO[str]:
        if name not in self._files:
            self._files[name] = (self.folder / name).open("a", encoding="utf-8")
        return self._files[name]

    def _screen(self, line: str) -> None:
        print(line, flush=True)

    def log(self, level: str, name: str, message: str) -> None:
        """A line of the runner itself, to the screen and to launch.log."""
        colour = _COLOURS.get(level) if sys.stdout.isatty() else None
        line = f"[{level}] [{name}]: {message}"
        self._screen(f"\033[{colour}m{line}\033[0m" if colour else line)
        print(f"{time.time():.7f} {line}", file=self._file("launch.log"))

    def output(self, process: str, source: str, line: str, destinations: Iterable[str]) -> None:
        """A line that a process wrote to `source`, to the screen, to launch.log ("log") or to a file of its own."""
        for destination in destinations:
            if destination == "screen":
                self._screen(line)
            elif destination == "log":
                print(f"{time.time():.7f} {line}", file=self._file("launch.log"))
            else:
                print(line, file=self._file(f"{process}-{source}.log"))
                print(line, file=self._file(f"{process}.log"))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}


class LaunchContext:
    """What holds while a description is visited: arguments, environment, event handlers, what is running."""

    def __init__(self, *, argv: Iterable[str] | None = None, noninteractive: bool = False) -> None:
        self.argv = list(argv or [])
        self.noninteractive = noninteractive
        self.launch_configurations: dict[str, Any] = {}
        self.environment = os.environ
        self.logger = Log()
        self.numbers = itertools.count(1)  # of processes
        self.files = itertools.count(1)  # of parameter files
        self.is_shutdown = False
        self.failed = False
        self.running: list[Any] = []  # processes
        self.tasks: set[asyncio.Future[Any]] = set()
        self.queue: deque[events.Event] = deque()
        self.handlers: list[Any] = []  # the newest first
        self.asyncio_loop: asyncio.AbstractEventLoop | None = None
        self.ending = asyncio.Event()
        self._locals: dict[str, Any] = {}
        self._stack: list[tuple[dict[str, Any], dict[str, str]]] = []
        self._wake = asyncio.Event()
        self._start = os.environ.copy()

    @property
    def locals(self) -> SimpleNamespace:
        """Variables of the moment: the launch file's path, the event that is being answered."""
        return SimpleNamespace(**self._locals)

    def extend_locals(self, extensions: dict[str, Any]) -> None:
        """Set variables until the event that is being answered has been."""
        self._locals = {**self._locals, **extensions}

    extend_globals = extend_locals

    def restore_locals(self, variables: dict[str, Any]) -> None:
        """Back to what `get_locals_as_dict` gave."""
        self._locals = variables

    def get_locals_as_dict(self) -> dict[str, Any]:
        """The variables of the moment."""
        return dict(self._locals)

    def perform_substitution(self, substitution: Any) -> str:
        """The text of a substitution."""
        return str(substitution.perform(self))

    def push(self) -> None:
        """Remember arguments and environment."""
        self._stack.append((dict(self.launch_configurations), dict(self.environment)))

    def pop(self) -> None:
        """Back to the arguments and the environment remembered last."""
        configurations, environment = self._stack.pop()
        self.launch_configurations = configurations
        self.environment.clear()
        self.environment.update(environment)

    def clear(self) -> None:
        """No arguments, and the environment as it was when the launch began."""
        self.launch_configurations = {}
        self.environment.clear()
        self.environment.update(self._start)

    def register_event_handler(self, event_handler: Any, append: bool = False) -> None:
        """Answer its events from now on, before the other handlers, or after them."""
        self.handlers.insert(len(self.handlers) if append else 0, event_handler)

    def unregister_event_handler(self, event_handler: Any) -> None:
        """Answer its events no more."""
        self.handlers.remove(event_handler)

    def would_handle_event(self, event: events.Event) -> bool:
        """Whether anything answers the event."""
        return any(handler.matches(event) for handler in self.handlers)

    def emit_event_sync(self, event: events.Event) -> None:
        """Queue an event. From any thread."""
        self.queue.append(event)
        self.wake()

    def wake(self) -> None:
        """Look again whether there is something to do. From any thread."""
        if self.asyncio_loop is not None and not self.asyncio_loop.is_closed():
            self.asyncio_loop.call_soon_threadsafe(self._wake.set)

    async def woken(self) -> None:
        """Return when there may be something to do."""
        await self._wake.wait()
        self._wake.clear()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background; the launch lasts until it is done."""
        assert self.asyncio_loop is not None
        self.add_completion_future(self.asyncio_loop.create_task(work))

    def add_completion_future(self, future: asyncio.Future[Any]) -> None:
        """Something the launch waits for."""
        self.tasks.add(future)
        future.add_done_callback(lambda _: self.wake())

    def after(self, period: float, action: Any, cancel_on_shutdown: bool) -> None:
        """Emit the action's TimerEvent in `period` seconds."""

        async def wait() -> None:
            if cancel_on_shutdown:
                await self.pause(period)
            else:
                await asyncio.sleep(period)
            if not action.cancelled and not (cancel_on_shutdown and self.is_shutdown):
                self.emit_event_sync(events.TimerEvent(timer_action=action))
            self.completed(action)

        self.start(wait())

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the launch ends."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except TimeoutError:
            return

    def completed(self, action: Any) -> None:
        """An action has done its part: tell those who want to know."""
        event = events.ExecutionComplete(action=action)
        if self.would_handle_event(event):
            self.emit_event_sync(event)

    def required_process_ended(self, event: events.ProcessExited) -> None:
        """A process has ended that the launch cannot do without; unless it ended cleanly, the launch has failed."""
        self.logger.log("INFO", "launch", f"process[{event.process_name}] was required: shutting down launched system")
        self.failed |= event.returncode != 0 and not self.is_shutdown


class LaunchService:
    """Runs descriptions. `run()` gives 0, or 1 when the description or a process that it requires failed."""

    def __init__(self, *, argv: Iterable[str] | None = None, noninteractive: bool = False, debug: bool = False) -> None:
        self.context = LaunchContext(argv=argv, noninteractive=noninteractive)
        self.task: asyncio.Task[Any] | None = None
        self._descriptions: list[LaunchDescription] = []

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop it runs in."""
        return self.context.asyncio_loop

    def include_launch_description(self, launch_description: LaunchDescription) -> None:
        """A description to visit."""
        self._descriptions.append(launch_description)

    def run(self, *, shutdown_when_idle: bool = True) -> int:
        """Visit the descriptions; return when everything has ended."""
        return asyncio.run(self.run_async(shutdown_when_idle=shutdown_when_idle))

    async def run_async(self, *, shutdown_when_idle: bool = True) -> int:
        """`run` within a running event loop."""
        context = self.context
        context.asyncio_loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                context.asyncio_loop.add_signal_handler(number, self._interrupted, number)
        context.logger.log("INFO", "launch", f"All log files can be found below {context.logger.folder}")
        while self._work_left(shutdown_when_idle):
            await context.woken()
        context.logger.close()
        context.asyncio_loop = None
        return int(context.failed)

    def _work_left(self, shutdown_when_idle: bool) -> bool:
        """Do what can be done now; whether there is something to wait for."""
        context = self.context
        while True:
            while self._descriptions:
                self._guarded(self._visit, self._descriptions.pop(0))
            while context.queue:
                self._guarded(self._answer, context.queue.popleft())
            for task in [task for task in context.tasks if task.done()]:
                context.tasks.remove(task)
                self._guarded(task.result)
            if context.queue or self._descriptions:
                continue
            if context.tasks or not (shutdown_when_idle or context.is_shutdown):
                return True
            if context.is_shutdown:
                return False
            context.emit_event_sync(events.Shutdown(reason="idle"))

    def shutdown(self, force_sync: bool = False) -> None:
        """End everything. From any thread."""
        self.context.emit_event_sync(events.Shutdown(reason="LaunchService.shutdown() called"))

    def _interrupted(self, number: signal.Signals) -> None:
        if self.context.is_shutdown:
            self.context.logger.log("WARNING", "launch", f"{number.name} again: already shutting down")
            return
        self.context.logger.log("WARNING", "launch", f"user interrupted ({number.name})")
        self.context.emit_event_sync(events.Shutdown(reason=number.name, due_to_sigint=number == signal.SIGINT))

    def _guarded(self, function: Any, *arguments: Any) -> None:
        """Call; an error ends the launch."""
        try:
            function(*arguments)
        except Exception as error:
            if os.environ.get("SIM2METAL_TRACEBACK"):
                traceback.print_exc()
            message = " ".join(str(error).split()) or type(error).__name__
            self.context.logger.log("ERROR", "launch", f"Caught exception in launch: {message}")
            self.context.failed = True
            self.context.emit_event_sync(events.Shutdown(reason=message))

    def _visit(self, entity: LaunchDescriptionEntity) -> None:
        more = entity.visit(self.context)
        if isinstance(entity, Action) and entity.completes_at_once:
            self.context.completed(entity)
        for inner in more or ():
            self._visit(inner)

    def _answer(self, event: events.Event) -> None:
        context = self.context
        if isinstance(event, events.Shutdown):
            if context.is_shutdown:
                return
            context.is_shutdown = True
            context.ending.set()
            for process in context.running:
                process.shut_down(context)
        before = context.get_locals_as_dict()
        context.extend_locals({"event": event})
        try:
            if isinstance(event, events.TimerEvent):
                self._visit(LaunchDescription(event.timer_action.actions))
            for process in context.running:
                process.answer(event, context)
            for handler in [handler for handler in context.handlers if handler.matches(event)]:
                if handler.handle_once:
                    context.unregister_event_handler(handler)
                answer = handler.handle(event, context)
                for entity in answer if isinstance(answer, Iterable) else [answer]:
                    if entity is not None:
                        self._visit(entity)
        finally:
            context.restore_locals(before)

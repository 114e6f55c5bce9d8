"""Stand-ins of `launch.events` and `launch.event_handlers`: what happens, and what answers it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Event:
    """Something that happened or is asked for."""


@dataclass(kw_only=True)
class Shutdown(Event):
    """The whole launch is to end."""

    reason: str = "reason not given"
    due_to_sigint: bool = False


@dataclass(kw_only=True)
class TimerEvent(Event):
    """A TimerAction's time has come."""

    timer_action: Any


@dataclass(kw_only=True)
class ExecutionComplete(Event):
    """An action has done its part; a process or a timer has ended."""

    action: Any


@dataclass(kw_only=True)
class RunningProcessEvent(Event):
    """Something about a process that was started."""

    action: Any
    process_name: str
    cmd: list[str]
    cwd: str | None
    env: dict[str, str]
    pid: int


class ProcessStarted(RunningProcessEvent):
    """A process was started."""


@dataclass(kw_only=True)
class ProcessExited(RunningProcessEvent):
    """A process has ended; returncode is -N after signal N."""

    returncode: int


@dataclass(kw_only=True)
class ProcessIO(RunningProcessEvent):
    """A process has written something."""

    text: bytes
    from_stdout: bool


@dataclass(kw_only=True)
class ShutdownProcess(Event):
    """Some processes are to end."""

    process_matcher: Callable[[Any], bool]


class SignalProcess(Event):
    """Some processes are to get a signal."""

    def __init__(self, *, signal_number: int | str, process_matcher: Callable[[Any], bool]) -> None:
        self.signal = signal.Signals[signal_number] if isinstance(signal_number, str) else signal.Signals(signal_number)
        self.process_matcher = process_matcher


def matches_action(target_action: Any) -> Callable[[Any], bool]:
    """Whether a process is that of the action."""
    return lambda action: action is target_action


def matches_name(name: str) -> Callable[[Any], bool]:
    """Whether a process is of that name."""
    return lambda action: bool(action.process_name == name)


def matches_pid(pid: int) -> Callable[[Any], bool]:
    """Whether a process has that number."""
    return lambda action: bool(action.pid == pid)


class EventHandler:
    """What to do about the events that `matcher` accepts."""

    def __init__(self, *, matcher: Callable[[Any], bool], entities: Any = None, handle_once: bool = False) -> None:
        self.matches = matcher
        self.entities = entities
        self.handle_once = handle_once

    def handle(self, event: Event, context: Any) -> Any:
        """An entity, several or None, from `entities` as they are or as a function of event and context."""
        return self.entities(event, context) if callable(self.entities) else self.entities

    def described(self) -> list[Any]:
        """The entities that are known before the event."""
        if callable(self.entities) or self.entities is None:
            return []
        return list(self.entities) if isinstance(self.entities, list | tuple) else [self.entities]


def _of_action(kind: type[Event], target: Any) -> Callable[[Any], bool]:
    def matches(event: Any) -> bool:
        if not isinstance(event, kind):
            return False
        action = event.action  # type: ignore[attr-defined]
        return target is None or target is action or (callable(target) and bool(target(action)))

    return matches


class OnProcessStart(EventHandler):
    """When a process, or any, has started."""

    def __init__(self, *, target_action: Any = None, on_start: Any, handle_once: bool = False) -> None:
        super().__init__(matcher=_of_action(ProcessStarted, target_action), entities=on_start, handle_once=handle_once)


class OnProcessExit(EventHandler):
    """When a process, or any, has ended."""

    def __init__(self, *, target_action: Any = None, on_exit: Any, handle_once: bool = False) -> None:
        super().__init__(matcher=_of_action(ProcessExited, target_action), entities=on_exit, handle_once=handle_once)


class OnExecutionComplete(EventHandler):
    """When an action, or any, has done its part."""

    def __init__(self, *, target_action: Any = None, on_completion: Any, handle_once: bool = False) -> None:
        super().__init__(
            matcher=_of_action(ExecutionComplete, target_action), entities=on_completion, handle_once=handle_once
        )


class OnProcessIO(EventHandler):
    """When a process, or any, has written something; the functions take the event."""

    def __init__(
        self,
        *,
        target_action: Any = None,
        on_stdout: Callable[[ProcessIO], Any] | None = None,
        on_stderr: Callable[[ProcessIO], Any] | None = None,
        handle_once: bool = False,
    ) -> None:
        super().__init__(matcher=_of_action(ProcessIO, target_action), handle_once=handle_once)
        self._functions = {True: on_stdout, False: on_stderr}

    def handle(self, event: Any, context: Any) -> Any:
        function = self._functions[event.from_stdout]
        return function(event) if function else None


class OnShutdown(EventHandler):
    """When the launch ends."""

    def __init__(self, *, on_shutdown: Any, handle_once: bool = False) -> None:
        super().__init__(
            matcher=lambda event: isinstance(event, Shutdown), entities=on_shutdown, handle_once=handle_once
        )

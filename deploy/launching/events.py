"""Stand-ins of `launch.events` and `launch.event_handlers`: what happens, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Event:
    """Something that happened or is asked for."""


@dataclass(kw_only=True)
class Shutdown(Event):
    """The whole launch is to end."""

    reason: str = "reason not given"


@dataclass(kw_only=True)
class ProcessStarted(Event):
    """A process was started."""

    action: Any
    process_name: str
    pid: int


@dataclass(kw_only=True)
class ProcessExited(ProcessStarted):
    """A process has ended; returncode is -N after signal N."""

    returncode: int


def matches_action(target_action: Any) -> Callable[[Any], bool]:
    """Whether a process is that of the action."""
    return lambda action: action is target_action


class EventHandler:
    """What to do about the events that `matcher` accepts: actions, or a function of event and context giving some."""

    def __init__(self, *, matcher: Callable[[Any], bool], entities: Any) -> None:
        self.matches = matcher
        self._entities = entities

    def handle(self, event: Event, context: Any) -> list[Any]:
        """The actions to do."""
        found = self._entities(event, context) if callable(self._entities) else self._entities
        return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


class OnProcessStart(EventHandler):
    """When a process has started."""

    def __init__(self, *, target_action: Any, on_start: Any) -> None:
        super().__init__(matcher=lambda e: type(e) is ProcessStarted and e.action is target_action, entities=on_start)


class OnProcessExit(EventHandler):
    """When a process has ended."""

    def __init__(self, *, target_action: Any, on_exit: Any) -> None:
        super().__init__(matcher=lambda e: type(e) is ProcessExited and e.action is target_action, entities=on_exit)

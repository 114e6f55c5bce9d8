"""Stand-ins of `launch.actions` but for processes, and of Python launch files as a source of descriptions."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from deploy.launching import events
from deploy.launching.context import Action, LaunchContext, LaunchError, sentence, unsupported


class LaunchDescription(Action):
    """A list of actions, done in order."""

    def __init__(self, initial_entities: Iterable[Action] | None = None) -> None:
        self.entities = list(initial_entities or [])

    def execute(self, context: LaunchContext) -> Iterable[Action]:
        return self.entities

    def get_launch_arguments(self) -> list[DeclareLaunchArgument]:
        """The arguments that are declared here."""
        return [entity for entity in self.entities if isinstance(entity, DeclareLaunchArgument)]


@dataclass(eq=False)
class DeclareLaunchArgument(Action):
    """An argument of the launch file."""

    name: str
    _: KW_ONLY
    default_value: Any = None
    description: str = "no description given"
    choices: list[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.default_value, str | None):
            raise unsupported(f"launch argument {self.name!r}: the default {self.default_value!r}")
        if self.choices and self.default_value is not None and self.default_value not in self.choices:
            raise LaunchError(f"launch argument {self.name!r}: its default {self.default_value!r} is no choice")
        if self.choices:
            self.description = f"{self.description.removesuffix('.')}. Valid choices are: {self.choices}"

    def execute(self, context: LaunchContext) -> None:
        value = context.launch_configurations.get(self.name, self.default_value)
        if value is None:
            raise LaunchError(f"launch argument {self.name}:=... is missing: {self.description}")
        if self.choices is not None and value not in self.choices:
            raise LaunchError(f"{self.name}:={value} is not one of: {', '.join(self.choices)}")
        context.launch_configurations[self.name] = value


@dataclass(eq=False)
class SetEnvironmentVariable(Action):
    """Give an environment variable a value."""

    name: str
    value: str

    def execute(self, context: LaunchContext) -> None:
        context.environment[self.name] = self.value


@dataclass(eq=False, kw_only=True)
class OpaqueFunction(Action):
    """A function of the context; what it returns is done next."""

    function: Callable[[LaunchContext], Iterable[Action] | None]

    def execute(self, context: LaunchContext) -> Iterable[Action] | None:
        return self.function(context)


@dataclass(eq=False)
class RegisterEventHandler(Action):
    """Answer events from now on."""

    event_handler: events.EventHandler

    def execute(self, context: LaunchContext) -> None:
        context.register_event_handler(self.event_handler)


@dataclass(eq=False, kw_only=True)
class EmitEvent(Action):
    """Cause an event."""

    event: events.Event

    def execute(self, context: LaunchContext) -> None:
        context.emit_event_sync(self.event)


@dataclass(eq=False, kw_only=True)
class Shutdown(Action):
    """End the launch."""

    reason: str = "reason not given"

    def execute(self, context: LaunchContext) -> None:
        cause = context.locals.event
        if isinstance(cause, events.ProcessExited):
            said = f"process[{cause.process_name}] was required: shutting down launched system"
            context.log.say("INFO", "launch", said)
        context.emit_event_sync(events.Shutdown(reason=self.reason))


@dataclass(eq=False, kw_only=True)
class TimerAction(Action):
    """Actions to do after `period` seconds, unless the launch ends before."""

    period: float
    actions: Iterable[Action]

    def execute(self, context: LaunchContext) -> None:
        context.start(self._wait(context))

    async def _wait(self, context: LaunchContext) -> None:
        await context.pause(self.period)
        if not context.is_shutdown:
            context.visit(LaunchDescription(self.actions))


@dataclass(eq=False)
class PythonLaunchDescriptionSource:
    """A Python launch file."""

    path: str

    def get_launch_description(self, context: LaunchContext) -> LaunchDescription:
        """What its generate_launch_description() returns."""
        return _description_of(self.path)


class AnyLaunchDescriptionSource(PythonLaunchDescriptionSource):
    """A launch file of any kind; here all are Python's."""


@dataclass(eq=False)
class IncludeLaunchDescription(Action):
    """Another launch file's description, with arguments, which stay set."""

    launch_description_source: PythonLaunchDescriptionSource
    _: KW_ONLY
    launch_arguments: Iterable[tuple[str, str]] = ()

    def execute(self, context: LaunchContext) -> Iterable[Action]:
        context.launch_configurations.update(self.launch_arguments)
        return [self.launch_description_source.get_launch_description(context)]


def explained(path: str, error: Exception) -> LaunchError:
    """One sentence about an error in a launch file's code, with the line of the file."""
    if isinstance(error, LaunchError):
        return error
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] in ("launch", "launch_ros"):
        return unsupported(str(error.name))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    return LaunchError(f"launch file {path}, line {line}: {type(error).__name__}: {sentence(error)}")


def _description_of(path: str) -> LaunchDescription:
    if not Path(path).is_file():
        raise LaunchError(f"there is no launch file {path!r}")
    if not path.endswith(".py"):
        raise unsupported(f"launch file {path!r}: only Python launch files run here; another one")
    loader = SourceFileLoader("python_launch_file", path)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    try:
        loader.exec_module(module)
        if not hasattr(module, "generate_launch_description"):
            raise LaunchError(f"launch file {path!r} has no function generate_launch_description()")
        description = module.generate_launch_description()
    except Exception as error:
        raise explained(path, error) from error
    if not isinstance(description, LaunchDescription):
        raise LaunchError(f"launch file {path!r}: generate_launch_description() returned {description!r}")
    return description

"""Stand-ins of `launch.actions`, `launch.conditions` and `launch.launch_description_sources`, but for processes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, ClassVar

from deploy.launching import events
from deploy.launching.substitutions import (
    SubstitutionFailure,
    normalize_to_list_of_substitutions,
    perform_substitutions,
    typed,
)


class LaunchError(ValueError):
    """The launch file or its arguments are wrong; the message is one sentence."""


def unsupported(name: str) -> LaunchError:
    """What to say about a part of ROS 2's launch that is not here."""
    return LaunchError(f"{name} needs ROS 2's own launch, which is not installed")


class LaunchDescriptionEntity:
    """Anything that a description may contain."""

    def visit(self, context: Any) -> Iterable[LaunchDescriptionEntity] | None:
        """Do it; what is to be visited next."""
        return None

    def known(self) -> tuple[Iterable[LaunchDescriptionEntity], bool]:
        """What it contains as far as that is known before it runs, and whether only under a condition."""
        return [], False


class LaunchDescription(LaunchDescriptionEntity):
    """A list of entities, visited in order."""

    def __init__(self, initial_entities: Iterable[Any] | None = None, *, deprecated_reason: str | None = None) -> None:
        self.entities = list(initial_entities or [])
        self.deprecated_reason = deprecated_reason

    def add_action(self, action: Any) -> None:
        """Append an action."""
        self.entities.append(action)

    add_entity = add_action

    def visit(self, context: Any) -> Iterable[LaunchDescriptionEntity]:
        if self.deprecated_reason:
            context.logger.log("WARNING", "launch", f"deprecated launch description: {self.deprecated_reason}")
        return self.entities

    def known(self) -> tuple[Iterable[LaunchDescriptionEntity], bool]:
        return self.entities, False

    def get_launch_arguments(self) -> list[DeclareLaunchArgument]:
        """All arguments that are declared here and in what is included, the first of a name."""
        found: dict[str, DeclareLaunchArgument] = {}

        def search(entities: Iterable[Any], conditional: bool) -> None:
            for entity in entities:
                if isinstance(entity, DeclareLaunchArgument) and entity.name not in found:
                    entity.conditional = conditional or entity.condition is not None
                    found[entity.name] = entity
                inside, only_if = entity.known()
                search(inside, only_if)

        search(self.entities, False)
        return list(found.values())


# Conditions


class Condition:
    """Whether an action is to be done."""

    def __init__(self, *, predicate: Callable[[Any], bool]) -> None:
        self.predicate = predicate

    def evaluate(self, context: Any) -> bool:
        """True to do it."""
        return self.predicate(context)


def evaluate_condition_expression(context: Any, expression: Any) -> bool:
    """True for true and 1, False for false and 0, in any case; LaunchError for anything else."""
    text = perform_substitutions(context, expression).strip().lower()
    if text not in ("true", "1", "false", "0"):
        raise LaunchError(f"condition {text!r} is not one of: true, 1, false, 0")
    return text in ("true", "1")


class IfCondition(Condition):
    """Do it if the text is true."""

    def __init__(self, predicate_expression: Any) -> None:
        normalize_to_list_of_substitutions(predicate_expression)
        super().__init__(predicate=lambda context: evaluate_condition_expression(context, predicate_expression))


class UnlessCondition(Condition):
    """Do it unless the text is true."""

    def __init__(self, predicate_expression: Any) -> None:
        normalize_to_list_of_substitutions(predicate_expression)
        super().__init__(predicate=lambda context: not evaluate_condition_expression(context, predicate_expression))


def _configuration_equals(context: Any, name: str, expected: Any) -> bool:
    value = context.launch_configurations.get(name)
    return bool(value is None if expected is None else value == perform_substitutions(context, expected))


class LaunchConfigurationEquals(Condition):
    """Do it if a launch argument has that value."""

    def __init__(self, launch_configuration_name: str, expected_value: Any) -> None:
        super().__init__(predicate=lambda c: _configuration_equals(c, launch_configuration_name, expected_value))


class LaunchConfigurationNotEquals(Condition):
    """Do it unless a launch argument has that value."""

    def __init__(self, launch_configuration_name: str, expected_value: Any) -> None:
        super().__init__(predicate=lambda c: not _configuration_equals(c, launch_configuration_name, expected_value))


# Actions


@dataclass(eq=False, kw_only=True)
class Action(LaunchDescriptionEntity):
    """Something to do, under a condition. Subclasses carry out `execute`."""

    condition: Condition | None = None
    completes_at_once: ClassVar[bool] = True  # False: it goes on after `execute`, and says when it has done its part

    def visit(self, context: Any) -> Iterable[LaunchDescriptionEntity] | None:
        if self.condition is not None and not self.condition.evaluate(context):
            return None
        return self.execute(context)

    def execute(self, context: Any) -> Iterable[LaunchDescriptionEntity] | None:
        """Do it; what is to be visited next."""
        return None

    def contains(self) -> Iterable[LaunchDescriptionEntity]:
        """What it contains as far as that is known before it runs."""
        return []

    def known(self) -> tuple[Iterable[LaunchDescriptionEntity], bool]:
        return self.contains(), self.condition is not None


@dataclass(eq=False)
class DeclareLaunchArgument(Action):
    """An argument of the launch file."""

    name: str
    _: KW_ONLY
    default_value: Any = None
    description: str | None = None
    choices: list[str] | None = None
    conditional: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.choices is not None and not self.choices:
            raise LaunchError(f"launch argument {self.name!r}: choices is empty")
        if self.choices and isinstance(self.default_value, str) and self.default_value not in self.choices:
            raise LaunchError(f"launch argument {self.name!r}: its default {self.default_value!r} is no choice")
        if self.description is None:
            self.description = f"One of: {self.choices}" if self.choices else "no description given"
        elif self.choices:
            self.description = f"{self.description.removesuffix('.')}. Valid choices are: {self.choices}"

    def check(self, value: str) -> None:
        """LaunchError unless the value is a choice."""
        if self.choices is not None and value not in self.choices:
            raise LaunchError(f"{self.name}:={value} is not one of: {', '.join(self.choices)}")

    def missing(self) -> LaunchError:
        """What to say when there is neither value nor default."""
        return LaunchError(f"launch argument {self.name}:=... is missing: {self.description}")

    def execute(self, context: Any) -> None:
        if self.name not in context.launch_configurations:
            if self.default_value is None:
                raise self.missing()
            context.launch_configurations[self.name] = perform_substitutions(context, self.default_value)
        self.check(context.launch_configurations[self.name])


@dataclass(eq=False)
class SetLaunchConfiguration(Action):
    """Give a launch argument a value."""

    name: Any
    value: Any

    def execute(self, context: Any) -> None:
        name = perform_substitutions(context, self.name)
        context.launch_configurations[name] = perform_substitutions(context, self.value)


@dataclass(eq=False)
class UnsetLaunchConfiguration(Action):
    """Forget a launch argument."""

    name: Any

    def execute(self, context: Any) -> None:
        context.launch_configurations.pop(perform_substitutions(context, self.name), None)


@dataclass(eq=False)
class SetEnvironmentVariable(Action):
    """Give an environment variable a value."""

    name: Any
    value: Any

    def execute(self, context: Any) -> None:
        context.environment[perform_substitutions(context, self.name)] = perform_substitutions(context, self.value)


@dataclass(eq=False)
class UnsetEnvironmentVariable(Action):
    """Forget an environment variable."""

    name: Any

    def execute(self, context: Any) -> None:
        context.environment.pop(perform_substitutions(context, self.name), None)


@dataclass(eq=False)
class AppendEnvironmentVariable(Action):
    """Lengthen an environment variable, or set it."""

    name: Any
    value: Any
    prepend: Any = False
    separator: Any = os.pathsep

    def execute(self, context: Any) -> None:
        name = perform_substitutions(context, self.name)
        parts = [context.environment[name]] if name in context.environment else []
        parts.insert(
            0 if typed(context, self.prepend, bool) else len(parts), perform_substitutions(context, self.value)
        )
        context.environment[name] = perform_substitutions(context, self.separator).join(parts)


@dataclass(eq=False)
class GroupAction(Action):
    """Several actions; with `scoped`, what they set ends with them."""

    actions: Iterable[Any]
    _: KW_ONLY
    scoped: bool = True
    forwarding: bool = True
    launch_configurations: Mapping[Any, Any] | None = None

    def __post_init__(self) -> None:
        self.actions = list(self.actions)

    def contains(self) -> Iterable[LaunchDescriptionEntity]:
        return self.actions

    def execute(self, context: Any) -> Iterable[LaunchDescriptionEntity]:
        own = {
            perform_substitutions(context, name): perform_substitutions(context, value)
            for name, value in (self.launch_configurations or {}).items()
        }
        if not self.scoped:
            context.launch_configurations.update(own)
            return self.actions
        context.push()
        if not self.forwarding:
            context.clear()
        context.launch_configurations.update(own)
        return [*self.actions, OpaqueFunction(function=lambda context: context.pop())]


@dataclass(eq=False, kw_only=True)
class OpaqueFunction(Action):
    """A function of the context; what it returns is visited."""

    function: Callable[..., Any]
    args: Iterable[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"OpaqueFunction(function={self.function!r}): is not a function")

    def execute(self, context: Any) -> Any:
        return self.function(context, *(self.args or ()), **(self.kwargs or {}))


@dataclass(eq=False, kw_only=True)
class LogInfo(Action):
    """Print a line."""

    msg: Any

    def execute(self, context: Any) -> None:
        context.logger.log("INFO", "launch.user", perform_substitutions(context, self.msg))


@dataclass(eq=False)
class RegisterEventHandler(Action):
    """Answer events from now on."""

    event_handler: Any

    def contains(self) -> Iterable[LaunchDescriptionEntity]:
        return self.event_handler.described()  # type: ignore[no-any-return]

    def known(self) -> tuple[Iterable[LaunchDescriptionEntity], bool]:
        return self.contains(), True

    def execute(self, context: Any) -> None:
        context.register_event_handler(self.event_handler)


@dataclass(eq=False)
class UnregisterEventHandler(Action):
    """Answer those events no more."""

    event_handler: Any

    def execute(self, context: Any) -> None:
        context.unregister_event_handler(self.event_handler)


@dataclass(eq=False, kw_only=True)
class EmitEvent(Action):
    """Cause an event."""

    event: events.Event

    def execute(self, context: Any) -> None:
        context.emit_event_sync(self.event)


@dataclass(eq=False, kw_only=True)
class Shutdown(Action):
    """End the launch. As the answer to a process that failed, the launch has failed, too."""

    reason: Any = "reason not given"

    def execute(self, context: Any) -> None:
        cause = getattr(context.locals, "event", None)
        if isinstance(cause, events.ProcessExited):
            context.required_process_ended(cause)
        context.emit_event_sync(events.Shutdown(reason=perform_substitutions(context, self.reason)))


@dataclass(eq=False, kw_only=True)
class TimerAction(Action):
    """Actions to do after `period` seconds."""

    period: Any
    actions: Iterable[Any]
    cancel_on_shutdown: Any = True
    completes_at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.actions = list(self.actions)
        self.cancelled = False

    def known(self) -> tuple[Iterable[LaunchDescriptionEntity], bool]:
        return self.actions, True

    def cancel(self) -> None:
        """Do them not."""
        self.cancelled = True

    def execute(self, context: Any) -> None:
        period = typed(context, self.period, float)
        context.after(period, self, typed(context, self.cancel_on_shutdown, bool))


# What is included


class LaunchDescriptionSource:
    """Where an included description comes from."""

    def __init__(self, launch_description: LaunchDescription | None = None, location: Any = "<string>") -> None:
        self.launch_description = launch_description
        self.location = location

    def read(self, context: Any) -> tuple[LaunchDescription, str]:
        """The description and its path."""
        location = perform_substitutions(context, self.location)
        return self.launch_description or description_of(location), location

    def get_launch_description(self, context: Any) -> LaunchDescription:
        """The description."""
        return self.read(context)[0]


class PythonLaunchDescriptionSource(LaunchDescriptionSource):
    """A Python launch file."""

    def __init__(self, launch_file_path: Any) -> None:
        super().__init__(None, launch_file_path)


AnyLaunchDescriptionSource = PythonLaunchDescriptionSource


def explained(path: str, error: Exception) -> LaunchError:
    """One sentence about an error in a launch file's code, with the line of the file."""
    if isinstance(error, LaunchError):
        return error
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] in ("launch", "launch_ros"):
        return unsupported(str(error.name))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    text = error.args[0] if isinstance(error, LookupError) and error.args else error
    return LaunchError(f"launch file {path}, line {line}: {type(error).__name__}: {' '.join(str(text).split())}")


def description_of(path: str) -> LaunchDescription:
    """What the launch file's generate_launch_description() returns. LaunchError when there is no such file."""
    if not Path(path).is_file():
        raise LaunchError(f"there is no launch file {path!r}")
    if not path.endswith(".py"):
        raise LaunchError(f"launch file {path!r}: only Python launch files run without ROS 2's launch")
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


@dataclass(eq=False)
class IncludeLaunchDescription(Action):
    """Another launch file's description, with arguments. What it sets stays set, unless a GroupAction is around it."""

    launch_description_source: Any
    _: KW_ONLY
    launch_arguments: Iterable[tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        self.launch_arguments = list(self.launch_arguments or [])
        if not isinstance(self.launch_description_source, LaunchDescriptionSource):
            self.launch_description_source = AnyLaunchDescriptionSource(self.launch_description_source)

    def contains(self) -> Iterable[LaunchDescriptionEntity]:
        from deploy.launching.service import LaunchContext

        try:
            return [self.launch_description_source.get_launch_description(LaunchContext())]
        except (SubstitutionFailure, LaunchError, LookupError, OSError):
            return []  # its path depends on what is known only later, or it is not installed: as ROS 2 does

    def execute(self, context: Any) -> Iterable[LaunchDescriptionEntity]:
        description, path = self.launch_description_source.read(context)
        path, before = os.path.abspath(path), context.get_locals_as_dict()
        context.extend_locals(
            {"current_launch_file_path": path, "current_launch_file_directory": os.path.dirname(path)}
        )
        given = [perform_substitutions(context, name) for name, _ in self.launch_arguments or []]
        for argument in description.get_launch_arguments():
            known = argument.name in given or argument.name in context.launch_configurations
            if argument.default_value is None and not argument.conditional and not known:
                raise argument.missing()
        sets = [SetLaunchConfiguration(name, value) for name, value in self.launch_arguments or []]
        return [*sets, description, OpaqueFunction(function=lambda context: context.restore_locals(before))]

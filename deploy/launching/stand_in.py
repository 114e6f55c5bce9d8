"""Puts modules `launch` and `launch_ros` in place, for launch files to import where ROS 2's own are not installed.

They hold what the launch files of public robots use (counted in 42 files of Nav2 and Crazyswarm2). Any other name is
refused when it is imported; actions that such files contain but need not run, when they are run.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from deploy.launching import actions, events, lifecycle, processes, ros, service, substitutions


def _refused(module: str, name: str) -> type:
    """An action that can be written in a launch file, but not run."""

    class Refused(actions.Action):
        def __init__(self, *arguments: Any, condition: Any = None, **settings: Any) -> None:
            super().__init__(condition=condition)

        def execute(self, context: Any) -> None:
            raise actions.unsupported(f"{module}.{name}")

    return Refused


def _public(module: ModuleType, *kinds: type) -> dict[str, Any]:
    """The classes of a module that are of one of the kinds."""
    return {name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, kinds)}


def _everything() -> dict[str, dict[str, Any]]:
    """{module: {name: stand-in}}"""
    conditions = _public(actions, actions.Condition)
    sources = _public(actions, actions.LaunchDescriptionSource)
    texts = {
        **_public(substitutions, substitutions.Substitution),
        "SubstitutionFailure": substitutions.SubstitutionFailure,
    }
    handlers = _public(events, events.EventHandler)
    processing = {
        name: getattr(events, name)
        for name in ("ProcessStarted", "ProcessExited", "ProcessIO", "ShutdownProcess", "SignalProcess")
    } | {name: getattr(events, name) for name in ("matches_name", "matches_pid")}
    happening = {
        name: getattr(events, name) for name in ("Shutdown", "TimerEvent", "ExecutionComplete", "matches_action")
    }
    doing = _public(actions, actions.Action) | {"ExecuteProcess": processes.ExecuteProcess}
    functions = {
        name: getattr(substitutions, name) for name in ("normalize_to_list_of_substitutions", "perform_substitutions")
    }
    core = {
        "Action": actions.Action,
        "Condition": actions.Condition,
        "Event": events.Event,
        "EventHandler": events.EventHandler,
        "LaunchContext": service.LaunchContext,
        "LaunchDescription": actions.LaunchDescription,
        "LaunchDescriptionEntity": actions.LaunchDescriptionEntity,
        "LaunchDescriptionSource": actions.LaunchDescriptionSource,
        "LaunchService": service.LaunchService,
        "SomeSubstitutionsType": Any,
        "Substitution": substitutions.Substitution,
    }
    nodes = _public(ros, actions.Action) | _public(lifecycle, actions.Action)
    nodes["PushRosNamespace"] = ros.PushROSNamespace
    for name in ("ComposableNodeContainer", "LoadComposableNodes", "LifecycleTransition", "ROSTimer", "SetUseSimTime"):
        nodes[name] = _refused("launch_ros.actions", name)
    values = {name: getattr(ros, name) for name in ("Parameter", "ParameterFile", "ParameterValue")}
    return {
        "launch": core,
        "launch.action": {"Action": actions.Action},
        "launch.actions": doing,
        "launch.conditions": {**conditions, "evaluate_condition_expression": actions.evaluate_condition_expression},
        "launch.event_handlers": handlers,
        "launch.events": happening,
        "launch.events.process": processing,
        "launch.launch_context": {"LaunchContext": service.LaunchContext},
        "launch.launch_description": {"LaunchDescription": actions.LaunchDescription},
        "launch.launch_description_sources": sources,
        "launch.some_substitutions_type": {"SomeSubstitutionsType": Any},
        "launch.substitution": {"Substitution": substitutions.Substitution},
        "launch.substitutions": texts,
        "launch.utilities": functions,
        "launch_ros": {},
        "launch_ros.actions": nodes,
        "launch_ros.descriptions": {**values, "ComposableNode": ros.ComposableNode},
        "launch_ros.event_handlers": {"OnStateTransition": lifecycle.OnStateTransition},
        "launch_ros.events": {"matches_node_name": lifecycle.matches_node_name},
        "launch_ros.events.lifecycle": {
            name: getattr(lifecycle, name) for name in ("ChangeState", "StateTransition", "matches_node_name")
        },
        "launch_ros.events.matchers": {"matches_node_name": lifecycle.matches_node_name},
        "launch_ros.parameter_descriptions": values,
        "launch_ros.substitutions": {
            name: getattr(ros, name) for name in ("FindPackageShare", "FindPackagePrefix", "ExecutableInPackage")
        },
    }


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise actions.unsupported(f"{self.__name__}.{name}")


def install() -> None:
    """Make `import launch`, `from launch_ros.actions import Node` and so on find the stand-ins."""
    for name, contents in _everything().items():
        module = _StandIn(name)
        module.__path__ = []
        vars(module).update(contents)
        sys.modules[name] = module
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)

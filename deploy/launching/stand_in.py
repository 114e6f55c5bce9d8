"""Puts modules `launch` and `launch_ros` in place, for launch files to import where ROS 2's own are not installed.

They hold what this project's launch files use. Any other name is refused when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from deploy.launching import actions, context, events, lifecycle, processes, ros, service

MODULES: dict[str, tuple[Callable[..., Any], ...]] = {
    "launch": (actions.LaunchDescription, context.LaunchContext, service.LaunchService),
    "launch.actions": (
        actions.DeclareLaunchArgument,
        actions.EmitEvent,
        processes.ExecuteProcess,
        actions.IncludeLaunchDescription,
        actions.OpaqueFunction,
        actions.RegisterEventHandler,
        actions.SetEnvironmentVariable,
        actions.Shutdown,
        actions.TimerAction,
    ),
    "launch.event_handlers": (events.OnProcessExit, events.OnProcessStart),
    "launch.events": (events.matches_action,),
    "launch.launch_description_sources": (
        actions.AnyLaunchDescriptionSource,
        actions.PythonLaunchDescriptionSource,
    ),
    "launch_ros": (),
    "launch_ros.actions": (ros.Node, lifecycle.LifecycleNode),
    "launch_ros.event_handlers": (lifecycle.OnStateTransition,),
    "launch_ros.events": (),
    "launch_ros.events.lifecycle": (lifecycle.ChangeState,),
}


class _StandIn(ModuleType):
    __path__: list[str] = []  # a package, without files

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise context.unsupported(f"{self.__name__}.{name}")


def install() -> None:
    """Make `import launch`, `from launch_ros.actions import Node` and so on find the stand-ins."""
    for name, contents in MODULES.items():
        module = _StandIn(name)
        vars(module).update({one.__name__: one for one in contents})
        sys.modules[name] = module
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)

"""What this project's launch files share, written against the API of ROS 2's `launch`: its nodes, and failing as one.

Call these from a launch file only: `launch` is then ROS 2's own or the stand-in of `deploy.launch`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ament_index_python.resources import has_resource

from deploy.launching import declared
from deploy.ros2.node import network
from deploy.system.interrupts import LANDING
from deploy.trust.interpreter import python

PACKAGE = "sim2metal"
# s after SIGINT and after SIGTERM: until SIGKILL there is time for a landing.
ENDING = {"sigterm_timeout": "10", "sigkill_timeout": f"{LANDING:g}"}


def _installed() -> bool:
    """Whether ROS 2's index knows this package: after `pip install` or colcon, not in an editable checkout."""
    try:
        return bool(has_resource("packages", PACKAGE))
    except OSError:  # AMENT_PREFIX_PATH is not set
        return False


def node(
    executable: str,
    *,
    name: str | None = None,
    namespace: str | None = None,
    parameters: list[Any] | None = None,
    remappings: Iterable[tuple[str, str]] | None = None,
) -> Any:
    """A node of this project: `ros2 run sim2metal executable`, or the same module where the index does not know it."""
    from launch_ros.actions import Node

    where: dict[str, Any] = {"package": PACKAGE, "executable": executable}
    if not _installed():
        program, *options = python()
        where = {"executable": program, "arguments": [*options, "-u", "-m", f"deploy.ros2.{executable}"]}
    if secured():
        parts = (PACKAGE, (namespace or "").strip("/"), executable.removesuffix("_node"))
        enclave = "/" + "/".join(part for part in parts if part)
        where["arguments"] = [*where.get("arguments", []), "--ros-args", "--enclave", enclave, "--"]
    return Node(
        **where,
        exec_name=executable,
        name=name,
        namespace=namespace,
        parameters=parameters,
        remappings=remappings,
        output="screen",
        **ENDING,
    )


def secured() -> bool:
    """Whether ROS 2 was told to encrypt: each node then has an enclave of its own (`deploy/ros2/security.py`)."""
    return os.environ.get("ROS_SECURITY_ENABLE", "").lower() == "true"


def reach() -> Any:
    """The argument `network` of a launch file."""
    from launch.actions import DeclareLaunchArgument

    return DeclareLaunchArgument(
        "network", default_value="false", description="true: heard beyond this machine, as ROS 2 itself does."
    )


def reaching(given: Mapping[str, str]) -> list[Any]:
    """What keeps the launch's processes to this machine, unless `network` or the environment says otherwise.

    `given` are the launch configurations; put it before the processes.
    """
    from launch.actions import SetEnvironmentVariable

    wanted = dict(os.environ)
    if flag(given["network"]):
        wanted[network.NETWORK] = "1"
    network.keep_to_this_machine(wanted)
    changed = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    return [SetEnvironmentVariable(name, value) for name, value in changed.items()]


def signatures() -> list[Any]:
    """The arguments `trust` and `require_signature` of a launch file."""
    from launch.actions import DeclareLaunchArgument

    return [
        DeclareLaunchArgument("trust", default_value="", description="Folder of trusted keys NAME.pub."),
        DeclareLaunchArgument("require_signature", default_value="false", description="Fly only what they signed."),
    ]


def trusting(given: Mapping[str, str]) -> dict[str, Any]:
    """The policy node's parameters for those."""
    return {"trust": given["trust"], "require_signature": flag(given["require_signature"])}


def command(module: str, *words: str) -> Any:
    """A command of this project as a process: `python -m module word ...`."""
    from launch.actions import ExecuteProcess

    return ExecuteProcess(
        cmd=[*python(), "-u", "-m", module, *words],
        name=module.rpartition(".")[2],
        output="screen",
        **ENDING,
    )


def _ended(event: Any, context: Any) -> list[Any] | None:
    from launch.actions import Shutdown

    if context.is_shutdown:
        return None
    if event.returncode != 0:  # an exception is what makes `ros2 launch` exit with another status than 0
        raise RuntimeError(f"{event.process_name} is required and ended with exit code {event.returncode}")
    return [Shutdown(reason=f"{event.process_name} has finished")]


def required(*processes: Any) -> list[Any]:
    """The processes; when one ends, all end, and `ros2 launch` fails unless it ended with exit status 0."""
    from launch.actions import RegisterEventHandler
    from launch.event_handlers import OnProcessExit

    handlers = [RegisterEventHandler(OnProcessExit(target_action=p, on_exit=_ended)) for p in processes]
    return [*handlers, *processes]


def nodes(given: Mapping[str, str], parameters: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """The nodes NAME_node with their `parameters` by name; the launch ends with one of them, or when its time is over.

    `given` are the launch configurations: namespace, params_file, seconds (0: for ever), and remap if there is that.
    """
    processes = required(
        *(
            node(
                f"{name}_node",
                name=name,
                namespace=given["namespace"] or None,
                parameters=[given["params_file"], values],
                remappings=remappings(given.get("remap", "")),
            )
            for name, values in parameters.items()
        )
    )
    seconds = float(given["seconds"])
    return [*processes, end_after(seconds)] if seconds else processes


def end_after(seconds: float) -> Any:
    """End the launch in so many seconds."""
    from launch.actions import Shutdown, TimerAction

    return TimerAction(period=seconds, actions=[Shutdown(reason="its time is over")])


def flag(text: str) -> bool:
    """Whether a checked launch argument is true."""
    return text.lower() in ("true", "1")


def remappings(text: str) -> list[tuple[str, str]]:
    """[(from, to), ...] of from:=to,from:=to"""
    pairs = [pair.partition(":=") for pair in text.split(",") if pair]
    if any(not source or not target for source, _, target in pairs):
        raise ValueError(f"remap:={text}: needs from:=to,from:=to")
    return [(source, target) for source, _, target in pairs]


def checked(file: str, declarations: list[Any], numbers: Mapping[str, type] | None = None) -> list[Any]:
    """The declarations, and a look at what was given: `ros2 launch` itself ignores misspelt names and wrong types.

    `numbers`: {argument: int, float or bool}. The names are looked at only where `file` itself was launched.
    """
    from launch.actions import OpaqueFunction

    def look(context: Any) -> None:
        if any(Path(word).name == Path(file).name for word in sys.argv):
            declared.check(declared.given([word for word in context.argv if ":=" in word]), declarations)
        for name, kind in (numbers or {}).items():
            text = context.launch_configurations[name]
            try:
                fits = text.lower() in ("true", "false", "1", "0") if kind is bool else kind(text) >= 0
            except ValueError:
                fits = False
            if not fits:
                wanted = {int: "a whole number", float: "a number, not negative", bool: "true or false"}[kind]
                raise ValueError(f"{name}:={text} is not {wanted}")

    return [*declarations, OpaqueFunction(function=look)]

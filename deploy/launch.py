"""python -m deploy.launch FILE [name:=value ...] [--show-args]: run a ROS 2 launch file, also without ROS 2's launch.

FILE may also be PACKAGE FILE, as for `ros2 launch`. Where ROS 2's `launch` is installed, that runs the file; elsewhere
a small runner of this project's launch files does, and refuses by name what only ROS 2's own has. No process outlives
it. Its nodes are heard on this machine only, unless network:=true, SIM2METAL_NETWORK=1 or ROS 2's own
ROS_AUTOMATIC_DISCOVERY_RANGE says otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy import cli
from deploy.launching import declared, guardian
from deploy.launching.actions import explained
from deploy.launching.context import unsupported
from deploy.ros2.node import network

SHOW = ("-s", "--show-args", "--show-arguments")


def real_launch() -> bool:
    """Whether ROS 2's launch is installed. A folder named launch, as this project has, is not it."""
    try:
        import launch.actions
        import launch_ros.actions  # noqa: F401
    except ImportError:
        return False
    return bool(getattr(launch.actions, "__file__", None))  # a stand-in has none


def _file(words: Sequence[str]) -> tuple[str, list[str]]:
    """The launch file's path, and the arguments after it."""
    if not words:
        raise cli.ArgumentError("which launch file? python -m deploy.launch FILE [name:=value ...]")
    first, *rest = words
    if os.path.isfile(first):
        return first, rest
    if not rest or ":=" in rest[0]:
        raise cli.ArgumentError(f"there is no launch file {first!r}")
    from ament_index_python.packages import get_package_share_directory

    try:
        found = sorted(Path(get_package_share_directory(first)).rglob(rest[0]))
    except (LookupError, ValueError):
        raise cli.ArgumentError(f"there is neither a launch file nor a package {first!r}") from None
    if not found:
        raise cli.ArgumentError(f"package {first!r} has no launch file {rest[0]!r}")
    return str(found[0]), rest[1:]


def _find_this_environment() -> None:
    """Let ROS 2's index and the `env python3` of nodes find what pip installed beside this interpreter."""
    prefixes = [prefix for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if prefix]
    if sys.prefix not in prefixes and os.path.isdir(os.path.join(sys.prefix, "share", "ament_index")):
        os.environ["AMENT_PREFIX_PATH"] = os.pathsep.join([*prefixes, sys.prefix])
    paths, programs = os.environ.get("PATH", "").split(os.pathsep), os.path.dirname(sys.executable)
    if programs not in paths:
        os.environ["PATH"] = os.pathsep.join([programs, *paths])


def _stand_in() -> None:
    try:
        from deploy.launching import stand_in
    except ModuleNotFoundError as error:
        raise cli.ArgumentError(f"deploy.launch needs {error.name}: pip install 'sim2metal[ros]'") from None
    stand_in.install()


def _description(path: str) -> Any:
    """The file's LaunchDescription; ValueError in one sentence for an error in its code."""
    from launch import LaunchContext
    from launch.launch_description_sources import AnyLaunchDescriptionSource, PythonLaunchDescriptionSource

    source = PythonLaunchDescriptionSource if path.endswith(".py") else AnyLaunchDescriptionSource
    try:
        return source(path).get_launch_description(LaunchContext())
    except Exception as error:
        raise explained(path, error) from error


def launch_file(words: Sequence[str]) -> int:
    """Run a launch file, or show its arguments; the exit status."""
    _find_this_environment()
    real = real_launch()
    if not real:
        _stand_in()
    import launch
    from launch.actions import IncludeLaunchDescription
    from launch.launch_description_sources import AnyLaunchDescriptionSource

    path, rest = _file([word for word in words if word not in SHOW])
    known = _description(path).get_launch_arguments()
    if any(word in SHOW for word in words):
        print("\n".join(declared.shown(known)))
        return 0
    pairs = declared.given(rest)
    for name in declared.SETTINGS if not real else ():
        if name in pairs:
            raise unsupported(f"{name}:={pairs[name]}")
    declared.check(pairs, known, Path(path).read_text())
    if pairs.get("network", "").lower() not in network.YES:
        network.keep_to_this_machine()
    service = launch.LaunchService(argv=list(rest), noninteractive=True)
    include = IncludeLaunchDescription(AnyLaunchDescriptionSource(path), launch_arguments=pairs.items())
    service.include_launch_description(launch.LaunchDescription([include]))
    return int(service.run())


def run(words: Sequence[str]) -> int:
    """The exit status of `launch_file`; on bad input 2, and one line that says what is wrong."""
    status = 0

    def keep(words: Sequence[str]) -> None:
        nonlocal status
        status = launch_file(words)

    return cli.call(keep, words) or status


def main() -> int:
    """Run the command in a child process, so that nothing outlives it; the exit status."""
    words = sys.argv[1:]
    if not words or cli.wants_help(words):
        print(__doc__)
        return 0 if words else 2
    return guardian.run(lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())

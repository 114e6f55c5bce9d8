"""Stand-in of `launch_ros.actions.Node`: the process of a node, with its names, parameters and remappings."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ament_index_python.packages import get_package_prefix

from deploy.launching.context import LaunchContext, LaunchError, unsupported
from deploy.launching.processes import ExecuteProcess

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Parameters = Mapping[str, Any]  # a bool, int, float or str each


@dataclass(eq=False, kw_only=True)
class Node(ExecuteProcess):
    """The process of a node: a program of a package, or a program by its path."""

    cmd: Iterable[str] = field(default=(), init=False)
    executable: str
    package: str | None = None
    namespace: str | None = None
    exec_name: str | None = None
    parameters: Sequence[str | Parameters] | None = None  # files and values
    remappings: Iterable[tuple[str, str]] | None = None
    arguments: Iterable[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise LaunchError(f"node name {self.name!r}: needs letters, digits and _, no digit first")
        if self.namespace is not None:
            self.namespace = "/" + self.namespace.strip("/")
            if self.namespace != "/" and not all(map(_NAME.fullmatch, self.namespace[1:].split("/"))):
                raise LaunchError(
                    f"namespace {self.namespace!r}: needs letters, digits and _ between its /, no digit first"
                )

    @property
    def node_name(self) -> str:
        """Namespace and name; `/**`, as in parameter files, where the node's own are kept."""
        if self.name is None or self.namespace is None:
            return "/**"
        return f"{self.namespace.rstrip('/')}/{self.name}"

    def executable_name(self) -> str:
        return self.exec_name or os.path.basename(self._words[0])

    def command(self, context: LaunchContext) -> list[str]:
        """The program, its arguments, then names, parameters and remappings as every ROS 2 node understands them."""
        program = self.executable if self.package is None else _program(self.package, self.executable)
        words = [program, *(self.arguments or ()), "--ros-args"]
        words += [] if self.name is None else ["-r", f"__node:={self.name}"]
        words += [] if self.namespace is None else ["-r", f"__ns:={self.namespace}"]
        for given in self.parameters or ():
            words += ["--params-file", self._written(context, given) if isinstance(given, Mapping) else _found(given)]
        for source, target in self.remappings or ():
            words += ["-r", f"{source}:={target}"]
        return words

    def _written(self, context: LaunchContext, values: Parameters) -> str:
        """A new file with these parameters among the logs."""
        for name, value in values.items():
            if not isinstance(value, bool | int | float | str):
                raise unsupported(f"parameter {name}: {value!r}, not a bool, int, float or str,")
        path = context.log.folder / f"launch_params_{next(context.parameter_files)}.yaml"
        path.write_text(json.dumps({self.node_name: {"ros__parameters": dict(values)}}))
        return str(path)


def _program(package: str, executable: str) -> str:
    """The path of a program of an installed package."""
    folder = os.path.join(get_package_prefix(package), "lib", package)
    found = shutil.which(executable, path=folder)
    if found is None:
        raise LaunchError(f"package {package!r} has no executable {executable!r} in {folder}")
    return found


def _found(path: str) -> str:
    """The absolute path of a parameter file."""
    if not os.path.isfile(path):
        raise LaunchError(f"there is no parameter file {path!r}")
    return os.path.abspath(path)

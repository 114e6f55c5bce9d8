"""Stand-ins of `launch_ros`: nodes, their parameters, remappings and namespaces, and the packages they come from."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from ament_index_python.packages import get_package_prefix, get_package_share_directory

from deploy.launching.actions import Action, LaunchError
from deploy.launching.processes import ExecuteProcess
from deploy.launching.substitutions import (
    EnvironmentVariable,
    LaunchConfiguration,
    Substitution,
    SubstitutionFailure,
    ThisLaunchFile,
    ThisLaunchFileDir,
    describe,
    is_substitution,
    perform_substitutions,
    typed,
)

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCALARS = (bool, int, float, str)


# Packages


@dataclass(eq=False)
class FindPackageShare(Substitution):
    """The share folder of an installed package."""

    package: Any

    def find(self, package_name: str) -> str:
        """The folder of a package of that name."""
        return str(get_package_share_directory(package_name))

    def perform(self, context: Any) -> str:
        return self.find(perform_substitutions(context, self.package))

    def describe(self) -> str:
        return f"{type(self).__name__}(pkg={describe(self.package)})"


class FindPackagePrefix(FindPackageShare):
    """Where a package is installed."""

    def find(self, package_name: str) -> str:
        return str(get_package_prefix(package_name))


@dataclass(eq=False)
class ExecutableInPackage(Substitution):
    """A program of an installed package."""

    executable: Any
    package: Any

    def perform(self, context: Any) -> str:
        executable = perform_substitutions(context, self.executable)
        package = perform_substitutions(context, self.package)
        folder = os.path.join(get_package_prefix(package), "lib", package)
        found = shutil.which(executable, path=folder)
        if found is None:
            raise SubstitutionFailure(f"package {package!r} has no executable {executable!r} in {folder}")
        return found

    def describe(self) -> str:
        return f"ExecInPkg(pkg={describe(self.package)}, exec={describe(self.executable)})"


# Parameters


def _uniform(name: str, values: Sequence[Any]) -> list[Any]:
    """Values of one type; whole numbers among others become floats."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return [float(value) for value in values]
    if len(kinds) != 1 or not kinds <= set(_SCALARS):
        raise LaunchError(f"parameter {name}: {list(values)!r} is not a list of one type: bool, int, float or str")
    return list(values)


def _from_text(name: str, text: str) -> Any:
    """The value of a substitution's text, read as YAML."""
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        raise LaunchError(
            f"parameter {name}: {text!r} is not YAML; a text needs ParameterValue(..., value_type=str)"
        ) from None
    if isinstance(value, list):
        return _uniform(name, value)
    if not isinstance(value, _SCALARS):
        raise LaunchError(f"parameter {name}: {text!r} is not a bool, int, float, str or a list of them")
    return value


def _evaluate(context: Any, name: str, value: Any) -> Any:
    if isinstance(value, ParameterValue):
        return value.evaluate(context, name)
    if is_substitution(value):
        return _from_text(name, perform_substitutions(context, value))
    if isinstance(value, _SCALARS):
        return value
    if not isinstance(value, list | tuple):
        raise LaunchError(f"parameter {name}: {value!r} is not a bool, int, float, str or a list of them")
    return _uniform(name, [_evaluate(context, name, element) for element in value])


def evaluate_parameters(context: Any, parameters: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """{name: value} with all substitutions performed; nested names are joined by dots."""
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        name = prefix + perform_substitutions(context, key)
        if isinstance(value, Mapping):
            found |= evaluate_parameters(context, value, f"{name}.")
        else:
            found[name] = _evaluate(context, name, value)
    return found


@dataclass(eq=False)
class ParameterValue:
    """A parameter's value of a given type."""

    value: Any
    value_type: Any = field(default=None, kw_only=True)

    def evaluate(self, context: Any, name: str = "value") -> Any:
        """The value; LaunchError unless it is of the type."""
        kind = self.value_type
        try:
            if kind is None:
                return _evaluate(context, name, self.value)
            if get_origin(kind) is not list:
                return typed(context, self.value, kind)
            values = self.value
            if is_substitution(values) or isinstance(values, str):
                values = yaml.safe_load(perform_substitutions(context, values))
            return [typed(context, value, get_args(kind)[0]) for value in values]
        except (ValueError, TypeError, yaml.YAMLError) as error:
            raise LaunchError(f"parameter {name}: {error}") from None


@dataclass(eq=False)
class Parameter:
    """One parameter."""

    name: Any
    value: Any
    value_type: Any = field(default=None, kw_only=True)

    def evaluate(self, context: Any) -> tuple[str, Any]:
        """Name and value."""
        name = perform_substitutions(context, self.name)
        return name, ParameterValue(self.value, value_type=self.value_type).evaluate(context, name)


_IN_FILE = {  # the substitutions that a parameter file may contain
    "var": LaunchConfiguration,
    "env": EnvironmentVariable,
    "find-pkg-share": FindPackageShare,
    "find-pkg-prefix": FindPackagePrefix,
    "dirname": ThisLaunchFileDir,
    "filename": ThisLaunchFile,
}


@dataclass(eq=False)
class ParameterFile:
    """A YAML file of parameters, in which `$(var name)` and the like may stand."""

    param_file: Any
    allow_substs: Any = field(default=False, kw_only=True)

    def evaluate(self, context: Any) -> str:
        """The path of the file, or of a copy in which the substitutions are performed."""
        file = self.param_file
        path = str(file) if isinstance(file, Path) else perform_substitutions(context, file)
        if not os.path.isfile(path):
            raise LaunchError(f"there is no parameter file {path!r}")
        if not typed(context, self.allow_substs, bool):
            return path

        def replaced(match: re.Match[str]) -> str:
            kind, *words = match[1].split()
            if kind not in _IN_FILE:
                raise LaunchError(f"parameter file {path!r}: {match[0]} is not one of: $({'), $('.join(_IN_FILE)})")
            return str(context.perform_substitution(_IN_FILE[kind](*words)))

        return _write(context, re.sub(r"\$\(([^()]*)\)", replaced, Path(path).read_text()))


def _write(context: Any, text: str) -> str:
    """A new file with that text among the logs, for a node to read."""
    path = context.logger.folder / f"launch_params_{next(context.files)}.yaml"
    path.write_text(text)
    return str(path)


# Namespaces


def joined_namespace(base: str | None, namespace: str | None) -> str | None:
    """The namespace within the base one; absolute if it starts with /. LaunchError if it cannot be a namespace."""
    if namespace is None or (namespace == "" and base):
        joined = base
    elif not base or namespace.startswith("/"):
        joined = namespace
    else:
        joined = f"{base.rstrip('/')}/{namespace}"
    if joined is None:
        return None
    absolute = "/" + joined.strip("/")
    if absolute != "/" and not all(_NAME.fullmatch(part) for part in absolute[1:].split("/")):
        raise LaunchError(f"namespace {absolute!r}: needs letters, digits and _ between its /, no digit first")
    return absolute


@dataclass(eq=False)
class PushROSNamespace(Action):
    """Put what follows into a namespace, until the GroupAction around it ends."""

    namespace: Any

    def execute(self, context: Any) -> None:
        settings = context.launch_configurations
        settings["ros_namespace"] = joined_namespace(
            settings.get("ros_namespace"), perform_substitutions(context, self.namespace)
        )


@dataclass(eq=False)
class SetParameter(Action):
    """A parameter of all nodes that follow in this GroupAction."""

    name: Any
    value: Any

    def execute(self, context: Any) -> None:
        name = perform_substitutions(context, self.name)
        pairs = evaluate_parameters(context, {name: self.value})
        before = context.launch_configurations.get("global_params", [])
        context.launch_configurations["global_params"] = [*before, *pairs.items()]


@dataclass(eq=False)
class SetParametersFromFile(Action):
    """A parameter file of all nodes that follow in this GroupAction."""

    filename: Any

    def execute(self, context: Any) -> None:
        path = ParameterFile(self.filename).evaluate(context)
        before = context.launch_configurations.get("global_params", [])
        context.launch_configurations["global_params"] = [*before, path]


@dataclass(eq=False)
class SetRemap(Action):
    """A remapping of all nodes that follow in this GroupAction."""

    src: Any
    dst: Any

    def execute(self, context: Any) -> None:
        pair = (perform_substitutions(context, self.src), perform_substitutions(context, self.dst))
        before = context.launch_configurations.get("ros_remaps", [])
        context.launch_configurations["ros_remaps"] = [*before, pair]


@dataclass(eq=False)
class SetROSLogDir(Action):
    """Where nodes that follow write their logs."""

    new_log_dir: Any

    def execute(self, context: Any) -> None:
        context.environment["ROS_LOG_DIR"] = perform_substitutions(context, self.new_log_dir)


# Nodes


@dataclass(eq=False, kw_only=True)
class Node(ExecuteProcess):
    """The process of a node: a program of a package, or a program by its path."""

    cmd: Iterable[Any] = field(default=(), init=False)
    executable: Any
    package: Any = None
    namespace: Any = None
    exec_name: Any = None
    parameters: Sequence[Any] | None = None
    remappings: Iterable[tuple[Any, Any]] | None = None
    ros_arguments: Iterable[Any] | None = None
    arguments: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parameters is not None and not isinstance(self.parameters, list | tuple):
            raise LaunchError(f"Node(parameters={self.parameters!r}): needs a list of dicts and files")
        self.remappings = [(source, target) for source, target in self.remappings or []]
        self.full_name: str | None = None

    @property
    def node_name(self) -> str:
        """Namespace and name, once it has been executed."""
        if self.full_name is None:
            raise RuntimeError("node_name is known only once the node has been executed")
        return self.full_name

    def label(self, context: Any, command: list[str]) -> str:
        if self.exec_name is not None:
            return perform_substitutions(context, self.exec_name)
        return os.path.basename(command[0])

    def command(self, context: Any) -> list[str]:
        """The program, its arguments, then names, parameters and remappings as every ROS 2 node understands them."""
        program = self.executable
        if self.package is not None:
            program = ExecutableInPackage(executable=self.executable, package=self.package)
        words = _texts(context, [program, *(self.arguments or ())])
        if self.ros_arguments is not None:
            words += ["--ros-args", *_texts(context, self.ros_arguments)]
        name, namespace = self._full_name(context)
        words += ["--ros-args", *([] if name is None else ["-r", f"__node:={name}"])]
        words += [] if namespace is None else ["-r", f"__ns:={namespace}"]
        words += self._parameter_words(context, "/**" if None in (name, namespace) else self.node_name)
        own = [_texts(context, pair) for pair in self.remappings or ()]
        for source, target in [*context.launch_configurations.get("ros_remaps", []), *own]:
            words += ["-r", f"{source}:={target}"]
        return words

    def _full_name(self, context: Any) -> tuple[str | None, str | None]:
        """Name and namespace, None where the node's own is kept."""
        name, namespace = (
            None if value is None else perform_substitutions(context, value) for value in (self.name, self.namespace)
        )
        if name is not None and not _NAME.fullmatch(name):
            raise LaunchError(f"node name {name!r}: needs letters, digits and _, no digit first")
        namespace = joined_namespace(context.launch_configurations.get("ros_namespace"), namespace)
        unknown = "<node_namespace_unspecified>" if namespace is None else namespace.rstrip("/")
        self.full_name = f"{unknown}/{name or '<node_name_unspecified>'}"
        return name, namespace

    def _parameter_words(self, context: Any, rule: str) -> list[str]:
        """The arguments that carry the parameters: those of the scope first, the node's own later."""
        words: list[str] = []
        for common in context.launch_configurations.get("global_params", []):
            words += ["--params-file", common] if isinstance(common, str) else ["-p", _assignment(*common)]
        for item in self.parameters or ():
            if isinstance(item, Mapping):
                values = evaluate_parameters(context, item)
                words += ["--params-file", _write(context, json.dumps({rule: {"ros__parameters": values}}))]
            elif isinstance(item, Parameter):
                words += ["-p", _assignment(*item.evaluate(context))]
            else:
                file = item if isinstance(item, ParameterFile) else ParameterFile(item)
                words += ["--params-file", os.path.abspath(file.evaluate(context))]
        return words


def _texts(context: Any, values: Iterable[Any]) -> list[str]:
    return [perform_substitutions(context, value) for value in values]


def _assignment(name: str, value: Any) -> str:
    return f"{name}:={json.dumps(value)}"


@dataclass(eq=False, kw_only=True)
class ComposableNode:
    """A node to be loaded into a container: only ROS 2's own launch loads it."""

    package: Any
    plugin: Any
    name: Any = None
    namespace: Any = None
    parameters: Any = None
    remappings: Any = None
    extra_arguments: Any = None
    condition: Any = None

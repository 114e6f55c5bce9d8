"""Stand-ins of `launch.substitutions`: text that is known only when the description runs."""

from __future__ import annotations

import importlib
import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class SubstitutionFailure(Exception):  # noqa: N818 - ROS 2's name
    """A text cannot be determined; the message says why."""


class Substitution:
    """Text to be determined. Subclasses carry out `perform`; launch files may define their own."""

    def perform(self, context: Any) -> str:
        """The text."""
        raise NotImplementedError(f"{type(self).__name__}.perform")

    def describe(self) -> str:
        """How --show-args prints it."""
        return repr(self)


@dataclass(eq=False, kw_only=True)
class TextSubstitution(Substitution):
    """Text as it is."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"TextSubstitution(text={self.text!r}): needs a str")

    def perform(self, context: Any) -> str:
        return self.text

    def describe(self) -> str:
        return f"'{self.text}'"


def normalize_to_list_of_substitutions(value: Any) -> list[Substitution]:
    """[substitution, ...] of a text, a substitution, or an iterable of both; TypeError for anything else."""
    if isinstance(value, str | Substitution):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise TypeError(f"needs a str, a Substitution or a list of them, got {value!r}")
    parts = []
    for part in value:
        if not isinstance(part, str | Substitution):
            raise TypeError(f"needs a str or a Substitution, got {part!r}")
        parts.append(TextSubstitution(text=part) if isinstance(part, str) else part)
    return parts


def perform_substitutions(context: Any, value: Any) -> str:
    """The text of anything that `normalize_to_list_of_substitutions` accepts."""
    return "".join(context.perform_substitution(part) for part in normalize_to_list_of_substitutions(value))


def describe(value: Any) -> str:
    """How --show-args prints anything that `normalize_to_list_of_substitutions` accepts."""
    return " + ".join(part.describe() for part in normalize_to_list_of_substitutions(value))


def is_substitution(value: Any) -> bool:
    """Whether the value is a substitution, or a list of texts with one among them."""
    if isinstance(value, Substitution):
        return True
    return (
        isinstance(value, list | tuple)
        and all(isinstance(part, Substitution | str) for part in value)
        and any(isinstance(part, Substitution) for part in value)
    )


def typed(context: Any, value: Any, kind: type) -> Any:
    """The value as bool, int, float or str; a substitution's text is converted. ValueError names what does not fit."""
    if is_substitution(value) or isinstance(value, str):
        value = perform_substitutions(context, value)
        if kind is bool:
            value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
        elif kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                pass
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value


@dataclass(eq=False)
class LaunchConfiguration(Substitution):
    """The value of a launch argument."""

    variable_name: Any
    default: Any = None

    def perform(self, context: Any) -> str:
        name = perform_substitutions(context, self.variable_name)
        if name in context.launch_configurations:
            return str(context.launch_configurations[name])
        if self.default is None:
            raise SubstitutionFailure(f"launch configuration '{name}' does not exist")
        default = self.default if isinstance(self.default, Iterable) else [self.default]
        parts = [part if isinstance(part, str | Substitution) else str(part) for part in default]
        return perform_substitutions(context, parts)

    def describe(self) -> str:
        return f"LaunchConfig({describe(self.variable_name)})"


@dataclass(eq=False)
class EnvironmentVariable(Substitution):
    """The value of an environment variable."""

    name: Any
    default_value: Any = None

    def perform(self, context: Any) -> str:
        name = perform_substitutions(context, self.name)
        if name in context.environment:
            return str(context.environment[name])
        if self.default_value is None:
            raise SubstitutionFailure(f"environment variable '{name}' does not exist")
        return perform_substitutions(context, self.default_value)

    def describe(self) -> str:
        return f"EnvVar({describe(self.name)})"


@dataclass(eq=False)
class FindExecutable(Substitution):
    """Where the PATH finds a command."""

    name: Any

    def perform(self, context: Any) -> str:
        name = perform_substitutions(context, self.name)
        found = shutil.which(name, path=context.environment.get("PATH"))
        if found is None:
            raise SubstitutionFailure(f"executable '{name}' not found on the PATH")
        return found

    def describe(self) -> str:
        return f"FindExec({describe(self.name)})"


@dataclass(eq=False)
class LocalSubstitution(Substitution):
    """A variable of the moment, such as `event.pid` in an event handler."""

    expression: str
    description: str | None = None

    def perform(self, context: Any) -> str:
        value = context.locals
        for name in self.expression.split("."):
            if not hasattr(value, name):
                raise SubstitutionFailure(f"there is no {self.expression!r} here")
            value = getattr(value, name)
        return str(value)

    def describe(self) -> str:
        return f"LocalVar('{self.description or self.expression}')"


class PathSubstitution(Substitution):
    """A path that grows with `/`, each part a text or substitutions."""

    def __init__(self, path: Any) -> None:
        self.parts = [normalize_to_list_of_substitutions(path)]

    def __truediv__(self, part: Any) -> PathSubstitution:
        longer = PathSubstitution("")
        longer.parts = [*self.parts, normalize_to_list_of_substitutions(part)]
        return longer

    def perform(self, context: Any) -> str:
        return os.path.join(*(perform_substitutions(context, part) for part in self.parts))

    def describe(self) -> str:
        return f"PathJoin('{' + '.join(describe(part) for part in self.parts)}')"


class PathJoinSubstitution(PathSubstitution):
    """Parts of a path, joined; each a text or substitutions."""

    def __init__(self, substitutions: Iterable[Any]) -> None:
        self.parts = [normalize_to_list_of_substitutions(part) for part in substitutions]


@dataclass(eq=False)
class PythonExpression(Substitution):
    """The value of a Python expression, as text."""

    expression: Any
    python_modules: Any = ("math",)

    def perform(self, context: Any) -> str:
        names: dict[str, Any] = {}
        for part in normalize_to_list_of_substitutions(self.python_modules):
            module = importlib.import_module(context.perform_substitution(part))
            names |= {**vars(math), "math": math} if module is math else {module.__name__: module}
        text = perform_substitutions(context, self.expression)
        try:
            return str(eval(text, {}, names))
        except Exception as error:
            raise SubstitutionFailure(f"PythonExpression {text!r}: {error}") from error

    def describe(self) -> str:
        modules = ", ".join(part.describe() for part in normalize_to_list_of_substitutions(self.python_modules))
        return f"PythonExpr({describe(self.expression)}, [{modules}])"


@dataclass(eq=False)
class Command(Substitution):
    """What a command prints, for example xacro."""

    command: Any
    on_stderr: Any = "fail"

    def perform(self, context: Any) -> str:
        text = perform_substitutions(context, self.command)
        on_stderr = perform_substitutions(context, self.on_stderr)
        if on_stderr not in ("fail", "ignore", "warn", "capture"):
            raise SubstitutionFailure(f"on_stderr={on_stderr!r} is not one of: fail, ignore, warn, capture")
        stderr = subprocess.STDOUT if on_stderr == "capture" else subprocess.PIPE
        try:
            done = subprocess.run(shlex.split(text), stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
        except OSError as error:
            raise SubstitutionFailure(f"cannot run {text!r}: {error}") from None
        if done.returncode or (done.stderr and on_stderr == "fail"):
            raise SubstitutionFailure(f"command {text!r} ended with {done.returncode}: {(done.stderr or '').strip()}")
        if done.stderr and on_stderr == "warn":
            context.logger.log("WARNING", "launch", f"command {text!r}: {done.stderr.strip()}")
        return done.stdout

    def describe(self) -> str:
        return f"Command({describe(self.command)})"


@dataclass(eq=False)
class FileContent(Substitution):
    """The text of a file."""

    path: Any

    def perform(self, context: Any) -> str:
        path = perform_substitutions(context, self.path)
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            raise SubstitutionFailure(f"cannot read {path!r}: {error.strerror}") from None

    def describe(self) -> str:
        return f"FileContent({describe(self.path)})"


class AnonName(Substitution):
    """A name made unique; the same for the same text in one launch."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def perform(self, context: Any) -> str:
        name = perform_substitutions(context, self.name)
        return str(
            context.launch_configurations.setdefault(f"anon{name}", f"{name}_{os.getpid()}_{os.urandom(4).hex()}")
        )

    def describe(self) -> str:
        return f"AnonName({describe(self.name)})"


def _local(context: Any, name: str) -> str:
    variables = context.get_locals_as_dict()
    if name not in variables:
        raise SubstitutionFailure(f"{name} is not known before the file runs")
    return str(variables[name])


class ThisLaunchFile(Substitution):
    """The path of the launch file."""

    def perform(self, context: Any) -> str:
        return _local(context, "current_launch_file_path")

    def describe(self) -> str:
        return "ThisLaunchFile()"


class ThisLaunchFileDir(Substitution):
    """The folder of the launch file."""

    def perform(self, context: Any) -> str:
        return _local(context, "current_launch_file_directory")

    def describe(self) -> str:
        return "ThisLaunchFileDir()"


class LaunchLogDir(Substitution):
    """The folder of this launch's logs."""

    def perform(self, context: Any) -> str:
        return str(context.logger.folder)

    def describe(self) -> str:
        return "LaunchLogDir()"


def _as_number_or_bool(text: str) -> Any:
    low: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}
    return low.get(text.lower())


@dataclass(eq=False)
class EqualsSubstitution(Substitution):
    """The text "true" or "false": whether two texts are equal, as booleans or numbers where both are."""

    left: Any
    right: Any
    equal: ClassVar[bool] = True

    @staticmethod
    def _text(context: Any, value: Any) -> str:
        if isinstance(value, Substitution) or is_substitution(value):
            return perform_substitutions(context, value)
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    def perform(self, context: Any) -> str:
        left, right = self._text(context, self.left), self._text(context, self.right)
        booleans = _as_number_or_bool(left), _as_number_or_bool(right)
        if None not in booleans:
            same = booleans[0] == booleans[1]
        else:
            try:
                same = math.isclose(float(left), float(right))
            except ValueError:
                same = left == right
        return str(same == self.equal).lower()


class NotEqualsSubstitution(EqualsSubstitution):
    """The text "true" or "false": whether two texts differ."""

    equal = False


class AllSubstitution(Substitution):
    """The text "true" if all are true."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def perform(self, context: Any) -> str:
        return str(all([typed(context, arg, bool) for arg in self.args])).lower()


class AnySubstitution(AllSubstitution):
    """The text "true" if one is true."""

    def perform(self, context: Any) -> str:
        return str(any([typed(context, arg, bool) for arg in self.args])).lower()


class AndSubstitution(AllSubstitution):
    """The text "true" if both are true."""

    def __init__(self, left: Any, right: Any) -> None:
        super().__init__(left, right)


class OrSubstitution(AnySubstitution):
    """The text "true" if one of the two is true."""

    def __init__(self, left: Any, right: Any) -> None:
        super().__init__(left, right)


@dataclass(eq=False)
class NotSubstitution(Substitution):
    """The text "true" for false and the other way round."""

    value: Any

    def perform(self, context: Any) -> str:
        return str(not typed(context, self.value, bool)).lower()


@dataclass(eq=False)
class IfElseSubstitution(Substitution):
    """One text or the other."""

    condition: Any
    if_value: Any = ""
    else_value: Any = ""

    def perform(self, context: Any) -> str:
        chosen = self.if_value if typed(context, self.condition, bool) else self.else_value
        return perform_substitutions(context, chosen)

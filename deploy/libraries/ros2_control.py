"""A policy as a package of ROS 2: a chainable controller of ros2_control around the same C, for real-time loops.

firmware/ros2_control has what is the same for every policy. Here are the tables of its signals and commands, of the
guard's rules (those of `deploy.run`: the file's, made stricter by the robot's), and what ament and pluginlib read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from xml.sax.saxutils import escape

import numpy as np

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, Source
from deploy.drivers import Driver
from deploy.guard import Guard
from deploy.libraries import APART, VERSION, about, name_of
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import LAST, NORMS
from deploy.safety.limits import LimitError, guard_of, limits_of
from deploy.trust.text import c_string
from sim.spec import Signal

HAND_WRITTEN = ("table.hpp", "guard.hpp", "controller.hpp", "controller.cpp")
NAMESPACE = "policy_controller"  # in firmware/ros2_control; a package has its own, so that several fit one robot
CLASS = "PolicyController"
DEPENDENCIES = ("controller_interface", "hardware_interface", "pluginlib", "rclcpp", "rclcpp_lifecycle", "std_msgs")
XYZ, XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
SET_POINTS = ("target_", "goal_")  # how their names begin
REST = "_offset"  # how the names of commands end that are added to a rest pose
GRAVITY = "projected_gravity"
INFINITE = "std::numeric_limits<{}>::infinity()"

# Signal -> component and values, as semantic_components of ros2_control and gz_ros2_control name them.
STATES: dict[str, tuple[str, Sequence[str]]] = {
    "position": ("pose/position", XYZ),
    "rotation": ("imu/orientation", XYZW),
    GRAVITY: ("imu/orientation", XYZW),
    "linear_velocity": ("odometry/linear_velocity", XYZ),
    "velocity": ("odometry/linear_velocity", XYZ),
    "angular_velocity": ("imu/angular_velocity", XYZ),
    "linear_acceleration": ("imu/linear_acceleration", XYZ),
    "yaw_rate": ("imu/angular_velocity", ("z",)),
    "turning": ("imu/angular_velocity", ("z",)),
}
JOINT_STATES = {"joint_position": "position", "joint_velocity": "velocity", "joint_effort": "effort"}
SINGLE = {  # of a command with one number
    "drive": "diff_drive_controller/linear/velocity",
    "turn": "diff_drive_controller/angular/velocity",
    "speed": "drive_joint/velocity",
    "steering": "steering_joint/position",
    "look": "pan_joint/position",
}


class NoInterfaceError(ValueError):
    """A signal that ros2_control has no interface for, or rules that the controller cannot watch."""


@dataclass(frozen=True)
class Row:
    """One signal or command, and the interfaces it has by itself; none: it is a set point, or the last command."""

    signal: Signal
    first: int
    interfaces: tuple[str, ...]


def _joints(robot: str, count: int) -> list[str]:
    return [f"{robot}_joint{k + 1}" for k in range(count)]


def _fingers(robot: str) -> tuple[str, ...]:
    return tuple(f"{robot}_finger_joint{k}/position" for k in (1, 2))


def _elements(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}/{k}" for k in range(count)) if count > 1 else (f"{name}/value",)


def _ours(policy: PolicyFile, signal: Signal) -> bool:
    """Whether the controller knows it by itself: a set point, or the command before."""
    before = signal.name.removeprefix("last_")
    commanded = any((c.name, c.size) == (before, signal.size) for c in policy.outputs)
    return signal.name.startswith(SET_POINTS) or (before != signal.name and commanded)


def state_interfaces(policy: PolicyFile, signal: Signal) -> tuple[str, ...]:
    """What a measured signal is read from unless a parameter says otherwise."""
    if signal.name in JOINT_STATES:
        return tuple(f"{joint}/{JOINT_STATES[signal.name]}" for joint in _joints(policy.robot, signal.size))
    if (signal.name, signal.shape) == ("gripper_opening", (1,)):
        return _fingers(policy.robot)
    where, values = STATES.get(signal.name, ("", ()))
    component, _, kind = signal.name.rpartition("_")
    if not where and component and kind in ("position", "rotation") and signal.size in (3, 9):
        where, values = {3: (f"{component}/position", XYZ), 9: (f"{component}/orientation", XYZW)}[signal.size]
    turns = len(values) == 4 and (signal.size == 9 or signal.name == GRAVITY)
    if where and (turns or len(values) >= signal.size):
        return tuple(f"{where}.{value}" for value in (values if turns else values[: signal.size]))
    return _elements(signal.name, signal.size)


def command_interfaces(policy: PolicyFile, command: Signal) -> tuple[str, ...]:
    """What a command is written to unless a parameter says otherwise."""
    if command.name == "gripper_target" and command.shape == (1,):
        return _fingers(policy.robot)
    if command.unit == "rad" and command.size > 1:
        return tuple(f"{joint}/position" for joint in _joints(policy.robot, command.size))
    if command.unit == "rad/s" and command.size > 1:
        return tuple(f"{joint}/velocity" for joint in _joints(policy.robot, command.size))
    if command.name == "motor_command":
        return tuple(f"rotor{k + 1}/command" for k in range(command.size))
    if command.name == "hand_velocity" and command.size == 3:
        return tuple(f"hand/linear_velocity.{axis}" for axis in XYZ)
    if command.size == 1 and command.name in SINGLE:
        return (SINGLE[command.name],)
    return _elements(command.name, command.size)


def check(policy: PolicyFile) -> None:
    """NoInterfaceError for what no interface carries: they hold one number each."""
    for signal in policy.inputs:
        if signal.dtype != "float32":
            what = "a picture" if signal.is_picture else "words"
            raise NoInterfaceError(
                f"{policy.path} reads {signal.name!r}, {what}, and interfaces of ros2_control hold single numbers: "
                "fly it as a node of ROS 2 instead (docs/ros2.md)"
            )


def guard(policy: PolicyFile) -> Guard:
    """What watches the flight: the guard of `deploy.run` for a robot that nobody lands."""
    check(policy)
    robot = SimpleNamespace(signals=policy.inputs, commands=policy.outputs, lands=True)
    try:
        made = guard_of(policy, cast(Driver, robot), limits_of(policy.robot), policy.envelope)
    except (LimitError, ValueError) as error:
        raise NoInterfaceError(f"{policy.path}: {error}") from None
    known = {s.name: s.shape for s in made.watched}
    for rule, name in made.envelope.needs().items():
        if rule in NORMS and known[name] != (3,):
            raise NoInterfaceError(f"{policy.path}: in C++ {rule} needs {name!r} of three numbers, not {known[name]}")
    return made


class Package:
    """The texts of one policy's package."""

    def __init__(self, policy: PolicyFile, source: Source) -> None:
        """Raises NoInterfaceError."""
        self.policy, self.source, self.guard = policy, source, guard(policy)
        self.name = "_".join(part for part in name_of(policy).lower().split("_") if part)  # what ament demands
        if not (policy.robot.isidentifier() and policy.robot.isascii()):
            raise NoInterfaceError(
                f"{policy.path}: the robot {policy.robot!r} is no plain name, as its joints' need one"
            )
        self.signals = self._rows(self.guard.watched, True)
        self.commands = self._rows(self.guard.outputs, False)
        self.places = {row.signal.name: row.first for row in self.signals}

    def _rows(self, group: Iterable[Signal], measured: bool) -> list[Row]:
        rows, first = [], 0
        for signal in group:
            of = state_interfaces if measured else command_interfaces
            names = () if measured and _ours(self.policy, signal) else of(self.policy, signal)
            rows.append(Row(signal, first, names))
            first += signal.size
        return rows

    def files(self) -> dict[str, str]:
        """Path in the package -> text."""
        written = {f"src/{n}": (FIRMWARE / "ros2_control" / n).read_text() for n in HAND_WRITTEN}
        written["src/interfaces.hpp"] = self.interfaces()
        own = {path: text.replace(NAMESPACE, self.name) for path, text in written.items()}
        return {
            "package.xml": self.manifest(),
            "CMakeLists.txt": self.cmake(),
            "plugin.xml": self.plugin(),
            "config/example.yaml": self.example(),
            **{f"src/{name}": text for name, text in self.source.files().items()},
            **own,
        }

    def _signal(self, row: Row) -> str:
        s = row.signal
        ours = not row.interfaces
        last = s.name.removeprefix("last_")
        told = ours and s.name.startswith(SET_POINTS)
        kind = "reference" if told else "last" if ours else "measured"
        of = next((c.first for c in self.commands if kind == "last" and c.signal.name == last), 0)
        fields = [c_string(s.name), row.first, s.size, _float(s.low), _float(s.high), _double(s.max_age)]
        return _fields([*fields, f"Source::{kind}", of, f"{s.name}_states" if row.interfaces else "nullptr"], row)

    def _command(self, row: Row) -> str:
        c, reach = row.signal, {s.name: s for s in self.guard.reach}[row.signal.name]
        rule, watched = self.guard.envelope.safe.get(c.name), [s.signal.name for s in self.signals]
        place = watched.index(rule) if isinstance(rule, str) and rule != LAST else -1
        flags = [str(flag).lower() for flag in (rule == LAST, c.name.endswith(REST))]
        fields = [c_string(c.name), row.first, c.size, _float(c.low), _float(c.high), _float(reach.low)]
        return _fields([*fields, _float(reach.high), place, *flags, f"{c.name}_commands"], row)

    def _place(self, rule: str, signal: str) -> int:
        return self.places[signal] if getattr(self.guard.envelope, rule) is not None else -1

    def interfaces(self) -> str:
        """interfaces.hpp."""
        e, watched = self.guard.envelope, [s.name for s in self.guard.watched]
        at_rest = self.guard.safe_command()
        safe = [v for row in self.commands for v in at_rest[row.signal.name].ravel()]
        names = [(f"{r.signal.name}_states", r.interfaces) for r in self.signals if r.interfaces]
        names += [(f"{r.signal.name}_commands", r.interfaces) for r in self.commands]
        upright = -2.0 if e.max_tilt is None else math.cos(math.radians(min(e.max_tilt, 180.0)))
        constants = {
            "int SIGNALS": len(self.signals),
            "int NUMBERS": sum(s.size for s in self.guard.watched),
            "int READ_NUMBERS": sum(s.size for s in self.policy.inputs),
            "int COMMANDS": len(self.commands),
            "int COMMAND_NUMBERS": sum(s.size for s in self.policy.outputs),
            "int GRAVITY": watched.index(GRAVITY) if GRAVITY in watched else -1,
            "int HOLD_STEPS": e.hold_steps,
            "int MISSED_IN_A_ROW": _most(e.missed_in_a_row),
            "int MISSED_OF_100": _most(e.missed_of_100),
            "double LONGEST_PAUSE": _double(e.longest_pause),
            "int POSITION": self._place("fence_low", "position"),
            "int ROTATION": self._place("max_tilt", "rotation"),
            "float LEAST_UPRIGHT": number(upright),
            "int LINEAR_VELOCITY": self._place("max_speed", "linear_velocity"),
            "double MAX_SPEED": _double(e.max_speed),
            "int ANGULAR_VELOCITY": self._place("max_body_rate", "angular_velocity"),
            "double MAX_BODY_RATE": _double(e.max_body_rate),
            "int VOLTAGE": self._place("min_voltage", "battery_voltage"),
            "int CELLS": next((s.size for s in self.guard.watched if s.name == "battery_voltage"), 0),
            "float MIN_VOLTAGE": number(e.min_voltage or 0.0),
            "int LOW_VOLTAGE_STEPS": _most(e.low_voltage_steps),
            "float MAX_CHANGE": number(min(1.0, e.max_change or 1.0)),
            "std::array<double, 3> FENCE_LOW": _array(map(_double, e.fence_low or (0.0,) * 3)),
            "std::array<double, 3> FENCE_HIGH": _array(map(_double, e.fence_high or (0.0,) * 3)),
        }
        lines = [
            f"/* {self.source.title}: made by `python -m deploy.export`; do not edit. */",
            "#pragma once",
            "",
            "#include <array>",
            "#include <limits>",
            "",
            '#include "policy.h"',
            '#include "table.hpp"',
            "",
            f"namespace {NAMESPACE} {{",
            "",
            *(f"inline constexpr {name} = {value};" for name, value in constants.items()),
            f"inline constexpr std::array<float, COMMAND_NUMBERS> SAFE = {_array(map(number, safe))};",
            "",
            *(f"inline constexpr const char *{n}[] = {_array(map(c_string, of))};" for n, of in names),
            "",
            f"inline constexpr Signal signals[SIGNALS] = {_rows(map(self._signal, self.signals))};",
            f"inline constexpr Command commands[COMMANDS] = {_rows(map(self._command, self.commands))};",
            "",
            f"}} // namespace {NAMESPACE}",
            "",
        ]
        return "\n".join(lines)

    def manifest(self) -> str:
        """package.xml."""
        depends = "".join(f"  <depend>{name}</depend>\n" for name in DEPENDENCIES)
        return (
            '<?xml version="1.0"?>\n<package format="3">\n'
            f"  <name>{self.name}</name>\n  <version>{VERSION}</version>\n"
            f"  <description>{escape(about(self.policy))}</description>\n"
            '  <maintainer email="nobody@example.org">python -m deploy.export</maintainer>\n'
            "  <license>MIT</license>\n  <buildtool_depend>ament_cmake</buildtool_depend>\n"
            f"{depends}  <export>\n    <build_type>ament_cmake</build_type>\n  </export>\n</package>\n"
        )

    def plugin(self) -> str:
        """What pluginlib reads."""
        return (
            f'<library path="{self.name}">\n'
            f'  <class name="{self.name}/{CLASS}" type="{self.name}::{CLASS}"\n'
            '         base_class_type="controller_interface::ChainableControllerInterface">\n'
            f"    <description>{escape(about(self.policy))}</description>\n  </class>\n</library>\n"
        )

    def cmake(self) -> str:
        """CMakeLists.txt. Symbols stay inside, so that two policies fit one controller manager."""
        c = " ".join(f"src/{name}" for name in self.source.files() if name.endswith(".c"))
        targets = " ".join(f"{name}::{name}" for name in DEPENDENCIES if name != "std_msgs")
        return "\n".join(
            [
                "cmake_minimum_required(VERSION 3.16)",
                f"project({self.name} LANGUAGES C CXX)",
                "find_package(ament_cmake REQUIRED)",
                *(f"find_package({name} REQUIRED)" for name in DEPENDENCIES),
                f"add_library({self.name} SHARED src/controller.cpp {c})",
                f"set_target_properties({self.name} PROPERTIES C_STANDARD 11 CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON",
                "  C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden)",
                f"target_compile_options({self.name} PRIVATE -O2 -Wall -Wextra {APART})",
                f"target_link_libraries({self.name} PRIVATE {targets} ${{std_msgs_TARGETS}})",
                "pluginlib_export_plugin_description_file(controller_interface plugin.xml)",
                f"install(TARGETS {self.name} LIBRARY DESTINATION lib)",
                "install(DIRECTORY config DESTINATION share/${PROJECT_NAME})",
                "ament_package()",
                "",
            ]
        )

    def example(self) -> str:
        """Parameters for a controller manager, with every one that the controller has."""
        rate, inputs = _whole(self.policy.rate_hz), self.signals
        told = [r.signal.name for r in inputs if not r.interfaces]
        states = [f"      {r.signal.name}: {json.dumps(r.interfaces)}" for r in inputs if r.interfaces]
        ages = [f"      {r.signal.name}: {r.signal.max_age:.9}" for r in inputs]
        ages = [line if "." in line or "e" in line else f"{line}.0" for line in ages]
        writes = [f"      {r.signal.name}: {json.dumps(r.interfaces)}" for r in self.commands]
        ranges = [f"      {r.signal.name}: [{_yaml(r.signal.low)}, {_yaml(r.signal.high)}]" for r in self.commands]
        rest = [r.signal for r in self.commands if r.signal.name.endswith(REST)]
        offsets = [f"      {s.name}: {json.dumps([0.0] * s.size)} # the rest pose, to be filled in" for s in rest]
        return "\n".join(
            [
                "controller_manager:",
                "  ros__parameters:",
                f"    update_rate: {rate} # Hz: {rate}, or a multiple of it",
                f"    {self.name}:",
                f"      type: {self.name}/{CLASS}",
                f"{self.name}:",
                "  ros__parameters:",
                f"    update_rate: {rate}",
                "    patience: 5.0 # s that it waits for the first signals",
                "    frozen_after: 0.0 # s after which a value that never changes is stale; 0: never",
                *["    state_interfaces: # a rotation: x, y, z, w of a quaternion, or nine numbers"] * bool(states),
                *states,
                *[f"    # set points and last commands are not read from there: {', '.join(told)}"] * bool(told),
                "    max_age: # s; less than here is permitted, not more",
                *ages,
                "    command_interfaces:",
                *writes,
                "    limits: # narrower than here is permitted, not wider",
                *ranges,
                *(["    offset: # added to the command", *offsets] if rest else []),
                "",
            ]
        )


def _whole(rate_hz: float) -> int:
    """The slowest update rate of a controller manager, which are whole, that is a multiple of this one."""
    multiples = (rate_hz * k for k in range(1, 101))
    return round(next((m for m in multiples if abs(m - round(m)) < 1e-6 * m), rate_hz))


def _fields(values: Iterable[Any], row: Row) -> str:
    return f"{{{', '.join(map(str, values))}, {len(row.interfaces)}}}"


def _array(values: Iterable[str]) -> str:
    return f"{{{', '.join(values)}}}"


def _rows(rows: Iterable[str]) -> str:
    return "{\n" + "".join(f"    {row},\n" for row in rows) + "}"


def _float(value: float) -> str:
    """A bound in C++; it may be infinite."""
    return number(value) if math.isfinite(value) else f"{'-' * (value < 0)}{INFINITE.format('float')}"


def _double(value: float | None) -> str:
    """A number of a rule; None: it is off."""
    return repr(float(value)) if value is not None and math.isfinite(value) else INFINITE.format("double")


def _most(value: float | None) -> str:
    """A count that must not be reached; files may say fractions."""
    return "1 << 30" if value is None or value > 1 << 30 else str(math.ceil(value))


def _yaml(value: float) -> str:
    if not math.isfinite(value):
        return "-.inf" if value < 0 else ".inf"
    return repr(float(np.float32(value)))

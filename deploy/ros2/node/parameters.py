"""ROS parameters from a dataclass: each field with its description, its range or its choices, and its type."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

Settings = TypeVar("Settings")


def setting(default: Any, description: str, low: float | None = None, high: float | None = None, **more: Any) -> Any:
    """A dataclass field that becomes a parameter. `choices=` lists what it may be."""
    return dataclasses.field(default=default, metadata={"help": description, "low": low, "high": high, **more})


def _descriptor(field: Any) -> ParameterDescriptor:
    choices = field.metadata.get("choices")
    descriptor = ParameterDescriptor(description=field.metadata["help"], read_only=not field.metadata.get("live"))
    if choices:
        descriptor.additional_constraints = "one of: " + ", ".join(choices)
    if field.metadata["low"] is not None:
        low, high = field.metadata["low"], field.metadata["high"]
        if isinstance(field.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
        else:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
    return descriptor


def declare(node: Node, kind: type[Settings]) -> Settings:
    """Declare the fields of a dataclass as parameters of the node; what was set, as an instance.

    ValueError, with what would fit, for a value of the wrong type, out of range or not among the choices.
    """
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        try:
            value = node.declare_parameter(field.name, field.default, _descriptor(field)).value
        except InvalidParameterTypeException:
            wanted = type(field.default).__name__
            raise ValueError(f"parameter {field.name} must be a {wanted}: {field.metadata['help']}") from None
        except InvalidParameterValueException:
            low, high = field.metadata["low"], field.metadata["high"]
            raise ValueError(
                f"parameter {field.name} must be in {low:g} .. {high:g}: {field.metadata['help']}"
            ) from None
        choices = field.metadata.get("choices")
        if choices and value not in choices:
            raise ValueError(f"parameter {field.name}: {value!r} is not one of {', '.join(choices)}")
        values[field.name] = value
    return kind(**values)

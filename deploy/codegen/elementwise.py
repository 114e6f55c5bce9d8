"""Elementwise ONNX operators as C expressions: one table, and how numbers are written.

Whole numbers and truth values are floats in C, too: exact up to 2^24, which indices and counts stay below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deploy.codegen.onnx_graph import GraphError, Node, Value

# {0}, {1} ... are the inputs; attributes by name, with the standard's defaults in DEFAULTS. NaN stays NaN: every
# comparison with it is false.
ELEMENTWISE = {
    "Abs": "({0} < 0.0f ? -{0} : {0})",
    "Acos": "policy_acos({0})",
    "Acosh": "policy_acosh({0})",
    "Add": "{0} + {1}",
    "And": "{0} * {1}",
    "Asin": "policy_asin({0})",
    "Asinh": "policy_asinh({0})",
    "Atan": "policy_atan({0})",
    "Atanh": "policy_atanh({0})",
    "Cast": "{0}",
    "CastLike": "{0}",
    "Ceil": "-policy_floor(-{0})",
    "Celu": "({0} > 0.0f ? {0} : {alpha} * (policy_exp({0} / {alpha}) - 1.0f))",
    "Cos": "policy_cos({0})",
    "Cosh": "policy_cosh({0})",
    "Div": "{0} / {1}",
    "Elu": "({0} > 0.0f ? {0} : {alpha} * (policy_exp({0}) - 1.0f))",
    "Equal": "({0} == {1} ? 1.0f : 0.0f)",
    "Erf": "policy_erf({0})",
    "Exp": "policy_exponential({0})",
    "Floor": "policy_floor({0})",
    "Gelu": "policy_gelu({0})",
    "Greater": "({0} > {1} ? 1.0f : 0.0f)",
    "GreaterOrEqual": "({0} >= {1} ? 1.0f : 0.0f)",
    "HardSigmoid": "policy_clip({alpha} * {0} + {beta}, 0.0f, 1.0f)",
    "HardSwish": "{0} * policy_clip({0} / 6.0f + 0.5f, 0.0f, 1.0f)",
    "IsInf": "policy_infinite({0}, {detect_negative}, {detect_positive})",
    "IsNaN": "policy_nan({0})",
    "LeakyRelu": "({0} > 0.0f ? {0} : {alpha} * {0})",
    "Less": "({0} < {1} ? 1.0f : 0.0f)",
    "LessOrEqual": "({0} <= {1} ? 1.0f : 0.0f)",
    "Log": "policy_log({0})",
    "Max": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "Min": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "Mish": "policy_mish({0})",
    "Mod": "policy_mod({0}, {1}, {fmod})",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Not": "1.0f - {0}",
    "Or": "({0} + {1} > 0.0f ? 1.0f : 0.0f)",
    "PRelu": "({0} < 0.0f ? {1} * {0} : {0})",
    "Pow": "policy_pow({0}, {1})",
    "Reciprocal": "1.0f / {0}",
    "Relu": "({0} < 0.0f ? 0.0f : {0})",
    "Round": "policy_nearest({0})",
    "Selu": "{gamma} * ({0} > 0.0f ? {0} : {alpha} * (policy_exp({0}) - 1.0f))",
    "Shrink": "({0} < -({lambd}) ? {0} + {bias} : {0} > {lambd} ? {0} - {bias} : 0.0f)",
    "Sigmoid": "policy_sigmoid({0})",
    "Sign": "({0} > 0.0f ? 1.0f : {0} < 0.0f ? -1.0f : {0})",
    "Sin": "policy_sin({0})",
    "Sinh": "policy_sinh({0})",
    "Softplus": "policy_softplus({0})",
    "Softsign": "{0} / (1.0f + ({0} < 0.0f ? -{0} : {0}))",
    "Sqrt": "policy_sqrt({0})",
    "Sub": "{0} - {1}",
    "Tan": "policy_tan({0})",
    "Tanh": "policy_tanh({0})",
    "ThresholdedRelu": "({0} > {alpha} ? {0} : 0.0f)",
    "Where": "({0} != 0.0f ? {1} : {2})",
    "Xor": "({0} != {1} ? 1.0f : 0.0f)",
}
DEFAULTS: dict[str, dict[str, float | int]] = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "IsInf": {"detect_negative": 1, "detect_positive": 1},
    "LeakyRelu": {"alpha": 0.01},
    "Mod": {"fmod": 0},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Shrink": {"lambd": 0.5, "bias": 0.0},
    "ThresholdedRelu": {"alpha": 1.0},
}
SPECIAL = {"Clip"}  # elementwise, but what is written depends on what is constant
POWERS = {
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    0.5: "policy_sqrt({0})",
    1.5: "{0} * policy_sqrt({0})",
    1.0: "{0}",
    -0.5: "1.0f / policy_sqrt({0})",
    -1.0: "1.0f / {0}",
    -2.0: "1.0f / ({0} * {0})",
}
MOST_FACTORS = 24  # of whole numbers: two to the power of more is beyond those that floats have
WRAPPED = {
    "Add",
    "Sub",
    "Mul",
    "Neg",
    "Abs",
    "Div",
    "Mod",
    "Pow",
}  # of bytes the rest is cut off, which floats do not do


def number(value: float | np.floating[Any] | int) -> str:
    """A float32 as a C constant that reads back as the same number."""
    single = np.float32(value)
    if not np.isfinite(single):
        raise GraphError(f"a constant of the graph is {value}")
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def literal(value: float | np.floating[Any] | int) -> str:
    """The same of a constant of the graph, which may be infinite (a mask) or NaN."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.isnan(single):
        return "POLICY_NAN"
    return number(single) if np.isfinite(single) else f"{'-' if single < 0 else ''}POLICY_INFINITY"


def elementwise(node: Node) -> bool:
    """Whether the operator is computed element by element."""
    return node.operator in ELEMENTWISE or node.operator in SPECIAL


def read(node: Node) -> tuple[str, ...]:
    """The inputs whose elements the expression has; of CastLike's second one the type alone matters."""
    return node.inputs[:1] if node.operator == "CastLike" else node.inputs


def expression(node: Node, inputs: Sequence[str], values: Sequence[Value | None], result: Value) -> str:
    """The C expression of an elementwise operator; `inputs` are the C expressions of its inputs' elements."""
    if node.operator in WRAPPED and result.dtype.kind in "iu" and result.dtype.itemsize < 4:
        raise GraphError(f"{node} computes with {result.dtype}; cast to float32 first")
    if node.operator == "Clip":
        return _clip(node, inputs, values)
    if node.operator in ("Cast", "CastLike"):
        return _cast(node, inputs[0], values[0], result)
    template = ELEMENTWISE[node.operator]
    if node.operator == "Pow":
        template = _power(node, _one(values[1]), template, result)
    if node.operator == "Div" and result.dtype.kind in "iu":
        template = "policy_towards_zero({0} / {1})"
    if node.operator == "Gelu" and node.attributes.get("approximate", b"none") == b"tanh":
        template = "policy_gelu_tanh({0})"
    attributes = {**DEFAULTS.get(node.operator, {}), **node.attributes}
    numbers = {
        name: number(value) if isinstance(value, float) else str(int(value))
        for name, value in attributes.items()
        if isinstance(value, (float, int))
    }
    return template.format(*inputs, **numbers)


def _one(value: Value | None) -> float | None:
    """The number that a constant consists of."""
    if value is None or value.data is None or len(np.unique(value.data)) != 1:
        return None
    return float(value.data.flat[0])


def _power(node: Node, exponent: float | None, template: str, result: Value) -> str:
    """Of whole numbers as a product, which is exact; a fraction would not be whole."""
    if result.dtype.kind not in "iu":
        return template if exponent is None else POWERS.get(exponent, template)
    if exponent is None or exponent not in range(1, MOST_FACTORS + 1):
        raise GraphError(f"{node} computes with {result.dtype}; cast to float32 first")
    return " * ".join(["{0}"] * int(exponent))


def _cast(node: Node, x: str, value: Value | None, result: Value) -> str:
    """To whole numbers: towards zero, as onnxruntime does. What the type cannot hold is not defined."""
    assert value is not None
    if result.dtype.kind == "b":
        return f"({x} != 0.0f ? 1.0f : 0.0f)"
    if result.dtype.kind in "iu":
        narrow = result.dtype.itemsize < value.dtype.itemsize or value.dtype.kind == "f"
        if narrow and result.dtype.itemsize < 4:
            raise GraphError(
                f"{node} casts to {result.dtype}; only to float32, bool and whole numbers of 32 bits or more"
            )
        return f"policy_towards_zero({x})" if value.dtype.kind == "f" else x
    if result.dtype not in (np.float32, np.float64):
        raise GraphError(f"{node} casts to {result.dtype}, of which there is none in C")
    return x


def _clip(node: Node, inputs: Sequence[str], values: Sequence[Value | None]) -> str:
    text = inputs[0]
    for index, sign in ((1, "<"), (2, ">")):
        value = values[index] if index < len(values) else None
        if value is None:
            continue
        if value.size != 1:
            raise GraphError(f"{node} has a limit that is not one number")
        limit = inputs[index] if value.data is None else literal(value.data.item())
        if limit != {"<": "-POLICY_INFINITY", ">": "POLICY_INFINITY"}[sign]:
            text = f"({text} {sign} {limit} ? {limit} : {text})"
    return text

"""What generated C takes on a Cortex-M4F, estimated from its operators: cycles, flash, memory.

The numbers per operation are fitted to what the emulator of an STM32F405 counts (deploy.mcu.cost); of the networks in
tests/deploy/mcu/test_budget.py the estimates are within 0.7 and 1.4 times that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PRODUCT = {"float32": 4.4, "float16": 5.0, "int8": 1.65, "w8a8": 1.25}  # to multiply and add, its weight read
PER_OUTPUT = {"float32": 4.0, "float16": 4.0, "int8": 13.0, "w8a8": 11.0}
PER_CALL = 60.0  # of a matrix-vector product
ROUNDED = 20.0  # an input that is rounded for a product
COPIED, LOOPED = 9.0, 7.0  # an element; a turn of a loop
COMPUTED_PRODUCT = 11.0  # of matrices that are both computed
SEEN = 22.0  # a pixel in the window of a convolution or a pool, with the check of the edges
TANH = 30.0  # of four at once
ROUNDED_TANH = 13.0  # one that rounds for a product
FUNCTIONS = {
    "policy_sqrt": 16.0,
    "policy_clip": 8.0,
    "policy_exp": 34.0,
    "policy_exponential": 75.0,
    "policy_tanh": 60.0,
    "policy_sigmoid": 52.0,
    "policy_erf": 85.0,
    "policy_mish": 70.0,
    "policy_pow": 330.0,
    "policy_sin": 160.0,
    "policy_cos": 160.0,
    "policy_tan": 320.0,
    "policy_towards_zero": 15.0,
}
RARE, INDEX = 110.0, 30.0  # of policy_functions.h; a look-up's
CODE, LINE = 1200, 26  # bytes: of the functions, of a statement
STACK = 256  # bytes: the emulated chip's most was 240
SIZES = {"float": 4, "uint32_t": 4, "uint16_t": 2}


def of_expression(text: str) -> float:
    """Cycles of a statement over floats."""
    called = sum(FUNCTIONS.get(name, RARE) for name in re.findall(r"policy_\w+", text))
    return called + 14.0 * text.count(" / ") + 3.0 * len(re.findall(r" [-+*<>?%|] |[<>=!]=", text)) + 3.0


def of_product(weights: str, outputs: int, inputs: int, rounds: bool) -> float:
    """Cycles of one matrix-vector product, that `rounds` its inputs; `outputs` with those that only fill a block."""
    rounded = ROUNDED * inputs if rounds else 0.0
    return PER_CALL + outputs * (PER_OUTPUT[weights] + PRODUCT[weights] * inputs) + rounded


def flash(lines: Iterable[str], constants: Mapping[str, tuple[str, list[str]]], vectors: int) -> int:
    """Bytes of code, weights and test vectors (`vectors`: their bytes)."""
    weights = sum(SIZES[kind] * len(texts) for kind, texts in constants.values())
    return CODE + LINE * sum(1 for _ in lines) + weights + vectors

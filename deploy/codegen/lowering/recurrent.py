"""GRU, LSTM and RNN: their cells once per step of a sequence, in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deploy.codegen.lowering.parts import AnyArray, Parts, Shapes, UnsupportedError, only

Cell = Callable[[Parts, str, tuple[str, ...]], tuple[str, ...]]  # x (n, in), state (n, hidden) ... -> next state
Matrices = tuple[AnyArray, AnyArray, AnyArray, AnyArray]


def _matrices(parts: Parts, gates: int, attributes: Mapping[str, Any]) -> list[Matrices]:
    """Per direction W (gates, in), R (gates, hidden) and their biases (gates,)."""
    only(attributes, layout=0, clip=None, activations=None, input_forget=0)
    for index, what in ((4, "lengths of sequences"), (7, "peepholes")):
        if parts.given(index):
            raise UnsupportedError(f"has {what}, which are not supported")
    w, r = parts.data(1), parts.data(2)
    size = gates * r.shape[2]
    bias = parts.data(3) if parts.given(3) else np.zeros((len(w), 2 * size), np.float32)
    return [(w[k], r[k], bias[k, :size], bias[k, size:]) for k in range(len(w))]


def _unroll(
    parts: Parts, attributes: Mapping[str, Any], shapes: Shapes, outputs: list[str], cells: list[Cell], sizes: list[int]
) -> None:
    """`cells`: per direction; `sizes`: of their states. `outputs`: all states, then the last; empty: unwanted."""
    steps, n, _ = shapes[parts.given(0)]
    hidden, directions = sizes[0], len(cells)
    seen: list[list[str]] = [[""] * directions for _ in range(steps)]
    ends = []
    for k, cell in enumerate(cells):
        backwards = attributes.get("direction", b"forward") == b"reverse" or k == 1
        state = tuple(_initial(parts, 5 + index, k, n, hidden) for index in range(len(sizes)))
        for step in reversed(range(steps)) if backwards else range(steps):
            x = parts.reshape(parts.columns(parts.given(0), step, step + 1, axis=0), n, -1)
            state = cell(parts, x, state)
            seen[step][k] = state[0]
        ends.append(state)
    if outputs[0]:
        both = [name for step in seen for name in step]
        parts.reshape(parts.add("Concat", *both, axis=0), steps, directions, n, hidden, to=outputs[0])
    for index, name in enumerate(outputs[1:]):
        if name:
            last = [state[index] for state in ends]
            parts.reshape(parts.add("Concat", *last, axis=0), directions, n, hidden, to=name)


def _initial(parts: Parts, index: int, direction: int, n: int, hidden: int) -> str:
    """(n, hidden) of (directions, n, hidden)."""
    if not parts.given(index):
        return parts.constant(np.zeros((n, hidden)))
    return parts.reshape(parts.columns(parts.given(index), direction, direction + 1, axis=0), n, hidden)


def gru(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Gates in the order update, reset, new; the reset gate acts before or after the product with R."""
    late = bool(attributes.get("linear_before_reset", 0))
    matrices = _matrices(parts, 3, attributes)
    n = matrices[0][1].shape[1]

    def cell_of(w: AnyArray, r: AnyArray, w_bias: AnyArray, r_bias: AnyArray) -> Cell:
        def cell(parts: Parts, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
            (before,) = state
            from_input, rows = parts.linear(x, w, w_bias), len(r) if late else 2 * n
            from_state = parts.linear(before, r[:rows], r_bias[:rows])
            gates = (parts.columns(values, 0, 2 * n) for values in (from_input, from_state))
            both = parts.add("Sigmoid", parts.add("Add", *gates))
            update, reset = parts.columns(both, 0, n), parts.columns(both, n, 2 * n)
            if late:
                kept = parts.add("Mul", reset, parts.columns(from_state, 2 * n, 3 * n))
            else:
                kept = parts.linear(parts.add("Mul", reset, before), r[2 * n :], r_bias[2 * n :])
            new = parts.add("Tanh", parts.add("Add", parts.columns(from_input, 2 * n, 3 * n), kept))
            change = parts.add("Mul", update, parts.add("Sub", before, new))
            return (parts.add("Add", new, change),)

        return cell

    _unroll(parts, attributes, shapes, outputs, [cell_of(*each) for each in matrices], [n])


def lstm(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Gates in the order input, output, forget, cell; one product for what comes from the input and from the state."""
    matrices = _matrices(parts, 4, attributes)
    n = matrices[0][1].shape[1]

    def cell_of(w: AnyArray, r: AnyArray, w_bias: AnyArray, r_bias: AnyArray) -> Cell:
        weight, bias = np.concatenate([w, r], axis=1), w_bias + r_bias

        def cell(parts: Parts, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
            hidden, memory = state
            gates = parts.linear(parts.add("Concat", x, hidden, axis=1), weight, bias)
            open_ = parts.add("Sigmoid", parts.columns(gates, 0, 3 * n))
            into, out, keep = (parts.columns(open_, k * n, k * n + n) for k in range(3))
            new = parts.add("Mul", into, parts.add("Tanh", parts.columns(gates, 3 * n, 4 * n)))
            memory = parts.add("Add", parts.add("Mul", keep, memory), new)
            return parts.add("Mul", out, parts.add("Tanh", memory)), memory

        return cell

    _unroll(parts, attributes, shapes, outputs, [cell_of(*each) for each in matrices], [n, n])


def rnn(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """One layer of tanh over what comes from the input and from the state."""
    matrices = _matrices(parts, 1, attributes)
    n = matrices[0][1].shape[1]

    def cell_of(w: AnyArray, r: AnyArray, w_bias: AnyArray, r_bias: AnyArray) -> Cell:
        weight, bias = np.concatenate([w, r], axis=1), w_bias + r_bias
        return lambda parts, x, state: (
            parts.add("Tanh", parts.linear(parts.add("Concat", x, state[0], axis=1), weight, bias)),
        )

    _unroll(parts, attributes, shapes, outputs, [cell_of(*each) for each in matrices], [n])

"""The terms of what a foreign network is fed, as numpy data and as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.adoption.contract import Piece
from policies.adoption.fields import EVERYTHING
from policies.models.graph import Graph
from policies.models.networks import Array
from sim.spec import Group

BEGUN = "begun"  # state: 0 before the first step, then 1


def value(piece: Piece, signals: Mapping[str, Any], last: Array | None, rows: int) -> Array:
    """The term (rows, k) of signals (rows, *shape); `last`: what the network did before (rows, k)."""
    term = piece.term
    if term.constant:
        x = np.broadcast_to(np.asarray(term.constant, np.float32), (rows, len(term.constant)))
    elif term.signals:
        x = np.concatenate([np.asarray(signals[name], np.float32) for name in term.signals], axis=-1)
    else:
        assert last is not None
        x = last
    if term.minus is not None:
        base = np.asarray(signals[term.minus], np.float32)
        x = x - np.concatenate([base] * (x.shape[-1] // base.shape[-1]), axis=-1)
    x = x if piece.places is None else x[:, list(piece.places)]
    x = within(x - piece.offset, term.clip)
    if term.squash is not None:
        x = x / np.sqrt(np.float32(1.0) + (x / np.float32(term.squash)) ** 2)
    return np.asarray(x * piece.scale, np.float32)


def write_value(graph: Graph, piece: Piece, inputs: Group, last: str) -> str:
    """The same as ONNX nodes, of the signals `inputs` and of `last`."""
    term = piece.term
    if term.constant:  # as many rows as there are robots
        x = graph.add("Mul", graph.columns(inputs[0].name, 0, 1), graph.constant([[0.0]]))
        x = graph.add("Add", x, graph.constant([term.constant]))
    else:
        x = graph.join(list(term.signals)) if term.signals else last
    if term.minus is not None:
        sizes = {s.name: s.size for s in inputs}
        x = graph.add("Sub", x, graph.join([term.minus] * (sizes[term.signals[0]] // sizes[term.minus])))
    if piece.places is not None:
        x = picked(graph, x, list(piece.places))
    if piece.offset.any():
        x = graph.add("Sub", x, graph.constant(piece.offset))
    x = clipped(graph, x, term.clip)
    if term.squash is not None:
        ratio = graph.add("Div", x, graph.constant(term.squash))
        square = graph.add("Mul", ratio, ratio)
        x = graph.add("Div", x, graph.add("Sqrt", graph.add("Add", square, graph.constant(1.0))))
    if (piece.scale != 1.0).any():
        x = graph.add("Mul", x, graph.constant(piece.scale))
    return x


def within(x: Array, limits: tuple[float, float]) -> Array:
    """x within the limits, in single precision."""
    return np.clip(x, np.float32(limits[0]), np.float32(limits[1])).astype(np.float32)


def clipped(graph: Graph, x: str, limits: tuple[float, float]) -> str:
    """x within the limits; x itself where there are none."""
    return x if limits == EVERYTHING else graph.add("Clip", x, *(graph.constant(limit) for limit in limits))


def picked(graph: Graph, x: str, places: list[int]) -> str:
    """x[:, places]; x itself where they are all of it, in order."""
    if places == list(range(len(places))):
        return graph.columns(x, 0, len(places))
    return graph.add("Gather", x, graph.constant(places, np.int64), axis=1)


def affine(graph: Graph, x: str, gain: Array, bias: Array) -> str:
    """x * gain + bias, without what does nothing."""
    x = graph.add("Mul", x, graph.constant(gain)) if (gain != 1.0).any() else x
    return graph.add("Add", x, graph.constant(bias)) if bias.any() else x


def write_begun(graph: Graph) -> None:
    """The next value of the state `BEGUN`, whatever it is now."""
    never = graph.add("Mul", f"state.{BEGUN}", graph.constant([[0.0]]))
    graph.add("Add", never, graph.constant([[1.0]]), to=f"next_state.{BEGUN}")

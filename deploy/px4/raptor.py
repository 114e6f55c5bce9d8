"""A policy as `policy.tar`, which PX4's module mc_raptor loads from the SD card: no firmware has to be built.

The module's network is fixed: 22 numbers, a dense layer of 16 (ReLU), a gated recurrent unit of 16, a dense layer of 4.
It sees position and velocity relative to the set point, each clipped, the rotation, all three turned by its
yaw; body rates; and its own last action, -1 to 1. Its action is what comes out, clipped to -1 to 1: rotors front right,
back right, back left, front left, as ours are. A policy that turns to the world's x axis turns to the yaw set point so.

Sources: PX4-Autopilot src/modules/mc_raptor (main @30bf3d03), rl-tools @9acdf5c8 (persist/backends/tar, nn/layers).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.onnx_graph import Graph, Node, read
from deploy.codegen.operators import SUPPORTED
from deploy.policy_file import PolicyFile
from deploy.trust.text import printable
from sim.robots.quadrotors import MOTOR_COMMAND

Array = NDArray[np.float32]

RATE_HZ, ENCODED, HIDDEN, ACTIONS = 100.0, 16, 16, 4
LAYOUT = "22 inputs, a dense layer of 16 with ReLU, a gated recurrent unit of 16, a dense layer of 4"
OTHER = f"mc_raptor's network is {LAYOUT}; this one is another"
OBSERVATION = "Position.OrientationRotationMatrix.LinearVelocity.AngularVelocityDelayed(0).ActionHistory(1)"
META = f'meta: {{"environment": {{"observation": "{OBSERVATION}"}}}}\n'
STEPS, SIDE_BY_SIDE = 500, 2  # of the example in the file; the module runs through its first five steps
# What the module feeds, in its order: signal, what it subtracts, numbers, and where it clips (m, m/s).
SEEN = (
    ("position", "target_position", 3, 0.5),
    ("rotation", "", 9, 0.0),
    ("linear_velocity", "target_velocity", 3, 1.0),
    ("angular_velocity", "", 3, 0.0),
)


class RaptorError(ValueError):
    """The module cannot fly this policy; the message says why."""


@dataclass(frozen=True)
class Term:
    """A part of the network's input: scale * limited(signal - minus)."""

    signal: str
    minus: str = ""
    scale: float = 1.0
    clip: float = 0.0  # on both sides; 0: none
    squash: float = 0.0  # x / sqrt(1 + (x / squash)^2); 0: none

    def of(self, signals: Mapping[str, Any]) -> Array:
        """Of signals (k,) by name."""
        x = signals[self.signal] - (signals[self.minus] if self.minus else np.float32(0.0))
        if self.squash:
            x = x / np.sqrt(1.0 + (x / np.float32(self.squash)) ** 2)
        if self.clip:
            x = np.clip(x, -self.clip, self.clip)
        return np.asarray(np.float32(self.scale) * x, np.float32)


@dataclass(frozen=True)
class Weights:
    """Of the network: (rows, columns) and (rows,) of each layer; `start` (16,): what it remembers in the beginning."""

    encoder: tuple[Array, Array]
    inward: tuple[Array, Array]
    across: tuple[Array, Array]
    output: tuple[Array, Array]
    start: Array

    def step(self, x: Array, hidden: Array) -> tuple[Array, Array]:
        """Actions (n, 4), not limited, and the next state (n, 16) of inputs (n, 22) and state (n, 16)."""
        encoded = np.maximum(x @ self.encoder[0].T + self.encoder[1], np.float32(0.0))
        told, known = encoded @ self.inward[0].T + self.inward[1], hidden @ self.across[0].T + self.across[1]
        gates = 1.0 / (1.0 + np.exp(-(told + known)[:, : 2 * HIDDEN]))
        new = np.tanh(told[:, 2 * HIDDEN :] + gates[:, :HIDDEN] * known[:, 2 * HIDDEN :])
        after = (new + gates[:, HIDDEN:] * (hidden - new)).astype(np.float32)
        return (after @ self.output[0].T + self.output[1]).astype(np.float32), after


class RaptorGraph:
    """What a policy's graph says: `terms` of the input, `weights`, whether its actions go through a tanh."""

    def __init__(self, policy: PolicyFile, content: bytes) -> None:
        """RaptorError for another network."""
        self.policy, self.path = policy, policy.path
        self.graph: Graph = read(content, SUPPORTED)
        try:
            self._read()
        except RaptorError:
            raise
        except (KeyError, IndexError, RecursionError, ValueError):  # a stranger's graph, built otherwise
            raise self._other() from None

    def _read(self) -> None:
        policy = self.policy
        self.made = {name: node for node in self.graph.nodes for name in node.outputs}
        self.constant = {name: value.data for name, value in self.graph.values.items() if value.data is not None}
        if [(c.name, c.shape) for c in policy.outputs] != [(MOTOR_COMMAND.name, MOTOR_COMMAND.shape)]:
            told = ", ".join(c.name for c in policy.outputs)
            raise self._error(f"commands {told}, where mc_raptor commands 4 rotors")
        if policy.rate_hz != RATE_HZ:
            raise self._error(f"runs at {policy.rate_hz:g} Hz; mc_raptor's state advances at {RATE_HZ:g} Hz")
        last = self._last_layer()
        self.hidden = self._state_behind(last.inputs[0])
        layers = [node for node in self.graph.nodes if node.operator in ("Gemm", "MatMul")]
        across = [node for node in layers if node.inputs[0] == f"state.{self.hidden}"]
        inward = [node for node in layers if self._operator(node.inputs[0]) == "Relu"]
        if len(layers) != 4 or len(across) != 1 or len(inward) != 1:
            raise self._other()
        first = self.made[self.made[inward[0].inputs[0]].inputs[0]]
        start = next(s.initial for s in policy.state if s.name == self.hidden).astype(np.float32)
        found = [self._layer(node) for node in (first, inward[0], across[0], last)]
        shapes = [weight.shape for weight, _ in found]
        if shapes != [(ENCODED, 22), (3 * HIDDEN, ENCODED), (3 * HIDDEN, HIDDEN), (ACTIONS, HIDDEN)]:
            raise self._other()
        self.terms = self._terms(first.inputs[0])
        encoder = self._in_its_order(*found[0])
        self.weights = Weights(encoder, found[1], found[2], found[3], start)
        self._prove()

    def _error(self, what: str) -> RaptorError:
        return RaptorError(f"{self.path}: {what}")

    def _other(self) -> RaptorError:
        return self._error(OTHER)

    def _operator(self, name: str) -> str:
        return self.made[name].operator if name in self.made else ""

    def _number(self, name: str) -> float:
        """A constant whose numbers are all the same; NaN for anything else."""
        value = self.constant.get(name)
        return float(value.ravel()[0]) if value is not None and value.size and np.ptp(value) == 0 else float("nan")

    def _last_layer(self) -> Node:
        """The dense layer of which the commands are made; notes what limits its actions."""
        node, self.tanh, limited = self.made.get(MOTOR_COMMAND.name), False, False
        while node is not None and node.operator not in ("Gemm", "MatMul"):
            self.tanh |= node.operator == "Tanh"
            limited |= node.operator == "Clip" and [self._number(name) for name in node.inputs[1:]] == [-1.0, 1.0]
            free = [name for name in node.inputs if name and name not in self.constant]
            if len(free) != 1 or node.operator not in ("Tanh", "Clip", "Identity", "Add", "Sub", "Mul", "Div"):
                raise self._other()
            node = self.made.get(free[0])
        if node is None or not (self.tanh or limited):
            raise self._other()
        return node

    def _state_behind(self, name: str) -> str:
        found = [s.name for s in self.policy.state if f"next_state.{s.name}" == name]
        if not found:
            raise self._other()
        return found[0]

    def _layer(self, node: Node) -> tuple[Array, Array]:
        weight, bias = (self.constant.get(name) for name in (*node.inputs[1:], "")[:2])
        plain = all(node.attributes.get(key, usual) == usual for key, usual in (("alpha", 1.0), ("beta", 1.0)))
        if weight is None or bias is None or not plain or node.attributes.get("transA", 0):
            raise self._other()
        if not node.attributes.get("transB", 0):
            weight = weight.T
        return np.ascontiguousarray(weight, np.float32), np.asarray(bias, np.float32).reshape(-1)

    def _terms(self, name: str) -> list[tuple[Term, int]]:
        """Every part of the concatenated input, and how many numbers it has."""
        if self._operator(name) != "Concat":
            raise self._other()
        return [(self._term(part), self.graph.values[part].size) for part in self.made[name].inputs]

    def _term(self, name: str) -> Term:
        if name not in self.made:
            return Term(name)
        node = self.made[name]
        a, *rest = node.inputs
        if node.operator == "Sub" and a not in self.made and rest[0] not in self.made:
            return Term(a, rest[0])
        if node.operator == "Identity":
            return self._term(a)
        if node.operator == "Mul" and np.isfinite(scale := self._number(rest[0])):
            inner = self._term(a)
            return Term(inner.signal, inner.minus, inner.scale * scale, inner.clip, inner.squash)
        if node.operator == "Clip":
            inner, (low, high) = self._term(a), (self._number(each) for each in rest)
            if low == -high and inner.scale == 1.0 and not inner.squash:
                return Term(inner.signal, inner.minus, 1.0, high)
        if node.operator == "Div" and self._operator(rest[0]) == "Sqrt":
            inner, squash = self._term(a), self._squash(a, rest[0])
            if squash and inner.scale == 1.0 and not inner.clip:
                return Term(inner.signal, inner.minus, 1.0, 0.0, squash)
        raise self._error(f"the operator {node.operator!r} makes a part of the network's input; mc_raptor only clips")

    def _squash(self, x: str, root: str) -> float:
        """s, where the root is sqrt(1 + (x / s)^2); else 0."""
        total = self.made[self.made[root].inputs[0]]
        square = self.made.get(total.inputs[0])
        ratio = self.made.get(square.inputs[0]) if square is not None else None
        if (
            total.operator == "Add"
            and self._number(total.inputs[1]) == 1.0
            and square is not None
            and square.operator == "Mul"
            and square.inputs[0] == square.inputs[1]
            and ratio is not None
            and ratio.operator == "Div"
            and ratio.inputs[0] == x
        ):
            return self._number(ratio.inputs[1])
        return 0.0

    def _in_its_order(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """The first layer for the module's input: its columns in the module's order, scales multiplied in."""
        wanted = [(signal, minus) for signal, minus, _, _ in SEEN]
        places, at = dict[tuple[str, str], tuple[int, int, float]](), 0
        for term, size in self.terms:
            places[term.signal, term.minus] = (at, size, term.scale)
            at += size
        past = [key for key in places if key[0].startswith("state.") and key not in wanted]
        if len(past) != 1 or set(places) != {*wanted, *past} or places[past[0]][1] != ACTIONS:
            told = ", ".join(f"{s}{' - ' + m if m else ''}" for s, m in places)
            raise self._error(
                f"it sees {told}; mc_raptor feeds position - target_position, rotation, linear_velocity - "
                "target_velocity, angular_velocity and the last action"
            )
        self.past = past[0][0].removeprefix("state.")
        parts = [places[key] for key in (*wanted, *past)]
        columns = [weight[:, at : at + size] * np.float32(scale) for at, size, scale in parts]
        return np.concatenate(columns, axis=1), bias

    def _fed(self, signals: Mapping[str, Any], last: Array, module: bool) -> Array:
        """The network's input (1, 22): as the module makes it, or as the file does. Scales are in the weights."""
        own = {(term.signal, term.minus): term for term, _ in self.terms}
        parts = []
        for signal, minus, _, clip in SEEN:
            term = own[signal, minus]
            shaped = Term(signal, minus, 1.0, clip) if module else Term(signal, minus, 1.0, term.clip, term.squash)
            parts.append(shaped.of(signals))
        return np.concatenate([*parts, last])[None].astype(np.float32)

    def commands(self, module: bool) -> Array:
        """Motor commands (steps, 4) in the file's test vectors: as the module makes them, or as the file does."""
        vectors, state = self.policy.vectors, self.weights.start[None]
        first = next(s.initial for s in self.policy.state if s.name == self.past).reshape(ACTIONS)
        last, made = np.zeros(ACTIONS, np.float32) if module else first.astype(np.float32), []
        for k in range(vectors.steps):
            signals = {name: np.asarray(value[k], np.float32) for name, value in vectors.inputs.items()}
            action, state = self.weights.step(self._fed(signals, last, module), state)
            last = np.tanh(action[0]) if self.tanh and not module else np.clip(action[0], -1.0, 1.0)
            made.append(0.5 * (last + np.float32(1.0)))
        return np.stack(made)

    def _prove(self) -> None:
        """RaptorError unless these weights make what the file's vectors say: then nothing was misread."""
        worst = float(np.abs(self.commands(module=False) - self.policy.vectors.outputs[MOTOR_COMMAND.name]).max())
        if not worst <= 2.0 * self.policy.vectors.tolerance:
            raise self._error(f"{OTHER} (its vectors are missed by {worst:.2g})")

    def differences(self) -> list[str]:
        """What the module does otherwise than the file."""
        own = {term.signal: term for term, _ in self.terms}
        found = []
        for signal, _, _, clip in SEEN:
            term = own[signal]
            if clip and (term.clip != clip or term.squash):
                ours = f"squashes it at {term.squash:g}" if term.squash else f"clips it at {term.clip:g}"
                ours = ours if term.squash or term.clip else "takes it as it is"
                found.append(f"mc_raptor clips the error of {signal} at {clip:g}, the file {ours}")
        return found + ["mc_raptor clips its actions, the file takes their tanh"] * self.tanh


def _tensor(path: str, values: Array) -> dict[str, bytes]:
    dims = "".join(f"dim_{k}: {size}\n" for k, size in enumerate(values.shape))
    meta = f"type: tensor\ndtype: float32\nnum_dims: {values.ndim}\n{dims}"
    return {f"{path}/meta": meta.encode(), f"{path}/data": np.ascontiguousarray(values, "<f4").tobytes()}


def entries(weights: Weights, name: str) -> dict[str, bytes]:
    """What is in the file, by path. `name`: of the checkpoint, for people."""
    about = f"type: sequential\ncheckpoint_name: {printable(name, 60).encode('ascii', 'replace').decode()}\n{META}"
    found = {"actor/meta": about.encode()}  # the module takes 256 bytes at most
    kinds = ("type: dense\nactivation_function: RELU\n", "type: gru\n", "type: dense\nactivation_function: IDENTITY\n")
    for k, kind in enumerate(kinds):
        found[f"actor/layers/{k}/meta"] = kind.encode()
    parts = {
        "0/weights": weights.encoder[0],
        "0/biases": weights.encoder[1],
        "1/weights_input": weights.inward[0],
        "1/biases_input": weights.inward[1],
        "1/weights_hidden": weights.across[0],
        "1/biases_hidden": weights.across[1],
        "1/initial_hidden_state": weights.start,
        "2/weights": weights.output[0],
        "2/biases": weights.output[1],
    }
    for path, values in parts.items():
        found |= _tensor(f"actor/layers/{path}/parameters", values)
    for side, values in zip(("input", "output"), example(weights), strict=True):
        found |= _tensor(f"example/{side}", values)
    return found


def example(weights: Weights) -> tuple[Array, Array]:
    """Inputs (steps, 2, 22) and the outputs (steps, 2, 4) that the module compares as it loads them."""
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1.0, 1.0, (STEPS, SIDE_BY_SIDE, 22)).astype(np.float32)
    state, made = np.repeat(weights.start[None], SIDE_BY_SIDE, axis=0), []
    for x in inputs:
        action, state = weights.step(x, state)
        made.append(action)
    return inputs, np.stack(made)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of the old kind (ustar), the same bytes for the same files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def policy_tar(policy: PolicyFile, content: bytes, approximate: bool) -> tuple[bytes, Sequence[str]]:
    """The file, and what to say of it. RaptorError when the module would fly it otherwise, unless `approximate`."""
    reading = RaptorGraph(policy, content)
    found = reading.differences()
    if found and not approximate:
        raise RaptorError(f"{policy.path}: {'; '.join(found)}. approximate=true writes it nevertheless")
    apart = np.abs(reading.commands(module=True) - policy.vectors.outputs[MOTOR_COMMAND.name])
    said = f"commands of the file's vectors, as mc_raptor makes them: up to {apart.max():.2g} of the range apart"
    name = f"{policy.name} sha256 {policy.sha256[:16]}"
    return archive(entries(reading.weights, name)), [*found, said]

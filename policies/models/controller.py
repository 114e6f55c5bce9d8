"""A trained controller as numpy data, and what it means: raw named signals and its own state in, commands out.

This is the reference that the exported graph must agree with. Learners fold their normalisers into the first layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from policies.models.networks import Array, Network
from sim import spec
from sim.spec import Group, Signal
from sim.tasks import Task, features_of, history_of, initial_action
from sim.tasks.abilities import heading_of
from sim.tasks.recorded import recorded
from sim.terms import Feature

if TYPE_CHECKING:
    from policies.models.graph import Graph
    from policies.models.vision import PictureEncoder


# Of row vectors (x, y, z): what a turn about the vertical changes, and the same a quarter turn further.
LEVEL = np.diag(np.array([1.0, 1.0, 0.0], np.float32))
QUARTER = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
# Of a heading (0, 0), which points nowhere: it is taken for x, as the state would not recover from 0 / 0.
NOWHERE, LENGTH_FLOOR = np.array([1e-6, 0.0], np.float32), np.float32(1e-20)


class Policy(Protocol):
    """What `policies.models.export` writes: a controller from raw signals and its own state to commands."""

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    settings: dict[str, Any]  # of the task, to build it again in evaluation
    envelope: dict[str, float]  # rules of deploy.safety.envelope.Envelope

    def state(self) -> Group:
        """The state as signals, in a fixed order: what `initial_state` holds."""

    def limits(self) -> tuple[Array, Array]:
        """Low and high (k,) of the commands."""

    def initial_state(self, n: int) -> dict[str, Array]:
        """State before the first step: name -> (n, k)."""

    def act(
        self, signals: Mapping[str, Array], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, *shape) and the next state, from signals and state by name."""

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes, from signals and `state.NAME`, `next_state.NAME` included; the action in [-1, 1]."""


@runtime_checkable
class Planning(Protocol):
    """A controller that plans some steps ahead."""

    def plan(self) -> dict[str, int]:
        """What the policy file says of its plans, in control steps."""


def feature_size(feature: Feature, sizes: Mapping[str, int]) -> int:
    """The length of a feature, from the length of each signal; ValueError when it does not fit."""
    for name in (feature.signal, feature.minus):
        if name is not None and name not in sizes:
            raise ValueError(f"a feature reads {name!r}; the policy has: {', '.join(sizes)}")
    length = sizes[feature.signal]
    if feature.minus is not None and length % sizes[feature.minus]:
        raise ValueError(
            f"{feature.minus!r} ({sizes[feature.minus]}) does not repeat into {feature.signal!r} ({length})"
        )
    return length


def turning(signal: Signal) -> tuple[Array, Array] | None:
    """Matrices L and Q: x + (cos a - 1) x L + sin a x Q is the signal x seen from axes turned by a about the vertical.

    None for what is the same in all of them.
    """
    if signal.frame == "world" and signal.size % 3 == 0:
        each = np.eye(signal.size // 3, dtype=np.float32)
        return np.kron(each, LEVEL), np.kron(each, QUARTER)
    if signal.frame == "body->world" and signal.size == 9:
        each = np.eye(3, dtype=np.float32)
        return np.kron(LEVEL, each), np.kron(QUARTER, each)
    return None


def physical(commands: Group, action: Array) -> dict[str, Array]:
    """Commands name -> (n, *shape) within their limits, for actions (n, k) in [-1, 1]."""
    low, high = spec.limits(commands)
    half = np.float32(0.5) * (high - low)
    return spec.unpack(commands, np.clip((action + np.float32(1.0)) * half + low, low, high))


def normalised(commands: Group, values: Mapping[str, Array]) -> Array:
    """The inverse of `physical`: actions (n, k), beyond [-1, 1] where commands (n, *shape) are beyond their limits."""
    low, high = spec.limits(commands)
    half = np.float32(0.5) * (high - low)
    action: Array = (spec.pack(commands, values) - low) / half - np.float32(1.0)
    return action


@dataclass
class FeaturePolicy:
    """Everything between raw signals and commands. State: "history" (own past actions) and the network's own.

    The network takes the features of numbers, then the points that the encoders find in pictures.
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    features: tuple[Feature, ...]
    history: int
    initial_action: float
    network: Network
    settings: dict[str, Any] = field(default_factory=dict)  # of the task, to build it again in evaluation
    envelope: dict[str, float] = field(default_factory=dict)  # rules of deploy.safety.envelope.Envelope
    encoders: dict[str, PictureEncoder] = field(default_factory=dict)  # by the picture's name
    heading: str = ""  # the signal from whose direction the world is seen (`sim.tasks.abilities.HasHeading`)

    def __post_init__(self) -> None:
        for signal in (*self.inputs, *self.outputs):
            seen = signal.name in self.encoders and self.encoders[signal.name].shape == signal.shape
            if len(signal.shape) != 1 and not seen:
                raise ValueError(
                    f"signal {signal.name!r}: a controller of features takes vectors, not shape {signal.shape}, "
                    "unless it is a picture with an encoder"
                )
        spec.limits(self.outputs)
        if not self.rate_hz > 0.0 or self.history < 0 or not -1.0 <= self.initial_action <= 1.0:
            raise ValueError(
                f"needs rate_hz > 0, history >= 0 and initial_action in [-1, 1], "
                f"got {self.rate_hz}, {self.history} and {self.initial_action}"
            )
        sizes = self.sizes()
        length = sum(feature_size(feature, sizes) for feature in self.features)
        length += sum(encoder.size for encoder in self.encoders.values())
        if length != self.network.inputs:
            raise ValueError(f"the network takes {self.network.inputs} values, the features are {length}")
        if self.actions != self.network.outputs:
            raise ValueError(f"the network returns {self.network.outputs} values, the commands are {self.actions}")

    @classmethod
    def from_task(
        cls,
        task: Task,
        network: Network,
        name: str | None = None,
        encoders: Mapping[str, PictureEncoder] | None = None,
    ) -> FeaturePolicy:
        """The controller of `task` with a trained `network` and, of each picture, its encoder."""
        return cls(
            name=name or task.name,
            task=task.name,
            robot=task.robot.name,
            rate_hz=task.rate_hz,
            inputs=task.policy,
            outputs=task.commands,
            features=features_of(task),
            history=history_of(task),
            initial_action=float(np.float32(initial_action(task))),
            network=network,
            settings=recorded(task),
            envelope=dict(task.envelope),
            encoders=dict(encoders or {}),
            heading=heading_of(task),
        )

    @property
    def actions(self) -> int:
        """The number of command elements."""
        return spec.size(self.outputs)

    def sizes(self) -> dict[str, int]:
        """The length of everything that a feature may read, by name."""
        sizes = {signal.name: signal.size for signal in spec.numbers(self.inputs)}
        return sizes | {"history": self.history * self.actions} if self.history else sizes

    def state(self) -> Group:
        """The state as signals, in a fixed order: what `initial_state` holds."""
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def limits(self) -> tuple[Array, Array]:
        """Low and high (actions,) of the commands."""
        return spec.limits(self.outputs)

    def initial_state(self, n: int) -> dict[str, Array]:
        """State before the first step: name -> (n, k)."""
        past = np.full((n, self.history * self.actions), self.initial_action, np.float32)
        return ({"history": past} if self.history else {}) | self.network.initial_state(n)

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, k) and the next state, from signals (n, *shape) and state (n, k) by name."""
        values = {s.name: np.asarray(signals[s.name], np.float32) for s in spec.numbers(self.inputs)} | dict(state)
        values |= self._turned(values)
        points = [self.encoders[s.name].see(signals[s.name]) for s in spec.pictures(self.inputs)]
        found = [*(feature.evaluate(values) for feature in self.features), *points]
        features = np.concatenate(found, axis=-1, dtype=np.float32)
        action, after = self.network.forward(features, state)
        if self.history:
            kept = state["history"][:, : (self.history - 1) * self.actions]
            after = {"history": np.concatenate([action, kept], axis=-1)} | after
        return physical(self.outputs, action), after

    def _turned(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The signals (n, k) that look otherwise from the heading."""
        if not self.heading:
            return {}
        told = values[self.heading] + NOWHERE
        direction = told / np.sqrt(np.sum(told * told, axis=-1, keepdims=True) + LENGTH_FLOOR)
        cosine, sine = direction[:, :1], direction[:, 1:]
        made = {}
        for signal in self.inputs:
            if matrices := turning(signal):
                x = values[signal.name]
                made[signal.name] = x + (cosine - np.float32(1.0)) * (x @ matrices[0]) + sine * (x @ matrices[1])
        return made

    def _write_turned(self, graph: Graph) -> dict[str, str]:
        """The same as nodes: name -> the name of what is seen."""
        if not self.heading:
            return {}
        told = graph.add("Add", self.heading, graph.constant(NOWHERE))
        square = graph.add("Mul", told, told)
        length = graph.add("Add", graph.columns(square, 0, 1), graph.columns(square, 1, 2))
        direction = graph.add("Div", told, graph.add("Sqrt", graph.add("Add", length, graph.constant(LENGTH_FLOOR))))
        change = graph.add("Sub", graph.columns(direction, 0, 1), graph.constant(1.0))
        sine = graph.columns(direction, 1, 2)
        made = {}
        for signal in self.inputs:
            if matrices := turning(signal):
                level, quarter = (graph.add("MatMul", signal.name, graph.constant(m)) for m in matrices)
                along = graph.add("Add", signal.name, graph.add("Mul", change, level))
                made[signal.name] = graph.add("Add", along, graph.add("Mul", sine, quarter))
        return made

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes, the next state included; the name of the action in [-1, 1]."""
        action = self.network.write(graph, self._write_features(graph))
        if self.history:
            kept = (self.history - 1) * self.actions
            past = [graph.columns("state.history", 0, kept)] if kept else []
            graph.join([action, *past], to="next_state.history")
        return action

    def _write_features(self, graph: Graph) -> str:
        sizes, seen = self.sizes(), {"history": "state.history"} | self._write_turned(graph)
        parts = []
        for feature in self.features:
            x = seen.get(feature.signal, feature.signal)
            if feature.minus is not None:
                repeat = sizes[feature.signal] // sizes[feature.minus]
                x = graph.add("Sub", x, graph.join([seen.get(feature.minus, feature.minus)] * repeat))
            if feature.squash is not None:
                ratio = graph.add("Div", x, graph.constant(feature.squash))
                square = graph.add("Mul", ratio, ratio)
                x = graph.add("Div", x, graph.add("Sqrt", graph.add("Add", square, graph.constant(1.0))))
            if feature.scale != 1.0:
                x = graph.add("Mul", x, graph.constant(feature.scale))
            parts.append(x)
        parts += [self.encoders[s.name].write(graph, s.name) for s in spec.pictures(self.inputs)]
        return graph.join(parts)

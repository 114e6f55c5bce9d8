"""Policies that plan a chunk of actions by denoising: base, steering actor and chunk buffer as one controller.

`Denoiser` is the base: a chunk from an observation and noise, a black box to whoever steers it. `ChunkPolicy` is the
whole controller, from raw signals to commands, as numpy data and as ONNX nodes; its chunk is explicit state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.models.controller import physical
from policies.models.networks import Array, Layer
from policies.models.networks.feed_forward import Mlp
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.spec import Group, Signal
from sim.tasks import Task, history_of, initial_action, sensed
from sim.tasks.recorded import recorded
from sim.terms import HISTORY

if TYPE_CHECKING:
    from policies.models.graph import Graph


TURNS = 7.0  # of a table of noise, per unit of what is seen


class Base(Protocol):
    """Any policy that can be steered through its noise: no gradients, no weights asked for."""

    @property
    def horizon(self) -> int:
        """Actions in a chunk."""

    @property
    def noise_size(self) -> int:
        """Numbers of noise that one chunk takes; standard normal in training."""

    @property
    def eye(self) -> ObservationEncoder | None:
        """What makes its observation of signals; none: they are numbers."""

    def sample(self, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) in [-1, 1], action by action, for observations (n, o) and noise (n, k)."""


class ExportableBase(Base, Protocol):
    """A base that can be put into a file."""

    @property
    def actions(self) -> int:
        """Numbers in an action."""

    @property
    def observed(self) -> int:
        """Numbers that it is told."""

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        """`sample` as ONNX nodes, which the graph knows as its base; the name of the chunk."""


@dataclass(frozen=True)
class Schedule:
    """The steps of a sampler: x <- keep x + gain g(f(observation, scale x, time)), g the identity or clipping to 1."""

    time: Array  # (K,) what the network is told, 0..1
    scale: Array  # (K,)
    keep: Array  # (K,)
    gain: Array  # (K,)
    clip: bool  # the network's output is an action: clip it

    @property
    def steps(self) -> int:
        """How often the network is evaluated."""
        return len(self.time)


@dataclass
class Denoiser:
    """A perceptron with SiLU, evaluated `schedule.steps` times; normalisers and time are in its first layer."""

    horizon: int
    actions: int
    schedule: Schedule
    see: Array  # (hidden, observation)
    look: Array  # (hidden, horizon * actions)
    bias: Array  # (K, hidden)
    layers: list[Layer]  # after the first
    eye: ObservationEncoder | None = None
    mean: Array | None = None  # (observation,) of those that it learned from, for learners that see them
    deviation: Array | None = None

    @property
    def observed(self) -> int:
        return int(self.see.shape[1])

    @property
    def noise_size(self) -> int:
        return self.horizon * self.actions

    def sample(self, observation: Array, noise: Array) -> Array:
        seen, x, s = observation @ self.see.T, noise.astype(np.float32), self.schedule
        for k in range(s.steps):
            out = self._forward(seen + (s.scale[k] * x) @ self.look.T + self.bias[k])
            x = s.keep[k] * x + s.gain[k] * (np.clip(out, -1.0, 1.0) if s.clip else out)
        clipped: Array = np.clip(x, -1.0, 1.0)
        return clipped

    def _forward(self, x: Array) -> Array:
        for weight, bias in self.layers:
            half = np.float32(0.5) * x
            x = np.tanh(half)
            x += np.float32(1.0)
            x *= half  # SiLU: x sigmoid(x) = x/2 (tanh(x/2) + 1); in place, this is where training's time goes
            x = x @ weight.T
            x += bias
        return x

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        seen, x, s = graph.add("MatMul", observation, graph.constant(self.see.T)), noise, self.schedule
        look = graph.constant(self.look.T)
        weights = [(graph.constant(w), graph.constant(b)) for w, b in self.layers]
        for k in range(s.steps):
            scaled = graph.add("MatMul", _times(graph, x, s.scale[k]), look)
            y = graph.add("Add", graph.add("Add", seen, scaled), graph.constant(self.bias[k]))
            for weight, bias in weights:
                y = graph.add("Mul", y, graph.add("Sigmoid", y))
                y = graph.add("Gemm", y, weight, bias, transB=1)
            y = _clip(graph, y) if s.clip else y
            x = graph.add("Add", _times(graph, x, s.keep[k]), _times(graph, y, s.gain[k]))
        chunk = _clip(graph, x)
        if self.mean is not None and self.deviation is not None:
            tell(graph, (observation, noise, chunk), self.mean, self.deviation)
        return chunk


@dataclass
class Steering:
    """An actor that chooses the base's noise: `magnitude` * tanh of a perceptron, told apart for each action or not."""

    actor: Mlp
    magnitude: float
    repeat: int = 1  # the same noise for so many actions

    def noise(self, observation: Array) -> Array:
        """Noise (n, k * repeat)."""
        return np.tile(np.float32(self.magnitude) * self.actor.forward(observation, {})[0], (1, self.repeat))

    def write(self, graph: Graph, observation: str) -> str:
        """The same as ONNX nodes."""
        chosen = _times(graph, self.actor.write(graph, observation), self.magnitude)
        return graph.join([chosen] * self.repeat)


@dataclass
class NoiseTable:
    """Noise of an unsteered base: rows of a table in the file, one after the other; one row of zeros is w = 0.

    The row with which an episode begins follows from what is measured first, so that episodes differ in their noise.
    """

    table: Array  # (rows, noise_size)

    def begin(self, observation: Array) -> Array:
        """The first row of an episode (n, 1) that begins with this observation (n, o)."""
        turns = np.float32(TURNS) * observation.sum(axis=1, keepdims=True)
        first: Array = np.floor((turns - np.floor(turns)) * np.float32(len(self.table)))
        return first

    def drawn(self, observation: Array, draw: Array, fresh: NDArray[np.bool_]) -> tuple[Array, Array]:
        """The noise (n, noise_size) at the row `draw` (n, 1), and the next row, where it is `fresh`."""
        row = np.where(draw < 0.0, self.begin(observation), draw)
        following = (row + np.float32(1.0)) % np.float32(len(self.table))
        return self.table[row[:, 0].astype(np.int64)], np.where(fresh, following, draw)

    def write(self, graph: Graph, observation: str, fresh: str) -> str:
        """The noise (n, noise_size) as ONNX nodes, the state's next value included."""
        rows, one = graph.constant(float(len(self.table))), graph.constant([1], np.int64)
        turns = graph.add("Mul", graph.add("ReduceSum", observation, one, keepdims=1), graph.constant(TURNS))
        first = graph.add("Floor", graph.add("Mul", graph.add("Sub", turns, graph.add("Floor", turns)), rows))
        new = graph.add("Less", "state.draw", graph.constant(0.0))
        row = graph.add("Where", new, first, "state.draw")
        noise = graph.add("Gather", graph.constant(self.table), graph.add("Squeeze", graph.whole(row), one))
        following = graph.add("Mod", graph.add("Add", row, graph.constant(1.0)), rows, fmod=1)
        graph.add("Where", fresh, following, "state.draw", to="next_state.draw")
        return noise

    @classmethod
    def normal(cls, size: int, rows: int = 256, std: float = 1.0) -> NoiseTable:
        """Normal, always the same."""
        return cls((std * np.random.default_rng(0).standard_normal((rows, size))).astype(np.float32))

    @classmethod
    def none(cls, size: int) -> NoiseTable:
        """Always zero."""
        return cls(np.zeros((1, size), np.float32))

    def cut(self, bound: float) -> NoiseTable:
        """The same, cut off at +-`bound`."""
        return NoiseTable(self.table.clip(-bound, bound))


class Planner(Protocol):
    """What makes a chunk with the base's help, from noise of its own size."""

    def sample(self, base: Base, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) in [-1, 1], for observations (n, o) and noise (n, k)."""

    def write(self, graph: Graph, base: ExportableBase, observation: str, noise: str) -> str:
        """The same as ONNX nodes; the name of the chunk."""


@dataclass
class ChunkPolicy:
    """The controller: a new chunk every `replan` control steps, one action of it per step.

    State: "chunk", what is left of the plan, next action first (n, horizon * actions) in [-1, 1]; "left", how many of
    them are still to be executed (n, 1); with `NoiseTable` noise "draw", the row of the table (n, 1), -1 at first; and
    where the base sees past actions "history", newest first (n, history * actions).
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    base: ExportableBase
    chosen: Steering | NoiseTable
    replan: int
    planner: Planner | None = None  # none: the base alone
    history: int = 0  # own past actions that the base is told after what is sensed
    initial_action: float = 0.0  # [-1, 1]: what the history holds at first
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.replan <= self.base.horizon:
            raise ValueError(f"replan is between 1 and the chunk's {self.base.horizon} actions, got {self.replan}")
        spec.limits(self.outputs)
        self._eye = self.base.eye or ObservationEncoder(self.inputs)
        if self.told != self.base.observed or spec.size(self.outputs) != self.base.actions:
            raise ValueError(
                f"the base takes {self.base.observed} numbers and gives {self.base.actions}, the signals have "
                f"{self.told} and the commands {spec.size(self.outputs)}"
            )

    @classmethod
    def from_task(
        cls,
        task: Task,
        base: ExportableBase,
        chosen: Steering | NoiseTable,
        replan: int,
        planner: Planner | None = None,
    ) -> ChunkPolicy:
        """The controller of `task` with a trained base."""
        return cls(**contract(task), base=base, chosen=chosen, replan=replan, planner=planner)

    @property
    def told(self) -> int:
        """How many numbers the base is told."""
        return self._eye.size + self.history * self.base.actions

    def plan(self) -> dict[str, int]:
        """For the policy file: "horizon", the actions in a plan; "replan", the control steps between two plans."""
        return {"horizon": self.base.horizon, "replan": self.replan}

    def state(self) -> Group:
        """The state as signals."""
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, Array]:
        """Nothing planned yet: name -> (n, k)."""
        state = {"chunk": np.zeros((n, self.base.noise_size), np.float32), "left": np.zeros((n, 1), np.float32)}
        if isinstance(self.chosen, NoiseTable):
            state["draw"] = np.full((n, 1), -1.0, np.float32)
        if self.history:
            state[HISTORY] = np.full((n, self.history * self.base.actions), self.initial_action, np.float32)
        return state

    def limits(self) -> tuple[Array, Array]:
        """Low and high (actions,) of the commands."""
        return spec.limits(self.outputs)

    def act(
        self, signals: Mapping[str, Array], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, *shape) and the next state, from signals and state name -> (n, *shape)."""
        observation = self._eye.see(signals)
        if self.history:
            observation = np.concatenate([observation, state[HISTORY]], axis=1)
        fresh = state["left"] <= 0.0
        after: dict[str, Array] = {}
        if isinstance(self.chosen, Steering):
            noise = self.chosen.noise(observation)
        else:
            noise, after["draw"] = self.chosen.drawn(observation[:, : self._eye.measured], state["draw"], fresh)
        chunk, k = np.where(fresh, self._planned(observation, noise, state), state["chunk"]), self.base.actions
        action, rest = carried_out(chunk, state["left"], fresh, self.replan, k)
        if self.history:
            after[HISTORY] = np.concatenate([action, state[HISTORY][:, : (self.history - 1) * k]], axis=1)
        return physical(self.outputs, action), rest | after

    def _planned(self, observation: Array, noise: Array, state: Mapping[str, Array]) -> Array:
        """New chunks (n, horizon * actions)."""
        if self.planner is None:
            return self.base.sample(observation, noise)
        return self.planner.sample(self.base, observation, noise)

    def _write_planned(self, graph: Graph, observation: str, noise: str) -> str:
        """The same as ONNX nodes."""
        if self.planner is None:
            return self.base.write(graph, observation, noise)
        return self.planner.write(graph, self.base, observation, noise)

    def write(self, graph: Graph) -> str:
        """The whole as ONNX nodes, the next state included; the name of the action in [-1, 1]."""
        told = self._eye.write(graph)
        observation = graph.join([told, "state.history"]) if self.history else told
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        if isinstance(self.chosen, Steering):
            noise = self.chosen.write(graph, observation)
        else:
            noise = self.chosen.write(graph, self._eye.write_measured(graph, told), fresh)
        chunk = graph.add("Where", fresh, self._write_planned(graph, observation, noise), "state.chunk")
        if "base" in graph.metadata:
            graph.metadata["base"]["seen"] = observation
        k, size = self.base.actions, self.base.noise_size
        action = write_carried_out(graph, chunk, fresh, self.replan, k, size)
        if self.history:
            past = [graph.columns("state.history", 0, (self.history - 1) * k)] if self.history > 1 else []
            graph.join([action, *past], to="next_state.history")
        return action


def carried_out(
    chunk: Array, left: Array, fresh: NDArray[np.bool_], replan: int, actions: int
) -> tuple[Array, dict[str, Array]]:
    """The action (n, actions) that is due, and the state: what is left of the chunk, whose last action is repeated.

    Of chunks (n, horizon * actions), of which `left` (n, 1) actions are to be executed: `replan` where it is `fresh`.
    """
    following = np.where(fresh, np.float32(replan), left) - np.float32(1.0)
    rest = np.concatenate([chunk[:, actions:], chunk[:, -actions:]], axis=1)
    return chunk[:, :actions], {"chunk": rest, "left": following}


def write_carried_out(graph: Graph, chunk: str, fresh: str, replan: int, actions: int, size: int) -> str:
    """The same as ONNX nodes, of chunks (n, size), the next state included; the name of the action."""
    full = graph.add("Where", fresh, graph.constant(float(replan)), "state.left")
    graph.add("Sub", full, graph.constant(1.0), to="next_state.left")
    last = graph.columns(chunk, size - actions, size)
    graph.join([graph.columns(chunk, actions, size), last] if size > actions else [last], to="next_state.chunk")
    return graph.columns(chunk, 0, actions)


def contract(task: Task) -> dict[str, Any]:
    """What a controller's fields say of its task."""
    return {
        "name": task.name.replace("/", "_"),
        "task": task.name,
        "robot": task.robot.name,
        "rate_hz": task.rate_hz,
        "inputs": sensed(task),
        "outputs": task.commands,
        "history": history_of(task) if sensed(task) != task.policy else 0,
        "initial_action": float(np.float32(initial_action(task))),
        "settings": recorded(task),
        "envelope": dict(task.envelope),
    }


def told_contract(task: Task) -> dict[str, Any]:
    """The same of a controller that is told no past actions."""
    return {name: value for name, value in contract(task).items() if name not in ("history", "initial_action")}


def tell(graph: Graph, between: tuple[str, str, str], mean: Array, deviation: Array) -> None:
    """The graph where its base stands: observation, noise, chunk; and what its observations were like in training."""
    names = dict(zip(("observation", "noise", "chunk"), between, strict=True))
    graph.metadata["base"] = {**names, "mean": mean, "deviation": deviation}


def _times(graph: Graph, x: str, factor: float) -> str:
    return x if factor == 1.0 else graph.add("Mul", x, graph.constant(factor))


def _clip(graph: Graph, x: str) -> str:
    return graph.add("Clip", x, graph.constant(-1.0), graph.constant(1.0))

"""Whether a task is done, as a classifier sees it: one file, from what the robot measures to a verdict.

`python -m policies.train_success` trains it. `algorithm.success=FILE` puts it in the place of the simulator's own
success, as a real robot must: episodes end and are rewarded when it says so. What the simulator says is then only
counted. Demonstrations keep the labels of whoever made them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from policies.models.action_selection import CriticEnsemble
from policies.models.networks import Array
from policies.models.networks.activations import sigmoid
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.env import Env, Step
from sim.spec import Group, Signal
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.models.graph import Graph

PROBABILITY, SUCCESS = "success_probability", "success"
VERDICT: Group = (Signal(PROBABILITY, (1,), low=0.0, high=1.0), Signal(SUCCESS, (1,), low=0.0, high=1.0))
NEAR = 1e-3  # m, below which places are the same
RECENT = 100  # episodes that rates are over


def distances(signals: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> list[Array]:
    """The logarithm of how far apart (n, 1) each pair of signals (n, k) is: what is near is told apart the finest."""
    ways = [np.sqrt(np.square(signals[a] - signals[b]).sum(axis=1, keepdims=True)) for a, b in pairs]
    return [np.log(way + np.float32(NEAR)) for way in ways]


@dataclass
class SuccessClassifier:
    """Perceptrons that agree on what is measured, how far apart places are, and the points found in pictures.

    `success` is 1 once what they believe has been at least `bar` for `frames` control steps in a row. State: "streak",
    how many it has been (n, 1).
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    eye: ObservationEncoder
    judges: CriticEnsemble  # of measurements, points and distances
    calibration: tuple[float, float]  # the probability is sigmoid(a * believed + b)
    bar: float
    frames: int
    outputs: Group = VERDICT
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames, how many in a row, must be at least 1, got {self.frames}")
        self._pairs = spec.place_pairs(self.inputs)

    def state(self) -> Group:
        """The state as signals."""
        return (Signal("streak", (1,)),)

    def initial_state(self, n: int) -> dict[str, Array]:
        """No frame yet: name -> (n, 1)."""
        return {"streak": np.zeros((n, 1), np.float32)}

    def limits(self) -> tuple[Array, Array]:
        """Low and high (2,) of the verdict."""
        return spec.limits(self.outputs)

    def act(
        self, signals: Mapping[str, Array], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The verdict name -> (n, 1) and the next state, from signals (n, *shape) and state by name."""
        seen = np.concatenate([self.eye.see(signals), *distances(signals, self._pairs)], axis=1)
        believed = self.judges.value(seen)[:, None]
        enough = np.float32(self.frames)
        streak = np.where(believed >= np.float32(self.bar), np.minimum(state["streak"] + np.float32(1.0), enough), 0.0)
        scale, shift = (np.float32(value) for value in self.calibration)
        verdict = {PROBABILITY: sigmoid(scale * believed + shift), SUCCESS: (streak >= enough).astype(np.float32)}
        return verdict, {"streak": streak.astype(np.float32)}

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes, the next state included; the verdict in [-1, 1]."""
        apart = []
        for a, b in self._pairs:
            way = graph.add("Sub", a, b)
            axis = graph.constant([1], np.int64)
            length = graph.add("Sqrt", graph.add("ReduceSum", graph.add("Mul", way, way), axis, keepdims=1))
            apart.append(graph.add("Log", graph.add("Add", length, graph.constant(NEAR))))
        believed = self.judges.write(graph, graph.join([self.eye.write(graph), *apart]))
        one, enough = graph.constant(1.0), graph.constant(float(self.frames))
        more = graph.add("Min", graph.add("Add", "state.streak", one), enough)
        good = graph.add("GreaterOrEqual", believed, graph.constant(self.bar))
        streak = graph.add("Where", good, more, graph.constant(0.0), to="next_state.streak")
        done = graph.real(graph.add("GreaterOrEqual", streak, enough))
        scale, shift = (graph.constant(value) for value in self.calibration)
        likely = graph.add("Sigmoid", graph.add("Add", graph.add("Mul", believed, scale), shift))
        both = graph.add("Mul", graph.join([likely, done]), graph.constant(2.0))
        return graph.add("Sub", both, one)


def success_file(path: str, task: Task) -> PolicyFile:
    """The classifier in that file; ValueError when it is none, of another task, or sees what this robot cannot."""
    file = PolicyFile.load(path)
    if [s.name for s in file.outputs] != [s.name for s in VERDICT]:
        given = ", ".join(s.name for s in file.outputs)
        raise ValueError(
            f"{path} is no success classifier but gives {given}; python -m policies.train_success makes one"
        )
    if (file.task, file.rate_hz) != (task.name, task.rate_hz):
        raise ValueError(
            f"{path} judges {file.task} at {file.rate_hz:g} Hz, but the task is {task.name} at {task.rate_hz:g} Hz"
        )
    measured = {(s.name, s.shape, s.unit, s.frame) for s in task.policy}
    for signal in file.inputs:
        if (signal.name, signal.shape, signal.unit, signal.frame) not in measured:
            hint = f"set task.cameras=[{signal.name}]" if signal.is_picture else "train it with signals=NAME,NAME"
            raise ValueError(
                f"{path} needs {signal.name!r}, which the robot does not measure in this task; it has: "
                f"{', '.join(s.name for s in task.policy)}; {hint}"
            )
    return file


class SuccessFromClassifier:
    """Scenes whose success is a classifier's verdict; a scene that the simulator calls lost is no success."""

    def __init__(self, env: Env, file: PolicyFile) -> None:
        self.env, self.num, self.file = env, env.num, file
        self.recent: list[tuple[bool, bool]] = []  # of the newest episodes: the verdict, the truth
        self._said, self._true, self._moved = np.zeros((3, env.num), bool)
        file.reset(env.num)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        begun: NDArray[np.bool_] = np.isin(np.arange(self.num), rows)
        over = [(bool(self._said[row]), bool(self._true[row])) for row in rows if self._moved[row]]
        self.recent = [*self.recent, *over][-RECENT:]
        self._said[begun] = self._true[begun] = self._moved[begun] = False
        self.file.restart(begun)
        self.env.reset(rows, episodes)

    def observe(self) -> dict[str, Array]:
        return self.env.observe()

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        outcome = self.env.step(command)
        signals = self.env.observe()
        seen = {s.name: np.nan_to_num(signals[s.name], posinf=0.0, neginf=0.0) for s in self.file.inputs}
        said = (self.file.step(seen)[SUCCESS][:, 0] > 0.5) & ~outcome.terminated
        self._true |= outcome.success
        self._said, self._moved = said, np.ones(self.num, bool)
        return dataclasses.replace(outcome, success=said)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        return self.env.render(row, height, width)

    def close(self) -> None:
        self.env.close()

    def rates(self) -> dict[str, float]:
        """Of the newest episodes: the simulator's success; what of the verdict's is false; what of it is missed.

        An episode is true when the simulator saw success at any moment before the episode's end.
        """
        if not self.recent:
            return {}
        said, true = np.array(self.recent).T
        rates = {"true_success": float(true.mean())}
        if said.any():
            rates["false_success"] = float(1.0 - true[said].mean())
        if true.any():
            rates["missed_success"] = float(1.0 - said[true].mean())
        return rates

    def state_dict(self) -> dict[str, Any]:
        """What doing the open episodes again does not bring back."""
        return {"file": self.file.sha256, "recent": list(self.recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """After the open episodes were done again. ValueError when the file is not the one that judged before."""
        if state["file"] != self.file.sha256:
            raise ValueError(f"{self.file.path} is not the classifier that this run began with")
        self.recent = [(bool(said), bool(true)) for said, true in state["recent"]]

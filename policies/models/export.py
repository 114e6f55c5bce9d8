"""A trained controller -> one consistent ONNX file (`deploy.policy_file` says what is inside).

Small networks are written as ONNX directly: milliseconds, and no torch. `export_torch` takes any torch module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.system.files import write_atomic
from deploy.trust.content import HEADER, KEY, SCHEMA, digest
from deploy.trust.contract import FEWEST_STEPS, LARGEST_TOLERANCE, packed
from policies.models.controller import FeaturePolicy, Planning, Policy
from policies.models.graph import OPSET, Graph, spliced
from policies.models.networks import Array
from sim import spec
from sim.spec import Group, numbers
from sim.tasks import Task, features_of, history_of

if TYPE_CHECKING:
    import onnx
    import torch


IR_VERSION = 8  # what opset 18 came with: read by every onnxruntime since 1.14
STEPS = 16  # control steps in the test vectors
BLOTCH = 8  # pixels, of random pictures in them
TOLERANCE = 1e-5  # of the command's range; widened to ten times what was measured

Reference = Callable[[Mapping[str, Array], Mapping[str, Array]], Mapping[str, Any]]


def _commands(graph: Graph, controller: Policy, action: str) -> None:
    low, high = controller.limits()
    shifted = graph.add("Add", action, graph.constant(1.0))
    scaled = graph.add("Mul", shifted, graph.constant(np.float32(0.5) * (high - low)))
    command = graph.add("Add", scaled, graph.constant(low))
    for signal in controller.outputs:
        where = spec.slices(controller.outputs)[signal.name]
        part = command if len(controller.outputs) == 1 else graph.columns(command, where.start, where.stop)
        graph.add("Clip", part, graph.constant(signal.low), graph.constant(signal.high), to=signal.name)


def build(controller: Policy, graph: Graph) -> onnx.ModelProto:
    """The `graph`, with a free batch size: signals and `state.NAME` in, commands and `next_state.NAME` out."""
    from onnx import helper

    _commands(graph, controller, controller.write(graph))

    def values(group: Group, prefix: str = "") -> list[onnx.ValueInfoProto]:
        kinds = {s.name: helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)) for s in group}
        return [helper.make_tensor_value_info(prefix + s.name, kinds[s.name], ["N", *s.shape]) for s in group]

    state = controller.state()
    made = helper.make_graph(
        graph.nodes,
        controller.name,
        values(controller.inputs) + values(state, "state."),
        values(controller.outputs) + values(state, "next_state."),
        graph.constants,
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(made, opset_imports=[opset], ir_version=IR_VERSION, producer_name=KEY)


def _plain(value: Any) -> Any:
    """numpy numbers and arrays as Python's, for json."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}")


def serialise(model: onnx.ModelProto, metadata: Mapping[str, Any]) -> bytes:
    """The file's bytes: metadata first, with the digest filled in. `metadata` lacks "schema" and "digest"."""
    import onnx

    try:
        text = json.dumps(
            {"schema": SCHEMA, "digest": "sha256:" + "0" * 64, **metadata}, allow_nan=False, default=_plain
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"the metadata holds something that JSON cannot: {error}") from None
    first, rest = onnx.ModelProto(), onnx.ModelProto()
    first.metadata_props.add(key=KEY, value=text)
    rest.CopyFrom(model)
    del rest.metadata_props[:]
    content: bytes = first.SerializeToString() + rest.SerializeToString()
    header = HEADER.search(content)
    assert header is not None
    start = header.start(2)
    return content[:start] + digest(content, start).encode() + content[start + 64 :]


def random_signals(inputs: Group, steps: int, rng: np.random.Generator) -> dict[str, Array]:
    """Plausible signals (steps, *shape): inside finite limits; rotation matrices where they turn body into world.

    Tokens change once.
    """
    signals = {}
    for signal in inputs:
        if signal.is_picture:
            value: NDArray[Any] = _blotches(signal.shape, steps, rng)
        elif signal.dtype == "int64":  # in the midst something else is said
            said = rng.integers(int(signal.low), int(signal.high) + 1, (2, *signal.shape))
            value = said.repeat(-(-steps // 2), axis=0)[:steps]
        elif signal.shape == (9,) and signal.frame == "body->world":
            value = np.linalg.qr(rng.normal(size=(steps, 3, 3)))[0].reshape(steps, 9)
        elif np.isfinite(signal.low) and np.isfinite(signal.high):
            value = rng.uniform(signal.low, signal.high, (steps, *signal.shape))
        else:
            value = np.clip(rng.normal(0.0, 0.5, (steps, *signal.shape)), signal.low, signal.high)
        signals[signal.name] = value.astype(signal.dtype)
    return signals


def _blotches(shape: tuple[int, ...], steps: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Pictures (steps, *shape) of coloured squares: like real ones in that neighbours are alike, so that they pack."""
    height, width, channels = shape
    coarse = rng.integers(0, 256, (steps, -(-height // BLOTCH), -(-width // BLOTCH), channels), np.uint8)
    return coarse.repeat(BLOTCH, axis=1).repeat(BLOTCH, axis=2)[:, :height, :width]


def closed_loop(controller: Policy, signals: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """What the numpy reference makes of `signals` (steps, *shape): "outputs" and "state", by name (steps, *shape)."""
    steps = len(next(iter(signals.values())))
    state = controller.initial_state(1)
    commands, states = [], []
    for step in range(steps):
        command, state = controller.act({name: value[step : step + 1] for name, value in signals.items()}, state)
        commands.append(command)
        states.append(state)
    return {
        "outputs": {s.name: np.concatenate([c[s.name] for c in commands]) for s in controller.outputs},
        "state": {name: np.concatenate([s[name] for s in states]) for name in state},
    }


def _compare_reference(controller: Policy, signals: Mapping[str, Array], reference: Reference) -> None:
    """The trained network itself (torch, usually) must command what the exported data command."""
    state = controller.initial_state(1)
    for step in range(len(next(iter(signals.values())))):
        now = {name: value[step : step + 1] for name, value in signals.items()}
        want = reference(now, state)
        got, state = controller.act(now, state)
        for signal in controller.outputs:
            error = float(np.abs(got[signal.name] - np.asarray(want[signal.name])).max()) / (signal.high - signal.low)
            if not error <= LARGEST_TOLERANCE:
                what = f"{signal.name!r} at step {step} by {error:.3g} of its range"
                raise PolicyFileError(f"not exported, the trained network and its data disagree: {what}")


def exact(values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Nested lists with the shortest decimal text that reads back as the same float32; pictures as packed text."""

    def shortest(value: Any) -> Any:
        return [shortest(v) for v in value] if value.ndim else float(str(value))

    return {n: packed(value) if value.dtype == np.uint8 else shortest(value) for n, value in values.items()}


def _metadata(controller: Policy, signals: Mapping[str, Array], expected: Mapping[str, Any]) -> dict[str, Any]:
    initial = {name: value[0] for name, value in controller.initial_state(1).items()}
    texts = exact(initial)
    plan = {"plan": controller.plan()} if isinstance(controller, Planning) else {}
    return {
        "name": controller.name,
        "task": controller.task,
        "robot": controller.robot,
        "rate_hz": controller.rate_hz,
        "inputs": spec.to_json(controller.inputs),
        "outputs": spec.to_json(controller.outputs),
        "state": [{"name": n, "shape": list(v.shape), "initial": texts[n]} for n, v in initial.items()],
        "envelope": controller.envelope,
        **plan,
        "training": {},
        "evaluation": None,
        "vectors": {
            "tolerance": TOLERANCE,
            "inputs": exact(signals),
            "outputs": exact(expected["outputs"]),
            "state": exact(expected["state"]),
        },
    }


def _recorded(controller: Policy, flight: Mapping[str, Array]) -> dict[str, Array]:
    """The first steps of a recorded flight of one robot: name -> (steps, *shape)."""
    signals = {}
    for signal in controller.inputs:
        if signal.name not in flight:
            raise ValueError(f"the recorded flight lacks the signal {signal.name!r}")
        signals[signal.name] = np.asarray(flight[signal.name][:STEPS], signal.dtype)
        if len(signals[signal.name]) < FEWEST_STEPS or signals[signal.name].shape[1:] != signal.shape:
            shape = signals[signal.name].shape
            raise ValueError(
                f"recorded {signal.name!r} is {shape}; needs at least {FEWEST_STEPS} steps of {signal.shape}"
            )
    return signals


def seal(model: onnx.ModelProto, metadata: dict[str, Any], path: str) -> bytes:
    """The bytes of a file that loads and agrees with itself, with the tolerance set from what was measured."""
    vectors = metadata["vectors"]
    vectors["tolerance"] = LARGEST_TOLERANCE
    try:
        measured = PolicyFile.from_bytes(serialise(model, metadata), path).verify() * LARGEST_TOLERANCE
    except PolicyFileError as error:
        raise PolicyFileError(f"not exported, the graph and its reference disagree: {error}") from None
    vectors["tolerance"] = float(f"{min(max(TOLERANCE, 10.0 * measured), LARGEST_TOLERANCE):.1e}")
    content = serialise(model, metadata)
    PolicyFile.from_bytes(content, path)
    return content


@runtime_checkable
class Unwritten(Protocol):
    """A controller that acts here and cannot become a policy file."""

    def why_unwritten(self) -> str:
        """One sentence."""


def to_bytes(
    controller: Policy,
    path: str,
    *,
    vectors_from: Mapping[str, Array] | None = None,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    reference: Reference | None = None,
) -> bytes:
    """What `export` writes; `path` names it in errors."""
    if isinstance(controller, Unwritten):
        raise ValueError(controller.why_unwritten())
    rng = np.random.default_rng(0)
    steps = FEWEST_STEPS if spec.tokens(controller.inputs) else STEPS  # a sentence takes as long as many steps
    signals = _recorded(controller, vectors_from) if vectors_from else random_signals(controller.inputs, steps, rng)
    if reference is not None:
        _compare_reference(controller, signals, reference)
    metadata = _metadata(controller, signals, closed_loop(controller, signals))
    metadata["training"] = {"task_config": controller.settings, **(training or {})}
    metadata["evaluation"] = evaluation
    graph = Graph()
    model = build(controller, graph)
    metadata |= graph.metadata
    return seal(model, metadata, path)


def export(controller: Policy, path: str | os.PathLike[str], **options: Any) -> PolicyFile:
    """Write the policy file at `path`, checked as when it is loaded, in one atomic step, and return it loaded.

    Options: `vectors_from`: a recorded flight of one robot, name -> (steps, *shape), for the test vectors (otherwise
    random signals). `training`: provenance; the task's settings are added as "task_config". `evaluation`: what was
    measured. `reference`: the trained network, (signals (1, k), state (1, k)) -> commands, compared with the exported
    data. Raises PolicyFileError when the graph, the numpy reference or `reference` disagree, ValueError on data that
    JSON or the recording cannot hold, OSError from the disk; in every case an existing file stays as it was.
    """
    path = os.fspath(path)
    write_atomic(path, to_bytes(controller, path, **options))
    return PolicyFile.load(path)


def update_evaluation(path: str | os.PathLike[str], evaluation: Mapping[str, Any]) -> PolicyFile:
    """Store evaluation results in an existing policy file, atomically; everything else in it stays."""
    import onnx

    path = os.fspath(path)
    metadata = dict(PolicyFile.load(path).metadata)
    for key in ("schema", "digest"):
        del metadata[key]
    metadata["evaluation"] = evaluation
    content = serialise(onnx.load(path), metadata)
    PolicyFile.from_bytes(content, path)
    write_atomic(path, content)
    return PolicyFile.load(path)


@dataclass
class TorchNetwork:
    """Any torch module that maps packed features (n, inputs) to actions (n, outputs); they are clipped to [-1, 1]."""

    module: torch.nn.Module
    inputs: int
    outputs: int

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        import torch

        with torch.no_grad():
            action = self.module(torch.from_numpy(np.ascontiguousarray(features)))
        return action.clamp(-1.0, 1.0).numpy(), {}

    def write(self, graph: Graph, x: str) -> str:
        """Torch's own ONNX nodes, and the clipping."""
        import torch

        action = spliced(graph, self.module, (torch.zeros(2, self.inputs),), (x,))
        return graph.add("Clip", action, graph.constant(-1.0), graph.constant(1.0))


def export_torch(
    module: torch.nn.Module, task: Task, path: str | os.PathLike[str], *, name: str | None = None, **options: Any
) -> PolicyFile:
    """Export a torch module, features (n, f) -> actions (n, k) in [-1, 1], for `task`. Options and errors: `export`.

    ValueError for a task whose policy sees more than numbers.
    """
    if more := [s.name for s in task.policy if s not in numbers(task.policy)]:
        raise ValueError(
            f"{task.name} shows its policy more than numbers ({more[0]}): export_torch takes features alone"
        )
    sizes = {signal.name: signal.size for signal in task.policy}
    actions = spec.size(task.commands)
    sizes["history"] = history_of(task) * actions
    inputs = sum(sizes[feature.signal] for feature in features_of(task))
    return export(FeaturePolicy.from_task(task, TorchNetwork(module.eval(), inputs, actions), name), path, **options)

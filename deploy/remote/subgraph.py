"""The base inside a policy file: chunks of actions from what is seen and noise, for whoever chooses that noise.

A file that plans with a base says in its metadata, under "base", between which tensors of its graph that stands:
"seen", the vector made of the signals; "observation" and "noise", what the base takes; "chunk", what it makes of them,
in [-1, 1]; and with "mean" and "deviation" what the observations were like that it learned from. The graph is cut at
these tensors, and the piece runs in onnxruntime like the whole.

A base that is told in words says under "told" besides what is made of the words ("heard"), what is kept of them until
others are told ("kept"), and how many "numbers" of its observation, after those that are measured, say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError, bounded, open_session
from sim import spec
from sim.spec import Signal

Array = NDArray[np.float32]


class Part:
    """The nodes of a graph that lead from some of its tensors to another. They run alone, or inside another graph."""

    def __init__(self, path: str, model: Any, sources: Mapping[str, tuple[int, ...]], target: str) -> None:
        """`sources`: tensor -> shape of a row. PolicyFileError when the target depends on anything else."""
        self.path, self.inputs, self.output = path, tuple(sources), target
        self.opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        wanted, kept = {target}, []
        for node in reversed(model.graph.node):
            if wanted.difference(sources).intersection(node.output):
                wanted.update(filter(None, node.input))
                kept.append(node)
        self.nodes = kept[::-1]
        self.constants = [t for t in model.graph.initializer if t.name in wanted]
        found = {t.name for t in self.constants} | {name for node in kept for name in node.output} | {*sources}
        if loose := wanted - found:
            raise PolicyFileError(f"{path}: {target!r} depends on {', '.join(sorted(loose))}, which is no part of it")
        alone = self._alone(model, sources)
        bounded(path, alone)
        self._session = open_session(path, alone)

    def _alone(self, model: Any, sources: Mapping[str, tuple[int, ...]]) -> bytes:
        """The bytes of a model that holds this part only."""
        from onnx import TensorProto, helper

        given = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        inputs = [
            helper.make_tensor_value_info(name, given.get(name, TensorProto.FLOAT), ["N", *shape])
            for name, shape in sources.items()
        ]
        outputs = [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "part", inputs, outputs, self.constants)
        made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        content: bytes = made.SerializeToString()
        return content

    def run(self, *values: NDArray[Any]) -> Array:
        """What these rows of the inputs, in their order, lead to; PolicyFileError when they do not fit."""
        feeds = {name: np.ascontiguousarray(value) for name, value in zip(self.inputs, values, strict=True)}
        try:
            made: Array = self._session.run([self.output], feeds)[0]
        except Exception as error:  # onnxruntime's own classes share no base with a public name
            shapes = ", ".join(f"{name} {value.dtype} {value.shape}" for name, value in feeds.items())
            raise PolicyFileError(f"{self.path}: {self.output!r} cannot be made of {shapes}: {error}") from None
        return made


def unconditional(model: Any) -> Any:
    """The same graph, in which all is worked out that stands in the first branch of an `If`."""
    from onnx import helper

    made = type(model)()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        branch = next((a.g for a in node.attribute if a.name == "then_branch"), None)
        if branch is None:
            made.graph.node.append(node)
        else:
            made.graph.node.extend(branch.node)
            made.graph.node.append(helper.make_node("Identity", [branch.output[0].name], [*node.output]))
    return made


class FileBase:
    """The base of a policy file, by its samples alone."""

    words = 0  # numbers of its observation, after those measured, that say what it was told
    told: Signal  # its words, if it is told in words
    kept: int  # numbers that are kept of them

    def __init__(self, policy: PolicyFile) -> None:
        """PolicyFileError when the file has no base that noise steers."""
        import onnx

        self.policy, path = policy, policy.path
        named, plan = policy.metadata.get("base"), policy.metadata.get("plan", {})
        if named is None:
            raise PolicyFileError(
                f"{path} has no base that is steered by noise; algorithm=diffusion makes files that have, and "
                "algorithm=vla with algorithm.head=flow (those of older versions do not say where: resume=FOLDER of "
                "such a run exports it again)"
            )
        if delay := plan.get("delay", 0):
            raise PolicyFileError(
                f"{path} plans {delay} actions ahead of what it sees; to be steered, a base is trained with delay=0"
            )
        try:
            self.horizon, self.actions = int(plan["horizon"]), spec.size(policy.outputs)
            self.mean, self.deviation = (np.asarray(named[name], np.float32) for name in ("mean", "deviation"))
            model = onnx.load_from_string(policy.content())
            sources = {named["observation"]: (self.observed,), named["noise"]: (self.noise_size,)}
            self.part = Part(path, model, sources, named["chunk"])
            self.hear, self.look = self._senses(model, named)
        except (KeyError, TypeError, IndexError) as error:
            raise PolicyFileError(f"{path}: what the metadata say of its base is malformed: {error}") from None
        nothing = (np.zeros((2, size), np.float32) for size in (self.observed, self.noise_size))
        if self.sample(*nothing).shape != (2, self.size):
            raise PolicyFileError(f"{path}: its base does not make chunks of {self.horizon} x {self.actions}")

    def _senses(self, model: Any, named: Mapping[str, Any]) -> tuple[Part | None, Part | None]:
        """What makes of words what is kept of them, and of signals, and of that, what the base observes."""
        path, signals = self.policy.path, {s.name: s.shape for s in self.policy.inputs}
        told = named.get("told")
        if told is None:
            return None, Part(path, model, signals, named["seen"]) if spec.pictures(self.policy.inputs) else None
        self.told = spec.tokens(self.policy.inputs)[0]
        self._kept: dict[bytes, Array] = {}
        self.words = index(told["numbers"])
        self.kept = {s.name: s.initial.size for s in self.policy.state}["told"]
        whole = unconditional(model)
        hear = Part(path, whole, {self.told.name: self.told.shape}, told["heard"])
        return hear, Part(path, whole, {told["kept"]: (self.kept,), **signals}, named["seen"])

    @property
    def observed(self) -> int:
        """Numbers that it is told."""
        return len(self.mean)

    @property
    def size(self) -> int:
        """Numbers in a chunk."""
        return self.horizon * self.actions

    @property
    def noise_size(self) -> int:
        """Numbers of noise that one chunk takes."""
        return self.size

    def see(self, signals: Mapping[str, NDArray[Any]]) -> Array:
        """The observations (n, observed) of signals (n, *shape) by name."""
        if self.look is None:
            return spec.pack(self.policy.inputs, signals)
        kept = [] if self.hear is None else [self.remembered(signals[self.told.name])]
        return self.look.run(*kept, *(np.asarray(signals[s.name], s.dtype) for s in self.policy.inputs))

    def remembered(self, tokens: NDArray[Any]) -> Array:
        """What is kept (n, k) of words (n, *shape). What it was told once it remembers."""
        assert self.hear is not None
        rows = np.ascontiguousarray(tokens, np.int64)
        for row in rows:
            if row.tobytes() not in self._kept:
                self._kept[row.tobytes()] = self.hear.run(row[None])
        return np.concatenate([self._kept[row.tobytes()] for row in rows])

    def sample(self, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) in [-1, 1], for observations (n, observed) and noise (n, noise_size)."""
        return self.part.run(np.asarray(observation, np.float32), np.asarray(noise, np.float32))

"""The policy file: an ONNX graph that is the whole controller, with its contract, provenance and test vectors inside.

One metadata key, "sim2metal", holds JSON: `schema`, `digest`, `name`, `task`, `robot`, `rate_hz`, `inputs` and
`outputs` (`sim.spec.to_json`), `state` (name, shape, initial), `envelope` (rules of `deploy.guard.Envelope`), `plan`
(of one that plans ahead: horizon, replan, delay in control steps), `base` (`deploy.base`), `training`, `evaluation` and
`vectors`. The metadata comes first in the file and begins with the schema and a SHA-256 of the whole file (with the
digest's own 64 digits as zeros), so that damage is found before any of it is interpreted. The vectors are a closed-loop
sequence: the state of one step feeds the next. Their pictures are text: the bytes of all of them, deflated, in base 64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.safety.envelope import Envelope
from sim import spec
from sim.spec import Group

AnyArray = NDArray[Any]

PRETRAINED = Path(__file__).parent / "pretrained"  # policy files that can be named without a path or suffix
SCHEMA = 1
KEY = "sim2metal"
FEWEST_STEPS = 8
HEADER = re.compile(rb'\{"schema": ([0-9]{1,9}), "digest": "sha256:([0-9a-f]{64})"')
DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int64)": np.int64}


class PolicyFileError(ValueError):
    """The file, or what is fed to it, is not what it should be; the message says what and what to do."""


@dataclass(frozen=True)
class State:
    """One recurrent quantity: graph input `state.NAME`, graph output `next_state.NAME`."""

    name: str
    initial: NDArray[np.float32]  # (*shape)


@dataclass(frozen=True)
class Vectors:
    """A closed-loop test: signals (steps, *shape) in, commands and states after each step (steps, *shape) out.

    Commands must agree within tolerance * (high - low), states within tolerance * max(1, |state|).
    """

    tolerance: float
    inputs: dict[str, AnyArray]
    outputs: dict[str, AnyArray]
    state: dict[str, AnyArray]

    @property
    def steps(self) -> int:
        """The number of control steps."""
        return len(next(iter(self.outputs.values())))


def digest(content: bytes, start: int) -> str:
    """SHA-256 of `content`, with the 64 digits that begin at `start` taken as zeros."""
    whole = hashlib.sha256(content[:start])
    whole.update(b"0" * 64)
    whole.update(content[start + 64 :])
    return whole.hexdigest()


def content_of(path: str) -> bytes:
    """The content of the file, or of the one that is shipped under that name."""
    shipped = {file.stem: file for file in sorted(PRETRAINED.glob("*.onnx"))}
    try:
        return (shipped[path] if path in shipped and not os.path.exists(path) else Path(path)).read_bytes()
    except FileNotFoundError:
        raise PolicyFileError(
            f"there is no file {path!r}; python -m policies.train task=quad_hover makes one; shipped with sim2metal: "
            + ", ".join(shipped)
        ) from None
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror}") from None


def _check_digest(path: str, content: bytes) -> None:
    """The schema must be known and the digest right before anything else is interpreted."""
    header = HEADER.search(content)
    if header is None:
        raise PolicyFileError(
            f"{path}: not a policy file, or its beginning is damaged: no metadata {KEY!r} in its {len(content)} bytes; "
            "policies.train and policies.export write such files"
        )
    schema = int(header.group(1))
    if schema != SCHEMA:
        raise PolicyFileError(
            f"{path}: has schema {schema}, this version reads schema {SCHEMA}; update, or export it again"
        )
    if digest(content, header.start(2)) != header.group(2).decode():
        raise PolicyFileError(
            f"{path}: damaged, its {len(content)} bytes do not match their SHA-256: truncated or changed; "
            "copy or export it again"
        )


def open_session(path: str, content: bytes) -> Any:
    """onnxruntime's session of a model, on one thread; PolicyFileError names `path` when it cannot be loaded."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # small graphs: threads cost more than they give
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes share no base with a public name
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolicyFileError(f"{path}: onnxruntime cannot load the graph: {reason}") from None


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text: {value!r}")
    return value


def _state(items: Any) -> tuple[State, ...]:
    states = []
    for item in items:
        initial = np.asarray(item["initial"], np.float32)
        if initial.shape != tuple(item["shape"]) or not np.isfinite(initial).all():
            raise ValueError(f"state {item['name']!r}: initial values do not fit the shape {item['shape']}")
        states.append(State(str(item["name"]), initial))
    return tuple(states)


def packed(pictures: NDArray[np.uint8]) -> str:
    """Pictures as the vectors hold them."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(pictures).tobytes(), 9)).decode()


def _unpacked(text: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Pictures (steps, *shape); ValueError when the text holds none."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8).reshape(-1, *shape)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the vectors' pictures cannot be read: {error}") from None


def _vectors(items: Mapping[str, Any], inputs: Group) -> Vectors:
    tolerance = float(items["tolerance"])
    if not 0.0 < tolerance <= 1e-2:
        raise ValueError(f"vectors state a tolerance of {tolerance}, which is not in (0, 0.01]")
    shapes = {s.name: s.shape for s in spec.pictures(inputs)}
    named = (
        {n: _unpacked(v, shapes[n]) if n in shapes else np.asarray(v) for n, v in items[part].items()}
        for part in ("inputs", "outputs", "state")
    )
    return Vectors(tolerance, *named)


class PolicyFile:
    """A verified controller. Feed it named signals with `step`; it keeps its own state between steps."""

    def __init__(self, path: str, session: Any, metadata: dict[str, Any], content: bytes) -> None:
        """Use `load`. Raises KeyError, ValueError or TypeError when the metadata is malformed or the graph differs."""
        self.path = path
        self.metadata = metadata
        self.sha256, self.size = hashlib.sha256(content).hexdigest(), len(content)  # bytes
        self.name, self.task, self.robot = (_text(metadata, key) for key in ("name", "task", "robot"))
        self.rate_hz = float(metadata["rate_hz"])
        if not (self.rate_hz > 0.0 and math.isfinite(self.rate_hz)):
            raise ValueError(f"rate_hz is {self.rate_hz}")
        self.inputs: Group = spec.from_json(metadata["inputs"])
        self.outputs: Group = spec.from_json(metadata["outputs"])
        if not (self.inputs and self.outputs):
            raise ValueError("it declares no inputs or no outputs")
        self.state = _state(metadata["state"])
        self.vectors = _vectors(metadata["vectors"], self.inputs)
        self.envelope = Envelope.from_json(dict(metadata.get("envelope", {})))
        self._session = session
        self.types = self._match_graph()  # of every graph input, as numpy has them
        self._fed = [(s.name, s.shape, self.types[s.name]) for s in self.inputs]
        self.n = 0
        self.reset()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PolicyFile:
        """Read and verify everything: digest, schema, contract against graph, closed-loop vectors.

        Raises PolicyFileError naming what is wrong. A file that loads is the controller that was exported.
        """
        return cls.from_bytes(content_of(os.fspath(path)), os.fspath(path))

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> PolicyFile:
        """Verify the content of a policy file as `load` does; `path` names it in errors."""
        _check_digest(path, content)
        session = open_session(path, content)
        try:
            metadata = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
            policy = cls(path, session, metadata, content)
        except KeyError as error:
            raise PolicyFileError(f"{path}: the metadata lacks {error}; export it again") from None
        except (ValueError, TypeError) as error:
            raise PolicyFileError(
                f"{path}: the metadata is malformed or does not fit the graph: {error}; export it again"
            ) from None
        policy.verify()
        return policy

    def content(self) -> bytes:
        """The bytes of the file, read again; PolicyFileError when they are no longer those that were verified."""
        content = content_of(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise PolicyFileError(f"{self.path} changed after it was loaded; load it again")
        return content

    def _match_graph(self) -> dict[str, Any]:
        """The element type of each graph input, once names and shapes of the graph equal the metadata's."""
        shapes = {s.name: s.shape for s in self.inputs} | {f"state.{s.name}": s.initial.shape for s in self.state}
        results = {s.name: s.shape for s in self.outputs} | {
            f"next_state.{s.name}": s.initial.shape for s in self.state
        }
        for kind, nodes, declared in (
            ("input", self._session.get_inputs(), shapes),
            ("output", self._session.get_outputs(), results),
        ):
            found = {node.name: tuple(node.shape) for node in nodes}
            if found.keys() != declared.keys():
                raise ValueError(f"the graph's {kind}s are {', '.join(found)}; declared are {', '.join(declared)}")
            for name, shape in found.items():
                if shape[1:] != declared[name] or isinstance(shape[0], int):
                    raise ValueError(
                        f"the graph's {kind} {name!r} has shape {shape}; declared is {('N', *declared[name])}"
                    )
            for node in nodes:
                if node.type not in DTYPES:
                    raise ValueError(
                        f"the graph's {kind} {node.name!r} has type {node.type}; known are {', '.join(DTYPES)}"
                    )
        return {node.name: DTYPES[node.type] for node in self._session.get_inputs()}

    def reset(self, n: int = 1) -> None:
        """Begin anew with `n` robots: every state takes its initial value."""
        if n < 1:
            raise PolicyFileError(f"{self.path}: a policy needs at least one robot, got n={n}")
        if n != self.n:
            self.n = n
            self._bind()
        self._turn = 0
        for state in self.state:
            self._places[0][f"state.{state.name}"][...] = state.initial

    def restart(self, robots: AnyArray) -> None:
        """Begin anew with the robots in the mask (n,) bool, while the others go on."""
        for state in self.state:
            self._places[self._turn][f"state.{state.name}"][robots] = state.initial

    def _bind(self) -> None:
        """Give the graph memory of ours: signals and commands, and the state twice, to be written and read in turn."""
        from onnxruntime import OrtValue

        n = self.n
        fixed: dict[str, AnyArray] = {s.name: np.zeros((n, *s.shape), self.types[s.name]) for s in self.inputs}
        fixed |= {s.name: np.zeros((n, *s.shape), np.float32) for s in self.outputs}
        states = [{s.name: np.zeros((n, *s.initial.shape), np.float32) for s in self.state} for _ in range(2)]
        self._places, self._bindings = [], []
        for now, then in (states, states[::-1]):
            places = fixed | {f"state.{k}": v for k, v in now.items()} | {f"next_state.{k}": v for k, v in then.items()}
            binding = self._session.io_binding()
            for node in self._session.get_inputs():
                binding.bind_ortvalue_input(node.name, OrtValue.ortvalue_from_numpy(places[node.name]))
            for node in self._session.get_outputs():
                binding.bind_ortvalue_output(node.name, OrtValue.ortvalue_from_numpy(places[node.name]))
            self._places.append(places)
            self._bindings.append(binding)

    def states(self) -> dict[str, AnyArray]:
        """The present state by name, (n, *shape)."""
        return {s.name: self._places[self._turn][f"state.{s.name}"].copy() for s in self.state}

    def put(self, states: Mapping[str, AnyArray]) -> None:
        """Go on from these values (n, *shape) of some states, by name."""
        for name, value in states.items():
            self._places[self._turn][f"state.{name}"][...] = value

    def step(self, signals: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Commands (n, *shape) by name for signals (n, *shape) by name; for one robot also (*shape) for (*shape).

        Raises PolicyFileError when a signal is missing, of the wrong shape or not finite; the state is then unchanged.
        """
        places = self._places[self._turn]
        single = False
        for name, shape, dtype in self._fed:
            if name not in signals:
                wanted = ", ".join(s.name for s in self.inputs)
                raise PolicyFileError(f"{self.path}: signal {name!r} is missing; the policy needs: {wanted}")
            value, place = self._converted(name, signals[name], dtype), places[name]
            if value.shape == shape and self.n == 1:
                single, value = True, value[None]
            if value.shape != place.shape:
                raise PolicyFileError(f"{self.path}: signal {name!r} has shape {value.shape}, not {(self.n, *shape)}")
            place[...] = value
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn = 1 - self._turn
        return {s.name: places[s.name][0].copy() if single else places[s.name].copy() for s in self.outputs}

    def _converted(self, name: str, given: Any, dtype: Any) -> AnyArray:
        """`given` in the type that the graph takes; PolicyFileError when that would change its meaning."""
        if dtype is np.float32:
            value = np.asarray(given, np.float32)
            # The dot product is the quickest test; it may overflow for huge finite values, hence the second look.
            if not math.isfinite(np.vdot(value, value)) and not np.isfinite(value).all():
                raise PolicyFileError(f"{self.path}: signal {name!r} is not finite")
            return value
        whole = np.asarray(given)
        value = whole.astype(dtype)
        if not (value == whole).all():
            raise PolicyFileError(f"{self.path}: signal {name!r} holds values that are no {np.dtype(dtype).name}")
        return value

    def verify(self) -> float:
        """Replay the vectors, feeding back the own state; return the largest disagreement as a share of the tolerance.

        Raises PolicyFileError when it exceeds 1, naming the step and the quantity. Resets the state.
        """
        vectors = self.vectors
        self._check_vectors()
        self.reset()
        worst = 0.0
        for step in range(vectors.steps):
            got = self.step({name: value[step] for name, value in vectors.inputs.items()})
            after = {name: value[0] for name, value in self.states().items()}
            for name, share in self._shares(step, got, after):
                if not share <= 1.0:
                    self.reset()
                    raise PolicyFileError(
                        f"{self.path}: test vectors fail: {name!r} at step {step} is {share:.3g} tolerances away; "
                        "the graph is not what was exported, or this machine computes wrongly"
                    )
                worst = max(worst, share)
        self.reset()
        return worst

    def _check_vectors(self) -> None:
        """The vectors must cover every input, output and state, over enough steps."""
        vectors = self.vectors
        shapes = {s.name: s.initial.shape for s in self.state}
        for part, held, declared in (
            ("inputs", vectors.inputs, {s.name: s.shape for s in self.inputs}),
            ("outputs", vectors.outputs, {s.name: s.shape for s in self.outputs}),
            ("state", vectors.state, shapes),
        ):
            if held.keys() != declared.keys():
                raise PolicyFileError(
                    f"{self.path}: the vectors' {part} are {', '.join(held)}, not {', '.join(declared)}"
                )
            for name, value in held.items():
                if value.shape != (vectors.steps, *declared[name]):
                    raise PolicyFileError(
                        f"{self.path}: the vectors' {part} {name!r} have the wrong shape {value.shape}"
                    )
        if vectors.steps < FEWEST_STEPS:
            raise PolicyFileError(f"{self.path}: {vectors.steps} test vectors, at least {FEWEST_STEPS} are needed")

    def _shares(
        self, step: int, commands: Mapping[str, AnyArray], states: Mapping[str, AnyArray]
    ) -> list[tuple[str, float]]:
        """The disagreement of each quantity, as a share of what is tolerated."""
        shares = []
        for signal in self.outputs:
            span = signal.high - signal.low
            error = np.abs(commands[signal.name] - self.vectors.outputs[signal.name][step]).max()
            shares.append(
                (signal.name, float(error) / (self.vectors.tolerance * (span if math.isfinite(span) else 1.0)))
            )
        for name, want in self.vectors.state.items():
            error = (np.abs(states[name] - want[step]) / np.maximum(1.0, np.abs(want[step]))).max()
            shares.append((f"state.{name}", float(error) / self.vectors.tolerance))
        return shares

"""The policy file: an ONNX graph that is the whole controller, with its contract, provenance and test vectors inside.

One metadata key, "sim2metal", holds JSON: `schema`, `digest`, `name`, `task`, `robot`, `rate_hz`, `inputs` and
`outputs` (`sim.spec.to_json`), `state` (name, shape, initial), `envelope` (rules of `deploy.safety.envelope`), `plan`
(of one that plans ahead: horizon, replan, delay in control steps), `base` (`deploy.remote.subgraph`), `training`,
`evaluation` and `vectors`. The metadata comes first in the file and begins with the schema and a SHA-256 of the whole
file (with the digest's own 64 digits as zeros), so that damage is found before any of it is interpreted. The vectors
are a closed-loop sequence: the state of one step feeds the next. Their pictures are text: the bytes of all of them,
deflated, in base 64.

A file is a stranger's until it is loaded: `deploy.trust` reads it (the metadata: `contract`; the graph: `onnx_reader`,
`onnx_limits`; who signed it: `signature`), and onnxruntime sees only what passed.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust import signature
from deploy.trust.content import KEY, check_digest, content_of
from deploy.trust.content import PolicyFileError as PolicyFileError
from deploy.trust.contract import FEWEST_STEPS, Contract
from deploy.trust.contract import Vectors as Vectors
from deploy.trust.onnx_limits import Bounded, Limits
from deploy.trust.onnx_reader import OnnxError

AnyArray = NDArray[Any]

DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int64)": np.int64}
FLOAT32 = np.dtype(np.float32)
MALFORMED = (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RecursionError, MemoryError)


def bounded(path: str, content: bytes) -> Bounded:
    """The graph in these bytes, within the declared limits for one run; PolicyFileError names `path`."""
    try:
        graph = Bounded(content)
        graph.check(Limits.declared())
    except (OnnxError, *MALFORMED) as error:
        raise PolicyFileError(f"{path}: not run: {error}") from None
    return graph


def open_session(path: str, content: bytes) -> Any:
    """onnxruntime's session of a model, on one thread; PolicyFileError names `path` when it cannot be loaded.

    Only for bytes that `bounded` let pass.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # small graphs: threads cost more than they give
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")  # never guess; its own format is not checked
    for entry in ("session.disable_quant_qdq", "session.x64quantprecision"):  # or int8 sums saturate on older CPUs
        options.add_session_config_entry(entry, "1")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes share no base with a public name
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolicyFileError(f"{path}: onnxruntime cannot load the graph: {reason}") from None


class PolicyFile:
    """A controller that was checked. Feed it named signals with `step`; it keeps its own state between steps."""

    def __init__(self, path: str, session: Any, contract: Contract, graph: Bounded, content: bytes) -> None:
        """Use `load`. Raises ValueError when graph and contract differ."""
        import onnxruntime

        self.path = path
        self.metadata = contract.metadata
        self.sha256, self.size = hashlib.sha256(content).hexdigest(), len(content)  # bytes
        self.name, self.task, self.robot = contract.name, contract.task, contract.robot
        self.rate_hz = contract.rate_hz
        self.inputs, self.outputs, self.state = contract.inputs, contract.outputs, contract.state
        self.vectors, self.envelope = contract.vectors, contract.envelope
        self.signed_by: str | None = None  # whom we trust
        self.remark = ""  # about a signature that proves nothing here
        self._session, self._graph = session, graph
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry("gpu_graph_id", "0")  # its default; unset costs 35 us a run to look up
        self.types = self._match_graph()  # of every graph input, as numpy has them
        self._fed = [(s.name, s.shape, self.types[s.name]) for s in self.inputs]
        self.n = 0
        self.reset()

    @classmethod
    def load(cls, path: str | os.PathLike[str], trust: str | os.PathLike[str] | None = None) -> PolicyFile:
        """Read and check everything: digest, signature, schema, contract against graph, closed-loop vectors.

        `trust`: a folder of public keys NAME.pub (default: `deploy.trust.signature.trusted`). Raises PolicyFileError
        naming what is wrong. A file that loads agrees with itself; only `signed_by` says whose it is.
        """
        return cls.from_bytes(content_of(os.fspath(path)), os.fspath(path), trust)

    @classmethod
    def from_bytes(cls, content: bytes, path: str, trust: str | os.PathLike[str] | None = None) -> PolicyFile:
        """Check the content of a policy file as `load` does; `path` names it in errors."""
        try:
            unsigned, mark = signature.split(content)
            start = check_digest(path, unsigned)
            signed_by, remark = signature.signer(unsigned, mark, trust)
        except signature.SignatureError as error:
            raise PolicyFileError(f"{path}: {error}") from None
        try:
            graph = Bounded(unsigned)
            if [(key, span[0]) for key, span in graph.model.entries] != [(KEY, start)]:
                raise PolicyFileError(f"{path}: holds metadata other than {KEY!r}, or not first; export it again")
            contract = Contract.read(unsigned[slice(*graph.model.entries[0][1])])
            graph.check(Limits.declared(), contract.vectors.steps)
        except OnnxError as error:
            raise PolicyFileError(f"{path}: not run: {error}") from None
        except PolicyFileError:
            raise
        except KeyError as error:
            raise PolicyFileError(f"{path}: the metadata lacks {error}; export it again") from None
        except MALFORMED as error:
            raise PolicyFileError(_malformed(path, error)) from None
        session = open_session(path, unsigned)
        try:
            policy = cls(path, session, contract, graph, content)
        except MALFORMED as error:
            raise PolicyFileError(_malformed(path, error)) from None
        policy.signed_by, policy.remark = signed_by, remark
        policy.verify()
        return policy

    @property
    def standing(self) -> str:
        """What is known of where the file comes from: "signed by NAME", or "consistent" (it agrees with itself)."""
        return f"signed by {self.signed_by}" if self.signed_by else "consistent"

    def require_signature(self) -> None:
        """PolicyFileError unless somebody signed the file whom we trust."""
        if self.signed_by is None:
            why = self.remark or "it is not signed"
            raise PolicyFileError(f"{self.path}: {why}, and a signature is required; deploy.sign policy=FILE key=KEY")

    def content(self) -> bytes:
        """The bytes of the file, read again; PolicyFileError when they are no longer those that were loaded."""
        content = content_of(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise PolicyFileError(f"{self.path} changed after it was loaded; load it again")
        return content

    def _match_graph(self) -> dict[str, Any]:
        """The element type of each graph input, once names and shapes of the graph equal the metadata's."""
        signals = {s.name for s in self.inputs}
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
                known = list(DTYPES) if node.name in signals else ["tensor(float)"]
                if node.type not in known:
                    raise ValueError(
                        f"the graph's {kind} {node.name!r} has type {node.type}; known are {', '.join(known)}"
                    )
        types = {node.name: DTYPES[node.type] for node in self._session.get_inputs()}
        for told in self.metadata["inputs"]:  # older files leave it to the graph
            element = np.dtype(types[told["name"]]).name
            if told.get("dtype", element) != element:
                raise ValueError(f"the graph's input {told['name']!r} is {element}; declared is {told['dtype']}")
        return types

    def reset(self, n: int = 1) -> None:
        """Begin anew with `n` robots: every state takes its initial value. Takes back `terminate`."""
        if n < 1:
            raise PolicyFileError(f"{self.path}: a policy needs at least one robot, got n={n}")
        if n != self.n:
            if n > 1:
                self._check_cost(n)
            self.n = n
            self._bind()
        self._run_options.terminate = False
        self._turn = 0
        for state in self.state:
            self._places[0][f"state.{state.name}"][...] = state.initial

    def restart(self, robots: AnyArray) -> None:
        """Begin anew with the robots in the mask (n,) bool, while the others go on."""
        for state in self.state:
            self._places[self._turn][f"state.{state.name}"][robots] = state.initial

    def _check_cost(self, n: int) -> None:
        """A graph may take more than `n` times what it takes of one robot: what is joined over all of them."""
        try:
            self._graph.check(Limits.declared(), n=n)
        except (OnnxError, *MALFORMED) as error:
            raise PolicyFileError(f"{self.path}: not run with {n} robots: {error}") from None

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
        A robot of which the graph makes a state that is not finite keeps the one before; its commands are NaN.
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
        self._run()
        self._turn = 1 - self._turn
        if self.state:
            self._keep_finite(places)
        return {s.name: places[s.name][0].copy() if single else places[s.name].copy() for s in self.outputs}

    def _keep_finite(self, places: Mapping[str, AnyArray]) -> None:
        """As in C: a robot of which a command or next state is not finite has no command, and keeps its state."""
        made = [places[s.name] for s in self.outputs] + [places[f"next_state.{s.name}"] for s in self.state]
        if all(math.isfinite(np.vdot(value, value)) for value in made):
            return
        broken = np.zeros(self.n, bool)
        for value in made:
            broken |= ~np.isfinite(value.reshape(self.n, -1)).all(axis=1)
        for command in self.outputs:
            places[command.name][broken] = np.nan
        for state in self.state:
            places[f"next_state.{state.name}"][broken] = places[f"state.{state.name}"][broken]

    def _run(self) -> None:
        try:
            self._session.run_with_iobinding(self._bindings[self._turn], self._run_options)
        except Exception as error:  # onnxruntime's own classes share no base with a public name
            if self._run_options.terminate:
                raise PolicyFileError(f"{self.path}: the step was ended; reset begins anew") from None
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PolicyFileError(f"{self.path}: the graph cannot be computed: {reason}") from None

    def terminate(self) -> None:
        """From another thread: a step that is being computed ends soon with PolicyFileError, as do all until `reset`.

        onnxruntime looks after every operator, so that the wait is that of one operator at most.
        """
        self._run_options.terminate = True

    def _converted(self, name: str, given: Any, dtype: Any) -> AnyArray:
        """`given` in the type that the graph takes; PolicyFileError when that would change its meaning."""
        if dtype is np.float32:
            if type(given) is np.ndarray and given.dtype is FLOAT32:
                value = given
            else:
                with np.errstate(over="ignore"):  # beyond float32 is infinite, which is what is tested next
                    value = self._numbers(name, given).astype(np.float32)
            # The dot product is the quickest test; it may overflow for huge finite values, hence the second look.
            if not math.isfinite(np.vdot(value, value)) and not np.isfinite(value).all():
                raise PolicyFileError(f"{self.path}: signal {name!r} is not finite")
            return value
        whole = self._numbers(name, given)
        with np.errstate(invalid="ignore"):
            value = whole.astype(dtype)
        if not (value == whole).all():
            raise PolicyFileError(f"{self.path}: signal {name!r} holds values that are no {np.dtype(dtype).name}")
        return value

    def _numbers(self, name: str, given: Any) -> AnyArray:
        """Real numbers only: a text or an imaginary part must not be read as one, or dropped."""
        try:
            value = np.asarray(given)
        except MALFORMED as error:
            raise PolicyFileError(f"{self.path}: signal {name!r} is no array of numbers: {error}") from None
        if value.dtype.kind not in "biuf":
            raise PolicyFileError(f"{self.path}: signal {name!r} is of type {value.dtype}, not real numbers")
        return value

    def verify(self) -> float:
        """Replay the vectors, feeding back the own state; return the largest disagreement as a share of the tolerance.

        Raises PolicyFileError when it exceeds 1, naming the step and the quantity. Resets the state.
        """
        vectors = self.vectors
        self._check_vectors()
        self.reset()
        worst, allowed, began = 0.0, Limits.declared().seconds, time.thread_time()
        for step in range(vectors.steps):
            if (spent := time.thread_time() - began) > allowed:
                raise PolicyFileError(
                    f"{self.path}: {step} of {vectors.steps} test vectors took {spent:.1f} s, more than {allowed:g}; "
                    "if you trust it, SIM2METAL_LOAD_SECONDS=... in the environment allows more"
                )
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
            want = self.vectors.outputs[signal.name]
            error = np.abs(commands[signal.name] - want[step]).max()
            shares.append((signal.name, float(error) / (self.vectors.tolerance * self.vectors.span(signal))))
        for name, want in self.vectors.state.items():
            error = (np.abs(states[name] - want[step]) / np.maximum(1.0, np.abs(want[step]))).max()
            shares.append((f"state.{name}", float(error) / self.vectors.tolerance))
        return shares


def _malformed(path: str, error: BaseException) -> str:
    what = str(error) or type(error).__name__
    return f"{path}: the metadata is malformed or does not fit the graph: {what}; export it again"

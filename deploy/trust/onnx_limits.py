"""How much memory and work a stranger's ONNX graph would take: counted and bounded before onnxruntime sees it.

Every tensor's size follows from the sizes of the inputs by the rules of `onnx_shapes`; a graph in which one does not is
refused. Loop and Scan may take a constant number of turns, each of which leaves the sizes as they are. The estimates
are cautious: every result counts as if nothing were ever freed, weights count three times (the file, onnxruntime's
tensors, its packed copies), and a second is one of a small computer. `tests/deploy/trust/test_onnx_limits.py` holds
them against onnxruntime.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deploy.trust.onnx_folding import folded
from deploy.trust.onnx_layers import NEVER_EMPTY, OPERATORS
from deploy.trust.onnx_reader import Declared, Graph, Model, Node, OnnxError, read
from deploy.trust.onnx_shapes import BOOL, INT64, Call, Shape, ShapeError, Value, axis_of

MOST_NODES = 20_000
MOST_TURNS = 1000  # of a Loop or Scan
OLDEST, NEWEST = 13, 23  # opsets that the rules hold for
PER_NODE, PER_EDGE = 3e-6, 0.3e-6  # s: to call an operator, for each of its inputs and outputs
PER_PRODUCT = 0.2e-9  # s: to multiply and add
PER_LOADED_NODE = 40e-6  # s: onnxruntime reads and optimises the graph
MEGABYTE = 1 << 20


class LimitError(OnnxError):
    """The graph takes more than it may, or nobody can say beforehand how much."""


@dataclass(frozen=True)
class Limits:
    """What loading a policy file and one control step of one robot may take."""

    memory: float  # bytes
    seconds: float

    @classmethod
    def declared(cls) -> Limits:
        """256 MB and 2 s, unless the environment says SIM2METAL_MEMORY_MB or SIM2METAL_LOAD_SECONDS."""
        return cls(_declared("SIM2METAL_MEMORY_MB", 256.0) * MEGABYTE, _declared("SIM2METAL_LOAD_SECONDS", 2.0))


def _declared(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text or default)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e9:
        raise LimitError(f"{variable}={text!r} in the environment is no positive number")
    return value


@dataclass
class Cost:
    """What a graph takes, added up."""

    memory: float = 0.0  # bytes
    seconds: float = 0.0  # per run
    nodes: int = 0
    once: float = 0.0  # s, when it is loaded


class Bounded:
    """A graph whose cost is known for any number of robots."""

    def __init__(self, content: bytes) -> None:
        """OnnxError when the bytes are no plain ONNX model, or use an operator that is not allowed."""
        self.model: Model = read(content)
        if not OLDEST <= self.model.opset <= NEWEST:
            raise LimitError(f"it is of opset {self.model.opset}; {OLDEST} to {NEWEST} are known")
        self.size = len(content)

    def cost(self, n: int = 1) -> Cost:
        """For `n` robots; LimitError when it cannot be bounded, or is far beyond any limit."""
        graph = self.model.graph
        walk = _Walk(self.model.opset)
        given = {declared.name: Value(_sizes(declared, n), declared.dtype or INT64) for declared in graph.inputs}
        if len(given) != len(graph.inputs):
            raise LimitError("the graph names an input twice")
        results = walk.graph(graph, given, {}, 1)
        for declared, value in zip(graph.outputs, results, strict=True):
            if declared.shape is not None and not _fits(declared.shape, value.shape):
                raise LimitError(f"the graph's output {declared.name!r} has the shape {value.shape}")
        walk.cost.memory += 2 * self.size  # onnxruntime's own copies; the third is counted with the constants
        return walk.cost

    def check(self, limits: Limits, runs: int = 1, n: int = 1) -> Cost:
        """The cost, when loading and `runs` runs of it are within the limits of `n` robots; otherwise LimitError."""
        cost = self.cost(n)
        if cost.memory > limits.memory * n:
            raise LimitError(
                f"the graph takes up to {cost.memory / MEGABYTE:.0f} MB, more than {limits.memory * n / MEGABYTE:.0f}; "
                "if you trust it, SIM2METAL_MEMORY_MB=... in the environment allows more"
            )
        # One run more: constants are computed once.
        seconds = (runs + 1) * cost.seconds + cost.once + cost.nodes * PER_LOADED_NODE
        if seconds > limits.seconds * n:
            raise LimitError(
                f"the graph takes up to {seconds:.1f} s to load and test, more than {limits.seconds * n:g}; "
                "if you trust it, SIM2METAL_LOAD_SECONDS=... in the environment allows more"
            )
        return cost


def _sizes(declared: Declared, n: int) -> Shape:
    """Of an input of the whole graph: only the first axis, the robots, may be free."""
    if declared.shape is None or any(k is None for k in declared.shape[1:]):
        raise LimitError(f"the graph's input {declared.name!r} has no fixed shape")
    first = (n if declared.shape[0] is None else declared.shape[0],) if declared.shape else ()
    shape = (*first, *(k or 0 for k in declared.shape[1:]))
    if any(not 1 <= k < 2**31 for k in shape):
        raise LimitError(f"the graph's input {declared.name!r} has the shape {shape}")
    return shape


def _fits(declared: Sequence[int | None], shape: Shape) -> bool:
    return len(declared) == len(shape) and all(d in (None, s) for d, s in zip(declared, shape, strict=True))


class _Walk:
    """One pass over a graph and those inside it."""

    def __init__(self, opset: int) -> None:
        self.opset, self.cost, self.depth = opset, Cost(), 0

    def graph(self, graph: Graph, given: dict[str, Value], outer: dict[str, Value], turns: int) -> list[Value]:
        """The graph's outputs; its cost is added `turns` times."""
        known = {**outer, **given}
        own = set(known)
        if len(own) < len(outer) + len(given):
            raise LimitError("an inner graph calls an input as a value outside of it is called")

        def define(name: str, value: Value) -> None:
            if name in own:
                raise LimitError(f"two values of the graph are called {name!r}")
            own.add(name)
            known[name] = value

        for tensor in graph.constants:
            value = Value(tensor.shape, tensor.dtype, tensor.data)
            self.cost.memory += value.size * tensor.dtype.itemsize
            define(tensor.name, value)
        stored = {tensor.name for tensor in graph.constants}
        for node in graph.nodes:
            self.cost.nodes += 1
            if self.cost.nodes > MOST_NODES:
                raise LimitError(f"the graph has more than {MOST_NODES} operators")
            try:
                inputs = [known[name] if name else None for name in node.inputs]
            except KeyError as error:
                raise LimitError(f"{node} takes {error}, which nothing before it makes") from None
            before = self.cost.seconds
            results = self.node(node, inputs, known, turns)
            if node.operator == "Cast" and self.depth == 0 and stored.issuperset(node.inputs):
                # Weights in half precision: onnxruntime keeps them in single precision from then on.
                self.cost.once, self.cost.seconds = self.cost.once + self.cost.seconds - before, before
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    define(name, value)
        try:
            return [known[declared.name] for declared in graph.outputs]
        except KeyError as error:
            raise LimitError(f"the graph's output {error} is made by nothing") from None

    def node(self, node: Node, inputs: list[Value | None], known: dict[str, Value], turns: int) -> list[Value]:
        """The operator's outputs, all of those that it names."""
        call = Call(node, inputs, self.opset)
        try:
            if node.operator in CONTROL:
                self.depth += 1
                if self.depth > 4:
                    raise ShapeError("is inside four others of its kind")
                results, cost = CONTROL[node.operator](self, call, known, turns), 0.0
                self.depth -= 1
            elif node.operator in OPERATORS:
                rule, cost = OPERATORS[node.operator]
                results = folded(call, rule(call))
            else:
                raise ShapeError("is not among those that a policy file may use")
            if len(results) < len(node.outputs):
                raise ShapeError(f"has {len(node.outputs)} outputs")
            self.count(call, results[: max(1, len(node.outputs))], cost, turns)
        except LimitError:
            raise
        except (
            ShapeError,
            ValueError,
            TypeError,
            IndexError,
            OverflowError,
            ZeroDivisionError,
            RecursionError,
        ) as error:
            raise LimitError(f"{node} {error}") from None
        return results

    def count(self, call: Call, results: list[Value], nanoseconds: float, turns: int) -> None:
        """Add what an operator costs."""
        if call.node.operator in NEVER_EMPTY:
            seen = [v for v in (*call.inputs, *results) if v is not None and v.size == 0]
            if call.node.operator == "Resize":  # it may be told no sizes
                seen = [v for v in seen if v.data is None]
            if seen:
                raise ShapeError(f"meets the shape {seen[0].shape}, which is empty")
        made = sum(value.size * value.dtype.itemsize for value in results)
        read = call.inputs[1:] if call.node.operator == "Gather" else call.inputs  # of a table only what it takes
        visited = sum(v.size for v in read if v is not None) + sum(v.size for v in results)
        self.cost.memory += made + 4 * call.scratch
        edges = len(call.inputs) + len(results)
        once = PER_NODE + PER_EDGE * edges + 1e-9 * nanoseconds * visited + PER_PRODUCT * call.products
        self.cost.seconds += turns * once
        if self.cost.memory > 1e15 or self.cost.seconds > 1e9:
            raise ShapeError(f"makes {', '.join(str(v.shape) for v in results[:4])}, far more than any limit")

    def inner(self, call: Call, name: str, count: int) -> Graph:
        """A graph among the operator's attributes, with so many inputs."""
        graph = call.node.attributes.get(name)
        if not isinstance(graph, Graph) or len(graph.inputs) != count:
            raise ShapeError(f"has no graph {name!r} with {count} inputs")
        return graph

    def turn(self, graph: Graph, given: list[Value], carried: int, known: dict[str, Value], turns: int) -> list[Value]:
        """What a body makes of its inputs, of which so many come back first, in the sizes that they had."""
        names = {declared.name: value for declared, value in zip(graph.inputs, given, strict=True)}
        results = self.graph(graph, names, known, turns)
        if len(names) != len(given) or len(results) < carried:
            raise ShapeError(f"has a body with {len(names)} inputs and {len(results)} outputs")
        for before, after in zip(given, results[:carried], strict=False):
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                raise ShapeError(f"changes the shape {before.shape} into {after.shape} from turn to turn")
        return results


def _unknown(value: Value) -> Value:
    return Value(value.shape, value.dtype)


def _turns(count: float) -> int:
    if not 1 <= count <= MOST_TURNS:
        raise ShapeError(f"takes {count:g} turns; 1 to {MOST_TURNS} are allowed")
    return int(count)


def _if(walk: _Walk, call: Call, known: dict[str, Value], turns: int) -> list[Value]:
    """Both branches must make the same sizes; both count."""
    branches = [walk.graph(walk.inner(call, f"{name}_branch", 0), {}, known, turns) for name in ("then", "else")]
    made, others = ([_unknown(value) for value in branch] for branch in branches)
    if [v.shape for v in made] != [v.shape for v in others] or call[0].size != 1:
        raise ShapeError("makes other shapes in one branch than in the other")
    return made


def _loop(walk: _Walk, call: Call, known: dict[str, Value], turns: int) -> list[Value]:
    if not call.has(0):
        raise ShapeError("has no limit to its turns; give it a constant one")
    count = _turns(call.known(0, "number of turns")[0])
    given = [Value((), BOOL), *(_unknown(call[k]) for k in range(2, len(call.inputs)))]
    graph = walk.inner(call, "body", 1 + len(given))
    inner = replace(graph, inputs=graph.inputs[1:])  # without the turn's number
    results = walk.turn(inner, given, len(given), {**known, graph.inputs[0].name: Value((), INT64)}, turns * count)
    return [*given[1:], *(Value((count, *v.shape), v.dtype) for v in results[len(given) :])]


def _scan(walk: _Walk, call: Call, known: dict[str, Value], turns: int) -> list[Value]:
    many = call.integer("num_scan_inputs", 0)
    first = len(call.inputs) - many
    if many < 1 or first < 0:
        raise ShapeError(f"scans {many} of {len(call.inputs)} inputs")
    given = [_unknown(call[k]) for k in range(len(call.inputs))]
    axes = call.integers("scan_input_axes") or (0,) * many
    if len(axes) != many or call.integers("scan_output_axes") not in (None, (0,) * (len(call.node.outputs) - first)):
        raise ShapeError("has axes that are not read")
    lengths = set()
    for k, axis in enumerate(axes, first):
        where = axis_of(axis, len(given[k].shape))
        lengths.add(given[k].shape[where])
        given[k] = Value((*given[k].shape[:where], *given[k].shape[where + 1 :]), given[k].dtype)
    if len(lengths) != 1:
        raise ShapeError(f"scans inputs of the lengths {sorted(lengths)[:8]}")
    count = _turns(lengths.pop())
    results = walk.turn(walk.inner(call, "body", len(given)), given, first, known, turns * count)
    return [*given[:first], *(Value((count, *v.shape), v.dtype) for v in results[first:])]


CONTROL = {"If": _if, "Loop": _loop, "Scan": _scan}

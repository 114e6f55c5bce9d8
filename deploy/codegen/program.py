"""A graph -> the C statements that compute it, in one static block of memory whose parts are used again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen import moves
from deploy.codegen import operators as c
from deploy.codegen.cycles import (
    COMPUTED_PRODUCT,
    COPIED,
    INDEX,
    LOOPED,
    RARE,
    ROUNDED_TANH,
    SEEN,
    TANH,
    of_expression,
    of_product,
)
from deploy.codegen.elementwise import elementwise, expression, literal, read
from deploy.codegen.lowering.memory import Step, allocated
from deploy.codegen.onnx_graph import Graph, GraphError, Node, Value
from deploy.codegen.reductions import ALONG, TOTALS, Line, along, reduction
from deploy.codegen.rounded import tanh
from deploy.codegen.weights import FORMATS, Format, blocks, padded, rounded_words
from deploy.codegen.windows import convolution, pool, window

Floats = NDArray[np.float32]
MOST_RUNS = 8  # a move of more separate pieces than this is written as a table of indices
MOST_TOGETHER = 16  # elementwise operators in one loop: each may keep a number on the stack, whose size is promised


@dataclass
class Program:
    """The statements of a graph. `places` tells where an output is: a C array and an offset into it."""

    lines: list[str]
    constants: dict[str, tuple[str, list[str]]]  # C name -> type, elements
    memory: int  # floats
    patch: int  # floats: what a convolution's kernel sees
    pixel: int  # floats: what it makes of that
    quantised: int  # words: rounded inputs of products
    places: dict[str, tuple[str, int]]
    cycles: float  # estimated, of a step on a Cortex-M4F

    @property
    def memory_bytes(self) -> int:
        """Static memory; the caller's signals, commands and state are not among it."""
        return 4 * (self.memory + self.patch + self.pixel + self.quantised)


@dataclass
class Writer:
    """Turns a graph into a Program. `arrays`: the C array of each of the graph's inputs."""

    graph: Graph
    arrays: dict[str, str]
    format: Format = FORMATS["float32"]
    steps: list[Step] = field(default_factory=list)
    alias: dict[str, tuple[str, int]] = field(default_factory=dict)  # value -> block of memory, offset
    where: dict[str, int] = field(default_factory=dict)  # block -> offset in the memory
    constants: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    patch: int = 0
    pixel: int = 0
    bound: Callable[[int], None] = lambda numbers: None  # raises where so many numbers of constants are too many

    def program(self) -> Program:
        """All statements of the graph. Raises GraphError naming the node that cannot be written."""
        nodes = list(self.graph.nodes)
        while nodes:
            group = self._group(nodes)
            if group:
                self._elementwise(group)
            else:
                self._write(nodes[0])
            del nodes[: max(1, len(group))]
        ends = {self.root(name)[0] for name in self.graph.outputs}
        where, memory = allocated(self.steps, [step.writes for step in self.steps], ends)
        rounded, quantised = allocated(self.steps, [step.rounds for step in self.steps], ends)
        self.where = where | rounded
        lines = [line for step in self.steps for line in step.lines()]
        places = {name: self.place(name) for name in self.graph.outputs}
        moved = sum(self.value(name).size for name in (*self.graph.inputs, *self.graph.outputs))  # checked, stored
        cycles = sum(step.cycles for step in self.steps) + COPIED * moved
        return Program(lines, self.constants, memory, self.patch, self.pixel, quantised, places, cycles)

    def _write(self, node: Node) -> None:
        """What is not elementwise."""
        if node.operator in moves.MOVES:
            self._look_up(node) if moves.looked_up(node, self.values(node)) else self._move(node)
        elif node.operator in c.DENSE and c.layer(node, self.values(node)):
            self._dense(node)
        elif node.operator in c.DENSE:
            self._multiply(node)
        elif node.operator == tanh.TANH:
            self._rounded_tanh(node)
        elif node.operator in c.POOLS:
            self._pool(node)
        elif node.operator in ALONG:
            self._along(node)
        else:
            self._reduce(node)

    def value(self, name: str) -> Value:
        return self.graph.values[name]

    def values(self, node: Node) -> list[Value | None]:
        """The node's inputs; None for one that was left out."""
        return [self.graph.values[name] if name else None for name in node.inputs]

    def root(self, name: str) -> tuple[str, int]:
        """The block of memory that holds a value, and where in it."""
        return self.alias.get(name, (name, 0))

    def place(self, name: str) -> tuple[str, int]:
        """The C array that holds a value, and where in it."""
        block, offset = self.root(name)
        if block in self.arrays:
            return self.arrays[block], offset
        data = self.graph.values[block].data if block in self.graph.values else None
        if data is not None:
            return self.constant(np.asarray(data, np.float32)), offset
        return "memory", self.where[block] + offset

    def pointer(self, name: str) -> str:
        array, offset = self.place(name)
        return f"({array} + {offset})" if offset else array

    def constant(self, data: NDArray[Any], kind: str = "float", prefix: str = "weights") -> str:
        """The name of a constant array; equal ones are stored once."""
        sizes = [len(texts) for of, texts in self.constants.values() if of == kind]
        if data.size not in sizes:  # one of this size may be the same
            self.bound(self._numbers() + data.size)  # before they become texts
        texts = [literal(v) for v in data.ravel()] if kind == "float" else [str(int(v)) for v in data.ravel()]
        for name, held in self.constants.items():
            if held == (kind, texts):
                return name
        self.bound(self._numbers() + len(texts))
        name = f"{prefix}_{len(self.constants)}"
        self.constants[name] = (kind, texts)
        return name

    def _numbers(self) -> int:
        return sum(len(texts) for _, texts in self.constants.values())

    def rounded(self, node: Node) -> str:
        """The name of the block of memory with the rounded inputs of a product."""
        return f"{node.outputs[0]}/rounded" if self.format.of(node).rounds(node) else node.inputs[0]

    def product(self, node: Node, y: str, x: str) -> str:
        """The C statement of a matrix-vector product."""
        weight, bias = c.matrix(node, self.values(node))
        outputs, inputs = weight.shape
        form = self.format.of(node)
        weights = self.constant(form.pack(node, weight, bias), form.kind)
        if form.width:
            places = {"x": x, "rounded": f"quantised + {self.where[self.rounded(node)]}"}
            places |= {"scale": form.scale(node, inputs).format(**places), "blocks": str(-(-outputs // form.width))}
        else:
            eights, fours = blocks(outputs)
            places = {"x": x, "eights": str(eights), "fours": str(fours)}
        return form.call.format(y=y, weights=weights, inputs=inputs, **places)

    def add(
        self,
        reads: Sequence[str],
        writes: dict[str, int],
        lines: Callable[[], list[str]],
        cycles: float,
        rounds: dict[str, int] | None = None,
    ) -> None:
        self.steps.append(Step({self.root(name)[0] for name in reads if name}, writes, lines, cycles, rounds or {}))

    def _group(self, nodes: list[Node]) -> list[Node]:
        """The elementwise nodes at the front that fit into one loop."""
        group: list[Node] = []
        size = self.value(nodes[0].outputs[0]).size
        for node in nodes:
            if len(group) == MOST_TOGETHER or not elementwise(node) or self.value(node.outputs[0]).size != size:
                break
            group.append(node)
        return group

    def _elementwise(self, group: list[Node]) -> None:
        inside = {node.outputs[0] for node in group}
        others = [node for node in self.graph.nodes if node.outputs[0] not in inside]
        used = {name for node in others for name in node.inputs} | set(self.graph.outputs)
        stored = [node.outputs[0] for node in group if node.outputs[0] in used]
        reads = [name for node in group for name in read(node) if name not in inside]

        def lines() -> list[str]:
            if len(group) == 1 and group[0].operator == "Tanh":
                x, y = self.pointer(group[0].inputs[0]), self.pointer(group[0].outputs[0])
                return [f"policy_tanh_all({y}, {x}, {self.value(group[0].outputs[0]).size});"]
            local = {node.outputs[0]: f"v{index}" for index, node in enumerate(group)}
            body = []
            for node in group:
                name = node.outputs[0]
                texts = [local.get(x) or self._element(x, self.value(name)) if x else "" for x in read(node)]
                body.append(
                    f"const float {local[name]} = {expression(node, texts, self.values(node), self.value(name))};"
                )
                if name in stored:
                    array, offset = self.place(name)
                    body.append(f"{array}[{offset} + i] = {local[name]};")
            size = self.value(group[0].outputs[0]).size
            return [f"for (int i = 0; i < {size}; ++i) {{", *(f"    {line}" for line in body), "}"]

        size = self.value(group[0].outputs[0]).size
        texts = [["a"] * len(read(node)) for node in group]
        each = LOOPED + 4.0 * len(stored)
        for node, names in zip(group, texts, strict=True):
            each += of_expression(expression(node, names, self.values(node), self.value(node.outputs[0])))
        each = TANH if len(group) == 1 and group[0].operator == "Tanh" else each
        self.add(reads, {name: self.value(name).size for name in stored}, lines, size * each)

    def _element(self, name: str, result: Value) -> str:
        """Element i of `result`'s shape, read from a value that is perhaps smaller."""
        value = self.value(name)
        if value.data is not None and len(np.unique(value.data)) == 1:
            text = literal(value.data.flat[0])
            return f"({text})" if text.startswith("-") else text
        array, offset = self.place(name)
        rank = len(result.shape)
        shape = (1,) * (rank - len(value.shape)) + value.shape
        terms, stride, block = [], 1, 1
        for axis in reversed(range(rank)):
            if shape[axis] != 1:
                terms.append(f"i / {block} % {result.shape[axis]} * {stride}")
            stride *= shape[axis]
            block *= result.shape[axis]
        index = "i" if value.size == result.size else " + ".join(terms) or "0"
        return f"{array}[{offset} + {index}]"

    def _move(self, node: Node) -> None:
        made, fill = moves.traced(node, self.values(node), self.graph.opset)
        for name, indices in made.items():
            self._take(name, moves.sources(node), indices, fill)

    def _take(self, name: str, sources: list[str], indices: NDArray[np.int64], fill: str) -> None:
        """`name` becomes the elements `indices` of the joined `sources`."""
        runs = moves.runs(indices, [self.value(s).size for s in sources])
        if len(runs) == 1 and runs[0][0] >= 0:
            block, offset = self.root(sources[runs[0][0]])
            if name not in self.graph.outputs or block not in self.arrays:  # the state changes under an output
                self.alias[name] = (block, offset + runs[0][1])
                return
        numbers = [[s, begin] for s, begin, _, _ in runs if s >= 0]

        def lines() -> list[str]:
            to, at = self.place(name)
            if len(runs) > MOST_RUNS and len({s for s, _ in numbers}) == 1:
                element = self._indexed(indices, sources, fill)
                return [f"for (int i = 0; i < {len(indices)}; ++i) {to}[{at} + i] = {element};"]
            copies = []
            for source, begin, start, count in runs:
                value = fill
                if source >= 0:
                    array, offset = self.place(sources[source])
                    value = f"{array}[{offset + begin} + i]"
                copies.append(f"for (int i = 0; i < {count}; ++i) {to}[{at + start} + i] = {value};")
            return copies

        self.add(sources, {name: len(indices)}, lines, COPIED * len(indices))

    def _indexed(self, indices: NDArray[np.int64], sources: list[str], fill: str) -> str:
        """Element i of a move that a table describes; the last number of its type stands for the fill."""
        before = np.cumsum([0, *(self.value(s).size for s in sources)])
        kind, none = ("uint16_t", 2**16 - 1) if indices.max() < 2**16 - 1 else ("uint32_t", 2**32 - 1)
        source = int(np.searchsorted(before, indices.max(), side="right")) - 1
        filled = indices == moves.NOWHERE
        table = self.constant(np.where(filled, none, indices - before[source]), kind, "indices")
        array, offset = self.place(sources[source])
        element = f"{array}[{offset} + {table}[i]]"
        return f"{table}[i] == {none}u ? {fill} : {element}" if filled.any() else element

    def _look_up(self, node: Node) -> None:
        data, index, result = (self.value(name) for name in (*node.inputs[:2], node.outputs[0]))
        write = moves.lookup(node, self.values(node), result)
        self.add(
            [data.name, index.name],
            {result.name: result.size},
            lambda: write(*(self.pointer(value.name) for value in (data, index, result))),
            (COPIED + INDEX) * result.size,
        )

    def _dense(self, node: Node) -> None:
        values, result = self.values(node), self.value(node.outputs[0])
        weight, _ = c.matrix(node, values)
        source = self.value(node.inputs[0])
        outputs, inputs = weight.shape
        form = self.format.of(node)
        room = -(-outputs // form.width) * form.width if form.width else padded(outputs)  # it writes whole blocks
        rounds = {self.rounded(node): rounded_words(inputs)} if form.rounds(node) else {}
        # What is not finite would not be seen in the result.
        limited = any(after.operator == tanh.TANH and after.inputs[0] == result.name for after in self.graph.nodes)
        if node.operator == "Conv":
            view = window(node, source.shape, result.shape, self.value(node.inputs[1]).shape[2:])
            self.patch, self.pixel = max(self.patch, inputs), max(self.pixel, room)

            def lines() -> list[str]:
                x, y = self.pointer(source.name), self.pointer(result.name)
                return convolution(view, x, y, self.product(node, "pixel", "patch"))

            pixels = result.size // outputs
            each = of_product(form.name, room, inputs, bool(rounds)) + SEEN * inputs + COPIED * outputs
            self.add([source.name], {result.name: result.size}, lines, pixels * each, rounds)
            return
        rows = source.size // inputs

        def products() -> list[str]:
            x, y = self.pointer(source.name), self.pointer(result.name)  # x is in no statement after a rounding tanh
            if rows == 1:
                made = self.product(node, y, x)
                return [f"if (policy_broken({x}, {inputs})) return false;", made] if rounds and limited else [made]
            each = self.product(node, f"{y} + row * {outputs}", f"{x} + row * {inputs}")
            return [f"for (int row = 0; row < {rows}; ++row)", f"    {each}"]

        cycles = rows * of_product(form.name, room, inputs, bool(rounds))
        self.add([source.name], {result.name: (rows - 1) * outputs + room}, products, cycles, rounds)

    def _rounded_tanh(self, node: Node) -> None:
        source, result = self.value(node.inputs[0]), self.value(node.outputs[0])
        quads = -(-result.size // 4)

        def lines() -> list[str]:
            table = self.constant(tanh.table(), "uint32_t")
            to, x = f"quantised + {self.where[result.name]}", self.pointer(source.name)
            return [f"policy_tanh_rounded({to}, {x}, {quads}, {table}, {tanh.factor(node.attributes[tanh.ONE])});"]

        self.add([source.name], {}, lines, ROUNDED_TANH * 4 * quads, {result.name: rounded_words(result.size)})

    def _multiply(self, node: Node) -> None:
        left, right = (self.value(name) for name in node.inputs[:2])
        result = self.value(node.outputs[0])
        c.multiplication(node, ("x", "y", "z"), left.shape, right.shape)

        def lines() -> list[str]:
            x, y, z = (self.pointer(value.name) for value in (left, right, result))
            return c.multiplication(node, (x, y, z), left.shape, right.shape)

        cycles = COMPUTED_PRODUCT * result.size * left.shape[-1] + COPIED * result.size
        self.add([left.name, right.name], {result.name: result.size}, lines, cycles)

    def _pool(self, node: Node) -> None:
        source, result = self.value(node.inputs[0]), self.value(node.outputs[0])
        view = window(node, source.shape, result.shape, tuple(node.attributes["kernel_shape"]))
        if len(node.outputs) > 1:
            raise GraphError(f"{node} also says where the largest are, which is not supported")

        def lines() -> list[str]:
            return pool(node, view, self.pointer(source.name), self.pointer(result.name))

        self.add([source.name], {result.name: result.size}, lines, SEEN * result.size * math.prod(view.kernel))

    def _reduce(self, node: Node) -> None:
        source, result = self.value(node.inputs[0]), self.value(node.outputs[0])
        rank = len(source.shape)
        if node.operator in ("GlobalAveragePool", "GlobalMaxPool"):
            axes = list(range(2, rank))
        else:
            given = c.constant_input(node, self.values(node), 1)
            named = given if given is not None else node.attributes.get("axes", ())
            axes = [int(axis) for axis in named] or list(range(rank))
        line = Line.of(node, source.shape, axes)

        def lines() -> list[str]:
            whole = result.dtype.kind in "iu"
            return reduction(node, self.pointer(source.name), self.pointer(result.name), line, whole)

        body = of_expression(" ".join(TOTALS[node.operator])) + LOOPED
        self.add([source.name], {result.name: result.size}, lines, body * source.size + LOOPED * result.size)

    def _along(self, node: Node) -> None:
        source = self.value(node.inputs[0])
        axis = int(node.attributes.get("axis", 0 if node.operator.startswith("Arg") else -1))
        if node.operator == "CumSum":
            given = c.constant_input(node, self.values(node), 1)
            assert given is not None
            axis = int(given.reshape(()))
        line = Line.of(node, source.shape, [axis])
        made = self.value(node.outputs[0]) if node.outputs[0] else self.value(node.outputs[1])
        names = [name or f"{node.name}/{k}" for k, name in enumerate(node.outputs)]

        def lines() -> list[str]:
            return along(node, line, self.pointer(source.name), [self.pointer(name) for name in names], made.size)

        each = {"CumSum": 0.0, "Softmax": 60.0, "TopK": COPIED * made.size}.get(node.operator, RARE)
        cycles = (2.0 * LOOPED + each) * source.size
        self.add([source.name], dict.fromkeys(names, made.size), lines, cycles)

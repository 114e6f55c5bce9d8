"""A policy file -> C11: policy.h, policy.c and the hand-written policy_math.h. No allocation, no libm.

The signals and commands are structs whose members have the names of the contract, and POLICY_SIGNALS(X) lists them, so
that a program which does not supply a signal does not compile. The state is the caller's: any number of robots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import number
from deploy.codegen.names import members
from deploy.codegen.onnx_graph import AnyArray, Graph, GraphError, read, run
from deploy.codegen.operators import SUPPORTED
from deploy.codegen.program import Program, Writer
from deploy.codegen.structs import check_limits, clipped, limited
from deploy.codegen.weights import FORMATS, Format
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from deploy.trust.text import c_comment, c_string
from sim.spec import Signal

FIRMWARE = Path(__file__).parents[2] / "firmware"
QUADROTOR_SIGNALS = "quadrotor_signals.h"  # in it: what a quadrotor's own computer tells a policy
WEIGHTS = tuple(FORMATS)
CALLED = re.compile(r"(?:policy|POLICY)_\w+")
MOST_NUMBERS = 2**24  # in constants and memory: a compiler takes its time for more
TYPES = {np.dtype(np.float32): "float", np.dtype(np.uint8): "uint8_t", np.dtype(np.int64): "int64_t"}
BYTES = {"float": 4, "uint8_t": 1, "int64_t": 8}

HEADER = """\
/* {title}: made from a policy file by `python -m deploy.export`; do not edit. */
#ifndef POLICY_H
#define POLICY_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define POLICY_RATE_HZ {rate}

/* Call X(name, elements, type, oldest permissible age in s) for every signal: with it, fill all of them by functions of
 * your own, and a signal that you do not have is an error of the compiler. */
#define POLICY_SIGNALS(X) \\
{signal_list}
#define POLICY_COMMANDS(X) \\
{command_list}

typedef struct {{
{signals}
}} policy_signals;

typedef struct {{
{commands}
}} policy_commands;

/* What the controller remembers from step to step. */
typedef struct {{
{state}
}} policy_state;

typedef struct {{
    const char *name, *task, *robot, *sha256; /* sha256: of the policy file */
    float rate_hz;
    float tolerance; /* of the self-test, as a share of a command's range */
    int vectors;     /* steps of the self-test */
}} policy_information;

const policy_information *policy_info(void);

/* Begin a flight. */
void policy_reset(policy_state *state);

/* One control step. False when a signal or the result is not finite; commands and state then stay as they were. */
bool policy_step(policy_state *state, const policy_signals *signals, policy_commands *commands);

/* Replay the file's test vectors: the largest disagreement as a share of what is tolerated; beyond 1: do not fly.
 * `state` is reset afterwards. */
float policy_selftest(policy_state *state);

/* Self-test, then reset; false: this build computes wrongly, do not fly. */
bool policy_init(policy_state *state);

#ifdef __cplusplus
}}
#endif

#endif
"""

SOURCE = """\
/* {title}: made from a policy file by `python -m deploy.export`; do not edit. */
#include "policy.h"

#include "{mathematics}"

{constants}
static float memory[{memory}];
{convolution}{quantised}
static bool compute(const policy_state *state, const policy_signals *signals) {{
    (void)state;
    (void)signals;
{statements}
    return !({check});
}}

bool policy_step(policy_state *state, const policy_signals *signals, policy_commands *commands) {{
    if ({broken}) return false;
    if (!compute(state, signals)) return false;
{results}
    return true;
}}

void policy_reset(policy_state *state) {{
{reset}
}}

static const policy_information information = {{
    {information}}};

const policy_information *policy_info(void) {{ return &information; }}

static const policy_signals vector_signals[{vectors}] = {{
{vector_signals}}};

static const policy_commands vector_commands[{vectors}] = {{
{vector_commands}}};

{vector_state}

static float larger(float worst, float got, float want, float tolerated) {{
    const float error = (got < want ? want - got : got - want) / tolerated;
    return error > worst ? error : worst;
}}

float policy_selftest(policy_state *state) {{
    float worst = 0.0f;
    policy_commands commands;
    policy_reset(state);
    for (int step = 0; step < {vectors}; ++step) {{
        if (!policy_step(state, &vector_signals[step], &commands)) return 1e30f;
{compare_commands}
    }}
{compare_state}
    policy_reset(state);
    return worst;
}}

bool policy_init(policy_state *state) {{ return policy_selftest(state) <= 1.0f; }}
"""


def _indent(lines: Iterable[str], depth: int = 1) -> str:
    return "\n".join("    " * depth + line for line in lines)


def _wrap(items: Sequence[str]) -> str:
    """Comma-separated, in lines of about 110 characters."""
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) > 110:
            lines.append(line)
            line = ""
        line += f"{item}, "
    return "\n".join([*lines, line.rstrip(", ")])


def _row(values: Iterable[NDArray[Any]], kinds: Iterable[str]) -> str:
    parts = []
    for value, kind in zip(values, kinds, strict=True):
        texts = [number(v) if kind == "float" else str(int(v)) for v in np.ravel(value)]
        parts.append("{" + ", ".join(texts) + "}")
    return "{" + ", ".join(parts) + "}"


def replay(policy: PolicyFile, graph: Graph, form: Format) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Commands and states (steps, *shape) for the file's test vectors, flown on, with weights stored in this format.

    Commands keep to their limits, as in C.
    """
    kinds = {s.name: graph.values[s.name].dtype for s in policy.inputs}
    states = {s.name: s.initial[None] for s in policy.state}
    steps = []
    for step in range(policy.vectors.steps):
        feeds = {name: policy.vectors.inputs[name][step][None].astype(kind) for name, kind in kinds.items()}
        made = run(graph, feeds | {f"state.{name}": value for name, value in states.items()}, form.stored)
        states = {name: made[f"next_state.{name}"] for name in states}
        steps.append(made)
    commands = {s.name: clipped(s, np.concatenate([made[s.name] for made in steps])) for s in policy.outputs}
    return commands, {name: np.concatenate([made[f"next_state.{name}"] for made in steps]) for name in states}


def rounding(policy: PolicyFile, commands: dict[str, AnyArray], states: dict[str, AnyArray]) -> float:
    """How far that is from the file's own vectors: of commands' ranges, or of max(1, |state|)."""
    told = policy.vectors
    worst = [np.abs(commands[s.name] - told.outputs[s.name]).max() / told.span(s) for s in policy.outputs]
    for name, value in states.items():
        want = policy.vectors.state[name]
        worst.append((np.abs(value - want) / np.maximum(1.0, np.abs(want))).max())
    return float(max(worst))


class Source:
    """The texts of one policy's C files."""

    def __init__(self, policy: PolicyFile, content: bytes, weights: str = "float32") -> None:
        """`weights`: float32, float16 (half the size), int8 (a quarter: a scale per output, inputs rounded to 16 bits),
        w8a8 (to 8 bits or more: faster).

        The self-test of all but the first replays what the graph makes of the file's signals with such weights;
        `rounding` is how far that is from what the file says.

        Raises GraphError when something in the graph has no C.
        """
        if weights not in WEIGHTS:
            raise GraphError(f"unknown weights {weights!r}; choices: {', '.join(WEIGHTS)}")
        for group in (policy.inputs, policy.outputs, policy.state):
            members(s.name for s in group)
        check_limits(policy)
        self.policy, self.weights = policy, weights
        self.title = c_comment(f"{policy.name} ({policy.task}, {policy.robot})")
        try:
            self._write(policy, content, weights)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError) as error:
            raise GraphError(f"{policy.path}: its graph is not well-formed: {type(error).__name__}: {error}") from error

    def _write(self, policy: PolicyFile, content: bytes, weights: str) -> None:
        """The program, and what it should make of the vectors."""
        graph = FORMATS[weights].plan(read(content, SUPPORTED))
        self.expected: tuple[Mapping[str, AnyArray], Mapping[str, AnyArray]]
        self.expected, self.rounding = (policy.vectors.outputs, policy.vectors.state), 0.0
        if weights != "float32":
            commands, states = self.expected = replay(policy, graph, FORMATS[weights])
            self.rounding = rounding(policy, commands, states)
        self.tolerance = max(policy.vectors.tolerance, FORMATS[weights].tolerance)
        self.types = {s.name: TYPES[graph.values[s.name].dtype] for s in policy.inputs}
        arrays = {s.name: f"signals->{s.name}" for s in policy.inputs}
        arrays |= {f"state.{s.name}": f"state->{s.name}" for s in policy.state}
        self.program: Program = Writer(graph, arrays, FORMATS[weights], bound=self._bound).program()
        common = set(CALLED.findall((FIRMWARE / "policy_math.h").read_text()))
        written = [*self.program.lines, *(text for _, texts in self.program.constants.values() for text in texts)]
        called = {name for line in written for name in CALLED.findall(line)}
        self.rare = not called <= common  # it needs policy_functions.h, too
        self._bound(self.program.memory + sum(len(texts) for _, texts in self.program.constants.values()))

    def _bound(self, numbers: int) -> None:
        if numbers > MOST_NUMBERS:
            raise GraphError(f"{self.policy.path}: {numbers} numbers are too many for C, which holds {MOST_NUMBERS}")

    def files(self) -> dict[str, str]:
        """File name -> content."""
        headers = ["policy_math.h", *["policy_functions.h"] * self.rare]
        made = {"policy.h": self._header(), "policy.c": self._source()}
        return made | {name: (FIRMWARE / name).read_text() for name in headers}

    @property
    def vector_bytes(self) -> int:
        """Of the test vectors and the last state."""
        policy = self.policy
        signals = sum(s.size * BYTES[self.types[s.name]] for s in policy.inputs)
        step = signals + 4 * sum(s.size for s in policy.outputs)
        return policy.vectors.steps * step + 4 * sum(s.initial.size for s in policy.state)

    def _header(self) -> str:
        policy = self.policy
        limits = "[{:g}, {:g}]".format
        state = [f"float {s.name}[{s.initial.size}];" for s in policy.state] or ["char nothing;"]
        return HEADER.format(
            title=self.title,
            rate=number(policy.rate_hz),
            signal_list=self._list(policy.inputs),
            command_list=self._list(policy.outputs),
            signals=_indent(
                f"{self.types[s.name]} {s.name}[{s.size}]; /* {c_comment(f'{s.unit}, {s.frame}'.rstrip(', '))} */"
                for s in policy.inputs
            ),
            commands=_indent(
                f"float {s.name}[{s.size}]; /* {c_comment(s.unit)}, within {limits(s.low, s.high)} */"
                for s in policy.outputs
            ),
            state=_indent(state),
        )

    def _list(self, group: Sequence[Signal]) -> str:
        return " \\\n".join(
            f"    X({s.name}, {s.size}, {self.types.get(s.name, 'float')}, {number(s.max_age)})" for s in group
        )

    def _source(self) -> str:
        policy, program = self.policy, self.program
        vectors = policy.vectors
        information = (policy.name, policy.task, policy.robot, policy.sha256)
        return SOURCE.format(
            title=self.title,
            mathematics="policy_functions.h" if self.rare else "policy_math.h",
            constants="\n".join(
                f"static const {kind} {name}[{len(texts)}] = {{\n{_wrap(texts)}}};"
                for name, (kind, texts) in program.constants.items()
            ),
            memory=max(1, program.memory),
            convolution=f"static float patch[{program.patch}], pixel[{program.pixel}];\n" if program.patch else "",
            quantised=f"static uint32_t quantised[{program.quantised}];\n" if program.quantised else "",
            statements=_indent(program.lines),
            check=" || ".join(f"policy_broken({x}, {n})" for x, n in self._results()),
            broken=" || ".join(self._finite_inputs()) or "false",
            results=_indent(self._store()),
            reset=_indent(self._reset()),
            information=", ".join(
                [*map(c_string, information), number(policy.rate_hz), number(self.tolerance), str(vectors.steps)]
            ),
            vectors=vectors.steps,
            vector_signals=",\n".join(
                _row((vectors.inputs[s.name][k] for s in policy.inputs), self.types.values())
                for k in range(vectors.steps)
            ),
            vector_commands=",\n".join(
                _row((self.expected[0][s.name][k] for s in policy.outputs), ["float"] * len(policy.outputs))
                for k in range(vectors.steps)
            ),
            vector_state=self._last_state(),
            compare_commands=_indent(self._compare_commands(), 2),
            compare_state=_indent(self._compare_state()),
        )

    def _last_state(self) -> str:
        states = self.policy.state
        row = _row((self.expected[1][s.name][-1] for s in states), ["float"] * len(states))
        return f"static const policy_state vector_last_state = {row};\n" if states else ""

    def _results(self) -> list[tuple[str, int]]:
        """Where every command and next state was computed, and its size."""
        found = []
        names = [(s.name, s.size) for s in self.policy.outputs]
        for name, size in [*names, *((f"next_state.{s.name}", s.initial.size) for s in self.policy.state)]:
            array, offset = self.program.places[name]
            found.append((f"{array} + {offset}", size))
        return found

    def _finite_inputs(self) -> list[str]:
        return [f"policy_broken(signals->{n}, {self._size(n)})" for n, kind in self.types.items() if kind == "float"]

    def _size(self, name: str) -> int:
        return next(s.size for s in self.policy.inputs if s.name == name)

    def _store(self) -> list[str]:
        """Nothing of the caller's changes before all results are known and finite. Commands keep to their limits."""
        members = [(f"commands->{s.name}", limited(s)) for s in self.policy.outputs]
        members += [(f"state->{s.name}", "({})[i]") for s in self.policy.state]
        return [
            f"for (int i = 0; i < {size}; ++i) {to}[i] = {value.format(place)};"
            for (to, value), (place, size) in zip(members, self._results(), strict=True)
        ]

    def _reset(self) -> list[str]:
        lines = []
        for s in self.policy.state:
            values = s.initial.ravel()
            if len(np.unique(values)) == 1:
                lines.append(f"for (int i = 0; i < {s.initial.size}; ++i) state->{s.name}[i] = {number(values[0])};")
            else:
                lines += [f"state->{s.name}[{k}] = {number(v)};" for k, v in enumerate(values)]
        return lines or ["state->nothing = 0;"]

    def _compare_commands(self) -> list[str]:
        lines = []
        for s in self.policy.outputs:
            pair = f"commands.{s.name}[i], vector_commands[step].{s.name}[i]"
            loop = f"for (int i = 0; i < {s.size}; ++i)"
            tolerated = number(self.tolerance * self.policy.vectors.span(s))
            lines.append(f"{loop} worst = larger(worst, {pair}, {tolerated});")
        return lines

    def _compare_state(self) -> list[str]:
        lines = []
        for s in self.policy.state:
            want = f"vector_last_state.{s.name}[i]"
            tolerated = f"{number(self.tolerance)} * ({want} > 1.0f ? {want} : {want} < -1.0f ? -{want}"
            loop = f"for (int i = 0; i < {s.initial.size}; ++i)"
            lines.append(f"{loop} worst = larger(worst, state->{s.name}[i], {want}, {tolerated} : 1.0f));")
        return lines


def generate(path: str, weights: str = "float32") -> dict[str, str]:
    """The C files of the policy file at `path`, checked first: file name -> content.

    Raises PolicyFileError for a damaged file, GraphError for one that cannot be C.
    """
    content = content_of(path)
    return Source(PolicyFile.from_bytes(content, path), content, weights).files()

"""One control step on a Cortex-M4F: our C, emx-onnx-cgen's and rl-tools' for the same file, with the same compiler.

python tests/benchmarks/microcontroller.py [--quick]
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import peer_rl_tools
import peers
import report

from deploy import hil
from deploy.codegen import onnx_graph, toolchain
from deploy.codegen.operators import SUPPORTED
from deploy.codegen.source import FIRMWARE
from deploy.codegen.structs import packed
from deploy.mcu.boards import STM32F405
from deploy.mcu.cost import places
from deploy.mcu.emulator import Chip
from deploy.policy_file import PolicyFile
from policies.models.export import random_signals
from tests.deploy.codegen.exact import exact

STATE, SIGNALS, COMMANDS = places(STM32F405)
NETWORKS = {
    "MLP": ["quality=quick", "algorithm.network=mlp", "algorithm.hidden=[64,64]", "task.history=1"],
    "GRU": ["quality=quick"],
}
OURS = {"ours": "float32", "ours, float16": "float16", "ours, int8": "int8"}
RL_TOOLS = {"rl-tools": "TANH", "rl-tools, its own tanh": "FAST_TANH"}
CASES = {
    f"{network} {kind}": (network, kind)
    for network in NETWORKS
    for kind in (*OURS, "emx-onnx-cgen", *(RL_TOOLS if network == "MLP" else ()))
}
INPUTS, EPISODES = 1000, 20
# What emx's C includes, with our arithmetic behind it: the comparison is of the generators.
MATH_H = """#pragma once
#include "policy_math.h"
#define tanhf policy_tanh
#define expf policy_exp
#define sqrtf policy_sqrt
#define fabsf __builtin_fabsf
#define fmaxf(a, b) ((a) < (b) ? (b) : (a))
#define fminf(a, b) ((a) > (b) ? (b) : (a))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
"""
STRING_H = """#pragma once
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
"""
OF_THE_BOARD = (
    "board_",
    "reset_handler",
    "fault_handler",
    "main",
    "vectors",
    "mem",
    "__aeabi",
    "parse",
    "announce",
    "send",
)
PROOF = ("vector_", "policy_selftest", "policy_init", "larger")  # of ours: what only the self-test needs


def code_size(chip: Chip) -> int:
    """Flash of the controller alone: code and weights, without board, link and self-test."""
    kept = {
        n: size for n, (at, size) in chip.sizes.items() if at < 0x20000000 and not n.startswith(OF_THE_BOARD + PROOF)
    }
    return sum(kept.values())


def emx_image(policy: PolicyFile, folder: Path) -> Path:
    """An image around emx's C: `step` reads the struct `before` and writes `after`."""
    tool = Path(peers.interpreter("emx")).with_name("emx-onnx-cgen")
    made = ["--large-temp-threshold", "0", "--input-dim", "N=1", "--model-name", "emx_model", policy.path, "emx.c"]
    subprocess.run([tool, "compile", *made], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    states = {f"state_{s.name}": s.initial.size for s in policy.state}
    ins = {s.name: s.size for s in policy.inputs} | states
    outs = {s.name: s.size for s in policy.outputs} | {f"next_{name}": size for name, size in states.items()}
    members = ["".join(f"float {n}[1][{k}];" for n, k in group.items()) for group in (ins, outs)]
    call = ", ".join([*(f"before.{n}" for n in ins), *(f"after.{n}" for n in outs)])
    (folder / "policy.c").write_text(
        f'#include "emx.c"\nstruct {{{members[0]}}} before;\nstruct {{{members[1]}}} after;\n'
        f"__attribute__((noinline, used)) void step(void) {{ emx_model({call}); }}\n"
        'int main(void);\n#include "board.h"\nint main(void) { for (;;) { step(); board_idle(); } }\n'
    )
    (folder / "math.h").write_text(MATH_H)
    (folder / "string.h").write_text(STRING_H)
    (folder / "float.h").write_text("#define FLT_MAX __FLT_MAX__\n#define FLT_MIN __FLT_MIN__\n")
    kind, command = toolchain.choose("zig", "arm-none-eabi-gcc")
    flags = [
        *toolchain.CORTEX_M4F[kind],
        *toolchain.FLAGS,
        *toolchain.BARE,
        "-O3",
        "-w",
        f"-I{FIRMWARE}",
        *toolchain.headers(),
    ]
    sources = [folder / "policy.c", *toolchain.beneath()]
    image = folder / "emx.elf"
    toolchain.run([*command, *flags, "-I", folder, "-T", toolchain.linker_script(folder), *sources, "-o", image])
    return image


@dataclass
class Contestant:
    """An image that takes one control step. `feed`: the bytes that it reads, of signals and states; `commands`: what
    its result means. `flying` is the same chip without counting: much faster."""

    image: Path
    call: tuple[Any, ...]
    feed: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[int, bytes]]
    result: int
    commands: Callable[[Any], Any] | None = lambda result: result

    def __post_init__(self) -> None:
        self.chip, self.flying = Chip(self.image, count=True), Chip(self.image)


def ours(policy: PolicyFile, folder: Path, weights: str) -> Contestant:
    """The C of deploy.export."""

    def feed(signals: Mapping[str, Any], states: Mapping[str, Any]) -> dict[int, bytes]:
        return {SIGNALS: packed(policy, signals), STATE: bytes_of(states)}

    image = hil.build(policy, folder, "zig", weights=weights)[0]
    return Contestant(image, ("policy_step", STATE, SIGNALS, COMMANDS), feed, COMMANDS)


def emx(policy: PolicyFile, folder: Path) -> Contestant:
    """emx-onnx-cgen's C."""
    chip = Chip(emx_image(policy, folder))

    def feed(signals: Mapping[str, Any], states: Mapping[str, Any]) -> dict[int, bytes]:
        return {chip.address("before"): packed(policy, signals) + bytes_of(states)}

    return Contestant(Path(chip.path), ("step",), feed, chip.address("after"))


def rl_tools(policy: PolicyFile, folder: Path, activation: str) -> Contestant:
    """The network alone by rl-tools: features are computed here, and commands of its actions."""
    whole = onnx_graph.read(Path(policy.path).read_bytes(), SUPPORTED)
    first = next(index for index, node in enumerate(whole.nodes) if node.operator == "Gemm")
    before = replace(whole, nodes=whole.nodes[:first], outputs=whole.nodes[first].inputs[:1])
    chip = Chip(peer_rl_tools.image(whole, activation, folder))
    (command,) = policy.outputs

    def feed(signals: Mapping[str, Any], states: Mapping[str, Any]) -> dict[int, bytes]:
        feeds = {name: np.asarray(value, np.float32)[None] for name, value in signals.items()}
        (features,) = onnx_graph.run(before, {**feeds, **{f"state.{n}": v for n, v in states.items()}}).values()
        return {chip.address("before"): features.astype("<f4").tobytes()}

    def commands(action: Any) -> Any:
        return (action + np.float32(1.0)) * np.float32(0.5 * (command.high - command.low)) + np.float32(command.low)

    return Contestant(
        Path(chip.path), ("step",), feed, chip.address("after"), commands if activation == "TANH" else None
    )


def bytes_of(states: Mapping[str, Any]) -> bytes:
    """States as they follow each other in a struct."""
    return b"".join(value.astype("<f4").tobytes() for value in states.values())


def contestant(kind: str, policy: PolicyFile, folder: Path) -> Contestant:
    """The image of one row."""
    if kind in OURS:
        return ours(policy, folder, OURS[kind])
    return rl_tools(policy, folder, RL_TOOLS[kind]) if kind in RL_TOOLS else emx(policy, folder)


def costs(one: Contestant, policy: PolicyFile, inputs: int) -> dict[str, Any]:
    """The costliest of all inputs, and the cheapest's instructions."""
    signals = random_signals(policy.inputs, inputs, np.random.default_rng(1))
    policy.reset()
    states = policy.states()
    measured = []
    for step in range(inputs):
        for at, data in one.feed({name: value[step] for name, value in signals.items()}, states).items():
            one.chip.write(at, data)
        measured.append(one.chip.measure(*one.call))
    return {
        "instructions": max(m.instructions for m in measured),
        "fewest_instructions": min(m.instructions for m in measured),
        "cycles": max(m.cycles for m in measured),
        "stack": max(m.stack for m in measured),
        "flash": code_size(one.chip),
    }


def errors(one: Contestant, policy: PolicyFile, inputs: int) -> dict[str, float]:
    """The largest differences, from equal states, as a share of the commands' range; none for another function.

    "error": from onnxruntime; "exact_error": from the graph in float64; "reference_error": onnxruntime's from that.
    """
    if one.commands is None:
        return {}
    signals = random_signals(policy.inputs, inputs, np.random.default_rng(0))
    run = exact(policy.path)
    policy.reset()
    worst = {"error": 0.0, "exact_error": 0.0, "reference_error": 0.0}
    span = np.concatenate([np.full(s.size, s.high - s.low) for s in policy.outputs])
    for step in range(inputs):
        now, states = {name: value[step] for name, value in signals.items()}, policy.states()
        for at, data in one.feed(now, states).items():
            one.flying.write(at, data)
        one.flying.call(*one.call)
        got = one.commands(np.frombuffer(one.flying.read(one.result, 4 * len(span)), "<f4"))
        truth, reference = run(now, states), policy.step(now)
        true, want = (np.concatenate([x[s.name].ravel() for s in policy.outputs]) for x in (truth, reference))
        pairs = {"error": got - want.astype(float), "exact_error": got - true, "reference_error": want - true}
        worst = {name: max(worst[name], float((np.abs(pair) / span).max())) for name, pair in pairs.items()}
    return worst


def flights(policy: PolicyFile, weights: str, episodes: int) -> dict[str, float]:
    """What comes of flying it on the emulated chip: the shares that succeed, by the chip and by onnxruntime."""
    chip, cost = hil.connect(policy, "emulated", "zig", weights)
    flown = hil.evaluate(policy, chip, hil.Config(policy=policy.path, episodes=episodes), cost)
    return {"episodes": episodes, "success": flown.success, "success_onnxruntime": flown.success_onnxruntime}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Instructions, cycles, bytes and errors per network and generator."""
    rows: report.Rows = {}
    inputs = 5 if quick else INPUTS
    with tempfile.TemporaryDirectory() as base:
        for case in cases:
            network, kind = CASES[case]
            folder = Path(base) / network
            if not folder.exists():
                small = ["algorithm.updates=10"] if quick else []
                commands.train(folder, "task=quad_hover", *NETWORKS[network], *small)
            policy = PolicyFile.load(folder / "policy.onnx")
            work = folder / kind
            work.mkdir()
            try:
                one = contestant(kind, policy, work)
                rows[case] = {**costs(one, policy, inputs), **errors(one, policy, inputs), "inputs": inputs}
                if kind in OURS:
                    rows[case] |= flights(policy, OURS[kind], 2 if quick else EPISODES)
            except peers.MissingPeerError as error:
                rows[case] = {"missing": str(error)}
            print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """What a line of the table says of a row."""
    if "missing" in row:
        return [row["missing"], *[""] * 7]
    counts = [str(row["instructions"]), str(row["cycles"]), f"{row['cycles'] / 168:.0f}", str(row["flash"])]
    known = [f"{row[k]:.1e}" if k in row else "" for k in ("error", "exact_error")]
    flown = f"{100 * row['success']:.0f} ({100 * row['success_onnxruntime']:.0f})" if "success" in row else ""
    return [*counts, str(row["stack"]), *known, flown]


def markdown(rows: report.Rows) -> str:
    """One line per network and generator."""
    head = ["network", "C by", "instructions", "cycles (estimated)", "us at 168 MHz", "flash, B", "stack, B"]
    head += ["error", "error, exact", "success, %"]
    lines = [[*CASES[case], *cells(row)] for case, row in rows.items()]
    inputs = max(row.get("inputs", 0) for row in rows.values())
    reference = {CASES[case][0]: row["reference_error"] for case, row in rows.items() if "reference_error" in row}
    text = (
        f"One step of quad_hover's policies on an emulated Cortex-M4F, the worst of {inputs} random inputs; zig "
        "from the ziglang wheel for all; flash is code and weights; error is the largest difference from onnxruntime, "
        "and from the same graph in float64, as a share of the command's range. onnxruntime itself is "
        f"{' and '.join(f'{error:.1e} ({network})' for network, error in reference.items())} away from float64. "
        "MLP: two layers of 64 tanh. GRU: the default, 16 and 16. rl-tools computes the network alone. Success: of "
        f"{EPISODES} flights by the emulated chip, rounding and all (by onnxruntime)."
    )
    return f"{text}\n\n{report.table(head, lines, texts=2)}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("microcontroller", CASES, measure)

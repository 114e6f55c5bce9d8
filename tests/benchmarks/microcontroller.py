"""One control step on a Cortex-M4F: our C and emx-onnx-cgen's for the same file, with the same compiler.

python tests/benchmarks/microcontroller.py [--quick]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import numpy as np
import peers
import report

from deploy import hil, toolchain
from deploy.c_source import FIRMWARE
from deploy.emulator import Chip
from deploy.measure import COMMANDS, SIGNALS, STATE, packed
from deploy.policy_file import PolicyFile
from policies.export import random_signals

NETWORKS = {
    "MLP": ["algorithm.network=mlp", "algorithm.hidden=[64,64]", "task.history=1"],
    "GRU": [],
}
CASES = {
    f"{network} {kind}": (network, kind) for network in NETWORKS for kind in ("ours", "ours, float16", "emx-onnx-cgen")
}
INPUTS = 1000
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
    board = FIRMWARE / "stm32f405"
    kind, command = toolchain.choose("zig", "arm-none-eabi-gcc")
    flags = [*toolchain.CORTEX_M4F[kind], *toolchain.FLAGS, *toolchain.BARE, "-O3", "-w", f"-I{FIRMWARE}", f"-I{board}"]
    sources = [folder / "policy.c", board / "startup.c", board / "board.c"]
    image = folder / "emx.elf"
    toolchain.run([*command, *flags, "-I", folder, "-T", board / "stm32f405.ld", *sources, "-o", image])
    return image


def costs(chip: Chip, policy: PolicyFile, call: tuple[Any, ...], at: int, feeds: list[bytes]) -> dict[str, Any]:
    """The costliest of all inputs, and the cheapest's instructions."""
    measured = []
    for feed in feeds:
        chip.write(at, feed)
        measured.append(chip.measure(*call))
    return {
        "instructions": max(m.instructions for m in measured),
        "fewest_instructions": min(m.instructions for m in measured),
        "cycles": max(m.cycles for m in measured),
        "stack": max(m.stack for m in measured),
        "flash": code_size(chip),
    }


def worst_error(chip: Chip, policy: PolicyFile, kind: str, inputs: int) -> float:
    """The largest difference from onnxruntime, from equal states, as a share of the command's range."""
    signals = random_signals(policy.inputs, inputs, np.random.default_rng(0))
    ours = kind.startswith("ours")
    at, result = (SIGNALS, COMMANDS) if ours else (chip.address("before"), chip.address("after"))
    policy.reset()
    worst = 0.0
    for step in range(inputs):
        now = {name: value[step] for name, value in signals.items()}
        states = b"".join(value.astype("<f4").tobytes() for value in policy.states().values())
        chip.write(at, packed(policy, now) + (b"" if ours else states))
        if ours:
            chip.write(STATE, states)
        chip.call(*(("policy_step", STATE, SIGNALS, COMMANDS) if ours else ("step",)))
        want = policy.step(now)
        for signal in policy.outputs:
            got = np.frombuffer(chip.read(result, 4 * signal.size), "<f4")
            result += 4 * signal.size
            worst = max(worst, float(np.abs(got - want[signal.name]).max()) / (signal.high - signal.low))
        result -= 4 * sum(s.size for s in policy.outputs)
    return worst


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Instructions, cycles, bytes and error per network and generator."""
    rows: report.Rows = {}
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
            image = (
                hil.build(policy, work, "zig", weights="float16" if "float16" in kind else "float32")[0]
                if kind.startswith("ours")
                else emx_image(policy, work)
            )
            chip = Chip(image, count=True)
            call = ("policy_step", STATE, SIGNALS, COMMANDS) if kind.startswith("ours") else ("step",)
            at = SIGNALS if kind.startswith("ours") else chip.address("before")
            inputs = 5 if quick else INPUTS
            signals = random_signals(policy.inputs, inputs, np.random.default_rng(1))
            feeds = [packed(policy, {n: v[k] for n, v in signals.items()}) for k in range(inputs)]
            rows[case] = costs(chip, policy, call, at, feeds)
            rows[case] |= {"error": worst_error(Chip(image), policy, kind, inputs), "inputs": inputs}
            print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """One line per network and generator."""
    head = ["network", "C by", "instructions", "cycles (estimated)", "us at 168 MHz", "flash, B", "stack, B", "error"]
    lines = [
        [
            *CASES[case],
            str(row["instructions"]),
            str(row["cycles"]),
            f"{row['cycles'] / 168:.0f}",
            str(row["flash"]),
            str(row["stack"]),
            f"{row['error']:.1e}",
        ]
        for case, row in rows.items()
    ]
    inputs = next(iter(rows.values()))["inputs"]
    text = (
        f"One step of quad_hover's policies on an emulated Cortex-M4F, the worst of {inputs} random inputs; zig "
        "from the ziglang wheel for both; flash is code and weights; error is the largest difference from onnxruntime, "
        "as a share of the command's range. MLP: two layers of 64 tanh. GRU: the default, 16 and 16."
    )
    return f"{text}\n\n{report.table(head, lines, texts=2)}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("microcontroller", CASES, measure)

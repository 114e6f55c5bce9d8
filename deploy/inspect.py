"""python -m deploy.inspect policy=FILE: contract, provenance and scores of a policy file; replays its test vectors."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy import cli
from deploy.hub.card import card
from deploy.policy_file import PolicyFile
from deploy.safety.grid import summary
from deploy.sign import TRUST
from deploy.system.files import write_atomic
from deploy.trust.text import printable
from sim.spec import Group


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "the policy file"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    card: str | None = field(default=None, metadata={"help": "also write a model card (Markdown), to this file"})


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _limits(low: float, high: float) -> str:
    return "" if math.isinf(low) and math.isinf(high) else f"{low:g} .. {high:g}"


def _signals(kind: str, group: Group) -> list[list[str]]:
    rows = []
    for s in group:
        shape = " x ".join(str(k) for k in s.shape)
        rows.append([kind, s.name, shape, s.unit, s.frame, _limits(s.low, s.high), f"{s.max_age:g} s"])
    return rows


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), item)
    else:
        yield printable(prefix), printable(json.dumps(value), 80)


def describe(policy: PolicyFile) -> list[str]:
    """The lines that the command prints."""
    rows = [["", "name", "shape", "unit", "frame", "limits", "oldest"], *_signals("input", policy.inputs)]
    rows += _signals("output", policy.outputs)
    rows += [["state", s.name, " x ".join(map(str, s.initial.shape)), "", "", "", ""] for s in policy.state]
    head = [
        f"{policy.name}: task {policy.task}, robot {policy.robot}, {policy.rate_hz:g} Hz, "
        f"schema {policy.metadata['schema']}, {policy.size} bytes",
        f"sha256 {policy.sha256}",
        f"{policy.standing}{f' ({policy.remark})' if policy.remark else ''}",
        summary(policy),
        "",
    ]
    lines = head + table(rows)
    planning = ("plan",) if "plan" in policy.metadata else ()
    for part in ("envelope", *planning, "training", "evaluation"):
        leaves = list(_leaves("", policy.metadata.get(part) or {}))
        width = max((len(key) for key, _ in leaves), default=0)
        lines += ["", f"{part}:" if leaves else f"{part}: not recorded"]
        lines += [f"  {key:{width}}  {text}" for key, text in leaves]
    return lines


def main(argv: Sequence[str]) -> None:
    """Load, check and describe."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    policy = PolicyFile.load(config.policy, config.trust)
    print("\n".join(describe(policy)))
    began = time.perf_counter()
    worst = policy.verify()
    spent = 1e3 * (time.perf_counter() - began)
    print(
        f"\n{policy.standing}: {policy.vectors.steps} closed-loop test vectors agree, the worst at {worst:.2g} of the "
        f"tolerance {policy.vectors.tolerance:g} ({spent:.1f} ms)"
    )
    if config.card is not None:
        write_atomic(config.card, card(policy).encode())
        print(f"wrote {config.card}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

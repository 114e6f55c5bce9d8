"""What the benchmarks share: their command line, results.json and results.md. Run alone, it writes results.md anew."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import provenance

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TORCH = ("numba", "torch")
ARMS = ("torch", "mujoco", "metaworld", "gymnasium-robotics")
# In the order of the page: of which packages and peers the versions are written down.
BENCHMARKS = {
    "simulators": ("numba", "mujoco", "pybullet", "gymnasium", "l2f", "crazyflow"),
    "training": (*TORCH, "stable-baselines3"),
    "off_policy": (*ARMS, "stable-baselines3"),
    "pitch": ("numba", "mujoco"),
    "football": TORCH,
    "driving": TORCH,
    "transfer": ("numba", "mujoco", "pybullet"),
    "tracking": ("numba",),
    "foundation": ("numba", "mujoco", "pybullet", "foundation", "l2f"),
    "recipes": ("numba",),
    "adaptation": ("numba",),
    "specialists": ("numba",),
    "edges": ("numba",),
    "microcontroller": ("onnx", "ziglang", "unicorn", "emx", "$RL_TOOLS"),
    "ros2": ("ros-rclpy", "ros-kilted-rmw-fastrtps-cpp"),
    "crazyflie": ("numba", "cflib"),
    "rehearsal": ("numba",),
    "control_loop": ("numba",),
    "guards": ("numba",),
    "overload": ("numba",),
    "arm": ("mujoco", "mujoco-warp", "warp-lang"),
    "manipulation": ARMS,
    "steering": ARMS,
    "sampling": ARMS,
    "words": (*ARMS, "transformers"),
    "decoding": TORCH[1:],
    "trained": (*TORCH, "mujoco", "mujoco-warp"),
    "traffic": ("libsumo",),
    "workers": ARMS,
    "gpu": (*TORCH, "numba-cuda", "mujoco-warp", "warp-lang"),
}
ORIGIN = ("machine", "date", "commit", "versions")  # of a row
Rows = dict[str, Any]  # what was measured, by the name of the row
sys.path.insert(0, str(ROOT))  # a checkout is enough


def main(name: str, cases: Iterable[str], measure: Callable[[list[str], bool], Rows], apart: bool = False) -> None:
    """Measure the cases asked for; print JSON and a table; keep them in results.json unless --quick.

    Cases that are measured `apart`, one after the other, are kept one by one; others belong together.
    """
    cases = list(cases)
    parser = argparse.ArgumentParser(description=f"benchmark {name}; see tests/benchmarks/README.md")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--only", nargs="+", choices=cases, default=cases, help="these rows; the others stay")
    parser.add_argument("--machine", default=provenance.machine(), help="what to write down as the machine")
    parser.add_argument("--missing", action="store_true", help="not what this code has measured on this machine")
    chosen = parser.parse_args()
    origin = {"machine": chosen.machine, "code": provenance.code()}
    now = {"commit": provenance.commit(), "date": date.today().isoformat()}
    wanted = chosen.only
    if chosen.missing:
        known = {
            case: row for case, row in read().get(name, {}).items() if all(row.get(k) == v for k, v in origin.items())
        }
        left = [case for case in wanted if case not in known]
        whole = any(row["together"] == len(cases) for row in known.values())  # who is not among them could not be had
        wanted = left if apart else [] if whole or not left else wanted
    if not wanted:
        print(f"{name}: all is measured, by this code on this machine", file=sys.stderr)
        return
    rows: Rows = {}
    for together in [[case] for case in wanted] if apart else [wanted]:
        found = measure(together, chosen.quick)
        for row in found.values():
            row.setdefault("load", round(os.getloadavg()[0], 1))
            row |= origin | now | {"versions": provenance.versions(BENCHMARKS[name]), "together": len(together)}
        rows |= found
        if not chosen.quick:
            save(name, cases, found)
    print(json.dumps(rows, indent=1))
    print(importlib.import_module(name).markdown(rows))


def read() -> dict[str, Rows]:
    """Everything that was measured: benchmark -> its rows."""
    path = FOLDER / "results.json"
    results: dict[str, Rows] = json.loads(path.read_text()) if path.exists() else {}
    return results


def save(name: str, cases: Sequence[str], rows: Rows) -> None:
    """Put the rows into results.json, in the order of `cases`, and write results.md; each file at once, or not."""
    results = read()
    merged = {**results.get(name, {}), **rows}
    results[name] = {case: merged[case] for case in cases if case in merged}
    write("results.json", json.dumps({k: results[k] for k in BENCHMARKS if k in results}, indent=1) + "\n")
    write("results.md", markdown(results))


def write(name: str, text: str) -> None:
    """That file, by one rename."""
    beside = FOLDER / f".{name}.{os.getpid()}"
    beside.write_text(text)
    beside.replace(FOLDER / name)


def markdown(results: dict[str, Rows]) -> str:
    """The content of results.md."""
    parts = [HEAD, contents(results)]
    for name in BENCHMARKS:
        if rows := results.get(name):
            told = importlib.import_module(name).markdown(rows)
            parts.append(f"## {name}\n\n{told}\n\n{origins(name, rows)}")
    return "\n\n".join(parts) + "\n"


HEAD = """# Measured

`make bench` writes this page from `results.json`, which has every seed; nothing here is written by hand.
[How each was measured](README.md), and what to keep in mind.
[What the documents say of it](../../docs/results.md), and what was measured by hand.

Under each table: where its rows come from. A commit with a plus sign had changes that were not committed.
A dash: not written down then. CPU times of different machines do not compare."""


def contents(results: dict[str, Rows]) -> str:
    """Each benchmark with how many rows it has, and when they were measured."""
    lines = []
    for name in BENCHMARKS:
        rows = results.get(name, {})
        dates = sorted({row["date"] for row in rows.values()})
        when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "not yet"
        lines.append([f"[{name}](#{name})" if rows else name, f"`{command(name)}`", when, str(len(rows) or "–")])
    return table(["benchmark", "command", "measured", "rows"], lines, 3)


def command(name: str) -> str:
    """What measures a benchmark."""
    return f"python tests/benchmarks/{name}.py"


def origins(name: str, rows: Rows) -> str:
    """A line for the rows that were measured at one time: with what, and where."""
    groups: dict[str, list[str]] = {}
    for case, row in rows.items():
        groups.setdefault(json.dumps([row.get(key) for key in ORIGIN]), []).append(case)
    lines = []
    for origin, cases in groups.items():
        machine, day, commit, versions = json.loads(origin)
        loads = sorted(rows[case]["load"] for case in cases if "load" in rows[case])
        if loads:
            machine += f"; load {' to '.join(dict.fromkeys((f'{loads[0]:.1f}', f'{loads[-1]:.1f}')))}"
        every = len(groups) == 1
        told = ", ".join(f"{package} {version}" for package, version in (versions or {}).items()) or "–"
        how = f"`{command(name)}{'' if every else ' --only ROW ...'}`"
        lines.append(["all" if every else "; ".join(cases), how, machine, day, commit or "–", told])
    return table(["rows", "command", "machine", "date", "commit", "versions"], lines, 6)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A markdown table; the first `texts` columns are text, the others numbers."""
    lines = [head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    write("results.md", markdown(read()))

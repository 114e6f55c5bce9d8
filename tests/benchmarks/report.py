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

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
BENCHMARKS = (
    "simulators",
    "training",
    "off_policy",
    "pitch",
    "football",
    "driving",
    "transfer",
    "tracking",
    "foundation",
    "recipes",
    "adaptation",
    "specialists",
    "microcontroller",
    "ros2",
    "crazyflie",
    "control_loop",
    "guards",
    "arm",
    "manipulation",
    "steering",
    "sampling",
    "words",
)
Rows = dict[str, Any]  # what was measured, by the name of the row
sys.path.insert(0, str(ROOT))  # a checkout is enough


def main(name: str, cases: Iterable[str], measure: Callable[[list[str], bool], Rows]) -> None:
    """Measure the cases asked for; print JSON and a table; keep them in results.json unless --quick."""
    cases = list(cases)
    parser = argparse.ArgumentParser(description=f"benchmark {name}; see tests/benchmarks/README.md")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--only", nargs="+", choices=cases, default=cases, help="these rows; the others stay")
    parser.add_argument("--machine", default=machine(), help="what to write down as the machine")
    chosen = parser.parse_args()
    rows = measure(chosen.only, chosen.quick)
    for row in rows.values():
        row |= {"machine": chosen.machine, "date": date.today().isoformat()}
    print(json.dumps(rows, indent=1))
    print(importlib.import_module(name).markdown(rows))
    if not chosen.quick:
        save(name, cases, rows)


def machine() -> str:
    """The processor in words."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GB"


def save(name: str, cases: Sequence[str], rows: Rows) -> None:
    """Put the rows into results.json, in the order of `cases`, and write results.md."""
    path = FOLDER / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    merged = {**results.get(name, {}), **rows}
    results[name] = {case: merged[case] for case in cases if case in merged}
    path.write_text(json.dumps({k: results[k] for k in BENCHMARKS if k in results}, indent=1) + "\n")
    (FOLDER / "results.md").write_text(markdown(results))


def markdown(results: dict[str, Rows]) -> str:
    """The content of results.md."""
    parts = ["# Measured\n\nWritten by `make bench`; how it was measured is in README.md."]
    for name in BENCHMARKS:
        if name in results:
            rows = results[name]
            where = "; ".join(sorted({f"{row['machine']}, {row['date']}" for row in rows.values()}))
            parts.append(f"## {name}\n\n{where}\n\n{importlib.import_module(name).markdown(rows)}")
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A markdown table; the first `texts` columns are text, the others numbers."""
    lines = [head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    (FOLDER / "results.md").write_text(markdown(json.loads((FOLDER / "results.json").read_text())))

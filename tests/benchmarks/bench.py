"""All benchmarks, one after the other: `make bench`.

    python tests/benchmarks/bench.py [--quick] [--only NAME ...] [--again] [--machine TEXT]

What this code has measured on this machine is not measured again, so it can be stopped and goes on where it was; code
that has changed is measured anew. One that fails does not hold up the others, and is named in the end.
"""

import argparse
import subprocess
import sys
import time

import provenance
import report

DRAWN = {"manipulation": "curves.py"}  # what is drawn of a benchmark's rows


def main() -> int:
    """1 if one failed."""
    names = list(report.BENCHMARKS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that they run; nothing is written")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--again", action="store_true", help="also what this code has measured on this machine")
    parser.add_argument("--machine", default=provenance.machine(), help="what to write down as the machine")
    chosen = parser.parse_args()
    words = ["--machine", chosen.machine]
    words += ["--quick"] if chosen.quick else [] if chosen.again else ["--missing"]
    failed = [name for name in names if name in chosen.only and not measured(name, words, chosen.quick)]
    if not chosen.quick:
        report.write("results.md", report.markdown(report.read()))
    for name in failed:
        print(f"FAILED {report.command(name)}")
    return 1 if failed else 0


def measured(name: str, words: list[str], quick: bool) -> bool:
    """Whether the benchmark came to its end; it keeps its rows itself."""
    began = time.monotonic()
    print(f"== {name}", flush=True)
    scripts = [[f"{name}.py", *words], *([[DRAWN[name]]] if name in DRAWN and not quick else [])]
    for script, *arguments in scripts:
        done = subprocess.run([sys.executable, str(report.FOLDER / script), *arguments], cwd=report.ROOT)
        if done.returncode:
            return False
    print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

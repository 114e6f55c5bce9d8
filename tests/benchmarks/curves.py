"""How fast learners improve on Meta-World's pick-place: manipulation.png, drawn from what manipulation.py measured.

    python tests/benchmarks/curves.py

Success of the last 100 training episodes, in which learners explore: what a policy file reaches is in the table.
"""

import json
from typing import Any

import matplotlib
import numpy as np
import report

LEARNERS = {
    "pick-place": "dsrl_na (preset=dsrl)",
    "pick-place, dsrl": "dsrl",
    "pick-place, expo": "expo",
    "pick-place, residual": "residual",
    "pick-place, wsrl": "wsrl, 300 demonstrations",
    "pick-place, rlpd": "rlpd",
}
AXES = ("environment steps", "CPU time, demonstrations and cloning included (s)")


def draw(rows: report.Rows) -> None:
    """A thin line per seed, a bold one for their median."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11.0, 4.2), constrained_layout=True, sharey=True)
    for number, (name, label) in enumerate(LEARNERS.items()):
        curves = [np.loadtxt(run["curve"]) for run in rows.get(name, {"runs": []})["runs"] if "curve" in run]
        if not curves:
            print(f"no curves of {name}: measure it first, python tests/benchmarks/manipulation.py --only {name!r}")
            continue
        for column, axis in enumerate(axes):
            for curve in curves:
                axis.plot(curve[:, column], 100.0 * curve[:, 2], color=f"C{number}", linewidth=0.6, alpha=0.5)
            x, y = median(curves, column)
            axis.plot(x, 100.0 * y, color=f"C{number}", linewidth=2.2, label=f"{label}; seeds: {len(curves)}")
    for axis, text in zip(axes, AXES, strict=True):
        axis.set(xlabel=text, ylim=(0.0, 100.0), xlim=(0.0, None))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("success of the last 100 training episodes, %")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(report.FOLDER / "manipulation.png", dpi=110)


def median(curves: list[Any], column: int) -> tuple[Any, Any]:
    """Of curves along that column, where all of them are."""
    x = np.linspace(max(c[0, column] for c in curves), min(c[-1, column] for c in curves), 60)
    return x, np.median([np.interp(x, c[:, column], c[:, 2]) for c in curves], axis=0)


if __name__ == "__main__":
    draw(json.loads((report.FOLDER / "results.json").read_text())["manipulation"])

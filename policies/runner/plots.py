"""What evaluation says of a policy beside its baselines: a table, and a plot with its learning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from policies.runner import report as reports
from policies.runner.report import BLUE, GREY, INK, ORANGE, Report, save, style, table

Rows = Sequence[dict[str, Any]]


def metrics(folder: Path) -> Rows:
    """The rows of a run's metrics.jsonl that tell a success rate and the time it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").is_file() else []
    return [row for row in map(json.loads, lines) if row.get("success") is not None and "cpu_seconds" in row]


def text(report: Report, baselines: Mapping[str, Report]) -> str:
    """The success of the policy and of its baselines, on the same episodes."""
    rows = [["on the same episodes", "success, %", "95 % interval"]]
    for name, one in {"this policy": report, **baselines}.items():
        low, high = one.success_ci
        rows.append([name, f"{100 * one.success:.1f}", f"{100 * low:.1f} .. {100 * high:.1f}"])
    return table(rows)


def beside(before: list[Any], after: list[Any]) -> list[Any]:
    """Pictures (scenes, height, width, 3) per moment, half of the scenes before and the same ones after."""
    if not (before and after):
        return after
    half = len(after[0]) // 2 or 1
    moments = range(max(len(before), len(after)))
    pairs = ((before[min(k, len(before) - 1)], after[min(k, len(after) - 1)]) for k in moments)
    return [np.concatenate([a[:half], b[:half]]) for a, b in pairs]


def drawn(report: Report, path: str, baselines: Mapping[str, Report] | None = None, learning: Rows = ()) -> str:
    """A vehicle's flights; of other robots, success beside the baselines. Returns the path."""
    if report.vehicle is not None:
        return reports.plot(report, path)
    return plot(report, path, baselines or {}, learning)


def plot(report: Report, path: str, baselines: Mapping[str, Report], learning: Rows) -> str:
    """Success in training over environment steps and CPU time, and after it, beside the baselines. Returns the path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count = 3 if learning else 1
    figure, axes = pyplot.subplots(1, count, figsize=(4.5 * count, 4.0), constrained_layout=True, squeeze=False)
    along = (("env_steps", "environment steps"), ("cpu_seconds", "CPU time (s)"))
    for axis, (key, label) in zip(axes[0], along, strict=False):
        if learning:
            axis.plot([r[key] for r in learning], [100.0 * r["success"] for r in learning], color=BLUE, linewidth=2.0)
            for one in baselines.values():
                axis.axhline(100.0 * one.success, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
            axis.set_ylim(0.0, 100.0)
            style(axis, "success of the last 100 training episodes, %", label, "")
    shown = {**baselines, "this policy": report}
    heights = np.array([100.0 * one.success for one in shown.values()])
    ends = 100.0 * np.array([one.success_ci for one in shown.values()])
    colours = [GREY] * len(baselines) + [ORANGE]
    last = axes[0][-1]
    last.bar(range(len(shown)), heights, color=colours, width=0.6)
    errors = np.abs(ends - heights[:, None]).T
    last.errorbar(range(len(shown)), heights, yerr=errors, fmt="none", ecolor=INK, capsize=4, linewidth=1.2)
    last.set_xticks(range(len(shown)), list(shown), fontsize=8)
    last.set_ylim(0.0, 100.0)
    style(last, f"success on {report.episodes} unseen episodes, %", "", "")
    figure.suptitle(f"{report.task} · {report.robot}", fontsize=11, color=INK, x=0.01, ha="left")
    save(figure, path)
    pyplot.close(figure)
    return path

"""What evaluation says of a policy beside its baselines: a table, and a plot with its learning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.learning import SCORE
from policies.runner import report as reports
from policies.runner.report import BLUE, GREY, INK, ORANGE, Report, save, style, table

if TYPE_CHECKING:
    from policies.reports.gaze import Gaze
    from policies.reports.league import League

Rows = Sequence[dict[str, Any]]
BINS = 40  # of the time of an episode
DRAWN = 3  # episodes whose camera is drawn


def metrics(folder: Path) -> Rows:
    """The rows of a run's metrics.jsonl that tell a success rate, or another score, and the time it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").is_file() else []
    rows = [row for row in map(json.loads, lines) if "cpu_seconds" in row]
    return [row for row in rows if any(_tells(name, value) for name, value in row.items())]


def _tells(name: str, value: object) -> bool:
    return value is not None and (name == "success" or name.startswith(SCORE))


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
    if report.vehicle is not None and reports.aims(report):
        return reports.plot(report, path)
    return plot(report, path, baselines or {}, learning)


def _pyplot() -> Any:
    """Matplotlib, for files only."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _told(row: Mapping[str, Any], name: str) -> bool:
    """Whether an evaluation while training says the finite value of a score."""
    value = row.get(SCORE + name)
    return value is not None and bool(np.isfinite(value))


def curve(points: int) -> dict[str, Any]:
    """How a curve through so many points is drawn; few are shown themselves: of one there is no line."""
    return {"color": BLUE, "linewidth": 2.0, "marker": "o" if points < 10 else ""}


def plot(report: Report, path: str, baselines: Mapping[str, Report], learning: Rows) -> str:
    """Success in training over environment steps and CPU time, and after it, beside the baselines. Returns the path.

    Below it the task's other scores over environment steps, where training measured them.
    """
    pyplot = _pyplot()
    others = [name for name in report.score if any(_told(row, name) for row in learning)]
    tried = [row for row in learning if row.get("success") is not None]
    count, high = max(3 if tried else 1, len(others)), 2 if others else 1
    size = (4.5 * count, 4.0 * high)
    figure, axes = pyplot.subplots(high, count, figsize=size, constrained_layout=True, squeeze=False)
    for axis in (*axes[0][3 if tried else 1 :], *(axes[1][len(others) :] if others else ())):
        axis.set_axis_off()
    along = (("env_steps", "environment steps"), ("cpu_seconds", "CPU time (s)"))
    for axis, (key, label) in zip(axes[0], along, strict=False):
        if tried:
            axis.plot([r[key] for r in tried], [100.0 * r["success"] for r in tried], **curve(len(tried)))
            for one in baselines.values():
                axis.axhline(100.0 * one.success, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
            axis.set_ylim(0.0, 100.0)
            style(axis, "success while training, %", label, "")
    shown = {**baselines, "this policy": report}
    heights = np.array([100.0 * one.success for one in shown.values()])
    ends = 100.0 * np.array([one.success_ci for one in shown.values()])
    colours = [GREY] * len(baselines) + [ORANGE]
    for axis, name in zip(axes[-1], others, strict=False):
        rows = [row for row in learning if _told(row, name)]
        axis.plot([row["env_steps"] for row in rows], [row[SCORE + name] for row in rows], **curve(len(rows)))
        for median in (one.score[name].median for one in baselines.values() if name in one.score):
            axis.axhline(np.nan if median is None else median, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
        style(axis, f"{name} while training, median, {report.score[name].unit}", "environment steps", "")
    last = axes[0][2 if tried else 0]
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


def league(found: League, path: str) -> str:
    """Elo over the training beside the scripted players', and who wins how much against whom. Returns the path."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(12.5, 5.2), width_ratios=[1.25, 1], constrained_layout=True)
    learned = [k for k, steps in enumerate(found.steps) if steps is not None]
    scripted = [k for k, steps in enumerate(found.steps) if steps is None]
    elo, ages = found.elo, [steps for steps in found.steps if steps is not None]
    axes[0].plot(ages, elo[learned], color=BLUE, linewidth=2.0, marker="o", markersize=4, label="as it was")
    axes[0].plot(ages[-1:], elo[learned[-1:]], "*", color=ORANGE, markersize=15, label=found.names[learned[-1]])
    for k in scripted:
        axes[0].axhline(elo[k], color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
        axes[0].annotate(found.names[k], (0.0, elo[k]), (3, 3), xycoords=("axes fraction", "data"),
                         textcoords="offset points", fontsize=8, color=INK)  # fmt: skip
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    style(axes[0], "Elo (400 more: ten to one)", "environment steps", "")
    count = len(found.names)
    share = np.where(np.eye(count, dtype=bool), np.nan, 100.0 * found.won / found.games)
    shown = axes[1].imshow(share, cmap="RdBu_r", vmin=0.0, vmax=100.0)
    size = max(4.0, min(8.0, 120.0 / count))
    axes[1].set_xticks(range(count), found.names, rotation=90)
    axes[1].set_yticks(range(count), found.names)
    style(axes[1], f"points of the row against the column, %, {found.games} games each", "", "")
    axes[1].grid(visible=False)
    axes[1].tick_params(labelsize=size)
    figure.colorbar(shown, ax=axes[1], shrink=0.85, pad=0.02).outline.set_visible(False)
    figure.suptitle(f"{found.task} · {found.engine}", fontsize=11, color=INK, x=0.01, ha="left")
    save(figure, path)
    pyplot.close(figure)
    return path


def gaze(found: Gaze, path: str, learning: Rows = ()) -> str:
    """Active perception: what was in view, over an episode and over the training; how the camera turned."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(12.5, 7.6), constrained_layout=True)
    numbers, window = found.json(), max(1, len(found.look) // BINS)
    for shown, colour, label, name in (
        (found.shown, BLUE, "as it looked", "in_view"),
        (found.ahead, GREY, "had it looked ahead", "in_view_looking_ahead"),
    ):
        times, share = found.over_time(shown, window)
        axes[0, 0].plot(times, 100.0 * share, color=colour, linewidth=2.0)
        axes[0, 0].plot([], [], color=colour, label=f"{label}: {100.0 * numbers[name]:.0f} %")
    _share_axis(axes[0, 0])
    axes[0, 0].legend(fontsize=8, frameon=False, loc="best")
    style(axes[0, 0], f"{found.sought} in view, % of {found.look.shape[1]} episodes", "time in the episode (s)", "")
    rows = [row for row in learning if row.get(f"{found.sought}_in_view") is not None]
    if rows:
        seen = [100.0 * row[f"{found.sought}_in_view"] for row in rows]
        axes[0, 1].plot([row["env_steps"] for row in rows], seen, color=BLUE, linewidth=2.0, marker="o", markersize=4)
        _share_axis(axes[0, 1])
        style(axes[0, 1], f"{found.sought} in view while it learned, % of the time", "environment steps", "")
    else:
        _bearings(axes[0, 1], found)
    _looks(axes[1, 0], found)
    _speeds(axes[1, 1], found)
    figure.suptitle(
        f"{found.sought} in view {100.0 * numbers['in_view']:.0f} % of the time · the camera turns "
        f"{numbers['head_motion']:.2f} rad/s on average",
        fontsize=11, color=INK, x=0.01, ha="left",
    )  # fmt: skip
    save(figure, path)
    pyplot.close(figure)
    return path


def _share_axis(axes: Any) -> None:
    axes.set_ylim(0.0, 100.0)


def _bearings(axes: Any, found: Gaze) -> None:
    """How often what is sought was in which direction from the body, and how often from the camera."""
    off = (found.bearing - found.look + np.pi) % (2.0 * np.pi) - np.pi
    bins = np.linspace(-180.0, 180.0, 61)
    for angle, colour, label in ((off, BLUE, "from where it looks"), (found.bearing, GREY, "from ahead")):
        axes.hist(np.degrees(angle[found.counted]), bins, density=True, histtype="step", color=colour, label=label)
    for edge in (-0.5, 0.5):
        axes.axvline(edge * found.view, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_yticks([])
    axes.legend(fontsize=8, frameon=False, loc="best")
    style(axes, f"where the {found.sought} is; dashed: the picture's edges", "degrees to the left", "")


def _looks(axes: Any, found: Gaze) -> None:
    """The camera's angle in a few episodes, above each other, and that of what is sought where it is in view."""
    times = np.arange(len(found.look)) / found.rate_hz
    far = 1.1 * max(1.0, float(np.degrees(np.abs(found.look).max())))
    chosen = np.argsort(-found.counted.sum(axis=0), kind="stable")[:DRAWN]  # the longest
    for place, k in enumerate(chosen):
        counted, middle = found.counted[:, k], -2.0 * far * place
        look = np.where(counted, np.degrees(found.look[:, k]) + middle, np.nan)
        seen = np.where(counted & found.shown[:, k], np.degrees(found.bearing[:, k]) + middle, np.nan)
        axes.fill_between(times, look - found.view / 2.0, look + found.view / 2.0, color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(times, look, color=BLUE, linewidth=1.5, label=None if place else "camera")
        axes.plot(times, seen, ".", color=ORANGE, markersize=3, label=None if place else f"{found.sought}, in view")
        axes.axhline(middle, color=GREY, linewidth=0.6)
    axes.set_yticks([-2.0 * far * place for place in range(len(chosen))], ["ahead"] * len(chosen))
    axes.set_ylim(-2.0 * far * (len(chosen) - 0.5), far)
    axes.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)
    style(axes, f"where the camera looks, {len(chosen)} episodes (± {far / 1.1:.0f} degrees each)", "time (s)", "")


def _speeds(axes: Any, found: Gaze) -> None:
    """How fast the camera turned, while what is sought was in view and while it was not."""
    speed, shown = found.speed, found.shown[1:]
    bins = np.linspace(0.0, max(0.5, float(np.nanmax(speed, initial=0.0))), 41)
    for which, colour, label in ((shown, BLUE, "in view"), (~shown, ORANGE, "out of view")):
        some = speed[which & np.isfinite(speed)]
        if len(some):
            weights = np.full(len(some), 100.0 / len(some))
            name = f"{label}: {some.mean():.2f} rad/s on average"
            axes.hist(some, bins, weights=weights, histtype="stepfilled", color=colour, alpha=0.45, label=name)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    style(axes, f"head motion, % of the time with the {found.sought} ...", "rad/s", "")

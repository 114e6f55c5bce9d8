"""What an evaluation looks like: confidence intervals, text tables, a plot, a video."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.drivers.simulated import FPS, between_pictures
from deploy.safety.grid import where
from deploy.system.files import write_atomic
from deploy.trust.text import printable
from policies.models.networks import Array
from sim.robots.quadrotors import Quadrotor

if TYPE_CHECKING:
    from policies.reports.gaze import Gaze
    from sim.render.caption import Caption
    from sim.scenes.gates import Openings

Z = 1.96  # 95 %
DRAWN = 40  # trajectories in the plot
LINGERS = 0.4  # s that a film goes on after its world's end
FILMED, FLOWN = 8, 6  # robots in the video: in pictures, and vehicles in one picture
SEEING, LARGE = 4, (400, 400)  # of those whose eyes are in it, too; height and width of a picture then
INK, BLUE, ORANGE, GREY = "#1d2330", "#2f6fb2", "#d9772b", "#9aa3b2"


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a success rate (Wilson 1927): sound at 0 and 1 too."""
    share = successes / n
    centre = share + Z * Z / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return (low if successes else 0.0), (high if successes < n else 1.0)  # exact at the ends, despite rounding


def bootstrap(values: Array, draws: int = 1000) -> tuple[float, float]:
    """The 95 % interval of the mean by resampling (n,): fair to skewed errors, and the same on every call."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(values), np.full(len(values), 1.0 / len(values)), draws)
    low, high = np.percentile(counts @ values.astype(np.float64) / len(values), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Score:
    """One score over all episodes. None where an episode diverged and the number has no meaning."""

    mean: float | None
    ci: tuple[float, float] | None  # 95 % interval of the mean
    median: float | None
    p95: float | None
    unit: str

    @classmethod
    def of(cls, values: Array, unit: str) -> Score:
        """From one value per episode (n,)."""
        median, p95 = (float(v) for v in np.percentile(values.astype(np.float64), [50, 95], method="nearest"))
        finite = bool(np.isfinite(values).all())
        mean = float(values.mean(dtype=np.float64)) if finite else None
        numbers = [v if math.isfinite(v) else None for v in (median, p95)]
        return cls(mean, bootstrap(values) if finite else None, numbers[0], numbers[1], unit)


@dataclass(frozen=True)
class Report:
    """The outcome of an evaluation; `flight` has every signal of every episode (steps, n, k)."""

    policy: str
    task: str
    robot: str
    engine: str
    episodes: int
    seed: int
    success: float
    success_ci: tuple[float, float]
    score: dict[str, Score]
    conditions: dict[str, Any]  # what was otherwise than in nominal worlds, or than in training (task.NAME)
    interventions: dict[str, int]
    seconds: float
    rate_hz: float
    vehicle: Quadrotor | None  # what is filmed from its flight; None: from pictures
    flight: dict[str, Array]
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)  # (scenes, height, width, 3) each
    agents: int = 1  # in a world
    openings: Openings | None = None  # that the first episode's vehicles fly through
    gaze: Gaze | None = None  # of robots that turn a camera
    values: dict[str, Array] = field(default_factory=dict)  # each score of each episode (n,)

    def json(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        more = ("flight", "vehicle", "score", "pictures", "gaze", "values", "agents", "openings")
        plain = {k: v for k, v in vars(self).items() if k not in more}
        looked = {"gaze": self.gaze.json()} if self.gaze else {}
        return plain | {"score": {name: asdict(score) for name, score in self.score.items()}} | looked

    def recording(self, episode: int = 0) -> dict[str, Array]:
        """The signals and commands of one episode, name -> (steps, k): test vectors for an export."""
        return {name: value[:, episode] for name, value in self.flight.items()}


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns after the first; the first row is the heading."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def text(report: Report, worst: Mapping[str, Any] | None = None) -> str:
    """The table that `policies.evaluate` prints; with the `worst` cell of a grid beside the mean."""
    changed = ", ".join(f"{k}={v}" for k, v in report.conditions.items()) or "nominal"
    head = f"{printable(report.policy)}: {report.task}, {report.robot} on {report.engine}, "
    head += f"{report.episodes} episodes, {changed}"
    low, high = report.success_ci
    success = ["success", f"{100 * report.success:.1f}", f"{100 * low:.1f} .. {100 * high:.1f}", "", "", "%"]
    rows = [["score", "mean", "95 % interval", "median", "p95", "unit"], success]
    if worst is not None:
        low, high = worst["success_ci"]
        rows.append(
            ["worst cell", f"{100 * worst['success']:.1f}", f"{100 * low:.1f} .. {100 * high:.1f}", "", "", "%"]
        )
    for name, s in report.score.items():
        interval = "" if s.ci is None else f"{s.ci[0]:.4g} .. {s.ci[1]:.4g}"
        rows.append([name, _number(s.mean), interval, _number(s.median), _number(s.p95), s.unit])
    lines = [head, "", table(rows)]
    if worst is not None:
        lines.append(f"worst cell of the task's grid: {where(worst)}; {worst['episodes']} flights")
    lines += [f"guard: {reason} on {count} robot step(s)" for reason, count in report.interventions.items()]
    return "\n".join(lines)


def aims(report: Report) -> bool:
    """Whether its flights are to points in space."""
    return {"position", "target_position"} <= report.flight.keys()


def _positions(report: Report) -> tuple[Array, Array]:
    if not aims(report):
        raise ValueError(f"the task {report.task!r} has no position and target_position to show")
    return report.flight["position"], report.flight["target_position"]


def style(axes: Any, title: str, x: str, y: str) -> None:
    """A panel's title, labels and colours."""
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=8)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(True, color="#e6e9ef", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def _view(axes: Any, paths: Array, goals: Array, across: int, up: int) -> Any:
    """Trajectories (steps, n, 3) seen along one axis, coloured by time; the goal's path (or point) below them."""
    from matplotlib.collections import LineCollection

    steps = len(paths)
    order = np.linspace(0.0, 1.0, steps - 1)
    shown = None
    for k in range(paths.shape[1]):
        points = paths[:, k, [across, up]]
        lines = LineCollection(
            np.stack([points[:-1], points[1:]], axis=1).tolist(), cmap="viridis", linewidths=0.9, alpha=0.75
        )
        lines.set_array(order)
        shown = axes.add_collection(lines)
        axes.plot(*points[0], "o", color=INK, markersize=2.2, alpha=0.7)
    axes.plot(goals[..., across], goals[..., up], color=ORANGE, linewidth=2.0, zorder=1)
    axes.plot(goals[-1, :, across], goals[-1, :, up], "+", color=ORANGE, markersize=13, markeredgewidth=2.2, zorder=5)
    seen = np.concatenate([paths, goals], axis=1)[..., [across, up]].reshape(-1, 2)
    low, high = np.percentile(seen, [1, 99], axis=0)  # a few lost flights must not shrink the others to a dot
    half = max(0.6, 0.6 * float((high - low).max()))
    for limits, centre in zip((axes.set_xlim, axes.set_ylim), (low + high) / 2.0, strict=True):
        limits(centre - half, centre + half)
    axes.set_aspect("equal", adjustable="box")
    return shown


def _error_over_time(axes: Any, error: Array, rate_hz: float) -> None:
    """Percentiles over the episodes of the distance (steps, n), on a logarithmic scale in metres."""
    time = np.arange(len(error)) / rate_hz
    safe = np.maximum(np.nan_to_num(error, nan=1e3, posinf=1e3), 1e-4)
    p5, p25, p50, p75, p95 = np.percentile(safe, [5, 25, 50, 75, 95], axis=1)
    axes.fill_between(time, p5, p95, color=BLUE, alpha=0.15, linewidth=0, label="5 to 95 %")
    axes.fill_between(time, p25, p75, color=BLUE, alpha=0.30, linewidth=0, label="25 to 75 %")
    axes.plot(time, p50, color=BLUE, linewidth=2.0, label="median")
    axes.plot(time, safe.max(axis=1), color=GREY, linewidth=1.0, linestyle=(0, (4, 2)), label="worst")
    axes.set_yscale("log")
    axes.set_xlim(0.0, len(error) / rate_hz)
    axes.set_ylim(bottom=max(1e-4, 0.5 * float(p5[len(p5) // 2 :].min())))
    axes.legend(fontsize=8, frameon=False, loc="best")


def plot(report: Report, path: str) -> str:
    """Draw the flights from above, from the side, and the distance to the target over time. Returns the path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    position, target = _positions(report)
    error = np.linalg.norm(position.astype(np.float64) - target, axis=-1)
    moving = bool(np.ptp(target, axis=0).max() > 1e-6)
    chosen = np.flatnonzero(np.isfinite(error).all(axis=0) & (error.max(axis=0) < 20.0))[: 3 if moving else DRAWN]
    every = max(1, len(position) // 150)  # the eye sees no more
    paths, goals = position[::every, chosen], target[::every, chosen]
    if not moving:
        paths, goals = paths - goals, np.zeros_like(goals)
    figure, axes = pyplot.subplots(1, 3, figsize=(13.5, 4.4), width_ratios=[1, 1, 1.35], constrained_layout=True)
    about = "position" if moving else "from the target"
    if len(chosen):
        _view(axes[0], paths, goals, 0, 1)
        shown = _view(axes[1], paths, goals, 0, 2)
        bar = figure.colorbar(shown, ax=axes[1], shrink=0.85, pad=0.02, ticks=[0, 1])
        bar.ax.set_yticklabels(["start", "end"], fontsize=8)
        bar.outline.set_visible(False)
    style(axes[0], f"from above, {len(chosen)} flights", f"x {about} (m)", "y (m)")
    style(axes[1], "from the side", f"x {about} (m)", "z (m)")
    _error_over_time(axes[2], error, report.rate_hz)
    style(axes[2], "distance to the target", "time (s)", "m")
    low, high = report.success_ci
    figure.suptitle(
        f"{report.task} · {report.robot} · {report.engine} · {report.episodes} episodes · "
        f"success {100 * report.success:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
        fontsize=11,
        color=INK,
        x=0.01,
        ha="left",
    )
    save(figure, path)
    pyplot.close(figure)
    return path


def save(figure: Any, path: str) -> None:
    """A picture in the format that the name ends in, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", dpi=130)
    write_atomic(path, drawn.getvalue())


def mosaic(pictures: NDArray[np.uint8], columns: int = 0) -> NDArray[np.uint8]:
    """Pictures (n, height, width, 3) beside and below each other; what is missing in the last row is black.

    Without `columns` there are four of them, or two of at most four pictures.
    """
    n, height, width, _ = pictures.shape
    columns = columns or (2 if n <= 4 else 4)
    rows, columns = -(-n // columns), min(n, columns)
    padded = np.zeros((rows * columns, height, width, 3), np.uint8)
    padded[:n] = pictures
    return padded.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)


def _caption(report: Report) -> Caption:
    """Who flew what, under which conditions, and how well."""
    from sim.render.caption import Caption

    changed = ", ".join(f"{k}={v}" for k, v in report.conditions.items()) or "nominal"
    low, high = report.success_ci
    interval = f"({100 * low:.0f} to {100 * high:.0f})"
    told = [f"success {100 * report.success:.1f} % {interval} of {report.episodes} unseen episodes"]
    for name, score in list(report.score.items())[:1]:
        if score.median is not None:
            value, unit = (100.0 * score.median, "cm") if score.unit == "m" else (score.median, score.unit)
            told.append(f"{name.replace('_', ' ')} {value:.2g} {'' if unit == '1' else unit}".strip())
    robot = printable(report.robot, 40)
    return Caption(f"{report.task}: {robot} on {report.engine}, {changed}", ", ".join(told))


def video(report: Report, path: str) -> str:
    """An mp4 of the first few flights, with a caption. Returns the path."""
    from sim.render import offscreen
    from sim.render.caption import captioned

    caption = _caption(report)
    if report.pictures:
        shown = (mosaic(pictures) for pictures in report.pictures)
        return offscreen.write_film(
            path, captioned(shown, caption, report.rate_hz / between_pictures(report.rate_hz)), round(FPS)
        )
    offscreen.render_flight(path, **_flown(report), rate_hz=report.rate_hz, caption=caption)
    return path


def _flown(report: Report) -> dict[str, Any]:
    """What `render_flight` shows: all vehicles of the first world, or those of some worlds of their own."""
    flight, world = report.flight, report.openings
    steps, together = len(flight["position"]), report.agents > 1 or world is not None
    finite = np.asarray(np.isfinite(flight["position"]).all(axis=(0, 2)))
    chosen = np.flatnonzero(finite[: report.agents] if together else finite)[: report.agents if together else FLOWN]
    if not len(chosen):
        raise ValueError("no flight stayed finite: there is nothing to film")
    if together and "terminated" in flight:  # it ends with the first world's, and a moment more
        ends: Array = np.asarray(flight["success"] + flight["terminated"])[:, chosen]
        over = np.flatnonzero(ends.reshape(steps, -1).max(axis=1))
        steps = min(steps, int(over[0]) + 1 + round(LINGERS * report.rate_hz)) if len(over) else steps
    turn = "quaternion" if "quaternion" in flight else "rotation"
    names = {"position": "position", "quaternion": turn, "motors": "motor_command", "target": "target_position"}
    seen: dict[str, Any] = {key: flight[name][:steps, chosen] for key, name in names.items() if name in flight}
    if world is not None:
        due = world.due(flight["passed"][:steps, 0, 0])
        seen |= {"openings": world.corners, "due": due, "target": world.corners.mean(axis=1)[due][:, None]}
    if "pillars" in flight:  # as the first one knows them; radius 0: none
        told = flight["pillars"][0, 0].reshape(-1, 3) + flight["position"][0, 0] * (1.0, 1.0, 0.0)
        seen["pillars"] = told[told[:, 2] > 0.0].astype(np.float64)
    if not {"quaternion", "target"} <= seen.keys():
        raise ValueError(f"the task {report.task!r} has no position and target_position to show")
    return {**seen, "robot": report.vehicle, "together": together}

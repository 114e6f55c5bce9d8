"""What filmed robots were told in words, and what their policy made of it: below each picture of a film.

The policy file itself says how sure it was: its states "entropy" and "value" are what it thought as it planned last.
So nothing is worked out twice, and a file that does not say it is shown with its instruction alone. Below them is
what the task's world knows of the progress: its reward.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.drivers.simulated import Watch
from deploy.policy_file import PolicyFile
from deploy.teleop.instruction import KEY, tokeniser_of
from policies.models.networks import Array
from policies.runner.report import BLUE, GREY, INK, ORANGE
from sim.env import undecided

Pictures = NDArray[np.uint8]

THOUGHTS = {"entropy": "entropy, nats per token", "value": "value"}
REWARD = "reward"
COLOURS = {THOUGHTS["entropy"]: BLUE, THOUGHTS["value"]: INK, REWARD: ORANGE}
DPI = 100  # pixels per inch
TEXT, LINES, LETTER = 36, 2, 5.4  # pixels of the instruction, its lines at most, pixels of a letter, about
CURVE = 52  # pixels of a curve and what is around it:
TITLE, UNDER, LEFT, RIGHT = 16, 6, 22, 6
NOW = (154, 163, 178)  # the line between what was and what is to come
FAINT = 0.25  # of what is still to come


@dataclass
class Heard:
    """Of some robots, at every control step."""

    policy: PolicyFile
    rows: slice  # the robots that are filmed
    thoughts: list[dict[str, Array]] = field(default_factory=list)  # name -> (filmed,)

    def watching(self, watch: Watch | None) -> Watch:
        """What looks on besides `watch`, and keeps what is thought."""

        def step(draw: Callable[[int], Pictures], line: str, number: int) -> None:
            states = self.policy.states()
            self.thoughts.append({name: states[name][self.rows, 0] for name in THOUGHTS if name in states})
            if watch is not None:
                watch(draw, line, number)

        return step

    def below(
        self, pictures: Sequence[Pictures], flight: Mapping[str, Array], rate_hz: float, every: int
    ) -> list[Pictures]:
        """Pictures (filmed, height, width, 3), one in `every` steps of the flight, and what belongs to them."""
        signal, words = tokeniser_of(self.policy)
        curves = {THOUGHTS[name]: np.stack([each[name] for each in self.thoughts]) for name in self.thoughts[0]}
        steps, width = len(self.thoughts), pictures[0].shape[2]
        if REWARD in flight:
            curves[REWARD] = flight[REWARD][:, self.rows, 0]
            counted = undecided(flight)[:, self.rows]
            curves = {title: np.where(counted, curve, np.nan) for title, curve in curves.items()}
        told = [words.decode(row.astype(np.int64)) for row in flight[signal.name][0, self.rows]]
        limits = {
            title: (min(0.0, float(np.nanmin(curve))), float(np.nanmax(curve))) for title, curve in curves.items()
        }
        panels = np.stack(
            [
                _panel(said, {title: curve[:, k] for title, curve in curves.items()}, limits, steps / rate_hz, width)
                for k, said in enumerate(told)
            ]
        )
        return [
            np.concatenate([shown, _until(panels, min(1.0, place * every / steps))], axis=1)
            for place, shown in enumerate(pictures)
        ]


def heard(policy: object, filmed: int, agents: int) -> Heard | None:
    """Of the first worlds, of so many agents each, if their policy is told in words; else none."""
    if not filmed or not isinstance(policy, PolicyFile) or KEY not in policy.metadata:
        return None
    return Heard(policy, slice(0, filmed * agents, agents))


def _panel(
    told: str, curves: Mapping[str, Array], limits: Mapping[str, tuple[float, float]], seconds: float, width: int
) -> Pictures:
    """The whole of what is below one robot's pictures, (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = TEXT + CURVE * len(curves)
    figure = Figure((width / DPI, height / DPI), dpi=DPI)
    canvas: Any = FigureCanvasAgg(figure)
    lines = textwrap.wrap(f'"{told}"', int(width / LETTER), max_lines=LINES, placeholder=" ...")
    # A file's own vocabulary decoded it: what looks like a formula is none.
    how: dict[str, Any] = {"fontsize": 7.5, "color": INK, "va": "top", "linespacing": 1.3, "parse_math": False}
    figure.text(4 / width, 1.0 - 4 / height, "\n".join(lines), **how)
    across, up = 1.0 - (LEFT + RIGHT) / width, (CURVE - TITLE - UNDER) / height
    for place, (title, curve) in enumerate(curves.items(), 1):
        bottom = (height - TEXT - CURVE * place + UNDER) / height
        _draw(figure.add_axes((LEFT / width, bottom, across, up)), title, curve, *limits[title], seconds)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw(axes: Any, title: str, curve: Array, low: float, high: float, seconds: float) -> None:
    """One curve (steps,), NaN after its episode's end, on a scale that is the same for all robots."""
    times = (np.arange(len(curve)) + 1.0) * seconds / len(curve)
    last = int(np.flatnonzero(np.isfinite(curve))[-1])
    axes.plot(times, curve, color=COLOURS[title], linewidth=1.2)
    axes.plot(times[last], curve[last], "o", color=INK, markersize=3, clip_on=False)
    axes.set_xlim(0.0, seconds)
    axes.set_ylim(low, low + 1.05 * max(high - low, 1e-6))
    axes.set_xticks([])
    axes.set_yticks([low, high], [f"{low:.2g}", f"{high:.2g}"], fontsize=5, color=INK)
    axes.tick_params(length=1.5, pad=1)
    axes.set_title(title, loc="left", fontsize=6, color=INK, pad=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def _until(panels: Pictures, share: float) -> Pictures:
    """Panels (n, height, width, 3) of which this share of the time has passed; the rest of the curves is faint."""
    shown = panels.copy()
    now = LEFT + round(share * (panels.shape[2] - LEFT - RIGHT))
    for top in range(TEXT + TITLE, panels.shape[1], CURVE):
        later = shown[:, top : top + CURVE - TITLE, now:]
        later[:] = 255 - (FAINT * (255 - later.astype(np.float32))).astype(np.uint8)
        shown[:, top : top + CURVE - TITLE, now] = NOW
    return shown

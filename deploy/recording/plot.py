"""A picture of what a policy would have commanded in a flight, beside what was commanded; needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.recording.flight_log import Flight
from deploy.trust.text import printable
from sim.spec import Signal

MOST = 12  # elements of a command that are drawn
WIDE, HIGH = 5.0, 1.7  # inches, of one panel
WAS, WOULD = "#444444", "#c0392b"


def comparison(flight: Flight, computed: dict[str, NDArray[Any]], names: tuple[str, str], robot: int = 0) -> bytes:
    """A PNG: each element of the commands over time as it was wanted and would be, and beside it the difference.

    `computed`: "wanted.NAME" (steps, robots, *shape). `names` of the policy that flew and of the other. ValueError for
    a robot that there is not.
    """
    import matplotlib
    from matplotlib.figure import Figure

    steps, robots = next(iter(computed.values())).shape[:2]
    if not 0 <= robot < robots:
        raise ValueError(f"robot={robot}: the flight has {robots}, from 0")
    rows, left = _rows(flight.layout.commands)
    seconds = (flight.stamp[:steps] - flight.stamp[0]).astype(np.float64) * 1e-9
    with matplotlib.rc_context({"font.size": 8.0, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2 * WIDE, HIGH * len(rows) + 0.6), layout="constrained")
        axes = figure.subplots(len(rows), 2, sharex=True, squeeze=False)
        for (signal, k), (both, apart) in zip(rows, axes, strict=True):
            was, would = (
                np.asarray(values, np.float64).reshape(steps, robots, -1)[:, robot, k]
                for values in (flight.values(f"wanted.{signal.name}")[:steps], computed[f"wanted.{signal.name}"])
            )
            unit = "" if signal.unit == "1" else f" ({printable(signal.unit, 20)})"
            element = f"[{k}]" if signal.size > 1 else ""
            both.plot(seconds, was, color=WAS, lw=1.0, label=printable(names[0], 60))
            both.plot(seconds, would, color=WOULD, lw=1.0, label=printable(names[1], 60))
            both.set_ylabel(f"{printable(signal.name, 40)}{element}{unit}", parse_math=False)
            apart.plot(seconds, would - was, color=WOULD, lw=1.0)
            apart.axhline(0.0, color=WAS, lw=0.5)
        for side, title in zip(axes[0], ("wanted", "difference"), strict=True):
            more = f"; {left} more elements are not drawn" if left and title == "difference" else ""
            side.set_title(f"{title}{more}", loc="left")
        for side in axes[-1]:
            side.set_xlabel("time (s)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        legend = figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=110)
    return written.getvalue()


def _rows(commands: Sequence[Signal]) -> tuple[list[tuple[Signal, int]], int]:
    """Which elements are drawn, and how many are not."""
    every = [(signal, k) for signal in commands for k in range(signal.size)]
    return every[:MOST], max(0, len(every) - MOST)

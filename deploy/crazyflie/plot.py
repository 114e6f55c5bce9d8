"""python -m deploy.crazyflie.plot log=FILE.csv out=FILE.svg: what policy and PID controller on board asked for.

The log: deploy.run driver=crazyflie board_log=FILE.csv, or one of Bitcraze's client with the same variables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from deploy import cli
from deploy.crazyflie.board_log import Array, Board, read
from deploy.crazyflie.guard import FINE, FLYING, REASONS, STATES, TAKING_OVER
from deploy.system.files import replace_all

WIDTH, HEIGHT, LEFT, GAP = 900, 130, 60, 30  # of a rotor's picture, px
MOST = 1500  # points of a line: more are thinned out
POLICY, PID = "#c2410c", "#1d4ed8"
ROTORS = ("M1 front right", "M2 back right", "M3 back left", "M4 front left")


@dataclass
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the log (.csv)"})
    out: str = field(metadata={"help": "the picture to write (.svg)"})

    def __post_init__(self) -> None:
        if not self.out.endswith(".svg"):
            raise ValueError(f"out={self.out}: the name of the picture ends in .svg")


def stretches(board: Board) -> Iterator[tuple[int, float, float]]:
    """(state, when it began, when it ended), in s, one after the other."""
    for state, group in groupby(range(len(board.time)), key=lambda k: board.state[k]):
        packets = list(group)
        yield int(state), float(board.time[packets[0]]), float(board.time[packets[-1]])


def summary(board: Board) -> list[str]:
    """What the picture shows, in numbers."""
    lines = [f"{begin:7.2f} s to {end:7.2f} s  {STATES[state]}" for state, begin, end in stretches(board)]
    difference = board.force - board.pid
    both = np.isfinite(difference).all(axis=1) & (board.pid.max(axis=1) > 0.0) & (board.force.max(axis=1) > 0.0)
    if both.any():
        rms = np.sqrt((difference[both] ** 2).mean(axis=0))
        together = difference[both] - difference[both].mean(axis=1, keepdims=True)
        lines.append("policy less PID, rms per rotor: " + ", ".join(f"{value:.3f}" for value in rms))
        lines.append(f"without what all rotors have in common: {np.sqrt((together**2).mean()):.3f}")
    for reason in dict.fromkeys(board.reason[board.reason != FINE].tolist()):
        first = board.time[board.reason == reason][0]
        lines.append(f"{first:.2f} s: {REASONS[reason]}")
    return lines


def picture(board: Board) -> str:
    """Four pictures, one per rotor, with both lines; grey where the policy flies."""
    total = 4 * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + GAP}" height="{total}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    end = max(float(board.time[-1]), 1e-3)
    flown = [(b, e) for state, b, e in stretches(board) if state in (TAKING_OVER, FLYING)]
    for rotor in range(4):
        top = GAP + rotor * (HEIGHT + GAP)
        for began, ended in flown:
            x, width = LEFT + WIDTH * began / end, max(WIDTH * (ended - began) / end, 1.0)
            parts.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" fill="#e5e7eb"/>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#9ca3af"/>')
        for value in (0.0, 0.5, 1.0):
            y = top + HEIGHT * (1.0 - value)
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        parts.append(f'<text x="{LEFT}" y="{top - 6}">{ROTORS[rotor]}, force as a share of the largest</text>')
        for values, colour, name, offset in ((board.pid, PID, "PID", 0), (board.force, POLICY, "policy", 60)):
            parts.append(_line(board.time / end, values[:, rotor], top, colour))
            x = LEFT + WIDTH - 100 + offset
            parts.append(f'<text x="{x}" y="{top - 6}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{LEFT + WIDTH}" y="{total - 12}" text-anchor="end">{end:.1f} s</text></svg>')
    return "\n".join(parts) + "\n"


def _line(share: Array, values: Array, top: int, colour: str) -> str:
    """One line, with gaps where nothing is known."""
    step, parts = max(1, len(share) // MOST), []
    for known, group in groupby(range(0, len(share), step), key=lambda k: bool(np.isfinite(values[k]))):
        if known:
            points = ((LEFT + WIDTH * share[k], top + HEIGHT * (1.0 - min(max(values[k], 0.0), 1.0))) for k in group)
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
    return "\n".join(parts)


def main(argv: Sequence[str]) -> None:
    """Read, say, draw."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    board = read(config.log)
    print("\n".join(summary(board)))
    replace_all([(Path(config.out), picture(board).encode())])
    print(f"wrote {config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

"""How to learn: what algorithms share. Here: how settings change while they learn."""

import math

SCORE = "score_"  # in metrics, before the name of a task's score


def cosine(done: float, first: float, last: float) -> float:
    """Half a cosine from `first` to `last` while `done` goes from 0 to 1."""
    return last + 0.5 * (1.0 + math.cos(math.pi * done)) * (first - last)


def exponential(done: float, first: float, last: float) -> float:
    """From `first` to `last`, both positive, by equal factors while `done` goes from 0 to 1."""
    return float(first * (last / first) ** done)

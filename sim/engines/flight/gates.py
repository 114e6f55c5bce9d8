"""What is asked of many paths and vehicles among gates: how fast they may fly, and how far away frames are."""

from __future__ import annotations

import math

import numpy as np

from sim.engines.flight.rows import GRAVITY
from sim.engines.vector.blocks import inlined, kernel


@inlined
def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@kernel
def speeds(slope, bend, step, most, limit, highest, there, x, u):
    """See `sim.experts.time_optimal.fastest`, which this fills in: x (n, m) and u (n, m - 1).

    highest and there (m,): room, for the largest x of a point at which thrust suffices, and u then.
    """
    spare = GRAVITY * GRAVITY - most * most
    count = len(step) + 1
    for i in range(len(slope)):
        for k in range(count):
            c, b = bend[i, k], slope[i, k]
            cc, cb, bb, cg, bg = _dot(c, c), _dot(c, b), _dot(b, b), GRAVITY * c[2], GRAVITY * b[2]
            # |bend x + slope u + gravity|^2 <= most^2 has a solution u up to this x.
            q2, q1, q0 = max(cc * bb - cb * cb, 1e-12), cb * bg - bb * cg, bg * bg - bb * spare
            highest[k] = (q1 + math.sqrt(q1 * q1 + q2 * q0)) / q2
            there[k] = -(cb * highest[k] + bg) / bb
        reach = x[i]  # at first the largest x from which the next one's can be kept
        for k in range(count - 1, -1, -1):
            c, b = bend[i, k], slope[i, k]
            most_x = highest[k]
            if k < count - 1 and highest[k] + 2.0 * step[k] * there[k] > reach[k + 1]:
                wide = 2.0 * step[k]
                c2, c1, c0 = 0.0, 0.0, -most * most
                for j in range(3):
                    towards = c[j] - b[j] / wide
                    from_ = b[j] * reach[k + 1] / wide + (GRAVITY if j == 2 else 0.0)
                    c2, c1, c0 = c2 + towards * towards, c1 + towards * from_, c0 + from_ * from_
                most_x = max((math.sqrt(max(c1 * c1 - c2 * c0, 0.0)) - c1) / c2, 0.0)
            reach[k] = min(most_x, limit * limit / _dot(b, b))
        now = 0.0
        for k in range(count - 1):
            c, b = bend[i, k], slope[i, k]
            cc, cb, bb, cg, bg = _dot(c, c), _dot(c, b), _dot(b, b), GRAVITY * c[2], GRAVITY * b[2]
            root = (cb * now + bg) ** 2 - bb * (cc * now * now + 2.0 * cg * now + spare)
            more = (math.sqrt(max(root, 0.0)) - cb * now - bg) / bb
            following = min(max(now + 2.0 * step[k] * more, 1e-9), reach[k + 1])
            u[i, k] = (following - now) / (2.0 * step[k])
            x[i, k] = now
            now = following
        x[i, count - 1] = now


@inlined
def _to_bars(off, axes, size, bar, near):
    """m to an opening's bars, `bar` m thick, as `sim.scenes.gates.frame_distance`; `near` at least if so far."""
    depth = max(abs(_dot(off, axes[:, 0])) - 0.5 * bar, 0.0)
    if depth >= near:
        return depth
    left, up = abs(_dot(off, axes[:, 1])) - 0.5 * size[0], abs(_dot(off, axes[:, 2])) - 0.5 * size[1]
    inside, left, up = max(-max(left, up), 0.0), max(left - bar, 0.0), max(up - bar, 0.0)
    return math.sqrt(depth * depth + left * left + up * up + inside * inside)


@inlined
def _between(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@kernel
def touching(position, centre, axes, size, bar, near, found):
    """Fills in (n,): m^2, how far the points (n, m, 3) of paths are nearer to frames than `near`, squared, summed.

    Gates' centres (g, 3), axes (g, 3, 3) and openings (g, 2).
    """
    for i in range(len(position)):
        sum_ = 0.0
        for k in range(position.shape[1]):
            for g in range(len(centre)):
                sum_ += max(near - _to_bars(_between(position[i, k], centre[g]), axes[g], size[g], bar, near), 0.0) ** 2
        found[i] = sum_


@kernel
def clearances(position, track, gates, centre, axes, size, bar, found):
    """Fills in (n,): m from points (n, 3) to the nearest frame of their tracks (n,), or the ground.

    Of tracks: how many gates (tracks,), their centres (tracks, g, 3), axes (tracks, g, 3, 3) and openings.
    """
    for i in range(len(position)):
        t, near = track[i], position[i, 2]
        for g in range(gates[t]):
            near = min(near, _to_bars(_between(position[i], centre[t, g]), axes[t, g], size[t, g], bar, near))
        found[i] = near


@kernel
def follow(position, rows, track, first, last, samples, window, nearest):
    """Moves `nearest` (num,) of `rows` on, by less than `window`: to which of their tracks' samples they are nearest.

    Their positions (rows, 3), the track of every row, and of every track its first sample, and how many come after it.
    """
    for i in range(len(rows)):
        t, begin = track[rows[i]], nearest[rows[i]]
        best, least = begin, np.float32(np.inf)
        for k in range(begin, min(begin + window, last[t] + 1)):
            off = _between(samples[first[t] + k], position[i])
            away = _dot(off, off)
            if away < least:
                best, least = k, away
        nearest[rows[i]] = best

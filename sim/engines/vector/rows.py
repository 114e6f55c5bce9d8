"""What an environment computes for every row at a control step: commands, imperfect sensing, features, rewards.

Arrays are (rows, columns), and all a row needs is in its own, so that a batch costs one call instead of one per
operation and a single row little. The tables are those of `sim.engines.vector.tables`.
"""

from __future__ import annotations

import numpy as np

from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.streams import normal, uniform

SQUARE, NORM, LOG, ATTITUDE = 0, 1, 2, 3  # the shapes of costs
ZERO, ONE, TWO, THREE, QUARTER = (np.float32(x) for x in (0.0, 1.0, 2.0, 3.0, 0.25))


@inlined
def _within(value, low, high):
    """The value, or the limit that it exceeds; what is not a number stays that, so that it is noticed."""
    if value < low:
        return low
    return high if value > high else value


@kernel
def command(told, low, high, past, table, action, change, log):
    """Clip told (n, k) and remember it as an action in [-1, 1] in past (n, steps, k), the newest first.

    log (n, P + k) takes the first P columns of table (n, columns) and what was told. Then the columns from `action` on
    take the action, those from `change` on its difference from the one before.
    """
    width = told.shape[1]
    before = log.shape[1] - width
    for row in range(len(told)):
        for tap in range(past.shape[1] - 1, 0, -1):
            for k in range(width):
                past[row, tap, k] = past[row, tap - 1, k]
        for k in range(width):
            told[row, k] = _within(told[row, k], low[k], high[k])
            past[row, 0, k] = TWO * (told[row, k] - low[k]) / (high[k] - low[k]) - ONE
            table[row, action + k] = past[row, 0, k]
            table[row, change + k] = past[row, 0, k] - past[row, 1, k]
    for row in range(len(log)):
        for k in range(before):
            log[row, k] = table[row, k]
        for k in range(width):
            log[row, before + k] = told[row, k]


@kernel
def spread(action, low, half, past, command):
    """Commands (n, k) for actions (n, k), clipped to [-1, 1] and remembered in past (n, steps, k), newest first."""
    for row in range(len(action)):
        for tap in range(past.shape[1] - 1, 0, -1):
            for k in range(past.shape[2]):
                past[row, tap, k] = past[row, tap - 1, k]
        for k in range(action.shape[1]):
            told = _within(action[row, k], -ONE, ONE)
            command[row, k] = low[k] + (told + ONE) * half[k]
            if past.shape[1]:
                past[row, 0, k] = told


@kernel
def tally(reward, success, terminated, limit, agents, length, gained, truncated):
    """Count a step into length and gained (n,); truncated (n,): whose episode ends now without being lost.

    It ends with success, when lost, or after `limit` steps, for all `agents` rows of a world when it does for one.
    """
    for first in range(0, len(reward), agents):
        over = False
        for row in range(first, first + agents):
            length[row] += 1
            gained[row] += reward[row]
            over |= success[row] or terminated[row] or length[row] >= limit
        for row in range(first, first + agents):
            truncated[row] = over and not terminated[row]


@kernel
def begin(rows, late, values, owner, std, own, delay, weights, past, bias, sent, stream):
    """Begin these rows with latency late (count, signals), in control steps, as if values (count, P or more) had held.

    `weights` blend linearly between control steps; `own` (count,) are the rows' streams of random numbers.
    """
    taps = past.shape[1]
    for index in range(len(rows)):
        row, state = rows[index], own[index]
        delay[row] = late[index]
        for k in range(len(owner)):
            for tap in range(taps):
                weights[row, tap, k] = max(ZERO, ONE - abs(late[index, owner[k]] - tap))
                past[row, tap, k] = values[index, k]
        for k in range(len(std)):
            drawn, state = normal(state)
            bias[row, k] = std[k] * np.float32(drawn)
        sent[row], stream[row] = 0, state


@kernel
def send(values, rows, owner, weights, past, noise, bias, dropout, last, sent, stream, out):
    """What arrives of values (count, P or more), into out (n, P), of these rows."""
    taps, width = past.shape[1], len(owner)
    noisy, biased, lossy = len(noise) > 0, bias.shape[1] > 0, len(dropout) > 0
    for index in range(len(rows)):
        row = rows[index]
        state = stream[row]
        for k in range(width):
            out[row, k] = values[index, k]
        if taps > 1:
            for tap in range(taps - 1, 0, -1):
                for k in range(width):
                    past[row, tap, k] = past[row, tap - 1, k]
            for k in range(width):
                past[row, 0, k] = values[index, k]
                out[row, k] *= weights[row, 0, k]
            for tap in range(1, taps):
                for k in range(width):
                    out[row, k] += weights[row, tap, k] * past[row, tap, k]
        if noisy:
            for k in range(width):
                if noise[k] > ZERO:
                    drawn, state = normal(state)
                    out[row, k] += noise[k] * np.float32(drawn)
        if biased:
            for k in range(width):
                out[row, k] += bias[row, k]
        if lossy:
            lost, signal = False, -1
            for k in range(width):
                if owner[k] != signal:
                    signal = owner[k]
                    chance, state = uniform(state)
                    lost = chance < dropout[signal] and sent[row] > 0
                if lost:
                    out[row, k] = last[row, k]
                last[row, k] = out[row, k]
        stream[row] = state
        sent[row] += 1


@kernel
def features(places, numbers, values, out):
    """What networks see, out (n, features), of values (n, columns); zero for what is not finite."""
    for row in range(len(values)):
        for k in range(len(places)):
            x = values[row, places[k, 0]]
            if places[k, 1] >= 0:
                x -= values[row, places[k, 1]]
            if numbers[k, 1] > ZERO:
                z = x * numbers[k, 1]
                x /= np.sqrt(ONE + z * z)
            out[row, k] = numbers[k, 0] * x if np.isfinite(x) else ZERO


@inlined
def _square(values, row, place, offset):
    """The sum of (signal - minus - offset)^2 over its columns."""
    first, width, minus, total = place[0], place[1], place[2], ZERO
    for k in range(width):
        z = values[row, first + k] - offset
        if minus >= 0:
            z -= values[row, minus + k]
        total += z * z
    return total


@kernel
def judge(bounds, limits, costs, numbers, values, seen, bonus, steps, limit, lost, terms, reward):
    """Who is lost (n,), each unweighted cost, terms (costs + 1, n), and the reward (n,), `bonus` - the costs.

    Of values (n, columns), the first `seen` of which must be finite. The last term is 1 where a row is not lost.
    Rewards that are not finite count as zero. Returns whether some row that is not lost has made `limit` steps.
    """
    last, ended = len(costs), False
    for row in range(len(values)):
        gone = False
        for k in range(seen):
            gone |= not np.isfinite(values[row, k])
        for k in range(len(bounds)):
            gone |= _square(values, row, bounds[k], ZERO) > limits[k, 0]
        lost[row] = gone
        ended |= steps[row] >= limit and not gone
        terms[last, row] = ZERO if gone else ONE
        total = ZERO if gone else bonus
        for term in range(last):
            first, shape = costs[term, 0], costs[term, 3]
            if shape == ATTITUDE:
                cost = QUARTER * (THREE - values[row, first] - values[row, first + 4] - values[row, first + 8])
            else:
                cost = _square(values, row, costs[term], numbers[term, 2])
                if shape != SQUARE:
                    cost = np.sqrt(cost + numbers[term, 1])
                if shape == LOG:
                    cost = np.log1p(cost)
            terms[term, row] = cost
            total -= numbers[term, 0] * cost
        reward[row] = total if np.isfinite(total) else ZERO
    return ended

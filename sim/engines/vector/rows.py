"""What an environment computes for every row at a control step: commands, imperfect sensing, features, rewards.

Arrays are (blocks, columns, LANES), so that a batch costs one call, and sixteen rows one instruction; what comes from
outside or goes there is (n, columns). The tables are those of `sim.engines.vector.tables`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.simd import ALL, LANES, select
from sim.engines.vector.streams import normal, normals, uniform

SQUARE, NORM, LOG, ATTITUDE = 0, 1, 2, 3  # the shapes of costs
ZERO, HALF, ONE, TWO, THREE, QUARTER = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0, 3.0, 0.25))
LARGEST = np.finfo(np.float32).max  # finite


@inlined
def _within(value, low, high):
    """The value, or the limit that it exceeds; what is not a number stays that, so that it is noticed."""
    if value < low:
        return low
    return high if value > high else value


@kernel
def tell(values, rows, first, table):
    """The columns from `first` on of these rows (count,) of table from values (count, k)."""
    for index in range(len(rows)):
        place, lane = rows[index] // LANES, rows[index] % LANES
        for k in range(values.shape[1]):
            table[place, first + k, lane] = values[index, k]


@kernel
def take(lanes, values):
    """values (n, k) from lanes (blocks, k, LANES)."""
    for place in range(len(lanes)):
        for row in range(place * LANES, min(place * LANES + LANES, len(values))):
            for k in range(values.shape[1]):
                values[row, k] = lanes[place, k, row % LANES]


@kernel
def command(told, low, high, past, table, action, change, log):
    """Clip told (n, k) and remember it as an action in [-1, 1] in the k first rows of past, the newest.

    log takes the first rows of the table, and then, in its last k, what was told. The table's columns from `action` on
    take the action, those from `change` on its difference from the one before.
    """
    width, before = told.shape[1], log.shape[1] - told.shape[1]
    for place in range(len(table)):
        first = place * LANES
        lanes = min(LANES, len(told) - first)
        t, p = block(table, place, table.shape[1]), block(past, place, past.shape[1])
        o = block(log, place, log.shape[1])
        for k in range(before):
            o[k, ALL] = t[k, ALL]
        for k in range(width):
            for lane in range(lanes):
                o[before + k, lane] = _within(told[first + lane, k], low[k], high[k])
        for k in range(past.shape[1] - 1, width - 1, -1):
            p[k, ALL] = p[k - width, ALL]
        for k in range(width):
            p[k, ALL] = TWO * (o[before + k, ALL] - low[k]) / (high[k] - low[k]) - ONE
            t[action + k, ALL] = p[k, ALL]
            t[change + k, ALL] = p[k, ALL] - p[width + k, ALL]


@kernel
def start(rows, initial, delay, columns, past, table):
    """Begin these rows (count,) with the action initial (k,): in past, and in table.

    `columns` are the first ones of delay (n, commands), of the action, and of its change.
    """
    width = len(initial)
    for row in rows:
        place, lane = row // LANES, row % LANES
        for k in range(delay.shape[1]):
            table[place, columns[0] + k, lane] = delay[row, k]
        for k in range(past.shape[1]):
            past[place, k, lane] = initial[k % width]
        for k in range(width):
            table[place, columns[1] + k, lane] = initial[k]
            table[place, columns[2] + k, lane] = ZERO


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
    """Begin these rows with latency late (count, signals), in control steps, as if the first values had held.

    `weights` blend linearly between control steps; `own` (count,) are the rows' streams of random numbers. Returns the
    longest latency.
    """
    width, longest = len(owner), ZERO
    taps = past.shape[1] // width
    for index in range(len(rows)):
        row, state = rows[index], own[index]
        place, lane = row // LANES, row % LANES
        for k in range(delay.shape[1]):
            delay[row, k] = late[index, k]
            longest = max(longest, delay[row, k])
        for k in range(width):
            for tap in range(taps):
                weight = max(ZERO, ONE - abs(late[index, owner[k]] - tap))
                weights[place, tap * width + k, lane] = weight
                past[place, tap * width + k, lane] = values[place, k, lane]
        for k in range(len(std)):
            drawn, state = normal(state)
            bias[place, k, lane] = std[k] * np.float32(drawn)
        sent[row], stream[row] = 0, state
    return longest


@inlined
def _chance(row, lane, quantiles, noisy, dropout, sent, stream, added, lost):
    """What chance decides of a row at this control step: added (P, LANES), and which signals are lost."""
    state = normals(stream[row], quantiles, noisy, added, lane)
    for k in range(len(dropout)):
        drawn, state = uniform(state)
        lost[k, lane] = ONE if drawn < dropout[k] and sent[row] > 0 else ZERO
    stream[row] = state
    sent[row] += 1


@inlined
def _deliver(values, first, owner, weights, past, noise, added, bias, dropout, lost, last, out, lane):
    """What arrives of values from the row `first` on; everything is (rows, LANES)."""
    width = len(owner)
    taps = weights.shape[0] // width
    for k in range(width):
        x = values[first + k, lane]
        if taps > 1:
            for tap in range(taps - 1, 0, -1):
                past[tap * width + k, lane] = past[(tap - 1) * width + k, lane]
            past[k, lane] = x
            x = x * weights[k, lane]
            for tap in range(1, taps):
                x = x + weights[tap * width + k, lane] * past[tap * width + k, lane]
        if len(noise):
            x = x + noise[k] * added[k, lane]
        if len(bias):
            x = x + bias[k, lane]
        if len(dropout):
            x = select(lost[owner[k], lane] > HALF, last[k, lane], x)
            last[k, lane] = x
        out[k, lane] = x


@kernel
def send(values, first, owner, weights, past, quantiles, noisy, noise, bias, dropout, last, sent, stream, out):
    """What arrives in out of values from column `first` on, of all rows."""
    added, lost = np.zeros((len(owner), LANES), np.float32), np.zeros((len(dropout), LANES), np.float32)
    for place in range(len(out)):
        if len(noise) or len(dropout):
            for lane in range(min(LANES, len(sent) - place * LANES)):
                _chance(place * LANES + lane, lane, quantiles, noisy, dropout, sent, stream, added, lost)
        v, w = block(values, place, values.shape[1]), block(weights, place, weights.shape[1])
        p, b = block(past, place, past.shape[1]), block(bias, place, bias.shape[1])
        o, held = block(out, place, out.shape[1]), block(last, place, last.shape[1])
        _deliver(v, first, owner, w, p, noise, added, b, dropout, lost, held, o, ALL)


@kernel
def send_rows(
    rows, values, first, owner, weights, past, quantiles, noisy, noise, bias, dropout, last, sent, stream, out
):
    """The same of these rows (count,)."""
    added, lost = np.zeros((len(owner), LANES), np.float32), np.zeros((len(dropout), LANES), np.float32)
    for row in rows:
        place, lane = row // LANES, row % LANES
        _chance(row, lane, quantiles, noisy, dropout, sent, stream, added, lost)
        v, w = block(values, place, values.shape[1]), block(weights, place, weights.shape[1])
        p, b = block(past, place, past.shape[1]), block(bias, place, bias.shape[1])
        o, held = block(out, place, out.shape[1]), block(last, place, last.shape[1])
        _deliver(v, first, owner, w, p, noise, added, b, dropout, lost, held, o, lane)


@inlined
def _features(places, numbers, seen, out):
    """What networks see of seen (P, LANES), out (features, LANES): sixteen rows."""
    for run in range(len(places)):
        source, minus, first, count = places[run, 0], places[run, 1], places[run, 2], places[run, 3]
        scale, squash = numbers[run, 0], numbers[run, 1]
        if source < len(seen):
            for k in range(count):
                x = seen[source + k, ALL]
                if minus >= 0:
                    x = x - seen[minus + k, ALL]
                if squash > ZERO:
                    z = x * squash
                    x = x / math.sqrt(ONE + z * z)
                x = scale * x
                out[first + k, ALL] = select(abs(x) <= LARGEST, x, ZERO)


@inlined
def _row(places, numbers, made, width, past, row, out, index):
    """A row's features, a row of out (n, features): those made (features, LANES), and those of past (n, columns)."""
    for k in range(len(made)):
        out[index, k] = made[k, row % LANES]
    for run in range(len(places)):
        source, first, count = places[run, 0] - width, places[run, 2], places[run, 3]
        if source >= 0:
            for k in range(count):
                x = numbers[run, 0] * past[row, source + k]
                out[index, first + k] = x if np.isfinite(x) else ZERO


@kernel
def features(places, numbers, seen, past, out):
    """What networks see, out (n, features), of what was sensed and past (n, columns); zero for what is not finite."""
    width = seen.shape[1]
    made = np.zeros((out.shape[1], LANES), np.float32)
    for place in range(len(seen)):
        _features(places, numbers, block(seen, place, width), made)
        for row in range(place * LANES, min(place * LANES + LANES, len(out))):
            _row(places, numbers, made, width, past, row, out, row)


@kernel
def features_of(rows, places, numbers, seen, past, out):
    """The same of these rows (count,), out (count, features)."""
    width = seen.shape[1]
    made = np.zeros((out.shape[1], LANES), np.float32)
    for index in range(len(rows)):
        row = rows[index]
        _features(places, numbers, block(seen, row // LANES, width), made)
        _row(places, numbers, made, width, past, row, out, index)


@inlined
def _apart(values, first, minus, offset):
    """One column of signal - minus - offset."""
    z = values[first, ALL] - offset
    if minus >= 0:
        z = z - values[minus, ALL]
    return z


@inlined
def _square(values, places, index, offset):
    """The sum of (signal - minus - offset)^2 over the columns of one cost or bound."""
    first, width, minus = places[index, 0], places[index, 1], places[index, 2]
    z = _apart(values, first, minus, offset)
    total = z * z
    for k in range(1, width):
        z = _apart(values, first + k, minus + k if minus >= 0 else minus, offset)
        total = total + z * z
    return total


@kernel
def judge(bounds, limits, costs, numbers, table, seen, bonus, steps, limit, lost, terms, reward):
    """Who is lost (n,), each unweighted cost, terms (costs + 1, n), and the reward (n,), `bonus` - the costs.

    Of the table, the first `seen` columns of which must be finite. The last term is 1 where a row is not lost.
    Rewards that are not finite count as zero. Returns whether some row that is not lost has made `limit` steps.
    """
    last, ended = len(costs), False
    kept: Any = np.zeros((last + 2, LANES), np.float32)
    for place in range(len(table)):
        t = block(table, place, table.shape[1])
        kept[last, ALL] = ONE
        alive = kept[last, ALL]
        for k in range(seen):
            alive = select(abs(t[k, ALL]) <= LARGEST, alive, ZERO)
        for k in range(len(bounds)):
            alive = select(_square(t, bounds, k, ZERO) > limits[k, 0], ZERO, alive)
        kept[last, ALL] = alive
        total = bonus * alive
        for term in range(last):
            first, shape = costs[term, 0], costs[term, 3]
            if shape == ATTITUDE:
                cost = QUARTER * (THREE - t[first, ALL] - t[first + 4, ALL] - t[first + 8, ALL])
            else:
                cost = _square(t, costs, term, numbers[term, 2])
                if shape != SQUARE:
                    cost = math.sqrt(cost + numbers[term, 1])
            kept[term, ALL] = cost
            if shape == LOG:
                for lane in range(LANES):
                    kept[term, lane] = np.log1p(kept[term, lane])
            total = total - numbers[term, 0] * kept[term, ALL]
        kept[last + 1, ALL] = select(abs(total) <= LARGEST, total, ZERO)
        for lane in range(min(LANES, len(lost) - place * LANES)):
            row = place * LANES + lane
            lost[row] = kept[last, lane] < HALF
            ended |= steps[row] >= limit and not lost[row]
            reward[row] = kept[last + 1, lane]
            for term in range(last + 1):
                terms[term, row] = kept[term, lane]
    return ended

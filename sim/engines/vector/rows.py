"""What an environment computes for every row at a control step: commands, features, rewards.

Arrays are (blocks, columns, LANES), so that a batch costs one call, and sixteen rows one instruction; what comes from
outside or goes there is (n, columns). The tables are those of `sim.engines.vector.tables`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.channels import Channel
from sim.engines.vector.simd import ALL, LANES, select
from sim.randomize import Array

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


class Orders(NamedTuple):
    """What becomes of commands: limits (k,), the last actions, newest first, and their columns in the table."""

    low: Array
    high: Array
    past: Array  # (blocks, steps * k, LANES), in [-1, 1]
    action: int
    change: int  # of the difference from the one before


@inlined
def noted(told, place, table, log):
    """Write one block of told (n, k) into the last k rows of log, before them the first rows of the table."""
    before, first = len(log) - told.shape[1], place * LANES
    for k in range(before):
        log[k, ALL] = table[k, ALL]
    for k in range(told.shape[1]):
        for lane in range(min(LANES, len(told) - first)):
            log[before + k, lane] = told[first + lane, k]


@inlined
def ordered(orders, place, table, log):
    """Clip what one block was told, the last k rows of log.

    It is an action in [-1, 1] then, the newest of the past ones.
    """
    low, high = orders.low, orders.high
    width, before = len(low), len(log) - len(low)
    past = block(orders.past, place, orders.past.shape[1])
    for k in range(width):
        x = log[before + k, ALL]
        log[before + k, ALL] = select(x < low[k], low[k], select(x > high[k], high[k], x))
    for k in range(len(past) - 1, width - 1, -1):
        past[k, ALL] = past[k - width, ALL]
    for k in range(width):
        past[k, ALL] = TWO * (log[before + k, ALL] - low[k]) / (high[k] - low[k]) - ONE
        table[orders.action + k, ALL] = past[k, ALL]
        table[orders.change + k, ALL] = past[k, ALL] - past[width + k, ALL]


@kernel
def command(told, orders, table, log):
    """The same of all blocks."""
    for place in range(len(table)):
        t, o = block(table, place, table.shape[1]), block(log, place, log.shape[1])
        noted(told, place, t, o)
        ordered(orders, place, t, o)


@inlined
def started(row, initial, delay, columns, past, table):
    """Begin one row; see `start`."""
    width, place, lane = len(initial), row // LANES, row % LANES
    for k in range(delay.shape[1]):
        table[place, columns[0] + k, lane] = delay[row, k]
    for k in range(past.shape[1]):
        past[place, k, lane] = initial[k % width]
    for k in range(width):
        table[place, columns[1] + k, lane] = initial[k]
        table[place, columns[2] + k, lane] = ZERO


@kernel
def start(rows, initial, delay, columns, past, table):
    """Begin these rows (count,) with the action initial (k,): in past, and in table.

    `columns` are the first ones of delay (n, commands), of the action, and of its change.
    """
    for row in rows:
        started(row, initial, delay, columns, past, table)


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


@inlined
def costed(values, costs, numbers, term, out, at):
    """One unweighted cost of sixteen rows, the row `at` of out."""
    first, shape = costs[term, 0], costs[term, 3]
    if shape == ATTITUDE:
        cost = QUARTER * (THREE - values[first, ALL] - values[first + 4, ALL] - values[first + 8, ALL])
    else:
        cost = _square(values, costs, term, numbers[term, 2])
        if shape != SQUARE:
            cost = math.sqrt(cost + numbers[term, 1])
    out[at, ALL] = cost
    if shape == LOG:
        for lane in range(LANES):
            out[at, lane] = np.log1p(out[at, lane])


class Rules(NamedTuple):
    """What a row earns, and when it is lost; see `sim.engines.vector.tables`."""

    bounds: NDArray[np.int64]
    limits: Array
    costs: NDArray[np.int64]
    numbers: Array
    seen: int  # the first columns of the table must be finite
    bonus: np.float32  # per step that is not lost
    last: int  # steps of an episode


class World(NamedTuple):
    """What a control step of n rows reads and writes, besides the engine's own."""

    orders: Orders
    actuators: Channel
    sensors: Channel
    rules: Rules
    steps: NDArray[np.int64]  # (n,) of the episodes, this one included
    table: Array  # (blocks, columns, LANES) of noise-free signals
    places: NDArray[np.int64]  # columns of what no engine knows


class Outcome(NamedTuple):
    """What a step brought: who is lost (n,), each unweighted cost, and 1 where not lost (costs + 1, n), reward (n,)."""

    lost: NDArray[np.bool_]
    terms: Array
    reward: Array


@inlined
def judged(rules, t, kept):
    """Judge one block of the table: kept (costs + 2, LANES) are each unweighted cost, 1 where not lost, the reward.

    Rewards that are not finite count as zero.
    """
    last = len(rules.costs)
    kept[last, ALL] = ONE
    alive = kept[last, ALL]
    for k in range(rules.seen):
        alive = select(abs(t[k, ALL]) <= LARGEST, alive, ZERO)
    for k in range(len(rules.bounds)):
        alive = select(_square(t, rules.bounds, k, ZERO) > rules.limits[k, 0], ZERO, alive)
    kept[last, ALL] = alive
    total = rules.bonus * alive
    for term in range(last):
        costed(t, rules.costs, rules.numbers, term, kept, term)
        total = total - rules.numbers[term, 0] * kept[term, ALL]
    kept[last + 1, ALL] = select(abs(total) <= LARGEST, total, ZERO)


@inlined
def reported(rules, place, steps, kept, outcome):
    """Write down what was `kept` of one block; whether some row that is not lost has made its last step."""
    last, ended = len(rules.costs), False
    lost, terms, reward = outcome.lost, outcome.terms, outcome.reward
    for lane in range(min(LANES, len(lost) - place * LANES)):
        row = place * LANES + lane
        lost[row] = kept[last, lane] < HALF
        ended |= steps[row] >= rules.last and not lost[row]
        reward[row] = kept[last + 1, lane]
        for term in range(last + 1):
            terms[term, row] = kept[term, lane]
    return ended


@kernel
def judge(rules, table, steps, outcome):
    """The same of all blocks."""
    ended, kept = False, np.zeros((len(rules.costs) + 2, LANES), np.float32)
    for place in range(len(table)):
        judged(rules, block(table, place, table.shape[1]), kept)
        ended |= reported(rules, place, steps, kept, outcome)
    return ended

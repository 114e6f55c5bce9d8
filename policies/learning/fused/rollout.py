"""Rollouts of vehicles in flight in one compiled loop: sensing, features, the actor, physics, rewards, new episodes.

A block of vehicles stays in the cache for all its steps. What happens is what `sim.simulation.SimEnv` does step by
step; a test holds both together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import kernel
from policies.learning.fused.dense import ONE, ZERO
from policies.learning.fused.network import CHUNK, OUTS, RESULT, Net
from policies.learning.fused.recurrent import advance, forget
from policies.learning.fused.squashed import chosen
from policies.learning.fused.surrogate import GOES_ON, LOST, Samples, Scale, log_density
from policies.learning.fused.work_queue import FLIGHT, claim, finish, finished, publish
from sim.engines.flight.control_step import rooms
from sim.engines.flight.episodes import Episodes, Rows, begins, steps
from sim.engines.flight.rows import COMMAND_ROWS, PARAMETER_ROWS, STATE_ROWS
from sim.engines.vector.activations import tanh
from sim.engines.vector.blocks import block, borrowed, inlined
from sim.engines.vector.rows import LARGEST, costed
from sim.engines.vector.simd import ALL, LANES, select
from sim.engines.vector.streams import QUANTILES, Streams, normals, streams
from sim.randomize import Array

EXPLORATION = int.from_bytes(b"explore")
RETURN, LENGTH, ENDED, FALLEN, REWARD = range(5)  # what is counted of each block


class Seen(NamedTuple):
    """What networks see: the table of `sim.engines.vector.tables.feature_runs`, and the columns of critics."""

    places: NDArray[np.int64]
    numbers: Array
    measured: int  # how many columns are the policy's; those behind them are its past actions
    features: int
    hidden: NDArray[np.int64]  # columns that only a critic sees
    terms: NDArray[np.int64]  # costs that it sees, too


class Progress(NamedTuple):
    """How far the blocks and rows of a rollout are."""

    step: NDArray[np.int64]  # (blocks,) that comes next
    taken: NDArray[np.int64]  # (blocks,) episodes before; the next one is at `taken` % `spare` of the block's
    used: NDArray[np.int64]  # (blocks,) of them since then
    final: NDArray[np.int64]  # (blocks,) samples of states in which time was over
    begun: NDArray[np.int64]  # (n,) the episode that has begun last in this rollout, or -1
    since: NDArray[np.int64]  # (n,) the step of the rollout with which it began, or 0
    gained: Array  # (n,) rewards of the episode
    counted: NDArray[np.float64]  # (blocks, 5)
    diverged: NDArray[np.int64]  # (blocks,) whose state stopped being finite
    last: NDArray[np.int64]  # (blocks,) the last of these rows
    remains: Array  # (blocks, STATE_ROWS + PARAMETER_ROWS + COMMAND_ROWS), what it was before that step


class Exploration(NamedTuple):
    """What is added to actions: standard normal numbers, of which each is correlated with the one before."""

    stream: Streams  # (n,)
    quantiles: Array  # of the normal distribution
    last: Array  # (n, actions)
    keeps: np.float32  # share of the last number
    adds: np.float32  # and of a fresh one


def exploration(seed: int, num: int, actions: int, correlation: float) -> Exploration:
    """Of `num` rows; ValueError unless -1 < correlation < 1."""
    if not -1.0 < correlation < 1.0:
        raise ValueError(f"the correlation of the exploration lies between -1 and 1, got {correlation}")
    keeps, adds = np.float32(correlation), np.float32(math.sqrt(1.0 - correlation**2))
    own = streams(seed, np.arange(num), EXPLORATION)
    return Exploration(own, QUANTILES, np.zeros((num, actions), np.float32), keeps, adds)


@inlined
def _made(seen, sensed, past, out):
    """The features of one block, out (features, LANES); zero for what is not finite."""
    for run in range(len(seen.places)):
        source, minus, first, count = seen.places[run, 0], seen.places[run, 1], seen.places[run, 2], seen.places[run, 3]
        scale, squash = seen.numbers[run, 0], seen.numbers[run, 1]
        for k in range(count):
            if source >= seen.measured:
                x = scale * past[source - seen.measured + k, ALL]
            else:
                x = sensed[source + k, ALL]
                if minus >= 0:
                    x = x - sensed[minus + k, ALL]
                if squash > ZERO:
                    z = x * squash
                    x = x / math.sqrt(ONE + z * z)
                x = scale * x
            out[first + k, ALL] = select(abs(x) <= LARGEST, x, ZERO)


@inlined
def _judged(seen, rules, table, past, out):
    """The same of what a critic sees."""
    _made(seen, table, past, out)
    for k in range(len(seen.hidden)):
        x = table[seen.hidden[k], ALL]
        out[seen.features + k, ALL] = select(abs(x) <= LARGEST, x, ZERO)
    first = seen.features + len(seen.hidden)
    for k in range(len(seen.terms)):
        costed(table, rules.costs, rules.numbers, seen.terms[k], out, first + k)
        x = out[first + k, ALL] / math.sqrt(ONE + out[first + k, ALL])  # `sim.terms.shown`
        out[first + k, ALL] = select(abs(x) <= LARGEST, x, ZERO)


@inlined
def _written(made, count, samples, first, width):
    """Rows of `made` (count, LANES) as samples of whole vectors, the first one at `first`."""
    flat = samples.reshape(-1)
    for lane in range(LANES):
        at = (first + lane) * width * LANES
        for k in range(count):
            flat[at + k] = made[k, lane]


@inlined
def _written_row(made, count, samples, at, width, lane):
    flat = samples.reshape(-1)
    for k in range(count):
        flat[at * width * LANES + k] = made[k, lane]


@inlined
def acted(base, row, count, actor, scale, std, squashed, explore, every, noise, samples, scratch):
    """The actions of samples base ... base + count - 1, at most CHUNK: the actor's, and what they explore.

    The first one remembers and explores as row `row` does; `every` counts the actions, `noise` has a row for each.
    """
    layer = actor.layers[len(actor.layers) - 1]
    outs, result, width = layer[OUTS], layer[RESULT], len(scale.mean)
    stride = len(samples.action) // len(samples.reward)
    for i in range(count):
        for v in range(width):
            x = samples.seen[(base + i) * width + v, ALL]
            scratch.inputs[i * width + v, ALL] = (x - scale.mean[v, ALL]) * scale.factor[v, ALL]
    advance(actor, scratch, row, count)
    flat = samples.action.reshape(-1)
    for i in range(count):
        n = row + i
        explore.stream[n] = normals(explore.stream[n], explore.quantiles, every, noise, 0)
        for j in every:
            explore.last[n, j] = explore.keeps * explore.last[n, j] + explore.adds * noise[j, 0]
        at, k = (base + i) * stride, result + i * outs
        if squashed:
            for j in every:
                flat[at * LANES + j] = chosen(scratch.values, k, j, len(every), explore.last[n, j])[0]
        else:
            for v in range(outs):
                samples.action[at + v, ALL] = tanh(scratch.values[k + v, ALL])
            for j in every:
                flat[at * LANES + j] += explore.last[n, j] * math.exp(std[j // LANES, j % LANES])
            samples.log_prob[base + i] = log_density(samples.action, at, scratch.values, k, std, outs)


@kernel
def act(base, count, actions, actor, scale, std, squashed, explore, samples, scratch):
    """The same of all rows of one step, samples base ... base + count - 1."""
    noise, every = np.zeros((actions, LANES), np.float32), np.arange(actions)
    for row in range(0, count, CHUNK):
        n = min(CHUNK, count - row)
        acted(base + row, row, n, actor, scale, std, squashed, explore, every, noise, samples, scratch)


@inlined
def _finite(table, count, lane):
    """Whether the first columns of a row are."""
    finite = True
    for k in range(count):
        finite &= abs(table[k, lane]) <= LARGEST
    return finite


@inlined
def _remembered(state, rows, place, lane, out):
    """One vehicle: its state, what it is made of, and its command."""
    for k in range(STATE_ROWS):
        out[k] = state[k, lane]
    for k in range(PARAMETER_ROWS):
        out[STATE_ROWS + k] = rows.derived[place, k, lane]
    for k in range(COMMAND_ROWS):
        out[STATE_ROWS + PARAMETER_ROWS + k] = rows.world.actuators.arrived[place, k, lane]


class Course(NamedTuple):
    """Through what rows fly, and how far they are."""

    blocks: int
    horizon: int
    seen: Seen
    episodes: Episodes
    spare: int  # of them per block
    known: Array  # (n, horizon + 1, k): what no engine knows, of the episodes that go on, or (n, 1, k) if it stays
    progress: Progress


class Pilot(NamedTuple):
    """Who flies them, and where that is written down."""

    samples: Samples
    widths: tuple[int, int]  # vectors of what actor and critic see
    actor: Net
    scale: Scale
    std: Array  # see `surrogate.policy_gradients`, unless the actor says it itself, of what is `squashed`
    squashed: bool
    low: Array  # of commands (k,)
    half: Array  # of their range
    explore: Exploration


class Flight(NamedTuple):
    """All that a rollout reads and writes.

    In three parts, which compiled code takes once: the compiler's work grows with the square of a tuple's size.
    """

    rows: Rows
    course: Course
    pilot: Pilot


@kernel
def play(queue, leads, flight, scratch):
    """Fly blocks to the end of the rollout, or until episodes are used up; False where a helper has failed.

    Whoever `leads` publishes them, flies what nobody else does, and waits for the others.
    """
    rows, course, pilot = borrowed(flight.rows), borrowed(flight.course), borrowed(flight.pilot)
    scratch, total, horizon, seen = borrowed(scratch), course.blocks, course.horizon, course.seen
    episodes, spare, known, progress = course.episodes, course.spare, course.known, course.progress
    samples, actor, scale, std, squashed = pilot.samples, pilot.actor, pilot.scale, pilot.std, pilot.squashed
    low, half, explore = pilot.low, pilot.half, pilot.explore
    world = rows.world
    count, actions, kinds = len(rows.limit), len(low), len(world.places) if known.shape[1] > 1 else 0
    rest = rooms(world)
    seen_width, judged_width = pilot.widths
    wide = seen.features + len(seen.hidden) + len(seen.terms)
    made, shown = np.zeros((wide, LANES), np.float32), np.zeros((seen.features, LANES), np.float32)
    log = np.zeros((seen.measured + actions, LANES), np.float32)
    noise = np.zeros((actions, LANES), np.float32)
    before: Any = np.zeros((STATE_ROWS, LANES), np.float32)
    every = np.arange(actions)
    stride = -(-actions // LANES)
    if leads:
        publish(queue, FLIGHT, total)
    while True:
        k = claim(queue, FLIGHT)
        if k < 0:
            return finished(queue, total) if leads else True
        place = (k % 2) * ((total + 1) // 2) + k // 2  # neighbours share lines of the cache
        table = block(world.table, place, world.table.shape[1])
        past = block(world.orders.past, place, world.orders.past.shape[1])
        sensed = block(world.sensors.arrived, place, world.sensors.arrived.shape[1])
        row, state = place * LANES, block(rows.state, place, STATE_ROWS)
        while progress.step[place] <= horizon:
            t = progress.step[place]
            base = t * count + row
            _judged(seen, world.rules, table, past, made)
            _written(made, wide, samples.judged, base, judged_width)
            if t == horizon:
                progress.step[place] += 1
                break
            if progress.used[place] + LANES > spare:
                break
            _made(seen, sensed, past, shown)
            _written(shown, seen.features, samples.seen, base, seen_width)
            acted(base, row, LANES, actor, scale, std, squashed, explore, every, noise, samples, scratch)
            flat = samples.action.reshape(-1)
            for lane in range(LANES):
                for i in range(actions):
                    a = flat[(base + lane) * stride * LANES + i]
                    log[seen.measured + i, lane] = low[i] + (min(max(a, -ONE), ONE) + ONE) * half[i]
                index, since = progress.begun[row + lane], progress.since[row + lane]
                for i in range(kinds):
                    if index >= 0:
                        table[world.places[i], lane] = episodes.known[index, t + 1 - since, i]
                    else:
                        table[world.places[i], lane] = known[row + lane, t + 1, i]
            for k in range(STATE_ROWS):
                before[k, ALL] = state[k, ALL]
            over = steps(place, rows, log, rest)
            counted, alive, reward = progress.counted[place], rest.kept[-2], rest.kept[-1]
            for lane in range(LANES):
                samples.reward[base + lane] = reward[lane]
                samples.ended[base + lane] = GOES_ON
                progress.gained[row + lane] += reward[lane]
                counted[REWARD] += reward[lane]
            if over:
                _judged(seen, world.rules, table, past, made)
                _made(seen, sensed, past, shown)
            for lane in range(LANES if over else 0):
                n, lost = row + lane, alive[lane] < ONE
                if over >> lane & 1:
                    samples.ended[base + lane] = LOST
                    if lost and not _finite(table, seen.measured, lane):
                        progress.diverged[place] += 1
                        progress.last[place] = n
                        _remembered(before, rows, place, lane, progress.remains[place])
                    if not lost:
                        at = (horizon + 1) * count + place * LANES * horizon + progress.final[place]
                        _written_row(made, wide, samples.judged, at, judged_width, lane)
                        _written_row(shown, seen.features, samples.seen, at, seen_width, lane)
                        samples.ended[base + lane] = at
                        progress.final[place] += 1
                    counted[RETURN] += progress.gained[n]
                    counted[LENGTH] += world.steps[n]
                    counted[ENDED] += 1
                    counted[FALLEN] += lost
                    progress.gained[n] = ZERO
                    index = place * spare + (progress.taken[place] + progress.used[place]) % spare
                    progress.used[place] += 1
                    progress.begun[n], progress.since[n] = index, t + 1
                    begins(n, index, episodes, rows, rest)
                    forget(actor, n)
            progress.step[place] += 1
        finish(queue)

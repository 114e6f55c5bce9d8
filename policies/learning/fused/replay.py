"""A replay of rollouts in half precision: what actor and critics saw once per state, which is the next one of another.

A row is the action, what critics see and what the actor sees, each filled up to whole vectors. The rows of an
environment follow each other in time, in a ring; the last states of episodes that ran out of time are in a ring of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import kernel
from policies.learning.fused.dense import ZERO
from policies.learning.fused.network import vectors
from policies.learning.fused.surrogate import GOES_ON, LOST, Samples
from sim.engines.vector.blocks import inlined
from sim.engines.vector.half import narrow, widened
from sim.engines.vector.simd import ALL, LANES
from sim.engines.vector.streams import mixed
from sim.randomize import Array

LARGEST = np.float32(65504.0)  # in half precision
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPARE_MEMORY = 300e6  # bytes, for all else


class Stored(NamedTuple):
    """A replay as kernels see it."""

    bits: NDArray[np.uint16]  # (rows * (judged + seen), LANES)
    reward: Array  # (envs * steps,)
    ended: NDArray[np.int64]  # (envs * steps,): GOES_ON, LOST, or the row of its end
    envs: int
    steps: int  # of each environment that there is room for
    judged: int  # vectors of the action and what critics see
    seen: int  # vectors of what the actor sees


class Replay:
    """The last `capacity` transitions of `envs` environments, whose episodes take `shortest` steps or are lost.

    ValueError where the machine's memory does not suffice.
    """

    def __init__(self, capacity: int, envs: int, shortest: int, actions: int, judged: int, seen: int) -> None:
        steps = capacity // envs
        wide, rows = vectors(actions + judged), steps * envs
        self.actions, self.width = actions, judged
        self.ends = envs * (steps // shortest + 1)  # more cannot be within as many steps
        row = (wide + vectors(seen)) * LANES * np.dtype(np.uint16).itemsize
        needed, there = (rows + self.ends) * row + rows * 12, available_memory()
        if there is not None and needed + SPARE_MEMORY > there:
            fits = int(max(0.0, there - SPARE_MEMORY) / needed * capacity)
            raise ValueError(
                f"a replay of capacity={capacity} takes {needed / 1e6:.0f} MB, of which {there / 1e6:.0f} are free; "
                f"lower algorithm.capacity to at most {fits}"
            )
        bits = np.zeros(((rows + self.ends) * row // 2 // LANES, LANES), np.uint16)
        ended = np.full(rows, GOES_ON)
        self.stored = Stored(bits, np.zeros(rows, np.float32), ended, envs, steps, wide, vectors(seen))
        self.written, self.next_end = 0, 0  # steps in all; the place in the ring of ends

    def add(self, samples: Samples, horizon: int) -> None:
        """A rollout of that many steps."""
        self.next_end = int(
            store(self.stored, samples, horizon, self.written, self.actions, self.width, self.next_end, self.ends)
        )
        self.written += horizon

    def enough(self, n_step: int) -> bool:
        """Whether something can be drawn."""
        return self.written > n_step + 1

    def state_dict(self) -> dict[str, Any]:
        """Copies of what is in it."""
        filled = {name: getattr(self.stored, name).copy() for name in ("bits", "reward", "ended")}
        return filled | {"written": self.written, "next_end": self.next_end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there; ValueError where it was of another size."""
        for name in ("bits", "reward", "ended"):
            part = getattr(self.stored, name)
            if np.shape(state[name]) != part.shape:
                raise ValueError(f"the saved replay is of another size: {name} {np.shape(state[name])}, {part.shape}")
            part[...] = state[name]
        self.written, self.next_end = int(state["written"]), int(state["next_end"])


def available_memory() -> float | None:
    """Bytes that this process may still take; None where the system does not say."""
    told = (line.split() for line in _lines("/proc/meminfo"))
    found = [1024.0 * float(words[1]) for words in told if words[0] == "MemAvailable:"]
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0] != "max":
        found.append(float(limit[0]) - float(used[0]))
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


@kernel
def store(stored, samples, horizon, written, actions, judged, next_end, ends):
    """Add a rollout; the place of the next end."""
    wide, width = _vectors(actions + judged), stored.judged + stored.seen
    row = np.zeros((wide, LANES), np.float32)
    outs, at = _vectors(actions), 0
    for t in range(horizon):
        for n in range(stored.envs):
            sample = t * stored.envs + n
            at = n * stored.steps + (written + t) % stored.steps
            ended = samples.ended[sample]
            stored.reward[at], stored.ended[at] = samples.reward[sample], ended
            _kept(stored, samples, sample, at * width, row, actions, judged, outs)
            if ended >= 0:
                end = stored.envs * stored.steps + next_end
                next_end = (next_end + 1) % ends
                stored.ended[at] = end
                _kept(stored, samples, ended, end * width, row, actions, judged, outs)
    return next_end


@inlined
def _vectors(numbers):
    return (numbers + LANES - 1) // LANES


@inlined
def _kept(stored, samples, sample, place, row, actions, judged, outs):
    """One sample in half precision; the action of a last state is of no meaning."""
    flat, seen, action = row.reshape(-1), samples.judged.reshape(-1), samples.action.reshape(-1)
    first = sample * _vectors(judged) * LANES
    for k in range(actions):
        flat[k] = ZERO
        if sample * outs * LANES + k < len(action):
            flat[k] = min(max(action[sample * outs * LANES + k], np.float32(-1.0)), np.float32(1.0))
    for k in range(judged):
        flat[actions + k] = seen[first + k]
    for v in range(stored.judged):
        narrow(stored.bits, place + v, min(max(row[v, ALL], -LARGEST), LARGEST))
    for v in range(stored.seen):
        x = samples.seen[sample * stored.seen + v, ALL]
        narrow(stored.bits, place + stored.judged + v, min(max(x, -LARGEST), LARGEST))


@inlined
def draw(stored, written, n_step, gamma, stream, drawn):
    """Draw transitions (`Batch`) of `n_step` steps, or fewer to the end of the episode; the stream after them."""
    steps = stored.steps
    there = min(written, steps)
    for i in range(len(drawn.row)):
        stream += GOLDEN
        word = mixed(stream)
        env = np.int64(word >> np.uint64(32)) % stored.envs
        step = written - there + np.int64(word & np.uint64(0xFFFFFFFF)) % (there - n_step)
        first = env * steps
        row = first + step % steps
        reward, discount, at = ZERO, np.float32(1.0), row
        after = row
        for k in range(n_step):
            at = first + (step + k) % steps
            reward += discount * stored.reward[at]
            discount *= gamma
            ended = stored.ended[at]
            after = first + (step + k + 1) % steps
            if ended != GOES_ON:
                if ended == LOST:
                    discount = ZERO
                else:
                    after = ended
                break
        drawn.row[i], drawn.after[i], drawn.reward[i], drawn.discount[i] = row, after, reward, discount
    return stream


@inlined
def recalled(stored, row, first, count, scale, out, place):
    """The vectors first ... first + count - 1 of a row, normalised, to out from `place` on."""
    at = row * (stored.judged + stored.seen) + first
    for v in range(count):
        out[place + v, ALL] = (widened(stored.bits, at + v) - scale.mean[v, ALL]) * scale.factor[v, ALL]

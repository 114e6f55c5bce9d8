"""A replay of rollouts in half precision: what actor and critics saw once per state, which is the next one of another.

A row is the action, what critics see and what the actor sees, each filled up to whole vectors. The rows of an
environment follow each other in time, in a ring; the last states of episodes that ran out of time are in a ring of
their own. Behind them are the rows of earlier runs, which stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
EXPONENT = np.uint16(0x7C00)  # of what is not finite, in half precision
SPARE_MEMORY = 300e6  # bytes, for all else


class Transitions(NamedTuple):
    """What does not change any more, (n,) each: over one or more steps, as `Batch` of `off_policy` has them."""

    row: NDArray[np.int64]
    after: NDArray[np.int64]
    reward: Array
    discount: Array


class Stored(NamedTuple):
    """A replay as kernels see it."""

    bits: NDArray[np.uint16]  # (rows * (judged + seen), LANES)
    reward: Array  # (envs * steps,)
    ended: NDArray[np.int64]  # (envs * steps,): GOES_ON, LOST, or the row of its end
    envs: int
    steps: int  # of each environment that there is room for
    judged: int  # vectors of the action and what critics see
    seen: int  # vectors of what the actor sees
    earlier: Transitions  # of earlier runs
    old: int  # of how many transitions in a batch these are, the first ones


def transitions(count: int) -> Transitions:
    """Room for so many."""
    places = (np.zeros(count, np.int64), np.zeros(count, np.int64))
    return Transitions(*places, np.zeros(count, np.float32), np.zeros(count, np.float32))


class Replay:
    """The last `capacity` transitions of `envs` environments, whose episodes take `shortest` steps or are lost.

    Of each batch `old` are of `earlier` runs, if there are any: what `state_dict` of their replays gave, as `checked`.
    ValueError where the machine's memory does not suffice.
    """

    def __init__(
        self,
        capacity: int,
        envs: int,
        shortest: int,
        actions: int,
        judged: int,
        seen: int,
        earlier: Sequence[Mapping[str, Any]] = (),
        old: int = 0,
    ) -> None:
        steps = capacity // envs
        wide, rows = vectors(actions + judged), steps * envs
        self.actions, self.width = actions, judged
        self.ends = envs * (steps // shortest + 1)  # more cannot be within as many steps
        row = (wide + vectors(seen)) * LANES * np.dtype(np.uint16).itemsize
        before = sum(len(state["bits"]) for state in earlier) // (wide + vectors(seen))  # rows
        needed, there = (rows + self.ends + before) * row + (rows + 2 * before) * 12, available_memory()
        if there is not None and needed + SPARE_MEMORY > there:
            fits = int(max(0.0, there - SPARE_MEMORY) / needed * capacity)
            raise ValueError(
                f"a replay of capacity={capacity} takes {needed / 1e6:.0f} MB, of which {there / 1e6:.0f} are free; "
                f"lower algorithm.capacity to at most {fits}"
            )
        self.own = (rows + self.ends) * (wide + vectors(seen))  # vectors
        bits = np.zeros((self.own + before * (wide + vectors(seen)), LANES), np.uint16)
        ended, shape = np.full(rows, GOES_ON), (envs, steps, wide, vectors(seen))
        self.stored = Stored(bits, np.zeros(rows, np.float32), ended, *shape, transitions(0), 0)
        self.written, self.next_end = 0, 0  # steps in all; the place in the ring of ends
        self.earlier, self.old = [*earlier], old if earlier else 0

    def recall(self, n_step: int, gamma: float) -> int:
        """Take in the earlier runs, whose transitions are of so many steps; how many there are."""
        stored, found, at = self.stored, [transitions(0)], self.own
        for state in self.earlier:
            bits, envs = state["bits"], int(state["envs"])
            shape = (envs, len(state["reward"]) // envs, stored.judged, stored.seen)
            other = Stored(bits, state["reward"], state["ended"], *shape, transitions(0), 0)
            written = int(state["written"])
            made = transitions(envs * (min(written, other.steps) - n_step))
            follow_all(other, written, n_step, np.float32(gamma), made)
            stored.bits[at : at + len(bits)] = bits
            first = at // (stored.judged + stored.seen)
            found.append(made._replace(row=made.row + first, after=made.after + first))
            at += len(bits)
        self.earlier = []  # it is in the bits now
        every = Transitions(*map(np.concatenate, zip(*found, strict=True)))
        self.stored = stored._replace(earlier=every, old=self.old)
        return len(every.row)

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
        filled = {name: part.copy() for name, part in self._parts().items()}
        return filled | {"written": self.written, "next_end": self.next_end, "envs": self.stored.envs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there; ValueError where it was of another size."""
        for name, part in self._parts().items():
            if np.shape(state[name]) != part.shape:
                raise ValueError(f"the saved replay is of another size: {name} {np.shape(state[name])}, {part.shape}")
            part[...] = state[name]
        self.written, self.next_end = int(state["written"]), int(state["next_end"])

    def _parts(self) -> dict[str, NDArray[Any]]:
        """What is its own, and changes."""
        return {"bits": self.stored.bits[: self.own], "reward": self.stored.reward, "ended": self.stored.ended}


def checked(state: Mapping[str, Any], wide: int, n_step: int) -> dict[str, Any]:
    """The `state_dict` of a stranger's replay with so many vectors in a row; ValueError where it cannot be one."""
    bits, reward, ended = (np.asarray(state[name]) for name in ("bits", "reward", "ended"))
    for name, part, kind, shape in (
        ("bits", bits, np.uint16, (len(bits) // wide * wide, LANES)),
        ("reward", reward, np.float32, (reward.size,)),
        ("ended", ended, np.int64, (reward.size,)),
    ):
        if part.dtype != kind or part.shape != shape:
            raise ValueError(f"its {name} are {part.dtype} {part.shape}, not {np.dtype(kind)} {shape}")
    envs, written, rows = int(state["envs"]), int(state["written"]), len(bits) // wide
    if envs < 1 or not len(reward) or len(reward) % envs or len(reward) > rows:
        raise ValueError(f"its {len(reward)} steps in {rows} rows are not those of {envs} environments")
    if min(written, len(reward) // envs) <= n_step + 1:
        raise ValueError(f"it has {written} steps of each environment, too few for n_step={n_step}")
    if not (np.isin(ended, (GOES_ON, LOST)) | ((ended >= len(reward)) & (ended < rows))).all():
        raise ValueError("its episodes end nowhere")
    if not np.isfinite(reward).all() or any((part & EXPONENT == EXPONENT).any() for part in np.array_split(bits, 64)):
        raise ValueError("it holds what is not finite")
    return {"bits": bits, "reward": reward, "ended": ended, "envs": envs, "written": written}


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
def _followed(stored, first, step, n_step, gamma):
    """The discounted reward of `n_step` steps from there on, or fewer to the end of the episode.

    And the discount and the row of what follows. `first` is the environment's first row.
    """
    steps = stored.steps
    reward, discount, at = ZERO, np.float32(1.0), first + step % steps
    after = at
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
    return reward, discount, after


@inlined
def draw(stored, written, n_step, gamma, stream, drawn):
    """Draw transitions (`Batch`) of `n_step` steps, or fewer to the end of the episode; the stream after them."""
    steps = stored.steps
    there, earlier = min(written, steps), stored.earlier
    for i in range(len(drawn.row)):
        stream += GOLDEN
        word = mixed(stream)
        if i < stored.old:
            k = np.int64(word % np.uint64(len(earlier.row)))
            drawn.row[i], drawn.after[i] = earlier.row[k], earlier.after[k]
            drawn.reward[i], drawn.discount[i] = earlier.reward[k], earlier.discount[k]
            continue
        env = np.int64(word >> np.uint64(32)) % stored.envs
        step = written - there + np.int64(word & np.uint64(0xFFFFFFFF)) % (there - n_step)
        first = env * steps
        drawn.row[i] = first + step % steps
        drawn.reward[i], drawn.discount[i], drawn.after[i] = _followed(stored, first, step, n_step, gamma)
    return stream


@kernel
def follow_all(stored, written, n_step, gamma, found):
    """Everything that `draw` might draw of a replay's own, each once."""
    there = min(written, stored.steps)
    each = there - n_step
    for env in range(stored.envs):
        for k in range(each):
            step, first, at = written - there + k, env * stored.steps, env * each + k
            found.row[at] = first + step % stored.steps
            found.reward[at], found.discount[at], found.after[at] = _followed(stored, first, step, n_step, gamma)


@inlined
def recalled(stored, row, first, count, scale, out, place):
    """The vectors first ... first + count - 1 of a row, normalised, to out from `place` on."""
    at = row * (stored.judged + stored.seen) + first
    for v in range(count):
        out[place + v, ALL] = (widened(stored.bits, at + v) - scale.mean[v, ALL]) * scale.factor[v, ALL]

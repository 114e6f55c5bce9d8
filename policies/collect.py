"""Episodes of a manipulation task, by an expert who may be made worse, or by a policy file.

The corrupted expert misjudges where things are, by an offset per episode, and its hand trembles; `corruption` = 1 is
what the task declares as mediocre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sim.workcell import Array, Manipulation

DEMONSTRATIONS = int.from_bytes(b"demonstrations")  # mixed into the seed: other episodes than training's, evaluation's
SCENES = 8  # flown together


@dataclass
class Episode:
    """One episode, as the robot saw it: signals and commands by name (steps, *shape)."""

    number: int
    signals: dict[str, Array]
    commands: dict[str, Array]
    reward: Array  # (steps,) float32
    success: Array  # (steps,) bool

    @property
    def succeeded(self) -> bool:
        """Whether the task was done at any step."""
        return bool(self.success.any())


# signals (num, *shape) by name, episode numbers (num,), which of them have just begun (num,) bool -> commands
Act = Callable[[Mapping[str, Array], Array, Array], Mapping[str, Array]]


def stream(seed: int, purpose: int) -> int:
    """A seed for that purpose, which no other purpose shares."""
    return int(np.random.SeedSequence([seed, purpose]).generate_state(1)[0])


class Corrupted:
    """The task's expert with `corruption` times the declared offsets and noise; the episode's number decides both."""

    def __init__(self, task: Manipulation, corruption: float, seed: int, num: int) -> None:
        self.task, self.corruption, self.seed = task, corruption, seed
        self._rng = [np.random.default_rng() for _ in range(num)]
        self._offsets = {s.name: np.zeros((num, *s.shape), np.float32) for s in task.policy}

    def __call__(self, signals: Mapping[str, Array], numbers: Array, begun: Array) -> dict[str, Array]:
        for row in np.flatnonzero(begun):
            self._rng[row] = np.random.default_rng([self.seed, 1, int(numbers[row])])
            for signal in self.task.policy:
                std = self.corruption * self.task.corruption.get(signal.name, 0.0)
                self._offsets[signal.name][row] = std * self._rng[row].standard_normal(signal.shape)
        commands = self.task.expert({name: value + self._offsets.get(name, 0.0) for name, value in signals.items()})
        for signal in self.task.commands:
            std = self.corruption * self.task.corruption.get(signal.name, 0.0)
            trembling = np.stack([rng.standard_normal(signal.shape) for rng in self._rng])
            noisy = commands[signal.name] + np.float32(std) * trembling.astype(np.float32)
            commands[signal.name] = np.clip(noisy, signal.low, signal.high)
        return commands


def episodes(task: Manipulation, act: Act, count: int, seed: int, num: int = SCENES) -> Iterator[Episode]:
    """Episodes 0 to `count` - 1 of the stream `seed`, as they end: with success, lost, or out of time."""
    num = min(num, count)
    cell = task.open(num, seed)
    try:
        numbers: Array = np.arange(num)
        following = num
        cell.reset(range(num), range(num))
        records: list[list[tuple[dict[str, Array], dict[str, Array], float, bool]]] = [[] for _ in range(num)]
        begun, busy = np.ones(num, bool), np.ones(num, bool)
        while busy.any():
            signals = cell.read()
            commands = act(signals, numbers, begun)
            outcome = cell.step(commands)
            begun = np.zeros(num, bool)
            for row in map(int, np.flatnonzero(busy)):
                seen = {s.name: signals[s.name][row].copy() for s in task.policy}
                done = {s.name: np.asarray(commands[s.name][row]).copy() for s in task.commands}
                records[row].append((seen, done, float(outcome.reward[row]), bool(outcome.success[row])))
                if outcome.success[row] or outcome.lost[row] or len(records[row]) >= task.episode_steps:
                    yield _whole(int(numbers[row]), records[row])
                    records[row], busy[row] = [], following < count
                    numbers[row], following = following, following + 1
                    if busy[row]:
                        cell.reset([row], [int(numbers[row])])
                        begun[row] = True
    finally:
        cell.close()


def _whole(number: int, steps: list[tuple[dict[str, Array], dict[str, Array], float, bool]]) -> Episode:
    seen, done, reward, success = zip(*steps, strict=True)
    return Episode(
        number,
        {name: np.stack([s[name] for s in seen]) for name in seen[0]},
        {name: np.stack([c[name] for c in done]) for name in done[0]},
        np.array(reward, np.float32),
        np.array(success, bool),
    )


def demonstrate(task: Manipulation, count: int, seed: int, corruption: float = 0.0) -> Iterator[Episode]:
    """`count` episodes by the task's expert, corrupted."""
    own = stream(seed, DEMONSTRATIONS)
    return episodes(task, Corrupted(task, corruption, own, min(SCENES, count)), count, own)

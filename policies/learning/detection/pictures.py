"""Pictures of matches and what is in them: scripted players of all paces, cameras that turn in all ways.

Whatever is random in how somebody plays is drawn by game and control step (`sim.tasks.soccer.detection.drawn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.env import make_env
from sim.experts.soccer import Scripted
from sim.randomize import drawn
from sim.rollout import Episode, rollout
from sim.tasks import agents_of
from sim.tasks.soccer.detection import places, ranked, shown, things

if TYPE_CHECKING:
    from sim.tasks.soccer import SoccerVision1v1

Array = NDArray[np.float32]
Places = NDArray[np.float64]

WORLDS = 64  # matches beside one another
WANDERS, NOISE = 0.3, 0.3  # share of the games in which a player drives anywhere; of its commands' range, in others
HOLD = 40  # control steps that a random command or a look may last


class Frames(NamedTuple):
    """Pictures (n, height, width, 3) and what is so: of all things (n, things) whether they are there to be seen,
    their bearing (rad) and distance (m), whether or not; how fast the camera turns (n,), rad/s; which game (n,).
    """

    pictures: NDArray[np.uint8]
    there: NDArray[np.bool_]
    bearing: Places
    distance: Places
    turning: Places
    game: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: Sequence[Frames]) -> Frames:
        """All of them."""
        return cls(*(np.concatenate(some) for some in zip(*parts, strict=True)))


class Wanderers:
    """Who plays on both sides: some go after the ball at any pace, some drive anywhere, all look around."""

    def __init__(self, task: SoccerVision1v1, seed: int) -> None:
        self.task, self.seed, self._steps = task, seed, np.zeros(0, np.int64)

    def play(self, signals: Mapping[str, Array], numbers: Any, begun: Any) -> dict[str, Array]:
        """Commands of all rows; see `sim.rollout.Act`."""
        if len(self._steps) != len(begun):
            self._steps = np.zeros(len(begun), np.int64)
        self._steps = np.where(begun, 0, self._steps + 1)
        rows = np.arange(len(begun)) % self.task.players  # in their team
        seeds = (self.seed << 32) % 2**62 + np.asarray(numbers, np.int64) * self.task.players + rows
        own = drawn(seeds.astype(np.uint64), np.full(len(rows), 1 << 41), 6)  # of a whole game
        held = self._steps // (2 + (HOLD * own[:, 0] ** 2).astype(np.int64))
        now = drawn(seeds.astype(np.uint64), held, 8)
        pace, wanders = own[:, 1:2], own[:, 2:3] < WANDERS
        chased = self.task.opponents["chaser"](signals)
        made, column = {}, 0
        for command in self.task.commands:
            u, reach = now[:, column : column + command.size], command.high - command.low
            column += command.size
            anywhere = command.low + reach * u
            chasing = pace * (chased[command.name] + NOISE * reach * (u - 0.5))
            made[command.name] = np.where(wanders, anywhere, chasing)
        if "look" in made:
            made["look"] = self._look(signals, own, now[:, -1:])
        limits = {c.name: (c.low, c.high) for c in self.task.commands}
        return {name: np.clip(value, *limits[name]).astype(np.float32) for name, value in made.items()}

    def _look(self, signals: Mapping[str, Array], own: Places, now: Places) -> Places:
        """At the ball, more or less; to and fro; here and there."""
        far = self.task.robot.pan_limit
        ball = np.arctan2(signals["ball_position"][:, 1:], signals["ball_position"][:, :1]) + (now - 0.5)
        rate = 0.1 + 1.4 * own[:, 4:5]  # Hz
        swept = far * np.sin(2.0 * np.pi * (rate * self._steps[:, None] / self.task.rate_hz + own[:, 5:6]))
        kind = own[:, 3:4]
        return np.where(kind < 0.4, ball, np.where(kind < 0.7, swept, far * (2.0 * now - 1.0)))


class Company(Scripted):
    """Such players as the other team."""

    def __init__(self, players: Wanderers) -> None:
        self.players = players

    def act(self, signals: Mapping[str, Array], episodes: Any, begun: Any) -> Mapping[str, Array]:
        return self.players.play(signals, episodes, begun)


class Matches:
    """Matches that are watched: the pictures of each player of `games` games, as they end.

    Their players and looks are decided by the seed. Given what was `over`, it goes on from there: what comes next is
    the same, after the games that were under way have been played again.
    """

    def __init__(self, task: SoccerVision1v1, games: int, seed: int, over: Iterable[Sequence[int]] = ()) -> None:
        self.task = task.prompt_task()  # a detector tells of the picture, not of the world since
        self.games, self.seed = games, seed
        self.over = [(int(game), int(steps)) for game, steps in over]  # one for each player, as they ended

    def __iter__(self) -> Iterator[Frames]:
        task, seed = self.task, self.seed
        played = task.against(lambda rows: Company(Wanderers(task, 2 * seed + 1)))
        agents = agents_of(played)
        shown = len(self.over) % agents  # of the game that ends next, players whose pictures are known
        order, late = self._order(dict(self.over[: len(self.over) - shown]))
        if not order:
            return
        env = make_env(played, len(late) * agents, seed, several=True)
        try:
            episodes = rollout(played, env, Wanderers(task, 2 * seed).play, order, late=late)
            for episode in islice(episodes, shown, None):
                self.over.append((episode.number, len(episode.reward)))
                yield seen(task, episode, len(self.over) - 1)
        finally:
            env.close()

    def _order(self, over: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """The games to play: those under way, then all that follow; and by how many steps each of the former is late.

        `over`: the control steps of those that need not be played again.
        """
        free = [(0, world) for world in range(min(WORLDS, self.games))]  # since when: a heap, the next one first
        begun: dict[int, tuple[int, int]] = {}  # world -> game, when
        following = 0
        while free and following < self.games:
            since, world = heappop(free)
            if following in over:
                heappush(free, (since + over[following], world))
            else:
                begun[world] = following, since
            following += 1
        first = min((since for _, since in begun.values()), default=0)
        under_way = [begun[world] for world in sorted(begun)]
        order = [*(game for game, _ in under_way), *range(following, self.games)]
        return order, [since - first for _, since in under_way]


def seen(task: SoccerVision1v1, episode: Episode, game: int) -> Frames:
    """What one player saw of a game, and what was there."""
    found, hides = places(episode.signals, task.field.length / 2.0)
    pan = episode.signals["pan"][:, 0]
    is_so = shown(found, hides, pan, np.radians(task.lens.view), task.robot.radius)
    turning = np.diff(pan, prepend=pan[:1]) * task.rate_hz + episode.signals["turning"][:, 0]
    turning[0] = 0.0  # a first picture stands still
    return Frames(episode.signals["camera"], *is_so, turning, np.full(len(pan), game))


def labels(frames: Frames, players: int) -> Array:
    """What a detector should tell (n, things, 3): 1, bearing, distance where something is there; else zeros."""
    there = np.stack([np.ones_like(frames.bearing), frames.bearing, frames.distance], axis=-1) * frames.there[..., None]
    return ranked(there.astype(np.float32), [*things(players).values()])

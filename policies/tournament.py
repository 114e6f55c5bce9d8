"""python -m policies.tournament players=A.onnx,B.onnx,chaser [key=value ...]: everybody plays everybody; who is best.

Players are policy files and the scripted opponents of the task. Each pair plays half of its games on either side. One
policy plays all robots of a team. Ratings are Elo's: 400 more are ten to one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.policy_file import PolicyFile
from deploy.system.files import write_atomic
from deploy.trust.content import content_of
from deploy.trust.text import printable
from sim.cluster import entered
from sim.env import make_env, with_engine
from sim.experts.soccer import Scripted
from sim.spec import Group
from sim.tasks import HasOpponents, Task, agents_of, make, task_class, teams_of, with_opponents
from sim.tasks.opponents import Play
from sim.tasks.recorded import recorded

Array = NDArray[Any]
TOGETHER = 200  # games, unless said otherwise
FIRST = 1000.0  # rating of the last player that is named
PRIOR = 0.5  # games more that each pair is said to have won and lost: nobody is infinitely better
OPPONENT = "an opponent in "
TENFOLD = 400.0  # difference of ratings at which one is expected to win ten games of eleven


@dataclass(kw_only=True)
class Config:
    """Settings of the command."""

    players: str = field(metadata={"help": "policy files and scripted opponents, separated by commas"})
    task: str = field(default="soccer_vision_1v1", metadata={"help": "the game, with all that some player senses"})
    engine: str = field(default="", metadata={"help": "that carries it out (default: the task's own)"})
    perception: str = field(default="pixels", metadata={"help": "what cameras tell, where there are any"})
    games: int = field(default=500, metadata={"help": "of each pair"})
    seed: int = field(default=0, metadata={"help": "of the games"})
    cluster: str = field(default="", metadata={"help": "where pairs play: ray, ray:2, ray:HOST:PORT (default: here)"})
    json: str | None = field(default=None, metadata={"help": "write the numbers to this file"})

    def __post_init__(self) -> None:
        if self.games < 2 or self.games % 2:
            raise ValueError(f"games must be even, half on either side, and at least 2, got {self.games}")


class Player(Protocol):
    """One side of some games."""

    name: str

    def begin(self, rows: int) -> None:
        """New games, with so many robots."""

    def act(self, signals: Mapping[str, Array]) -> Mapping[str, Array]:
        """Commands for what these robots sense."""


class FilePlayer:
    """A policy file. What it does not command is left alone."""

    def __init__(self, policy: PolicyFile, task: Task) -> None:
        """ValueError when it needs what the task does not have."""
        self.name, self.policy = os.path.basename(printable(policy.path)), policy
        check_fits(policy, task, (*task.policy, *task.privileged))

    def begin(self, rows: int) -> None:
        self.policy.reset(rows)

    def act(self, signals: Mapping[str, Array]) -> Mapping[str, Array]:
        return self.policy.step({s.name: signals[s.name] for s in self.policy.inputs})


def check_fits(policy: PolicyFile, task: Task, sensed: Group, whom: str = "") -> None:
    """ValueError when a policy file needs what `whom` (empty: somebody) of this task does not sense or command."""
    for what, own, theirs in (("senses", policy.inputs, sensed), ("commands", policy.outputs, task.commands)):
        known = {s.name: s.shape for s in theirs}
        for signal in own:
            if known.get(signal.name) != signal.shape:
                raise ValueError(f"{policy.path} {what} {signal.name!r} {signal.shape}, which {whom}{task.name} lacks")
    if policy.rate_hz != task.rate_hz:
        raise ValueError(f"{policy.path} runs at {policy.rate_hz:g} Hz, {task.name} at {task.rate_hz:g} Hz")


class FileOpponent:
    """A policy file that plays within the worlds of a task; see `sim.tasks.opponents.Opponent`."""

    def __init__(self, policy: PolicyFile, task: HasOpponents, rows: int) -> None:
        """ValueError when it needs what opponents in this task do not have."""
        check_fits(policy, task, task.opponent_senses, OPPONENT)
        self.policy, self._commands = policy, task.commands
        policy.reset(rows)

    def act(self, signals: Mapping[str, Array], episodes: Array, begun: Array) -> Mapping[str, Array]:
        self.policy.restart(begun)
        told = self.policy.step({s.name: signals[s.name] for s in self.policy.inputs})
        left_alone = {s.name: np.zeros((self.policy.n, *s.shape), np.float32) for s in self._commands}
        return {**left_alone, **told}

    def scored(self, rows: Array, against: Array) -> None:
        """It does not matter to it."""

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.states())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.put({name: np.asarray(value) for name, value in state.items()})


def facing(task: Task, opponent: str) -> Task:
    """The task, in which that scripted opponent or that policy file makes the other team."""
    game = with_opponents(task)
    if opponent in game.opponents:
        play = game.opponents[opponent]
        return game.against(lambda rows: Scripted(play), practice=False)
    if not opponent.endswith(".onnx"):
        scripted = ", ".join(game.opponents)
        raise ValueError(f"opponent {opponent!r} is neither one of {scripted} nor a policy file (.onnx)")
    check_fits(PolicyFile.load(opponent), game, game.opponent_senses, OPPONENT)  # says now why it cannot
    return game.against(lambda rows: FileOpponent(PolicyFile.load(opponent), game, rows), practice=False)


class ScriptedPlayer:
    """An opponent of the task."""

    def __init__(self, name: str, play: Play) -> None:
        self.name, self._play = name, play

    def begin(self, rows: int) -> None:
        """It remembers nothing."""

    def act(self, signals: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._play(signals)


def player(name: str, task: HasOpponents) -> Player:
    """A scripted opponent by its name, else a policy file."""
    if name in task.opponents:
        return ScriptedPlayer(name, task.opponents[name])
    return FilePlayer(PolicyFile.load(name), task)


def play(
    task: Task, players: Sequence[Player], games: Array, numbers: Array, seed: int, together: int = TOGETHER
) -> Array:
    """Points (games,) of the first of the two `players` (indices, (games, 2)) of each game, `together` at a time.

    1 for success, or where the other side alone is lost, 0 the other way round, 0.5 when the time is over. The first
    plays team 0, the second all others. A game's number (games,) decides how it begins.
    """
    agents, team, points = agents_of(task), np.minimum(teams_of(task), 1), np.full(len(games), 0.5)
    for first in range(0, len(games), together):
        sides = games[first : first + together]
        count, who = len(sides), sides[:, team].reshape(-1)
        env = make_env(task, count * agents, seed, several=True)
        env.reset(range(count * agents), np.repeat(numbers[first : first + count], agents).tolist())
        playing = [(player, rows) for k, player in enumerate(players) if len(rows := np.flatnonzero(who == k))]
        for player, rows in playing:
            player.begin(len(rows))
        over = np.zeros(count, bool)
        for _ in range(task.episode_steps):
            now = env.observe()
            command = {s.name: np.zeros((count * agents, *s.shape), np.float32) for s in task.commands}
            for player, rows in playing:
                for name, value in player.act({name: value[rows] for name, value in now.items()}).items():
                    command[name][rows] = value
            step = env.step(command)
            won, lost = (
                np.stack([x.reshape(count, agents)[:, team == side].any(axis=1) for side in (0, 1)], axis=1)
                for x in (step.success, step.terminated)
            )
            ends = ~over & (won | lost).any(axis=1)
            worth = np.where(won.any(axis=1), won[:, 0], 0.5 + 0.5 * (lost[:, 1].astype(float) - lost[:, 0]))
            points[first : first + count][ends] = worth[ends]
            over |= ends
            if over.all():
                break
        env.close()
    return points


def match(task: Task, sides: Sequence[Player], games: int, seed: int) -> Array:
    """Points (games,) of the first side against the second."""
    return play(task, sides, np.tile([[0, 1]], (games, 1)), np.arange(games), seed)


def contest(task: Task, players: Sequence[Player], games: int, seed: int, together: int = TOGETHER) -> Array:
    """Points (n, n) that each wins against each in so many games, half on either side, all of them at once."""
    pairs = np.array([*itertools.combinations(range(len(players)), 2)])
    both, half = np.concatenate([pairs, pairs[:, ::-1]]), games // 2
    points = play(task, players, both.repeat(half, axis=0), np.tile(np.arange(half), len(both)), seed, together)
    won = np.zeros((len(players), len(players)))
    np.add.at(won, (both[:, 0], both[:, 1]), points.reshape(-1, half).sum(axis=1))
    np.add.at(won, (both[:, 1], both[:, 0]), (1.0 - points).reshape(-1, half).sum(axis=1))
    return won


def pairing(words: Sequence[str], pair: tuple[int, int], files: Mapping[str, bytes]) -> float:
    """Points of the first of a pair of players, as the command's `words` say it; on any machine.

    `files`: the content of the players that are policy files, by the name that the words give them.
    """
    (config,) = cli.parse(words, Config)
    names, task = config.players.split(","), game(config)
    with tempfile.TemporaryDirectory(prefix="sim2metal-") as folder:
        sides = []
        for k in pair:
            path = Path(folder) / str(k) / os.path.basename(names[k])
            if names[k] in files:
                path.parent.mkdir()
                path.write_bytes(files[names[k]])
            sides.append(player(str(path) if names[k] in files else names[k], task))
        return duel(task, sides, config)


def duel(task: Task, sides: Sequence[Player], config: Config) -> float:
    """Points of the first in all games, half on either side."""
    half = config.games // 2
    points = match(task, sides, half, config.seed).sum()
    return float(points + half - match(task, sides[::-1], half, config.seed).sum())


def game(config: Config) -> HasOpponents:
    """The task, where both sides are told what to do."""
    known = task_class(config.task).Config.__dataclass_fields__
    settings = {"perception": config.perception} if "perception" in known else {}
    return with_both_sides(with_opponents(with_engine(make(config.task, **settings), config.engine)))


def with_both_sides(task: HasOpponents) -> HasOpponents:
    """The same game, where the robots of both teams are agents; ValueError where it has no such setting."""
    settings = recorded(task)
    if "opponent" not in settings:
        raise ValueError(f"{task.name} has no setting opponent=self, with which both teams are told what to do")
    kind: Any = type(task)
    made: HasOpponents = kind(kind.Config(**{**settings, "opponent": "self"}))
    return with_engine(made, task.engine)


def ratings(won: Array) -> Array:
    """Elo (n,) of what each has won against each (n, n), in games: the likeliest (Bradley and Terry 1952)."""
    won = won + PRIOR * (1.0 - np.eye(len(won)))
    played, strength = won + won.T, np.ones(len(won))
    for _ in range(1000):  # Hunter 2004's iteration, which converges
        strength = won.sum(axis=1) / (played / (strength[:, None] + strength)).sum(axis=1)
        strength /= strength[-1]
    rated: Array = FIRST + TENFOLD * np.log10(strength)
    return rated


def table(names: Sequence[str], won: Array, games: int) -> str:
    """The league: rating, share of the points, and that against each."""
    rated, share = ratings(won), won / games
    order = np.argsort(-rated)
    width = max(len(name) for name in names)
    lines = [f"{'player':{width}}   Elo  points, %" + "".join(f"  {names[k][:12]:>12}" for k in order)]
    for k in order:
        against = "".join("             -" if k == j else f"  {100 * share[k, j]:12.1f}" for j in order)
        points = 100.0 * share[k].sum() / (len(names) - 1)
        lines.append(f"{names[k]:{width}} {rated[k]:5.0f}  {points:9.1f}{against}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Play, print, write what was asked for."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    names = config.players.split(",")
    if len(names) < 2:
        raise ValueError(f"players={config.players}: at least two play")
    task = game(config)
    players = [player(name, task) for name in names]
    won, pairs = np.zeros((len(names), len(names))), [*itertools.combinations(range(len(names)), 2)]
    with entered(config.cluster) as nodes:
        points: Iterable[float] = (duel(task, (players[a], players[b]), config) for a, b in pairs)
        if nodes:
            from policies.tournament import pairing as work  # not this program's, which no node could import

            files = {name: content_of(name) for name in names if name not in task.opponents}
            points = nodes.mapped(work, [([*argv], pair, files) for pair in pairs])
        for (a, b), score in zip(pairs, points, strict=True):
            won[a, b], won[b, a] = score, config.games - score
            print(f"{players[a].name} - {players[b].name}: {won[a, b]:g} - {won[b, a]:g}", flush=True)
    print(f"\n{table([p.name for p in players], won, config.games)}")
    if config.json:
        found = {"players": names, "games": config.games, "seed": config.seed, "won": won.tolist()}
        content = json.dumps({**found, "elo": ratings(won).tolist()}, indent=2) + "\n"
        write_atomic(config.json, content.encode())


if __name__ == "__main__":
    sys.exit(cli.call(main))

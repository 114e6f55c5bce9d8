"""A learner against itself as it was and the scripted players of its game: who is how strong, over the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from policies.models.controller import Policy
from policies.models.export import to_bytes
from policies.runner.log import thousands
from policies.runner.report import table
from policies.tournament import FilePlayer, ScriptedPlayer, contest, ratings, with_both_sides
from sim.spec import pictures
from sim.tasks import Task, with_opponents

FINAL = "this policy"
GAMES, TOGETHER = 20, 20_000  # of each pair; at a time
SEEN = 8  # games of each pair where pictures are drawn, which take more time than all else
SNAPSHOTS = 20  # at most


@dataclass(frozen=True)
class League:
    """Everybody against everybody: the snapshots, the oldest first, the policy of now, rivals, the scripted ones."""

    task: str
    engine: str
    seed: int
    games: int  # of each pair
    names: tuple[str, ...]
    steps: tuple[int | None, ...]  # of the environment, that each had learned from; None: nobody who learns
    won: NDArray[np.float64]  # (n, n) points of the first against the second

    @property
    def elo(self) -> NDArray[np.float64]:
        """(n,): the last scripted player, who is the strongest, has 1000."""
        rated: NDArray[np.float64] = ratings(self.won)
        return rated

    @property
    def points(self) -> NDArray[np.float64]:
        """(n,): the share of them that each has won."""
        share: NDArray[np.float64] = self.won.sum(axis=1) / (self.games * (len(self.names) - 1))
        return share

    def json(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        rows = zip(self.names, self.steps, self.elo.round(1).tolist(), self.points.round(4).tolist(), strict=True)
        players = [dict(zip(("name", "env_steps", "elo", "points"), row, strict=True)) for row in rows]
        about = {"task": self.task, "engine": self.engine, "seed": self.seed, "games": self.games}
        return {**about, "players": players, "won": self.won.tolist()}


def _chosen(snapshots: Mapping[int, Policy], most: int) -> dict[int, Policy]:
    """At most so many, evenly from the first to the last."""
    every = sorted(snapshots)
    places = np.unique(np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int))
    return {every[k]: snapshots[every[k]] for k in places}


def played(
    task: Task,
    final: PolicyFile,
    snapshots: Mapping[int, Policy],
    steps: int,
    seed: int,
    rivals: Mapping[str, bytes] | None = None,
) -> League:
    """The games of a learner's snapshots, of what it is now, after so many `steps`, and of the scripted players.

    `rivals`: policy files by name, who play, too. What is exported plays. The same seed gives the same games.
    """
    game = with_both_sides(with_opponents(task))
    games, others = SEEN if pictures(game.policy) else GAMES, rivals or {}
    some = _chosen(snapshots, SNAPSHOTS)
    names = [f"after {thousands(age)} steps" for age in some]
    files = [
        PolicyFile.from_bytes(to_bytes(policy, name), name) for name, policy in zip(names, some.values(), strict=True)
    ]
    files += [final, *(PolicyFile.from_bytes(content, name) for name, content in others.items())]
    learned = [FilePlayer(file, game) for file in files]
    scripted = [ScriptedPlayer(name, play) for name, play in game.opponents.items()]
    won = contest(game, [*learned, *scripted], games, seed, TOGETHER)
    everybody = (*names, FINAL, *others, *game.opponents)
    ages = (*some, steps, *[None] * (len(others) + len(scripted)))
    return League(task.name, task.engine, seed, games, everybody, ages, won)


def text(league: League) -> str:
    """The table, the strongest first."""
    elo, order = league.elo, np.argsort(-league.elo, kind="stable")
    rows = [[league.names[k], f"{elo[k]:.0f}", f"{100.0 * league.points[k]:.1f}"] for k in order]
    return table([["in the league", "Elo", "points, %"], *rows])

"""A league to learn a game in: the learner's opponents are itself as it is, as it was, and scripted ones.

Playing against oneself alone goes in circles; against what one was, too, it does not (fictitious self-play, Heinrich et
al. 2015; the league of AlphaStar, Vinyals et al. 2019). Ratings are Elo's: 400 more are ten to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.models.controller import FeaturePolicy, Policy
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.env import stream
from sim.spec import pack, size, unpack
from sim.tasks import Task, with_opponents
from sim.tasks.opponents import Opponent, Play

Array = NDArray[Any]
PURPOSE = int.from_bytes(b"league")
LATEST = 0.3  # share of the games against itself as it is; the others are shared by how open their games are
RARELY = 0.02  # how open the games of an opponent count at least, who always wins or loses
FORGOTTEN = 0.02  # share of what is known of an opponent that a game replaces
KEPT = 20  # snapshots; of more, every other one is forgotten


def network_state(network: Network) -> list[Array]:
    """The arrays of a perceptron or a gated unit."""
    if isinstance(network, Mlp):
        return [part for layer in network.layers for part in layer]
    if isinstance(network, Gru):
        return [*network.input, network.w_ih, network.w_hh, network.b_ih, network.b_hh, *network.output]
    raise TypeError(f"{type(network).__name__} is no network that is learned in a league")


class League:
    """The opponents in the training of one task; a game's number decides which of them plays it."""

    def __init__(self, task: Task, seed: int, others: Mapping[str, Play] | None = None, itself: bool = True) -> None:
        """`others`: more opponents than the task has. Not `itself`: the learner does not play against itself.

        Nor does who senses what opponents are not told.
        """
        self.task, self.seed = with_opponents(task), stream(seed, PURPOSE)
        self.itself = itself and all(s in self.task.opponent_senses for s in self.task.policy)
        played = {**self.task.opponents, **(others or {})}
        self.names, self.scripted = list(played), list(played.values())
        self.latest: FeaturePolicy | None = None
        self.past: list[FeaturePolicy] = []
        self.ages: list[int] = []  # environment steps that each of the past had learned from
        self.partner: FeaturePolicy | None = None  # of the past, for now
        self.won = np.full(2 + len(self.scripted), 0.5)  # share of the points, against whom
        self._rng = np.random.default_rng(self.seed)

    def judge(self, who: int, points: float) -> None:
        """Of a game that is over: 1 when the learner has won it, 0.5 when nobody has."""
        self.won[who] += FORGOTTEN * (points - self.won[who])

    def points(self) -> dict[str, float]:
        """The learner's share of them, by opponent."""
        names = ["latest", "past", *self.names]
        return dict([*zip(names, self.won.tolist(), strict=True)][0 if self.itself else 2 :])

    def drawn(self, episode: int) -> int:
        """Whom a game is played against: mostly those whom the learner beats every other time (Vinyals et al.)."""
        rng = np.random.default_rng([self.seed, episode])
        if self.itself and rng.random() < LATEST:
            return 0
        weight = self.won[1:] * (1.0 - self.won[1:]) + RARELY
        weight[0] *= self.itself
        return 1 + int(rng.choice(len(weight), p=weight / weight.sum()))

    def training(self) -> Task:
        """The task as it is learned: against this league."""
        return self.task.against(self.opponent)

    def meet(self, latest: FeaturePolicy, keep: bool, steps: int = 0) -> None:
        """The learner as it is now; with `keep` it is remembered. Somebody of the past becomes the partner.

        `steps` of the environment it has learned from.
        """
        self.latest = latest
        if keep:
            self.past.append(latest)
            self.ages.append(steps)
            if len(self.past) > KEPT:
                del self.past[1:-1:2], self.ages[1:-1:2]
        if self.past:
            self.partner = self.past[self._rng.integers(len(self.past))]
            self.won[1] = 0.5

    def snapshots(self) -> dict[int, Policy]:
        """The past, by the steps until then."""
        return dict(zip(self.ages, self.past, strict=True))

    def opponent(self, rows: int) -> Opponent:
        """Who acts in so many rows."""
        return Team(self, rows)

    def state_dict(self) -> dict[str, Any]:
        """Everybody in it."""
        where = [k for k, policy in enumerate(self.past) if policy is self.partner]
        return {
            "latest": [] if self.latest is None else network_state(self.latest.network),
            "past": [network_state(policy.network) for policy in self.past],
            "ages": [*self.ages],
            "partner": where[0] if where else -1,
            "won": self.won.copy(),
            "seed": self.seed,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any], like: FeaturePolicy | None = None) -> None:
        """Continue from there; `like` is any policy of the same learner, where it plays against itself."""
        if like:
            self.past = [with_weights(like, arrays) for arrays in state["past"]]
            self.ages = [int(steps) for steps in state["ages"]]
            self.latest = with_weights(like, state["latest"]) if len(state["latest"]) else None
        self.partner = self.past[int(state["partner"])] if int(state["partner"]) >= 0 else None
        self.won, self.seed = np.array(state["won"]), int(state["seed"])
        self._rng.bit_generator.state = state["rng"]


def with_weights(like: FeaturePolicy, arrays: Sequence[Array]) -> FeaturePolicy:
    """The same policy with other numbers in its network, as `network_state` gave them."""
    arrays = [np.asarray(a) for a in arrays]
    if isinstance(like.network, Mlp):
        network: Network = Mlp([*zip(arrays[::2], arrays[1::2], strict=True)], like.network.activation)
    else:
        encoder, last = (arrays[0], arrays[1]), (arrays[6], arrays[7])
        network = Gru(encoder, arrays[2], arrays[3], arrays[4], arrays[5], last)
    return dataclasses.replace(like, network=network)


class Team:
    """The other team's robots; see `sim.tasks.opponents.Opponent`. Those of one game are all played by the same."""

    def __init__(self, league: League, rows: int) -> None:
        self.league = league
        self.who = np.zeros(rows, np.int64)  # 0: the latest, 1: the partner, then the scripted ones
        self.open = np.zeros(rows, bool)  # a game that has not been won
        self.state: dict[str, Array] = {}  # what the first two remember, (2, rows, k)

    def act(self, signals: Mapping[str, Array], episodes: Array, begun: Array) -> dict[str, Array]:
        for row in np.flatnonzero(begun):
            if self.open[row]:
                self.league.judge(int(self.who[row]), 0.5)
            self.who[row], self.open[row] = self.league.drawn(int(episodes[row])), True
        for value in self.state.values():
            value[:, begun] = 0.0
        commands, league = self.league.task.commands, self.league
        told = np.zeros((len(self.who), size(commands)), np.float32)
        for k, policy in enumerate((league.latest, league.partner or league.latest)):
            rows = np.flatnonzero(self.who == k)
            if policy is not None and len(rows):
                told[rows] = pack(commands, self._played(k, policy, rows, signals))
        for k, play in enumerate(league.scripted, 2):
            rows = np.flatnonzero(self.who == k)
            if len(rows):
                told[rows] = pack(commands, play({name: value[rows] for name, value in signals.items()}))
        return unpack(commands, told)

    def scored(self, rows: Array, against: Array) -> None:
        for row, won in zip(rows, against, strict=True):
            if self.open[row]:
                self.league.judge(int(self.who[row]), float(won))
                self.open[row] = False

    def _played(self, k: int, policy: FeaturePolicy, rows: Array, signals: Mapping[str, Array]) -> dict[str, Array]:
        if not self.state:
            self.state = {name: np.stack([v, v]) for name, v in policy.initial_state(len(self.who)).items()}
        seen = {name: value[rows] for name, value in signals.items()}
        commands, after = policy.act(seen, {name: value[k, rows] for name, value in self.state.items()})
        for name, value in after.items():
            self.state[name][k, rows] = value
        return commands

    def state_dict(self) -> dict[str, Any]:
        """Who plays where, and what he remembers."""
        kept = {name: value.copy() for name, value in self.state.items()}
        return {"who": self.who.copy(), "open": self.open.copy(), "state": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.who, self.open = np.array(state["who"]), np.array(state["open"])
        self.state = {name: np.array(value) for name, value in state["state"].items()}

"""Race a small car among others on tracks that it has never seen, told by a lidar, without running into any of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from sim.env import Array, for_whole_worlds
from sim.experts.racing import following, paced, passing
from sim.experts.soccer import Scripted
from sim.spec import Group, Signal
from sim.tasks import Recipes
from sim.tasks.opponents import Opponent, Play
from sim.tasks.race import BESIDE, CarRace, RaceConfig
from sim.tasks.race.recipes import AMONG_OTHERS
from sim.terms import Mirror

if TYPE_CHECKING:
    from sim.tasks.race.field import Races
    from sim.tasks.race.rehearsal import Rehearsal

# Rivals that drive with so much of the speed with which pure pursuit would, and stay behind others.
PACES = {"slow": 0.4, "slower": 0.7, "pursuit": 1.0}
MIXED, SELF = "mixed", "self"
MOST = 8  # cars on a track


@dataclass
class MultiConfig(RaceConfig):
    """Settings of a race of several cars."""

    EXPERTS: ClassVar[tuple[str, ...]] = ("passing", "pursuit")
    OPPONENTS: ClassVar[tuple[str, ...]] = (*PACES, "passing", MIXED, SELF)

    expert: str = "passing"  # who shows how: passing | pursuit
    cars: int = 3  # on a track
    # slow | slower | pursuit | passing | mixed: each with a pace of its own | self: one policy drives all cars
    opponent: str = MIXED

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opponent not in self.OPPONENTS:
            raise ValueError(f"opponent {self.opponent!r} is not one of {', '.join(self.OPPONENTS)}")
        if not 2 <= self.cars <= MOST:
            raise ValueError(f"cars must be between 2 and {MOST}, got {self.cars}")


class CarRaceMulti(CarRace):
    """The same, among other cars, on the CPU"""

    Config = MultiConfig
    config: MultiConfig
    name = "car_race_multi"
    engines: ClassVar[Mapping[str, str]] = {"car": "sim.engines.car.contacts:CarsTogether"}
    scores = {**CarRace.scores, "clean": "%", "place": "1", "overtook": "1", "overtaken": "1"}
    recipes: ClassVar[Recipes] = {"ppo": {"default": AMONG_OTHERS}}

    def __init__(self, config: MultiConfig | None = None) -> None:
        super().__init__(config or MultiConfig())
        c = self.config
        self.cars = c.cars
        self.agents = c.cars if c.opponent == SELF else 1
        self.teams = tuple(range(self.agents))
        others = 2 * (c.cars - 1)
        self.privileged: Group = (
            *self.privileged,
            Signal("others", (others,), "m", "body"),  # where the other cars are, the nearest along the track first
            Signal("others_velocity", (others,), "m/s", "body"),  # relative to it
            Signal("place", (1,), "1"),  # 1: it leads. Who passes another one is ahead by a car's length
            Signal("met", (1,), "1"),  # 1: another car touched it, now
            Signal("ran_into", (1,), "m/s"),  # another car, by its own fault, now
        )
        self.opponent_senses: Group = (*self.policy, *self.privileged, Signal("pace", (1,), "1"))
        (mirror,) = self.mirrors
        self.mirrors = (Mirror({**mirror.changes, **dict.fromkeys(("others", "others_velocity"), BESIDE)}),)
        self.opponents: dict[str, Play] = {
            **{name: functools.partial(following, self, pace=pace) for name, pace in PACES.items()},
            "passing": functools.partial(passing, self),
        }
        self._rival: Callable[[int], Opponent] | None = None

    @property
    def baselines(self) -> Mapping[str, Play]:
        """Who drives past others, and who stays behind them."""
        return {name: self.opponents[name] for name in self.config.EXPERTS}

    def against(self, opponent: Callable[[int], Opponent], practice: bool = True) -> CarRaceMulti:
        """The same, where `opponent(rows)` drives the other cars; it is practised as it is raced."""
        made = copy.copy(self)
        made.agents, made.teams, made._rival = 1, (0,), opponent
        return made

    def opponent(self, rows: int) -> Opponent:
        """Who drives the other cars."""
        if self._rival:
            return self._rival(rows)
        name = self.config.opponent
        return Scripted(functools.partial(paced, self) if name == MIXED else self.opponents[name])

    def _with(self, **settings: Any) -> Self:
        made = super()._with(**settings)
        made.agents, made.teams, made._rival = self.agents, self.teams, self._rival
        return made

    def open(self, num: int, seed: int) -> Races:  # type: ignore[override]
        from sim.tasks.race.field import Races

        return Races(self, num, seed)

    def rehearsal(self, num: int, seed: int, steps: int) -> Rehearsal:
        if self.agents > 1:
            raise ValueError(f"apg drives one car on each track: with opponent=self there are {self.agents}")
        return super().rehearsal(num, seed, steps)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """Also `clean`: no wall was touched, and no other car was run into; `place` at the end; and places won and
        lost until then.
        """
        over = (flight["success"] != 0.0) | (flight["terminated"] != 0.0)
        if over.shape[1] % self.agents == 0:  # whole worlds, which end for all of their agents
            over = for_whole_worlds(self.agents, over[..., 0])[..., None]
        scores = super().score({**flight, "terminated": over.astype(np.float32)})
        steps = np.arange(len(over))[:, None]
        last = np.where(over.any(axis=0), over.argmax(axis=0), len(over) - 1)[:, 0]
        until = steps <= last
        place = flight["place"][..., 0]
        changes = np.diff(place, axis=0) * until[1:]
        touched = (flight["touched"][..., 0] > 0.0) | (flight["ran_into"][..., 0] > 0.0)
        lost = np.take_along_axis(flight["terminated"][..., 0], last[None], axis=0)[0] > 0.0
        won = scores["success"] > 0.0
        more = {
            "clean": won | ~(lost | (touched & until).any(axis=0)),
            "place": np.take_along_axis(place, last[None], axis=0)[0],
            "overtook": np.maximum(-changes, 0.0).sum(axis=0),
            "overtaken": np.maximum(changes, 0.0).sum(axis=0),
        }
        return scores | {name: np.asarray(value, np.float32) for name, value in more.items()}

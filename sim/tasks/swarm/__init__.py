"""Several quadrotors in one airspace go to their places, past one another, with direct motor commands.

All have one policy. Each is told its own state, its target, and where its nearest neighbours are: what a motion
capture system or positions on the radio give. They blow on those below them (`sim/engines/flight/airspace.py`). A touch
ends the flight, for all in that airspace: what propellers do to one another is not modelled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sim.env import Array, for_whole_worlds, outcome_scores
from sim.experts.swarm import avoiding, straight
from sim.randomize import Dropout, Noise, Vary
from sim.robots import quadrotor, robot
from sim.robots.mirrors import quadrotor_mirrors
from sim.spec import Group, Signal
from sim.tasks import Recipes
from sim.tasks.opponents import Play
from sim.tasks.quad_hover import POSITION_SCALE, RATE_SCALE, VARIATIONS, VELOCITY_SCALE, delayed, state_estimate
from sim.tasks.swarm.places import CLEAR, MODES, least
from sim.tasks.swarm.recipes import APG, PPO
from sim.terms import Feature, Mirror

if TYPE_CHECKING:
    from sim.tasks.swarm.alone import Alone
    from sim.tasks.swarm.rehearsal import Rehearsal
    from sim.tasks.swarm.world import Swarm

MOST, MOST_PILLARS = 16, 8  # vehicles, obstacles
CLOSE, HOLD = 0.2, 1.0  # m from its target within which each must stay, and s for which all do, at the same time
LOST_DISTANCE, LOST_RATE = 10.0, 35.0  # m from its target, rad/s
BESIDE = 0.1  # m between those who are next to one another: two that meet at 10 m/s, in a control step
NEAR = 0.5  # m: neighbours that are further away look alike to a network, but for their direction
PILLARS = 2  # the nearest ones, of which each vehicle is told
# Of where others are and how fast they move: m, m/s, and the share of packets that a radio loses.
SEEN, SEEN_MOVING, MISSED = 0.01, 0.05, 0.05


@dataclass
class SwarmConfig:
    """Settings of a swarm."""

    robot: str = "crazyflie"
    vehicles: int = 8
    fewest: int = 0  # vehicles, at least, of groups that learn apart in a part of the airspaces; 0: all together
    mode: str = "crossing"  # crossing: of a circle | sphere | formation: which moves | mixed: each of them
    radius: float = 2.0  # m, of circle and sphere
    neighbours: int = 4  # the nearest ones, of whom each is told
    obstacles: int = 0  # upright pillars among them; one for which there is no room is left out
    obstacle_radius: float = 0.15  # m
    rate_hz: float = 100.0
    episode_s: float = 10.0
    delay_high: float = 0.022  # s, latency between command and rotor, at most
    vary: bool = True  # masses, thrusts, lags, latencies, and noise
    crowd: float = 8.0  # what it costs a learner, in each control step, to be where another one is
    expert: str = "avoiding"  # who shows how: avoiding | straight

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.expert not in ("avoiding", "straight"):
            raise ValueError(f"expert {self.expert!r} is not one of avoiding, straight")
        if not 2 <= self.vehicles <= MOST:
            raise ValueError(f"vehicles must be between 2 and {MOST}, got {self.vehicles}")
        if self.fewest and not 2 <= self.fewest <= MOST:
            raise ValueError(f"fewest must be 0, or between 2 and {MOST}, got {self.fewest}")
        if not 1 <= self.neighbours < MOST:
            raise ValueError(f"neighbours must be between 1 and {MOST - 1}, got {self.neighbours}")
        if not (0 <= self.obstacles <= MOST_PILLARS and 0.02 <= self.obstacle_radius <= 0.5):
            raise ValueError(
                f"obstacles must be between 0 and {MOST_PILLARS}, and obstacle_radius between 0.02 and 0.5 m, "
                f"got {self.obstacles} and {self.obstacle_radius}"
            )
        if not (10.0 <= self.rate_hz <= 1000.0 and 1.0 <= self.episode_s <= 100.0):
            raise ValueError(f"needs rate_hz 10..1000 and episode_s 1..100, got {self.rate_hz} and {self.episode_s}")
        if not 0.5 <= self.radius <= 4.5:  # LOST_DISTANCE lies beyond what is across
            raise ValueError(f"radius must be between 0.5 and 4.5 m, got {self.radius}")
        if self.obstacles and self.mode != "formation" and self.radius <= CLEAR + self.obstacle_radius:
            raise ValueError(
                f"obstacles of {self.obstacle_radius} m have no room in a radius of {self.radius} m, with "
                f"mode={self.mode}: it must be above {CLEAR + self.obstacle_radius:g} m"
            )
        if not 0.0 <= self.crowd <= 1000.0:
            raise ValueError(f"crowd must be between 0 and 1000, got {self.crowd}")
        if not 0.0 <= self.delay_high <= 0.1:
            raise ValueError(f"delay_high must be between 0 and 0.1 s, got {self.delay_high}")


class QuadSwarm:
    """Success, for all or none: nobody touched anybody, and all are within 0.2 m of their targets for a second."""

    Config: type = SwarmConfig
    name = "quad_swarm"
    engines: ClassVar[Mapping[str, str]] = {"flight": "sim.engines.flight.together:FlightTogether"}
    engine = "flight"
    algorithm = "apg"
    goal = "target_position"
    scores = {"success": "%", "duration": "s", "arrived": "%", "touched": "%", "lost": "%", "min_distance": "m"}
    corruption: ClassVar[dict[str, float]] = {"position": 0.1, "linear_velocity": 0.1, "motor_command": 0.05}
    recipes: ClassVar[Recipes] = {"apg": {"default": APG}, "ppo": {"default": PPO}}

    def __init__(self, config: SwarmConfig | None = None) -> None:
        self.config = c = config or SwarmConfig()
        made = quadrotor(robot(c.robot))
        if made is None or made.all_differ:
            raise ValueError(f"{self.name} flies vehicles of one name, which {c.robot!r} is not")
        self.robot = made
        if 2.0 * made.extent >= min(least(c.mode, c.vehicles, c.radius)):
            raise ValueError(
                f"vehicles of {2.0 * made.extent:.2f} m may touch as they begin, or at their places: fewer of them, a "
                f"larger radius, or a smaller robot than {made.name}"
            )
        self.agents, self.teams = c.vehicles, (0,) * c.vehicles
        self.rate_hz, self.episode_steps = c.rate_hz, round(c.episode_s * c.rate_hz)
        self.envelope: dict[str, Any] = {"max_body_rate": LOST_RATE}
        self.noise = float(c.vary)  # times what is declared
        near, others = 3 * c.neighbours, 3 * (c.vehicles - 1)
        lost = Dropout(MISSED)
        self.policy: Group = (
            *state_estimate(1.0),
            Signal("target_position", (3,), "m", "world", max_age=1.0),
            Signal("target_velocity", (3,), "m/s", "world", max_age=1.0),
            # From it to its nearest neighbours, the nearest first, and relative to it; who is not there is 10 m below.
            Signal("neighbours", (near,), "m", "world", imperfections=(Noise(SEEN), lost)),
            Signal("neighbours_velocity", (near,), "m/s", "world", imperfections=(Noise(SEEN_MOVING), lost)),
        )
        self.privileged: Group = (
            Signal("rotor_speed", (4,), "1"),
            Signal("mass", (1,), "kg"),
            Signal("thrust_scale", (4,), "1"),
            Signal("rotor_lag", (1,), "1"),
            Signal("delay", (1,), "1"),  # control steps
            Signal("wash", (1,), "N", "world"),  # upward: what others blow on it
            Signal("others", (others,), "m", "world"),  # as its neighbours, all of them
            Signal("others_velocity", (others,), "m/s", "world"),
            Signal("nearest", (1,), "m"),  # from centre to centre, at the closest moment of the last step
            Signal("touched", (1,), "1"),  # 1: another vehicle, or a pillar, now
            Signal("strayed", (1,), "1"),  # 1: it is on the floor, tumbles, or is far away
        )
        if c.obstacles:
            # From it to the nearest surfaces, level; who is not there is 10 m below.
            self.policy += (Signal("obstacles", (3 * PILLARS,), "m", "world", imperfections=(Noise(SEEN),)),)
            self.privileged += (
                Signal("pillars", (3 * c.obstacles,), "m", "world"),  # x and y from it to their axes, and radii
                Signal("obstacle_gap", (1,), "m"),  # from its centre to the nearest surface, as `nearest`
            )
        self.commands = delayed(self.robot.commands, 0.0, c.delay_high if c.vary else 0.0)
        width, (fast, slow), _ = VARIATIONS["narrow"]
        ranges = {"mass": (1.0 - width, 1.0 + width), "thrust_scale": (1.0 - width, 1.0 + width)}
        self.vary = tuple(Vary(name, *ends) for name, ends in ranges.items() if c.vary)
        self.vary += (Vary("rotor_lag", fast, slow, distribution="log_uniform"),) * c.vary
        self.features: tuple[Feature, ...] = (
            Feature("position", minus="target_position", squash=POSITION_SCALE),
            Feature("rotation"),
            Feature("linear_velocity", minus="target_velocity", squash=VELOCITY_SCALE),
            Feature("angular_velocity", scale=RATE_SCALE),
            Feature("neighbours", scale=1.0 / NEAR, squash=NEAR),
            Feature("neighbours_velocity", squash=VELOCITY_SCALE),
        )
        if c.obstacles:
            self.features += (Feature("obstacles", scale=1.0 / NEAR, squash=NEAR),)
        vectors = ("neighbours", "neighbours_velocity", "others", "others_velocity", "obstacles", "pillars")
        self.mirrors = tuple(
            Mirror({**m.changes, **dict.fromkeys(vectors, m.changes["position"])})
            for m in quadrotor_mirrors(self.robot)
        )

    @functools.cached_property
    def baselines(self) -> Mapping[str, Play]:
        """A cascaded PID that flies around others, and one that does not care."""
        return {"avoiding": functools.partial(avoiding, self), "straight": functools.partial(straight, self)}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return dict(self.baselines[self.config.expert](signals))

    def open(self, num: int, seed: int) -> Swarm:
        from sim.tasks.swarm.world import Swarm

        return Swarm(self, num, seed)

    def rehearsal(self, num: int, seed: int, steps: int) -> Rehearsal:
        from sim.tasks.swarm.rehearsal import Rehearsal

        return Rehearsal(self, num, seed, steps)

    def alone(self) -> Alone:
        """One vehicle with nobody else, which is told what a policy of the swarm is told first."""
        from sim.tasks.swarm.alone import Alone

        return Alone(self, LOST_DISTANCE, LOST_RATE)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """`arrived`: whether each was at its target when it was over; `touched` another one or a pillar, or `lost` (on
        the floor, tumbling or far away): why it ended; `min_distance`: from centre to centre, until then.

        A flight holds what was so before each step: who ended next to somebody has touched it.
        """
        over = ((flight["success"] != 0.0) | (flight["terminated"] != 0.0))[..., 0]  # (steps, n)
        if over.shape[1] % self.agents == 0:  # whole worlds, which end for all of their agents
            over = for_whole_worlds(self.agents, over)
        last = np.where(over.any(axis=0), over.argmax(axis=0), len(over) - 1)
        until = np.arange(len(over))[:, None] <= last
        away = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)
        each = np.arange(over.shape[1])
        ended = flight["terminated"][last, each, 0] > 0.0
        beside = flight["nearest"][last, each, 0] < 2.0 * self.robot.extent + BESIDE
        if self.config.obstacles:
            beside |= flight["obstacle_gap"][last, each, 0] < self.robot.extent + 0.5 * BESIDE
        more = {
            "duration": (last + 1) / self.rate_hz,
            "arrived": away[last, each] < CLOSE,
            "touched": ended & beside,
            "lost": ended & ~beside,
            "min_distance": np.where(until, flight["nearest"][..., 0], math.inf).min(axis=0),
        }
        decided = dict(flight) | {"success": flight["success"] * until[..., None]}  # a touch ends it for all of them
        return outcome_scores(decided, self.rate_hz) | {k: np.asarray(v, np.float32) for k, v in more.items()}

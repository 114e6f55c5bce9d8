"""Race a quadrotor through gates in order, on tracks that it has never seen, with direct motor commands.

The reward is that of Swift (Kaufmann et al. 2023, Nature 620, "Champion-level drone racing using deep reinforcement
learning"), after Song et al. 2021 (arXiv 2103.08624): the way made toward the next gate, a little for keeping it in
view, and prices for changes of the commands and for crashing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from sim.engines import ENGINES
from sim.env import Array, outcome_scores, undecided
from sim.experts.gates import check_planned, follow
from sim.experts.time_optimal import STEPS
from sim.randomize import Bias, Delay, Noise, Vary
from sim.registry import check_named
from sim.robots import robot
from sim.robots.mirrors import quadrotor_mirrors
from sim.scenes.gates import FIXED, GateTrack, random_gates, read_gates
from sim.spec import Group, Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.gates.recipes import APG, PPO
from sim.tasks.opponents import Play
from sim.terms import Feature, Mirror

if TYPE_CHECKING:
    from sim.tasks.gates.rehearsal import Rehearsal
    from sim.tasks.gates.world import GateRace

RATE = 100.0  # Hz
STARTS = ("line", "anywhere", "reference")
REFERENCE = "time_optimal"
CORNERS = ([3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8], [1.0, -1.0, 1.0] * 4)  # what a mirror makes of an opening
BESIDE = ([0, 1, 2], [1.0, -1.0, 1.0])
LATENCY = (0.0, 0.02)  # s, of commands
# What differs from episode to episode, as for `quad_hover`.
VARY = (
    Vary("mass", 0.9, 1.1),
    Vary("thrust_scale", 0.9, 1.1),
    Vary("rotor_lag", 0.7, 1.4, distribution="log_uniform"),
)


@dataclass
class GateConfig:
    """Settings of a race through gates."""

    robot: str = "racer"
    track: str = field(default="random", metadata={PLACE: True})  # random | figure_eight | split_s | a CSV file
    tracks: int = 64  # random ones among which episodes choose; other seeds make others
    laps: int = 1
    # line: at rest before the first gate | anywhere: before any gate, half of them flying | reference: on the
    # time-optimal trajectory, or beside it, as fast as it is there. Who is judged begins at the line, unless told.
    start: str = "line"
    retry: bool = True  # a gate that was missed can be flown again; else missing it ends the episode
    vary: bool = True  # mass, thrust and rotor lag, latencies, and noise
    reference: bool = False  # plan the time-optimal trajectory of every track, and tell it to scripted controllers
    plan_steps: int = STEPS  # of the search for that: 12 take a third of the time, and laps get 5 % slower
    pace: float = 1.0  # of the trajectory that is followed: with 0.8 the same way takes 1.25 times as long
    steps: int = 1200  # of an episode at most

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start {self.start!r} is not one of {', '.join(STARTS)}")
        if not (1 <= self.steps <= 100_000 and 1 <= self.tracks <= 1000 and 1 <= self.laps <= 100):
            raise ValueError(
                "needs steps 1 to 100000, tracks 1 to 1000 and laps 1 to 100, got "
                f"{self.steps}, {self.tracks} and {self.laps}"
            )
        if not 0 <= self.plan_steps <= 1000:
            raise ValueError(f"plan_steps must be within 0..1000, got {self.plan_steps}")
        if not 0.2 <= self.pace <= 1.0:
            raise ValueError(f"pace must be within 0.2..1, got {self.pace:g}")
        if self.reference and self.start == "anywhere":
            raise ValueError("the time-optimal trajectory does not pass there: reference needs start=line or reference")


class QuadGateRace:
    """Success: all gates are passed, in order, without touching a frame or the ground."""

    Config: type = GateConfig
    name = "quad_gate_race"
    rate_hz = RATE
    engines: ClassVar[Mapping[str, str]] = ENGINES
    engine = "flight"
    algorithm = "ppo"
    scores = {"success": "%", "duration": "s", "gates": "%", "lap_time": "s", "speed": "m/s"}
    goal = ""
    # Of the expert, where it is mediocre.
    corruption: ClassVar[dict[str, float]] = {"position": 0.1, "linear_velocity": 0.3, "motor_command": 0.05}
    recipes: ClassVar[Recipes] = {"apg": {"default": APG}, "ppo": {"default": PPO}}

    def __init__(self, config: GateConfig | None = None) -> None:
        self.config = c = config or GateConfig()
        self.robot = robot(c.robot)
        if self.robot.all_differ:
            raise ValueError(f"{self.name} needs one airframe, not {c.robot!r}, whose vehicles all differ")
        self.episode_steps = c.steps
        self.vary = VARY if c.vary else ()
        self.noise = float(c.vary)  # times what is declared
        self.radius = self.robot.extent  # m, of the sphere that must not touch anything
        # Where gates are is known to a few centimetres: noise of each moment, and a drift that stays.
        gate = (12,), "m", "body"
        seen = (Noise(0.01), Bias(0.02))
        self.policy: Group = (
            Signal("projected_gravity", (3,), "1", "body", imperfections=(Noise(0.005),)),
            Signal("linear_velocity", (3,), "m/s", "body", imperfections=(Noise(0.02), Bias(0.02))),
            Signal("angular_velocity", (3,), "rad/s", "body", imperfections=(Noise(0.02),)),
            Signal("next_gate", *gate, imperfections=seen),  # corners: upper left, upper right, lower right, lower left
            Signal("gate_after", *gate, imperfections=seen),
            *(Signal(f"last_{s.name}", s.shape, s.unit, s.frame, s.low, s.high) for s in self.robot.commands),
        )
        self.privileged: Group = (
            Signal("position", (3,), "m", "world"),
            Signal("rotation", (9,), "1", "body->world", -1.1, 1.1),
            Signal("rotor_speed", (4,), "1"),
            Signal("mass", (1,), "kg"),
            Signal("thrust_scale", (4,), "1"),
            Signal("rotor_lag", (1,), "1"),
            Signal("gate_place", (3,), "m", "gate"),  # where it is in the next gate's axes
            Signal("clearance", (1,), "m"),  # from its sphere to the nearest frame, or the ground
            Signal("passed", (1,), "1"),  # the share of the gates
            Signal("hit", (1,), "1"),  # 1: a frame or the ground
            # Position and velocity of the time-optimal trajectory where it is nearest, and acceleration and jerk a
            # little later; 0: none is planned
            Signal("reference", (12,), "1", "world"),
        )
        delay = (Delay(*LATENCY),)
        self.commands: Group = tuple(replace(s, imperfections=delay) for s in self.robot.commands)
        self.features: tuple[Feature, ...] = (
            Feature("projected_gravity"),
            Feature("linear_velocity", scale=0.1),
            Feature("angular_velocity", scale=0.1),
            Feature("next_gate", squash=8.0, scale=0.3),
            Feature("gate_after", squash=16.0, scale=0.15),
            Feature("last_motor_command", scale=2.0),
        )
        self.envelope: dict[str, Any] = {"max_body_rate": 35.0}
        self.mirrors: tuple[Mirror, ...] = tuple(
            Mirror(
                {
                    **mirror.changes,
                    **dict.fromkeys(("next_gate", "gate_after"), CORNERS),
                    **dict.fromkeys(("projected_gravity", "gate_place"), BESIDE),
                    "reference": BESIDE,
                    "last_motor_command": mirror.changes["motor_command"],
                }
            )
            for mirror in quadrotor_mirrors(self.robot)
            if list(mirror.changes["linear_velocity"][1]) == BESIDE[1]
        )

    def judged(self) -> QuadGateRace:
        """From the line, at the full pace, where a gate that is missed can be flown again."""
        return self._with(start="line", retry=True, pace=1.0)

    def conditions(self) -> dict[str, QuadGateRace]:
        """Nominal, as in training, and on the fixed tracks, which no training sees; all from the line."""
        usual = self.judged()._with(track="random", vary=False)
        fixed = {name: usual._with(track=name) for name in FIXED}
        return {"nominal": usual, "as in training": usual._with(vary=True), **fixed}

    @property
    def planned(self) -> bool:
        """Whether the time-optimal trajectory of every track is."""
        return self.config.reference or self.config.start == "reference"

    def _with(self, **settings: Any) -> Self:
        """The same with other settings."""
        made = type(self)(replace(self.config, **settings))
        made.engine = self.engine
        return made

    def pool(self, seed: int) -> tuple[GateTrack, ...]:
        """The tracks of its episodes: random ones are the seed's own, so that no other purpose sees them."""
        if self.config.track == "random":
            return random_pool(seed, self.config.tracks)
        if self.config.track in FIXED:
            return (FIXED[self.config.track](),)
        check_named("track", self.config.track)
        track = read_gates(self.config.track)
        if track.size.min() <= 2.0 * self.radius:
            size = f"{track.size.min():g} m"
            raise ValueError(
                f"{track.name}: a gate is {size} wide or high, {self.robot.name} takes {2 * self.radius:.2f}"
            )
        return (track,)

    @property
    def baselines(self) -> Mapping[str, Play]:
        """Who follows the time-optimal trajectory; it must be planned (`reference`)."""
        return {REFERENCE: functools.partial(follow, self)}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """The same; NoExpertError where no trajectory is planned."""
        return follow(self, signals)

    def check_expert(self) -> None:
        """NoExpertError where no trajectory is planned."""
        check_planned(self)

    def open(self, num: int, seed: int) -> GateRace:
        from sim.tasks.gates.world import GateRace

        return GateRace(self, num, seed)

    def rehearsal(self, num: int, seed: int, steps: int) -> Rehearsal:
        from sim.tasks.gates.rehearsal import Rehearsal

        return Rehearsal(self, num, seed, steps)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """`gates`: the share that is passed in this flight; `lap_time`: of a lap, or, of what is none, at that pace.

        That is from rest, before any gate is passed: `lap_time` is NaN of a flight that began otherwise.
        """
        scores = outcome_scores(flight, RATE)
        begun = flight["passed"][0, :, 0]
        resting = (begun == 0.0) & ~flight["linear_velocity"][0].any(axis=-1)
        last = undecided(flight).sum(axis=0)[None] - 1
        share = np.take_along_axis(np.maximum.accumulate(flight["passed"][..., 0], axis=0), last, axis=0)[0]
        share = np.where(scores["success"] > 0.0, 1.0, np.clip(share, 0.0, 1.0)) - begun
        pace = np.cumsum(np.linalg.norm(flight["linear_velocity"], axis=-1), axis=0)
        speed = np.take_along_axis(pace, last, axis=0)[0] / (last[0] + 1)
        lap_time = (last[0] + 1) / RATE / self.config.laps / np.maximum(share, 0.01)
        more = {"gates": share, "lap_time": np.where(resting, lap_time, np.nan), "speed": speed}
        return scores | {name: value.astype(np.float32) for name, value in more.items()}


@functools.lru_cache(maxsize=4)
def random_pool(seed: int, count: int) -> tuple[GateTrack, ...]:
    """Random tracks of this seed."""
    return tuple(random_gates((seed, k)) for k in range(count))

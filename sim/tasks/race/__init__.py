"""Race a small car around tracks that it has never seen, told by a lidar, without touching a wall.

The reward is that of FastRLAP (Stachowicz et al. 2023, arXiv 2304.09831): the speed toward the next checkpoint, here
the way along the centreline; and a price for touching walls.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from sim.env import Array, outcome_scores, undecided
from sim.experts.gap import Gap, follow_gap, gap
from sim.experts.pursuit import pursuit
from sim.randomize import Bias, Delay, Dropout, Noise, Vary
from sim.registry import check_named
from sim.robots.cars import CAR_1_10, CAR_1_18, REAL_1_10, Car
from sim.scenes.track import Track, oval, random_track, read_track
from sim.spec import Group, Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.opponents import Play
from sim.tasks.race.recipes import ADVISED, APG, PPO, ROBUST_PPO, SAC
from sim.tasks.sight import CameraConfig
from sim.terms import Feature, Mirror

if TYPE_CHECKING:
    from sim.tasks.race.rehearsal import Rehearsal
    from sim.tasks.race.world import Race

RATE = 20.0  # Hz
ROBOTS = {"car_1_10": CAR_1_10, "car_1_18": CAR_1_18}
REALITY = {"car_1_10": REAL_1_10}
BEAMS, VIEW, RANGE = 32, math.radians(270.0), 10.0  # of the lidar: rad and m, as Hokuyo's UST-10LX
AHEAD, EVERY = 24, 4  # points of the centreline that are known ahead, and every which of them, some 0.1 m apart
MAPS = (".yaml", ".yml")  # how files of occupancy maps are called
TOUCHED = ("ends", "costs")
EXPERTS = ("pursuit", "mppi", "human")
BESIDE = ([0, 1], [1.0, -1.0])  # how a mirror changes what lies in the plane
# What differs from episode to episode.
VARY = (
    Vary("friction", 0.7, 1.3),
    Vary("mass", 0.85, 1.15),
    Vary("yaw_inertia", 0.85, 1.15),
    Vary("steering_lag", 0.5, 1.5),
    Vary("motor_lag", 0.5, 1.5),
    Vary("trim", -0.01, 0.01, "add"),
)
# Of a car that is not known well: its tyres and its motor differ, too.
ROBUST = (
    Vary("friction", 0.7, 1.3),
    Vary("mass", 0.8, 1.2),
    Vary("yaw_inertia", 0.8, 1.25),
    Vary("front_stiffness", 0.7, 1.3),
    Vary("rear_stiffness", 0.7, 1.3),
    Vary("tyre_shape", 0.85, 1.15),
    Vary("tyre_curvature", -0.5, 0.5, "add"),
    Vary("steering_lag", 0.5, 2.0, distribution="log_uniform"),
    Vary("motor_lag", 0.5, 2.0, distribution="log_uniform"),
    Vary("acceleration", 0.8, 1.2),
    Vary("trim", -0.02, 0.02, "add"),
)
LAST = (Feature("last_steering", scale=2.0), Feature("last_speed", scale=0.2))  # of what it was told last
NEAR, AT_WALL = 0.03, 1.0  # m from the car's outline at which a wall counts as touched; its price, in m, when sensed
LATENCY, ROBUST_LATENCY, REAL_LATENCY = (0.0, 0.03), (0.0, 0.05), (0.045, 0.045)  # s, of commands


@dataclass
class RaceConfig:
    """Settings of a race."""

    EXPERTS: ClassVar[tuple[str, ...]] = EXPERTS

    robot: str = "car_1_10"  # car_1_10 | car_1_18
    # random | oval | a CSV file: x_m, y_m, w_tr_right_m, w_tr_left_m | a YAML file of ROS's map_server
    track: str = field(default="random", metadata={PLACE: True})
    tracks: int = 64  # random ones among which episodes choose; other seeds make others
    laps: int = 1
    top_speed: float = 8.0  # m/s that can be asked for
    reverse: float = 0.0  # m/s backward that can be asked for, also by who frees a car that is stuck
    touch: str = "ends"  # touching a wall ends the episode, or costs
    vary: bool = True  # friction by 30 %, masses, lags, latencies, and noise
    robust: bool = False  # what varies does so by more, and so do tyres, motor and trim; commands are later
    told: bool = False  # the policy also senses what it was told last
    reality: bool = False  # tyres, lags, latency and masses that no training sees
    expert: str = "pursuit"  # who shows how: pursuit | mppi | human
    steps: int = 600  # of an episode at most

    def __post_init__(self) -> None:
        for name, choices in (("robot", ROBOTS), ("touch", TOUCHED), ("expert", self.EXPERTS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if not (1 <= self.steps <= 100_000 and 1 <= self.tracks <= 1000 and 1 <= self.laps <= 100):
            raise ValueError(
                "needs steps 1 to 100000, tracks 1 to 1000 and laps 1 to 100, got "
                f"{self.steps}, {self.tracks} and {self.laps}"
            )
        car = ROBOTS[self.robot]
        for name, least, most in (("top_speed", 0.5, car.fastest), ("reverse", 0.0, -car.slowest)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be between {least} and {most} m/s, got {getattr(self, name)}")
        if self.reality and self.robot not in REALITY:
            raise ValueError(f"reality is that of {', '.join(REALITY)}, not of {self.robot}")


class CarRace:
    """Success: the lap is driven without touching a wall."""

    Config: type = RaceConfig
    name = "car_race"
    rate_hz = RATE
    engines: ClassVar[Mapping[str, str]] = {
        "car": "sim.engines.car:Cars",
        "car_cuda": "sim.engines.car.cuda:RaceCars",
        "mujoco": "sim.engines.car.mujoco:MujocoCars",
    }
    engine = "car"
    algorithm = "ppo"
    scores = {"success": "%", "duration": "s", "lap_time": "s", "speed": "m/s", "lap": "%"}
    goal = ""
    corruption = {"path": 0.05, "steering": 0.05, "speed": 0.3}
    recipes: ClassVar[Recipes] = {
        "ppo": {"default": PPO, "robust": ROBUST_PPO},
        "apg": {"default": APG},
        "sac": {"default": SAC},
        "advised_sac": {"default": ADVISED},
    }
    camera: CameraConfig | None = None  # of one that makes pictures
    panorama: Array | None = None  # around the track; None: ours
    held_out: frozenset[str] = frozenset()  # what of pictures is unlike all of training
    latency = 0  # control steps by which they are late

    def __init__(self, config: RaceConfig | None = None) -> None:
        self.config = c = config or RaceConfig()
        self.robot: Car = ROBOTS[c.robot]
        self.driven: Car = REALITY[c.robot] if c.reality else self.robot  # what there really is
        self.episode_steps = c.steps
        self.vary = (ROBUST if c.robust else VARY) if c.vary and not c.reality else ()
        self.noise = float(c.vary or c.reality)  # times what is declared
        self.policy: Group = (
            Signal("lidar", (BEAMS,), "m", "body", imperfections=(Noise(0.02), Dropout(0.02))),
            Signal("wheel_speed", (1,), "m/s", "body", imperfections=(Noise(0.05), Bias(0.05))),
            Signal("yaw_rate", (1,), "rad/s", "body", imperfections=(Noise(0.05), Bias(0.02))),
            Signal("steering_angle", (1,), "rad", "body", imperfections=(Noise(0.005), Bias(0.01))),
        )
        self.privileged: Group = (
            Signal("path", (2 * AHEAD,), "m", "body"),  # of the centreline ahead, from the nearest point on
            Signal("velocity", (2,), "m/s", "body"),
            Signal("offset", (1,), "m"),  # to the left of the centreline
            Signal("friction", (1,), "1"),
            Signal("touched", (1,), "1"),  # 1: a wall, now
            Signal("lap", (1,), "1"),  # the share of the laps that is driven
        )
        steer, speed = self.robot.commands
        late = (Delay(*(REAL_LATENCY if c.reality else ROBUST_LATENCY if c.robust else LATENCY)),)
        self.commands: Group = (
            replace(steer, imperfections=late),
            replace(speed, low=-c.reverse, high=c.top_speed, imperfections=late),
        )
        self.last: Group = tuple(Signal(f"last_{s.name}", s.shape, s.unit, s.frame) for s in self.commands)
        self.features: tuple[Feature, ...] = (
            Feature("lidar", squash=3.0),
            Feature("wheel_speed", scale=0.2),
            Feature("yaw_rate", scale=0.3),
            Feature("steering_angle", scale=2.0),
        )
        other = dict.fromkeys(("yaw_rate", "steering_angle", "steering", "offset"), ([0], [-1.0]))
        if c.told:
            self.policy, self.features = self.policy + self.last, self.features + LAST
            other["last_steering"] = [0], [-1.0]
        self.envelope: dict[str, Any] = {"safe": {s.name: [0.0] * s.size for s in self.commands}}
        lidar = [*range(BEAMS)][::-1], [1.0] * BEAMS
        self.mirrors: tuple[Mirror, ...] = (Mirror({"lidar": lidar, "path": BESIDE, "velocity": BESIDE, **other}),)

    def conditions(self) -> dict[str, CarRace]:
        """Itself with nothing that varies, as in training, and in what stands for reality."""
        changes = {"nominal": (False, False), "as in training": (True, False), "reality": (True, True)}
        kinds = {name: how for name, how in changes.items() if not how[1] or self.config.robot in REALITY}
        return {name: self._with(vary=vary, reality=real) for name, (vary, real) in kinds.items()}

    def _with(self, **settings: Any) -> Self:
        """The same with other settings."""
        made = type(self)(replace(self.config, **settings))
        made.engine = self.engine
        return made

    def pool(self, seed: int) -> tuple[Track, ...]:
        """The tracks of its episodes: random ones are the seed's own, so that no other purpose sees them."""
        if self.config.track == "random":
            return random_pool(seed, self.config.tracks)
        if self.config.track == "oval":
            return (oval(),)
        check_named("track", self.config.track)
        if self.config.track.endswith(MAPS):
            from sim.scenes.corridor import read_map

            return (read_map(self.config.track),)
        return (read_track(self.config.track),)

    def sensed_reward(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Of what a car senses: the way that its wheels make, less where the lidar sees a wall at its outline."""
        near: Array = np.any(signals["lidar"] < self._outline + NEAR, axis=1)
        way = signals["wheel_speed"][:, 0] / RATE
        ends = near if self.config.touch == "ends" else np.zeros_like(near)
        return (way - AT_WALL * near).astype(np.float32), np.zeros_like(near), ends

    @functools.cached_property
    def _outline(self) -> Array:
        """(BEAMS,): m from the lidar to the car's own outline, a rectangle around its centre of mass."""
        from sim.engines.car.lidar import angles as looking

        car, angles = self.robot, looking(BEAMS, VIEW)
        ends = np.where(np.cos(angles) > 0.0, 0.5 * car.length - car.lidar, 0.5 * car.length + car.lidar)
        with np.errstate(divide="ignore"):
            edge = np.minimum(ends / np.abs(np.cos(angles)), 0.5 * car.width / np.abs(np.sin(angles)))
        return edge.astype(np.float32)

    @property
    def baselines(self) -> Mapping[str, Play]:
        """Who steers for a point, plans with the true model, is careful and unsteady, and sees a lidar alone."""
        from sim.engines.car.lidar import angles
        from sim.experts.human import Human
        from sim.experts.mppi import Mppi

        made = functools.partial(pursuit, self), Mppi(self, angles(BEAMS, VIEW)), Human(self)
        return {**dict(zip(EXPERTS, made, strict=True)), "gap": functools.partial(follow_gap, self)}

    @functools.cached_property
    def gap(self) -> Gap:
        """A controller of what the lidar says."""
        from sim.engines.car.lidar import angles

        return gap(angles(BEAMS, VIEW))

    @functools.cached_property
    def _shows(self) -> Play:
        return self.baselines[self.config.expert]

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return dict(self._shows(signals))

    def open(self, num: int, seed: int) -> Race:
        from sim.tasks.race.world import Race

        return Race(self, num, seed)

    def rehearsal(self, num: int, seed: int, steps: int) -> Rehearsal:
        from sim.tasks.race.rehearsal import Rehearsal

        return Rehearsal(self, num, seed, steps)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """`lap_time`: of a lap, or, of what is none, the time that it would have taken at that pace."""
        scores = outcome_scores(flight, RATE)
        last = undecided(flight).sum(axis=0) - 1
        share = np.where(scores["success"] > 0.0, 1.0, np.take_along_axis(flight["lap"][..., 0], last[None], axis=0)[0])
        time, lap = (last + 1) / RATE / self.config.laps, np.clip(share, 0.0, 1.0)
        speed = np.take_along_axis(np.cumsum(flight["velocity"][..., 0], axis=0), last[None], axis=0)[0] / (last + 1)
        more = {"lap_time": time / np.maximum(lap, 0.01), "lap": lap, "speed": speed}
        return scores | {name: value.astype(np.float32) for name, value in more.items()}


@functools.lru_cache(maxsize=4)
def random_pool(seed: int, count: int) -> tuple[Track, ...]:
    """Random tracks of this seed."""
    return tuple(random_track((seed, k)) for k in range(count))

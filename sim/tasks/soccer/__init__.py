"""Football of robots on wheels, one against one: who scores first.

One policy plays every robot of a team, from its own view.

As in "Learning Robot Soccer from Egocentric Vision" (Tirumala et al. 2024, arXiv 2405.02425), with wheels for legs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch.views import view
from sim.engines.sight.lens import Lens
from sim.env import Array, in_view, outcome_scores, undecided
from sim.experts.soccer import OPPONENTS, Scripted, chaser
from sim.robots.wheeled import DIFFERENTIAL, OMNI
from sim.scenes.pitch import FIELDS, Ball
from sim.spec import Group, Signal
from sim.tasks import Recipes
from sim.tasks.opponents import Opponent, Play
from sim.tasks.sight import EVERYTHING, OF_CAMERAS, OF_PICTURES, CameraConfig
from sim.tasks.soccer import held_out
from sim.tasks.soccer.detection import Errors, signals, things
from sim.tasks.soccer.recipes import ADAPT, PPO, SELF_PLAY, STUDENT
from sim.tasks.soccer.rules import Rules
from sim.tasks.soccer.tracker import remembered
from sim.tasks.soccer.tracker import signals as tracked
from sim.tasks.tracking import Track
from sim.terms import Mirror

if TYPE_CHECKING:
    from sim.tasks.soccer.match import Match

RATE = 20.0  # Hz
TURN = 8.0  # rad/s at most, of which its wheels could do three times as much
ROBOTS = {"differential": DIFFERENTIAL, "omni": OMNI}
MATCHES = {
    "pitch": "sim.engines.pitch:Pitch",
    "mujoco": "sim.engines.pitch.mujoco:MujocoPitch",
    "pitch_cuda": "sim.engines.pitch.cuda:MatchPitch",
}
PERCEPTIONS = ("pixels", "detector", "tracker")
Recognise = Callable[[NDArray[np.uint8]], Array]  # pictures (n, height, width, 3) -> what is told (n, things, 3)
BESIDE = ([0, 1], [1.0, -1.0])  # how a mirror changes what lies in the plane


@dataclass
class SoccerConfig:
    """Settings of a match."""

    OPPONENTS: ClassVar[tuple[str, ...]] = ("still", "slow", "slower", "chaser", "self")  # the easiest first
    STARTS: ClassVar[tuple[str, ...]] = ("kickoff", "anywhere", "mixed")

    robot: str = "differential"  # differential | omni
    opponent: str = "chaser"  # still | slow | slower | chaser | self: one policy plays both teams
    start: str = "kickoff"  # kickoff | anywhere | mixed: half of the episodes each
    vary: bool = True  # friction, masses and motors differ by up to a fifth from episode to episode
    steps: int = 400  # of an episode at most
    held_out: str = ""  # what is unlike all games of training: friction | mass | everything

    @property
    def beyond(self) -> tuple[str, ...]:
        """What can be."""
        return held_out.OF_ALL

    def __post_init__(self) -> None:
        for name, choices in (
            ("robot", tuple(ROBOTS)),
            ("opponent", self.OPPONENTS),
            ("start", self.STARTS),
            ("held_out", ("", *self.beyond, EVERYTHING)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if not 1 <= self.steps <= 10_000:
            raise ValueError(f"steps must be between 1 and 10000, got {self.steps}")


@dataclass
class SightConfig(CameraConfig, SoccerConfig):
    """Settings of a match of robots with cameras."""

    # What the policy is told: pixels | detector, which says where things in them are | tracker, which forgets nothing.
    perception: str = "pixels"
    view: float = 120.0  # degrees, across
    lens: str = "fisheye"
    latency: int = 0  # control steps by which that is late
    jitter: int = 1  # control steps: where games vary it is later by up to so many, in all of a game

    @property
    def beyond(self) -> tuple[str, ...]:
        """Also background | light, which a detector is not told of, | camera (where it is and looks) | latency."""
        pictures = OF_PICTURES if self.perception == "pixels" else ()
        cameras = OF_CAMERAS if self.perception != "tracker" else ()
        return (*pictures, *cameras, *held_out.OF_ALL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.perception not in PERCEPTIONS:
            raise ValueError(f"perception {self.perception!r} is not one of {', '.join(PERCEPTIONS)}")
        for name in ("latency", "jitter"):
            if not 0 <= getattr(self, name) <= 10:
                raise ValueError(f"{name} must be between 0 and 10 control steps, got {getattr(self, name)}")
        self.check(self.latency + self.jitter)


class Soccer:
    """Success: the ball is in the other team's goal."""

    Config: type = SoccerConfig
    rules = Rules()
    name: str
    players: int  # on each side
    rate_hz = RATE
    engines = MATCHES
    engine = "pitch"
    algorithm = "ppo"
    scores = {"success": "%", "duration": "s"}
    goal = ""
    corruption = {"ball_position": 0.1, "drive": 0.3, "turn": 2.0, "kick": 0.3}
    recipes: ClassVar[Recipes]
    sees = False  # by a camera that turns
    lens = Lens()  # of it
    camera: CameraConfig | None = None  # of one that makes pictures
    panorama: Array | None = None  # around the pitch; None: ours
    errors: Errors | None = None  # of a detector in the place of that
    view = Lens.view  # degrees that cameras see across
    whole: Group = ()  # of what its robots are told, where `hands` command all but its own commands
    hands: Play | None = None
    recognise: Recognise | None = None  # who tells, in the place of a detector, what is in the pictures
    latency = latest = 0  # control steps by which what they tell is late at least, and at most

    def __init__(self, config: SoccerConfig | None = None) -> None:
        self.config = config or SoccerConfig()
        self.robot, self.field, self.ball = ROBOTS[self.config.robot], FIELDS[self.players], Ball()
        self.episode_steps = self.config.steps
        both = self.config.opponent == "self"
        self.agents = self.players * (1 + both)
        self.teams = (0,) * self.players + (1,) * (self.players * both)
        self.policy: Group = view(self.players)
        self.opponent_senses: Group = view(self.players)
        self.privileged: Group = ()
        drive, turn, kick, _ = self.robot.commands
        self.commands: Group = (drive, replace(turn, low=-TURN, high=TURN), kick)
        self.envelope: dict[str, Any] = {"safe": {s.name: [0.0] * s.size for s in self.commands}}
        planar = [s.name for s in (*self.policy, *self.commands) if s.size % 2 == 0]
        self.mirrors: tuple[Mirror, ...] = (
            Mirror({**dict.fromkeys(planar, BESIDE), **dict.fromkeys(("turning", "turn"), ([0], [-1.0]))}),
        )
        self.start, strange = self.config.start, self.config.held_out
        self.held_out = frozenset(self.config.beyond if strange == EVERYTHING else [strange] * bool(strange))
        self.opponents: dict[str, Play] = {
            name: functools.partial(play, self) for name, play in OPPONENTS.items() if name in self.config.OPPONENTS
        }
        self._rival: Callable[[int], Opponent] | None = None

    @property
    def moves(self) -> Group:
        """All that its robots are told, whoever commands it."""
        return self.whole or self.commands

    def against(self, opponent: Callable[[int], Opponent], practice: bool = True) -> Soccer:
        """The same, where `opponent(rows)` makes the other team; for `practice` games begin as the rules say then."""
        made = copy.copy(self)
        made.agents, made.teams, made._rival = self.players, (0,) * self.players, opponent
        made.start = self.rules.practised if practice else self.start
        return made

    def opponent(self, rows: int) -> Opponent:
        """Who acts for the other team's robots."""
        return self._rival(rows) if self._rival else Scripted(self.opponents[self.config.opponent])

    def conditions(self) -> dict[str, Soccer]:
        """Itself in nominal games, in those of training, and in games that are unlike these in one thing, or in all."""
        changes = {name: (False, name) for name in (*self.config.beyond, EVERYTHING)}
        found = {"nominal": (False, ""), "as in training": (True, ""), **changes}
        return {name: self._with(vary=vary, held_out=strange) for name, (vary, strange) in found.items()}

    def _with(self, **settings: Any) -> Self:
        """The same with other settings."""
        made = type(self)(replace(self.config, **settings))
        made.engine, made.start, made._rival = self.engine, self.start, self._rival
        made.agents, made.teams = self.agents, self.teams
        return made

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return chaser(self, signals)

    def open(self, num: int, seed: int) -> Match:
        from sim.tasks.soccer.match import Match

        return Match(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, RATE)


class Soccer1v1(Soccer):
    """One against one."""

    name, players = "soccer_1v1", 1
    recipes = {"ppo": {"default": PPO}}


class Soccer2v2(Soccer):
    """The same, two against two."""

    name, players = "soccer_2v2", 2
    recipes = {"ppo": {"default": PPO}}


class Soccer5v5(Soccer):
    """The same, five against five."""

    name, players = "soccer_5v5", 5
    recipes = {"ppo": {"default": {**PPO, "algorithm.num_envs": 1280}}}


class SoccerVision1v1(Soccer):
    """The same, seen by a camera that turns"""

    Config = SightConfig
    config: SightConfig
    name, players = "soccer_vision_1v1", 1
    algorithm = "student"
    sees = True
    ego_motion = ("velocity", "turning")
    gaze, sought = "pan", "ball"
    scores = {**Soccer.scores, "ball_in_view": "1"}
    recipes = {"student": {"default": STUDENT}, "ppo": {"self_play": SELF_PLAY, "adapt": ADAPT}}
    teacher: type[Soccer] = Soccer1v1

    @property
    def remembered(self) -> Mapping[str, str]:
        """What a memory that forgets nothing tells, by the signals that say what is so."""
        return remembered(self.players)

    def __init__(self, config: SightConfig | None = None) -> None:
        super().__init__(config or SightConfig())
        told = self.config.perception
        self.camera, self.errors = self.config if told == "pixels" else None, Errors() if told == "detector" else None
        self.lens, self.panorama = self.config.optics(), self.config.around()
        held_out = "latency" in self.held_out
        self.latency, self.view = self.config.latency + held_out, self.lens.view
        self.latest = self.latency + self.config.jitter * (self.config.vary and not held_out)
        oldest = 0.1 + (self.latency + self.config.jitter) / RATE
        shape = (self.lens.height, self.lens.width, 3)
        camera = (Signal("camera", shape, "1", "", 0.0, 255.0, oldest, dtype="uint8"),)
        placed = ("position", "heading", "goal") if told == "tracker" else ()
        known, more = ("velocity", "turning", "ready", *placed), tracked(self.players)
        self.policy = (
            *{"pixels": camera, "detector": signals(self.players), "tracker": more}[told],
            *(s for s in view(self.players) if s.name in known),
            Signal("pan", (1,), "rad", "body"),  # where the camera looks, from ahead to the left
        )
        self.privileged = tuple(s for s in view(self.players) if s.name not in known)
        self.privileged += () if told == "tracker" else more
        self.tracks = (
            Track("ball_position", "ball_velocity"),
            Track("goal"),
            Track("heading", kind="heading"),
            Track("position", kind="place"),
            *(Track(name, f"{name}_velocity") for name in ("mates", "others") if name in things(self.players)),
        )
        self.commands = (*self.commands, self.robot.commands[-1])  # where to turn the camera
        self.envelope = {"safe": {s.name: [0.0] * s.size for s in self.commands}}
        found = {s.name: ([0, 1, 2], [1.0, -1.0, 1.0]) for s in signals(self.players)}
        found |= dict.fromkeys((s.name for s in more if s.unit != "1"), BESIDE)
        turned = dict.fromkeys(("pan", "look"), ([0], [-1.0]))
        (mirror,) = self.mirrors  # of a picture it is another one
        self.mirrors = () if told == "pixels" else (Mirror({**mirror.changes, **found, **turned}),)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        scores, counted = super().score(flight), undecided(flight)
        shown = in_view(self, flight, flight[self.gaze][..., 0]) & counted
        share = shown.sum(axis=0) / counted.sum(axis=0)
        return scores | {"ball_in_view": share.astype(np.float32)}

    def bearing(self, flight: Mapping[str, Array]) -> Array:
        x, y = np.moveaxis(flight["ball_position"], -1, 0)
        angle: Array = np.arctan2(y, x)
        return angle

    def teacher_task(self) -> Soccer:
        """Somebody who is told where everything is, and needs no camera."""
        known = {f.name: getattr(self.config, f.name) for f in fields(SoccerConfig)}
        return self.teacher(self.teacher.Config(**known))

    def gaze_task(self, hands: Play) -> SoccerVision1v1:
        """Nothing but to look, told what a memory that forgets nothing knows; `hands` command all else."""
        made = self._with(perception="tracker")
        made.whole, made.hands, made.commands = made.commands, hands, made.commands[-1:]
        return made

    def prompt_task(self) -> SoccerVision1v1:
        """The same, shown what is so now."""
        return self._with(latency=0, jitter=0)

    def detector_task(self) -> SoccerVision1v1:
        """The same, told by a detector in the place of pixels."""
        return self._with(perception="detector")

    def recognised_by(self, recognise: Recognise) -> SoccerVision1v1:
        """The same, told by a detector, in whose place `recognise` looks at pictures."""
        made = self.detector_task()
        made.camera, made.errors, made.recognise = made.config, None, recognise
        return made


class SoccerVision2v2(SoccerVision1v1):
    """The same, two against two with such cameras"""

    name, players = "soccer_vision_2v2", 2
    teacher = Soccer2v2

"""Race a small car around tracks that it has never seen, from what its camera sees, without touching a wall."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from sim.spec import Signal
from sim.tasks import Recipes
from sim.tasks.race import LAST, RATE, CarRace, RaceConfig
from sim.tasks.race.recipes import ADVISED, FAST, SEEN_SAC, STUDENT
from sim.tasks.sight import EVERYTHING, OF_CAMERAS, OF_PICTURES, CameraConfig
from sim.terms import Mirror

BEYOND = (*OF_PICTURES, "surface", *OF_CAMERAS)
OLDEST = 0.1  # s that a picture may be old beyond its latency


@dataclass
class VisionConfig(CameraConfig, RaceConfig):
    """Settings of a race of cars with cameras."""

    width: int = 64
    height: int = 64
    view: float = 120.0
    tilt: float = 10.0
    lens: str = "fisheye"
    latency: int = 1  # control steps by which pictures are late
    held_out: str = ""  # what is unlike all of training: background | light | surface | camera | latency | everything

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.held_out not in (choices := ("", *BEYOND, EVERYTHING)):
            raise ValueError(f"held_out {self.held_out!r} is not one of {', '.join(choices)}")
        if not 0 <= self.latency <= 10:
            raise ValueError(f"latency must be between 0 and 10 control steps, got {self.latency}")
        self.check(self.latency)


class CarRaceVision(CarRace):
    """The same, seen by a camera"""

    Config = VisionConfig
    config: VisionConfig
    name = "car_race_vision"
    algorithm = "student"
    recipes: ClassVar[Recipes] = {
        "student": {"default": STUDENT},
        "rlpd": {"default": FAST},
        "sac": {"default": SEEN_SAC},
        "advised_sac": {"default": ADVISED},
    }
    teacher: type[CarRace] = CarRace
    sensed_reward = None  # type: ignore[assignment]  # it senses no walls
    rehearsal = None  # type: ignore[assignment]  # nobody learns from pictures by gradients

    def __init__(self, config: VisionConfig | None = None) -> None:
        super().__init__(config or VisionConfig())
        c = self.config
        self.camera, self.lens, self.panorama, self.view = c, c.optics(), c.around(), c.view
        self.held_out = frozenset(BEYOND if c.held_out == EVERYTHING else [c.held_out] * bool(c.held_out))
        self.latency = c.latency + ("latency" in self.held_out)
        sensed = {s.name: s for s in self.policy if s not in self.last}
        shape, oldest = (self.lens.height, self.lens.width, 3), OLDEST + self.latency / RATE
        self.policy = (
            Signal("camera", shape, "1", "", 0.0, 255.0, oldest, dtype="uint8"),
            sensed.pop("wheel_speed"),
            sensed.pop("yaw_rate"),
            *self.last,
        )
        self.privileged = (*(replace(s, imperfections=()) for s in sensed.values()), *self.privileged)
        self.features = (*(f for f in self.features if f.signal in ("wheel_speed", "yaw_rate")), *LAST)
        self.mirrors: tuple[Mirror, ...] = ()  # of a picture it is another one

    def conditions(self) -> dict[str, CarRace]:
        """Also with pictures that are unlike all of training in one thing, or in all."""
        usual = self._with(held_out="")
        strange = {name: self._with(vary=False, reality=False, held_out=name) for name in (*BEYOND, EVERYTHING)}
        return {**super(CarRaceVision, usual).conditions(), **strange}

    def teacher_task(self) -> CarRace:
        """Somebody who has a lidar, and no camera."""
        known = {f.name: getattr(self.config, f.name) for f in fields(RaceConfig)}
        return self.teacher(self.teacher.Config(**known))

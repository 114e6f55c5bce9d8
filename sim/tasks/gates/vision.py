"""Race a quadrotor through gates that a camera on it sees, without a map or a position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.engines.sight.lens import Lens
from sim.env import Array
from sim.randomize import Bias, Noise
from sim.tasks import Recipes
from sim.tasks.gates import CORNERS, GateConfig, QuadGateRace
from sim.tasks.gates.detection import AHEAD, SEEN, SIGNALS, Errors, GateDetector
from sim.tasks.gates.recipes import VISION
from sim.tasks.gates.world import GateRace
from sim.terms import Feature, Mirror

if TYPE_CHECKING:
    from collections.abc import Mapping

ODOMETRY = Noise(0.05), Bias(0.1)  # m/s: of velocities that nobody finds by a map
CAMERA = 2  # an episode's stream of random numbers, after those of `sim.tasks.gates.world`
MAPPED = ("next_gate", "gate_after")


@dataclass
class GateVisionConfig(GateConfig):
    """Settings of a race of a quadrotor with a camera."""

    view: float = 120.0  # degrees, across; a pinhole, 4:3
    tilt: float = -30.0  # degrees below the body's horizon: it looks up, as the nose points down in flight

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optics()

    def optics(self) -> Lens:
        """The lens of these settings. ValueError where there is none."""
        return Lens(480, 640, self.view, self.tilt)


class QuadGateRaceVision(QuadGateRace):
    """The same, told by a detector what a camera sees of the gates"""

    Config = GateVisionConfig
    config: GateVisionConfig
    name = "quad_gate_race_vision"
    recipes: ClassVar[Recipes] = {"ppo": {"default": VISION}}
    rehearsal = None  # type: ignore[assignment]  # what a detector tells has no derivative

    def __init__(self, config: GateVisionConfig | None = None) -> None:
        super().__init__(config or GateVisionConfig())
        self.lens, self.errors = self.config.optics(), Errors()
        known = {s.name: s for s in self.policy}
        mapped = tuple(replace(known.pop(name), imperfections=()) for name in MAPPED)
        known["linear_velocity"] = replace(known["linear_velocity"], imperfections=ODOMETRY)
        self.policy = (*known.values(), *SIGNALS)
        self.privileged = (*mapped, *self.privileged)
        kept = tuple(f for f in self.features if f.signal not in MAPPED)
        seen = Feature(SEEN[0], squash=8.0, scale=0.3), Feature(SEEN[1], squash=16.0, scale=0.15)
        self.features = (*kept, *seen, Feature("gates_seen"))
        both = {**dict.fromkeys(SEEN, CORNERS), "gates_seen": ([*range(AHEAD)], [1.0] * AHEAD)}
        self.mirrors = tuple(Mirror({**mirror.changes, **both}) for mirror in self.mirrors)

    def open(self, num: int, seed: int) -> GateRaceVision:
        return GateRaceVision(self, num, seed)


class GateRaceVision(GateRace):
    """The same races; vehicles are told what a detector sees."""

    task: QuadGateRaceVision

    def __init__(self, task: QuadGateRaceVision, num: int, seed: int) -> None:
        self.detector = GateDetector(num, task.lens, task.errors, task.noise)
        super().__init__(task, num, seed)

    def _tell(self, read: Mapping[str, Array], rows: NDArray[np.int64]) -> dict[str, Array]:
        corners = np.stack([read[name].reshape(self.num, 4, 3) for name in MAPPED], axis=1)
        size = np.stack([self._size[self.track, self._due(k)] for k in range(AHEAD)], axis=1)
        if self.age[rows].any():
            self.detector.step(corners, size)
        else:
            seeds = [np.random.default_rng([self.seed, int(k), CAMERA]).integers(1 << 63) for k in self.episode[rows]]
            self.detector.begin(rows, np.array(seeds, np.uint64), corners, size)
        return self.detector.told

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return super()._arrays() | self.detector.arrays()

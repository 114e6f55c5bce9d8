"""Race a quadrotor through gates that a camera on it sees, without a map or a position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from sim.engines.sight.lens import Lens
from sim.randomize import Bias, Noise
from sim.tasks import Recipes
from sim.tasks.gates import CORNERS, GateConfig, QuadGateRace
from sim.tasks.gates.detection import AHEAD, MAPPED, SEEN, SIGNALS, Errors
from sim.tasks.gates.recipes import VISION
from sim.terms import Feature, Mirror

if TYPE_CHECKING:
    from sim.tasks.gates.vision_world import GateRaceVision

ODOMETRY = Noise(0.05), Bias(0.1)  # m/s: of velocities that nobody finds by a map


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
        from sim.tasks.gates.vision_world import GateRaceVision

        return GateRaceVision(self, num, seed)

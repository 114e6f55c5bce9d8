"""One vehicle of a swarm, with nobody else in its airspace: what it flies like, before it meets others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.tasks.quad_hover import HoverConfig, QuadHover
from sim.tasks.swarm.world import ADRIFT, ADRIFT_TURNING, SOFT, TILT, WEIGHTS
from sim.terms import Bound, Cost

if TYPE_CHECKING:
    from sim.tasks.swarm import QuadSwarm


class Alone(QuadHover):
    """To a place that does not move, and to stay there.

    The costs are the swarm's but for others, pillars and the side; the features are its first ones.
    """

    def __init__(self, swarm: QuadSwarm, far: float, fast: float) -> None:
        """`far`, m from its target, and `fast`, rad/s: where it is lost."""
        c = swarm.config
        super().__init__(
            HoverConfig(
                robot=c.robot,
                rate_hz=c.rate_hz,
                position=c.radius,
                tilt=TILT,
                velocity=ADRIFT,
                body_rate=ADRIFT_TURNING,
                delay_high=c.delay_high if c.vary else 0.0,
                history=1,
                noise=swarm.noise,
            )
        )
        self.history = 0
        self.features = self.features[:-1]
        self.vary = swarm.vary
        self.bounds = (Bound("position", far, minus="target_position"), Bound("angular_velocity", fast))
        self.costs = (
            Cost("away", "position", -WEIGHTS["away"], "norm", minus="target_position", softening=SOFT),
            Cost("speed", "linear_velocity", -WEIGHTS["speed"]),
            Cost("turning", "angular_velocity", -WEIGHTS["turning"]),
            Cost("tilt", "rotation", -WEIGHTS["tilt"], "attitude"),
            Cost("change", "action_change", -WEIGHTS["change"]),
        )

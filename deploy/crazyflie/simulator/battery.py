"""How the battery's voltage falls: with what has been drawn, and with what is being drawn."""

from __future__ import annotations

EMPTY, FULL_VOLTAGE = 3.0, 4.2  # V
DRAIN = 1.0 / 420.0  # V per second at full command squared: about seven minutes of hovering
SAG = 0.35  # V at full command squared

Ratios = tuple[float, float, float, float]  # rotor speed commands, fractions 0..1


class Battery:
    """Falls with what the motors draw."""

    def __init__(self, voltage: float) -> None:
        self.rest = self.voltage = voltage  # V, without and with load

    def draw(self, ratios: Ratios, dt: float) -> None:
        """`dt` seconds at these commands."""
        power = sum(ratio * ratio for ratio in ratios) / 4.0
        self.rest = max(EMPTY, self.rest - DRAIN * power * dt)
        self.voltage = self.rest - SAG * power

    @property
    def level(self) -> float:
        """Percent."""
        return min(max(100.0 * (self.voltage - EMPTY) / (FULL_VOLTAGE - EMPTY), 0.0), 100.0)

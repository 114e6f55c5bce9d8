"""Who plays against a team: a function of what his robots sense, or somebody who remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sim.randomize import Array

Play = Callable[[Mapping[str, Array]], Mapping[str, Array]]  # signals by name (n, k) -> commands


class Opponent(Protocol):
    """Who acts for the robots of the other team; they are rows, those of one game one after the other."""

    def act(self, signals: Mapping[str, Array], episodes: Any, begun: Any) -> Mapping[str, Array]:
        """Commands for what they see, each in the episode (n,) of that number, new where `begun` (n,)."""

    def scored(self, rows: Any, against: Any) -> None:
        """A goal in these rows (count,), by the other side where `against` (count,)."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""

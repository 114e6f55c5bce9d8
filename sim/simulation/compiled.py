"""SimEnv for whoever steps it within a compiled loop of his own: what the loop reads and writes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight.control_step import WholeStep
from sim.engines.flight.episodes import Episodes, Rows
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import streams
from sim.randomize import Array
from sim.simulation import SENSORS, SimEnv
from sim.tasks.targets import at_rest


class CompiledEnv(SimEnv):
    """A learner's environment of vehicles in flight; see `sim.engines.flight.episodes`."""

    def rows(self) -> Rows | None:
        """All that a compiled loop of control steps needs, after a reset; None where it cannot do them as `step`."""
        whole = self._whole
        if not isinstance(whole, WholeStep) or self._prepares is None or self.num % LANES:
            return None
        whole.catch_up(self._table)
        flight = whole.flight
        return Rows(
            world=self._world,
            state=flight.state,
            derived=flight.derived,
            values=flight.values,
            substep=flight.substep,
            substeps=flight.substeps,
            sense=whole.senses,
            moving=whole.moving,
            all=whole.all,
            initial=self._initial,
            still=self._still,
            started=self._started,
            slow=self._actuators.delay,
            late=self._sensors.delay,
            bias=self._sensors.bias_std,
            limit=self.limit,
        )

    def hidden(self) -> list[slice]:
        """The columns of the table that hold what only a critic sees."""
        return [at for _, at in self._hidden]

    def episodes(self, numbers: NDArray[np.int64], steps: int) -> tuple[Episodes, Array]:
        """With what these episodes begin in such a loop, and so many control steps of what is known; their motion."""
        drawn, prepared = self._draws.rows(numbers)
        rest = self._draws.named("rest", drawn)
        sensors, latency = len(self.task.policy), rest["latency"]
        motion = rest["motion"].reshape(-1, *self.motion.shape[1:])
        late, slow = latency[:, :sensors] * np.float32(self._late), latency[:, sensors:]
        begun = streams(self.seed, numbers, SENSORS)
        limit = rest["limit"][:, 0].astype(np.int64)
        known = self.ahead(motion, np.zeros(len(numbers), np.int64), steps)
        return Episodes(prepared, np.ascontiguousarray(slow), np.ascontiguousarray(late), begun, limit, known), motion

    def ahead(self, motion: Array, now: NDArray[np.int64], steps: int) -> Array:
        """What no engine knows (n, steps, k) of rows with this motion, from their control steps `now` (n,) on.

        It is that of one step where nothing moves.
        """
        count, steps = len(motion), 1 if at_rest(motion) else steps
        time = (now[:, None] + np.arange(steps)).reshape(-1) / self.task.rate_hz
        known = self.task.reference(np.repeat(motion, steps, axis=0), time.astype(np.float32))
        parts = [np.zeros((count * steps, 0), np.float32), *known.values()]
        return np.concatenate(parts, axis=1, dtype=np.float32).reshape(count, steps, -1)

"""Batched football matches of robots on wheels on the CPU: `num` worlds, each with a ball and as many robots.

The equations are in `dynamics.py`; here they are laid over blocks of worlds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch import dynamics
from sim.engines.pitch.rows import (
    BALL,
    COMMAND_ROWS,
    PARAMETER_ROWS,
    ROBOT,
    ROBOT_PARAMETERS,
    ROBOT_ROWS,
    ROBOTS,
    shape_of,
    state_rows,
)
from sim.engines.vector.blocks import borrowed, from_lanes, kernel, to_lanes
from sim.engines.vector.simd import ALL
from sim.robots.wheeled import Wheeled
from sim.scenes.pitch import Ball, Field

Array = NDArray[np.float32]
SUBSTEP = 0.01  # s


@kernel
def step_blocks(state: Any, parameters: Any, command: Any, robots: Any, shape: Any, h: Any, substeps: Any) -> None:
    """Advance all worlds by `substeps` steps of h seconds, in place. Arrays are (blocks, rows, LANES)."""
    for index in range(state.shape[0]):
        s, p, c = borrowed(state[index]), borrowed(parameters[index]), borrowed(command[index])
        dynamics.untouched(s, robots, ALL)
        for _ in range(substeps):
            dynamics.advance(s, p, c, robots, shape, h, ALL)


class Pitch:
    """`num` worlds of `robots` robots each. Arrays are float32: the ball's (num, k), the robots' (num, robots, k).

    State names: ball_position, ball_velocity (2, world), ball_rolling (2, m/s: the velocity at which it would roll),
    scored (1: the ball is in the goal at x > 0; -1: in the other; 0); position, heading (cosine, sine), velocity
    (2, world), turning (rad/s), pan (rad), charge (s until it can kick again), touched (1: the ball, in the last step).
    """

    def __init__(self, robot: Wheeled, field: Field, ball: Ball, num: int, robots: int, dt: float) -> None:
        if num < 1 or robots < 1 or dt <= 0.0:
            raise ValueError(f"Pitch needs num >= 1, robots >= 1 and dt > 0, got {num}, {robots}, {dt}")
        self.robot, self.field, self.ball = robot, field, ball
        self.num, self.robots, self.dt = num, robots, dt
        self.shape = shape_of(robot, field, ball)
        self.substeps = max(1, round(dt / SUBSTEP))
        self._h = np.float32(dt / self.substeps)
        own, its = robot.parameters(), ball.parameters()
        nominal = np.concatenate([*its.values(), *(list(own.values()) * robots)])
        self._state = to_lanes(np.tile(self._rest(), (num, 1)))
        self._parameters = to_lanes(np.tile(nominal, (num, 1)))
        self._of_ball = {name: slice(k, k + 1) for k, name in enumerate(its)}
        self._of_robots = {name: slice(k, k + 1) for k, name in enumerate(own)}

    def _rest(self) -> Array:
        rest = np.zeros(state_rows(self.robots), np.float32)
        rest[ROBOTS:].reshape(self.robots, -1)[:, ROBOT["heading"]] = 1.0, 0.0
        return rest

    def rows(self, name: str) -> tuple[Array, int, slice, int]:
        """The array that holds what has this name, its first row, its place in a group of rows, and their number."""
        if name in BALL:
            return self._state, 0, BALL[name], 0
        if name in ROBOT:
            return self._state, ROBOTS, ROBOT[name], ROBOT_ROWS
        if name in self._of_ball:
            return self._parameters, 0, self._of_ball[name], 0
        if name in self._of_robots:
            return self._parameters, ROBOT_PARAMETERS, self._of_robots[name], PARAMETER_ROWS
        choices = ", ".join([*BALL, *ROBOT, *self._of_ball, *self._of_robots])
        raise KeyError(f"a pitch has no {name!r}; it has: {choices}")

    def read(self, name: str) -> Array:
        """A copy of a state or parameter by name."""
        array, first, where, each = self.rows(name)
        if not each:
            return from_lanes(array[:, where], self.num)
        grouped = array[:, first:].reshape(len(array), self.robots, each, -1)[:, :, where]
        return np.moveaxis(grouped, -1, 1).reshape(-1, *grouped.shape[1:3])[: self.num].copy()

    def write(self, worlds: NDArray[np.int64], values: Mapping[str, Any]) -> None:
        """Set states and parameters of these worlds (count,) from name -> (count, k) or (count, robots, k)."""
        place, lane = np.divmod(worlds, self._state.shape[2])
        for name, value in values.items():
            array, first, where, each = self.rows(name)
            value = np.asarray(value, np.float32)
            if not each:
                array[place[:, None], np.arange(where.start, where.stop), lane[:, None]] = value
                continue
            starts = first + each * np.arange(self.robots)[:, None] + np.arange(where.start, where.stop)
            array[place[:, None, None], starts, lane[:, None, None]] = value

    def arrays(self) -> dict[str, Array]:
        """All states and parameters, to be saved and written into."""
        return {"state": self._state, "parameters": self._parameters}

    def reset(self, worlds: NDArray[np.int64], state: Mapping[str, Any]) -> None:
        """Begin anew in these worlds from name -> values; what is left out is at rest in the middle."""
        place, lane = np.divmod(worlds, self._state.shape[2])
        self._state[place, :, lane] = self._rest()
        self.write(worlds, state)

    def step(self, command: Array) -> None:
        """Advance all worlds by `dt` under (num, robots, 5): forward, left (m/s), turn (rad/s), pan (rad/s), kick."""
        self.check(command)
        told = to_lanes(np.asarray(command, np.float32).reshape(self.num, -1))
        step_blocks(self._state, self._parameters, told, self.robots, self.shape, self._h, self.substeps)

    def check(self, command: Any) -> None:
        """ValueError unless there are commands for every robot."""
        if np.shape(command) != (self.num, self.robots, COMMAND_ROWS):
            raise ValueError(
                f"{self.num} worlds of {self.robots} robots take {COMMAND_ROWS} commands each, got {np.shape(command)}"
            )

    def close(self) -> None:
        """Nothing is held."""

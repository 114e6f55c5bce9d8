"""`Pitch` on an NVIDIA GPU: the same equations, one thread per world, through numba-cuda.

The arrays have the CPU's layout (blocks, rows, LANES), so that neighbouring threads read neighbouring numbers.
`PitchCuda` keeps states, parameters, commands and readings on the device. `MatchPitch` is what the tasks take
(`engine=pitch_cuda`): numpy in and out, copied to the device and back in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch import Array, Pitch, dynamics
from sim.engines.pitch.rows import BALL, COMMAND_ROWS, ROBOT
from sim.engines.vector.blocks import blocks, launch
from sim.engines.vector.gpu import cuda
from sim.engines.vector.simd import LANES
from sim.robots.wheeled import Wheeled
from sim.scenes.pitch import Ball, Field

THREADS = 64


def step_thread(state, parameters, command, robots, shape, h, substeps):
    """One thread advances one world by `substeps` steps of h seconds."""
    index = cuda.grid(1)
    place, lane = index // LANES, index % LANES
    if place < state.shape[0]:
        s, p, c = state[place], parameters[place], command[place]
        dynamics.untouched(s, robots, lane)
        for _ in range(substeps):
            dynamics.advance(s, p, c, robots, shape, h, lane)


def gather_thread(lanes, first, each, out):
    """out (worlds, groups, k) from k rows of lanes per group of `each` rows, beginning with row `first`."""
    index = cuda.grid(1)
    if index < out.shape[0]:
        place, lane = index // LANES, index % LANES
        for group in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[index, group, k] = lanes[place, first + each * group + k, lane]


def scatter_thread(values, where, lanes, first, each):
    """The inverse, into the worlds `where` (count,), from values (count, groups, k)."""
    index = cuda.grid(1)
    if index < where.shape[0]:
        place, lane = where[index] // LANES, where[index] % LANES
        for group in range(values.shape[1]):
            for k in range(values.shape[2]):
                lanes[place, first + each * group + k, lane] = values[index, group, k]


STEP, GATHER, SCATTER = cuda.jit(step_thread), cuda.jit(gather_thread), cuda.jit(scatter_thread)


def _on_device(values: Any, dtype: Any) -> Any:
    """Copied there, unless it is there already."""
    there = hasattr(values, "__cuda_array_interface__")
    return cuda.as_cuda_array(values) if there else cuda.to_device(np.ascontiguousarray(values, dtype))


class PitchCuda:
    """`num` worlds of `robots` robots each on a GPU. Names and shapes as in `Pitch`.

    Readings are arrays on the device; worlds, values and commands may be there (`__cuda_array_interface__`, torch's
    tensors among them) or numpy's.
    """

    def __init__(self, robot: Wheeled, field: Field, ball: Ball, num: int, robots: int, dt: float) -> None:
        if not cuda.is_available():
            raise ValueError("engine pitch_cuda: no usable NVIDIA GPU and driver; use engine=pitch")
        self.plan = Pitch(robot, field, ball, num, robots, dt)  # what lies where, and how everything begins
        self.num, self.robots, self.dt = num, robots, dt
        arrays = self.plan.arrays()
        self.state, self.parameters = cuda.to_device(arrays["state"]), cuda.to_device(arrays["parameters"])
        self.command = cuda.to_device(np.zeros((blocks(num), robots * COMMAND_ROWS, LANES), np.float32))
        self._everyone = cuda.to_device(np.arange(num))

    def _place(self, name: str) -> tuple[Any, int, int, int, int]:
        """The array that has it, its first row, the rows between groups, how many groups, and rows in each."""
        rows, first, where, each = self.plan.rows(name)
        array = self.state if rows is self.plan.arrays()["state"] else self.parameters
        return array, first + where.start, each, self.robots if each else 1, where.stop - where.start

    def read(self, name: str) -> Any:
        """A copy of a state or parameter by name, on the device."""
        array, first, each, groups, size = self._place(name)
        out = cuda.device_array((self.num, groups, size), np.float32)
        GATHER[launch(self.num, THREADS)](array, first, each, out)
        return out if each else out.reshape(self.num, size)

    def write(self, worlds: Any, values: Mapping[str, Any]) -> None:
        """Set states and parameters of these worlds (count,) from name -> (count, k) or (count, robots, k)."""
        count = len(worlds)
        if not count:
            return
        where = _on_device(worlds, np.int64)
        for name, value in values.items():
            array, first, each, groups, size = self._place(name)
            there = _on_device(value, np.float32)
            if there.size != count * groups * size:
                raise ValueError(f"{name} of {count} worlds has {count * groups * size} numbers, got {there.shape}")
            SCATTER[launch(count, THREADS)](there.reshape(count, groups, size), where, array, first, each)

    def reset(self, worlds: Any, state: Mapping[str, Any]) -> None:
        """Begin anew in these worlds from name -> values; what is left out is at rest in the middle."""
        count = len(worlds)
        rest: dict[str, Any] = {name: np.zeros((count, at.stop - at.start)) for name, at in BALL.items()}
        rest |= {name: np.zeros((count, self.robots, at.stop - at.start)) for name, at in ROBOT.items()}
        rest["heading"][..., 0] = 1.0
        self.write(worlds, {name: value for name, value in rest.items() if name not in state})
        self.write(worlds, state)

    def step(self, command: Any) -> None:
        """Advance all worlds by `dt` under (num, robots, 5): forward, left (m/s), turn (rad/s), pan (rad/s), kick."""
        self.plan.check(command)
        told = _on_device(command, np.float32).reshape(self.num, 1, self.robots * COMMAND_ROWS)
        SCATTER[launch(self.num, THREADS)](told, self._everyone, self.command, 0, 0)
        h, substeps = np.float32(self.dt / self.plan.substeps), self.plan.substeps
        everybody = blocks(self.num) * LANES
        STEP[launch(everybody, THREADS)](
            self.state, self.parameters, self.command, self.robots, self.plan.shape, h, substeps
        )


class MatchPitch(Pitch):
    """As `Pitch`, stepped on a GPU: its arrays stay here and are copied there and back in each step."""

    def __init__(self, robot: Wheeled, field: Field, ball: Ball, num: int, robots: int, dt: float) -> None:
        super().__init__(robot, field, ball, num, robots, dt)
        self.device = PitchCuda(robot, field, ball, num, robots, dt)

    def step(self, command: NDArray[np.float32]) -> None:
        own: dict[str, Array] = self.arrays()
        self.device.state.copy_to_device(own["state"])
        self.device.parameters.copy_to_device(own["parameters"])
        self.device.step(command)
        self.device.state.copy_to_host(own["state"])

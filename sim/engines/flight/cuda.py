"""`Flight` on an NVIDIA GPU: the same equations, one thread per vehicle, through numba-cuda.

The arrays have the CPU's layout (blocks, rows, LANES), so that neighbouring threads read neighbouring numbers.
Commands and readings are objects with `__cuda_array_interface__` (torch's CUDA tensors among them) and never leave
the device; physical parameters are kept on the host, where they are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.engines.flight import dynamics
from sim.engines.flight.dynamics import COMMAND_ROWS, REST, SIGNAL_ROWS, SIGNALS, STATE
from sim.engines.vector.blocks import blocks, launch, to_lanes
from sim.engines.vector.gpu import cuda
from sim.engines.vector.simd import LANES
from sim.robots.quadrotors import Quadrotor

THREADS = 128


def step_thread(state, parameters, command, h, substeps):
    """One thread advances one vehicle by `substeps` steps of h seconds."""
    index = cuda.grid(1)
    place, lane = index // LANES, index % LANES
    if place < state.shape[0]:
        for _ in range(substeps):
            dynamics.advance(state[place], parameters[place], command[place], state[place], lane, h)


def sense_thread(state, out):
    """One thread computes what one vehicle senses: out (blocks, SIGNAL_ROWS, LANES)."""
    index = cuda.grid(1)
    place, lane = index // LANES, index % LANES
    if place < state.shape[0]:
        dynamics.sense(state[place], out[place], lane)


def gather_thread(lanes, first, out):
    """out (n, k) from k rows of lanes, beginning with row `first`."""
    index = cuda.grid(1)
    if index < out.shape[0]:
        for k in range(out.shape[1]):
            out[index, k] = lanes[index // LANES, first + k, index % LANES]


def scatter_thread(values, where, lanes, first):
    """The rows of lanes from `first` on, of the vehicles `where` (count,), from values (count, k)."""
    index = cuda.grid(1)
    if index < where.shape[0]:
        vehicle = where[index]
        for k in range(values.shape[1]):
            lanes[vehicle // LANES, first + k, vehicle % LANES] = values[index, k]


STEP, SENSE = cuda.jit(step_thread), cuda.jit(sense_thread)
GATHER, SCATTER = cuda.jit(gather_thread), cuda.jit(scatter_thread)


class FlightCuda:
    """`num` quadrotors on a GPU."""

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cuda", substeps: int = 1) -> None:
        if num < 1 or dt <= 0.0 or substeps < 1:
            raise ValueError(f"FlightCuda needs num >= 1, dt > 0 and substeps >= 1, got {num}, {dt}, {substeps}")
        if not cuda.is_available():
            raise ValueError(f"device {device!r}: no usable NVIDIA GPU and driver; use device=cpu")
        self.robot, self.num, self.dt, self.device, self.substeps = robot, num, dt, device, substeps
        cuda.select_device(int(device.partition(":")[2] or 0))
        self.parameters = {k: np.tile(v, (num, 1)) for k, v in robot.parameters().items()}
        self.state = cuda.to_device(to_lanes(np.tile(REST, (num, 1))))
        derived = dynamics.derive(self.parameters, dt / substeps)
        self.derived = cuda.to_device(to_lanes(derived))
        self._command = cuda.to_device(np.zeros((blocks(num), COMMAND_ROWS, LANES), np.float32))
        self._signals = cuda.device_array((blocks(num), SIGNAL_ROWS, LANES), np.float32)
        self._everyone = cuda.to_device(np.arange(num))

    def _index(self, mask: Any | None) -> Any:
        if mask is None:
            return np.arange(self.num)
        on_device = hasattr(mask, "__cuda_array_interface__")
        return np.flatnonzero(cuda.as_cuda_array(mask).copy_to_host() if on_device else np.asarray(mask, bool))

    def _scatter(self, lanes: Any, first: int, index: Any, values: Any) -> None:
        if not hasattr(values, "__cuda_array_interface__"):
            whole = np.broadcast_to(values, (len(index), np.shape(values)[-1]))
            values = cuda.to_device(np.ascontiguousarray(whole, np.float32))
        if len(index):
            SCATTER[launch(len(index), THREADS)](values, cuda.to_device(index), lanes, first)

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        index = self._index(mask)
        self._scatter(self.state, 0, index, np.tile(REST, (len(index), 1)))
        for name, value in state.items():
            if name not in STATE:
                raise KeyError(f"a quadrotor has no state {name!r}; it has: {', '.join(STATE)}")
            self._scatter(self.state, STATE[name].start, index, value)

    def step(self, command: Any) -> None:
        SCATTER[launch(self.num, THREADS)](command, self._everyone, self._command, 0)
        h = np.float32(self.dt / self.substeps)
        STEP[launch(blocks(self.num) * LANES, THREADS)](self.state, self.derived, self._command, h, self.substeps)

    def read(self, name: str) -> Any:
        if name in STATE:
            return self._gather(self.state, STATE[name])
        if name in SIGNALS:
            SENSE[launch(blocks(self.num) * LANES, THREADS)](self.state, self._signals)
            return self._gather(self._signals, SIGNALS[name])
        if name in self.parameters:
            return cuda.to_device(self.parameters[name])
        choices = ", ".join([*STATE, "rotation", *self.parameters])
        raise KeyError(f"a quadrotor in flight has no {name!r}; it has: {choices}")

    def _gather(self, lanes: Any, where: slice) -> Any:
        out = cuda.device_array((self.num, where.stop - where.start), np.float32)
        GATHER[launch(self.num, THREADS)](lanes, where.start, out)
        return out

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        index = self._index(mask)
        for name, value in parameters.items():
            if name not in self.parameters:
                raise KeyError(f"a quadrotor has no parameter {name!r}; it has: {', '.join(self.parameters)}")
            on_device = hasattr(value, "__cuda_array_interface__")
            self.parameters[name][index] = cuda.as_cuda_array(value).copy_to_host() if on_device else value
        chosen = {name: value[index] for name, value in self.parameters.items()}
        rows = dynamics.derive(chosen, self.dt / self.substeps)
        self._scatter(self.derived, 0, index, rows.astype(np.float32))

"""Cars on a GPU without a GPU: the kernels run in Numba's CUDA simulator, and compile to PTX."""

from pathlib import Path

import numpy as np

from sim.engines.car import Cars
from sim.engines.car.lidar import angles
from sim.engines.vector.blocks import blocks
from sim.engines.vector.simd import LANES
from sim.robots.cars import CAR_1_10
from sim.scenes.track import oval
from tests.sim.engines.test_flight_cuda import compare, opened, run

CARS, STEPS, BEAMS = 3, 40, 9

SIMULATED = """
import numpy as np
from sim.engines.car.cuda import RaceCars
from sim.robots.cars import CAR_1_10
from sim.scenes.track import oval

told = dict(np.load(PATH))
cars = RaceCars(CAR_1_10, 3, 0.05, [oval()])
cars.reset(np.arange(3), {name: told[name] for name in ("position", "heading", "velocity")})
cars.write(np.array([1]), {"friction": np.array([[0.5]])})
for command, touched in zip(told["commands"], told["touched"], strict=True):
    cars.step(command)
    np.testing.assert_array_equal(cars.read("touched")[:, 0], touched)
seen = np.zeros_like(told["seen"])
cars.scan(told["angle"], 0.1, 10.0, np.array([0, 2]), 1, seen)
np.testing.assert_allclose(seen, told["seen"], atol=2e-3)
for name in [n.removeprefix("end.") for n in told if n.startswith("end.")]:
    np.testing.assert_allclose(cars.read(name), told["end." + name], rtol=1e-3, atol=1e-3, err_msg=name)
"""

COMPILED = """
import types
import numba
import numba.cuda.dispatcher
from numba import cuda, float32, int16, int32, int64
from numba.core.types import Array
from sim.engines.car import Cars, cuda as car_cuda
from sim.robots.cars import CAR_1_10

# Without a driver there is no current device to ask; the target is given instead.
numba.cuda.dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(8, 0))
lanes, index, cells = Array(float32, 3, "C"), Array(int32, 3, "C"), Array(int16, 1, "C")
shape = numba.typeof(Cars(CAR_1_10, 1, 0.05).shape)
step = (lanes, lanes, lanes, index, cells, lanes, shape, float32, int64)
scan = (lanes, lanes, index, cells, Array(float32, 2, "C"), float32, float32, Array(int64, 1, "C"), int64, lanes)
for thread, arguments, most in ((car_cuda.step_thread, step, 100), (car_cuda.scan_thread, scan, 4)):
    ptx, _ = cuda.compile_ptx(thread, arguments, cc=(8, 0))
    assert ptx.count("fma.rn.f32") > most, thread
    assert ".f64" not in ptx, "double precision slipped in"
    assert ".local" not in ptx, "registers spill to memory"
    assert "call" not in ptx, "a function was not inlined"
"""


def test_kernels_drive_as_on_the_cpu(tmp_path: Path):
    rng = np.random.default_rng(0)
    cars, track = Cars(CAR_1_10, CARS, 0.05, [oval()]), oval()
    at = np.array([0, 40, 80])
    ahead = np.roll(track.centre, -1, axis=0)[at] - track.centre[at]
    start = {
        "position": track.centre[at],
        "heading": ahead / np.linalg.norm(ahead, axis=1, keepdims=True),
        "velocity": np.array([[2.0, 0.0], [4.0, 0.5], [3.0, -0.5]]),
    }
    cars.reset(np.arange(CARS), start)
    cars.write(np.array([1]), {"friction": np.array([[0.5]])})
    commands = (rng.uniform(-1.0, 1.0, (STEPS, CARS, 2)) * (0.4, 2.0) + (0.0, 5.0)).astype(np.float32)
    touched = []
    for command in commands:
        cars.step(command)
        touched.append(cars.read("touched")[:, 0])
    assert 0 < np.sum(touched) < STEPS * CARS
    seen, angle = np.zeros((blocks(CARS), BEAMS + 1, LANES), np.float32), angles(BEAMS, 4.0)
    cars.scan(angle, 0.1, 10.0, np.array([0, 2]), 1, seen)
    assert seen[0, 1:, [0, 2]].min() > 0.0
    ends = {f"end.{name}": cars.read(name) for name in ("position", "heading", "velocity", "turning", "impact")}
    path = tmp_path / "race.npz"
    np.savez(path, commands=commands, seen=seen, angle=angle, touched=np.array(touched), **start, **ends)
    compare(SIMULATED.replace("PATH", repr(str(path))))


def test_kernels_compile_to_single_precision_registers():
    run(COMPILED)


def test_without_a_gpu_the_error_says_so():
    opened("car_race", "car_cuda", "use engine=car")

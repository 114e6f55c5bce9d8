"""The GPU engine without a GPU: its kernels run in Numba's CUDA simulator, and compile to PTX."""

import os
import subprocess
import sys

import pytest

SIMULATED = """
import numpy as np
from numba import cuda
from sim.engines.flight.cuda import FlightCuda
from sim.robots import robot

expected = np.load(PATH)
engine = FlightCuda(robot("crazyflie"), 3, 0.01)
engine.reset(None, {"position": expected["start"], "rotor_speed": expected["rotors"]})
engine.set_parameters(np.array([False, True, False]), {"mass": np.array([[0.03]])})
for command in expected["commands"]:
    engine.step(cuda.to_device(command))
engine.reset(np.array([False, False, True]), {"linear_velocity": np.array([[1.0, 2.0, 3.0]])})
for name in ("position", "rotation", "linear_velocity", "angular_velocity", "rotor_speed", "mass"):
    np.testing.assert_allclose(engine.read(name).copy_to_host(), expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
for call in (lambda: engine.read("rotors"), lambda: engine.set_parameters(None, {"weight": np.ones((3, 1))})):
    try:
        call()
    except KeyError as error:
        assert "mass" in str(error)
    else:
        raise AssertionError("an unknown name was accepted")
"""

COMPILED = """
import types
import numba.cuda.dispatcher
from numba import cuda, float32, int64
from numba.core.types import Array
from sim.engines.flight import cuda as flight_cuda

# Without a driver there is no current device to ask; the target is given instead.
numba.cuda.dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(8, 0))
lanes = Array(float32, 3, "C")
ptx, _ = cuda.compile_ptx(flight_cuda.step_thread, (lanes, lanes, lanes, float32, int64), cc=(8, 0))
assert ptx.count("fma.rn.f32") > 100
assert ".f64" not in ptx, "double precision slipped in"
assert ".local" not in ptx, "registers spill to memory"
assert "call" not in ptx, "a function was not inlined"
"""


def run(code: str, **environment: str) -> None:
    """In a process of its own: the simulator must be chosen before Numba is imported."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def compare(code: str) -> None:
    """In Numba's CUDA simulator, and on a GPU where there is one."""
    from numba import cuda

    run(code, NUMBA_ENABLE_CUDASIM="1")
    if cuda.is_available():
        run(code, NUMBA_ENABLE_CUDASIM="0")


def opened(name: str, engine: str, otherwise: str) -> None:
    """A task opens with an engine of a GPU; without one the error says what to do otherwise."""
    from numba import cuda

    from sim.env import make_env, with_engine
    from sim.tasks import make

    task = with_engine(make(name), engine)
    if cuda.is_available():
        assert make_env(task, 2, 0).num == 2
    else:
        with pytest.raises(ValueError, match=otherwise):
            make_env(task, 2, 0)


def test_kernels_fly_as_on_the_cpu(tmp_path) -> None:
    import numpy as np

    from sim.engines.flight import Flight
    from sim.robots import robot

    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 3)).astype(np.float32)
    rotors = rng.uniform(0.3, 0.9, (3, 4)).astype(np.float32)
    commands = rng.uniform(0.3, 0.9, (4, 3, 4)).astype(np.float32)
    engine = Flight(robot("crazyflie"), 3, 0.01)
    engine.reset(None, {"position": start, "rotor_speed": rotors})
    engine.set_parameters(np.array([False, True, False]), {"mass": np.array([[0.03]])})
    for command in commands:
        engine.step(command)
    engine.reset(np.array([False, False, True]), {"linear_velocity": np.array([[1.0, 2.0, 3.0]])})
    names = ("position", "rotation", "linear_velocity", "angular_velocity", "rotor_speed", "mass")
    path = tmp_path / "flight.npz"
    np.savez(path, start=start, rotors=rotors, commands=commands, **{name: engine.read(name) for name in names})
    compare(SIMULATED.replace("PATH", repr(str(path))))


def test_step_kernel_compiles_to_single_precision_registers() -> None:
    run(COMPILED)


def test_without_a_gpu_the_error_says_so() -> None:
    from numba import cuda

    from sim import engines
    from sim.robots import robot

    if cuda.is_available():
        assert engines.make("flight", robot("crazyflie"), 2, 0.01, "cuda").num == 2
    else:
        with pytest.raises(ValueError, match="device=cpu"):
            engines.make("flight", robot("crazyflie"), 2, 0.01, "cuda")

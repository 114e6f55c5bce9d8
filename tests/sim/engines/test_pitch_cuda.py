"""Football on a GPU without a GPU: the kernels run in Numba's CUDA simulator, and compile to PTX."""

from pathlib import Path

import numpy as np
import pytest

from sim.engines.pitch import Pitch
from sim.engines.pitch.rows import BALL, COMMAND_ROWS, ROBOT
from sim.robots.wheeled import DIFFERENTIAL, OMNI
from sim.scenes.pitch import FIELDS, Ball
from tests.sim.engines.test_flight_cuda import compare, opened, run

WORLDS, STEPS = 3, 8

SIMULATED = """
import numpy as np
from numba import cuda
from sim.engines.pitch.cuda import MatchPitch, PitchCuda
from sim.robots.wheeled import DIFFERENTIAL, OMNI
from sim.scenes.pitch import FIELDS, Ball

told = dict(np.load(PATH))
robot, players = (OMNI if told["omni"] else DIFFERENTIAL), int(told["players"])
made = (robot, FIELDS[players], Ball(), 3, 2 * players, 0.05)
start = {name.removeprefix("start."): value for name, value in told.items() if name.startswith("start.")}
device, match = PitchCuda(*made), MatchPitch(*made)
for engine in (device, match):
    engine.reset(np.arange(3), start)
    engine.write(np.array([1]), {"mass": np.full((1, 2 * players, 1), 3.5)})
for command in told["commands"]:
    device.step(cuda.to_device(command))
    match.step(command)
for engine in (device, match):
    engine.reset(np.array([2]), {"ball_position": np.array([[0.5, -0.25]])})
for name in [n.removeprefix("end.") for n in told if n.startswith("end.")]:
    for read in (device.read(name).copy_to_host(), match.read(name)):
        np.testing.assert_allclose(read, told["end." + name], rtol=1e-4, atol=2e-4, err_msg=name)
device.write(np.zeros(0, np.int64), {"mass": np.zeros((0, 2 * players, 1))})
for mistake, call in (
    ("it has: ball_position", lambda: device.read("colour")),
    ("mass of 1 worlds has", lambda: device.write(np.array([0]), {"mass": np.ones((1, 7))})),
    ("take 5 commands each", lambda: device.step(np.zeros((3, 1, 5), np.float32))),
):
    try:
        call()
    except (KeyError, ValueError) as error:
        assert mistake in str(error), error
    else:
        raise AssertionError(mistake)
"""

COMPILED = """
import types
import numba
import numba.cuda.dispatcher
from numba import cuda, float32, int64
from numba.core.types import Array
from sim.engines.pitch import Pitch, cuda as pitch_cuda
from sim.robots.wheeled import DIFFERENTIAL
from sim.scenes.pitch import FIELDS, Ball

# Without a driver there is no current device to ask; the target is given instead.
numba.cuda.dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(8, 0))
lanes = Array(float32, 3, "C")
shape = numba.typeof(Pitch(DIFFERENTIAL, FIELDS[1], Ball(), 1, 2, 0.05).shape)
ptx, _ = cuda.compile_ptx(pitch_cuda.step_thread, (lanes, lanes, lanes, int64, shape, float32, int64), cc=(8, 0))
assert ptx.count("fma.rn.f32") > 40
assert ".f64" not in ptx, "double precision slipped in"
assert ".local" not in ptx, "registers spill to memory"
assert "call" not in ptx, "a function was not inlined"
"""


def started(rng: np.random.Generator, robots: int) -> dict[str, np.ndarray]:
    """Robots close to each other, the ball before the first one's front, so that they meet."""
    angle, position = rng.uniform(-np.pi, np.pi, (WORLDS, robots)), rng.uniform(-0.3, 0.3, (WORLDS, robots, 2))
    heading = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return {
        "position": position,
        "heading": heading,
        "ball_position": position[:, 0] + 0.11 * heading[:, 0],
        "ball_velocity": rng.normal(0.0, 1.0, (WORLDS, 2)),
        "lag": rng.uniform(0.03, 0.05, (WORLDS, robots, 1)),
        "sliding": rng.uniform(0.3, 0.5, (WORLDS, 1)),
    }


@pytest.mark.parametrize(("players", "omni"), [(1, False), (2, True)])
def test_kernels_play_as_on_the_cpu(tmp_path: Path, players: int, omni: bool):
    rng, robots = np.random.default_rng(players), 2 * players
    start = started(rng, robots)
    scale = (2.0, 2.0, 8.0, 3.0, 1.0)
    commands = (rng.uniform(-1.0, 1.0, (STEPS, WORLDS, robots, COMMAND_ROWS)) * scale).astype(np.float32)
    pitch = Pitch(OMNI if omni else DIFFERENTIAL, FIELDS[players], Ball(), WORLDS, robots, 0.05)
    pitch.reset(np.arange(WORLDS), start)
    pitch.write(np.array([1]), {"mass": np.full((1, robots, 1), 3.5)})
    touches = 0.0
    for command in commands:
        pitch.step(command)
        touches += pitch.read("touched").sum()
    assert touches > 0
    pitch.reset(np.array([2]), {"ball_position": np.array([[0.5, -0.25]])})
    told = {f"start.{name}": value for name, value in start.items()}
    told |= {f"end.{name}": pitch.read(name) for name in (*BALL, *ROBOT, "mass", "lag", "sliding")}
    path = tmp_path / "match.npz"
    np.savez(path, commands=commands, omni=omni, players=players, **told)
    compare(SIMULATED.replace("PATH", repr(str(path))))


def test_step_kernel_compiles_to_single_precision_registers():
    run(COMPILED)


def test_without_a_gpu_the_error_says_so():
    opened("soccer_1v1", "pitch_cuda", "use engine=pitch")

"""The arm's scenes in MuJoCo Warp, on whatever device there is, beside those in MuJoCo.

All scenes have a cube, so that one set of kernels serves all tests: most of their time is spent compiling it.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import warp

from sim import engines
from sim.engines.mujoco_warp import WarpBench
from sim.engines.warp_batch import NoRoomError
from sim.engines.workbench import NOMINAL, Variation, Workbench
from sim.env import with_engine
from sim.robots.panda import DOWN, PANDA
from sim.robots.quadrotors import CRAZYFLIE
from sim.tasks.arm import CUBE, RATE
from sim.tasks.arm.pick_place import ArmPickPlace
from sim.tasks.arm.reach import ArmReach

GRASPED = {
    "nominal": NOMINAL,
    "size": Variation(size=0.8),
    "mass": Variation(mass=8.0),
    "grip": Variation(mass=8.0, grip=0.1),
    "stiffness": Variation(stiffness=0.5),
    "damping": Variation(damping=3.0),
}
SLIDING = {"free": NOMINAL, "friction": Variation(friction=0.3)}
BESIDE = {"size": "nominal", "mass": "nominal", "grip": "mass", "stiffness": "nominal", "damping": "nominal"}
NAMES = [*GRASPED, *SLIDING]
# rad and m. MuJoCo itself goes other ways by 0.1 mm when the state is changed by 3e-6: box on box may touch elsewhere.
TOLERANCE = {"joints": 1e-4, "opening": 4e-4, "block": 4e-4}


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry():
    """Half the time to compile, twice the time to run: a good bargain for so few steps."""
    usual, warp.config.optimization_level = warp.config.optimization_level, 0
    yield
    warp.config.optimization_level = usual


def over(height):
    """The joints (7,) that bring the hand to a point above the middle of the table."""
    joints = np.array([PANDA.home])
    for _ in range(20):
        joints = PANDA.toward(joints, np.array([[0.5, 0.0, height]]), DOWN)
    return joints[0]


def lifted(kind):
    """Blocks are grasped and lifted, two others slide: what is measured after each step, (steps, num, k) by name."""
    variations = [*GRASPED.values(), *SLIDING.values()]
    num = len(variations)
    bench = kind(PANDA, (CUBE,), num, 1.0 / RATE)
    pose = np.tile([0.5, 0.0, CUBE.half_size[2], 1.0, 0.0, 0.0, 0.0], (num, 1, 1))
    pose[:, 0, 2] *= [v.size for v in variations]
    pose[len(GRASPED) :, 0, :2] = (0.3, -0.3)
    low, high = (np.tile(over(height), (num, 1)) for height in (0.02, 0.06))
    bench.reset(range(num), low, pose, variations)
    bench._state[len(GRASPED) :, 1 + bench._nominal.nq] = 0.8  # m/s, along x
    seen = []
    for step in range(12):
        bench.step(low if step < 7 else high, np.zeros((num, 1)))
        seen.append((bench.joints.copy(), bench.opening.copy(), bench.block_poses[:, 0, :3].copy()))
    bench.close()
    return {name: np.stack(values) for name, values in zip(TOLERANCE, zip(*seen, strict=True), strict=True)}


@pytest.mark.long
def test_every_scene_moves_as_in_mujoco_and_as_no_other():
    ours, theirs = lifted(WarpBench), lifted(Workbench)
    for name, tolerance in TOLERANCE.items():
        np.testing.assert_allclose(ours[name], theirs[name], atol=tolerance, rtol=0.0, err_msg=name)
    for name, other in {**BESIDE, "friction": "free"}.items():
        a, b = NAMES.index(name), NAMES.index(other)
        apart = [np.abs(ours[what][:, a] - ours[what][:, b]).max() / least for what, least in TOLERANCE.items()]
        assert max(apart) > 10.0, name
    block = theirs["block"][-1]
    assert block[NAMES.index("mass"), 2] > 0.035 > 0.025 > block[NAMES.index("grip"), 2]  # it did slip
    assert block[-1, 0] - block[-2, 0] > 0.1


def begin(bench, rows, x):
    """Scenes with a cube at `x` (count,) m."""
    pose = np.tile([0.0, 0.2, CUBE.half_size[2], 1.0, 0.0, 0.0, 0.0], (len(rows), 1, 1))
    pose[:, 0, 0] = x
    bench.reset(rows, np.tile(PANDA.home, (len(rows), 1)), pose, [Variation(mass=1.0 + v) for v in x])


def state(bench, row):
    return np.concatenate([bench.joints[row], bench.joint_speeds[row], bench.opening[row], bench.block_poses[row, 0]])


def test_a_scene_is_the_same_in_any_company_and_after_a_loss():
    dt, target = 0.005, np.array(PANDA.home) + 0.1
    batch, alone = WarpBench(PANDA, (CUBE,), 3, dt), WarpBench(PANDA, (CUBE,), 1, dt)
    begin(batch, [0, 1, 2], np.array([0.4, 0.5, 0.6]))
    begin(alone, [0], np.array([0.6]))
    told, opening = np.tile(target, (3, 1)), np.full((3, 1), 0.03)
    alone_seen, batch_seen = [], []
    for step in range(4):
        told[0, 3] = np.nan if step == 1 else target[3]
        batch.step(told, opening)
        alone.step(told[2:], opening[2:])
        assert np.isnan(state(batch, 0)).all() == (step >= 1)  # once lost, lost until it begins anew
        batch_seen.append(state(batch, 2))
        alone_seen.append(state(alone, 0))
    begin(batch, [0], np.array([0.6]))
    again = []
    for _ in range(4):
        batch.step(told, opening)
        again.append(state(batch, 0))
        assert np.isfinite(state(batch, 1)).all()
    np.testing.assert_allclose(batch_seen, alone_seen, atol=1e-6)
    np.testing.assert_allclose(again, alone_seen, atol=1e-6)
    for bench in (batch, alone):
        bench.close()


def test_contacts_without_room_are_named():
    class Cramped(WarpBench):
        contacts = 1

    bench = Cramped(PANDA, (CUBE,), 1, 0.01)
    begin(bench, [0], np.array([0.5]))
    said = "scene 0 has no room for its contacts: 1 per scene and 192 rows are too few; set more in Cramped.contacts"
    with pytest.raises(NoRoomError, match=said):
        bench.step(np.array([PANDA.home]), np.zeros((1, 1)))
    bench.close()


def test_a_task_is_carried_out_and_seen():
    envs = []
    for engine in ("mujoco_warp", "mujoco"):
        task = with_engine(ArmPickPlace(ArmPickPlace.Config(robust=True)), engine)
        envs.append(task.open(2, seed=0))
        envs[-1].reset([0, 1], [0, 1])
        outcome = envs[-1].step(task.expert(envs[-1].observe()))
        assert not outcome.terminated.any() and np.isfinite(outcome.reward).all()
    ours, theirs = envs
    assert isinstance(ours.bench, WarpBench) and not isinstance(theirs.bench, WarpBench)
    for name, value in theirs.observe().items():
        np.testing.assert_allclose(ours.observe()[name], value, atol=1e-4, err_msg=name)
    try:
        pictures = [env.render(1, 48, 64).astype(float) for env in envs]
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
    else:
        assert np.abs(pictures[0] - pictures[1]).mean() < 0.5 < pictures[0].std()
    for env in envs:
        env.close()


def test_engines_that_a_task_has_not_got_are_refused():
    with pytest.raises(
        ValueError, match="arm_reach brings its own physics; it has no engine 'bullet'; it has mujoco, "
    ):
        with_engine(ArmReach(), "bullet")
    with pytest.raises(ValueError, match="unknown engine 'mujoco_warp'.*choices: bullet, flight, mujoco"):
        engines.make("mujoco_warp", CRAZYFLIE, 1, 0.01)
    assert with_engine(ArmReach(), "").engine == "mujoco"


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    for name in ("mujoco_warp", "warp_batch"):
        monkeypatch.delitem(sys.modules, f"sim.engines.{name}")
    with pytest.raises(ModuleNotFoundError, match=r"warp is not installed: pip install 'sim2metal\[warp\]'"):
        importlib.import_module("sim.engines.mujoco_warp")

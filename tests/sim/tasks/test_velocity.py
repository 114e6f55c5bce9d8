"""A legged robot from a file: it stands, it falls, what it senses is in its own axes, and what varies does."""

from __future__ import annotations

import re
from pathlib import Path

import mujoco
import numpy as np
import pytest

from policies.learning.fused.symmetry import task_images
from sim.env import with_engine
from sim.robots import mjcf_file
from sim.rotations import rotation_matrices
from sim.tasks import HasExpert, HasMirrors, OwnWorld, make
from sim.tasks.legs.velocity import AHEAD
from sim.tasks.legs.walking import GAIT, WEIGHTS, Walking
from tests.sim.robots.test_mjcf import written

WALKER = Path(mjcf_file.__file__).with_name("simple_quadruped.xml").read_text()
UPRIGHT = (
    '<mujoco><worldbody><body name="post" pos="0 0 1" euler="0 90 0"><freejoint/><geom size="0.1 0.1 0.1" type="box"/>'
)
ARMED = (
    '<body><joint name="leg" axis="0 1 0" range="-60 60"/><geom size="0.05" pos="0.3 0 0"/></body></body></worldbody>'
)
POST = f'{UPRIGHT}{ARMED}<actuator><position joint="leg" kp="5"/></actuator></mujoco>'


def still(task, num):
    return {"position_offset": np.zeros((num, len(task.robot.actuators)))}


def stood(task, num: int, steps: int):
    """The worlds and the last step after holding the first pose."""
    env = task.open(num, seed=2)
    env.reset(range(num), range(num))
    for _ in range(steps):
        step = env.step(still(task, num))
    return env, step


def test_to_stand_is_to_be_told_no_velocity() -> None:
    task = make("velocity", standing=1.0, steps=100, vary=0.0)
    assert isinstance(task, OwnWorld) and isinstance(task, HasExpert) and isinstance(task, HasMirrors)
    env, step = stood(task, 4, 99)
    assert not step.success.any()  # it is known at the end
    step = env.step(still(task, 4))
    assert step.success.all() and not step.terminated.any() and (step.reward > 1.2).all()
    seen = env.observe()
    assert {s.name for s in (*task.policy, *task.privileged)} == set(seen)
    np.testing.assert_allclose(seen["projected_gravity"], np.tile([0.0, 0.0, -1.0], (4, 1)), atol=0.15)
    assert not seen["target_velocity"].any() and not seen["target_turn_rate"].any()
    assert (np.abs(seen["foot_load"].sum(axis=1) - 1.0) < 0.2).all()  # its feet carry its weight
    assert set(env.terms(env.truth())) == (set(WEIGHTS) - {"clearance", "air_time"}) | set(GAIT) | set(AHEAD)
    env.close()


@pytest.mark.parametrize("kind", ["servos", "motors", "velocities"])
def test_the_expert_stands(kind: str, tmp_path: Path) -> None:
    text = WALKER
    if kind != "servos":  # which give way to servos
        other = '<motor gear="20" ctrlrange="-1 1"' if kind == "motors" else '<velocity kv="5" ctrlrange="-5 5"'
        start, end = text.index("<actuator>"), text.index("</actuator>")
        text = (
            text[:start]
            + re.sub(r'<position( name="\w+" joint="\w+") ctrlrange="[^"]+"', rf"{other}\1", text[start:end])
            + text[end:]
        )
    task = make("velocity", robot=written(tmp_path, text), standing=1.0, steps=60, vary=0.0)
    assert [c.name for c in task.commands] == ["position_offset"]
    env = task.open(4, seed=2)
    env.reset(range(4), range(4))
    for _ in range(60):
        step = env.step(task.expert(env.observe()))
    assert step.success.all()
    env.close()


def test_who_stands_does_not_walk() -> None:
    task = make("velocity", standing=0.0, forward=[1.0, 2.0], steps=30)
    _, step = stood(task, 4, 30)
    assert not step.success.any() and not step.terminated.any()


def test_who_falls_is_lost() -> None:
    task = make("velocity", steps=100, reach=2.0)
    env = task.open(2, seed=0)
    env.reset(range(2), range(2))
    for _ in range(60):
        step = env.step({"position_offset": np.tile([1.4, 1.0, 1.4, 1.0, -1.1, -1.2, -1.1, -1.2], (2, 1))})
    assert step.terminated.all() and not step.success.any()
    env.reset([0], [5])
    assert not env.step(still(task, 2)).terminated[0]
    env.close()


def test_what_it_senses_is_in_axes_that_are_the_worlds_at_the_start(tmp_path: Path) -> None:
    task = make("velocity", robot=written(tmp_path, POST), vary=0.0)
    env = Walking(task, 1, seed=0)
    env.reset([0], [0])
    np.testing.assert_allclose(env.observe()["projected_gravity"], [[0.0, 0.0, -1.0]], atol=1e-6)
    turned = np.array([np.cos(0.25), 0.0, 0.0, np.sin(0.25)])  # by 0.5 rad to the left, then as it begins
    qpos, qvel = task.robot.start.copy()[None], np.zeros((1, task.robot.model.nv))
    first = rotation_matrices(qpos[:, 3:7])[0]
    w, z = turned[0], turned[3]
    a, b, c, d = qpos[0, 3:7]
    qpos[0, 3:7] = [w * a - z * d, w * b - z * c, w * c + z * b, w * d + z * a]
    heading = rotation_matrices(turned[None])[0]
    qvel[0, :3], qvel[0, 3:6] = heading @ [1.0, 2.0, 0.5], first.T @ [0.1, 0.2, 0.3]
    env.scene.reset([0], qpos, qvel)
    env._seen = {}
    seen = env.observe()
    np.testing.assert_allclose(seen["linear_velocity"], [[1.0, 2.0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(seen["angular_velocity"], [[0.1, 0.2, 0.3]], atol=1e-6)
    np.testing.assert_allclose(seen["projected_gravity"], [[0.0, 0.0, -1.0]], atol=1e-6)
    env.close()


def test_an_episode_depends_on_its_number_alone() -> None:
    task, rng = make("velocity"), np.random.default_rng(0)
    batch, alone = Walking(task, 4, seed=1, threads=2), Walking(task, 1, seed=1, threads=1)
    batch.reset(range(4), range(4))
    alone.reset([0], [2])
    for command in rng.normal(0.0, 0.3, (60, 4, 8)):
        batch.step({"position_offset": command})
        alone.step({"position_offset": command[2:3]})
        first, second = batch.observe(), alone.observe()
        for name, values in first.items():
            np.testing.assert_array_equal(values[2], second[name][0], err_msg=name)


def test_scores_end_with_the_fall() -> None:
    task = make("velocity")
    flight = {
        "linear_velocity": np.array([[[0.1, 0.0, 0.0]], [[0.3, 0.0, 0.0]], [[9.0, 0.0, 0.0]]], np.float32),
        "target_velocity": np.zeros((3, 1, 2), np.float32),
        "terminated": np.array([[[0.0]], [[0.0]], [[1.0]]], np.float32),
        "success": np.zeros((3, 1, 1), np.float32),
        **dict.fromkeys(("foot_load", "foot_height"), np.zeros((3, 1, 4), np.float32)),
        "height": np.ones((3, 1, 1), np.float32),
    }
    score = task.score(flight)
    assert set(score) == set(task.scores) and score["velocity_error"] == pytest.approx(0.2)
    assert score["fallen"] == 1.0 and score["distance"] == pytest.approx(0.4 / task.rate_hz)


def test_episodes_differ_in_what_varies_and_are_pushed() -> None:
    task = make("velocity")
    env, _ = stood(task, 16, 1)
    vehicle = env.truth()["vehicle"]
    assert (np.ptp(vehicle[:, :3], axis=0) > 0.05).all() and len(set(vehicle[:, 3])) > 1
    assert (np.abs(vehicle[:, 1] - 1.0) <= 0.2 + 1e-6).all()
    heavy, light = vehicle[:, 1].argmax(), vehicle[:, 1].argmin()
    masses = [model.body_mass[task.robot.base] for model in env.scene.models]
    assert masses[heavy] == max(masses) and masses[light] == min(masses)
    noisy, exact = env.observe(), env.truth()
    assert (noisy["joint_position"] != exact["joint_position"]).all()
    assert (noisy["linear_velocity"] == exact["linear_velocity"]).all()  # which no policy sees
    env._pushes[:, 0] = [env._count[0], 3.0, 0.0]
    before = exact["linear_velocity"][:, 0].copy()
    env.step(still(task, 16))
    assert (env.truth()["linear_velocity"][:, 0] - before > 1.0).all()
    env.close()


def test_the_centre_of_mass_moves_where_it_was_the_bodys_origin() -> None:
    """MuJoCo takes a shortcut there, and would not read what varies."""
    task = make("velocity")
    env, _ = stood(task, 2, 1)
    model, base = env.scene.models[0], task.robot.base
    assert np.linalg.norm(model.body_ipos[base] - task.robot.physics.body_ipos[base]) > 1e-3
    data = mujoco.MjData(model)
    mujoco.mj_fwdPosition(model, data)
    np.testing.assert_allclose(
        data.xipos[base] - data.xpos[base], data.xmat[base].reshape(3, 3) @ model.body_ipos[base]
    )
    env.close()


def test_commands_come_late() -> None:
    task = make("velocity", vary=0.0)
    envs = [task.open(1, seed=0) for _ in range(2)]
    for env, late in zip(envs, (0, 2), strict=True):
        env.reset([0], [0])
        env._late[:] = late
        env.step({"position_offset": np.full((1, 8), 0.3)})
    now, later = (env.truth()["joint_position"] for env in envs)
    assert (now - later > 0.01).all()  # two physics steps are the whole control step


def test_it_is_the_same_in_the_mirror() -> None:
    task, rng = make("velocity", vary=0.0, standing=0.0), np.random.default_rng(0)
    images = task_images(task)
    assert images is not None
    places, signs = images[2].places[1], images[2].signs[1]
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 0])
    env._orders[1] = env._orders[0] * [1.0, -1.0, -1.0]
    env._pushes[1] = env._pushes[0] * [1.0, 1.0, -1.0]
    joints = task.robot.reflected(False)[0]
    env.scene.qpos[1, task.robot.positions] = env.scene.qpos[0, task.robot.positions][joints]
    env._seen = {}
    for command in rng.normal(0.0, 0.2, (25, 8)).astype(np.float32):
        env.step({"position_offset": np.stack([command, command[places] * signs])})
    truth = env.truth()
    for name in ("linear_velocity", "projected_gravity", "target_velocity", "joint_position", "foot_load"):
        at, sign = task.mirrors[0].of(name, truth[name].shape[1])
        np.testing.assert_allclose(truth[name][1], truth[name][0][at] * sign, atol=2e-3, err_msg=name)
    env.close()


@pytest.mark.slow
def test_mujoco_warp_steps_the_same_worlds() -> None:
    task = make("velocity", gait=False)
    envs = [with_engine(task, engine).open(2, seed=3) for engine in ("mujoco", "mujoco_warp")]
    for env in envs:
        env.reset([0, 1], [0, 1])
    for command in np.random.default_rng(0).normal(0.0, 0.1, (4, 2, 8)):
        for env in envs:
            env.step({"position_offset": command})
    one, other = (env.truth() for env in envs)
    for name, close in (("joint_position", 0.02), ("linear_velocity", 0.05), ("height", 0.005), ("foot_height", 0.01)):
        np.testing.assert_allclose(one[name], other[name], atol=close, err_msg=name)


def test_settings_that_make_no_sense_are_refused() -> None:
    wrong = {"forward": [1.0], "standing": 2.0, "lowest": 1.0, "tilt": 0.0, "error": 0.0, "reach": 0.0, "vary": -1.0}
    for name, value in {**wrong, "contacts": "some", "timestep": 1.0, "turn": -1.0}.items():
        with pytest.raises(ValueError, match=name):
            make("velocity", **{name: value})

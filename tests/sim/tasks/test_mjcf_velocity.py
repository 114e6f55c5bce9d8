"""A legged robot from a file: it stands, it falls, and what it senses is in its own axes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sim.robots import mjcf_file
from sim.rotations import rotation_matrices
from sim.tasks import HasExpert, OwnWorld, make
from sim.tasks.mjcf_velocity import Walking
from tests.sim.robots.test_mjcf import written

WALKER = Path(mjcf_file.__file__).with_name("simple_quadruped.xml").read_text()
UPRIGHT = (
    '<mujoco><worldbody><body name="post" pos="0 0 1" euler="0 90 0"><freejoint/><geom size="0.1 0.1 0.5" type="box"/>'
)
ARMED = (
    '<body><joint name="arm" axis="0 1 0" range="-60 60"/><geom size="0.05" pos="0.3 0 0"/></body></body></worldbody>'
)
POST = f'{UPRIGHT}{ARMED}<actuator><position joint="arm" kp="5"/></actuator></mujoco>'


def stood(task, num: int, steps: int):
    """The worlds and the last step after holding the first pose."""
    env = task.open(num, seed=2)
    env.reset(range(num), range(num))
    for _ in range(steps):
        step = env.step({"position_target": np.tile(task.robot.home, (num, 1))})
    return env, step


def test_to_stand_is_to_be_told_no_velocity() -> None:
    task = make("velocity", standing=1.0, steps=100)
    assert isinstance(task, OwnWorld) and isinstance(task, HasExpert)
    env, step = stood(task, 4, 99)
    assert not step.success.any()  # it is known at the end
    step = env.step({"position_target": np.tile(task.robot.home, (4, 1))})
    assert step.success.all() and not step.terminated.any() and (step.reward > 1.2).all()
    seen = env.observe()
    assert {s.name for s in (*task.policy, *task.privileged)} == set(seen)
    np.testing.assert_allclose(seen["projected_gravity"], np.tile([0.0, 0.0, -1.0], (4, 1)), atol=0.15)
    assert not seen["target_velocity"].any() and not seen["target_turn_rate"].any()
    env.close()


@pytest.mark.parametrize("kind", ["servos", "motors", "velocities"])
def test_the_expert_stands(kind: str, tmp_path: Path) -> None:
    text = WALKER
    if kind != "servos":
        other = '<motor gear="20" ctrlrange="-1 1"' if kind == "motors" else '<velocity kv="5" ctrlrange="-5 5"'
        start, end = text.index("<actuator>"), text.index("</actuator>")
        text = (
            text[:start]
            + re.sub(r'<position( name="\w+" joint="\w+") ctrlrange="[^"]+"', rf"{other}\1", text[start:end])
            + text[end:]
        )
    rate = 200.0 if kind == "motors" else 50.0  # a torque that is held for 20 ms is no spring
    task = make("velocity", robot=written(tmp_path, text), standing=1.0, steps=60, rate_hz=rate)
    env = task.open(4, seed=2)
    env.reset(range(4), range(4))
    for _ in range(60):
        step = env.step(task.expert(env.observe()))
    assert step.success.all()
    env.close()


def test_who_stands_does_not_walk() -> None:
    task = make("velocity", standing=0.0, speed=2.0, steps=30)
    env, step = stood(task, 4, 30)
    told = np.linalg.norm(env.observe()["target_velocity"], axis=1)
    assert told.max() > 1.0 and not step.success[told > 0.5].any()
    env.close()


def test_who_falls_is_lost() -> None:
    task = make("velocity", steps=100)
    env = task.open(2, seed=0)
    env.reset(range(2), range(2))
    for _ in range(60):
        step = env.step({"position_target": np.tile([2.0, -0.2, 2.0, -0.2, -0.5, -2.4, -0.5, -2.4], (2, 1))})
    assert step.terminated.all() and not step.success.any()
    env.reset([0], [5])
    assert not env.step({"position_target": np.tile(task.robot.home, (2, 1))}).terminated[0]
    env.close()


def test_what_it_senses_is_in_axes_that_are_the_worlds_at_the_start(tmp_path: Path) -> None:
    task = make("velocity", robot=written(tmp_path, POST))
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
    for command in task.robot.home + rng.normal(0.0, 0.3, (20, 4, 8)):
        batch.step({"position_target": command})
        alone.step({"position_target": command[2:3]})
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
    }
    score = task.score(flight)
    assert set(score) == set(task.scores) and score["velocity_error"] == pytest.approx(0.2)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"speed": -1.0}, {"standing": 2.0}, {"lowest": 1.0}, {"tilt": 0.0}, {"error": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make("velocity", **wrong)

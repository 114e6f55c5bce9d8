"""Reaching with a robot from a file: goals can be reached, the expert does it, an episode is its number's alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.env import NoExpertError
from sim.robots import mjcf_file
from sim.tasks import HasExpert, OwnWorld, Relabelable, make
from sim.tasks.mjcf_reach import MjcfReach, Reaching
from sim.tasks.recorded import recorded
from tests.sim.robots.test_mjcf import ARM, BOX, URDF, motors, written


def demonstrate(task, env, steps):
    """Signals after each step (steps, num, *shape), and successes (num,)."""
    seen, success = [], np.zeros(env.num, bool)
    for _ in range(steps):
        step = env.step(task.expert(env.observe()))
        seen.append(env.observe())
        success |= step.success
        np.testing.assert_array_equal(task.reached(seen[-1][task.achieved], seen[-1][task.goal]), step.success)
    return {name: np.stack([s[name] for s in seen]) for name in seen[0]}, success


@pytest.mark.parametrize("kind", ["servos", "motors", "velocities", "urdf"])
def test_the_expert_does_it(kind: str, tmp_path: Path) -> None:
    urdf = URDF.replace("GEOMETRY", BOX)
    texts = {"servos": ARM, "motors": motors(ARM), "urdf": urdf}
    texts["velocities"] = motors(ARM).replace("<motor", "<velocity kv='30'").replace("-1 1", "-3 3").replace("40", "1")
    path = written(tmp_path, texts[kind], "robot.urdf" if kind == "urdf" else "robot.xml")
    task = make("reach", robot=path, steps=60)
    assert isinstance(task, OwnWorld) and isinstance(task, HasExpert) and isinstance(task, Relabelable)
    env = task.open(20, seed=3)
    env.reset(range(20), range(20))
    _, success = demonstrate(task, env, task.episode_steps)
    assert success.mean() >= 0.95
    env.close()


def test_signals_are_the_declared_ones() -> None:
    task = make("reach")
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    seen = env.observe()
    assert {s.name for s in task.policy} == set(seen) and {s.name for s in task.commands}.isdisjoint(seen)
    assert all(seen[s.name].shape == (2, *s.shape) and seen[s.name].dtype == np.float32 for s in task.policy)
    env.close()


def test_an_episode_depends_on_its_number_alone() -> None:
    task = make("reach")
    batch, alone = Reaching(task, 5, seed=1, threads=2), Reaching(task, 2, seed=1, threads=1)
    batch.reset(range(5), range(5))
    whole, _ = demonstrate(task, batch, 15)
    alone.reset([0, 1], [9, 9])
    demonstrate(task, alone, 3)
    alone.reset([1], [4])
    single, _ = demonstrate(task, alone, 15)
    for name, values in whole.items():
        np.testing.assert_array_equal(values[:, 4], single[name][:, 1], err_msg=name)
    assert not np.array_equal(whole["goal_position"][0, 0], whole["goal_position"][0, 1])


@settings(max_examples=10)
@given(spread=st.floats(0.05, 1.0), seed=st.integers(0, 999))
def test_goals_can_be_reached_without_a_collision(spread: float, seed: int) -> None:
    task = make("reach", spread=spread)
    env = task.open(4, seed)
    env.reset(range(4), range(4))
    seen = env.observe()
    assert (seen["goal_position"][:, 2] > 0.0).all()  # above the floor
    assert (np.linalg.norm(seen["goal_position"] - (0.0, 0.0, 0.2), axis=1) < 0.64).all()
    for goal in seen["goal_position"]:
        joints = task._solved(np.asarray(goal, np.float64))
        tip = next(task.robot.forward(joints[None]))[1]
        assert np.linalg.norm(tip - goal) < 0.2 * task.close
        assert ((joints >= task.robot.low) & (joints <= task.robot.high)).all()
    env.close()


def test_a_world_that_is_told_nan_is_lost() -> None:
    task = make("reach")
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    command = task.expert(env.observe())
    command["position_target"][1] = np.nan
    step = env.step(command)
    assert step.terminated.tolist() == [False, True] and np.isfinite(step.reward).all() and not step.success[1]
    env.close()


def test_the_settings_in_a_policy_file_have_a_hash_and_no_path(tmp_path: Path) -> None:
    path = written(tmp_path / "somebody", ARM)
    task = make("reach", robot=path)
    told = recorded(task)
    assert told["robot"] == "robot.xml" and told["sha256"] == task.robot.sha256 and "somebody" not in str(told)
    assert make("reach", **{**told, "robot": path}).robot.name == "simple_arm"
    Path(path).write_text(ARM.replace("0.25", "0.26"))
    with pytest.raises(ValueError, match="not the model that the policy was made for"):
        make("reach", **{**told, "robot": path})


def test_a_robot_that_cannot_do_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its base is free; this is for robots that are bolted"):
        make("reach", robot="simple_quadruped")
    tendon = '<tendon><fixed name="t"><joint joint="turn" coef="1"/></fixed></tendon>'
    pulled = motors(ARM).replace('joint="turn" gear', 'tendon="t" gear').replace("<actuator>", f"{tendon}<actuator>")
    task = make("reach", robot=written(tmp_path, pulled))
    assert [signal.name for signal in task.commands] == ["control", "motor"]
    env = task.open(1, 0)
    env.reset([0], [0])
    with pytest.raises(NoExpertError, match="no scripted expert for simple_arm"):
        task.expert(env.observe())
    for wrong in ({"spread": 0.0}, {"close": -1.0}, {"rate_hz": 0.0}, {"steps": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make("reach", **wrong)


def test_settings_belong_to_one_robot() -> None:
    first = MjcfReach()
    assert dataclasses.asdict(first.config)["sha256"] == first.robot.sha256
    assert mjcf_file.MODELS.keys() == {"simple_arm", "simple_quadruped", "simple_humanoid"}

"""The tasks of the arm at its table: repeatable, solved by their experts, seen by cameras."""

from __future__ import annotations

import numpy as np
import pytest

from sim.spec import find
from sim.tasks.arm import CAMERAS, PIXELS, REACH, SPEED, Scenes, Settings, vary
from sim.tasks.arm.pick_place import ArmPickPlace
from sim.tasks.arm.push import ArmPush
from sim.tasks.arm.reach import ArmReach

TASKS = [ArmReach, ArmPush, ArmPickPlace]


def made(task, **settings):
    return task(task.Config(**settings))


def demonstrate(task, env, steps):
    """Signals after each step (steps, num, *shape), and successes (num,)."""
    seen, success = [], np.zeros(env.num, bool)
    for _ in range(steps):
        success |= env.step(task.expert(env.observe())).success
        seen.append(env.observe())
    return {name: np.stack([s[name] for s in seen]) for name in seen[0]}, success


@pytest.mark.thinned
@pytest.mark.parametrize("control", ["velocity", "joint"])
@pytest.mark.parametrize("kind", TASKS)
def test_the_expert_does_it(kind, control):
    task = made(kind, control=control)
    env = task.open(20, seed=3)
    env.reset(range(20), range(20))
    _, success = demonstrate(task, env, task.episode_steps)
    assert success.mean() >= 0.95
    env.close()


@pytest.mark.parametrize("kind", TASKS)
def test_what_is_reached_is_success(kind):
    task = made(kind)
    env = task.open(4, seed=3)
    env.reset(range(4), range(4))
    said = []
    for _ in range(task.episode_steps):
        success = env.step(task.expert(env.observe())).success
        seen = env.observe()
        np.testing.assert_array_equal(task.reached(seen[task.achieved], seen[task.goal]), success)
        said += [*success]
    assert {*said} == {True, False}
    env.close()


@pytest.mark.parametrize("kind", TASKS)
def test_a_mediocre_expert_often_fails(kind):
    task, rng = made(kind), np.random.default_rng(0)
    env = task.open(40, seed=3)
    env.reset(range(40), range(40))
    offsets = {name: rng.normal(0.0, std, (40, 3)) for name, std in task.corruption.items() if name != "hand_velocity"}
    success = np.zeros(40, bool)
    for _ in range(60):
        seen = env.observe()
        command = task.expert(seen | {name: seen[name] + offset for name, offset in offsets.items()})
        command["hand_velocity"] += rng.normal(0.0, task.corruption["hand_velocity"], (40, 3))
        success |= env.step(command).success
    assert success.any() and success.mean() < 0.8
    env.close()


@pytest.mark.parametrize("kind", TASKS)
def test_signals_are_the_declared_ones_and_say_what_is(kind):
    task = made(kind)
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    start = env.observe()
    assert list(start) != [] and {s.name for s in task.policy} == set(start)
    for signal in task.policy:
        value = start[signal.name]
        assert value.shape == (2, *signal.shape) and value.dtype == np.float32
    np.testing.assert_allclose(start["joint_position"], np.tile(task.robot.home, (2, 1)), atol=1e-6)
    np.testing.assert_allclose(start["gripper_opening"], 0.08)
    assert not start["joint_velocity"].any()
    assert not {s.name for s in task.policy} & {s.name for s in task.commands}  # recordings hold both by name
    assert not np.array_equal(start["goal_position"][0], start["goal_position"][1])
    env.close()


@pytest.mark.parametrize("settings", [{}, {"robust": True}, {"control": "joint"}], ids=str)
def test_an_episode_depends_on_its_number_alone(settings):
    task = made(ArmPickPlace, **settings)
    batch, threaded = Scenes(task, 6, seed=1, threads=1), Scenes(task, 6, seed=1, threads=3)
    for env in (batch, threaded):
        env.reset(range(6), range(6))
    whole, _ = demonstrate(task, batch, 40)
    again, _ = demonstrate(task, threaded, 40)
    alone = Scenes(task, 2, seed=1)
    alone.reset([0, 1], [5, 5])
    demonstrate(task, alone, 7)
    alone.reset([1], [4])  # while the other goes on
    single, _ = demonstrate(task, alone, 40)
    for name, values in whole.items():
        np.testing.assert_array_equal(values, again[name], err_msg=name)
        np.testing.assert_array_equal(values[:, 4], single[name][:, 1], err_msg=name)
        np.testing.assert_array_equal(values[7:, 5], single[name][:33, 0], err_msg=name)
    other = Scenes(task, 6, seed=2)
    other.reset(range(6), range(6))
    assert not np.array_equal(other.observe()["goal_position"], whole["goal_position"][0])
    for env in (batch, threaded, alone, other):
        env.close()


def test_looking_changes_nothing():
    task = made(ArmPush, robust=True)
    watched, alone = Scenes(task, 2, seed=0, threads=1), Scenes(task, 2, seed=0, threads=1)
    for env in (watched, alone):
        env.reset((0, 1), (7, 8))
    for _ in range(25):
        try:
            watched.render(1, 8, 8)
        except RuntimeError as error:  # no OpenGL on this machine
            assert "OpenGL" in str(error)
        for env in (watched, alone):
            env.step(task.expert(env.observe()))
    for name, values in alone.observe().items():
        np.testing.assert_array_equal(values, watched.observe()[name], err_msg=name)
    watched.close()
    alone.close()


def test_the_hand_moves_at_the_velocity_it_is_told_and_stays_within_reach():
    task = made(ArmReach)
    env = task.open(3, seed=0)
    env.reset(range(3), range(3))
    velocity = np.array([[0.2, 0.0, 0.0], [0.0, -0.2, 0.1], [0.0, 0.0, -9.0]], np.float32)  # the last beyond its limit
    wide = np.full((3, 1), 0.08, np.float32)
    begin = env.observe()["hand_position"]
    for _ in range(5):
        env.step({"hand_velocity": velocity, "gripper_target": wide})
    moved = (env.observe()["hand_position"] - begin) / 0.25
    np.testing.assert_allclose(moved[:2], velocity[:2], atol=0.03)
    assert moved[2, 2] > -1.2 * SPEED
    for _ in range(80):
        env.step({"hand_velocity": velocity, "gripper_target": wide})
    seen = env.observe()
    assert (seen["hand_position"] > REACH[0] - 0.01).all() and (seen["hand_position"] < REACH[1] + 0.01).all()
    np.testing.assert_allclose(seen["hand_rotation"], np.tile([1, 0, 0, 0, -1, 0, 0, 0, -1], (3, 1)), atol=0.02)
    env.close()


def test_joints_keep_their_limits_and_the_fingers_take_their_time():
    task = made(ArmReach, control="joint")
    env = task.open(1, seed=0)
    env.reset([0], [0])
    command = {"joint_target": np.full((1, 7), 9.0, np.float32), "gripper_target": np.zeros((1, 1), np.float32)}
    env.step(command)
    opening = env.observe()["gripper_opening"][0, 0]
    assert 0.07 < opening < 0.0775  # 50 mm/s per finger
    speeds = []
    for _ in range(60):
        env.step(command)
        speeds.append(np.abs(env.observe()["joint_velocity"][0]) / task.robot.velocity)
    assert np.max(speeds[10:]) < 1.1  # once they have swung in
    seen = env.observe()
    assert (seen["joint_position"][0] < task.robot.high + 0.02).all()
    assert seen["gripper_opening"][0, 0] == pytest.approx(0.0, abs=1e-3)
    env.close()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_command_that_is_no_number_loses_that_scene_only(value):
    task = made(ArmPush)
    env = task.open(3, seed=0)
    env.reset(range(3), range(3))
    command = task.expert(env.observe())
    command["hand_velocity"][1, 0] = value
    lost = np.isnan(value)  # infinite is beyond the limit, and clipped to it
    assert env.step(command).terminated.tolist() == [False, lost, False]
    outcome = env.step(task.expert(env.observe()))
    assert outcome.terminated.tolist() == [False, lost, False] and not outcome.success[1]
    assert np.isfinite(env.observe()["hand_position"]).all() != lost
    env.reset([1], [1])
    assert not env.step(task.expert(env.observe())).terminated.any()
    env.close()


def test_an_object_that_leaves_the_table_is_lost():
    task = made(ArmPush)
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    env.bench._state[1, env.bench._block.start] = 0.9
    outcome = env.step(task.expert(env.observe()))
    assert outcome.terminated.tolist() == [False, True]
    env.bench._state[1, env.bench._block] = env.bench._state[0, env.bench._block]  # no way back
    assert env.step(task.expert(env.observe())).terminated.tolist() == [False, True]
    env.close()


def test_what_varies_stays_in_its_range_and_reaches_the_physics():
    drawn = [vary(np.random.default_rng([0, k])) for k in range(300)]
    for name, low, high in (
        ("size", 0.8, 1.2),
        ("mass", 0.5, 2.0),
        ("friction", 1 / 1.5, 1.5),
        ("stiffness", 0.77, 1.3),
    ):
        values = np.array([getattr(v, name) for v in drawn])
        assert low <= values.min() < low + 0.1 * (high - low) and high - 0.1 * (high - low) < values.max() <= high
    assert all(0.0 < c < 1.0 for v in drawn for c in v.colour)
    env = made(ArmPickPlace, robust=True).open(2, seed=0)
    env.reset([0, 1], [0, 1])
    nominal, (first, second) = env.bench._nominal, env.bench._models
    for name in ("geom_size", "geom_rgba", "geom_friction", "body_mass", "body_inertia", "cam_pos", "cam_quat"):
        assert not np.array_equal(getattr(first, name), getattr(second, name)), name
    for name in ("actuator_gainprm", "actuator_biasprm", "dof_damping"):
        assert not np.array_equal(getattr(first, name), getattr(nominal, name)), name
    assert first.body("block").mass[0] != nominal.body("block").mass[0]
    height = env.observe()["object_position"][:, 2]
    np.testing.assert_allclose(height, [m.geom("block").size[2] for m in (first, second)], rtol=1e-5)  # on the table
    env.close()


def orange(picture, colour):
    """How many pixels have about this hue, and where their middle is (row, column)."""
    hue = picture.astype(float) - picture.mean(-1, keepdims=True)
    wanted = np.array(colour) - np.mean(colour)
    size = np.linalg.norm(hue, axis=-1)
    match = (hue @ wanted > 0.95 * size * np.linalg.norm(wanted)) & (size > 60)
    return match.sum(), np.argwhere(match).mean(0) if match.any() else None


def test_cameras_show_policies_the_object_and_only_people_the_goals_mark():
    task = made(ArmPickPlace, cameras=[*CAMERAS])
    assert {s.name for s in task.privileged} == {"object_position", "object_rotation"}
    assert not {"object_position", "object_rotation"} & {s.name for s in task.policy}
    assert find(task.policy, CAMERAS[0]).shape == (PIXELS, PIXELS, 3)
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 0])
    try:
        before = env.observe()
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
        return
    for name in CAMERAS:
        assert before[name].shape == (2, PIXELS, PIXELS, 3) and before[name].dtype == np.uint8
        np.testing.assert_array_equal(before[name][0], before[name][1])
    red, green = (1.0, 0.1, 0.0), (0.0, 1.0, 0.2)
    (count, start), (marked, _) = (orange(before["scene_camera"][0], c) for c in (red, green))
    assert count >= 4 and marked == 0
    assert orange(env.render(0, PIXELS, PIXELS), green)[0] >= 1
    assert orange(before["wrist_camera"][0], red)[0] >= 10
    env.bench._state[0, env.bench._block.start + 1] += 0.1  # 10 cm to the left
    env.step({"hand_velocity": np.zeros((2, 3)), "gripper_target": np.full((2, 1), 0.08)})
    after = env.observe()
    (_, moved), (_, stayed) = (orange(after["scene_camera"][row], red) for row in (0, 1))
    assert np.linalg.norm(moved - start) > 5.0 and np.linalg.norm(stayed - start) < 0.5  # px
    assert env.render(0, 120, 160).shape == (120, 160, 3)
    env.close()


def test_wrong_settings_and_commands_are_named():
    with pytest.raises(ValueError, match="control 'torque' is not one of velocity, joint"):
        Settings(control="torque")
    with pytest.raises(ValueError, match="between 1 and 1000, got 0"):
        Settings(steps=0)
    env = made(ArmReach).open(2, seed=0)
    env.reset([0, 1], [0, 1])
    with pytest.raises(ValueError, match=r"hand_velocity has shape \(2, 4\), not \(2, 3\)"):
        env.step({"hand_velocity": np.zeros((2, 4)), "gripper_target": np.zeros((2, 1))})
    with pytest.raises(KeyError, match="gripper_target"):
        env.step({"hand_velocity": np.zeros((2, 3))})
    env.close()


def test_scores_of_recorded_flights():
    task = made(ArmReach)
    flight = {
        "success": np.array([[[0.0], [0.0]], [[1.0], [0.0]], [[0.0], [0.0]]]),
        "hand_position": np.zeros((3, 2, 3)),
        "goal_position": np.tile([[0.0, 0.3, 0.4], [0.0, 0.0, 0.1]], (3, 1, 1)),
    }
    score = task.score(flight)
    assert set(score) == set(task.scores)
    np.testing.assert_allclose(score["success"], [1.0, 0.0])
    np.testing.assert_allclose(score["duration"], [0.1, 0.15])
    np.testing.assert_allclose(score["final_distance"], [0.5, 0.1])


def test_who_climbs_the_reward_of_arm_push_pushes_the_block_to_its_goal():
    task = made(ArmPush)
    env = task.open(16, seed=0)
    env.reset(range(16), range(16))
    done, steps = np.zeros(16, bool), np.float32(0.01) * np.concatenate([np.eye(3), -np.eye(3)], dtype=np.float32)
    for _ in range(task.episode_steps):
        seen = env.observe()
        moved = (seen["hand_position"] + step for step in steps)
        worth = np.stack([task.reward({**seen, "hand_position": hand}) for hand in moved], axis=1)
        slope = worth[:, :3] - worth[:, 3:]
        best = 0.3 * slope / np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), 1e-6)
        done |= env.step({"hand_velocity": best, "gripper_target": np.zeros((16, 1), np.float32)}).success
    env.close()
    assert done.mean() > 0.8

"""walk, get_up and kick: rhythms, starts, rewards, what counts as success, mirrors, and a second engine."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from policies.learning.fused.symmetry import task_images
from sim.env import with_engine
from sim.tasks import HasExpert, HasMirrors, OwnWorld, make
from sim.tasks.legs import gait
from sim.tasks.legs.velocity import walked

NAMES = ("walk", "get_up", "kick")


def still(task, num):
    return {"position_offset": np.zeros((num, len(task.robot.actuators)))}


def opened(task, num: int, seed: int = 0):
    env = task.open(num, seed)
    env.reset(range(num), range(num))
    return env


def put(env, qpos=None, qvel=None) -> None:
    """Have the worlds go on from these joint positions and velocities."""
    scene = env.scene
    scene.reset(
        range(env.num), scene.qpos.copy() if qpos is None else qpos, scene.qvel.copy() if qvel is None else qvel
    )
    env._seen = {}


def test_feet_take_turns() -> None:
    assert gait.offsets(2).tolist() == [0.0, 0.5]
    assert gait.offsets(4).tolist() == [0.0, 0.5, 0.5, 0.0]  # a trot: left in front with right behind
    assert gait.offsets(6).tolist() == [0.0, 0.5, 0.5, 0.0, 0.0, 0.5]  # two tripods
    phase = np.linspace(0.0, 2.0, 81)
    lift = gait.lift(phase)
    assert lift.max() == pytest.approx(1.0) and lift.min() == 0.0
    np.testing.assert_allclose(np.minimum(lift, gait.lift(phase + 0.5)), 0.0, atol=1e-12)  # never two in the air
    np.testing.assert_allclose(gait.signal(phase + 0.5), -gait.signal(phase), atol=1e-12)  # what mirrors rely on
    assert gait.natural_frequency(0.25) == pytest.approx(2.0 * gait.natural_frequency(1.0))


def test_a_rhythm_is_told_and_goes_on() -> None:
    task = make("walk", frequency=2.0, vary=0.0)
    env = opened(task, 4)
    first = env.observe()["gait_phase"]
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-6)
    for _ in range(25):  # a whole period of 0.5 s
        env.step(still(task, 4))
        middle = env.observe()["gait_phase"] if env._count[0] == 13 else None
        assert middle is None or (np.linalg.norm(middle - first, axis=1) > 1.0).all()
    np.testing.assert_allclose(env.observe()["gait_phase"], first, atol=1e-5)
    env.close()
    rests = make("velocity", standing=1.0)
    env = opened(rests, 2)
    assert not env.observe()["gait_phase"].any()  # who stands has no rhythm
    assert "gait_phase" not in opened(make("velocity", gait=False), 1).observe()
    env.close()


def test_who_keeps_to_the_rhythm_gets_more() -> None:
    task = make("walk", vary=0.0)
    env = opened(task, 2)
    env._phase[:] = 0.25  # the first foot should be at its highest
    terms = env.terms(env.truth())  # nothing was felt yet: both are in the air
    assert terms["rhythm"][0] == pytest.approx(0.5)
    env._felt["touch"][:, 1] = env._weight
    env._felt["position"][0, 0, 2] = 0.25 * env._height
    better = env.terms(env.truth())
    assert better["rhythm"][0] == 1.0 and better["swing"][0] == pytest.approx(1.0)
    assert better["swing"][1] < 0.1  # whose foot stays on the floor
    env.close()


def test_success_is_to_be_five_metres_ahead() -> None:
    task = make("walk", vary=0.0)
    assert isinstance(task, OwnWorld) and isinstance(task, HasMirrors) and not isinstance(task, HasExpert)
    env = opened(task, 3)
    qpos, place = env.scene.qpos.copy(), task.robot.place
    qpos[:2, place] += 5.1
    qpos[1, place + 3 : place + 7] = [np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0]  # which falls
    put(env, qpos)
    step = env.step(still(task, 3))
    assert step.success.tolist() == [True, False, False] and step.terminated.tolist() == [False, True, False]
    assert env.truth()["position"][0, 0] == pytest.approx(5.1, abs=0.05)
    env.close()


def test_it_is_told_to_turn_back() -> None:
    task = make("walk", vary=0.0)
    env = opened(task, 2)
    qpos, place = env.scene.qpos.copy(), task.robot.place
    for row, angle in enumerate((0.3, -0.3)):
        qpos[row, place + 3 : place + 7] = [np.cos(0.5 * angle), 0.0, 0.0, np.sin(0.5 * angle)]
    put(env, qpos)
    seen = env.truth()
    np.testing.assert_allclose(seen["heading"][:, 0], [0.3, -0.3], atol=1e-5)
    np.testing.assert_allclose(seen["target_turn_rate"][:, 0], [-0.3, 0.3], atol=1e-5)
    env.close()


def test_steps_are_measured_until_the_end() -> None:
    load = np.ones((10, 1, 2), np.float32)
    load[1:4, 0, 0] = load[5:7, 0, 1] = 0.0  # 3 and 2 control steps in the air
    load[8:] = 0.0  # after the end
    flight = {
        "foot_load": load,
        "foot_height": np.zeros_like(load),
        "height": np.full((10, 1, 1), 0.3, np.float32),
        "linear_velocity": np.ones((10, 1, 3), np.float32),
        "target_velocity": np.ones((10, 1, 2), np.float32),
        "terminated": np.zeros((10, 1, 1), np.float32),
        "success": np.zeros((10, 1, 1), np.float32),
    }
    flight["success"][7:] = 1.0
    flight["foot_height"][2, 0, 0], flight["foot_height"][5, 0, 1] = 0.06, 0.02
    found = walked(flight, 10.0)
    assert found["bounces"] == 0.0 and walked(flight, 50.0)["bounces"] == pytest.approx(2 / 8 / 2 * 50.0)
    assert found["swing"] == pytest.approx(0.25) and found["distance"] == pytest.approx(0.8)
    assert found["velocity_error"] == 0.0 and found["fallen"] == 0.0
    assert found["clearance"] == pytest.approx(0.04) and found["height"] == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["simple_humanoid", "simple_quadruped"])
def test_it_lies_on_all_sides_and_on_the_floor(name: str) -> None:
    task = make("get_up", robot=name)
    env = opened(task, 32)
    seen = env.truth()
    down = seen["projected_gravity"]
    sides = {(int(np.abs(row[:2]).argmax()), bool(row[np.abs(row[:2]).argmax()] > 0.0)) for row in down}
    assert len(sides) == 4 and (down[:, 2] > -0.7).all()
    assert not any(key.startswith("target") for key in seen)
    model = task.robot.physics
    data = mujoco.MjData(model)
    for row in range(4):
        data.qpos[:] = env.scene.qpos[row]
        mujoco.mj_kinematics(model, data)
        pairs = task.robot._touching[1]
        gaps = [mujoco.mj_geomDistance(model, data, *pair, 10.0, None) for pair in pairs]
        assert min(gaps) == pytest.approx(0.0, abs=1e-6)
    for _ in range(60):
        step = env.step(still(task, 32))
    assert not step.terminated.any() and (env.truth()["height"] > 0.02).all()  # the floor holds it
    env.close()


def test_success_is_to_have_stood_for_a_second() -> None:
    task = make("get_up", vary=0.0)
    env = opened(task, 4)
    lying = env.step(still(task, 4)).reward
    put(env, np.tile(task.robot.start, (4, 1)), np.zeros((4, task.robot.physics.nv)))
    rewards, ends = [], []
    for _ in range(80):
        step = env.step(still(task, 4))
        rewards.append(step.reward)
        ends.append(step.success)
    assert not np.any(ends[:49]) and np.all(ends[-1])
    assert (rewards[-1] > 3.5).all() and (lying < 2.0).all()
    env.close()


def test_who_is_held_from_above_stands_by_itself() -> None:
    task = make("get_up", vary=0.0, held=[0.0, 0.9])
    env = opened(task, 32)
    share = env.truth()["held"][:, 0]
    assert share.min() < 0.2 and 0.7 < share.max() <= 0.9
    for _ in range(100):
        env.step(still(task, 32))
    height = env.truth()["height"][:, 0] / task.robot.height
    assert (height[share > 0.7] > 0.8).all() and (height[share < 0.2] < 0.5).all()
    env.close()
    assert not opened(make("get_up", vary=0.0), 4).truth()["held"].any()


def kicked(task, speed: float, angle: float, steps: int, fall: bool = False):
    """The worlds and the last step after the ball was given that speed, `angle` (degrees) to the left of what is told.

    It is far from the feet.
    """
    env = opened(task, 2)
    address, rolling = task.robot.ball
    qpos, qvel = env.scene.qpos.copy(), env.scene.qvel.copy()
    qpos[:, address] += 1.0
    turn = np.radians(angle)
    ahead, left = env._target[:, 0], env._target[:, 1]
    way = np.stack([ahead * np.cos(turn) - left * np.sin(turn), ahead * np.sin(turn) + left * np.cos(turn)], axis=1)
    qvel[:, rolling : rolling + 2] = speed * way
    radius = qpos[0, address + 2]
    qvel[:, rolling + 3], qvel[:, rolling + 4] = -speed * way[:, 1] / radius, speed * way[:, 0] / radius  # it rolls
    put(env, qpos, qvel)
    for _ in range(steps):
        told = still(task, 2)
        if fall:
            told["position_offset"][:] = task.config.reach
        step = env.step(told)
    return env, step


def test_success_is_a_ball_that_goes_as_told() -> None:
    task = make("kick", vary=0.0)
    _, early = kicked(task, 1.5, 0.0, 40)
    env, step = kicked(task, 1.5, 0.0, 55)
    assert not early.success.any() and step.success.all() and not step.terminated.any()
    assert (env.terms(env.truth())["ball"] > 0.5).all()
    for speed, angle in ((0.5, 0.0), (1.5, 45.0), (1.5, 180.0)):
        assert not kicked(task, speed, angle, 55)[1].success.any()
    _, step = kicked(task, 1.5, 0.0, 55, fall=True)
    assert step.terminated.all() and not step.success.any()


def test_a_ball_that_goes_as_told_is_worth_more() -> None:
    task = make("kick", vary=0.0)
    best, slow, astray, none = (
        kicked(task, *how, 5)[1].reward.mean() for how in ((1.5, 0.0), (0.5, 0.0), (1.5, 60.0), (0.0, 0.0))
    )
    assert best > slow > none and best > astray


def test_a_foot_moves_the_ball() -> None:
    task = make("kick", vary=0.0)
    env = opened(task, 1)
    address = task.robot.ball[0]
    qpos = env.scene.qpos.copy()
    qpos[0, address : address + 2] = qpos[0, :2] + [0.13, 0.04]  # before the left foot
    put(env, qpos)
    names = [joint.name for joint in task.robot.joints]
    swing = still(task, 1)
    swing["position_offset"][0, names.index("left_hip_pitch")] = -0.8
    for _ in range(15):
        env.step(swing)
    assert env.truth()["ball_velocity"][0, 0] > 0.1
    env.close()


def test_the_ball_is_where_it_is_seen() -> None:
    task = make("kick", vary=0.0)
    env = opened(task, 2)
    qpos, place, ball = env.scene.qpos.copy(), task.robot.place, task.robot.ball[0]
    qpos[:, place + 3 : place + 7] = [np.cos(np.pi / 4), 0.0, 0.0, np.sin(np.pi / 4)]  # it looks to the left
    qpos[:, ball : ball + 2] = qpos[:, place : place + 2] + [0.0, 1.0]
    env._target[:] = [1.0, 0.0]
    put(env, qpos)
    seen = env.truth()
    np.testing.assert_allclose(seen["ball_position"], [[1.0, 0.0]] * 2, atol=1e-5)
    np.testing.assert_allclose(seen["kick_direction"], [[0.0, -1.0]] * 2, atol=1e-5)
    env.close()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_in_the_mirror(name: str) -> None:
    task, rng = make(name, vary=0.0), np.random.default_rng(0)
    images = task_images(task)
    assert images is not None
    places, signs = images[2].places[1], images[2].signs[1]
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 0])
    robot, place = task.robot, task.robot.place
    env._orders[1] = env._orders[0] * [1.0, -1.0, -1.0]
    env._phase[1] += 0.5
    qpos, qvel = env.scene.qpos.copy(), env.scene.qvel.copy()
    flip = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0])  # of a position and a quaternion
    at, sign = robot.reflected(False)
    qpos[1, place : place + 7] *= flip
    qpos[1, robot.positions] = qpos[0, robot.positions][at] * sign
    if name == "kick":
        qpos[1, robot.ball[0] : robot.ball[0] + 7] *= flip
        env._target[1] = env._target[0] * [1.0, -1.0]
    if name == "get_up":
        env._script.begin(1, env._script.timetable.nearest(env._down(qpos[1:]))[0])
    put(env, qpos, qvel)
    for command in rng.normal(0.0, 0.1, (12, len(places))).astype(np.float32):
        env.step({"position_offset": np.stack([command, command[places] * signs])})
    truth = env.truth()
    for signal in (*task.policy, *task.privileged):
        at, sign = task.mirrors[0].of(signal.name, signal.size)
        one, other = truth[signal.name][0][at] * sign, truth[signal.name][1]
        np.testing.assert_allclose(one, other, atol=0.02, err_msg=signal.name)
    env.close()


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_depends_on_its_number_alone(name: str) -> None:
    task, rng = make(name), np.random.default_rng(0)
    batch, alone = opened(task, 3, seed=1), task.open(1, seed=1)
    alone.reset([0], [2])
    for command in rng.normal(0.0, 0.2, (20, 3, len(task.robot.actuators))):
        batch.step({"position_offset": command})
        alone.step({"position_offset": command[2:3]})
    first, second = batch.observe(), alone.observe()
    for signal, values in first.items():
        np.testing.assert_array_equal(values[2], second[signal][0], err_msg=signal)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_mujoco_warp_steps_the_same_worlds(name: str) -> None:
    task = make(name)
    envs = [opened(with_engine(task, engine), 2, seed=3) for engine in ("mujoco", "mujoco_warp")]
    for command in np.random.default_rng(0).normal(0.0, 0.1, (4, 2, len(task.robot.actuators))):
        for env in envs:
            env.step({"position_offset": command})
    one, other = (env.truth() for env in envs)
    for signal, close in (("joint_position", 0.03), ("height", 0.01), ("projected_gravity", 0.05)):
        np.testing.assert_allclose(one[signal], other[signal], atol=close, err_msg=signal)


def test_settings_that_make_no_sense_are_refused() -> None:
    wrong = {
        "walk": {"distance": 0.0, "push": -1.0, "frequency": 100.0},
        "get_up": {"lying": 2.0, "contacts": "feet", "seconds": 8.0, "speed": 0.0},
        "kick": {"direction": 200.0, "off": 0.0, "speed": 0.0, "seconds": 4.0},
    }
    for name, settings in wrong.items():
        for setting, value in settings.items():
            with pytest.raises(ValueError, match=setting):
                make(name, **{setting: value})

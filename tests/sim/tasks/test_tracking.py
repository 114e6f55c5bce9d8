"""How vectors in a robot's axes change while it moves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.algorithms.ppo.torch_recurrent import tracking
from sim.tasks import make
from sim.tasks.tracking import EgoMotion, Track

DT = 0.05
SIZES = {"ball": 2, "ball_velocity": 2, "others": 4, "heading": 2, "place": 2}
EGO = EgoMotion(
    (Track("ball", "ball_velocity"), Track("others"), Track("heading", kind="heading"), Track("place", kind="place")),
    SIZES,
    DT,
)
OTHERS = "others", "others_velocity"
speed = st.floats(-2.0, 2.0)


def axes(angle):
    """World -> body."""
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def body(world, at, angle):
    """What EGO's vectors are, of points and velocities in the world."""
    ball, moving, others = world
    return np.concatenate(
        [
            axes(angle) @ (ball - at),
            axes(angle) @ moving,
            *(axes(angle) @ (other - at) for other in others),
            [math.cos(angle), math.sin(angle), 1.0, 2.0],
        ]
    )


@given(
    x=speed, y=speed, vx=speed, vy=speed, ahead=speed, left=speed, angle=st.floats(-3.0, 3.0), turn=st.floats(-8.0, 8.0)
)
def test_points_stay_where_they_are_in_the_world(x, y, vx, vy, ahead, left, angle, turn):
    """A robot that drives straight, then turns; half the angle's tangent stands for it (3 % off at 8 rad/s)."""
    ball, moving, others = np.array([x, y]), np.array([vx, vy]), np.array([[y, x], [-x, 1.0]])
    drive = axes(angle).T @ np.array([ahead, left])
    before = body((ball, moving, others), np.zeros(2), angle)
    turned = angle + 2.0 * math.atan(0.5 * DT * turn)
    after = body((ball + DT * moving, moving, others), DT * drive, turned)
    made = EGO.carried(*(np.array([v], np.float32) for v in (before, [ahead, left], [turn])))
    np.testing.assert_allclose(made[0], after, atol=2e-6)
    assert abs(turned - angle - DT * turn) <= 0.015 * abs(DT * turn) + 1e-9


def test_the_football_of_robots_with_cameras_is_tracked():
    task = make("soccer_vision_1v1", perception="detector", opponent="slow", vary=False)
    ego, motion, columns = tracking(task)
    assert ego.names == ("ball_position", "ball_velocity", "goal", "heading", "position", *OTHERS)
    assert len(columns) == ego.size == 14 and len(motion) == 3
    env, rng = task.open(64, 0), np.random.default_rng(0)
    env.reset(range(64), range(64))
    errors, changes = [], []
    for _ in range(20):
        before = np.concatenate([env.observe()[name] for name in ego.names], axis=1)
        env.step({s.name: rng.uniform(s.low, s.high, (64, *s.shape)).astype(np.float32) for s in task.commands})
        seen = env.observe()
        after = np.concatenate([seen[name] for name in ego.names], axis=1)
        errors.append(np.abs(ego.carried(before, seen["velocity"], seen["turning"]) - after).mean())
        changes.append(np.abs(after - before).mean())
    assert np.mean(errors) < 0.5 * np.mean(changes)


def test_who_has_no_tracks_is_told_so():
    with pytest.raises(ValueError, match="quad_hover does not say what can be tracked: algorithm.network=gru"):
        tracking(make("quad_hover"))

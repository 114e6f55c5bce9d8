"""What a car can tell of its own driving, by odometry and lidar alone, and that it frees itself where it is stuck."""

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.loop import run
from deploy.safety.limits import guard_of, limits_of
from deploy.safety.recovery import Recovery, Rules
from policies.models.controller import FeaturePolicy, feature_size
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from sim import spec
from sim.robots.cars import CAR_1_10, CAR_1_18
from sim.tasks import features_of, make

TOUCHES = {"touch": "costs", "reverse": 1.0, "steps": 300, "laps": 20, "tracks": 4, "vary": False}


def policy(tmp_path, task, speed):
    """Straight on, whatever is there."""
    low, high = spec.limits(task.commands)
    sizes = {s.name: s.size for s in task.policy}
    seen = sum(feature_size(feature, sizes) for feature in features_of(task))
    bias = np.arctanh(2.0 * (np.array([0.0, speed]) - low) / (high - low) - 1.0)
    return export(FeaturePolicy.from_task(task, Mlp([(np.zeros((2, seen)), bias)])), tmp_path / "straight.onnx")


def test_what_is_sensed_is_what_happens(tmp_path):
    task = make("car_race", **TOUCHES)
    driver = Simulated(task, 32, seed=3)
    run(policy(tmp_path, task, 1.5), driver, steps=300)
    flight = driver.flight()
    told = [task.sensed_reward({name: flight[name][t] for name in ("lidar", "wheel_speed")}) for t in range(300)]
    reward, success, lost = (np.stack(part) for part in zip(*told, strict=True))
    assert reward.dtype == np.float32 and not success.any() and not lost.any()
    touched = flight["touched"][..., 0] > 0.0
    assert 0.05 < touched.mean() < 0.95
    near = reward < flight["wheel_speed"][..., 0] / task.rate_hz - 0.1
    assert near[touched].mean() > 0.95 and near[~touched].mean() < 0.35  # a wall that is near may not yet touch
    free = reward[~near]
    np.testing.assert_allclose(free, flight["velocity"][..., 0][~near] / task.rate_hz, atol=0.02)


def test_touching_ends_it_where_the_task_says_so():
    task = make("car_race")
    far = {"lidar": np.full((2, 32), 2.0, np.float32), "wheel_speed": np.full((2, 1), 3.0, np.float32)}
    far["lidar"][1, 16] = 0.1
    reward, _, lost = task.sensed_reward(far)
    assert lost.tolist() == [False, True] and reward[0] == pytest.approx(0.15) and reward[1] < 0.0


def test_the_rules_of_the_cars_are_ones_that_recovery_understands(tmp_path):
    for car in (CAR_1_10, CAR_1_18):
        assert Recovery(Rules.from_table(car.recovery), 20.0, car.commands).rules.moves == "wheel_speed"
    task = make("car_race", **TOUCHES)
    straight, limits = policy(tmp_path, task, 1.0), limits_of(task.robot.name)
    assert guard_of(straight, Simulated(task, 1), limits, straight.envelope, recovery=True).recovery
    for wrong in (-0.1, 9.0):
        with pytest.raises(ValueError, match=r"reverse must be between 0\.0 and 5\.0 m/s"):
            make("car_race", reverse=wrong)
    with pytest.raises(ValueError, match="top_speed must be between"):
        make("car_race", top_speed=0.1)

"""Racing: its world repeats itself per seed, tells what it declares, and pure pursuit gets round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.env import conditions_of, make_env
from sim.experts.pursuit import curvature, profile
from sim.randomize import Vary
from sim.robots.cars import CAR_1_10, REAL_1_10
from sim.rollout import rollout
from sim.scenes.track import random_track
from sim.tasks import make
from sim.tasks.race import BEAMS, RATE, ROBUST, VARY, random_pool
from sim.tasks.race.world import WEIGHTS, Race

FEW = {"tracks": 6}


def opened(num: int = 8, seed: int = 0, **settings: Any) -> Race:
    env = make_env(make("car_race", **{**FEW, **settings}), num, seed)
    env.reset(range(num), range(num))
    return env


def told(num: int, steering: float = 0.0, speed: float = 2.0) -> dict[str, np.ndarray]:
    return {"steering": np.full((num, 1), steering, np.float32), "speed": np.full((num, 1), speed, np.float32)}


def driven(env: Race, steps: int) -> list[dict[str, np.ndarray]]:
    seen = [env.observe()]
    for _ in range(steps):
        step = env.step(env.task.expert(env.observe()))
        seen.append({**env.observe(), "reward": step.reward, "success": step.success, "terminated": step.terminated})
    return seen


def test_seeds_and_numbers_decide_episodes():
    first, again, other = (driven(opened(seed=seed), 30) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1]["lidar"], other[-1]["lidar"])
    few = opened(2, seed=1)  # other rows, another batch
    few.reset([1, 0], [5, 3])
    later = driven(few, 30)
    for a, b in zip(first, later, strict=True):
        for name in ("lidar", "velocity", "path"):
            np.testing.assert_array_equal(a[name][[5, 3]], b[name][[1, 0]])


def test_it_continues_from_what_was_saved():
    env, other = opened(), opened(seed=0)
    driven(env, 10)
    other.load_state_dict(env.state_dict())
    for a, b in zip(driven(env, 20), driven(other, 20), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_other_seeds_are_other_tracks():
    """No track of evaluation is one of training, and every episode may be on another one."""
    one, other = random_pool(1, 6), random_pool(2, 6)
    assert not {len(t.centre) + t.centre[0, 0] for t in one} & {len(t.centre) + t.centre[0, 0] for t in other}
    env = opened(64)
    assert set(env.track) == set(range(6))
    np.testing.assert_array_equal(random_track((1, 3)).centre, one[3].centre)


def test_sensors_are_imperfect_and_the_truth_is_not():
    env = opened(64)
    driven(env, 20)
    seen, truth = env.observe(), env.truth()
    assert seen["lidar"].shape == (64, BEAMS) and truth["path"].shape == seen["path"].shape
    off = (seen["lidar"] - truth["lidar"]).std()
    assert 0.01 < off < 0.1  # noise, and now and then an old message
    assert np.abs(seen["wheel_speed"] - truth["wheel_speed"]).std() > 0.02
    np.testing.assert_array_equal(seen["path"], truth["path"])  # the critic is told what is so
    still = opened(64, vary=False)
    driven(still, 20)
    for name, value in still.truth().items():
        np.testing.assert_array_equal(still.observe()[name], value)
    np.testing.assert_allclose(still.truth()["friction"], CAR_1_10.friction)
    np.testing.assert_allclose(still.truth()["wheel_speed"][:, 0], still.truth()["velocity"][:, 0], rtol=0.11)


@pytest.mark.parametrize(("robust", "varied"), [(False, VARY), (True, ROBUST)])
def test_what_varies_stays_within_what_is_declared(robust: bool, varied: tuple[Vary, ...]):
    env = opened(256, robust=robust)
    for item in varied:
        value, nominal = env.cars.read(item.name)[:, 0], float(env._nominal[item.name][0])
        low, high = (nominal + x if item.mode == "add" else nominal * x for x in (item.low, item.high))
        assert value.min() >= low - 1e-6 and value.max() <= high + 1e-6
        assert np.ptp(value) > 0.9 * (high - low)


def test_a_robust_task_varies_all_that_usually_does_by_as_much_or_more():
    wide = {item.name: item for item in ROBUST}
    for item in VARY:
        assert wide[item.name].low <= item.low and wide[item.name].high >= item.high
    assert {"front_stiffness", "tyre_shape", "acceleration"} < set(wide)
    late = make("car_race", robust=True).commands[0].delay_range()[1]
    assert late > make("car_race").commands[0].delay_range()[1]
    real = make("car_race", robust=True, reality=True)  # as real as without
    assert not real.vary and real.commands == make("car_race", reality=True).commands


def test_a_car_may_sense_what_it_was_told_last():
    env = opened(16, told=True)
    assert not env.observe()["last_speed"].any()
    rng = np.random.default_rng(0)
    steering, speed = rng.uniform(-0.4, 0.4, (16, 1)), rng.uniform(0.0, 8.0, (16, 1))
    env.step({"steering": steering.astype(np.float32), "speed": speed.astype(np.float32)})
    seen = env.observe()
    np.testing.assert_allclose(seen["last_steering"], steering, rtol=1e-6)
    np.testing.assert_allclose(seen["last_speed"], speed, rtol=1e-6)
    blind = make("car_race_vision", told=True)  # it always does
    assert [s.name for s in blind.policy] == [s.name for s in make("car_race_vision").policy]


def test_reality_is_one_that_training_never_sees():
    task = make("car_race", reality=True, **FEW)
    env = make_env(task, 4, 0)
    env.reset(range(4), range(4))
    for name, value in REAL_1_10.parameters().items():
        np.testing.assert_allclose(env.cars.read(name), np.tile(value, (4, 1)), rtol=1e-6)
    assert task.robot is CAR_1_10  # policies are made for it
    outside = [v.name for v in VARY if v.mode == "scale"]
    nominal, real = CAR_1_10.parameters(), REAL_1_10.parameters()
    beyond = {v.name: not v.low <= float(real[v.name][0] / nominal[v.name][0]) <= v.high for v in VARY[:-1]}
    assert sum(beyond[name] for name in outside) >= 3
    late = task.commands[0].delay_range()[0]
    assert late > make("car_race").commands[0].delay_range()[1]
    names = list(conditions_of(make("car_race", **FEW)))
    assert names == ["nominal", "as in training", "reality"]
    assert list(conditions_of(make("car_race", robot="car_1_18", **FEW))) == ["nominal", "as in training"]


def test_walls_end_an_episode_or_cost():
    for touch in ("ends", "costs"):
        env = opened(16, touch=touch)
        hit, after = np.zeros(16, bool), np.zeros(16, bool)
        for _ in range(60):
            step = env.step(told(16, speed=5.0))
            touched = step.terms["touched"] > 0.0
            reward = sum(WEIGHTS[name] * value for name, value in step.terms.items())
            np.testing.assert_allclose(step.reward, reward, atol=1e-6)
            np.testing.assert_array_equal(step.terminated, touched & (touch == "ends"))
            assert (step.terms["impact"][touched] >= 0.0).all() and not step.terms["impact"][~touched].any()
            after |= hit & ~touched
            hit |= touched
        assert hit.all()
        assert not (env._lap() >= 1.0)[hit].any() or touch == "costs"


def test_a_lap_with_a_touch_is_no_success():
    env = opened(16, vary=False)
    env.touches[:8] = 1
    done = np.zeros(16, bool)
    for _ in range(500):
        done |= env.step(env.task.expert(env.observe())).success
    assert done[8:].all() and not done[:8].any()


def test_commands_that_are_no_numbers_end_the_episode():
    env = opened(4)
    command = told(4)
    command["speed"][2] = np.nan
    step = env.step(command)
    np.testing.assert_array_equal(step.terminated, [False, False, True, False])
    assert np.isfinite(step.reward).all() and np.isfinite(env.observe()["lidar"]).all()


def test_progress_is_the_way_along_the_centreline():
    env, way = opened(16, vary=False), np.zeros(16)
    for _ in range(100):
        step = env.step(env.task.expert(env.observe()))
        way += step.terms["progress"]
    np.testing.assert_allclose(way, env.way, atol=1e-3)
    lengths = np.array([env.tracks[k].length for k in env.track])
    np.testing.assert_allclose(env.truth()["lap"][:, 0], way / lengths, atol=1e-3)
    assert (way > 10.0).all()


def test_pure_pursuit_drives_laps():
    task = make("car_race", vary=False, tracks=12)
    env = make_env(task, 40, 11)
    episodes = list(rollout(task, env, lambda seen, numbers, begun: task.expert(seen), range(40), truth=True))
    scores = [task.score(e.flight()) for e in episodes]
    assert np.mean([s["success"][0] for s in scores]) >= 0.97
    laps = [s["lap_time"][0] for s in scores if s["success"][0]]
    assert 9.0 < np.mean(laps) < 13.0
    for episode, score in zip(episodes, scores, strict=True):
        assert score.keys() == task.scores.keys()
        assert all(v.dtype == np.float32 and v.shape == (1,) for v in score.values())
        if score["success"][0]:
            assert score["lap_time"][0] == pytest.approx(len(episode.reward) / RATE) and score["lap"][0] == 1.0


def test_what_a_lap_that_failed_would_have_taken():
    task, steps = make("car_race", **FEW), 100
    flight = {
        "success": np.zeros((steps, 1, 1), np.float32),
        "terminated": np.zeros((steps, 1, 1), np.float32),
        "lap": np.linspace(0.0, 1.0, steps)[:, None, None],
        "velocity": np.full((steps, 1, 2), 3.0, np.float32),
    }
    flight["terminated"][49:] = 1.0
    score = task.score(flight)
    assert not score["success"][0] and score["lap"][0] == pytest.approx(0.495, abs=0.01)
    assert score["lap_time"][0] == pytest.approx(2.5 / 0.495, rel=0.02)
    assert score["speed"][0] == pytest.approx(3.0)


def test_speeds_are_those_with_which_a_bend_can_be_driven():
    angle = np.linspace(0.0, np.pi, 40)
    bend = 2.0 * np.stack([np.sin(angle), 1.0 - np.cos(angle)], axis=1)
    np.testing.assert_allclose(curvature(bend[None]), 0.5, rtol=1e-3)
    straight = np.stack([np.linspace(-6.0, -0.2, 30), np.zeros(30)], axis=1)
    speeds = profile(np.concatenate([straight, bend])[None], 5.0, 3.0, 7.0)[0]
    np.testing.assert_allclose(speeds[32:], np.sqrt(10.0), rtol=1e-2)
    assert speeds[0] == pytest.approx(np.sqrt(10.0 + 2.0 * 3.0 * 6.0), rel=0.03)
    assert profile(straight[None], 5.0, 3.0, 4.0).max() == 4.0


def test_a_track_of_one_s_own(tmp_path: Path):
    track = random_track(5)
    rows = [f"{x},{y},0.8,0.8" for x, y in track.centre]
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    env = opened(2, track=str(tmp_path / "mine.csv"), vary=False)
    assert env.tracks[0].length == pytest.approx(track.length, rel=1e-3)
    assert opened(2, track="oval").tracks[0].name == "oval"
    with pytest.raises(ValueError, match=r"absent.csv: cannot be read as a track"):
        opened(2, track=str(tmp_path / "absent.csv"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"robot": "truck"}, "robot 'truck' is not one of car_1_10, car_1_18"),
        ({"touch": "hurts"}, "touch 'hurts' is not one of ends, costs"),
        ({"steps": 0}, "needs steps 1 to 100000"),
        ({"top_speed": 50.0}, r"top_speed must be between 0.5 and 20.0 m/s, got 50"),
        ({"robot": "car_1_18", "reality": True}, "reality is that of car_1_10, not of car_1_18"),
        ({"lapz": 3}, "its settings are: robot, track"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("car_race", **settings)


def test_a_picture_shows_the_car_where_it_is():
    env = opened(2, vary=False)
    picture = env.render(0, 200, 300)
    assert picture.shape == (200, 300, 3) and picture.dtype == np.uint8
    above, seat = np.split(picture, [180], axis=1)
    red = (above[..., 0] > 150) & (above[..., 1] < 100)
    assert 3 < red.sum() < 200
    driven(env, 40)
    above, later = np.split(env.render(0, 200, 300), [180], axis=1)
    moved = (above[..., 0] > 150) & (above[..., 1] < 100)
    assert moved.any() and not (red & moved).any()
    inside = slice(55, 145), slice(3, 93)  # a frame around 90 x 90 pixels
    assert (later[inside] != seat[inside]).any(axis=2).mean() > 0.3
    sees = make_env(make("car_race_vision", **FEW, vary=False, width=90, height=90, latency=0), 2, 0)
    sees.reset(range(2), range(2))
    np.testing.assert_array_equal(seat[inside], sees.observe()["camera"][0])


@pytest.mark.parametrize("told", [False, True])
def test_mirrored_commands_lead_to_the_mirrored_world(told: bool):
    """Left and right are alike: a car that sees the mirrored world does the mirrored thing there."""
    env = opened(8, vary=False, told=told)
    driven(env, 20)
    (mirror,) = env.task.mirrors
    seen = env.truth()
    flipped = {}
    for signal in (*env.task.policy, *env.task.privileged):
        places, signs = mirror.of(signal.name, signal.size)
        flipped[signal.name] = seen[signal.name][:, places] * np.array(signs, np.float32)
    left, right = env.task.expert(seen), env.task.expert(flipped)
    np.testing.assert_allclose(left["steering"], -right["steering"], atol=1e-5)
    np.testing.assert_allclose(left["speed"], right["speed"], rtol=1e-5)
    if told:
        np.testing.assert_array_equal(flipped["last_steering"], -seen["last_steering"])
    beams = env._angles
    np.testing.assert_allclose(beams[::-1], -beams, atol=1e-6)

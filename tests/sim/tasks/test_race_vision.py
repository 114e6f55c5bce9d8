"""Racing from pictures: what a car is told and when, how its pictures vary, and that the seed decides them."""

from typing import Any

import numpy as np
import pytest

from sim.engines.car.camera import FLOOR, PATCHES, WALLS
from sim.engines.sight.picture import GAIN_R, PANORAMA, RAISED, TILT, YAWED
from sim.env import conditions_of, make_env
from sim.tasks import HasTeacher, make
from sim.tasks.abilities import HasSensedReward
from sim.tasks.race.looks import BRIGHT, CAST, DARK
from sim.tasks.race.vision import BEYOND
from sim.tasks.race.world import Race

FEW = {"tracks": 4, "width": 24, "height": 16}


def opened(num: int = 6, seed: int = 0, **settings: Any) -> Race:
    env = make_env(make("car_race_vision", **{**FEW, **settings}), num, seed)
    env.reset(range(num), range(num))
    return env


def driven(env: Race, steps: int) -> list[dict[str, np.ndarray]]:
    seen = [env.observe()]
    for _ in range(steps):
        env.step(env.task.expert(env.truth()))
        seen.append(env.observe())
    return seen


def test_the_policy_sees_pictures_and_feels_itself_and_critics_know_all():
    task = make("car_race_vision")
    told = make("car_race")
    assert [s.name for s in task.policy] == ["camera", "wheel_speed", "yaw_rate", "last_steering", "last_speed"]
    assert task.policy[0].shape == (64, 64, 3) and task.policy[0].is_picture
    known = {s.name for s in (*task.policy, *task.privileged)}
    assert known >= {s.name for s in (*told.policy, *told.privileged)}
    assert task.commands == told.commands and isinstance(task, HasTeacher)
    teacher = make("car_race_vision", laps=2, touch="costs").teacher_task()
    assert teacher.name == "car_race" and teacher.config.laps == 2 and teacher.config.touch == "costs"
    assert isinstance(told, HasSensedReward) and not isinstance(task, HasSensedReward)  # it senses no walls
    assert {f.signal for f in task.features} == {s.name for s in task.policy if not s.is_picture}


def test_it_drives_as_the_same_race_without_a_camera_does():
    seeing, told = opened(8), make_env(make("car_race", tracks=4), 8, 0)
    told.reset(range(8), range(8))
    for _ in range(20):
        command = told.task.expert(told.truth())
        one, other = seeing.step(command), told.step(command)
        np.testing.assert_array_equal(one.reward, other.reward)
        for name in ("lidar", "velocity", "path"):
            np.testing.assert_array_equal(seeing.truth()[name], told.truth()[name])
    for name in ("steering", "speed"):
        np.testing.assert_array_equal(seeing.truth()[f"last_{name}"], command[name])


def test_seeds_and_numbers_decide_pictures():
    first, again, other = (driven(opened(seed=seed), 12) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1]["camera"], other[-1]["camera"])
    few = opened(2, seed=1)
    driven(few, 5)
    few.reset([1, 0], [5, 3])  # other rows, another batch, and after others
    for a, b in zip(first, driven(few, 12), strict=True):
        for name in ("camera", "last_steering", "wheel_speed"):
            np.testing.assert_array_equal(a[name][[5, 3]], b[name][[1, 0]])


def test_it_continues_from_what_was_saved():
    env, other = opened(latency=2), opened(latency=2)
    driven(env, 5)
    other.load_state_dict(env.state_dict())
    for a, b in zip(driven(env, 8), driven(other, 8), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("latency", [1, 3])
def test_pictures_are_late(latency: int):
    now, late = driven(opened(latency=0), 10), driven(opened(latency=latency), 10)
    for k in range(11):
        np.testing.assert_array_equal(late[k]["camera"], now[max(0, k - latency)]["camera"])
        np.testing.assert_array_equal(late[k]["wheel_speed"], now[k]["wheel_speed"])


def test_looks_vary_within_what_is_declared_and_are_nominal_without():
    varied, nominal = opened(128).sight, opened(8, vary=False).sight
    assert varied and nominal
    looks = varied.eyes.looks
    for surface, (low, high) in BRIGHT.items():
        found = looks[:, surface : surface + 3]
        assert found.min() >= low - CAST and found.max() <= high + CAST
        assert np.ptp(found.mean(axis=1)) > 0.8 * (high - low)
    assert np.ptp(looks[:, TILT]) > np.radians(3.0) and len(set(looks[:, PANORAMA])) == 4
    assert (np.ptp(nominal.eyes.looks, axis=0) == 0.0).all() and len(set(nominal.eyes.seeds)) == 8


def test_what_is_held_out_is_unlike_all_of_training():
    worlds = {name: make_env(task, 64, 0) for name, task in conditions_of(make("car_race_vision", **FEW)).items()}
    assert [*worlds] == ["nominal", "as in training", "reality", *BEYOND, "everything"]
    for world in worlds.values():
        world.reset(range(64), range(64))
    looks = {name: world.sight.eyes.looks for name, world in worlds.items()}
    usual = looks["nominal"][0]
    assert (np.abs(looks["light"][:, :3].mean(axis=1) - 1.0) > 0.3).all()
    assert (looks["surface"][:, FLOOR : FLOOR + 3] == np.float32(DARK)).all()
    assert BRIGHT[FLOOR][0] - CAST > DARK
    assert (np.abs(looks["surface"][:, WALLS : WALLS + 3] - usual[WALLS : WALLS + 3]) > 0.19).all()
    assert (np.abs(looks["camera"][:, TILT] - usual[TILT]) > np.radians(2.4)).all()
    assert (np.abs(looks["camera"][:, RAISED]) > 0.011).all() and (np.abs(looks["camera"][:, YAWED]) > 0.017).all()
    assert not np.array_equal(worlds["background"].sight.eyes.panoramas, worlds["nominal"].sight.eyes.panoramas)
    assert worlds["latency"].task.latency == worlds["nominal"].task.latency + 1
    for name in BEYOND:  # one thing each
        touched = {GAIN_R: "light", FLOOR: "surface", TILT: "camera", PANORAMA: "background"}
        for column, by in touched.items():
            if name != by:
                np.testing.assert_array_equal(looks[name][:, column], usual[column])
        np.testing.assert_array_equal(looks[name][:, PATCHES], usual[PATCHES])
    for name in ("nominal", "light", "everything"):  # the same starts
        np.testing.assert_array_equal(worlds[name].truth()["path"], worlds["nominal"].truth()["path"])


def test_a_film_shows_the_driver_s_seat_beside_the_track():
    env = opened(2, vary=False, width=32, height=32)
    before = env.render(0, 120, 200)
    assert before.shape == (120, 200, 3)
    driven(env, 20)
    after = env.render(0, 120, 200)
    assert (before[:, :120] != after[:, :120]).any() and (before[:, 120:] != after[:, 120:]).any()
    shown = env.observe()["camera"][0].repeat(2, 0).repeat(2, 1)  # enlarged twice
    windows = np.lib.stride_tricks.sliding_window_view(after[:, 120:], shown.shape)[..., 0, :, :, :]
    assert (windows == shown).all(axis=(-3, -2, -1)).sum() == 1


def test_commands_that_are_no_numbers_end_the_episode():
    env = opened(3)
    command = {"steering": np.zeros((3, 1), np.float32), "speed": np.full((3, 1), 2.0, np.float32)}
    command["speed"][1] = np.nan
    np.testing.assert_array_equal(env.step(command).terminated, [False, True, False])
    assert all(np.isfinite(value).all() for value in env.observe().values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"latency": 11}, "latency must be between 0 and 10 control steps, got 11"),
        ({"held_out": "mass"}, "held_out 'mass' is not one of , background, light, surface, camera, latency"),
        ({"lens": "mirror"}, "lens 'mirror' is not one of pinhole, fisheye"),
        ({"width": 0}, "a picture has 1 to 1000 rows and columns"),
        ({"robot": "truck"}, "robot 'truck' is not one of"),
        ({"panorama": "absent.png"}, "panorama absent.png: there is no such file"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("car_race_vision", **settings)

"""Our car beside the same one in MuJoCo: tyres are ours in both, motion, walls and contacts are each one's own.

`PYTHONPATH=. python tests/sim/engines/test_car_mujoco.py` prints how far apart they get under random commands.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.engines.car import Cars
from sim.engines.car.lidar import angles
from sim.engines.car.mujoco import MujocoCars
from sim.engines.vector.blocks import blocks
from sim.engines.vector.simd import LANES
from sim.env import make_env
from sim.robots.cars import CAR_1_10, CAR_1_18, REAL_1_10, Car
from sim.scenes.track import Track, oval, random_track
from sim.tasks import make

DT, HELD = 0.05, 5  # s of a control step; how many of them a random command is held
CARS = [CAR_1_10, CAR_1_18, REAL_1_10]
KINDS = (Cars, MujocoCars)


def made(kind: type[Cars], car: Car = CAR_1_10, num: int = 1, tracks: tuple[Track, ...] = (), **state: Any) -> Cars:
    cars = kind(car, num, DT, tracks)
    cars.reset(np.arange(num), {name: np.broadcast_to(v, (num, np.shape(v)[-1])) for name, v in state.items()})
    return cars


def drive(cars: Cars, seconds: float, seed: int) -> Iterator[float]:
    """Under random commands, with all that servo and motor can do up to 8 m/s; the time after each control step."""
    rng = np.random.default_rng(seed)
    for k in range(round(seconds / DT)):
        if k % HELD == 0:
            steering = cars.car.steering_limit * rng.uniform(-1.0, 1.0, cars.num)
            told = np.stack([steering, rng.uniform(0.0, 8.0, cars.num)], axis=1).astype(np.float32)
        cars.step(told)
        yield (k + 1) * DT


def apart(ours: Cars, theirs: Cars) -> np.ndarray:
    """How far apart two batches are, (3, num): m, rad and m/s."""
    where, way, speed = ([cars.read(name) for cars in (ours, theirs)] for name in ("position", "heading", "velocity"))
    turned = np.angle(np.divide(*[heading @ [1.0, 1.0j] for heading in way]))
    return np.stack(
        [np.linalg.norm(np.subtract(*where), axis=1), abs(turned), np.linalg.norm(np.subtract(*speed), axis=1)]
    )


def diverged(car: Car, num: int, seed: int) -> dict[int, np.ndarray]:
    """How far apart they are after 1 and 3 s away from walls (3, num), from up to 3 m/s on."""
    speed = np.stack([np.random.default_rng(seed).uniform(0.0, 3.0, num), np.zeros(num)], axis=1)
    both = [made(kind, car, num, velocity=speed) for kind in KINDS]
    found = {}
    for time, _ in zip(*(drive(cars, 3.0, seed + 1) for cars in both), strict=True):
        if round(time, 6) in (1.0, 3.0):
            found[round(time)] = apart(*both)
    both[1].close()
    return found


@pytest.mark.parametrize("car", CARS, ids=lambda car: car.name + f" {car.mass:.1f} kg")
def test_they_drive_alike_away_from_walls(car: Car):
    """Within 1 cm, 1 degree and 2 cm/s after a second; where tyres slide, what is small at first grows."""
    found = diverged(car, 48, 0)
    for time, share, most in (
        (1, 0.5, (0.01, 0.015, 0.02)),
        (1, 0.95, (0.04, 0.06, 0.15)),
        (3, 0.5, (0.05, 0.03, 0.04)),
    ):
        assert (np.quantile(found[time], share, axis=1) < most).all(), (time, share)
    assert (found[3][0] > 0.0).all()  # they are two


@pytest.mark.parametrize("speed", [1.0, 4.0, 8.0])
def test_a_wall_stops_both(speed: float):
    at = {"position": [0.0, -3.0], "heading": [0.0, 1.0], "velocity": [speed, 0.0]}
    stopped = [made(kind, tracks=(oval(),), **at) for kind in KINDS]
    hits = []
    for cars in stopped:
        seen = []
        for _ in range(40):
            cars.step(np.array([[0.0, speed]], np.float32))  # it goes on pushing
            seen.append((cars.read("touched")[0, 0], cars.read("impact")[0, 0]))
        first = next(k for k, (touched, _) in enumerate(seen) if touched)
        hits.append((first, seen[first][1]))
    assert hits[0][0] == hits[1][0]
    np.testing.assert_allclose([impact for _, impact in hits], speed, rtol=0.03)
    for cars in stopped:
        np.testing.assert_allclose(cars.read("position"), [[0.0, -2.2 - 0.5 * CAR_1_10.length]], atol=0.01)
        np.testing.assert_allclose(cars.read("velocity"), 0.0, atol=0.02)
    stopped[1].close()


@pytest.mark.parametrize(("degrees", "most"), [(10.0, 0.1), (20.0, 0.1), (45.0, 0.1), (70.0, 0.3)])
def test_they_slide_alike_along_a_smooth_wall(degrees: float, most: float):
    """Without friction, within so many m; with it ours takes less speed in oblique hits (docs/limits.md)."""
    angle, car = np.radians(degrees), replace(CAR_1_10, wall_friction=0.0)
    at = {"position": [0.0, -2.8], "heading": [np.cos(angle), np.sin(angle)], "velocity": [5.0, 0.0]}
    both = [made(kind, car, tracks=(oval(),), **at) for kind in KINDS]
    for _ in range(12):
        for cars in both:
            cars.step(np.array([[0.0, 5.0]], np.float32))
        assert both[0].read("position")[0, 1] < -2.2 - 0.5 * car.width + 0.02 > both[1].read("position")[0, 1]
    off = apart(*both)[:, 0]
    assert off[0] < most and off[2] < 0.3
    both[1].close()


def test_nobody_leaves_a_track_in_mujoco():
    """Whatever they are told, on tracks of their own, as fast as they can."""
    tracks = (random_track(0), random_track(1), oval())
    cars, rng = made(MujocoCars, num=12, tracks=tracks), np.random.default_rng(0)
    which = np.arange(12) % 3
    cars.on(np.arange(12), which)
    starts = np.stack([tracks[k].centre[rng.integers(len(tracks[k].centre))] for k in which])
    angle = rng.uniform(-np.pi, np.pi, 12)
    heading = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    cars.reset(np.arange(12), {"position": starts, "heading": heading, "velocity": np.tile([8.0, 0.0], (12, 1))})
    hit = np.zeros(12, bool)
    for _ in drive(cars, 3.0, 1):
        hit |= cars.read("touched")[:, 0] > 0.0
        seen = np.zeros((blocks(12), 64, LANES), np.float32)
        cars.scan(angles(64, 2.0 * np.pi), 0.0, 10.0, np.arange(12), 0, seen)
        away = seen.transpose(0, 2, 1).reshape(-1, 64)[:12].min(axis=1)  # of a car's middle from the walls
        assert away.min() > 0.5 * CAR_1_10.width - 0.03
    assert hit.mean() > 0.8
    cars.close()


def test_what_varies_is_carried_over_to_mujoco():
    """Worlds with other parameters, on other tracks, do what an engine does that was made of such a car and track."""
    tracks, more = (oval(), oval(6.0, 2.0)), 1.4  # as much of both: their quotient is the engine's, not a world's
    car = replace(CAR_1_10, mass=more * CAR_1_10.mass, yaw_inertia=more * CAR_1_10.yaw_inertia, friction=0.7)
    at = {"position": [[0.0, -2.2]], "heading": [[0.9, np.sqrt(0.19)]], "velocity": [[6.0, 0.0]]}
    alone, nominal = made(MujocoCars, car, 1, tracks[1:], **at), made(MujocoCars, CAR_1_10, 1, tracks[:1], **at)
    varied = made(MujocoCars, CAR_1_10, 2, tracks, **at)
    varied.on(np.array([1]), np.array([1]))
    varied.write(np.array([1]), {name: value[None] for name, value in car.parameters().items()})
    touched = np.zeros(2)
    for _ in range(20):
        for cars in (alone, nominal, varied):
            cars.step(np.tile(np.array([[0.1, 6.0]], np.float32), (cars.num, 1)))
        touched = np.maximum(touched, varied.read("touched")[:, 0])
    assert touched.all()
    for name in ("position", "heading", "velocity", "turning"):
        np.testing.assert_allclose(varied.read(name)[1], alone.read(name)[0], atol=1e-3, err_msg=name)
        np.testing.assert_allclose(varied.read(name)[0], nominal.read(name)[0], atol=1e-3, err_msg=name)
    assert np.linalg.norm(alone.read("position") - nominal.read("position")) > 0.5
    for cars in (alone, nominal, varied):
        cars.close()


def test_pure_pursuit_laps_in_mujoco_and_continues_from_what_was_saved():
    laps, saved, later = [], None, []
    for engine in ("car", "mujoco"):
        task = make("car_race", tracks=2, vary=False)
        task.engine = engine
        env = make_env(task, 2, 0)
        env.reset(range(2), range(2))
        done, time = np.zeros(2, bool), np.zeros(2)
        for _ in range(300):
            if engine == "mujoco" and env.age[0] == 20:
                saved = env.state_dict()
            step = env.step(task.expert(env.observe()))
            time += ~done / task.rate_hz
            done |= step.success
            if engine == "mujoco" and env.age[0] <= 30:
                later = env.observe()
            if done.all():
                break
        assert done.all()
        laps.append(time)
    np.testing.assert_allclose(*laps, atol=0.11)  # s
    env.load_state_dict(saved)
    for _ in range(10):
        env.step(task.expert(env.observe()))
    for name, value in later.items():
        np.testing.assert_array_equal(env.observe()[name], value, err_msg=name)
    env.close()


def main() -> None:
    """Print quantiles of how far apart they get, 256 cars of each kind, seed 0."""
    for car in CARS:
        for time, found in diverged(car, 256, 0).items():
            for what, values in zip(("m", "rad", "m/s"), found, strict=True):
                middle, high, highest = np.quantile(values, (0.5, 0.9, 0.99))
                print(f"{car.name} {car.mass:.2f} kg, {time} s: {middle:.4f}, {high:.4f}, {highest:.4f} {what}")


if __name__ == "__main__":
    main()

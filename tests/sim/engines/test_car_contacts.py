"""Cars among cars: what touching conserves, what lidars see of others, and what must change nothing."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.car import Cars
from sim.engines.car.contacts import CarsTogether, meet
from sim.engines.car.grids import Grids
from sim.engines.car.lidar import angles
from sim.engines.vector.blocks import blocks
from sim.engines.vector.simd import LANES
from sim.robots.cars import CAR_1_10
from sim.scenes.track import random_track

DT = 0.05
TRACKS = [random_track((7, k)) for k in range(3)]
# Walls are nowhere near.
OPEN = Grids(np.full(9, 16000, np.int16), np.array([[1.0, 1.0, 0.0, 0.0]], np.float32), np.array([[0, 3]], np.int32))
STATE = ("position", "heading", "velocity", "turning", "steering_angle", "push", "touched", "impact")
SEEDS = settings(max_examples=40, deadline=None)


def crowd(rng: np.random.Generator, worlds: int, each: int, room: float = 0.9) -> CarsTogether:
    """Cars at random in a small square, so that many touch, each with its own mass."""
    num = worlds * each
    cars = CarsTogether(CAR_1_10, num, DT, OPEN, each=each)
    angle = rng.uniform(-np.pi, np.pi, num)
    cars.reset(
        np.arange(num),
        {
            "position": rng.uniform(-0.5 * room, 0.5 * room, (num, 2)),
            "heading": np.stack([np.cos(angle), np.sin(angle)], axis=1),
            "velocity": rng.uniform(-4.0, 4.0, (num, 2)),
            "turning": rng.uniform(-6.0, 6.0, (num, 1)),
            "mass": CAR_1_10.mass * rng.uniform(0.5, 2.0, (num, 1)),
            "yaw_inertia": CAR_1_10.yaw_inertia * rng.uniform(0.5, 2.0, (num, 1)),
        },
    )
    return cars


def touch(cars: CarsTogether) -> None:
    arrays = cars.arrays()
    meet(arrays["state"], arrays["parameters"], arrays["between"], cars.num // cars.each, cars.each, cars.shape)


def moving(cars: CarsTogether) -> dict[str, np.ndarray]:
    """In double precision, per car: position, velocity in the world, turning, mass, inertia."""
    read = {name: cars.read(name).astype(float) for name in (*STATE, "mass", "yaw_inertia")}
    (cos, sin), (vx, vy) = read["heading"].T, read["velocity"].T
    read["velocity"] = np.stack([vx * cos - vy * sin, vx * sin + vy * cos], axis=1)
    return read


@SEEDS
@given(seed=st.integers(0, 2**32), each=st.integers(2, 6))
def test_touching_conserves_momentum_and_adds_no_energy(seed: int, each: int):
    rng = np.random.default_rng(seed)
    cars, worlds = crowd(rng, 5, each), 5
    before = moving(cars)
    touch(cars)
    after = moving(cars)

    def sums(value: np.ndarray) -> np.ndarray:
        return value.reshape(worlds, each, -1).sum(axis=1)

    mass, inertia = before["mass"], before["yaw_inertia"]
    np.testing.assert_allclose(sums(mass * after["velocity"]), sums(mass * before["velocity"]), atol=2e-4)
    place = mass * before["position"]  # the centre of mass stays where it is
    np.testing.assert_allclose(sums(mass * after["position"]), sums(place), atol=2e-5)
    energy = [
        sums(0.5 * mass * (m["velocity"] ** 2).sum(axis=1, keepdims=True) + 0.5 * inertia * m["turning"] ** 2)
        for m in (before, after)
    ]
    assert (energy[1] <= energy[0] * (1.0 + 1e-5)).all()
    # About the origin, where impulses acted before places were set apart.
    (x, y), spun = before["position"].T, []
    for m in (before, after):
        u, v = m["velocity"].T
        spun.append(sums(inertia * m["turning"] + mass * (x * v - y * u)[:, None]))
    np.testing.assert_allclose(spun[1], spun[0], atol=5e-4)
    met, ran, hit = (cars.read(name)[:, 0] for name in ("met", "ran_into", "hit"))
    assert not ran[met == 0.0].any() and not hit[met == 0.0].any()
    assert ((hit > 0.0).reshape(worlds, each).any(axis=1) <= (ran > 0.0).reshape(worlds, each).any(axis=1)).all()


@SEEDS
@given(seed=st.integers(0, 2**32), each=st.integers(2, 6))
def test_the_order_of_cars_decides_nothing(seed: int, each: int):
    rng = np.random.default_rng(seed)
    cars = crowd(rng, 1, each)
    other, order = CarsTogether(CAR_1_10, each, DT, each=each), rng.permutation(each)
    other.reset(np.arange(each), {n: cars.read(n)[order] for n in (*STATE, "mass", "yaw_inertia")})
    told = rng.uniform((-0.4, 0.0), (0.4, 6.0), (each, 2)).astype(np.float32)
    for _ in range(3):
        cars.step(told)
        other.step(told[order])
    for name in (*STATE, "met", "ran_into", "hit"):
        np.testing.assert_allclose(other.read(name), cars.read(name)[order], atol=2e-3, err_msg=name)


def behind(gap: float, speeds: tuple[float, float]) -> CarsTogether:
    """One car behind another, on a straight line without walls."""
    cars = CarsTogether(CAR_1_10, 2, DT, OPEN, each=2)
    cars.reset(np.arange(2), {"position": [[0.0, 0.0], [gap, 0.0]], "velocity": [[v, 0.0] for v in speeds]})
    return cars


def test_who_drives_into_another_one_has_run_into_it():
    cars = behind(0.57, (4.0, 1.0))
    touch(cars)
    assert cars.read("ran_into")[:, 0].tolist() == [3.0, 0.0] and cars.read("hit")[:, 0].tolist() == [0.0, 3.0]
    np.testing.assert_allclose(cars.read("velocity")[:, 0], 2.5)  # bumpers take it
    apart = np.diff(cars.read("position")[:, 0])
    assert apart[0] == pytest.approx(CAR_1_10.length, abs=1e-5)
    cars = behind(0.57, (1.0, 1.5))  # it drives away
    touch(cars)
    assert cars.read("met").all() and not cars.read("ran_into").any() and not cars.read("hit").any()
    cars = behind(0.59, (4.0, 1.0))
    touch(cars)
    assert not cars.read("met").any()


def test_cars_that_push_one_another_do_not_go_through_one_another():
    cars = behind(1.5, (6.0, 0.0))
    seen = []
    for _ in range(60):
        cars.step(np.array([[0.0, 6.0], [0.0, 0.0]], np.float32))
        seen.append(float(np.diff(cars.read("position")[:, 0])[0]))
    assert min(seen) > CAR_1_10.length - 0.16  # the depth of one substep at 6 m/s, at most


def test_a_car_alone_drives_as_in_a_world_of_its_own():
    """Bit for bit, with walls: on its own, and among cars that it never meets."""
    rng, num = np.random.default_rng(3), 24
    track = rng.integers(len(TRACKS), size=num)
    lone, one = Cars(CAR_1_10, num, DT, TRACKS), CarsTogether(CAR_1_10, num, DT, TRACKS, each=1)
    far = CarsTogether(CAR_1_10, 3 * num, DT, TRACKS, each=3)  # each where the others are not
    at = np.array([rng.integers(len(TRACKS[k].centre)) for k in track])
    start: dict[str, Any] = {
        "position": np.array([TRACKS[k].centre[p] for k, p in zip(track, at, strict=True)]),
        "heading": np.array([TRACKS[k].heading[p] for k, p in zip(track, at, strict=True)]),
        "velocity": np.stack([rng.uniform(0.0, 5.0, num), np.zeros(num)], axis=1),
    }
    for cars in (lone, one):
        cars.on(np.arange(num), track)
        cars.reset(np.arange(num), start)
    rows = np.arange(0, 3 * num, 3)
    far.on(np.arange(3 * num), np.repeat(track, 3))
    far.reset(rows, start)
    away = np.setdiff1d(np.arange(3 * num), rows)
    far.reset(away, {"position": 500.0 + 10.0 * np.stack([away, away], axis=1)})
    touched = np.zeros(num)
    for _ in range(40):
        told = np.stack([rng.uniform(-0.4, 0.4, num), rng.uniform(0.0, 7.0, num)], axis=1).astype(np.float32)
        among = np.zeros((3 * num, 2), np.float32)
        among[rows] = told
        for cars, command in ((lone, told), (one, told), (far, among)):
            cars.step(command)
        touched += lone.read("touched")[:, 0]
        for name in STATE:
            np.testing.assert_array_equal(lone.read(name), one.read(name), err_msg=name)
            np.testing.assert_array_equal(lone.read(name), far.read(name)[rows], err_msg=name)
    assert touched.any()
    seen = [np.zeros((blocks(n), 20, LANES), np.float32) for n in (num, num, 3 * num)]
    for cars, out, where in ((lone, seen[0], np.arange(num)), (one, seen[1], np.arange(num)), (far, seen[2], rows)):
        cars.scan(angles(20, 4.7), 0.1, 10.0, where, 0, out)
    first, second, third = (out.transpose(0, 2, 1).reshape(-1, 20) for out in seen)
    np.testing.assert_array_equal(first[:num], second[:num])
    np.testing.assert_array_equal(first[:num], third[rows])


def sides(place: np.ndarray, angle: float) -> np.ndarray:
    """The segments (4, 2, 2) of a car's rectangle."""
    half, side = 0.5 * CAR_1_10.length, 0.5 * CAR_1_10.width
    corners = np.array([[half, side], [-half, side], [-half, -side], [half, -side]])
    turned = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    corners = place + corners @ turned
    return np.stack([corners, np.roll(corners, -1, axis=0)], axis=1)


@SEEDS
@given(seed=st.integers(0, 2**32))
def test_beams_end_at_other_cars(seed: int):
    """Against every side of every other car, in double precision; there are no walls."""
    rng, each, worlds, count = np.random.default_rng(seed), 4, 3, 40
    cars, beam = crowd(rng, worlds, each, room=8.0), angles(40, 2.0 * math.pi)
    out = np.zeros((1, count, LANES), np.float32)
    cars.scan(beam, 0.1, 6.0, np.arange(worlds * each), 0, out)
    seen = out[0].T[: worlds * each]
    place, heading = cars.read("position").astype(float), cars.read("heading").astype(float)
    angle = np.arctan2(heading[:, 1], heading[:, 0])
    for row in range(worlds * each):
        eye, first = place[row] + 0.1 * heading[row], row - row % each
        others = [k for k in range(first, first + each) if k != row]
        if any(np.linalg.norm(place[k] - eye) < 0.4 for k in others):
            continue  # in one another
        found = np.full(count, 6.0)
        for a, b in np.concatenate([sides(place[k], angle[k]) for k in others]):
            way = np.stack([np.cos(angle[row] + beam), np.sin(angle[row] + beam)], axis=1)
            side = b - a
            cross = way[:, 0] * side[1] - way[:, 1] * side[0]
            off = a - eye
            t = (off[0] * side[1] - off[1] * side[0]) / cross
            u = (off[0] * way[:, 1] - off[1] * way[:, 0]) / cross
            hits = (t > 0.0) & (u > 1e-4) & (u < 1.0 - 1e-4)
            found = np.where(hits & (t < found), t, found)
        off = np.abs(found - seen[row])
        assert (off > 1e-3).sum() <= 1  # a beam that grazes a corner


def test_what_is_no_number_stays_with_its_car():
    cars = behind(0.57, (4.0, 1.0))
    cars.write(np.array([0]), {"velocity": [[np.nan, 0.0]], "position": [[np.nan, 0.0]]})
    for _ in range(5):
        cars.step(np.zeros((2, 2), np.float32))
    assert np.isfinite(cars.read("position")[1]).all() and not cars.read("met").any()
    out = np.zeros((1, 32, LANES), np.float32)
    cars.scan(angles(32, 4.0), 0.1, 10.0, np.arange(2), 0, out)
    assert np.isfinite(out[0, :, 1]).all() and (out[0, :, 1] == 10.0).all()


def test_rows_must_be_whole_worlds():
    with pytest.raises(ValueError, match="7 cars do not make worlds of 3"):
        CarsTogether(CAR_1_10, 7, DT, each=3)
    with pytest.raises(KeyError, match="a car has no 'wheels'"):
        CarsTogether(CAR_1_10, 2, DT, each=2).read("wheels")

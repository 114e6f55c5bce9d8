"""Our car: what formulas say, what rays hit, and what must never happen."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.engines.car as engine
from sim.engines.car import Cars, dynamics, walls
from sim.engines.car.course import courses_of, follow
from sim.engines.car.grids import INDEX_ROWS, PLACE_ROWS, grid_of
from sim.engines.car.lidar import angles
from sim.engines.car.rows import COMMAND_ROWS, IMPACT, PARAMETER_ROWS, STATE_ROWS, TOUCHED
from sim.engines.vector.blocks import block, blocks, kernel, to_lanes
from sim.engines.vector.simd import ALL, LANES
from sim.robots.cars import CAR_1_10, CAR_1_18, GRAVITY, REAL_1_10, Car
from sim.scenes.track import Track, oval, random_track

CARS = [CAR_1_10, CAR_1_18, REAL_1_10]
DT = 0.05
TRACKS = [random_track((7, k)) for k in range(4)]


def made(state: dict[str, Any] | None = None, car: Car = CAR_1_10, num: int = 1, **more: Any) -> Cars:
    cars = Cars(car, num, DT, **more)
    cars.reset(np.arange(num), {name: np.broadcast_to(v, (num, np.shape(v)[-1])) for name, v in (state or {}).items()})
    return cars


def run(cars: Cars, seconds: float, steering: Any = 0.0, speed: Any = 0.0) -> Cars:
    told = np.stack(np.broadcast_arrays(np.zeros(cars.num), steering, speed)[1:], axis=1).astype(np.float32)
    for _ in range(round(seconds / DT)):
        cars.step(told)
    return cars


def placed(cars: Cars, track: Track, rng: np.random.Generator, speed: float) -> None:
    """Cars anywhere on the centreline of the only track, in any direction, with up to that speed."""
    at = rng.integers(len(track.centre), size=cars.num)
    angle = rng.uniform(-np.pi, np.pi, cars.num)
    cars.reset(
        np.arange(cars.num),
        {
            "position": track.centre[at],
            "heading": np.stack([np.cos(angle), np.sin(angle)], axis=1),
            "velocity": np.stack([rng.uniform(0.0, speed, cars.num), np.zeros(cars.num)], axis=1),
        },
    )


def test_it_follows_the_speed_that_it_is_told():
    """Straight on: two lags after one another, as a damped oscillator has them, below the motor's limit."""
    car = CAR_1_10
    told = 0.5  # m/s: it never asks for all that the motor can do
    time = np.arange(0, 30) * DT
    decay, spring = 0.5 / car.motor_lag, car.speed_gain / car.motor_lag
    swing = math.sqrt(spring - decay**2)
    wanted = told * (1.0 - np.exp(-decay * time) * (np.cos(swing * time) + decay / swing * np.sin(swing * time)))
    cars, speeds = made(), []
    for _ in time:
        speeds.append(cars.read("velocity")[0, 0])
        run(cars, DT, 0.0, told)
    np.testing.assert_allclose(speeds, wanted, atol=2e-3)
    assert not cars.read("position")[0, 1] and not cars.read("turning").any()


@pytest.mark.parametrize("car", CARS, ids=lambda car: car.name)
def test_it_accelerates_as_its_motor_and_its_tyres_allow(car: Car):
    cars = run(made(car=car), 0.5, 0.0, car.fastest)
    most = min(car.acceleration, car.friction * GRAVITY)
    assert cars.read("push")[0, 0] == pytest.approx(car.acceleration, rel=0.01)
    assert cars.read("velocity")[0, 0] == pytest.approx(most * (0.5 - car.motor_lag), rel=0.03)
    ice = made(car=car)
    ice.write(np.arange(1), {"friction": [[0.2]]})
    assert run(ice, 0.5, 0.0, car.fastest).read("velocity")[0, 0] == pytest.approx(0.2 * GRAVITY * 0.5, rel=0.05)
    fast = run(made({"velocity": [15.0, 0.0]}, car if car.fastest > 15.0 else CAR_1_10), 0.5, 0.0, 20.0)
    power = CAR_1_10 if car.fastest <= 15.0 else car
    assert fast.read("push")[0, 0] < 1.01 * power.acceleration * power.switch_speed / 15.0


@pytest.mark.parametrize("car", CARS, ids=lambda car: car.name)
@pytest.mark.parametrize("steering", [0.05, -0.2, 0.4])
def test_slow_circles_are_those_of_rolling_wheels(car: Car, steering: float):
    cars = run(made(car=car), 4.0, steering - car.trim, 0.9)
    radius = car.wheelbase / math.tan(steering)
    vx, vy = cars.read("velocity")[0]
    assert cars.read("turning")[0, 0] == pytest.approx(vx / radius, rel=1e-3)
    assert vy == pytest.approx(vx * car.rear / radius, rel=2e-3)


def test_fast_circles_balance_forces():
    """Steady in a bend: lateral forces of both axles make the circle, and no moment about the centre of mass."""
    car = CAR_1_10
    for steering in (0.05, 0.1, 0.15):
        cars = run(made({"velocity": [3.5, 0.0]}), 6.0, steering, 3.5)
        (vx, vy), turning, push = cars.read("velocity")[0], cars.read("turning")[0, 0], cars.read("push")[0, 0]
        grip = car.friction * GRAVITY
        left = math.sqrt(1.0 - (push / grip) ** 2) * car.friction * GRAVITY * car.mass

        def force(slip: float, stiffness: float) -> float:
            k = stiffness / car.tyre_shape * slip
            return math.sin(car.tyre_shape * math.atan(k - car.tyre_curvature * (k - math.atan(k))))

        ahead = math.atan2(vy + car.front * turning, vx)
        front = left * car.rear / car.wheelbase * force(math.tan(steering - ahead), car.front_stiffness)
        rear = left * car.front / car.wheelbase * force((car.rear * turning - vy) / vx, car.rear_stiffness)
        across = front * math.cos(steering) + car.mass * push * car.rear / car.wheelbase * math.sin(steering)
        assert car.mass * vx * turning == pytest.approx(across + rear, rel=0.01)
        assert car.front * across == pytest.approx(car.rear * rear, rel=0.01)
        assert 0.05 < vx * turning / grip < 0.9


def test_the_slope_of_the_tyre_is_the_source_s():
    """Pacejka's formula at zero slip: mu C_S F_z alpha, as in f1tenth_gym."""
    cars = made({"velocity": [5.0, 0.001]})
    before = cars.read("velocity")[0, 1]
    h = 1e-3
    fine = Cars(CAR_1_10, 1, h)
    fine.reset(np.arange(1), {"velocity": [[5.0, before]]})
    fine.step(np.array([[0.0, 5.0]], np.float32))
    car = CAR_1_10
    share = car.rear / car.wheelbase * car.front_stiffness + car.front / car.wheelbase * car.rear_stiffness
    slows = car.friction * GRAVITY * share / 5.0
    assert fine.read("velocity")[0, 1] == pytest.approx(before * math.exp(-slows * h), rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), transfer=st.booleans())
def test_tyres_never_give_more_than_grip(seed: int, transfer: bool):
    """However it is driven, the centre of mass is accelerated by friction times gravity at most."""
    rng, num, h = np.random.default_rng(seed), 32, 2e-3
    cars = Cars(CAR_1_10, num, h, load_transfer=transfer)
    angle = rng.uniform(-np.pi, np.pi, num)
    speed, drift = rng.uniform(0.0, 8.0, num), rng.uniform(-0.5, 0.5, num)
    cars.reset(
        np.arange(num),
        {
            "heading": np.stack([np.cos(angle), np.sin(angle)], axis=1),
            "velocity": np.stack([speed * np.cos(drift), speed * np.sin(drift)], axis=1),
            "turning": rng.uniform(-5.0, 5.0, (num, 1)),
        },
    )
    friction = rng.uniform(0.5, 1.3, (num, 1))
    cars.write(np.arange(num), {"friction": friction})
    told = np.stack([rng.uniform(-0.5, 0.5, num), rng.uniform(0.0, 8.0, num)], axis=1).astype(np.float32)

    def velocity() -> np.ndarray:
        (cos, sin), (vx, vy) = cars.read("heading").astype(float).T, cars.read("velocity").astype(float).T
        return np.stack([vx * cos - vy * sin, vx * sin + vy * cos], axis=1)

    for _ in range(200):
        before = velocity()
        slow = np.hypot(*before.T) < 2.1  # where wheels roll that do not slip
        cars.step(told)
        gained = np.linalg.norm(velocity() - before, axis=1) / h
        most = friction[:, 0] * GRAVITY
        assert (gained <= np.where(slow, 2.5, 1.02) * most + 0.05).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_tyres_give_no_energy(seed: int):
    """A car whose motor gives nothing, sliding anyhow, never gains any."""
    rng, num = np.random.default_rng(seed), 32
    cars = Cars(CAR_1_10, num, 5e-3)
    cars.write(np.arange(num), {"acceleration": np.zeros((num, 1))})
    cars.reset(
        np.arange(num),
        {
            "velocity": rng.uniform((0.0, -3.0), (8.0, 3.0), (num, 2)),
            "turning": rng.uniform(-8.0, 8.0, (num, 1)),
        },
    )
    told = np.stack([rng.uniform(-0.4, 0.4, num), rng.uniform(0.0, 8.0, num)], axis=1).astype(np.float32)

    def energy() -> np.ndarray:
        speed, turning = cars.read("velocity").astype(float), cars.read("turning")[:, 0].astype(float)
        return 0.5 * CAR_1_10.mass * (speed**2).sum(axis=1) + 0.5 * CAR_1_10.yaw_inertia * turning**2

    for _ in range(200):
        before, fast = energy(), np.hypot(*cars.read("velocity").T) > 2.1
        cars.step(told)
        assert (energy() <= before * (1.0 + 2e-3) + 1e-3)[fast].all()


def test_braking_loads_the_front_wheels():
    """With load transfer a car that brakes in a bend turns in more."""

    def turned(transfer: bool) -> float:
        cars = made({"velocity": [4.0, 0.0]}, load_transfer=transfer)
        run(cars, 0.5, 0.1, 4.0)
        return float(run(cars, 0.2, 0.1, 3.0).read("turning")[0, 0])

    assert turned(True) > 1.01 * turned(False)


def test_smaller_steps_change_little(monkeypatch: pytest.MonkeyPatch):
    """Fourth order where nothing is clipped; at the step that is used a hard second of driving is right to 2 cm."""
    num = 256

    def driven(h: float, gently: bool) -> np.ndarray:
        monkeypatch.setattr(engine, "SUBSTEP", h)
        rng = np.random.default_rng(1)
        cars = made({"velocity": [4.0, 0.0]}, num=num)
        size = (0.02, 0.1) if gently else (0.4, 4.0)
        for _ in range(4):
            run(cars, 0.25, size[0] * rng.uniform(-1, 1, num), 4.0 + size[1] * rng.uniform(-1, 1, num))
        return cars.read("position").astype(float)

    for gently, most in ((True, 2e-4), (False, 2e-2)):
        exact = driven(1.0 / 1280.0, gently)
        error = np.linalg.norm(driven(0.025, gently) - exact, axis=1)
        assert np.quantile(error, 0.95) < most
        coarse = np.linalg.norm(driven(0.05, gently) - exact, axis=1)
        assert np.median(error) < 0.5 * np.median(coarse)


@pytest.mark.parametrize("car", CARS, ids=lambda car: car.name)
@pytest.mark.parametrize("track", TRACKS[:2], ids=["first", "second"])
def test_walls_keep_every_car_in(car: Car, track: Track):
    """Driven by chance at up to 10 m/s, no part of a car is ever behind a wall by more than the grid is wrong."""
    rng, num = np.random.default_rng(3), 128
    cars = Cars(car, num, DT, [track])
    placed(cars, track, rng, 6.0)
    walls = ends([track.wall(1.0), track.wall(-1.0)])
    half, touched = 0.5 * car.width, 0
    for _ in range(12):
        run(cars, 0.5, rng.uniform(-0.4, 0.4, num), rng.uniform(0.0, 10.0, num))
        position, heading = cars.read("position").astype(float), cars.read("heading").astype(float)
        touched += (cars.read("touched") > 0.0).sum()
        for ahead in (-0.5, 0.0, 0.5):
            circle = position + ahead * (car.length - car.width) * heading
            away = apart(circle, *walls)
            assert (away > half - 0.03).all()
            inside = np.abs(offsets(track, circle)) < track.left[0]
            assert inside.all()
        assert np.isfinite(cars.arrays()["state"]).all()
    assert touched > 50


@kernel
def meeting(state: Any, parameters: Any, index: Any, cells: Any, command: Any, shape: Any, h: Any, n: Any) -> None:
    """What `step_blocks` does, where every circle meets walls each time."""
    q = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    for place in range(len(state)):
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g, c = block(index, place, INDEX_ROWS), block(command, place, COMMAND_ROWS)
        s[TOUCHED, ALL], s[IMPACT, ALL] = walls.ZERO, walls.ZERO
        dynamics.derived(p, q, shape, ALL)
        for _ in range(n):
            dynamics.driven(s, q, c, shape, h, ALL)
            for ahead in (shape.reach, -shape.reach, walls.ZERO):
                away, nx, ny = walls.depth_at(s, p, g, cells, ahead, ALL)
                walls.pushed_back(s, p, max(shape.radius - away, walls.ZERO), nx, ny, ahead, shape, ALL)


def test_circles_that_are_not_asked_touch_nothing():
    """What saves time changes nothing but what another compilation rounds otherwise, step by step."""
    rng, num = np.random.default_rng(4), 256
    cars = [Cars(CAR_1_10, num, DT, TRACKS[:2]) for _ in range(2)]
    placed(cars[0], TRACKS[0], rng, 6.0)
    one, touched = cars[1], 0
    for _ in range(100):
        for mine, other in zip(cars[0].arrays().values(), one.arrays().values(), strict=True):
            other[:] = mine
        told = to_lanes(np.stack([rng.uniform(-0.4, 0.4, num), rng.uniform(0.0, 10.0, num)], axis=1))
        cars[0].advance(told)
        meeting(*one.arrays().values(), one.grids.cells, told, one.shape, one._h, one.substeps)
        np.testing.assert_allclose(cars[0].arrays()["state"], one.arrays()["state"], rtol=1e-4, atol=1e-4)
        touched += (cars[0].read("touched") > 0.0).sum()
    assert touched > 1000


def apart(points: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How far points (n, 2) are from the nearest segment, exactly."""
    way, off = end - start, points[:, None] - start
    along = np.clip((off * way).sum(axis=-1) / (way**2).sum(axis=-1), 0.0, 1.0)
    return np.linalg.norm(off - along[..., None] * way, axis=-1).min(axis=1)


def offsets(track: Track, points: np.ndarray) -> np.ndarray:
    """How far points (n, 2) are from the centreline."""
    return apart(points, track.centre, np.roll(track.centre, -1, axis=0))


def test_a_wall_takes_the_velocity_toward_it():
    track = oval(straight=20.0, width=2.0)
    low = -3.0 - 1.0  # y of the outer wall of the straight
    angle = math.radians(-30.0)
    touching = low + 0.5 * CAR_1_10.width
    y = touching + math.sin(-angle) * 0.5 * (CAR_1_10.length - CAR_1_10.width) + 0.02
    start = {"position": [0.0, y], "heading": [math.cos(angle), math.sin(angle)], "velocity": [3.0, 0.0]}
    cars = Cars(CAR_1_10, 1, 0.025, [track])
    cars.reset(np.arange(1), {name: np.array([v]) for name, v in start.items()})
    cars.step(np.array([[0.0, 3.0]], np.float32))
    (cos, sin), (vx, vy), turning = cars.read("heading")[0], cars.read("velocity")[0], cars.read("turning")[0, 0]
    arm = 0.5 * (CAR_1_10.length - CAR_1_10.width) * cos  # of the front circle, along the wall
    down = vx * sin + vy * cos + turning * arm
    assert cars.read("touched")[0, 0] == 1.0
    assert cars.read("impact")[0, 0] == pytest.approx(1.5, rel=0.03)
    assert abs(down) < 0.02 * 3.0  # the front does not move into the wall any more
    assert turning > 0.0  # it is turned along it
    assert 1.0 < vx * cos - vy * sin < 2.7  # and goes on beside it, slowed by friction


def ends(walls: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where the segments (n, 2) of closed lines begin and end."""
    return np.concatenate(walls), np.concatenate([np.roll(w, -1, axis=0) for w in walls])


def rays(eye: np.ndarray, angle: np.ndarray, start: np.ndarray, end: np.ndarray, longest: float) -> np.ndarray:
    """How far rays (n,) go until they meet the first segment, exactly."""
    way = np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None]
    side, off = (end - start)[None], (start - eye)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        across = way[..., 0] * side[..., 1] - way[..., 1] * side[..., 0]
        far = (off[..., 0] * side[..., 1] - off[..., 1] * side[..., 0]) / across
        along = (off[..., 0] * way[..., 1] - off[..., 1] * way[..., 0]) / across
    hit = (along >= 0.0) & (along <= 1.0) & (far > 0.0)
    return np.minimum(np.where(hit, far, np.inf).min(axis=1), longest)


def test_the_lidar_sees_where_rays_meet_walls():
    rng, num, view = np.random.default_rng(0), 40, math.radians(270.0)
    cars = Cars(CAR_1_10, num, DT, TRACKS)
    which, beam = np.arange(num) % len(TRACKS), angles(20, view)  # which is no whole number of vectors
    assert beam[0] == pytest.approx(-beam[-1]) and beam[1] > beam[0]
    place, heading = np.zeros((num, 2)), rng.uniform(-np.pi, np.pi, num)
    for row, track in enumerate(which):
        k = rng.integers(len(TRACKS[track].centre))
        along = TRACKS[track].heading[k]
        place[row] = TRACKS[track].centre[k] + rng.uniform(-0.5, 0.5) * np.array([-along[1], along[0]])
    cars.on(np.arange(num), which)
    cars.reset(np.arange(num), {"position": place, "heading": np.stack([np.cos(heading), np.sin(heading)], axis=1)})
    out = np.full((blocks(num), 22, LANES), -1.0, np.float32)
    cars.scan(beam, 0.1, 6.0, np.arange(num), 1, out)
    seen = out.transpose(0, 2, 1).reshape(-1, 22)[:num]
    assert (seen[:, 0] == -1.0).all() and (seen[:, -1] == -1.0).all()
    errors = []
    for row, track in enumerate(which):
        eye = place[row] + 0.1 * np.array([np.cos(heading[row]), np.sin(heading[row])])
        walls = ends([TRACKS[track].wall(1.0), TRACKS[track].wall(-1.0)])
        errors.append(np.abs(seen[row, 1:-1] - rays(eye, heading[row] + beam, *walls, 6.0)))
    assert np.median(errors) < 0.005
    assert np.quantile(errors, 0.98) < 0.03
    assert np.max(errors) < 0.5  # where a ray grazes the tip of a wall


def test_the_grid_is_the_distance_to_walls():
    for track in (oval(), TRACKS[0]):
        grid, (x, y) = grid_of(track)
        rng = np.random.default_rng(0)
        rows, columns = (rng.integers(0, n, 200) for n in grid.shape)
        places = np.stack([x + 0.1 * columns, y + 0.1 * rows], axis=1)
        exact = apart(places, *ends([track.wall(1.0), track.wall(-1.0)]))
        signed = np.where(offsets(track, places) < 0.8, exact, -exact)
        near = exact < 1.5
        assert np.abs(1e-4 * grid[rows, columns] - signed)[near].max() < 1e-4
        assert (np.sign(grid[rows, columns]) == np.sign(signed))[exact > 0.01].all()


def test_the_way_along_the_centreline_goes_round_and_round():
    track = oval()
    cars, courses = Cars(CAR_1_10, 1, DT, [track]), courses_of([track])
    nearest, place, way = np.array([-1]), np.zeros((1, 3), np.float32), 0.0
    out, rows = np.zeros((1, 4, LANES), np.float32), np.arange(1)
    for k in [*range(0, len(track.centre), 3), *range(0, 30, 3)]:
        aside = np.array([-track.heading[k, 1], track.heading[k, 0]])
        cars.reset(rows, {"position": [track.centre[k] + 0.3 * aside], "heading": [track.heading[k]]})
        follow(cars.arrays()["state"], courses, np.zeros(1, int), rows, nearest, place, np.array([0, 10]), 0, out)
        way += float(place[0, 2])
        assert nearest[0] == k and place[0, 1] == pytest.approx(0.3, abs=1e-3)
        np.testing.assert_allclose(out[0, :2, 0], (0.0, -0.3), atol=1e-3)
        expected = track.centre[(k + 10) % len(track.centre)] - track.centre[k] - 0.3 * aside
        np.testing.assert_allclose(out[0, 2:, 0], (expected @ track.heading[k], expected @ aside), atol=1e-3)
    assert way == pytest.approx(track.length + 27 * track.spacing, abs=0.05)


def test_lanes_know_nothing_of_one_another():
    rng, num = np.random.default_rng(5), 40
    many = Cars(CAR_1_10, num, DT, TRACKS)
    many.on(np.arange(num), np.zeros(num, int))
    placed(many, TRACKS[0], rng, 6.0)
    start = {name: many.read(name) for name in ("position", "heading", "velocity")}
    told = np.stack([rng.uniform(-0.4, 0.4, num), rng.uniform(0.0, 8.0, num)], axis=1).astype(np.float32)
    lone = Cars(CAR_1_10, 1, DT, TRACKS)
    lone.reset(np.arange(1), {name: value[23:24] for name, value in start.items()})
    again = Cars(CAR_1_10, num, DT, TRACKS)
    again.reset(np.arange(num), start)
    for _ in range(60):
        many.step(told)
        again.step(told)
        lone.step(told[23:24])
    assert many.read("touched").any()
    for name in ("position", "heading", "velocity", "turning", "steering_angle"):
        np.testing.assert_array_equal(many.read(name), again.read(name))
        np.testing.assert_array_equal(many.read(name)[23:24], lone.read(name))


def test_what_is_no_number_stays_with_its_car():
    cars = Cars(CAR_1_10, 2, DT, TRACKS)
    placed(cars, TRACKS[0], np.random.default_rng(0), 3.0)
    cars.write(np.array([0]), {"velocity": [[np.nan, np.inf]]})
    run(cars, 1.0, 0.0, 3.0)
    assert np.isnan(cars.read("position")[0]).any() and np.isfinite(cars.read("position")[1]).all()
    out = np.zeros((1, 32, LANES), np.float32)
    cars.scan(angles(32, 4.0), 0.1, 10.0, np.arange(2), 0, out)
    assert np.isfinite(out[0, :, 1]).all()


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="num >= 1 and dt > 0, got 0"):
        Cars(CAR_1_10, 0, DT)
    with pytest.raises(ValueError, match=r"2 cars take 2 commands each, got \(2, 3\)"):
        made(num=2).step(np.zeros((2, 3), np.float32))
    with pytest.raises(KeyError, match="wheels.*it has: position"):
        made().read("wheels")

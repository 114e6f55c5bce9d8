"""Racing for learners that follow gradients: what is said of a window against what happens when it is driven again."""

from typing import Any

import numpy as np
import pytest

from sim.engines.car.rows import COS, SIN, TURNING, VX, VY
from sim.spec import unpack
from sim.tasks import make
from sim.tasks.race.rehearsal import ALONG, ASIDE, BEYOND, SLIDE, SLIPPERY, STEADY, Rehearsal
from sim.tasks.race.world import Race

NUM, STEPS = 32, 16
TRUST = 1e9  # no limit


def opened(**settings: Any) -> Rehearsal:
    return Rehearsal(make("car_race", **{"tracks": 4, **settings}), NUM, 0, STEPS)


def demonstrated(world: Rehearsal) -> np.ndarray:
    """A window by pure pursuit: its commands (STEPS, NUM, k)."""
    told = []
    for _ in range(STEPS):
        told.append(np.concatenate([*world.task.expert(world.truth()).values()], axis=1))
        world.step(unpack(world.task.commands, told[-1]))
    return np.stack(told)


def again(world: Rehearsal, state: dict[str, Any], told: np.ndarray) -> np.ndarray:
    """The costs (STEPS, NUM) of these commands from that state on."""
    world.load_state_dict(state)
    for now in told:
        world.step(unpack(world.task.commands, now))
    return world.costs()[0]


@pytest.fixture(scope="module")
def driven() -> tuple[Rehearsal, dict[str, Any], np.ndarray]:
    """Cars in the midst of their episodes, and what they are told next."""
    world = opened()
    demonstrated(world)
    world.go_on(10_000)
    state = world.state_dict()
    return world, state, demonstrated(world)


@pytest.mark.parametrize(("t", "command", "by"), [(0, 0, 2e-3), (6, 0, 2e-3), (3, 1, 0.02), (12, 1, 0.02)])
def test_commands_change_costs_as_it_says(driven: Any, t: int, command: int, by: float) -> None:
    """Those of a step, when all others are given: noise, latency and all that varies included."""
    world, state, told = driven
    again(world, state, told)
    world.begin_pulling()
    slopes = np.stack([world.pull(k, TRUST) for k in range(STEPS - 1, -1, -1)])[::-1]
    change = np.zeros_like(told)
    change[t, :, command] = by
    ends = [again(world, state, told + sign * change).sum(axis=0, dtype=np.float64) for sign in (1.0, -1.0)]
    numeric = (ends[0] - ends[1]) / (2.0 * by)
    error = np.abs(slopes[t, :, command] - numeric) / (np.abs(numeric) + 0.1 * np.abs(numeric).mean())
    assert np.median(error) < 0.1 and np.quantile(error, 0.9) < 0.5  # the way jumps a little from point to point
    if command == 0:
        assert np.corrcoef(slopes[t, :, command], numeric)[0, 1] > 0.99


def test_inside_a_bend_the_way_is_longer() -> None:
    """The slope of the way along the centreline: over half a meter, since it jumps from point to point."""
    world = opened()
    track = world.tracks[0]
    rows, points = np.arange(NUM), np.arange(NUM) * len(track.centre) // NUM
    normal = np.stack([-track.heading[:, 1], track.heading[:, 0]], axis=1)
    world.cars.on(rows, np.zeros(NUM, np.int64))
    world.track[:] = 0

    def at(ahead: float) -> np.ndarray:
        place = track.centre[points] + 0.4 * normal[points] + ahead * track.heading[points]
        world.cars.write(rows, {"position": place, "heading": track.heading[points]})
        world.nearest[:], world.place[:] = -1, 0.0
        world._look(rows)
        world._time = 0
        world._note()
        return world.place[:, 0].copy()

    ways = at(0.25) - at(-0.25)
    numeric = (ways - track.length * np.round(ways / track.length)) / 0.5
    at(0.0)
    by_hand = (world._by_way[0, :, :2].transpose(0, 2, 1).reshape(NUM, 2) * track.heading[points]).sum(axis=1)
    assert np.corrcoef(by_hand, numeric)[0, 1] > 0.9 and numeric.std() > 0.05
    np.testing.assert_allclose(by_hand, numeric, atol=0.25)


def test_sensors_change_as_it_says(driven: Any) -> None:
    """Where a car is, and how it moves, against what it would see then; a ray at an edge has no derivative."""
    world, state, told = driven
    again(world, state, told)
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(NUM, sum(s.size for s in world.task.policy))).astype(np.float32)
    names = [s.name for s in world.task.policy]
    world.begin_pulling()
    world._pulled[:] = 0.0
    world.pull_sensed(0, slopes)
    by_hand = world._pulled.transpose(0, 2, 1).reshape(NUM, -1)

    def seen(name: str, column: int, by: float) -> np.ndarray:
        world.load_state_dict(state)
        value = world.cars.read(name)
        value[:, column] += by
        world.cars.write(np.arange(NUM), {name: value})
        world._look(np.arange(NUM))
        truth = world.truth()
        return np.concatenate([truth[name] for name in names], axis=1)

    for name, column, by in (("position", 0, 3e-3), ("position", 1, 3e-3), ("velocity", 0, 0.01), ("push", 0, 0.05)):
        found = (seen(name, column, by) - seen(name, column, -by)) / (2.0 * by)
        usual = np.abs(found) < 5.0  # not from one wall to another
        numeric, row = (found * usual * slopes).sum(axis=1), world.cars.rows(name).start + column
        assert np.corrcoef(by_hand[:, row], numeric)[0, 1] > 0.9, name


def test_whoever_touches_a_wall_pays_and_begins_anew() -> None:
    world = opened(vary=False)
    for _ in range(STEPS):
        world.step({"steering": np.full((NUM, 1), 0.4, np.float32), "speed": np.full((NUM, 1), 3.0, np.float32)})
    cost, driving = world.costs()
    assert driving[0].all() and not driving[-1].all(), "some of them touch a wall"
    touched = np.flatnonzero(~driving[-1])
    since = driving[:, touched].argmin(axis=0)
    after = np.arange(STEPS)[:, None] - since
    assert (cost[:, touched][after == 0] > 0.5).all()  # in the step after which they touch it they pay for it
    assert not cost[:, touched][after >= BEYOND].any() and (cost[:, touched][after == 1] > 1.0).all()
    before = world.episode.copy()
    lost, over = world.go_on(10_000)
    assert lost == over.sum() >= len(touched)
    np.testing.assert_array_equal(world.episode != before, over)
    assert (world.age[over] == 0).all() and (world.age[~over] == STEPS).all()


def midst() -> tuple[Rehearsal, Any, np.ndarray]:
    """A world whose cars are all on its first track, that track, and for each car a point of its centre."""
    world = opened(vary=False)
    world.cars.on(np.arange(NUM), np.zeros(NUM, np.int64))
    world.track[:] = 0
    track = world.tracks[0]
    return world, track, np.arange(NUM) * len(track.centre) // NUM


def paid(world: Rehearsal, state: dict[str, np.ndarray]) -> np.ndarray:
    """What each car pays for walls, its direction and sliding in that state."""
    rows = np.arange(NUM)
    world.cars.write(rows, state)
    world.nearest[:] = -1
    world._look(rows)
    world._time = 0
    world._note()
    return world._wall[0].copy()


def test_looking_across_the_track_costs_and_says_which_way_to_turn() -> None:
    """In the middle of the track, where walls cost nothing."""
    world, track, points = midst()
    along = np.arctan2(track.heading[points, 1], track.heading[points, 0])
    turned = np.linspace(-3.0, 3.0, NUM)

    def cost(by: float) -> np.ndarray:
        angle = along + turned + by
        heading = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return paid(world, {"position": track.centre[points], "heading": heading})

    numeric = (cost(1e-2) - cost(-1e-2)) / 2e-2
    still = cost(0.0)
    assert not still[np.abs(turned) < np.arccos(ALONG)].any()
    np.testing.assert_allclose(still, ASIDE * np.maximum(ALONG - np.cos(turned), 0.0) ** 2, atol=1e-5)
    g = world._by_wall[0].transpose(0, 2, 1).reshape(NUM, -1)
    angle = along + turned
    by_hand = np.cos(angle) * g[:, SIN] - np.sin(angle) * g[:, COS]
    np.testing.assert_allclose(by_hand, numeric, atol=2e-2)


def test_sliding_costs_and_says_what_would_end_it() -> None:
    """In the middle of the track, along it."""
    world, track, points = midst()
    rng = np.random.default_rng(0)
    moving = np.stack([rng.uniform(0.0, 7.0, NUM), rng.uniform(-3.0, 3.0, NUM), rng.uniform(-8.0, 8.0, NUM)], axis=1)

    def cost(changed: np.ndarray) -> np.ndarray:
        state = {"position": track.centre[points], "heading": track.heading[points]}
        paying = paid(world, {**state, "velocity": changed[:, :2], "turning": changed[:, 2:]})
        return paying.astype(np.float64)

    still = cost(moving)
    slip = moving[:, 1] - world.task.robot.rear * moving[:, 2]
    sine = np.abs(slip) / np.sqrt(moving[:, 0] ** 2 + slip**2 + 1.0)
    np.testing.assert_allclose(still, SLIDE * np.maximum(sine - STEADY, 0.0) ** 2, atol=1e-5)
    assert (still > 0.01).sum() > 5 and (still == 0.0).sum() > 5
    g = world._by_wall[0].transpose(0, 2, 1).reshape(NUM, -1)[:, [VX, VY, TURNING]].copy()
    by = 1e-2 * np.eye(3)
    numeric = np.stack([(cost(moving + change) - cost(moving - change)) / 2e-2 for change in by], axis=1)
    np.testing.assert_allclose(g, numeric, atol=5e-3)


def test_whoever_stands_begins_anew() -> None:
    world = opened(vary=False)
    world.cars.write(np.arange(NUM // 2), {"velocity": np.zeros((NUM // 2, 2))})
    world.cars.write(np.arange(NUM // 2, NUM), {"velocity": np.tile([2.0, 0.0], (NUM // 2, 1))})
    speed = np.where(np.arange(NUM) < NUM // 2, 0.0, 2.0)[:, None].astype(np.float32)
    for _ in range(STEPS):
        told = world.task.expert(world.truth())
        world.step({"steering": told["steering"], "speed": speed})
    assert world.costs()[1][-1].all(), "nobody touches a wall"
    lost, over = world.go_on(10_000)
    assert lost == NUM // 2
    np.testing.assert_array_equal(over, np.arange(NUM) < NUM // 2)


def test_cars_that_hardly_hold_are_rehearsed_more_often() -> None:
    """Of the same episodes only the friction differs, and stays within its range."""
    world, usual = opened(), Race(make("car_race", tracks=4), NUM, 0)
    usual.reset(range(NUM), range(NUM))
    nominal = world.task.driven.parameters()["friction"]
    found, before = ((cars.read("friction") / nominal - 0.7) / 0.6 for cars in (world.cars, usual.cars))
    assert before.mean() > 0.4 and found.min() >= -1e-6
    np.testing.assert_allclose(found, np.clip(before, 0.0, 1.0) ** SLIPPERY, atol=1e-5)
    np.testing.assert_array_equal(world.cars.read("mass"), usual.cars.read("mass"))
    alike = opened(vary=False).cars.read("friction")
    np.testing.assert_allclose(alike, np.broadcast_to(nominal, alike.shape))


def test_what_was_told_last_counts_for_the_command_before() -> None:
    world = opened(told=True)
    demonstrated(world)
    slopes = np.zeros((NUM, sum(s.size for s in world.task.policy)), np.float32)
    slopes[:, -2:] = np.random.default_rng(0).normal(size=(NUM, 2))
    found = []
    for sensed in (np.zeros_like(slopes), slopes):
        world.begin_pulling()
        for t in range(STEPS - 1, 4, -1):
            world.pull(t, TRUST)
        world.pull_sensed(5, sensed)
        found.append(world.pull(4, TRUST))
    np.testing.assert_allclose(found[1] - found[0], slopes[:, -2:], atol=2e-3)


def test_engines_without_an_adjoint_and_odd_numbers_are_refused() -> None:
    task = make("car_race", tracks=1)
    with pytest.raises(ValueError, match="multiples of 16, got 5"):
        task.rehearsal(5, 0, 4)
    task.engine = "car_cuda"
    with pytest.raises(ValueError, match="engine 'car_cuda' has no adjoint"):
        task.rehearsal(16, 0, 4)


def test_who_races_among_others_rehearses_alone():
    world = Rehearsal(make("car_race_multi", tracks=4), NUM, 0, STEPS)
    demonstrated(world)
    assert np.isfinite(world.costs()[0]).all()

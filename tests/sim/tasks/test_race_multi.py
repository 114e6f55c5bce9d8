"""Racing among other cars: who starts where, who passes whom, who is at fault, and whom it is over for."""

from typing import Any

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from policies import tournament
from sim.env import make_env, with_engine
from sim.experts.soccer import Scripted
from sim.parallel import TaskParallelEnv
from sim.rollout import rollout
from sim.tasks import agents_of, make, teams_of
from sim.tasks.race.field import GAP, PACE, Field, Races
from sim.tasks.race.multi import CarRaceMulti

FEW = {"tracks": 4}


def opened(worlds: int = 6, seed: int = 0, **settings: Any) -> Races:
    task = make("car_race_multi", **{**FEW, **settings})
    env = make_env(task, worlds * task.agents, seed, several=True)
    env.reset(range(env.num), np.repeat(range(worlds), task.agents).tolist())
    return env


def driven(env: Races, steps: int) -> list[dict[str, np.ndarray]]:
    seen = [env.observe()]
    for _ in range(steps):
        step = env.step(env.task.expert(env.observe()))
        seen.append({**env.observe(), "reward": step.reward, "success": step.success, "lost": step.terminated})
    return seen


def told(env: Races, steering: float, speed: float) -> dict[str, np.ndarray]:
    return {"steering": np.full((env.num, 1), steering), "speed": np.full((env.num, 1), speed)}


def put(field: Field, world: int, ways: list[float], aside: list[float], speed: list[float]) -> None:
    """Cars of a world along the straight of an oval: m from its first point."""
    rows, track = np.arange(world * field.each, (world + 1) * field.each), field.tracks[0]
    at = (np.round(np.array(ways) / track.spacing).astype(int)) % len(track.centre)
    normal = np.stack([-track.heading[at, 1], track.heading[at, 0]], axis=1)
    place = track.centre[at] + np.array(aside)[:, None] * normal
    moving = np.stack([speed, np.zeros(len(rows))], axis=1)
    field.cars.reset(rows, {"position": place, "heading": track.heading[at], "velocity": moving})
    field.nearest[rows], field.way[rows], field.age[rows] = -1, ways, 0
    field._look(rows)


def test_seeds_and_numbers_decide_races():
    first, again, other = (driven(opened(seed=seed), 30) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1]["lidar"], other[-1]["lidar"])
    few = opened(2, seed=1)  # other rows, another batch
    few.reset([1, 0], [5, 3])
    for a, b in zip(first, driven(few, 30), strict=True):
        for name in ("lidar", "velocity", "others", "place"):
            np.testing.assert_array_equal(a[name][[5, 3]], b[name][[1, 0]])


def test_a_race_that_begins_leaves_the_others_alone():
    for opponent in ("mixed", "self"):
        env, twin = (opened(5, opponent=opponent) for _ in range(2))
        driven(env, 15)
        driven(twin, 15)
        agents = env.agents
        env.reset(range(2 * agents, 3 * agents), [9] * agents)
        others = np.setdiff1d(np.arange(env.num), np.arange(2 * agents, 3 * agents))
        one, same = env.observe(), twin.observe()
        assert not np.array_equal(one["lidar"][2 * agents], same["lidar"][2 * agents])
        for _ in range(10):
            for name in one:
                np.testing.assert_array_equal(one[name][others], same[name][others], err_msg=name)
            for world in (env, twin):
                world.step(world.task.expert(world.observe()))
            one, same = env.observe(), twin.observe()


def test_it_continues_from_what_was_saved():
    env, other = opened(), opened(seed=0)
    driven(env, 10)
    other.load_state_dict(env.state_dict())
    for a, b in zip(driven(env, 20), driven(other, 20), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_cars_start_one_behind_the_other():
    env = opened(30, cars=4)
    field = env.field
    ways = field.way.reshape(30, 4)
    assert (ways[:, 1] == 0.0).all() and (np.diff(ways[:, [1, 2, 3, 0]], axis=1) < 0.0).all()  # the agent is the last
    gaps = -np.diff(ways[:, [1, 2, 3, 0]], axis=1)
    assert gaps.min() > GAP[0] - 0.11 and gaps.max() < GAP[1] + 0.11
    assert (field.track.reshape(30, 4) == field.track.reshape(30, 4)[:, :1]).all() and len(set(field.track)) == 4
    speed = field.cars.read("velocity")[:, 0].reshape(30, 4)
    assert (speed == speed[:, :1]).all() and np.ptp(speed[:, 0]) > 1.0
    assert (env.truth()["place"] == 4.0).all()
    assert len(set(field.cars.read("mass").ravel().tolist())) == 120  # each car is another one
    pace = field.pace.ravel()
    assert pace.min() >= PACE[0] and pace.max() <= PACE[1] and np.ptp(pace) > 0.9 * (PACE[1] - PACE[0])
    both = opened(30, cars=4, opponent="self").field.way.reshape(30, 4)
    assert len(set(both.argmax(axis=1).tolist())) == 4  # anybody leads
    far = np.abs(np.diff(env.field.cars.read("position").reshape(30, 4, 2)[:, [1, 2, 3, 0]], axis=1))
    assert np.hypot(*far.reshape(-1, 2).T).max() < GAP[1] + 0.7  # as the track says, too


def test_what_it_knows_of_others():
    env = opened(1, track="oval", opponent="self", vary=False)
    put(env.field, 0, [2.0, 4.0, 1.0], [0.0, 0.3, -0.4], [3.0, 1.0, 2.0])
    truth = env.truth()
    np.testing.assert_allclose(truth["others"][0], (-1.0, -0.4, 2.0, 0.3), atol=0.11)  # the nearest first
    np.testing.assert_allclose(truth["others_velocity"][0], (-1.0, 0.0, -2.0, 0.0), atol=1e-5)
    assert truth["place"][:, 0].tolist() == [2.0, 1.0, 3.0]
    ahead = env.field._angles
    front = np.abs(ahead - np.arctan2(0.3, 1.9)).argmin()
    assert truth["lidar"][0, front] == pytest.approx(2.0 - 0.1 - 0.29, abs=0.12)  # the tail of the car ahead


def test_who_passes_gets_a_place_only_with_a_length_more():
    env = opened(1, track="oval", cars=2, vary=False, opponent="slow", touch="costs")
    put(env.field, 0, [2.0, 2.4], [0.4, -0.4], [3.0, 0.0])
    assert env.truth()["place"][0, 0] == 2.0
    places, leads = 0.0, []
    for _ in range(20):
        step = env.step(told(env, 0.0, 3.0))
        leads.append(float(env.field.way[0] - env.field.way[1]))
        assert step.terms["places"][0] in (0.0, 1.0)
        places += float(step.terms["places"][0])
        assert (env.truth()["place"][0, 0] == 1.0) == (max(leads) > env.task.robot.length)
    assert places == 1.0 and max(leads) > 1.0


def test_what_one_of_them_wins_another_loses():
    env = opened(1, track="oval", vary=False, opponent="self", touch="costs")
    put(env.field, 0, [2.0, 2.4, 6.0], [0.4, -0.4, 0.0], [3.0, 0.0, 0.0])
    places = np.zeros(3)
    for _ in range(20):
        step = env.step({"steering": np.zeros((3, 1)), "speed": np.array([[3.0], [0.0], [0.0]])})
        places += step.terms["places"]
        if places.any():
            break
    assert places.tolist() == [1.0, -1.0, 0.0] and env.field.weights["places"] > 0.0
    assert step.reward[0] > 0.0 > step.reward[1]


def test_who_runs_into_a_car_is_lost_and_who_is_hit_is_not():
    env = opened(1, track="oval", cars=2, vary=False, opponent="self")
    put(env.field, 0, [2.0, 3.0], [0.0, 0.0], [5.0, 0.0])
    for _ in range(10):
        step = env.step({"steering": np.zeros((2, 1)), "speed": np.array([[5.0], [0.0]])})
        if step.terms["ran_into"].any():
            break
    assert step.terms["ran_into"].tolist() == [1.0, 0.0] and step.terms["blow"][0] > 3.0
    assert step.terminated.tolist() == [True, False] and not step.success.any()
    assert env.truth()["met"][:, 0].tolist() == [1.0, 1.0]
    weights = env.field.weights
    np.testing.assert_allclose(step.reward, sum(weights[name] * value for name, value in step.terms.items()), atol=1e-6)
    costs = opened(1, track="oval", cars=2, vary=False, opponent="slow", touch="costs")
    put(costs.field, 0, [2.0, 3.0], [0.0, 0.0], [5.0, 0.0])
    assert not any(costs.step(told(costs, 0.0, 5.0)).terminated.any() for _ in range(10))
    assert costs.field.touches[0] > 0


def test_the_first_over_the_line_alone_has_success():
    env = opened(2, track="oval", cars=3, vary=False, opponent="self")
    length = env.field.tracks[0].length
    put(env.field, 0, [length - 0.3, length - 0.2, 3.0], [0.3, -0.3, 0.0], [2.0, 2.0, 0.0])
    for _ in range(8):
        step = env.step(told(env, 0.0, 2.0))
    assert step.success.tolist() == [False, True, False] + [False] * 3
    assert env.over.tolist() == [True, False]


def test_scripted_drivers():
    scores = {}
    for name in ("passing", "pursuit"):
        task = make("car_race_multi", vary=False, tracks=12, opponent="slow", expert=name)
        env = make_env(task, 30, 3)
        played = rollout(task, env, lambda seen, *_, play=task.expert: play(seen), range(30), truth=True)
        each = [task.score(e.flight()) for e in played]
        assert all(score.keys() == task.scores.keys() for score in each)
        scores[name] = {key: float(np.mean([s[key][0] for s in each])) for key in each[0]}
    assert scores["pursuit"]["clean"] > 0.9 and scores["pursuit"]["overtook"] == 0.0
    assert scores["pursuit"]["place"] == 3.0
    assert scores["passing"]["overtook"] > 0.5 and scores["passing"]["place"] < 2.6


def flight(steps: int, **values: Any) -> dict[str, np.ndarray]:
    """Of three agents of one world."""
    made = {
        name: np.zeros((steps, 3, 1), np.float32) for name in ("success", "terminated", "touched", "ran_into", "lap")
    }
    made |= {"velocity": np.ones((steps, 3, 2), np.float32), "place": np.tile([[[1.0], [2.0], [3.0]]], (steps, 1, 1))}
    return {**made, **values}


def test_scores_count_until_the_race_is_over():
    task = make("car_race_multi", opponent="self", **FEW)
    told = flight(50)
    told["place"][10:] = [[2.0], [1.0], [3.0]]
    told["place"][30:] = [[3.0], [1.0], [2.0]]
    told["terminated"][20:, 0] = 1.0  # what is after that counts for nobody
    score = task.score(told)
    assert score["overtook"].tolist() == [0.0, 1.0, 0.0] and score["overtaken"].tolist() == [1.0, 0.0, 0.0]
    assert score["place"].tolist() == [2.0, 1.0, 3.0] and score["clean"].tolist() == [0.0, 1.0, 1.0]
    alone = task.score({name: value[:, :1] for name, value in told.items()})  # one of them
    assert alone["overtaken"].tolist() == [1.0] and alone["clean"].tolist() == [0.0]


@pytest.mark.parametrize("cars", [2, 4])
def test_pettingzoo(cars: int):
    env = TaskParallelEnv("car_race_multi", config={"opponent": "self", "cars": cars, "steps": 30, **FEW})
    parallel_api_test(env, num_cycles=60)
    assert list(env.teams.values()) == list(range(cars))
    env.render_mode = "rgb_array"
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 320, 3)
    blue = (picture[..., 2] > 150) & (picture[..., 0] < 100)
    red = (picture[..., 0] > 150) & (picture[..., 1] < 100)
    assert red.sum() > 2 and blue.sum() > (cars - 1) * 2


def test_mirrored_commands_lead_to_the_mirrored_world():
    env = opened(8, vary=False)
    driven(env, 20)
    (mirror,) = env.task.mirrors
    seen, flipped = env.truth(), {}
    for signal in (*env.task.policy, *env.task.privileged):
        places, signs = mirror.of(signal.name, signal.size)
        flipped[signal.name] = seen[signal.name][:, places] * np.array(signs, np.float32)
    for play in env.task.baselines.values():
        left, right = play(seen), play(flipped)
        np.testing.assert_allclose(left["steering"], -right["steering"], atol=1e-5)
        np.testing.assert_allclose(left["speed"], right["speed"], rtol=1e-4)


def test_one_policy_drives_all_or_somebody_drives_the_others():
    task: CarRaceMulti = make("car_race_multi", opponent="self", **FEW)
    assert agents_of(task) == 3 and teams_of(task) == (0, 1, 2)
    other = task.against(lambda rows: Scripted(task.opponents["slow"]))
    assert agents_of(other) == 1 and teams_of(other) == (0,)
    env = make_env(other, 2, 0)
    env.reset(range(2), range(2))
    env.step(other.expert(env.observe()))
    assert {c.agents for c in other.conditions().values()} == {1}


def test_a_tournament():
    task = tournament.with_both_sides(make("car_race_multi", cars=2, vary=False, **FEW))
    players = [tournament.player(name, task) for name in ("pursuit", "slow")]
    won = tournament.contest(task, players, 8, 0)
    assert won[0, 1] > 4.0 and won[0, 1] + won[1, 0] == 8.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cars": 1}, "cars must be between 2 and 8, got 1"),
        ({"opponent": "nobody"}, "opponent 'nobody' is not one of slow, slower, pursuit, passing, mixed, self"),
        ({"expert": "mppi"}, "expert 'mppi' is not one of passing, pursuit"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("car_race_multi", **settings)


def test_no_gpu_drives_several_cars():
    with pytest.raises(
        ValueError, match="car_race_multi brings its own physics; it has no engine 'car_cuda'; it has car"
    ):
        with_engine(make("car_race_multi"), "car_cuda")

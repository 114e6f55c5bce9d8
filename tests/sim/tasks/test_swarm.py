"""Swarms: where vehicles begin and go, what ends a flight and for whom, who flies past whom."""

from typing import Any

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from sim.engines.flight.airspace import ABSENT, REACH
from sim.env import make_env, with_engine
from sim.parallel import TaskParallelEnv
from sim.tasks import agents_of, make, teams_of
from sim.tasks.swarm import CLOSE, MOST, QuadSwarm, places
from sim.tasks.swarm.rehearsal import ASIDE
from sim.tasks.swarm.world import FLOOR, MARGIN, Swarm

RNG = np.random.default_rng


def opened(worlds: int = 3, seed: int = 0, **settings: Any) -> Swarm:
    task: QuadSwarm = make("quad_swarm", **{"vehicles": 4, "episode_s": 3.0, **settings})
    env = make_env(task, worlds * task.agents, seed, several=True)
    env.reset(range(env.num), np.repeat(range(worlds), task.agents).tolist())
    return env


def flown(env: Swarm, steps: int) -> list[dict[str, np.ndarray]]:
    seen = [env.observe()]
    for _ in range(steps):
        step = env.step(env.task.expert(env.truth()))
        seen.append({**env.observe(), "reward": step.reward, "success": step.success, "lost": step.terminated})
    return seen


def put(env: Swarm, position: Any, speed: Any = 0.0) -> None:
    """All vehicles there, hovering; (n, 3) m and m/s."""
    n = env.num
    state = {"position": np.broadcast_to(position, (n, 3)), "linear_velocity": np.broadcast_to(speed, (n, 3))}
    env.flight.reset(None, {**state, "rotor_speed": np.full((n, 4), env.task.robot.hover_command)})
    env.goal[:] = state["position"]
    env._look()


def still(env: Swarm) -> dict[str, np.ndarray]:
    return {"motor_command": np.full((env.num, 4), env.task.robot.hover_command, np.float32)}


@pytest.mark.parametrize("mode", ["crossing", "sphere", "formation"])
@pytest.mark.parametrize("n", [2, 7, MOST])
def test_nobody_begins_or_ends_at_anybodys(mode: str, n: int):
    apart = 0.4 if mode != "sphere" or n < 16 else 0.6
    for seed in range(5):
        start, goal, drift = places.draw(mode, n, 2.0, RNG(seed))
        for where in (start, goal):
            gaps = np.linalg.norm(where[:, None] - where, axis=-1)[np.triu_indices(n, 1)]
            assert gaps.min() > apart and where[:, 2].min() > 0.4
        if mode == "formation":
            assert 0.0 < np.linalg.norm(drift) <= places.DRIFT and drift[2] == 0.0
        else:
            middle = 0.5 * (start + goal)  # all cross there
            np.testing.assert_allclose(middle[:, :2], 0.0, atol=1e-6)
            np.testing.assert_allclose(np.linalg.norm(start - middle, axis=1), 2.0)


def test_a_formation_moves_and_a_mixture_is_of_all():
    env = opened(2, mode="formation", vary=False)
    first = env.truth()["target_position"]
    for _ in range(50):
        env.step(still(env))
    truth = env.truth()
    np.testing.assert_allclose(truth["target_position"] - first, 0.5 * truth["target_velocity"], atol=1e-5)
    assert (np.linalg.norm(truth["target_velocity"], axis=1) > 0.0).all()
    kinds = {tuple(np.sign(places.draw("mixed", 4, 2.0, RNG(k)).drift[:2])) for k in range(20)}
    assert (0.0, 0.0) in kinds and len(kinds) > 2


def test_who_learns_meets_groups_of_different_sizes():
    task = make("quad_swarm", vehicles=6, neighbours=5, fewest=2, vary=False)
    world, sizes = task.rehearsal(96, 0, 4), []
    now = world.truth()
    there = now["others"].reshape(96, 5, 3)
    gone = (there == ABSENT).all(axis=2)
    for row in range(96):
        mates = [k for k in range(row - row % 6, row - row % 6 + 6) if k != row]
        gaps = np.linalg.norm(now["position"][mates] - now["position"][row], axis=1)
        assert (gaps < REACH).sum() == 5 - gone[row].sum() and ((gaps < 5.0) | (gaps > 50.0)).all()
        sizes.append(6 - int(gone[row].sum()))
    assert not now["others_velocity"].reshape(96, 5, 3)[gone].any() and (now["nearest"] > 0.1).all()
    assert set(sizes) == {2, 3, 4, 6} and 0.4 < np.mean(np.array(sizes) == 6) < 0.9  # of 5 one would be left over
    together = make("quad_swarm", vehicles=6, neighbours=5, vary=False)
    assert not (together.rehearsal(96, 0, 4).truth()["others"].reshape(96, 5, 3) == ABSENT).all(axis=2).any()
    few = make("quad_swarm", vehicles=4, neighbours=3, fewest=5, vary=False).rehearsal(16, 0, 4)  # than are there
    assert not (few.truth()["others"] == ABSENT[2]).any()
    assert not (opened(6, 0, vehicles=6, fewest=2).truth()["others"] == ABSENT[2]).any()  # who is judged meets all


def test_who_learns_keeps_to_the_right():
    """Seen from above, of the way to its place; and stands still there."""
    world = make("quad_swarm", vehicles=4).rehearsal(16, 0, 4)
    zero = np.zeros((3, 3), np.float32)
    now = {"position": zero.copy(), "linear_velocity": zero, "target_position": zero, "target_velocity": zero}
    now["position"][:2] = [[-2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]  # eastward, southward, there
    free = -world._moving(now)
    np.testing.assert_allclose(free, ASIDE * 2.0 / 5.0**0.5 * np.array([[0, -1, 0], [-1, 0, 0], [0, 0, 0]]), atol=1e-6)
    env = opened(1, vary=False)  # who is judged flies as it likes
    put(env, [[0, 0, 1.5], [1, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]])
    env.goal[:, 0] += 2.0
    assert env.step(still(env)).terms["speed"].max() < 0.01


@pytest.mark.parametrize("mode", ["crossing", "sphere", "formation", "mixed"])
def test_groups_are_of_fewest_at_least(mode: str):
    for seed in range(20):
        start, goal, drift = places.parted(mode, 11, 4, 2.0, RNG(seed))
        assert start.shape == goal.shape == drift.shape == (11, 3)
        group = np.unique(np.round(goal[:, :2] / places.FAR), axis=0, return_inverse=True, return_counts=True)
        assert group[2].min() >= 4 and np.linalg.norm(goal - start, axis=1).max() < 9.0
        for k in range(len(group[0])):
            assert np.ptp(drift[group[1].ravel() == k], axis=0).max() == 0.0


def test_seeds_and_numbers_decide_flights():
    first, again, other = (flown(opened(seed=seed), 20) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1]["position"], other[-1]["position"])
    few = opened(2, seed=1)  # other rows, another batch
    few.reset(range(8), [2] * 4 + [0] * 4)
    for a, b in zip(first, flown(few, 20), strict=True):
        for name in ("position", "neighbours", "others", "wash", "reward") if "reward" in a else ("position",):
            np.testing.assert_array_equal(a[name][8:12], b[name][:4])
            np.testing.assert_array_equal(a[name][:4], b[name][4:])


def test_a_flight_that_begins_leaves_the_others_alone():
    env, twin = opened(), opened()
    flown(env, 10)
    flown(twin, 10)
    env.reset(range(4, 8), [9] * 4)
    others = np.r_[0:4, 8:12]
    for a, b in zip(flown(env, 10), flown(twin, 10), strict=True):
        assert not np.array_equal(a["position"][4:8], b["position"][4:8])
        for name in a:
            np.testing.assert_array_equal(a[name][others], b[name][others], err_msg=name)


def test_it_continues_from_what_was_saved():
    env, other = opened(), opened(seed=0)
    flown(env, 10)
    other.load_state_dict(env.state_dict())
    for a, b in zip(flown(env, 15), flown(other, 15), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_what_is_sensed_is_noisy_and_what_is_true_is_not():
    env = opened(20)
    seen, truth = env.observe(), env.truth()
    for name, noise in (("neighbours", 0.01), ("neighbours_velocity", 0.05), ("position", 0.001)):
        assert np.std(seen[name] - truth[name]) == pytest.approx(noise, rel=0.2)
    before, kept = seen["neighbours"], 0
    for _ in range(20):
        env.step(still(env))
        now = env.observe()["neighbours"]
        kept += int((now == before).all(axis=1).sum())
        before = now
    assert 0.02 < kept / (20 * env.num) < 0.1  # packets that are lost
    assert all(np.isfinite(value).all() for value in truth.values())  # guards stop at what is not
    exact = opened(vary=False)
    assert all(np.array_equal(exact.observe()[s.name], exact.truth()[s.name]) for s in exact.task.policy)
    assert len(set(env.truth()["mass"].ravel().tolist())) == 80


def test_a_touch_ends_it_for_both_and_success_is_everybodys():
    env = opened(1, vary=False)
    put(env, [[0, 0, 1.5], [0.4, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]], [[2, 0, 0], [-2, 0, 0], [0, 0, 0], [0, 0, 0]])
    for _ in range(12):
        step = env.step(still(env))
        if step.terminated.any():
            break
    assert step.terminated.tolist() == [True, True, False, False] == (step.terms["touched"] > 0.0).tolist()
    assert not step.success.any() and step.reward[0] < -15.0 and step.reward[3] > 1.0
    assert (env.truth()["nearest"][:2] < 2.0 * env.task.robot.extent).all()
    np.testing.assert_allclose(step.reward, sum(env.weights[k] * v for k, v in step.terms.items()), rtol=1e-5)


def test_success_takes_all_of_them_for_a_second():
    env = opened(2, vary=False)
    put(env, np.tile([[0, 0, 1.5], [1, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]], (2, 1)))
    env.goal[7] += (0.0, CLOSE + 0.2, 0.0)  # one of the second airspace is not there
    done = [env.step(still(env)).success for _ in range(101)]
    assert np.argmax([d[:4].all() for d in done]) == 99 and not any(d[4:].any() for d in done)
    assert all(d[:4].all() == d[:4].any() for d in done)


def test_who_is_on_the_floor_tumbles_or_is_told_nothing_is_lost():
    env = opened(1, vary=False)
    put(env, [[0, 0, 1.5], [1, 0, FLOOR], [2, 0, 1.5], [3, 0, 1.5]])
    told = still(env)["motor_command"]
    told[2] = np.nan
    step = env.step({"motor_command": told})
    assert step.terminated.tolist() == [False, True, True, False] and step.terms["alive"].tolist() == [1, 0, 0, 1]
    env.flight.reset(None, {"position": env.goal, "angular_velocity": np.full((4, 3), 30.0)})
    assert env.step(still(env)).terminated.all()


def test_who_is_near_others_pays():
    rewards = []
    for crowd in (8.0, 16.0):
        env = opened(1, vary=False, crowd=crowd)
        put(env, [[0, 0, 1.5], [0.5 * MARGIN, 0, 1.5], [2, 0, 1.5], [4, 0, 1.5]])
        step = env.step(still(env))
        assert step.terms["crowd"] == pytest.approx([0.25, 0.25, 0.0, 0.0], abs=0.01)
        rewards.append(step.reward)
    assert rewards[0] - rewards[1] == pytest.approx([2.0, 2.0, 0.0, 0.0], abs=0.1)


@pytest.mark.parametrize("mode", ["crossing", "formation"])
def test_scripted_pilots(mode: str):
    scores = {}
    for name in ("avoiding", "straight")[: 2 if mode == "crossing" else 1]:
        env = opened(3, mode=mode, radius=1.0, expert=name, episode_s=8.0)
        log: dict[str, list[np.ndarray]] = {}
        over = np.zeros(3, bool)
        while not over.all() and len(log.get("success", ())) < env.task.episode_steps:
            truth = env.truth()
            step = env.step(env.task.expert(truth))
            judged = {"success": step.success[:, None], "terminated": step.terminated[:, None]}
            for key, value in {**truth, **judged}.items():
                log.setdefault(key, []).append(value)
            over |= (step.success | step.terminated).reshape(3, 4).any(axis=1)
        scores[name] = env.task.score({key: np.stack(value) for key, value in log.items()})
    assert scores["avoiding"].keys() == env.task.scores.keys()
    avoiding = {key: float(value.mean()) for key, value in scores["avoiding"].items()}
    assert avoiding["success"] == avoiding["arrived"] == 1.0 and avoiding["touched"] == avoiding["lost"] == 0.0
    assert scores["avoiding"]["min_distance"].min() > 2.0 * env.task.robot.extent and 2.0 < avoiding["duration"] < 8.0
    if mode == "crossing":  # all through the middle
        assert scores["straight"]["success"].mean() == 0.0 and scores["straight"]["touched"].mean() > 0.2


def test_scores_say_why_it_ended():
    task = make("quad_swarm", vehicles=2)
    steps, zero = 50, np.zeros((50, 6, 1), np.float32)
    told = {name: zero.copy() for name in ("success", "terminated")} | {"nearest": zero + 1.0}
    told |= {name: np.zeros((steps, 6, 3), np.float32) for name in ("position", "target_position")}
    told["success"][40:, :2] = 1.0
    told["terminated"][20:, 2:4], told["nearest"][20, 2:4] = 1.0, 0.15  # they touch
    told["terminated"][30:, 4] = 1.0  # one falls
    told["position"][:, 5] = 3.0
    told["nearest"][35:] = 0.01  # after it was over for the others
    told["success"][45:, 2:] = 1.0  # what comes after a touch or a fall is none
    score = task.score(told)
    assert score["success"].tolist() == [1, 1, 0, 0, 0, 0] and score["touched"].tolist() == [0, 0, 1, 1, 0, 0]
    assert score["lost"].tolist() == [0, 0, 0, 0, 1, 0] and score["arrived"].tolist() == [1, 1, 1, 1, 1, 0]
    assert score["duration"] == pytest.approx([0.41, 0.41, 0.21, 0.21, 0.31, 0.31])
    assert score["min_distance"] == pytest.approx([0.01, 0.01, 0.15, 0.15, 1.0, 1.0])


@pytest.mark.parametrize("vehicles", [2, 5])
def test_pettingzoo(vehicles: int):
    env = TaskParallelEnv("quad_swarm", config={"vehicles": vehicles, "episode_s": 1.0})
    parallel_api_test(env, num_cycles=120)
    assert list(env.teams.values()) == [0] * vehicles
    env.render_mode = "rgb_array"
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 320, 3) and np.ptp(picture.reshape(-1, 3).astype(int), axis=0).min() > 100


def test_mirrored_signals_have_mirrored_commands():
    """Of those who keep to no side."""
    env = opened(2, vary=False, expert="straight", obstacles=2)
    flown(env, 20)
    seen = env.truth()
    for mirror in env.task.mirrors:
        flipped = {}
        for signal in (*env.task.policy, *env.task.privileged):
            at, signs = mirror.of(signal.name, signal.size)
            flipped[signal.name] = seen[signal.name][:, at] * np.array(signs, np.float32)
        at, signs = mirror.of("motor_command", 4)
        here, there = (env.task.expert(told)["motor_command"] for told in (seen, flipped))
        np.testing.assert_allclose(there, here[:, at] * np.array(signs), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vehicles": 17}, "vehicles must be between 2 and 16, got 17"),
        ({"mode": "waltz"}, "mode 'waltz' is not one of crossing, sphere, formation, mixed"),
        ({"crowd": -1.0}, "crowd must be between 0 and 1000, got -1.0"),
        ({"fewest": 1}, "fewest must be 0, or between 2 and 16, got 1"),
        ({"fewest": 17}, "fewest must be 0, or between 2 and 16, got 17"),
        (
            {"obstacles": 1, "mode": "mixed", "radius": 0.65},
            r"obstacles of 0\.15 m have no room in a radius of 0\.65 m, with mode=mixed: it must be above 0\.65 m",
        ),
        ({"neighbours": 0}, "neighbours must be between 1 and 15, got 0"),
        ({"robot": "any"}, "quad_swarm flies vehicles of one name, which 'any' is not"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("quad_swarm", **settings)


def test_no_gpu_flies_swarms():
    task = make("quad_swarm")
    assert agents_of(task) == 8 and teams_of(task) == (0,) * 8
    said = "quad_swarm brings its own physics; it has no engine 'flight_cuda'; it has flight"
    with pytest.raises(ValueError, match=said):
        with_engine(task, "flight_cuda")

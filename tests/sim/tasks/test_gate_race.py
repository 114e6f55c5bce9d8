"""Races through gates: the world repeats itself per seed, passes and crashes count, and the baseline gets round."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy import PolicyFile
from deploy.drivers.tasks import task_for
from policies import train
from policies.algorithms import algorithm_class
from policies.evaluate import evaluate
from policies.models.export import export
from policies.runner.config import compose
from sim.env import NoExpertError, conditions_of, make_env
from sim.experts.gates import follow, planned
from sim.rollout import rollout
from sim.rotations import rotation_matrices
from sim.scenes.gates import crossing, random_gates, write_gates
from sim.tasks import make
from sim.tasks.abilities import baselines_of, judged
from sim.tasks.gates import RATE, VARY, random_pool
from sim.tasks.gates.references import BEYOND, EVERY, LAST, LEAD, References
from sim.tasks.gates.world import ASTRAY, BEHIND, BESIDE, WEIGHTS, GateRace

FEW = {"tracks": 4}


def opened(num: int = 8, seed: int = 0, engine: str = "flight", **settings: Any) -> GateRace:
    task = make("quad_gate_race", **{**FEW, **settings})
    task.engine = engine
    env = make_env(task, num, seed)
    env.reset(range(num), range(num))
    return env


def hovering(env: GateRace) -> dict[str, np.ndarray]:
    return {"motor_command": np.full((env.num, 4), env.task.robot.hover_command, np.float32)}


def drifted(env: GateRace, steps: int) -> list[dict[str, np.ndarray]]:
    """They hover, with a little noise that the steps' numbers decide."""
    seen = [env.observe()]
    for k in range(steps):
        command = hovering(env)
        command["motor_command"] += 0.05 * np.sin(np.arange(4) + 0.3 * k, dtype=np.float32)
        step = env.step(command)
        seen.append({**env.observe(), "reward": step.reward, "success": step.success, "terminated": step.terminated})
    return seen


def put(env: GateRace, name: str, value: np.ndarray) -> None:
    """All vehicles somewhere else."""
    state = {key: np.asarray(env.vehicles.read(key)) for key in ("position", "quaternion", "linear_velocity")}
    state["rotor_speed"] = np.full((env.num, 4), env.task.robot.hover_command, np.float32)
    state[name] = np.asarray(value, np.float32)
    env.vehicles.reset(None, state)
    env._place = np.asarray(env.vehicles.read("position"))


def test_seeds_and_numbers_decide_episodes():
    first, again, other = (drifted(opened(seed=seed, start="anywhere"), 20) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1]["next_gate"], other[-1]["next_gate"])
    few = opened(2, seed=1, start="anywhere")  # other rows, another batch
    few.reset([1, 0], [5, 3])
    later = drifted(few, 20)
    for a, b in zip(first, later, strict=True):
        for name in ("next_gate", "linear_velocity", "rotor_speed", "clearance"):
            np.testing.assert_array_equal(a[name][[5, 3]], b[name][[1, 0]], err_msg=name)


@pytest.mark.parametrize("start", ["anywhere", "reference"])
def test_it_continues_from_what_was_saved(start: str):
    env, other = (opened(start=start, plan_steps=0) for _ in range(2))
    other.reset(range(8), [5] * 8)  # another's track alone is planned
    drifted(env, 10)
    other.load_state_dict(env.state_dict())
    for a, b in zip(drifted(env, 15), drifted(other, 15), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_other_seeds_are_other_tracks_and_starts_differ():
    one, other = random_pool(1, 4), random_pool(2, 4)
    assert not {t.centre[0, 0] for t in one} & {t.centre[0, 0] for t in other}
    line, anywhere = opened(64), opened(64, start="anywhere")
    assert not line.first.any() and len(set(anywhere.first)) > 4
    assert set(line.track) == set(range(4))
    still, flying = (np.linalg.norm(env.vehicles.read("linear_velocity"), axis=1) for env in (line, anywhere))
    assert still.max() == 0.0 and 0.3 < (flying > 0.1).mean() < 0.7
    away = line.truth()["gate_place"]
    np.testing.assert_allclose(away[:, 0], -BEHIND, atol=0.7)
    assert (line.truth()["clearance"] > 0.0).all()


def test_what_varies_and_what_is_sensed():
    env = opened(128)
    for item in VARY:
        factor = env.vehicles.read(item.name) / env._nominal[item.name]
        assert item.low - 1e-5 <= factor.min() and factor.max() <= item.high + 1e-5 and np.ptp(factor) > 0.1
    drifted(env, 3)
    seen, truth = env.observe(), env.truth()
    off = seen["next_gate"] - truth["next_gate"]
    assert 0.01 < off.std() < 0.05
    np.testing.assert_array_equal(seen["gate_place"], truth["gate_place"])  # the critic is told what is so
    still = opened(8, vary=False)
    drifted(still, 3)
    for name, value in still.truth().items():
        np.testing.assert_array_equal(still.observe()[name], value, err_msg=name)


def test_corners_are_seen_from_the_body():
    env = opened(16, vary=False, start="anywhere")
    drifted(env, 10)
    now = env.truth()
    turn = now["rotation"].reshape(-1, 3, 3)
    for name, gate in (("next_gate", env._due()), ("gate_after", env._due(1))):
        corners = np.einsum("nij,nkj->nki", turn, now[name].reshape(-1, 4, 3)) + now["position"][:, None]
        wanted = np.stack([env.tracks[t].corners[g] for t, g in zip(env.track, gate, strict=True)])
        np.testing.assert_allclose(corners, wanted, atol=1e-4)
    np.testing.assert_allclose(now["projected_gravity"], -turn[:, 2], atol=1e-6)


def test_passing_counts_and_frames_and_the_ground_end_it():
    env = opened(8, vary=False, track="figure_eight")
    gate, axes = env.tracks[0].centre[0], env.tracks[0].axes[0]
    side, high = axes[:, 1] * (0.75 + 0.05), axes[:, 2] * (0.75 + 0.1)
    # Through the middle, into the left bar, into the upper one, past it, and down.
    ends = [0.0 * side, side, high, 4.0 * side, 0.0 * side, 0.0 * side, 0.0 * side, 0.0 * side]
    put(env, "position", np.stack([gate - 0.08 * axes[:, 0] + end for end in ends]))
    put(env, "linear_velocity", np.tile(10.0 * axes[:, 0], (8, 1)))
    low = np.asarray(env.vehicles.read("position"))
    low[4, 2] = 0.1
    put(env, "position", low)
    put(env, "linear_velocity", np.tile(10.0 * axes[:, 0], (8, 1)))
    step = env.step(hovering(env))
    np.testing.assert_array_equal(env.passed[:5], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(step.terminated[:5], [False, True, True, False, True])
    np.testing.assert_array_equal(step.terms["crash"][:5], [0.0, 1.0, 1.0, 0.0, 1.0])
    reward = sum(WEIGHTS[name] * value for name, value in step.terms.items())
    np.testing.assert_allclose(step.reward, reward, rtol=1e-5)
    assert step.terms["progress"][0] == pytest.approx(0.08 - 0.02, abs=0.01)  # 8 cm before it, then 2 cm behind it
    assert env.truth()["passed"][0, 0] == pytest.approx(1.0 / 8.0) and not step.success.any()


def test_commands_that_are_no_numbers_end_the_episode():
    env = opened(4)
    command = hovering(env)
    command["motor_command"][2] = np.nan
    step = env.step(command)
    np.testing.assert_array_equal(step.terminated, [False, False, True, False])
    assert np.isfinite(step.reward).all() and np.isfinite(env.observe()["next_gate"]).all()


@pytest.mark.parametrize("track", ["figure_eight", "random"])
def test_the_baseline_flies_what_was_planned(track: str):
    task = make("quad_gate_race", reference=True, vary=False, track=track, tracks=1)
    env = make_env(task, 1, 0)
    play = task.baselines["time_optimal"]
    (episode,) = rollout(task, env, lambda seen, numbers, begun: play(seen), range(1), truth=True)
    score = task.score(episode.flight())
    assert score.keys() == task.scores.keys() and all(v.dtype == np.float32 and v.shape == (1,) for v in score.values())
    assert score["success"][0] == 1.0 and score["gates"][0] == 1.0
    assert score["lap_time"][0] == pytest.approx(env.references.times[0], rel=0.1)
    assert score["lap_time"][0] == pytest.approx(len(episode.reward) / RATE)


def test_starts_on_the_trajectory_are_flown_on_by_the_expert():
    task = make("quad_gate_race", start="reference", retry=False, vary=False, track="figure_eight", plan_steps=6)
    env = make_env(task, 32, 0)
    env.reset(range(32), range(32))
    told, now = env.references.told(env.track, env.nearest), env.truth()
    beside = np.linalg.norm(now["position"] - told[:, :3], axis=1)  # of the nearest sample
    assert beside.max() <= np.sqrt(3.0) * BESIDE + 1e-5
    own = np.einsum("nij,nj->ni", now["rotation"].reshape(-1, 3, 3), now["linear_velocity"])
    resting = ~own.any(axis=1)
    assert 0 < resting.sum() < 16 and np.linalg.norm(own, axis=1).max() > 8.0
    assert np.abs(own - told[:, 3:6])[~resting].max() <= 2.0 * ASTRAY  # the nearest sample is a little further on
    assert len(set(env.passed)) > 4
    assert (now["gate_place"][:, 0] < 0.0).all()  # the next gate is ahead
    episodes = rollout(task, env, lambda seen, *_: task.expert(seen), range(32), truth=True)
    assert np.mean([task.score(one.flight())["success"][0] for one in episodes]) >= 0.9


@pytest.mark.parametrize("start", ["anywhere", "reference"])
def test_who_practised_elsewhere_is_judged_from_the_line(start: str, tmp_path: Path):
    task = make("quad_gate_race", start=start, retry=False, steps=40, plan_steps=0, **FEW)
    ppo = algorithm_class("ppo")
    algorithm = ppo(task, ppo.Config(total_steps=512, num_envs=16, rollout_steps=16, hidden=[16]), 0)
    path = tmp_path / "policy.onnx"
    export(algorithm.controller(), path, training={"algorithm": "ppo"})
    for flown in (task_for(PolicyFile.load(path)), judged(task)):
        assert (flown.config.start, flown.config.retry, flown.config.tracks) == ("line", True, 4)
        assert flown.episode_steps == 40 and flown.engine == task.engine
    measured = evaluate(PolicyFile.load(path), episodes=8)
    assert not measured.flight["linear_velocity"][0].any() and not measured.flight["passed"][0].any()
    told = task_for(PolicyFile.load(path), settings={"start": start})
    assert told.config.start == start


def test_only_gates_of_the_flight_count_and_only_laps_from_rest_have_a_time():
    task = make("quad_gate_race")
    passed = np.array([[0.0, 0.9, 0.0], [0.5, 0.9, 0.1]], np.float32)[..., None]
    speed = np.ones((2, 3, 3), np.float32)
    speed[0, 0] = 0.0
    success = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]], np.float32)[..., None]
    flight = {"passed": passed, "linear_velocity": speed, "success": success, "terminated": np.zeros_like(success)}
    scores = task.score(flight)
    np.testing.assert_allclose(scores["gates"], [1.0, 0.1, 0.1], atol=1e-6)
    np.testing.assert_allclose(scores["lap_time"], [0.02, np.nan, np.nan])


def test_starts_on_the_trajectory_are_before_the_next_gate():
    env = opened(512, start="reference", plan_steps=0, tracks=1)
    place = env.truth()["gate_place"]
    assert (place[:, 0] < 0.0).all() and (place[:, 0] > -0.02).any() and (env.truth()["clearance"] > 0.0).all()


def test_trajectories_take_the_room_of_those_that_are_planned():
    task = make("quad_gate_race", reference=True, plan_steps=0, steps=100_000, tracks=1000)
    pool = task.pool(0)[:1] * 1000
    made = References(task, pool, BEHIND)
    made.plan(np.array([3, 7]))
    assert made._samples.nbytes < 1e6
    track, nearest = np.array([3, 7, 3]), np.array([0, 0, 10**6])
    nearest[2] = made.point(track[2:], np.ones(1))[0][0]
    told = made.told(track, nearest)
    np.testing.assert_array_equal(told[0], told[1])
    assert np.linalg.norm(told[0, 3:6]) < 1.0 < np.linalg.norm(told[2, 3:6])
    made.advance(track, told[[2, 2, 2], :3], np.array([2]), nearest)
    assert EVERY * nearest[2] == pytest.approx(made.times[3] - LAST, abs=2 * EVERY)
    assert np.isnan(made.times[0])


def test_tracks_that_cannot_be_flown_are_refused_before_any_is_planned():
    task = make("quad_gate_race", reference=True, **FEW)
    track = task.pool(0)[0]
    narrow = replace(track, name="narrow", size=np.full_like(track.size, 0.7))
    with pytest.raises(ValueError, match="^narrow: an opening leaves no room for racer"):
        References(task, [track, narrow], BEHIND)


def test_missing_a_gate_ends_what_cannot_be_flown_again():
    for retry in (True, False):
        env = opened(4, vary=False, track="figure_eight", retry=retry)
        gate, axes = env.tracks[0].centre[0], env.tracks[0].axes[0]
        beside = np.array([0.0, 0.0, 2.0, -2.0])[:, None] * axes[:, 1]
        put(env, "position", gate - 0.08 * axes[:, 0] + beside)
        put(env, "linear_velocity", np.tile(10.0 * axes[:, 0], (4, 1)))
        step = env.step(hovering(env))
        np.testing.assert_array_equal(env.passed, [1, 1, 0, 0])
        np.testing.assert_array_equal(step.terminated, [False, False, not retry, not retry])


def test_fewer_steps_of_the_search_plan_slower_laps():
    few, more = (
        make("quad_gate_race", track="figure_eight", reference=True, plan_steps=steps, vary=False) for steps in (0, 12)
    )
    times = [References(task, task.pool(0), BEHIND) for task in (few, more)]
    for one in times:
        assert np.isnan(one.times).all()
        one.plan(np.zeros(3, np.int64))
    assert times[1].times[0] < 0.95 * times[0].times[0]


def test_what_is_followed_goes_on_through_more_gates_when_the_race_is_over():
    """Learners are not told that it ends: where the way did, nobody could tell when to turn and when to fly on."""
    task = make("quad_gate_race", track="figure_eight", reference=True, plan_steps=0, vary=False)
    track = task.pool(0)[0]
    made = References(task, [track], BEHIND)
    made.plan(np.zeros(1, np.int64))
    place = made._samples[:, :3].astype(np.float64)
    before, after = place[:-1, None], place[1:, None]
    there, here = (np.einsum("ngj,gji->ngi", p - track.centre, track.axes) for p in (before, after))
    sample, gate = np.nonzero(crossing(there, here, track.size, task.radius))
    np.testing.assert_array_equal(gate, [*range(8), *range(BEYOND)][: len(gate)])
    assert len(gate) >= 8 + BEYOND - 1  # the last one is where it ends
    assert EVERY * sample[7] == pytest.approx(made.times[0], abs=3 * EVERY)


def test_what_is_followed_turns_its_thrust_in_time_and_stays_near_what_was_planned():
    """The point mass turns its thrust at once; a vehicle takes some tenths of a second."""
    task = make("quad_gate_race", track="split_s", reference=True, plan_steps=6, vary=False)
    track = task.pool(0)[0]
    made, found = References(task, [track], BEHIND), planned(task, track, BEHIND, beyond=BEYOND)
    made.plan(np.zeros(1, np.int64))
    position, velocity, push, jerk = np.split(made._samples.astype(np.float64), 4, axis=1)
    when = EVERY * np.arange(len(position))
    np.testing.assert_allclose(position[:-1], found.at(when)[0][:-1], atol=0.12)  # the last is behind its end
    np.testing.assert_allclose(np.gradient(position, EVERY, axis=0)[1:-1], velocity[1:-1], atol=0.3)
    np.testing.assert_allclose(np.gradient(velocity, EVERY, axis=0)[LEAD + 1 : -1], push[1 : -LEAD - 1], atol=3.0)
    bends = np.diff(velocity, 2, axis=0) / EVERY**2  # around each sample but the first and the last
    told = jerk[1 : -1 - LEAD]
    assert np.abs(bends[LEAD:] - told).mean() < 0.3 * np.abs(told).mean()

    changes = [np.linalg.norm(np.diff(a, axis=0), axis=1).max() for a in (push, found.at(when)[2])]  # per sample
    assert changes[0] < 0.3 * changes[1]


@pytest.mark.parametrize(("axis", "sign"), [(0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)])
def test_the_thrust_turns_to_where_the_jerk_points(axis: int, sign: float):
    """Level, at rest, where it is to be, and its nose toward the gate: only the jerk is left, and what it asks for."""
    task = make("quad_gate_race", reference=True, **FEW)
    jerk = np.zeros(3)
    jerk[axis] = 20.0 * sign  # m/s^3, of forward, left, up
    level = {
        "rotation": np.eye(3).reshape(1, 9),
        "next_gate": np.tile([5.0, 0.0, 0.0], 4)[None],
        "reference": np.concatenate([np.zeros(9), jerk])[None],
        "rotor_speed": np.full((1, 4), task.robot.hover_command),
        **{name: np.zeros((1, 3)) for name in ("position", "linear_velocity", "angular_velocity")},
    }
    env = make_env(task, 1, 0)
    env.reset(range(1), range(1))
    state = {"position": np.array([[0.0, 0.0, 9.0]]), "quaternion": np.array([[1.0, 0.0, 0.0, 0.0]])}
    state |= {"linear_velocity": np.zeros((1, 3)), "rotor_speed": level["rotor_speed"]}
    env.vehicles.reset(None, {name: np.asarray(value, np.float32) for name, value in state.items()})
    command = follow(task, level)
    for _ in range(5):  # rotors lag
        env.step(command)
    up = rotation_matrices(np.asarray(env.vehicles.read("quaternion"), np.float64))[0, :, 2]
    assert sign * up[axis] > 1e-4


def test_at_half_the_pace_the_same_way_takes_twice_as_long():
    told = []
    for pace in (1.0, 0.5):
        task = make("quad_gate_race", track="figure_eight", reference=True, plan_steps=0, vary=False, pace=pace)
        made = References(task, task.pool(0), BEHIND)
        made.plan(np.zeros(1, np.int64))
        told.append((made.times[0], made._passes[0], *np.split(made._samples.astype(np.float64), 4, axis=1)))
    (time, passes, position, velocity, push, _), (slow, late, where, slowly, gently, _) = told
    assert slow == pytest.approx(2.0 * time) and late == pytest.approx(2.0 * passes)
    # What is flown leaves that way by a few cm where it turns quickly, and by less at the slower pace.
    np.testing.assert_allclose(where[: 2 * len(position) : 2], position[: len(where[::2])], atol=0.1)
    np.testing.assert_allclose(slowly[: 2 * len(velocity) : 2], 0.5 * velocity[: len(slowly[::2])], atol=1.0)
    assert np.linalg.norm(gently, axis=1).max() == pytest.approx(0.25 * np.linalg.norm(push, axis=1).max(), rel=0.1)


def test_who_is_not_planned_for_does_not_follow():
    task = make("quad_gate_race", **FEW)
    assert list(baselines_of("quad_gate_race")) == ["time_optimal"]
    with pytest.raises(ValueError, match="needs it planned: task.reference=true"):
        task.baselines["time_optimal"](opened().truth())
    with pytest.raises(NoExpertError, match="needs it planned: task.reference=true"):
        task.expert(opened().truth())
    settings = compose(["task=quad_gate_race", "task.start=anywhere"])
    said = "needs it planned: task.start=reference; or learn without it: algorithm.imitation=0"
    with pytest.raises(train.RefusedError, match=said):
        train.built(settings)


def test_mirrored_vehicles_fly_the_mirrored_way():
    """Left and right are alike: of mirrored signals follow mirrored commands."""
    task = make("quad_gate_race", reference=True, vary=False, track="figure_eight")
    env = make_env(task, 2, 0)
    env.reset(range(2), range(2))
    play, (mirror,) = task.baselines["time_optimal"], task.mirrors
    for _ in range(60):
        env.step(play(env.truth()))
    seen, flipped = env.truth(), {}
    for signal in (*task.policy, *task.privileged):
        places, signs = mirror.of(signal.name, signal.size)
        flipped[signal.name] = seen[signal.name][:, places] * np.array(signs, np.float32)
    left, right = (play(signals)["motor_command"] for signals in (seen, flipped))
    places, _ = mirror.of("motor_command", 4)
    assert np.ptp(left, axis=1).min() > 1e-3
    np.testing.assert_allclose(left[:, places], right, atol=1e-4)


def test_conditions_are_from_the_line_and_on_tracks_that_no_training_sees():
    found = conditions_of(make("quad_gate_race", start="anywhere", **FEW))
    assert list(found) == ["nominal", "as in training", "figure_eight", "split_s"]
    assert {task.config.start for task in found.values()} == {"line"}
    assert found["split_s"].pool(0)[0].name == "split_s" and not found["nominal"].noise


def test_a_track_of_one_s_own_and_other_engines(tmp_path: Path):
    write_gates(random_gates(7), tmp_path / "mine.csv")
    env = opened(2, track=str(tmp_path / "mine.csv"), vary=False, engine="mujoco")
    np.testing.assert_allclose(env.tracks[0].centre, random_gates(7).centre, atol=1e-3)
    drifted(env, 3)
    here = opened(2, track=str(tmp_path / "mine.csv"), vary=False)
    drifted(here, 3)
    np.testing.assert_allclose(env.truth()["position"], here.truth()["position"], atol=1e-3)
    with pytest.raises(ValueError, match=r"absent.csv: cannot be read as a track of gates"):
        opened(2, track=str(tmp_path / "absent.csv"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"robot": "any"}, "needs one airframe, not 'any'"),
        ({"start": "pit"}, "start 'pit' is not one of line, anywhere, reference"),
        ({"laps": 0}, "needs steps 1 to 100000, tracks 1 to 1000 and laps 1 to 100"),
        ({"reference": True, "start": "anywhere"}, "reference needs start=line or reference"),
        ({"plan_steps": -1}, "plan_steps must be within 0..1000, got -1"),
        ({"gates": 3}, "its settings are: robot, track"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("quad_gate_race", **settings)


def test_a_picture_shows_gates_and_which_is_next():
    env = opened(1, vary=False, track="figure_eight")
    picture = env.render(0, 240, 320)
    assert picture.shape == (240, 320, 3) and picture.dtype == np.uint8
    red, green, blue = (picture[..., k].astype(int) for k in range(3))
    gates, due = (red > green + 60) & (red > blue + 60), (green > red + 60) & (green > blue + 20)
    assert gates.sum() > 3 * due.sum() > 60
    env.passed[:] = 1
    other = env.render(0, 240, 320)
    moved = (other[..., 1].astype(int) > other[..., 0].astype(int) + 60) & (
        other[..., 1] > other[..., 2].astype(int) + 20
    )
    assert np.hypot(*(np.argwhere(moved).mean(axis=0) - np.argwhere(due).mean(axis=0))) > 20.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"total_steps": 512, "num_envs": 16, "rollout_steps": 16, "hidden": [16], "critic_hidden": [16]}),
        ("apg", {"network": "mlp", "hidden": [16], "updates": 2, "num_envs": 16, "window": 8, "ahead": 2}),
    ],
)
def test_it_is_trained_exported_and_evaluated(name: str, settings: dict[str, Any], tmp_path: Path):
    task = make("quad_gate_race", steps=40, start="anywhere", **FEW)
    cls = algorithm_class(name)
    algorithm = cls(task, cls.Config(**settings), 0)
    next(algorithm.learn())
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": name})
    report = evaluate(PolicyFile.load(tmp_path / "policy.onnx"), task=make("quad_gate_race", steps=40), episodes=2)
    assert report.episodes == 2 and report.engine == "flight"

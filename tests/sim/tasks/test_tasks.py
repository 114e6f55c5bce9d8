"""Tasks and their moving targets: starts within their declared ranges, motions, scores, and refused settings."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim import tasks
from sim.registry import load
from sim.robots import robot
from sim.robots.quadrotors import SENSED
from sim.tasks import targets
from sim.tasks.quad_hover import random_tilt
from sim.terms import lost
from tests.sim.vehicles import VEHICLES

ROOT = Path(__file__).resolve().parents[3]


@st.composite
def motions(draw) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, waves = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    centre = rng.normal(size=(n, 3)).astype(np.float32)
    kind = draw(st.sampled_from(["hold", "figure_eight", "smooth_random"]))
    if kind == "hold":
        return targets.hold(centre)
    if kind == "figure_eight":
        path = targets.figure_eight(rng, n, draw(st.floats(0.1, 3.0)), draw(st.floats(2.0, 20.0)), centre)
        return targets.widen(path, waves) if draw(st.booleans()) else path
    return targets.smooth_random(rng, n, 3.0, 8.0, waves, centre)


@given(motions(), st.floats(0.0, 10.0))
def test_velocity_is_the_derivative_of_position(path, time):
    path = path.astype(np.float64)
    when, h = np.full(len(path), time), 1e-5
    difference = (targets.position_at(path, when + h) - targets.position_at(path, when - h)) / (2.0 * h)
    np.testing.assert_allclose(targets.velocity_at(path, when), difference, atol=1e-6)


@given(motions(), st.floats(0.0, 10.0))
def test_motion_agrees_between_numpy_and_torch(path, time):
    when = np.full(len(path), time, np.float32)
    for at in (targets.position_at, targets.velocity_at):
        theirs = at(torch.from_numpy(path), torch.from_numpy(when))
        np.testing.assert_allclose(at(path, when), theirs.numpy(), atol=2e-5)


@given(st.integers(0, 2**32), st.floats(0.5, 5.0), st.floats(1.0, 20.0))
def test_smooth_paths_keep_their_bounds(seed, speed, acceleration):
    path = targets.smooth_random(np.random.default_rng(seed), 4, speed, acceleration, 3, np.zeros((4, 3))).astype(
        np.float64
    )
    h = 1e-3
    for time in np.linspace(0.0, 20.0, 41):
        when = np.full(4, time)
        velocity = targets.velocity_at(path, when)
        change = (targets.velocity_at(path, when + h) - targets.velocity_at(path, when - h)) / (2.0 * h)
        assert np.linalg.norm(velocity, axis=-1).max() <= speed * 1.001
        assert np.linalg.norm(change, axis=-1).max() <= acceleration * 1.001


@given(st.integers(0, 2**32), st.floats(0.2, 3.0), st.floats(2.0, 20.0))
def test_figure_eight_has_its_size_and_period(seed, size, period):
    path = targets.figure_eight(np.random.default_rng(seed), 1, size, period, np.zeros((1, 3))).astype(np.float64)
    times = np.linspace(0.0, period, 2001)
    points = np.concatenate([targets.position_at(path, np.array([t])) for t in times])
    np.testing.assert_allclose(points[0], points[-1], atol=1e-4 * size)
    np.testing.assert_allclose(np.abs(points).max(axis=0), [size, size / 2.0, 0.0], atol=1e-3 * size)


def test_wider_motion_is_the_same_motion():
    path = targets.figure_eight(np.random.default_rng(0), 3, 1.0, 5.5, np.ones((3, 3)))
    when = np.array([0.3, 1.0, 4.0], np.float32)
    wide = targets.widen(path, 4)
    assert wide.shape == (3, 3, 13)
    np.testing.assert_allclose(targets.position_at(wide, when), targets.position_at(path, when), atol=1e-6)


@given(st.integers(0, 2**32), st.floats(0.0, 180.0), st.integers(1, 200))
def test_tilt_is_bounded_and_unit(seed, degrees, n):
    q = random_tilt(np.random.default_rng(seed), n, degrees).astype(np.float64)
    assert q.shape == (n, 4)
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1.0, atol=1e-6)
    assert np.degrees(2.0 * np.arccos(np.minimum(q[:, 0], 1.0))).max() <= degrees + 0.05


@pytest.mark.parametrize("degrees", [180.0, 90.0, 45.0])
def test_tilt_is_uniform_over_the_rotations(degrees):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(400_000, 4))
    q *= np.sign(q[:, :1]) / np.linalg.norm(q, axis=1, keepdims=True)
    kept = q[q[:, 0] >= np.cos(np.radians(degrees) / 2.0)]  # uniform, by rejection
    ours = random_tilt(rng, len(kept), degrees)
    levels = np.linspace(0.02, 0.98, 25)
    for column in range(4):
        expected = np.quantile(kept[:, column], levels)
        np.testing.assert_allclose(np.quantile(ours[:, column], levels), expected, atol=0.02)


@pytest.mark.parametrize("name", VEHICLES)
def test_starts_follow_the_declaration(name):
    task = tasks.make(name, guidance=0.25)
    c = task.config
    state = task.reset(np.random.default_rng(0), 4000)
    zero = np.zeros(4000, np.float32)
    reference = task.reference(state["motion"], zero)
    away = np.abs(state["position"] - reference["target_position"])
    assert away.max() <= c.position + 1e-5
    assert away.max() > 0.95 * c.position
    assert np.abs(state["angular_velocity"]).max() <= c.body_rate
    assert np.abs(state["linear_velocity"] - reference.get("target_velocity", 0.0)).max() <= c.velocity + 1e-5
    assert state["rotor_speed"].min() >= 0.0
    assert state["rotor_speed"].max() <= c.rotor_speed
    resting = (away.max(axis=1) < 1e-5) & (np.abs(state["angular_velocity"]).max(axis=1) == 0.0)
    assert resting.mean() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("name", VEHICLES)
def test_what_the_policy_sees_exists_on_the_robot(name):
    task = tasks.make(name)
    assert {s.name for s in task.policy} <= set(SENSED) & set(task.robot.sensed)
    seen = {s.name for s in task.policy} | {"history"}
    assert all(f.signal in seen and (f.minus is None or f.minus in seen) for f in task.features)
    assert {v.name for v in task.vary} <= task.robot.parameters().keys()
    known = seen | {"action", "action_change"}
    assert all(c.signal in known and (c.minus is None or c.minus in known) for c in task.costs)
    assert {c.name for c in task.curriculum} <= {c.name for c in task.costs}
    assert -1.0 <= task.initial_action <= 1.0
    assert "success" in task.scores


@pytest.mark.parametrize("name", VEHICLES)
@pytest.mark.parametrize("distance", [0.0, 0.1, 0.4, np.nan])
def test_score_of_a_constant_distance(name, distance):
    task = tasks.make(name)
    steps, n = task.episode_steps, 3
    state = task.reset(np.random.default_rng(0), n)
    times = (np.arange(steps) + 1.0) / task.rate_hz
    references = [task.reference(state["motion"], np.full(n, t, np.float32)) for t in times]
    flight = {key: np.stack([r[key] for r in references]) for key in references[0]}
    flight["position"] = flight["target_position"] + np.array([distance, 0.0, 0.0], np.float32)
    flight["motor_command"] = np.full((steps, n, 4), 0.5, np.float32)
    score = task.score(flight)
    assert score.keys() == task.scores.keys()
    assert all(value.shape == (n,) and value.dtype == np.float32 for value in score.values())
    assert (score["success"] == (distance < task.close)).all()
    assert (score["control_effort"] == 0.0).all()
    error = score["position_error" if name == "quad_hover" else "tracking_error"]
    np.testing.assert_allclose(error, np.nan_to_num(distance, nan=np.inf), atol=1e-5)


def test_settling_time_counts_from_the_last_excursion():
    task = tasks.make("quad_hover", episode_s=5.0)
    distance = np.zeros((500, 2), np.float32)
    distance[:120] = 1.0
    distance[300, 1] = 0.5  # comes back out once
    flight = {
        "position": np.stack([distance, 0.0 * distance, 0.0 * distance], axis=-1),
        "target_position": np.zeros((500, 2, 3), np.float32),
        "motor_command": np.zeros((500, 2, 4), np.float32),
    }
    np.testing.assert_allclose(task.score(flight)["settling_time"], [1.2, 3.01], rtol=1e-6)


@pytest.mark.parametrize("name", VEHICLES)
def test_termination_agrees_between_numpy_and_torch(name):
    task = tasks.make(name)
    rng = np.random.default_rng(0)
    signals = {
        "position": rng.normal(size=(200, 3)).astype(np.float32) * 2.0,
        "target_position": np.zeros((200, 3), np.float32),
        "angular_velocity": rng.normal(size=(200, 3)).astype(np.float32) * 15.0,
    }
    gone = lost(task.bounds, signals)
    assert 0 < gone.sum() < 200
    assert (gone == lost(task.bounds, {k: torch.from_numpy(v) for k, v in signals.items()}).numpy()).all()


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        (
            "quad_hovr",
            {},
            r"unknown task 'quad_hovr' \(did you mean 'quad_hover'\?\); choices: .*quad_any, .*quad_hover",
        ),
        ("quad_hover", {"tillt": 3.0}, "tillt.*its settings are: robot, rate_hz"),
        ("quad_hover", {"tilt": 200.0}, r"tilt must be in 0..180 degrees, got 200"),
        ("quad_hover", {"rate_hz": 0.0}, "rate_hz and episode_s must be positive"),
        ("quad_hover", {"history": 0}, "history must be in 1..32"),
        ("quad_hover", {"robot": "crazyfly"}, "unknown robot 'crazyfly'.*did you mean 'crazyflie'"),
        ("quad_hover", {"robot": "sim.robots.quadrotors:GRAVITY"}, "names a float, not a robot"),
        ("quad_track", {"path": "square"}, "'square' is not one of figure_eight, random, both"),
        ("quad_hover", {"delay_low": 0.02, "delay_high": 0.01}, "delay_low <= delay_high"),
    ],
)
def test_wrong_settings_are_refused(name, setting, said):
    with pytest.raises(ValueError, match=said):
        tasks.make(name, **setting)


def test_robust_widens_what_varies():
    usual, robust = (tasks.make("quad_hover", robust=flag) for flag in (False, True))
    for narrow in usual.vary:
        (wide,) = [v for v in robust.vary if v.name == narrow.name]
        assert wide.low < narrow.low < narrow.high < wide.high
    assert robust.commands[0].delay_range()[1] >= max(0.02, usual.commands[0].delay_range()[1])


def test_outside_names_load_and_inner_errors_surface(tmp_path, monkeypatch):
    (tmp_path / "outside.py").write_text("from sim.robots.quadrotors import CRAZYFLIE as MINE\n")
    (tmp_path / "lacking.py").write_text("import a_library_that_is_not_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert robot("outside:MINE").name == "crazyflie"
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_here"):
        load("robot", "lacking:MINE", {})
    with pytest.raises(ValueError, match="there is no module 'absent.module'"):
        load("robot", "absent.module:MINE", {})
    with pytest.raises(ValueError, match="module 'outside' has no 'YOURS'"):
        load("robot", "outside:YOURS", {})


def test_tasks_load_without_torch():
    code = "import sys, sim.tasks as t; [t.make(n) for n in t.TASKS]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_published_reward_and_its_curriculum():
    """2 - 0.5 (5 p^2 + 5 (1 - q_w^2) + 0.01 v^2 + 0.01 a^2), and the weights that the seed ends at."""
    task = tasks.make("quad_hover", reward="l2f")
    half_turn = np.diag([1.0, -1.0, -1.0]).reshape(1, 9)  # 1 - q_w^2 = 1
    values = {
        "position": np.array([[0.1, 0.0, 0.0]]),
        "target_position": np.zeros((1, 3)),
        "rotation": half_turn,
        "linear_velocity": np.array([[0.0, 2.0, 0.0]]),
        "action": np.full((1, 4), task.initial_action + 0.5),
    }
    cost = sum(c.weight * c.evaluate(values)[0] for c in task.costs)
    assert cost == pytest.approx(0.5 * (5 * 0.01 + 5 * 1.0 + 0.01 * 4.0 + 0.01 * 4 * 0.25))
    ends = {item.name: item.weight(10**9) for item in task.curriculum}
    assert ends == {"position": 20.0, "velocity": 0.5, "action": 0.5}
    first = {item.name: item.weight(99_999) for item in task.curriculum}
    assert first == {c.name: c.weight for c in task.costs if c.name in ends}
    assert task.curriculum[0].weight(250_000) == pytest.approx(2.5 * 1.2**2)


def test_easier_starts_lead_from_rest_to_the_drawn_start():
    for name in VEHICLES:
        task = tasks.make(name)
        state = task.reset(np.random.default_rng(0), 50)
        same = task.easier(state, np.ones((50, 1), np.float32))
        for key, value in state.items():
            np.testing.assert_allclose(same[key], value, atol=1e-5, err_msg=key)
        rest = task.easier(state, np.zeros((50, 1), np.float32))
        reference = task.reference(state["motion"], np.zeros(50, np.float32))
        np.testing.assert_allclose(rest["position"], reference["target_position"], atol=1e-5)
        np.testing.assert_allclose(rest["quaternion"], np.tile([1.0, 0, 0, 0], (50, 1)), atol=1e-6)
        np.testing.assert_allclose(rest["rotor_speed"], task.robot.hover_command, atol=1e-6)

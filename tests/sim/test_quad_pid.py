"""The classical baseline hovers, recovers and tracks, on every airframe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.engines
import sim.tasks
from sim.experts.quad_pid import CascadedPid, Gains
from sim.robots import ROBOTS, robot

MEASURED = ("position", "rotation", "linear_velocity", "angular_velocity")


def fly(task, n, seed=0, delay_steps=0, engine="flight", only=None):
    """The task's scores of `n` episodes under the PID; commands arrive `delay_steps` control steps late."""
    rng = np.random.default_rng(seed)
    dt = 1.0 / task.rate_hz
    world = sim.engines.make(engine, task.robot, n, dt)
    state = task.reset(rng, n)
    motion = state.pop("motion")
    world.reset(None, state)
    pid = CascadedPid(task.robot, task.rate_hz)
    pid.reset(n)
    queue = [np.full((n, 4), task.robot.hover_command, np.float32)] * delay_steps
    flight = {"position": [], "target_position": [], "motor_command": []}
    for step in range(task.episode_steps):
        target = task.reference(motion, np.full(n, step * dt, np.float32))
        signals = {name: world.read(name) for name in MEASURED} | target
        command = pid.act({k: v for k, v in signals.items() if only is None or k in only})["motor_command"]
        queue.append(command)
        world.step(queue.pop(0))
        after = task.reference(motion, np.full(n, (step + 1) * dt, np.float32))
        flight["position"].append(world.read("position"))
        flight["target_position"].append(after["target_position"])
        flight["motor_command"].append(command)
    return task.score({name: np.stack(value) for name, value in flight.items()})


@pytest.mark.parametrize("delay_steps", [0, 1])
def test_it_tracks_the_figure_eight(delay_steps):
    # 1 m, 5.5 s, Crazyflie with its rotor lag of 0.15 s, unseen phases: 9 mm without delay, 12 mm with 10 ms.
    score = fly(sim.tasks.make("quad_track", path="figure_eight"), 48, delay_steps=delay_steps)
    assert np.median(score["tracking_error"]) < 0.010
    assert score["tracking_error"].mean() < (0.012 if delay_steps == 0 else 0.018)


@pytest.mark.parametrize("delay_steps", [0, 1, 2])
def test_it_recovers_when_thrown(delay_steps):
    score = fly(sim.tasks.make("quad_hover"), 200, seed=1, delay_steps=delay_steps)
    assert score["success"].mean() >= 0.99
    assert np.median(score["position_error"]) < 0.005
    assert np.median(score["settling_time"]) < 1.5


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", list(ROBOTS))
def test_the_same_gains_fly_every_airframe(name):
    hover = fly(sim.tasks.make("quad_hover", robot=name, tilt=20.0, position=0.2, velocity=0.3), 16, delay_steps=1)
    assert hover["success"].all()
    assert hover["position_error"].max() < 0.03
    track = fly(sim.tasks.make("quad_track", robot=name, path="figure_eight"), 16)
    assert np.median(track["tracking_error"]) < 0.02


def test_it_flies_alike_in_another_engine():
    task = sim.tasks.make("quad_track", path="figure_eight")
    here, there = fly(task, 6, seed=3), fly(task, 6, seed=3, engine="mujoco")
    np.testing.assert_allclose(there["tracking_error"], here["tracking_error"], atol=5e-4)


def test_without_preview_or_target_velocity_it_still_follows():
    task = sim.tasks.make("quad_track", path="figure_eight")
    needed = (*MEASURED, "target_position")
    velocity = fly(task, 16, only=(*needed, "target_velocity"))["tracking_error"]
    position = fly(task, 16, only=needed)["tracking_error"]
    best = fly(task, 16)["tracking_error"]
    assert np.median(best) < np.median(velocity) < np.median(position) < 0.7


def test_the_integral_removes_a_constant_push():
    airframe = robot("crazyflie")
    world = sim.engines.make("flight", airframe, 1, 0.01)
    world.set_parameters(None, {"force": np.array([[0.01, -0.01, 0.01]], np.float32)})
    world.reset(None, {"position": np.ones((1, 3), np.float32), "rotor_speed": np.full((1, 4), airframe.hover_command)})
    pid = CascadedPid(airframe, 100.0)
    pid.reset(1)
    distance = []
    for _ in range(2000):
        signals = {name: world.read(name) for name in MEASURED} | {"target_position": np.ones((1, 3))}
        world.step(pid.act(signals)["motor_command"])
        distance.append(np.linalg.norm(world.read("position") - 1.0))
    assert max(distance[:500]) > 0.01
    assert distance[-1] < 0.25 * max(distance)


def test_the_integral_does_not_wind_up():
    pid = CascadedPid(robot("crazyflie"), 100.0)
    pid.reset(2)
    signals = {
        "position": np.zeros((2, 3)),
        "rotation": np.tile(np.eye(3).ravel(), (2, 1)),
        "linear_velocity": np.zeros((2, 3)),
        "angular_velocity": np.zeros((2, 3)),
        "target_position": np.array([[0.1, 0.0, 0.0], [5.0, 0.0, 0.0]]),
    }
    for _ in range(800):
        pid.act(signals)
    assert pid.integral[0, 0] == pytest.approx(Gains().integral_limit)
    assert not pid.integral[1].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_commands_stay_in_range_and_vehicles_apart(seed, scale):
    rng = np.random.default_rng(seed)
    n = 5
    many, alone = CascadedPid(robot("racer"), 100.0), CascadedPid(robot("racer"), 100.0)
    many.reset(n)
    alone.reset(1)
    for _ in range(4):
        signals = {
            name: scale * rng.normal(size=(n, 3)) for name in ("position", "linear_velocity", "angular_velocity")
        }
        signals["target_position"], signals["target_velocity"] = scale * rng.normal(size=(2, n, 3))
        signals["target_preview"] = scale * rng.normal(size=(n, 9))
        signals["rotation"] = np.linalg.qr(rng.normal(size=(n, 3, 3)))[0].reshape(n, 9)
        command = many.act(signals)["motor_command"]
        assert command.shape == (n, 4) and command.dtype == np.float32
        assert ((command >= 0.0) & (command <= 1.0)).all()
        np.testing.assert_allclose(
            alone.act({k: v[2:3] for k, v in signals.items()})["motor_command"][0], command[2], atol=1e-5
        )


def test_reset_forgets_and_mistakes_are_named():
    task = sim.tasks.make("quad_hover", episode_s=1.5)
    pid = CascadedPid(task.robot, 100.0)
    rng = np.random.default_rng(2)
    signals = {
        "position": rng.normal(size=(3, 3)),
        "rotation": np.tile(np.eye(3).ravel(), (3, 1)),
        "linear_velocity": rng.normal(size=(3, 3)),
        "angular_velocity": rng.normal(size=(3, 3)),
        "target_position": np.zeros((3, 3)),
    }
    with pytest.raises(ValueError, match=r"reset\(3\)"):
        pid.act(signals)
    pid.reset(3)
    first = pid.act(signals)["motor_command"]
    for _ in range(5):
        pid.act(signals)
    pid.reset(3)
    np.testing.assert_array_equal(pid.act(signals)["motor_command"], first)
    with pytest.raises(KeyError, match="rotation"):
        pid.act({k: v for k, v in signals.items() if k != "rotation"})
    with pytest.raises(ValueError, match="rate_hz"):
        CascadedPid(task.robot, 0.0)

"""What quad_any may be told besides, and the vehicles that it may learn on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploy
from deploy.policy_file import PolicyFile
from deploy.runtimes import controller
from policies.evaluate import evaluate
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.gru import Gru
from policies.runner.config import compose
from sim import tasks
from sim.conditions import Conditions
from sim.env import evaluation_env
from sim.robots.quadrotors import GRAVITY
from sim.spec import find
from tests.deploy.sample_policy import random_gru

PRETRAINED = Path(deploy.__file__).parent / "pretrained"
AHEAD = {"target_acceleration", "target_preview", "target_preview_velocity", "target_preview_acceleration"}
TODAY = ["position", "rotation", "linear_velocity", "angular_velocity", "target_position", "target_velocity"]


def names(task):
    return [signal.name for signal in task.policy]


def test_without_the_settings_the_contract_is_that_of_the_shipped_file():
    assert names(tasks.make("quad_any")) == TODAY
    assert tasks.make("quad_any").policy == PolicyFile.load("quad_any").inputs


def test_the_preview_is_the_path_ahead():
    task = tasks.make("quad_any", preview=True, preview_points=3, preview_s=0.2, path="figure_eight")
    assert set(names(task)) == {*TODAY, *AHEAD} and find(task.policy, "target_preview").shape == (9,)
    motion = task.reset(np.random.default_rng(0), 5)["motion"]
    zero, step = np.zeros(5, np.float32), np.float32(1e-2)
    now = task.reference(motion, zero)
    later = task.reference(motion, zero + np.float32(0.4))  # the second point
    for ahead, at in (
        ("target_preview", "target_position"),
        ("target_preview_velocity", "target_velocity"),
        ("target_preview_acceleration", "target_acceleration"),
    ):
        np.testing.assert_allclose(now[ahead][:, 3:6], later[at], atol=1e-5)
    slopes = [
        (task.reference(motion, zero + step)[name] - task.reference(motion, zero - step)[name]) / (2.0 * step)
        for name in ("target_position", "target_velocity")
    ]
    np.testing.assert_allclose(slopes[0], now["target_velocity"], atol=2e-3)
    np.testing.assert_allclose(slopes[1], now["target_acceleration"], atol=2e-3)


def test_with_a_preview_half_of_the_paths_are_quick_but_not_quicker_than_said():
    task = tasks.make("quad_any", preview=True)
    motion = task.reset(np.random.default_rng(0), 4000)["motion"]
    fastest = np.max(
        [np.linalg.norm(task.reference(motion, np.full(4000, t, np.float32))["target_acceleration"], axis=1)
         for t in np.linspace(0.0, 5.0, 60)],
        axis=0,
    )  # fmt: skip
    assert 0.45 < (fastest > 0.0).mean() < 0.55
    assert (fastest > 9.0).mean() > 0.05 and fastest.max() < 12.5


def test_the_nose_turns_and_nothing_else_changes():
    """The world is the same in every direction: told to turn, a policy flies as if the world had been turned."""
    task = tasks.make("quad_any", robot="racer", heading=True, path="hold")
    assert names(task)[-1] == "target_heading" and task.scores["heading_error"] == "rad"
    network = random_gru(np.random.default_rng(0), inputs=22, outputs=4, width=8, hidden=8)
    turned = FeaturePolicy.from_task(task, network)
    plain = FeaturePolicy.from_task(tasks.make("quad_any", robot="racer", path="hold"), network)
    rng = np.random.default_rng(1)
    seen = {s.name: rng.normal(size=(6, *s.shape)).astype(np.float32) for s in plain.inputs}
    angle = rng.uniform(-np.pi, np.pi, 6)
    about = np.zeros((6, 3, 3))
    about[:, 0, 0] = about[:, 1, 1] = np.cos(angle)
    about[:, 1, 0], about[:, 0, 1], about[:, 2, 2] = np.sin(angle), -np.sin(angle), 1.0
    told = {name: np.einsum("nij,nj->ni", about, seen[name]) for name in (*TODAY[4:], "position", "linear_velocity")}
    told["rotation"] = (about @ seen["rotation"].reshape(6, 3, 3)).reshape(6, 9)
    told["angular_velocity"] = seen["angular_velocity"]  # in the body's axes
    told["target_heading"] = np.stack([np.cos(angle), np.sin(angle)], axis=1) * 1.05  # of any length
    told = {name: value.astype(np.float32) for name, value in told.items()}
    ours, _ = turned.act(told, turned.initial_state(6))
    theirs, _ = plain.act(seen, plain.initial_state(6))
    np.testing.assert_allclose(ours["motor_command"], theirs["motor_command"], atol=2e-6)


@pytest.mark.parametrize("nowhere", [(0.0, 0.0), (1e-23, 0.0), (-1e-6, 0.0)])
def test_a_heading_that_points_nowhere_does_not_stay_in_the_state(tmp_path, nowhere):
    task = tasks.make("quad_any", robot="racer", heading=True)
    policy = FeaturePolicy.from_task(task, random_gru(np.random.default_rng(0), 22, 4, 8, 8))
    runtimes = [controller(export(policy, tmp_path / "policy.onnx"), kind) for kind in ("onnxruntime", "c")]
    rng = np.random.default_rng(1)
    seen = {s.name: rng.normal(size=(1, *s.shape)).astype(np.float32) for s in policy.inputs}
    state = policy.initial_state(1)
    for runtime in runtimes:
        runtime.reset(1)
    for told in (nowhere, (1.0, 0.0)):
        seen["target_heading"] = np.array([told], np.float32)
        ours, state = policy.act(seen, state)
        assert all(np.isfinite(value).all() for value in (*ours.values(), *state.values()))
        for runtime in runtimes:
            np.testing.assert_allclose(runtime.step(seen)["motor_command"], ours["motor_command"], atol=1e-5)


def test_the_heading_is_in_the_file(tmp_path):
    task = tasks.make("quad_any", robot="racer", heading=True, preview=True)
    width = 22 + 3 + 3 * 6
    policy = FeaturePolicy.from_task(task, random_gru(np.random.default_rng(0), width, 4, 8, 8))
    export(policy, tmp_path / "policy.onnx")  # which compares the graph with `act`
    assert "target_heading" in [s.name for s in PolicyFile.load(str(tmp_path / "policy.onnx")).inputs]


def test_the_shipped_weights_turn_without_having_learned_it(tmp_path):
    model = onnx.load(PRETRAINED / "quad_any.onnx")
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [(stored[n.input[1]], stored[n.input[2]]) for n in model.graph.node if n.op_type == "Gemm"]
    encoder, (w_ih, b_ih), (w_hh, b_hh), output = layers
    network = Gru(encoder, w_ih, w_hh, b_ih, b_hh, output)
    turned = export(FeaturePolicy.from_task(tasks.make("quad_any", heading=True), network), tmp_path / "turned.onnx")
    task = tasks.make("quad_any", robot="racer", heading=True, path="hold")
    flown = evaluate(turned, task=task, episodes=40, seed=3)
    assert flown.success == 1.0 and flown.score["heading_error"].mean < np.radians(3.0)


def test_the_score_of_the_heading_is_the_angle_between_nose_and_target():
    task = tasks.make("quad_any", robot="racer", heading=True, path="hold", episode_s=1.0)
    steps = np.zeros((100, 1, 1))
    nose, told = np.radians(170.0), np.radians(-170.0)
    turn = [np.cos(nose), -np.sin(nose), 0.0, np.sin(nose), np.cos(nose), 0.0, 0.0, 0.0, 1.0]
    flight = {
        "position": np.zeros((100, 1, 3)),
        "target_position": np.zeros((100, 1, 3)),
        "motor_command": np.zeros((100, 1, 4)),
        "rotation": steps + turn,
        "target_heading": steps + np.array([np.cos(told), np.sin(told)]),
    }
    assert task.score(flight)["heading_error"][0] == pytest.approx(np.radians(20.0), abs=1e-6)


def test_the_wide_range_has_nanos_and_lifters():
    robot = tasks.make("quad_any", range="wide").robot
    assert robot.name == "any"
    p = robot.draw(np.random.default_rng(0), 20_000)
    thrust = p["thrust_curve"].sum(axis=1)
    agility = 2.0 * thrust * np.abs(p["rotor_position"][:, 1]) / p["inertia"][:, 0]
    mass, rise = p["mass"][:, 0], p["rise_time"][:, 0]
    assert mass.min() < 0.003 and mass.max() > 25.0 and agility.min() < 30.0 and agility.max() > 4000.0
    assert rise[agility > 3000.0].max() < 0.031 and rise[agility < 35.0].max() > 0.15
    assert np.ptp(4.0 * thrust / mass) < 5.0 * GRAVITY  # whatever the mass, between 1.3 and 5 weights


def test_one_command_trains_for_the_wide_range():
    settings = compose(["task=quad_any", "quality=wide", "task.heading=true"])
    task, algorithm = settings.task_config, settings.algorithm_config
    assert (task.range, task.preview, task.heading) == ("wide", True, True)
    assert (algorithm.hidden, algorithm.adjoint_power) == ([32, 32], 1.0)


def test_one_command_trains_for_the_loss_of_a_rotor():
    settings = compose(["task=quad_any", "quality=lost"])
    assert (settings.task_config.lost, settings.algorithm_config.updates) == (0.7, 10000)


def test_rotors_are_lost_and_found_in_flight():
    task = tasks.make("quad_any", robot="racer", lost=0.25)
    (vary,) = (v for v in task.vary if v.every)
    lost = vary.sample(np.random.default_rng(0), np.ones(4, np.float32), 8000) == 0.0
    assert set(lost.sum(axis=1)) == {0, 1}
    np.testing.assert_allclose(lost.mean(axis=0), 0.25 / 4.0, atol=0.01)
    assert not [v for v in tasks.make("quad_any", lost=0.25, robust=True).vary if v.every and v.low == 0.9]


def test_a_rotor_is_damaged_later():
    task = tasks.make("quad_any", robot="racer", path="hold")
    conditions = Conditions(damage=0.5, damage_at=0.2)
    env = evaluation_env(task, 3, 0, conditions)
    env.reset([0, 1, 2], [0, 1, 2])
    command = {"motor_command": np.full((3, 4), 0.5, np.float32)}
    for step in range(1, 31):
        env.step(command)
        weak = (env.engine.read("thrust_scale") == 0.5).sum(axis=1)
        assert (weak == (1 if step >= 20 else 0)).all()
    env.reset([1], [7])
    assert env.engine.read("thrust_scale")[1].tolist() == [1.0] * 4


def test_the_shipped_file_carries_a_load_on_a_rope():
    task = tasks.make("quad_any", robot="x500", path="hold", episode_s=8.0)
    flown = evaluate(PolicyFile.load("quad_any"), task=task, episodes=20, conditions=Conditions(payload=0.2, rope=1.5))
    assert flown.success == 1.0 and flown.conditions == {"payload": 0.2, "rope": 1.5}


def test_a_load_on_a_rope_pulls_the_vehicle_down():
    task = tasks.make("quad_any", robot="x500", path="hold")
    falls = {}
    for payload in (0.0, 0.2):
        env = evaluation_env(task, 3, 0, Conditions(payload=payload))
        env.reset([0, 1, 2], [0, 1, 2])
        weight = env.engine.read("mass")[:, 0] * GRAVITY
        np.testing.assert_allclose(env.engine.read("force")[:, 2], -payload * weight, rtol=1e-5, atol=1e-6)
        height = env.engine.read("position")[:, 2].copy()
        for _ in range(50):
            env.step({"motor_command": np.full((3, 4), 0.7, np.float32)})
        falls[payload] = height - env.engine.read("position")[:, 2]
    assert (falls[0.2] > falls[0.0] + 0.05).all()  # m, in half a second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"range": "all"}, "range 'all' is not one of usual, wide"),
        ({"lost": 2.0}, "lost is a share of the time"),
        ({"preview_points": 0}, "1 to 16 preview_points"),
        ({"preview": True, "speed": 0.5}, r"up to 12 m/s\^2: leave speed at 1.5"),
        ({"preview": True, "acceleration": 0.5}, "acceleration at 3"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        tasks.make("quad_any", **settings)

"""Gates that a camera sees: a detector tells where they are, as well as pictures say that, late, and no more."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy import PolicyFile
from policies.algorithms import algorithm_class
from policies.evaluate import evaluate
from policies.models.export import export
from sim.engines.sight.lens import Lens
from sim.env import conditions_of, make_env
from sim.rollout import rollout
from sim.tasks import make
from sim.tasks.abilities import Differentiable, judged
from sim.tasks.gates.detection import AHEAD, EVERY, LATE, SEEN, USUAL, Errors, GateDetector
from sim.tasks.gates.vision_world import GateRaceVision
from tests.sim.tasks.test_gate_race import FEW, drifted

SIDE = 1.5
LENS = Lens(480, 640, 120.0, -30.0)


def opened(num: int = 8, seed: int = 0, **settings: Any) -> GateRaceVision:
    env = make_env(make("quad_gate_race_vision", **{**FEW, **settings}), num, seed)
    env.reset(range(num), range(num))
    return env


def gate(x: float, y: float = 0.0, z: float = 0.0, yaw: float = 0.0) -> np.ndarray:
    """Corners (4, 3) of an upright opening in the body's axes."""
    half = SIDE / 2.0 * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    left = np.array([-np.sin(yaw), np.cos(yaw), 0.0])
    return np.array([x, y, z]) + half[:, :1] * left + half[:, 1:] * np.array([0.0, 0.0, 1.0])


def told(gates: list[np.ndarray], noise: float = 0.0, pictures: int = 1, errors: Errors | None = None) -> np.ndarray:
    """What is told of each gate: whether it is seen, its corners (pictures, gates, 13)."""
    detector = GateDetector(len(gates), LENS, errors or Errors(), noise)
    corners = np.repeat(np.stack(gates)[:, None], AHEAD, axis=1)
    size = np.full((len(gates), AHEAD, 2), SIDE)
    detector.begin(np.arange(len(gates)), np.arange(7, 7 + len(gates), dtype=np.uint64), corners, size)
    found = []
    for _ in range(pictures):
        for _ in range(EVERY):
            detector.step(corners, size)
        now = detector.told
        found.append(np.concatenate([now["gates_seen"][:, :1], now[SEEN[0]]], axis=1))
    return np.array(found)


def test_corners_are_told_in_their_directions_as_far_as_the_opening_looks():
    gates = [gate(4.0), gate(8.0, 3.0, 2.0), gate(6.0, -2.0, 1.0, 0.8), gate(12.0, yaw=-0.5)]
    (found,) = told(gates)
    assert found[:, 0].all()
    for corners, now in zip(gates, found[:, 1:].reshape(-1, 4, 3), strict=True):
        ways = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (corners, now))
        np.testing.assert_allclose(*ways, atol=1e-5)
        assert np.linalg.norm(now, axis=1) == pytest.approx(np.linalg.norm(corners.mean(axis=0)), rel=0.08)


@pytest.mark.parametrize(
    "unseen",
    [gate(-5.0), gate(0.05), gate(5.0, 9.0), gate(5.0, 0.0, -3.0), gate(50.0), gate(8.0, yaw=1.5), gate(5.0, 8.0)],
    ids=["behind", "in it", "aside", "below", "far", "edge on", "partly in the picture"],
)
def test_what_is_not_in_the_picture_or_too_small_is_not_told(unseen: np.ndarray):
    (found,) = told([unseen, gate(5.0)])
    assert not found[0].any() and found[1, 0] == 1.0


def test_a_camera_that_looks_up_sees_what_is_above():
    assert told([gate(5.0, 0.0, 7.0)])[0, 0, 0] == 1.0 and told([gate(5.0, 0.0, -1.6)])[0, 0, 0] == 0.0


def test_errors_are_as_large_as_they_say():
    errors = Errors(mount=0.0)
    found = told([gate(6.0, 1.0, 1.0)] * 64, 1.0, 60, errors)
    seen = found[..., 0] > 0.0
    assert seen.mean() == pytest.approx(1.0 - errors.missed, abs=0.015)
    place = found[seen][:, 1:].reshape(-1, 4, 3) @ GateDetector(1, LENS, errors, 1.0).axes
    image = place[..., 1:] / place[..., :1]
    pixel = 2.0 * np.tan(np.radians(60.0)) / 640.0
    assert image.std(axis=0).mean() == pytest.approx(errors.corner * pixel, rel=0.05)
    turned = told([gate(6.0, 1.0, 1.0)] * 512, 1.0, 1, Errors(corner=0.0, missed=0.0, mount=0.01))[0, :, 1:]
    middle = turned.reshape(-1, 4, 3).mean(axis=1)
    across = np.cross(middle / np.linalg.norm(middle, axis=1, keepdims=True), gate(6.0, 1.0, 1.0).mean(axis=0))
    assert np.linalg.norm(across, axis=1).std() > 0.0
    assert (across**2).sum(axis=1).mean() / 38.0 == pytest.approx(2.0 * 0.01**2, rel=0.2)  # 38 m^2: how far away


def test_pictures_are_told_of_when_they_are_late():
    env = opened(64, vary=False, start="reference", plan_steps=0, tracks=1)
    hover = {"motor_command": np.full((64, 4), env.task.robot.hover_command, np.float32)}
    fresh, heard = [], []
    for _ in range(12):
        env.step(hover)
        fresh.append(env.detector._told[0].copy())
        heard.append(np.concatenate([env.observe()["gates_seen"][..., None], _views(env)], axis=-1))
    for k in range(USUAL, 12):
        np.testing.assert_array_equal(heard[k], fresh[k - USUAL])
    changed = [not np.array_equal(a, b) for a, b in itertools.pairwise(fresh)]
    assert changed == [k % EVERY == 0 for k in range(11)]  # fresh[1] is the second one
    late = opened(256).detector.late
    assert set(late) == set(range(LATE[0], LATE[1] + 1))


def _views(env: GateRaceVision) -> np.ndarray:
    return np.stack([env.observe()[name] for name in SEEN], axis=1)


def test_it_is_told_what_it_sees_and_no_map():
    task = make("quad_gate_race_vision", **FEW)
    sensed = {s.name for s in task.policy}
    assert {*SEEN, "gates_seen", "angular_velocity", "projected_gravity"} <= sensed
    assert not sensed & {"position", "next_gate", "gate_after", "gate_place", "rotation", "reference"}
    assert not isinstance(task, Differentiable)
    env = opened(64, vary=False)
    for _ in range(USUAL + EVERY):
        env.step({"motor_command": np.full((64, 4), env.task.robot.hover_command, np.float32)})
    now = env.observe()
    assert now["gates_seen"][:, 0].all()  # at rest before it
    middles = (now[name].reshape(64, 4, 3).mean(axis=1) for name in (SEEN[0], "next_gate"))
    np.testing.assert_allclose(*middles, atol=0.25)


def test_seeds_and_numbers_decide_episodes():
    first, again, other = (drifted(opened(seed=seed, start="anywhere"), 12) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(first[-1][SEEN[0]], other[-1][SEEN[0]])
    few = opened(2, seed=1, start="anywhere")  # other rows, another batch
    few.reset([1, 0], [5, 3])
    for a, b in zip(first, drifted(few, 12), strict=True):
        for name in (*SEEN, "gates_seen"):
            np.testing.assert_array_equal(a[name][[5, 3]], b[name][[1, 0]], err_msg=name)


def test_who_begins_changes_nothing_for_others():
    one, other = opened(), opened()
    for env in (one, other):
        drifted(env, 9)
    other.reset([2], [40])
    for name in (*SEEN, "gates_seen"):
        rest = np.arange(8) != 2
        np.testing.assert_array_equal(one.observe()[name][rest], other.observe()[name][rest])


def test_it_continues_from_what_was_saved():
    env, other = (opened(start="anywhere") for _ in range(2))
    drifted(env, 11)
    other.load_state_dict(env.state_dict())
    for a, b in zip(drifted(env, 11), drifted(other, 11), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_the_detector_is_the_same_in_a_mirror():
    task = make("quad_gate_race_vision", **FEW)
    (mirror,) = task.mirrors
    gates = [gate(4.0, 0.5, 0.3, 0.2), gate(8.0, -3.0, 2.0, 0.4)]
    flip, order = np.array([1.0, -1.0, 1.0]), [1, 0, 3, 2]
    here, there = (told(some)[0] for some in (gates, [(one * flip)[order] for one in gates]))
    places, signs = mirror.of(SEEN[0], 12)
    np.testing.assert_allclose(here[:, 1:][:, places] * np.array(signs), there[:, 1:], atol=1e-5)
    assert {s.name for s in (*task.policy, *task.privileged) if s.size > 1} <= {*mirror.changes}


def test_the_expert_keeps_gates_in_view():
    task = make("quad_gate_race_vision", reference=True, plan_steps=6, tracks=2, pace=0.8, vary=False)
    env = make_env(task, 4, 0)
    episodes = rollout(task, env, lambda seen, *_: task.expert(seen), range(4), truth=True)
    flights = [one.flight() for one in episodes]
    assert np.mean([task.score(flight)["success"][0] for flight in flights]) == 1.0
    assert np.mean(np.concatenate([flight["gates_seen"][:, 0] for flight in flights])) > 0.5


def test_conditions_keep_the_camera():
    found = conditions_of(make("quad_gate_race_vision", view=100.0, tilt=-10.0, start="reference", **FEW))
    assert list(found) == ["nominal", "as in training", "figure_eight", "split_s"]
    assert all(type(t).__name__ == "QuadGateRaceVision" and t.lens.view == 100.0 for t in found.values())
    assert judged(make("quad_gate_race_vision", start="reference", **FEW)).config.start == "line"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"view": 0.0}, "a camera sees 1 to 170 degrees, got 0"),
        ({"tilt": 95.0}, "a camera is tilted by -89 to 89 degrees, got 95"),
        ({"laps": 0}, "needs steps 1 to 100000, tracks 1 to 1000 and laps 1 to 100"),
        ({"pace": 1.5}, "pace must be within 0.2..1, got 1.5"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        make("quad_gate_race_vision", **settings)


def test_a_student_is_trained_exported_and_evaluated(tmp_path: Path):
    """It remembers, and learns from the expert who is told everything."""
    settings = {"steps": 40, "plan_steps": 0, "tracks": 1}
    task = make("quad_gate_race_vision", start="reference", retry=False, **settings)
    ppo = algorithm_class("ppo")
    config = ppo.Config(
        total_steps=4096, num_envs=16, rollout_steps=16, network="gru", hidden=[16, 16], imitation=1.0, alone=1.0
    )
    algorithm = ppo(task, config, 0)
    errors = [metrics["imitation_error"] for metrics in algorithm.learn()]
    assert errors[-1] < errors[0]
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": "ppo"})
    policy = PolicyFile.load(tmp_path / "policy.onnx")
    assert policy.state and {s.name for s in policy.inputs} == {s.name for s in task.policy}
    report = evaluate(policy, task=make("quad_gate_race_vision", **settings), episodes=2)
    assert report.episodes == 2 and report.engine == "flight"

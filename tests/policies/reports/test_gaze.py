"""What a camera that turns looked at: shares, motion, a picture; the film and the live view of a match."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.teleop import screen as view
from policies import evaluate
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.reports.gaze import Gaze
from policies.runner import plots
from sim.spec import numbers, size
from sim.tasks import make

TASK = make("soccer_vision_1v1", perception="detector", steps=60, view=90.0)


def flight(look, bearing, over=None):
    """A recorded flight (steps, n): the camera's angle, the ball's, and the step with which each episode ends."""
    lost = np.zeros((*look.shape, 1), bool)
    for k, step in enumerate(over or []):
        lost[step, k] = True
    ball = np.stack([np.cos(bearing), np.sin(bearing)], axis=-1)
    return {"pan": look[..., None], "ball_position": ball, "success": np.zeros_like(lost), "terminated": lost}


def test_what_is_in_view_and_how_the_camera_moved():
    look = np.array([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.3, 9.0]])
    bearing = np.array([[0.0, 3.0], [1.0, 3.0], [0.9, 0.0], [0.9, 0.0]])
    found = Gaze.of(TASK, flight(look, bearing, over=[3, 2]))  # 90 degrees across: 0.785 rad to either side
    np.testing.assert_array_equal(found.shown[:, 0], [True, False, True, True])
    np.testing.assert_array_equal(found.counted, [[True, True], [True, True], [True, True], [True, False]])
    told = found.json()
    assert told["in_view"] == pytest.approx(4 / 7) and told["in_view_looking_ahead"] == pytest.approx(2 / 7)
    assert told["head_motion"] == pytest.approx(3 * 0.1 * TASK.rate_hz / 5)  # not the 9 rad after the end
    times, share = found.over_time(found.shown, 2)
    np.testing.assert_allclose(times, [0.05, 0.15])
    np.testing.assert_allclose(share, [1 / 4, 1.0])


@given(sizes=st.lists(st.tuples(st.integers(2, 9), st.integers(1, 3)), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_joined_episodes_count_as_they_did(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [Gaze.of(TASK, flight(rng.uniform(-1, 1, s), rng.uniform(-3, 3, s), [s[0] - 1] * s[1])) for s in sizes]
    whole = Gaze.joined(parts)
    assert whole.counted.sum() == sum(part.counted.sum() for part in parts)
    assert (whole.shown & whole.counted).sum() == sum((part.shown & part.counted).sum() for part in parts)
    speeds = np.concatenate([part.speed[np.isfinite(part.speed)] for part in parts])
    np.testing.assert_allclose(np.sort(whole.speed[np.isfinite(whole.speed)]), np.sort(speeds))


def test_the_picture_has_the_training_where_that_tells_it(tmp_path):
    rng = np.random.default_rng(0)
    found = Gaze.of(TASK, flight(rng.uniform(-1, 1, (60, 4)), rng.uniform(-3, 3, (60, 4)), [59, 30, 10, 5]))
    rows = [{"env_steps": 100 * k, "success": 0.1, "ball_in_view": 0.1 * k} for k in range(4)]
    for name, learning in (("without.png", []), ("with.png", rows)):
        plots.gaze(found, str(tmp_path / name), learning)
        assert (tmp_path / name).stat().st_size > 10_000
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    rng = np.random.default_rng(0)
    weight = rng.normal(0.0, 0.3, (size(TASK.commands), size(numbers(TASK.policy))))
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    return export(FeaturePolicy.from_task(TASK, Mlp([(weight, np.zeros(len(weight)))])), path).path


def test_a_match_is_evaluated_filmed_and_looked_at_live(policy, tmp_path, capsys):
    out, recording = tmp_path / "out.json", tmp_path / "match.rrd"
    written = [f"gaze={tmp_path / 'gaze.png'}", f"json={out}", f"video={tmp_path / 'match.mp4'}", f"view={recording}"]
    evaluate.main([f"policy={policy}", "episodes=3", *written])
    said = capsys.readouterr()
    assert "ball_in_view" in said.out and f"rerun {recording}" in said.err
    assert set(json.loads(out.read_text())["gaze"]) == {"in_view", "in_view_looking_ahead", "head_motion", "moving"}
    assert (tmp_path / "gaze.png").stat().st_size > 10_000 and (tmp_path / "match.mp4").stat().st_size > 5_000
    from rerun.chunk import RrdReader

    entities = {chunk.entity_path for chunk in RrdReader(recording).stream()}
    assert {"/scene", "/status"} <= entities


def test_a_decided_episode_stays_as_it_ended_in_the_film(policy):
    from deploy.policy_file import PolicyFile

    made = evaluate.evaluate(
        PolicyFile.load(policy), task=make("soccer_vision_1v1", perception="detector"), episodes=4, filmed=8
    )
    film = np.stack(made.pictures)
    assert film.shape[1:] == (4, 400, 400, 3)
    over = (made.flight["terminated"] + made.flight["success"])[..., 0] > 0.0
    ended = np.flatnonzero(over.any(axis=0))
    assert len(ended)
    for k in ended:
        at = int(np.argmax(over[:, k])) + 1
        assert (film[at:, k] == film[at, k]).all() and (film[at - 1, k] != film[at, k]).any()


def test_who_turns_no_camera_says_so(tmp_path):
    task = make("soccer_1v1")
    weight = np.zeros((size(task.commands), size(task.policy)))
    file = export(FeaturePolicy.from_task(task, Mlp([(weight, np.zeros(3))])), tmp_path / "policy.onnx").path
    with pytest.raises(ValueError, match=r"gaze=a.png: soccer_1v1 turns no camera"):
        evaluate.main([f"policy={file}", "gaze=a.png"])
    with pytest.raises(ValueError, match="view 'radio' is not one of auto, terminal, web, window, none, and no file"):
        evaluate.main([f"policy={file}", "episodes=1", "view=radio"])


def test_a_live_view_keeps_the_time():
    shown = []

    class Screen:
        def show(self, draw, line):
            shown.append(line)

        def close(self): ...

    import time

    step = view.paced(Screen(), 100.0)
    began = time.monotonic()
    for number in range(10):
        step(lambda side: np.zeros((side, side, 3), np.uint8), f"{number}", number)
    assert shown == [*map(str, range(10))] and time.monotonic() - began >= 0.1

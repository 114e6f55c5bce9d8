"""Errors of a detector: found again in the answers of one whose errors are known."""

from dataclasses import asdict

import numpy as np
import pytest

from policies.learning.detection.errors import compared, fitted, tables, text
from policies.learning.detection.pictures import Frames
from sim.tasks.soccer.detection import Detector, Errors, shown

VIEW, RADIUS = np.radians(90.0), 0.09
NOBODY = np.zeros(3, bool)
COUNTS = [1, 2]


def answered(errors: Errors, games: int = 150, steps: int = 120, seed: int = 0) -> tuple[Frames, np.ndarray]:
    """Three things anywhere ahead, at each step elsewhere; the camera turns as fast as it likes."""
    rng = np.random.default_rng(seed)
    detector = Detector(games, COUNTS, VIEW, RADIUS, errors, 0)
    pan, parts, told = np.zeros(games, np.float32), [], []
    for step in range(steps):
        angle = rng.uniform(-1.2, 1.2, (games, 1)) + np.array([0.0, 0.7, -0.7])
        away = rng.uniform(0.3, 4.0, (games, 3))
        places = (away[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)).astype(np.float32)
        turning = rng.uniform(-8.0, 8.0, games).astype(np.float32)
        if step == 0:
            turning[:] = 0.0
            detector.begin(np.arange(games), rng.integers(2**62, size=games), places, NOBODY, pan)
        else:
            detector.step(places, NOBODY, pan, turning)
        told.append(detector.told)
        is_so = shown(places, NOBODY, pan, VIEW, RADIUS)
        parts.append(Frames(np.zeros((games, 0)), *is_so, turning, np.arange(games)))
    return Frames.joined(parts), np.concatenate(told)


@pytest.mark.parametrize(
    "errors",
    [
        Errors(),
        Errors(0.01, 0.0, 0.1, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0),
        Errors(0.03, 0.004, 0.02, 0.06, 0.01, 0.1, 0.05, 0.04, 0.1),
    ],
)
def test_errors_that_are_known_are_found_again(errors: Errors):
    found = asdict(fitted(compared(*answered(errors), COUNTS)))
    assert found["bearing"] == pytest.approx(errors.bearing, rel=0.1, abs=0.002)
    assert found["turning"] == pytest.approx(errors.turning, rel=0.1, abs=0.0005)
    assert found["near"] == pytest.approx(errors.near, rel=0.15, abs=0.01)
    assert found["far"] == pytest.approx(errors.far, rel=0.15, abs=0.005)
    assert found["missed"] == pytest.approx(errors.missed, rel=0.2, abs=0.01)
    assert found["faint"] == pytest.approx(errors.faint, rel=0.1, abs=0.005)
    assert found["imagined"] == pytest.approx(errors.imagined, rel=0.25, abs=0.003)
    assert found["aside"] == pytest.approx(errors.aside, rel=0.25, abs=0.004)
    assert found["scale"] == pytest.approx(errors.scale, rel=0.25, abs=0.015)


def test_without_errors_there_are_none():
    none = Errors(*(0.0,) * 9)
    frames, told = answered(none, games=20)
    answers = compared(frames, told, COUNTS)
    assert answers.told.all() and answers.imagined == 0
    assert np.abs(answers.bearing).max() < 1e-5 and np.abs(answers.share).max() < 1e-5


def test_tables_say_what_is_missed_and_how_wrong():
    answers = compared(*answered(Errors(0.02, 0.01, 0.04, 0.04, 0.03, 0.06, 0.01, 0.02, 0.05)), COUNTS)
    found = tables(answers, ["ball", "one", "other"])
    missed = [row["missed"] for row in found["distance"]]
    bearings = [row["bearing"] for row in found["turning"]]
    assert missed == sorted(missed) and bearings == sorted(bearings) and len(missed) > 3
    assert {"ball", "one", "other"} <= found.keys() and "turning 3 to 6 rad/s" in text(found)


def test_too_few_answers_are_refused():
    frames, told = answered(Errors(), games=2, steps=3)
    with pytest.raises(ValueError, match="errors need 100 things told in 4 games"):
        fitted(compared(frames, told, COUNTS))

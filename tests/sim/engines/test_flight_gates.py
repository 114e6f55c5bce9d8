"""Compiled questions about gates: the same answers as the formulas that say what they are."""

import numpy as np

from sim.engines.flight.gates import clearances, follow, touching
from sim.scenes.gates import BAR, frame_distance, random_gates

TRACKS = [random_gates((5, k)) for k in range(3)]
MOST = max(len(track.yaw) for track in TRACKS)


def laid_out() -> tuple[np.ndarray, ...]:
    """How many gates, centres, axes and openings of the tracks, as `sim.tasks.gates.world` has them."""
    count = np.array([len(track.yaw) for track in TRACKS])
    centre, size = np.full((3, MOST, 3), 1e6, np.float32), np.ones((3, MOST, 2), np.float32)
    axes = np.tile(np.eye(3, dtype=np.float32), (3, MOST, 1, 1))
    for k, track in enumerate(TRACKS):
        centre[k, : count[k]], axes[k, : count[k]], size[k, : count[k]] = track.centre, track.axes, track.size
    return count, centre, axes, size


def places(n: int) -> np.ndarray:
    """(n, 3): most of them near gates of the first track."""
    rng = np.random.default_rng(1)
    near = TRACKS[0].centre[rng.integers(len(TRACKS[0].yaw), size=n)] + rng.normal(size=(n, 3))
    return near.astype(np.float32)


def test_frames_and_the_ground_are_as_far_away_as_the_distance_says():
    position, track = places(300), np.repeat(np.arange(3), 100)
    count, centre, axes, size = laid_out()
    found = np.empty(300, np.float32)
    clearances(position, track, count, centre, axes, size, BAR, found)
    seen = np.einsum("ngj,ngji->ngi", position[:, None] - centre[track], axes[track])
    known = np.minimum(frame_distance(seen, size[track]).min(axis=1), position[:, 2])
    np.testing.assert_allclose(found, known, atol=1e-5)
    assert (found == position[:, 2]).any() and (found < 0.5).sum() > 30


def test_who_is_no_number_is_nowhere():
    found = np.empty(1, np.float32)
    clearances(np.full((1, 3), np.nan, np.float32), np.array([0]), *laid_out(), BAR, found)
    assert not found[0] > 0.0


def test_paths_pay_for_being_near_frames():
    paths, track = places(200).astype(np.float64).reshape(4, 50, 3), TRACKS[0]
    found = np.empty(4)
    touching(paths, track.centre, track.axes, track.size, BAR, 0.3, found)
    seen = np.einsum("nmgj,gji->nmgi", paths[:, :, None] - track.centre, track.axes)
    known = (np.maximum(0.3 - frame_distance(seen, track.size), 0.0) ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(found, known, atol=1e-9)
    assert (found > 0.1).all()


def test_the_nearest_sample_is_looked_for_ahead_and_on_the_own_track():
    way = np.zeros((60, 12), np.float32)
    way[:20, 0], way[20:, 0] = np.arange(20), np.arange(40)
    way[20:, 1] = 100.0
    first, last, track = np.array([0, 20]), np.array([19, 39]), np.array([0, 1, 1, 0])
    nearest = np.array([3, 3, 10, 15])
    rows = np.array([3, 0, 2])
    position = np.array([[50.0, 0.0, 0.0], [4.4, 0.0, 0.0], [2.0, 100.0, 0.0]], np.float32)
    follow(position, rows, track, first, last, way, 10, nearest)
    assert nearest.tolist() == [4, 3, 10, 19]  # the last one of its track; ahead; another row; and never back
    follow(position[:1], rows[1:2], track, first, last, way, 10, nearest)
    assert nearest[0] == 13  # less than the window ahead

"""Tracks: random ones have room, files hold what they say, and what is no track is refused by name."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.scenes.track import APART, LENGTHS, TIGHTEST, WIDTH, oval, random_track, read_track, track_of


def written(path: Path, points: np.ndarray, right: float = 0.8, left: float = 0.8, header: str = "") -> Path:
    rows = [f"{x},{y},{right},{left}" for x, y in points]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def circle(radius: float = 5.0, count: int = 60) -> np.ndarray:
    angle = np.arange(count) / count * 2.0 * math.pi
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_tracks_have_room(seed: int):
    track = random_track(seed)
    assert LENGTHS[0] - 0.5 <= track.length <= LENGTHS[1] + 0.5
    steps = np.linalg.norm(np.roll(track.centre, -1, axis=0) - track.centre, axis=1)
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.02)
    turned = np.arctan2(*track.heading.T[::-1])
    bends = np.abs(np.angle(np.exp(1j * (np.roll(turned, -1) - turned)))) / steps
    assert bends.max() < 1.15 / TIGHTEST
    near = np.linalg.norm(track.wall(1.0)[:, None] - track.wall(-1.0), axis=-1)  # of walls of all parts
    assert near.min() > WIDTH - 0.05
    assert APART > 0.0
    again = track_of("again", track.centre, track.left, track.right)  # which looks for crossings
    assert again.length == pytest.approx(track.length, rel=1e-3)


def test_seeds_decide_tracks_and_directions():
    same, other = random_track((3, 1)), random_track((3, 2))
    np.testing.assert_array_equal(random_track((3, 1)).centre, same.centre)
    assert len(same.centre) != len(other.centre) or not np.allclose(same.centre, other.centre)

    def area(points: np.ndarray) -> float:
        x, y = points.T
        return 0.5 * float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())

    assert {np.sign(area(random_track((0, k)).centre)) for k in range(12)} == {-1.0, 1.0}


def test_an_oval_is_as_long_as_it_is():
    track = oval(straight=6.0, radius=2.0, width=1.0)
    assert track.length == pytest.approx(12.0 + 4.0 * math.pi, rel=1e-3)
    np.testing.assert_allclose(np.abs(track.wall(1.0)[:, 1]).max(), 1.5, atol=0.01)  # driven to the left: inside
    np.testing.assert_allclose(np.abs(track.wall(-1.0)[:, 1]).max(), 2.5, atol=0.01)


def test_a_file_is_read(tmp_path: Path):
    path = written(tmp_path / "ring.csv", circle(), right=1.0, left=0.5, header="# x_m,y_m,w_tr_right_m,w_tr_left_m")
    track = read_track(path)
    assert track.length == pytest.approx(10.0 * math.pi, rel=5e-3)
    np.testing.assert_allclose(np.linalg.norm(track.wall(1.0), axis=1), 4.5, atol=0.02)
    np.testing.assert_allclose(np.linalg.norm(track.wall(-1.0), axis=1), 6.0, atol=0.02)
    plain = written(tmp_path / "names.csv", circle(), header="x_m, y_m, w_tr_right_m, w_tr_left_m")
    assert read_track(plain).length == pytest.approx(track.length)
    twice = np.concatenate([circle(), circle()[:1]])  # the first point is said again
    assert read_track(written(tmp_path / "twice.csv", twice)).length == pytest.approx(track.length, rel=1e-3)


def eight() -> np.ndarray:
    angle = np.arange(120) / 120 * 2.0 * math.pi
    return np.stack([6.0 * np.sin(angle), 4.0 * np.sin(2.0 * angle)], axis=1)


def nan() -> np.ndarray:
    points = circle()
    points[7, 1] = np.nan
    return points


@pytest.mark.parametrize(
    ("points", "wide", "said"),
    [
        (eight(), 0.5, r"crosses itself near x [-\d.]+ m, y [-\d.]+ m"),
        (circle()[:40], 0.5, r"is not closed: its last point is \d+.\d\d m from the first"),
        (circle(count=5), 0.5, "at least 8 points, got 5"),
        (nan(), 0.5, "not a finite number"),
        (circle(), 0.0, "must be positive"),
        (circle(radius=1.0), 1.5, "walls cross near x"),
        (circle(radius=400.0), 0.5, "is 251[0-9] m long, more than 2000: a 1:10 car's are 50 m, scale it"),
        (circle(radius=1e300), 0.5, "holds a point further than 1e[+]06 m away"),
        (circle(), 1e5, "a wall is 1e[+]05 m from the centreline, at most 20"),
        (np.repeat(circle(), 2, axis=0), 0.5, "two points that follow one another are the same"),
    ],
)
def test_what_is_no_track_is_refused_by_name(tmp_path: Path, points: np.ndarray, wide: float, said: str):
    path = written(tmp_path / "track.csv", points, wide, wide)
    with pytest.raises(ValueError, match=said) as refused:
        read_track(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,3\n", "line 1: needs 4 numbers"),
        ("# comment\n0,0,1,1\n1,zero,1,1\n", "line 3: '1,zero,1,1' holds something else than numbers"),
        ("", "at least 8 points, got 0"),
    ],
)
def test_lines_that_say_something_else_are_named(tmp_path: Path, text: str, said: str):
    path = tmp_path / "track.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        read_track(path)
    assert str(path) in str(refused.value)
    with pytest.raises(ValueError, match="cannot be read as a track"):
        read_track(tmp_path / "absent.csv")
    (tmp_path / "huge.csv").write_bytes(b"0" * (1 << 22) + b"1")
    with pytest.raises(ValueError, match="huge.csv: has more than 4194304 bytes"):
        read_track(tmp_path / "huge.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary.csv: cannot be read as a track"):
        read_track(tmp_path / "binary.csv")


def test_the_longest_track_takes_little_memory():
    """20 000 points, each of whose pieces could cross each other."""
    import tracemalloc

    tracemalloc.start()
    made = track_of("long", circle(radius=300.0, count=400), np.full(400, 0.5), np.full(400, 0.5))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.length == pytest.approx(2.0 * np.pi * 300.0, rel=1e-3) and most < 100e6

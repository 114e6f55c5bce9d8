"""Tracks of gates: what passes and what hits, random ones that can be flown, and files that are refused by name."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.scenes.gates import (
    APART,
    BAR,
    BYTES,
    COLUMNS,
    COUNT,
    FIXED,
    HEIGHTS,
    MOST,
    TURN,
    GateTrack,
    crossing,
    frame_distance,
    random_gates,
    read_gates,
    track_of,
    write_gates,
)

SIZE = np.array([1.5, 1.2])
near = st.floats(-3.0, 3.0, width=32)
points = st.tuples(near, near, near)
GOOD = [[0.0, 0.0, 1.5, 0.0, 0.0, 1.5, 1.5], [6.0, 0.0, 2.0, 30.0, 0.0, 1.5, 1.5]]


def bars(size: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The four boxes around an opening: middles and half sizes (3,)."""
    half, bar = 0.5 * size, 0.5 * BAR
    tall, wide = np.array([bar, bar, half[1] + BAR]), np.array([bar, half[0] + BAR, bar])
    sides = [(np.array([0.0, sign * (half[0] + bar), 0.0]), tall) for sign in (1.0, -1.0)]
    return sides + [(np.array([0.0, 0.0, sign * (half[1] + bar)]), wide) for sign in (1.0, -1.0)]


@settings(max_examples=200, deadline=None)
@given(place=points)
def test_the_frame_is_its_four_bars(place: tuple[float, float, float]):
    """The distance that is computed at once is the least of those to the bars, boxes that overlap in the corners."""
    at = np.array(place)
    each = [np.linalg.norm(np.maximum(np.abs(at - middle) - half, 0.0)) for middle, half in bars(SIZE)]
    assert frame_distance(at, SIZE) == pytest.approx(min(each), abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(before=points, after=points, radius=st.floats(0.05, 0.3))
def test_who_passes_a_gate_is_inside_of_it_in_its_plane(
    before: tuple[float, ...], after: tuple[float, ...], radius: float
):
    a, b = np.array(before), np.array(after)
    passed = bool(crossing(a, b, SIZE, radius))
    assert not crossing(b, a, SIZE, radius) or not passed  # the other way round it is none
    if not a[0] < 0.0 <= b[0]:
        assert not passed
        return
    assume(b[0] - a[0] > 1e-6)
    at = a + (b - a) * (-a[0] / (b[0] - a[0]))
    room = 0.5 * SIZE - radius - np.abs(at[1:])
    assume(np.abs(room).min() > 1e-6)
    assert passed == bool((room > 0.0).all())
    if passed:  # a sphere that small touches no bar there
        assert frame_distance(at, SIZE) >= radius - 1e-6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_tracks_can_be_flown(seed: int):
    track = random_gates(seed)
    way = np.roll(track.centre, -1, axis=0) - track.centre
    length = np.linalg.norm(way, axis=1)
    assert COUNT[0] <= len(track.yaw) <= COUNT[1]
    assert APART[0] <= length.min() and length.max() <= APART[1]
    assert HEIGHTS[0] <= track.centre[:, 2].min() and track.centre[:, 2].max() <= HEIGHTS[1]
    ahead = track.axes[:, :, 0]
    turned = np.degrees(np.arccos(np.clip((way * ahead).sum(axis=1) / length, -1.0, 1.0)))
    met = np.degrees(np.arccos(np.clip((way * np.roll(ahead, -1, axis=0)).sum(axis=1) / length, -1.0, 1.0)))
    assert max(turned.max(), met.max()) < TURN + 1e-6
    np.testing.assert_array_equal(track.centre, random_gates(seed).centre)
    angles = np.degrees(np.stack([track.yaw, track.pitch], axis=1))
    track_of("again", np.concatenate([track.centre, angles, track.size], axis=1).tolist())  # which checks all


def test_seeds_decide_tracks_and_directions():
    def area(track: GateTrack) -> float:
        x, y = track.centre[:, :2].T
        return float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())

    tracks = [random_gates((0, k)) for k in range(12)]
    assert {np.sign(area(track)) for track in tracks} == {-1.0, 1.0}
    assert len({track.centre[0, 0] for track in tracks}) == 12


def test_axes_and_corners_are_those_of_a_gate():
    track = track_of("two", [[1.0, 2.0, 3.0, 90.0, 0.0, 2.0, 1.0], [1.0, 9.0, 3.0, 0.0, 90.0, 1.0, 1.0]])
    np.testing.assert_allclose(track.axes[0], [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(track.axes[1][:, 0], [0.0, 0.0, 1.0], atol=1e-12)  # flown straight up
    upper_left, upper_right, lower_right, lower_left = track.corners[0]
    np.testing.assert_allclose(upper_left, [0.0, 2.0, 3.5], atol=1e-12)  # flown along y, left is -x
    np.testing.assert_allclose(lower_right, [2.0, 2.0, 2.5], atol=1e-12)
    np.testing.assert_allclose(upper_right - upper_left, lower_right - lower_left, atol=1e-12)
    assert track.length == pytest.approx(14.0)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_tracks_are_whole(name: str, tmp_path: Path):
    track = FIXED[name]()
    write_gates(track, tmp_path / "track.csv")
    again = read_gates(tmp_path / "track.csv")
    np.testing.assert_allclose(again.centre, track.centre, atol=1e-4)
    np.testing.assert_allclose(np.cos(again.yaw - track.yaw), 1.0, atol=1e-6)
    assert 40.0 < track.length < 60.0


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "two.csv"
    rows = [",".join(str(value) for value in row) for row in GOOD]
    path.write_text("\n".join(["# ours", ", ".join(COLUMNS), *rows, ""]))
    track = read_gates(path)
    assert track.name == str(path) and len(track.yaw) == 2
    assert track.yaw[1] == pytest.approx(math.radians(30.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs 2 to 64 gates, got 0"),
        ("\n".join(["0,0,2,0,0,1.5,1.5"] * (MOST + 1)), "needs 2 to 64 gates, got 65"),
        ("0,0,2,0,0,1.5\n", r"line 1: needs 7 numbers \(x_m, y_m"),
        ("0,0,2,0,0,1.5,1.5\n5,0,two,0,0,1.5,1.5", "line 2: '5,0,two,0,0,1.5,1.5' holds something else than numbers"),
        ("0,0,2,0,0,1.5,1.5\n5,0,nan,0,0,1.5,1.5", "holds what is not a finite number"),
        ("0,0,2,0,0,1.5,1.5\n5,0,1e9,0,0,1.5,1.5", "gates lie within 1000 m of the origin"),
        ("0,0,2,0,0,1.5,1.5\n5,0,2,400,0,1.5,1.5", "yaw is -360 to 360 degrees"),
        ("0,0,2,0,0,1.5,1.5\n5,0,2,0,0,0.1,1.5", "openings are 0.3 to 10 m wide and high"),
        ("0,0,2,0,0,1.5,1.5\n5,0,0.5,0,0,1.5,1.5", "the opening of gate 2 reaches below the ground"),
        ("0,0,2,0,0,1.5,1.5\n0,0.8,2,0,0,1.5,1.5", "gate 2 stands in the frame of gate 1"),
        ("0,0,2,0,0,1.5,1.5\n0,0.1,2,0,0,1.5,1.5", "gate 1 is less than 0.5 m from the next"),
        ("#" * (BYTES + 1), f"has at most {BYTES} bytes"),
    ],
)
def test_what_is_no_track_is_refused_by_name(tmp_path: Path, text: str, said: str):
    path = tmp_path / "theirs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"theirs\.csv.*{said}"):
        read_gates(path)


def test_what_is_no_file_is_refused_by_name(tmp_path: Path):
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe")
    for name in ("absent.csv", "picture.csv", ""):
        with pytest.raises(ValueError, match="cannot be read as a track of gates"):
            read_gates(tmp_path / name)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="0123456789.,-+einfa#x_ \n", max_size=120))
def test_any_text_is_a_track_or_a_clear_error(text: str, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_text(text)
    try:
        assert len(read_gates(path).yaw) >= 2
    except ValueError as error:
        assert str(error).startswith(str(path))

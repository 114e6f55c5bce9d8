"""Tracks out of occupancy maps: ours come back out of pictures of them, and what is no map is refused by name."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sim.engines.car.grids import CELL, grid_of
from sim.env import make_env
from sim.registry import StrangerError, names_from
from sim.scenes.corridor import read_map, track_in
from sim.scenes.occupancy import Occupancy, read_occupancy
from sim.scenes.track import Track, area, random_track
from sim.tasks import make

FREE, UNKNOWN, WALL = 254, 205, 0  # as map_server writes them


def turned(yaw: float) -> np.ndarray:
    """Rows of it are the axes of a map that is turned by yaw."""
    return np.array([[math.cos(yaw), math.sin(yaw)], [-math.sin(yaw), math.cos(yaw)]])


def drawn(track: Track, resolution: float, yaw: float = 0.0) -> tuple[np.ndarray, list[float]]:
    """What is free on a picture of a track, and the origin of that."""
    walls = [track.wall(side) @ turned(yaw).T for side in (1.0, -1.0)]
    low = np.min([wall.min(axis=0) for wall in walls], axis=0) - 1.0
    columns, rows = np.ceil((np.max([wall.max(axis=0) for wall in walls], axis=0) + 1.0 - low) / resolution).astype(int)
    x, y = low[0] + (np.arange(columns) + 0.5) * resolution, low[1] + (rows - np.arange(rows) - 0.5) * resolution
    free = np.zeros((rows, columns), bool)
    for wall in walls:
        for (x0, y0), (x1, y1) in zip(wall, np.roll(wall, -1, axis=0), strict=True):
            across = np.flatnonzero((y >= min(y0, y1)) & (y < max(y0, y1)))
            free[across] ^= x > (x0 + (y[across] - y0) / (y1 - y0 or 1.0) * (x1 - x0))[:, None]
    return free, [*map(float, low @ turned(yaw)), yaw]


def written(folder: Path, shades: np.ndarray, image: str = "map.pgm", **settings: Any) -> Path:
    Image.fromarray(shades.astype(np.uint8)).save(folder / image)
    said = {"image": image, "resolution": 0.05, "origin": [0.0, 0.0, 0.0], "negate": 0, **settings}
    (folder / "map.yaml").write_text(yaml.safe_dump(said))
    return folder / "map.yaml"


def ring(outer: float = 5.0, inner: float = 3.0, resolution: float = 0.05) -> np.ndarray:
    """What is free between two circles (m)."""
    at = (np.arange(round(2.0 * (outer + 0.5) / resolution)) + 0.5) * resolution - outer - 0.5
    away = np.hypot(at[:, None], at)
    return (away < outer) & (away > inner)


def shaded(free: np.ndarray) -> np.ndarray:
    return np.where(free, FREE, WALL)


def off(points: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Distances (n,) m of points to a closed line."""
    a, way = line, np.roll(line, -1, axis=0) - line
    along = np.clip(((points[:, None] - a) * way).sum(axis=-1) / (way**2).sum(axis=1), 0.0, 1.0)
    return np.linalg.norm(points[:, None] - a - along[..., None] * way, axis=-1).min(axis=1)


@pytest.mark.parametrize(
    ("seed", "resolution", "yaw"), [(0, 0.05, 0.0), (1, 0.05, 0.7), (2, 0.025, -2.5), (3, 0.1, 0.0)]
)
def test_a_track_comes_back_out_of_its_map(tmp_path: Path, seed: int, resolution: float, yaw: float):
    track = random_track(seed)
    free, origin = drawn(track, resolution, yaw)
    made = read_map(written(tmp_path, shaded(free), resolution=resolution, origin=origin))
    assert made.length == pytest.approx(track.length, rel=0.01)
    assert off(made.centre, track.centre).max() < 0.02 + 0.3 * resolution
    np.testing.assert_allclose(made.left + made.right, 1.6, atol=0.02 + 0.5 * resolution)
    assert area(made.centre) > 0.0  # to the left
    sides = (1.0, -1.0) if area(track.centre) > 0.0 else (-1.0, 1.0)
    for side, other in zip((1.0, -1.0), sides, strict=True):
        assert off(made.wall(side), track.wall(other)).max() < 0.02 + resolution
        assert off(track.wall(other), made.wall(side)).max() < 0.02 + resolution


@pytest.mark.parametrize("image", ["map.pgm", "map.png"])
def test_pure_pursuit_laps_a_map(tmp_path: Path, image: str):
    free, origin = drawn(random_track(4), 0.05, 0.3)
    shades = np.where(free, FREE, UNKNOWN)
    shades[~free & (np.random.default_rng(0).random(free.shape) < 0.1)] = WALL
    path = written(tmp_path, shades, image, origin=origin)
    task = make("car_race", track=str(path), vary=False)
    env = make_env(task, 8, 0)
    env.reset(range(8), range(8))
    done = np.zeros(8, bool)
    for _ in range(500):
        done |= env.step(task.expert(env.observe())).success
    assert done.all()
    assert env.render(0, 90, 120).shape == (90, 120, 3)
    with names_from("policy.onnx"), pytest.raises(StrangerError):
        task.pool(0)  # a policy file opens no map


def test_walls_are_the_maps_own(tmp_path: Path):
    """A bay that no distance beside a centreline could say; specks of noise are none."""
    free = ring()
    rows, columns = free.shape
    free[rows // 2 - 10 : rows // 2 + 10, 6:20] = True  # 1 m wide, 0.2 m deep
    free[rows // 2, columns - 30] = False
    track = read_map(written(tmp_path, shaded(free), origin=[-5.5, -5.5, 0.0]))
    assert track.length == pytest.approx(8.0 * math.pi, rel=0.01)
    assert track.wall(-1.0)[:, 0].min() == pytest.approx(-5.2, abs=0.06)
    away = np.linalg.norm(track.wall(1.0), axis=1)
    np.testing.assert_allclose(away, 3.0, atol=0.05)
    assert np.ptp(track.left + track.right) < 0.4


def test_lines_that_part_white_from_white_are_walls(tmp_path: Path):
    """As maps that are drawn: free is also what is inside and outside."""
    outer, inner = np.pad(ring(5.06, 4.94), 10), np.pad(ring(3.06, 2.94), 50)
    size = len(outer)
    inner = inner[(len(inner) - size) // 2 :][:size, (len(inner) - size) // 2 :][:, :size]
    track = read_map(written(tmp_path, shaded(~outer & ~inner)))
    assert track.length == pytest.approx(8.0 * math.pi, rel=0.01)
    np.testing.assert_allclose(track.left + track.right, 1.88, atol=0.06)


def crossed() -> np.ndarray:
    free, middle = ring(), len(ring()) // 2
    free[20:-20, middle - 8 : middle + 8] = True
    return free


def opened() -> np.ndarray:
    free = ring()
    free[: len(free) // 2, len(free) // 2 - 3 : len(free) // 2 + 3] = False
    return free


def blocked() -> np.ndarray:
    free = ring()
    free[len(free) // 2 - 10 : len(free) // 2 + 10, -45:-35] = False
    return free


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (opened(), "has no closed corridor"),
        (np.zeros((50, 50), bool), "has no closed corridor"),
        (np.ones((50, 50), bool), "has no closed corridor"),
        (ring()[:, 20:], "has no closed corridor"),  # the picture ends before its wall
        (crossed(), r"forks around something near x [-\d.]+ m, y [-\d.]+ m"),
        (blocked(), r"forks around something near x 9.\d\d m, y 5.\d\d m"),
        (ring(3.1, 3.0, 0.02), r"narrower than 0.2 m near x"),
        (ring(16.0, 1.0, 0.1), r"wider than 12.0 m near x"),
        (np.random.default_rng(0).random((1000, 1000)) < 0.5, "is noise, no map"),
    ],
)
def test_what_is_no_corridor_is_refused_by_name(tmp_path: Path, free: np.ndarray, said: str):
    resolution = {360: 0.02, 330: 0.1}.get(len(free), 0.05)
    path = written(tmp_path, shaded(free), resolution=resolution)
    with pytest.raises(ValueError, match=said) as refused:
        read_map(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("there is no image 'absent.pgm'", {"image": "absent.pgm"}),
        ("must be in the same folder", {"image": "../map.pgm"}),
        ("must be in the same folder", {"image": "/etc/hostname"}),
        ("must be in the same folder", {"image": "link.pgm"}),
        ("no whole PNG or PGM", {"image": "map.yaml"}),
        ("no whole PNG or PGM", {"image": "cut.png"}),
        ("no whole PNG or PGM", {"image": "map.jpg"}),
        ("has 6000 x 6000 pixels; at most", {"image": "bomb.pgm"}),
        ("must have 8 bits per channel", {"image": "deep.png"}),
        ("image is no file's name", {"image": ["map.pgm"]}),
        ("there is no image", {"image": "\0"}),
        ("there is no image", {"image": "a" * 5000}),
        ("resolution must be between 0.01 and 0.5, got 50", {"resolution": 50.0}),
        ("resolution must be between", {"resolution": 0}),
        ("resolution must be between", {"resolution": math.nan}),
        ("resolution must be between", {"resolution": 10**400}),
        ("resolution is no number", {"resolution": True}),
        ("resolution is no number", {"resolution": "fine"}),
        ("origin must be three numbers", {"origin": [0.0, 0.0]}),
        ("origin's yaw must be between", {"origin": [0.0, 0.0, 90.0]}),
        ("origin's x must be between", {"origin": [math.inf, 0.0, 0.0]}),
        ("free_thresh must be between 0 and 1", {"free_thresh": 19.6}),
        ("occupied_thresh must not be below", {"occupied_thresh": 0.1}),
        ("negate must be 0 or 1", {"negate": 2}),
        ("mode must be one of trinary, scale, raw", {"mode": "binary"}),
    ],
)
def test_what_is_no_map_is_refused_by_name(tmp_path: Path, said: str, settings: dict[str, Any]):
    folder = tmp_path / "map"
    folder.mkdir()
    Image.fromarray(shaded(ring()).astype(np.uint8)).save(tmp_path / "map.pgm")
    (folder / "link.pgm").symlink_to(tmp_path / "map.pgm")
    path = written(folder, shaded(ring()))
    (folder / "bomb.pgm").write_bytes(b"P5 6000 6000 255\n")
    picture = Image.open(folder / "map.pgm")
    for name in ("map.jpg", "cut.png"):
        picture.save(folder / name)
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:300])
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(folder / "deep.png")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))
    with pytest.raises(ValueError, match=said) as refused:
        read_map(path)
    assert str(refused.value).startswith(f"{path}: ") and len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: [", "is not YAML"),
        ("image: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("[" * 7000, "is not YAML"),
        ("date: 2026-99-99", "is not YAML"),
        ("- 1", "holds keys and values"),
        (f"image: m\nresolution: 0x{'f' * 7000}\norigin: []", r"between 0.01 and 0.5, got 1e\+99"),
        ("image: map.pgm", "has no resolution, origin"),
        ("#" * 9000, "has at most 8000 bytes"),
        ("a: &a [1, 1]\nimage: &b [*a, *a]\nresolution: *b\norigin: *b", "resolution is no number"),
    ],
)
def test_yaml_that_is_no_maps_is_refused_by_name(tmp_path: Path, text: str, said: str):
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        read_map(path)
    assert str(refused.value).startswith(f"{path}: ")
    with pytest.raises(ValueError, match="cannot be read as a map"):
        read_map(tmp_path / "absent.yaml")


def test_shades_mean_what_map_server_says(tmp_path: Path):
    """Free is below the threshold; what is unknown, grey or transparent is not."""
    shades = np.array([[254, 205, 100, 0]])

    def free(*picture: Any, **settings: Any) -> list[bool]:
        return read_occupancy(written(tmp_path, *picture, **settings)).free[0].tolist()

    assert free(shades) == [True, False, False, False]
    assert free(shades, free_thresh=0.25) == [True, True, False, False]
    assert free(shades, negate=1) == [False, False, False, True]
    assert free(shades, mode="raw") == [False, False, False, True]
    assert free(np.array([[19, 20, 100, 255]]), mode="raw") == [True, False, False, False]
    assert free(shades, mode="scale", resolution="5e-2") == [True, False, False, False]
    clear = np.dstack([*[shades] * 3, [[255, 255, 255, 0]]])
    assert free(clear, "map.png") == [True, False, False, False]
    assert free(np.dstack([*[np.full((1, 2), 254)] * 3, [[255, 0]]]), "map.png") == [True, False]


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200),
    st.integers(0, 10_000),
    st.sampled_from(["map.pgm", "map.png", "map.yaml"]),
)
def test_files_with_other_bytes_are_tracks_or_refused(tmp_path_factory, noise: bytes, at: int, which: str):
    folder = tmp_path_factory.mktemp("map")
    path = written(folder, shaded(ring(1.5, 0.8)), "map.png" if which == "map.png" else "map.pgm")
    raw = (folder / which).read_bytes()
    at %= len(raw)
    (folder / which).write_bytes(raw[:at] + noise + raw[at + len(noise) :])
    try:
        track = read_map(path)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
    else:
        assert np.isfinite(track.centre).all() and min(track.left.min(), track.right.min()) > 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.3, 0.9), st.integers(1, 4))
def test_any_blots_are_a_track_or_refused(seed: int, share: float, coarse: int):
    """Whatever is free, there is one line without a gap between the walls, or an error with the map's name."""
    blots = np.random.default_rng(seed).random((40 // coarse, 40 // coarse)) < share
    free = np.pad(np.kron(blots, np.ones((4 * coarse, 4 * coarse), bool)), 2)
    free[60:100, 60:100] = False
    try:
        track = track_in(Occupancy("blots", free, 0.05, (0.0, 0.0, 0.0)))
    except ValueError as error:
        assert str(error).startswith("blots: ")
        return
    steps = np.linalg.norm(np.roll(track.centre, -1, axis=0) - track.centre, axis=1)
    np.testing.assert_allclose(steps, track.spacing, rtol=0.05)
    grid, corner = grid_of(track)
    column, row = np.round((track.centre - corner) / CELL).astype(int).T
    assert (grid[row, column] > 0).all()

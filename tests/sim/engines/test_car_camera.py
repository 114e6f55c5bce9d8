"""The cameras of cars: walls, floor and lines are where an independent ray cast says, in the colours of the looks."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.engines.car import Cars
from sim.engines.car.camera import EDGE, FLOOR, GROUND, HALF_LINE, LINE, LINES, PATCHES, SKY, WALL, WALLS, Eyes
from sim.engines.sight.lens import Lens
from sim.engines.sight.picture import FAR, GAIN_R, NOISE, PANORAMA, SHUTTER, TILT, YAWED
from sim.robots.cars import CAR_1_10, CAR_1_18
from sim.scenes.track import HEIGHT, Track, oval, random_track

LENSES = (Lens(48, 64, 100.0, 8.0), Lens(64, 64, 120.0, 10.0, "fisheye"))


def scene(track: Track, places: list[int], lens: Lens, turned: float = 0.2, aside: float = 0.2) -> Eyes:
    """A car near each of these points of the centreline, turned off its direction."""
    cars, where = Cars(CAR_1_10, len(places), 0.05, [track]), np.arange(len(places))
    (hx, hy), cos, sin = track.heading[places].T, math.cos(turned), math.sin(turned)
    position = track.centre[places] + aside * np.stack([-hy, hx], axis=1)
    cars.write(where, {"position": position, "heading": np.stack([hx * cos - hy * sin, hy * cos + hx * sin], axis=1)})
    return Eyes(cars, lens)


def cast(eyes: Eyes, car: int, track: Track) -> tuple[np.ndarray, np.ndarray]:
    """Depth (m) and segment of each pixel's middle, in double precision from the segments of the walls themselves."""
    tilt, rays = float(eyes.looks[car, TILT]), eyes.lens.optics().rays.astype(np.float64)
    ahead, left, up = rays[..., 0].ravel(), rays[..., 1].ravel(), rays[..., 2].ravel()
    ahead, up = ahead * math.cos(tilt) + up * math.sin(tilt), up * math.cos(tilt) - ahead * math.sin(tilt)
    (cos, sin), at = (eyes.cars.read(name)[car].astype(np.float64) for name in ("heading", "position"))
    eye = at + CAR_1_10.eye[0] * np.array([cos, sin])
    way = np.stack([ahead * cos - left * sin, ahead * sin + left * cos], axis=1)  # (pixels, 2)
    starts = np.concatenate([track.wall(1.0), track.wall(-1.0)])
    along = np.concatenate([np.roll(track.wall(side), -1, axis=0) - track.wall(side) for side in (1.0, -1.0)])
    off = starts - eye
    with np.errstate(divide="ignore", invalid="ignore"):
        turned = way[:, :1] * along[:, 1] - way[:, 1:] * along[:, 0]
        far = (off[:, 0] * along[:, 1] - off[:, 1] * along[:, 0]) / turned
        share = (off[:, 0] * way[:, 1:] - off[:, 1] * way[:, :1]) / turned
    wall = np.where((far > 0.0) & (share >= 0.0) & (share <= 1.0), far, np.inf).min(axis=1)
    with np.errstate(divide="ignore"):
        ground = np.where(up < 0.0, -CAR_1_10.eye[1] / up, np.inf)
    on = eye + np.where(np.isfinite(ground), ground, 0.0)[:, None] * way
    share = np.clip(((on[:, None] - starts) * along).sum(-1) / (along**2).sum(-1), 0.0, 1.0)
    edge = np.linalg.norm(on[:, None] - starts - share[..., None] * along, axis=-1).min(axis=1)
    floor = np.where(np.abs(edge - EDGE) < HALF_LINE, LINE, GROUND)
    high = CAR_1_10.eye[1] + wall * up < HEIGHT
    what = np.where(ground < wall, floor, np.where(high, WALL, SKY))
    depth = np.where(ground < wall, ground, np.where(high, wall, FAR))
    shape = rays.shape[:2]
    return depth.reshape(shape), what.reshape(shape)


@pytest.mark.parametrize("lens", LENSES, ids=["pinhole", "fisheye"])
@pytest.mark.parametrize("track", [oval(), random_track((0, 1))], ids=["oval", "random"])
def test_pictures_agree_with_an_independent_ray_cast(track: Track, lens: Lens):
    places = [0, len(track.centre) // 3, len(track.centre) // 2]
    eyes = scene(track, places, lens)
    found = eyes.see(extra=True)[1]
    for car in range(len(places)):
        depth, what = cast(eyes, car, track)
        floor = np.isin(what, (GROUND, LINE))
        same = np.isin(found[car, 1], (GROUND, LINE)) == floor
        assert (
            same.mean() > 0.985 and ((found[car, 1] == SKY) == (what == SKY)).mean() > 0.985
        )  # edges fall within pixels
        both = same & floor
        np.testing.assert_allclose(found[car, 0][both], depth[both], rtol=1e-3)
        both = (what == WALL) & (found[car, 1] == WALL)
        off = np.abs(found[car, 0][both] / depth[both] - 1.0)
        assert np.median(off) < 0.005 and np.quantile(off, 0.97) < 0.05
        near = floor & same & (depth < 1.2)  # further away lines are narrower than pixels
        lines = (what == LINE) & near
        assert lines.sum() > 5 and (found[car, 1][lines] == LINE).mean() > 0.6
        assert (found[car, 1][near & ~lines] == LINE).mean() < 0.1


def test_surfaces_have_the_colours_of_the_looks():
    eyes = scene(oval(), [0], LENSES[1])
    eyes.looks[:, FLOOR : FLOOR + 3], eyes.looks[:, WALLS : WALLS + 3] = (0.2, 0.4, 0.6), (0.7, 0.1, 0.3)
    eyes.looks[:, LINES : LINES + 3], eyes.looks[:, PATCHES] = (1.0, 1.0, 0.0), 0.0
    pictures, extra = eyes.see(extra=True)
    seen, what = pictures[0] / 255.0, extra[0, 1]
    np.testing.assert_allclose(np.median(seen[what == GROUND], axis=0), (0.2, 0.4, 0.6), atol=0.005)
    np.testing.assert_allclose(np.median(seen[what == WALL], axis=0), (0.7, 0.1, 0.3), atol=0.005)
    assert (seen[what == LINE][:, 0] > 0.5).all() and (seen[what == LINE][:, 2] < 0.4).all()
    eyes.looks[:, PATCHES] = 0.2
    patchy = eyes.see()[0][0] / 255.0
    assert np.ptp(patchy[what == GROUND][:, 1]) > 0.1 and np.ptp(patchy[what == WALL][:, 0]) > 0.1
    assert np.array_equal(patchy[:16], seen[:16]) and (what[:16] == SKY).all()
    eyes.looks[:, PANORAMA] = 1
    assert not np.array_equal(eyes.see()[0][0][what == SKY], pictures[0][what == SKY])


def test_light_noise_and_blur():
    eyes = scene(oval(), [0], LENSES[1])
    plain = eyes.see()[0].astype(float)
    eyes.looks[:, GAIN_R] = 0.8
    np.testing.assert_allclose(eyes.see()[0][..., 0], 0.8 * plain[..., 0], atol=1.5)
    eyes.looks[:, GAIN_R], eyes.looks[:, NOISE] = 1.0, 0.02
    middle = (plain > 30.0) & (plain < 220.0)
    off = (eyes.see()[0] - plain)[middle]
    assert off.std() == pytest.approx(0.02 * 255.0, rel=0.05) and abs(off.mean()) < 0.3
    eyes.looks[:, NOISE], eyes.looks[:, SHUTTER] = 0.0, 0.05
    steep = np.abs(np.diff(plain, axis=2)).sum()
    assert np.array_equal(eyes.see()[0], plain)  # it does not turn
    assert np.abs(np.diff(eyes.see(turning=np.array([4.0]))[0].astype(float), axis=2)).sum() < 0.8 * steep


def test_who_looks_aside_sees_what_who_turned_does():
    track = oval()
    turned = scene(track, [0], LENSES[0], turned=0.3)
    aside = scene(track, [0], LENSES[0], turned=0.0)
    aside.looks[:, YAWED] = 0.3
    # The eye is ahead of the middle, about which a car turns.
    where = turned.cars.read("position") + CAR_1_10.eye[0] * (turned.cars.read("heading") - aside.cars.read("heading"))
    aside.cars.write(np.arange(1), {"position": where})
    assert (np.abs(turned.see()[0].astype(int) - aside.see()[0]) <= 2).mean() > 0.99


def test_batches_and_threads_change_no_picture():
    track = random_track((0, 2))
    places = list(range(0, 200, 10))
    eyes = scene(track, places, LENSES[1])
    eyes.looks[:, NOISE] = 0.02
    seeds = eyes.seeds.copy()
    together = eyes.see()[0]
    eyes.seeds[:] = seeds
    alone = np.concatenate([eyes.see(np.array([k]))[0] for k in reversed(range(len(places)))])[::-1]
    np.testing.assert_array_equal(together, alone)


def test_a_camera_above_the_walls_is_refused():
    tall = replace(CAR_1_18, eye=(0.0, 0.5))
    with pytest.raises(ValueError, match=r"the camera of car_1_18 is 0.5 m above the ground, walls 0.33 m high"):
        Eyes(Cars(tall, 1, 0.05, [oval()]))


@pytest.mark.parametrize(
    "state", [{"position": [[np.nan, 0.0]]}, {"heading": [[np.nan, np.inf]]}, {"position": [[1e9, 0.0]]}]
)
def test_places_that_are_none_give_some_picture(state: dict[str, Any]):
    eyes = scene(oval(), [0], LENSES[1])
    eyes.cars.write(np.arange(1), state)
    assert eyes.see()[0].shape == (1, 64, 64, 3)

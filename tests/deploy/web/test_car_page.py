"""The page that drives a car: its module in node against the engine, with and without a policy."""

import math

import numpy as np
import pytest

from deploy import cli, export
from deploy.web import cars
from deploy.web import page as pages
from policies.models.export import random_signals
from sim.engines.car import Cars
from sim.engines.car.lidar import angles
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.scenes.track import random_track, track_of
from sim.tasks import race
from tests.deploy.sample_policy import exported, small
from tests.deploy.web.laps import STATES, laps, linear_driver, state_of, told_track
from tests.deploy.web.node import needs_node, ran

F = np.float32
BEAMS = 32


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A policy file that drives, some laps into a wall, and its page."""
    folder = tmp_path_factory.mktemp("car")
    policy = exported(folder / "p.onnx", linear_driver(4.5, 0.6))
    (folder / "index.html").write_bytes(pages.page(policy, policy.content()))
    return policy, folder / "index.html"


@needs_node
def test_laps_end_as_in_the_engine(driver):
    """Driven to their end or into a wall, after as many control steps; that it rounds may cost one at the line."""
    policy, page = driver
    told, success, steps = laps(policy, 40)
    got = ran("car.mjs", page, told={"laps": told})
    assert 10 < success.sum() < 40
    assert [lap["done"] for lap in got] == success.tolist()
    off = np.abs([lap["steps"] for lap in got] - steps)
    assert off.max() <= 2
    assert (off == 0).mean() > 0.8


def driven(name: str, latency: float, rng: np.random.Generator) -> tuple[dict, list, list]:
    """A car of the engine under random commands on a random track: what node is told, states, lidars."""
    car, track, h = cars.OFFERED[name], random_track((7, int(rng.integers(1000)))), 0.05
    engine, steps = Cars(car, 1, h, [track]), 100
    changed = {"mass": car.mass * 1.2, "friction": car.friction * 0.8, "trim": 0.01, "motor_lag": 0.08}
    at = int(rng.integers(len(track.centre)))
    start = {"position": track.centre[at], "heading": track.heading[at], "velocity": [3.0, 0.2], "turning": [0.5]}
    engine.reset(np.array([0]), {k: np.asarray(v, F)[None] for k, v in start.items()})
    engine.write(np.array([0]), {k: np.array([[v]], F) for k, v in changed.items()})
    begun = state_of(engine)[0]
    knots = rng.uniform((-0.5, -2.0), (0.5, 7.0), (11, 2))  # beyond what it can steer; commands between them
    commands = np.stack([np.interp(np.arange(steps) / 10.0, np.arange(11), knots[:, k]) for k in (0, 1)], 1).astype(F)
    part = F(latency / h)
    queue = np.concatenate([np.zeros((1, 2), F), commands])
    states, lidars = [], []
    out = to_lanes(np.zeros((1, BEAMS), F))
    for k in range(steps):
        engine.step(((1 - part) * queue[k + 1] + part * queue[k])[None])
        engine.scan(angles(BEAMS, cars.VIEW), car.lidar, 10.0, np.array([0]), 0, out)
        states.append(state_of(engine)[0])
        lidars.append(from_lanes(out, 1)[0])
    told = {"car": 0, "parameters": changed, "latency": latency, "track": told_track(track), "start": begun.tolist()}
    return {**told, "commands": commands.tolist()}, states, lidars


@needs_node
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_cars_walls_and_lidar_are_the_engines(driver, latency):
    """Every car, changed in what can be, under random commands for 5 s, most of them into walls."""
    policy, page = driver
    rng, told, want, seen = np.random.default_rng(3), [], [], []
    names = cars.offered(policy)
    for index, name in enumerate(names * 4):
        flight, states, lidars = driven(name, latency, rng)
        told.append({**flight, "car": index % len(names)})
        want.append(states)
        seen.append(lidars)
    got = ran("car.mjs", page, told={"drives": told})
    states = np.array([[step["state"] for step in drive] for drive in got])
    ranges = np.array([[step["signals"][:BEAMS] for step in drive] for drive in got])
    assert states.shape == np.shape(want) == (len(names) * 4, 100, len(STATES) + 3)
    felt = np.array([[step["signals"][BEAMS:] for step in drive] for drive in got])
    grip = np.array([[[flight["parameters"]["friction"]]] for flight in told])
    slip = np.clip(states[..., 8:9] / (9.81 * grip), -1.0, 1.0) / 10.0
    np.testing.assert_allclose(felt[..., :1], states[..., 4:5] * (1.0 + slip), atol=1e-5)
    np.testing.assert_array_equal(felt[..., 1:], states[..., 6:8])
    assert (np.array(want)[:, :, 9] > 0.0).any(axis=1).sum() > 6  # met walls
    off = np.linalg.norm(states[..., :2] - np.array(want)[..., :2], axis=2)
    # Contacts magnify what float32 rounds: a car that meets a wall a substep later leaves it elsewhere.
    assert np.median(off[:, -1]) < 1e-3
    assert off[:, 20].max() < 2e-3
    away = np.abs(ranges - np.array(seen)).max(axis=2)
    assert np.median(away) < 1e-3
    assert (away[off < 1e-3] < 0.05).mean() > 0.98  # a beam that grazes a wall's tip may end behind it


@needs_node
def test_the_page_commands_what_onnxruntime_commands(driver):
    policy, page = driver
    signals = random_signals(policy.inputs, 60, np.random.default_rng(5))
    steps = [{name: value[k].tolist() for name, value in signals.items()} for k in range(60)]
    got = np.array(ran("car.mjs", page, told={"signals": steps}))
    policy.reset(1)
    for k in range(60):
        want = policy.step({name: value[k] for name, value in signals.items()})
        for i, signal in enumerate(policy.outputs):
            assert abs(want[signal.name][0] - got[k, i]) <= policy.vectors.tolerance * (signal.high - signal.low)


@needs_node
def test_random_tracks_have_room(driver):
    """Made in JavaScript, judged by what reads files of tracks, and as long as those of training."""
    _, page = driver
    for points in ran("car.mjs", page, told={"tracks": list(range(12))})[1:]:
        line = np.array(points)
        wide = np.full(len(line), 0.8)
        track = track_of("of the page", line, wide, wide)
        assert 39.0 < track.length < 51.0
        step = np.linalg.norm(np.roll(line, -1, axis=0) - line, axis=1)
        assert step.max() / step.min() < 1.05


@needs_node
def test_drawn_lines_become_tracks_or_say_why_not(driver):
    _, page = driver
    angle = np.linspace(0.0, 2.0 * np.pi, 80, endpoint=False)
    shaky = np.random.default_rng(0).normal(0.0, 0.05, (80, 2))
    circle = np.stack([6.0 * np.cos(angle), 4.0 * np.sin(angle)], 1) + shaky
    eight = np.stack([6.0 * np.sin(angle), 4.0 * np.sin(2.0 * angle)], 1)
    got = ran(
        "car.mjs", page, told={"drawn": [circle.tolist(), eight.tolist(), circle[:5].tolist(), (9 * circle).tolist()]}
    )
    wide = np.full(len(got[0]), 0.8)
    assert track_of("drawn", np.array(got[0]), wide, wide).length == pytest.approx(31.0, abs=3.0)
    assert got[1].startswith("There is no room: ")
    assert got[2:] == ["That is too short for a track.", "That is more than 90 m long."]


def test_what_a_page_says_of_a_car_is_what_the_task_has():
    assert (race.BEAMS, race.RANGE, race.VIEW) == (BEAMS, 10.0, cars.VIEW)
    assert set(cars.CARS) == set(race.ROBOTS)
    np.testing.assert_allclose(angles(BEAMS, cars.VIEW)[[0, -1]], [-2.282, 2.282], atol=1e-3)
    assert math.isclose(1.0 / race.RATE / cars.SUBSTEP, 2.0)


def test_what_is_no_cars_is_refused(tmp_path, capsys):
    controller = small()
    controller.robot = "car_1_10"
    path = exported(tmp_path / "p.onnx", controller).path
    assert cli.call(export.main, [f"policy={path}", "target=page", f"out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    for reason in ("a page drives cars: ", "signal 'near'", "command 'left'", "'steering'"):
        assert reason in said
    assert not (tmp_path / "out").exists()

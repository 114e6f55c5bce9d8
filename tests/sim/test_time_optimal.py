"""The time-optimal trajectory: within its bounds, through all gates, and as fast as where that is known."""

import math

import numpy as np
import pytest

from sim.experts.time_optimal import Trajectory, fastest, spline, start_of, time_optimal
from sim.robots import robot
from sim.robots.quadrotors import GRAVITY
from sim.scenes.gates import GateTrack, crossing, figure_eight, frame_distance, random_gates, track_of

RACER, RADIUS, MARGIN, SHARE = robot("racer"), 0.19, 0.2, 0.8


@pytest.fixture(scope="module", params=["random", "figure_eight"])
def flown(request: pytest.FixtureRequest) -> tuple[GateTrack, Trajectory]:
    track = figure_eight() if request.param == "figure_eight" else random_gates((0, 2))
    start = start_of(track, 0, 3.0)
    return track, time_optimal(track, RACER, RADIUS, start, share=SHARE, margin=MARGIN)


def test_its_thrust_and_speed_are_bounded(flown: tuple[GateTrack, Trajectory]):
    _, path = flown
    force = np.linalg.norm(path.acceleration[:-1] + np.array([0.0, 0.0, GRAVITY]), axis=1)
    most = SHARE * RACER.thrust_to_weight * GRAVITY
    assert force.max() < 1.001 * most
    assert np.median(force) > 0.99 * most  # who is fast uses what it has
    assert np.linalg.norm(path.velocity, axis=1).max() <= 50.0
    assert not path.velocity[0].any() and path.position[0, 2] > 0.0


def test_it_passes_all_gates_and_touches_nothing(flown: tuple[GateTrack, Trajectory]):
    track, path = flown
    for gate, at in enumerate(path.gates):
        seen = (path.position - track.centre[gate]) @ track.axes[gate]
        assert abs(seen[at, 0]) < 1e-9  # in its plane
        assert crossing(seen[at - 1], seen[min(at + 1, len(seen) - 1)], track.size[gate], RADIUS) or at == len(seen) - 1
        assert (np.abs(seen[at, 1:]) <= 0.5 * track.size[gate] - RADIUS - MARGIN + 1e-9).all()
        assert path.velocity[at] @ track.axes[gate, :, 0] > 0.0
        assert frame_distance(seen, track.size[gate]).min() > RADIUS
    assert path.position[:, 2].min() > RADIUS


def test_positions_are_what_velocities_and_accelerations_add_up_to(flown: tuple[GateTrack, Trajectory]):
    _, path = flown
    step = np.diff(path.time)[:, None]
    assert step.min() > 0.0
    np.testing.assert_allclose(
        np.diff(path.position, axis=0), step * 0.5 * (path.velocity[1:] + path.velocity[:-1]), atol=0.02
    )
    change = path.velocity[1:] - path.velocity[:-1] - step * path.acceleration[:-1]
    assert np.abs(change).max() < 1.0 and np.abs(change).mean() < 0.15  # m/s: accelerations hold over a step
    when = np.array([-1.0, 0.5 * path.time[-1], path.time[-1] + 1.0])
    position, velocity, _ = path.at(when)
    np.testing.assert_allclose(position[[0, 2]], path.position[[0, -1]])
    assert np.linalg.norm(velocity[1]) > 3.0


def test_through_one_straight_line_it_is_the_known_time():
    """From rest, d metres with the acceleration that is left of the thrust when it carries the weight."""
    distance = 12.0
    track = track_of("straight", [[distance, 0, 2, 0, 0, 1.5, 1.5], [2.0 * distance, 0, 2, 0, 0, 1.5, 1.5]])
    path = time_optimal(track, RACER, RADIUS, np.array([0.0, 0.0, 2.0]))
    spare = GRAVITY * math.sqrt(RACER.thrust_to_weight**2 - 1.0)
    known = math.sqrt(2.0 * 2.0 * distance / spare)
    assert 0.93 * known < path.time[-1] < 1.001 * known  # a little less: gates need not be met at their middles


def test_a_path_that_is_given_is_followed_as_fast_as_thrust_allows():
    """A level circle: centripetal acceleration and weight together are the thrust, from some way on."""
    most, radius = 3.0 * GRAVITY, 2.0
    angle = np.linspace(0.0, 8.0 * np.pi, 2000)
    slope = radius * np.stack([-np.sin(angle), np.cos(angle), 0.0 * angle], axis=1)
    bend = -radius * np.stack([np.cos(angle), np.sin(angle), 0.0 * angle], axis=1)
    x, u = fastest(slope[None], bend[None], np.diff(angle), most, 100.0)
    known = math.sqrt(most**2 - GRAVITY**2) * radius
    assert x[0, 1200] * radius**2 == pytest.approx(known, rel=1e-3) and abs(u[0, 1200]) < 1e-2
    assert (x[0] * radius**2 <= known * 1.001).all() and x[0, 0] == 0.0
    capped, _ = fastest(slope[None], bend[None], np.diff(angle), most, 3.0)
    assert math.sqrt(capped[0].max()) * radius == pytest.approx(3.0, rel=1e-3)


def test_splines_go_through_their_knots_smoothly():
    knots = np.array([0.0, 1.0, 2.5, 3.0, 5.0])
    values = np.sin(knots)
    at = np.linspace(0.0, 5.0, 401)
    value, slope, bend = (made @ values for made in spline(knots, at))
    there, _, _ = spline(knots, knots)
    np.testing.assert_allclose(there @ values, values, atol=1e-12)
    np.testing.assert_allclose(np.gradient(value, at)[2:-2], slope[2:-2], atol=1e-3)
    assert np.abs(np.diff(bend)).max() < 0.1 and abs(bend[0]) < 1e-12  # no jumps; natural ends


def test_what_cannot_be_flown_is_refused():
    track, start = figure_eight(), np.array([0.0, 0.0, 2.0])
    with pytest.raises(ValueError, match="an opening leaves no room for racer, which is 1.60 m wide"):
        time_optimal(track, RACER, 0.8, start)
    with pytest.raises(ValueError, match=r"racer has 0.46 of its weight as thrust: it cannot fly figure_eight"):
        time_optimal(track, RACER, RADIUS, start, share=0.1)

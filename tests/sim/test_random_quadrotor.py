"""Random quadrotors: what is drawn is what is declared, physically possible, and covers the named airframes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sim.robots import ROBOTS, robot
from sim.robots.quadrotors import GRAVITY, Quadrotor
from sim.robots.random_quadrotor import RandomQuadrotor

RANDOM = [name for name in ROBOTS if isinstance(robot(name), RandomQuadrotor)]


def agility(p: dict[str, np.ndarray]) -> np.ndarray:
    """The largest roll acceleration (n,) in rad/s^2."""
    return 2.0 * p["thrust_curve"].sum(1) * np.abs(p["rotor_position"][:, 1]) / p["inertia"][:, 0]


def thrust_to_weight(p: dict[str, np.ndarray]) -> np.ndarray:
    return 4.0 * p["thrust_curve"].sum(1) / (p["mass"][:, 0] * GRAVITY)


def drawn(name: str, n: int = 20_000) -> dict[str, np.ndarray]:
    return robot(name).draw(np.random.default_rng(0), n)


@pytest.mark.parametrize("name", RANDOM)
def test_every_draw_is_a_possible_vehicle(name):
    p = drawn(name)
    nominal = robot(name).parameters()
    assert all(value.shape == (20_000, len(nominal[k])) and value.dtype == np.float32 for k, value in p.items())
    jx, jy, jz = p["inertia"].T
    assert (np.minimum(np.minimum(jx + jy - jz, jy + jz - jx), jz + jx - jy) > 0.0).all()
    u = np.linspace(0.1, 1.0, 20)[:, None, None]
    thrust = (p["thrust_curve"] * np.concatenate([u**0, u, u**2], axis=-1)).sum(-1)
    assert (np.diff(thrust, axis=0) > 0.0).all()


@pytest.mark.parametrize("name", ["any_published", "any_log_uniform"])
def test_the_published_ranges(name):
    p = drawn(name)
    root = np.sqrt(2.0) if name == "any_published" else 1.0
    for value, low, high in (
        (p["mass"], 0.02, 5.0),
        (thrust_to_weight(p), 1.5, 5.0),
        (agility(p), 40.0 * root, 1200.0 * root),
        (p["rise_time"], 0.03, 0.10),
        (p["fall_time"], 0.03, 0.30),
        (p["torque_ratio"], 0.005, 0.05),
    ):
        assert value.min() == pytest.approx(low, rel=0.02)
        assert value.max() == pytest.approx(high, rel=0.02)
    sluggish = {"any_published": (80.0 / root - 40.0) / 1160.0, "any_log_uniform": np.log(2.0) / np.log(30.0)}[name]
    assert (agility(p) < 80.0).mean() == pytest.approx(sluggish, abs=0.01)
    assert np.cbrt(p["mass"]).mean() == pytest.approx(np.cbrt([0.02, 5.0]).mean(), rel=0.01)


def test_published_arms_are_short():
    p = drawn("any_published")
    arm = p["rotor_position"][:, 0] / np.cbrt(p["mass"][:, 0])
    nominal = 0.028 / np.cbrt(0.0306)
    assert np.median(arm) == pytest.approx(nominal / 1.1, rel=0.01)
    assert np.quantile(arm, 0.975) == pytest.approx(nominal * 1.096, rel=0.02)


def test_the_wide_sampling_reaches_every_named_airframe():
    p = drawn("any", 50_000)
    for name in ROBOTS:
        airframe = robot(name)
        if isinstance(airframe, RandomQuadrotor):
            continue
        own = {k: np.atleast_2d(v) for k, v in airframe.parameters().items()}
        for measure in (agility, thrust_to_weight, lambda q: q["rise_time"][:, 0]):
            assert measure(p).min() <= measure(own)[0] <= measure(p).max(), name


def test_a_named_airframe_is_always_itself():
    airframe = robot("racer")
    assert type(airframe) is Quadrotor
    assert airframe.draw(np.random.default_rng(0), 5) == {}


def test_an_unknown_sampling_is_refused():
    with pytest.raises(ValueError, match="sampling 'gaussian' is not one of wide, extended, log_uniform, published"):
        dataclasses.replace(robot("any"), sampling="gaussian")

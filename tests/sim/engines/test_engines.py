"""The same commands give the same flight in every engine, and every engine keeps the protocol's promises."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.engines
from sim.robots import ROBOTS, robot
from tests.sim.reference_quadrotor import Reference, rotation

ENGINES = ("flight", "mujoco", "bullet")
DT = 0.01
# What engines may differ by, from the float64 reference, after 2 s from a random state.
TOLERANCE = {
    "position": 0.005,  # m
    "linear_velocity": 0.01,  # m/s
    "angle": 0.01,  # rad
    "angular_velocity": 0.1,  # rad/s
    "rotor_speed": 1e-5,  # fraction
}


class Flight(NamedTuple):
    """A start, the commands (steps, n, 4) and where the reference ends: name -> (n, k)."""

    state: dict
    commands: np.ndarray
    end: dict


def random_state(rng, n, hover=0.7, position=1.0, velocity=1.0, rate=5.0):
    quaternion = rng.normal(size=(n, 4))
    state = {
        "position": rng.uniform(-position, position, (n, 3)) + np.array([0.0, 0.0, 3.0]),
        "quaternion": quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True),
        "linear_velocity": rng.uniform(-velocity, velocity, (n, 3)),
        "angular_velocity": rng.uniform(-rate, rate, (n, 3)),
        "rotor_speed": np.clip(hover + rng.uniform(-0.05, 0.05, (n, 1)), 0.0, 1.0) * np.ones((n, 4)),
    }
    return {name: value.astype(np.float32) for name, value in state.items()}


def random_commands(rng, kind, steps, n, hover):
    """(steps, n, 4); `hover` is (n, 1). Outside [0, 1] now and then: engines clip."""
    if kind == "fall":
        commands = np.zeros((steps, n, 4))
    elif kind == "spin":
        commands = np.broadcast_to(hover, (steps, n, 4))
    elif kind == "hover":
        commands = hover + rng.uniform(-0.02, 0.02, (steps, n, 1)) + rng.uniform(-0.02, 0.02, (steps, n, 4))
    else:
        commands = rng.uniform(-0.1, 1.1, (steps, n, 1)) + rng.uniform(-0.15, 0.15, (steps, n, 4))
    return np.ascontiguousarray(commands, np.float32)


def fly_reference(base, state, commands, parameters=None, dt=DT):
    reference = Reference(base, commands.shape[1], dt, step=2e-3)
    reference.set_parameters(parameters or {})
    reference.reset(state)
    for command in commands:
        reference.step(command)
    names = ("position", "quaternion", "linear_velocity", "angular_velocity", "rotor_speed")
    return {name: getattr(reference, name) for name in names}


def fly(engine, state, commands):
    engine.reset(None, state)
    for command in commands:
        engine.step(command)


def deviation(engine, end):
    """The largest difference from the reference's end, per quantity of TOLERANCE."""
    turn = engine.read("rotation").astype(np.float64).reshape(-1, 3, 3)
    sine = np.linalg.norm(turn - rotation(end["quaternion"]), axis=(1, 2)) / np.sqrt(8.0)
    found = {"angle": 2.0 * np.arcsin(np.minimum(sine, 1.0)).max()}
    for name in ("position", "linear_velocity", "angular_velocity", "rotor_speed"):
        found[name] = np.abs(engine.read(name) - end[name]).max()
    return found


def assert_agrees(engine, end, factor=1.0):
    found = deviation(engine, end)
    beyond = {name: value for name, value in found.items() if not value <= factor * TOLERANCE[name]}
    assert not beyond, f"beyond the tolerance: {beyond}"


@functools.cache
def flights(kind, each=4):
    """One flight of 2 s for every airframe; the reference flies all airframes in one batch."""
    rng = np.random.default_rng(7)
    airframes = [robot(name) for name in ROBOTS]
    n = each * len(airframes)
    hover = np.repeat([[a.hover_command] for a in airframes], each, axis=0)
    state = random_state(rng, n, hover=hover, rate=15.0 if kind in ("fall", "spin") else 5.0)
    if kind == "fall":
        state["rotor_speed"][:] = 0.0
    commands = random_commands(rng, kind, round(2.0 / DT), n, hover)
    parameters = {
        name: np.repeat([a.parameters()[name] for a in airframes], each, axis=0) for name in airframes[0].parameters()
    }
    end = fly_reference(airframes[0], state, commands, parameters)
    found = {}
    for k, name in enumerate(ROBOTS):
        own = slice(k * each, (k + 1) * each)
        found[name] = Flight(
            {s: v[own] for s, v in state.items()}, commands[:, own], {s: v[own] for s, v in end.items()}
        )
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["fall", "spin", "hover", "random"])
@pytest.mark.parametrize("airframe", list(ROBOTS))
@pytest.mark.parametrize("name", ENGINES)
def test_same_commands_give_the_same_flight_for_2_seconds(name, airframe, kind):
    flight = flights(kind)[airframe]
    engine = sim.engines.make(name, robot(airframe), flight.commands.shape[1], DT)
    fly(engine, flight.state, flight.commands)
    assert_agrees(engine, flight.end)


# A variation of each parameter that visibly changes the flight: (lowest factor or value, highest, how).
VARIATIONS = {
    "mass": (0.6, 1.5, "scale"),
    "inertia": (0.8, 1.2, "scale"),
    "rotor_position": (0.96, 1.04, "scale"),
    "rotor_direction": (-1.0, -1.0, "scale"),
    "thrust_curve": (0.7, 1.3, "scale"),
    "thrust_scale": (0.95, 1.05, "scale"),
    "torque_ratio": (0.3, 3.0, "scale"),
    "rise_time": (0.3, 3.0, "scale"),
    "fall_time": (0.3, 3.0, "scale"),
    "rotor_lag": (0.3, 3.0, "scale"),
    "drag": (0.02, 0.08, "set"),
    "wind": (-5.0, 5.0, "set"),
    "force": (-0.1, 0.1, "set"),
    "torque": (-2e-5, 2e-5, "set"),
    "ground_effect": (10.0, 15.0, "set"),
    "propeller_radius": (1.5, 2.0, "scale"),
}


@functools.cache
def varied_flight(name, n=4):
    """A start near the ground under varied parameters, the parameters, and the ends with and without the variation."""
    rng = np.random.default_rng(11)
    base = robot("crazyflie_decks")
    nominal = {"ground_effect": np.full((n, 1), 5.0, np.float32), "drag": np.full((n, 3), 0.02, np.float32)}
    low, high, how = VARIATIONS[name]
    value = base.parameters()[name]
    drawn = rng.uniform(low, high, (n, len(value)))
    changed = {**nominal, name: (drawn * (value if how == "scale" else 1.0)).astype(np.float32)}
    state = random_state(rng, n, hover=base.hover_command)
    state["position"][:, 2] = rng.uniform(0.02, 0.1, n)
    # The rotors yaw apart and start away from their commands, so that the torque ratio and the lag matter.
    commands = random_commands(rng, "hover", 50, n, base.hover_command)
    commands[:, :, 0::2] += 0.04
    return state, nominal, changed, commands, [fly_reference(base, state, commands, p) for p in (nominal, changed)]


@pytest.mark.thinned  # the next test has each engine take all of them
@pytest.mark.parametrize("parameter", list(VARIATIONS))
@pytest.mark.parametrize("name", ENGINES)
def test_every_parameter_means_the_same_in_every_engine(name, parameter):
    state, nominal, changed, commands, (plain_end, end) = varied_flight(parameter)
    assert set(VARIATIONS) == set(robot("crazyflie").parameters())
    engine = sim.engines.make(name, robot("crazyflie_decks"), commands.shape[1], DT)
    engine.set_parameters(None, nominal)
    engine.set_parameters(None, {parameter: changed[parameter]})
    np.testing.assert_allclose(engine.read(parameter), changed[parameter], rtol=1e-6)
    fly(engine, state, commands)
    assert_agrees(engine, end)
    with pytest.raises(AssertionError):  # the variation is far larger than the tolerance
        assert_agrees(engine, plain_end, factor=3.0)


@pytest.mark.parametrize("name", ENGINES)
def test_vehicles_differ_in_everything_at_once(name):
    rng = np.random.default_rng(5)
    base, n = robot("crazyflie_decks"), 12
    parameters = {}
    for parameter, (low, high, how) in VARIATIONS.items():
        value = base.parameters()[parameter]
        scale = value if how == "scale" else 1.0
        parameters[parameter] = (rng.uniform(low, high, (n, len(value))) * scale).astype(np.float32)
    state = random_state(rng, n, hover=base.hover_command)
    commands = random_commands(rng, "hover", 50, n, base.hover_command)
    engine = sim.engines.make(name, base, n, DT)
    engine.set_parameters(None, parameters)
    fly(engine, state, commands)
    assert_agrees(engine, fly_reference(base, state, commands, parameters))


@pytest.mark.parametrize("rate_hz", [50, 125, 400])
@pytest.mark.parametrize("name", ENGINES)
def test_the_control_rate_is_free(name, rate_hz):
    rng = np.random.default_rng(rate_hz)
    base, n, steps = robot("crazyflie"), 4, rate_hz
    state = random_state(rng, n, hover=base.hover_command)
    commands = random_commands(rng, "hover", steps, n, base.hover_command)
    engine = sim.engines.make(name, base, n, 1.0 / rate_hz)
    fly(engine, state, commands)
    assert_agrees(engine, fly_reference(base, state, commands, dt=1.0 / rate_hz))


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), airframe=st.sampled_from(list(ROBOTS)), kind=st.sampled_from(["hover", "random"])
)
def test_any_start_and_any_commands(name, seed, airframe, kind):
    rng = np.random.default_rng(seed)
    base, n = robot(airframe), 2
    state = random_state(rng, n, hover=base.hover_command, position=2.0, velocity=10.0, rate=20.0)
    commands = random_commands(rng, kind, 20, n, base.hover_command)
    engine = sim.engines.make(name, base, n, DT)
    fly(engine, state, commands)
    assert_agrees(engine, fly_reference(base, state, commands))


def snapshot(engine):
    names = ("position", "quaternion", "linear_velocity", "angular_velocity", "rotor_speed", "rotation", "mass", "drag")
    return {name: engine.read(name) for name in names}


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=6, deadline=None)
@given(bits=st.lists(st.booleans(), min_size=5, max_size=5), seed=st.integers(0, 2**32 - 1))
def test_reset_and_parameters_touch_only_the_masked(name, bits, seed):
    rng = np.random.default_rng(seed)
    base, mask = robot("crazyflie"), np.array(bits)
    engine = sim.engines.make(name, base, 5, DT)
    fly(engine, random_state(rng, 5), random_commands(rng, "hover", 3, 5, base.hover_command))
    before = snapshot(engine)
    new = random_state(rng, int(mask.sum()))
    masses = rng.uniform(0.02, 0.04, (int(mask.sum()), 1)).astype(np.float32)
    engine.reset(mask, new)
    engine.set_parameters(mask, {"mass": masses})
    after = snapshot(engine)
    for quantity, value in after.items():
        np.testing.assert_array_equal(value[~mask], before[quantity][~mask])
    np.testing.assert_allclose(after["position"][mask], new["position"], atol=1e-6)
    np.testing.assert_allclose(after["rotation"][mask].reshape(-1, 3, 3), rotation(new["quaternion"]), atol=1e-5)
    np.testing.assert_allclose(after["mass"][mask], masses, rtol=1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_what_reset_leaves_out_is_at_rest(name):
    engine = sim.engines.make(name, robot("crazyflie"), 3, DT)
    rng = np.random.default_rng(0)
    fly(engine, random_state(rng, 3), random_commands(rng, "hover", 3, 3, 0.6))
    engine.reset(np.array([True, False, True]), {"position": np.ones((2, 3), np.float32)})
    for quantity, rest in [("linear_velocity", 0.0), ("angular_velocity", 0.0), ("rotor_speed", 0.0)]:
        assert (engine.read(quantity)[[0, 2]] == rest).all()
        assert (engine.read(quantity)[1] != rest).any()
    np.testing.assert_array_equal(engine.read("quaternion")[0], [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(engine.read("rotation")[2], np.eye(3).ravel())
    np.testing.assert_array_equal(engine.read("position")[2], 1.0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_vehicle_does_not_depend_on_its_batch(name):
    rng = np.random.default_rng(3)
    base, n = robot("crazyflie"), 40
    state = random_state(rng, n)
    commands = random_commands(rng, "random", 20, n, base.hover_command)
    many = sim.engines.make(name, base, n, DT)
    fly(many, state, commands)
    for i in (0, 17, 39):
        alone = sim.engines.make(name, base, 1, DT)
        fly(alone, {k: v[i : i + 1] for k, v in state.items()}, commands[:, i : i + 1])
        for quantity, value in snapshot(alone).items():
            # Bullet's bodies stand on a grid: positions are rounded differently in each place.
            np.testing.assert_allclose(
                many.read(quantity)[i], value[0], atol=1e-6 if name == "bullet" else 0.0, rtol=1e-6
            )


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_flight_twice_is_the_same_bits(name):
    rng = np.random.default_rng(4)
    base, n = robot("crazyflie"), 70
    state = random_state(rng, n)
    commands = random_commands(rng, "random", 20, n, base.hover_command)
    first, second = (sim.engines.make(name, base, n, DT) for _ in range(2))
    fly(first, state, commands)
    fly(second, random_state(rng, n), commands)  # another flight before: nothing of it may remain
    fly(second, state, commands)
    for quantity, value in snapshot(first).items():
        np.testing.assert_array_equal(second.read(quantity), value)


@pytest.mark.parametrize("name", ENGINES)
def test_read_gives_float32_copies(name):
    engine = sim.engines.make(name, robot("crazyflie"), 3, DT)
    for quantity, width in [("position", 3), ("quaternion", 4), ("rotation", 9), ("rotor_speed", 4), ("mass", 1)]:
        value = engine.read(quantity)
        assert value.shape == (3, width) and value.dtype == np.float32
        before = value.copy()
        value += 1.0
        np.testing.assert_array_equal(engine.read(quantity), before)
    with pytest.raises(KeyError, match="altitude"):
        engine.read("altitude")
    with pytest.raises(KeyError, match="weight"):
        engine.set_parameters(None, {"weight": np.ones((3, 1))})


@pytest.mark.parametrize("poison", ["command", "position", "angular_velocity", "huge"])
@pytest.mark.parametrize("name", ["mujoco", "bullet"])
def test_a_lost_vehicle_leaves_the_others_alone_and_comes_back(name, poison, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo would write MUJOCO_LOG.TXT here
    rng = np.random.default_rng(8)
    base, n = robot("crazyflie"), 4
    clean, state = sim.engines.make(name, base, n, DT), random_state(rng, n)
    commands = random_commands(rng, "hover", 10, n, base.hover_command)
    fly(clean, state, commands)
    engine = sim.engines.make(name, base, n, DT)
    bad_state = {k: v.copy() for k, v in state.items()}
    bad_commands = commands.copy()
    if poison == "command":
        bad_commands[3, 1, 2] = np.nan
    else:
        bad_state["position" if poison == "huge" else poison][1, 0] = 1e20 if poison == "huge" else np.nan
    fly(engine, bad_state, bad_commands)
    others = [0, 2, 3]
    for quantity in ("position", "rotation", "angular_velocity"):
        assert np.isnan(engine.read(quantity)[1]).all()
        np.testing.assert_array_equal(engine.read(quantity)[others], clean.read(quantity)[others])
    engine.reset(np.array([False, True, False, False]), {k: v[1:2] for k, v in state.items()})
    for command in commands:
        engine.step(command)
    np.testing.assert_allclose(engine.read("position")[1], clean.read("position")[1], atol=1e-6)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mujoco", "bullet"])
def test_bad_arguments_are_named(name):
    base = robot("crazyflie")
    for arguments, words in [((0, DT), "num=0"), ((1, 0.0), "dt=0.0"), ((1, DT, "cuda"), "cuda")]:
        with pytest.raises(ValueError, match=words):
            sim.engines.make(name, base, *arguments)
    engine = sim.engines.make(name, base, 2, DT)
    with pytest.raises(ValueError, match="command"):
        engine.step(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="mask"):
        engine.reset(np.array([0, 1]), {})
    with pytest.raises(ValueError, match="position"):
        engine.reset(None, {"position": np.zeros((3, 3))})
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="mass"):
            engine.set_parameters(None, {"mass": np.full((2, 1), bad)})
    np.testing.assert_array_equal(engine.read("mass"), np.float32(base.mass))


@pytest.mark.parametrize(("name", "extra"), [("mujoco", "train"), ("bullet", "bullet")])
def test_a_missing_library_says_how_to_install_it(name, extra, monkeypatch):
    library = {"mujoco": "mujoco", "bullet": "pybullet"}[name]
    monkeypatch.setitem(sys.modules, library, None)
    path = Path(sim.engines.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"without_{library}", path)
    with pytest.raises(ModuleNotFoundError, match=rf"{library} is not installed: pip install 'sim2metal\[{extra}\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

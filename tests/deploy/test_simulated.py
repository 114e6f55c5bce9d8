import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy.drivers.simulated import Settings, Simulated
from deploy.drivers.tasks import task_for
from deploy.loop import HandshakeError, run
from sim import simulation
from sim.conditions import Conditions, Gusts
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.engines.vector.streams import streams
from sim.imperfect import Imperfect
from sim.randomize import Bias, Delay, Dropout, Noise
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover, resealed


class Recorder:
    """An engine that does not move and writes down what it is told."""

    def __init__(self, robot, num, dt, device="cpu"):
        self.num, self.dt, self.device = num, dt, device
        self.commands, self.parameters, self.state = [], {}, {}

    def reset(self, mask, state):
        self.state = dict(state) | {"rotation": np.tile(np.eye(3, dtype=np.float32).reshape(9), (self.num, 1))}

    def step(self, command):
        self.commands.append(command.copy())

    def read(self, name):
        return self.state[name].copy() if name in self.state else np.zeros((self.num, 1), np.float32)

    def set_parameters(self, mask, parameters):
        self.parameters |= parameters


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(simulation, "make_engine", lambda name, robot, num, dt: Recorder(robot, num, dt))


def fly_ramp(driver, steps=6):
    """Send 0.1, 0.2, ... and return what the engine executed (steps, n)."""
    with driver:
        for step in range(steps):
            driver.read()
            driver.write({"motor_command": np.full((driver.num, 4), 0.1 * (step + 1), np.float32)})
    return np.stack([c[:, 0] for c in driver.env.engine.commands])


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (None, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        (0.01, ["past", 0.1, 0.2, 0.3, 0.4, 0.5]),
        (0.02, ["past", "past", 0.1, 0.2, 0.3, 0.4]),
        (0.05, ["past", "past", "past", "past", "past", 0.1]),
    ],
)
def test_delay_shifts_commands_behind_the_initial_ones(recorder, delay, expected):
    task = make("quad_hover")
    executed = fly_ramp(Simulated(task, 2, conditions=Conditions(delay=delay)))
    past = task.robot.hover_command
    np.testing.assert_allclose(executed[:, 1], [past if e == "past" else e for e in expected], atol=1e-6)


def test_fractions_of_a_step_are_blended_and_robots_may_differ(recorder):
    task = make("quad_hover")
    executed = fly_ramp(Simulated(task, 3, conditions=Conditions(delay=np.array([0.0, 0.0025, 0.015]))))
    np.testing.assert_allclose(executed[3], [0.4, 0.75 * 0.4 + 0.25 * 0.3, 0.5 * 0.3 + 0.5 * 0.2], atol=1e-6)


def test_parameters_are_scaled_and_pushed(recorder):
    task = make("quad_hover")
    conditions = Conditions(mass=1.15, thrust=0.85, rotor_lag=np.linspace(0.6, 1.6, 400), force=0.05)
    driver = Simulated(task, 400, conditions=conditions)
    driver.connect()
    given = driver.env.engine.parameters
    np.testing.assert_allclose(given["mass"], np.full((400, 1), 1.15 * 0.027), rtol=1e-6)
    np.testing.assert_allclose(given["thrust_scale"], np.full((400, 4), 0.85), rtol=1e-6)
    np.testing.assert_allclose(given["rotor_lag"][:, 0], np.linspace(0.6, 1.6, 400), rtol=1e-6)
    assert given["force"].std() == pytest.approx(0.05 * 0.027 * 9.81, rel=0.1)
    assert set(given) == {"mass", "thrust_scale", "rotor_lag", "force"}


def test_the_nominal_robot_is_untouched(recorder):
    driver = Simulated(make("quad_hover"), 5)
    driver.connect()
    assert driver.env.engine.parameters == {}


def test_push_and_damage(recorder):
    driver = Simulated(make("quad_hover"), 60, conditions=Conditions(push=0.1, damage=0.75))
    driver.connect()
    given = driver.env.engine.parameters
    np.testing.assert_allclose(np.linalg.norm(given["force"], axis=1), 0.1 * 0.027 * 9.81, rtol=1e-5)
    assert (np.sort(given["thrust_scale"], axis=1) == np.array([0.75, 1.0, 1.0, 1.0], np.float32)).all()
    assert len(np.unique(given["thrust_scale"].argmin(axis=1))) == 4


def test_damage_outlasts_what_is_drawn_anew_in_flight():
    driver = Simulated(make("quad_any", robust=True, episode_s=2.7), 3, conditions=Conditions(vary=True, damage=0.25))
    with driver:
        before = driver.env.engine.read("thrust_scale")
        for _ in range(260):
            driver.read()
            driver.write({"motor_command": np.full((3, 4), 0.6, np.float32)})
        after = driver.env.engine.read("thrust_scale")
    assert (after != before).any()  # the battery sagged
    assert (after.min(axis=1) <= 0.25 * 1.2).all() and (after.argmin(axis=1) == before.argmin(axis=1)).all()


def test_a_load_is_picked_up_half_way():
    task = make("quad_hover", episode_s=0.2)
    driver = Simulated(task, 2, conditions=Conditions(load=1.3))
    masses = []
    with driver:
        for _ in range(20):
            driver.read()
            driver.write({"motor_command": np.full((2, 4), 0.6, np.float32)})
            masses.append(float(driver.env.engine.read("mass")[0, 0]))
    np.testing.assert_allclose(masses, [0.027] * 9 + [0.0351] * 11, rtol=1e-6)
    np.testing.assert_allclose(driver.env.engine.read("inertia")[0], 1.3 * np.array(task.robot.inertia), rtol=1e-6)


def test_random_vehicles_are_drawn_also_without_vary_and_weigh_what_they_weigh():
    driver = Simulated(make("quad_any"), 40, conditions=Conditions(push=0.1))
    driver.connect()
    mass = driver.env.engine.read("mass")[:, 0]
    assert mass.min() < 0.2 < 2.0 < mass.max()
    np.testing.assert_allclose(np.linalg.norm(driver.env.engine.read("force"), axis=1), 0.981 * mass, rtol=1e-4)


def test_disturbances_change_during_the_flight_with_vary_only():
    for vary in (False, True):
        driver = Simulated(make("quad_any", robust=True, episode_s=1.4), 3, conditions=Conditions(vary=vary))
        with driver:
            before = driver.env.engine.read("wind")
            for _ in range(140):
                driver.read()
                driver.write({"motor_command": np.full((3, 4), 0.6, np.float32)})
            assert (driver.env.engine.read("wind") != before).all() == vary


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"push": -1.0}, "push must be zero or positive"),
        ({"load": 0.0}, "load is a factor"),
        ({"damage": np.nan}, "damage must be zero or positive"),
        ({"wind": -1.0}, "wind must be zero or positive"),
        ({"gust": np.inf}, "gust must be zero or positive"),
        ({"gust_time": 0.0}, "gust_time must be positive"),
        ({"damage_at": 2.0}, "damage_at=2 changes nothing without damage"),
    ],
)
def test_impossible_disturbances_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Conditions(**wrong)


def test_damage_after_the_episode_is_refused():
    with pytest.raises(ValueError, match="damage_at=2 s comes after the episode, which lasts 2 s"):
        Simulated(make("quad_hover", episode_s=2.0), 1, conditions=Conditions(damage=0.0, damage_at=2.0))


@pytest.mark.parametrize("engine", ["flight", "mujoco", "bullet"])
def test_wind_drags_as_the_equations_say_in_every_engine(engine):
    task = make("quad_hover", guidance=1.0, rotor_speed=0.0)  # at rest, level, rotors still: it falls
    driver = Simulated(task, 6, engine, conditions=Conditions(wind=4.0))
    with driver:
        wind = driver.env.engine.read("wind")
        np.testing.assert_allclose(np.linalg.norm(wind[:, :2], axis=1), 4.0, rtol=1e-5)
        np.testing.assert_array_equal(wind[:, 2], 0.0)
        for _ in range(30):
            driver.read()
            driver.write({"motor_command": np.zeros((6, 4), np.float32)})
        velocity = driver.env.engine.read("linear_velocity")
    still = task.robot.parameters()
    pace = still["drag"][0] / still["mass"][0]  # 1/s: linear drag against the air
    expected = wind[:, :2] * (1.0 - np.exp(-pace * 0.3))
    np.testing.assert_allclose(velocity[:, :2], expected, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("engine", ["flight", "mujoco", "bullet"])
def test_gusts_come_on_top_of_the_wind_and_change_at_every_step(engine):
    driver = Simulated(make("quad_hover"), 200, engine, conditions=Conditions(wind=3.0, gust=2.0, gust_time=0.05))
    seen = []
    with driver:
        for _ in range(12):
            seen.append(driver.env.engine.read("wind"))
            driver.read()
            driver.write({"motor_command": np.full((200, 4), 0.6, np.float32)})
    blown = np.stack(seen)
    assert (blown[1:] != blown[:-1]).all()
    gusts = blown - np.stack([driver.env._steady] * len(blown))
    assert gusts.std() == pytest.approx(2.0, rel=0.05)
    assert np.linalg.norm(blown.mean(axis=1), axis=-1).max() < 1.0  # from every side


def test_gusts_forget_with_their_time_constant():
    gusts, every = Gusts(2.0, 40.0, 3000), np.arange(3000)
    gusts.begin(every, np.random.default_rng(0).spawn(3000))
    drawn = [gusts.next(every) for _ in range(41)]
    assert drawn[0].std() == pytest.approx(2.0, rel=0.03) and drawn[40].std() == pytest.approx(2.0, rel=0.03)
    assert (drawn[0] * drawn[40]).mean() / 4.0 == pytest.approx(np.exp(-1.0), abs=0.03)


def test_gusts_are_the_same_under_copies_and_leave_the_other_draws_alone():
    calm, blown = (
        Simulated(make("quad_hover"), 6, copies=2, conditions=Conditions(force=0.1, gust=g)) for g in (0.0, 2.0)
    )
    for driver in (calm, blown):
        driver.connect()
    np.testing.assert_array_equal(blown.env.engine.read("wind")[:3], blown.env.engine.read("wind")[3:])
    for name in ("position", "force"):
        np.testing.assert_array_equal(calm.env.engine.read(name), blown.env.engine.read(name))


def test_the_tasks_own_wind_goes_on_below_the_conditions():
    task = make("quad_any", robust=True, episode_s=1.4)
    driver = Simulated(task, 50, conditions=Conditions(vary=True, wind=20.0))
    with driver:
        before = driver.env.engine.read("wind")
        for _ in range(140):
            driver.read()
            driver.write({"motor_command": np.full((50, 4), 0.6, np.float32)})
        after = driver.env.engine.read("wind")
    assert (before != after).any(axis=1).all()
    assert np.linalg.norm(after[:, :2], axis=1).mean() == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("engine", ["flight", "mujoco", "bullet"])
def test_a_rotor_can_be_lost(engine):
    task = make("quad_hover", guidance=1.0)
    driver = Simulated(task, 8, engine, conditions=Conditions(damage=0.0))
    with driver:
        assert ((driver.env.engine.read("thrust_scale") == 0.0).sum(axis=1) == 1).all()
        for _ in range(20):
            driver.read()
            driver.write({"motor_command": np.full((8, 4), task.robot.hover_command, np.float32)})
        rate = driver.env.engine.read("angular_velocity")
    assert np.isfinite(rate).all()
    assert (np.linalg.norm(rate[:, :2], axis=1) > 5.0).all()  # three rotors alone turn it over


def test_vary_draws_vehicles_delays_and_noise(recorder):
    task = make("quad_hover", delay_high=0.012)
    driver = Simulated(task, 300, conditions=Conditions(vary=True))
    executed = fly_ramp(driver)
    mass = driver.env.engine.parameters["mass"] / 0.027
    assert 0.9 <= mass.min() < 0.92 < 1.08 < mass.max() <= 1.1
    lag = (0.4 - executed[3]) / 0.1
    assert -1e-5 <= lag.min() < 0.1 < 1.1 < lag.max() <= 1.2
    driver.connect()
    noise = driver.read().signals["position"] - driver.env.engine.state["position"]
    assert noise.std() == pytest.approx(0.001, rel=0.15)


def test_noise_reaches_the_policy_but_not_the_record(recorder):
    task = make("quad_hover")
    driver = Simulated(task, 200, conditions=Conditions(noise=2.0))
    with driver:
        seen = driver.read().signals
        driver.write({"motor_command": np.zeros((200, 4), np.float32)})
    flight = driver.flight()
    np.testing.assert_array_equal(flight["position"][0], driver.env.engine.state["position"])
    assert (seen["position"] - flight["position"][0]).std() == pytest.approx(0.002, rel=0.15)
    np.testing.assert_array_equal(seen["target_position"], flight["target_position"][0])


def test_a_flight_records_everything_by_name(recorder):
    driver = Simulated(make("quad_hover"), 3)
    fly_ramp(driver, steps=6)
    flight = driver.flight()
    shapes = {name: value.shape for name, value in flight.items()}
    assert shapes == {
        "quaternion": (6, 3, 4),
        "position": (6, 3, 3),
        "rotation": (6, 3, 9),
        "linear_velocity": (6, 3, 3),
        "angular_velocity": (6, 3, 3),
        "target_position": (6, 3, 3),
        "motor_command": (6, 3, 4),
    }
    np.testing.assert_allclose(flight["motor_command"][:, 0, 0], 0.1 * np.arange(1, 7), rtol=1e-6)


def test_a_flight_may_outlast_the_episode(recorder):
    driver = Simulated(make("quad_hover", episode_s=0.05), 1)
    fly_ramp(driver, steps=23)
    assert driver.flight()["position"].shape == (23, 1, 3)


def starts(**settings):
    driver = Simulated(make("quad_hover"), **settings)
    driver.connect()
    return driver.env.engine.state["position"]


def test_the_same_seed_gives_the_same_starts_under_all_conditions(recorder):
    first = starts(num=8, seed=3)
    np.testing.assert_array_equal(first, starts(num=8, seed=3, conditions=Conditions(vary=True, force=0.1, delay=0.01)))
    assert not np.array_equal(first, starts(num=8, seed=4))


def test_evaluation_seeds_never_give_training_episodes(recorder):
    task = make("quad_hover")
    for seed in range(20):
        evaluated = starts(num=4, seed=seed)
        for generator in (seed, np.random.SeedSequence(seed), np.random.SeedSequence(seed).spawn(1)[0]):
            trained = task.reset(np.random.default_rng(generator), 4)["position"]
            assert not np.isclose(evaluated, trained).any()


def test_copies_fly_the_same_starts(recorder):
    driver = Simulated(make("quad_hover"), 6, copies=2, conditions=Conditions(force=0.1))
    driver.connect()
    for value in (
        driver.env.engine.state["position"],
        driver.env.engine.state["quaternion"],
        driver.env.engine.parameters["force"],
    ):
        np.testing.assert_array_equal(value[:3], value[3:])
        assert not np.array_equal(value[0], value[1])


class Sent:
    """What arrives of one signal; the first value counts as sent before."""

    def __init__(self, made, delay):
        self.made, self.delay, self.rows, self.begun = made, delay, np.arange(len(made.delay)), False

    def send(self, values):
        if not self.begun:
            self.begun = True
            late = np.full((len(self.rows), 1), self.delay, np.float32)
            self.made.begin(self.rows, late, to_lanes(values), streams(0, self.rows, 0))
        one_by_one = from_lanes(copy.deepcopy(self.made).send(to_lanes(values), self.rows), len(values))
        together = from_lanes(self.made.send(to_lanes(values)), len(values))
        np.testing.assert_allclose(together, one_by_one, rtol=1e-6)
        return together


def channel(signal, n=1, delay=0.0, factor=1.0):
    made = Imperfect((signal,), n, factor, delay)
    return Sent(made, delay)


def test_bias_is_constant_within_an_episode_and_noise_is_not():
    offset = channel(Signal("x", (2,), imperfections=(Bias(0.5),)), n=4)
    sent = [offset.send(np.zeros((4, 2), np.float32)) for _ in range(3)]
    np.testing.assert_array_equal(sent[0], sent[2])
    assert len(np.unique(sent[0])) == 8
    noisy = channel(Signal("x", (2,), imperfections=(Noise(0.5),)), n=4)
    assert not np.array_equal(noisy.send(np.zeros((4, 2), np.float32)), noisy.send(np.zeros((4, 2), np.float32)))


def test_dropout_repeats_what_was_delivered():
    lossy = channel(Signal("x", (1,), imperfections=(Dropout(0.5),)), n=2000)
    first = lossy.send(np.zeros((2000, 1), np.float32))
    second = lossy.send(np.ones((2000, 1), np.float32))
    third = lossy.send(np.full((2000, 1), 2.0, np.float32))
    assert (first == 0.0).all()
    assert second.mean() == pytest.approx(0.5, abs=0.05)
    assert {float(v) for v in np.unique(third)} == {0.0, 1.0, 2.0}
    assert (third == 0.0).mean() == pytest.approx(0.25, abs=0.05)


def test_without_noise_a_sensor_is_perfect():
    perfect = channel(Signal("x", (1,), imperfections=(Noise(1.0), Bias(1.0), Dropout(0.9))), n=50, factor=0.0)
    for k in range(4):
        np.testing.assert_array_equal(perfect.send(np.full((50, 1), k, np.float32)), np.full((50, 1), k))


def test_a_late_sensor_starts_with_its_first_value():
    late = channel(Signal("x", (1,), imperfections=(Delay(0.02, 0.02),)), delay=2.0)
    sent = [float(late.send(np.full((1, 1), v, np.float32))[0, 0]) for v in (5.0, 6.0, 7.0, 8.0)]
    assert sent == [5.0, 5.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"delay": -0.01}, "delay must be zero or positive"),
        ({"noise": float("inf")}, "noise must be zero or positive"),
        ({"mass": 0.0}, "mass is a factor and must be positive"),
        ({"thrust": np.array([1.0, -1.0])}, "thrust is a factor"),
        ({"episodes": 0}, "episodes >= 1"),
        ({"seed": -1}, "seed >= 0"),
    ],
)
def test_senseless_settings_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        Settings(**changed)


def test_unknown_engines_list_the_choices():
    with pytest.raises(ValueError, match=r"unknown engine 'flihgt' \(did you mean 'flight'\?\); choices: .*mujoco"):
        Simulated(make("quad_hover"), 1, "flihgt")


def test_the_task_comes_from_the_file_with_its_settings(tmp_path):
    policy = exported(tmp_path / "p.onnx", linear_hover(make("quad_hover", tilt=12.0, history=2)))
    task = task_for(policy)
    assert (task.name, task.config.tilt, task.history) == ("quad_hover", 12.0, 2)
    outside = task_for(policy, "sim.tasks.quad_hover:QuadHover")
    assert outside.config.tilt == 12.0


def test_another_task_or_robot_is_refused_unless_meant(tmp_path):
    policy = exported(tmp_path / "p.onnx", linear_hover())
    with pytest.raises(ValueError, match=r"p.onnx is for the robot 'crazyflie', not 'crazyflie_decks' \(transfer=true"):
        task_for(policy, robot="crazyflie_decks")
    with pytest.raises(ValueError, match="is for the task 'quad_hover', not 'quad_track'"):
        task_for(policy, "quad_track")
    with pytest.raises(ValueError, match="unknown robot 'crazyfly'"):
        task_for(policy, robot="crazyfly")
    with pytest.raises(ValueError, match="unknown task 'hover'"):
        task_for(policy, "hover")
    other = task_for(policy, robot="crazyflie_decks", transfer=True)
    assert other.robot.name == "crazyflie_decks"
    with pytest.raises(HandshakeError, match="for the robot 'crazyflie', the driver has 'crazyflie_decks'"):
        run(policy, Simulated(other, 1))


def test_a_file_of_an_unknown_task_says_so(tmp_path):
    policy = exported(tmp_path / "p.onnx", linear_hover())
    with pytest.raises(ValueError, match=r"q.onnx: unknown task 'juggle'; choices: .*quad_hover"):
        task_for(type(policy).load(resealed(policy, tmp_path / "q.onnx", task="juggle")))


def test_a_policy_file_hovers_in_the_flight_engine(tmp_path):
    task = make("quad_hover", **CALM)
    policy = exported(tmp_path / "p.onnx", linear_hover(task))
    driver = Simulated(task, 100)
    record = run(policy, driver)
    scores = task.score(driver.flight())
    assert scores["success"].mean() > 0.9
    assert record.interventions == {}
    assert record.steps == 500
    alone = Simulated(fresh(task), 100)
    run(policy, alone)
    np.testing.assert_array_equal(alone.flight()["position"], driver.flight()["position"])


def fresh(task):
    """A fresh task of the same settings: nothing may leak from one flight to the next."""
    return type(task)(replace(task.config))


@pytest.mark.slow
@pytest.mark.timed
def test_compiling_the_physics_does_not_interrupt_a_flight_in_real_time(tmp_path):
    keys = ["policy=quad_any", "robot=crazyflie", "real_time=true", "settle=0", "seconds=0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "deploy.run", *keys],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert any(tmp_path.rglob("*.nbc")), "nothing was compiled"
    assert "clock jump" not in done.stdout

"""The app for the Crazyflie's firmware, built for this machine against a declaration of the firmware's interface."""

import ctypes
import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.codegen import toolchain
from deploy.crazyflie import app
from deploy.crazyflie.guard import COMMAND, ESTIMATE, FLY, OFF, PARAMETERS, SHADOW
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from sim.engines.flight import Flight
from sim.robots import robot
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.codegen.native import Native
from tests.deploy.crazyflie.board import (
    ANY_SPEED,
    FORCE,
    HEADERS,
    LEGACY,
    NOTHING,
    PLACE,
    QUAD_ANY,
    SOURCES,
    Firmware,
    Input,
    build,
    written,
)
from tests.deploy.sample_policy import exported, linear_hover, small

THRUST_MAX = 0.12


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(written(tmp_path_factory.mktemp("app")))


@pytest.fixture
def firmware(library):
    firmware = Firmware(library)
    assert firmware.sound
    return firmware


THREE = st.tuples(*[st.floats(-8, 8, width=32)] * 3)


def unit(x):
    return np.array(x) / np.linalg.norm(x)


@given(
    quaternion=st.tuples(*[st.floats(-1, 1, width=32)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1),
    rate=THREE,
    position=THREE,
    velocity=THREE,
    place=THREE,
    speed=THREE,
)
def test_conversions_are_those_of_the_simulator(library, quaternion, rate, position, velocity, place, speed):
    """The engine is put into a state; what the firmware would say of it, in its units, becomes the engine's signals."""
    engine = Flight(robot("crazyflie"), 1, 0.01)
    w, x, y, z = unit(quaternion).tolist()
    state = {"position": position, "quaternion": (w, x, y, z), "linear_velocity": velocity, "angular_velocity": rate}
    engine.reset(None, {name: np.array([v], np.float32) for name, v in state.items()})
    data = Input(
        position=position,
        velocity=velocity,
        quaternion=(x, y, z, w),
        gyro=tuple(math.degrees(r) for r in rate),
        target_position=place,
        target_velocity=speed,
    )
    got = (ctypes.c_float * 24)()
    ctypes.CDLL(str(library)).bench_signals(ctypes.byref(data), got)
    parts = np.split(np.array(got), (3, 12, 15, 18, 21))
    names = ("position", "rotation", "linear_velocity", "angular_velocity")
    for name, part in zip(names, parts, strict=False):
        np.testing.assert_allclose(part, engine.read(name)[0], atol=2e-6)
    np.testing.assert_array_equal(parts[4], place)
    np.testing.assert_array_equal(parts[5], speed)


@given(angle=st.floats(-80, 80))
def test_the_inverted_pitch_stays_outside(library, angle):
    """Nose up by `angle` degrees: positive in the firmware's Euler angles, a negative rotation about y."""
    half = math.radians(-angle) / 2
    data = Input(quaternion=(0, math.sin(half), 0, math.cos(half)))
    got = (ctypes.c_float * 24)()
    ctypes.CDLL(str(library)).bench_signals(ctypes.byref(data), got)
    nose = got[3 + 6]  # the height of the body's x axis
    assert nose == pytest.approx(math.sin(math.radians(angle)), abs=1e-6)
    zero = (0.0, 0.0, 0.0)
    assert Sensed(zero, zero, zero, list(got)[3:12], [], zero, []).pitch == pytest.approx(angle, abs=1e-3)


def random_state(rng):
    x, y, z, w = unit(0.5 * rng.normal(size=4) + np.array([0, 0, 0, 3]))
    return {
        "position": rng.normal(size=3),
        "velocity": rng.normal(size=3),
        "quaternion": (x, y, z, w),
        "gyro": 60 * rng.normal(size=3),
        "target_position": rng.normal(size=3),
        "target_velocity": rng.normal(size=3),
    }


def test_forces_are_the_thrusts_of_the_policy_s_commands(firmware):
    """A policy for any robot: shares of THRUST_MAX, quadratic. Ten calls a step; the policy begins at the first."""
    native = Native(QUAD_ANY)
    native.reset()
    rng = np.random.default_rng(1)
    for _ in range(20):
        state = random_state(rng)
        for call in range(10):
            mode, forces = firmware.call(**(state if call == 0 else random_state(rng)))
            if call == 0:
                logs = {name: value.value for name, value in firmware.table("logs").items()}
                signals = {s.name: [logs[f"{s.name}_{k}"] for k in range(s.size)] for s in native.policy.inputs}
                wanted = native.step({name: np.array(v, np.float32) for name, v in signals.items()})["motor_command"]
            assert mode == FORCE
            np.testing.assert_allclose(forces, wanted**2, atol=1e-6)
    assert not firmware.pid()
    assert firmware.logged("flying") == 1
    np.testing.assert_allclose([firmware.logged(f"motor_command_{k}") for k in range(4)], wanted, atol=1e-6)
    np.testing.assert_allclose([firmware.logged(f"force_{k}") for k in range(4)], forces)


def test_the_airframe_s_thrust_curve_is_used_and_can_be_tuned(tmp_path):
    policy = exported(tmp_path / "p.onnx", linear_hover())
    assert policy.robot == "crazyflie"
    firmware = Firmware(build(written(tmp_path / "app", str(policy.path))))
    assert firmware.booted_in == OFF == PARAMETERS["policy.mode"][1]
    state = random_state(np.random.default_rng(2))

    def forces_and_speeds():
        firmware.library.controllerOutOfTreeInit()
        _, forces = firmware.call(**state)
        return forces, np.array([firmware.logged(f"motor_command_{k}") for k in range(4)])

    forces, speeds = forces_and_speeds()
    thrust = np.array([robot("crazyflie").thrust(u) for u in speeds])
    np.testing.assert_allclose(forces, np.clip(thrust / THRUST_MAX, 0, 1), rtol=1e-5)
    for name, value in zip(("thrust0", "thrust1", "thrust2"), (0.01, 0.02, 0.1), strict=True):
        firmware.table("params")[name].value = value
    forces, speeds = forces_and_speeds()
    np.testing.assert_allclose(forces, (0.01 + 0.02 * speeds + 0.1 * speeds**2) / THRUST_MAX, rtol=1e-5)
    firmware.attend()
    own = np.array(robot("crazyflie").thrust_curve)
    for bad in (math.nan, math.inf, -1.0, 0.0, 1e30):  # in flight, by whoever reaches the radio: zeros would drop it
        for k in range(3):
            firmware.write(f"thrust{k}", bad)
        forces, speeds = forces_and_speeds()
        np.testing.assert_allclose([firmware.parameter(f"thrust{k}") for k in range(3)], own, rtol=1e-6)
        np.testing.assert_allclose(forces, np.clip(own @ (speeds**0, speeds, speeds**2) / THRUST_MAX, 0, 1), rtol=1e-5)
        assert int(firmware.logged("replaced")) >> 30 == 1
        assert firmware.attend() == ["POLICY: policy.thrust0..2 are too far from the airframe's curve, now its own"]


def test_a_step_that_fails_hands_back(tmp_path):
    """As policy_step answers where a signal or a command is not finite."""
    source = written(tmp_path)
    compute = (source / "compute.c").read_text()
    assert "policy_step(&memory" in compute
    compute = compute.replace("policy_step(&memory", "!fails & policy_step(&memory").replace(
        "static step current;", "static step current;\nbool fails;"
    )
    (source / "compute.c").write_text(compute)
    firmware = Firmware(build(source))
    state = random_state(np.random.default_rng(2))
    assert firmware.call(**state)[0] == FORCE and firmware.logged("flying")
    ctypes.c_bool.in_dll(firmware.library, "fails").value = True
    for _ in range(10):
        mode, _ = firmware.call(**state)
    assert mode == LEGACY and firmware.logged("reason") == COMMAND and not firmware.logged("flying")


def test_without_compensation_rotor_speeds_go_out_as_they_are(tmp_path):
    firmware = Firmware(build(written(tmp_path), "-DWITHOUT_COMPENSATION"))
    _, forces = firmware.call(**random_state(np.random.default_rng(3)))
    np.testing.assert_array_equal(forces, [firmware.logged(f"motor_command_{k}") for k in range(4)])


def test_the_app_flies_the_simulated_vehicle(firmware):
    engine = Flight(robot("crazyflie"), 1, 0.001)
    engine.reset(None, {"position": np.array([[0.3, -0.2, 0.8]], np.float32)})
    for _ in range(4000):
        position, velocity, rate = (engine.read(n)[0] for n in ("position", "linear_velocity", "angular_velocity"))
        w, x, y, z = engine.read("quaternion")[0]
        mode, forces = firmware.call(
            position=position, velocity=velocity, quaternion=(x, y, z, w), gyro=np.degrees(rate)
        )
        assert mode == FORCE
        engine.step(np.sqrt(forces)[None])
    np.testing.assert_allclose(engine.read("position")[0], (0, 0, 1), atol=0.05)


@pytest.mark.parametrize(
    "unfit",
    [
        {"age": 201},
        {"modes": ANY_SPEED},
        {"modes": (1, 1, 2)},
        {"modes": NOTHING},
        {"velocity_body": 1},
    ],
    ids=str,
)
def test_pid_takes_over_anew_and_at_once(firmware, unfit):
    assert firmware.call(age=200)[0] == FORCE
    assert not firmware.pid()
    assert firmware.call(**unfit)[0] == LEGACY
    x = unfit.get("modes", PLACE)[0]
    assert firmware.pid() == [(0, 0), (x, 0)]  # an empty set point, then this one, all loops
    assert firmware.logged("flying") == 0
    firmware.call(**unfit)
    assert firmware.pid() == [(x, firmware.now)]
    assert firmware.call()[0] == FORCE  # and back, with the policy at the beginning
    assert not firmware.pid()


def test_the_policy_begins_anew_when_it_takes_over(firmware):
    state = random_state(np.random.default_rng(4))
    _, first = firmware.call(**state)
    for _ in range(25):
        _, later = firmware.call(**state)
    assert np.abs(later - first).max() > 1e-4
    firmware.call(age=300)
    np.testing.assert_array_equal(firmware.call(**state)[1], first)


def test_the_age_survives_the_clock_s_overflow(firmware):
    firmware.now = 2**32 - 3
    for _ in range(2):
        assert firmware.call(age=150)[0] == FORCE
    data = Input(modes=PLACE, timestamp=2**32 - 100, now=50, quaternion=(0, 0, 0, 1))
    assert firmware.library.bench_step(ctypes.byref(data), firmware.forces) == FORCE
    assert firmware.logged("age") == 150


def test_the_policy_can_be_switched_off(firmware):
    assert firmware.call()[0] == FORCE
    firmware.write("mode", 0)
    assert firmware.call()[0] == LEGACY
    firmware.write("mode", FLY)
    assert firmware.call()[0] == LEGACY  # not before it is selected
    firmware.select()
    assert firmware.call()[0] == FORCE


@settings(max_examples=30)
@given(
    name=st.sampled_from(["position", "velocity", "quaternion", "gyro"]),
    index=st.integers(0, 2),
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_motors_off_while_something_is_not_finite_then_pid(library, name, index, bad):
    firmware = Firmware(library)
    state = random_state(np.random.default_rng(5))
    assert firmware.call(**state)[0] == FORCE
    broken = {**state, name: [bad if k == index else v for k, v in enumerate(state[name])]}
    for _ in range(3):
        mode, forces = firmware.call(**broken)
        assert mode == FORCE and forces.tolist() == [0.0] * 4
    assert not firmware.pid()
    assert firmware.call(**state)[0] == LEGACY  # the policy is out
    assert firmware.pid() == [(0, 0), (1, 0)]
    assert firmware.logged("failed") == 1
    firmware.library.controllerOutOfTreeInit()  # selected again
    assert firmware.call(**state)[0] == FORCE


@pytest.mark.parametrize("name", ["target_position", "target_velocity"])
def test_a_place_that_is_not_finite_hands_back_to_pid_that_stays(firmware, name):
    assert firmware.call()[0] == FORCE
    for _ in range(3):
        assert firmware.call(**{name: (0, math.nan, 0)})[0] == LEGACY
    assert firmware.logged("reason") == ESTIMATE
    np.testing.assert_array_equal(firmware.told(), (0, 0, 1))
    firmware.select()
    mode, forces = firmware.call(**{name: (0, math.nan, 0)})  # PID flies, or would
    assert mode == FORCE and forces.tolist() == [0.0] * 4
    assert firmware.call()[0] == FORCE and firmware.logged("flying")


@pytest.mark.parametrize("mode", [OFF, SHADOW, FLY])
@pytest.mark.parametrize("name", ["target_position", "target_velocity"])
def test_a_vehicle_in_the_air_does_not_fall_for_a_place_that_is_not_finite(firmware, mode, name):
    firmware.set("in_the_air", 1)
    firmware.write("mode", mode)
    firmware.select()
    here = {"position": (0.5, -0.25, 1.5)}
    assert firmware.call(modes=ANY_SPEED, **here)[0] == LEGACY  # PID flies: nothing names a place
    for _ in range(3):
        assert firmware.call(**{name: (0, math.nan, 0)}, position=(0.75, -0.25, 1.5))[0] == LEGACY
        np.testing.assert_array_equal(firmware.told(), (0.75, -0.25, 1.5))
    assert firmware.logged("reason") == (ESTIMATE if mode == FLY else 0)
    assert firmware.call(**here)[0] == LEGACY
    np.testing.assert_array_equal(firmware.told(), (0.75, -0.25, 1.5) if mode == FLY else (0, 0, 1))


@pytest.mark.parametrize("mode", [OFF, SHADOW, FLY])
def test_a_first_place_that_is_not_finite_leaves_it_where_it_is_selected(firmware, mode):
    """Not where an earlier flight ended, nor at the origin: and there it stays, until there is a place again."""
    firmware.set("in_the_air", 1)
    firmware.write("mode", mode)
    lost = {"target_position": (math.nan, 0, 0)}
    for x in (0.5, 0.75):
        firmware.select()
        for drifted in (0.0, 0.125, 0.25):
            assert firmware.call(**lost, position=(x + drifted, -0.25, 1.5))[0] == LEGACY
            np.testing.assert_array_equal(firmware.told(), (x, -0.25, 1.5))
    blind = firmware.call(**lost, position=(math.nan, -0.25, 1.5))
    assert blind[0] == FORCE and not blind[1].any()  # it falls meanwhile
    firmware.call(**lost, position=(0.875, -0.25, 1.0))
    np.testing.assert_array_equal(firmware.told(), (0.75, -0.25, 1.5) if mode == FLY else (0.875, -0.25, 1.0))


def test_a_heading_that_is_not_finite_moves_nothing_either(firmware):
    firmware.set("in_the_air", 1)
    assert firmware.call(target_yaw=90.0)[0] == FORCE
    assert firmware.call(target_yaw=math.nan, position=(0.5, 0, 1))[0] == LEGACY
    assert firmware.logged("reason") == ESTIMATE
    np.testing.assert_array_equal(firmware.told(), (0.5, 0, 1))
    firmware.select()
    assert firmware.call(target_yaw=math.nan, modes=ANY_SPEED)[0] == LEGACY  # no heading is asked for
    assert firmware.logged("reason") == 0


def test_a_quaternion_of_zeros_stops_the_motors(firmware):
    mode, forces = firmware.call(quaternion=(0, 0, 0, 0))
    assert mode == FORCE and forces.max() == 0.0


def test_a_place_that_is_not_asked_for_may_be_anything(firmware):
    assert firmware.call(modes=ANY_SPEED, target_position=(math.nan,) * 3)[0] == LEGACY


def test_a_result_that_is_not_finite_hands_over_to_pid(firmware):
    assert firmware.call()[0] == FORCE
    for _ in range(10):
        mode, _ = firmware.call(position=(3e38, 0, 0), target_position=(-3e38, 0, 0))  # overflows inside the policy
    assert mode == LEGACY
    assert firmware.pid()[:2] == [(0, 0), (1, 0)]
    assert firmware.call()[0] == LEGACY


def test_a_build_that_computes_wrongly_refuses_to_fly(tmp_path):
    source = written(tmp_path)
    head, _, rest = (source / "policy.c").read_text().partition("static const float weights_0[")
    declared, _, numbers = rest.partition("{\n")
    (source / "policy.c").write_text(f"{head}static const float weights_0[{declared}{{\n0.7f + {numbers}")
    firmware = Firmware(build(source))
    assert not firmware.sound  # the firmware does not start
    assert firmware.logged("selftest") > 1.0
    assert firmware.call()[0] == LEGACY


def test_the_test_includes_pid_s(firmware):
    sound = ctypes.c_int.in_dll(firmware.library, "pid_sound")
    sound.value = 0
    assert not firmware.boot()
    sound.value = 1
    assert firmware.boot()


def test_after_the_boot_pid_is_selected(firmware):
    """stabilizer.controller: set by the app's task, which never returns."""
    selected = ctypes.c_int.in_dll(firmware.library, "selected")
    assert selected.value == 0
    threading.Thread(target=firmware.library.appMain, daemon=True).start()
    deadline = time.monotonic() + 10.0
    while selected.value == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert selected.value == 1


def test_names_fit_into_the_radio_s_packets_and_cover_every_signal(firmware):
    names = firmware.table("logs")
    assert all(len("policy" + name) <= 24 for name in [*names, *firmware.table("params")])
    policy = PolicyFile.load(QUAD_ANY)
    for signal in (*policy.inputs, *policy.outputs):
        assert all(f"{signal.name}_{k}" in names for k in range(signal.size))


def test_it_compiles_for_the_chip(tmp_path):
    source = written(tmp_path)
    kind, command = toolchain.choose("auto", "arm-none-eabi-gcc")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wdouble-promotion", "-Os", "-ffreestanding"]
    for name in SOURCES:
        built = source / f"{name}.o"
        options = [*toolchain.CORTEX_M4F[kind], *flags, "-I", HEADERS, "-c", source / name, "-o", built]
        toolchain.run([*command, *options])
        assert built.read_bytes()[:4] == b"\x7fELF" and built.read_bytes()[18] == 40  # an ARM object


def test_a_signal_that_the_app_lacks_does_not_compile(tmp_path):
    source = written(tmp_path)
    header = source / "policy.h"
    header.write_text(header.read_text().replace("target_velocity", "target_preview"))
    with pytest.raises(toolchain.ToolchainError, match="target_preview"):
        build(source)


def test_the_folder_is_an_app_of_the_firmware(tmp_path, capsys):
    source = written(tmp_path)
    said = capsys.readouterr().out
    assert said.count("wrote ") == sum(path.is_file() for path in tmp_path.rglob("*"))
    assert "git clone --recursive" in said and "cf2_defconfig all" in said and said.rstrip().endswith(" cload")
    assert "CONFIG_CONTROLLER_OOT=y" in (tmp_path / "app-config").read_text()
    objects = next(line for line in (source / "Kbuild").read_text().splitlines() if line.startswith("obj-y"))
    assert sorted(objects.split()[2:]) == sorted(name.replace(".c", ".o") for name in SOURCES)


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (lambda: small(), "is for the robot 'bench', which is no Crazyflie"),
        (lambda: small_for("crazyflie"), "needs near, goal, rate; a Crazyflie senses: position, "),
        (lambda: hover_at(rate_hz=300.0), "runs at 300 Hz, which does not divide 1000 Hz"),
        (lambda: hover_at(outputs=(Signal("thrusts", (4,), low=0.0, high=1.0),)), "gives thrusts, not motor_command"),
    ],
)
def test_a_policy_that_the_firmware_cannot_fly_is_refused(tmp_path, controller, message):
    path = str(exported(tmp_path / "p.onnx", controller()).path)
    with pytest.raises(ValueError, match=message):
        app.files(PolicyFile.load(path), content_of(path))


def changed(controller, **values):
    for name, value in values.items():
        setattr(controller, name, value)
    return controller


def small_for(name):
    return changed(small(), robot=name)


def hover_at(**values):
    return changed(linear_hover(make("quad_hover")), **values)

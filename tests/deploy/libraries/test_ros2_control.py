"""A policy as a controller of ros2_control: compiled against declarations of it, loaded, driven update by update."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from elftools.elf.elffile import ELFFile

from deploy import cli, export
from deploy.codegen import toolchain
from deploy.guard import REASONS
from deploy.libraries.ros2_control import HAND_WRITTEN, command_interfaces, guard, state_interfaces
from deploy.policy_file import PolicyFile
from policies.models.controller import FeaturePolicy
from policies.models.export import export as exported_policy
from sim.spec import Signal
from sim.tasks import make
from sim.terms import Feature
from tests.deploy.arm_policy import reaching
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.libraries.manager import HERE, NAME, Flown, build, command, compiled, compilers, manager, objects
from tests.deploy.sample_policy import exported, linear_hover, random_mlp, resealed, small
from tests.deploy.vision_policy import seeing

CHECKOUT = os.environ.get("ROS2_CONTROL")
WHEELS = ["rcpputils", "rcutils", "lifecycle_msgs", "rosidl_runtime_cpp", "rosidl_runtime_c"]
WHEELS += ["rosidl_typesupport_interface", "service_msgs", "builtin_interfaces"]
STRICT = {
    "fence_low": [-2.0, -2.0, -2.0],
    "fence_high": [2.0, 2.0, 2.0],
    "max_tilt": 60.0,
    "max_speed": 3.0,
    "max_body_rate": 8.0,
    "max_change": 0.2,
}
NINE = {"state_interfaces.rotation": [f"rotation/{k}" for k in range(9)]}


def policy_path(name, folder):
    if name == "hover":
        return str(resealed(exported(folder / "p.onnx", linear_hover()), folder / "strict.onnx", envelope=STRICT))
    if name == "arm":
        return exported_policy(reaching(), folder / "p.onnx").path
    return exported(folder / "p.onnx", small()).path if name == "small" else name


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Each policy's package, built when it is first asked for."""
    made, compiler = {}, compilers()[0]
    program = manager(tmp_path_factory.mktemp("manager"), compiler)

    def of(name):
        if name not in made:
            path = policy_path(name, tmp_path_factory.mktemp("policy"))
            made[name] = build(path, tmp_path_factory.mktemp(name), program, compiler)
        return made[name]

    return of


@pytest.fixture
def fly(builds):
    flown = []

    def begin(name, parameters=None, rate=None):
        flown.append(Flown(builds(name), parameters, rate))
        return flown[-1]

    yield begin
    for one in flown:
        one.close()


def tell(flown, signals):
    """Signals (*shape) by name, as state interfaces and references; rotations as nine numbers."""
    rows = flown.built.package.signals
    for ours, write in ((False, flown.set), (True, flown.lead)):
        values = [np.ravel(signals[r.signal.name]) for r in rows if (not r.interfaces) == ours]
        if values:
            write(np.concatenate(values).astype(np.float64))


def vector(policy, step):
    return {name: values[step % policy.vectors.steps] for name, values in policy.vectors.inputs.items()}


def turned(policy):
    """What makes rotations nine numbers each, so that no bit is lost on the way."""
    return {
        f"state_interfaces.{s.name}": [f"{s.name}/{k}" for k in range(9)] for s in policy.inputs if s.shape == (9,)
    } | {
        f"state_interfaces.{s.name}": [f"{s.name}/value"] for s in policy.inputs if s.name == "gripper_opening"
    }  # two fingers would have to add up to it


@pytest.mark.parametrize("name", ["quad_any", "arm", "small"])
def test_every_step_is_the_generated_cs_bit_for_bit_and_allocates_nothing(builds, fly, name):
    policy = builds(name).policy
    flown, native = fly(name, turned(policy)), Native(policy.path)
    assert flown.configured.startswith("success") and "self-test passed" in flown.configured
    assert flown.activate().startswith("success")
    shared = [s for s in policy.outputs if s.name == "gripper_target"]
    for step in range(policy.vectors.steps):
        tell(flown, vector(policy, step))
        done, wanted = flown.update(), native.step(vector(policy, step))
        assert done.fine and done.allocated == 0
        values = np.concatenate([wanted[s.name].ravel() for s in policy.outputs]).astype(np.float64)
        if shared:
            values = np.concatenate([values[:-1], [0.5 * values[-1]] * 2])
        np.testing.assert_array_equal(done.commands, values)
        for signal in policy.outputs:
            apart = np.abs(wanted[signal.name] - policy.vectors.outputs[signal.name][step]).max()
            assert apart <= policy.vectors.tolerance * (signal.high - signal.low)
    told = flown.told()
    assert told["steps"] == policy.vectors.steps and told["reason"] == 0.0
    assert 0.0 < told["execution_time"] <= told["longest_execution_time"] < 1.0
    assert told["period"] == pytest.approx(1.0 / policy.rate_hz)


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["small", "hover"])  # no rule of the guard's; most
@pytest.mark.parametrize("compiler", compilers())
def test_every_compiler_takes_it_without_a_warning(tmp_path, builds, compiler, name):
    assert objects(builds(name).library.parent, compiler, tmp_path)[0].stat().st_size > 1000


def matrix(x, y, z, w):
    s = 2.0 / (x * x + y * y + z * z + w * w)
    rows = [1.0 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y)]
    rows += [s * (x * y + w * z), 1.0 - s * (x * x + z * z), s * (y * z - w * x)]
    return np.float32([*rows, s * (x * z - w * y), s * (y * z + w * x), 1.0 - s * (x * x + y * y)])


def test_a_rotation_comes_as_a_quaternion(fly, builds):
    flown, policy, rng = fly("quad_any"), builds("quad_any").policy, np.random.default_rng(0)
    assert "imu/orientation.w" in flown.states and len(flown.states) == 13
    assert flown.references == [f"{NAME}/target_{what}.{k}" for what in ("position", "velocity") for k in "xyz"]
    flown.activate()
    native = Native(policy.path)
    for step in range(20):
        seen, q = vector(policy, step), rng.normal(size=4)
        tell(flown, seen | {"rotation": q})
        wanted = native.step(seen | {"rotation": matrix(*q)})
        np.testing.assert_array_equal(flown.update().commands, wanted["motor_command"].astype(np.float64))


class Beside:
    """The same flight by `deploy.guard` and the generated C, told the same."""

    def __init__(self, policy):
        self.policy, self.native, self.guard = policy, Native(policy.path), guard(policy)
        self.values, self.heard = {}, {}
        self.guard.reset(1)
        self.began, self.before, self.took = None, None, 0.0

    def hear(self, name, value, at):
        self.values[name], self.heard[name] = value[None], at

    def step(self, now, took):
        """The commands that are sent, when computing them takes so long (s)."""
        late = self.before is not None and (now - self.before > 1.5 / self.policy.rate_hz or self.took > 0.01)
        self.before, self.took = now, took
        self.guard.tick(now, late)
        clean = self.guard.screen(self.values, {name: now - at for name, at in self.heard.items()})
        made = self.native.step({name: value[0] for name, value in clean.items()})
        nothing = {s.name: np.full(s.shape, np.nan, np.float32) for s in self.policy.outputs}
        sent = self.guard.filter({k: v[None] for k, v in (made or nothing).items()}, elapsed=took)
        return np.concatenate([sent[s.name].ravel() for s in self.policy.outputs]).astype(np.float64)


def gentle(policy, rng):
    """Signals that no rule forbids, mostly."""
    noise = {s.name: rng.normal(0.0, 0.3, s.shape).astype(np.float32) for s in policy.inputs}
    return noise | {"rotation": matrix(*rng.normal(0.0, 0.2, 3), 1.0)}


def places_of(flown):
    """Signal -> its state interfaces, in their order; nothing for a set point."""
    names = iter(flown.states)
    rows = flown.built.package.signals
    return {r.signal.name: [next(names) for _ in range(r.signal.size if r.interfaces else 0)] for r in rows}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_guard_decides_as_deploys_guard_whatever_comes(fly, builds, seed):
    """Random numbers that are not finite, out of range or forbidden, interfaces that nobody can read, late updates."""
    policy, rng = builds("hover").policy, np.random.default_rng(seed)
    flown, reasons = fly("hover", NINE), set()
    names = [s.name for s in policy.inputs]
    for _ in range(8):
        flown.activate()
        for name in flown.states:
            flown.ask("busy", name, 0)
        beside, away, busy = Beside(policy), {}, set()  # away: signal -> steps for which nobody hears it
        start = flown.now + 10_000_000
        for step in range(150):
            pause = 0.01 if not step or rng.random() > 0.02 else float(rng.choice([0.012, 0.02, 0.07, 0.6]))
            given = gentle(policy, rng)
            if step and rng.random() < 0.04:
                wrong = given[rng.choice(names)]
                wrong.flat[rng.integers(wrong.size)] = rng.choice([np.nan, np.inf, 1.3, 4.0, 9.0])
            if step and rng.random() < 0.02:
                away.setdefault(str(rng.choice(names)), int(rng.integers(3, 25)))
            now = 1e-9 * float(flown.now + round(1e9 * pause) - start)
            for name, interfaces in places_of(flown).items():
                if (name in away) != (name in busy):
                    for interface in interfaces:
                        flown.ask("busy", interface, int(name in away))
                told = not np.isnan(given[name]).any()  # of a set point NaN means: nothing new
                if name not in away and (interfaces or told):
                    beside.hear(name, given[name], now)
                elif not interfaces:
                    given[name] = np.full_like(given[name], np.nan)
            tell(flown, given)
            busy = set(away)
            away = {name: left - 1 for name, left in away.items() if left > 1}
            done, told = flown.update(pause), flown.told()
            np.testing.assert_array_equal(done.commands, beside.step(now, told["execution_time"]))
            assert done.allocated == 0
            assert told["reason"] == beside.guard.reasons[0] and done.fine == (beside.guard.latched[0] == 0)
            reasons.add(REASONS[int(told["reason"])])
            if not done.fine:
                break
    assert len(reasons) >= 6, reasons


SAFE = np.zeros(4)


@pytest.fixture
def hovering(fly, builds):
    """The controller that watches most, in a calm flight of ten steps; and what each next update sees."""
    flown, policy = fly("hover", NINE), builds("hover").policy
    calm = {s.name: np.zeros(s.shape, np.float32) for s in policy.inputs} | {"rotation": np.eye(3).ravel()}
    flown.activate()
    for _ in range(10):
        tell(flown, calm)
        assert flown.update().fine
    return flown, calm


def until_stopped(flown, calm, changed, steps=200, pause=None):
    """Updates until it stops, and what it sent in each."""
    sent = []
    for _ in range(steps):
        tell(flown, calm | {k: np.full(np.shape(calm[k]), v) for k, v in changed.items()})
        done = flown.update(pause)
        sent.append(done.commands)
        if not done.fine:
            break
    return np.array(sent)


@pytest.mark.parametrize(
    ("changed", "reason", "after"),
    [
        ({"position": np.nan}, "non-finite signal", 5),
        ({"angular_velocity": np.inf}, "non-finite signal", 5),
        ({"rotation": 1.2}, "signal out of range", 5),
        ({"target_position": np.inf}, "non-finite signal", 5),
        ({"position": 2.1}, "geofence", 0),
        ({"rotation": 0.4}, "tilt", 0),
        ({"linear_velocity": 2.0}, "speed", 0),
        ({"angular_velocity": 5.0}, "body rate", 0),
        ({"target_position": np.nan}, "stale signal", 105),
    ],
)
def test_a_fault_is_held_and_ends_in_the_safe_command(hovering, changed, reason, after):
    flown, calm = hovering
    tell(flown, calm)
    last = flown.update().commands
    sent = until_stopped(flown, calm, changed)
    assert abs(len(sent) - after - 1) <= (after > 5) and (sent[-1] == SAFE).all()  # just as old as it may be, or older
    assert flown.told()["reason"] == REASONS.index(reason)
    held = sent[max(0, after - 5) : -1]
    assert (held == (last if after <= 5 else held[:1])).all()
    for _ in range(3):  # it stays so until it is activated anew
        tell(flown, calm)
        done = flown.update()
        assert not done.fine and (done.commands == SAFE).all() and done.allocated == 0
    assert f"stopped: {reason}" in flown.ask("deactivate")
    flown.activate()
    tell(flown, calm)
    assert flown.update().fine


def test_an_interface_that_nobody_can_read_grows_stale(hovering):
    flown, calm = hovering
    flown.ask("busy", flown.states[0], 1)
    sent = until_stopped(flown, calm, {})
    assert abs(len(sent) - 10 - 5 - 1) <= 1  # max_age is 0.1 s, and five steps are held
    assert flown.told()["reason"] == REASONS.index("stale signal") and (sent[-1] == SAFE).all()


def test_a_value_that_never_changes_is_stale_where_the_owner_says_so(fly, builds):
    flown, policy = fly("hover", NINE | {"frozen_after": 0.2}), builds("hover").policy
    calm = {s.name: np.zeros(s.shape, np.float32) for s in policy.inputs} | {"rotation": np.eye(3).ravel()}
    flown.activate()
    assert len(until_stopped(flown, calm, {})) == pytest.approx(20 + 1 + 5 + 1, abs=1)
    assert flown.told()["reason"] == REASONS.index("stale signal")


@pytest.mark.parametrize(
    ("pause", "reason", "after"), [(0.6, "clock jump", 0), (0.03, "deadlines missed", 9), (-0.01, "clock jump", 0)]
)
def test_updates_that_come_late_stop_it(hovering, pause, reason, after):
    flown, calm = hovering
    sent = until_stopped(flown, calm, {}, pause=pause)
    assert len(sent) == after + 1 and (sent[-1] == SAFE).all()
    assert flown.told()["reason"] == REASONS.index(reason)


def test_a_computer_that_slept_does_not_fly_on(hovering):
    """The manager's clock stood still meanwhile, and everything looked as fresh as before."""
    flown, calm = hovering
    tell(flown, calm)
    assert flown.update().fine
    flown.ask("sleep", 0.05)  # no sleep, but what lies between two looks at a clock
    assert flown.update().fine
    flown.ask("sleep", 3.0)
    tell(flown, calm)
    update = flown.update()
    assert not update.fine and (update.commands == SAFE).all()
    assert flown.told()["reason"] == REASONS.index("clock jump")


@pytest.mark.parametrize("first", [False, True])
def test_who_was_pre_empted_between_two_clocks_has_not_slept(fly, builds, first):
    """At the first update, too, from which sleep is counted. It was stopped by `clock jump`, and stayed shifted."""
    flown, policy = fly("hover", NINE), builds("hover").policy
    calm = {s.name: np.zeros(s.shape, np.float32) for s in policy.inputs} | {"rotation": np.eye(3).ravel()}
    flown.activate()
    flown.ask("sleep", 1e4)  # of before
    for step in range(5):
        if step == (0 if first else 2):
            flown.ask("preempt", 0.7)
        tell(flown, calm)
        assert flown.update().fine
    flown.ask("sleep", 0.65)  # less than what it was pre-empted for
    tell(flown, calm)
    assert not flown.update().fine


def test_a_command_that_nobody_takes_is_counted_and_ends_it(hovering):
    flown, calm = hovering
    flown.ask("unwritable", flown.commands[0], 1)
    tell(flown, calm)
    assert flown.update().fine
    flown.ask("unwritable", flown.commands[0], 0)
    tell(flown, calm)
    assert flown.update().fine
    flown.ask("unwritable", flown.commands[0], 1)
    fine = []
    for _ in range(10):
        tell(flown, calm)
        fine.append(flown.update().fine)
    assert fine == [True] * 5 + [False] * 5  # as a command that is not there
    assert flown.told()["reason"] == REASONS.index("non-finite command")


def test_it_waits_for_its_signals_and_writes_nothing_before(fly, builds):
    flown, policy = fly("hover", NINE), builds("hover").policy
    calm = {s.name: np.full(s.shape, 0.01, np.float32) for s in policy.inputs} | {"rotation": np.eye(3).ravel()}
    flown.activate()
    nothing = calm | {"target_position": np.full(3, np.nan)}
    for _ in range(400):
        tell(flown, nothing)
        done = flown.update()
        assert done.fine and done.allocated == 0 and (done.commands == 0.0).all()
    assert flown.told()["steps"] == 0
    tell(flown, calm)
    assert (flown.update().commands > 0.1).all() and flown.told()["steps"] == 1
    flown.activate()
    assert abs(len(until_stopped(flown, nothing, {}, steps=1000)) - 501) <= 1  # 5 s
    assert flown.told()["reason"] == REASONS.index("stale signal")


def test_a_faster_manager_has_it_step_at_its_own_rate(fly, builds):
    policy = builds("quad_any").policy
    flown, native = fly("quad_any", NINE, rate=500.0), Native(policy.path)
    flown.activate()
    for step in range(50):
        tell(flown, vector(policy, step // 5))
        done = flown.update()
        if step % 5 == 0:
            wanted = native.step(vector(policy, step // 5))["motor_command"]
        np.testing.assert_array_equal(done.commands, wanted.astype(np.float64))
    assert flown.told()["steps"] == 10 and flown.told()["late"] == 0


def test_set_points_come_by_topic_unless_another_controller_leads(fly, builds):
    policy = builds("quad_any").policy
    flown, native = fly("quad_any", NINE), Native(policy.path)
    flown.activate()
    seen = vector(policy, 0)
    names = ("position", "rotation", "linear_velocity", "angular_velocity")
    states = np.concatenate([np.ravel(seen[n]) for n in names])
    goal = np.concatenate([seen["target_position"], seen["target_velocity"]]).astype(np.float64)
    assert "ignored a reference of 2 numbers; it needs 6" in flown.ask("publish", 1.0, 2.0)
    flown.ask("publish", *goal)
    flown.set(states)
    np.testing.assert_array_equal(flown.update().commands, native.step(seen)["motor_command"].astype(np.float64))
    flown.ask("chained", 1)
    flown.ask("publish", *(0.0 * goal))  # is not heard: somebody leads
    flown.set(states)
    np.testing.assert_array_equal(flown.update().commands, native.step(seen)["motor_command"].astype(np.float64))


@pytest.mark.parametrize(
    ("parameters", "rate", "message"),
    [
        (
            {"state_interfaces.position": ["a/x"]},
            None,
            "position names 1 interfaces; it has 3 numbers",
        ),
        ({"state_interfaces.rotation": ["a/x"] * 5}, None, "or is a quaternion of 4: x, y, z, w"),
        ({"command_interfaces.motor_command": ["a/x"] * 4}, None, "the command interface a/x is named twice"),
        ({"command_interfaces.motor_command": ["a/x"]}, None, "names 1 interfaces; it has 4 numbers"),
        ({"limits.motor_command": [0.0, 1.5]}, None, "limits.motor_command: needs [low, high] within [0, 1]"),
        ({"limits.motor_command": [0.5, 0.5]}, None, "limits.motor_command: needs"),
        ({"offset.motor_command": [0.5]}, None, "offset.motor_command has 1 numbers, not 4"),
        ({"max_age.position": 0.2}, None, "max_age.position is 0.2 s; the policy permits more than 0, up to 0.1 s"),
        ({"patience": -1.0}, None, "patience is -1 s"),
        ({}, 50.0, "update_rate is 50 Hz; the policy needs a multiple of 100 Hz"),
        ({}, 250.0, "the policy needs a multiple"),
    ],
)
def test_senseless_parameters_are_refused_when_it_is_configured(fly, parameters, rate, message):
    configured = fly("quad_any", parameters, rate).configured
    assert configured.startswith("failure") and message in configured


def test_an_owner_may_narrow_limits_and_add_a_rest_pose(fly, builds):
    policy = builds("quad_any").policy
    flown = fly("quad_any", NINE | {"limits.motor_command": [0.1, 0.5], "offset.motor_command": [0.0, 1.0, 2.0, 3.0]})
    native = Native(policy.path)
    flown.activate()
    for step in range(5):
        tell(flown, vector(policy, step))
        wanted = np.clip(native.step(vector(policy, step))["motor_command"], np.float32(0.1), np.float32(0.5))
        np.testing.assert_array_equal(flown.update().commands, wanted.astype(np.float64) + np.arange(4.0))


def test_interfaces_that_are_not_there_keep_it_from_being_activated(fly):
    flown = fly("quad_any")
    for name in ("imu/orientation.w", "rotor3/command"):
        assert flown.activate(without=name).startswith("failure error: the interface")


def test_a_build_that_computes_wrongly_is_not_configured(tmp_path, builds):
    right = builds("small")
    folder = tmp_path / "wrong"
    shutil.copytree(right.library.parent, folder)
    source = folder / "src" / "policy.c"
    source.write_text(re.sub(r"(weights_0\[\d+\] = {\n)[^,]+", r"\g<1>9.0f", source.read_text()))
    flown = Flown(replace(right, library=compiled(folder, compilers()[0])))
    assert flown.configured.startswith("failure") and "the self-test FAILED" in flown.configured
    flown.close()


def test_the_example_has_every_parameter_and_is_taken(fly, builds):
    for name in ("quad_any", "arm", "small"):
        package = builds(name).package
        told = yaml.safe_load(package.files()["config/example.yaml"])
        assert told["controller_manager"]["ros__parameters"][package.name]["type"] == f"{package.name}/PolicyController"
        own = told[package.name]["ros__parameters"]
        groups = {f"{group}.{key}": v for group, of in own.items() if isinstance(of, dict) for key, v in of.items()}
        rate = own.pop("update_rate")
        plain = {k: v for k, v in own.items() if isinstance(v, float)}
        flown = fly(name, groups | plain, rate)
        assert flown.configured.startswith("success"), flown.configured
        wanted = {k: v for k, v in groups.items() if k.startswith("state_interfaces")}
        assert sorted(set(flown.states)) == sorted({n for names in wanted.values() for n in names})


def test_the_package_is_what_ament_and_pluginlib_read(builds):
    files = builds("quad_any").package.files()
    manifest = ElementTree.fromstring(files["package.xml"])
    assert manifest.find("name").text == "policy_quad_any"
    assert {one.text for one in manifest.findall("depend")} >= {"controller_interface", "pluginlib", "rclcpp"}
    plugin = ElementTree.fromstring(files["plugin.xml"])
    (told,) = plugin
    assert plugin.get("path") == "policy_quad_any" and told.get("type") == "policy_quad_any::PolicyController"
    assert told.get("base_class_type") == "controller_interface::ChainableControllerInterface"
    cmake = files["CMakeLists.txt"]
    assert all(f"find_package({one.text} REQUIRED)" in cmake for one in manifest.findall("depend"))
    for path, text in files.items():
        assert "policy_controller" not in text, path  # it has a namespace of its own
        assert not path.endswith((".c", "controller.cpp")) or path in cmake
    assert "pluginlib_export_plugin_description_file(controller_interface plugin.xml)" in cmake
    assert {f"src/{name}" for name in HAND_WRITTEN} <= files.keys()


def test_two_policies_share_one_process(builds):
    """Nothing of a controller is to be seen from outside but what loads it."""
    for name in ("quad_any", "small"):
        with builds(name).library.open("rb") as file:
            table = ELFFile(file).get_section_by_name(".dynsym")
            seen = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}
        assert "sim2metal_made" in seen and not any("policy_step" in symbol or "Guard" in symbol for symbol in seen)


@pytest.mark.parametrize(
    ("signal", "interfaces"),
    [
        (Signal("joint_position", (2,), "rad"), ("panda_joint1/position", "panda_joint2/position")),
        (Signal("joint_velocity", (1,), "rad/s"), ("panda_joint1/velocity",)),
        (Signal("gripper_opening", (1,), "m"), ("panda_finger_joint1/position", "panda_finger_joint2/position")),
        (Signal("hand_position", (3,), "m"), ("hand/position.x", "hand/position.y", "hand/position.z")),
        (Signal("projected_gravity", (3,)), tuple(f"imu/orientation.{k}" for k in "xyzw")),
        (Signal("position", (2,), "m"), ("pose/position.x", "pose/position.y")),
        (Signal("velocity", (2,), "m/s"), ("odometry/linear_velocity.x", "odometry/linear_velocity.y")),
        (Signal("turning", (1,), "rad/s"), ("imu/angular_velocity.z",)),
        (Signal("object_rotation", (9,)), tuple(f"object/orientation.{k}" for k in "xyzw")),
        (Signal("lidar", (3,), "m"), ("lidar/0", "lidar/1", "lidar/2")),
        (Signal("wheel_speed", (1,), "m/s"), ("wheel_speed/value",)),
    ],
)
def test_interfaces_are_named_as_ros2_control_names_them(signal, interfaces):
    assert state_interfaces(Named, signal) == interfaces


@pytest.mark.parametrize(
    ("command", "interfaces"),
    [
        (Signal("joint_target", (2,), "rad"), ("panda_joint1/position", "panda_joint2/position")),
        (Signal("gripper_target", (1,), "m"), ("panda_finger_joint1/position", "panda_finger_joint2/position")),
        (Signal("drive", (1,), "m/s"), ("diff_drive_controller/linear/velocity",)),
        (Signal("drive", (2,), "m/s"), ("drive/0", "drive/1")),
        (Signal("motor_command", (2,)), ("rotor1/command", "rotor2/command")),
        (Signal("kick", (1,)), ("kick/value",)),
    ],
)
def test_so_are_commands(command, interfaces):
    assert command_interfaces(Named, command) == interfaces


class Named:
    """A policy's robot, which is all that names depend on."""

    robot = "panda"


def test_gravity_comes_from_the_quaternion_and_the_last_command_from_itself(tmp_path, builds):
    inputs = (
        Signal("projected_gravity", (3,), "1", "body"),
        Signal("last_wheel", (2,), "rad/s", low=-1.0, high=1.0),
        Signal("target_turn_rate", (1,), "rad/s", max_age=1.0),
    )
    outputs = (Signal("wheel", (2,), "rad/s", low=-1.0, high=1.0),)
    features = tuple(Feature(s.name) for s in inputs)
    network = random_mlp(np.random.default_rng(0), 6, 2)
    path = exported(
        tmp_path / "p.onnx", FeaturePolicy("balance", "none", "bench", 50.0, inputs, outputs, features, 0, 0.0, network)
    ).path
    folder = tmp_path / "balance"
    folder.mkdir()
    flown = Flown(build(path, folder, builds("small").manager, compilers()[0]))
    assert flown.references == [f"{NAME}/target_turn_rate"]
    assert flown.states == [f"imu/orientation.{k}" for k in "xyzw"]
    assert flown.commands == ["bench_joint1/velocity", "bench_joint2/velocity"]
    flown.activate()
    native, last, rng = Native(path), np.zeros(2, np.float32), np.random.default_rng(1)
    for _ in range(10):
        q, rate = rng.normal(size=4), np.float32(rng.normal(size=1))
        flown.set(q)
        flown.lead(rate)
        last = native.step({"projected_gravity": -matrix(*q)[6:], "last_wheel": last, "target_turn_rate": rate})[
            "wheel"
        ]
        np.testing.assert_array_equal(flown.update().commands, last.astype(np.float64))
    flown.close()


def test_what_no_interface_carries_is_refused(tmp_path, capsys):
    path = exported(tmp_path / "p.onnx", seeing(make("soccer_vision_1v1", opponent="still"))).path
    assert cli.call(export.main, [f"policy={path}", "target=ros2_control", f"out={tmp_path / 'x'}"]) == 2
    said = capsys.readouterr().err
    assert "reads 'camera', a picture, and interfaces of ros2_control hold single numbers" in said
    assert said.count("\n") == 1 and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("budget_us=100", "budget_us is for microcontrollers; target=ros2_control has none"),
        ("core=cortex-m4f", "of target=c|arduino|platformio|zephyr"),
    ],
)
def test_what_only_chips_have_is_refused(tmp_path, capsys, argument, message):
    arguments = ["policy=quad_any", "target=ros2_control", f"out={tmp_path / 'x'}", argument]
    assert cli.call(export.main, arguments) == 2
    assert message in capsys.readouterr().err


def test_rules_that_nobody_can_watch_are_refused(tmp_path, capsys):
    blind = resealed(exported(tmp_path / "p.onnx"), tmp_path / "blind.onnx", envelope={"max_tilt": 30.0})
    assert cli.call(export.main, [f"policy={blind}", "target=ros2_control", f"out={tmp_path / 'x'}"]) == 2
    assert "max_tilt needs the signal 'rotation'" in capsys.readouterr().err


def test_a_speed_of_two_axes_is_refused(tmp_path, capsys):
    """The C++ reads three numbers."""
    graph = {**one_node("Neg", shape=(2,), result=(2,)), "inputs": {"linear_velocity": (2,)}}
    graph["nodes"][0].input[0] = "linear_velocity"
    plain = PolicyFile.load(policy_of(tmp_path / "p.onnx", **graph))
    fast = resealed(plain, tmp_path / "fast.onnx", envelope={"max_speed": 3.0})
    assert cli.call(export.main, [f"policy={fast}", "target=ros2_control", f"out={tmp_path / 'x'}"]) == 2
    assert "in C++ max_speed needs 'linear_velocity' of three numbers, not (2,)" in capsys.readouterr().err


@pytest.mark.skipif(CHECKOUT is None, reason="needs a checkout of ros2_control, named in ROS2_CONTROL, and fmt")
@pytest.mark.parametrize("name", ["small", "hover"])
def test_the_real_headers_of_ros2_control_take_it(builds, name):
    """Theirs for its own interfaces; ours stand in for rclcpp, which no wheel has. rcpputils comes from the wheels.

    fmt is where the compiler looks, such as in CPLUS_INCLUDE_PATH.
    """
    parts = ("controller_interface", "hardware_interface", "joint_limits")
    real = [word for part in parts for word in ("-isystem", Path(CHECKOUT) / part / "include")]
    wheels = [word for part in WHEELS for word in ("-isystem", Path(sys.prefix) / "include" / part)]
    strict = ("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror")
    source = builds(name).library.parent / "src" / "controller.cpp"
    toolchain.run([*command(compilers()[0]), *strict, "-I", HERE / "ros2", *real, *wheels, source])


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which("colcon") and shutil.which("ros2")), reason="needs colcon and an installed ROS 2")
def test_colcon_builds_the_package(tmp_path):
    folder = tmp_path / "src" / "policy_quad_any"
    assert cli.call(export.main, ["policy=quad_any", "target=ros2_control", f"out={folder}"]) == 0
    built = subprocess.run(["colcon", "build"], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "install").rglob("libpolicy_quad_any.so"))

"""guard.hpp against deploy.guard, number for number, with every rule on and whatever comes."""

import ctypes
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from deploy.codegen import toolchain
from deploy.codegen.source import Source
from deploy.guard import REASONS, Guard
from deploy.libraries.ros2_control import Package, _most
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import LAST, Envelope
from sim.spec import Signal
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.libraries.manager import HEADERS, STRICT, command, compilers

F = np.float32
INPUTS = (
    Signal("position", (3,), "m", "world", max_age=0.1),
    Signal("rotation", (9,), low=-1.1, high=1.1, max_age=0.1),
    Signal("linear_velocity", (3,), "m/s", "world", max_age=0.05),
    Signal("angular_velocity", (3,), "rad/s", "body", max_age=0.02),
    Signal("battery_voltage", (3,), "V", low=0.0, max_age=1.0),
    Signal("joint_position", (2,), "rad", max_age=0.1),
)
OUTPUTS = (
    Signal("motor_command", (2,), low=-0.2, high=1.0),
    Signal("joint_target", (2,), "rad", low=-1.0, high=1.0),
    Signal("gripper", (1,), "m", low=0.1, high=0.5),
    Signal("torque", (1,), "Nm"),
)
REACH = (OUTPUTS[0], Signal("joint_target", (2,), "rad", low=-2.0, high=0.5), *OUTPUTS[2:])
RULES = Envelope(
    hold_steps=3,
    missed_in_a_row=3,
    missed_of_100=5,
    longest_pause=0.5,
    fence_low=(-1.0, -1.1, 0.0),
    fence_high=(1.0, 1.1, 2.0),
    max_tilt=60.0,
    max_speed=3.0,
    max_body_rate=8.0,
    max_change=0.3,
    min_voltage=3.3,
    low_voltage_steps=4,
    safe={"motor_command": (0.0, 0.1), "joint_target": "joint_position", "torque": LAST},
)
SHIM = """
#include "guard.hpp"
static {name}::Guard g;
extern "C" {{
void begin() {{ g.begin(); }}
void step(double now, int late, const float *values, const double *ages, const float *given, int computed, double took,
          float *clean, float *sent, int *told) {{
    g.tick(now, late != 0);
    g.screen(values, ages);
    g.filter(given, computed != 0, took);
    for (std::size_t i = 0; i < g.clean.size(); ++i) clean[i] = g.clean[i];
    for (std::size_t i = 0; i < g.sent.size(); ++i) sent[i] = g.sent[i];
    told[0] = g.latched, told[1] = g.bad, told[2] = g.held;
}}
}}
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    shapes = ({s.name: s.shape for s in group} for group in (INPUTS, OUTPUTS))
    nodes = [helper.make_node("ReduceSum", ["position", "last"], ["sum"], keepdims=1)]
    nodes += [helper.make_node("Expand", ["sum", f"as_{s.name}"], [s.name]) for s in OUTPUTS]
    constants = {"last": np.array([1])} | {f"as_{s.name}": np.array([1, *s.shape]) for s in OUTPUTS}
    policy = PolicyFile.load(policy_of(folder / "p.onnx", nodes, *shapes, constants))
    package = Package(policy, Source(policy, policy.content()))
    package.guard = guard()
    package.signals, package.commands = package._rows(INPUTS, True), package._rows(OUTPUTS, False)
    package.places = {row.signal.name: row.first for row in package.signals}
    for name, text in package.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "src" / "shim.cpp").write_text(SHIM.format(name=package.name))
    built = folder / "guard.so"
    flags = [flag for flag in STRICT if flag != "-O2"]
    toolchain.run(
        [
            *command(compilers()[0]),
            *flags,
            "-O1",
            "-shared",
            "-fPIC",
            *HEADERS,
            folder / "src" / "shim.cpp",
            "-o",
            built,
        ]
    )
    return ctypes.CDLL(str(built))


def guard():
    return Guard(INPUTS, OUTPUTS, RULES, reach=REACH)


@dataclass
class Step:
    """What happens in one control step: `wrong` puts a number into an element of a signal or of the commands."""

    pause: float = 0.01
    late: bool = False
    wrong: list = field(default_factory=list)  # (name, element, number)
    ages: dict = field(default_factory=dict)
    computed: bool = True
    took: float = 0.001


CALM = {
    "position": F([0.1, 0.2, 1.0]),
    "rotation": np.eye(3, dtype=F).ravel(),
    "linear_velocity": F([0.1, 0.0, 0.0]),
    "angular_velocity": F([0.0, 0.1, 0.0]),
    "battery_voltage": F([3.9, 3.8, 3.7]),
    "joint_position": F([0.3, -0.4]),
}
WANTED = {"motor_command": F([0.5, 0.4]), "joint_target": F([0.2, 0.1]), "gripper": F([0.3]), "torque": F([2.0])}
EDGES = [0.5, -0.2, 1.0, 1.1, -1.1, 2.0, 3.0, 3.3, 8.0, 0.1, 0.0, -0.0]
NUMBERS = st.one_of(
    st.sampled_from(
        [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 1e20]
        + [float(np.nextafter(F(e), F(to))) for e in EDGES for to in (9.0, e, -9.0)]
    ),
    st.floats(-10.0, 10.0, width=32),
)
PLACES = [(s.name, k) for s in (*INPUTS, *OUTPUTS) for k in range(s.size)]
AGES = st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.1000001, -0.05, -0.2, 1.0, math.nan, math.inf, -math.inf])
STEPS = st.builds(
    Step,
    pause=st.sampled_from([0.01] * 12 + [0.0, 0.5, 0.51, -1e-9, math.nan, math.inf]),
    late=st.sampled_from([False] * 4 + [True]),
    wrong=st.lists(st.tuples(st.sampled_from(PLACES), NUMBERS), max_size=1) | st.just([]),
    ages=st.dictionaries(st.sampled_from([s.name for s in INPUTS]), AGES, max_size=1) | st.just({}),
    computed=st.sampled_from([True] * 6 + [False]),
    took=st.sampled_from([0.001] * 6 + [0.02, 0.05, 1.0, math.nan, math.inf, -1.0]),
)


def flown(native, steps):
    """Both guards through these steps; the reasons that were met."""
    ours, now, met = guard(), 5.0, set()
    ours.reset(1)
    native.begin()
    sizes = [sum(s.size for s in group) for group in (INPUTS, OUTPUTS)]
    clean, sent, told = (ctypes.c_float * sizes[0])(), (ctypes.c_float * sizes[1])(), (ctypes.c_int * 3)()
    for step in steps:
        now += step.pause
        values = {name: value.copy() for name, value in (CALM | WANTED).items()}
        for (name, element), number in step.wrong:
            values[name][element] = number
        ages = {s.name: step.ages.get(s.name, 0.0) for s in INPUTS}
        row, wanted = (np.concatenate([values[s.name] for s in group]) for group in (INPUTS, OUTPUTS))
        wanted = wanted if step.computed else np.full_like(wanted, np.nan)
        native.step(
            ctypes.c_double(now),
            int(step.late),
            row.ctypes.data_as(ctypes.c_void_p),
            (ctypes.c_double * len(INPUTS))(*ages.values()),
            wanted.ctypes.data_as(ctypes.c_void_p),
            int(step.computed),
            ctypes.c_double(step.took),
            clean,
            sent,
            told,
        )
        ours.tick(now, step.late)
        seen = ours.screen({s.name: values[s.name][None] for s in INPUTS}, ages)
        commands = dict(zip([s.name for s in OUTPUTS], np.split(wanted, [2, 4, 5]), strict=True))
        made = ours.filter({name: value[None] for name, value in commands.items()}, elapsed=step.took)
        for group, got, want in ((INPUTS, clean, seen), (OUTPUTS, sent, made)):
            expected = np.concatenate([np.float32(want[s.name]).ravel() for s in group])
            np.testing.assert_array_equal(np.array(got), expected)
        reasons = [REASONS[told[0]], REASONS[told[1]], told[2]]
        assert reasons == [REASONS[ours.latched[0]], REASONS[ours._bad[0]], ours._held[0]]
        met |= set(reasons[:2])
    return met


@settings(max_examples=300)
@given(steps=st.lists(st.tuples(STEPS, st.sampled_from([1, 1, 1, 2, 4, 6])), min_size=1, max_size=10))
def test_both_decide_alike(native, steps):
    """Each of these steps comes so many times in a row."""
    flown(native, [step for step, times in steps for _ in range(times)])


@pytest.mark.parametrize(("told", "written"), [(None, "1 << 30"), (3, "3"), (2.5, "3"), (1e300, "1 << 30")])
def test_a_count_is_reached_at_the_same_step(told, written):
    """C++ made 2 of 2.5, and stopped a step earlier."""
    assert _most(told) == written


@pytest.mark.parametrize("rule", ["missed_in_a_row", "missed_of_100", "low_voltage_steps"])
def test_every_count_is_written_so(tmp_path, rule):
    """2.5 reached C++ as it was for one of them, which made 2 of it."""
    policy = PolicyFile.load(policy_of(tmp_path / "p.onnx", **one_node("Neg")))
    package = Package(policy, Source(policy, policy.content()))
    package.guard = Guard(INPUTS, OUTPUTS, replace(RULES, **{rule: 2.5}), reach=REACH)
    package.signals, package.commands = package._rows(INPUTS, True), package._rows(OUTPUTS, False)
    package.places = {row.signal.name: row.first for row in package.signals}
    assert f"int {rule.upper()} = 3;" in package.interfaces()


def test_every_rule_is_met(native):
    """What those random steps are made of reaches each of them."""
    bad = {
        "geofence": [Step(wrong=[(("position", 2), -0.1)])],
        "tilt": [Step(wrong=[(("rotation", 8), 0.4)])],
        "speed": [Step(wrong=[(("linear_velocity", 1), 1e30)])],
        "body rate": [Step(wrong=[(("angular_velocity", 1), 8.1)])],
        "low battery": [Step(wrong=[(("battery_voltage", 2), 3.2)])] * 5,
        "deadlines missed": [Step(late=True)] * 4,
        "clock jump": [Step(), Step(pause=0.6)],
        "stale signal": [Step(ages={"angular_velocity": 0.03})] * 5,
        "non-finite signal": [Step(wrong=[(("joint_position", 1), math.nan)])] * 5,
        "signal out of range": [Step(wrong=[(("rotation", 1), 1.2)])] * 5,
        "non-finite command": [Step(computed=False)] * 5,
    }
    for reason, steps in bad.items():
        assert reason in flown(native, [Step(), *steps, Step()]), reason

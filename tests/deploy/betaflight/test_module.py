"""target=betaflight: what the policy is told and commands, a flight in simulation, and what is exported."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from deploy import cli, export
from deploy.betaflight import module
from deploy.codegen import toolchain
from deploy.mcu.cost import measure
from deploy.mcu.emulator import Chip
from deploy.policy_file import PolicyFile
from sim.spec import Signal
from tests.deploy.betaflight.bench import Bench, built, exported, for_the_chip, still, turned
from tests.deploy.betaflight.level import level
from tests.deploy.betaflight.sitl import SETTINGS
from tests.deploy.codegen.native import spoiled
from tests.deploy.px4.test_limits import limit, ruled


def test_its_commands_are_the_files_in_betaflights_order_and_axes(bench):
    """Every tenth turn of a loop at 1 kHz is a step; between them the motors keep the command. The clock wraps."""
    policy, rng = PolicyFile.load("quad_any"), np.random.default_rng(0)
    yaw = 2.1
    home, place, velocity, rates = np.array([1.0, -2.0, 3.0]), np.array([1.0, -2.0, 3.0]), np.zeros(3), np.zeros(3)
    rotation = turned(yaw, 0.1)
    world = turned(-yaw)
    policy.reset()
    for step in range(12):
        state = still(position=place, velocity=velocity, rotation=rotation, rates=rates)
        if step == 0:
            bench.enter(state)
        else:
            bench.tick(state)
        signals = {
            "position": world @ place,
            "linear_velocity": world @ velocity,
            "rotation": (world @ rotation).ravel(),
            "angular_velocity": rates,
            "target_position": world @ home,
            "target_velocity": np.zeros(3),
        }
        want = policy.step(signals)["motor_command"].reshape(4)
        assert bench.commands == pytest.approx(np.maximum(want, 110.0 / 1999.0), abs=5e-5)
        told = bench.outputs
        for _ in range(9):
            bench.tick(state)
            assert np.array_equal(bench.outputs, told)
        place = place + rng.normal(0.0, 0.02, 3)
        velocity, rates = rng.normal(0.0, 0.1, 3), rng.normal(0.0, 0.2, 3)
        rotation = turned(yaw + 0.02 * step, 0.1 + 0.01 * step)


@pytest.mark.parametrize("us", [125, 250, 320, 500, 1000])
def test_it_steps_at_its_rate_in_any_loop(bench, us):
    """A step may come early, by half a millisecond at most; the next one then does not."""
    bench.enter()
    steps, began, told = [], bench.now, bench.outputs
    for _ in range(3_000_000 // us):
        bench.tick(us=us)
        if not np.array_equal(bench.outputs, told):
            steps.append(((bench.now - began) & 0xFFFFFFFF) / 1e4)
            told = bench.outputs
    assert bench.flies and len(steps) == 300
    assert np.abs(np.array(steps) - np.arange(1, 301)).max() <= 0.05 + us / 2e4


def test_sticks_move_the_target(library, tmp_path):
    """What the policy is told shows in what it commands: held against the file with the same target."""
    policy = PolicyFile.load("quad_any")
    world = turned(-0.7)
    for roll, pitch, throttle in ((0.0, 1.0, 1300.0), (1.0, 0.0, 1300.0), (0.0, 0.0, 1600.0), (0.05, -0.05, 1320.0)):
        scratch = tmp_path / f"{roll}{pitch}{throttle}"
        scratch.mkdir()
        bench = Bench(library, scratch)
        policy.reset()
        speed = np.array([pitch, -roll, ((throttle - 1300.0) / 500.0 - 0.1) / 0.9])
        speed = np.where(np.abs([pitch, roll, (throttle - 1300.0) / 500.0]) > 0.1, speed, 0.0)
        target = world @ [1.0, -2.0, 3.0]
        for step in range(8):
            bench.sticks(roll, pitch, throttle) if step else None
            bench.enter() if step == 0 else bench.tick()
            told = speed if step else np.zeros(3)
            target = target + 0.01 * told
            signals = {
                "position": world @ [1.0, -2.0, 3.0],
                "linear_velocity": np.zeros(3),
                "rotation": np.eye(3).ravel(),
                "angular_velocity": np.zeros(3),
                "target_position": target,
                "target_velocity": told,
            }
            want = policy.step(signals)["motor_command"].reshape(4)
            assert bench.commands == pytest.approx(np.maximum(want, 110.0 / 1999.0), abs=5e-5)
            for _ in range(9):
                bench.tick()


@pytest.mark.parametrize("yaw", [0.0, math.pi / 4, 2.5])
def test_sticks_leave_the_target_within_the_fence(bench, yaw):
    """Which has its walls along north and west, whichever way the nose points."""
    home = np.array([1.0, -2.0, 3.0])
    start = turned(-yaw) @ home
    for stick in ((1, 1, 0), (1, -1, 1), (-1, 0, -1)):
        place, velocity = bench.target(home, yaw, (stick, 3000))
        moved = turned(yaw) @ (place - start)
        assert np.hypot(*moved[:2]) == pytest.approx(8.0, abs=1e-3) and np.abs(moved).max() <= 8.001
        assert moved[2] == pytest.approx(8.0 * stick[2], abs=0.01) and np.abs(velocity).max() < 1e-3
    place, velocity = bench.target(home, yaw, ((1, 0, 0), 3000), ((1, 1, 0), 200))  # along the edge it may
    assert np.hypot(*(place - start)[:2]) == pytest.approx(8.0, abs=1e-3) and velocity[1] > 0.5 > -velocity[0] > 0.1
    place, velocity = bench.target(home, yaw, ((1, 1, 0), 3000), ((-1, -1, 0), 100))
    assert (place - start)[:2] == pytest.approx([4.657, 4.657], abs=0.01) and velocity == pytest.approx([-1, -1, 0])


def test_sticks_leave_the_target_within_the_files_geofence(tmp_path):
    policy = ruled(tmp_path, fence_low=[-1.0, -1.0, 0.0], fence_high=[3.0, 1e9, 4.0])
    bench = Bench(built(exported(tmp_path / "fenced", policy.path), tmp_path), tmp_path)
    for yaw in (0.0, 1.0):
        home = turned(yaw) @ [1.0, 2.0, 0.1]  # nearer to the floor than sticks may take it
        for stick, wanted in {
            (1, 0, 0): (2.6, 2.0, 0.1),
            (-1, 0, 1): (-0.6, 2.0, 3.6),
            (0, 1, 0): (1.0, 10.0, 0.1),
            (0, -1, -1): (1.0, 1.0, 0.1),
        }.items():
            place, velocity = bench.target(home, yaw, (stick, 3000))
            assert place == pytest.approx(wanted, abs=0.01) and np.abs(velocity).max() < 1e-3
        place, velocity = bench.target(home, yaw, ((1, 0, 1), 3000), ((-1, 0, -1), 50))
        assert place == pytest.approx((2.1, 2.0, 3.1), abs=0.01) and velocity == pytest.approx([-1, 0, -1])


def test_it_holds_a_simulated_vehicle_in_place(bench):
    """An x500 in our engine; our world is its north, west, up."""
    from deploy.crazyflie.simulator.world import DT, World

    world, turn = World("x500", [(0.0, 0.0)]), math.radians(50.0)
    half = (math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2))
    world.place(0, position=(0.3, 0.2, 2.0), quaternion=half, rotor_speed=(0.75,) * 4)

    def state():
        (s,) = world.sense()
        return still(position=s.position, velocity=s.velocity, rotation=s.rotation, rates=s.rate)

    bench.enter(state())
    worst = 0.0
    for tick in range(3000):
        world.step([tuple(bench.commands.tolist())])
        bench.tick(state(), us=round(1e6 * DT))
        if tick > 2000:
            worst = max(worst, math.dist(world.sense()[0].position, (0.3, 0.2, 2.0)))
    assert bench.flies, bench.reason
    assert worst < 0.1
    assert abs(math.radians(world.sense()[0].yaw) - turn) < 0.2


def test_a_build_that_computes_wrongly_does_not_fly(folder, tmp_path):
    bench = Bench(built(spoiled(folder, tmp_path), tmp_path), tmp_path)
    bench.enter()
    assert not bench.flies and bench.reason == "its self-test fails"


def test_it_compiles_for_the_chip_and_computes_there(folder, tmp_path):
    assert for_the_chip(folder, tmp_path) > 10_000
    cost = measure(
        Chip(toolchain.image(folder, core=toolchain.CORES["cortex-m4f"]), count=True), PolicyFile.load("quad_any")
    )
    assert 0.0 < cost.selftest < 1.0 and cost.seconds < 250e-6


def test_releases_without_a_position_are_told_apart(folder, tmp_path):
    with pytest.raises(toolchain.ToolchainError, match=r"needs to know where it is: Betaflight estimates that since"):
        for_the_chip(folder, tmp_path, estimator=False)


def test_a_policy_of_attitude_alone_needs_no_position(tmp_path, capsys):
    path = level(tmp_path / "level.onnx")
    folder = exported(tmp_path / "level", path)
    assert "needs a position" not in capsys.readouterr().out
    assert "NEEDS_POSITION" not in (folder / "limits.h").read_text()
    for_the_chip(folder, tmp_path, estimator=False)
    bench = Bench(built(folder, tmp_path), tmp_path)
    bench.enter()
    bench.tick(still(position=(math.nan, 0, 0)), valid=0)
    assert bench.flies
    even = bench.commands
    bench.tick(still(rotation=turned(0.7, 0.3)))
    for _ in range(10):
        bench.tick(still(rotation=turned(0.7, 0.3)))  # its right side is low: there it pushes
    assert (bench.commands[:2] > even[:2] + 0.01).all() and (bench.commands[2:] < even[2:] - 0.01).all()
    bench.tick(still(rotation=turned(0.7, 1.2)))
    assert bench.reason == "tilt"


def test_a_file_narrows_the_limits(tmp_path):
    usual = module.limits(PolicyFile.load("quad_any"))
    assert "#define LIMIT_PAUSE 0.05f" in usual and "#define LIMIT_SPEED 5.0f" in usual and "VOLTS" not in usual
    strict = module.limits(ruled(tmp_path, max_tilt=30.0, max_speed=0.5, min_voltage=14.0, longest_pause=0.01))
    for line in ("TILT 30.0f", "SPEED 0.5f", "VOLTS 14.0f", "LOW 0.5f", "PAUSE 0.01"):
        assert f"#define LIMIT_{line}" in strict
    # Three sticks at their ends ask for half of the greatest speed: the vehicle may exceed its target's.
    assert math.sqrt(3.0) * limit(strict, "STICK_SPEED") == pytest.approx(0.25)
    assert limit(usual, "STICK_SPEED") == 1.0


@pytest.mark.parametrize("rules", [{"min_voltage": math.inf}, {"max_speed": math.inf}])
def test_an_infinite_rule_is_named(rules):
    policy = PolicyFile.load("quad_any")
    policy.envelope = replace(policy.envelope, **rules)
    with pytest.raises(ValueError, match=f"quad_any.* {next(iter(rules))} is infinite; name a number"):
        module.limits(policy)


def test_it_says_how_its_switch_is_set(tmp_path, capsys):
    """Betaflight offers USER1 in no list of modes but where a pin follows it."""
    exported(tmp_path / "level", level(tmp_path / "level.onnx"))
    said = capsys.readouterr().out
    assert f"aux N {module.SWITCH_MODE} CHANNEL 1700 2100 0 0" in said and "CHANNEL 0: AUX1" in said
    assert re.search(rf"^aux \d+ {module.SWITCH_MODE} \d+ 1700 2100 0 0$", SETTINGS, re.M)


def test_what_it_cannot_fly_is_named(tmp_path, capsys):
    policy = PolicyFile.load("quad_any")
    policy.inputs = (*policy.inputs, Signal("target_preview", (30,), "m", "world"))
    with pytest.raises(
        ValueError, match="target=betaflight has no signal 'target_preview' .* it has: position, rotation"
    ):
        module.BETAFLIGHT.check(policy)
    policy = PolicyFile.load("quad_any")
    policy.rate_hz = 2000.0
    with pytest.raises(ValueError, match="2000 Hz; Betaflight's slowest usual PID loop gives 1000"):
        module.BETAFLIGHT.check(policy)
    policy.envelope = replace(policy.envelope, max_change=0.1)
    policy.rate_hz = 100.0
    with pytest.raises(ValueError, match="rule max_change, which target=betaflight does not carry out"):
        module.BETAFLIGHT.check(policy)
    out = tmp_path / "no"
    words = [f"policy={ruled(tmp_path, max_change=0.2).path}", "target=betaflight", f"out={out}"]
    assert cli.call(export.main, words) == 2 and not out.exists()
    assert cli.call(export.main, ["policy=quad_any", "target=betaflight", f"out={out}", "budget_us=20"]) == 2
    assert "more than 20 us" in capsys.readouterr().err and not out.exists()

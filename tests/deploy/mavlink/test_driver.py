"""driver=mavlink against the simulated vehicle, over UDP: flights, faults, pilots, refusals."""

import math
import os
import signal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymavlink")

from deploy import PolicyFile
from deploy.drivers.mavlink import Mavlink, Settings
from deploy.guard import REASONS, Guard
from deploy.loop import run
from deploy.mavlink import px4
from deploy.mavlink.link import Link, MavlinkError
from deploy.safety.envelope import LAST, Envelope
from deploy.safety.heard import Received
from deploy.system.interrupts import as_ctrl_c
from sim.spec import Signal
from tests.deploy.mavlink.bench import driver_for, flown_again, fly, free_port, served, settles
from tests.deploy.simulated_clock import PATIENT

pytestmark = [pytest.mark.timed, pytest.mark.waits]


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return PolicyFile.load("quad_any")


def after(driver: Mavlink, seconds: float, what) -> None:
    """Call `what` so long after the policy was given the vehicle."""
    write, due = driver.write, [math.inf]

    def spy(commands):
        write(commands)
        if driver._handed_over and math.isinf(due[0]):
            due[0] = driver.link.clock() + seconds
        if driver.link.clock() > due[0] and not spy.done:
            spy.done = True
            what()

    spy.done = False
    driver.write = spy  # type: ignore[method-assign]


@flown_again
@pytest.mark.parametrize("settings", [{"heading": 70.0}, {"odometry": False, "rate_gain": 12.0, "yaw_gain": 4.0}])
def test_the_shipped_policy_holds_its_place_and_lands(policy: PolicyFile, settings):
    with served(**settings) as simulation:
        driver = driver_for(simulation, policy)
        record = fly(policy, driver, steps=700)
        assert record.steps == 700 and not record.stopped.any()
        name, error, *_ = driver.report()[0].split()
        assert name == "position_error" and float(error) < 0.1
        assert driver.report()[-1] == "landed, motors off"
        assert not simulation.autopilot.armed and simulation.autopilot.state.position[2] < 0.05
        start = math.radians(settings.get("heading", 0.0))
        forward = simulation.autopilot.state.rotation[:, 0]
        assert forward @ [math.cos(start), -math.sin(start), 0.0] > 0.98  # it did not turn


@flown_again
def test_body_rates_and_velocities_are_carried(policy: PolicyFile):
    class Told:
        rate_hz, robot = 50.0, "any"

        def __init__(self, *outputs):
            self.outputs = outputs

    upwards = Told(Signal("velocity", (3,), "m/s", "world", -1.0, 1.0))
    with served(heading=90.0) as simulation:
        driver = driver_for(simulation, upwards)
        with driver:
            clock = simulation.clock
            end = clock() + 20.0
            while not driver._handed_over and clock() < end:
                driver.read()
                driver.write({"velocity": np.full((1, 3), 0.1)})
                clock.sleep(0.02)
            for _ in range(100):
                driver.read()
                driver.write({"velocity": np.array([[0.8, 0.0, 0.2]])})
                clock.sleep(0.02)
            velocity = simulation.autopilot.state.velocity  # north, west, up; its nose points east
            assert velocity[1] == pytest.approx(-0.8, abs=0.15) and abs(velocity[0]) < 0.15
            assert velocity[2] == pytest.approx(0.2, abs=0.1)
        assert not simulation.autopilot.armed


def fenced(policy: PolicyFile, **rules: Any) -> Guard:
    """Stops it as it climbs past 0.3 m, and for nothing else."""
    rules = {"fence_low": (-9.0, -9.0, -9.0), "fence_high": (9.0, 9.0, 0.3), **PATIENT, **rules}
    return Guard(policy.inputs, policy.outputs, Envelope(**rules))


@flown_again
@pytest.mark.parametrize(
    "safe", [{}, pytest.param({"motor_command": LAST}, marks=pytest.mark.long), {"motor_command": (0.3,) * 4}]
)
def test_the_guard_hands_it_back_and_it_lands_whatever_is_safe(policy: PolicyFile, safe):
    with served() as simulation:
        driver = driver_for(simulation, policy)
        record = fly(policy, driver, fenced(policy, safe=safe), steps=3000)
        assert REASONS[record.stopped[0]] == "geofence" and driver.done and record.steps < 3000
        assert driver.report()[-3:] == ["held for 2 s by the guard", "landed by the guard", "landed, motors off"]
        assert not simulation.autopilot.armed


@flown_again
def test_a_request_to_hold_that_gets_lost_is_made_again(policy: PolicyFile):
    with served() as simulation:
        pilot, lost, modes = simulation.autopilot, [], []
        receive, change = pilot.receive, pilot.change

        def deaf(message):
            asks = message.get_type() == "COMMAND_LONG" and (message.param2, message.param3) == px4.HOLD
            if asks and message.command == px4.SET_MODE and len(lost) < 3:
                lost.append(pilot.now)
            else:
                receive(message)

        pilot.receive = deaf
        pilot.change = lambda mode: (modes.append((mode, pilot.now)), change(mode))
        fly(policy, driver_for(simulation, policy), fenced(policy), steps=3000)
        assert len(lost) == 3 and [mode for mode, _ in modes[:2]] == [px4.OFFBOARD, px4.HOLD]
        assert modes[1][1] - lost[0] < 0.9  # before its own failsafe, of 1 s
        assert pilot.setpoint[0] <= lost[0] + 0.05  # nothing of the policy's once it was stopped


def test_what_agreed_to_hold_is_not_asked_again_before_its_heartbeat(policy: PolicyFile):
    driver = Mavlink(policy, Settings())
    link, now, asked = driver.link, [0.0], []
    link.clock = lambda: now[0]  # type: ignore[method-assign]
    link.ask = lambda *command, again=0: asked.append((round(now[0], 2), *command))  # type: ignore[method-assign]
    told = (2, 12, 128, px4.custom_mode(px4.OFFBOARD), 4, 3)
    link.newest["HEARTBEAT"] = Received(0.0, link.mavlink.MAVLink_heartbeat_message(*told))
    link.answers[px4.SET_MODE] = 4  # to what was asked long ago
    driver._airborne = driver._ours = True
    for step in range(150):  # its heartbeats come once a second
        now[0] = 0.01 * step
        if step == 25:
            link.answers[px4.SET_MODE] = px4.ACCEPTED
        driver.hand_back()
    assert [when for when, *_ in asked] == pytest.approx([0.0, 0.1, 0.2, 1.45], abs=0.02)
    assert {command[1:] for command in asked} == {(px4.SET_MODE, 1.0, *px4.HOLD)}


@flown_again
def test_ctrl_c_while_it_is_asked_to_land_waits_for_that(policy: PolicyFile):
    """Whoever stopped the driver took a landing that had begun for one that was over: it went on holding its place."""
    with served() as simulation:
        pilot, driver, lost = simulation.autopilot, driver_for(simulation, policy), []
        receive = pilot.receive

        def deaf(message):
            asks = message.get_type() == "COMMAND_LONG" and (message.param2, message.param3) == px4.LAND
            if asks and message.command == px4.SET_MODE and (not lost or pilot.now - lost[0] < 4.0):
                lost.append(pilot.now)
                if len(lost) == 1:
                    os.kill(os.getpid(), signal.SIGINT)
            else:
                receive(message)

        pilot.receive = deaf
        with as_ctrl_c(real_time=True):
            record = fly(policy, driver, fenced(policy), steps=3000)
        assert record.interrupted and len(lost) > 1
        assert not pilot.armed and driver.report()[-1] == "landed, motors off"


@flown_again
def test_a_vehicle_that_refuses_to_hold_lands(policy: PolicyFile):
    with served(refuses_hold=True) as simulation:
        driver, modes, change = driver_for(simulation, policy), [], simulation.autopilot.change
        simulation.autopilot.change = lambda mode: (modes.append(mode), change(mode))
        fly(policy, driver, fenced(policy), steps=3000)
        assert modes == [px4.OFFBOARD, px4.LAND] and not simulation.autopilot.armed
        assert "it does not hold its place: refused for now" in driver.report()
        assert "held for 2 s by the guard" not in driver.report()
        assert not any("offboard control lost" in text for text in driver.link.texts)


def test_a_frozen_estimate_stops_it(policy: PolicyFile):
    with served() as simulation:
        driver = driver_for(simulation, policy, link_loss_s=1.0)
        after(driver, 0.5, lambda: setattr(simulation.autopilot, "frozen", True))
        assert "nothing of its state arrived" in run_failing(policy, driver)
        assert settles(lambda: not simulation.autopilot.armed)


def run_failing(policy: PolicyFile, driver: Mavlink) -> str:
    with pytest.raises(MavlinkError) as error:
        fly(policy, driver, steps=2000)
    return str(error.value)


def test_a_heartbeat_that_stays_away_ends_the_flight(policy: PolicyFile):
    with served() as simulation:
        driver = driver_for(simulation, policy)
        after(driver, 0.2, lambda: simulation.autopilot.due.update({0: math.inf}))
        assert "the link is lost: no heartbeat arrived for 2." in run_failing(policy, driver)


def test_an_estimate_that_jumps_ends_the_flight_and_it_lands(policy: PolicyFile):
    with served() as simulation:
        driver = driver_for(simulation, policy)
        after(driver, 0.2, lambda: setattr(simulation.autopilot, "resets", 1))
        assert "has corrected its estimate by a jump" in run_failing(policy, driver)
        assert driver.report()[-1] == "landed, motors off" and not simulation.autopilot.armed


@pytest.mark.parametrize("frames", [(21, 12), (1, 8), (1, 20), (20, 21)])
def test_odometry_in_other_frames_is_refused_by_name(policy: PolicyFile, frames):
    with served() as simulation:
        simulation.autopilot.frames = frames
        names = {1: "MAV_FRAME_LOCAL_NED", 8: "MAV_FRAME_BODY_NED", 12: "MAV_FRAME_BODY_FRD"}
        names |= {20: "MAV_FRAME_LOCAL_FRD", 21: "MAV_FRAME_LOCAL_FLU"}
        with pytest.raises(MavlinkError, match=f"ODOMETRY is in {names[frames[0]]} and {names[frames[1]]}: known are"):
            driver_for(simulation, policy).__enter__()


@pytest.mark.parametrize("frames", [(1, 1), (20, 20), (20, 12)])
def test_velocities_along_the_world_or_the_body(policy: PolicyFile, frames):
    link = Link("udpin://127.0.0.1:0")
    driver = Mavlink(policy, Settings())
    half = math.sqrt(0.5)  # its nose points east
    numbers = (0.0, 0.0, 0.0, (half, 0.0, 0.0, half), 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, [math.nan] * 21, [math.nan] * 21)
    driver.link.newest["ODOMETRY"] = Received(0.0, link.mavlink.MAVLink_odometry_message(1, *frames, *numbers))
    expected = (-2.0, 1.0, 3.0) if frames[1] == 12 else (1.0, 2.0, 3.0)
    np.testing.assert_allclose(driver._place()[1], expected, atol=1e-12)


def test_a_lost_link_ends_the_flight_and_the_vehicle_lands_by_itself(policy: PolicyFile):
    with served() as simulation:
        driver = driver_for(simulation, policy)
        after(driver, 0.5, lambda: setattr(simulation, "cut", True))
        assert "the link is lost" in run_failing(policy, driver)
        assert any("left to its own watchdogs" in line for line in driver.report())
        assert simulation.autopilot.mode == px4.LAND
        assert settles(lambda: not simulation.autopilot.armed)
        assert simulation.autopilot.state.position[2] < 0.05


def test_a_pilot_who_takes_it_has_it(policy: PolicyFile):
    with served() as simulation:
        driver = driver_for(simulation, policy)
        after(driver, 0.5, lambda: simulation.autopilot.change((3, 0)))
        fly(policy, driver, steps=2000)
        assert "somebody else has it: its mode is position" in driver.report()
        assert simulation.autopilot.mode == (3, 0) and simulation.autopilot.armed  # we did not meddle
        assert simulation.autopilot.state.position[2] > 0.3


def test_an_emergency_stop_cuts_the_motors_in_the_air(policy: PolicyFile):
    with served() as simulation:
        driver, guard = driver_for(simulation, policy), Guard(policy.inputs, policy.outputs, Envelope(**PATIENT))
        after(driver, 0.3, guard.stop)
        fly(policy, driver, guard, steps=1500)
        assert driver.report()[-1] == "emergency stop"
        assert settles(lambda: not simulation.autopilot.armed)


@pytest.mark.parametrize("lost", [6, 10**6])
def test_an_emergency_stop_is_repeated_until_it_was_heard(policy: PolicyFile, lost: int):
    with served() as simulation:
        driver, guard = driver_for(simulation, policy), Guard(policy.inputs, policy.outputs, Envelope(**PATIENT))
        receive, asked = simulation.autopilot.receive, []

        def deaf(message):
            if message.get_type() == "COMMAND_LONG" and message.command == px4.ARM and message.param2 == px4.FORCE:
                asked.append(simulation.clock())
            if len(asked) in (0, lost + 1):
                receive(message)

        def stop() -> None:
            simulation.config.offboard_loss_s = 5.0  # its own failsafe must not come first
            guard.stop()

        simulation.autopilot.receive = deaf
        after(driver, 0.3, stop)
        fly(policy, driver, guard, steps=1500)
        if lost == 6:
            assert driver.report()[-1] == "emergency stop" and not simulation.autopilot.armed
        else:
            assert "nobody heard that its motors are off" in driver.report()[-1]
            assert 10 < len(asked) < 30 and asked[-1] - asked[0] < 3.5


def test_a_vehicle_that_cannot_be_armed_says_why(policy: PolicyFile):
    with served(arms=False) as simulation:
        message = run_failing(policy, driver_for(simulation, policy))
        assert "cannot be armed: refused for now" in message and "Arming denied" in message
        assert simulation.autopilot.state.position[2] < 0.01


@pytest.mark.parametrize("ends", ["guard", "ctrl-c"])
def test_what_was_asked_to_arm_just_now_stands_still_when_we_have_gone(policy: PolicyFile, ends: str):
    """It had been asked once at most, and not at all while its heartbeat did not say yet that its motors turn."""
    with served() as simulation:
        driver, guard = driver_for(simulation, policy), Guard(policy.inputs, policy.outputs, Envelope(**PATIENT))
        receive, ask, late = simulation.autopilot.receive, driver.link.ask, list[object]()
        asked, heard = [], []

        def lossy(message):
            if message.get_type() != "COMMAND_LONG" or message.command != px4.ARM:
                receive(message)
            elif message.param1 == 1.0:
                late.append(message)
            else:
                heard.append(message)
                if len(heard) == 1:  # what was on its way arrives first
                    receive(late[0])
                elif len(heard) > 2:
                    receive(message)

        def asks(command, *parameters, again=0):
            ask(command, *parameters, again=again)
            if (command, parameters[:1]) == (px4.ARM, (1.0,)) and not asked:
                asked.append(1)
                if ends == "ctrl-c":
                    raise KeyboardInterrupt
                guard.abandon("policy failed")

        simulation.autopilot.receive, driver.link.ask = lossy, asks
        run(policy, driver, guard, steps=1500)
        assert asked and heard and not any("nobody heard" in line for line in driver.report())
        assert not simulation.autopilot.armed and simulation.autopilot.state.position[2] < 0.01


@pytest.mark.parametrize("loss", [1.5, 60.0, math.inf, math.nan])
def test_a_vehicle_that_would_fly_on_without_us_is_not_flown(policy: PolicyFile, loss: float):
    with served() as simulation:
        simulation.config.offboard_loss_s = loss
        message = run_failing(policy, driver_for(simulation, policy))
        assert f"its COM_OF_LOSS_T is {loss:g} s" in message
        assert simulation.autopilot.setpoint is None and not simulation.autopilot.armed


@pytest.mark.parametrize(("action", "stops"), [(5, False), (6, True), (7, True)])
def test_a_vehicle_whose_motors_would_stop_without_us_is_not_flown(policy: PolicyFile, action: int, stops: bool):
    with served(arms=False, offboard_loss_action=action) as simulation:
        message = run_failing(policy, driver_for(simulation, policy))
        assert ("its COM_OBL_RC_ACT says" in message) == stops and ("cannot be armed" in message) != stops
        assert not simulation.autopilot.armed


def test_a_vehicle_that_says_no_parameters_is_flown_with_notes(policy: PolicyFile):
    with served(arms=False) as simulation:
        simulation.autopilot.tells = False
        driver = driver_for(simulation, policy)
        driver.settings.hover_thrust = 0.5
        assert "cannot be armed" in run_failing(policy, driver)
        assert [note.split(":")[0] for note in driver.report()[:2]] == [
            "it does not say COM_OF_LOSS_T",
            "it does not say COM_OBL_RC_ACT",
        ]


def test_a_hover_thrust_that_is_no_number_is_not_flown(policy: PolicyFile):
    with served() as simulation:
        simulation.config.hover_thrust = math.nan
        assert "its MPC_THR_HOVER is nan: give hover_thrust=SHARE" in run_failing(
            policy, driver_for(simulation, policy)
        )


def test_nobody_there(policy: PolicyFile):
    driver = Mavlink(policy, Settings(uri=f"udpin://127.0.0.1:{free_port()}", connect_s=0.3))
    with pytest.raises(MavlinkError, match=r"no vehicle was heard within 0.3 s"):
        run(policy, driver)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"uri": "tcp:1.2.3.4"}, "needs udpin://HOST:PORT"),
        ({"heading": "east"}, "start or north"),
        ({"robot": "boat"}, "nobody lists it"),
        ({"height": -1.0}, "height must be positive"),
        ({"hover_thrust": 2.0}, "hover_thrust is 0.05"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        Settings(**settings)

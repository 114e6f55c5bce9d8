"""How old a vehicle's signals are that waited in a link: the guard acts on when they were measured."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymavlink")

from deploy import PolicyFile
from deploy.drivers import Reading
from deploy.drivers.mavlink import PARTS, WHOLE, Mavlink, Settings
from deploy.guard import PASS, REASONS, Guard
from deploy.mavlink import px4
from deploy.mavlink.link import MavlinkError
from tests.deploy.held_up import HeldUp, check_catching_up
from tests.deploy.mavlink.bench import driver_for, flown_again, fly, served

PERIOD, BOOTED = 0.01, 1234.5  # s; for how long the vehicle has been on at the beginning


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return PolicyFile.load("quad_any")


class Vehicle:
    """In the air, whose messages are handed to a driver's link one by one, at times of ours."""

    def __init__(self, policy: PolicyFile, state: tuple[str, ...], **settings: Any) -> None:
        self.now = 100.0
        self.driver = Mavlink(policy, Settings(**settings))
        self.driver._state, self.driver._airborne, self.driver._ours = state, True, True
        self.link, self.m = self.driver.link, self.driver.link.mavlink
        self.link.clock, self.link.target = lambda: self.now, 1
        self.codec = self.m.MAVLink(None, srcSystem=1, srcComponent=1)
        self.guard = Guard(policy.inputs, policy.outputs)

    def says(self, kind: str, sent: float) -> Any:
        """A message as it was at `sent` s."""
        m, at = self.m, (0.0, 0.0, 0.0)
        if kind == "ODOMETRY":
            unknown = [math.nan] * 21
            return m.MAVLink_odometry_message(
                round(1e6 * sent), 1, 12, *at, (1.0, 0.0, 0.0, 0.0), *at, *at, unknown, unknown
            )
        if kind == "LOCAL_POSITION_NED":
            return m.MAVLink_local_position_ned_message(round(1e3 * sent), *at, *at)
        if kind == "ATTITUDE_QUATERNION":
            return m.MAVLink_attitude_quaternion_message(round(1e3 * sent), 1.0, 0.0, 0.0, 0.0, *at)
        if kind == "SYS_STATUS":
            return m.MAVLink_sys_status_message(0, 0, 0, 0, 16000, -1, -1, 0, 0, 0, 0, 0, 0)
        return m.MAVLink_heartbeat_message(2, 12, 128 | 1, px4.custom_mode(px4.OFFBOARD), 4, 3)

    def hears(self, waited: float) -> None:
        """A period later, what was sent `waited` s ago arrives."""
        self.now += PERIOD
        sent = self.now - 100.0 + BOOTED - waited
        for kind in ("HEARTBEAT", "SYS_STATUS", *self.driver._state):
            packet = self.says(kind, sent).pack(self.codec)
            self.link._take(self.codec.parse_buffer(packet)[0])

    def step(self) -> Reading:
        """What the loop does with it."""
        reading = self.driver.read()
        self.guard.screen(reading.signals, reading.age)
        self.guard.filter({"motor_command": np.full((1, 4), 0.5, np.float32)})
        return reading


@pytest.mark.parametrize("state", [WHOLE, PARTS])
def test_signals_that_waited_are_stale_though_they_arrive_without_a_pause(policy: PolicyFile, state: tuple[str, ...]):
    """The link fills up by 5 ms per message, to 0.4 s: by arrival each is fresh, and the guard would let it pass."""
    vehicle = Vehicle(policy, state)
    for _ in range(100):
        vehicle.hears(0.0)
        assert max(vehicle.step().age.values()) < 2e-3 and vehicle.guard.verdict[0] == PASS
    for k in range(100):
        waited = min(0.4, 0.005 * k)
        vehicle.hears(waited)
        reading = vehicle.step()
        assert vehicle.link.silence(*state) == 0.0
        assert reading.age["position"] == reading.age["rotation"] == pytest.approx(waited, abs=2e-3)
        assert reading.age["target_position"] == 0.0
    assert REASONS[vehicle.guard.latched[0]] == "stale signal"
    vehicle.driver.hand_back()
    assert "held for 2 s by the guard" in vehicle.driver.report()


@pytest.mark.parametrize("state", [WHOLE, PARTS])
def test_what_was_held_back_is_as_old_as_it_is_when_it_comes_at_once(policy: PolicyFile, state: tuple[str, ...]):
    vehicle = Vehicle(policy, state)
    check_catching_up(vehicle, lambda: vehicle.link.silence(*state))


@pytest.mark.parametrize("state", [WHOLE, PARTS])
def test_without_stamps_their_arrival_counts_and_the_report_says_so(policy: PolicyFile, state: tuple[str, ...]):
    vehicle = Vehicle(policy, state)
    says = vehicle.says
    vehicle.says = lambda kind, sent: says(kind, 0.0)  # type: ignore[method-assign]
    for _ in range(100):
        vehicle.hears(0.3)
        assert vehicle.step().age["position"] == 0.0 and vehicle.guard.verdict[0] == PASS
    assert [line for line in vehicle.driver.report() if "time stamps" in line] == [
        f"its {kind} had no time stamps: its age counted from its arrival" for kind in state
    ]


@pytest.mark.parametrize("state", [WHOLE, PARTS])
def test_a_vehicle_whose_clock_is_set_back_is_lost_and_the_error_says_why(policy: PolicyFile, state: tuple[str, ...]):
    """By ten minutes: what it says then is as messages that somebody kept back, and ignored."""
    vehicle = Vehicle(policy, state)
    for _ in range(100):
        vehicle.hears(0.0)
        vehicle.step()
    with pytest.raises(MavlinkError, match=r"the link is lost: .*; its \w+ had time stamps of long ago"):
        for _ in range(100):
            vehicle.hears(600.0)
            vehicle.step()


@pytest.mark.parametrize("state", [WHOLE, PARTS])
def test_of_a_simulator_slower_than_the_clock_the_arrival_counts_where_it_is_told_to(
    policy: PolicyFile, state: tuple[str, ...]
):
    """At 0.8 of real time its clock says what a queue that fills would say."""
    for believed in (True, False):
        vehicle, most = Vehicle(policy, state, stamps=believed), 0.0
        for k in range(500):
            vehicle.hears(0.2 * PERIOD * k)
            most = max(most, vehicle.step().age["position"])
        assert most == (pytest.approx(1.0, abs=0.01) if believed else 0.0)
        assert (REASONS[vehicle.guard.latched[0]] == "stale signal") == believed
        vehicle.driver.hand_back()
        said = "messages had waited for 1.00 s by their time stamps; a slower simulator needs stamps=false"
        assert (said in vehicle.driver.report()) == believed
        vehicle.now += 0.2
        late = vehicle.says(state[0], vehicle.now - 100.0 + BOOTED - 1.9)  # no news, either way
        vehicle.link._take(vehicle.codec.parse_buffer(late.pack(vehicle.codec))[0])
        assert vehicle.link.silence(*state) == pytest.approx(0.2)


@pytest.mark.timed
@pytest.mark.waits
def test_a_link_on_which_all_messages_wait_alike_is_refused(policy: PolicyFile):
    """For 0.3 s from the beginning on: by stamps nothing waits, and it had been flown."""
    with served() as simulation:
        held = HeldUp(simulation.port.send, 0.3)
        held.began, simulation.port.send = -math.inf, held  # type: ignore[method-assign]
        late = r"its answers take 0\.\d+ s, .*: too old to fly by \(0\.1 s\)"
        with pytest.raises(MavlinkError, match=late), driver_for(simulation, policy):
            pass
        believes_arrivals = driver_for(simulation, policy, stamps=False)
        with believes_arrivals:
            assert believes_arrivals.read().age["position"] < 0.3


@flown_again
@pytest.mark.timed
@pytest.mark.waits
def test_a_link_that_fills_up_ends_the_policys_flight_and_it_lands(policy: PolicyFile):
    """Up to 0.4 s. Nothing is lost, and there is no silence in which the signals would be missed."""
    with served() as simulation:
        driver = driver_for(simulation, policy)
        held, silences = HeldUp(simulation.port.send, 0.4, simulation.clock), list[float]()
        simulation.port.send = held  # type: ignore[method-assign]
        read = driver.read

        def watched() -> Reading:
            reading = read()
            if driver._handed_over:
                held.begin()
                silences.append(driver.link.silence(*WHOLE))
            return reading

        driver.read = watched  # type: ignore[method-assign]
        record = fly(policy, driver, steps=3000)
        assert REASONS[record.stopped[0]] == "stale signal"
        assert np.median(silences) < 0.06  # by arrival they are fresh
        assert driver.report()[-3:] == ["held for 2 s by the guard", "landed by the guard", "landed, motors off"]
        assert not simulation.autopilot.armed and simulation.autopilot.state.position[2] < 0.05

"""How old a Crazyflie's signals are that waited in the radio: the guard acts on when they were measured."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from deploy import PolicyFile
from deploy.crazyflie import link as links
from deploy.crazyflie.blocks import blocks
from deploy.crazyflie.link import LinkError
from deploy.drivers import Reading
from deploy.drivers.crazyflie import FLYING, TUMBLED, Crazyflie, Settings
from deploy.guard import PASS, REASONS, Guard
from tests.deploy.crazyflie.bench import Served, served
from tests.deploy.crazyflie.test_driver import LATE, QUAD_ANY
from tests.deploy.held_up import HeldUp, check_catching_up

PERIOD, WRAPS = 0.01, 1 << 24  # s; of the stamps, ms


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return PolicyFile.load(QUAD_ANY)


class Vehicle:
    """In the air, whose log packets are handed to a driver's link as cflib does, at times of ours."""

    def __init__(self, policy: PolicyFile, stamps: bool = True, believed: bool = True) -> None:
        self.now, self.stamps = 100.0, stamps
        self.booted = 1e-3 * WRAPS - 100.5  # s: its stamps begin again at 0 half a second later
        self.driver = Crazyflie(100.0, Settings(stamps=believed))
        self.link = self.driver.link
        self.link.clock = lambda: self.now
        self.guard = Guard(policy.inputs, policy.outputs)
        self.blocks = {name: dict.fromkeys(block, 0.0) for name, block in blocks(True).items()}
        self.blocks["rotation"] |= {"stateEstimate.qw": 1.0, "pm.vbat": 4.0}

    def hears(self, waited: float) -> None:
        """A period later, what was sent `waited` s ago arrives."""
        self.now += PERIOD
        stamp = round(1e3 * (self.now + self.booted - waited)) % WRAPS if self.stamps else 0
        for name, values in self.blocks.items():
            self.link._data(stamp, values, SimpleNamespace(name=name))

    def step(self) -> Reading:
        """What the loop does with it."""
        reading = self.driver.read()
        self.guard.screen(reading.signals, reading.age)
        self.guard.filter({"motor_command": np.full((1, 4), 0.5, np.float32)})
        return reading


def test_signals_that_waited_are_stale_though_they_arrive_without_a_pause(policy: PolicyFile):
    """The radio falls behind by 5 ms per packet, to 0.4 s: by arrival each is fresh, and would pass."""
    vehicle = Vehicle(policy)
    for _ in range(100):
        vehicle.hears(0.0)
        assert vehicle.step().age["position"] < 2e-3 and vehicle.guard.verdict[0] == PASS
    for k in range(100):
        waited = min(0.4, 0.005 * k)
        vehicle.hears(waited)
        reading = vehicle.step()
        assert vehicle.link.silence() == 0.0
        assert reading.age["position"] == reading.age["battery_voltage"] == pytest.approx(waited, abs=2e-3)
        assert reading.age["target_position"] == 0.0
    assert REASONS[vehicle.guard.latched[0]] == "stale signal" and not vehicle.driver.report()


def test_what_was_held_back_is_as_old_as_it_is_when_it_comes_at_once(policy: PolicyFile):
    vehicle = Vehicle(policy)
    check_catching_up(vehicle, vehicle.link.silence)


def test_a_packet_that_comes_twice_is_no_news(policy: PolicyFile):
    vehicle = Vehicle(policy)
    vehicle.hears(0.0)
    for k in range(1, 6):
        vehicle.hears(k * PERIOD)
        assert vehicle.link.age() == vehicle.link.silence() == pytest.approx(k * PERIOD)


def test_without_stamps_their_arrival_counts_and_the_report_says_so(policy: PolicyFile):
    vehicle = Vehicle(policy, stamps=False)
    for _ in range(100):
        vehicle.hears(0.3)
        assert vehicle.step().age["position"] == 0.0 and vehicle.guard.verdict[0] == PASS
    assert vehicle.driver.report() == [
        f"its log block {name} had no time stamps: its age counted from its arrival" for name in blocks(True)
    ]


@pytest.mark.parametrize("believed", [True, False])
def test_of_a_simulator_slower_than_the_clock_the_arrival_counts_where_it_is_told_to(
    policy: PolicyFile, believed: bool
):
    """At 0.8 of real time its clock says what a queue that fills would say."""
    vehicle, most = Vehicle(policy, believed=believed), 0.0
    for k in range(500):
        vehicle.hears(0.2 * PERIOD * k)
        most = max(most, vehicle.step().age["position"])
    assert most == (pytest.approx(1.0, abs=0.01) if believed else 0.0)
    assert (REASONS[vehicle.guard.latched[0]] == "stale signal") == believed
    vehicle.link.client, vehicle.link.tell = MagicMock(), lambda values, confirmed=True: ""  # type: ignore[method-assign]
    vehicle.driver._airborne = True
    vehicle.driver.hand_back()
    said = "messages had waited for 1.00 s by their time stamps; a slower simulator needs stamps=false"
    assert (said in vehicle.driver.report()) == believed


PARAMETERS = ["stabilizer.controller", "motorPowerSet.enable"]


class Mute(Vehicle):
    """It hears at once, but the answers wait for longer than anybody waits for them. `told`: parameters, values."""

    def __init__(self, policy: PolicyFile, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(policy)
        monkeypatch.setattr(links, "ECHO", 1e-4)
        self.told = list[tuple[str, int]]()
        self.link.client = client = MagicMock()
        client.param.toc.get_element_by_complete_name = lambda name: SimpleNamespace(
            ident=PARAMETERS.index(name), pytype="<B"
        )
        client.send_packet = lambda packet: self.told.append((PARAMETERS[packet.data[0]], packet.data[2]))
        self.link.wait = lambda holds, deadline, again=None: True  # type: ignore[method-assign]
        self.driver._airborne = self.driver._handed_over = True
        self.hears(0.0)


NOBODY_ELSE = [("stabilizer.controller", 1), ("motorPowerSet.enable", 0)]


def test_a_vehicle_whose_answers_wait_is_held_at_once(policy: PolicyFile, monkeypatch: pytest.MonkeyPatch):
    """Not once its first answer has come: until then its motors may be overridden. It is asked until it answers."""
    vehicle = Mute(policy, monkeypatch)
    for _ in range(2):
        vehicle.told.clear()
        vehicle.driver.hand_back()
        assert vehicle.told[:2] == NOBODY_ELSE and set(vehicle.told[2:]) == set(NOBODY_ELSE)
    assert vehicle.driver.report().count("held for 2 s by the guard") == 1


def test_a_vehicle_whose_answers_wait_is_landed_at_once(policy: PolicyFile, monkeypatch: pytest.MonkeyPatch):
    vehicle = Mute(policy, monkeypatch)
    vehicle.driver._land()
    assert vehicle.told[:2] == NOBODY_ELSE and set(vehicle.told[2:]) == set(NOBODY_ELSE)
    assert vehicle.driver.report()[-1] == "landed"
    assert any("could not be written: no answer" in note for note in vehicle.driver.report())
    vehicle.link.client.high_level_commander.stop.assert_called_once()


def test_a_vehicle_that_fell_silent_as_it_was_landed_is_not_disarmed(
    policy: PolicyFile, monkeypatch: pytest.MonkeyPatch
):
    """The guard landed it when the link was lost: its motors were stopped in the air as soon as it heard us again."""
    vehicle = Mute(policy, monkeypatch)
    client, write = vehicle.link.client, vehicle.link.write
    monkeypatch.setattr(
        vehicle.link, "write", lambda *given: (setattr(vehicle, "now", vehicle.now + 1.0), write(*given))
    )
    vehicle.driver._lands_at = vehicle.now - 0.01
    with pytest.raises(LinkError):
        vehicle.driver.hand_back()
    assert vehicle.driver.done and client.high_level_commander.land.call_count == 2
    vehicle.driver.stop()
    assert client.high_level_commander.land.call_count == 4
    client.supervisor.send_arming_request.assert_not_called()


def test_a_vehicle_that_says_that_it_flies_is_not_disarmed(policy: PolicyFile, monkeypatch: pytest.MonkeyPatch):
    vehicle = Mute(policy, monkeypatch)
    next(block for block in vehicle.blocks.values() if "supervisor.info" in block)["supervisor.info"] = FLYING
    vehicle.hears(0.0)
    monkeypatch.setattr(vehicle.link, "wait", lambda holds, deadline, again=None: holds())
    client = vehicle.link.client
    vehicle.driver.stop()
    client.supervisor.send_arming_request.assert_not_called()
    assert "does not say that its motors stand still" in vehicle.driver.report()[-1]


def test_a_silent_vehicle_is_told_and_left_to_its_watchdogs(policy: PolicyFile, monkeypatch: pytest.MonkeyPatch):
    vehicle = Mute(policy, monkeypatch)
    vehicle.now += 1.0
    client = vehicle.link.client
    vehicle.driver.stop()
    assert vehicle.told[:2] == NOBODY_ELSE
    assert client.high_level_commander.land.call_count == 2  # it may not have heard the first
    assert any("left to its own watchdogs" in note for note in vehicle.driver.report())


def test_another_connection_begins_with_another_clock(policy: PolicyFile):
    """The radio's queue of before is gone, and so is what was known of the way without one."""
    vehicle, link = Vehicle(policy), None
    vehicle.hears(0.0)
    link = vehicle.link

    def begins() -> None:
        vehicle.hears(0.3)

    link.client = SimpleNamespace(log=SimpleNamespace(add_config=lambda config: setattr(config, "start", lambda: None)))
    waiting = threading.Timer(0.05, begins)
    waiting.start()
    assert link._listen(vehicle.now + 1.0, 1.0) == "" and link.age() == 0.0
    waiting.join()


def test_a_radio_in_whose_queue_all_packets_wait_alike_is_refused(monkeypatch: pytest.MonkeyPatch):
    """By stamps nothing waits; the answers to pings wait in the same queue."""
    for believed in (True, False):
        driver = Crazyflie(100.0, Settings(stamps=believed))
        driver.link.round_trips.sent("ping", 1.0)
        driver.link.round_trips.answered("ping", 1.4)
        monkeypatch.setattr(driver.link, "open", lambda seconds: None)
        monkeypatch.setattr(driver.link, "write", lambda name, value: value)
        monkeypatch.setattr(driver, "_estimator_settles", lambda seconds: True)
        monkeypatch.setattr(driver, "_state", lambda: TUMBLED)  # the next thing that is looked at
        with pytest.raises(LinkError, match="its answers take 0.40 s" if believed else "not upright"):
            driver.connect()


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.filterwarnings(LATE)
def test_the_vehicle_sends_pings_back_and_a_closed_connection_is_not_heard():
    with served(policy=QUAD_ANY) as simulation:
        link = links.Link(simulation.vehicles[0].uri, blocks(True), 10)
        link.open(20.0)
        try:
            assert link.wait(lambda: link.round_trips.known, 5.0)
            assert 0.0 < link.unseen < 1.0
            before = link.newest["rest"].arrived
            assert link.wait(lambda: link.newest["rest"].arrived > before, 5.0)
            client, link.client = link.client, object()  # as after a reconnection: the old one's thread is still there
            time.sleep(0.05)
            link.begin()
            time.sleep(0.3)
            assert not link.newest and not link.round_trips.known
            link.client = client
        finally:
            link.close()


@contextmanager
def behind() -> Iterator[tuple[Served, HeldUp]]:
    """A simulated vehicle whose log packets go through a radio that falls behind on demand."""
    with served(policy=QUAD_ANY) as simulation:
        (vehicle,) = simulation.vehicles
        held = HeldUp(vehicle._send, 0.4, simulation.clock)
        vehicle._send = held  # type: ignore[method-assign]
        yield simulation, held


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.filterwarnings(LATE)
def test_a_radio_that_falls_behind_ends_the_policys_flight_and_it_lands(policy: PolicyFile):
    """By up to 0.4 s. Nothing is lost, and there is no silence in which the signals would be missed.

    Up to three flights: a machine that stands still for a moment ends one before.
    """
    failed: list[Exception] = []
    for _ in range(3):
        try:
            with behind() as (simulation, held):
                return flies_and_lands(policy, simulation, held)
        except (AssertionError, LinkError) as error:
            failed.append(error)
    raise AssertionError(f"three flights failed: {failed}") from failed[-1]


def flies_and_lands(policy: PolicyFile, simulation: Served, held: HeldUp) -> None:
    (vehicle,) = simulation.vehicles
    driver = simulation.driver(height=0.4)
    silences: list[float] = []
    read = driver.read

    def watched() -> Reading:
        reading = read()
        if driver._handed_over:
            held.begin()
            silences.append(driver.link.silence())
        return reading

    driver.read = watched  # type: ignore[method-assign]
    record = simulation.fly(policy, driver, steps=3000)
    assert silences, "the policy never had it"
    assert REASONS[record.stopped[0]] == "stale signal"
    assert np.median(silences) < 0.06  # by arrival they are fresh
    assert "held for 2 s by the guard" in driver.report() and "landed" in driver.report()
    assert vehicle.firmware.sensed.position[2] < 0.05 and vehicle.firmware.supervisor.state.name != "LOCKED"

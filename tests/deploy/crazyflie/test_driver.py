"""driver=crazyflie against the simulated vehicle: flights, lost packets, a lost link, and refusals."""

import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import cflib.crazyflie
import cflib.crtp
import numpy as np
import pytest
from cflib.crtp.crtpstack import CRTPPacket

from deploy import PolicyFile
from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.link import Link, LinkError
from deploy.drivers import Reading
from deploy.drivers.crazyflie import Crazyflie, Settings
from deploy.guard import Guard
from deploy.loop import HandshakeError, run
from deploy.safety.envelope import Envelope
from sim.rotations import rotation_matrix
from tests.deploy.crazyflie.bench import Served, reboot, served
from tests.deploy.simulated_clock import PATIENT

QUAD_ANY = "deploy/pretrained/quad_any.onnx"

# cflib's latency thread may still send when its link has been closed, and then complains about itself.
LATE = "ignore:Exception in thread ping_thread:pytest.PytestUnhandledThreadExceptionWarning"
pytestmark = [pytest.mark.timed, pytest.mark.waits, pytest.mark.filterwarnings(LATE)]


@pytest.fixture(scope="module")
def policy() -> PolicyFile:
    return PolicyFile.load(QUAD_ANY)


@pytest.fixture(scope="module")
def simulation() -> Iterator[Served]:
    cflib.crtp.init_drivers()
    with served(policy=QUAD_ANY) as made:
        yield made


@pytest.fixture
def uri(simulation: Served) -> str:
    """Of a vehicle that has just been switched on."""
    (vehicle,) = simulation.vehicles
    reboot(vehicle.uri)
    simulation.world.place(0, position=(0.0, 0.0, 0.0))
    return vehicle.uri


class Radio:
    """Between client and vehicle. `loses` says which answers (counted from 0) never arrive; `cut` loses everything."""

    def __init__(self, uri: str, loses: Callable[[int, Packet], bool]) -> None:
        self.loses, self.cut, self.running, self.count = loses, False, True, 0
        host, _, port = uri.removeprefix("udp://").partition(":")
        self.inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.inside.connect((host, int(port)))
        self.outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.outside.bind(("127.0.0.1", 0))
        self.uri = f"udp://127.0.0.1:{self.outside.getsockname()[1]}"

    def carry(self) -> None:
        clients: dict[tuple[str, int], None] = {}
        while self.running:
            ready, _, _ = select.select([self.inside, self.outside], (), (), 0.05)
            if self.outside in ready:
                datagram, sender = self.outside.recvfrom(64)
                clients[sender] = None
                if not self.cut:
                    self.inside.send(datagram)
            if self.inside in ready:
                datagram = self.inside.recv(64)
                packet = Packet.decode(datagram)
                if packet.port != Port.LINK or packet.channel == 1:  # pings do not count
                    self.count += 1
                    if self.loses(self.count - 1, packet):
                        continue
                if not self.cut:
                    self.outside.sendto(datagram, list(clients)[-1])  # the newest: an older one may still be closing


@contextmanager
def radio(uri: str, loses: Callable[[int, Packet], bool] = lambda count, packet: False) -> Iterator[Radio]:
    made = Radio(uri, loses)
    thread = threading.Thread(target=made.carry)
    thread.start()
    try:
        yield made
    finally:
        made.running = False
        thread.join()
        made.inside.close()
        made.outside.close()


def height(simulation: Served) -> float:
    return simulation.vehicles[0].firmware.sensed.position[2]


def on_the_ground(simulation: Served) -> bool:
    """It may sink its last millimetre when the flight is over: a busy machine is late with that."""
    end = simulation.clock() + 5.0
    while height(simulation) >= 0.02 and simulation.clock() < end:
        simulation.clock.sleep(0.02)
    return height(simulation) < 0.02


def fenced(policy: PolicyFile, top: float) -> Guard:
    """Stops it above `top` m, and not for deadlines that a busy machine misses."""
    fence = Envelope(fence_low=(-1.0, -1.0, -1.0), fence_high=(1.0, 1.0, top), **PATIENT)
    return Guard(policy.inputs, policy.outputs, fence)


@pytest.mark.parametrize("onboard", [True, False])
def test_policy_flies_on_board_and_from_here(policy: PolicyFile, simulation: Served, uri: str, onboard: bool):
    driver = simulation.driver(onboard=onboard, height=0.4)
    flown: list[bool] = []
    write = driver.write

    def spy(commands):
        write(commands)
        firmware = simulation.vehicles[0].firmware
        flown.append(firmware.policy_flies if onboard else firmware.parameters["motorPowerSet.enable"] == 1)

    driver.write = spy  # type: ignore[method-assign]
    record = simulation.fly(policy, driver, steps=400)
    assert record.steps == 400 and sum(flown) > 120
    assert not record.stopped.any()
    report = driver.report()
    assert "landed" in report and any("battery after" in line for line in report)
    assert float(report[0].split()[1]) < 0.15  # m, over the last second
    assert on_the_ground(simulation)
    firmware = simulation.vehicles[0].firmware
    assert not firmware.supervisor.armed and firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert not onboard or firmware.parameters["policy.mode"] == 0.0


def test_the_guard_stops_a_flight_by_landing(policy: PolicyFile, simulation: Served, uri: str):
    guard = fenced(policy, 0.2)
    driver = simulation.driver(height=0.4)
    record = simulation.fly(policy, driver, guard)  # without a limit: the driver says when it is over
    assert record.stopped.any() and driver.done
    assert driver.report()[-4:-1] == ["held for 2 s by the guard", "landed by the guard", "landed"]
    assert on_the_ground(simulation) and simulation.vehicles[0].firmware.supervisor.state.name != "LOCKED"


def test_held_it_keeps_its_heading(policy: PolicyFile, simulation: Served, uri: str):
    """130 degrees from x, stopped by a low fence while it climbs: held, then landed."""
    half = math.radians(130.0) / 2.0
    simulation.world.place(0, position=(0.0, 0.0, 0.0), quaternion=(math.cos(half), 0.0, 0.0, math.sin(half)))
    driver, headings = simulation.driver(height=0.4), []
    read = driver.read

    def spy() -> Reading:
        headings.append(simulation.vehicles[0].firmware.sensed.yaw)
        return read()

    driver.read = spy  # type: ignore[method-assign]
    simulation.fly(policy, driver, fenced(policy, 0.2))
    assert "held for 2 s by the guard" in driver.report()
    assert max(abs(heading - 130.0) for heading in headings) < 10.0


def test_what_the_guard_stops_gets_no_zeros_in_the_air(policy: PolicyFile, simulation: Served, uri: str):
    guard = fenced(policy, 2.0)
    driver = simulation.driver(onboard=False, height=0.4)
    told: list[float] = []
    send, read = driver.link.send, driver.read

    def spy(name: str, value: float) -> tuple[int, str]:
        told.extend([value] if name.startswith("motorPowerSet.m") else [])
        return send(name, value)

    def elsewhere() -> Reading:
        reading = read()
        if len(told) > 4 * 30:  # commands of four motors
            reading.signals["position"][:] += 5.0
        return reading

    driver.link.send, driver.read = spy, elsewhere  # type: ignore[method-assign]
    record = simulation.fly(policy, driver, guard)
    assert record.stopped.any() and "held for 2 s by the guard" in driver.report() and "landed" in driver.report()
    assert len(told) > 4 * 30 and np.reshape(told, (-1, 4)).any(axis=1).all()
    assert on_the_ground(simulation)


@pytest.mark.parametrize(
    ("begins", "onboard"),  # s after the guard has stopped it
    [(0.0, True), (0.5, False), *(pytest.param(*one, marks=pytest.mark.long) for one in ((0.0, False), (0.5, True)))],
)
def test_it_holds_its_place_though_nothing_arrives_for_a_while(
    policy: PolicyFile, simulation: Served, uri: str, onboard: bool, begins: float
):
    guard = fenced(policy, 2.0)
    driver = simulation.driver(onboard=onboard, height=0.7)
    read, silence, clock = driver.read, driver.link.silence, simulation.clock
    flown, stopped = 0, math.inf
    heights: list[float] = []  # m, in the second and a half of which it is to hold

    def silent() -> float:
        return 0.15 if 0.0 <= clock() - stopped - begins < 0.15 else silence()

    def elsewhere() -> Reading:
        nonlocal flown, stopped
        reading = read()
        flown += driver._handed_over
        if flown > 100:
            reading.signals["position"][:] += 5.0
            stopped = min(stopped, clock())
        if 0.0 < clock() - stopped < 1.5:
            heights.append(height(simulation))
        return reading

    driver.link.silence, driver.read = silent, elsewhere  # type: ignore[method-assign]
    record = simulation.fly(policy, driver, guard)
    report = driver.report()
    assert record.stopped.any() and report.count("held for 2 s by the guard") == 1
    assert "landed by the guard" in report and "landed" in report
    assert len(heights) > 50 and min(heights) > 0.5
    assert on_the_ground(simulation)


def test_the_guards_limit_on_the_voltage_lands_it(policy: PolicyFile, simulation: Served, uri: str):
    driver = simulation.driver(height=0.3)
    guard = Guard(policy.inputs, policy.outputs, Envelope(min_voltage=4.2, **PATIENT), driver.signals)
    record = simulation.fly(policy, driver, guard)
    assert record.interventions["low battery"] and driver.done and on_the_ground(simulation)


def test_a_pressed_emergency_stop_keeps_it_on_the_ground(policy: PolicyFile, simulation: Served, uri: str):
    driver = simulation.driver(height=0.4)
    guard = Guard(policy.inputs, policy.outputs, Envelope(**PATIENT))
    connect = driver.connect

    def press() -> None:
        connect()
        guard.stop()

    driver.connect = press  # type: ignore[method-assign]
    simulation.fly(policy, driver, guard)
    assert "stopped on the ground by the emergency stop" in driver.report() and height(simulation) == 0.0
    assert simulation.vehicles[0].firmware.supervisor.state.name != "LOCKED"


def test_signals_are_what_the_vehicle_senses(simulation: Served, uri: str):
    turn = np.array([0.9, 0.1, -0.2, 0.3])
    simulation.world.place(0, position=(1.0, 2.0, 3.0), quaternion=turn / np.linalg.norm(turn))
    link = Link(uri, {"q": dict.fromkeys((f"stateEstimate.q{a}" for a in "wxyz"), "float")}, 10, clock=simulation.clock)
    link.open(30.0)
    simulation.clock.sleep(0.05)
    sensed = simulation.vehicles[0].firmware.sensed
    logged = rotation_matrix(*(link.value(f"stateEstimate.q{a}") for a in "wxyz"))
    np.testing.assert_allclose(logged, sensed.rotation, atol=0.1)  # it is falling meanwhile
    with pytest.raises(KeyError, match=r"pm.vbat is not logged"):
        link.value("pm.vbat")
    link.close()


def connected(said: dict[str, float], onboard: bool = False) -> Crazyflie:
    """A driver whose vehicle says this of itself, and 0 of what is left out."""
    driver = Crazyflie(100.0, Settings(uri="udp://127.0.0.1:1", onboard=onboard))
    driver.link = SimpleNamespace(  # type: ignore[assignment]
        open=lambda _: None,
        write=lambda *_: None,
        tell=lambda *_: "",
        clock=lambda: 0.0,
        wait=lambda *_: True,
        age=lambda: 0.0,
        silence=lambda: 0.0,
        unseen=0.0,
        doubts=list,
        value=lambda name: said.get(name, 0),
        parameter=lambda _: 0,
    )
    driver.connect()
    return driver


@pytest.mark.parametrize("name", ["kalman.varPX", "kalman.varPZ", "stateEstimate.y"])
def test_an_estimator_that_says_no_number_has_found_no_position(name: str):
    driver, now = Crazyflie(100.0, Settings(uri="udp://127.0.0.1:1", onboard=False)), [0.0]

    def wait(holds: Callable[[], bool], deadline: float) -> bool:
        while now[0] < deadline and not holds():
            now[0] += 0.01
        return now[0] < deadline

    said = {name: math.nan}
    driver.link = SimpleNamespace(  # type: ignore[assignment]
        clock=lambda: now[0], wait=wait, value=lambda which: said.get(which, 1e-4)
    )
    assert not driver._estimator_settles(5.0)
    said.clear()
    now[0] = 0.0
    assert driver._estimator_settles(5.0)


@pytest.mark.parametrize("way", ["emergency", "zeros", "error"])
def test_what_was_armed_and_stays_on_the_ground_is_disarmed(way: str):
    """A Brushless turns its rotors from then on, and the firmware leaves them on for 30 s."""
    driver, asked = connected({"pm.vbat": 4.1, "stateEstimate.qw": 1.0}), list[bool]()
    driver.link.client = SimpleNamespace(
        commander=SimpleNamespace(send_notify_setpoint_stop=lambda: None),
        supervisor=SimpleNamespace(send_arming_request=asked.append),
    )
    driver.link.close = lambda: None  # type: ignore[method-assign]
    driver.write({"motor_command": np.full((1, 4), 0.5)})
    assert asked == [True] and not driver._airborne
    if way == "emergency":
        driver.emergency_stop()
        assert asked == [True, False]  # now, whenever `stop` comes
    elif way == "zeros":
        for _ in range(10):
            driver.hand_back()
    driver.stop()
    assert asked == [True, *asked[1:]] and not any(asked[1:]) and len(asked) == (3 if way == "emergency" else 2)


@pytest.mark.parametrize("target", [0.5, math.nan])
def test_a_landing_ends_whatever_the_estimator_says(target: float):
    driver, landed, waits = connected({"pm.vbat": 4.1, "stateEstimate.qw": 1.0}), [], []
    driver.link.value = lambda name: math.nan  # type: ignore[method-assign]
    driver.target[2] = target
    driver.link.wait = lambda holds, deadline, *_: bool(waits.append(deadline))  # type: ignore[assignment,func-returns-value]
    driver.link.client = SimpleNamespace(
        commander=SimpleNamespace(send_notify_setpoint_stop=lambda: None),
        high_level_commander=SimpleNamespace(land=lambda *told, yaw: landed.append(told), stop=lambda: None),
    )
    driver._land()
    assert landed[0] == pytest.approx((0.0, 0.5 / 0.4 + 0.5)) and np.isfinite(waits).all()


@pytest.mark.parametrize(("volts", "says"), [(3.72, "3.72 V"), (3.66, "3.66 V: charge it")])
def test_a_battery_that_is_nearly_empty_at_rest_is_said(volts: float, says: str):
    assert connected({"pm.vbat": volts, "stateEstimate.qw": 1.0}).report()[-1].endswith(says)


def test_it_is_told_to_keep_its_nose_where_it_points_at_the_start():
    said = {"pm.vbat": 4.1, "stateEstimate.qw": np.cos(0.6), "stateEstimate.qz": np.sin(0.6)}  # 1.2 rad from x
    driver = connected(said)
    told = driver.read().signals["target_heading"][0]
    np.testing.assert_allclose(told, [np.cos(1.2), np.sin(1.2)], rtol=1e-6)
    said |= {"stateEstimate.qw": 1.0, "stateEstimate.qz": 0.0}  # turned in flight: the target stays
    np.testing.assert_array_equal(driver.read().signals["target_heading"][0], told)


class Turning(dict[str, float]):
    """Turned by a quarter once its attitude was read: then the next packet has arrived."""

    def get(self, name: str, default: float = 0.0) -> float:  # type: ignore[override]
        value = super().get(name, default)
        if name == "stateEstimate.qz":
            self |= dict.fromkeys(("stateEstimate.qw", name), math.sqrt(0.5))
        return value


def test_its_heading_at_the_start_is_of_one_packet():
    driver = connected(Turning({"pm.vbat": 4.1, "stateEstimate.qw": 1.0}))
    np.testing.assert_array_equal(driver.heading, (1.0, 0.0))


def test_the_set_points_name_the_heading_at_the_start():
    """Which the PID controller on board turns to, whenever it flies."""
    driver = connected({"pm.vbat": 4.1, "stateEstimate.qw": np.cos(0.6), "stateEstimate.qz": np.sin(0.6)}, onboard=True)
    sent: list[tuple[float, ...]] = []
    driver.link.client = SimpleNamespace(  # type: ignore[assignment]
        commander=SimpleNamespace(send_position_setpoint=lambda *place: sent.append(place))
    )
    driver._airborne = driver._handed_over = True
    driver.write({"motor_command": np.ones((1, 4), np.float32)})
    np.testing.assert_allclose(sent, [(0.0, 0.0, 0.5, math.degrees(1.2))], rtol=1e-6)


# Lost answers: of every phase of connecting. cflib alone would wait for ever for most of them.
@pytest.mark.parametrize("lost", [0, pytest.param(150, marks=pytest.mark.long), 280])
def test_a_lost_answer_only_costs_time(simulation: Served, uri: str, lost: int):
    with radio(uri, lambda count, packet: count == lost) as link:
        driver = simulation.driver(uri=link.uri)
        began = simulation.clock()
        driver.connect()
        assert simulation.clock() - began < 20.0
        assert np.isfinite(driver.read().signals["position"]).all()
        driver.stop()


@pytest.mark.parametrize(
    ("port", "command", "losses", "attempts"), [(Port.LOGGING, b"\x06", 1, 2), (Port.PARAMETERS, b"", 3, 1)]
)
def test_lost_echoes_are_asked_for_again(
    simulation: Served, uri: str, port: Port, command: bytes, losses: int, attempts: int
):
    left = losses

    def loses(count: int, packet: Packet) -> bool:
        """The first answers to creating a log block, or to writing a parameter."""
        nonlocal left
        control = 1 if port == Port.LOGGING else 2
        hit = (packet.port, packet.channel) == (port, control) and packet.data.startswith(command) and left > 0
        left -= hit
        return hit

    with radio(uri, loses) as link:
        driver = simulation.driver(uri=link.uri)
        driver.connect()
        assert left == 0 and driver.link.attempts == attempts
        driver.stop()


def test_a_lost_link_ends_the_flight_and_the_vehicle_comes_down(policy: PolicyFile, simulation: Served, uri: str):
    with radio(uri) as link:
        driver = simulation.driver(uri=link.uri, height=0.4)
        write = driver.write
        steps = 0

        def cut(commands):
            nonlocal steps
            steps += 1
            link.cut = steps > 400
            write(commands)

        driver.write = cut  # type: ignore[method-assign]
        began = simulation.clock()
        with pytest.raises(LinkError, match="the link is lost: nothing arrived for 0.4"):
            simulation.fly(policy, driver, steps=1000)
        assert simulation.clock() - began < 20.0
        assert any("left to its own watchdogs" in note for note in driver.report())
    simulation.clock.sleep(1.0)
    firmware = simulation.vehicles[0].firmware
    assert firmware.supervisor.state.name == "LOCKED" and firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert on_the_ground(simulation)
    driver = simulation.driver()
    with pytest.raises(LinkError, match="locked: reboot it"), driver:
        pass


def test_emergency_stop(simulation: Served, uri: str):
    driver = simulation.driver(onboard=False, height=0.3)
    with driver:
        end = simulation.clock() + 10.0
        while height(simulation) < 0.1:
            driver.write({"motor_command": np.full((1, 4), 0.6, np.float32)})
            simulation.clock.sleep(0.01)
            assert simulation.clock() < end
        driver.emergency_stop()
        simulation.clock.sleep(0.1)
        assert simulation.vehicles[0].firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert simulation.vehicles[0].firmware.supervisor.state.name == "LOCKED"


def test_a_vehicle_without_the_policy_stays_on_the_ground(policy: PolicyFile):
    with served() as plain:
        driver = plain.driver(height=0.3)
        with pytest.raises(LinkError, match="no policy on board"):
            plain.fly(policy, driver, steps=10)
        assert not plain.vehicles[0].firmware.supervisor.armed


def test_a_policy_that_fails_on_board_is_landed_by_pid(policy: PolicyFile, simulation: Served, uri: str):
    onboard = simulation.vehicles[0].firmware.policy
    assert onboard is not None
    sound, step = onboard.runtime, onboard.runtime.step
    nothing = {"motor_command": np.full((1, 4), np.nan, np.float32)}
    onboard.runtime = SimpleNamespace(
        reset=sound.reset, step=lambda s: step(s) if s["position"][0, 2] < 0.39 else nothing
    )
    try:
        driver = simulation.driver(height=0.4)
        simulation.fly(policy, driver)
    finally:
        onboard.runtime = sound
    assert any("handed back on board: the policy's command" in note for note in driver.report()) and driver.done
    assert on_the_ground(simulation) and simulation.vehicles[0].firmware.policy_failed
    driver = simulation.driver(height=0.3)  # selecting it anew is another chance
    assert simulation.fly(policy, driver, steps=300).steps == 300


def test_an_empty_battery_stays_on_the_ground(policy: PolicyFile):
    with served(battery=3.3) as tired:
        driver = tired.driver(onboard=False)
        with pytest.raises(LinkError, match=r"the battery has 3\.2\d V, less than 3.5 V"):
            tired.fly(policy, driver, steps=10)
        assert not tired.vehicles[0].firmware.supervisor.armed


def test_a_battery_that_empties_in_flight_ends_it(policy: PolicyFile, simulation: Served, uri: str):
    driver = simulation.driver(height=0.3, empty=4.2)
    record = simulation.fly(policy, driver)
    assert any(note.startswith("landed for the battery") for note in driver.report()) and driver.done
    assert 5.0 < record.duration < 12.0 and on_the_ground(simulation)


def lands_after(volts: Callable[[int], float], ratio: Callable[[int], float], **more: object) -> int:
    """How many steps of 10 ms, with these V and PWM ratios, a driver flies on before it lands for the battery."""
    driver, step = Crazyflie(100.0, Settings(**more)), 0
    driver.link = SimpleNamespace(  # type: ignore[assignment]
        clock=lambda: 0.01 * step,
        silence=lambda: 0.0,
        value=lambda name: volts(step) if name == "pm.vbat" else 65535 * ratio(step),
    )
    for step in range(700):
        if driver._reason_to_land(np.ones(4)):
            return step
    return -1


@pytest.mark.parametrize(("ratio", "rests"), [(0.0, 2.98), (0.8, 3.385), (1.0, 3.62)])
def test_a_battery_is_judged_without_its_load(ratio: float, rests: float):
    """2.98 V on the table, while hovering, and with all that the rotors give then; for five seconds."""
    assert lands_after(lambda _: 2.98, lambda _: ratio, empty=rests - 0.02) == -1
    assert 499 <= lands_after(lambda _: 2.98, lambda _: ratio, empty=rests + 0.02) <= 501
    assert lands_after(lambda _: 2.98, lambda _: ratio, board="sag=0", empty=2.97) == -1
    assert 499 <= lands_after(lambda _: 2.98, lambda _: ratio, board="sag=0", empty=2.99) <= 501


def test_no_more_load_is_reckoned_than_the_most():
    """A full battery and all of the PWM: 0.16 N of each rotor, of which the platform uses 0.12."""
    assert lands_after(lambda _: 4.2, lambda _: 1.0, empty=4.89) == -1
    assert 499 <= lands_after(lambda _: 4.2, lambda _: 1.0, empty=4.91) <= 501


def test_a_load_that_jitters_hides_no_low_battery():
    assert 499 <= lands_after(lambda _: 2.98, lambda step: (0.4, 1.0)[step % 2]) <= 540


def test_a_moment_is_no_empty_battery_and_a_lasting_one_is_at_once():
    def dips(length: int) -> int:
        return lands_after(lambda step: 2.69 if 300 <= step < 300 + length else 3.9, lambda _: 0.8)

    assert dips(2) == -1 and dips(400) == 302


def test_a_battery_that_says_no_number_is_none():
    assert 2 <= lands_after(lambda _: math.nan, lambda _: 0.8) <= 3
    assert lands_after(lambda _: 3.9, lambda step: math.nan if step else 0.8) in (500, 501)
    with pytest.raises(LinkError, match="the battery has nan V"):
        connected({"pm.vbat": math.nan, "stateEstimate.qw": 1.0})


@pytest.mark.parametrize("mode", ["fly", "bench"])
def test_the_mode_is_off_when_it_is_left(mode: str):
    """So that the next client that selects controller 6 flies nothing by that."""
    driver, written = connected({"pm.vbat": 4.1, "stateEstimate.qw": 1.0}, onboard=True), {"policy.mode": 3.0}
    driver.settings.mode = mode
    driver.link.client, driver.link.close, driver.link.write = SimpleNamespace(), lambda: None, written.__setitem__
    driver.stop()
    assert written["policy.mode"] == 0.0


def test_a_crash_ends_the_flight(policy: PolicyFile, simulation: Served, uri: str):
    driver = simulation.driver(height=0.3)
    write = driver.write

    def tip_over(commands):
        write(commands)
        simulation.world.place(0, position=(0.0, 0.0, 0.0), quaternion=(0.0, 1.0, 0.0, 0.0))

    driver.write = tip_over  # type: ignore[method-assign]
    with pytest.raises(LinkError, match="crashed: recover it"):
        simulation.fly(policy, driver, steps=3000)
    assert simulation.vehicles[0].firmware.ratios == (0.0, 0.0, 0.0, 0.0)


def test_nobody_there():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        driver = Crazyflie(100.0, Settings(uri=f"udp://127.0.0.1:{silent.getsockname()[1]}", connect_s=1.5))
        began = time.monotonic()
        with pytest.raises(LinkError, match="the connection stalled within 1.5 s"), driver:
            pass
        assert time.monotonic() - began < 8.0


def test_who_answers_late_gets_longer_at_each_attempt(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return self.is_set()

    monkeypatch.setattr("cflib.crazyflie.Crazyflie", MagicMock)
    link = Link("udp://127.0.0.1:1", {}, 10, clock=lambda: now[0])
    monkeypatch.setattr("deploy.crazyflie.link.threading", SimpleNamespace(Event=Event, Thread=threading.Thread))
    with pytest.raises(LinkError, match="the connection stalled within 20 s"):
        link.open(20.0)
    assert link.attempts == 8  # of 0.5, 0.75, 1.1, 1.7, 2.5, 3.8, 5 s, and what was left; 37 of 0.5 s each


def test_nobody_there_for_days_is_tried_again_and_again(monkeypatch: pytest.MonkeyPatch):
    """At the 1752nd attempt its patience was too large for a float; and another `open` went on counting."""
    now, patiences = [0.0], []
    link = Link("udp://127.0.0.1:1", {}, 10, clock=lambda: now[0])

    def attempt(end: float, patience: float) -> str:
        patiences.append(patience)
        now[0] += 1.0
        return "no answer"

    monkeypatch.setattr(link, "_attempt", attempt)
    for tries in (3000, 2):
        patiences.clear()
        with pytest.raises(LinkError, match=rf"\({tries} attempt"):
            link.open(float(tries))
        assert len(patiences) == tries and patiences[:2] == [0.5, 0.75] and max(patiences) <= 5.0


class Dongle:
    """A Crazyradio's share, slow; it never fails. `sent`: what was on air, but for what keeps the link alive."""

    version = 1.0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: None  # set_channel, set_arc, close, ...

    def send_packet(self, data: Iterable[int]) -> SimpleNamespace:
        time.sleep(0.02)
        if (packet := bytes(data))[0] & 0xF3 != 0xF3:
            self.sent.append(packet[1:])
        return SimpleNamespace(ack=True, data=(), retry=0)


def test_by_radio_what_was_sent_last_is_on_air_before_the_link_closes(monkeypatch: pytest.MonkeyPatch):
    """cflib's radio driver throws away what waits as it is closed: a vehicle was never told to land."""
    dongle, told = Dongle(), [bytes([k, 7]) for k in range(6)]
    monkeypatch.setattr("cflib.crtp.radiodriver.RadioManager.open", lambda number: dongle)
    client, driver = cflib.crazyflie.Crazyflie(), cflib.crtp.RadioDriver()
    driver.connect("radio://0/80/2M/E7E7E7E7E7", None, None)
    client.link, client.commander.send_setpoint = driver, lambda *given: None
    link = Link("radio://0/80/2M/E7E7E7E7E7", {}, 10)
    link.client = client
    for data in told:
        packet = CRTPPacket()
        packet.set_header(8, 0)
        packet.data = data
        client.send_packet(packet)
    link.close()
    assert dongle.sent == told and client.link is None


def test_refusals(policy: PolicyFile):
    with pytest.raises(ValueError, match="a lost link leaves the motors running"):
        Crazyflie(100.0, Settings(uri="radio://0/80/2M/E7E7E7E7E7", onboard=False))
    with pytest.raises(ValueError, match="logs every 10 ms"):
        Crazyflie(500.0, Settings())
    with pytest.raises(ValueError, match="height must be positive"):
        Settings(height=0.0)
    with pytest.raises(HandshakeError, match="runs at 100 Hz, the driver at 50 Hz"):
        run(policy, Crazyflie(50.0, Settings()))

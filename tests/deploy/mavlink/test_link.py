"""A link to a vehicle, and the simulated one: whom they listen to, and what they make of nonsense."""

import math
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pymavlink")

from deploy.mavlink import px4
from deploy.mavlink.link import Link, MavlinkError
from deploy.mavlink.settings import parsed
from deploy.mavlink.simulator import Config
from deploy.mavlink.simulator.simulation import Simulation
from tests.deploy.mavlink.bench import free_port, served, settles

pytestmark = [pytest.mark.timed, pytest.mark.waits]


def test_another_autopilot_is_named():
    link = Link(f"udpin://127.0.0.1:{free_port()}")
    m = link.mavlink
    other = m.MAVLink(None, srcSystem=1, srcComponent=1)
    other.robust_parsing = True
    packet = m.MAVLink_heartbeat_message(m.MAV_TYPE_QUADROTOR, m.MAV_AUTOPILOT_ARDUPILOTMEGA, 0, 0, 4, 3).pack(other)
    link._take(other.parse_buffer(packet)[0])
    assert "MAV_AUTOPILOT_ARDUPILOTMEGA, and only PX4" in link.strangers and not link.target


def test_only_a_vehicles_heartbeat_gets_the_port():
    link = Link(f"udpin://127.0.0.1:{free_port()}")
    m, place = link.mavlink, ("127.0.0.1", parsed(link.uri)[2])
    strangers = (
        (190, m.MAVLink_heartbeat_message(m.MAV_TYPE_GCS, m.MAV_AUTOPILOT_INVALID, 0, 0, 4, 3)),
        (1, m.MAVLink_statustext_message(3, b"it is me")),
        (1, m.MAVLink_heartbeat_message(m.MAV_TYPE_HELICOPTER, m.MAV_AUTOPILOT_PX4, 0, 0, 4, 3)),
    )
    ours = m.MAVLink_heartbeat_message(m.MAV_TYPE_QUADROTOR, m.MAV_AUTOPILOT_PX4, 0, 0, 4, 3)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as vehicle,
    ):
        vehicle.bind(("127.0.0.1", 0))
        opening = threading.Thread(target=link.open, args=(5.0,))
        opening.start()
        try:
            assert settles(lambda: link.port is not None)
            for component, message in strangers:
                other.sendto(message.pack(m.MAVLink(None, 1, component)), place)
            assert settles(lambda: "no multicopter" in link.strangers)
            assert link.port is not None and link.port.peer is None
            vehicle.sendto(ours.pack(m.MAVLink(None, 7, 1)), place)
            opening.join()
            assert link.port.peer == vehicle.getsockname() and link.target == 7 and not link.texts
        finally:
            opening.join()
            link.close()


def test_a_link_that_is_opened_again_knows_nothing_of_before():
    """Nobody is there any more: the heartbeat of before had counted, and all that was known looked as it was."""
    with served() as simulation:
        link = Link(simulation.config.uri.replace("udpout", "udpin"))
        link.open(5.0)
        link.answers[px4.ARM] = px4.ACCEPTED
        old = link.port
        link.close()
    assert link.newest
    with pytest.raises(MavlinkError, match="no vehicle was heard"):
        link.open(0.3)
    assert not (link.newest or link.target or link.answers or link.texts)
    link.close()
    assert old is not None and old.socket.fileno() < 0


def test_a_thread_of_the_connection_before_tells_the_next_one_nothing():
    """Where it was held up for longer than anybody waits for its end."""
    link, heard = Link("udpin://127.0.0.1:0"), []
    link._take = heard.append  # type: ignore[method-assign]
    late = SimpleNamespace(peer=None, send=lambda message: None, wait=lambda seconds: None)
    late.receive = lambda: setattr(link, "port", None) or ["of before"]  # type: ignore[func-returns-value]
    link.port, link._running = late, True  # type: ignore[assignment]
    link._receive()
    assert not heard


def test_the_vehicle_is_asked_for_the_time_and_its_answer_is_a_round_trip():
    with served() as simulation:
        link = Link(simulation.config.uri.replace("udpout", "udpin"))
        link.open(5.0)
        try:
            assert link.wait(lambda: link.round_trips.known, 5.0)
            assert 0.0 < link.unseen < 1.0 and link.age("HEARTBEAT") >= link.silence("HEARTBEAT") + link.unseen - 0.01
        finally:
            link.close()


def test_a_vehicle_that_does_not_answer_is_as_old_as_its_stamps_say_and_the_report_says_so():
    with served() as simulation:
        simulation.autopilot.answers = False
        link = Link(simulation.config.uri.replace("udpout", "udpin"))
        link.open(5.0)
        try:
            assert settles(lambda: any("does not answer pings" in line for line in link.doubts()))
            assert link.unseen == 0.0
        finally:
            link.close()


def test_questions_for_the_time_and_answers_to_others_are_no_answers():
    link = Link("udpin://127.0.0.1:0")
    m, link.target = link.mavlink, 1
    codec = m.MAVLink(None, srcSystem=1, srcComponent=1)
    link.round_trips.sent(77, link.clock())
    for theirs, ours, system in ((0, 77, 1), (5, 78, 1), (5, 77, 2)):
        other = m.MAVLink(None, srcSystem=system, srcComponent=1)
        link._take(codec.parse_buffer(m.MAVLink_timesync_message(theirs, ours).pack(other))[0])
        assert not link.round_trips.known
    link._take(codec.parse_buffer(m.MAVLink_timesync_message(5, 77).pack(codec))[0])
    assert link.round_trips.known


def test_answers_to_others_are_not_ours():
    link = Link("udpin://127.0.0.1:0")
    m = link.mavlink
    link.target = 1
    codec = m.MAVLink(None, srcSystem=1, srcComponent=1)
    for result, whom in ((4, (255, 190)), (0, (245, 191)), (2, (245, 1)), (3, (0, 0))):
        packet = m.MAVLink_command_ack_message(px4.ARM, result, 0, 0, *whom).pack(codec)
        link._take(codec.parse_buffer(packet)[0])
        assert link.answers.get(px4.ARM) == (None if result == 4 else 0)


def test_late_repeated_and_foreign_messages_are_no_news():
    link = Link("udpin://127.0.0.1:0")
    m = link.mavlink
    link.target = 1

    def hear(stamp: int, x: float, system: int = 1) -> None:
        codec = m.MAVLink(None, srcSystem=system, srcComponent=1)
        packet = m.MAVLink_local_position_ned_message(stamp, x, 0.0, 0.0, 0.0, 0.0, 0.0).pack(codec)
        link._take(codec.parse_buffer(packet)[0])

    hear(100, 1.0)
    hear(100, 2.0)
    hear(90, 3.0)
    hear(200, 4.0, system=2)
    assert link.value("LOCAL_POSITION_NED").x == 1.0
    hear(101, 5.0)
    assert link.value("LOCAL_POSITION_NED").x == 5.0


def test_the_newest_warnings_are_kept():
    link = Link("udpin://127.0.0.1:0")
    m = link.mavlink
    link.target = 1
    for number in range(150):
        codec = m.MAVLink(None, srcSystem=1, srcComponent=1)
        packet = m.MAVLink_statustext_message(m.MAV_SEVERITY_WARNING, f"warning {number}".encode()).pack(codec)
        link._take(codec.parse_buffer(packet)[0])
    assert link.last_words() == "warning 148; warning 149" and len(link.texts) == 100


def test_the_wanted_parameters_are_found_among_others(monkeypatch: pytest.MonkeyPatch):
    """As where a ground station reads all of them through the same router."""
    link = Link("udpin://127.0.0.1:0")
    m = link.mavlink
    link.target = 1
    asked: list[str] = []

    def hear(name: str, value: float) -> None:
        codec = m.MAVLink(None, srcSystem=1, srcComponent=1)
        packet = m.MAVLink_param_value_message(name.encode(), value, m.MAV_PARAM_TYPE_REAL32, 900, 7).pack(codec)
        link._take(codec.parse_buffer(packet)[0])

    def answer(message) -> None:
        name = message.param_id
        asked.append(name)
        if name != "MUTE":
            hear("BEFORE", 1.0)
            hear(name, {"LOSS": math.inf, "ACTION": 4.0, "HOVER": math.nan}[name])
            hear("AFTER", 2.0)

    monkeypatch.setattr("deploy.mavlink.link.AGAIN_S", 0.01)
    monkeypatch.setattr(link, "send", answer)
    hear("MUTE", 3.0)  # an answer to somebody else, from before
    told = link.parameters("LOSS", "ACTION", "MUTE")
    assert told == {"LOSS": math.inf, "ACTION": 4.0}
    assert asked == ["LOSS", "ACTION"] + 12 * ["MUTE"]
    assert math.isnan(link.parameters("HOVER")["HOVER"])


def test_garbage_hurts_nobody():
    with served() as simulation:
        link = Link(simulation.config.uri.replace("udpout", "udpin"))
        link.open(20.0)
        try:
            assert link.port is not None and link.port.peer is not None
            rng, port = np.random.default_rng(0), link.port
            for size in (1, 12, 280, 2000) * 20:
                port.socket.sendto(rng.bytes(size), port.peer)
            assert link.parameters("MPC_THR_HOVER") == {"MPC_THR_HOVER": pytest.approx(0.5)}
            before = link.newest["HEARTBEAT"].arrived
            assert link.wait(lambda: link.newest["HEARTBEAT"].arrived > before, 20.0)
        finally:
            link.close()


def test_the_simulated_vehicle_takes_no_nonsense():
    simulation = Simulation(Config(uri=f"udpout://127.0.0.1:{free_port()}"))
    pilot, m = simulation.autopilot, simulation.port.mavlink
    asker = m.MAVLink(None, srcSystem=245, srcComponent=191)

    def asked(*parameters: float) -> int:
        packet = m.MAVLink_command_long_message(1, 1, *parameters).pack(asker)
        pilot.receive(asker.parse_buffer(packet)[0])
        return int(pilot.out.pop().result)

    try:
        for command in (px4.SET_MODE, px4.ARM, px4.SET_INTERVAL):
            for wrong in (math.nan, math.inf, -math.inf):
                for place in range(3):
                    numbers = [1.0] * 3
                    numbers[place] = wrong
                    assert asked(command, 0, *numbers, 0.0, 0.0, 0.0, 0.0) == m.MAV_RESULT_DENIED
        for number in (2, 33, 50_000, -1):
            assert asked(px4.SET_INTERVAL, 0, number, 1e5, 0, 0, 0, 0, 0) == m.MAV_RESULT_UNSUPPORTED
        assert asked(px4.SET_INTERVAL, 0, 331, 1e5, 0, 0, 0, 0, 0) == m.MAV_RESULT_ACCEPTED
        assert set(pilot.due) == {0, 331} and not pilot.armed
    finally:
        simulation.close()


def test_the_simulation_refuses_nonsense():
    with pytest.raises(ValueError, match="rate_gain must be positive"):
        Config(rate_gain=0.0)
    thread_count = threading.active_count()
    with pytest.raises(ValueError, match="boat"), served(robot="boat"):
        pass
    assert threading.active_count() == thread_count

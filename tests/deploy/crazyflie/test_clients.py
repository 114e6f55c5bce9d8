"""Clients that misbehave: two at once, one that vanishes, packets that mean nothing, a port that is taken."""

import contextlib
import errno
import socket
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.guard import FLY
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.simulation import Simulation
from deploy.crazyflie.simulator.supervisor import State
from tests.deploy.crazyflie.bench import Bench

WHO, PING = Packet(Port.LINK, 1, b"\0"), Packet(Port.LINK, 0, b"hello")


class Caller:
    """A client that is no more than a socket."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(bench.simulation.vehicles[0].socket.getsockname())
        self.socket.setblocking(False)

    def send(self, packet: Packet) -> None:
        self.socket.send(packet.encode())
        self.bench.simulation.vehicles[0].receive()

    def heard(self, port: int) -> int:
        """How many packets of that port have come."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                count += Packet.decode(self.socket.recv(64)).port == port
        return count

    def log(self, block: int) -> None:
        """Ask for the first log variable, a hundred times a second."""
        self.send(Packet(Port.LOGGING, 1, struct.pack("<BBBH", 6, block, 7, 0)))
        self.send(Packet(Port.LOGGING, 1, bytes((3, block, 1))))


@pytest.fixture
def bench():
    made = Bench(policy=None)
    yield made
    made.close()


@pytest.fixture
def callers(bench: Bench):
    made = Caller(bench), Caller(bench)
    yield made
    for caller in made:
        caller.socket.close()


def test_two_clients_are_both_answered_and_one_gets_the_logs(bench: Bench, callers: tuple[Caller, Caller]):
    first, second = callers
    first.send(WHO)
    first.log(1)
    bench.run(0.5)
    assert first.heard(Port.LOGGING) > 45
    second.send(WHO)  # the newest that asks who is there
    bench.run(0.5, lambda: first.send(PING))
    assert first.heard(Port.LOGGING) == 0  # a ping is no question
    assert second.heard(Port.LOGGING) > 45
    first.send(Packet(Port.PARAMETERS, 0, b"\x03"))
    assert first.heard(Port.PARAMETERS) == 1 and second.heard(Port.PARAMETERS) == 0


def test_the_logs_of_a_client_that_vanishes_are_forgotten(bench: Bench, callers: tuple[Caller, Caller]):
    first, second = callers
    first.send(WHO)
    first.log(1)
    bench.run(3.0, lambda: first.send(PING))
    assert bench.firmware.logs.blocks
    first.socket.close()  # without a word
    bench.run(0.9)
    assert bench.firmware.logs.blocks
    bench.run(0.2)
    assert not bench.firmware.logs.blocks and bench.simulation.vehicles[0].client is None
    second.send(WHO)
    second.log(1)
    bench.run(0.1)
    assert second.heard(Port.LOGGING) > 5


@pytest.mark.parametrize(("planned", "state"), [(False, "LOCKED"), (True, "FLYING")])
def test_a_vanished_pilot_is_caught_by_the_watchdogs_unless_the_vehicle_flies_a_plan(
    bench: Bench, planned: bool, state: str
):
    """As on the vehicle: only streamed set points grow old. Who flies plans keeps the emergency watchdog fed."""
    bench.fly(1.0)
    if not planned:
        bench.run(0.5, lambda: bench.client.commander.send_hover_setpoint(0.0, 0.0, 0.0, 1.0))
    bench.run(2.5)
    assert bench.state == state
    if planned:
        bench.client.supervisor.send_emergency_stop_watchdog()
        bench.run(1.2)
        assert bench.state == "LOCKED"


def test_the_memory_for_logs_ends_as_the_firmwares(bench: Bench):
    def control(*data: int) -> int:
        (answer,) = bench.firmware.receive(Packet(Port.LOGGING, 1, bytes(data)))
        return answer.data[2]

    for block in range(5):
        assert control(6, block) == 0
        for _ in range(26 if block < 4 else 24):
            assert control(7, block, 1, 0, 0) == 0
    assert control(6, 5) == 0
    assert control(7, 5, 1, 0, 0) == errno.ENOMEM  # 128 variables in all
    assert control(7, 0, 1, 0, 0) == errno.E2BIG
    assert control(99, 0) == errno.ENOEXEC
    assert control(4, 77) == control(2, 77) == control(7, 77, 1, 0, 0) == errno.ENOENT
    assert control(2, 0) == 0 and control(7, 5, 1, 0, 0) == 0


floats = st.floats(width=32).map(lambda value: struct.pack("<f", value))
pieces = st.lists(st.one_of(floats, st.binary(max_size=4), st.integers(0, 13).map(lambda k: bytes((k,)))), max_size=12)
datagrams = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda header, command, rest: (bytes((header, command)) + b"".join(rest))[:31],
        st.integers(0, 255),
        st.integers(0, 13),
        pieces,
    ),
)


@pytest.fixture(scope="module")
def victim():
    """Flying a policy, every log block in use; and its caller."""
    made = Bench(policy="deploy/pretrained/quad_any.onnx")
    made.fly(1.0)
    caller = Caller(made)
    yield made, caller
    caller.socket.close()
    made.close()


@given(st.lists(datagrams, min_size=1, max_size=5))
@settings(deadline=None, max_examples=150)
def test_no_datagram_ends_the_simulation(victim: tuple[Bench, Caller], sent: list[bytes]):
    bench, caller = victim
    vehicle = bench.simulation.vehicles[0]
    vehicle.firmware, vehicle.powered = vehicle.boot(), True
    bench.world.place(0, position=(0.0, 0.0, 1.0))
    firmware = vehicle.firmware
    firmware.supervisor.state, firmware.supervisor.armed = State.FLYING, True
    firmware.parameters.update({"policy.mode": FLY, "stabilizer.controller": 6})
    caller.send(WHO)
    for block, variable in enumerate(range(0, 60, 4)):  # floats as halves and bytes
        for kind in (8, 1):
            caller.send(Packet(Port.LOGGING, 1, struct.pack("<BBBH", 6, 2 * block + kind % 2, kind, variable)))
            caller.send(Packet(Port.LOGGING, 1, bytes((3, 2 * block + kind % 2, 1))))
    for datagram in sent:
        caller.socket.send(datagram)
        vehicle.receive()
        bench.run(0.02)
    caller.heard(Port.LOGGING)
    assert all(0.0 <= ratio <= 1.0 for ratio in vehicle.firmware.ratios)
    assert all(abs(x) < 1e6 for x in bench.world.sense()[0].position)


def test_a_parameter_that_is_no_number_brings_down_the_vehicle_not_the_simulation():
    bench = Bench()
    bench.fly(1.0)
    names = [entry.name for entry in bench.firmware.parameters.table]
    caller = Caller(bench)
    caller.send(WHO)
    write = struct.pack("<Hf", names.index("pid_rate.roll_kp"), float("nan"))
    caller.send(Packet(Port.PARAMETERS, 2, write))
    for k, (name, kind) in enumerate((("controller.cmd_roll", 2), ("controller.cmd_roll", 7), ("motor.m1", 8))):
        variable = bench.firmware.logs.names.index(name)
        caller.send(Packet(Port.LOGGING, 1, struct.pack("<BBBH", 6, k, kind, variable)))
        caller.send(Packet(Port.LOGGING, 1, bytes((3, k, 1))))
    bench.run(2.0, lambda: caller.send(PING))
    assert caller.heard(Port.LOGGING) > 100
    assert bench.position[2] == 0.0
    caller.socket.close()
    bench.close()


def test_a_taken_port_is_named():
    bench = Bench()
    uri = bench.simulation.vehicles[0].uri
    with pytest.raises(OSError, match=rf"^{uri.removeprefix('udp://')}: Address already in use; choose another uri$"):
        Simulation(Config(uri=uri))
    command = [sys.executable, "-m", "deploy.crazyflie_sim", f"uri={uri}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "already in use" in done.stderr and "Traceback" not in done.stderr
    bench.close()

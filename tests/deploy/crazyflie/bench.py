"""Simulated Crazyflies for tests: in simulated time without sockets, or served in a thread, and flown there."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cflib.crazyflie.commander import Commander
from cflib.crazyflie.high_level_commander import HighLevelCommander
from cflib.crazyflie.localization import Localization
from cflib.crazyflie.supervisor import Supervisor

from deploy.crazyflie.crtp import Packet
from deploy.crazyflie.guard import FLY
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.firmware import Firmware
from deploy.crazyflie.simulator.simulation import Simulation, Vehicle
from deploy.crazyflie.simulator.world import DT
from deploy.drivers.crazyflie import Crazyflie, Settings
from deploy.guard import Guard
from deploy.loop import Record, run
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from tests.deploy.simulated_clock import PATIENT, Clock

PLAIN: dict[str, Any] = {"positioning": "truth", "auto_arm": False}  # what no test of something else has to know of


class Client:
    """cflib's own encoders, whose packets go straight to a firmware."""

    def __init__(self, vehicle: Vehicle) -> None:
        self.vehicle, self.answers = vehicle, list[Packet]()
        self.platform = SimpleNamespace(get_protocol_version=lambda: 12)
        self.commander, self.plan = Commander(self), HighLevelCommander(self)
        self.localization, self.supervisor = Localization(self), Supervisor(self)

    def add_port_callback(self, port: int, callback: Any) -> None:
        pass

    def send_packet(self, packet: Any, expected_reply: Any = ()) -> None:
        self.answers = list(self.vehicle.firmware.receive(Packet(packet.port, packet.channel, bytes(packet.data))))


class Bench:
    """A simulation that is advanced by hand."""

    def __init__(self, **settings: Any) -> None:
        self.simulation = Simulation(Config(uri="udp://127.0.0.1:0", **(PLAIN | settings)))
        self.clients = [Client(vehicle) for vehicle in self.simulation.vehicles]
        self.client, self.world = self.clients[0], self.simulation.world
        for vehicle in self.simulation.vehicles:
            if "policy.mode" in vehicle.firmware.parameters:
                vehicle.firmware.parameters["policy.mode"] = FLY  # what a client says first
        self.run(0.1)

    @property
    def firmware(self) -> Firmware:
        return self.simulation.vehicles[0].firmware

    @property
    def state(self) -> str:
        return self.firmware.supervisor.state.name

    @property
    def position(self) -> tuple[float, float, float]:
        return self.firmware.sensed.position

    def run(self, seconds: float, send: Any = None) -> None:
        """Advance; `send` is called every 0.1 s."""
        for step in range(round(seconds / DT)):
            if send is not None and step % 50 == 0:
                send()
            self.simulation.tick()

    def fly(self, height: float = 1.0) -> None:
        """Arm all and take off."""
        for client in self.clients:
            client.supervisor.send_arming_request(True)
        self.run(0.1)
        for client in self.clients:
            client.plan.takeoff(height, 2.0)
        self.run(4.0)

    def close(self) -> None:
        self.simulation.close()


def ask(bench: Bench, port: int, channel: int, data: bytes) -> bytes:
    """The data of the one answer to a packet."""
    (answer,) = bench.firmware.receive(Packet(port, channel, data))
    assert (answer.port, answer.channel) == (port, channel)
    return answer.data


def reboot(uri: str) -> None:
    """As cflib's PowerSwitch does, which however takes a second to close its link."""
    host, _, port = uri.removeprefix("udp://").partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as radio:
        radio.settimeout(10.0)
        radio.connect((host, int(port)))
        radio.send(b"\xff\xfe\xf0\x01")
        radio.recv(64)


class Served(Simulation):
    """In real time, in a thread; on a machine too slow for that, in the time of `clock`, whoever flies by that, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(Config(uri="udp://127.0.0.1:0", **(PLAIN | settings)))
        self.tick()
        self.clock = Clock(self, DT)

    def driver(self, **settings: Any) -> Crazyflie:
        """For its first vehicle."""
        made = Crazyflie(100.0, Settings(**({"uri": self.vehicles[0].uri, "connect_s": 30.0} | settings)))
        made.link.clock = self.clock
        return made

    def fly(
        self, policy: PolicyFile, driver: Crazyflie, guard: Guard | None = None, steps: int | None = None
    ) -> Record:
        """By the control loop, which may be late."""
        guard = guard or Guard(policy.inputs, policy.outputs, Envelope(**PATIENT))
        return run(policy, driver, guard, steps, clock=self.clock, sleep=self.clock.sleep)


@contextmanager
def served(**settings: Any) -> Iterator[Served]:
    """Until the end of the block."""
    simulation = Served(**settings)
    thread = threading.Thread(target=simulation.run, args=(simulation.clock,), name="simulation")
    thread.start()
    try:
        yield simulation
    finally:
        simulation.stopping = True
        thread.join()
        simulation.close()

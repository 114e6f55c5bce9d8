"""Simulated Crazyflies in one world, reached as the real ones are: by CRTP packets, here in UDP datagrams."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlparse

from deploy.crazyflie.crtp import BOOTLOADER, NULL, Packet, Port
from deploy.crazyflie.platform import platform
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.battery import SUPPLIES, Battery, Power
from deploy.crazyflie.simulator.estimator import Estimated, Estimator, TrueState
from deploy.crazyflie.simulator.firmware import Firmware
from deploy.crazyflie.simulator.onboard import Onboard
from deploy.crazyflie.simulator.world import DT, MOST_BEHIND, World

MOST_DATAGRAMS = 256  # of one vehicle between two looks at the clock
SILENT = 1.0  # s, RADIO_ACTIVITY_TIMEOUT_MS of the firmware; clients ping ten times a second
SYSTEM_OFF, SYSTEM_ON, ALL_OFF, RESET = 0x02, 0x03, 0x01, 0xF0  # commands to the radio chip


class Vehicle:
    """A firmware, the socket that clients reach it by, and its power switch."""

    def __init__(self, boot: Callable[[], Firmware], power: Power, host: str, port: int) -> None:
        self.boot, self.firmware, self.power, self.powered = boot, boot(), power, True
        self.client: tuple[str, int] | None = None
        self.heard = 0.0  # s, by the vehicle's clock, when the client was
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind((host, port))
        except OSError:
            self.socket.close()
            raise

    @property
    def uri(self) -> str:
        """What clients connect to."""
        host, port = self.socket.getsockname()
        return f"udp://{host}:{port}"

    def receive(self) -> None:
        """Answer what has arrived; of a flood only so much that the simulation goes on."""
        for _ in range(MOST_DATAGRAMS):
            try:
                datagram, sender = self.socket.recvfrom(64)
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # an earlier answer found nobody
            if datagram[:1] == NULL:
                self._radio_chip(datagram[1:])
                self._send(NULL, sender)
            elif self.powered:
                self._answer(datagram, sender)

    def _answer(self, datagram: bytes, sender: tuple[str, int]) -> None:
        try:
            packet = Packet.decode(datagram)
        except ValueError:
            return
        self._meet(packet, sender)
        for answer in self.firmware.receive(packet):
            self._send(answer.encode(), sender)

    def _meet(self, packet: Packet, sender: tuple[str, int]) -> None:
        """Logs and console go to one client: the last that asked who is there, unless it has gone silent.

        A ping is no introduction: it may come from a client that is closing its link.
        """
        asks, pings = (packet.port == Port.LINK and packet.channel == channel for channel in (1, 0))
        if asks or (not pings and self.client is None):
            self.client = sender
        if sender == self.client:
            self.heard = self.firmware.now

    def _radio_chip(self, data: bytes) -> None:
        """Power switching, which works whatever state the firmware is in."""
        command = data[1] if len(data) > 1 and data[0] == BOOTLOADER else None
        if command in (SYSTEM_OFF, ALL_OFF):
            self.powered = False
        elif command in (SYSTEM_ON, RESET):
            self.firmware, self.powered, self.client = self.boot(), True, None

    def _send(self, datagram: bytes, to: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):  # radio loses packets too
            self.socket.sendto(datagram, to)

    def publish(self) -> None:
        """Send console text and logs to the client, until it falls silent: then its log blocks are forgotten."""
        if self.client and self.firmware.now - self.heard > SILENT:
            self.client = None
            self.firmware.logs.blocks.clear()
        if (client := self.client) and self.powered:
            for packet in self.firmware.outgoing():
                self._send(packet.encode(), client)


class Simulation:
    """The world, its vehicles, and the clock that drives them."""

    def __init__(self, config: Config) -> None:
        url = urlparse(config.uri)
        if url.scheme != "udp" or not url.hostname or url.port is None:
            raise ValueError(f"uri={config.uri}: needs udp://HOST:PORT")
        middle = 0.5 * (config.vehicles - 1)
        self.config = config
        self.world = World(config.robot, [(0.0, config.spacing * (k - middle)) for k in range(config.vehicles)])
        if not self.world.robot.name.startswith("crazyflie"):
            choices = "crazyflie, crazyflie_decks, crazyflie_brushless"
            raise ValueError(f"{config.robot!r} is no Crazyflie; choices: {choices}")
        self.slipped = 0.0  # s that the simulation fell behind the clock
        self.stopping = False  # set it from another thread to end `run`
        self.vehicles: list[Vehicle] = []
        try:
            for k in range(config.vehicles):
                self.vehicles.append(Vehicle(*self._boots(), url.hostname, url.port + k if url.port else 0))
        except OSError as error:
            self.close()
            raise OSError(f"{url.hostname}:{url.port + k}: {error.strerror}; choose another uri") from None

    def _boots(self) -> tuple[Callable[[], Firmware], Power]:
        config, world = self.config, self.world
        policy = Onboard(config.policy, world.robot, 1.0 / DT, config.runtime) if config.policy else None
        build = platform(world.robot.name)
        battery = Battery(config.battery, SUPPLIES[build.build][0], config.resistance)
        auto_arm = build.auto_arms if config.auto_arm is None else config.auto_arm
        stored, seed = dict[str, float](), (config.seed, len(self.vehicles))

        def estimator(parameters: Mapping[str, float]) -> Estimator:
            if config.positioning == "truth":
                return TrueState.of(parameters)
            return Estimated(config.positioning, parameters, DT, seed, config.dropout, config.outliers)

        def boot() -> Firmware:
            if policy is not None:
                policy.stop()
            return Firmware(world.robot, battery, DT, world.time, policy, auto_arm, stored, estimator)

        return boot, Power(world.robot, build, battery)

    def close(self) -> None:
        """Close the sockets."""
        for vehicle in self.vehicles:
            vehicle.socket.close()

    def tick(self) -> None:
        """Advance everything by DT."""
        still = (0.0, 0.0, 0.0, 0.0)
        speeds = []
        for vehicle, sensed in zip(self.vehicles, self.world.sense(), strict=True):
            ratios = vehicle.firmware.step(sensed, self.world.time) if vehicle.powered else still
            speeds.append(vehicle.power.turn(ratios, DT))
        self.world.step(speeds)
        for vehicle in self.vehicles:
            vehicle.publish()

    def run(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """In real time, for `config.seconds` or until `stopping`."""
        sockets = {vehicle.socket: vehicle for vehicle in self.vehicles}
        began = clock()
        end = math.inf if self.config.seconds is None else began + self.config.seconds
        zero = began - self.world.time
        while (now := clock()) < end and not self.stopping:
            due = zero + self.world.time + DT
            ready, _, _ = select.select(list(sockets), (), (), max(due - now, 0.0))
            for each in ready:
                sockets[each].receive()
            late = clock() - due
            if late < 0.0:
                continue
            if late > MOST_BEHIND:
                zero += late
                self.slipped += late
                for vehicle in self.vehicles:
                    vehicle.firmware.slipped += late
            self.tick()

"""One vehicle's on-board software: takes packets and what is sensed, gives packets and rotor commands."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deploy.crazyflie.crtp import LARGEST, Packet, Port
from deploy.crazyflie.out_of_tree import OLDEST, OutOfTree, Shares
from deploy.crazyflie.out_of_tree import parameters as of_app
from deploy.crazyflie.platform import platform
from deploy.crazyflie.simulator import contents
from deploy.crazyflie.simulator.battery import Battery, Ratios
from deploy.crazyflie.simulator.commander import Commander, Priority
from deploy.crazyflie.simulator.logs import Logs
from deploy.crazyflie.simulator.memory import Memory
from deploy.crazyflie.simulator.onboard import OUT_OF_TREE, Onboard
from deploy.crazyflie.simulator.parameters import Parameters
from deploy.crazyflie.simulator.pid import FULL, Cascade
from deploy.crazyflie.simulator.planner import Planner
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.setpoints import ZERO, Setpoint, Triple
from deploy.crazyflie.simulator.supervisor import MOTORS_MAY_RUN, Supervisor
from deploy.crazyflie.simulator.telemetry import OF_APP
from deploy.crazyflie.simulator.telemetry import TABLE as VARIABLES

if TYPE_CHECKING:
    from sim.robots.quadrotors import Quadrotor

SLOW = 5  # cycles per update of planner and position loop: 100 Hz
SLOWEST = 20  # cycles per update of the supervisor: 25 Hz
AUTOMATIC, PID = 0, 1  # controllers
CONSOLE = 1 << 14  # bytes of text that wait for a client
PROTOCOL = 12  # version of the radio protocol: the first with a supervisor port
NAME = b"Bitcraze Crazyflie"
EXT_POSITION, GENERIC = 0, 1  # channels of the localization port
NOTIFICATION = 3  # a command of the platform port: blink
AT_REST_RATIOS: Ratios = (0.0, 0.0, 0.0, 0.0)
AT_REST = Sensed(ZERO, ZERO, ZERO, [1.0, 0, 0, 0, 1, 0, 0, 0, 1], [1.0, 0, 0, 0], ZERO, [0.0] * 4)


class Firmware:
    """From power-on to power-off. `step` every DT seconds; `receive` in between."""

    def __init__(
        self,
        robot: Quadrotor,
        battery: Battery,
        dt: float,
        booted: float = 0.0,
        policy: Onboard | None = None,
        auto_arm: bool = False,
        stored: dict[str, float] | None = None,
    ) -> None:
        """`booted`: the world's time now, s. `stored`: parameters that survive a reboot."""
        self.robot, self.battery, self.dt, self.policy, self.booted = robot, battery, dt, policy, booted
        self.now, self._cycle, self._text = 0.0, 0, bytearray()
        self.sensed, self.ratios, self.setpoint = AT_REST, (0.0, 0.0, 0.0, 0.0), Setpoint()
        self.external_position: Triple = (0.0, 0.0, 0.0)
        self._estimating_since = -math.inf
        self.platform = platform(robot.name)
        entries = contents.parameters(self.platform.build) | (of_app(policy) if policy else {})
        self.parameters = Parameters(self._changed, {} if stored is None else stored, entries, {})
        self._controller = self.parameters["stabilizer.controller"]
        self.memory = Memory()
        self.planner = Planner(self.memory.content)
        self.commander = Commander(self.planner, self.parameters)
        self.supervisor = Supervisor(self.parameters, self.say, auto_arm)
        kinds = contents.variables(self.platform.build) | (OF_APP if policy else {})
        self.logs = Logs(kinds, lambda name: VARIABLES[name](self) if name in VARIABLES else 0.0)
        mixer = [
            (1 if y > 0.0 else -1, 1 if x > 0.0 else -1, 1 if turn > 0.0 else -1)
            for (x, y), turn in zip(robot.rotor_position, robot.rotor_direction, strict=True)
        ]
        self.cascade = Cascade(self.parameters, dt, SLOW, mixer)
        self.app = OutOfTree(policy, self.parameters, self._pilot, self.say)
        self._ports: dict[int, Any] = {
            Port.PARAMETERS: self.parameters.handle,
            Port.COMMANDER: self.commander.handle,
            Port.COMMANDER_GENERIC: self.commander.handle,
            Port.MEMORY: self.memory.handle,
            Port.LOGGING: self.logs.handle,
            Port.LOCALIZATION: self._localization,
            Port.HIGH_LEVEL: self._high_level,
            Port.SUPERVISOR: self.supervisor.handle,
            Port.PLATFORM: self._platform,
            Port.LINK: self._link,
        }
        self.say(f"SYS: simulated {robot.name} is up and running!\nESTIMATOR: Using Kalman (2) estimator\n")
        self.say("CONTROLLER: a policy is on board\n" if policy else "CONTROLLER: Using PID (1) controller\n")

    def say(self, text: str) -> None:
        """Print on the console."""
        self._text += text.encode("ascii", "replace")
        del self._text[:-CONSOLE]  # what nobody fetches is forgotten

    def receive(self, packet: Packet) -> Iterable[Packet]:
        """The answers to a packet. What is malformed is reported on the console and ignored."""
        handle = self._ports.get(packet.port)
        try:
            return tuple(handle(packet, self.now)) if handle else ()
        except (ValueError, IndexError, struct.error) as error:
            self.say(f"CRTP: port {packet.port}: {error}\n")
            return ()

    def outgoing(self) -> Iterable[Packet]:
        """What is to be sent without having been asked: console text, logs."""
        while self._text:
            yield Packet(Port.CONSOLE, 0, bytes(self._text[:LARGEST]))
            del self._text[:LARGEST]
        yield from self.logs.due(self.now)

    def step(self, sensed: Sensed, time: float) -> Ratios:
        """One control cycle at the world's `time` (s): rotor speed commands, fractions 0..1."""
        self.sensed, self.now = sensed, time - self.booted
        self._select_controller()
        slow, slowest = self._cycle % SLOW == 0, self._cycle % SLOWEST == 0
        self._cycle += 1
        supervisor = self.supervisor
        if self.planner.blocked is supervisor.can_fly:
            self.planner.stop()
        self.planner.blocked = not supervisor.can_fly
        if slow:
            self._plan()
        if slowest:
            thrusting = max(self.ratios) * FULL > self.parameters["powerDist.idleThrust"]
            supervisor.update(self.now, self.commander.age(self.now), sensed.specific_force, thrusting)
        wanted = self.commander.setpoint if supervisor.can_fly else Setpoint()
        self.setpoint = supervisor.override(wanted)
        may_run = supervisor.state in MOTORS_MAY_RUN
        # The app computes on the ground too. So does the PID controller, of which nobody sees anything there.
        ratios = self._control() if may_run or self._controller == OUT_OF_TREE else AT_REST_RATIOS
        self.ratios = self._forced(ratios if may_run else AT_REST_RATIOS)
        self.battery.draw(self.ratios, self.dt)
        return self.ratios

    def _plan(self) -> None:
        s = self.sensed
        self.planner.observe(s.position, s.velocity, math.radians(s.yaw))
        if self.supervisor.can_fly:
            self.commander.set(self.planner.setpoint(self.now), Priority.HIGH_LEVEL, self.now)
        active, finished = bool(self.planner.activity & 1), self.planner.finished(self.now)
        self.supervisor.planner_bits = active << 8 | finished << 9

    def _select_controller(self) -> None:
        """A controller that there is none of is forgotten in the cycle after it was written, as in the firmware."""
        wanted = self.parameters["stabilizer.controller"]
        if wanted == self._controller:
            return
        if wanted in (AUTOMATIC, PID):
            if self._controller == OUT_OF_TREE:
                self.app.leave()
                self.cascade.restart(self.sensed)
            self._controller = PID
        elif wanted == OUT_OF_TREE and self.policy:
            self._controller = OUT_OF_TREE
            self.app.select()
        else:
            self.say(f"CONTROLLER: there is no controller {wanted:g}\n")
        self.parameters["stabilizer.controller"] = self._controller

    def _control(self) -> Ratios:
        if self._controller != OUT_OF_TREE:
            return self._ratios(self.cascade.update(self.setpoint, self.sensed))
        app, flew = self.app, self.app.flying
        shares = app.update(
            self.setpoint, self.sensed, self.now, self.battery.voltage, self.variance(), self.supervisor.flying
        )
        if app.flying is not flew:
            self.say(f"CONTROLLER: {'PID' if flew else 'the policy'} takes over\n")
        if app.landing and app.age > OLDEST:
            self.commander.relax()
        return self._ratios(shares)

    def _pilot(self, setpoint: Setpoint, ran: bool) -> Shares:
        """The PID controller for the app, started anew unless it `ran` in the last cycle."""
        if not ran:
            self.cascade.restart(self.sensed)
        return self.cascade.update(setpoint, self.sensed)

    @property
    def policy_flies(self) -> bool:
        """Whether the policy flies, if only in part."""
        return self.app.flying

    @property
    def policy_failed(self) -> bool:
        """Whether it was handed back since controller 6 was selected."""
        return self.app.failed

    def _ratios(self, shares: Iterable[float]) -> Ratios:
        """Rotor speed commands for shares of the platform's largest thrust."""
        idle = self.parameters["powerDist.idleThrust"] / FULL
        a, b, c, d = (max(self._speed(self.platform.thrust(share)), idle) for share in shares)
        return a, b, c, d

    def _speed(self, thrust: float) -> float:
        """The rotor speed command for a thrust in N: the battery compensation, which the airframe has no need of."""
        c0, c1, c2 = self.robot.thrust_curve
        if thrust <= c0:
            return 0.0
        speed = (thrust - c0) / c1 if c2 == 0.0 else (math.sqrt(c1 * c1 + 4.0 * c2 * (thrust - c0)) - c1) / (2.0 * c2)
        return min(max(speed, 0.0), 1.0)

    def _forced(self, ratios: Ratios) -> Ratios:
        """motorPowerSet overrides everything, even the supervisor: so does the real firmware's."""
        p = self.parameters
        a, b, c, d = (p[f"motorPowerSet.m{k}"] / FULL for k in (1, 2, 3, 4))
        overrides: dict[float, Ratios] = {1: (a, b, c, d), 2: (a, a, a, a)}
        if p["motorPowerSet.enable"] == 3:
            return self._ratios((a, a, a, a))
        return overrides.get(p["motorPowerSet.enable"], ratios)

    def variance(self) -> float:
        """Of the estimator's position and velocity: large after a reset, small soon after."""
        return 1e-5 + math.exp(-(self.now - self._estimating_since) / 0.05)

    def _changed(self, name: str, value: float) -> None:
        if name == "kalman.resetEstimation" and value:
            self._estimating_since = self.now

    def _high_level(self, packet: Packet, now: float) -> Iterable[Packet]:
        """As the firmware's, but it says why nothing happens: a low-level set point outranks plans until it is relaxed.

        Every client that closes its link leaves such a set point behind.
        """
        if self.commander.priority is Priority.CLIENT:
            self.say("PLAN: ignored until send_notify_setpoint_stop\n")
        return self.planner.handle(packet, now)

    def _localization(self, packet: Packet, now: float) -> Iterable[Packet]:
        """External positions are taken note of (the estimate is the truth); emergency stops are obeyed."""
        if packet.channel == EXT_POSITION:
            x, y, z = struct.unpack("<fff", packet.data)
            self.external_position = (x, y, z)
        elif packet.channel == GENERIC and packet.data[0] == 3:
            self.supervisor.emergency_stop()
        elif packet.channel == GENERIC and packet.data[0] == 4:
            self.supervisor.feed_watchdog(now)
        elif packet.channel == GENERIC and packet.data[0] == 8:
            x, y, z, *_ = struct.unpack("<7f", packet.data[1:])
            self.external_position = (x, y, z)
        return ()

    def _platform(self, packet: Packet, now: float) -> Iterable[Packet]:
        command, *rest = packet.data
        if packet.channel == 1:
            answers = {0: struct.pack("<I", PROTOCOL), 1: b"2026.08 simulated", 2: b"CF21"}
            return (packet.reply(bytes((command,)) + answers[command]),) if command in answers else ()
        if packet.channel != 0:
            return ()
        if command == 1:
            done = bool(rest) and self.supervisor.arm(bool(rest[0]))
            return (packet.reply(bytes((1, done, self.supervisor.armed))),)
        if command == 2:
            return (packet.reply(bytes((2, self.supervisor.recover(), not self.supervisor.crashed))),)
        return (packet.reply(b"" if command == NOTIFICATION else packet.data),)

    def _link(self, packet: Packet, now: float) -> Iterable[Packet]:
        if packet.channel == 0:
            return (packet,)
        return (packet.reply(NAME.ljust(LARGEST, b"\0")),) if packet.channel == 1 else ()

"""One vehicle's on-board software: takes packets and what is sensed, gives packets and rotor commands."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from deploy.crazyflie.crtp import LARGEST, Packet, Port
from deploy.crazyflie.out_of_tree import OLDEST, OutOfTree, Shares
from deploy.crazyflie.out_of_tree import parameters as of_app
from deploy.crazyflie.platform import platform
from deploy.crazyflie.simulator import contents
from deploy.crazyflie.simulator.battery import FULL_VOLTAGE, Battery, Ratios
from deploy.crazyflie.simulator.commander import Commander, Priority
from deploy.crazyflie.simulator.estimator import Estimator, TrueState
from deploy.crazyflie.simulator.logs import Logs
from deploy.crazyflie.simulator.memory import Memory
from deploy.crazyflie.simulator.onboard import OUT_OF_TREE, Onboard
from deploy.crazyflie.simulator.parameters import Parameters
from deploy.crazyflie.simulator.pid import FULL, Cascade
from deploy.crazyflie.simulator.planner import Planner
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.setpoints import ZERO, Setpoint
from deploy.crazyflie.simulator.supervisor import MOTORS_MAY_RUN, Supervisor
from deploy.crazyflie.simulator.telemetry import OF_APP
from deploy.crazyflie.simulator.telemetry import TABLE as VARIABLES

if TYPE_CHECKING:
    from sim.robots.quadrotors import Quadrotor

SLOW = 5  # cycles per update of planner and position loop: 100 Hz
SLOWEST = 20  # cycles per update of the supervisor: 25 Hz
AUTOMATIC, PID = 0, 1  # controllers
MILLISECOND, SUPPLY_GAIN = 1e-3, 0.01  # s; share per millisecond of the compensation's low-pass
NOT_A_TURN = 0.1  # by which the length of a quaternion may differ from 1
LOW_FOR = 5.0  # s below pm.lowVoltage
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
        estimator: Callable[[Parameters], Estimator] = TrueState.of,
    ) -> None:
        """`booted`: the world's time now, s. `stored`: parameters that survive a reboot."""
        self.robot, self.battery, self.dt, self.policy, self.booted = robot, battery, dt, policy, booted
        self.now, self._cycle, self._text = 0.0, 0, bytearray()
        self.slipped = 0.0  # s that passed while the simulation stood still: a vehicle's clock does not
        self.sensed, self.ratios, self.setpoint = AT_REST, AT_REST_RATIOS, Setpoint()
        self.supply, self._charged = FULL_VOLTAGE, 0.0  # V, as the battery compensation has it; s, when it last was
        self.platform = platform(robot.name)
        entries = contents.parameters(self.platform.build) | (of_app(policy) if policy else {})
        self.parameters = Parameters(self._changed, {} if stored is None else stored, entries)
        self.estimator = estimator(self.parameters)
        self.parameters.update({f"deck.{deck}": 1 for deck in self.estimator.decks})
        self._controller = self.parameters["stabilizer.controller"]
        self.memory = Memory()
        self.planner = Planner(self.memory.content)
        self.commander = Commander(self.planner, self.parameters)
        self.supervisor = Supervisor(self.parameters, self.say, auto_arm)
        kinds = contents.variables(self.platform.build) | (OF_APP if policy else {})
        self.logs = Logs(kinds, self._logged)
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
        yield from self.logs.due(self.now, self.now + self.slipped)

    def _logged(self, name: str) -> float:
        """A log variable as it is now; 0 where nothing simulates it."""
        read = VARIABLES.get(name)
        return read(self) if read else self.estimator.said.get(name, 0.0)

    def step(self, truth: Sensed, time: float) -> Ratios:
        """One control cycle at the world's `time` (s): PWM ratios of the motors, 0..1."""
        self.now = time - self.booted
        sensed = self.sensed = self.estimator.update(truth, self.supervisor.flying)
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
        if self.battery.voltage >= self.parameters["pm.lowVoltage"]:
            self._charged = self.now
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
            self.setpoint,
            self.sensed,
            self.now,
            self.battery.voltage,
            max(self.variances()[:3]),
            self.supervisor.flying,
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
            self.cascade.wanted_angle[2] = self.sensed.yaw  # the app gives it an empty set point first, which does that
        return self.cascade.update(setpoint, self.sensed)

    @property
    def policy_flies(self) -> bool:
        """Whether the policy flies, if only in part."""
        return self.app.flying

    @property
    def policy_failed(self) -> bool:
        """Whether it was handed back since controller 6 was selected."""
        return self.app.failed

    @property
    def battery_low(self) -> bool:
        """Whether it has been for long enough that the power management says so."""
        return self.now - self._charged > LOW_FOR

    def _ratios(self, shares: Iterable[float]) -> Ratios:
        """PWM ratios for shares of the platform's largest thrust: battery compensation, then what is beyond reach.

        The compensation knows the voltage through a low-pass. What the weakest battery cannot give is taken from all
        rotors alike, so that the vehicle sinks rather than tips over.
        """
        self.supply += (self.battery.voltage - self.supply) * (1.0 - (1.0 - SUPPLY_GAIN) ** (self.dt / MILLISECOND))
        idle = 0.0 if self.supervisor.auto_arm else self.parameters["powerDist.idleThrust"] / FULL
        wanted = [self.platform.ratio(self.platform.thrust(share), self.supply) for share in shares]
        excess = max(0.0, max(wanted) - 1.0)
        a, b, c, d = (max(ratio - excess, idle) for ratio in wanted)
        return a, b, c, d

    def thrust(self, ratio: float) -> float:
        """The thrust in N of a rotor at a PWM ratio, as the battery compensation reckons."""
        return self.platform.thrust_at(ratio * self.supply)

    def _forced(self, ratios: Ratios) -> Ratios:
        """motorPowerSet overrides everything, even the supervisor: so does the real firmware's."""
        p = self.parameters
        a, b, c, d = (p[f"motorPowerSet.m{k}"] / FULL for k in (1, 2, 3, 4))
        overrides: dict[float, Ratios] = {1: (a, b, c, d), 2: (a, a, a, a)}
        if p["motorPowerSet.enable"] == 3:
            return self._ratios((a, a, a, a))
        return overrides.get(p["motorPowerSet.enable"], ratios)

    def variances(self) -> tuple[float, ...]:
        """Of the estimator's position (3) and velocity (3)."""
        return self.estimator.variances(self.now)

    def _changed(self, name: str, value: float) -> None:
        if name == "kalman.resetEstimation" and value:
            self.estimator.reset(self.now)

    def _high_level(self, packet: Packet, now: float) -> Iterable[Packet]:
        """As the firmware's, but it says why nothing happens: a low-level set point outranks plans until it is relaxed.

        Every client that closes its link leaves such a set point behind.
        """
        if self.commander.priority is Priority.CLIENT:
            self.say("PLAN: ignored until send_notify_setpoint_stop\n")
        return self.planner.handle(packet, now)

    def _localization(self, packet: Packet, now: float) -> Iterable[Packet]:
        """External positions and poses are for the estimator; emergency stops are obeyed."""
        if packet.channel == EXT_POSITION:
            self._take(struct.unpack("<fff", packet.data))
        elif packet.channel == GENERIC and packet.data[0] == 3:
            self.supervisor.emergency_stop()
        elif packet.channel == GENERIC and packet.data[0] == 4:
            self.supervisor.feed_watchdog(now)
        elif packet.channel == GENERIC and packet.data[0] == 8:
            self._take(struct.unpack("<7f", packet.data[1:]))
        return ()

    def _take(self, pose: tuple[float, ...]) -> None:
        """A position (3) m, and maybe a quaternion (x, y, z, w), from a client."""
        x, y, z, *turn = pose
        if not all(map(math.isfinite, pose)) or (turn and abs(math.hypot(*turn) - 1.0) > NOT_A_TURN):
            raise ValueError("an external pose that is none")
        self.estimator.take_external((x, y, z), (turn[3], *turn[:3]) if turn else None)

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

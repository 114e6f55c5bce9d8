"""A Crazyflie, by radio or simulated, as a driver: take-off and landing on board, a policy in between.

What the guard stops holds its place under the vehicle's PID controller, then lands (`deploy/safety/ladder.py`).

With `onboard`, the policy flies on the vehicle (deploy.export target=crazyflie) and this driver streams its set points,
so that the firmware's watchdogs catch a lost link: level after 0.5 s, motors off after 2 s. Without, the policy runs
here and writes the motors, as PWM for the present voltage, through the parameters motorPowerSet. Those override every
watchdog of the firmware: a lost link leaves the motors running. That is refused anywhere but in simulation unless
`unprotected` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deploy.crazyflie.blocks import blocks
from deploy.crazyflie.board_log import REASON, STATE, BoardLog
from deploy.crazyflie.guard import EMPTY_FOR, LIMITS, MODES, OFF, REASONS, TAKING_OVER, Battery, allowed
from deploy.crazyflie.guard import FLYING as BY_POLICY
from deploy.crazyflie.landing import CLIMB, ITS_OWN, PID, STALE, come_down
from deploy.crazyflie.link import Link, LinkError, NotLoggedError
from deploy.crazyflie.platform import platform
from deploy.crazyflie.settings import Settings
from deploy.drivers import Entered, Reading
from deploy.drivers.quadrotor import AHEAD, HEADING, sensed, too_late, tracking_error
from deploy.policy_file import PolicyFile
from deploy.safety.ladder import HOLD_S, stopping_place
from deploy.safety.landing import Landing
from deploy.safety.stamps import waits
from sim.robots import robot as airframe
from sim.rotations import rotation_matrix
from sim.spec import Group, Signal

Array = NDArray[np.float32]

SIGNALS = sensed(battery_age=2.0)
COMMANDS: Group = (Signal("motor_command", (4,), low=0.0, high=1.0),)
STEADY, STEADY_FOR = 1e-3, 0.3  # m^2, s: change of the estimator's variance
CAN_BE_ARMED, ARMED, CAN_FLY, FLYING, TUMBLED, LOCKED, CRASHED = (1 << k for k in (0, 1, 3, 4, 5, 6, 7))
OUT_OF_TREE = 6  # value of stabilizer.controller
AT_REST = 3.0  # s until its supervisor sees still motors
PATIENCE, IDLE = 10, 0.5  # steps in a row with zeros, after which it lands; s that the policy on board may not fly for
BY_GUARD = "by the guard"  # why it lands
FLOW_DECKS = ("deck.bcFlow", "deck.bcFlow2")
PLACING_DECKS = ("deck.bcLighthouse4", "deck.bcLoco", "deck.bcDWM1000")
TROUBLES = ((LOCKED, "locked: reboot it"), (CRASHED, "crashed: recover it"), (TUMBLED, "not upright"))
FULL, SCANT = 65535, 3.7  # V at rest: a tenth of the charge; Crazyswarm2 calls a battery critical there


class Crazyflie(Entered):
    """Takes off at the first commands, lands when stopped. The target is `height` above where it stood."""

    Config: ClassVar[type] = Settings
    lands, falls = True, False

    def __init__(self, rate_hz: float, settings: Settings | None = None) -> None:
        """`rate_hz` is that of the policy; ValueError when the log cannot keep up with it."""
        s = self.settings = settings or Settings()
        period = 1000.0 / rate_hz
        if period < 10.0 or abs(period / 10.0 - round(period / 10.0)) > 1e-6:
            raise ValueError(f"a Crazyflie logs every 10 ms or a multiple of it; the policy runs at {rate_hz:g} Hz")
        if not s.onboard and not s.unprotected and not s.uri.startswith("udp://"):
            raise ValueError(
                "onboard=false by radio: a lost link leaves the motors running. Put the policy on board "
                "(deploy.export target=crazyflie), or accept it with unprotected=true"
            )
        self.signals, self.commands, self.robot, self.rate_hz = SIGNALS, COMMANDS, s.robot, rate_hz
        self.num, self.steps, self.real_time = 1, None, True
        self._airframe, self._platform = airframe(s.robot), platform(s.robot)
        self.link = Link(s.uri, blocks(s.onboard), round(period), s.cache, believed=s.stamps)
        self.target, self.heading = np.zeros(3, np.float32), AHEAD
        self._allowed = {"voltage": s.empty, "sag": allowed("sag", s.allowances().get("sag", LIMITS["sag"][0]))}
        self._battery: Battery | None = None  # watched from the first command on
        self._airborne = self._handed_over = self.done = self._held = False  # held: it has said that it holds its place
        self._asked_to_arm = False  # a Brushless turns its rotors then, on the ground
        self._ascent, self._landing = self._take_off(), Landing()
        self._lands_at = math.inf  # s, by the link's clock: until then the PID controller holds it in place
        self._zeros = self._idle = 0  # steps in a row: no command, policy not flying
        self._errors, self._notes = list[float](), list[str]()
        self._log = BoardLog(s.board_log) if s.board_log else None

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Crazyflie:
        return cls(policy.rate_hz, config)

    def abandon(self) -> None:
        self.link.close()

    def connect(self) -> None:
        link, s = self.link, self.settings
        try:
            link.open(s.connect_s)
        except NotLoggedError as error:
            if "policy." not in str(error):
                raise
            raise LinkError(
                f"{s.uri}: the firmware has no policy on board (no log variable policy.state): build it with "
                "deploy.export target=crazyflie, or fly with onboard=false"
            ) from None
        if not link.wait(lambda: not self._state() & FLYING, AT_REST):
            raise LinkError(f"{s.uri}: the vehicle is flying: land it first")
        link.write("motorPowerSet.enable", 0)
        link.write("stabilizer.controller", PID)
        link.write("kalman.resetEstimation", 1)
        link.write("kalman.resetEstimation", 0)
        if not self._estimator_settles(s.connect_s):
            raise LinkError(f"{s.uri}: the estimator found no position in {s.connect_s:g} s: is there positioning?")
        if late := too_late(link.unseen):
            raise LinkError(f"{s.uri}: {late}")
        self._check(LOCKED | CRASHED | TUMBLED)
        voltage = link.value("pm.vbat")
        if not voltage >= s.voltage:  # NaN, too
            raise LinkError(f"{s.uri}: the battery has {voltage:.2f} V, less than {s.voltage:g} V: charge it")
        self._notes.append(f"battery before   {voltage:.2f} V{': charge it' if voltage < SCANT else ''}")
        if s.onboard:
            self._allow()
        self.target = np.array([*self._vector("stateEstimate.", "x", "y", "z")], np.float32)
        self.target[2] += s.height if s.mode != "bench" else 0.0
        rotation = self._rotation()  # once: another packet may arrive in between
        self.heading = rotation[0], rotation[3]  # where its nose points, as it climbs without turning

    def _allow(self) -> None:
        """Every limit of the guard on board: those of an earlier flight would hold on until it is switched off."""
        asked = self.settings.allowances()
        if "spread" not in asked and self._knows_no_place():
            asked["spread"] = LIMITS["spread"][2]
            self._notes.append(f"board: a flow deck knows no place, so spread is {asked['spread']:g} m")
        for name, (usual, _, _) in LIMITS.items():
            value = asked.get(name, usual)
            taken = allowed(name, value)
            if taken != value:
                self._notes.append(f"board: {name}={value:g} is not allowed, it is {taken:g}")
            self.link.write(f"policy.{name}", taken)
        self.link.write("policy.mode", MODES[self.settings.mode])

    def _knows_no_place(self) -> bool:
        """Whether optical flow is all it has: the variance of its place is at the filter's bound from the start."""
        parameter = self.link.parameter
        return any(map(parameter, FLOW_DECKS)) and not any(map(parameter, PLACING_DECKS))

    def _estimator_settles(self, deadline: float) -> bool:
        since, before = self.link.clock(), [math.inf] * 3

        def steady() -> bool:
            nonlocal since, before
            now = self._vector("kalman.", "varPX", "varPY", "varPZ")
            there = all(map(math.isfinite, self._vector("stateEstimate.", "x", "y", "z")))
            if not (there and all(abs(a - b) <= STEADY for a, b in zip(now, before, strict=True))):  # nor NaN
                since, before = self.link.clock(), now
            return self.link.clock() - since > STEADY_FOR

        return self.link.wait(steady, deadline)

    def _vector(self, group: str, *names: str) -> list[float]:
        return [self.link.value(group + name) for name in names]

    def _rotation(self) -> list[float]:
        return rotation_matrix(*self._vector("stateEstimate.", "qw", "qx", "qy", "qz"))

    def _state(self) -> int:
        return int(self.link.value("supervisor.info"))

    def _rests(self) -> bool:
        return self.link.silence() <= STALE and not self._state() & FLYING

    def _check(self, bits: int) -> None:
        """LinkError when the vehicle reports any of these troubles."""
        for bit, trouble in TROUBLES:
            if self._state() & bits & bit:
                self.done = self._landing.over = True
                raise LinkError(f"{self.settings.uri}: the vehicle is {trouble}")

    def read(self) -> Reading:
        age = self.link.age()  # first: another packet may arrive meanwhile
        if (quiet := self.link.silence()) > self.settings.link_loss_s:
            why = "; ".join([f"the link is lost: nothing arrived for {quiet:.2f} s", *self.link.doubts()])
            raise LinkError(f"{self.settings.uri}: {why}")
        self._check(LOCKED | CRASHED)
        signals = {
            "position": self._vector("stateEstimate.", "x", "y", "z"),
            "rotation": self._rotation(),
            "linear_velocity": self._vector("stateEstimate.", "vx", "vy", "vz"),
            "angular_velocity": [math.radians(rate) for rate in self._vector("gyro.", "x", "y", "z")],
            "target_position": self.target,
            "target_velocity": np.zeros(3, np.float32),
            HEADING.name: self.heading,
            "battery_voltage": [self.link.value("pm.vbat")],
        }
        arrays = {name: np.asarray([value], np.float32) for name, value in signals.items()}
        if self._log is not None:
            asked = self.link.newest["policy"]
            self._log.note(asked.arrived, {**asked.content, **self.link.newest["rest"].content})
        if self._handed_over:
            self._errors.append(float(np.linalg.norm(arrays["position"][0] - self.target)))
        return Reading(arrays, {name: 0.0 if name.startswith("target") else age for name in arrays})

    def write(self, commands: Mapping[str, Array]) -> None:
        """Carry out, or (on board) send the set point. The first calls take off, one bit each.

        Zeros in a row make it land: a guard elsewhere (ROS 2) sends them when it stops a robot, and no policy gives
        them for long. A guard here calls `hand_back`.
        """
        motors = np.asarray(commands["motor_command"], np.float64).reshape(4)
        if self.done:
            return
        reason = self._reason_to_land(motors)
        if reason == BY_GUARD and self._airborne and self.link.clock() < self._lands_at:
            if not self._held:
                self._hold()
        elif reason and self._airborne:
            self._notes.append(f"landed {reason}")
            self._land()
        elif reason:
            self._notes.append(f"stopped on the ground {reason}")
            self.done = True
        elif math.isfinite(self._lands_at):
            pass  # nothing arrives just now: a set point of ours would outrank the place that it holds
        elif self.settings.mode == "bench":
            if not self._handed_over:
                self.link.write("stabilizer.controller", OUT_OF_TREE)
            self._handed_over = True
        elif not self._handed_over:
            if motors.any():
                next(self._ascent)
        elif self.settings.onboard:
            (x, y, z), (ahead, left) = self.target.tolist(), self.heading
            self.link.client.commander.send_position_setpoint(x, y, z, math.degrees(math.atan2(left, ahead)))
        else:
            supply = self.link.value("pm.vbat")
            for index, value in enumerate(motors.tolist(), 1):
                ratio = self._platform.ratio(self._airframe.thrust(value), supply)
                self.link.send(f"motorPowerSet.m{index}", round(FULL * min(ratio, 1.0)))
            # Overridden too, but it keeps the watchdog calm and the integrals of the idle PID controller at zero.
            self.link.client.commander.send_stop_setpoint()

    def hand_back(self) -> None:
        """To its PID controller at once, as the guard has stopped it: it holds its place, then lands.

        To be called at every control step. A vehicle from which nothing arrives may still hear us: it is told to hold
        its place until it says that it does.
        """
        self._zeros = PATIENCE
        if self._airborne and not self.done and not self._held and self.link.silence() > STALE:
            self._hold()
        else:
            self.write({"motor_command": np.zeros((1, 4), np.float32)})

    def _reason_to_land(self, motors: NDArray[np.float64]) -> str:
        self._zeros = 0 if motors.any() else self._zeros + 1
        if not self._lasts():
            return f"for the battery: {self.link.value('pm.vbat'):.2f} V"
        held = math.isfinite(self._lands_at)
        if self._handed_over and self.settings.onboard and self.settings.mode == "fly" and not held:
            self._idle = 0 if self.link.value(STATE) in (TAKING_OVER, BY_POLICY) else self._idle + 1
            if self.link.value(REASON) and self._idle >= PATIENCE:  # not what was logged before the hand-over
                return f"by the PID controller: handed back on board: {REASONS[int(self.link.value(REASON))]}"
            if self._idle > IDLE * self.rate_hz:
                return "by the PID controller: the policy on board does not fly"
        # When nothing arrives the guard sends zeros too: soon there will be news, or `read` calls the link lost.
        return BY_GUARD if self._zeros >= PATIENCE and self.link.silence() <= STALE else ""

    def _lasts(self) -> bool:
        """Whether the battery is neither low nor empty, as the guard on board reckons; three samples make it empty."""
        now, volts, most = self.link.clock(), self.link.value("pm.vbat"), self._platform.most
        ratios = [value / FULL for value in self._vector("motor.", "m1", "m2", "m3", "m4")]
        load = sum(min(self._platform.thrust_at(ratio * volts) / most, 1.0) for ratio in ratios) / len(ratios)
        self._battery = self._battery or Battery(now, empty_for=max(EMPTY_FOR, 3.0 / self.rate_hz))
        self._battery.weigh(volts, load, self._allowed, now)
        return self._battery.fit(now)

    def _take_off(self) -> Iterator[None]:
        """Arm, climb, hand over: a bit at every step, so that the loop keeps its pace."""
        link, height, seconds = self.link, float(self.target[2]), self.settings.height / CLIMB + 0.5
        link.client.commander.send_notify_setpoint_stop()  # an earlier client's last set point would outrank ours
        yield from self._until(lambda: bool(self._state() & CAN_FLY), 2.0, "cannot be armed", lambda: self._arm(True))
        self._airborne = True

        def climb() -> None:
            link.client.high_level_commander.takeoff(height, seconds, yaw=None)

        near = 0.1 + 0.2 * self.settings.height
        yield from self._until(lambda: bool(self._state() & FLYING), 2.0, "does not take off", climb)
        yield from self._until(
            lambda: abs(link.value("stateEstimate.z") - height) < near, seconds + 2.0, "does not reach its height"
        )
        self._hand_over()
        self._handed_over = True
        yield

    def _until(
        self, holds: Callable[[], bool], seconds: float, trouble: str, ask: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Steps until `holds`, asking five times a second; LinkError when it takes too long."""
        end, due = self.link.clock() + seconds, self.link.clock()
        while not holds():
            now = self.link.clock()
            if now > end:
                raise LinkError(f"{self.settings.uri}: the vehicle {trouble}")
            if ask and now >= due:
                ask()
                due = now + 0.2
            yield

    def _arm(self, wanted: bool) -> None:
        self._asked_to_arm = self._asked_to_arm or wanted
        self.link.client.supervisor.send_arming_request(wanted)

    def _hand_over(self) -> None:
        """From the vehicle's PID controller to the policy."""
        if not self.settings.onboard:
            for index in (1, 2, 3, 4):  # as they turn now, until the first command one period later
                self.link.write(f"motorPowerSet.m{index}", self.link.value(f"motor.m{index}"))
            self.link.write("motorPowerSet.enable", 1)
        else:
            self.link.write("stabilizer.controller", OUT_OF_TREE)

    def _hold(self) -> None:
        """Back to the vehicle's PID controller, which brakes and stays. Its answer is waited for while it is heard."""
        heard = self.link.silence() <= STALE
        here = np.array(self._vector("stateEstimate.", "x", "y", "z"))
        speed = np.array(self._vector("stateEstimate.", "vx", "vy", "vz"))
        self.link.client.commander.send_notify_setpoint_stop()
        rotation = self._rotation()
        yaw = math.atan2(rotation[3], rotation[0])  # as it is
        self.link.client.high_level_commander.go_to(*stopping_place(here, speed).tolist(), yaw, HOLD_S / 2.0)
        self._held = not self.link.tell(ITS_OWN, confirmed=heard) and heard
        if math.isinf(self._lands_at):
            self._lands_at = self.link.clock() + HOLD_S
            self._notes += [*waits(self.link.waited()), f"held for {HOLD_S:g} s {BY_GUARD}"]

    def _land(self) -> None:
        self.done = True
        self._landing.once(self._come_down)

    def _come_down(self) -> None:
        come_down(self.link, float(self.target[2]) - self.settings.height, self.settings.height, self._notes)

    def emergency_stop(self) -> None:
        """Stop the motors now, whoever commands them; callable from any thread.

        A vehicle that has taken off has to be rebooted then; one that stands on the ground just stays there.
        """
        self._notes.append("emergency stop" if self._airborne else "stopped on the ground by the emergency stop")
        self.done = self._landing.over = True
        if not self._airborne:
            if self._asked_to_arm:
                self._arm(False)  # a Brushless' rotors may turn
            return
        for _ in range(3):
            self.link.send("motorPowerSet.enable", 0)
            self.link.client.supervisor.send_emergency_stop()

    def stop(self) -> None:
        if self.link.client is None:
            return
        try:
            if self._airborne and not self._landing.over:
                self._land()
            if self._airborne and not self.link.wait(self._rests, AT_REST):  # disarmed in the air it would fall
                raise LinkError(f"{self.settings.uri}: the vehicle does not say that its motors stand still")
            if self._airborne or self._asked_to_arm:
                self._arm(False)  # once even where it is not armed: what was asked last may be on its way
                self.link.wait(lambda: not self._state() & ARMED, 1.0, lambda: self._arm(False))
            if self._airborne:
                self._notes.append(f"battery after    {self.link.value('pm.vbat'):.2f} V")
            if self.settings.onboard:  # on the ground; a vehicle that was left in the air may be landing by itself
                self.link.write("policy.mode", OFF)
        except LinkError as error:
            self._notes.append(f"{error}; the vehicle is left to its own watchdogs")
        except KeyboardInterrupt:
            self.emergency_stop()
            raise
        finally:
            if self.settings.mode == "bench":
                with suppress(LinkError):
                    self.link.write("stabilizer.controller", PID)
            self.link.close()
            if self._log is not None:
                self._notes += self._log.close()

    def report(self) -> list[str]:
        return [*tracking_error(self._errors, self.rate_hz), *self.link.doubts(), *self._notes]

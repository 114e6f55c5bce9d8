"""A multicopter with PX4, real or simulated, as a driver: it takes off in offboard mode, then a policy flies it.

PX4 keeps its own controllers below and its own watchdogs around: when our set points stop for longer than its
COM_OF_LOSS_T, or its link is lost, it does what COM_OBL_RC_ACT says, without us. What the guard stops is handed back to
it at once: it holds its place, then lands. Whoever changes its mode (a pilot's switch does) has it; we are silent then.
Motor commands go as body rates and thrust, see `deploy/mavlink/setpoints.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Entered, Reading
from deploy.drivers.quadrotor import AHEAD, HEADING, sensed, too_late, tracking_error
from deploy.mavlink import px4, setpoints
from deploy.mavlink.frames import Axes, body, heading_of
from deploy.mavlink.link import Link, MavlinkError
from deploy.mavlink.settings import Settings
from deploy.policy_file import PolicyFile
from deploy.safety.ladder import HOLD_S
from deploy.safety.landing import Landing
from deploy.safety.stamps import waits
from sim.robots import robot as airframe
from sim.spec import ANY_ROBOT

Array = NDArray[np.float32]

SIGNALS = sensed(battery_age=5.0)
BATTERY = "battery_voltage"
USUAL = "x500"  # the airframe whose rotors a policy for any quadrotor commands
WHOLE, PARTS = ("ODOMETRY",), ("LOCAL_POSITION_NED", "ATTITUDE_QUATERNION")  # messages that have the state
NUMBERS = {"ODOMETRY": 331, "LOCAL_POSITION_NED": 32, "ATTITUDE_QUATERNION": 31}
SLOW = {0: 0.1, 245: 0.2, 1: 0.5}  # HEARTBEAT, EXTENDED_SYS_STATE, SYS_STATUS: s between two
LOCAL, BODY_FRD = (1, 20), 12  # MAV_FRAME: LOCAL_NED and LOCAL_FRD of places, BODY_FRD along the body's axes
ON_GROUND = 1
STREAM_S = 1.2  # s of set points before PX4 takes them for a stream
CLIMB = 0.7  # m/s, of the set point as it takes off
NEAR, SLOW_ENOUGH = 0.25, 0.3  # m and m/s: there, so that the policy may have it
AGAIN_S = 0.1  # s until it is asked again for what must not be lost on its way: to hold, to land, to stop its motors
STOP_S = 2.0  # s in which an emergency stop must have been heard
ON_ITS_WAY = 0.4  # s that what was asked just now, to turn the motors on, may still be on its way
BY_GUARD = "by the guard"
DOWN_S = 40.0  # s in which it must have landed
BEAT_S = 1.2  # s within which its next heartbeat comes, even where it does not send them more often
LOSS, ACTION, HOVER = "COM_OF_LOSS_T", "COM_OBL_RC_ACT", "MPC_THR_HOVER"  # its parameters
TERMINATES, DISARMS = 6, 7  # of ACTION: its motors stop
MOST_LOSS_S = 1.0  # s, PX4's default: no longer may it obey the last set point of a program that has died
BEAT_LOSS_S = 2.5  # s without a heartbeat, which alone tells its mode and whether its motors are on


class Mavlink(Entered):
    """Takes off at the first commands, lands when stopped. The target is `height` above where it stood."""

    Config: ClassVar[type] = Settings
    lands, falls = True, False

    def __init__(self, policy: PolicyFile, settings: Settings | None = None) -> None:
        """SetPointError when MAVLink cannot carry the policy's commands."""
        s = self.settings = settings or Settings()
        self.robot = s.robot or (USUAL if policy.robot == ANY_ROBOT else policy.robot)
        try:
            vehicle = airframe(self.robot)
        except ValueError as error:
            raise ValueError(f"driver=mavlink flies multicopters: {error}; or name one with robot=") from None
        gains = (s.rate_gain, s.rate_gain, s.yaw_gain)
        self.carrier = setpoints.carrier_of(policy.outputs, vehicle, gains, s.most_rate)
        self.signals, self.commands, self.rate_hz = SIGNALS, self.carrier.commands, policy.rate_hz
        self.num, self.steps, self.real_time = 1, None, True
        self.link = Link(s.uri, believed=s.stamps)
        self.axes = Axes()
        self.target = np.zeros(3, np.float32)
        self._ground = 0.0  # m
        self._state: tuple[str, ...] = WHOLE  # the messages that have it
        self._ours = self._airborne = self._handed_over = self.done = False  # `ours`: it flies by our set points
        self._asked_to_arm = False
        self._ascent, self._landing = self._take_off(), Landing()
        self._lands_at = math.inf  # s, by the link's clock: until then it holds its place
        self._due = -math.inf  # s, when it is asked to hold again
        self._rates = np.zeros(3)  # rad/s, as last measured
        self._resets = 0  # of its estimate, when the axes and the target were chosen
        self._errors: list[float] = []
        self._notes: list[str] = []

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Mavlink:
        return cls(policy, config)

    def abandon(self) -> None:
        self.link.close()

    def _error(self, what: str) -> MavlinkError:
        """With what is odd about its time stamps, and the vehicle's own last words."""
        words = self.link.last_words()
        what = "; ".join([what, *self.link.doubts()])
        return MavlinkError(f"{self.settings.uri}: {what}{f' (it says: {words})' if words else ''}")

    def connect(self) -> None:
        link, s = self.link, self.settings
        link.open(s.connect_s)
        if link.armed:
            raise self._error("its motors are on already: land and disarm it first")
        for message, period in SLOW.items():
            link.demand(px4.SET_INTERVAL, message, 1e6 * period)
        if not any(self._streams(kinds) for kinds in (WHOLE, PARTS)):
            raise self._error(f"it does not know where it is: no odometry arrived within {s.connect_s:g} s")
        motors = isinstance(self.carrier, setpoints.Motors)
        hover = (HOVER,) if motors and s.hover_thrust is None else ()
        told = link.parameters(LOSS, ACTION, *hover)  # at once: a vehicle may be mute
        self._check_failsafe(told)
        if late := too_late(link.unseen):
            raise self._error(late)
        if isinstance(self.carrier, setpoints.Motors):
            self.carrier.hover = self._hover_thrust(told)
        quaternion = self._attitude()[0]
        self.axes = Axes(heading_of(quaternion) if s.heading == "start" else 0.0)
        self._resets = self._reset_counter()
        self.target = self.axes.world(self._place()[0]).astype(np.float32)
        self._ground = float(self.target[2])
        self.target[2] += s.height

    def _streams(self, kinds: tuple[str, ...]) -> bool:
        """Whether these messages come, at the policy's rate, once they are asked for."""
        self._state = kinds
        for kind in kinds:
            self.link.demand(px4.SET_INTERVAL, NUMBERS[kind], 1e6 / self.rate_hz)
        found = self.link.wait(lambda: self.link.silence(*kinds) < 1.0, 0.5 * self.settings.connect_s)
        return found and all(np.isfinite(part).all() for part in (*self._place(), *self._attitude()))

    def _check_failsafe(self, told: Mapping[str, float]) -> None:
        """MavlinkError where its parameters say that without us its motors stop, or that it flies on for long."""
        loss, action = told.get(LOSS), told.get(ACTION)
        if loss is None:
            self._notes.append(f"it does not say {LOSS}: how long it obeys the last set point is not known")
        elif not loss <= MOST_LOSS_S:  # nor NaN
            raise self._error(
                f"its {LOSS} is {loss:g} s: for so long it would obey the last set point of a program that has "
                f"died; set it to {MOST_LOSS_S:g} or less"
            )
        if action is None:
            self._notes.append(f"it does not say {ACTION}: what it does without us is not known")
        elif action in (TERMINATES, DISARMS):
            raise self._error(
                f"its {ACTION} says that without us its motors stop, in the air, too; let it hold, land or return"
            )

    def _hover_thrust(self, told: Mapping[str, float]) -> float:
        hover = self.settings.hover_thrust or told.get(HOVER, math.nan)
        if not 0.05 <= hover <= 0.95:
            what = f"its {HOVER} is {told[HOVER]:g}" if HOVER in told else f"it does not say {HOVER}"
            raise self._error(f"{what}: give hover_thrust=SHARE")
        return hover

    def _attitude(self) -> tuple[tuple[float, ...], NDArray[np.float64]]:
        """Quaternion w, x, y, z and body rates (3,), rad/s, as MAVLink has them."""
        if self._state == WHOLE:
            m = self.link.value("ODOMETRY")
            return tuple(m.q), np.array([m.rollspeed, m.pitchspeed, m.yawspeed])
        m = self.link.value("ATTITUDE_QUATERNION")
        return (m.q1, m.q2, m.q3, m.q4), np.array([m.rollspeed, m.pitchspeed, m.yawspeed])

    def _place(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position (3,) m and velocity (3,) m/s: north, east, down."""
        m = self.link.value(self._state[0])
        position, velocity = np.array([m.x, m.y, m.z]), np.array([m.vx, m.vy, m.vz])
        if self._state != WHOLE:
            return position, velocity
        if m.frame_id not in LOCAL or m.child_frame_id not in (m.frame_id, BODY_FRD):
            names = [self.link.name_of("MAV_FRAME", frame) for frame in (m.frame_id, m.child_frame_id)]
            raise self._error(
                f"its ODOMETRY is in {names[0]} and {names[1]}: known are MAV_FRAME_LOCAL_NED or MAV_FRAME_LOCAL_FRD, "
                "with velocities in the same or in MAV_FRAME_BODY_FRD"
            )
        if m.child_frame_id == BODY_FRD:
            velocity = body(Axes().rotation(tuple(m.q)).reshape(3, 3) @ body(velocity))
        return position, velocity

    def _reset_counter(self) -> int:
        """How often its estimate has jumped; only ODOMETRY tells."""
        return int(self.link.value("ODOMETRY").reset_counter) if self._state == WHOLE else 0

    def _voltage(self) -> tuple[float, float]:
        """V and how old, s; NaN where it is not measured."""
        message = self.link.value("SYS_STATUS")
        if message is None or message.voltage_battery in (0, 0xFFFF):
            return math.nan, math.inf
        return 1e-3 * message.voltage_battery, self.link.age("SYS_STATUS")

    def read(self) -> Reading:
        link = self.link
        age = link.age(*self._state)  # first: another message may arrive meanwhile
        if (quiet := link.silence(*self._state)) > self.settings.link_loss_s:
            raise self._error(f"the link is lost: nothing of its state arrived for {quiet:.2f} s")
        if (quiet := link.silence("HEARTBEAT")) > BEAT_LOSS_S:
            raise self._error(f"the link is lost: no heartbeat arrived for {quiet:.1f} s")
        if self._ours:
            self._watch()
        if (self._ours or not self._airborne) and not self.done and self._reset_counter() != self._resets:
            raise self._error("it has corrected its estimate by a jump, and the target means another place now")
        (quaternion, rates), (position, velocity) = self._attitude(), self._place()
        self._rates = body(rates)
        voltage, told = self._voltage()
        signals = {
            "position": self.axes.world(position),
            "rotation": self.axes.rotation(quaternion),
            "linear_velocity": self.axes.world(velocity),
            "angular_velocity": self._rates,
            "target_position": self.target,
            "target_velocity": np.zeros(3),
            HEADING.name: AHEAD,
            BATTERY: [voltage],
        }
        arrays = {name: np.asarray([value], np.float32) for name, value in signals.items()}
        if self._handed_over and not self.done:
            self._errors.append(float(np.linalg.norm(arrays["position"][0] - self.target)))
        ages = {name: 0.0 if name.startswith("target") else age for name in arrays}
        return Reading(arrays, {**ages, BATTERY: told})

    def _watch(self) -> None:
        """Whether somebody else has it now: a pilot, a failsafe, or a switch."""
        if not self.link.armed:
            self._give_up("its motors were stopped by somebody else")
            self._airborne = False
        elif self.link.mode != px4.OFFBOARD:
            self._give_up(f"somebody else has it: its mode is {px4.name_of(self.link.mode)}")

    def _give_up(self, why: str) -> None:
        self._notes.append(why)
        self._ours, self.done = False, True

    def write(self, commands: Mapping[str, Array]) -> None:
        """Carry out. The first calls take off, one bit each."""
        if self.done:
            return
        if self._handed_over:
            told = {c.name: np.asarray(commands[c.name])[0] for c in self.commands}
            self.carrier.send(self.link, self.axes, told, self._rates)
        elif self._airborne or any(np.any(commands[c.name]) for c in self.commands):
            next(self._ascent)

    def hand_back(self) -> None:
        """To its own controllers, as the guard has stopped it: it holds its place, then lands. No set points any more.

        To be called at every control step: it is asked again while it is offboard and has not agreed. Once it has, its
        next heartbeat is waited for: a pilot may take it meanwhile.
        """
        if self.done:
            return
        if not self._airborne:
            self._notes.append(f"stopped on the ground {BY_GUARD}")
            self.done = True  # `stop` sees to its motors
            return
        link, now = self.link, self.link.clock()
        if math.isinf(self._lands_at):
            self._lands_at, self._ours = now + HOLD_S, False
            link.answers.pop(px4.SET_MODE, None)
            self._notes += [*waits(link.waited(*self._state)), f"held for {HOLD_S:g} s {BY_GUARD}"]
        offboard = link.mode == px4.OFFBOARD
        answer = link.answers.pop(px4.SET_MODE, px4.IN_PROGRESS)
        if answer == px4.ACCEPTED:
            self._due = now + BEAT_S
        elif offboard and answer != px4.IN_PROGRESS:
            self._notes[-1] = f"it does not hold its place: {px4.result_of(answer)}"
            self._lands_at = now
        if now >= self._lands_at:
            self._notes.append(f"landed {BY_GUARD}")
            self._land()
        elif offboard and now >= self._due:
            self._mode(px4.HOLD)
            self._due = now + AGAIN_S

    def _mode(self, mode: tuple[int, int]) -> None:
        self.link.ask(px4.SET_MODE, 1.0, *mode)

    def _take_off(self) -> Iterator[None]:
        """Stream, offboard, arm, climb, hand over: a bit at every step, so that the loop keeps its pace."""
        link, clock, height = self.link, self.link.clock, self._ground + self.settings.height
        here = self.target.astype(np.float64)
        here[2] = self._ground

        def stay() -> None:
            setpoints.place(link, self.axes, here)

        end = clock() + STREAM_S
        while clock() < end:
            stay()
            yield
        asked = (1.0, *px4.OFFBOARD)
        yield from self._until(lambda: link.mode == px4.OFFBOARD, px4.SET_MODE, asked, stay, "does not go offboard")
        self._asked_to_arm = True
        yield from self._until(lambda: link.armed, px4.ARM, (1.0,), stay, "cannot be armed")
        self._airborne = self._ours = True
        end = clock() + self.settings.height / CLIMB + 8.0
        while not self._has_arrived(height):
            if clock() > end:
                raise self._error("the vehicle does not reach its height")
            here[2] = min(here[2] + CLIMB / self.rate_hz, height)
            stay()
            yield
        self._handed_over = True
        yield

    def _has_arrived(self, height: float) -> bool:
        position, velocity = self._place()
        return abs(-position[2] - height) < NEAR and float(np.linalg.norm(velocity)) < SLOW_ENOUGH

    def _until(
        self,
        holds: Callable[[], bool],
        command: int,
        parameters: tuple[float, ...],
        meanwhile: Callable[[], None],
        trouble: str,
        seconds: float = 3.0,
    ) -> Iterator[None]:
        """Steps until `holds`, asking four times a second; MavlinkError when it is refused or takes too long."""
        end, due = self.link.clock() + seconds, -math.inf
        self.link.answers.pop(command, None)
        while not holds():
            now = self.link.clock()
            answer = self.link.answers.get(command, px4.ACCEPTED)
            if now > end:
                why = "" if answer in (px4.ACCEPTED, px4.IN_PROGRESS) else f": {px4.result_of(answer)}"
                raise self._error(f"the vehicle {trouble}{why}")
            if now >= due:
                self.link.ask(command, *parameters)
                due = now + 0.25
            meanwhile()
            yield

    def _land(self) -> None:
        self.done, self._ours = True, False
        self._landing.once(self._come_down)

    def _come_down(self) -> None:
        """By its own controller, down, motors off; unless somebody else has it by now."""
        link, ours = self.link, {px4.OFFBOARD} | ({px4.HOLD} if self._lands_at < math.inf else set())
        end = link.clock() + DOWN_S
        while link.armed and link.clock() < end:
            if link.silence("HEARTBEAT", *self._state) > DOWN_S / 4.0:
                raise self._error("the link did not come back")
            if link.mode in ours:
                self._mode(px4.LAND)
            elif link.mode != px4.LAND:
                self._notes.append(f"not landed: its mode is {px4.name_of(link.mode)}")
                return
            state = link.value("EXTENDED_SYS_STATE")
            if state is not None and state.landed_state == ON_GROUND:
                link.ask(px4.ARM, 0.0)
            link.wait(lambda: not link.armed, AGAIN_S)
        self._airborne = link.armed
        self._notes.append("it is still flying: land it by hand" if self._airborne else "landed, motors off")

    def emergency_stop(self) -> None:
        """Stop the motors now, wherever it is; callable from any thread. It falls.

        It is asked until its heartbeat says that they are off, for `STOP_S` at most.
        """
        self._notes.append("emergency stop" if self._airborne else "stopped on the ground by the emergency stop")
        self.done, self._ours, self._airborne, self._asked_to_arm = True, False, False, False
        self._landing.over = True
        self._motors_off(0.0, px4.FORCE)

    def _motors_off(self, since: float, *how: float) -> None:
        """Asked until a heartbeat says so that comes `since` s from now at the earliest, for `STOP_S` s at most."""
        link, began = self.link, self.link.clock()
        while link.port is not None:
            link.ask(px4.ARM, 0.0, *how)
            if link.wait(lambda: link.silence("HEARTBEAT") < link.clock() - began - since and not link.armed, AGAIN_S):
                return
            if link.clock() - began > STOP_S:
                self._notes.append("nobody heard that its motors are off: keep away, and stop them by hand")
                return

    def stop(self) -> None:
        try:
            held = self._lands_at < math.inf and not self.done  # the flight ended while it held its place
            if self._airborne and (self._ours or held or self._landing.begun) and not self._landing.over:
                self._land()
            elif not self._airborne and self._asked_to_arm:
                self._motors_off(ON_ITS_WAY)
        except MavlinkError as error:
            self._notes.append(f"{error}; the vehicle is left to its own watchdogs")
        except KeyboardInterrupt:
            self.emergency_stop()
            raise
        finally:
            with suppress(OSError):
                self.link.close()

    def report(self) -> list[str]:
        return [*tracking_error(self._errors, self.rate_hz), *self.link.doubts(), *self._notes]

"""What the vehicle does with what it is told: modes, arming, set points and their loss; and what it tells."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from deploy.mavlink import px4
from deploy.mavlink.frames import FLIP, Array
from deploy.mavlink.simulator import Config
from deploy.mavlink.simulator.controller import Controller, State
from sim.robots.quadrotors import Quadrotor
from sim.rotations import quaternion

POSITION_MODE, READY = (3, 0), (4, 1)
FRESH = 0.5  # s: no older set point lets it go offboard
IDLE_S = 10.0  # s on the ground with motors on, until they are switched off
DESCENT = 0.7  # m/s
DOWN_S = 0.4  # s at rest, while it lands, until it has landed
GROUND, AIR, LANDING = 1, 2, 4  # MAV_LANDED_STATE
STILL = np.zeros(4)
TELLS = ("HEARTBEAT", "SYS_STATUS", "EXTENDED_SYS_STATE", "ATTITUDE_QUATERNION", "LOCAL_POSITION_NED", "ODOMETRY")


class Autopilot:
    """One vehicle. `step` is called every `dt` s with its state; `receive` with every message."""

    def __init__(self, config: Config, robot: Quadrotor, dt: float, mavlink: Any) -> None:
        self.config, self.robot, self.dt, self.mavlink = config, robot, dt, mavlink
        gains = (config.rate_gain, config.rate_gain, config.yaw_gain)
        self.controller = Controller(robot, dt, gains, config.hover_thrust)
        self.mode, self.armed, self.landed = READY, False, GROUND
        self.now = self.still = 0.0  # s since it was switched on; s at rest while it lands
        self.slipped = 0.0  # s that passed while the simulation stood still: a vehicle's clock does not
        self.place, self.heading = np.zeros(3), 0.0  # where it holds itself, in our axes
        self.setpoint: tuple[float, str, Array, float] | None = None  # when, what, numbers, heading or thrust
        self._tells = {getattr(mavlink, f"MAVLINK_MSG_ID_{name}") for name in TELLS}
        self.periods = {0: 1.0}  # s between two messages, by their number
        self.due = {0: 0.0}
        self.out: list[Any] = []  # messages that wait to be sent
        self.frozen = False  # tests: its estimator hangs
        self.tells = True  # tests: false: it is asked for parameters in vain
        self.answers = True  # tests: false: it is asked for the time in vain
        self.resets, self.frames = 0, (1, 12)  # tests: how often its estimate has jumped; of ODOMETRY

    def receive(self, message: Any) -> None:
        """A message from a client."""
        kind = message.get_type()
        if getattr(message, "target_system", 1) not in (0, 1):
            return
        if kind == "COMMAND_LONG":
            asked = message.get_srcSystem(), message.get_srcComponent()
            result = self._command(message)
            self.out.append(self.mavlink.MAVLink_command_ack_message(message.command, result, 0, 0, *asked))
        elif kind == "TIMESYNC" and message.tc1 == 0:
            if self.answers:
                clock = round(1e9 * (self.now + self.slipped))
                self.out.append(self.mavlink.MAVLink_timesync_message(clock, message.ts1))
        elif kind == "PARAM_REQUEST_READ":
            config, name = self.config, message.param_id.rstrip("\0")
            (whole,) = struct.unpack("<f", struct.pack("<i", config.offboard_loss_action))  # as PX4 tells whole numbers
            known = {
                "MPC_THR_HOVER": (config.hover_thrust, self.mavlink.MAV_PARAM_TYPE_REAL32),
                "COM_OF_LOSS_T": (config.offboard_loss_s, self.mavlink.MAV_PARAM_TYPE_REAL32),
                "COM_OBL_RC_ACT": (whole, self.mavlink.MAV_PARAM_TYPE_INT32),
            }
            if name in known and self.tells:
                told = *known[name], len(known), list(known).index(name)
                self.out.append(self.mavlink.MAVLink_param_value_message(name.encode(), *told))
        elif kind == "SET_ATTITUDE_TARGET" and message.type_mask & 0x80 and not message.type_mask & 0x47:
            rates = FLIP * (message.body_roll_rate, message.body_pitch_rate, message.body_yaw_rate)
            self._told("rates", rates, message.thrust)
        elif kind == "SET_POSITION_TARGET_LOCAL_NED" and message.coordinate_frame == 1:
            if not message.type_mask & 0x7:
                self._told("place", FLIP * (message.x, message.y, message.z), -message.yaw)
            elif not message.type_mask & 0x38:
                self._told("velocity", FLIP * (message.vx, message.vy, message.vz), -message.yaw)

    def _told(self, what: str, numbers: Array, beside: float) -> None:
        if np.isfinite(numbers).all() and math.isfinite(beside):
            self.setpoint = self.now, what, numbers, beside

    def _command(self, message: Any) -> int:
        m = self.mavlink
        if not all(map(math.isfinite, (message.param1, message.param2, message.param3))):
            return px4.DENIED
        if message.command == px4.SET_INTERVAL:
            number = int(message.param1)
            if number not in self._tells or (number == m.MAVLINK_MSG_ID_ODOMETRY and not self.config.odometry):
                return int(m.MAV_RESULT_UNSUPPORTED)
            self.periods[number] = max(1e-6 * message.param2, 0.002)
            self.due.setdefault(number, self.now)
            return int(m.MAV_RESULT_ACCEPTED)
        if message.command == px4.SET_MODE:
            return self._asked_for_mode((int(message.param2), int(message.param3)))
        if message.command == px4.ARM:
            return self._asked_to_arm(message.param1 == 1.0, message.param2 == px4.FORCE)
        return int(m.MAV_RESULT_UNSUPPORTED)

    def _asked_for_mode(self, mode: tuple[int, int]) -> int:
        if mode not in px4.MODES:
            return int(self.mavlink.MAV_RESULT_UNSUPPORTED)
        if mode == px4.OFFBOARD and (self.setpoint is None or self.now - self.setpoint[0] > FRESH):
            self.say("Switching to mode 'Offboard' is currently not possible")
            return int(self.mavlink.MAV_RESULT_TEMPORARILY_REJECTED)
        if mode == px4.HOLD and self.config.refuses_hold:
            self.say("Switching to mode 'Hold' is currently not possible")
            return int(self.mavlink.MAV_RESULT_TEMPORARILY_REJECTED)
        self.change(mode)
        return int(self.mavlink.MAV_RESULT_ACCEPTED)

    def _asked_to_arm(self, on: bool, force: bool) -> int:
        if on and not self.config.arms:
            self.say("Arming denied: Resolve system health failures first")
            return int(self.mavlink.MAV_RESULT_TEMPORARILY_REJECTED)
        if not on and self.landed != GROUND and not force:
            self.say("Disarming denied: not landed")
            return int(self.mavlink.MAV_RESULT_TEMPORARILY_REJECTED)
        self.arm(on)
        return int(self.mavlink.MAV_RESULT_ACCEPTED)

    def arm(self, on: bool) -> None:
        """Motors on, or off wherever it is."""
        if on != self.armed:
            self.armed, self._armed_at = on, self.now
            self.controller.restart()
            self.due[0] = self.now  # a heartbeat tells at once

    def change(self, mode: tuple[int, int]) -> None:
        """Into a mode, as a pilot's switch or a failsafe does it; it begins where it is."""
        if mode != self.mode:
            self.mode, self.still = mode, 0.0
            self.place = self.state.position + 0.3 * self.state.velocity
            self.heading = math.atan2(self.state.rotation[1, 0], self.state.rotation[0, 0])
            self.due[0] = self.now

    def say(self, text: str) -> None:
        """A warning for people."""
        self.out.append(self.mavlink.MAVLink_statustext_message(self.mavlink.MAV_SEVERITY_WARNING, text.encode()[:50]))

    def step(self, state: State, now: float) -> Array:
        """Rotor commands (4,), at `now` s."""
        self.state, self.now = state, now
        self._watch()
        self._tell()
        if not self.armed:
            return STILL
        rates, share = self._wanted()
        return self.controller.rotors(state, rates, share)

    def _watch(self) -> None:
        grounded = self.state.position[2] < 0.02
        if not grounded:
            self.landed = LANDING if self.mode == px4.LAND else AIR
        elif not self.armed:
            self.landed = GROUND
        if self.armed and self.landed == GROUND and self.now - self._armed_at > IDLE_S:
            self.arm(False)
        if self.mode == px4.OFFBOARD and (
            self.setpoint is None or self.now - self.setpoint[0] > self.config.offboard_loss_s
        ):
            self.say("Failsafe: offboard control lost, landing")
            self.change(px4.LAND)
        if self.mode == px4.LAND and self.armed:
            self.still = self.still + self.dt if grounded else 0.0
            if self.still > DOWN_S:
                self.landed = GROUND
                self.arm(False)

    def _wanted(self) -> tuple[Array, float]:
        """Body rates and share of the thrust of the present mode."""
        if self.mode == px4.OFFBOARD and self.setpoint is not None:
            _, what, numbers, beside = self.setpoint
            if what == "rates":
                return numbers, beside
            heading = self.heading if math.isnan(beside) else beside
            towards = self.controller.to_place if what == "place" else self.controller.to_velocity
            return towards(self.state, numbers, heading)
        if self.mode == px4.LAND:
            self.place[2] = min(self.place[2], self.state.position[2] + 0.5) - DESCENT * self.dt
        elif self.landed == GROUND:
            return np.zeros(3), 0.0
        return self.controller.to_place(self.state, self.place, self.heading)

    def _tell(self) -> None:
        for number, when in self.due.items():
            if self.now >= when:
                self.due[number] = max(when + self.periods[number], self.now)
                if (message := self._message(number)) is not None:
                    self.out.append(message)

    def _message(self, number: int) -> Any:
        m, s = self.mavlink, self.state
        if number == m.MAVLINK_MSG_ID_HEARTBEAT:
            flags = m.MAV_MODE_FLAG_CUSTOM_MODE_ENABLED | (m.MAV_MODE_FLAG_SAFETY_ARMED if self.armed else 0)
            status = m.MAV_STATE_ACTIVE if self.armed else m.MAV_STATE_STANDBY
            told = (m.MAV_TYPE_QUADROTOR, m.MAV_AUTOPILOT_PX4, flags, px4.custom_mode(self.mode), status, 3)
            return m.MAVLink_heartbeat_message(*told)
        if number == m.MAVLINK_MSG_ID_EXTENDED_SYS_STATE:
            return m.MAVLink_extended_sys_state_message(0, self.landed)
        if number == m.MAVLINK_MSG_ID_SYS_STATUS:
            return m.MAVLink_sys_status_message(0, 0, 0, 0, round(1e3 * self.config.voltage), -1, -1, 0, 0, 0, 0, 0, 0)
        if self.frozen:
            return None
        position, velocity, rates = (FLIP * value for value in (s.position, s.velocity, s.rates))
        clock = self.now + self.slipped
        if number == m.MAVLINK_MSG_ID_LOCAL_POSITION_NED:
            return m.MAVLink_local_position_ned_message(round(1e3 * clock), *position, *velocity)
        quaternion = _quaternion(s.rotation)
        if number == m.MAVLINK_MSG_ID_ATTITUDE_QUATERNION:
            return m.MAVLink_attitude_quaternion_message(round(1e3 * clock), *quaternion, *rates)
        if number == m.MAVLINK_MSG_ID_ODOMETRY:
            along = FLIP * (s.rotation.T @ s.velocity)
            unknown, when = [math.nan] * 21, round(1e6 * clock)
            numbers = (*position, quaternion, *along, *rates, unknown, unknown)
            return m.MAVLink_odometry_message(when, *self.frames, *numbers, self.resets)
        return None


def _quaternion(rotation: Array) -> tuple[float, float, float, float]:
    """w, x, y, z of forward, right, down to north, east, down, of the rotation (3, 3) in our axes."""
    x, y, z, w = quaternion((FLIP[:, None] * rotation * FLIP).reshape(9))
    return w, x, y, z

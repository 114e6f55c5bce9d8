"""What the vehicle may do: arming, watchdogs, tumble detection, emergency stop, as a state machine."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import Flag, IntEnum, auto

from deploy.crazyflie.crtp import Packet
from deploy.crazyflie.simulator.setpoints import LEVELLED, Setpoint, Triple

STABILISE, SHUT_DOWN = 0.5, 2.0  # s, age of the set point after which the vehicle levels out, and falls
EMERGENCY_WATCHDOG = 1.0  # s without a sign of life, once there was one
STILL_FLYING = 2.0  # s without thrust until it counts as landed
TILTED, TILTED_FOR = 0.5, 1.0  # specific force along z in g, and how long (s)
UPSIDE_DOWN, UPSIDE_DOWN_FOR = -0.2, 0.1
FREE_FALL = 0.1  # g
INFO, COMMAND = 0, 1  # channels
RESPONSE = 0x80
GET_BITFIELD = 0x0C


class State(IntEnum):
    """The values are the firmware's."""

    NOT_INITIALISED = 0
    CHECKS_NOT_PASSED = 1
    CHECKS_PASSED = 2
    ARMING = 3
    READY_TO_FLY = 4
    FLYING = 5
    LANDED = 6
    RESET = 7
    LEVEL_OUT = 8
    FREE_FALL = 9
    LOCKED = 10
    CRASHED = 11


class Condition(Flag):
    """What transitions depend on."""

    ARMED = auto()
    FLYING = auto()
    TUMBLED = auto()
    WARNING = auto()  # the set point is old
    TIMEOUT = auto()  # the set point is too old
    EMERGENCY = auto()
    CRASHED = auto()
    PREFLIGHT_TIMEOUT = auto()
    LANDING_TIMEOUT = auto()


NONE = Condition(0)
Test = Callable[[Condition], bool]


def _any(which: Condition = NONE, lacking: Condition = NONE) -> Test:
    """True when any of `which` is given, or any of `lacking` is not."""
    return lambda given: bool(given & which) or bool(lacking & ~given)


def _all(which: Condition = NONE, lacking: Condition = NONE) -> Test:
    """True when all of `which` are given, and none of `lacking`."""
    return lambda given: given & which == which and not given & lacking


_always: Test = _all()
C = Condition
# Per state, the first transition whose test holds is taken.
TRANSITIONS: dict[State, tuple[tuple[State, Test], ...]] = {
    State.NOT_INITIALISED: ((State.CHECKS_NOT_PASSED, _always),),
    State.CHECKS_NOT_PASSED: (
        (State.FREE_FALL, _any(C.EMERGENCY)),
        (State.CHECKS_PASSED, _all(lacking=C.TUMBLED)),
    ),
    State.CHECKS_PASSED: (
        (State.FREE_FALL, _any(C.EMERGENCY)),
        (State.CHECKS_NOT_PASSED, _any(C.TUMBLED)),
        (State.ARMING, _all(C.ARMED, lacking=C.TUMBLED)),
    ),
    State.ARMING: (
        (State.FREE_FALL, _any(C.EMERGENCY)),
        (State.CHECKS_NOT_PASSED, _any(C.TUMBLED, lacking=C.ARMED)),
        (State.READY_TO_FLY, _always),  # brushed motors need no spinning up
    ),
    State.READY_TO_FLY: (
        (State.FREE_FALL, _any(C.EMERGENCY)),
        (State.CHECKS_NOT_PASSED, _any(C.TUMBLED | C.PREFLIGHT_TIMEOUT, lacking=C.ARMED)),
        (State.FLYING, _all(C.FLYING)),
    ),
    State.FLYING: (
        (State.FREE_FALL, _any(C.TIMEOUT | C.EMERGENCY)),
        (State.CRASHED, _any(C.TUMBLED)),
        (State.RESET, _all(lacking=C.ARMED)),
        (State.LEVEL_OUT, _all(C.WARNING)),
        (State.LANDED, _all(lacking=C.FLYING)),
    ),
    State.LANDED: (
        (State.RESET, _any(C.LANDING_TIMEOUT, lacking=C.ARMED)),
        (State.FLYING, _all(C.FLYING)),
    ),
    State.RESET: ((State.CHECKS_NOT_PASSED, _always),),
    State.LEVEL_OUT: (
        (State.FREE_FALL, _any(C.TIMEOUT | C.TUMBLED | C.EMERGENCY)),
        (State.FLYING, _all(lacking=C.WARNING | C.TIMEOUT)),
    ),
    State.FREE_FALL: ((State.LOCKED, _always),),
    State.LOCKED: (),
    State.CRASHED: (
        (State.CHECKS_NOT_PASSED, _all(lacking=C.CRASHED | C.TUMBLED)),
        (State.LOCKED, _all(C.EMERGENCY)),
    ),
}
CAN_FLY = {State.READY_TO_FLY, State.FLYING, State.LEVEL_OUT, State.LANDED}
MOTORS_MAY_RUN = CAN_FLY | {State.ARMING}
MESSAGES = {
    State.READY_TO_FLY: "Ready to fly",
    State.FREE_FALL: "free falling!",
    State.LOCKED: "Locked, reboot required",
    State.CRASHED: "Crashed, recovery required",
}


def next_state(state: State, conditions: Condition) -> State:
    """The state after `state` under these conditions."""
    return next((new for new, holds in TRANSITIONS[state] if holds(conditions)), state)


class Supervisor:
    """Answers the supervisor's port and decides, at every `update`, what state the vehicle is in."""

    def __init__(self, parameters: Mapping[str, float], say: Callable[[str], None], auto_arm: bool = False) -> None:
        self.parameters, self.say, self.auto_arm = parameters, say, auto_arm
        self.state = State.NOT_INITIALISED
        self.armed = self.crashed = self.tumbled = False
        self.planner_bits = 0  # of the bitfield: 8 active, 9 trajectory finished, 10 disabled
        self.bitfield = 0  # the state as clients read it, as of the last update
        self._emergency = False
        self._alive: float | None = None  # when the emergency watchdog was last fed
        self._thrust = self._armed_at = self._landed_at = -math.inf
        self._tumbling: float | None = None

    @property
    def can_fly(self) -> bool:
        """Whether set points are carried out."""
        return self.state in CAN_FLY

    @property
    def flying(self) -> bool:
        """Whether it is in the air, as far as it knows."""
        return self.state in (State.FLYING, State.LEVEL_OUT)

    def _bits(self) -> int:
        bits = (
            self.state is State.CHECKS_PASSED,
            self.armed,
            self.auto_arm,
            self.can_fly,
            self.flying,
            self.tumbled,
            self.state is State.LOCKED,
            self.crashed,
        )
        return sum(bit << k for k, bit in enumerate(bits)) | self.planner_bits

    def arm(self, wanted: bool) -> bool:
        """Arm or disarm; False when it may not."""
        if wanted != self.armed and wanted and self.state is not State.CHECKS_PASSED:
            return False
        self.armed = wanted
        return True

    def recover(self) -> bool:
        """After a crash, once upright; False when it may not."""
        if self.crashed and self.tumbled:
            return False
        self.crashed = False
        return True

    def emergency_stop(self) -> None:
        """Stop the motors until the vehicle is rebooted."""
        self._emergency = True

    def feed_watchdog(self, now: float) -> None:
        """A sign of life; from the first on, their absence is an emergency."""
        self._alive = now

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """A packet of the supervisor's port."""
        command, *data = packet.data or b"\0"
        if packet.channel == INFO:
            answer = self._information(command)
        elif packet.channel == COMMAND:
            answer = self._command(command, bool(data[0]) if data else False, now)
        else:
            answer = b""
        return (packet.reply(bytes((RESPONSE | command,)) + answer),) if answer else ()

    def _information(self, command: int) -> bytes:
        if command == GET_BITFIELD:
            return struct.pack("<H", self.bitfield)
        return bytes((self.bitfield >> (command - 1) & 1,)) if 1 <= command <= 11 else b""

    def _command(self, command: int, argument: bool, now: float) -> bytes:
        if command == 1:
            return bytes((self.arm(argument), self.armed))
        if command == 2:
            return bytes((self.recover(), not self.crashed))
        if command == 3:
            self.emergency_stop()
        elif command == 4:
            self.feed_watchdog(now)
        return b""

    def update(self, now: float, age: float, specific_force: Triple, thrusting: bool) -> None:
        """Twenty-five times a second: age of the set point (s), specific force in g (body), whether a motor turns."""
        if thrusting:
            self._thrust = now
        self.tumbled = bool(self.parameters["supervisor.tmblChckEn"]) and self._is_tumbled(now, specific_force)
        state = next_state(self.state, self._conditions(now, age))
        if state is not self.state:
            self.state = state
            self._enter(state, now)
        self.bitfield = self._bits()

    def _conditions(self, now: float, age: float) -> Condition:
        p = self.parameters
        silent = self._alive is not None and now - self._alive > EMERGENCY_WATCHDOG
        waited = 1e3 * (now - self._armed_at)
        held = {
            C.ARMED: self.armed,
            C.FLYING: now - self._thrust < STILL_FLYING,
            C.TUMBLED: self.tumbled,
            C.WARNING: age > STABILISE,
            C.TIMEOUT: age > SHUT_DOWN,
            C.EMERGENCY: self._emergency or silent or bool(p["stabilizer.stop"]),
            C.CRASHED: self.crashed,
            C.PREFLIGHT_TIMEOUT: self.state is State.READY_TO_FLY and waited > p["supervisor.prefltTimeout"],
            C.LANDING_TIMEOUT: self.state is State.LANDED
            and 1e3 * (now - self._landed_at) > p["supervisor.landedTimeout"],
        }
        found = NONE
        for condition, holds in held.items():
            found |= condition if holds else NONE
        return found

    def _is_tumbled(self, now: float, force: Triple) -> bool:
        limit = self.parameters["supervisor.crashDetectGs"]
        if limit > 0.0 and abs(math.hypot(*force) - 1.0) > limit:
            return True
        if max(map(abs, force)) < FREE_FALL or force[2] >= TILTED:
            self._tumbling = None
            return False
        if self._tumbling is None:
            self._tumbling = now
        since = now - self._tumbling
        return since > TILTED_FOR or (force[2] < UPSIDE_DOWN and since > UPSIDE_DOWN_FOR)

    def _enter(self, state: State, now: float) -> None:
        if state in MESSAGES and not (self.auto_arm and state is State.READY_TO_FLY):
            self.say(f"SUP: {MESSAGES[state]}\n")
        if state is State.READY_TO_FLY:
            self._armed_at = now
        if state is State.LANDED:
            self._landed_at = now
        if state is State.CRASHED:
            self.crashed = True
        if state not in MOTORS_MAY_RUN:
            self.armed = False
        if self.auto_arm and state is State.CHECKS_PASSED:
            self.armed = True

    def override(self, setpoint: Setpoint) -> Setpoint:
        """The set point as the state allows it: unchanged, levelled, or none."""
        if self.state is State.LEVEL_OUT:
            _, _, z = setpoint.position
            modes = type(setpoint.modes)(z=setpoint.modes.z, roll=LEVELLED.roll, pitch=LEVELLED.pitch, yaw=LEVELLED.yaw)
            return Setpoint(setpoint.time, modes, (0.0, 0.0, z), setpoint.velocity, thrust=setpoint.thrust)
        return setpoint if self.state in MOTORS_MAY_RUN else Setpoint()

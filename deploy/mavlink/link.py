"""A connection to a PX4 vehicle by MAVLink 2 over UDP: its newest messages, and commands until they are answered.

Only the first vehicle that is heard, at the place where it was heard first, is listened to. What it measures is as old
as its time stamps and its answers say, where it has such (`deploy/safety/heard.py`).
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from deploy.mavlink import px4
from deploy.mavlink.settings import parsed
from deploy.safety.heard import Heard
from deploy.system.clock import boottime
from deploy.trust.text import printable

SYSTEM, COMPONENT = 245, 191  # ours: no ground station, an on-board computer
BEAT_S = 0.5  # between our heartbeats
PING_S = 0.25  # between two questions for the time (TIMESYNC), which a vehicle answers at once
AGAIN_S = 0.25  # until a command is repeated
TRIES = 12
LARGEST = 4096  # bytes of a datagram
MOST = 64  # datagrams between two looks at the clock
# What is kept, and what must grow from one message to the next: a frozen estimator repeats itself.
STAMPS = {
    "ODOMETRY": "time_usec",
    "LOCAL_POSITION_NED": "time_boot_ms",
    "ATTITUDE_QUATERNION": "time_boot_ms",
}
TICKS = {"time_usec": (1e-6, 64), "time_boot_ms": (1e-3, 32)}  # s, bits
KEPT = {*STAMPS, "HEARTBEAT", "EXTENDED_SYS_STATE", "SYS_STATUS"}


class MavlinkError(OSError):
    """The vehicle does not answer, no longer, or refuses; the message says what."""


def dialect() -> Any:
    """pymavlink's messages; ValueError says how to install it."""
    try:
        from pymavlink.dialects.v20 import common
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("pymavlink"):
            raise
        raise ValueError("driver=mavlink needs pymavlink: pip install 'sim2metal[mavlink]'") from None
    return common


class Port:
    """A socket that speaks MAVLink. `peer` is whom it speaks to, once known: who first sent what `accepts` takes."""

    def __init__(
        self, uri: str, system: int, component: int, accepts: Callable[[Any], bool] = lambda message: True
    ) -> None:
        listens, host, port = parsed(uri)
        self.uri, self.mavlink, self.accepts = uri, dialect(), accepts
        self.codec = self.mavlink.MAVLink(None, srcSystem=system, srcComponent=component)
        self.codec.robust_parsing = True  # noise on a line is no error
        self.peer: tuple[str, int] | None = None
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self._lock = threading.Lock()
        try:
            if listens:
                self.socket.bind((host, port))
            else:
                self.peer = (socket.gethostbyname(host), port)
        except OSError as error:
            self.socket.close()
            raise MavlinkError(f"{uri}: {error.strerror or error}; choose another uri") from None

    def send(self, message: Any) -> None:
        """From any thread."""
        with self._lock, contextlib.suppress(OSError):  # radio loses packets too
            if self.peer is not None:
                self.socket.sendto(message.pack(self.codec), self.peer)
                self.codec.seq = (self.codec.seq + 1) % 256

    def receive(self) -> list[Any]:
        """What has arrived; of a flood only so much that others have their turn."""
        found: list[Any] = []
        for _ in range(MOST):
            try:
                datagram, sender = self.socket.recvfrom(LARGEST)
            except BlockingIOError:
                break
            except ConnectionError:
                continue  # what we sent found nobody
            if self.peer is not None and sender != self.peer:
                continue
            messages = [m for m in self.codec.parse_buffer(datagram) or [] if m.get_type() != "BAD_DATA"]
            if self.peer is None:
                if not any(map(self.accepts, messages)):
                    continue
                self.peer = sender
            found += messages
        return found

    def wait(self, seconds: float) -> None:
        """For something to arrive."""
        select.select([self.socket], (), (), seconds)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class Link(Heard):
    """One vehicle; kinds are types of messages. A thread receives and sends our heartbeat, and asks for the time.

    `open` returns once the vehicle's heartbeat was heard.
    """

    def __init__(self, uri: str, clock: Callable[[], float] = boottime, believed: bool = True) -> None:
        """`believed`: what is measured is as old as its stamps say; else it counts from its arrival."""
        super().__init__({kind: TICKS[stamp] for kind, stamp in STAMPS.items()}, clock, believed)
        self.uri, self.mavlink = uri, dialect()
        self.port: Port | None = None
        self.target = 0  # the vehicle's number
        self.answers: dict[int, int] = {}  # by command: what was answered last
        self._parameters: dict[str, float | None] = {}  # those last asked for; None: not yet told
        self.texts: deque[str] = deque(maxlen=100)  # the newest warnings that the vehicle told
        self.strangers = ""  # who else was heard, and is not what flies here
        self._heard, self._running = threading.Condition(), False

    def open(self, deadline: float) -> None:
        """MavlinkError when no PX4 multicopter is heard in so many seconds."""
        self.port = Port(self.uri, SYSTEM, COMPONENT, self._meet)
        self._running = True
        self.begin()
        self.target, self.strangers, self._parameters = 0, "", {}
        self.answers.clear()
        self.texts.clear()
        self._thread = threading.Thread(target=self._receive, name="mavlink", daemon=True)
        self._thread.start()
        if not self.wait(lambda: "HEARTBEAT" in self.newest, deadline):
            raise MavlinkError(f"{self.uri}: {self.strangers or f'no vehicle was heard within {deadline:g} s'}")

    def _receive(self) -> None:
        port, beat, ping, m = self.port, -math.inf, -math.inf, self.mavlink
        assert port is not None
        while self._running and self.port is port:
            now = self.clock()
            if port.peer is not None and now - ping > PING_S:
                ping, stamp = now, round(1e9 * now)
                self.round_trips.sent(stamp, now)
                port.send(m.MAVLink_timesync_message(0, stamp))
            if now - beat > BEAT_S:
                beat = now
                port.send(m.MAVLink_heartbeat_message(m.MAV_TYPE_ONBOARD_CONTROLLER, 8, 0, 0, m.MAV_STATE_ACTIVE, 3))
            port.wait(0.05)
            messages = port.receive()
            if messages:
                with self._heard:
                    if self.port is not port:
                        return  # another connection has begun, and knows nothing of this one
                    for message in messages:
                        self._take(message)
                    self._heard.notify_all()

    def _take(self, message: Any) -> None:
        kind, m = message.get_type(), self.mavlink
        if not self.target:
            self._meet(message)
        if (message.get_srcSystem(), message.get_srcComponent()) != (self.target, m.MAV_COMP_ID_AUTOPILOT1):
            return
        if kind == "COMMAND_ACK":
            if message.target_system == SYSTEM and message.target_component in (0, COMPONENT):
                self.answers[message.command] = message.result  # what others asked for is answered to them
        elif kind == "STATUSTEXT" and message.severity <= m.MAV_SEVERITY_WARNING:
            self.texts.append(printable(message.text, 80))
        elif kind == "PARAM_VALUE":
            if (name := message.param_id.rstrip("\0")) in self._parameters:  # others may read all of them meanwhile
                self._parameters[name] = self._number(message)
        elif kind == "TIMESYNC" and message.tc1:  # an answer: when it came by there, and what we asked
            self.round_trips.answered(message.ts1, self.clock())
        elif kind in KEPT:
            self.take(kind, message, getattr(message, STAMPS[kind]) if kind in STAMPS else None)

    def _meet(self, message: Any) -> bool:
        """Whether this is the heartbeat of a vehicle that flies here, which is ours from now on."""
        m = self.mavlink
        if message.get_type() != "HEARTBEAT" or message.get_srcComponent() != m.MAV_COMP_ID_AUTOPILOT1:
            return False
        if message.autopilot != m.MAV_AUTOPILOT_PX4:
            named = self.name_of("MAV_AUTOPILOT", message.autopilot)
            self.strangers = f"the autopilot is {named}, and only PX4 is known here"
        elif message.type not in (m.MAV_TYPE_QUADROTOR, m.MAV_TYPE_HEXAROTOR, m.MAV_TYPE_OCTOROTOR):
            self.strangers = f"a vehicle of type {message.type} is no multicopter"
        else:
            self.target = message.get_srcSystem()
        return bool(self.target)

    def name_of(self, kind: str, number: int) -> str:
        """What MAVLink calls a number of one of its enumerations."""
        named = self.mavlink.enums[kind].get(number)
        return named.name if named else str(number)

    def send(self, message: Any) -> None:
        """Without waiting."""
        if self.port is not None:
            self.port.send(message)

    def value(self, kind: str) -> Any:
        """The newest message of that type; None where there is none."""
        return self.newest[kind].content if kind in self.newest else None

    def last_words(self, most: int = 2) -> str:
        """The newest of what it warned of; empty where it did not."""
        with self._heard:
            return "; ".join(list(self.texts)[-most:])

    @property
    def mode(self) -> tuple[int, int]:
        """The flight mode that its last heartbeat told: main, and within it."""
        return px4.mode_of(self.value("HEARTBEAT").custom_mode)

    @property
    def armed(self) -> bool:
        """Whether its motors may turn, as its last heartbeat told."""
        return bool(self.value("HEARTBEAT").base_mode & self.mavlink.MAV_MODE_FLAG_SAFETY_ARMED)

    def ask(self, command: int, *parameters: float, again: int = 0) -> None:
        """Send a command without waiting; what is answered will be in `answers`."""
        padded = [*parameters, *[0.0] * (7 - len(parameters))]
        self.send(self.mavlink.MAVLink_command_long_message(self.target, 1, command, min(again, 255), *padded))

    def demand(self, command: int, *parameters: float) -> int:
        """Send a command until it is answered, and what was; MavlinkError when nothing is."""
        with self._heard:
            self.answers.pop(command, None)
        for attempt in range(TRIES):
            self.ask(command, *parameters, again=attempt)
            if self.wait(lambda: self.answers.get(command, px4.IN_PROGRESS) != px4.IN_PROGRESS, AGAIN_S):
                return self.answers[command]
        raise MavlinkError(f"{self.uri}: command {command} was not answered")

    def _number(self, message: Any) -> float:
        """The value in a PARAM_VALUE; of a whole number PX4 puts the bits, not the value, into the float."""
        if message.param_type == self.mavlink.MAV_PARAM_TYPE_INT32:
            return float(struct.unpack("<i", struct.pack("<f", message.param_value))[0])
        return float(message.param_value)

    def parameters(self, *names: str) -> dict[str, float]:
        """What the vehicle answers for these parameters, which may be infinite or NaN.

        Those that it says nothing of are missing; it is asked for `TRIES * AGAIN_S` s in all.
        """
        with self._heard:
            self._parameters = told = dict.fromkeys(names)  # nor does an answer from before count
        for _ in range(TRIES):
            for name in [name for name in names if told[name] is None]:
                self.send(self.mavlink.MAVLink_param_request_read_message(self.target, 1, name.encode(), -1))
            if self.wait(lambda: None not in told.values(), AGAIN_S):
                break
        with self._heard:
            return {name: value for name, value in told.items() if value is not None}

    def wait(self, holds: Callable[[], bool], deadline: float) -> bool:
        """Wait until a condition on what was heard holds; False: it never did."""
        with self._heard:
            return bool(self._heard.wait_for(holds, deadline))

    def close(self) -> None:
        """Stop listening. The vehicle is left as it is."""
        if self.port is not None:
            self._running = False
            self._thread.join(1.0)
            self.port.close()
            self.port = None

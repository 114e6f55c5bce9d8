"""A connection to a Crazyflie through the official client library, with a deadline on everything.

cflib waits for ever when a reply is lost on a link that does not resend (UDP): while it connects, reads a parameter or
writes one. Here, a connection that stalls is opened again, and parameters are written until their echo arrives.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from deploy.safety.heard import Heard
from deploy.system.clock import boottime

STALLED, STALLED_RADIO = 0.5, 3.0  # s without a packet, while connecting; radio links resend by themselves
LONGER, LONGEST = 1.5, 5.0  # times as long in the next attempt, up to so many s: a busy machine answers late
ECHO = 0.1  # s until the write of a parameter is repeated
TRIES = 10
CLOSING, CLOSING_RADIO = 0.1, 3.0  # s to wait for cflib to close a link; on UDP only its own threads take longer
EMPTIED, ON_AIR = 0.3, 0.05  # s to wait for the radio to take what was sent last, at most; and to have sent it then
LINK_PORT, ECHOES = 15, 0  # its packets are pings: no progress; the channel on which they come back
WRITE = 2  # channel of the parameters' port
TICK = 1e-3, 24  # s, bits: of a log packet's time stamp
Block = Mapping[str, str]  # variable -> type, as cflib names types


class LinkError(OSError):
    """The Crazyflie does not answer, or no longer."""


class NotLoggedError(LinkError):
    """The firmware has no such log variable."""


def cflib() -> Any:
    """The client library; ValueError says how to install it."""
    try:
        import cflib.crtp as crtp
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("cflib"):
            raise
        raise ValueError("a Crazyflie needs cflib: pip install 'sim2metal[crazyflie]'") from None
    return crtp


class Link(Heard):
    """One vehicle. `open` returns once every block of log variables arrives. Kinds are blocks: values by variable.

    cflib pings it ten times a second, and it sends that back through the queue in which its log packets wait.
    """

    called = "log block "

    def __init__(
        self,
        uri: str,
        blocks: Mapping[str, Block],
        period_ms: int,
        cache: str | None = None,
        clock: Callable[[], float] = boottime,
        believed: bool = True,
    ) -> None:
        """`cache`: folder in which tables of contents are remembered, so that connecting by radio is quick.

        `believed`: what is measured is as old as its stamps say; else it counts from its arrival.
        """
        super().__init__(dict.fromkeys(blocks, TICK), clock, believed)
        cflib()
        udp = uri.startswith("udp://")
        self.patience, self.closing = (STALLED, CLOSING) if udp else (STALLED_RADIO, CLOSING_RADIO)
        self.cache, self.uri, self.blocks, self.period_ms = cache, uri, blocks, period_ms
        self.client: Any = None
        self.attempts = 0
        self._console: deque[str] = deque(maxlen=1000)
        self._echo: dict[int, bytes] = {}
        self._echoed = threading.Condition()

    @property
    def console(self) -> str:
        """What the vehicle has printed."""
        return "".join(self._console)

    def open(self, deadline: float) -> None:
        """Connect within `deadline` seconds, in as many attempts as it takes; LinkError otherwise."""
        logging.getLogger("cflib").setLevel(logging.CRITICAL)  # it warns of what is handled here
        crtp = cflib()
        if not crtp.CLASSES:
            crtp.init_drivers()
        end = self.clock() + deadline
        reason, patience, self.attempts = "no answer", self.patience, 0
        while self.clock() < end:
            self.attempts += 1
            reason = self._attempt(end, patience)
            if not reason:
                return
            self.close()
            patience = max(patience, min(patience * LONGER, LONGEST))
        raise LinkError(f"{self.uri}: {reason} within {deadline:g} s ({self.attempts} attempt(s))")

    def _attempt(self, end: float, patience: float) -> str:
        """Why it did not work; empty when it did."""
        from cflib.crazyflie import Crazyflie

        client = self.client = Crazyflie(rw_cache=self.cache)
        done, heard = threading.Event(), [self.clock()]
        failure: list[str] = []

        def packet(received: Any) -> None:
            if received.port != LINK_PORT:
                heard[0] = self.clock()
            elif received.channel == ECHOES and self.client is client:
                self.round_trips.answered(bytes(received.data), self.clock())

        def sent(packet: Any) -> None:
            if (packet.port, packet.channel) == (LINK_PORT, ECHOES) and self.client is client:
                self.round_trips.sent(bytes(packet.data), self.clock())

        def failed(uri: str, message: str) -> None:
            failure.append(message.partition("\n")[0])
            done.set()

        client.packet_received.add_callback(packet)
        client.packet_sent.add_callback(sent)
        client.fully_connected.add_callback(lambda uri: done.set())
        client.connection_failed.add_callback(failed)
        client.console.receivedChar.add_callback(self._console.append)
        client.add_port_callback(WRITE, self._parameter)
        # By this cflib says zero thrust when it closes a link. A vehicle that is landing by itself would fall.
        client.commander.send_setpoint = lambda *given: None
        client.open_link(self.uri)
        while not done.wait(0.05):
            now = self.clock()
            if now > end or now - heard[0] > patience:
                return "the connection stalled"
        if failure:
            time.sleep(max(0.0, min(0.2, end - self.clock())))
            return failure[0]
        return self._listen(end, patience)

    def _listen(self, end: float, patience: float) -> str:
        from cflib.crazyflie.log import LogConfig

        self.begin()
        client = self.client

        def data(stamp: int, values: Mapping[str, float], config: Any) -> None:
            if self.client is client:  # else it belongs to a connection that is over, whose thread is not yet
                self._data(stamp, values, config)

        for name, variables in self.blocks.items():
            config = LogConfig(name, self.period_ms)
            for variable, kind in variables.items():
                config.add_variable(variable, kind)
            config.data_received_cb.add_callback(data)
            try:
                self.client.log.add_config(config)
            except (KeyError, AttributeError) as error:
                raise NotLoggedError(f"{self.uri}: the firmware cannot log this: {error.args[0]}") from None
            config.start()
        until = min(end, self.clock() + patience + 1e-2 * self.period_ms)
        while len(self.newest) < len(self.blocks):
            if self.clock() > until:
                return "the log blocks did not start"
            time.sleep(0.005)
        return ""

    def _data(self, stamp: int, values: Mapping[str, float], config: Any) -> None:
        self.take(config.name, values, stamp)

    def value(self, variable: str) -> float:
        """The newest value of a logged variable."""
        for block in list(self.newest.values()):
            if variable in block.content:
                return float(block.content[variable])
        raise KeyError(f"{variable} is not logged; logged are: {', '.join(v for b in self.blocks.values() for v in b)}")

    def _parameter(self, packet: Any) -> None:
        if packet.channel == WRITE and len(packet.data) >= 2:
            with self._echoed:
                (identity,) = struct.unpack("<H", packet.data[:2])
                self._echo[identity] = bytes(packet.data[2:])
                self._echoed.notify_all()

    def parameter(self, name: str) -> float:
        """A parameter as it was when the link was opened, or last written; 0 where the firmware has none."""
        known = self.client.param.toc.get_element_by_complete_name(name)
        return float(self.client.param.get_value(name)) if known else 0.0

    def send(self, name: str, value: float) -> tuple[int, str]:
        """Write a parameter without waiting; its number and how it is packed."""
        from cflib.crtp.crtpstack import CRTPPacket

        element = self.client.param.toc.get_element_by_complete_name(name)
        if element is None:
            raise LinkError(f"{self.uri}: the firmware has no parameter {name}")
        form = element.pytype
        packet = CRTPPacket()
        packet.set_header(WRITE, WRITE)
        packet.data = struct.pack("<H", element.ident) + struct.pack(
            form, value if form in ("<f", "<d") else int(value)
        )
        self.client.send_packet(packet)
        return element.ident, form

    def write(self, name: str, value: float) -> float:
        """Write a parameter and return what the vehicle says it is now; LinkError when it says nothing."""
        for _ in range(TRIES):
            with self._echoed:
                self._echo.clear()
                identity, form = self.send(name, value)
                if self._echoed.wait_for(lambda wanted=identity: wanted in self._echo, ECHO):  # type: ignore[misc]
                    return float(struct.unpack(form, self._echo[identity])[0])
        raise LinkError(f"{self.uri}: {name} could not be written: no answer")

    def tell(self, values: Mapping[str, float], confirmed: bool = True) -> str:
        """Write parameters, all of them at once: echoes may wait in a queue, and the vehicle must not wait for them.

        Then, `confirmed`, one by one until it answers. Why one was not answered; empty: all were.
        """
        trouble = ""
        for name, value in values.items():
            self.send(name, value)
        for name, value in values.items() if confirmed else ():
            try:
                self.write(name, value)
            except LinkError as error:
                trouble = str(error)
        return trouble

    def wait(self, holds: Callable[[], bool], deadline: float, again: Callable[[], object] | None = None) -> bool:
        """Wait until a condition on what is logged holds; meanwhile call `again` every 0.2 s. False: it never did."""
        end, due = self.clock() + deadline, self.clock()
        while not holds():
            if self.clock() > end:
                return False
            if again and self.clock() >= due:
                again()
                due += 0.2
            time.sleep(0.005)
        return True

    def close(self) -> None:
        """Close the link; the vehicle is left as it is."""
        client, self.client = self.client, None
        if client is None:
            return
        if self.uri.startswith("radio://") and client.link is not None:
            waiting = client.link.out_queue  # cflib throws away what its thread has not sent by then: a landing, say
            self.wait(waiting.empty, EMPTIED)
            time.sleep(ON_AIR)
        closing = threading.Thread(target=client.close_link, daemon=True, name="close link")
        closing.start()
        closing.join(self.closing)

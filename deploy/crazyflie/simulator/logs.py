"""The logging port: a table of contents, and blocks of variables that are sent at their own rates."""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.simulator.parameters import answer_contents, contents

TOC, CONTROL, DATA = range(3)  # channels
DELETE, START, STOP, RESET, CREATE, APPEND, START_MS = 2, 3, 4, 5, 6, 7, 8
MOST_BLOCKS, MOST_VARIABLES, MOST_BYTES = 16, 128, 26
# Type -> its number, and how it is packed.
TYPES = {
    "uint8": (1, "B"),
    "uint16": (2, "H"),
    "uint32": (3, "I"),
    "int8": (4, "b"),
    "int16": (5, "h"),
    "int32": (6, "i"),
    "float": (7, "f"),
    "fp16": (8, "e"),
}
FORMS = dict(TYPES.values())
SPANS = {form: struct.calcsize(form) for form in FORMS.values()}
LARGEST = {"e": 65504.0, "f": 3.4028234e38}


def _fit(value: float, form: str) -> float:
    """The value as the type can hold it: cast as C does, but without overflow."""
    if form in LARGEST:
        return min(max(value, -LARGEST[form]), LARGEST[form])
    if math.isnan(value):
        return 0
    bits = 8 * SPANS[form]
    low, high = (0, (1 << bits) - 1) if form.isupper() else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return min(max(int(value), low), high)


@dataclass
class Block:
    """Variables that travel together."""

    names: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    period: float = 0.0  # s
    due: float = math.inf  # s

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(SPANS[form] for form in self.forms)


class Logs:
    """Answers the logging port; `due` gives what is to be sent by itself."""

    def __init__(self, kinds: Mapping[str, str], read: Callable[[str], float]) -> None:
        """`kinds`: type of every variable by name; `read` gives the present value of one."""
        self.names, self.read = sorted(kinds), read
        self.blocks: dict[int, Block] = {}
        self._items, self._checksum = contents((name, TYPES[kinds[name]][0]) for name in self.names)

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """Describe variables, or set up blocks: answered with the command, the block and an error number."""
        data = packet.data
        try:
            if packet.channel == TOC:
                more = bytes((MOST_BLOCKS, MOST_VARIABLES))
                return (packet.reply(answer_contents(data, self._items, self._checksum, more)),)
            if packet.channel != CONTROL:
                return ()
            code = self._control(data[0], data[1:], now)
        except (struct.error, IndexError):
            raise ValueError(f"malformed request to the log: {data.hex()}") from None
        return (packet.reply(data[:2].ljust(2, b"\0") + bytes((code,))),)

    def _control(self, command: int, data: bytes, now: float) -> int:
        if command == RESET:
            self.blocks.clear()
            return 0
        identity = data[0]
        if command == CREATE:
            if identity in self.blocks:
                return errno.EEXIST
            if len(self.blocks) >= MOST_BLOCKS:
                return errno.ENOMEM
            self.blocks[identity] = Block()
        block = self.blocks.get(identity)
        if block is None:
            return errno.ENOENT
        if command in (CREATE, APPEND):
            return self._append(block, data[1:])
        if command in (START, START_MS):
            period = 0.01 * data[1] if command == START else 1e-3 * struct.unpack("<H", data[1:3])[0]
            block.period, block.due = period, now + period
        elif command == STOP:
            block.due = math.inf
        elif command == DELETE:
            del self.blocks[identity]
        else:
            return errno.ENOEXEC
        return 0

    def _append(self, block: Block, data: bytes) -> int:
        whole = data[: len(data) // 3 * 3]  # cflib leaves a variable's first byte behind in a packet that is full
        for kind, index in struct.iter_unpack("<BH", whole):
            form = FORMS.get(kind & 0x0F)
            if form and block.size + SPANS[form] > MOST_BYTES:
                return errno.E2BIG
            if sum(len(each.names) for each in self.blocks.values()) >= MOST_VARIABLES:
                return errno.ENOMEM
            if form is None or index >= len(self.names):
                return errno.ENOENT
            block.names.append(self.names[index])
            block.forms.append(form)
        return 0

    def due(self, now: float, clock: float) -> Iterable[Packet]:
        """The blocks whose time has come at `now` (s), stamped with the vehicle's clock (s), in whole milliseconds."""
        for identity, block in self.blocks.items():
            if now + 1e-9 < block.due:
                continue
            block.due = max(block.due + block.period, now) if block.period else math.inf
            values = [_fit(self.read(name), form) for name, form in zip(block.names, block.forms, strict=True)]
            stamp = struct.pack("<BI", identity, round(1e3 * clock) & 0xFFFFFF)[:4]
            yield Packet(Port.LOGGING, DATA, stamp + struct.pack("<" + "".join(block.forms), *values))

"""A policy on a microcontroller at the other end of a serial line. firmware/link/main.c is the chip's side.

Every request has a number and is repeated until its answer arrives; the chip does not step twice for one number. When
no answer comes in time, or the chip says that it restarted, the commands of that step are NaN: `deploy.guard` then
holds the last good command for a few steps and sends the safe command from then on. The chip for its part refuses to
step after 200 ms of silence or a restart, until a new flight begins.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.structs import packed, struct_type, unpacked
from deploy.mcu.ports import LinkError, Port
from deploy.mcu.protocol import FAULTS, OK, VERSION, Decoder, frame
from deploy.policy_file import PolicyFile

MOST_LOST = 0.1  # of the steps: a chip that answers fewer did not fly
STATUS = ("off", "learning", "kept", "broken")
REPORT = struct.Struct("<BBxxIfff")  # residual_report


@dataclass
class Statistics:
    """What happened on the line."""

    round_trips: list[float] = field(default_factory=list)  # s, of steps, by the port's clock
    cycles: list[int] = field(default_factory=list)  # of steps, as the chip counted them; 0: it cannot
    repeated: int = 0  # requests that had to be sent again
    lost: int = 0  # steps without an answer
    faults: dict[str, int] = field(default_factory=dict)  # refused steps, by reason

    @property
    def whole(self) -> bool:
        """Whether the chip flew all flights: it refused nothing, and answered all but a few steps."""
        return flew(len(self.round_trips), self.lost, self.faults)


def flew(answered: int, lost: int, refused: Mapping[str, int]) -> bool:
    """Whether a chip of so many steps answered, lost, and refused by reason was there until the end."""
    return not refused and lost <= MOST_LOST * (lost + answered) and answered > 0


@dataclass(frozen=True)
class Learned:
    """A residual that learns on the chip (firmware/learning/residual.h). Shares are of the command's range."""

    status: str  # of STATUS
    alone: bool  # far from its target: the policy flies by itself
    updates: int
    share: float  # added to the command now
    mean: float  # what is learned
    deviation: float  # of its exploration


class OnChip:
    """A policy that runs on the chip, for `deploy.loop.run`: the same contract as the file's."""

    def __init__(self, policy: PolicyFile, port: Port, patience: float | None = None) -> None:
        """`patience`: how long a step may take (s), all repetitions included; default half a control period.

        Raises LinkError when no chip with this very policy answers.
        """
        self.policy, self.port = policy, port
        self.path, self.name, self.robot, self.rate_hz = policy.path, policy.name, policy.robot, policy.rate_hz
        self.inputs, self.outputs, self.vectors = policy.inputs, policy.outputs, policy.vectors
        self.patience = 0.5 / policy.rate_hz if patience is None else patience
        self.statistics = Statistics()
        self.lesson: tuple[int, int] | None = None  # of every flight: a seed, and for how many steps is learned
        self._number = 0
        self._answer_size = 8 + 4 * sum(s.size for s in policy.outputs)
        self._decoder = Decoder(max(self._answer_size, 6 + 64))
        self._greet()

    def close(self) -> None:
        """Give the line back."""
        self.port.close()

    def _greet(self) -> None:
        """Wait for the chip and compare what it runs with the file."""
        payload = self._request("H", b"", 1.5, answer="R")
        if payload is None:
            raise LinkError("no chip answers; is it powered, flashed and connected at 921600 baud?")
        version, sound, signals, commands = struct.unpack_from("<BBHH", payload)
        sha256 = payload[6:].decode("ascii", "replace")
        want = (struct_type(self.policy).itemsize, self._answer_size - 8)
        if version != VERSION:
            raise LinkError(f"the chip speaks version {version} of the protocol, not {VERSION}; flash it again")
        if sha256 != self.policy.sha256 or (signals, commands) != want:
            raise LinkError(f"the chip runs another policy ({sha256[:12]}...), not {self.path}; flash it again")
        if not sound:
            raise LinkError("the chip's self-test failed: it computes wrongly, do not fly with it")

    def _request(self, kind: str, payload: bytes, patience: float, answer: str) -> bytes | None:
        """The payload of the answer; None when none came within `patience` seconds. Repeats four times in that time."""
        self._number = (self._number + 1) % 256
        data = frame(kind, self._number, payload)
        began = self.port.now()
        for attempt in range(4):
            self.statistics.repeated += attempt > 0
            self.port.write(data)
            until = began + patience * (attempt + 1) / 4
            while self.port.now() < until:
                for got, number, content in self._decoder.feed(self.port.read(until - self.port.now())):
                    if got == answer and number == self._number:
                        return content
            self._decoder.forget()
        return None

    def reset(self, n: int = 1) -> None:
        """Begin a flight. LinkError when the chip does not answer."""
        if n != 1:
            raise ValueError(f"a chip flies one robot, not {n}")
        if self._request("B", b"", 1.0, answer="B") is None:
            raise LinkError("the chip no longer answers")
        if self.lesson is not None and self._request("L", struct.pack("<II", *self.lesson), 1.0, answer="L") is None:
            raise LinkError("the chip does not learn: its image was built without")

    def learned(self) -> Learned:
        """What the chip has learned in this flight. LinkError when it does not answer."""
        answer = self._request("M", b"", 1.0, answer="M")
        if answer is None or len(answer) != REPORT.size:
            raise LinkError("the chip does not say what it learned")
        status, alone, updates, share, mean, deviation = REPORT.unpack(answer)
        return Learned(STATUS[min(status, len(STATUS) - 1)], bool(alone), updates, share, mean, deviation)

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Commands (1, *shape) by name for signals (1, *shape) by name; NaN when the chip gave none."""
        began = self.port.now()
        answer = self._request("S", packed(self.policy, signals), self.patience, answer="C")
        if answer is None or len(answer) != self._answer_size:
            self.statistics.lost += 1
            return self._nothing()
        status, cycles = struct.unpack_from("<BxxxI", answer)
        if status != OK:
            reason = FAULTS.get(status, f"status {status}")
            self.statistics.faults[reason] = self.statistics.faults.get(reason, 0) + 1
            return self._nothing()
        self.statistics.round_trips.append(self.port.now() - began)
        self.statistics.cycles.append(cycles)
        return {name: value[None] for name, value in unpacked(self.policy, answer[8:]).items()}

    def _nothing(self) -> dict[str, NDArray[np.float32]]:
        return {s.name: np.full((1, *s.shape), np.nan, np.float32) for s in self.outputs}

"""Arming that cannot be forged where DDS has no security: what the supervisor says is signed with a shared key.

    beat      the supervisor, 20 times a second, to all: whether it is armed, whether it is an emergency
    challenge robot and policy, until they know the supervisor: a random number
    request   who may arm (`python -m deploy.ros2.ask`), to the supervisor: arm, disarm or release

HMAC-SHA256 (RFC 2104) over the topic's full name and the content: what is signed for one robot says nothing to another.
A receiver believes a supervisor's session once a beat of it carries the receiver's own challenge, and then only rising
numbers: a recording of an earlier session, or of this one, is worth nothing. Pure functions of bytes; no ROS here.
"""

from __future__ import annotations

import hmac
import math
import os
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SIZE = 32  # bytes of a key, at least, and of a signature
LONGEST = 4096  # bytes of a key file
NONCE = 16  # bytes
VERBS = ("arm", "disarm", "release")
MOST_CHALLENGES = 8
DRIFT = 1e-3  # s per s by which two clocks may part
REQUEST_AGE = 40  # beats, two seconds, for which a request is good

_BEAT = struct.Struct(f"<4s{NONCE}sQQ??IB")  # what follows: challenges, signature
_REQUEST = struct.Struct(f"<4s{NONCE}sQB{NONCE}s")
BEAT, REQUEST = b"s2b1", b"s2r1"


def read_key(path: str) -> bytes:
    """The content of a key file. ValueError in one line for a file that is missing, short, long or open to others."""
    try:
        mode, content = Path(path).stat().st_mode, b""
        if not stat.S_ISREG(mode):
            raise ValueError(f"key {path!r} is not a file")
        if mode & 0o077:
            raise ValueError(f"key {path!r} can be read by others (mode {mode & 0o777:o}): chmod 600 {path}")
        with open(path, "rb") as file:
            content = file.read(LONGEST + 1)
    except OSError as error:
        raise ValueError(f"key {path!r}: {error.strerror}; python -m deploy.ros2.key out=FILE makes one") from None
    if not SIZE <= len(content) <= LONGEST:
        raise ValueError(f"key {path!r} has {len(content)} bytes, not {SIZE} to {LONGEST}")
    return content


def write_key(path: str) -> None:
    """A new random key, for its owner's eyes only. ValueError when the file exists or cannot be written."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(SIZE))
    except FileExistsError:
        raise ValueError(f"out={path}: the file exists; a key is not overwritten") from None
    except OSError as error:
        raise ValueError(f"out={path}: {error.strerror}") from None


def _signature(key: bytes, topic: str, content: bytes) -> bytes:
    return hmac.digest(key, topic.encode() + b"\0" + content, "sha256")


def _content(key: bytes, topic: str, data: bytes) -> bytes | None:
    """What was signed; None when the signature does not fit."""
    content, signature = data[:-SIZE], data[-SIZE:]
    return content if hmac.compare_digest(_signature(key, topic, content), signature) else None


@dataclass(frozen=True)
class Beat:
    """What the supervisor says. `stamp`: s of its monotonic clock; `releases`: how often it ended an emergency."""

    session: bytes
    number: int
    stamp: float
    armed: bool
    emergency: bool
    releases: int
    challenges: tuple[bytes, ...] = ()

    def sealed(self, key: bytes, topic: str) -> bytes:
        """To be published on `topic`, its full name."""
        nanoseconds, challenges = round(self.stamp * 1e9), self.challenges[-MOST_CHALLENGES:]
        head = (BEAT, self.session, self.number, nanoseconds, self.armed, self.emergency, self.releases)
        content = _BEAT.pack(*head, len(challenges)) + b"".join(challenges)
        return content + _signature(key, topic, content)

    @classmethod
    def opened(cls, key: bytes, topic: str, data: bytes) -> Beat | None:
        """The beat; None when it is none, or not signed with this key for this topic."""
        if not 0 <= len(data) - _BEAT.size - SIZE <= MOST_CHALLENGES * NONCE:
            return None
        content = _content(key, topic, data)
        if content is None:
            return None
        magic, session, number, nanoseconds, armed, emergency, releases, count = _BEAT.unpack_from(content)
        rest = content[_BEAT.size :]
        if magic != BEAT or len(rest) != count * NONCE:
            return None
        challenges = tuple(rest[k : k + NONCE] for k in range(0, len(rest), NONCE))
        return cls(session, number, nanoseconds * 1e-9, armed, emergency, releases, challenges)


class Verifier:
    """One receiver of beats: which of them it believes."""

    def __init__(self, key: bytes, topic: str, silence_s: float) -> None:
        """`silence_s`: a beat that was held back for longer says nothing any more."""
        self._key, self._topic, self._silence = key, topic, silence_s
        self.challenge = os.urandom(NONCE)
        self.session, self.number = b"", -1
        self.gaps = 0  # beats that did not come
        self.refused: dict[str, int] = {}  # by what was wrong
        self._offset = math.inf  # s: arrival by our clock less the supervisor's stamp, as small as it was
        self._at = -math.inf

    def accepts(self, data: bytes, now: float) -> Beat | None:
        """A beat that arrived `now` (s, monotonic); None for what must not be believed."""
        beat = Beat.opened(self._key, self._topic, data)
        why = "not signed with our key" if beat is None else self._doubt(beat, now)
        if beat is None or why:
            self.refused[why] = self.refused.get(why, 0) + 1
            return None
        self.gaps += beat.number - self.number - 1 if self.number >= 0 else 0
        self.number = beat.number
        return beat

    def _doubt(self, beat: Beat, now: float) -> str:
        if beat.session != self.session:
            if self.challenge not in beat.challenges:
                return "a session that we did not ask for"
            self.session, self.number, self._offset, self._at = beat.session, -1, now - beat.stamp, now
            self.challenge = os.urandom(NONCE)  # the next session has to answer another
        if beat.number <= self.number:
            return "a repetition"
        self._offset = min(self._offset + DRIFT * (now - self._at), now - beat.stamp)
        self._at = now
        return "held back" if now - beat.stamp - self._offset > self._silence else ""


@dataclass(frozen=True)
class Request:
    """What somebody who has the key asks of the supervisor's session; `number` is of a beat heard a moment ago."""

    session: bytes
    number: int
    verb: str
    once: bytes

    @property
    def label(self) -> str:
        """By which its answer is known."""
        return self.once.hex()

    def sealed(self, key: bytes, topic: str) -> bytes:
        """To be published on `topic`, its full name."""
        content = _REQUEST.pack(REQUEST, self.session, self.number, VERBS.index(self.verb), self.once)
        return content + _signature(key, topic, content)

    @classmethod
    def opened(cls, key: bytes, topic: str, data: bytes) -> Request | None:
        """The request; None when it is none, or not signed with this key for this topic."""
        if len(data) != _REQUEST.size + SIZE or (content := _content(key, topic, data)) is None:
            return None
        magic, session, number, verb, once = _REQUEST.unpack(content)
        return cls(session, number, VERBS[verb], once) if magic == REQUEST and verb < len(VERBS) else None


class Signer:
    """The supervisor's side: its session."""

    def __init__(self, key: bytes, beat_topic: str, request_topic: str) -> None:
        self._key, self._beat, self._request = key, beat_topic, request_topic
        self.session, self.number = os.urandom(NONCE), 0
        self._challenges: dict[bytes, bytes] = {}  # by publisher, newest last
        self._answers: dict[bytes, tuple[int, str]] = {}  # by request: its number, and the answer

    def challenged(self, sender: bytes, challenge: bytes) -> None:
        """A receiver wants proof."""
        if len(challenge) == NONCE:
            self._challenges.pop(sender, None)
            self._challenges[sender] = challenge
            while len(self._challenges) > MOST_CHALLENGES:
                del self._challenges[next(iter(self._challenges))]

    def beat(self, stamp: float, armed: bool, emergency: bool, releases: int) -> bytes:
        """The next one."""
        self.number += 1
        challenges: Sequence[bytes] = list(self._challenges.values())
        said = Beat(self.session, self.number, stamp, armed, emergency, releases, tuple(challenges))
        return said.sealed(self._key, self._beat)

    def asked(self, data: bytes) -> Request | None:
        """A request that is signed for this session, and young; None for every other."""
        request = Request.opened(self._key, self._request, data)
        if request is None or request.session != self.session or not 0 <= self.number - request.number <= REQUEST_AGE:
            return None
        return request

    def answer(self, request: Request, do: Callable[[str], tuple[bool, str]]) -> str:
        """What to say to a request of `asked`. It is done once, however often it comes."""
        young = self.number - REQUEST_AGE
        self._answers = {once: told for once, told in self._answers.items() if told[0] >= young}
        if request.once not in self._answers:
            done, text = do(request.verb)
            self._answers[request.once] = request.number, f"{request.label} {'yes' if done else 'no'} {text}"
        number, said = self._answers[request.once]
        self._answers[request.once] = max(number, request.number), said
        return said

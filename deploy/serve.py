"""python -m deploy.serve policy=FILE [key=value ...]: answers for a policy file's base, in openpi's protocol.

A request holds the signals by name and, to steer the base, "noise"; without it the server draws some. The answer's
"actions" are commands, in their units, one row for each step of the plan. Both may have a leading axis of requests.
With answers=plans the whole file plans, for a control loop that does not wait (`deploy.remote.planned`): a request has
"committed", the commands that are executed from now on, in the place of noise, or neither at the start of a flight.
See `deploy.remote.client`. On this machine (127.0.0.1) whoever asks is answered, but no web page; at any other address
a client shows a token, as openpi's clients show their API key. Nothing is encrypted: across a network that others
share, use a tunnel. Requests are limited to a few times what the policy sees, and each client waits for its own only.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import secrets
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np

from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.remote.client import EXTRA, TOKEN, AnyArray, pack, unpack
from deploy.remote.plans import Plans
from deploy.remote.subgraph import FileBase
from deploy.trust.text import printable
from sim import spec
from sim.spec import Signal

SMALLEST = 1 << 16  # bytes that a request may have at least
ROWS = 4  # observations that a request may have at least
AROUND = 1 << 12  # bytes of a request beside its arrays
ENTRIES = 256  # maps and lists in a request, and entries of each
Answer = Callable[[Any], dict[str, Any]]  # to a request; ValueError when it is none
SLICE = 64  # rows that are computed at once: memory stays small, and others get their turn
CLIENTS = 64  # at once
WAITING = 5.0  # s in which a client must have said what it wants
ERROR = 500  # characters of what is said about a bad request
SECRET = 16  # characters of a token at least
BASE, PLANS = ANSWERS = ("base", "plans")


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "the policy file whose base answers"})
    host: str = field(default="127.0.0.1", metadata={"help": "address to listen at; 0.0.0.0 is all of this machine's"})
    port: int = field(default=8000, metadata={"help": "0 takes a free one"})
    answers: str = field(default=BASE, metadata={"help": "of the file's base, steered; or plans of the whole"})
    once: bool = field(default=False, metadata={"help": "end with the first client"})
    token: str | None = field(
        default=None,
        metadata={"help": "file with what clients must show (default: none here; elsewhere one is made and printed)"},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port lies between 0 and 65535, got {self.port}")
        if self.answers not in ANSWERS:
            raise ValueError(f"answers={self.answers} is not one of {', '.join(ANSWERS)}")


class Answering(ABC):
    """What any server says, and to what: requests of a limited size, of signals that the policy sees."""

    def __init__(self, policy: PolicyFile, shape: tuple[int, int]) -> None:
        """`shape`: of what comes with an observation, and of the answer: control steps and commands."""
        self.policy, self.shape, self.turn = policy, shape, threading.Lock()

    @property
    def row(self) -> int:
        """Bytes of one observation and of what comes with it, written as largely as clients may."""
        seen = sum(s.size if s.is_picture else 8 * s.size for s in self.policy.inputs)
        return seen + 8 * self.shape[0] * self.shape[1]

    @property
    def most(self) -> int:
        """Observations that one request may have."""
        return max(ROWS, SMALLEST // self.row)

    @property
    def largest(self) -> int:
        """Bytes of a request."""
        return self.most * self.row + AROUND

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know."""
        policy = self.policy
        return {
            **{name: policy.metadata[name] for name in ("name", "task", "robot", "rate_hz", "inputs", "outputs")},
            "sha256": policy.sha256,
            "training": policy.metadata.get("training", {}),
            "horizon": self.shape[0],
            "batches": True,
            "most": self.most,
        }

    def rows(self, request: Any) -> tuple[dict[str, AnyArray], int, bool]:
        """The signals of a request (n, *shape), n, and whether it had no axis for it; ValueError when it is none."""
        if not isinstance(request, dict):
            raise ValueError(f"a request is a map, not a {type(request).__name__}")
        given = {s.name: np.asarray(request[s.name]) for s in self.policy.inputs if s.name in request}
        if missing := [s.name for s in self.policy.inputs if s.name not in given]:
            raise ValueError(
                f"the request lacks {', '.join(missing)}; it has {', '.join(map(str, request)) or 'nothing'}"
            )
        first = self.policy.inputs[0]
        single = given[first.name].ndim == len(first.shape)
        n = 1 if single else len(given[first.name])
        if not 1 <= n <= self.most:
            raise ValueError(f"the request has {n} observations; 1 to {self.most} are answered at once")
        return {s.name: _seen(s, given[s.name], n, single) for s in self.policy.inputs}, n, single

    def beside(self, name: str, given: AnyArray, n: int) -> AnyArray:
        """What comes with n observations, (n, *shape) as float32; ValueError when it is something else."""
        with np.errstate(over="ignore"):
            value = np.asarray(given, np.float32)
        if value.shape not in ((n, *self.shape), self.shape) or value.size != n * self.shape[0] * self.shape[1]:
            raise ValueError(f"{name} has shape {value.shape}, not {self.shape}")
        if not np.isfinite(value).all():
            raise ValueError(f"{name} is not finite")
        return value.reshape(n, *self.shape)

    @abstractmethod
    def begin(self) -> Answer:
        """What answers one client's requests."""

    def talk(self, connection: Any) -> None:
        """Answer one client until it hangs up. What is wrong with a request is said, and the next one is waited for."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # also without a word
            self._converse(connection)

    def _converse(self, connection: Any) -> None:
        connection.send(pack(self.metadata()))
        answer = self.begin()
        for content in connection:
            connection.send(self.reply(content, answer))

    def reply(self, content: bytes | str, answer: Answer | None = None) -> bytes | str:
        """What is said to a message: an answer (a new client's), or a text that says why not. Never an exception."""
        try:
            asked = unpack(content if isinstance(content, bytes) else content.encode(), ENTRIES)
            return pack((answer or self.begin())(asked))
        except Exception as error:  # whatever a stranger provokes, the next request is answered
            return printable(f"{type(error).__name__}: {error}", ERROR)


class Service(Answering):
    """Chunks of a file's base, steered by noise."""

    def __init__(self, policy: PolicyFile) -> None:
        """PolicyFileError when the file has no base that noise steers."""
        self.base = FileBase(policy)
        super().__init__(policy, (self.base.horizon, self.base.actions))
        low, high = spec.limits(policy.outputs)
        self.middle, self.half = np.float32(0.5) * (high + low), np.float32(0.5) * (high - low)
        self.rng = np.random.default_rng()

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know in order to steer the base."""
        about = {"noise": list(self.shape), "mean": self.base.mean, "deviation": self.base.deviation}
        return super().metadata() | about

    def begin(self) -> Answer:
        return self.answer

    def answer(self, request: Any) -> dict[str, Any]:
        """The actions for a request; ValueError when it is none."""
        rows, n, single = self.rows(request)
        noise = self._noise(request.get("noise"), n)
        chunks = [self._chunks(rows, noise, slice(start, start + SLICE)) for start in range(0, n, SLICE)]
        actions = np.concatenate(chunks).reshape(n, *self.shape) * self.half + self.middle
        return {"actions": actions[0] if single else actions}

    def _chunks(self, rows: dict[str, AnyArray], noise: AnyArray, part: slice) -> AnyArray:
        seen = self.base.see({name: value[part] for name, value in rows.items()})
        return self.base.sample(seen, noise[part])

    def _noise(self, given: AnyArray | None, n: int) -> AnyArray:
        if given is None:
            with self.turn:
                return self.rng.standard_normal((n, self.base.noise_size)).astype(np.float32)
        return self.beside("noise", given, n).reshape(n, -1)


class PlanService(Answering):
    """Plans of a whole file, for control loops that go on meanwhile. Each client's flight is remembered."""

    def __init__(self, policy: PolicyFile) -> None:
        """PolicyFileError when the file plans nothing, or its plans are not to be had."""
        self.plans = Plans(policy)
        super().__init__(policy, self.plans.shape)

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know in order to carry plans out."""
        return super().metadata() | {"plans": True}

    def begin(self) -> Answer:
        remembered: dict[str, AnyArray] = {}

        def answer(request: Any) -> dict[str, Any]:
            """The plan for a request; ValueError when it is none."""
            nonlocal remembered
            rows, n, single = self.rows(request)
            given = request.get("committed")
            committed = None if given is None else self.beside("committed", given, n)
            kept = {name: v for name, v in remembered.items() if committed is not None and len(v) == n}
            with self.turn:
                actions, remembered = self.plans.plan(rows, committed, kept)
            return {"actions": actions[0] if single else actions}

        return answer


def _seen(signal: Signal, given: AnyArray, n: int, single: bool) -> AnyArray:
    """What a request says of one signal, (n, *shape) in the policy's type; ValueError when it cannot be that."""
    rows = given[None] if single else given
    bad = f"{signal.name} has shape {given.shape}, not {signal.shape}, or is not finite"
    if rows.shape != (n, *signal.shape) or rows.dtype.kind not in "biuf":
        raise ValueError(bad)
    with np.errstate(over="ignore"):
        numbers = rows if signal.is_picture and rows.dtype == np.uint8 else rows.astype(np.float32)
    if not np.isfinite(numbers).all() or (signal.is_picture and not ((numbers >= 0) & (numbers <= 255)).all()):
        raise ValueError(bad)
    return numbers.astype(signal.dtype, copy=False)


def is_here(host: str) -> bool:
    """Whether only this machine can reach what listens at that address."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return False  # listening there fails, and says why
    return bool(found) and all(ipaddress.ip_address(str(each[4][0]).split("%")[0]).is_loopback for each in found)


def token_of(config: Config) -> str:
    """What clients must show: "" where nothing is asked for. A new one is printed, for there is no other way to it."""
    if config.token is not None:
        with open(config.token, encoding="ascii", errors="replace") as file:
            token = file.read(1 << 12).strip()
        if len(token) < SECRET or not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError(f"token={config.token}: it holds no token of {SECRET} or more letters and digits")
        return token
    if is_here(config.host):
        return ""
    token = secrets.token_urlsafe(24)
    print(f"clients show this token ({TOKEN} in their environment, openpi's api_key): {token}", flush=True)
    return token


def opened(policy: PolicyFile, host: str, port: int, token: str = "", answers: str = BASE, once: bool = False) -> Any:
    """A server that listens; `serve_forever` answers, each client in a thread, until `shutdown`.

    `answers`: one of ANSWERS. `once`: it shuts down when the first client that it talked to has left.
    """
    try:
        import msgpack  # noqa: F401
        from websockets.sync.server import serve
    except ModuleNotFoundError as error:
        raise PolicyFileError(f"a policy is served with the package {error.name!r}: {EXTRA}") from None
    service: Answering = Service(policy) if answers == BASE else PlanService(policy)
    shown = {f"{kind} {token}".encode() for kind in ("Api-Key", "Bearer")}

    def admitted(connection: Any, request: Any) -> Any:
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if token and not any(hmac.compare_digest(given, each) for each in shown):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "show the token that the server printed\n")
        return None

    def talk(connection: Any) -> None:
        service.talk(connection)
        if once:  # in another thread, for it waits until this one is over
            threading.Thread(target=server.shutdown).start()

    server = serve(
        talk,
        host,
        port,
        origins=[None],  # no web page: browsers say where a page came from
        process_request=admitted,
        compression=None,
        open_timeout=WAITING,
        max_size=service.largest,
        max_queue=1,
        server_header=None,
        logger=logging.Logger("silent", logging.CRITICAL + 1),  # strangers do not write into our terminal
    )
    server.handler = _few(server.handler)
    return server


def _few(talk: Callable[..., None]) -> Callable[..., None]:
    """`talk(socket, address)` for CLIENTS connections at once; the others are hung up on."""
    places = threading.BoundedSemaphore(CLIENTS)

    def handler(connection: socket.socket, address: Any) -> None:
        placed = places.acquire(blocking=False)
        try:
            if not placed:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # the library finds it closed, and tidies up
            talk(connection, address)
        finally:
            if placed:
                places.release()

    return handler


def main(argv: Sequence[str]) -> None:
    """Load, check, listen."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    policy = PolicyFile.load(config.policy)
    with opened(policy, config.host, config.port, token_of(config), config.answers, config.once) as server:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        host, port = server.socket.getsockname()[:2]
        print(f"{printable(config.policy)} answers at {host}:{port}", flush=True)
        try:
            server.serve_forever()
        finally:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="serve"))

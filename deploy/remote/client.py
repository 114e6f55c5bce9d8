"""Asking a policy that runs elsewhere, in openpi's protocol: MessagePack with numpy arrays over a WebSocket.

A server greets with a map, its metadata. A request is a map too, of observations by name; the noise that the answer is
to be made of is its entry "noise", which a server hands on to the policy that it serves. An answer is a map with
"actions", one row per control step; a text in its place is the server's error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.text import printable

AnyArray = NDArray[Any]

PLAIN = "biufSU"  # kinds of arrays that are sent: no objects, which could be anything
DTYPE = re.compile(r"[<>|=]?[biufSU][0-9]{1,7}|bool|u?int(8|16|32|64)|float(16|32|64)")
LONGEST = 4000  # characters of what a server says instead of answering: the last line is shown
RANK = 8  # of an array
NUMBERS = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
    "S": (bytes,),
    "U": (str,),
}  # kind -> in a message
MOST = 4096  # entries of a map or list in a message, and maps and lists in all
LARGEST = 1 << 24  # bytes of an answer
UNAUTHORIZED = 401
TOKEN = "SIM2METAL_TOKEN"  # the environment's name for what a server wants to be shown
EXTRA = "pip install 'sim2metal[serve]'"


class ServerError(ValueError):
    """A policy server is not there, or does not answer as it should; the message says which one and what to do."""


def pack(message: Any) -> bytes:
    """The bytes of maps, lists, texts, numbers and numpy arrays."""
    import msgpack

    content: bytes = msgpack.packb(message, default=_packed)
    return content


def unpack(content: bytes, most: int = MOST) -> Any:
    """The inverse of `pack`; ValueError when that is not what the bytes are.

    A message of `most` maps and lists, with as many entries each, is the largest: what is unpacked is never much more
    than the bytes that came.
    """
    import msgpack

    left = most

    def count(made: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {most} maps and lists")
        return made

    def map_(made: dict[Any, Any]) -> Any:
        return _unpacked(count(made))

    sizes = {"max_array_len": most, "max_map_len": most, "max_ext_len": 0}
    try:
        return msgpack.unpackb(content, object_hook=map_, list_hook=count, **sizes)
    except Exception as error:  # msgpack's own classes, and whatever a wrong shape or type leads to
        reason = str(error) or type(error).__name__
        raise ValueError(f"{len(content)} bytes are no message: {printable(reason)}") from None


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in PLAIN:
        head = {b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__ndarray__": True, b"data": value.tobytes(), **head}
    if isinstance(value, np.generic) and value.dtype.kind in PLAIN:
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise ValueError(f"{type(value).__name__} {value!r} cannot be sent")


def _unpacked(item: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in item and b"__npgeneric__" not in item:
        return item
    name, data = item[b"dtype"], item[b"data"]
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(f"an array of {name!r:.40}")
    kind = np.dtype(name)
    if b"__npgeneric__" in item:
        if type(data) not in NUMBERS[kind.kind]:
            raise ValueError(f"a number of {name} that is a {type(data).__name__}")
        return kind.type(data)
    shape = item[b"shape"]
    whole = isinstance(shape, list) and len(shape) <= RANK and all(type(k) is int and k >= 0 for k in shape)
    if not whole or not isinstance(data, bytes):
        raise ValueError("an array without shape or data")
    return np.frombuffer(data, kind).reshape(shape)


class Client:
    """One policy server, at HOST:PORT. Every failure is a ServerError; the connection is then closed."""

    def __init__(self, address: str, timeout: float = 10.0, token: str | None = None) -> None:
        """`timeout`: s that an answer may take, the greeting included. `token`: else it is the environment's."""
        self.address, self.timeout = address, timeout
        token = token or os.environ.get(TOKEN, "").strip()
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit()):
            raise ServerError(f"server={address}: needs HOST:PORT, such as localhost:8000")
        try:
            import msgpack  # noqa: F401
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ModuleNotFoundError as error:
            raise ServerError(f"a policy server is asked with the package {error.name!r}: {EXTRA}") from None
        self._failures, self._open = (OSError, WebSocketException), ExitStack()
        try:
            calling = connect(
                f"ws://{address}",
                additional_headers={"Authorization": f"Api-Key {token}"} if token else None,  # as openpi's client
                open_timeout=timeout,
                compression=None,
                max_size=LARGEST,
                proxy=None,
                ping_interval=None,
            )
            self._socket = self._open.enter_context(calling)
        except (OSError, WebSocketException) as error:  # refused, unknown, too slow, something else than a WebSocket
            if getattr(getattr(error, "response", None), "status_code", None) == UNAUTHORIZED:
                raise ServerError(
                    f"the policy server at {address} wants another token: put what it printed into {TOKEN}"
                ) from None
            reason = printable(str(error) or type(error).__name__)
            raise ServerError(
                f"no policy server at {address}: {reason}; python -m deploy.serve policy=FILE is one"
            ) from None
        self.metadata: dict[str, Any] = self._map(self._receive())

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer."""
        content = pack(request)
        try:
            self._socket.send(content)
        except self._failures:
            raise self._trouble("has closed the connection") from None
        return self._map(self._receive())

    def actions(self, signals: Mapping[str, AnyArray], noise: AnyArray, steps: int, k: int) -> NDArray[np.float32]:
        """The first actions (n, steps, k) that signals (n, *shape) and noise (n, rows, width) lead to.

        ServerError unless there are as many, and finite. A server that does not take batches is asked n times.
        """
        request = {**signals, "noise": np.asarray(noise, np.float32)}
        if self.metadata.get("batches"):
            parts = self._parts(len(noise))
            made = [self._actions({n: v[a:b] for n, v in request.items()}, (b - a, steps, k)) for a, b in parts]
            return np.concatenate(made)
        rows = [{name: value[row] for name, value in request.items()} for row in range(len(noise))]
        return np.stack([self._actions(row, (steps, k)) for row in rows])

    def plan(self, request: Mapping[str, AnyArray], shape: tuple[int, int, int]) -> NDArray[np.float32]:
        """The plan (n, steps, k) that a request leads to; ServerError unless it is one, and finite."""
        return self._actions(request, shape)

    def _parts(self, n: int) -> list[tuple[int, int]]:
        """First and last of the rows of each request: a server says how many at once it answers for."""
        most = self.metadata.get("most", n)
        if type(most) is not int or most < 1:
            raise self._trouble(f"answers for {most!r:.40} rows at once")
        return [(start, min(start + most, n)) for start in range(0, n, most)] or [(0, 0)]

    def _actions(self, request: Mapping[str, Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
        answer = self.ask(request)
        if not isinstance(found := answer.get("actions"), np.ndarray):
            raise self._trouble(
                f'answers without "actions", with {printable(", ".join(map(str, answer)) or "nothing")}'
            )
        *lead, steps, k = shape
        if found.ndim != len(shape) or [*found.shape[:-2], found.shape[-1]] != [*lead, k] or found.shape[-2] < steps:
            raise self._trouble(f"answers with actions of shape {found.shape}, wanted are {shape}")
        if found.dtype.kind not in "iuf":
            raise self._trouble(f"answers with actions of {found.dtype}")
        with np.errstate(over="ignore"):
            taken: NDArray[np.float32] = found[..., :steps, :].astype(np.float32)
        if not np.isfinite(taken).all():
            raise self._trouble("answers with actions that are not finite")
        return taken

    def close(self) -> None:
        """Hang up."""
        self._open.close()

    def _receive(self) -> Any:
        try:
            content = self._socket.recv(timeout=self.timeout)
        except TimeoutError:
            raise self._trouble(f"has not answered for {self.timeout:g} s") from None
        except self._failures:
            raise self._trouble("has closed the connection") from None
        if isinstance(content, str):
            said = content[-LONGEST:].strip().splitlines()
            raise self._trouble(f"refuses: {printable(said[-1]) if said else 'no reason'}")
        try:
            return unpack(content)
        except ValueError as error:
            raise self._trouble(f"does not speak openpi's protocol: {error}") from None

    def _map(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise self._trouble(f"sends a {type(message).__name__} in the place of a map")
        return message

    def _trouble(self, what: str) -> ServerError:
        self.close()
        return ServerError(f"the policy server at {self.address} {what}")

"""Asking a policy that runs elsewhere, in openpi's protocol: MessagePack with numpy arrays over a WebSocket.

A server greets with a map, its metadata. A request is a map too, of observations by name; the noise that the answer is
to be made of is its entry "noise", which a server hands on to the policy that it serves. An answer is a map with
"actions", one row per control step; a text in its place is the server's error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]

PLAIN = "biufSU"  # kinds of arrays that are sent: no objects, which could be anything
EXTRA = "pip install 'sim2metal[serve]'"


class ServerError(ValueError):
    """A policy server is not there, or does not answer as it should; the message says which one and what to do."""


def pack(message: Any) -> bytes:
    """The bytes of maps, lists, texts, numbers and numpy arrays."""
    import msgpack

    content: bytes = msgpack.packb(message, default=_packed)
    return content


def unpack(content: bytes) -> Any:
    """The inverse of `pack`; ValueError when that is not what the bytes are."""
    import msgpack

    try:
        return msgpack.unpackb(content, object_hook=_unpacked)
    except Exception as error:  # msgpack's own classes, and whatever a wrong shape or type leads to
        raise ValueError(f"{len(content)} bytes are no message: {error}") from None


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
    kind = np.dtype(item[b"dtype"])
    if kind.kind not in PLAIN:
        raise ValueError(f"an array of {kind}")
    if b"__npgeneric__" in item:
        return kind.type(item[b"data"])
    return np.frombuffer(item[b"data"], kind).reshape(item[b"shape"])


class Client:
    """One policy server, at HOST:PORT. Every failure is a ServerError; the connection is then closed."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        """`timeout`: s that an answer may take, the greeting included."""
        self.address, self.timeout = address, timeout
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
                f"ws://{address}", open_timeout=timeout, compression=None, max_size=None, proxy=None, ping_interval=None
            )
            self._socket = self._open.enter_context(calling)
        except (OSError, WebSocketException) as error:  # refused, unknown, too slow, something else than a WebSocket
            reason = str(error) or type(error).__name__
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
            return self._actions(request, (len(noise), steps, k))
        rows = [{name: value[row] for name, value in request.items()} for row in range(len(noise))]
        return np.stack([self._actions(row, (steps, k)) for row in rows])

    def _actions(self, request: Mapping[str, Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
        answer = self.ask(request)
        if not isinstance(found := answer.get("actions"), np.ndarray):
            raise self._trouble(f'answers without "actions", with {", ".join(map(str, answer)) or "nothing"}')
        *lead, steps, k = shape
        if found.ndim != len(shape) or [*found.shape[:-2], found.shape[-1]] != [*lead, k] or found.shape[-2] < steps:
            raise self._trouble(f"answers with actions of shape {found.shape}, wanted are {shape}")
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
            raise self._trouble(f"refuses: {content.strip().splitlines()[-1] if content.strip() else 'no reason'}")
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

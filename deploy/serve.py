"""python -m deploy.serve policy=FILE [key=value ...]: answers for a policy file's base, in openpi's protocol.

A request holds the signals by name and, to steer the base, "noise"; without it the server draws some. The answer's
"actions" are commands, in their units, one row for each step of the plan. Both may have a leading axis of requests.
See `deploy.wire`. Whoever can connect is answered: there is neither a password nor encryption.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy import arguments
from deploy.base import FileBase
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.wire import EXTRA, AnyArray, pack, unpack

LARGEST = 1 << 26  # bytes of a request


@dataclass
class Config:
    """Settings of the command."""

    policy: str = field(metadata={"help": "the policy file whose base answers"})
    host: str = field(default="127.0.0.1", metadata={"help": "address to listen at; 0.0.0.0 is all of this machine's"})
    port: int = field(default=8000, metadata={"help": "0 takes a free one"})

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port lies between 0 and 65535, got {self.port}")


class Service:
    """What the server says."""

    def __init__(self, policy: PolicyFile) -> None:
        """PolicyFileError when the file has no base that noise steers."""
        self.base, self.policy = FileBase(policy), policy
        low, high = (
            np.concatenate([np.full(s.size, getattr(s, end)) for s in policy.outputs]) for end in ("low", "high")
        )
        self.middle, self.half = np.float32(0.5 * (high + low)), np.float32(0.5 * (high - low))
        self.shape = (self.base.horizon, self.base.actions)  # of a chunk and of its noise
        self.rng, self.turn = np.random.default_rng(), threading.Lock()

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know in order to steer the base."""
        policy, base = self.policy, self.base
        return {
            **{name: policy.metadata[name] for name in ("name", "task", "robot", "rate_hz", "inputs", "outputs")},
            "sha256": policy.sha256,
            "training": policy.metadata["training"],
            "horizon": base.horizon,
            "noise": list(self.shape),
            "mean": base.mean,
            "deviation": base.deviation,
            "batches": True,
        }

    def answer(self, request: Any) -> dict[str, Any]:
        """The actions for a request; ValueError or KeyError when it is none."""
        if not isinstance(request, dict):
            raise ValueError(f"a request is a map, not a {type(request).__name__}")
        signals = {s.name: np.asarray(request[s.name]) for s in self.policy.inputs if s.name in request}
        if missing := [s.name for s in self.policy.inputs if s.name not in signals]:
            raise ValueError(
                f"the request lacks {', '.join(missing)}; it has {', '.join(map(str, request)) or 'nothing'}"
            )
        shape = self.policy.inputs[0].shape
        single = signals[self.policy.inputs[0].name].ndim == len(shape)
        rows = {name: value[None] if single else value for name, value in signals.items()}
        for s in self.policy.inputs:
            if rows[s.name].shape[1:] != s.shape or not np.isfinite(rows[s.name]).all():
                raise ValueError(f"{s.name} has shape {signals[s.name].shape}, not {s.shape}, or is not finite")
        n = len(rows[self.policy.inputs[0].name])
        made = self.base.sample(self.base.see(rows), self._noise(request.get("noise"), n)).reshape(n, *self.shape)
        actions = made * self.half + self.middle
        return {"actions": actions[0] if single else actions}

    def _noise(self, given: AnyArray | None, n: int) -> AnyArray:
        if given is None:
            with self.turn:
                return self.rng.standard_normal((n, self.base.noise_size)).astype(np.float32)
        noise = np.asarray(given, np.float32)
        if noise.shape not in ((n, *self.shape), self.shape) or noise.size != n * self.base.noise_size:
            raise ValueError(f"noise has shape {noise.shape}, not {self.shape}")
        if not np.isfinite(noise).all():
            raise ValueError("noise is not finite")
        return noise.reshape(n, -1)

    def talk(self, socket: Any) -> None:
        """Answer one client until it hangs up. What is wrong with a request is said, and the next one is waited for."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # also without a word
            self._converse(socket)

    def _converse(self, socket: Any) -> None:
        socket.send(pack(self.metadata()))
        for content in socket:
            try:
                said: bytes | str = pack(
                    self.answer(unpack(content if isinstance(content, bytes) else content.encode()))
                )
            except (ValueError, KeyError, TypeError) as error:
                said = f"{type(error).__name__}: {error}"
            socket.send(said)


def opened(policy: PolicyFile, host: str, port: int) -> Any:
    """A server that listens; `serve_forever` answers, each client in a thread, until `shutdown`."""
    try:
        import msgpack  # noqa: F401
        from websockets.sync.server import serve
    except ModuleNotFoundError as error:
        raise PolicyFileError(f"a policy is served with the package {error.name!r}: {EXTRA}") from None
    return serve(Service(policy).talk, host, port, compression=None, max_size=LARGEST)


def main(argv: Sequence[str]) -> None:
    """Load, verify, listen."""
    if arguments.wants_help(argv):
        print(f"{__doc__}\n\n{arguments.usage(Config)}")
        return
    (config,) = arguments.parse(argv, Config)
    with opened(PolicyFile.load(config.policy), config.host, config.port) as server:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        host, port = server.socket.getsockname()[:2]
        print(f"{config.policy} answers at {host}:{port}", flush=True)
        try:
            server.serve_forever()
        finally:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(arguments.call(main))

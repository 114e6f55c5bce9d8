"""Policies in two places: a file beside the robot chooses the noise, and a base on a server makes actions of it.

Such a file says in its metadata, under "served", what it steers: "commands" (`sim.spec.to_json`) and "rate_hz" of the
whole policy; "horizon", the control steps that a plan is carried out for; "noise", its rows and columns; and "sha256",
of the base's file, where the server said so. The file's own output is that noise, once per plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.remote.client import Client, ServerError
from deploy.remote.planned import planned
from sim import spec

AnyArray = NDArray[Any]
FROM_SERVER = "server"  # by what commands were computed: in a flight log
SERVER = "HOST:PORT of the server that a steering policy needs, or that makes plans; process: here, beside the loop"


class Served(PolicyFile):
    """The whole policy, for the control loop, which waits for the server at every new plan."""

    def __init__(self, file: PolicyFile, client: Client) -> None:
        """ServerError when the server's base is not the one that the file steers."""
        self.__dict__ |= file.__dict__
        self.file, self.client = file, client
        about = file.metadata["served"]
        self.rate_hz, self.horizon = float(about["rate_hz"]), int(about["horizon"])
        self.outputs, self.noise = spec.from_json(about["commands"]), tuple(map(int, about["noise"]))
        found = client.metadata.get("sha256")
        if about["sha256"] and found != about["sha256"]:
            raise ServerError(f"{file.path} steers another base than the one at {client.address}: {found}")
        self.reset()

    def reset(self, n: int = 1) -> None:
        self.file.reset(n)
        self.n = n
        self._left = np.zeros(n, np.int64)  # actions of the plan still to be executed
        self._plans = np.zeros((n, self.horizon, spec.size(self.outputs)), np.float32)

    def restart(self, robots: AnyArray) -> None:
        self.file.restart(robots)
        self._left[robots] = 0

    def step(self, signals: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Commands (n, *shape) by name for signals (n, *shape) by name; ServerError when the server fails."""
        fresh = np.flatnonzero(self._left == 0)
        if len(fresh):
            noise = self.file.step(signals)["noise"].reshape(self.n, *self.noise)
            seen = {s.name: np.asarray(signals[s.name])[fresh] for s in self.inputs}
            self._plans[fresh] = self.client.actions(seen, noise[fresh], *self._plans.shape[1:])
            self._left[fresh] = self.horizon
        now = spec.unpack(self.outputs, self._plans[np.arange(self.n), self.horizon - self._left])
        self._left -= 1
        return {s.name: now[s.name].clip(s.low, s.high) for s in self.outputs}

    def states(self) -> dict[str, AnyArray]:
        return self.file.states()

    def verify(self) -> float:
        return self.file.verify()


def connected(policy: PolicyFile, server: str | None, blend: int = 0) -> PolicyFile:
    """The policy, with the server at HOST:PORT that it needs, or that plans for it; PolicyFileError without one.

    `blend`: control steps over which a new plan takes over.
    """
    if "served" not in policy.metadata:
        return planned(policy, server, blend) if server else policy
    if not server:
        raise PolicyFileError(f"{policy.path} steers a base on a server: say which one with server=HOST:PORT")
    return Served(policy, Client(server))

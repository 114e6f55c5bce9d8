"""The control loop of a robot that learns: it tells a learner what happened, and is told better policies.

`policies.train task=... algorithm=online_sac driver=...` starts this in a process of its own, with `deploy.run`'s
settings. The loop waits for nobody: threads of this process send and receive. When the learner is gone the robot gets
its safe command; what the learner had not yet kept is written to a file, which it reads when it goes on.

    python -m deploy.remote.online link=FD kept=FILE policy=FILE driver=ros2 [deploy.run's settings ...]
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy import run as flights
from deploy.drivers import Driver, Reading, another_episode, clock_of, driver_class, scores_of, transfers
from deploy.guard import OVERRIDE, PASS, REASONS, Guard
from deploy.loop import Arrays, Record, run
from deploy.policy_file import PolicyFile
from deploy.safety.received import received
from deploy.system import realtime
from deploy.system.files import write_atomic
from deploy.system.interrupts import ASKS, ENDS, as_ctrl_c, ask
from sim.spec import Group, limits, pack, pictures, size, unpack

Array = NDArray[Any]
LARGEST = 64 * 2**20  # bytes of a message
MOST_HELD = 256 * 2**20  # bytes of control steps that the learner has not kept: hours of them
PATIENCE = 2.0  # s until the last of it must have been sent
GONE = 1.0  # s from the learner's end until the flight is ended, in which the robot comes to rest
STEPS, FLIGHT = b"s", b"f"  # what the robot sends: control steps; a flight is over
POLICY, KEPT, END = b"p", b"k", b"e"  # what the learner sends: a policy; how many steps it has kept; the end


class LearnerGoneError(RuntimeError):
    """Nobody learns any more."""


@dataclass(frozen=True)
class Layout:
    """One control step of one robot as float32 numbers: what was seen, what was sent, and what came of it."""

    signals: Group
    commands: Group

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return size(self.signals) + size(self.commands) + len(MARKS)

    def split(self, rows: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Signals (n, .), commands (n, .) and marks by name (n,) of rows (n, width)."""
        a, b = size(self.signals), size(self.signals) + size(self.commands)
        return rows[:, :a], rows[:, a:b], {name: rows[:, b + k] for k, name in enumerate(MARKS)}


# `flight` and `robot` count from 0; `usable`: the policy's command was sent, or a person's, on good signals (the end of
# an episode is told, too, without commands: NaN);
# `state`: of `deploy.safety.recovery.STATES`, 0 without recovery.
MARKS = ("flight", "robot", "usable", "person", "state")


@dataclass
class Config:
    """What this command needs beside `deploy.run`'s settings."""

    link: int = field(metadata={"help": "file descriptor of a socket to the learner"})
    kept: str = field(metadata={"help": "the file for what the learner has not kept (.npz)"})
    noise_seed: int = field(default=0, metadata={"help": "of the exploration"})


class Link:
    """To the learner. The control loop calls `tell`, `newest` and `lost`, none of which waits."""

    def __init__(self, connection: Connection, kept: str, policy: PolicyFile, robots: int) -> None:
        """Policies that come have to have the contract of this one, for so many robots."""
        self.lost = False  # nobody listens any more
        self.over = False  # the learner has said that this is the end
        self.refused = 0  # policies that did not fit
        self._connection, self._path = connection, kept
        self._out: collections.deque[bytes] = collections.deque()
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._unkept: collections.deque[Array] = collections.deque()  # rows, a batch per control step
        self._held = 0  # bytes of them
        self._first = 0  # number of the first of them
        self._policy: tuple[PolicyFile, Mapping[str, float]] | None = None
        self._contract, self._robots = _contract(policy), robots
        for work in (self._send, self._receive):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def tell(self, rows: Array) -> None:
        """Control steps (n, width)."""
        rows = np.ascontiguousarray(rows, np.float32)
        with self._lock:
            self._unkept.append(rows)
            self._held += rows.nbytes
            late = self._held > MOST_HELD
        if late:
            self._lose()  # it hangs; memory that runs out would end this loop in mid-air
        else:
            self._put(STEPS + rows.tobytes())

    def flight_over(self, told: Mapping[str, Any]) -> None:
        """A flight has ended."""
        self._put(FLIGHT + json.dumps(told).encode())

    def newest(self) -> tuple[PolicyFile, Mapping[str, float]] | None:
        """The policy that has come since this was asked last, and how it explores; None: no other one."""
        policy, self._policy = self._policy, None
        return policy

    def _put(self, message: bytes) -> None:
        self._out.append(message)
        self._wake.set()

    def _send(self) -> None:
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                while self._out:
                    self._connection.send_bytes(self._out[0])
                    self._out.popleft()  # what is there still has to be sent
        except (OSError, ValueError):
            self._lose()

    def _receive(self) -> None:
        try:
            while True:
                message = self._connection.recv_bytes(LARGEST)
                kind, content = message[:1], message[1:]
                if kind == KEPT:
                    self._forget(int(content))
                elif kind == POLICY:
                    self._take(content)
                elif kind == END:
                    self.over = True
                    return
        except (OSError, EOFError, ValueError):
            self._lose()

    def _take(self, content: bytes) -> None:
        about, _, file = content.partition(b"\n")
        try:
            policy = PolicyFile.from_bytes(file, "the learner's policy")
            if _contract(policy) != self._contract:
                raise ValueError("its contract is another one")
            policy.reset(self._robots)
            self._policy = policy, json.loads(about)
        except ValueError:
            self.refused += 1  # the one that drives goes on

    def _forget(self, count: int) -> None:
        """The first `count` rows are kept by the learner."""
        with self._lock:
            while self._unkept and self._first + len(self._unkept[0]) <= count:
                rows = self._unkept.popleft()
                self._first += len(rows)
                self._held -= rows.nbytes

    def _lose(self) -> None:
        if not self.over:
            self.lost = True

    def flush(self) -> None:
        """Wait until all is sent, for a moment."""
        for _ in range(round(PATIENCE / 0.02)):
            if self.lost or not self._out:
                return
            time.sleep(0.02)

    def save(self) -> int:
        """Write what the learner has not kept; how many rows that is."""
        with self._lock:
            rows = np.concatenate([*self._unkept]) if self._unkept else np.zeros((0, 0), np.float32)
        if len(rows):
            content = io.BytesIO()
            np.savez(content, first=np.int64(self._first), rows=rows)
            write_atomic(self._path, content.getvalue())
        return len(rows)


def _contract(policy: PolicyFile) -> tuple[Group, Group, float]:
    return policy.inputs, policy.outputs, policy.rate_hz


class Learning:
    """A policy that is replaced between two control steps, and explores; see `deploy.loop.Policy`."""

    def __init__(self, policy: PolicyFile, link: Link, seed: int) -> None:
        self.policy, self.link = policy, link
        self.path, self.robot, self.rate_hz = policy.path, policy.robot, policy.rate_hz
        self.inputs, self.outputs, self.vectors = policy.inputs, policy.outputs, policy.vectors
        self.replaced = 0
        self._std, self._correlation = 0.0, 0.0
        self._rng = np.random.default_rng(seed)
        low, high = limits(policy.outputs)  # without any, nobody knows how to explore
        self._half = unpack(policy.outputs, np.float32(0.5) * (high - low))
        self.reset()

    def reset(self, n: int = 1) -> None:
        """Begin a flight of `n` robots."""
        self.policy.reset(n)
        self._noise = {s.name: np.zeros((n, *s.shape), np.float32) for s in self.outputs}

    def restart(self, robots: NDArray[np.bool_]) -> None:
        """Begin anew with the robots in the mask (n,), while the others go on."""
        self.policy.restart(robots)

    def step(self, signals: Arrays) -> dict[str, Array]:
        """Commands with exploration. LearnerGoneError when nobody learns any more: then the guard stops the robot."""
        if self.link.lost:
            raise LearnerGoneError("the learner is gone")
        if newest := self.link.newest():
            self.policy, how = newest
            self.replaced += 1
            self._std, self._correlation = float(how["std"]), float(how["correlation"])
        return {name: self._explored(name, value) for name, value in self.policy.step(signals).items()}

    def _explored(self, name: str, value: Array) -> Array:
        """With noise that lasts: of the share `std` of half the command's range."""
        keeps = self._correlation
        fresh = self._rng.standard_normal(value.shape).astype(np.float32)
        self._noise[name] = keeps * self._noise[name] + np.float32(np.sqrt(1.0 - keeps**2)) * fresh
        noisy: Array = value + self._std * self._half[name] * self._noise[name]
        return noisy


class Telling:
    """Tells the learner of each control step; see `deploy.loop.Log`."""

    def __init__(self, link: Link, layout: Layout, flight: int) -> None:
        self.link, self.layout, self.flight = link, layout, flight

    def step(self, clock: float, missed: float, reading: Reading, wanted: Arrays, sent: Arrays, guard: Guard) -> None:
        """What was seen and sent."""
        self.tell(reading, guard, sent)

    def tell(self, reading: Reading, guard: Guard, sent: Arrays | None) -> None:
        """What was seen, and what was sent then; nothing (NaN) at the end of an episode."""
        n, person = guard.n, guard.verdict == OVERRIDE
        seen = {s.name: received(s, reading.signals.get(s.name), n)[0] for s in self.layout.signals}
        commands = {s.name: received(s, sent and sent[s.name], n)[0] for s in self.layout.commands}
        usable = ((guard.verdict == PASS) | person) & (sent is not None)
        state = guard.recovery.state if guard.recovery else np.zeros(n)
        marks = np.stack([np.full(n, self.flight), np.arange(n), usable, person, state], axis=1)
        self.link.tell(
            np.concatenate([pack(self.layout.signals, seen), pack(self.layout.commands, commands), marks], axis=1)
        )

    def event(self, kind: str, text: str, who: str = "") -> None:
        """What a log tells beside."""


def _watched(link: Link, landed: threading.Event) -> None:
    """End the flight, unless somebody has asked for that: when the learner says so, or some time after it has gone."""
    while not (link.lost or link.over):
        if landed.wait(0.05):
            return
    landed.wait(GONE if link.lost else 0.0)
    while not landed.is_set() and not ask():
        landed.wait(0.05)  # it has not begun


def _fly(link: Link, policy: Learning, driver: Driver, guard: Guard, config: flights.Config, transfer: bool) -> None:
    """One flight after the other, each another episode where it is simulated, until the learner says so or is gone."""
    layout = Layout(policy.inputs, policy.outputs)
    steps = None if config.seconds is None else max(1, round(config.seconds * policy.rate_hz))
    with realtime.realtime(config.priority) as refused:
        for line in refused:
            print(f"warning: {line}", file=sys.stderr, flush=True)
        for flight in itertools.count():
            telling = Telling(link, layout, flight)
            how: dict[str, Any] = {"transfer": transfer, "settle": config.settle, "clock": clock_of(driver)}
            record = run(policy, driver, guard, steps, log=telling, **how)
            if ends := another_episode(driver):
                telling.tell(ends, guard, None)
            link.flight_over(_about(record, policy, link, driver))
            if record.interrupted or link.lost or link.over or ends is None:
                return


def _about(record: Record, policy: Learning, link: Link, driver: Driver) -> dict[str, Any]:
    """What a learner shows of a flight."""
    policies = {"policies": policy.replaced, "refused": link.refused}
    stopped = [REASONS[code] for code in record.stopped.tolist() if code]
    scored = scores_of(driver) if record.steps else {}
    told = {"steps": record.steps, "missed": record.missed, "trouble": record.trouble, "stopped": stopped}
    return {**told, **policies, "recovery": record.recovery, "report": driver.report(), "scores": scored}


def main(argv: Sequence[str]) -> None:
    """Connect, drive, and leave the robot in its safe state; exit status 1 when the learner is gone unasked."""
    kind = driver_class(cli.value_of(argv, "driver", "simulated"))
    own, config, driver_config = cli.parse(argv, Config, flights.Config, kind.Config)
    file = PolicyFile.load(config.policy, config.trust)
    if seen := pictures(file.inputs):
        raise ValueError(f"{file.path} sees pictures ({seen[0].name}), of which a learner is told nothing")
    if config.log is not None or config.server is not None or config.controller != "onnxruntime":
        raise ValueError("log, server and controller are deploy.run's: a policy that is replaced flies without them")
    if config.require_signature:
        raise ValueError("require_signature=true: nobody signs the policies that a learner sends")
    driver = kind.from_config(driver_config, file)
    if not driver.real_time:
        raise ValueError("who learns where the robot is does so by the clock: real_time=true")
    guard = flights.guarded(file, driver, config)
    link = Link(Connection(own.link), own.kept, file, driver.num)
    policy = Learning(file, link, own.noise_seed)
    landed = threading.Event()
    threading.Thread(target=_watched, args=(link, landed), name="watching the learner", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), as_ctrl_c(real_time=True):  # between two flights, too
        _fly(link, policy, driver, guard, config, transfers(driver_config))
    with contextlib.suppress(KeyboardInterrupt):  # from then on nothing ends what is being written
        landed.set()
        for number in (*ENDS, *ASKS):
            signal.signal(number, signal.SIG_IGN)
    if not link.lost:
        link.flush()
        return
    rows = link.save()
    sys.stdout.flush()
    print(
        f"the learner is gone; {rows} control steps that it had not kept are in {own.kept}", file=sys.stderr, flush=True
    )
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(cli.call(main))

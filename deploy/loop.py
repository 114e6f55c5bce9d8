"""The one control loop: read, guard, policy, guard, write, on absolute deadlines.

The same function flies a robot in real time and a batch of simulated episodes as fast as they go.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Driver, Reading, carry_out
from deploy.guard import REASONS, Guard
from deploy.policy_file import Vectors
from deploy.safety.ladder import RUNGS
from deploy.safety.pictures import PictureWatch
from deploy.safety.recovery import STATES
from deploy.safety.watch import Watch, Worker, await_call
from deploy.system import streams
from deploy.system.clock import boottime
from deploy.system.pace import Pace
from sim.spec import ANY_ROBOT, Group, Signal

REHEARSALS = 21  # policy steps that are timed before a flight in real time
PATIENCE = 10.0  # s in which signals must have become good
LEAST_PATIENCE = 0.1  # s that a step of the policy may take, however short the period: machines have hiccups
PATIENCE_TO_STOP = 1.0  # s in which the control thread must leave its step when the flight is interrupted
OFF_S = 0.5  # s for which every robot is off, after which a flight without an end of its own is over
Arrays = Mapping[str, NDArray[Any]]


class Policy(Protocol):
    """What the loop flies: a PolicyFile here, or the same policy on a chip."""

    path: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    vectors: Vectors

    def reset(self, n: int = 1) -> None:
        """Begin a flight of `n` robots."""

    def step(self, signals: Arrays) -> dict[str, NDArray[Any]]:
        """Commands (n, *shape) by name for signals (n, *shape) by name."""


@runtime_checkable
class Planner(Protocol):
    """A policy whose plans are made elsewhere while the loop goes on."""

    def prepare(self, signals: Arrays) -> None:
        """Wait for a first plan: nothing moves yet. An error when plans take longer than they last."""


class Log(Protocol):
    """What writes down each control step."""

    def step(self, clock: float, missed: float, reading: Reading, wanted: Arrays, sent: Arrays, guard: Guard) -> None:
        """When the step began, by how much the deadline before it was missed (s); what was measured, wanted, sent."""

    def event(self, kind: str, text: str, who: str = "") -> None:
        """Something happened: one of `deploy.recording.flight_log.EVENTS`."""


class HandshakeError(ValueError):
    """Policy and driver do not fit; nothing was moved. The message lists every difference."""


@dataclass
class Record:
    """What the loop did. `late` holds, per missed deadline, by how much (s)."""

    steps: int = 0
    duration: float = 0.0  # s
    interrupted: bool = False
    trouble: str = ""  # the first thing that went wrong with the policy
    left_behind: bool = False  # a step of the policy has not come back; its thread still computes
    unrecorded: str = ""  # why the flight's log is incomplete
    late: list[float] = field(default_factory=list)
    lateness: array[float] = field(default_factory=lambda: array("d"))  # s after its deadline that each step began
    interventions: dict[str, int] = field(default_factory=dict)  # robot steps, by reason
    recovery: dict[str, int] = field(default_factory=dict)  # how often robots were stuck, crashed, freed, lost
    pictures: list[str] = field(default_factory=list)  # what was wrong with them, in real time
    stopped: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))  # by robot, of guard.REASONS

    @property
    def missed(self) -> int:
        """How many control steps missed their deadline."""
        return len(self.late)


def _differences(kind: str, wanted: Signal, offered: Group) -> list[str]:
    named = {s.name: s for s in offered}
    if wanted.name not in named:
        return [f"{kind} {wanted.name!r}: the driver has none; it has: {', '.join(named)}"]
    other = named[wanted.name]
    found = []
    for field_name in ("shape", "unit", "frame", "dtype"):
        ours, theirs = getattr(wanted, field_name), getattr(other, field_name)
        if ours != theirs:
            found.append(f"{kind} {wanted.name!r}: {field_name} is {ours!r} in the policy, {theirs!r} in the driver")
    return found


def handshake(policy: Policy, driver: Driver, transfer: bool = False) -> None:
    """Compare what the policy needs with what the driver offers: by name, shape, unit, frame, limits, rate and robot.

    Raises HandshakeError with all differences. `transfer` allows another robot than the policy was made for.
    """
    found: list[str] = []
    if policy.robot not in (driver.robot, ANY_ROBOT) and not transfer:
        found.append(
            f"the policy is for the robot {policy.robot!r}, the driver has {driver.robot!r} (transfer=true flies it)"
        )
    if not math.isclose(policy.rate_hz, driver.rate_hz, rel_tol=1e-6):
        found.append(f"the policy runs at {policy.rate_hz:g} Hz, the driver at {driver.rate_hz:g} Hz")
    for signal in policy.inputs:
        found += _differences("signal", signal, driver.signals)
    commanded = {s.name: s for s in policy.outputs}
    for signal in policy.outputs:
        found += _differences("command", signal, driver.commands)
    for signal in driver.commands:
        ours = commanded.get(signal.name)
        if ours is None:
            found.append(f"command {signal.name!r}: the driver needs it, the policy does not give it")
        elif not (signal.low <= ours.low and ours.high <= signal.high):
            span = f"[{ours.low:g}, {ours.high:g}] of the policy is not within [{signal.low:g}, {signal.high:g}]"
            found.append(f"command {signal.name!r}: {span} of the driver")
    if found:
        raise HandshakeError(f"{policy.path} does not fit the driver: " + "; ".join(found))


def _rehearse(policy: Policy, driver: Driver, clock: Callable[[], float]) -> None:
    """A policy that cannot keep up must not take off: HandshakeError when its typical step exceeds the period."""
    policy.reset(driver.num)
    signals = {name: np.repeat(value[:1], driver.num, axis=0) for name, value in policy.vectors.inputs.items()}
    times = []
    for _ in range(REHEARSALS):
        began = clock()
        policy.step(signals)
        times.append(clock() - began)
    typical, period = sorted(times)[REHEARSALS // 2], 1.0 / driver.rate_hz
    if typical > period:
        raise HandshakeError(
            f"{policy.path}: a step takes {1e3 * typical:.2f} ms on this machine, its period is {1e3 * period:.2f} ms"
        )


def _settle(driver: Driver, guard: Guard, seconds: float, pace: Pace) -> None:
    """Return once the guard has been content with every signal for so long; HandshakeError when that takes too long."""
    pace.deadline = began = since = pace.clock()
    while pace.clock() - since < seconds:
        reading = driver.read()
        guard.screen(reading.signals, reading.age)
        if trouble := guard.complaint():
            since = pace.clock()
            if since - began > seconds + PATIENCE:
                raise HandshakeError(f"not ready to fly: {trouble}")
        guard.reset(driver.num)
        pace.wait()


class _Flight:
    """The control steps of one flight."""

    def __init__(
        self,
        policy: Policy,
        driver: Driver,
        guard: Guard,
        last: int | None,
        log: Log | None,
        pace: Pace,
        sight: PictureWatch,
    ) -> None:
        self.policy, self.driver, self.guard, self.last, self.log, self.pace = policy, driver, guard, last, log, pace
        self.sight, self.unseen = sight, dict[str, str]()  # what is wrong with pictures, and was told
        self.record = Record()
        self.interrupted = False  # set by another thread
        self.watch = Watch(max((guard.envelope.hold_steps + 1) / driver.rate_hz, LEAST_PATIENCE), pace.clock)
        self._nothing = {s.name: np.full((driver.num, *s.shape), np.nan, np.float32) for s in policy.outputs}
        self._rungs = np.zeros(driver.num, np.int8)
        self._states = np.zeros(driver.num, np.int8)  # of robots that free themselves
        self._off = 0  # control steps since every robot is off
        self.asked, self._lands = False, False  # to end; which it does once they have landed
        self._thread = Worker(self.fly)

    def _begins_another(self) -> bool:
        """Whether there is another control step. Robots that would fall are landed first, whoever ends the flight."""
        if self.interrupted:
            return False
        if self._lands:
            return self.falls and not self.guard.over
        ends = self.asked or self.driver.done or (self.last is not None and self.record.steps >= self.last)
        if not ends:
            return self.last is not None or self._off <= OFF_S * self.driver.rate_hz
        self._lands = self.falls and self.record.steps > 0
        if self._lands:
            self.guard.abandon("asked to land")
        return self._lands

    @property
    def falls(self) -> bool:
        """Whether robots in the air would fall when their commands stop, and can be landed instead."""
        return self.driver.real_time and self.guard.ladder is not None and self.driver.falls

    def fly(self) -> None:
        """Until the end; LeftBehindError when the policy did not come back in time and somebody else flies on."""
        driver, guard, record, pace, log = self.driver, self.guard, self.record, self.pace, self.log
        real_time, missed = driver.real_time, 0.0
        pace.deadline = pace.clock()  # connecting took its time
        while self._begins_another():
            now = pace.clock()
            if real_time:
                guard.tick(now, missed > 0.0)
            reading = driver.read()
            seen_at = pace.clock()
            seen = guard.screen(reading.signals, reading.age)
            wanted = self._wanted(seen) if real_time else self._step(seen)
            sent = guard.filter(wanted, reading.override, pace.clock() - seen_at if real_time else 0.0)
            with self.watch.turn() as ours:
                if not ours:  # the flight was interrupted, and the driver is being stopped
                    return
                carry_out(driver, sent, guard.over and not guard.emergency)
                if guard.emergency:
                    driver.emergency_stop()
            record.steps += 1
            if log is not None:
                log.step(now, missed, reading, wanted, sent, guard)
                self._tell(log)
            if real_time:
                self.sight.look(reading.signals, now)
                self._off = self._off + 1 if guard.ladder is not None and guard.over else 0
                missed, late = pace.wait()
                record.lateness.append(late)
                if missed > 0.0:
                    record.late.append(missed)

    def _step(self, signals: Arrays) -> Arrays:
        """The policy's commands, once it has begun anew with robots that it gets back."""
        if self.guard.recovery:
            self.guard.recovery.hand_back(self.policy)
        return dict(self.policy.step(signals))

    def _wanted(self, signals: Arrays) -> Arrays:
        """The policy's commands; in real time a policy that fails does not end the flight, which the guard does."""
        if self.watch.lost:
            return self._nothing
        self.watch.begin()
        try:
            wanted = self._step(signals)
        except Exception as error:  # whatever a stranger's policy, its server or its chip raises
            self.watch.end()
            self._note(f"{type(error).__name__}: {error}")
            self.guard.blame("policy failed")
            return self._nothing
        self.watch.end()
        return wanted

    def _tell(self, log: Log) -> None:
        """The rungs that robots take, and pictures that tell nothing."""
        troubles = self.sight.troubles()
        for camera in troubles.keys() - self.unseen.keys():
            log.event("diagnostic", f"{camera}: {troubles[camera]}", "policy")
        self.unseen = troubles
        ladder, recovery = self.guard.ladder, self.guard.recovery
        if recovery is not None:
            for robot in np.flatnonzero(recovery.state != self._states).tolist():
                log.event("recovery", f"robot {robot}: {STATES[recovery.state[robot]]}", "guard")
            self._states = recovery.state.copy()
        if ladder is None or not ladder.active:
            return
        for robot in np.flatnonzero(ladder.rung != self._rungs).tolist():
            reason = REASONS[self.guard.latched[robot]]
            log.event("rung", f"robot {robot}: {RUNGS[ladder.rung[robot]]}, {reason}", "guard")
        self._rungs = ladder.rung.copy()

    def _note(self, trouble: str) -> None:
        """The first trouble with the policy."""
        if not self.record.trouble:
            self.record.trouble = trouble
            if self.log is not None:
                self.log.event("diagnostic", trouble, "policy")

    def supervise(self) -> None:
        """Fly in a thread of its own; where the policy does not come back, leave it behind and fly on in this one."""
        try:
            while not self._attended():
                pass
        except BaseException:  # the driver will be stopped: no thread may go on meanwhile
            self._leave()
            raise

    def _attended(self) -> bool:
        """Whether the flight is over; False: robots that would fall are to be landed now."""
        try:
            if self._thread.finished(0.0):
                self._thread = Worker(self.fly)
            self._attend()
            return True
        except KeyboardInterrupt:
            self.record.interrupted = True
            if not self.falls or self.asked:
                raise
            self.asked = True
            streams.say("landing; a second Ctrl-C ends the flight at once")
            return False

    def flies_on(self) -> bool:
        """Whether the control thread still computes; a landing that was waited for is over by now."""
        return not self._thread.finished(LEAST_PATIENCE)

    def _leave(self) -> None:
        """From now on nothing is written, whatever else interrupts this."""
        self.interrupted = self.record.left_behind = True
        try:
            self.record.left_behind = self.watch.lost or not self._thread.finished(PATIENCE_TO_STOP)
        finally:
            self.watch.close(PATIENCE_TO_STOP)

    def _attend(self) -> None:
        """Return when the flight in its thread is over; fly on here when a step does not come back."""
        thread = self._thread
        thread.begin()
        while not thread.finished(0.25 * self.watch.patience):
            if self.watch.overdue():
                self._note(f"a step did not come back within {self.watch.patience:g} s")
                self.guard.abandon("policy late")
                self.fly()
                return
        thread.result()


def run(
    policy: Policy,
    driver: Driver,
    guard: Guard | None = None,
    steps: int | None = None,
    *,
    transfer: bool = False,
    settle: float = 0.0,
    log: Log | None = None,
    sight: PictureWatch | None = None,
    clock: Callable[[], float] = boottime,
    sleep: Callable[[float], object] = time.sleep,
) -> Record:
    """Fly `steps` control steps (default: as many as the driver's flights last) or until the driver is done; stop it.

    Raises HandshakeError before anything moves; before that, `settle` seconds of good signals are waited for. Ctrl-C
    ends the flight and is noted in the record; any other error passes through after the driver was stopped. In real
    time a policy that raises, or whose step does not come back, is the guard's business: the flight goes on without it;
    and where robots would fall at the end of a flight (`driver.falls`), the guard lands them first, unless Ctrl-C comes
    twice.
    """
    handshake(policy, driver, transfer)
    if (elsewhere := isinstance(policy, Planner)) and not driver.real_time:
        raise HandshakeError(f"{policy.path}: plans that are made elsewhere come by the clock: real_time=true")
    guard = guard or Guard(policy.inputs, policy.outputs)
    if guard.emergency:
        raise HandshakeError("the emergency stop is pressed; release it first")
    pace = Pace(1.0 / driver.rate_hz, clock, sleep)
    sight = sight or PictureWatch(policy.inputs)
    flight = _Flight(policy, driver, guard, driver.steps if steps is None else steps, log, pace, sight)
    record = flight.record
    began = clock()
    try:
        if driver.real_time and not elsewhere:
            await_call(lambda: _rehearse(policy, driver, clock))
        policy.reset(driver.num)
        guard.reset(driver.num)
        sight.begin()
        began = clock()
        with driver:
            if settle > 0.0:
                await_call(lambda: _settle(driver, guard, settle, pace))
            if isinstance(policy, Planner):
                await_call(lambda: policy.prepare(driver.read().signals))
            (flight.supervise if driver.real_time else flight.fly)()
    except KeyboardInterrupt:
        record.interrupted = True
    record.duration = clock() - began
    record.interventions = guard.interventions()
    record.recovery = dict(guard.recovery.counts) if guard.recovery else {}
    record.pictures = sight.report()
    record.stopped = guard.latched.copy()
    record.left_behind = flight.watch.lost or (record.left_behind and flight.flies_on())
    return record

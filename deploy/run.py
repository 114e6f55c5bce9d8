"""python -m deploy.run policy=FILE driver=simulated [key=value ...]: fly a policy file."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy import cli
from deploy.drivers import DRIVERS, Driver, clock_of, driver_class, transfers
from deploy.guard import REASONS, Guard
from deploy.loop import Record, handshake, run
from deploy.policy_file import PolicyFile
from deploy.recording.recorder import Recorder
from deploy.remote.planned import Planned
from deploy.remote.split_policy import FROM_SERVER, SERVER, connected
from deploy.runtimes import CONTROLLERS, Connected, controller
from deploy.safety.envelope import ASKED, replaced
from deploy.safety.grid import trust_warning
from deploy.safety.limits import describe, guard_of, limits_of
from deploy.sign import TRUST
from deploy.system import realtime
from deploy.system.interrupts import as_ctrl_c
from deploy.teleop.instruction import instructed
from deploy.teleop.screen import LIVE, NONE, paced, screen, wanted
from deploy.trust.text import printable

LONGEST = 1e6  # s of a flight: more is a mistake
MOST_BLENDED = 1000  # control steps
PATIENCE_S = 3.0  # without a first control step, after which the user is told why
GETTING_READY = "getting ready; it may be compiling kernels, for up to a minute; later runs find them ..."


@dataclass
class Config:
    """Settings of every flight; the driver adds its own."""

    policy: str = field(metadata={"help": "the policy file"})
    driver: str = field(default="simulated", metadata={"help": f"one of: {', '.join(DRIVERS)}, or module:Class"})
    seconds: float | None = field(default=None, metadata={"help": "length of the flight (default: the driver's)"})
    fence: float | None = field(
        default=None, metadata={"help": "m: stop a robot further than this from the origin on any axis"}
    )
    max_tilt: float | None = field(default=None, metadata={"help": "degrees: stop a robot that leans further"})
    max_speed: float | None = field(default=None, metadata={"help": "m/s: stop a faster robot"})
    max_body_rate: float | None = field(default=None, metadata={"help": "rad/s: stop a robot that turns faster"})
    min_voltage: float | None = field(default=None, metadata={"help": "V: stop a robot whose battery stays below"})
    limits: str | None = field(
        default=None, metadata={"help": "a file with the robot's own limits (TOML), which no policy file widens"}
    )
    ground: float = field(default=0.0, metadata={"help": "m: its height, where a robot that lands comes down to"})
    recovery: bool = field(default=False, metadata={"help": "a vehicle that is stuck frees itself, as its limits say"})
    settle: float = field(
        default=1.0, metadata={"help": "s of good signals, in real time, before the policy may command anything"}
    )
    controller: str = field(default="onnxruntime", metadata={"help": f"one of: {', '.join(CONTROLLERS)}"})
    priority: int = field(
        default=realtime.PRIORITY, metadata={"help": "in real time: of SCHED_FIFO, 1 to 99; 0: as any other program"}
    )
    server: str | None = field(default=None, metadata={"help": SERVER})
    blend: int = field(default=0, metadata={"help": "control steps over which a new plan of the server takes over"})
    trust: str | None = field(default=None, metadata={"help": TRUST})
    require_signature: bool = field(default=False, metadata={"help": "fly only what somebody signed whom we trust"})
    instruction: str | None = field(
        default=None,
        metadata={"help": "in words, for a policy that is told what to do (simulated: as the task says)"},
    )
    log: str | None = field(default=None, metadata={"help": "write everything to this file (.mcap)"})
    view: str = field(default=NONE, metadata={"help": f"of simulated robots: {LIVE}"})

    def __post_init__(self) -> None:
        if not (self.settle >= 0.0 and 0 <= self.priority <= 99 and abs(self.ground) < 1e4):
            raise ValueError(
                f"needs settle >= 0, priority 0 to 99 and a ground, got {self.settle}, {self.priority}, {self.ground}"
            )
        if self.seconds is not None and not 0.0 < self.seconds <= LONGEST:
            raise ValueError(f"seconds must be positive and at most {LONGEST:g}, got {self.seconds:g}")
        if not 0 <= self.blend <= MOST_BLENDED:
            raise ValueError(f"blend is 0 to {MOST_BLENDED} control steps, got {self.blend}")
        if self.server and self.controller != "onnxruntime":
            raise ValueError(f"controller={self.controller}: what a server computes is asked for by onnxruntime only")
        if self.log is not None and not self.log.endswith(".mcap"):
            raise ValueError(f"log={self.log}: the name of a flight log ends in .mcap")


def _summary(record: Record, driver: Any) -> list[str]:
    lines = [f"{record.steps} control steps at {driver.rate_hz:g} Hz, {driver.num} robot(s), {record.duration:.2f} s"]
    if driver.real_time:
        worst = f", the worst by {1e3 * max(record.late):.2f} ms" if record.late else ""
        late = np.percentile(record.lateness, [50, 99]) if record.lateness else (0.0, 0.0)
        lines.append(f"deadlines missed: {record.missed}{worst}")
        lines.append(f"steps began late by {1e6 * late[0]:.0f} us (median), {1e6 * late[1]:.0f} us (99 %)")
    if record.recovery:
        lines.append("recovery: " + ", ".join(f"{name} {count} times" for name, count in record.recovery.items()))
    for reason, count in record.interventions.items():
        lines.append(f"guard: {reason} on {count} robot step(s)")
    stopped = {code: int((record.stopped == code).sum()) for code in sorted(set(record.stopped.tolist()) - {0})}
    lines += [f"guard: stopped {count} robot(s): {REASONS[code]}" for code, count in stopped.items()]
    lines += record.pictures
    lines += [f"the policy: {record.trouble}"] if record.trouble else []
    return [*lines, *driver.report(), *(["interrupted"] if record.interrupted else [])]


@contextmanager
def looked_on(driver: Any, view: str) -> Iterator[None]:
    """Show the first of the driver's robots as it flies, no faster than in real time. ValueError where none can be."""
    if not wanted(view):
        yield
        return
    if not hasattr(driver, "watch"):
        raise ValueError(f"view={view} shows simulated robots: follow another flight by log=FILE and deploy.watch")
    shown = screen(view, "Ctrl-C ends it")
    driver.watch = paced(shown, driver.rate_hz, waits=not driver.real_time)
    try:
        yield
    finally:
        shown.close()


@contextmanager
def explained(driver: Any) -> Iterator[None]:
    """Say why, once, where a simulated robot's first control step is long in coming."""
    if not hasattr(driver, "watch"):
        yield
        return
    said = {"file": sys.stderr, "flush": True}
    waiting, write = threading.Timer(PATIENCE_S, print, (GETTING_READY,), said), driver.write
    waiting.daemon = True

    def first(commands: Mapping[str, Any]) -> None:
        write(commands)
        waiting.cancel()
        driver.write = write

    driver.write = first
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        driver.write = write


def guarded(policy: PolicyFile, driver: Driver, config: Config) -> Guard:
    """The guard that the settings ask for; the person who starts the flight is told what holds in it."""
    limits = limits_of(driver.robot, config.limits)
    rules = replaced(policy.envelope, {rule: getattr(config, rule) for rule in ASKED})
    guard = guard_of(policy, driver, limits, rules, config.ground, config.recovery)
    print("\n".join(describe(limits, guard)), flush=True)
    return guard


def fly(policy: PolicyFile, driver: Driver, guard: Guard, config: Config, transfer: bool = False) -> Record:
    """One flight with everything that the settings ask for: priority, kind of controller, log."""
    steps = None if config.seconds is None else max(1, round(config.seconds * policy.rate_hz))
    handshake(policy, driver, transfer)  # a file that does not fit is not compiled either
    flown = controller(policy, config.controller)
    by = FROM_SERVER if config.server else config.controller
    log = None if config.log is None else Recorder(config.log, policy, driver, guard, by)
    settle = config.settle if driver.real_time else 0.0
    record, who = None, "Ctrl-C or another signal"
    try:
        with explained(driver), realtime.realtime(config.priority if driver.real_time else 0) as refused:
            for line in refused:
                print(f"warning: {line}", file=sys.stderr)
            record = run(flown, driver, guard, steps, transfer=transfer, settle=settle, log=log, clock=clock_of(driver))
    finally:
        interrupted = record is not None and record.interrupted
        trouble = "" if log is None else log.close("interrupted", who) if interrupted else log.close()
        if trouble:
            print(f"warning: {config.log} is incomplete: {trouble}", file=sys.stderr)
    record.unrecorded = trouble
    return record


def main(argv: Sequence[str]) -> None:
    """Parse, load, check, connect, fly, report."""
    kind = driver_class(cli.value_of(argv, "driver", "simulated"))
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config, kind.Config)}")
        return
    config, driver_config = cli.parse(argv, Config, kind.Config)
    file = PolicyFile.load(config.policy, config.trust)
    if config.require_signature:
        file.require_signature()
    policy = connected(file, config.server, config.blend)
    try:
        _flown(policy, config, kind, driver_config)
    finally:
        if isinstance(policy, Connected):
            policy.close()


def _flown(policy: PolicyFile, config: Config, kind: Any, driver_config: Any) -> None:
    if config.driver != "simulated" and (doubt := trust_warning(policy)):
        print(f"warning: {doubt}", file=sys.stderr)
    driver = instructed(kind.from_config(driver_config, policy), policy, config.instruction)
    with looked_on(driver, config.view):
        _through(policy, config, driver, driver_config)


def _through(policy: PolicyFile, config: Config, driver: Driver, driver_config: Any) -> None:
    """The flight, and what came of it."""
    guard = guarded(policy, driver, config)
    with as_ctrl_c(driver.real_time):
        record = fly(policy, driver, guard, config, transfers(driver_config))
    plans = policy.report() if isinstance(policy, Planned) else []
    lines = [*_summary(record, driver), *plans, f"policy {policy.name}: {policy.standing}"]
    print("\n".join(printable(line, cli.LONGEST) for line in lines))
    if record.left_behind:
        sys.stdout.flush()
        os._exit(1)  # a thread still computes in C, and would be torn down under its feet
    if record.unrecorded:
        raise SystemExit(1)  # it flew, but not all that was asked for is there


if __name__ == "__main__":
    sys.exit(cli.call(main))

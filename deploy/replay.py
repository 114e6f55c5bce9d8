"""python -m deploy.replay log=FILE [policy=FILE]: compute a recorded flight's commands again and compare every bit.

Guard and policy are fed what they were fed in the flight. With another policy, how its commands would have differed;
plot=FILE.png draws both over time.
A log may come from a stranger: nothing is opened, imported or compiled because it says so; the policy in it is checked
like any other. repair=OUT.mcap writes what can be read of a damaged one.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.guard import OVERRIDE, REASONS, Guard
from deploy.loop import Arrays, Policy
from deploy.policy_file import PolicyFile
from deploy.recording import flight_log
from deploy.recording.flight_log import Flight, FlightLogError
from deploy.recording.records import RecordError
from deploy.recording.repair import repair
from deploy.remote.split_policy import FROM_SERVER
from deploy.runtimes import controller
from deploy.system.files import write_atomic
from deploy.trust.text import printable

AnyArray = NDArray[Any]


CONTROLLERS = ("onnxruntime", "c")


@dataclass
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the flight log (.mcap)"})
    policy: str | None = field(default=None, metadata={"help": "another policy (default: the one that flew)"})
    controller: str = field(
        default="onnxruntime", metadata={"help": f"what computes, whatever did in flight: {' or '.join(CONTROLLERS)}"}
    )
    repair: str | None = field(
        default=None,
        metadata={"help": "write what can be read of a damaged log to this file (.mcap), and nothing else"},
    )
    plot: str | None = field(default=None, metadata={"help": "draw both policies' commands over time (.png)"})
    robot: int = field(default=0, metadata={"help": "which robot of the flight is drawn"})
    memory: int = field(default=flight_log.MEMORY, metadata={"help": "MB of control steps to read at most"})

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(f"controller={self.controller}: is one of {', '.join(CONTROLLERS)}")
        if self.repair is not None and not self.repair.endswith(".mcap"):
            raise ValueError(f"repair={self.repair}: the name of a flight log ends in .mcap")
        if self.plot is not None and not self.plot.endswith(".png"):
            raise ValueError(f"plot={self.plot}: the name of the picture ends in .png")
        if self.plot is not None and self.repair is not None:
            raise ValueError("plot goes without repair, which writes a log and nothing else")
        if self.memory < 1:
            raise ValueError(f"memory={self.memory}: needs at least 1 (MB)")


def comparable(flight: Flight) -> int:
    """How many steps, from the first one on, can be computed again.

    Policy and guard remember: after lost steps, what they knew then is unknown.
    """
    return flight.gaps[0][0] if flight.gaps else len(flight.steps)


def _guard(flight: Flight, policy: PolicyFile) -> Guard:
    """The guard of the flight, as the log describes it. Raises FlightLogError, also when the policy does not fit."""
    known = {s.name: s.shape for s in flight.layout.signals}
    missing = [s.name for s in policy.inputs if known.get(s.name) != s.shape]
    commands = [(s.name, s.shape) for s in flight.layout.commands]
    if missing or [(s.name, s.shape) for s in policy.outputs] != commands:
        trouble = f"signals that were not recorded: {', '.join(missing)}" if missing else "other commands"
        raise FlightLogError(f"{flight.path}: {policy.path} has {trouble}")
    try:
        guard = Guard.from_json(flight.about["guard"])
    except Exception as error:  # a stranger described it
        raise FlightLogError(f"{flight.path}: what its guard was told cannot be read: {printable(error)}") from None
    if [(s.name, s.shape) for s in guard.watched] != list(known.items()) or guard.outputs != flight.layout.commands:
        raise FlightLogError(f"{flight.path}: its guard is told to watch what was not recorded")
    return guard


def replay(flight: Flight, policy: PolicyFile, kind: str) -> dict[str, AnyArray]:
    """The fields "wanted.NAME" and "sent.NAME" as they are computed now, (steps, robots, *shape).

    As many steps as are `comparable`. `kind` of controller: "onnxruntime" or "c". Raises FlightLogError when the policy
    reads other signals.
    """
    guard = _guard(flight, policy)
    flown = controller(policy, kind)
    robots = flight.steps.shape[1]
    guard.reset(robots)
    flown.reset(robots)
    count, outputs = comparable(flight), flight.layout.commands
    found = {
        f"{p}.{s.name}": np.zeros((count, robots, *s.shape), np.float32) for p in ("wanted", "sent") for s in outputs
    }
    try:
        with np.errstate(all="ignore"):  # what is recorded may be anything
            for k in range(count):
                wanted, sent = _again(flight, k, guard, flown)
                for name in sent:
                    found[f"wanted.{name}"][k] = wanted[name]
                    found[f"sent.{name}"][k] = sent[name]
    except Exception as error:  # a stranger wrote what guard and policy are fed
        raise FlightLogError(f"{flight.path}: step {k} cannot be computed again: {printable(error)}") from error
    return found


def _again(flight: Flight, k: int, guard: Guard, flown: Policy) -> tuple[Arrays, Arrays]:
    """One control step: what the policy wants now, and what is sent."""
    step, outputs = flight.steps[k], flight.layout.commands
    reasons, robots = step["reason"], len(step)
    for why in ("policy late", "asked to land"):
        if (reasons == REASONS.index(why)).any() and not guard.latched.all():
            guard.abandon(why)
    if flight.about["real_time"]:
        guard.tick(float(step["clock"][0]), bool(step["missed"][0] > 0.0))
    if (reasons == REASONS.index("emergency stop")).any():
        guard.stop()
    signals = {s.name: step[f"signals.{s.name}"].reshape(robots, *s.shape) for s in flight.layout.signals}
    screened = guard.screen(signals, {name: step[f"ages.{name}"] for name in signals})
    recorded = {s.name: step[f"wanted.{s.name}"].reshape(robots, *s.shape) for s in outputs}
    gone = np.isin(reasons, [REASONS.index(why) for why in ("policy failed", "policy late")]).any()
    failed = gone and all(np.isnan(value).all() for value in recorded.values())
    if failed:  # the policy raised, or did not come back
        guard.blame("policy failed")
    wanted: Arrays = recorded if failed else flown.step(screened)
    theirs = {s.name: step[f"sent.{s.name}"].reshape(robots, *s.shape) for s in outputs}
    # That the signals became too old before the command was ready shows only in what the guard did.
    held = (reasons == REASONS.index("stale signal")).all() and not guard.reasons.any()
    override = theirs if (step["verdict"] == OVERRIDE).any() else None
    sent = guard.filter(wanted, override, elapsed=math.inf if held else 0.0)
    if guard.recovery:
        guard.recovery.hand_back(flown)
    return wanted, sent


def differences(flight: Flight, computed: dict[str, AnyArray]) -> dict[str, tuple[int, float]]:
    """By field: on how many robot steps its bits differ, and the largest difference as a share of its range."""
    found = {}
    for name, values in computed.items():
        recorded = flight.values(name)[: len(values)]
        signal = next(s for s in flight.layout.commands if s.name == name.partition(".")[2])
        bits = (recorded.view(np.uint32) != values.astype(np.float32).view(np.uint32)).reshape(*values.shape[:2], -1)
        with np.errstate(all="ignore"):
            apart = np.nan_to_num(np.abs(recorded.astype(np.float64) - values), nan=0.0, posinf=np.inf)
        found[name] = int(bits.any(axis=2).sum()), float(apart.max(initial=0.0)) / (signal.high - signal.low)
    return found


def told(flight: Flight) -> list[str]:
    """A line for each event but the end."""
    began = int(flight.stamp[0]) if len(flight.steps) else 0
    lines = []
    for event in flight.events:
        if event.kind != "end":
            who = f" ({printable(event.who)})" if event.who else ""
            when = f"{(event.stamp - began) * 1e-9:9.3f} s" if began else " " * 11
            lines.append(f"{when}  {printable(event.kind)}: {printable(event.text)}{who}")
    return lines


def _save(config: Config) -> None:
    """Write the repaired log."""
    assert config.repair is not None
    flight_log.read(config.log, config.memory)  # that there is something in it
    try:
        with open(config.log, "rb") as file:
            saved, _ = repair(file, config.repair)
    except RecordError as error:
        raise FlightLogError(f"{config.log}: {error}") from None
    except OSError as error:
        raise FlightLogError(f"{config.repair}: cannot be written: {error.strerror}") from None
    whole = flight_log.read(config.repair, config.memory)
    print(f"{config.repair}: {saved} messages, {len(whole.steps)} control steps")
    print("\n".join(flight_log.losses(whole)) or "nothing was lost")


def _policy(config: Config, flight: Flight, folder: str) -> PolicyFile:
    """The one that was named, or else the one in the log: its content, never a path that the log has."""
    if config.policy is None and not flight.policy:
        raise FlightLogError(f"{config.log}: the policy in it is lost; policy=FILE names it")
    flown = Path(folder) / "policy.onnx"
    flown.write_bytes(flight.policy)
    policy = PolicyFile.load(config.policy or flown)
    if "served" in policy.metadata or flight.about["controller"] == FROM_SERVER:
        raise FlightLogError(f"{config.log}: actions came from a server, and cannot be computed again without it")
    return policy


def _summary(flight: Flight) -> list[str]:
    about = flight.about
    flew, driver, robot, started = (printable(about[key]) for key in ("policy", "driver", "robot", "started"))
    steps, robots = flight.steps.shape
    end = "" if flight.complete else "; the end of the file is missing"
    return [
        f"{flight.path}: {flew} on {driver} ({robot}), {started}",
        f"{steps} control steps at {about['rate_hz']:g} Hz, {robots} robot(s){end}",
        *flight_log.losses(flight),
        *told(flight),
        *filter(None, [flight_log.ending(flight, flight.events)]),
    ]


def main(argv: Sequence[str]) -> None:
    """Read, replay, compare. An error when the policy that flew now computes other commands."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    if config.repair is not None:
        _save(config)
        return
    flight = flight_log.read(config.log, config.memory)
    print("\n".join(_summary(flight)))
    with tempfile.TemporaryDirectory() as folder:
        policy = _policy(config, flight, folder)
        computed = replay(flight, policy, config.controller)
    count = comparable(flight)
    if flight.gaps:
        print(
            f"compared are the first {count} control steps: what policy and guard knew after the lost ones is unknown"
        )
    if not count:
        raise FlightLogError(f"{config.log}: there is nothing to compare")
    compared = differences(flight, computed)
    for name, (differing, largest) in compared.items():
        apart = f"differs on {differing} robot steps, by up to {largest:.3g} of its range"
        print(f"{name:24} {apart if differing else 'equal, every bit'}")
    if config.plot is not None:
        from deploy.recording.plot import comparison

        flew = printable(flight.about["policy"])
        picture = comparison(flight, computed, (f"{flew} (flew)", f"{policy.name} (replayed)"), config.robot)
        write_atomic(config.plot, picture)
        print(f"plot: {printable(config.plot)}")
    if config.policy is None and any(differing for differing, _ in compared.values()):
        by = printable(flight.about["controller"])
        other = f" (it was computed by {by}, now by {config.controller})" if by != config.controller else ""
        raise FlightLogError(f"{config.log}: this machine does not compute what was recorded{other}")


if __name__ == "__main__":
    sys.exit(cli.call(main))

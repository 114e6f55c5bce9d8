"""python -m deploy.replay log=FILE [policy=FILE]: compute a recorded flight's commands again and compare every bit.

Guard and policy are fed what they were fed in the flight. With another policy, how its commands would have differed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy import arguments, flight_log
from deploy.controllers import controller
from deploy.flight_log import Flight, FlightLogError
from deploy.guard import OVERRIDE, REASONS, Guard
from deploy.policy_file import PolicyFile
from deploy.trust.text import printable

AnyArray = NDArray[Any]


@dataclass
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the flight log (.mcap)"})
    policy: str | None = field(default=None, metadata={"help": "another policy (default: the one that flew)"})


def replay(flight: Flight, policy: PolicyFile, kind: str) -> dict[str, AnyArray]:
    """The fields "wanted.NAME" and "sent.NAME" as they are computed now, (steps, robots, *shape).

    `kind` of controller: "onnxruntime" or "c". Raises FlightLogError when the policy reads other signals.
    """
    watched = {s.name for s in flight.layout.signals}
    missing = [s.name for s in policy.inputs if s.name not in watched]
    if missing or policy.outputs != flight.layout.commands:
        trouble = f"signals that were not recorded: {', '.join(missing)}" if missing else "other commands"
        raise FlightLogError(f"{flight.path}: {policy.path} has {trouble}")
    try:
        guard = Guard.from_json(flight.about["guard"])
    except (KeyError, ValueError) as error:
        raise FlightLogError(f"{flight.path}: what its guard was told cannot be read: {error}") from None
    flown = controller(policy, kind)
    robots = flight.steps.shape[1]
    guard.reset(robots)
    flown.reset(robots)
    fields = {name: flight.values(f"signals.{name}") for name in watched}
    ages = {name: flight.values(f"ages.{name}") for name in watched}
    reasons, verdicts = flight.steps["reason"], flight.steps["verdict"]
    clock, missed = flight.steps["clock"][:, 0], flight.steps["missed"][:, 0]
    found: dict[str, list[AnyArray]] = {f"{p}.{s.name}": [] for p in ("wanted", "sent") for s in policy.outputs}
    for k in range(len(flight.steps)):
        if flight.about["real_time"]:
            guard.tick(float(clock[k]), bool(missed[k] > 0.0))
        if (reasons[k] == REASONS.index("emergency stop")).any():
            guard.stop()
        if (reasons[k] == REASONS.index("policy late")).any() and not guard.latched.any():
            guard.abandon("policy late")
        signals = guard.screen({n: v[k] for n, v in fields.items()}, {n: v[k] for n, v in ages.items()})
        recorded = {s.name: flight.values(f"wanted.{s.name}")[k] for s in policy.outputs}
        failed = all(np.isnan(value).all() for value in recorded.values())
        if failed:  # the policy raised, or did not come back
            guard.blame("policy failed")
        wanted = recorded if failed else flown.step(signals)
        theirs = {s.name: flight.values(f"sent.{s.name}")[k] for s in policy.outputs}
        # That the signals became too old before the command was ready shows only in what the guard did.
        held = (reasons[k] == REASONS.index("stale signal")).all() and not guard.reasons.any()
        override = theirs if (verdicts[k] == OVERRIDE).any() else None
        sent = guard.filter(wanted, override, elapsed=np.inf if held else 0.0)
        for name in sent:
            found[f"wanted.{name}"].append(wanted[name])
            found[f"sent.{name}"].append(sent[name])
    return {name: np.stack(values) for name, values in found.items()}


def differences(flight: Flight, computed: dict[str, AnyArray]) -> dict[str, tuple[int, float]]:
    """By field: on how many robot steps its bits differ, and the largest difference as a share of its range."""
    found = {}
    for name, values in computed.items():
        recorded = flight.values(name)
        signal = next(s for s in flight.layout.commands if s.name == name.partition(".")[2])
        bits = (recorded.view(np.uint32) != values.astype(np.float32).view(np.uint32)).reshape(*values.shape[:2], -1)
        apart = np.nan_to_num(np.abs(recorded - values), nan=0.0, posinf=np.inf)
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


def main(argv: Sequence[str]) -> None:
    """Read, replay, compare. The exit status is 1 when the policy that flew now computes other commands."""
    if arguments.wants_help(argv):
        print(f"{__doc__}\n\n{arguments.usage(Config)}")
        return
    (config,) = arguments.parse(argv, Config)
    flight = flight_log.read(config.log)
    about = flight.about
    with tempfile.TemporaryDirectory() as folder:
        flown = Path(folder) / "policy.onnx"
        flown.write_bytes(flight.policy)
        policy = PolicyFile.load(config.policy or flown)
        if "served" in policy.metadata:
            raise FlightLogError(f"{config.log}: actions came from a server, and cannot be computed again without it")
        computed = replay(flight, policy, about["controller"])
    steps, robots = flight.steps.shape
    print(
        f"{config.log}: {about['policy']} on {about['driver']} ({about['robot']}), {about['started']}\n"
        f"{steps} control steps at {about['rate_hz']:g} Hz, {robots} robot(s)"
        + ("" if flight.complete else "; the end of the file is missing")
    )
    for line in (*told(flight), flight_log.ending(flight, flight.events)):
        if line:
            print(line)
    compared = differences(flight, computed)
    for name, (count, largest) in compared.items():
        verdict = (
            f"differs on {count} robot steps, by up to {largest:.3g} of its range" if count else "equal, every bit"
        )
        print(f"{name:24} {verdict}")
    if config.policy is None and any(count for count, _ in compared.values()):
        raise FlightLogError(f"{config.log}: this machine does not compute what was recorded")


if __name__ == "__main__":
    sys.exit(arguments.call(main))

"""What a robot permits, whatever policy flies it: a policy file can ask for less, never for more.

A robot's limits stand with its other numbers (`sim/robots`), or in a file of its owner's, which replaces those:

    max_speed = 3.0                        # any rule of `Envelope`
    fence_low = [-2.0, -2.0, 0.0]
    fence_high = [2.0, 2.0, 2.5]
    [commands.motor_command]
    low = 0.0
    high = 0.8
    safe = [[0.0, 0.0, 0.0, 0.0]]          # the commands that a policy file may name as safe; "last"; or a signal
    [recovery]                             # how a vehicle that is stuck frees itself: fields of `recovery.Rules`
    drives = "speed"
    steers = "steering"
    back = -0.5
    forth = 0.5

A robot that nobody lists has the rules that `Envelope` has by itself, and its safe command is the one nearest to zero.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from deploy.drivers import Driver
from deploy.guard import Guard
from deploy.loop import Policy
from deploy.safety.envelope import Envelope
from deploy.safety.fallback import Fallback
from deploy.safety.ladder import Ladder
from deploy.safety.recovery import Recovery, Rules
from sim.registry import load
from sim.robots import LISTED, recovery_of
from sim.spec import Group, Signal

OLDEST = 1.0  # s: no policy may act on older signals, whatever its file permits
LARGEST = {"min_voltage"}  # of these rules the larger value is the tighter one
FENCE = ("fence_low", "fence_high")


class LimitError(ValueError):
    """A file asks for what the robot does not permit, or the robot's limits make no sense."""


@dataclass(frozen=True)
class Limits:
    """Of one robot. `safe`: what may be called safe, per command; the first where a policy file says nothing."""

    robot: str
    source: str
    envelope: Envelope = field(default_factory=Envelope)
    safe: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of commands: low and high
    path: str = ""  # of the owner's file, if there is one
    recovery: Rules | None = None  # how it frees itself where it is stuck


def limits_of(robot: str, path: str | None = None) -> Limits:
    """The limits in the file at `path`, else those that `sim/robots` lists for that name; LimitError, OSError."""
    if path is not None:
        return _read(robot, path)
    if robot not in LISTED:
        return Limits(robot, "nobody lists this robot")
    listed = load("robot", robot, LISTED)
    ranges = {s.name: (s.low, s.high) for s in listed.commands}
    frees = _recovery(recovery_of(listed), robot)
    return Limits(robot, "listed with the robot", _envelope(listed.envelope, robot), listed.safe, ranges, "", frees)


def _envelope(rules: Mapping[str, Any], source: str) -> Envelope:
    known = {f.name for f in fields(Envelope)} - {"safe"}
    if unknown := rules.keys() - known:
        raise LimitError(f"{source}: unknown rule {', '.join(sorted(unknown))}; rules: {', '.join(sorted(known))}")
    try:
        return Envelope.from_json(rules)
    except (TypeError, ValueError) as error:
        raise LimitError(f"{source}: {error}") from None


def _recovery(told: Any, source: str) -> Rules | None:
    if told is None:
        return None
    if not isinstance(told, Mapping):
        raise LimitError(f"{source}: recovery is a table, got {told!r}")
    try:
        return Rules.from_table(told)
    except ValueError as error:
        raise LimitError(f"{source}: {error}") from None


def _read(robot: str, path: str) -> Limits:
    try:
        with open(path, "rb") as file:
            told = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LimitError(f"{path}: not TOML: {error}") from None
    commands, recovery = told.pop("commands", {}), _recovery(told.pop("recovery", None), path)
    if not isinstance(commands, dict):
        raise LimitError(f"{path}: commands is a table of their names, got {commands!r}")
    safe, ranges = {}, {}
    for name, of in commands.items():
        try:
            ranges[name] = (float(of.get("low", -math.inf)), float(of.get("high", math.inf)))
            listed = of.get("safe", [])
            safe[name] = tuple(rule if isinstance(rule, str) else tuple(map(float, rule)) for rule in listed)
        except (AttributeError, TypeError, ValueError) as error:
            raise LimitError(f"{path}: commands.{name}: {error}") from None
    for name, (low, high) in ranges.items():
        if not low < high:
            raise LimitError(f"{path}: commands.{name}: low {low:g} must be below high {high:g}")
    return Limits(robot, path, _envelope(told, path), safe, ranges, path, recovery)


def tightened(envelope: Envelope, by: Envelope) -> Envelope:
    """The stricter of two for every rule. `safe` is that of the first."""
    rules: dict[str, Any] = {}
    for rule in (f.name for f in fields(Envelope) if f.name not in ("safe", *FENCE)):
        given = [value for value in (getattr(envelope, rule), getattr(by, rule)) if value is not None]
        rules[rule] = (max if rule in LARGEST else min)(given, default=None)
    for side, pick in zip(FENCE, (max, min), strict=True):
        walls = [wall for wall in (getattr(envelope, side), getattr(by, side)) if wall is not None]
        rules[side] = tuple(pick(values) for values in zip(*walls, strict=True)) if walls else None
    return replace(envelope, **rules)


def _reach(limits: Limits, driver: Driver) -> Group:
    """The commands, as far as driver and robot go, whatever the policy's file says of them."""
    reach = tuple(_within(c, *limits.ranges.get(c.name, (-math.inf, math.inf))) for c in driver.commands)
    for command in reach:
        listed = limits.safe.get(command.name, ())
        if not listed and not command.low <= 0.0 <= command.high:
            raise LimitError(
                f"{command.name} of {limits.robot} is within [{command.low:g}, {command.high:g}], which has no zero to "
                "stop it with: name a safe command of the robot's in limits=FILE"
            )
    return reach


def _safe(limits: Limits, policy: Policy, reach: Group, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The safe commands: what the file asks for, where the robot lists it; else the robot's."""
    found: dict[str, Any] = {}
    for command in reach:
        listed, wish = limits.safe.get(command.name, ()), asked.get(command.name)
        if wish is None:
            if listed:
                found[command.name] = listed[0]
        elif wish in listed or wish == _nearest_to_zero(command):
            found[command.name] = wish
        else:
            choices = ", ".join(map(str, listed)) or "what is nearest to zero"
            raise LimitError(
                f"{policy.path} calls {command.name} {wish} safe; {limits.robot} ({limits.source}) permits: {choices}"
            )
    return found


def _nearest_to_zero(command: Signal) -> tuple[float, ...]:
    return (min(max(0.0, command.low), command.high),) * command.size


def _within(signal: Signal, low: float, high: float, max_age: float = math.inf) -> Signal:
    """The signal with stricter limits."""
    return replace(signal, low=max(signal.low, low), high=min(signal.high, high), max_age=min(signal.max_age, max_age))


def _inputs(policy: Policy, driver: Driver) -> Group:
    offered = {s.name: s for s in driver.signals}
    ours = ((s, offered.get(s.name, s)) for s in policy.inputs)
    return tuple(_within(s, theirs.low, theirs.high, min(theirs.max_age, OLDEST)) for s, theirs in ours)


def guard_of(
    policy: Policy,
    driver: Driver,
    limits: Limits,
    envelope: Envelope,
    ground: float = 0.0,
    recovery: bool = False,
) -> Guard:
    """The guard of a flight: `envelope` (the policy file's rules, or what a person put in their place), made stricter.

    With a ladder where its fallback can fly the robot, and the robot does not land by itself. With `recovery` a vehicle
    that is stuck frees itself, as its limits say. Raises LimitError when they do not, or when the file asks for a safe
    command that the robot does not list.
    """
    offered = {s.name: s for s in (*driver.signals, *policy.inputs)}
    rules = limits.envelope
    unmeasured = {rule: None for rule, signal in rules.needs().items() if signal not in offered}
    if "fence_low" in unmeasured:
        unmeasured["fence_high"] = None
    rules = replace(rules, **unmeasured)  # type: ignore[arg-type]
    reach = _reach(limits, driver)
    if limits.path and (unknown := limits.ranges.keys() - {c.name for c in reach}):
        commands = ", ".join(c.name for c in reach)
        raise LimitError(f"{limits.source}: commands.{min(unknown)}: the robot has no such command; it has: {commands}")
    ranges = {c.name: (c.low, c.high) for c in reach}
    try:
        outputs = tuple(_within(c, *ranges.get(c.name, (-math.inf, math.inf))) for c in policy.outputs)
        strict = replace(tightened(envelope, rules), safe=_safe(limits, policy, reach, envelope.safe))
    except ValueError as error:
        raise LimitError(
            f"{policy.path} and the limits of {limits.robot} ({limits.source}) exclude each other: {error}"
        ) from None
    inputs, frees = _inputs(policy, driver), _frees(limits, policy, reach) if recovery else None
    fence = None if strict.fence_low is None else (strict.fence_low, strict.fence_high)
    ladder = None
    if not driver.lands and Fallback.fits(tuple(offered.values()), outputs):
        ladder = Ladder(inputs, policy.rate_hz, ground, fence)
    try:
        return Guard(inputs, outputs, strict, driver.signals, ladder, reach, frees)
    except ValueError as error:
        raise LimitError(f"{limits.robot} ({limits.source}): {error}") from None


def _frees(limits: Limits, policy: Policy, reach: Group) -> Recovery:
    if limits.recovery is None:
        raise LimitError(
            f"nobody says how a {limits.robot} that is stuck frees itself: name it in [recovery] of limits=FILE"
        )
    try:
        return Recovery(limits.recovery, policy.rate_hz, reach)
    except ValueError as error:
        raise LimitError(f"{limits.robot} ({limits.source}): {error}") from None


RULES = {
    "fence_low": "geofence",
    "max_tilt": "tilt",
    "max_speed": "speed",
    "max_body_rate": "body rate",
    "min_voltage": "battery",
    "max_change": "slew",
    "missed_in_a_row": "deadlines in a row",
    "missed_of_100": "deadlines of 100",
    "longest_pause": "pause",
}
UNITS = {
    "max_tilt": " degrees",
    "max_speed": " m/s",
    "max_body_rate": " rad/s",
    "min_voltage": " V",
    "longest_pause": " s",
}


def describe(limits: Limits, guard: Guard) -> list[str]:
    """What holds in this flight and what is off, for the person who starts it."""
    e = guard.envelope
    on = {rule: getattr(e, rule) for rule in RULES if getattr(e, rule) is not None}
    texts = [f"{RULES[rule]} {value:g}{UNITS.get(rule, '')}" for rule, value in on.items() if rule != "fence_low"]
    if e.fence_low is not None:
        texts.insert(0, f"geofence {list(e.fence_low)} .. {list(e.fence_high or ())} m")
    texts += [f"{c.name} {c.low:g} .. {c.high:g}" for c in guard.reach]
    off = [name for rule, name in RULES.items() if rule not in on]
    end = "hold, land, off" if guard.ladder is not None else "the safe command"
    frees = guard.recovery and guard.recovery.rules
    return [
        f"limits of {limits.robot} ({limits.source}): {', '.join(texts)}; then {end}",
        *([f"rules that are off: {', '.join(off)}"] if off else []),
        *([f"stuck for {frees.stuck_s:g} s: it frees itself, {frees.attempts} times at most"] if frees else []),
    ]

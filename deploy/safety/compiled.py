"""The rules of a flight as C, for what flies inside an autopilot: whose limits hold, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, QUADROTOR_SIGNALS, Source
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from deploy.safety.limits import limits_of, tightened
from sim.robots.quadrotors import MOTOR_COMMAND
from sim.spec import Group

HEADER = """\
/* When the policy hands back to {autopilot}: made by `python -m deploy.export`; change it, and build again. */
#ifndef LIMITS_H
#define LIMITS_H

{lines}

#endif
"""


@dataclass(frozen=True)
class Limit:
    """One number of limits.h. `rule`: of an envelope that may be stricter, by `share` of it; empty: none."""

    name: str
    rule: str
    usual: float
    what: str
    share: float = 1.0


MOTION = (
    Limit("TILT", "max_tilt", 60.0, "degrees between the body's z axis and the world's"),
    Limit("SPEED", "max_speed", 5.0, "m/s"),
    Limit("RATE", "max_body_rate", 15.0, "rad/s, of the body"),
)


@dataclass(frozen=True)
class Autopilot:
    """What a quadrotor's autopilot tells a policy inside it, how often at most, and which rules it leaves undone."""

    target: str  # and the name of the folder in firmware/ that goes around the policy's C
    name: str
    written: tuple[str, ...]  # the files there
    signals: Group
    quickest_hz: float
    pace: str  # what gives `quickest_hz`
    limits: tuple[Limit, ...]
    not_carried_out: Mapping[str, str]  # rule -> why
    lacks: str = ""  # what to say of a signal that it has not

    def check(self, policy: PolicyFile) -> None:
        """ValueError when it cannot supply a signal, carry out a command or a rule, or keep the pace."""
        known = {s.name: s for s in self.signals}
        for signal in policy.inputs:
            ours = known.get(signal.name)
            told = (signal.shape, signal.unit, signal.frame)
            if ours is None or (ours.shape, ours.unit, ours.frame) != told:
                raise ValueError(
                    f"{policy.path}: target={self.target} has no signal {signal.name!r} {signal.shape} in "
                    f"{signal.unit}; it has: {', '.join(known)}{self.lacks}"
                )
        commands = [(c.name, c.shape, c.low, c.high) for c in policy.outputs]
        if commands != [(MOTOR_COMMAND.name, MOTOR_COMMAND.shape, MOTOR_COMMAND.low, MOTOR_COMMAND.high)]:
            told_of = ", ".join(f"{c.name} {c.shape}" for c in policy.outputs)
            raise ValueError(
                f"{policy.path}: target={self.target} commands 4 rotors (motor_command, 0 to 1), not {told_of}"
            )
        if policy.rate_hz > self.quickest_hz:
            raise ValueError(
                f"{policy.path} runs at {policy.rate_hz:g} Hz; {self.pace} gives {self.quickest_hz:g} samples/s"
            )
        self.rules(policy)

    def rules(self, policy: PolicyFile) -> Envelope:
        """The stricter of the file's rules and its robot's. ValueError for one that is not carried out."""
        try:
            e = tightened(policy.envelope, limits_of(policy.robot).envelope)
        except ValueError as error:
            raise ValueError(f"{policy.path} and the limits of {policy.robot} exclude each other: {error}") from None
        for rule, why in self.not_carried_out.items():
            if getattr(e, rule) is not None:
                raise ValueError(
                    f"{policy.path}: it or its robot has the rule {rule}, which target={self.target} does not carry "
                    f"out: {why}. Export a file without it"
                )
        for rule in ("fence_low", "fence_high", "min_voltage", *(limit.rule for limit in self.limits if limit.rule)):
            value = getattr(e, rule)
            if value is not None and not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{policy.path}: {rule} is infinite; name a number, or leave the rule out")
        return e

    def header(self, policy: PolicyFile, more: Sequence[str]) -> str:
        """limits.h: the usual limits, or the file's or its robot's where those are stricter; and `more` lines."""
        e = self.rules(policy)
        lines = []
        for limit in self.limits:
            own = getattr(e, limit.rule) if limit.rule else None
            value = limit.usual if own is None else min(limit.usual, limit.share * float(own))
            lines.append(f"#define LIMIT_{limit.name} {number(value)} /* {limit.what} */")
            if limit.name == "TILT":
                cosine = math.cos(math.radians(value))
                lines.append(f"#define LIMIT_UPRIGHT {number(cosine)} /* the cosine of LIMIT_TILT */")
        for side, wall in (("LOW", e.fence_low), ("HIGH", e.fence_high)):
            if wall is not None:
                numbers = ", ".join(number(float(x)) for x in wall)
                lines.append(f"#define LIMIT_WORLD_{side} {{{numbers}}} /* m: a geofence, in the world */")
        return HEADER.format(autopilot=self.name, lines="\n".join([*lines, *more]))

    def files(self, source: Source, limits: str) -> dict[str, str]:
        """Path in the module's folder -> text, of a policy that was checked, and its limits.h."""
        places = {name: FIRMWARE / self.target / name for name in self.written}
        places[QUADROTOR_SIGNALS] = FIRMWARE / QUADROTOR_SIGNALS
        return {**{name: place.read_text() for name, place in places.items()}, **source.files(), "limits.h": limits}

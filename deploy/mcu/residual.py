"""A residual that learns on the chip beside a verified policy: C for one policy file, around firmware/learning.

The policy's own C stays as it is. Stream AC(lambda) (firmware/learning/streaming.h) learns one number, a share of the
command's range that is added to every element of the command, from how far the robot is from its target: for a
quadrotor the collective thrust, which is what another mass changes. What is sent stays within the policy's limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE
from deploy.policy_file import PolicyFile
from sim.spec import Signal

LEARNING = FIRMWARE / "learning"
PLACE, TARGET, SPEED = "position", "target_position", "linear_velocity"

HEADER = """\
/* What the residual sees and changes of a policy: made by deploy/mcu/residual.py; do not edit. */
#ifndef RESIDUAL_POLICY_H
#define RESIDUAL_POLICY_H

{defines}

#include "policy.h"
#include "policy_functions.h"

/* Where the robot is from its target (m), and how fast (m/s). */
static void residual_features(const policy_signals *signals, float *x) {{
    for (int i = 0; i < {size}; ++i) x[i] = signals->{place}[i] - signals->{target}[i];
    for (int i = 0; i < {speed_size}; ++i) x[{size} + i] = signals->{speed}[i];
}}

/* m */
static float residual_distance(const policy_signals *signals) {{
    float sum = 0.0f;
    for (int i = 0; i < {size}; ++i) {{
        const float away = signals->{place}[i] - signals->{target}[i];
        sum += away * away;
    }}
    return policy_sqrt(sum);
}}

/* The same share of its range more of each element of the command, within the policy's own limits. */
static void residual_add(policy_commands *commands, float share) {{
    for (int i = 0; i < {command_size}; ++i)
        commands->{command}[i] = policy_clip(commands->{command}[i] + {span} * share, {low}, {high});
}}

#endif
"""


@dataclass(frozen=True)
class Residual:
    """Settings of the learner. Rates, kappas, trace, entropy and sparsity are the paper's (arXiv 2410.14606)."""

    hidden: int = 16  # units of the actor and of the critic
    gamma: float = 0.95  # per decision
    trace: float = 0.8  # lambda
    rate: float = 1.0
    actor_kappa: float = 3.0
    critic_kappa: float = 2.0
    entropy: float = 0.01
    sparsity: float = 0.9
    initial_std: float = 0.3  # of the exploration, as a share of `most`
    critic_alone: int = 100  # decisions in which the actor explores and does not learn
    most: float = 0.15  # share of the command's range that is added or taken away at most
    far: float = 0.3  # m from its target, beyond which the policy flies alone and nothing is learned
    settle_s: float = 3.0  # s of flight before anything is added
    period_s: float = 0.05  # s between two decisions

    def __post_init__(self) -> None:
        if self.hidden < 1 or not all(getattr(self, f.name) > 0.0 for f in fields(self) if f.name not in _MAY_BE_ZERO):
            raise ValueError(f"a residual's settings are positive: {self}")
        if not self.most <= 0.5:
            raise ValueError(f"a residual changes at most half of the command's range, not {self.most}")

    def period(self, rate_hz: float) -> int:
        """Control steps between two decisions."""
        return max(1, round(self.period_s * rate_hz))

    def begins(self, rate_hz: float) -> int:
        """Control steps of a flight after which the actor learns."""
        return round(self.settle_s * rate_hz) + (self.critic_alone + 2) * self.period(rate_hz)

    def files(self, policy: PolicyFile) -> dict[str, str]:
        """File name -> content, beside the policy's own; ValueError for a policy that it cannot be learned for."""
        names = ("residual.c", "residual.h", "streaming.h")
        made = {name: (LEARNING / name).read_text() for name in names}
        common = {name: (FIRMWARE / name).read_text() for name in ("policy_math.h", "policy_functions.h")}
        return made | common | {"residual_policy.h": self._header(policy)}

    def _header(self, policy: PolicyFile) -> str:
        place, target, speed = (_signal(policy, name) for name in (PLACE, TARGET, SPEED))
        command = _command(policy)
        defines = {
            "STREAM_OBSERVED": str(place.size + speed.size),
            "STREAM_HIDDEN": str(self.hidden),
            "STREAM_GAMMA": number(self.gamma),
            "STREAM_TRACE": number(self.trace),
            "STREAM_RATE": number(self.rate),
            "STREAM_ACTOR_KAPPA": number(self.actor_kappa),
            "STREAM_CRITIC_KAPPA": number(self.critic_kappa),
            "STREAM_ENTROPY": number(self.entropy),
            "STREAM_SPARSITY": number(self.sparsity),
            "STREAM_STD": number(math.log(math.expm1(self.initial_std))),
            "STREAM_CRITIC_ALONE": f"{self.critic_alone}u",
            "RESIDUAL_PERIOD": f"{self.period(policy.rate_hz)}u",
            "RESIDUAL_SETTLE": f"{round(self.settle_s * policy.rate_hz)}u",
            "RESIDUAL_FAR": number(self.far),
            "RESIDUAL_MOST": number(self.most),
        }
        return HEADER.format(
            defines="\n".join(f"#define {name} {value}" for name, value in defines.items()),
            size=place.size,
            place=place.name,
            target=target.name,
            speed=speed.name,
            speed_size=speed.size,
            command=command.name,
            command_size=command.size,
            span=number(command.high - command.low),
            low=number(command.low),
            high=number(command.high),
        )


_MAY_BE_ZERO = ("hidden", "critic_alone", "entropy", "sparsity", "settle_s")


def _signal(policy: PolicyFile, name: str) -> Signal:
    """A signal of three numbers; ValueError when the policy does not see it."""
    for signal in policy.inputs:
        if signal.name == name and signal.shape == (3,):
            return signal
    needs = f"{PLACE}, {TARGET} and {SPEED}"
    raise ValueError(
        f"{policy.path}: learning on the chip needs a policy that sees {needs}, three numbers each; "
        f"this one sees: {', '.join(s.name for s in policy.inputs)}"
    )


def _command(policy: PolicyFile) -> Signal:
    """The one command, within limits."""
    command = policy.outputs[0]
    if len(policy.outputs) != 1 or not math.isfinite(command.high - command.low):
        raise ValueError(
            f"{policy.path}: learning on the chip needs a policy of one command within limits; "
            f"this one has: {', '.join(s.name for s in policy.outputs)}"
        )
    return command

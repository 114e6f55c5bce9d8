"""Where on a Crazyflie a policy's step has time: in the stabilizer's task, or in one of its own below it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deploy.codegen.source import Source
from deploy.mcu.budget import Budget, Demand
from deploy.policy_file import PolicyFile

# Built from crazyflie-firmware 2a18fc29 (2026.08+2) for cf2 with `quad_any`, whose C takes 12 752 bytes of flash and
# 624 of memory: 322 508 of 1 032 192 bytes of flash and 95 504 of 131 072 of memory are full. The stabilizer task must
# be through within its 1 ms (its rate supervisor stops a vehicle outside of 997..1003 Hz), and tasks below it must
# run, too: that a third of it is free for the policy is our choice, not Bitcraze's number.
STABILIZER = Budget(
    us=300.0,
    why="what is left of the Crazyflie's 1 kHz stabilizer task, in which the policy runs",
    flash=1_032_192 - 322_508 + 12_752,
    memory=131_072 - 95_504 + 624,
)
SHARE = 0.3  # of the processor for a policy in a task of its own: our choice, too
LEAST_STACK = 600  # bytes of the firmware's smallest task, and of the policy's beside what its step needs


@dataclass(frozen=True)
class Place:
    """Where the policy runs. `late_s`: so long after it was asked for its commands come, if nobody interrupts it."""

    own_task: bool
    stack: int  # bytes that a step takes
    late_s: float
    said: str


def place(policy: PolicyFile, source: Source, most: Budget | None = None) -> Place:
    """In the stabilizer's task if a step fits, else in one of its own. `most`: the user's own budget for either.

    BudgetError when it takes more.
    """
    demand = Demand.estimated(source)
    if 1e6 * demand.seconds <= STABILIZER.us:
        return Place(False, demand.stack, 0.0, (most or STABILIZER).check(demand))
    own = most or Budget(
        us=SHARE * 1e6 / policy.rate_hz,
        why=f"{SHARE:.0%} of the processor at {policy.rate_hz:g} Hz, in a task of its own below the stabilizer's, "
        f"which has {STABILIZER.us:.0f} us",
    )
    fitting = replace(own, flash=STABILIZER.flash, memory=STABILIZER.memory - LEAST_STACK - demand.stack)
    return Place(True, demand.stack, demand.seconds, fitting.check(demand))

"""foundation-policy 1.0.2, the published weights of "RAPTOR", for foundation.py: observations in, actions out.

A request on stdin is two arrays (`arrays.py`): whether flights begin () bool, and observations (n, 22) float32. The
answer on stdout is the actions (n, 4) float32.
"""

import sys

import numpy as np
from arrays import receive, send
from foundation_policy import Raptor

CHUNK = 256  # vehicles evaluated together: five times faster than thousands at once


def answer(policies, fresh, observation):
    """Actions of all vehicles; every chunk has a policy of its own, since the recurrent state is in there."""
    starts = range(0, len(observation), CHUNK)
    if fresh:
        policies[:] = [Raptor() for _ in starts]
        for policy in policies:
            policy.reset()
    with np.errstate(over="ignore"):  # its logistic function, for vehicles that are lost
        parts = [p.evaluate_step(observation[k : k + CHUNK]) for p, k in zip(policies, starts, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def main():
    """Answer until stdin is closed."""
    policies = []
    while (fresh := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, answer(policies, fresh, receive(sys.stdin.buffer)))


if __name__ == "__main__":
    main()

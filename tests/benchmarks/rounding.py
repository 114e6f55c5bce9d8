"""What smaller weights cost in flight: the C with each kind of them flies the same episodes, here instead of on a chip.

    python tests/benchmarks/rounding.py policy.onnx

The chip computes the same bits (tests/deploy/mcu/test_emulator.py). The episodes are those of `policies.evaluate`.
"""

import argparse
import ctypes

import numpy as np

from deploy.codegen.host import library, state_size
from deploy.codegen.structs import struct_type
from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate

WEIGHTS = ("float32", "float16", "int8", "w8a8")


class Compiled:
    """A policy file whose commands are computed by its C, robot by robot."""

    def __init__(self, policy: PolicyFile, weights: str):
        self.policy, self.rows = policy, struct_type(policy)
        self.library, _ = library(policy, policy.content(), weights=weights)

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def reset(self, n: int = 1):
        self.n, self.signals = n, np.zeros(n, self.rows)
        self.state = np.zeros((n, state_size(self.policy)), np.float32)
        self.commands = np.zeros((n, sum(s.size for s in self.policy.outputs)), np.float32)
        for robot in range(n):
            self.library.policy_reset(self._at(self.state, robot))

    def _at(self, rows, robot):
        return ctypes.c_void_p(rows.ctypes.data + robot * rows.strides[0])

    def step(self, signals):
        for signal in self.policy.inputs:
            self.signals[signal.name] = np.asarray(signals[signal.name]).reshape(self.n, signal.size)
        for robot in range(self.n):
            done = self.library.policy_step(*(self._at(x, robot) for x in (self.state, self.signals, self.commands)))
            assert done, f"robot {robot}: a signal or a command is not finite"
        ends = np.cumsum([s.size for s in self.policy.outputs])
        parts = np.split(self.commands, ends[:-1], axis=1)
        return {s.name: p.reshape(self.n, *s.shape).copy() for s, p in zip(self.policy.outputs, parts, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a policy file, or the name of one that comes along")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, choices=WEIGHTS)
    given = parser.parse_args()
    policy = PolicyFile.load(given.policy)
    for weights in given.weights:
        found = evaluate(Compiled(policy, weights), episodes=given.episodes, seed=given.seed)
        scores = ", ".join(f"{name} {score.mean:.4g} {score.unit}" for name, score in found.score.items())
        print(f"{weights:8} success {100.0 * found.success:.1f} %, {scores}", flush=True)


if __name__ == "__main__":
    main()

"""What smaller weights cost in flight: the C with each kind of them flies the same episodes, here instead of on a chip.

    python tests/benchmarks/rounding.py policy.onnx

The chip computes the same bits (tests/deploy/mcu/test_emulator.py). The episodes are those of `policies.evaluate`.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from deploy.runtimes import CompiledPolicy
from policies.evaluate import evaluate

WEIGHTS = ("float32", "float16", "int8", "w8a8")


class Compiled(CompiledPolicy):
    """A policy file whose commands are computed by its C, with the bits of the chip's."""

    def __init__(self, policy: PolicyFile, weights: str) -> None:
        self.file = policy
        super().__init__(policy, weights, flags=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        told = super().step(signals)
        assert all(np.isfinite(value).all() for value in told.values()), "a signal or a command is not finite"
        return told


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

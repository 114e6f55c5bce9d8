"""How much of the time a player who turns a camera has the ball in view, as it explores at the start of its training.

    python tests/benchmarks/gaze.py untrained.onnx

The file's commands are disturbed as PPO explores: by normal noise with a memory, as a share of half of each command's
range. With `--std 0` it plays as `policies.evaluate` has it.
"""

import argparse

import numpy as np

from deploy.drivers.simulated import evaluation_seed
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from sim.env import make_env
from sim.spec import limits, pack, unpack

TOGETHER = 50
KEPT = ("ball_position", "pan")


def flown(policy: PolicyFile, task, first: int, num: int, seed: int, std: float, correlation: float):
    """Scores of the episodes from `first` on."""
    env, rng = make_env(task, num, evaluation_seed(seed)), np.random.default_rng([seed, first])
    env.reset(range(num), range(first, first + num))
    policy.reset(num)
    low, high = limits(task.commands)
    wander, log = rng.standard_normal((num, len(low))), []
    for _ in range(task.episode_steps):
        seen = env.observe()
        told = pack(task.commands, policy.step({s.name: seen[s.name] for s in policy.inputs}))
        told = np.clip(told + std * wander * (high - low) / 2.0, low, high).astype(np.float32)
        step = env.step(unpack(task.commands, told))
        judged = {"success": step.success, "terminated": step.terminated}
        log.append({name: seen[name].copy() for name in KEPT} | {k: v[:, None] * 1.0 for k, v in judged.items()})
        wander = correlation * wander + np.sqrt(1.0 - correlation**2) * rng.standard_normal(wander.shape)
    env.close()
    return task.score({name: np.stack([row[name] for row in log]) for name in log[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a policy file of a task with ball_in_view")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--std", type=float, default=0.3, help="algorithm.initial_std of the recipe")
    parser.add_argument("--correlation", type=float, default=0.8, help="algorithm.correlation of the recipe")
    given = parser.parse_args()
    policy = PolicyFile.load(given.policy)
    task = task_for(policy)
    found = [
        flown(policy, task, first, min(TOGETHER, given.episodes - first), given.seed, given.std, given.correlation)
        for first in range(0, given.episodes, TOGETHER)
    ]
    for name in ("success", "ball_in_view"):
        print(f"{name:12} {100.0 * np.concatenate([one[name] for one in found]).mean():5.1f} %")


if __name__ == "__main__":
    main()

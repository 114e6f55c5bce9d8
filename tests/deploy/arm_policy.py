"""Steered policies of an arm that need no training: their denoiser is a linear map, exactly, in one step."""

import numpy as np

from policies.models.chunking import ChunkPolicy, Denoiser, Schedule, Steering
from policies.models.networks.feed_forward import Mlp
from sim import spec
from sim.robots.panda import PANDA
from sim.spec import limits
from sim.tasks.arm.reach import ArmReach, ReachConfig

ONE = np.ones(1, np.float32)
POSE = np.array([0.15, *PANDA.home[1:]], np.float32)  # rad, where `posing` brings the joints


def linear(task: ArmReach, weight: np.ndarray, bias: np.ndarray) -> ChunkPolicy:
    """The controller whose actions in [-1, 1] are clip(weight @ observation + bias), for silu(x) - silu(-x) = x."""
    actions, seen = weight.shape
    rows = np.concatenate([weight, -weight]).astype(np.float32)
    both = np.concatenate([np.eye(actions), -np.eye(actions)], axis=1).astype(np.float32)
    base = Denoiser(
        horizon=1,
        actions=actions,
        schedule=Schedule(ONE, ONE, 0.0 * ONE, ONE, clip=True),
        see=rows,
        look=np.zeros((2 * actions, actions), np.float32),
        bias=np.concatenate([bias, -bias])[None].astype(np.float32),
        layers=[(both, np.zeros(actions, np.float32))],
    )
    actor = Mlp([(np.full((actions, seen), 0.1, np.float32), np.zeros(actions, np.float32))], "relu")
    return ChunkPolicy.from_task(task, base, Steering(actor, 1.5), 1)


def reaching() -> ChunkPolicy:
    """Moves the hand to the goal, with an open gripper."""
    task = ArmReach()
    at, weight = spec.slices(task.policy), np.zeros((4, spec.size(task.policy)))
    weight[:3, at["goal_position"]], weight[:3, at["hand_position"]] = 10.0 * np.eye(3), -10.0 * np.eye(3)
    return linear(task, weight, np.array([0.0, 0.0, 0.0, 1.0]))


def posing() -> ChunkPolicy:
    """Moves the joints to `POSE`, with an open gripper, by commanding their positions."""
    task = ArmReach(ReachConfig(control="joint"))
    low, high = limits(task.commands)
    target = np.concatenate([POSE, [PANDA.gripper.opening]])
    return linear(task, np.zeros((8, spec.size(task.policy))), 2.0 * (target - low) / (high - low) - 1.0)

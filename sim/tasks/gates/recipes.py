"""How racing through gates is learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

# Who remembers learns what the expert would do, from states that the learner gets into; nothing from the reward, so the
# critic has nothing to say. At the full pace a late turn is a crash.
PPO: dict[str, Any] = {
    "task.start": "reference",
    "task.retry": False,
    "task.tracks": 256,
    "task.plan_steps": 24,
    "task.pace": 0.95,
    "algorithm.total_steps": 2_400_000,
    "algorithm.num_envs": 512,
    "algorithm.rollout_steps": 32,
    "algorithm.minibatches": 16,
    "algorithm.epochs": 4,
    "algorithm.gamma": 0.99,
    "algorithm.network": "gru",
    "algorithm.hidden": [64, 64],
    "algorithm.critic_hidden": [16],
    "algorithm.initial_std": 0.1,
    "algorithm.min_std": 0.03,
    "algorithm.correlation": 0.5,
    "algorithm.imitation": 1.0,
    "algorithm.final_imitation": 0.02,
    "algorithm.guided": 0.18,
    "algorithm.alone": 1.0,
    "algorithm.alone_rate": 0.0,
    "algorithm.learning_rate": 3e-3,
    "algorithm.final_learning_rate": 2e-4,
    "algorithm.evaluation_episodes": 16,
}
# The same by a camera, of an expert who flies more slowly, and so more level: the camera looks up less, and sees gates
# until they are nearer.
VISION: dict[str, Any] = {**PPO, "task.plan_steps": 12, "task.pace": 0.7, "task.tilt": -20.0}
APG: dict[str, Any] = {
    "task.start": "anywhere",
    "algorithm.network": "mlp",
    "algorithm.hidden": [64, 64],
    "algorithm.updates": 300,
    "algorithm.num_envs": 128,
    "algorithm.window": 96,
    "algorithm.ahead": 24,
    "algorithm.episode_windows": 5,
    "algorithm.learning_rate": 6e-3,
    "algorithm.final_learning_rate": 2e-4,
    "algorithm.gradient_clip": 0.5,
    "algorithm.adjoint_clip": 300.0,
}

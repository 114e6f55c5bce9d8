"""How racing is learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

PPO: dict[str, Any] = {
    "algorithm.total_steps": 3_000_000,
    "algorithm.num_envs": 512,
    "algorithm.rollout_steps": 32,
    "algorithm.minibatches": 8,
    "algorithm.epochs": 4,  # with 2, and a critic of [64, 64], 4 M steps: 95.0 % of laps in 8.1 s, not 97.5 in 7.6
    "algorithm.gamma": 0.98,
    "algorithm.hidden": [64, 64],
    "algorithm.initial_std": 0.5,
    "algorithm.min_std": 0.05,
    "algorithm.correlation": 0.8,
    "algorithm.learning_rate": 2e-3,
    "algorithm.final_learning_rate": 1e-4,
    "algorithm.evaluate_every": 60,
    "algorithm.evaluation_episodes": 100,
}
# What a car is like shows over time, so its driver remembers. A lap of "reality" took a perceptron 8.45 s after 3 M
# steps and 8.25 s after 9 M, who remembers 8.65 s and 8.25 s.
ROBUST_PPO: dict[str, Any] = {"task.told": True, "algorithm.network": "gru", "algorithm.total_steps": 9_000_000}
APG: dict[str, Any] = {
    "algorithm.network": "mlp",
    "algorithm.hidden": [64, 64],
    "algorithm.updates": 700,
    "algorithm.num_envs": 128,
    "algorithm.window": 32,
    "algorithm.ahead": 12,
    "algorithm.episode_windows": 12,
    "algorithm.learning_rate": 3e-3,
    "algorithm.final_learning_rate": 1e-4,
    "algorithm.gradient_clip": 0.5,
    "algorithm.adjoint_clip": 10_000.0,  # with 50 what walls cost is cut off: it drives faster, and touches them
}
# Rows are whole worlds of 2 to 6 cars, or 8, where one policy drives them all.
AMONG_OTHERS: dict[str, Any] = {**PPO, "algorithm.num_envs": 480}
STUDENT: dict[str, Any] = {
    "algorithm.total_steps": 1_000_000,
    "algorithm.num_envs": 128,
    "algorithm.rollout_steps": 32,
    "algorithm.minibatches": 16,
    "algorithm.epochs": 2,
    "algorithm.gamma": 0.98,
    "algorithm.hidden": [96, 64],
    "algorithm.critic_hidden": [32, 32],  # nobody needs a critic while all is taught
    "algorithm.sight.strides": [4, 2, 2],  # a fourth of the arithmetic
    "algorithm.initial_std": 0.1,
    "algorithm.min_std": 0.1,
    "algorithm.correlation": 0.8,
    "algorithm.learning_rate": 2e-3,
    "algorithm.final_learning_rate": 1e-4,
    "algorithm.guided": 0.2,
    "algorithm.alone": 1.0,
    "algorithm.imitation_reward": 0.0,
    "algorithm.float16": True,
    "algorithm.evaluate_every": 60,
    "algorithm.evaluation_episodes": 100,
}
# One car that tries for 20 minutes, from nothing.
SAC: dict[str, Any] = {
    "algorithm.total_steps": 24_000,
    "algorithm.num_envs": 1,
    "algorithm.warmup_steps": 600,
    "algorithm.updates_per_step": 4,
    "algorithm.correlation": 0.8,
    "algorithm.initial_std": 0.5,
    "algorithm.report_every": 1200,  # a minute
    "algorithm.evaluate_every": 4800,
    "algorithm.evaluation_episodes": 50,
}
# The same from pictures: who tells how far walls are learned that from a beginner's laps on other tracks.
SEEN_SAC: dict[str, Any] = {
    **SAC,
    "task.expert": "human",
    "algorithm.estimator.updates": 3000,
    "algorithm.sight.head": "flat",
    "algorithm.sight.channels": [16, 32, 32],
    "algorithm.sight.strides": [4, 2, 2],
}
# With somebody slow who advises: as many cars, and steps, as where no recipe says otherwise.
ADVISED: dict[str, Any] = {"algorithm.num_envs": 32}
# From pictures by trial: eyes learn from a beginner's laps on other tracks, and 20 minutes are driven by one car.
FAST: dict[str, Any] = {
    "task.expert": "human",
    "algorithm.total_steps": 24_000,
    "algorithm.num_envs": 1,
    "algorithm.base.horizon": 1,
    "algorithm.base.episodes": 10,
    "algorithm.base.corruption": 0.0,
    "algorithm.base.change": 0.3,  # 0.13 rad and 1.2 m/s of the 1:10 car's commands
    "algorithm.base.eyes.sight.strides": [4, 2, 2],
    # Keypoints leave 0.60 to 0.66 of the variance of the lidar's beams untold on other laps, the last channels 0.46.
    "algorithm.base.eyes.sight.head": "flat",
    "algorithm.base.eyes.sight.channels": [16, 32, 8],
    "algorithm.base.eyes.learning_rate": 2e-3,
    "algorithm.base.eyes.auxiliary": 1.0,
    "algorithm.base.eyes.corruption": 1.0,
    "algorithm.base.eyes.episodes": 80,
    "algorithm.base.eyes.offline_updates": 5000,
    "algorithm.task_reward": 1.0,  # per m, as `WEIGHTS` says
    "algorithm.gamma": 0.98,
    "algorithm.warmup_episodes": 4,
}

"""Stable-Baselines3 SAC on a task with a world of its own, for off_policy.py: `sb3_sac.py TASK SEED FOLDER SETTINGS`.

The settings are JSON: the task's; `linger`, `success_reward` and `gamma` as our learner has them; and the CPU time that
its process may use, in s. Then the actor is written into the folder as policy.onnx, to be evaluated as ours is.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import report  # noqa: F401  makes the project importable
import torch
from gymnasium import spaces
from sb3_ppo import Adapter
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from policies.models.export import export_torch
from sim import tasks
from sim.vec_world import WorldVecEnv

ENVIRONMENTS = 8


class Worlds(Adapter):
    """The episodes that our learners have, as Stable-Baselines3 wants them."""

    def __init__(self, task, seed, linger, success_reward):
        envs = WorldVecEnv(task, ENVIRONMENTS, seed, "cpu", linger, success_reward)
        seen = spaces.Box(-np.inf, np.inf, (envs.feature_size,), np.float32)
        super().__init__(envs, seen, spaces.Box(-1.0, 1.0, (envs.action_size,), np.float32))

    def reset(self):
        return self.envs.features(self.envs.observation).numpy()

    def step_async(self, actions):
        self.actions = torch.from_numpy(actions)

    def step_wait(self):
        step = self.envs.step(self.actions)
        last, infos = self.envs.features(step.final_observation).numpy(), [{} for _ in range(ENVIRONMENTS)]
        for k in np.flatnonzero(step.done):
            infos[k] = {"terminal_observation": last[k], "TimeLimit.truncated": bool(step.truncated[k])}
        return self.envs.features(step.observation).numpy(), step.reward.numpy(), step.done.numpy(), infos

    def close(self):
        self.envs.world.close()


class Budget(BaseCallback):
    """Ends the learning when the process has used so many seconds of CPU time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def _on_step(self):
        return time.process_time() < self.seconds


def main(name, seed, folder, settings):
    torch.set_num_threads(1)
    task = tasks.make(name, **settings["task"])
    worlds = Worlds(task, seed, settings["linger"], settings["success_reward"])
    # Its defaults, but for the sight: 2 networks of 256-256 each, a gradient step of 256 samples per environment step.
    model = SAC("MlpPolicy", worlds, gamma=settings["gamma"], gradient_steps=-1, seed=seed, device="cpu")
    model.learn(10**9, callback=Budget(settings["cpu_s"]))
    actor = nn.Sequential(model.actor.latent_pi, model.actor.mu, nn.Tanh())
    export_torch(actor, task, folder / "policy.onnx", training={"algorithm": "Stable-Baselines3 SAC", "seed": seed})
    (folder / "steps.json").write_text(json.dumps(model.num_timesteps))
    worlds.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))

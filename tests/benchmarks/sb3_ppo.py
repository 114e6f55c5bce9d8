"""Stable-Baselines3 PPO on our Gymnasium environment, for training.py: `sb3_ppo.py SEED ROW.json whole|quick`."""

import json
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from flying import fly
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from training import DELAYS

import sim.gym
from policies.train import process_start
from sim.conditions import Conditions

STEPS, ENVIRONMENTS = 4_000_000, 256


class Adapter(VecEnv):
    """Gymnasium's vector interface as Stable-Baselines3's."""

    def __init__(self, envs, observation_space, action_space):
        self.envs = envs
        super().__init__(envs.num_envs, observation_space, action_space)

    def reset(self):
        return self.envs.reset(seed=self._seeds[0])[0]

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observation, reward, terminated, truncated, info = self.envs.step(self.actions)
        infos = [{} for _ in range(self.num_envs)]
        for k in np.flatnonzero(terminated | truncated):
            infos[k] = {"terminal_observation": info["final_obs"][k], "TimeLimit.truncated": bool(truncated[k])}
        return observation, reward, terminated | truncated, infos

    def close(self):
        self.envs.close()

    def get_attr(self, attr_name, indices=None):
        return [getattr(self.envs, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        raise AttributeError(f"{attr_name} belongs to the whole batch")

    def env_method(self, method_name, *arguments, indices=None, **keywords):
        raise AttributeError(f"{method_name} belongs to the whole batch")

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


def learn(seed: int, steps: int) -> PPO:
    """The best of a handful of settings tried: normalised rewards, exploration that holds for 16 steps."""
    torch.set_num_threads(1)
    envs = gymnasium.make_vec("sim2metal/quad_hover-v0", ENVIRONMENTS, vectorization_mode="vector_entry_point")
    adapter = Adapter(envs, envs.single_observation_space, envs.single_action_space)
    adapter.seed(seed)
    model = PPO(
        "MlpPolicy",
        VecNormalize(adapter, norm_obs=False, gamma=0.98),
        learning_rate=lambda left: 2e-3 * left,
        n_steps=64,
        batch_size=4096,
        n_epochs=8,
        gamma=0.98,
        use_sde=True,
        sde_sample_freq=16,
        policy_kwargs={"net_arch": [64, 64], "log_std_init": -1.5},
        seed=seed,
        device="cpu",
    )
    return model.learn(steps)


def flown(model: PPO, delay: float, episodes: int, seed: int):
    """Scores of the deterministic policy, flown as `policies.evaluate` flies a file."""
    task = sim.tasks.make("quad_hover")
    history = np.full((episodes, 4 * task.history), task.initial_action, np.float32)

    def act(signals):
        nonlocal history
        seen = {**signals, "history": history}
        with np.errstate(all="ignore"):  # a lost vehicle may be anywhere
            features = np.concatenate([feature.evaluate(seen) for feature in task.features], axis=1)
        action = np.clip(model.predict(np.nan_to_num(features), deterministic=True)[0], -1.0, 1.0)
        history = np.concatenate([action, history[:, :-4]], axis=1)
        return {"motor_command": 0.5 * (action + 1.0)}

    return fly(task, act, episodes, seed, Conditions(delay=delay))


if __name__ == "__main__":
    seed, path, quick = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "quick"
    began = time.perf_counter()
    model = learn(seed, 8192 if quick else STEPS)
    now = time.perf_counter()
    row = {"training_s": now - began, "seconds": now - process_start()}
    scores = [flown(model, delay, 20 if quick else 1000, seed) for delay in DELAYS]
    row["success"] = [float(one["success"].mean()) for one in scores]
    row["error_m"] = float(np.median(scores[0]["position_error"]))
    path.write_text(json.dumps(row))

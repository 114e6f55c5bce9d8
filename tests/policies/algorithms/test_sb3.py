"""Stable-Baselines3's PPO trains on our Gymnasium environments as it comes."""

import warnings

import numpy as np
import pytest
import torch

import sim.gym

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of other packages' deprecations, on import
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env


@pytest.mark.long
def test_stable_baselines_trains_on_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(sim.gym.TaskEnv("quad_hover"))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            envs = make_vec_env("sim2metal/quad_hover-v0", n_envs=4, seed=0)
            settings = {"n_steps": 512, "batch_size": 256, "n_epochs": 5, "learning_rate": 1e-3, "seed": 0}
            learner = PPO("MlpPolicy", envs, policy_kwargs={"log_std_init": -1.0}, **settings)
            returns = []
            for _ in range(10):
                learner.learn(2048, reset_num_timesteps=False)
                returns.append(np.mean([episode["r"] for episode in learner.ep_info_buffer]))
        finally:
            torch.set_num_threads(threads)
    assert returns[-1] > returns[0] + 5.0

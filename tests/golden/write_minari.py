"""Writes tests/golden/minari_hdf5 and minari_arrow with minari 0.5.4, for test_datasets_minari.py.

MINARI_DATASETS_PATH=FOLDER python tests/golden/write_minari.py, then FOLDER/golden/hdf5-v0 and arrow-v0 are these.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from minari import DataCollector

UNIT = {"low": -9, "high": 9}


class Toy(gymnasium.Env):
    """Episode k takes 3 + k steps; every number tells the step."""

    observation_space = Dict(
        {
            "state": Box(**UNIT, shape=(3,)),
            "goals": Tuple((Box(**UNIT, shape=(2,), dtype=np.float64), Box(**UNIT, shape=(2, 2)))),
            "scene": Box(0, 255, (32, 32, 3), np.uint8),
        }
    )
    action_space = Box(**UNIT, shape=(2,))
    episode = -1

    def seen(self):
        state = np.array([self.t, self.episode, 0.5], np.float32)
        goals = (np.full(2, self.t / 2), np.full((2, 2), self.t, np.float32))
        return {"state": state, "goals": goals, "scene": np.full((32, 32, 3), 20 * self.t, np.uint8)}

    def reset(self, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        return self.seen(), {"success": False}

    def step(self, action):
        self.t += 1
        done = self.t == 3 + self.episode
        return self.seen(), float(self.t), done and self.episode == 0, done, {"success": done}


for form in ("hdf5", "arrow"):
    env = DataCollector(Toy(), data_format=form, record_infos=True)
    for k in range(2):
        env.reset()
        for t in range(3 + k):
            env.step(np.array([-t, t / 4], np.float32))
    env.create_dataset(f"golden/{form}-v0", description="two short episodes")

"""Writes tests/golden/lerobot_v3 with lerobot 0.4.4 (Python 3.11, in an environment of its own), for test_datasets.py.

python tests/golden/write_lerobot_v3.py FOLDER
"""

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

PICTURE = {"shape": (16, 16, 3), "names": ["height", "width", "channels"]}
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.grid": {"dtype": "float32", "shape": (2, 2), "names": None},
    "observation.images.scene": {"dtype": "image", **PICTURE},
    "observation.images.wrist": {"dtype": "video", **PICTURE},
    "action": {"dtype": "float32", "shape": (2,), "names": ["left", "right"]},
    "next.success": {"dtype": "bool", "shape": (1,), "names": None},
}

dataset = LeRobotDataset.create(
    "golden/toy", fps=10, features=FEATURES, root=sys.argv[1], robot_type="toy", vcodec="h264"
)
for episode, (steps, task) in enumerate(((5, "push the block"), (3, "lift the block"))):
    for t in range(steps):
        frame = {
            "observation.state": np.array([t, episode, t * episode + 0.5], np.float32),
            "observation.grid": np.array([[t, 1], [2, episode]], np.float32),
            "observation.images.scene": np.full((16, 16, 3), (20 * t, 100 * episode, 128), np.uint8),
            "observation.images.wrist": np.full((16, 16, 3), 40 * t + 20 * episode + 20, np.uint8),
            "action": np.array([-t, t / 4], np.float32),
            "next.success": np.array([t == 4]),
        }
        dataset.add_frame({**frame, "task": task})
    dataset.save_episode()
dataset.finalize()

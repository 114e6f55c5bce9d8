"""Files as LIBERO's script create_dataset.py writes them, and as OpenVLA's plays them back."""

import json
from pathlib import Path

import h5py
import numpy as np

NAME = "pick_up_the_bowl_and_place_it_on_the_plate"
CONTROLLER = {"type": "OSC_POSE", "control_delta": True, "output_max": [0.05] * 3 + [0.5] * 3}


def demonstration(steps: int = 6, seed: int = 0, pixels: int = 128, after: bool = True) -> dict[str, np.ndarray]:
    """One of nothing in particular: of T + 1 moments, with what was seen after each action beside it, or before."""
    rng = np.random.default_rng(seed)
    moments = steps + 1
    pose = rng.normal(0.0, 1.0, (moments, 7 + 2 + 3 + 3))
    pictures = rng.integers(0, 256, (2, moments, pixels, pixels, 3), np.uint8)
    pictures[:, :, : pixels // 4] = 255  # the lower part of what is seen: a bright floor
    here = slice(1, None) if after else slice(0, steps)
    turned = pose[:, 12:] * 0.9
    return {
        "actions": rng.uniform(-1.0, 1.0, (steps, 7)),
        "states": np.column_stack([np.arange(steps) / 20, pose[:steps, :9], rng.normal(0.0, 1.0, (steps, 20))]),
        "robot_states": rng.normal(0.0, 1.0, (steps, 9)),
        "rewards": (np.arange(steps) == steps - 1).astype(np.uint8),
        "dones": (np.arange(steps) == steps - 1).astype(np.uint8),
        "obs/joint_states": pose[here, :7],
        "obs/gripper_states": pose[here, 7:9],
        "obs/ee_pos": pose[here, 9:12],
        "obs/ee_ori": turned[here],
        "obs/ee_states": np.column_stack([pose[here, 9:12], turned[here]]),
        "obs/agentview_rgb": pictures[0, here],
        "obs/eye_in_hand_rgb": pictures[1, here],
    }


def attributes(
    said: str = "Pick the akita black bowl and place it on the plate", **changed: object
) -> dict[str, object]:
    """Those of the group `data`."""
    kwargs = {"control_freq": 20, "camera_heights": 128, "controller_configs": CONTROLLER}
    problem = {"problem_name": "libero_tabletop_manipulation", "domain_name": "robosuite", "language_instruction": said}
    return {
        "env_name": "Libero_Tabletop_Manipulation",
        "problem_info": json.dumps(problem),
        "macros_image_convention": "opengl",
        "bddl_file_name": f"libero/bddl_files/libero_goal/{NAME}.bddl",
        "bddl_file_content": "(define (problem LIBERO_Tabletop_Manipulation))",
        "env_args": json.dumps({"type": 1, "env_name": "Libero_Tabletop_Manipulation", "env_kwargs": kwargs}),
        "num_demos": 2,
        "total": 12,
        **changed,
    }


def write(path: Path, demos: list[dict[str, np.ndarray]], told: dict[str, object] | None = None) -> Path:
    """A file of these demonstrations; `told`: the attributes of `data`, as LIBERO's by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, value in (attributes() if told is None else told).items():
            data.attrs[name] = value
        for number, demo in enumerate(demos):
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"] = len(demo.get("actions", ()))
            group.attrs["model_file"] = "<mujoco/>"
            for name, values in demo.items():
                group[name] = values
    return path

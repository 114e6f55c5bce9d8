"""Writes tests/golden/lerobot_policies with lerobot 0.4.4, for tests/policies/adoption/test_lerobot_golden.py.

PYTHONPATH=SITE:. python tests/golden/write_lerobot_policies.py FOLDER, where SITE has lerobot.

A policy's folder is what its `save_pretrained` writes; beside it, played.npz: what it was told at each step, the noise
of its plans, and the actions of its `select_action` after its postprocessor. Weights are drawn anew (`drawn` of
tests/policies/adoption/lerobot_folder.py): of what is too large to keep there are names and shapes (weights.json).
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature

from deploy.trust import safetensors
from tests.policies.adoption import lerobot_folder as made

KEPT = 60_000  # bytes of weights that are kept as they are
SEEN = ("a", "b")  # two cameras
KINDS = {"observation.state": (FeatureType.STATE, (5,)), "observation.environment_state": (FeatureType.ENV, (2,))}


def settings(of, **changes):
    """What our own random folders have (`ACT`, `DIFFUSION`), as the library's configuration takes it."""
    told = {key: tuple(value) if isinstance(value, list) else value for key, value in of.items() if key != "type"}
    told |= {"device": "cpu", "push_to_hub": False}
    return told | ({"pretrained_backbone_weights": None} if of is made.ACT else {}) | changes


CASES = {
    "act": ("act", False, settings(made.ACT, dim_model=8, latent_dim=2)),
    "act_pictures": ("act", True, settings(made.ACT, pre_norm=True, feedforward_activation="gelu")),
    "diffusion": ("diffusion", False, settings(made.DIFFUSION)),
    "diffusion_pictures": ("diffusion", True, settings(made.DIFFUSION, crop_shape=(40, 60))),
    "diffusion_other": (
        "diffusion",
        True,
        settings(
            made.DIFFUSION,
            prediction_type="sample",
            use_film_scale_modulation=False,
            use_separate_rgb_encoder_per_camera=True,
            beta_schedule="linear",
            use_group_norm=False,
            clip_sample_range=20.0,
        ),
    ),
}


def write(folder, kind, pictures, told):
    classes, processors = made.library()
    config_class, policy_class = classes[kind]
    inputs = KINDS | ({f"observation.images.{k}": (FeatureType.VISUAL, (3, 48, 64)) for k in SEEN} if pictures else {})
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (3,))}
    inputs = {name: PolicyFeature(*about) for name, about in inputs.items()}
    policy = policy_class(config_class(input_features=inputs, output_features=outputs, **told)).eval()
    learned = {name for name, _ in policy.named_parameters()}
    learned |= {
        name for name, _ in policy.named_buffers() if name.endswith(("running_mean", "running_var", "weight", "bias"))
    }
    state = policy.state_dict()
    shapes = {name: list(state[name].shape) for name in sorted(learned & set(state))}
    policy.load_state_dict(state | {k: torch.from_numpy(v) for k, v in made.drawn(shapes).items()})

    rng = np.random.RandomState(1)  # frozen: numpy promises the same numbers in every version
    statistics = {}
    for name, feature in (inputs | outputs).items():
        low = rng.uniform(-1.0, -0.1, (3, 1, 1) if len(feature.shape) == 3 else feature.shape).astype(np.float32)
        high = rng.uniform(0.1, 1.0, low.shape).astype(np.float32)
        held = {"mean": 0.3 * high, "std": 0.3 + high, "min": low, "max": high}
        statistics[name] = {key: torch.from_numpy(value) for key, value in held.items()}
    before, after = processors(policy.config, dataset_stats=statistics)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    weights = folder / "model.safetensors"
    if weights.stat().st_size > KEPT:
        tensors, _ = safetensors.read(str(weights), 1e9)
        rest = {name: value for name, value in tensors.items() if name not in shapes}
        weights.write_bytes(safetensors.to_bytes(rest))
        (folder / "weights.json").write_text(json.dumps(shapes))

    numbers, seen = made.told(pictures)
    noise = None
    if kind == "diffusion":
        noise = np.random.RandomState(2).normal(size=(1, told["horizon"], 3)).astype(np.float32)
    actions = []
    policy.reset()
    for step, row in enumerate(numbers):
        now = {
            "observation.state": torch.from_numpy(row[:5]),
            "observation.environment_state": torch.from_numpy(row[5:]),
        }
        for name, frames in seen.items():
            now[f"observation.images.{name}"] = torch.from_numpy(frames[step]).permute(2, 0, 1).float() / 255.0
        given = {} if noise is None else {"noise": torch.from_numpy(noise)}
        actions.append(after(policy.select_action(before(now), **given))[0].numpy())
    held = {"actions": np.array(actions, np.float32)} | ({} if noise is None else {"noise": noise.reshape(1, -1)})
    np.savez_compressed(folder / "played.npz", **held)


if __name__ == "__main__":
    for name, case in CASES.items():
        write(Path(sys.argv[1]) / name, *case)

"""Folders as LeRobot's `save_pretrained` writes them, made here of random numbers; and LeRobot itself, installed."""

import json

import numpy as np
import torch

from deploy.trust import safetensors
from policies.adoption.lerobot.act import Act
from policies.adoption.lerobot.diffusion import Named
from policies.adoption.lerobot.folder import read

ACT = {
    "type": "act",
    "n_obs_steps": 1,
    "chunk_size": 6,
    "n_action_steps": 4,
    "vision_backbone": "resnet18",
    "replace_final_stride_with_dilation": 0,
    "pre_norm": False,
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 24,
    "feedforward_activation": "relu",
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "latent_dim": 4,
    "temporal_ensemble_coeff": None,
}
DIFFUSION = {
    "type": "diffusion",
    "n_obs_steps": 2,
    "horizon": 8,
    "n_action_steps": 3,
    "vision_backbone": "resnet18",
    "use_group_norm": True,
    "spatial_softmax_num_keypoints": 4,
    "use_separate_rgb_encoder_per_camera": False,
    "resize_shape": None,
    "crop_shape": None,
    "down_dims": [8, 16],
    "kernel_size": 3,
    "n_groups": 8,
    "diffusion_step_embed_dim": 8,
    "use_film_scale_modulation": True,
    "noise_scheduler_type": "DDIM",
    "num_train_timesteps": 12,
    "num_inference_steps": 3,
    "beta_schedule": "squaredcos_cap_v2",
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "prediction_type": "epsilon",
    "clip_sample": True,
    "clip_sample_range": 1.0,
}


def processor(step, config, file):
    steps = [{"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}]
    steps += [{"registry_name": step, "config": config, "state_file": file}]
    return {"name": "p", "steps": [*steps, {"registry_name": "device_processor", "config": {"device": "cpu"}}]}


def write(path, settings, numbers=(5, 2), pictures=(), actions=3, seed=0):
    """`numbers`: of observation.state and, perhaps, environment_state; `pictures`: name -> (height, width)."""
    path.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    inputs = {"observation.state": {"type": "STATE", "shape": [numbers[0]]}}
    if len(numbers) > 1:
        inputs["observation.environment_state"] = {"type": "ENV", "shape": [numbers[1]]}
    inputs |= {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, *size]} for name, size in dict(pictures).items()
    }
    outputs = {"action": {"type": "ACTION", "shape": [actions]}}
    (path / "config.json").write_text(json.dumps({"input_features": inputs, "output_features": outputs, **settings}))
    modes = {"STATE": "MEAN_STD", "VISUAL": "MEAN_STD", "ENV": "IDENTITY", "ACTION": "MIN_MAX"}
    held = {}
    for name, about in (inputs | outputs).items():
        shape = (3, 1, 1) if about["type"] == "VISUAL" else tuple(about["shape"])
        low = rng.uniform(-1.0, 0.0, shape)
        for key, value in {"mean": low + 0.5, "std": 0.5 + 0.0 * low, "min": low, "max": low + 1.0}.items():
            held[f"{name}.{key}"] = value.astype(np.float32)
    config = {"eps": 1e-8, "features": {}, "norm_map": modes}
    for file, step in (("preprocessor", "normalizer_processor"), ("postprocessor", "unnormalizer_processor")):
        (path / f"policy_{file}.json").write_text(json.dumps(processor(step, config, f"{file}.safetensors")))
        (path / f"{file}.safetensors").write_bytes(safetensors.to_bytes(held))
    (path / "model.safetensors").write_bytes(safetensors.to_bytes({}))
    torch.manual_seed(seed)
    folder = read(str(path))
    module = Act(folder) if folder.kind == "act" else Named(folder)
    tensors = drawn({name: value.shape for name, value in module.state_dict().items()}, seed)
    tensors |= {f"model.vae_encoder.{k}": np.zeros(3, np.float32) for k in range(2) if folder.kind == "act"}
    (path / "model.safetensors").write_bytes(safetensors.to_bytes(tensors))
    return path


def drawn(shapes, seed=0):
    """Random weights of these names and shapes, the same with every version of numpy (`RandomState` is frozen).

    As large as keeps the numbers of every layer in bounds; variances and gains are positive.
    """
    rng, made = np.random.RandomState(seed), {}
    for name, shape in shapes.items():
        spread = 1.0 / np.sqrt(max(1, np.prod(shape[1:]) if len(shape) > 1 else 16))
        values = rng.normal(0.0, spread, tuple(shape)).astype(np.float32)
        positive = len(shape) == 1 and not name.endswith(("bias", "running_mean"))
        made[name] = np.abs(values) + np.float32(1.0) if positive else values
    return made


def told(pictures, steps=10):
    """What a policy of 5 + 2 numbers and, perhaps, cameras a and b is told: (steps, 7), name -> (steps, 48, 64, 3)."""
    rng = np.random.RandomState(3)
    numbers = rng.normal(size=(steps, 7)).astype(np.float32)
    frames = {name: rng.randint(0, 256, (steps, 48, 64, 3)).astype(np.uint8) for name in "ab"}
    return numbers, frames if pictures else {}


def changed(path, file, **values):
    """The folder with these values in one of its files of JSON."""
    told = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(told | values))
    return path


def library():
    """LeRobot's modules, or ModuleNotFoundError.

    torchvision's wheels want a torch with CUDA. Beside one without, its operators, which nobody calls here, are
    declared first, or it cannot be imported.
    """
    try:
        import torchvision
    except RuntimeError:
        _declare()
        import torchvision  # noqa: F401
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.factory import make_pre_post_processors

    return {"act": (ACTConfig, ACTPolicy), "diffusion": (DiffusionConfig, DiffusionPolicy)}, make_pre_post_processors


KEPT = []  # a library of torch is gone with its object


def _declare():
    made = torch.library.Library("torchvision", "DEF")
    KEPT.append(made)
    backward = [
        f"_{kind}_backward" for kind in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
    ]
    forward = ["nms", "qnms", "qroi_align", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"]
    for name in (*forward, *backward):
        made.define(f"{name}(Tensor x) -> Tensor")

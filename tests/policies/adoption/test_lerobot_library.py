"""The policy file of a policy of LeRobot commands what LeRobot itself commands, for 200 steps in the loop."""

import numpy as np
import pytest
import torch

from policies import adopt
from policies.adoption import lerobot
from policies.adoption.lerobot.folder import read
from sim import spec
from sim.env import make_env
from sim.tasks import make
from tests.policies.adoption import lerobot_folder

pytest.importorskip("lerobot", reason="without LeRobot 0.4")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # its libraries warn of one another
CAMERAS = {"act": ["front_camera", "wrist_camera"], "diffusion": ["front_camera"]}
STEPS = 200
SMALL = {
    "act": {
        "chunk_size": 8,
        "n_action_steps": 5,
        "dim_model": 64,
        "n_heads": 4,
        "dim_feedforward": 128,
        "n_encoder_layers": 2,
        "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "horizon": 8,
        "n_action_steps": 4,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 20,
        "num_inference_steps": 4,
        "crop_shape": (56, 60),
    },
}


def trained(kind, task, folder):
    """A small policy of the library's after three steps of its own training on random frames, as it saves it."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    classes, processors = lerobot_folder.library()
    config_class, policy_class = classes[kind]
    numbers, actions = spec.size(spec.numbers(task.policy)), spec.size(task.commands)
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (numbers,))}
    pictures = [f"observation.images.{name}" for name in CAMERAS[kind]]
    inputs |= {name: PolicyFeature(FeatureType.VISUAL, (3, 64, 64)) for name in pictures}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (actions,))}
    config = config_class(
        input_features=inputs, output_features=outputs, device="cpu", push_to_hub=False, **SMALL[kind]
    )
    torch.manual_seed(0)
    policy, rng = policy_class(config), np.random.default_rng(0)
    stats = {}
    for name, shape in [("observation.state", (numbers,)), *((p, (3, 1, 1)) for p in pictures), ("action", (actions,))]:
        low = torch.from_numpy(rng.uniform(-0.5, 0.0, shape).astype(np.float32))
        stats[name] = {"mean": low + 0.3, "std": 0.0 * low + 0.25, "min": low, "max": low + 0.4}
    before, after = processors(config, dataset_stats=stats)
    optimiser = torch.optim.Adam(policy.parameters(), 1e-4)
    looks = (2,) if kind == "diffusion" else ()
    for _ in range(3):
        batch = {name: torch.rand(4, *looks, *feature.shape) for name, feature in inputs.items()}
        batch |= {"action": torch.rand(4, 8, actions), "action_is_pad": torch.zeros(4, 8, dtype=torch.bool)}
        loss, _ = policy.forward(before(batch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for part in (policy, before, after):
        part.save_pretrained(folder)
    return policy.eval(), before, after


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_commands_equal_the_librarys_in_closed_loop(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("SIM2METAL_LOAD_SECONDS", "30")  # two ResNets at every step of the test vectors
    torch.set_num_threads(1)
    task = make("arm_push", cameras=CAMERAS[kind])
    folder = tmp_path / kind
    policy, before, after = trained(kind, task, folder)
    draft = lerobot.draft(str(folder), task, {"cameras": CAMERAS[kind]})
    assert "'?'" not in draft.split("\n\n", 1)[1]
    (tmp_path / "a.yaml").write_text(draft)
    asked = adopt.Config(str(folder), "lerobot", str(tmp_path / "a.yaml"), str(tmp_path / "a.onnx"))
    file, _ = adopt.adopt(asked, {})
    noise = lerobot.planner_of(read(str(folder))).noise if kind == "diffusion" else None
    numbers, (low, high) = spec.numbers(task.policy), spec.limits(task.commands)
    env, worst, within, episode, age = make_env(task, 1, 7), 0.0, 0, 0, 0
    for _ in range(STEPS):
        if age == 0:
            policy.reset(), file.reset(), env.reset([0], [episode])
            episode, row = episode + 1, -1
        signals = env.observe()
        told = {"observation.state": torch.from_numpy(spec.pack(numbers, signals)[0])}
        for name in CAMERAS[kind]:
            seen = torch.from_numpy(signals[name][0].copy()).permute(2, 0, 1)
            told[f"observation.images.{name}"] = seen.float() / 255.0
        given = {}
        if noise is not None and age % SMALL[kind]["n_action_steps"] == 0:
            first = int(noise.begin(spec.pack(numbers, signals))[0, 0])
            row = first if row < 0 else (row + 1) % len(noise.table)
            given["noise"] = torch.from_numpy(noise.table[row].reshape(1, 8, -1))
        want = after(policy.select_action(before(told), **given))[0].numpy()
        got = file.step({s.name: signals[s.name][0] for s in file.inputs})
        commanded = np.clip(want, low, high)
        within += int((np.abs(want - commanded) == 0.0).sum())
        worst = max(
            worst, float(np.abs(spec.pack(task.commands, {k: v[None] for k, v in got.items()}) - commanded).max())
        )
        step = env.step(spec.unpack(task.commands, commanded[None]))
        age = 0 if step.success[0] or step.terminated[0] or age + 1 >= task.episode_steps else age + 1
    env.close()
    print(f"{kind}: {worst:.2g} over {STEPS} steps, {within} of {STEPS * len(low)} numbers within the limits")
    assert worst < 1e-5 and within > STEPS * len(low) // 4


OTHER = {
    "prediction_type": "sample",
    "use_film_scale_modulation": False,
    "use_separate_rgb_encoder_per_camera": True,
    "beta_schedule": "linear",
    "use_group_norm": False,
}


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["usual", "other"])
def test_plans_of_a_diffusion_policy_equal_the_librarys(changes, tmp_path):
    """In torch alone: two cameras, an environment's state, two steps seen, ten steps of its queue."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    classes, processors = lerobot_folder.library()
    config_class, policy_class = classes["diffusion"]
    kinds = {"observation.state": (FeatureType.STATE, (5,)), "observation.environment_state": (FeatureType.ENV, (2,))}
    kinds |= {f"observation.images.{name}": (FeatureType.VISUAL, (3, 48, 64)) for name in "ab"}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (3,))}
    settings = SMALL["diffusion"] | {"crop_shape": (40, 60), "n_action_steps": 3, "device": "cpu", "push_to_hub": False}
    inputs = {name: PolicyFeature(*about) for name, about in kinds.items()}
    torch.manual_seed(1)
    policy = policy_class(config_class(input_features=inputs, output_features=outputs, **settings, **changes)).eval()
    sizes = {name: (3, 1, 1) if len(shape) == 3 else shape for name, (_, shape) in kinds.items()} | {"action": (3,)}
    stats = {
        name: {
            "mean": 0.3 * torch.rand(shape),
            "std": torch.rand(shape) + 0.3,
            "min": -torch.rand(shape) - 0.1,
            "max": torch.rand(shape) + 0.1,
        }
        for name, shape in sizes.items()
    }
    before, after = processors(policy.config, dataset_stats=stats)
    for part in (policy, before, after):
        part.save_pretrained(tmp_path)
    planner, rng = lerobot.planner_of(read(str(tmp_path))), np.random.default_rng(0)
    state, row, worst, plan = planner.initial_state(1), -1, 0.0, np.zeros((7, 3))
    for step in range(10):
        numbers = rng.normal(size=(1, 7)).astype(np.float32)
        pictures = [rng.integers(0, 256, (1, 48, 64, 3), np.uint8) for _ in "ab"]
        told = {"observation.state": torch.from_numpy(numbers[0, :5])}
        told["observation.environment_state"] = torch.from_numpy(numbers[0, 5:])
        for name, seen in zip("ab", pictures, strict=True):
            told[f"observation.images.{name}"] = torch.from_numpy(seen[0]).permute(2, 0, 1).float() / 255.0
        given, due = {}, step % 3
        if due == 0:
            row = int(planner.noise.begin(numbers)[0, 0]) if row < 0 else (row + 1) % len(planner.noise.table)
            given["noise"] = torch.from_numpy(planner.noise.table[row].reshape(1, 8, 3))
        want = after(policy.select_action(before(told), **given))[0].numpy()
        left = np.full((1, 1), (3 - due) % 3, np.float32)
        made, state = planner.plan(numbers, pictures, state, left)
        plan = plan if made is None else made.reshape(-1, 3)
        worst = max(worst, float(np.abs(plan[due] - want).max()))
    assert worst < 1e-5

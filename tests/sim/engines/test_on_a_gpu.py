"""Worlds and learners where there is an NVIDIA GPU: as on the CPU."""

import numpy as np
import pytest
import torch

from policies.runner import checkpoint
from sim.tasks import make
from sim.vec_env import VecEnv

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")


def test_vehicles_fly_as_on_the_cpu():
    """What begins is drawn on the host; what is drawn on the device, noise and delays, is left out."""
    rng, envs = np.random.default_rng(0), []
    for device in ("cpu", "cuda"):
        env = VecEnv(make("quad_hover", noise=False, delay_low=0.0, delay_high=0.0), 64, device=device)
        env.autoreset = False
        envs.append(env)
    for _ in range(20):
        action = torch.from_numpy(rng.uniform(-0.2, 0.2, (64, 4)).astype(np.float32))
        steps = [env.step(action.to(env.device)) for env in envs]
    here, there = (step.final_observation["truth"] for step in steps)
    for name, value in here.items():
        assert there[name].is_cuda
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_learners_learn_there_and_go_on(name, tmp_path):
    from policies.algorithms import ppo, sac

    kind = {"ppo": ppo.Ppo, "sac": sac.Sac}[name]
    few = {"total_steps": 4096, "num_envs": 64, "evaluation_episodes": 64}
    few |= {"report_every": 16, "warmup_steps": 512} if name == "sac" else {}
    first = kind(make("quad_hover"), kind.Config(**few), 0, device="cuda")
    steps = first.learn()
    assert np.isfinite([*next(steps).values()]).all()
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": first.state_dict()})
    second = kind(make("quad_hover"), kind.Config(**few), 1, device="cuda")
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz")["algorithm"])
    told = [*second.learn()]
    assert told[-1]["progress"] == 1.0
    assert second.path.device == "cuda"


def test_warp_steps_scenes_as_mujoco_does():
    from sim.env import with_engine

    seen = []
    for engine in ("mujoco", "mujoco_warp"):
        env = with_engine(make("arm_reach"), engine).open(8, seed=0)
        env.reset(range(8), range(8))
        for _ in range(10):
            env.step(env.task.expert(env.observe()))
        seen.append(np.asarray(env.bench._state[:, 1:8]).copy())
        env.close()
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-3)

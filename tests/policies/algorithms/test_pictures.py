"""PPO and SAC from pictures: uint8 until the network, privileged critics, exact resume, one file, and it is learned."""

import numpy as np
import pytest
import torch

from deploy import PolicyFile
from deploy.runtimes import CompiledPolicy
from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.sac import Sac, SacConfig
from policies.evaluate import evaluate
from policies.learning.buffers import ReplayBuffer
from policies.models.export import export
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.tasks.arm.push import ArmPush, PushConfig
from sim.vec_world import vector_env
from tests.policies.toy_sight import PIXELS, ToySight

SIGHT = EncoderConfig(channels=[4, 4], strides=[2, 1], shift=1)
NETWORKS = {"hidden": [16], "critic_hidden": [16], "sight": SIGHT, "evaluation_episodes": 2}
KINDS = {
    "ppo": (Ppo, {"num_envs": 6, "rollout_steps": 8, "epochs": 2, "minibatches": 2, "total_steps": 288}),
    "sac": (Sac, {"num_envs": 4, "total_steps": 240, "warmup_steps": 40, "batch_size": 16, "report_every": 10}),
    "td3": (
        Sac,
        {
            "deterministic": True,
            "num_envs": 4,
            "total_steps": 240,
            "warmup_steps": 40,
            "batch_size": 16,
            "report_every": 10,
        },
    ),
}
LEARNING = {
    "gamma": 0.9,
    "learning_rate": 3e-3,
    "initial_std": 0.5,
    "hidden": [32, 32],
    "critic_hidden": [64, 64],
    "sight": EncoderConfig(channels=[8, 8], strides=[2, 1], shift=0),
}
ON_POLICY = {"num_envs": 32, "rollout_steps": 32, "epochs": 4, "minibatches": 16, "min_std": 0.1, "evaluate_every": 0}
OFF_POLICY = {
    "num_envs": 8,
    "warmup_steps": 1000,
    "capacity": 20_000,
    "batch_size": 64,
    "updates_per_step": 2,
    "n_step": 3,
    "initial_alpha": 0.1,
    "reward_scale": 1.0,
}


class Unaided(ToySight):
    """Nobody, not even a critic, is told where the goal is; and the position is in the picture alone."""

    name = "toy_unaided"
    policy = ToySight.policy[1:]
    privileged = ()
    scores = {"success": "%"}

    def score(self, flight):
        return {"success": flight["success"][..., 0].any(axis=0).astype(np.float32)}


def learner(kind, seed=0, task=None, **settings):
    cls, few = KINDS[kind]
    made = cls(task or ToySight(), cls.Config(**(NETWORKS | few | settings)), seed)
    return made.path


def run(algorithm, count=10_000):
    return [metrics for _, metrics in zip(range(count), algorithm.learn(), strict=False)]


def pictures(algorithm, rows=5):
    """An observation of other episodes."""
    return vector_env(algorithm.task, rows, 9).observation


@pytest.mark.parametrize("kind", KINDS)
def test_experience_holds_pictures_as_they_were_shown(kind):
    algorithm = learner(kind)
    shown = algorithm.env.observation["pictures"]["camera"].clone()
    run(algorithm, 1)
    buffer = algorithm.parts[0].buffer if kind == "ppo" else algorithm.buffer
    kept = {name: values for name, values in buffer.data.items() if "camera" in name}
    assert {*kept} == {"picture.camera"} if kind == "ppo" else {"picture.camera", "next_picture.camera"}
    assert all(v.dtype == torch.uint8 and v.shape[-3:] == (PIXELS, PIXELS, 3) for v in kept.values())
    first = kept["picture.camera"].reshape(-1, PIXELS, PIXELS, 3)[: len(shown)]
    assert torch.equal(first, shown)
    if kind != "ppo":  # nobody has succeeded in the first step
        n = len(shown)
        assert torch.equal(kept["next_picture.camera"][:n], kept["picture.camera"][n : 2 * n])


@pytest.mark.parametrize("kind", KINDS)
def test_the_privileged_critic_sees_no_picture_and_does_not_train_the_encoder(kind):
    aided, unaided = learner(kind), learner(kind, task=Unaided())
    assert aided.shared == 0 and unaided.shared == 2 * SIGHT.channels[-1]
    sizes = [next(a.critic.parameters()).shape for a in (aided, unaided)]
    actions = 0 if kind == "ppo" else 2
    inputs = [shape[-1] if kind == "ppo" else shape[1] for shape in sizes]
    assert inputs == [2 + 2 + actions, unaided.shared + actions]
    if kind == "ppo":
        (batch,), _ = unaided._collect()
        before = [p.clone() for p in unaided.actor.parameters()]
        unaided.actor_norm.update(batch["x"])
        unaided._update([{**batch, "advantage": torch.zeros_like(batch["advantage"])}])
        assert all(torch.equal(a, b) for a, b in zip(before, unaided.actor.parameters(), strict=True))
    else:
        run(unaided, 1)
        shown = {"camera": unaided.buffer.data["picture.camera"][:3]}
        assert not unaided._judged(unaided.buffer.data["c"][:3], shown).requires_grad


@pytest.mark.parametrize("task", [ToySight, Unaided])
@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_exact(kind, task, tmp_path):
    settings = {"n_step": 2} if kind == "sac" else {}
    whole, half, resumed = (learner(kind, seed, task(), **settings) for seed in (5, 5, 6))
    last = run(whole)[-1]
    run(half, 2)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed)[-1] == last
    for one, other in zip(whole.actor.parameters(), resumed.actor.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("task", [ToySight, Unaided])
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_the_policy(kind, task, tmp_path):
    algorithm = learner(kind, task=task())
    run(algorithm, 2)
    policy = export(algorithm.controller(), tmp_path / "policy.onnx")
    assert policy.inputs == algorithm.task.policy and policy.types["camera"] is np.uint8
    observation = pictures(algorithm)
    with torch.no_grad():
        wanted = algorithm.kept(algorithm.env.features(observation), observation["pictures"]).numpy()
    signals = {n: v.numpy() for group in ("policy", "pictures") for n, v in observation[group].items()}
    np.testing.assert_allclose(algorithm.controller().act(signals, {})[0]["velocity"], wanted, atol=1e-5)
    policy.reset(5)
    np.testing.assert_allclose(policy.step(signals)["velocity"], wanted, atol=1e-5)
    signals["camera"] = np.zeros_like(signals["camera"])
    assert np.abs(policy.step(signals)["velocity"] - wanted).max() > 1e-4  # it looks
    compiled = CompiledPolicy(policy)
    compiled.reset(5)
    np.testing.assert_allclose(compiled.step(signals)["velocity"], policy.step(signals)["velocity"], atol=1e-5)


def test_returns_over_steps_are_followed_by_the_last_ones_picture():
    buffer = ReplayBuffer(6)
    for step in range(5):
        shown = torch.full((1, 1, 1, 3), step, dtype=torch.uint8)
        values = {"x": torch.full((1, 1), float(step)), "next_x": torch.full((1, 1), step + 1.0)}
        ends = torch.tensor([step == 3])
        terms = torch.ones(1, 1)
        more = {"picture.camera": shown, "next_picture.camera": shown + 1}
        buffer.add(**values, **more, terms=terms, lost=ends, done=ends)
    batch = buffer.sample(200, torch.Generator().manual_seed(0), steps=3, gamma=0.5)
    last = torch.tensor([3, 4, 4, 4, 5])[batch["x"][:, 0].long()]
    assert torch.equal(batch["next_x"][:, 0], last.float())
    assert torch.equal(batch["next_picture.camera"][:, 0, 0, 0].long(), last)
    assert torch.equal(batch["picture.camera"][:, 0, 0, 0].float(), batch["x"][:, 0])


def blinded(algorithm):
    """Success of the policy when its camera shows nothing."""
    seeing = algorithm.kept
    algorithm.kept = lambda features, shown: seeing(features, {name: 0 * some for name, some in shown.items()})
    return algorithm.evaluate(200, seed=1)["success"].mean()


def check_that_it_learns(algorithm, least=0.85):
    assert algorithm.evaluate(200, seed=1)["success"].mean() < 0.3
    run(algorithm)
    assert algorithm.evaluate(200, seed=1)["success"].mean() > least
    assert blinded(algorithm) < 0.4


@pytest.mark.long
def test_ppo_learns_what_only_the_picture_tells():
    check_that_it_learns(Ppo(ToySight(), PpoConfig(**LEARNING, **ON_POLICY, total_steps=36_000), 3).path)


@pytest.mark.long
def test_sac_learns_what_only_the_picture_tells():
    check_that_it_learns(Sac(ToySight(), SacConfig(**LEARNING, **OFF_POLICY, total_steps=14_000), 0).path)


@pytest.mark.long
def test_critics_learn_from_the_actors_points():
    check_that_it_learns(Ppo(Unaided(), PpoConfig(**LEARNING, **ON_POLICY, total_steps=60_000), 0).path, least=0.6)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_an_arm_is_trained_from_what_its_camera_sees(kind, tmp_path):
    task = ArmPush(PushConfig(cameras=["scene_camera"], steps=8))
    settings = {"total_steps": 96} if kind == "ppo" else {"total_steps": 64, "sight": EncoderConfig()}
    try:
        algorithm = learner(kind, task=task, **settings)
    except RuntimeError as error:  # no OpenGL on this machine
        assert "OpenGL" in str(error)
        return
    run(algorithm)
    policy = export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": kind})
    report = evaluate(PolicyFile.load(policy.path), episodes=2)
    assert report.task == "arm_push" and report.flight["scene_camera"].dtype == np.uint8

"""Walks every table: whatever is listed constructs, steps, stays finite, repeats itself per seed, and is independent of
the size of the batch; algorithms also continue exactly and export a policy file that verifies.

A new task, robot, engine or algorithm is tested here the moment its line stands in its table.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from deploy import PolicyFile
from deploy.guard import Guard
from deploy.safety.envelope import Envelope
from policies.advisers.advice import AdviceConfig
from policies.algorithms import ALGORITHMS, algorithm_class
from policies.algorithms.bc import BaseConfig
from policies.algorithms.rlpd import RlpdConfig, SeenConfig
from policies.algorithms.vla import VlaConfig
from policies.learning.demonstrations import Shown
from policies.learning.offline.eyes import EyesConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.export import export
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim import engines, tasks
from sim.engines import ENGINES
from sim.randomize import sample_parameters
from sim.robots import ROBOTS, robot
from sim.tasks import TASKS, EngineTask, HasTeacher
from sim.tasks.abilities import Differentiable, HasSensedReward, HasWords
from sim.vec_env import VecEnv
from tests.policies.language.spoken_words import kept_encoder
from tests.policies.toy_reach import ToyReach
from tests.sim.vehicles import VEHICLES

STATES = {
    "position": 3,
    "quaternion": 4,
    "linear_velocity": 3,
    "angular_velocity": 3,
    "rotor_speed": 4,
    "rotation": 9,
}
EVERYTHING = list(itertools.product(VEHICLES, ENGINES, ROBOTS))
STEPS = 20

SPOKEN: dict[str, Any] = {"episodes": 2, "updates": 100, "batch_size": 8, "bins": 16}
SPOKEN |= {"network": TinyConfig(32, 1, 4, 8, EncoderConfig([8, 8], [4, 2]), parallel=True)}
# A budget of about a second, for algorithms whose own is larger.
SMALL: dict[str, dict[str, Any]] = {
    "apg": {"updates": 4},
    "distill": {"teachers": 1, "teacher_budget": 2, "accept": 0.0, "rounds": 1, "num_envs": 64},
    "ppo": {"total_steps": 2048, "num_envs": 16, "rollout_steps": 16},
    "student": {"teacher_steps": 60_000, "total_steps": 256, "num_envs": 16, "rollout_steps": 4, "league": True}
    | {"gaze_steps": 60_000},
    "advised_sac": {"total_steps": 2048, "num_envs": 8, "warmup_steps": 64, "capacity": 4096, "batch_size": 32}
    | {"advice": AdviceConfig(synchronous=True), "report_every": 60},
    "online_sac": {"total_steps": 30, "warmup_steps": 10, "batch_size": 16, "hidden": [16], "report_every": 10}
    | {"critic_hidden": [16], "robot": "driver=simulated settle=0 priority=0"},
    "vla": SPOKEN,
    "vla_rl": {"clone": VlaConfig(**{**SPOKEN, "updates": 50}), "iterations": 4, "episodes": 4, "num_envs": 2}
    | {"critic_hidden": [16], "critic_alone": 0, "batch_size": 32},
    "sac": {"total_steps": 2048, "num_envs": 8, "warmup_steps": 64, "capacity": 4096, "batch_size": 32},
    "streaming": {"total_steps": 200, "hidden": [16], "report_every": 20},
}
BASE = {"horizon": 2, "hidden": [16], "updates": 200, "episodes": 10, "corruption": 0.3}
PRACTICE = {
    "base": BaseConfig(**{**BASE, "updates": 5}),
    "total_steps": 1600,
    "warmup_episodes": 2,
    "head_start": 4,
    "hidden": [16, 16],
    "batch_size": 16,
}


def start(task_name: str, engine_name: str, robot_name: str, n: int) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """An engine with `n` varied robots, thrown by the task; also the start and commands (steps, n, k)."""
    task = tasks.make(task_name, robot=robot_name)
    rng = np.random.default_rng(7)
    state = task.reset(rng, n)
    parameters = sample_parameters(task.vary, rng, task.robot.parameters(), n)
    commands = rng.uniform(0.0, 1.0, (STEPS, n, sum(c.size for c in task.commands))).astype(np.float32)
    engine = engines.make(engine_name, task.robot, n, 1.0 / task.rate_hz)
    engine.reset(None, {name: value for name, value in state.items() if name in STATES})
    engine.set_parameters(None, parameters)
    return engine, {**state, **parameters}, commands


def fly(engine: Any, commands: np.ndarray) -> dict[str, np.ndarray]:
    """What the engine reads after each step: name -> (steps, n, k)."""
    read = []
    for command in commands:
        engine.step(command)
        read.append({name: engine.read(name) for name in STATES})
    return {name: np.stack([r[name] for r in read]) for name in STATES}


@pytest.mark.thinned
@pytest.mark.parametrize(("task_name", "engine_name", "robot_name"), EVERYTHING)
def test_engine_flies_every_task_and_robot(task_name: str, engine_name: str, robot_name: str):
    engine, begin, commands = start(task_name, engine_name, robot_name, 5)
    for name, value in begin.items():
        if name != "motion":
            np.testing.assert_allclose(engine.read(name), value, atol=1e-5, err_msg=name)
    flown = fly(engine, commands)
    assert {name: value.shape for name, value in flown.items()} == {k: (STEPS, 5, v) for k, v in STATES.items()}
    assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in flown.values())
    np.testing.assert_allclose(np.linalg.norm(flown["quaternion"], axis=-1), 1.0, atol=1e-4)
    assert np.abs(flown["position"][-1] - begin["position"]).max() > 1e-3  # it moves

    again, _, _ = start(task_name, engine_name, robot_name, 5)
    repeated = fly(again, commands)
    assert all((flown[name] == repeated[name]).all() for name in STATES)

    alone = engines.make(engine_name, robot(robot_name), 1, engine.dt)
    alone.reset(None, {name: value[3:4] for name, value in begin.items() if name in STATES})
    alone.set_parameters(None, {k: v[3:4] for k, v in begin.items() if k not in STATES and k != "motion"})
    single = fly(alone, commands[:, 3:4])
    for name in STATES:
        np.testing.assert_allclose(single[name][:, 0], flown[name][:, 3], atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("engine_name", ENGINES)
def test_reset_and_parameters_touch_only_the_mask(engine_name: str):
    engine, _, commands = start("quad_hover", engine_name, "crazyflie", 5)
    fly(engine, commands)
    before = {name: engine.read(name) for name in (*STATES, "mass")}
    mask = np.array([False, True, False, False, True])
    engine.reset(mask, {"position": np.full((2, 3), 4.0, np.float32)})
    engine.set_parameters(mask, {"mass": np.full((2, 1), 0.05, np.float32)})
    for name, value in before.items():
        np.testing.assert_array_equal(engine.read(name)[~mask], value[~mask], err_msg=name)
    np.testing.assert_allclose(engine.read("position")[mask], 4.0)
    np.testing.assert_allclose(engine.read("linear_velocity")[mask], 0.0)  # what is left out is at rest
    np.testing.assert_allclose(engine.read("quaternion")[mask], [[1.0, 0.0, 0.0, 0.0]] * 2)
    np.testing.assert_allclose(engine.read("mass")[mask], 0.05)


@pytest.mark.parametrize("engine_name", ENGINES)
def test_unknown_names_are_listed(engine_name: str):
    engine = engines.make(engine_name, robot("crazyflie"), 2, 0.01)
    with pytest.raises(KeyError, match="wheel_speed.*it has: .*position"):
        engine.read("wheel_speed")
    with pytest.raises(KeyError, match="wheelbase.*it has: .*mass"):
        engine.set_parameters(None, {"wheelbase": np.ones((2, 1), np.float32)})


def rollout(task_name: str, engine_name: str, seed: int) -> list[torch.Tensor]:
    """Everything that a learner sees in a few steps across the ends of short episodes."""
    task = tasks.make(task_name, episode_s=0.08)
    env = VecEnv(task, 3, engine_name, seed=seed)
    generator = torch.Generator().manual_seed(0)
    seen = [env.features(env.reset()), env.critic_features(env.reset())]
    for _ in range(12):
        step = env.step(2.0 * torch.rand((3, env.action_size), generator=generator) - 1.0)
        seen += [env.features(step.observation), env.critic_features(step.observation), step.reward]
        seen += [step.terminated.float(), step.truncated.float(), *step.reward_terms.values()]
    return seen


@pytest.mark.parametrize(("task_name", "engine_name"), list(itertools.product(VEHICLES, ENGINES)))
def test_environment_repeats_itself_per_seed(task_name: str, engine_name: str):
    first, again, other = (rollout(task_name, engine_name, seed) for seed in (1, 1, 2))
    assert all(bool(part.isfinite().all()) for part in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def learner(name: str, seed: int = 0) -> Any:
    cls = algorithm_class(name)
    if HasTeacher in cls.needs:
        return cls(tasks.make("soccer_vision_1v1", steps=10), cls.Config(**SMALL[name]), seed)
    if HasWords in cls.needs:
        told = {"tasks": ["drawer-close-v3", "window-close-v3"], "steps": 120, "encoder": kept_encoder()}
        return cls(tasks.make("metaworld/words", **told), cls.Config(**SMALL[name]), seed)
    if HasSensedReward in cls.needs:
        return cls(tasks.make("arm_reach"), cls.Config(**SMALL[name]), seed)
    if not {EngineTask, Differentiable} & {*cls.needs}:
        wanted = SMALL.get(name, BASE if issubclass(cls.Config, BaseConfig) else PRACTICE)
        known = {key: value for key, value in wanted.items() if key in cls.Config.__dataclass_fields__}
        return cls(ToyReach(), cls.Config(**known | unaided(cls, BASE)), seed)
    return cls(tasks.make("quad_hover"), cls.Config(**SMALL.get(name, {})), seed)


def unaided(cls: Any, told: dict[str, Any]) -> dict[str, Any]:
    """The demonstrations of algorithms that clone no base of them."""
    if not issubclass(cls.Config, RlpdConfig):
        return {}
    eyes = EyesConfig(episodes=2, offline_updates=5, batch_size=8, hidden=[16])
    shown = {name: value for name, value in told.items() if name in Shown.__dataclass_fields__}
    return {"base": SeenConfig(**shown, eyes=eyes)}


def advance(algorithm: Any, updates: int) -> list[dict[str, float]]:
    return list(itertools.islice(algorithm.learn(), updates))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b


# Who speaks takes ten seconds for each: test_vla.py, test_vla_rl.py and test_vla_flow.py, and for the file
# learning/vla/test_controller.py, say the same of a toy.
SPEAKING = [name for name in ALGORITHMS if HasWords in algorithm_class(name).needs]
OFTEN = [pytest.param(name, marks=pytest.mark.long) if name in SPEAKING else name for name in ALGORITHMS]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OFTEN if name != "online_sac"])  # which goes by the clock
def test_algorithm_repeats_itself_and_continues_exactly(name: str, tmp_path, monkeypatch):
    for practice in ("online", "interventions"):  # as many rows, of a quarter as many steps
        monkeypatch.setattr(f"policies.learning.{practice}.REPORT", 25)
    whole, parts, continued = learner(name), learner(name), learner(name, seed=1)
    assert not same(continued.state_dict(), parts.state_dict())
    metrics = advance(whole, 2)
    assert all({"progress", "env_steps"} <= m.keys() and m.keys() & {"loss", "reward"} for m in metrics)
    assert all(isinstance(value, float) for m in metrics for value in m.values())
    assert 0.0 < metrics[0]["progress"] < metrics[1]["progress"] <= 1.0

    advance(parts, 1)
    checkpoint.save(tmp_path / "checkpoint.npz", parts.state_dict())
    continued.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert advance(continued, 1) == metrics[1:]  # whatever it drew itself was overwritten
    assert same(continued.state_dict(), whole.state_dict())
    controller = whole.controller()
    assert (controller.inputs, controller.outputs) == (whole.task.policy, whole.task.commands)


@pytest.mark.parametrize("name", OFTEN)
def test_algorithm_exports_a_file_that_verifies(name: str, tmp_path):
    algorithm = learner(name)
    advance(algorithm, 1)
    export(algorithm.controller(), tmp_path / "policy.onnx", training={"algorithm": name})
    policy = PolicyFile.load(tmp_path / "policy.onnx")
    task = algorithm.task
    assert policy.inputs == task.policy
    assert policy.outputs == task.commands


@pytest.mark.parametrize("task_name", TASKS)
def test_a_tasks_envelope_is_one_that_the_guard_understands(task_name: str):
    task = tasks.make(task_name)
    Guard(task.policy, task.commands, Envelope(**task.envelope))

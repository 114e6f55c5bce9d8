"""Every task as a Gymnasium environment "sim2metal/<task>", single or vectorised; importing this registers them.

    import gymnasium, sim.gym
    env = gymnasium.make("sim2metal/quad_hover", config={"delay_high": 0.0})
    envs = gymnasium.make_vec("sim2metal/quad_hover", num_envs=256)
    env = gymnasium.make("sim2metal/task", task="metaworld/reach-v3")  # and any other, by its name

Actions are in [-1, 1]. An observation is what the policy's network sees; with observation="dict", its signals by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from sim import tasks
from sim.env import with_engine
from sim.vec_env import Observation
from sim.vec_world import AnyVecEnv, vector_env

PICTURE = (240, 320)  # height, width
OBSERVATIONS = ("features", "dict")


def make_env(
    task: str, num_envs: int, engine: str, observation: str, config: Mapping[str, Any] | None, device: str
) -> AnyVecEnv:
    """The batched environment behind an adapter; ValueError for an unknown kind of observation."""
    if observation not in OBSERVATIONS:
        raise ValueError(f"observation {observation!r} is not one of {', '.join(OBSERVATIONS)}")
    return vector_env(with_engine(tasks.make(task, **(config or {})), engine), num_envs, seed=0, device=device)


def observation_space(env: AnyVecEnv, observation: str) -> spaces.Space[Any]:
    """The space of one environment's observation."""
    if observation == "features":
        return spaces.Box(-np.inf, np.inf, (env.feature_size,), np.float32)
    task = env.task
    signals: dict[str, spaces.Space[Any]] = {
        s.name: spaces.Box(s.low, s.high, (s.size,), np.float32) for s in task.policy
    }
    if past := env.observation["history"].shape[-1]:
        signals["history"] = spaces.Box(-1.0, 1.0, (past,), np.float32)
    return spaces.Dict(signals)


def to_numpy(env: AnyVecEnv, observation: Observation, kind: str) -> Any:
    """An observation of n environments as arrays (n, k), in the form of `observation_space`."""
    if kind == "features":
        return env.features(observation).cpu().numpy()
    values = dict(observation["policy"])
    if observation["history"].shape[-1]:
        values["history"] = observation["history"]
    return {name: value.cpu().numpy().copy() for name, value in values.items()}


def row(observation: Any, index: int) -> Any:
    """One environment's part of a batched observation."""
    if isinstance(observation, dict):
        return {name: value[index] for name, value in observation.items()}
    return observation[index]


class TaskEnv(gymnasium.Env[Any, NDArray[np.float32]]):
    """One task with one robot. `config` sets fields of the task's `Config`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        task: str,
        engine: str = "",
        observation: str = "features",
        config: Mapping[str, Any] | None = None,
        device: str = "cpu",
        render_mode: str | None = None,
    ) -> None:
        self.env = make_env(task, 1, engine, observation, config, device)
        self.kind = observation
        self.observation_space = observation_space(self.env, observation)
        self.action_space = spaces.Box(-1.0, 1.0, (self.env.action_size,), np.float32)
        self._seeded = False
        self.render_mode = render_mode

    def render(self) -> NDArray[np.uint8] | None:
        """A picture (240, 320, 3), with `render_mode="rgb_array"`."""
        return self.env.render(0, *PICTURE) if self.render_mode == "rgb_array" else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Without a seed the first reset draws one, as Gymnasium's convention asks."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.env.seed(int(self.np_random.integers(2**31)))
            self._seeded = True
        return row(to_numpy(self.env, self.env.reset(), self.kind), 0), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance one control step; `info["reward_terms"]` are the unweighted terms by name."""
        tensor = torch.as_tensor(np.asarray(action, np.float32), device=self.env.device)
        step = self.env.step(tensor.reshape(1, -1))
        # The environment resets itself; this interface leaves that to the caller, who gets the final observation.
        observation = row(to_numpy(self.env, step.final_observation, self.kind), 0)
        info = {"reward_terms": {name: float(value) for name, value in step.reward_terms.items()}}
        return observation, float(step.reward), bool(step.terminated), bool(step.truncated), info


class TaskVectorEnv(gymnasium.vector.VectorEnv[Any, NDArray[np.float32], NDArray[Any]]):
    """`num_envs` robots stepped together in one engine. An ended episode is followed by a new one in the same step."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        engine: str = "",
        observation: str = "features",
        config: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self.env = make_env(task, num_envs, engine, observation, config, device)
        self.kind, self.num_envs = observation, num_envs
        self.single_observation_space = observation_space(self.env, observation)
        self.single_action_space = spaces.Box(-1.0, 1.0, (self.env.action_size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes: all of them, or those in `options["reset_mask"]` (num_envs,) bool.

        One seed decides the whole batch; ValueError for a list of seeds.
        """
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ValueError(f"one seed decides the whole batch, got {seed!r}")
        super().reset(seed=None if seed is None else int(seed))
        if seed is not None or not self._seeded:
            self.env.seed(int(self.np_random.integers(2**31)))
            self._seeded = True
        mask = (options or {}).get("reset_mask")
        chosen = None if mask is None else torch.as_tensor(np.asarray(mask, bool), device=self.env.device)
        return to_numpy(self.env, self.env.reset(chosen), self.kind), {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance one control step under actions (num_envs, k)."""
        step = self.env.step(torch.as_tensor(np.asarray(actions, np.float32), device=self.env.device))
        terminated, truncated = step.terminated.cpu().numpy(), step.truncated.cpu().numpy()
        info: dict[str, Any] = {"reward_terms": {k: v.cpu().numpy() for k, v in step.reward_terms.items()}}
        done = terminated | truncated
        if done.any():
            last = to_numpy(self.env, step.final_observation, self.kind)
            info["final_obs"] = np.full(self.num_envs, None, dtype=object)
            for index in np.flatnonzero(done):
                info["final_obs"][index] = row(last, int(index))
            info["final_info"] = {k: np.where(done, v.cpu().numpy(), 0) for k, v in step.info.items()}
            info["final_info"] |= {f"_{k}": done.copy() for k in step.info}
            info["_final_obs"] = info["_final_info"] = done
        observation = to_numpy(self.env, step.observation, self.kind)
        return observation, step.reward.cpu().numpy(), terminated, truncated, info


def register() -> None:
    """Enter every task of the table into Gymnasium's registry; "sim2metal/task" takes any, by its name."""
    for name in ("task", *tasks.TASKS):
        gymnasium.register(
            id=f"sim2metal/{name}",
            entry_point="sim.gym:TaskEnv",
            vector_entry_point="sim.gym:TaskVectorEnv",
            kwargs={} if name == "task" else {"task": name},
        )


register()

"""Every task as a PettingZoo parallel environment: one world, its agents by name.

    from sim.parallel import TaskParallelEnv
    env = TaskParallelEnv("my_module:MyGame", config={"steps": 100})

Actions are in [-1, 1]. An agent's observation is the policy's signals by name, in the types that they declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from sim import tasks
from sim.env import Env, make_env, with_engine
from sim.gym import PICTURE, signal_space
from sim.spec import limits, unpack
from sim.tasks import Task, agents_of, teams_of

Array = NDArray[Any]


class TaskParallelEnv(ParallelEnv):  # type: ignore[misc]
    """One world of a task. `config` sets fields of the task's `Config`.

    Agents are agent_0, agent_1, ...; `teams` says whose team each is in. An episode that an agent loses is terminated
    for it; one that it wins, that others end, or that is out of time is truncated, as for learners.
    """

    metadata: dict[str, Any] = {"name": "sim2metal", "render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, task: str, engine: str = "", config: Mapping[str, Any] | None = None, render_mode: str | None = None
    ) -> None:
        self.task: Task = with_engine(tasks.make(task, **(config or {})), engine)
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{k}" for k in range(agents_of(self.task))]
        self.teams = dict(zip(self.possible_agents, teams_of(self.task), strict=True))
        self.agents: list[str] = []
        low, high = limits(self.task.commands)
        self._middle, self._half = 0.5 * (high + low), 0.5 * (high - low)
        seen = {s.name: signal_space(s) for s in self.task.policy}
        self.observation_spaces = {name: spaces.Dict(seen) for name in self.possible_agents}
        self.action_spaces = {name: spaces.Box(-1.0, 1.0, low.shape, np.float32) for name in self.possible_agents}
        self._world: Env | None = None
        self._episode = self._steps = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, Array]], dict[str, dict[str, Any]]]:
        """Begin the next episode; the first one of a seed, if one is given. Without, the first reset draws one."""
        num = len(self.possible_agents)
        if self._world is None or seed is not None:
            self.close()
            chosen = int(np.random.default_rng(seed).integers(2**31))
            self._world, self._episode = make_env(self.task, num, chosen, several=True), 0
        self._world.reset(range(num), [self._episode] * num)
        self._episode, self._steps = self._episode + 1, 0
        self.agents = [*self.possible_agents]
        return self._observed(self._world), {name: {} for name in self.agents}

    def _observed(self, world: Env) -> dict[str, dict[str, Array]]:
        seen = world.observe()
        return {
            name: {s.name: seen[s.name][row].astype(s.dtype) for s in self.task.policy}
            for row, name in enumerate(self.possible_agents)
        }

    def step(
        self, actions: dict[str, Array]
    ) -> tuple[
        dict[str, dict[str, Array]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """One control step under every agent's action (k,). `info["success"]`: it has done the task now."""
        if self._world is None or not self.agents:
            raise RuntimeError("the episode is over: reset begins the next one")
        told = np.clip(np.stack([actions[name] for name in self.possible_agents]).astype(np.float32), -1.0, 1.0)
        outcome = self._world.step(unpack(self.task.commands, self._middle + told * self._half))
        self._steps += 1
        over = bool((outcome.success | outcome.terminated).any()) or self._steps >= self.task.episode_steps
        lost = dict(zip(self.possible_agents, map(bool, outcome.terminated), strict=True))
        rewards = dict(zip(self.possible_agents, map(float, outcome.reward), strict=True))
        info = {name: {"success": bool(outcome.success[k])} for k, name in enumerate(self.possible_agents)}
        if over:
            self.agents = []
        return self._observed(self._world), rewards, lost, {n: over and not lost[n] for n in lost}, info

    def render(self) -> NDArray[np.uint8] | None:
        """A picture (240, 320, 3), with `render_mode="rgb_array"`."""
        shown = self.render_mode == "rgb_array" and self._world is not None
        return self._world.render(0, *PICTURE) if shown and self._world else None

    def close(self) -> None:
        """Free the world."""
        if self._world is not None:
            self._world.close()
            self._world = None

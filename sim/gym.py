"""Every task as a Gymnasium environment "sim2metal/<task>-v0", single or vectorised, in numpy.

    import gymnasium, sim.gym
    env = gymnasium.make("sim2metal/quad_hover-v0", config={"delay_high": 0.0})
    envs = gymnasium.make_vec("sim2metal/quad_hover-v0", num_envs=256)
    env = gymnasium.make("sim2metal/task-v0", task="metaworld/reach-v3")  # and any other, by its name

Importing this registers the names, and so does "sim.gym:sim2metal/quad_hover-v0" as a name. Versions of Gymnasium that
read the entry points of installed packages (1.4 no longer does) need neither.
Actions are in [-1, 1]. An observation is what the policy's network sees; with observation="dict", its signals by name,
pictures included. Episodes end with success, too (truncated: what the last state is worth goes on counting).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim import tasks
from sim.env import (
    Array,
    Env,
    Step,
    carried_out,
    for_whole_worlds,
    make_env,
    sensor,
    whole_worlds,
    with_engine,
)
from sim.spec import Signal, limits, numbers, size, slices

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("gymnasium is not installed: pip install 'sim2metal[rl]'", name="gymnasium") from error

PICTURE = (240, 320)  # height, width
OBSERVATIONS = ("features", "dict")


def signal_space(signal: Signal) -> spaces.Space[Any]:
    """The space of one signal's values (*shape)."""
    return spaces.Box(signal.low, signal.high, signal.shape, np.dtype(signal.dtype).type)


class Worlds:
    """`num` rows of a task and their open episodes: what both adapters share.

    Raises ValueError for an unknown kind of observation, and for features of a policy that sees more than numbers.
    """

    def __init__(self, task: str, num: int, engine: str, observation: str, config: Mapping[str, Any] | None) -> None:
        from sim.engines.vector import rows as kernels  # importing this module registers names, and should cost little
        from sim.engines.vector.tables import feature_runs

        if observation not in OBSERVATIONS:
            raise ValueError(f"observation {observation!r} is not one of {', '.join(OBSERVATIONS)}")
        self.task: tasks.Task = with_engine(tasks.make(task, **(config or {})), engine)
        whole_worlds(self.task, num)
        more = [s.name for s in self.task.policy if s not in numbers(self.task.policy)]
        if observation == "features" and more:
            raise ValueError(f'{task} shows its policy more than numbers ({more[0]}): use observation="dict"')
        self.num, self.agents, self.named = num, tasks.agents_of(self.task), observation == "dict"
        self._low, high = limits(self.task.commands)
        self._half = np.float32(0.5) * (high - self._low)
        where = slices(self.task.commands)
        self._parts = [(s.name, s.shape, where[s.name]) for s in self.task.commands]
        own = tasks.has_own_world(self.task)
        self._initial = tasks.initial_action(self.task)
        self._past = np.zeros((num, 0 if own else carried_out(self.task).history, size(self.task.commands)), np.float32)
        columns = slices(self.task.policy)
        columns["history"] = slice(end := size(self.task.policy), end + self._past[0].size)
        self._kernels, self._features = kernels, feature_runs(tasks.features_of(self.task), columns)
        self._seen = int(self._features.places[:, 3].sum())  # numbers
        self.length, self.gained = np.zeros(num, np.int64), np.zeros(num, np.float32)  # of the open episodes
        self._next = 0  # number of the next episode
        self._env: Env | None = None

    @property
    def env(self) -> Env:
        """The worlds; RuntimeError before the first reset."""
        if self._env is None:
            raise RuntimeError("reset the environment first")
        return self._env

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Of one world's observation and action."""
        past = self._past[0].size
        action: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (len(self._low),), np.float32)
        if not self.named:
            return spaces.Box(-np.inf, np.inf, (self._seen,), np.float32), action
        signals: dict[str, spaces.Space[Any]] = {s.name: signal_space(s) for s in self.task.policy}
        if past:
            signals["history"] = spaces.Box(-1.0, 1.0, (past,), np.float32)
        return spaces.Dict(signals), action

    def seed(self, seed: int) -> None:
        """Other episodes, from the first one on."""
        self.close()
        env = self._env = make_env(self.task, self.num, seed, several=True)
        self._sensed, self._next = sensor(env, self.task.policy), 0

    def begin(self, rows: NDArray[np.int64]) -> None:
        """The next episodes in these rows, which are those of whole worlds."""
        numbers = self._next + np.arange(len(rows)) // self.agents
        self.env.reset(rows.tolist(), numbers.tolist())
        self._next += len(rows) // self.agents
        self._past[rows] = self._initial
        self.length[rows], self.gained[rows] = 0, 0.0

    def advance(self, actions: NDArray[Any]) -> tuple[Step, NDArray[np.bool_]]:
        """One control step under actions (num, k): its outcome, and whose episode is cut off, (num,)."""
        physical = np.empty((self.num, len(self._low)), np.float32)
        self._kernels.spread(np.ascontiguousarray(actions, np.float32), self._low, self._half, self._past, physical)
        step = self.env.step({name: physical[:, at].reshape(-1, *shape) for name, shape, at in self._parts})
        truncated, last = np.empty(self.num, bool), self.task.episode_steps
        outcome = (step.reward, step.success, step.terminated)
        self._kernels.tally(*outcome, last, self.agents, self.length, self.gained, truncated)
        return step, truncated

    def observation(self, rows: NDArray[np.int64] | None = None) -> Any:
        """What these rows (None: all) see now, in the form of `spaces`; zero for what is not finite."""
        past = self._past.reshape(self.num, -1)
        if not self.named:
            shown = np.empty((self.num if rows is None else len(rows), self._seen), np.float32)
            if rows is None:
                self._kernels.features(*self._features, self._sensed(), past, shown)
            else:
                self._kernels.features_of(rows, *self._features, self._sensed(), past, shown)
            return shown
        at, now = slice(None) if rows is None else rows, self.env.observe()
        seen = {s.name: np.array(now[s.name][at], s.dtype) for s in self.task.policy}
        named = {name: np.nan_to_num(value, copy=False, posinf=0.0, neginf=0.0) for name, value in seen.items()}
        return named | {"history": past[at].copy()} if past.size else named

    def close(self) -> None:
        """Free the worlds."""
        if self._env is not None:
            self._env.close()
            self._env = None


def row(observation: Any, index: Any) -> Any:
    """One environment's part of a batched observation, or that of some."""
    if isinstance(observation, dict):
        return {name: value[index] for name, value in observation.items()}
    return observation[index]


def _terms(step: Step) -> Mapping[str, Array]:
    return step.terms or {"reward": step.reward}


class TaskEnv(gymnasium.Env[Any, NDArray[np.float32]]):
    """One task with one robot. `config` sets fields of the task's `Config`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        task: str,
        engine: str = "",
        observation: str = "features",
        config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.worlds = Worlds(task, 1, engine, observation, config)
        self.observation_space, self.action_space = self.worlds.spaces()
        self._seeded = False
        self.render_mode = render_mode

    def render(self) -> NDArray[np.uint8] | None:
        """A picture (240, 320, 3), with `render_mode="rgb_array"`."""
        return self.worlds.env.render(0, *PICTURE) if self.render_mode == "rgb_array" else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Without a seed the first reset draws one, as Gymnasium's convention asks."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.worlds.seed(int(self.np_random.integers(2**31)))
            self._seeded = True
        self.worlds.begin(np.zeros(1, np.int64))
        return row(self.worlds.observation(), 0), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance one control step; `info["reward_terms"]` are the unweighted terms by name."""
        step, truncated = self.worlds.advance(np.asarray(action).reshape(1, -1))
        terminated = bool(step.terminated[0])
        info = {"reward_terms": {name: float(value[0]) for name, value in _terms(step).items()}}
        observation = row(self.worlds.observation(), 0)
        return observation, float(step.reward[0]), terminated, bool(truncated[0]), info

    def close(self) -> None:
        """Free the world."""
        self.worlds.close()


class TaskVectorEnv(VectorEnv[Any, NDArray[np.float32], NDArray[Any]]):
    """`num_envs` robots stepped together in one engine. An ended episode is followed by a new one in the same step."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        engine: str = "",
        observation: str = "features",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.worlds, self.num_envs = Worlds(task, num_envs, engine, observation, config), num_envs
        self.single_observation_space, self.single_action_space = self.worlds.spaces()
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
        mask = (options or {}).get("reset_mask")
        if seed is not None or not self._seeded:
            self.worlds.seed(int(self.np_random.integers(2**31)))
            self._seeded, mask = True, None
        asked = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool)
        self.worlds.begin(np.flatnonzero(for_whole_worlds(self.worlds.agents, asked)))
        return self.worlds.observation(), {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance one control step under actions (num_envs, k)."""
        step, truncated = self.worlds.advance(np.asarray(actions))
        done = step.terminated | truncated
        info: dict[str, Any] = {"reward_terms": _terms(step)}
        observation = self.worlds.observation()
        if len(ended := done.nonzero()[0]):
            info["final_obs"] = np.empty(self.num_envs, object)
            last = row(observation, ended)  # a copy
            each = (row(last, place) for place in range(len(ended))) if self.worlds.named else last
            info["final_obs"][ended] = np.fromiter(each, object, len(ended))
            counted: dict[str, Array] = {"episode_return": self.worlds.gained, "episode_length": self.worlds.length}
            info["final_info"] = {name: np.where(done, value, 0) for name, value in counted.items()}
            info["final_info"] |= {f"_{name}": done for name in counted}
            info["_final_obs"] = info["_final_info"] = done
            self.worlds.begin(ended)
            begun = self.worlds.observation(ended)
            if isinstance(observation, dict):
                for name, value in begun.items():
                    observation[name][ended] = value
            else:
                observation[ended] = begun
        return observation, step.reward, step.terminated, truncated, info

    def close_extras(self, **_: Any) -> None:
        """Free the worlds."""
        self.worlds.close()


def register() -> None:
    """Enter every task of the table into Gymnasium's registry; "sim2metal/task-v0" takes any, by its name.

    Versions of Gymnasium that read the entry points of installed packages call it themselves.
    """
    for name in ("task", *tasks.TASKS):
        if (known := f"sim2metal/{name}-v0") not in gymnasium.registry:
            gymnasium.register(
                id=known,
                entry_point="sim.gym:TaskEnv",
                vector_entry_point="sim.gym:TaskVectorEnv",
                kwargs={} if name == "task" else {"task": name},
            )


register()

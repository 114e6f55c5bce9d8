"""VecEnv, the one batched environment: any task on any engine, as torch tensors on the CPU or a GPU.

It carries out what a task declares: initial states, random vehicles, imperfect sensing for the policy (never for the
critic), command latency, reward terms, termination; and adds what is no task's business: time limits, resets, seeding,
final observations, recovery from a diverged engine, and an exact `state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sim.channel import Channel
from sim.engines import make as make_engine
from sim.engines import render
from sim.randomize import Array, draw_robots, redraw
from sim.spec import Group, size
from sim.tasks import EngineTask, judged_costs
from sim.terms import lost, shown

POOL = 1024  # episodes whose random numbers are drawn at once: partial resets take rows and cost no numpy calls
DUMPS = 3  # files written about diverged environments, at most


class Observation(TypedDict):
    """What can be seen after a step. `truth` is `policy` without noise and delay, for critics and scores."""

    policy: dict[str, Tensor]  # name -> (n, k), as the robot senses it
    truth: dict[str, Tensor]  # the same names, noise-free
    privileged: dict[str, Tensor]  # name -> (n, k)
    pictures: dict[str, Tensor]  # the policy's, name -> (n, height, width, 3) uint8
    history: Tensor  # (n, history * k), own past actions in [-1, 1], newest first


@dataclass
class Step:
    """The outcome of one control step in n environments.

    `observation` already belongs to the next episode where one ended; `final_observation` is the last one of the
    episode and meaningful in the rows of `done` only. `reward_terms` are unweighted (see `VecEnv.reward_weights`).
    """

    observation: Observation
    reward: Tensor  # (n,)
    reward_terms: dict[str, Tensor]  # name -> (n,)
    terminated: Tensor  # (n,) bool: lost
    truncated: Tensor  # (n,) bool: out of time, the value of the final observation still counts
    final_observation: Observation
    info: dict[str, Tensor]  # episode_return and episode_length (n,), counted up to and including this step

    @property
    def done(self) -> Tensor:
        """(n,) bool: the episode ended."""
        return self.terminated | self.truncated


# What an episode carries besides the engine's state: attributes of VecEnv, with a leading underscore.
EPISODE = ("past", "executed", "motion", "delay", "steps", "limit", "return")


class _Signals(dict[str, Tensor]):
    """Noise-free signals by name, (n, k); what is not there yet is read from the engine."""

    def __init__(self, read: Callable[[str], Tensor], known: Mapping[str, Tensor]) -> None:
        super().__init__(known)
        self._read = read

    def __missing__(self, name: str) -> Tensor:
        value = self[name] = self._read(name)
        return value


class VecEnv:
    """`num_envs` copies of a task on an engine, stepped together.

    Actions are (n, k) in [-1, 1]; values outside are clipped. With `autoreset` an environment whose episode ended
    starts the next one in the same step. Every random number comes from `seed`. Each episode's time limit is drawn
    within `lengths`, as shares of the task's: short ones show learners more of the beginning, and varied ones spread
    out instead of coinciding. `easy` is the share of episodes whose start is made easier, by a random degree each
    (`EngineTask.easier`); a learner may change it, which counts from the next episodes drawn.
    An environment whose engine state is no longer finite is restarted, counted in `nan_resets` and described in a file
    under `dump_dir` (a few at most). Raises ValueError when the policy asks for a signal that the robot cannot sense.
    """

    def __init__(
        self,
        task: EngineTask,
        num_envs: int,
        engine: str = "flight",
        seed: int = 0,
        device: str = "cpu",
        dump_dir: str | Path | None = None,
        lengths: tuple[float, float] = (1.0, 1.0),
        easy: float = 0.0,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        check_task(task)
        self.task, self.num_envs, self.device = task, num_envs, device
        self.dt = 1.0 / task.rate_hz
        self.engine = make_engine(engine, task.robot, num_envs, self.dt, device)
        self.dump_dir = Path(dump_dir) if dump_dir else None
        if not 0.0 < lengths[0] <= lengths[1] <= 1.0:
            raise ValueError(f"lengths are shares of an episode with 0 < shortest <= longest <= 1, got {lengths}")
        self.lengths, self.easy, self.autoreset = lengths, easy, True
        self.action_size = size(task.commands)
        self.term_names = (*(cost.name for cost in task.costs), "alive")
        self.total_steps = 0  # environment steps so far: the curriculum's clock
        self.together = 1  # such environments of one learner: each step counts for all of them
        self.nan_resets = 0
        self._nominal = task.robot.parameters()
        self._policy = Channel(task.policy, num_envs, task.rate_hz, device)
        self._command = Channel(task.commands, num_envs, task.rate_hz, device)
        sizes = [c.size for c in task.commands]
        low, high = (np.repeat([getattr(c, end) for c in task.commands], sizes) for end in ("low", "high"))
        self._low = torch.tensor(low, dtype=torch.float32, device=device)
        self._range = torch.tensor(high - low, dtype=torch.float32, device=device)
        self._weights, self._judged_costs = self._weight_vector(), judged_costs(task)
        self._past: Tensor  # (n, newest first, k), actions in [-1, 1]
        self._steps: Tensor
        self._limit: Tensor
        self._return: Tensor
        self.seed(seed)
        self._observed_parameters = {s.name for s in task.privileged} & set(self._nominal)
        self._parameters = {name: self._read(name) for name in self._observed_parameters}
        self._changing = [v for v in task.vary if v.every is not None]
        self._base = {name: np.zeros((num_envs, v.shape[1]), np.float32) for name, v in self._pool["base"].items()}
        self._allocate()
        check_sizes(task, self._read_signals())
        observation = self.reset()
        self.feature_size = self.features(observation).shape[-1]
        self.critic_size = self.critic_features(observation).shape[-1]

    def seed(self, seed: int) -> None:
        """Start the random numbers afresh; takes effect with the next `reset`."""
        self._seed = seed
        self._rng = np.random.default_rng(seed)  # what is drawn as an episode begins
        self._later_rng = np.random.default_rng([seed, 1])  # what changes within one
        self._generator = torch.Generator(self.device)  # noise per step
        self._generator.manual_seed(seed)
        self._fill_pool()

    def reset(self, mask: Tensor | None = None) -> Observation:
        """Start new episodes where `mask` (n,) bool is set (None: everywhere) and return the observation of all."""
        if mask is None:
            self._allocate()
            self._restart(torch.arange(self.num_envs, device=self.device))
        elif bool(mask.any()):
            self._restart(mask.nonzero()[:, 0])
        return self.observation

    def step(self, action: Tensor) -> Step:
        """Advance one control step under `action` (n, k) in [-1, 1]."""
        if action.shape != (self.num_envs, self.action_size):
            raise ValueError(f"action has shape {tuple(action.shape)}, needs {(self.num_envs, self.action_size)}")
        action = action.detach().clamp(-1.0, 1.0)
        self._past = torch.cat((action[:, None], self._past[:, :-1]), 1)
        self._executed = self._physical(self._command.send(action, self._generator))
        before = self._state
        self.engine.step(self._to_engine(self._executed))
        self._steps = self._steps + 1
        self.total_steps += self.num_envs * self.together
        if self._changing:
            self._redraw()

        signals = self._read_signals()
        bad = ~torch.cat(list(self._state.values()), -1).sum(-1).isfinite()
        if self.autoreset and bool(bad.any()):
            self._report(bad, before)
            signals.update({name: torch.where(bad[:, None], 0.0, value) for name, value in signals.items()})
        terminated = lost(self.task.bounds, signals) | bad
        truncated = (self._steps >= self._limit) & ~terminated
        terms = torch.stack([*(cost.evaluate(signals) for cost in self.task.costs), 1.0 - terminated.float()], -1)
        terms = torch.where(bad[:, None], 0.0, terms)
        if self.task.curriculum:
            self._weights = self._weight_vector()
        reward = terms @ self._weights
        self._return = self._return + reward
        info = {"episode_return": self._return, "episode_length": self._steps}

        final = self._observe(signals)
        done = terminated | truncated
        if self.autoreset and bool(done.any()):
            self._restart(done.nonzero()[:, 0])
        named = dict(zip(self.term_names, terms.unbind(-1), strict=True))
        return Step(self.observation, reward, named, terminated, truncated, final, info)

    def features(self, observation: Observation) -> Tensor:
        """What the policy's network sees, (n, feature_size): the task's features, concatenated."""
        return self._evaluate({**observation["policy"], "history": observation["history"]})

    def critic_features(self, observation: Observation) -> Tensor:
        """What a critic may see, (n, critic_size): the same of the truth, then privileged signals, `judged_costs`."""
        known = self._evaluate({**observation["truth"], "history": observation["history"]})
        told = {**observation["truth"], **observation["privileged"]}
        costs = [shown(cost.evaluate(told))[:, None] for cost in self._judged_costs]
        return torch.cat([known, *observation["privileged"].values(), *costs], -1)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """One vehicle and its target as the film shows them, (height, width, 3)."""
        goal = self.task.reference(self._motion, self._steps * self.dt)[self.task.goal][row].cpu().numpy()
        return render(self.engine, self.task.robot, row, goal, height, width)

    def worker_metrics(self) -> dict[str, float]:
        """None: its worlds are stepped in this process."""
        return {}

    def reward_weights(self) -> dict[str, float]:
        """The coefficient of each reward term now; reward = sum of coefficient * term. Follows the curriculum."""
        weights = {cost.name: -cost.weight for cost in self.task.costs}
        weights |= {item.name: -item.weight(self.total_steps) for item in self.task.curriculum}
        return {**weights, "alive": self.task.alive_bonus}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, for an exact resume."""
        return {
            "engine": {name: self._read(name) for name in self._state},
            "parameters": {name: self._read(name) for name in self._nominal},
            "episode": {name: getattr(self, f"_{name}").clone() for name in EPISODE},
            "observation": [part.clone() for part in self._packed],
            "policy": self._policy.state_dict(),
            "command": self._command.state_dict(),
            "seed": self._seed,
            "pool_rng": self._pool_rng,
            "pool_taken": self._taken,
            "pool_easy": self._pool_easy,
            "pool_lengths": list(self._pool_lengths),
            "noise_rng": self._generator.get_state(),
            "later_rng": self._later_rng.bit_generator.state,
            "base": {name: value.copy() for name, value in self._base.items()},
            "total_steps": self.total_steps,
            "nan_resets": self.nan_resets,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an environment with the same arguments."""
        saved = len(state["episode"]["steps"])
        if saved != self.num_envs:
            raise ValueError(f"the saved state has {saved} environments, this one has {self.num_envs}")
        self.engine.set_parameters(None, {k: self._to_engine(self._tensor(v)) for k, v in state["parameters"].items()})
        self.engine.reset(None, {k: self._to_engine(self._tensor(v)) for k, v in state["engine"].items()})
        for name in EPISODE:
            setattr(self, f"_{name}", self._tensor(state["episode"][name]).clone())
        self._policy.load_state_dict(state["policy"])
        self._command.load_state_dict(state["command"])
        self._seed = int(state["seed"])
        self._rng.bit_generator.state, self.easy = state["pool_rng"], float(state["pool_easy"])
        shortest, longest = state["pool_lengths"]
        self.lengths = float(shortest), float(longest)
        self._fill_pool()
        self._taken = int(state["pool_taken"])
        self._generator.set_state(torch.as_tensor(state["noise_rng"], dtype=torch.uint8).cpu())
        self._later_rng.bit_generator.state = state["later_rng"]
        self._base = {name: np.array(value) for name, value in state["base"].items()}
        self.total_steps, self.nan_resets = int(state["total_steps"]), int(state["nan_resets"])
        self._weights = self._weight_vector()
        self._parameters = {name: self._read(name) for name in self._observed_parameters}
        self._read_signals()
        self._publish([self._tensor(part).clone() for part in state["observation"]])

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.device)

    def _to_engine(self, value: Tensor) -> Any:
        return value.numpy() if self.device == "cpu" else value

    def _read(self, name: str) -> Tensor:
        value = self.engine.read(name)
        return torch.from_numpy(value) if self.device == "cpu" else torch.as_tensor(value, device=self.device)

    def _physical(self, action: Tensor) -> Tensor:
        return self._low + 0.5 * (action.clamp(-1.0, 1.0) + 1.0) * self._range

    def _weight_vector(self) -> Tensor:
        weights = self.reward_weights()
        return torch.tensor([weights[name] for name in self.term_names], device=self.device)

    def _evaluate(self, values: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([feature.evaluate(values) for feature in self.task.features], -1)

    def _fill_pool(self) -> None:
        self._pool_rng = self._rng.bit_generator.state  # so that it can be drawn again
        self._pool_easy, self._pool_lengths = self.easy, self.lengths
        count = max(POOL, self.num_envs)
        state = self.task.reset(self._rng, count)
        if self.easy > 0.0:
            random = self._rng.random((2, count, 1), np.float32)
            state = self.task.easier(state, np.where(random[0] < self.easy, random[1], np.float32(1.0)))
        state = dict(state)
        motion = state.pop("motion", np.zeros((count, 0), np.float32))
        shortest, longest = (max(1, round(share * self.task.episode_steps)) for share in self.lengths)
        limit = self._rng.integers(shortest, longest, count, endpoint=True) if shortest < longest else longest
        robots = draw_robots(self.task.robot, self.task.vary, self._rng, count)
        drawn: dict[str, Mapping[str, Array]] = {
            "episode": {"motion": motion, "limit": np.full(count, limit)},
            "state": state,
            "parameters": robots.parameters,
            "base": robots.base,
            "policy": self._policy.draw(self._rng, count),
            "command": self._command.draw(self._rng, count),
        }
        self._pool = {k: {name: _single(v).to(self.device) for name, v in d.items()} for k, d in drawn.items()}
        self._taken = 0

    def _take(self, count: int) -> dict[str, dict[str, Tensor]]:
        """The next rows of the pool. When too few are left they are dropped and a new pool is drawn."""
        if self._taken + count > max(POOL, self.num_envs):
            self._fill_pool()
        rows = slice(self._taken, self._taken + count)
        self._taken += count
        return {k: {name: value[rows] for name, value in d.items()} for k, d in self._pool.items()}

    def _allocate(self) -> None:
        n, task = self.num_envs, self.task
        initial = torch.full((n, max(task.history, 2), self.action_size), task.initial_action, device=self.device)
        self._past, self._executed = initial, self._physical(initial[:, 0])
        self._motion = torch.zeros((n, *self._pool["episode"]["motion"].shape[1:]), device=self.device)
        self._delay = torch.zeros((n, len(task.commands)), device=self.device)  # control steps
        self._steps = torch.zeros(n, dtype=torch.int64, device=self.device)
        self._limit = torch.full_like(self._steps, task.episode_steps)
        self._return = torch.zeros(n, device=self.device)
        self._packed: list[Tensor] = []

    def _restart(self, rows: Tensor) -> None:
        """Begin new episodes in `rows` (count,) and publish the observation of all. Writes into no tensor given out."""
        drawn = self._take(len(rows))
        mask = None
        if len(rows) < self.num_envs:
            mask = self._to_engine(
                torch.zeros(self.num_envs, dtype=torch.bool, device=self.device).index_fill(0, rows, True)
            )
        if drawn["parameters"]:
            self.engine.set_parameters(mask, {name: self._to_engine(v) for name, v in drawn["parameters"].items()})
            self._look_up(drawn["parameters"])
        for name, value in drawn["base"].items():
            self._base[name][rows.cpu().numpy()] = value.cpu().numpy()
        self.engine.reset(mask, {name: self._to_engine(value) for name, value in drawn["state"].items()})
        self._past = self._past.index_fill(0, rows, self.task.initial_action)
        self._motion = self._motion.index_copy(0, rows, drawn["episode"]["motion"])
        self._delay = self._delay.index_copy(0, rows, drawn["command"]["delay"])
        self._limit = self._limit.index_copy(0, rows, drawn["episode"]["limit"])
        self._steps = self._steps.index_fill(0, rows, 0)
        self._return = self._return.index_fill(0, rows, 0.0)
        self._command.begin(rows, drawn["command"], self._past[rows, 0], self._generator)
        truth, privileged, history = self._vectors(self._read_signals())
        first = self._policy.begin(rows, drawn["policy"], truth[rows], self._generator)
        fresh = [first, truth[rows], privileged[rows], history[rows]]
        self._publish(
            [a.index_copy(0, rows, b) for a, b in zip(self._packed, fresh, strict=True)] if self._packed else fresh
        )

    def _look_up(self, changed: Iterable[str]) -> None:
        """Read again the parameters that a critic sees, if they are among those that were changed."""
        self._parameters |= {name: self._read(name) for name in self._observed_parameters.intersection(changed)}

    def _redraw(self) -> None:
        """Change what changes within an episode."""
        now = self._steps.cpu().numpy()
        for name, due, values in redraw(self._changing, self._later_rng, self._base, now - 1, now, self.dt):
            mask = torch.zeros(self.num_envs, dtype=torch.bool)
            mask[torch.from_numpy(due)] = True
            value = torch.from_numpy(values).to(self.device)
            self.engine.set_parameters(self._to_engine(mask.to(self.device)), {name: self._to_engine(value)})
            self._look_up([name])

    def _read_signals(self) -> _Signals:
        """Noise-free signals after a step or a reset; also keeps the engine's state."""
        self._state = {name: self._read(name) for name in self._pool["state"]}
        action = self._past[:, 0]
        known = {**self._state, **self._parameters, "delay": self._delay, "action": action}
        known["action_change"] = action - self._past[:, 1]
        known.update(self.task.reference(self._motion, self._steps * self.dt))
        return _Signals(self._read, known)

    def _vectors(self, signals: _Signals) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's signals, the privileged ones and the history, (n, ...) each."""
        truth = torch.cat([signals[s.name] for s in self.task.policy], -1)
        privileged = torch.cat([truth[:, :0], *(signals[s.name] for s in self.task.privileged)], -1)
        return truth, privileged, self._past[:, : self.task.history].flatten(1)

    def _observe(self, signals: _Signals) -> Observation:
        truth, privileged, history = self._vectors(signals)
        return self._publish([self._policy.send(truth, self._generator), truth, privileged, history])

    def _publish(self, packed: list[Tensor]) -> Observation:
        """Make the four packed tensors the current observation."""
        self._packed = packed
        policy, truth, privileged, history = packed
        self.observation = Observation(
            policy=_named(self.task.policy, policy),
            truth=_named(self.task.policy, truth),
            privileged=_named(self.task.privileged, privileged),
            pictures={},  # our engines show none
            history=history,
        )
        return self.observation

    def _report(self, bad: Tensor, before: Mapping[str, Tensor]) -> None:
        """Count diverged environments and write down the first of them, so that its last step can be replayed."""
        written = min(self.nan_resets, DUMPS)
        self.nan_resets += int(bad.sum())
        if self.dump_dir is None or written >= DUMPS:
            return
        row = int(bad.nonzero()[0, 0])
        arrays = {f"state.{name}": value[row] for name, value in before.items()}
        arrays |= {f"parameter.{name}": self._read(name)[row] for name in self._nominal}
        arrays |= {"command": self._executed[row], "actions": self._past[row], "delay": self._delay[row]}
        where = {"environment": row, "episode_step": int(self._steps[row]), "seed": self._seed, "dt": self.dt}
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        path = self.dump_dir / f"diverged_{self.total_steps}_{row}.npz"
        np.savez(path, allow_pickle=False, **{name: v.cpu().numpy() for name, v in arrays.items()}, **where)

    def fly(self, act: Callable[[Observation], Tensor]) -> dict[str, Array]:
        """One whole episode in every environment, the lost ones included: the task's scores, name -> (n,).

        `act` maps an observation to actions (n, k) in [-1, 1]. Resets the environments before and after.
        """
        names = [c.name for c in self.task.commands]
        flight: dict[str, list[Array]] = {name: [] for name in (*names, *(s.name for s in self.task.policy))}
        observation = self.reset()
        self.autoreset = False
        try:
            for _ in range(self.task.episode_steps):
                action = act(observation)
                commands = _named(self.task.commands, self._physical(action))
                observation = self.step(action).observation
                for name, value in {**commands, **observation["truth"]}.items():
                    flight[name].append(value.cpu().numpy())
        finally:
            self.autoreset = True
            self.reset()
        with np.errstate(over="ignore", invalid="ignore"):  # lost vehicles may be anywhere
            return self.task.score({name: np.stack(values) for name, values in flight.items()})


def _single(values: NDArray[Any]) -> Tensor:
    """Numbers in single precision, whatever a task drew; counts and masks as they are."""
    return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values)


def _named(group: Group, vector: Tensor) -> dict[str, Tensor]:
    """Views of a group's vector (n, P) by name; the inverse of concatenating."""
    parts = torch.split(vector, [s.size for s in group], -1)
    return {s.name: part for s, part in zip(group, parts, strict=True)}


def check_task(task: EngineTask) -> None:
    """ValueError when a task's declarations contradict each other or its robot."""
    for signal in task.policy:
        if signal.name not in task.robot.sensed:
            choices = ", ".join(task.robot.sensed)
            raise ValueError(
                f"task {task.name!r}: the robot {task.robot.name!r} cannot sense {signal.name!r}; it senses: {choices}"
            )
    visible = {s.name for s in task.policy} | {"history"}
    for feature in task.features:
        unseen = {feature.signal, feature.minus or "history"} - visible
        if unseen:
            raise ValueError(
                f"task {task.name!r}: a feature uses {unseen.pop()!r}, which is not a policy signal; "
                f"there are: {', '.join(sorted(visible))}"
            )
    costs = [cost.name for cost in task.costs]
    for item in task.curriculum:
        if item.name not in costs:
            raise ValueError(f"task {task.name!r}: a curriculum names {item.name!r}; the costs are: {', '.join(costs)}")


def check_sizes(task: EngineTask, signals: Mapping[str, Tensor]) -> None:
    """ValueError when a signal's declared size is not what the engine delivers."""
    for signal in (*task.policy, *task.privileged):
        found = signals[signal.name].shape[-1]
        if found != signal.size:
            raise ValueError(f"task {task.name!r} declares {signal.name!r} with {signal.size} elements, it has {found}")

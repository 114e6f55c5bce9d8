"""Meta-World v3 (Yu et al. 2020; PyPI metaworld 3.0.0), unmodified: `task=metaworld/pick-place-v3` and 49 others,
MT10 and MT50 in `metaworld_mt.py`, and some told in words in `metaworld_words.py`.

A Sawyer arm whose hand is moved by velocity, at 80 Hz. Object and goal are drawn anew for every episode from the
task's own ranges, and the goal can be seen; success is the benchmark's. What differs from its 39 numbers: the previous
frame is left out, and the hand's command is in m/s (1 of theirs is 1 cm per control step of 12.5 ms).
"""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, Env, Step, outcome_scores, world_of
from sim.robots import Robot
from sim.spec import Group, Signal
from sim.tasks import remade
from sim.terms import Feature

RATE = 80.0  # Hz: five physics steps of 2.5 ms
SPEED = 0.8  # m/s of the hand at their action 1: 1 cm per control step
CORRUPTION = {"object_position": 0.0155, "goal_position": 0.0385, "hand_velocity": 0.174, "gripper_effort": 0.216}
COLLECTIONS = ("MT10", "MT50")
WORDS = "words"  # some of them, told in words what to do
# m between object and goal, up to which these tasks call it success.
NEAR = {"pick-place-v3": 0.07, "pick-place-wall-v3": 0.07, "push-v3": 0.05, "push-back-v3": 0.07, "push-wall-v3": 0.07}
CLONING, LEARNING = (
    ("dagger", "diffusion", "hg_dagger"),
    ("dsrl", "dsrl_na", "expo", "residual", "rlif", "rlpd", "wsrl"),
)
MANIPULATORS = CLONING + LEARNING  # algorithms
VIEW = {"lookat": (0.0, 0.7, 0.1), "distance": 1.0, "azimuth": -55.0, "elevation": -28.0}  # their own are askew
NEARNESS = 10.0  # 1/m: differences of positions are up to some 0.3 m
FRAME = 18  # numbers of theirs that describe one moment: hand, gripper, two objects of seven


@cache
def _table() -> dict[str, tuple[Any, Any]]:
    """Name -> environment and scripted expert."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.policies import ENV_POLICY_MAP

    return {name: (made, ENV_POLICY_MAP[name]) for name, made in ALL_V3_ENVIRONMENTS.items()}


def names(collection: str) -> tuple[str, ...]:
    """The tasks of a collection, in the benchmark's order."""
    from metaworld import env_dict

    return tuple({"MT10": env_dict.MT10_V3, "MT50": env_dict.MT50_V3}[collection])


@cache
def task(name: str) -> Any:
    """The task class of one environment or collection; ValueError with the nearest name when there is none."""
    table = _table()
    if name in COLLECTIONS:
        from sim.tasks.external.metaworld_mt import MetaWorldMany

        members = {"name": f"metaworld/{name}", "collection": name, "__doc__": name}
        return type("MetaWorldMany", (MetaWorldMany,), members)
    if name == WORDS:
        from sim.tasks.external.metaworld_words import MetaWorldWords

        return MetaWorldWords
    if name not in table:
        choices = (*COLLECTIONS, WORDS, *sorted(table))
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else f"; choices: {', '.join(choices)}"
        raise ValueError(f"unknown task 'metaworld/{name}'{hint}")
    return type("MetaWorld", (MetaWorld,), {"name": f"metaworld/{name}", "environment": name, "__doc__": name})


@dataclass
class Settings:
    """Of a Meta-World task."""

    steps: int = 500  # of an episode at most; the benchmark's

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 500:
            raise ValueError(f"steps must be between 1 and 500, the benchmark's longest, got {self.steps}")


class MetaWorld:
    """One environment of Meta-World."""

    Config = Settings
    name = "metaworld"
    environment = ""
    robot = Robot("sawyer")
    algorithm = "diffusion"
    engine = "its own physics"
    engines: Mapping[str, str] = {}
    rate_hz = RATE
    policy: Group
    privileged: Group = ()
    goal = "goal_position"
    commands: Group = (
        Signal("hand_velocity", (3,), "m/s", "world", -SPEED, SPEED),
        Signal("gripper_effort", (1,), "1", "", -1.0, 1.0),  # 1 closes
    )
    envelope: dict[str, float] = {}
    scores = {"success": "%", "duration": "s"}
    corruption = CORRUPTION
    closed = 1.0  # what closes the gripper
    separate = True
    # The expert needs 55 steps to pick and place.
    recipes = {
        **{name: {"default": {"task.steps": 120}} for name in MANIPULATORS},
        # Chosen on reach-v3. Their reward is almost flat where success begins: so success brings more.
        "sac": {
            "default": {
                "task.steps": 120,
                "algorithm.total_steps": 32_000,
                "algorithm.num_envs": 8,
                "algorithm.warmup_steps": 2000,
                "algorithm.updates_per_step": 4,
                "algorithm.batch_size": 128,
                "algorithm.hidden": [256, 256],
                "algorithm.critic_hidden": [256, 256],
                "algorithm.gamma": 0.95,
                "algorithm.target_entropy": -1.0,
                "algorithm.initial_std": 0.5,
                "algorithm.linger": 30,
                "algorithm.success_reward": 10.0,
                "algorithm.report_every": 400,
                "algorithm.evaluation_episodes": 20,
            }
        },
    }

    def __init__(self, config: Settings | None = None) -> None:
        self.config = config or Settings()
        self.episode_steps = self.config.steps
        made, expert = _table()[self.environment]
        self._make, self._expert = made, expert()
        self.objects = len(made()._get_pos_objects()) // 3
        self.policy = signals(self.objects)
        self.achieved = "object_position" if self.environment in NEAR else ""  # what should become equal to the goal
        self._moment = self.policy[:-1]

    @property
    def features(self) -> tuple[Feature, ...]:
        """Positions as seen from where they should be: the object from the hand, hand and object from the goal."""
        seen = [
            Feature("hand_position", "goal_position", NEARNESS),
            Feature("object_position", "goal_position", NEARNESS),
            Feature("object_position", "hand_position", NEARNESS),
        ]
        for signal in self.policy:
            if signal.name == "second_object_position":
                seen.append(Feature(signal.name, "hand_position", NEARNESS))
            elif signal.name not in ("goal_position", "object_position"):
                seen.append(Feature(signal.name))
        return tuple(seen)

    def make(self) -> Any:
        """A new environment, with its goal visible and drawn anew by every reset."""
        environment = self._make()
        environment._partially_observable = False
        environment.__dict__.pop("sawyer_observation_space", None)  # else the goal is cut to zero
        environment._set_task_called, environment._freeze_rand_vec = True, False
        environment.seeded_rand_vec = True
        environment._reset_hand = Hand(environment)
        environment.touching_object = partial(touching, environment)
        return environment

    def __reduce__(self) -> Any:
        return remade(self)

    def open(self, num: int, seed: int) -> Env:
        return Scenes(self, num, seed)

    def reached(self, achieved: Array, goal: Array) -> NDArray[np.bool_]:
        """Whether what was achieved (n, 3) m counts as the goal (n, 3) m, (n,)."""
        return np.asarray(np.linalg.norm(achieved - goal, axis=-1) <= NEAR[self.environment])

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        frame: Array = np.concatenate([np.asarray(signals[s.name], np.float64) for s in self._moment], axis=1)
        frame = np.pad(frame, ((0, 0), (0, FRAME - frame.shape[1])))
        theirs = np.concatenate([frame, frame, np.asarray(signals["goal_position"], np.float64)], axis=1)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Constant"
            )  # they say that their actions are beyond 1: we clip, as they do
            actions = np.asarray([self._expert.get_action(row) for row in theirs], np.float32).clip(-1.0, 1.0)
        velocity: Array = np.float32(SPEED) * actions[:, :3]
        return {"hand_velocity": velocity, "gripper_effort": actions[:, 3:]}

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, RATE)


def _position(name: str) -> Signal:
    return Signal(name, (3,), "m", "world")


def _quaternion(name: str) -> Signal:
    # As they give it: some of their tasks say x, y, z, w and some w, x, y, z.
    return Signal(name, (4,), "1", "world")


def signals(objects: int) -> Group:
    """What is seen of a scene with one or two objects."""
    second = (_position("second_object_position"), _quaternion("second_object_quaternion"))
    return (
        _position("hand_position"),
        Signal("gripper_opening", (1,), "1", "", 0.0, 1.0),
        _position("object_position"),
        _quaternion("object_quaternion"),
        *(second if objects == 2 else ()),
        _position("goal_position"),
    )


class Hand:
    """Brings an environment's hand to where it begins, in place of its `_reset_hand`.

    Theirs takes 250 physics steps, thrice per episode. From the same state they lead to the same state, which is kept.
    """

    def __init__(self, environment: Any) -> None:
        self._environment, self._bring = environment, environment._reset_hand
        self._from: Array | None = None
        self._to: Any = None

    def __call__(self) -> None:
        from mujoco import mj_copyData, mj_getState, mj_stateSize, mjtState

        environment, model, whole = self._environment, self._environment.model, mjtState.mjSTATE_INTEGRATION
        state = np.empty(mj_stateSize(model, whole))
        mj_getState(model, environment.data, state, whole)
        begun = np.concatenate([state, model.body_pos.ravel()])  # they move what is fixed, too
        if self._from is None or not np.array_equal(begun, self._from):
            self._bring()
            self._from, self._to = begun, copy.copy(environment.data)
        else:
            mj_copyData(environment.data, model, self._to)
            self._bring(steps=0)  # what they remember of it


def touching(environment: Any, thing: int) -> bool:
    """Whether both pads press on the geometry `thing`, in place of `touching_object`, which asks contact by contact."""
    data = environment.data
    pairs, rows = data.contact.geom, data.contact.efc_address
    on_thing = (pairs == thing).any(axis=1)
    for pad in ("leftpad_geom", "rightpad_geom"):
        pressed = on_thing & (pairs == data.geom(pad).id).any(axis=1)
        if not sum(data.efc_force[row] for row in rows[pressed]) > 0:
            return False
    return True


class Scenes:
    """`num` environments, stepped one after the other."""

    def __init__(self, task: MetaWorld, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.environments = [task.make() for _ in range(num)]
        self._seen = np.zeros((num, 2 * FRAME + 3))
        self._camera: Any = None

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        from gymnasium.envs.mujoco import MujocoEnv
        from mujoco import mj_resetData

        for row, episode in zip(rows, episodes, strict=True):
            environment = self.environments[row]
            environment.np_random = np.random.default_rng([self.seed, episode])
            environment._freeze_rand_vec = False
            with world_of(self.task.name, row):
                mj_resetData(environment.model, environment.data)  # so that the hand begins where it was kept
                environment.reset()
                # Many look where things are, then place them: it takes another reset with the same draw. Theirs is two.
                environment._freeze_rand_vec = True
                self._seen[row] = MujocoEnv.reset(environment)[0]

    def observe(self) -> dict[str, Array]:
        at, found = 0, {}
        for signal in self.task._moment:
            found[signal.name] = self._seen[:, at : at + signal.size].astype(np.float32)
            at += signal.size
        return found | {"goal_position": self._seen[:, -3:].astype(np.float32)}

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        velocity, effort = (np.asarray(command[s.name], np.float32) for s in self.task.commands)
        actions = np.clip(np.concatenate([velocity / np.float32(SPEED), effort], axis=1), -1.0, 1.0)
        reward, success = np.zeros(self.num, np.float32), np.zeros(self.num, bool)
        for row, environment in enumerate(self.environments):
            if environment.curr_path_length < environment.max_path_length:  # beyond, it refuses: that episode is over
                with world_of(self.task.name, row):
                    self._seen[row], reward[row], _, _, info = environment.step(actions[row])
                success[row] = info["success"] > 0.0
        # MuJoCo begins anew by itself when a state blows up, and only counts a warning.
        blown = [environment.data.warning.number.any() for environment in self.environments]
        return Step(reward, success, np.logical_or(blown, ~np.isfinite(self._seen).all(axis=1)))

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        from sim.render.camera import Camera

        environment = self.environments[row]
        size = (height, width)
        if self._camera is None or self._camera.size != size:
            self._camera = Camera(environment.model, height, width)
        picture: NDArray[np.uint8] = self._camera.see(environment.data, VIEW)
        return picture

    def close(self) -> None:
        for environment in self.environments:
            environment.close()

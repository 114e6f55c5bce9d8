"""Tasks of Meta-World in words: `task=metaworld/words` sees two pictures and is told a sentence, not where things are.

With `task.cameras=[]` it is told where things are in place of pictures, not which task it is: the sentence says that.

Every episode is one of `task.tasks`, in turn, and a sentence is drawn that asks for it. Pictures are drawn of a copy of
the scene without the arm's meshes, which takes a fifth of the time, and only when somebody looks. `task.full=true`
draws all of it, as a real camera shows it; `task.full_share` does so in a share of the episodes, so that who learns
from them knows both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.env import Array, Env, Step
from sim.language import SAID, SENTENCES, Instructions, asked_with, instructions_of
from sim.language.folder import encoder_folder, tokeniser
from sim.language.wordpiece import MOST, WordPiece
from sim.render.views import seen_from
from sim.spec import Group, Signal, numbers
from sim.tasks import PLACE
from sim.tasks.external.metaworld import COLLECTIONS, Settings, names, signals, task
from sim.tasks.external.metaworld_mt import ManyScenes, MetaWorldMany
from sim.tasks.picture_cache import PictureCache
from sim.terms import Feature

PIXELS = 64
EASY = (
    *("reach-v3", "door-open-v3", "drawer-open-v3", "drawer-close-v3"),
    *("button-press-topdown-v3", "window-open-v3", "window-close-v3"),
)
# From above in front, and from the side: together they show every scene of MT10, and the markers behind the hand.
VIEWS = {
    "front_camera": {"lookat": (0.0, 0.68, 0.1), "distance": 1.1, "azimuth": 90.0, "elevation": -45.0},
    "side_camera": {"lookat": (0.0, 0.68, 0.12), "distance": 1.1, "azimuth": 180.0, "elevation": -20.0},
}
HIDDEN = 5  # a group of geometries that is not drawn
BOXES = ("right_l6", "right_hand", "tablelink")  # bodies whose meshes are drawn as boxes
ARM = {"right_arm_base_link", "head", "pedestal", "torso", "controller_box", "pedestal_feet", "screen", "right_l1_2"}
ARM |= {f"right_l{k}" for k in range(6)}
# Three bins are about as far as the hand goes in the time of half a chunk; the gripper is nearly open or closed.
BLUR: dict[str, Any] = {"algorithm.blur": [3.0, 3.0, 3.0, 1.0]}
PICTURES: dict[str, Any] = {  # a clone that is told where things are in its pictures: 300 to 500 CPU-s
    "task.full_share": 0.5,
    "algorithm.head": "flow",
    "algorithm.network.choice": True,
    "algorithm.network.places": True,
    "algorithm.network.looks": False,
    "algorithm.unheard": 0.5,
    "algorithm.refused": 0.1,
    "algorithm.glimpses": 700,
    "algorithm.localisation": 1500,
    "algorithm.updates": 2000,
}
PRACTICE: dict[str, Any] = {  # of a clone of mediocre demonstrations
    **BLUR,
    "algorithm.clone.episodes": 70,
    "algorithm.clone.corruption": 2.0,
    "algorithm.clone.updates": 3000,
    "algorithm.clone.unheard": 0.5,
    "algorithm.clone.refused": 0.1,
    "algorithm.clone.network.choice": True,
    "algorithm.iterations": 22,
    "algorithm.curriculum": False,
    "algorithm.episodes": 56,
    "algorithm.num_envs": 14,
    "algorithm.critic_alone": 1,
    "algorithm.critic_passes": 20,
    "algorithm.epochs": 4,
    "algorithm.learning_rate": 2e-4,
    "algorithm.target_kl": 0.06,
    "algorithm.anchor": 0.01,
    "algorithm.ema_decay": 0.95,
}
PLACES: dict[str, Any] = {**PRACTICE, "task.cameras": []}  # told where things are: some 350 CPU-s
GOOD: dict[str, Any] = {  # the same of three good demonstrations of each task: some 600 CPU-s
    **PLACES,
    "algorithm.clone.episodes": 21,
    "algorithm.clone.corruption": 0.0,
    "algorithm.clone.jitter": 0.15,
    "algorithm.iterations": 60,
    "algorithm.curriculum": True,
    "algorithm.progress": 1.0,
    "algorithm.kept": True,
    "algorithm.astray": 0.3,
    "algorithm.gae_lambda": 0.5,
    "algorithm.batch_size": 128,
    "algorithm.learning_rate": 5e-4,
    "algorithm.target_kl": 0.25,
    "algorithm.clip": 0.3,
    "algorithm.clip_above": 0.4,
}
LOOKING: dict[str, Any] = {  # practice from pictures, of a clone that is told where things are in them: 1 200 CPU-s
    **PRACTICE,
    "algorithm.clone.network.places": True,
    "algorithm.clone.network.looks": False,
    "algorithm.clone.glimpses": 700,
    "algorithm.clone.localisation": 1500,
}


@dataclass
class WordsSettings(Settings):
    """Of the tasks in words."""

    tasks: list[str] = field(default_factory=lambda: [*EASY])  # or a collection, MT10, which stands for its tasks
    steps: int = 150  # of an episode at most
    cameras: list[str] = field(default_factory=lambda: [*VIEWS])  # []: where things are, in place of pictures
    # That episodes are asked for with; of an evaluation: held_out, or wrong, another's of `tasks` (of one: of EASY).
    sentences: str = "learned"
    full: bool = False  # pictures of all meshes
    full_share: float = 0.0  # of the episodes whose pictures are of all meshes anyway, in learning: 0 to 1
    encoder: str = field(default="", metadata={PLACE: True})  # folder of the sentence encoder (default: extra [vla]'s)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sentences not in SENTENCES:
            raise ValueError(f"sentences {self.sentences!r} is not one of {', '.join(SENTENCES)}")
        if not 0.0 <= self.full_share <= 1.0:
            raise ValueError(f"full_share must be in 0..1, got {self.full_share}")
        self.tasks = [one for name in self.tasks for one in (names(name) if name in COLLECTIONS else [name])]
        if odd := [name for name in self.cameras if name not in VIEWS]:
            raise ValueError(f"camera {odd[0]!r} is not one of {', '.join(VIEWS)}")
        if len({*self.cameras}) < len(self.cameras):
            raise ValueError(f"cameras are different ones, got {', '.join(self.cameras)}")
        if not self.tasks or len({*self.tasks}) < len(self.tasks):
            raise ValueError(f"tasks are different ones, at least one, got {', '.join(self.tasks) or 'none'}")


class MetaWorldWords(MetaWorldMany):
    """Several environments of Meta-World, seen and told."""

    Config = WordsSettings
    name = "metaworld/words"
    algorithm = "vla"
    goal = ""
    object_positions, target_positions = ("object_position", "goal_position"), ()
    recipes = {
        "vla": {
            "default": PICTURES,
            "tokens": {},  # bins, and neither choices nor places
        },
        "vla_rl": {"default": LOOKING, "places": PLACES, "good": GOOD, "tokens": BLUR},
    }

    config: WordsSettings

    def __init__(self, config: WordsSettings | None = None) -> None:
        self.config = config or WordsSettings()
        self.episode_steps = self.config.steps
        asked = (instructions_of(f"metaworld/{name}") for name in self.config.tasks)
        self.instructions: tuple[Instructions, ...] = tuple(asked)
        self.members = [task(name)(None) for name in self.config.tasks]
        self.words: WordPiece = tokeniser(encoder_folder(self.config.encoder))
        seen, cameras = signals(2), self.config.cameras
        measured = 2 if cameras else len(seen)  # of these; the rest only simulators know
        self.privileged: Group = (*seen[measured:], Signal("task", (len(self.members),), "1", "", 0.0, 1.0))
        last = float(len(self.words.vocabulary) - 1)
        pictures = (Signal(name, (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8") for name in cameras)
        told = Signal("instruction", (MOST,), "1", "", 0.0, last, max_age=3600.0, dtype="int64")
        self.policy = (*seen[:measured], *pictures, told)

    @property
    def features(self) -> tuple[Feature, ...]:
        """What can be measured, as it is."""
        return tuple(Feature(s.name) for s in numbers(self.policy))

    @property
    def encoder(self) -> Path:
        """The folder of the sentence encoder whose tokens its policy is told."""
        return encoder_folder(self.config.encoder)

    def others(self, number: int) -> tuple[Instructions, ...]:
        """Of the other tasks, from the next on; of those that are easy, where there is only one."""
        if len(self.instructions) > 1:
            return (*self.instructions[number + 1 :], *self.instructions[:number])
        return tuple(instructions_of(f"metaworld/{name}") for name in EASY if name not in self.config.tasks)

    def judged(self) -> MetaWorldWords:
        """With pictures of one kind: plain, or full."""
        return type(self)(replace(self.config, full_share=0.0))

    def full(self, episode: int) -> bool:
        """Whether pictures of the episode of that number are of all meshes: of each task's, that share in turn."""
        turn, share = episode // len(self.members), self.config.full_share
        return self.config.full or int((turn + 1) * share) > int(turn * share)

    def in_pictures(self, positions: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Where positions (..., 3), m, are in its pictures (..., 2): right and down, -1 to 1 from edge to edge."""
        return {name: seen_from(VIEWS[name], positions) for name in self.config.cameras}

    def open(self, num: int, seed: int) -> Env:
        return ToldScenes(self, num, seed)


class ToldScenes(ManyScenes):
    """`num` scenes with cameras, and what was said in each."""

    task: MetaWorldWords

    def __init__(self, task: MetaWorldWords, num: int, seed: int) -> None:
        super().__init__(task, num, seed)
        self._said = np.zeros((num, MOST), np.int64)
        self.pictures = PictureCache(spec.pictures(task.policy), num)
        self._full = np.zeros(num, bool)  # whose pictures are of all meshes
        self._cameras: dict[int, tuple[Any, Any]] = {}  # task -> its camera and its plain model

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        super().reset(rows, episodes)
        for row, episode in zip(rows, episodes, strict=True):
            rng = np.random.default_rng([self.seed, episode, SAID])
            number = int(self.chosen[row])
            self._full[row] = self.task.full(episode)
            asked, others = self.task.instructions[number], partial(self.task.others, number)
            sentence = asked_with(rng, self.task.config.sentences, asked, others)
            self._said[row] = self.task.words.encode([sentence])[0][0]
        self.pictures.moved.update(rows)

    def rest(self, rows: Sequence[int]) -> None:
        super().rest(rows)
        self.pictures.moved.difference_update(rows)

    def observe(self) -> dict[str, Array]:
        return self.truth() | self.pictures.see(self._look)

    def _look(self, row: int) -> dict[str, NDArray[np.uint8]]:
        from sim.render.camera import Camera

        env: Any = self.envs[row]  # one of Meta-World's
        environment, number = env.environments[0], int(self.chosen[row])
        if number not in self._cameras:
            self._cameras[number] = Camera(environment.model, PIXELS, PIXELS), plain(environment.model)
        camera, drawn = self._cameras[number]
        model = environment.model if self._full[row] else drawn
        return {name: camera.see(environment.data, VIEWS[name], model) for name in self.pictures.names}

    def truth(self) -> dict[str, Array]:
        return super().observe() | {"instruction": self._said.copy()}

    def step(self, command: Mapping[str, Array]) -> Step:
        outcome = super().step(command)
        self.pictures.moved.update(row for row, env in enumerate(self.envs) if env is not None)
        return outcome

    def close(self) -> None:
        for camera, _ in self._cameras.values():
            camera.close()
        super().close()


def plain(model: Any) -> Any:
    """A copy of a model to be drawn: without the arm's links, and with boxes for the hand's and the table's meshes."""
    from mujoco import mjtGeom

    drawn = copy.copy(model)
    for geom in range(model.ngeom):
        body = model.body(model.geom_bodyid[geom]).name
        if body in ARM:
            drawn.geom_group[geom] = HIDDEN
        elif body in BOXES and model.geom_type[geom] == mjtGeom.mjGEOM_MESH:
            drawn.geom_type[geom] = mjtGeom.mjGEOM_BOX
            drawn.geom_size[geom] = model.geom_aabb[geom][3:]
    return drawn

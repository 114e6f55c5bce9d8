"""Put a coloured cube beside another one, as a sentence says, seen by two cameras.

Left, right, in front and behind are those of `front_camera`, and of who sits opposite the arm. In every scene all that
can be asked for is possible and nothing of it is done, so that the words alone say what to do.

What is privileged is what the words mean, and an expert does what he is told; success is what was wanted. With
`task.sentences=wrong` these are two things.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.engines import BENCHES
from sim.env import Array
from sim.language import SAID, SENTENCES, Instructions
from sim.language.folder import encoder_folder, installed, tokeniser
from sim.language.relations import COLOURS, instructions, things
from sim.language.wordpiece import MOST, WordPiece
from sim.robots.panda import Double
from sim.rotations import rotation_matrices
from sim.scenes.tabletop import Block
from sim.spec import Group, Signal, numbers
from sim.tasks import PLACE, Recipes
from sim.tasks.arm import CUBE, Scenes
from sim.tasks.arm.pick_place import TURN, ArmPickPlace, PickPlaceConfig
from sim.terms import Feature

if TYPE_CHECKING:
    from sim.engines.workbench import Variation

PAINT = {"red": (0.85, 0.15, 0.1), "green": (0.1, 0.6, 0.2), "blue": (0.1, 0.25, 0.85), "yellow": (0.95, 0.8, 0.1)}
BESIDE = 0.08  # m between the centres
# Seen from opposite the arm: it looks along -x, and y grows to its right.
PLACES = {"left": (0.0, -BESIDE), "front": (BESIDE, 0.0), "right": (0.0, BESIDE), "behind": (-BESIDE, 0.0)}
APART = 0.1  # m between cubes, so that open fingers fit between them
FREE = 0.07  # m between a place and a cube that is not to go there
LOW, HIGH = (0.39, -0.21), (0.61, 0.21)  # m: where cubes lie
MOVED = 0.02  # m: a cube that is nearer to where it was has not been taken
HEIGHT = 4.0  # a metre of height counts as so many: while one of them is in the air, nothing has been put beside it
COMBINATIONS = ("learned", "held_out")
MEANING = ("object_position", "goal_position")  # the cube that the words mean, and where it is to go
KNOWN = 30_522  # tokens of BERT's vocabulary, which the wheel has


@dataclass
class WordsConfig(PickPlaceConfig):
    """Settings of arm_words."""

    cameras: list[str] = field(default_factory=lambda: ["front_camera", "side_camera"])  # []: where all cubes are
    meaning: bool = False  # the policy sees besides where the cube is that the words mean, and where it is to go
    colours: list[str] = field(default_factory=lambda: ["red", "green", "blue"])  # a cube of each
    sentences: str = "learned"  # of an evaluation: held_out, or wrong, which asks for something else
    combinations: str = "learned"  # of a colour and where it goes; held_out: those that learning never sees
    encoder: str = field(default="", metadata={PLACE: True})  # folder of the sentence encoder (default: extra [vla]'s)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("sentences", SENTENCES), ("combinations", COMBINATIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if odd := [colour for colour in self.colours if colour not in COLOURS]:
            raise ValueError(f"colour {odd[0]!r} is not one of {', '.join(COLOURS)}")
        if not 2 <= len({*self.colours}) == len(self.colours):
            raise ValueError(f"colours are different ones, at least two, got {', '.join(self.colours) or 'none'}")


class ArmWords(ArmPickPlace):
    """Success: the cube lies within 4 cm of the middle of the place that was wanted, 8 cm beside the other one."""

    Config = WordsConfig
    name = "arm_words"
    algorithm = "vla"
    engines = {"mujoco": BENCHES["mujoco"]}
    goal = ""
    scores = {"success": "%", "duration": "s", "final_distance": "m", "named_cube": "%"}
    object_positions = ("cube_position",)
    recipes: ClassVar[Recipes] = {
        "vla": {
            "default": {
                "algorithm.episodes": 400,
                "algorithm.corruption": 0.3,
                "algorithm.updates": 3000,
                "algorithm.network.offsets": 8,
                "algorithm.network.encoder_layers": 4,
                "algorithm.network.looks": False,
            }
        },
        "vla_rl": {
            "default": {
                "algorithm.clone.episodes": 400,
                "algorithm.clone.corruption": 0.3,
                "algorithm.clone.updates": 3000,
                "algorithm.clone.network.offsets": 8,
                "algorithm.clone.network.encoder_layers": 4,
                "algorithm.clone.network.looks": False,
                "algorithm.iterations": 24,
                "algorithm.episodes": 72,
                "algorithm.num_envs": 24,
                "algorithm.blur": [1.0],
                "algorithm.critic_alone": 1,
                "algorithm.critic_passes": 20,
                "algorithm.epochs": 4,
                "algorithm.learning_rate": 2e-4,
                "algorithm.target_kl": 0.06,
                "algorithm.anchor": 0.01,
                "algorithm.ema_decay": 0.95,
            }
        },
    }
    close = 0.04
    clear = 0.1  # over the other cubes
    slope = 1.0

    config: WordsConfig

    def __init__(self, config: WordsConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.things = things(config.colours)
        # Of each thing: the number of the cube that moves, that of the other one, and what shall lie between them, m.
        self._moved = np.array([config.colours.index(thing.moved) for thing in self.things])
        self._reference = np.array([config.colours.index(thing.reference) for thing in self.things])
        self._beside = np.array([(*PLACES[thing.relation], 0.0) for thing in self.things])
        unseen = config.combinations == "held_out"
        self.possible = tuple(k for k, thing in enumerate(self.things) if thing.unseen == unseen)  # by their numbers
        self.instructions: tuple[Instructions, ...] = tuple(instructions(self.things[k]) for k in self.possible)
        known = len(self.words.vocabulary) if config.encoder or installed() else KNOWN
        told = Signal("instruction", (MOST,), "1", "", 0.0, known - 1.0, max_age=3600.0, dtype="int64")
        true: Group = (
            Signal("object_position", (3,), "m", "world"),
            Signal("object_rotation", (9,), "1", "world"),
            Signal("goal_position", (3,), "m", "world"),
            Signal("cube_position", (3 * len(config.colours),), "m", "world"),
            Signal("meant", (len(self.things),), "1", "", 0.0, 1.0),
        )
        shown = {*(() if config.cameras else ("cube_position",)), *(MEANING if config.meaning else ())}
        self.target_positions = () if config.meaning else MEANING
        sensed = {"joint_position", "gripper_opening", "hand_position", *config.cameras}
        seen = (s for s in self.policy if s.name in sensed)
        self.policy: Group = (*seen, *(s for s in true if s.name in shown), told)
        self.privileged: Group = tuple(s for s in true if s.name not in shown)
        self.features = tuple(Feature(s.name) for s in numbers(self.policy))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(dataclasses.replace(CUBE, colour=PAINT[colour]) for colour in self.config.colours)

    @property
    def encoder(self) -> Path:
        """The folder of the sentence encoder whose tokens its policy is told."""
        return encoder_folder(self.config.encoder)

    @property
    def words(self) -> WordPiece:
        """What cuts sentences into tokens."""
        return tokeniser(self.encoder)

    def open(self, num: int, seed: int) -> ToldTables:
        return ToldTables(self, num, seed)

    def draw(self, rng: np.random.Generator) -> tuple[Double, Double]:
        while True:
            cubes = rng.uniform(LOW, HIGH, (len(self.config.colours), 2))
            if self._possible(cubes):
                turns = rng.uniform(-TURN, TURN, len(cubes))
                height = np.full(len(cubes), CUBE.half_size[2])
                return np.column_stack([cubes, height, turns]), np.zeros(3)

    def _possible(self, cubes: Double) -> bool:
        """Whether cubes (n, 2) lie apart, all places are free, and no cube is where it may be asked for."""
        away = np.linalg.norm(cubes[:, None] - cubes, axis=2)
        if away[~np.eye(len(cubes), dtype=bool)].min() < APART:
            return False
        places = cubes[:, None] + np.array([*PLACES.values()])  # (n, 4, 2) beside each
        off = np.linalg.norm(places[:, :, None] - cubes, axis=3)  # (n, 4, n) from each cube
        return bool(off[~np.eye(len(cubes), dtype=bool)[:, None].repeat(4, 1)].min() > FREE)

    def said(self, episode: int, seed: int) -> tuple[int, np.random.Generator]:
        """Which of `instructions` is wanted in the episode of that number, and what its sentence is drawn from."""
        rng = np.random.default_rng([seed, episode, SAID])
        return int(rng.choice(len(self.instructions))), rng

    def asked(self, episode: int, seed: int) -> int:
        """See `sim.tasks.abilities.HasWords`."""
        return self.said(episode, seed)[0]

    def others(self, wanted: int) -> list[int]:
        """What else may be asked for, in a combination that learning sees; nothing that this one brings about."""
        thing = self.things[wanted]
        return [k for k, t in enumerate(self.things) if not t.unseen and t not in (thing, thing.converse)]

    def meaning(self, poses: Double, meant: NDArray[np.int64]) -> dict[str, Array]:
        """Of cubes at poses (n, cubes, 7), which is to go where, if the thing of that number (n,) is meant."""
        row = np.arange(len(poses))
        cube, reference = poses[row, self._moved[meant]], poses[row, self._reference[meant], :3]
        found = {
            "object_position": cube[:, :3],
            "object_rotation": rotation_matrices(cube[:, 3:]).reshape(-1, 9),
            "goal_position": reference + self._beside[meant],
        }
        return {name: values.astype(np.float32) for name, values in found.items()}

    def distance(self, signals: Mapping[str, Array]) -> Array:
        away = signals["object_position"] - signals["goal_position"]
        distance: Array = np.maximum(np.linalg.norm(away[..., :2], axis=-1), HEIGHT * np.abs(away[..., 2]))
        return distance

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """As the words mean it; `named_cube`: whether the cube that they name was moved, and furthest."""
        cubes = flight["cube_position"].reshape(*flight["cube_position"].shape[:2], -1, 3)
        moved = np.linalg.norm(cubes[-1] - cubes[0], axis=-1)
        named = self._moved[flight["meant"][0].argmax(-1)]
        right = (moved.argmax(-1) == named) & (moved.max(-1) > MOVED)
        return super().score(flight) | {"named_cube": right.astype(np.float32)}


class ToldTables(Scenes):
    """`num` tables with several cubes, and what was said at each."""

    task: ArmWords

    def __init__(self, task: ArmWords, num: int, seed: int, threads: int | None = None) -> None:
        words = task.words  # ValueError without an encoder
        super().__init__(task, num, seed, threads)
        self._words, self._told = words, np.zeros((num, MOST), np.int64)
        self.wanted, self.meant = np.zeros((2, num), np.int64)  # by their numbers

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        super().reset(rows, episodes)
        task = self.task
        for row, episode in zip(rows, episodes, strict=True):
            asked, rng = task.said(episode, self.seed)
            wanted = meant = task.possible[asked]
            if task.config.sentences == "wrong":
                meant = int(rng.choice(task.others(wanted)))
            said = instructions(task.things[meant])
            sentence = said.draw(rng, held_out=task.config.sentences != "learned")
            self.wanted[row], self.meant[row] = wanted, meant
            self._told[row] = self._words.encode([sentence])[0][0]

    def _vary(self, rng: np.random.Generator) -> Variation:
        return dataclasses.replace(super()._vary(rng), colour=None)  # by which they are told apart

    def _state(self) -> dict[str, Array]:
        poses = self.bench.block_poses
        cubes = poses[..., :3].reshape(self.num, -1).astype(np.float32)
        meant = np.eye(len(self.task.things), dtype=np.float32)[self.meant]
        told: dict[str, Array] = {"instruction": self._told.copy(), "cube_position": cubes, "meant": meant}
        return super()._state() | self.task.meaning(poses, self.meant) | told

    def _judged(self) -> dict[str, Array]:
        return self._seen | self.task.meaning(self.bench.block_poses, self.wanted)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        self._goal[row] = self.task.meaning(self.bench.block_poses, self.meant)["goal_position"][row]
        return super().render(row, height, width)

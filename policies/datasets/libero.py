"""python -m policies.datasets.libero source=DIR out=DIR [size=64]: LIBERO's demonstrations as a dataset of ours.

`source` is a folder of LIBERO's files, TASK_demo.hdf5, also those that OpenVLA's script played back anew. An episode's
text is what the file's name says, as in LIBERO's evaluations, else its own instruction. Pictures are turned upright.
Signals and commands are those of `task=libero/NAME`: m and rad in the place of OSC_POSE's [-1, 1].

In LIBERO's own files a picture was taken after the action beside it, in those played back before. The recorded states
tell which; a frame here is what was seen and what was then done. An import that was interrupted continues, where what
is there are the first of the episodes that would be written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deploy import cli
from policies.collect import ACTION, PICTURES, REWARD, STATE, SUCCESS, elements
from policies.datasets import bounds, hdf5
from policies.datasets.features import Array, DatasetError, Feature, not_finite
from policies.datasets.reader import Dataset
from policies.datasets.writer import Writer
from sim import spec
from sim.language.libero import sentence
from sim.tasks.external.libero import COMMANDS, RATE, SCALE, STEP, TURN, measured, smaller

if TYPE_CHECKING:
    import h5py

SUFFIX = "_demo.hdf5"
LONGEST = 500  # characters of an instruction
STEPS = 10_000  # of an episode
SEEN = {"agentview": "agentview_rgb", "eye_in_hand": "eye_in_hand_rgb"}  # our name -> theirs
NUMBERS = {"joint_states": 7, "gripper_states": 2, "ee_pos": 3, "ee_ori": 3}
OBSERVED = ("auto", "after", "before")
JOINTS = slice(1, 8)  # of a recorded state, which begins with the time
UPSIDE_DOWN, UPRIGHT = "opengl", "opencv"  # robosuite's conventions
PART = 64  # pictures that are read together


@dataclass
class Config:
    """Settings of the command."""

    source: str = field(metadata={"help": "folder of LIBERO's files, *_demo.hdf5"})
    out: str = field(metadata={"help": "the new dataset"})
    size: int = field(default=64, metadata={"help": "pixels per side of a picture (0: as they are)"})
    film: bool = field(default=False, metadata={"help": "pictures as films, a tenth of the size and not exact"})
    observed: str = field(default="auto", metadata={"help": "pictures were taken after or before the action beside"})

    def __post_init__(self) -> None:
        if not 0 <= self.size <= 1024:
            raise ValueError(f"size must be between 0 (as they are) and 1024 pixels, got {self.size}")
        if self.observed not in OBSERVED:
            raise ValueError(f"observed {self.observed!r} is not one of {', '.join(OBSERVED)}")


@dataclass(frozen=True)
class Source:
    """A file of one task."""

    path: Path
    text: str  # what was to be done
    turned: bool  # pictures are upside down
    demos: tuple[str, ...]
    pixels: int


def _text(path: Path, told: str) -> str:
    """What a task's file asks for, by its name or else by its attribute `problem_info`."""
    if path.name.endswith(SUFFIX):
        found = sentence(path.name.removesuffix(SUFFIX))
    else:
        said = json.loads(told or "{}")["language_instruction"]
        found = ("".join(said) if isinstance(said, list) else str(said)).strip('" ')
    if not 0 < len(found) <= LONGEST or not found.isprintable():
        raise ValueError(f"an instruction of {len(found)} characters, {found!r:.80}")
    return found


def _inspected(path: Path) -> Source:
    """What a file holds, by its names and shapes: no numbers are read. DatasetError says what is wrong."""
    with hdf5.opened(path) as file:
        data = hdf5.group(file, "data")
        told = hdf5.text(data, "problem_info")
        if not told and not path.name.endswith(SUFFIX):
            raise DatasetError(f"neither an attribute problem_info nor a name TASK{SUFFIX} says what was to be done")
        text = _text(path, told)
        _checked_controller(hdf5.text(data, "env_args"))
        convention = hdf5.text(data, "macros_image_convention") or UPSIDE_DOWN
        if convention not in (UPSIDE_DOWN, UPRIGHT):
            raise DatasetError(f"macros_image_convention {convention!r:.40} is neither {UPSIDE_DOWN} nor {UPRIGHT}")
        if len(data) > hdf5.MEMBERS:
            raise DatasetError(f"{len(data)} demonstrations; at most {hdf5.MEMBERS} are read")
        names = [name for name in data if re.fullmatch(r"demo_\d{1,6}", name)]
        if not names:
            raise DatasetError("'data' holds no demo_0")
        demos = tuple(sorted(names, key=lambda name: int(name[5:])))
        sizes = {_shape(data, name) for name in demos}
        if len(sizes) > 1:
            raise DatasetError(f"pictures have {' and '.join(map(str, sorted(sizes)))} pixels")
        parts = ("", *(f"/{part}" for part in ("actions", "obs", *(f"obs/{name}" for name in SEEN.values()))))
        for part in parts:
            if len({hdf5.address(data[name + part]) for name in demos}) < len(demos):
                raise DatasetError(f"two demonstrations are the same: {demos[0] + part!r} or another has two names")
        return Source(path, text, convention == UPSIDE_DOWN, demos, sizes.pop())


def _checked_controller(told: str) -> None:
    """DatasetError when actions are said to mean something else than OSC_POSE's, or to come at another rate."""
    known = json.loads(told or "{}").get("env_kwargs", {})
    controller = known.get("controller_configs", {})
    if not isinstance(controller, dict):
        raise DatasetError(f"its attribute env_args has controller_configs {controller!r:.80}, which is no map")
    said = {"control_freq": known.get("control_freq", RATE), **controller}
    most = [STEP] * 3 + [TURN] * 3
    usual = {"control_freq": RATE, "type": "OSC_POSE", "control_delta": True, "input_min": -1, "input_max": 1}
    usual |= {"output_min": [-x for x in most], "output_max": most}
    for name, value in usual.items():
        if said.get(name, value) != value:
            raise DatasetError(f"its attribute env_args has {name} {said[name]!r:.80}, not {value!r}")


def _shape(data: h5py.Group, name: str) -> int:
    """Pixels per side of a demonstration's pictures. DatasetError where something is missing or of another shape."""
    with _of(name):
        demo = hdf5.group(data, name)
        seen = hdf5.group(demo, "obs")
        found = {"actions": hdf5.array(demo, "actions"), "rewards": hdf5.array(demo, "rewards")}
        steps = len(found["actions"])
        if not 2 <= steps <= STEPS:
            raise DatasetError(f"{steps} actions; between 2 and {STEPS} are read")
        found |= {key: hdf5.array(seen, key) for key in NUMBERS}
        shapes: dict[str, tuple[int, ...]] = {"actions": (steps, 7), "rewards": (steps,)}
        shapes |= {key: (steps, size) for key, size in NUMBERS.items()}
        found |= {key: hdf5.array(seen, key, bounds.PICTURES) for key in SEEN.values()}
        side = max(found[SEEN["agentview"]].shape[1:2], default=0)
        shapes |= dict.fromkeys(SEEN.values(), (steps, side, side, 3))
        for key, shape in shapes.items():
            if found[key].shape != shape or 0 in shape:
                raise DatasetError(f"{key!r} has shape {found[key].shape}, not {shape}")
        if odd := [key for key in SEEN.values() if found[key].dtype != np.uint8]:
            raise DatasetError(f"{odd[0]!r} holds {found[odd[0]].dtype}, not uint8")
        return int(side)


@contextmanager
def _of(name: str) -> Iterator[None]:
    """A DatasetError within says of which file or demonstration it is."""
    try:
        with bounds.malformed("it is damaged"):
            yield
    except DatasetError as error:
        raise DatasetError(f"{name}: {error}") from None
    except (OSError, RuntimeError) as error:  # h5py, of damaged files and of foreign compression
        raise DatasetError(f"{name}: it is damaged: {error}") from None


def _after(demo: h5py.Group, joints: Array, observed: str) -> bool:
    """Whether things were seen after the action beside them: by the state that was recorded before it."""
    if observed != "auto":
        return observed == "after"
    if "states" not in demo:
        raise DatasetError("no 'states' tell when things were seen: set observed=after (LIBERO's own files) or =before")
    states = hdf5.array(demo, "states")
    if len(states.shape) != 2 or len(states) != len(joints) or states.shape[1] < JOINTS.stop:
        raise DatasetError(f"'states' has shape {states.shape}, not ({len(joints)}, more than {JOINTS.stop})")
    before = states[:, JOINTS]
    same, later = np.abs(joints - before).sum(), np.abs(joints[:-1] - before[1:]).sum()
    if not np.isfinite(same + later) or same == later:
        raise DatasetError("'states' do not tell when things were seen: set observed=after or observed=before")
    return bool(later < same)


def rotations(turned: Array) -> Array:
    """Matrices by rows (n, 9) of axis times angle (n, 3) rad."""
    angle = np.linalg.norm(turned, axis=1)[:, None, None]
    x, y, z = (turned / np.maximum(angle[:, :, 0], 1e-12)).T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)
    made: Array = np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross
    return made.reshape(-1, 9)


def _numbers(group: h5py.Group, name: str) -> Array:
    values = np.asarray(hdf5.array(group, name)[()], np.float64)
    if (bad := not_finite(values)) is not None:
        raise DatasetError(f"{name!r} is not a finite number in frame {bad}")
    return values


def _seen(held: h5py.Dataset, rows: slice, turned: bool, size: int) -> Array:
    """Pictures upright and of that size, read some at a time."""
    parts = []
    for first in range(rows.start, rows.stop, PART):
        some = held[first : min(first + PART, rows.stop)]
        parts.append(smaller(some[:, ::-1] if turned else some, size))
    return np.ascontiguousarray(np.concatenate(parts))


def _frames(demo: h5py.Group, source: Source, size: int, observed: str) -> dict[str, Array]:
    """What was seen and then done."""
    seen = hdf5.group(demo, "obs")
    actions, rewards = _numbers(demo, "actions"), _numbers(demo, "rewards")
    if np.abs(actions).max() > 1.0 + 1e-6:
        raise DatasetError(f"'actions' go up to {np.abs(actions).max():.3g}, beyond 1")
    told = {name: _numbers(seen, name) for name in NUMBERS}
    after = _after(demo, told["joint_states"], observed)
    steps = len(actions) - after
    then = slice(int(after), None)
    state = [told["joint_states"], told["gripper_states"], told["ee_pos"], rotations(told["ee_ori"])]
    done = np.clip(actions, -1.0, 1.0) * SCALE
    frames = {
        STATE: np.concatenate(state, axis=1)[:steps].astype(np.float32),
        ACTION: done[then].astype(np.float32),
        REWARD: rewards[then, None].astype(np.float32),
        SUCCESS: rewards[then, None] > 0.5,
    }
    for name, theirs in SEEN.items():
        held = hdf5.array(seen, theirs, bounds.PICTURES)
        frames[PICTURES + name] = _seen(held, slice(0, steps), source.turned, size)
    return frames


def _sources(folder: Path) -> list[Source]:
    """The files of a folder by their names. DatasetError says which of them is no good."""
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".hdf5")
    if not paths:
        raise DatasetError(f"{folder} holds no files *{SUFFIX}, as LIBERO has them")
    found = []
    for path in paths:
        with _of(str(path)):
            found.append(_inspected(bounds.inside(folder, path.name)))
    return found


def _features(pixels: int, film: bool) -> dict[str, Feature]:
    """What a dataset holds, as `policies.collect` would describe it for the task."""
    numbers = measured()
    return {
        STATE: Feature("float32", (spec.size(numbers),), elements(numbers)),
        **{PICTURES + name: Feature("video" if film else "image", (pixels, pixels, 3)) for name in SEEN},
        ACTION: Feature("float32", (spec.size(COMMANDS),), elements(COMMANDS)),
        REWARD: Feature("float32", (1,)),
        SUCCESS: Feature("bool", (1,)),
    }


def _episodes(source: Source, size: int, observed: str, skipped: int) -> Iterator[dict[str, Array]]:
    """Of a file, but for the first ones."""
    with hdf5.opened(source.path) as file:
        data = hdf5.group(file, "data")
        for name in source.demos[skipped:]:
            with _of(f"{source.path}: {name}"):
                frames = _frames(hdf5.group(data, name), source, size, observed)
            yield frames


def _check_there(config: Config, sources: Sequence[Source], size: int) -> None:
    """DatasetError unless the episodes in `out` are the first of those that are to be there."""
    dataset, wanted = Dataset(config.out), [(source, name) for source in sources for name in source.demos]
    other = "take another folder, or the source and the settings that it was begun with"
    if len(dataset) > len(wanted):
        raise DatasetError(f"{config.out} has {len(dataset)} episodes, {config.source} {len(wanted)}: {other}")
    for k, (found, (source, _)) in enumerate(zip(dataset.episode_tasks, wanted, strict=False)):
        if found != source.text:
            raise DatasetError(f"{config.out}: episode {k} is {found!r:.80}, not {source.text!r:.80}: {other}")
    last = len(dataset) - 1
    source, name = wanted[last]
    frames = next(_episodes(source, size, config.observed, source.demos.index(name)))
    if not np.array_equal(dataset.read(ACTION, last), frames[ACTION]):
        raise DatasetError(f"{config.out}: episode {last} does not have the actions of {source.path}: {name}; {other}")


def convert(config: Config) -> int:
    """Import what is not yet in `out`; the number of episodes there. Raises DatasetError naming what is wrong.

    All files are looked at before anything is written, their numbers and pictures with each episode.
    """
    sources = _sources(Path(config.source))
    size = config.size or sources[0].pixels
    for source in sources:
        if source.pixels % size or (config.size == 0 and source.pixels != size):
            raise DatasetError(
                f"{source.path}: pictures of {source.pixels} pixels cannot be made {size} by whole means"
            )
    with Writer(config.out, round(RATE), _features(size, config.film), "panda") as writer:
        if len(writer):
            _check_there(config, sources, size)
        first = 0
        for source in sources:
            for frames in _episodes(source, size, config.observed, max(0, len(writer) - first)):
                writer.add_episode(frames, source.text)
            first += len(source.demos)
        return len(writer)


def main(argv: Sequence[str]) -> None:
    """Convert and tell."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    episodes = convert(config)
    print(f"{config.out}: {episodes} episodes; python -m policies.datasets folder={config.out}")


if __name__ == "__main__":
    sys.exit(cli.call(main, needs="train,datasets"))

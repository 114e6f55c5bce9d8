"""A folder as LeRobot's `save_pretrained` writes it: config.json, model.safetensors, and the processors around it.

Only numbers and texts are read. The processors' steps that change numbers are known here, or refused by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.policy_file import PolicyFileError
from deploy.trust import safetensors
from deploy.trust.onnx_limits import Limits
from deploy.trust.reading import read_json_object
from policies.models.networks import Array

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
STATE, PLACE, ACTION = "observation.state", "observation.environment_state", "action"
LONGEST = 1 << 20  # bytes of JSON
LARGEST = 1_000_000  # side of a shape
PICTURES, WIDEST = 16, 4096  # of pictures: how many, and their sides in pixels
# Steps that leave numbers as they are, or that are carried out elsewhere: pictures are brought into 0 to 1 by ours.
IDLE = ("to_batch_processor", "device_processor")
RENAME, NORMALISE, RESTORE = "rename_observations_processor", "normalizer_processor", "unnormalizer_processor"
# Of each mode: which statistics it takes.
MODES = {"IDENTITY": (), "MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max")}
KEYS = ("mean", "std", "min", "max", "q01", "q10", "q50", "q90", "q99")  # statistics of a feature's size
MODES |= {"QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}


@dataclass(frozen=True)
class Normaliser:
    """(x - shift) / scale - less: lerobot.processor.normalize_processor, version 0.4."""

    shift: Array
    scale: Array
    less: float = 0.0
    restored: Array | None = None  # the scale on the way back, where it is another


class Settings:
    """The numbers, words and flags of config.json; PolicyFileError names one that is missing or odd."""

    def __init__(self, path: str, found: Mapping[str, Any]) -> None:
        self.path, self._found = path, found

    def whole(self, key: str, most: int = 100_000, least: int = 1) -> int:
        value = self._found.get(key)
        if type(value) is not int or not least <= value <= most:
            raise PolicyFileError(f"{self.path}: {key} is {value!r:.40}; needs a whole number from {least} to {most}")
        return value

    def wholes(self, key: str) -> tuple[int, ...]:
        value = self._found.get(key)
        if not isinstance(value, list) or not 1 <= len(value) <= 64:
            raise PolicyFileError(f"{self.path}: {key} is {value!r:.40}; needs a list of whole numbers")
        return tuple(Settings(self.path, {key: one}).whole(key) for one in value)

    def number(self, key: str) -> float:
        value: Any = self._found.get(key)
        # JSON's whole numbers may be larger than any float.
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            raise PolicyFileError(f"{self.path}: {key} is {value!r:.40}; needs a number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._found.get(key)
        if type(value) not in (bool, int):  # replace_final_stride_with_dilation is an int in its own files
            raise PolicyFileError(f"{self.path}: {key} is {value!r:.40}; needs true or false")
        return bool(value)

    def word(self, key: str, *choices: str) -> str:
        value = self._found.get(key)
        if value not in choices:
            raise PolicyFileError(f"{self.path}: {key} is {value!r:.40}; adopted are: {', '.join(choices)}")
        return str(value)

    def nothing(self, key: str, why: str, zero: bool = False) -> None:
        """PolicyFileError with the reason where something is set that is not adopted.

        0 is something, unless `zero`: of what is a flag, yet an int in LeRobot's own files.
        """
        value = self._found.get(key)
        if value is not None and value is not False and not (zero and type(value) is int and value == 0):
            raise PolicyFileError(f"{self.path}: {key} is {self._found[key]!r:.40}: {why}")

    def has(self, key: str) -> bool:
        return self._found.get(key) is not None


@dataclass(frozen=True)
class Folder:
    """What the files say. Signals are called as the policy calls them, before any renaming of the processors."""

    path: str
    kind: str  # "act", "diffusion"
    settings: Settings
    numbers: dict[str, int]  # observation.state, observation.environment_state: how many
    pictures: dict[str, tuple[int, int]]  # observation.images.NAME: height, width; in the policy's order
    actions: int
    tensors: dict[str, Array]
    normalisers: dict[str, Normaliser]  # by input, and "action"
    statistics: dict[str, dict[str, Array]]  # of its training, by input and "action"
    files: tuple[str, ...]  # all that were read, in the order of their names


def read(path: str) -> Folder:
    """PolicyFileError for a folder that holds something else, or what is not adopted."""
    folder = Path(path)
    if not folder.is_dir():
        raise PolicyFileError(f"{path}: is no folder: from=lerobot takes the one with {CONFIG} and {WEIGHTS}")
    config = _json(folder / CONFIG)
    settings = Settings(str(folder / CONFIG), config)
    kind = settings.word("type", "act", "diffusion")
    settings.nothing("use_peft", "adapters are not adopted: merge them into the weights first")
    numbers, pictures = _inputs(settings.path, config.get("input_features"))
    outputs = _features(settings.path, "output_features", config.get("output_features"))
    if [*outputs] != [ACTION] or len(outputs[ACTION][1]) != 1:
        raise PolicyFileError(f"{settings.path}: output_features is not one {ACTION!r} of some numbers")
    tensors = _tensors(folder / WEIGHTS)
    if any(".buffer_" in name for name in tensors):
        raise PolicyFileError(
            f"{path}: its statistics are among the weights, as before LeRobot 0.4: bring it up to date with "
            "lerobot.processor.migrate_policy_normalization"
        )
    sizes: dict[str, tuple[int, ...]] = {
        **{name: (size,) for name, size in numbers.items()},
        **{name: (3, 1, 1) for name in pictures},
    }
    modes, statistics, before = _normalisation(folder, BEFORE, NORMALISE)
    normalisers = {
        name: made
        for name, shape in sizes.items()
        if (made := _normaliser(f"{folder / BEFORE}: {name}", modes[_kind(name)], statistics.get(name), shape))
    }
    modes, restored, after = _normalisation(folder, AFTER, RESTORE)
    width = outputs[ACTION][1][0]
    if back := _normaliser(f"{folder / AFTER}: {ACTION}", modes["ACTION"], restored.get(ACTION), (width,)):
        normalisers[ACTION] = back
    known = {name: statistics[name] for name in sizes if name in statistics}
    if ACTION in restored:
        known[ACTION] = restored[ACTION]
    sizes[ACTION] = (width,)
    for name, held in known.items():
        for key, value in held.items():
            if key in KEYS and value.size != math.prod(sizes[name]):
                raise PolicyFileError(
                    f"{path}: statistics: {name}.{key} has {value.size} numbers, {name} has {math.prod(sizes[name])}"
                )
    files = tuple(sorted({CONFIG, WEIGHTS, BEFORE, AFTER, *(name for name in (before, after) if name)}))
    return Folder(path, kind, settings, numbers, pictures, width, tensors, normalisers, known, files)


def _kind(name: str) -> str:
    return {STATE: "STATE", PLACE: "ENV"}.get(name, "VISUAL")


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, LONGEST)
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from None


def _features(path: str, key: str, found: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Kind and shape of each input or output."""
    if not isinstance(found, dict) or not found:
        raise PolicyFileError(f"{path}: {key} holds nothing")
    made = {}
    for name, feature in found.items():
        about = feature if isinstance(feature, dict) else {}
        shape = about.get("shape")
        if not isinstance(shape, list) or not shape or not all(type(n) is int and 1 <= n <= LARGEST for n in shape):
            raise PolicyFileError(f"{path}: {key}: {name!r:.80} has no shape of whole numbers")
        made[name] = (str(about.get("type")), tuple(shape))
    return made


def _inputs(path: str, found: Any) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    numbers, pictures = dict[str, int](), dict[str, tuple[int, int]]()
    for name, (kind, shape) in _features(path, "input_features", found).items():
        if kind == "VISUAL" and len(shape) == 3 and shape[0] == 3:
            # Before any weight is checked, the network's tables are made of these sizes.
            if max(shape) > WIDEST:
                raise PolicyFileError(f"{path}: input_features: {name!r:.80} has {shape}; sides are at most {WIDEST}")
            pictures[name] = (shape[1], shape[2])
        elif (kind, name) in (("STATE", STATE), ("ENV", PLACE)) and len(shape) == 1:
            numbers[name] = shape[0]
        else:
            raise PolicyFileError(f"{path}: input_features: {name!r:.80} of type {kind:.20} and shape {shape}: no such")
    if len(pictures) > PICTURES:
        raise PolicyFileError(f"{path}: input_features: {len(pictures)} pictures; the most are {PICTURES}")
    return {name: numbers[name] for name in (STATE, PLACE) if name in numbers}, pictures


def _tensors(path: Path) -> dict[str, Array]:
    try:
        found, _ = safetensors.read(str(path), Limits.declared().memory / 2)
    except OSError as error:
        raise PolicyFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorsError as error:
        raise PolicyFileError(
            f"{path}: not read: {error}; if it is large and trusted, SIM2METAL_MEMORY_MB=..."
        ) from None
    made = {name: np.asarray(value, np.float32) for name, value in found.items() if value.dtype.kind == "f"}
    for name, value in made.items():
        if not np.isfinite(value).all():
            raise PolicyFileError(f"{path}: the tensor {name:.80} is not finite")
    return made


def _normalisation(folder: Path, file: str, wanted: str) -> tuple[dict[str, str], dict[str, dict[str, Array]], str]:
    """The mode of each kind of feature, the statistics of each, and the name of their file, if there is one."""
    path, modes, held = (
        folder / file,
        dict.fromkeys(("STATE", "ENV", "VISUAL", "ACTION"), "IDENTITY"),
        dict[str, dict[str, Array]](),
    )
    steps, seen, source = _json(path).get("steps"), False, ""
    for step in steps if isinstance(steps, list) else [None]:
        about = step if isinstance(step, dict) else {}
        name, config = about.get("registry_name"), about.get("config")
        config = config if isinstance(config, dict) else {}
        if name == RENAME and not config.get("rename_map"):
            continue
        if name == wanted:
            if seen:
                raise PolicyFileError(f"{path}: two steps {wanted}: a policy that is normalised twice is not adopted")
            seen = True
            told = config.get("norm_map")
            modes |= {key: str(value) for key, value in (told if isinstance(told, dict) else {}).items()}
            if config.get("normalize_observation_keys") is not None:
                raise PolicyFileError(f"{path}: normalize_observation_keys: a part of the inputs only is not adopted")
            held = _statistics(folder, about.get("state_file"), config.get("eps"))
            source = str(about["state_file"])
        elif name not in IDLE:
            what = f"{name} renames" if name == RENAME else f"the step {name!r:.80} is not known"
            raise PolicyFileError(f"{path}: {what}: a policy with it is not adopted")
    return modes, held, source


def _statistics(folder: Path, file: Any, epsilon: Any) -> dict[str, dict[str, Array]]:
    """By feature, then by kind; of a file in the folder itself."""
    if not isinstance(file, str) or Path(file).name != file:
        raise PolicyFileError(f"{folder}: the processor's state_file is {file!r:.80}; it must be in the folder")
    if epsilon != 1e-8:
        raise PolicyFileError(f"{folder}: a normaliser's eps is {epsilon!r:.40}, not LeRobot's 1e-8")
    made: dict[str, dict[str, Array]] = {}
    for name, value in _tensors(folder / file).items():
        feature, _, kind = name.rpartition(".")
        made.setdefault(feature, {})[kind] = value
    return made


def _normaliser(where: str, mode: str, found: Mapping[str, Array] | None, shape: tuple[int, ...]) -> Normaliser | None:
    """None where numbers stay as they are."""
    if mode not in MODES:
        raise PolicyFileError(f"{where}: the normalisation {mode!r:.40} is not one of {', '.join(MODES)}")
    if mode == "IDENTITY" or found is None:
        return None
    for key in MODES[mode]:
        if key not in found or found[key].size != math.prod(shape):
            raise PolicyFileError(f"{where}: {mode} needs the statistics {key!r} of shape {shape}")
    one, two = (found[key].reshape(shape) for key in MODES[mode])
    epsilon = np.float32(1e-8)
    if mode == "MEAN_STD":
        return Normaliser(one, two + epsilon, restored=two)
    width = two - one
    half = np.where(width == 0.0, epsilon, width) * np.float32(0.5)
    return Normaliser(one, half, less=1.0)

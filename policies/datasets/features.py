"""Features: the signals of a dataset, their frames as numpy arrays and as columns of arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]

CAMERA = ("image", "video")  # dtypes of pictures: PNG in the table, or a film beside it
NUMBERS = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


class DatasetError(ValueError):
    """The folder or the frames are no good; the message names the file, the episode, the feature."""


@dataclass(frozen=True)
class Feature:
    """One signal: its type (of numpy, or "image" or "video") and its shape in one frame; scalars have shape (1,).

    Pictures are (height, width, 3) uint8. `names` are those of the elements.
    """

    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None

    @property
    def is_camera(self) -> bool:
        return self.dtype in CAMERA

    @property
    def numpy(self) -> np.dtype[Any]:
        """The type of its arrays."""
        return np.dtype("uint8" if self.is_camera else object if self.dtype == "string" else self.dtype)

    def json(self) -> dict[str, Any]:
        """As meta/info.json has it."""
        names = ("height", "width", "channels") if self.is_camera and self.names is None else self.names
        return {"dtype": self.dtype, "shape": list(self.shape), "names": None if names is None else list(names)}


# What LeRobot adds to the features of every dataset.
COUNTERS = {
    "timestamp": Feature("float32", (1,)),
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), Feature("int64", (1,))),
}


def to_numpy(column: pa.ChunkedArray, shape: tuple[int, ...]) -> Array:
    """(rows, *shape), out of lists however deep. ValueError when the numbers are not as many, or some are missing."""
    flat = column.combine_chunks()
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type) or pa.types.is_large_list(flat.type):
        flat = flat.flatten()
    if flat.null_count or len(flat) != len(column) * int(np.prod(shape)):
        raise ValueError(f"{len(flat) - flat.null_count} numbers for {len(column)} frames of shape {shape}")
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), *shape)


def to_arrow(values: Array, feature: Feature) -> pa.Array:
    """The column of numbers (steps, *shape)."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if feature.shape == (1,):
        return flat
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    for size in reversed(feature.shape):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def checked_features(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Raises DatasetError for features that cannot be written."""
    for name, feature in features.items():
        if not name or "/" in name or name in COUNTERS:
            raise DatasetError(f"feature {name!r}: a name has no '/' and is none of {', '.join(COUNTERS)}")
        if feature.dtype not in (*NUMBERS, *CAMERA):
            raise DatasetError(
                f"feature {name!r}: dtype {feature.dtype!r} is not one of {', '.join((*NUMBERS, *CAMERA))}"
            )
        if not feature.shape or min(feature.shape) < 1:
            raise DatasetError(f"feature {name!r}: shape {feature.shape} has no elements; a scalar has shape (1,)")
        if feature.is_camera and (len(feature.shape) != 3 or feature.shape[2] != 3):
            raise DatasetError(f"feature {name!r}: pictures are (height, width, 3), not {feature.shape}")
        if feature.dtype == "video" and (feature.shape[0] % 2 or feature.shape[1] % 2):
            raise DatasetError(f"feature {name!r}: a film needs an even height and width; choose dtype 'image'")
    if not features:
        raise DatasetError("a dataset needs at least one feature")
    return dict(features)


def checked_frames(frames: Mapping[str, Array], features: Mapping[str, Feature]) -> dict[str, Array]:
    """The frames of an episode in the features' types. Raises DatasetError naming feature and frame."""
    wrong = [*(features.keys() - frames.keys()), *(frames.keys() - features.keys())]
    if wrong:
        missing = "is missing" if wrong[0] in features else "is no feature"
        raise DatasetError(f"{wrong[0]!r} {missing}; features: {', '.join(features)}")
    values = {name: _checked(name, np.asarray(frames[name]), feature) for name, feature in features.items()}
    lengths = {name: len(value) for name, value in values.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        raise DatasetError(f"every feature needs the same number of frames, one or more; got {lengths}")
    return values


def _checked(name: str, value: Array, feature: Feature) -> Array:
    if value.ndim == 0 or value.shape[1:] != feature.shape:
        raise DatasetError(f"{name!r} must be (steps, {', '.join(map(str, feature.shape))}), got {value.shape}")
    if not np.can_cast(value.dtype, feature.numpy, "same_kind"):
        raise DatasetError(f"{name!r} must be {feature.numpy}, got {value.dtype}")
    with np.errstate(over="ignore"):
        cast = value.astype(feature.numpy)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, value):
        raise DatasetError(f"{name!r} has numbers that do not fit into {feature.numpy}")
    bad = not_finite(cast)
    if bad is not None:
        raise DatasetError(f"{name!r} is not a finite number in frame {bad}")
    return cast


def not_finite(values: Array) -> int | None:
    """The first frame with NaN or infinity in it."""
    if values.dtype.kind != "f":
        return None
    good = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return None if good.all() else int(good.argmin())

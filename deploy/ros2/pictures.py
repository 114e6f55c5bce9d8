"""Pictures as cameras publish them (sensor_msgs/Image) to what a policy takes: bytes (height, width, 3), red first.

What is known is converted, what is larger is averaged down where that was asked for, and all else is refused in one
line that names it. Nothing here believes a message: its sizes have to agree with the bytes that came.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.text import printable

Bytes = NDArray[np.uint8]

# By encoding (sensor_msgs/image_encodings.hpp): bytes of a pixel, and where its red, green and blue are.
KNOWN = {"rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)), "bgra8": (4, (2, 1, 0))}
# What begins like this is refused, and why.
UNFIT = {
    "mono": "has no colours",
    "bayer": "is not debayered yet",
    "yuv": "has colours by another rule",
    "uyvy": "has colours by another rule",
    "yuyv": "has colours by another rule",
    "nv": "has colours by another rule",
    "32F": "has floating-point numbers, which may be NaN",
    "64F": "has floating-point numbers, which may be NaN",
    "8UC": "does not say which colour is which",
    "8SC": "does not say which colour is which",
    "16": "has 16 bits per colour",
    "rgb16": "has 16 bits per colour",
    "bgr16": "has 16 bits per colour",
    "rgba16": "has 16 bits per colour",
    "bgra16": "has 16 bits per colour",
}
LARGEST = 1 << 26  # bytes of a picture: 4 700 pixels square
UNCALIBRATED = "the camera is not calibrated: it has no focal length"
EQUIDISTANT = "equidistant"  # the model of a fisheye in sensor_msgs/CameraInfo
VIEW_OFF = 0.05  # by which the field of view may differ from that of the policy's camera, as a share of it


class PictureError(ValueError):
    """A picture that a policy cannot be shown; the message says why, and what to do."""


def decode(message: Any, height: int, width: int, resize: bool = False) -> Bytes:
    """The picture (height, width, 3) in a sensor_msgs/Image; PictureError.

    `resize`: average a larger picture of the same shape down to that size.
    """
    pixel, order = _encoding(message.encoding)
    rows, columns, step, data = message.height, message.width, message.step, message.data
    shape = f"{columns} x {rows}"
    if (rows, columns) != (height, width):
        _demand_resizable(rows, columns, height, width, resize)
    if step < pixel * columns:
        raise PictureError(f"rows of {columns} pixels have {pixel * columns} bytes, its step says {step}")
    if len(data) != step * rows:
        raise PictureError(f"got {len(data)} bytes, not the {step * rows} of {shape} pixels: it is cut off, or padded")
    if len(data) > LARGEST:
        raise PictureError(f"got {shape} pixels, more than {LARGEST} bytes: publish smaller ones")
    whole = np.frombuffer(data, np.uint8).reshape(rows, step)[:, : pixel * columns].reshape(rows, columns, pixel)
    picture = whole[:, :, order]  # a copy: the message is not kept
    return picture if picture.shape[:2] == (height, width) else averaged(picture, height, width)


def _encoding(name: str) -> tuple[int, tuple[int, int, int]]:
    if name in KNOWN:
        return KNOWN[name]
    why = next((why for begins, why in UNFIT.items() if name.startswith(begins)), "is not known here")
    raise PictureError(
        f"its encoding {printable(name, 40)!r} {why}: convert it at its source to one of {', '.join(KNOWN)}"
    )


def _demand_resizable(rows: int, columns: int, height: int, width: int, resize: bool) -> None:
    size, ours = f"{columns} x {rows}", f"{width} x {height}"
    if rows < height or columns < width:
        raise PictureError(f"it has {size} pixels, the policy's picture has {ours}: publish larger ones")
    if rows * width != columns * height:
        raise PictureError(f"it has {size} pixels, which is another shape than the policy's {ours}: crop it")
    if not resize:
        raise PictureError(f"it has {size} pixels, not {ours}: publish it so, or set resize to average it down")


def averaged(picture: Bytes, height: int, width: int) -> Bytes:
    """A picture (rows, columns, 3) with each new pixel the mean of the area that it covers (height, width, 3)."""
    rows, columns, _ = picture.shape
    lines = _shares(rows, height) @ picture.reshape(rows, -1).astype(np.float32)  # (height, columns * 3)
    mean = np.matmul(_shares(columns, width), lines.reshape(height, columns, 3))
    rounded: Bytes = np.rint(mean).astype(np.uint8)
    return rounded


@functools.lru_cache(maxsize=8)
def _shares(many: int, few: int) -> NDArray[np.float32]:
    """Which share each of `many` has in the mean of each of `few` (few, many)."""
    edges, ours = np.arange(many), np.arange(few)[:, None] * (many / few)
    covered = np.minimum(ours + many / few, edges + 1.0) - np.maximum(ours, edges)
    shares: NDArray[np.float32] = (covered.clip(0.0) * (few / many)).astype(np.float32)
    return shares


def seen_across(info: Any) -> float:
    """Degrees that a camera sees from left to right, by its sensor_msgs/CameraInfo; NaN where that does not say."""
    width, focal = info.roi.width or info.width, info.k[0]
    good = math.isfinite(focal) and focal > 0.0 and width > 0
    half = 0.5 * width / focal if good else math.nan
    return math.degrees(2.0 * (half if info.distortion_model == EQUIDISTANT else math.atan(half)))


def other_view(info: Any, view: float) -> str:
    """What is wrong with a camera where the policy's saw `view` degrees across; empty where nothing is."""
    seen = seen_across(info)
    if math.isnan(seen):
        return UNCALIBRATED
    if abs(seen - view) > VIEW_OFF * view:
        return f"the camera sees {seen:.1f} degrees across, the policy's saw {view:g}: crop it, or take another lens"
    return ""

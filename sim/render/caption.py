"""What a film shows, in words below its pictures: what was flown, under which conditions, how well, and the time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
Grey = NDArray[np.float32]

BAND, INK, PAPER = 48, (235, 238, 243), (24, 28, 36)  # pixels; colours
PALE = (158, 168, 184)
SIZES = (16, 13, 11, 9)  # of letters: the first one that fits
MARGIN = 10


class Caption(NamedTuple):
    """Two lines below a film."""

    title: str
    told: str


def captioned(pictures: Iterable[Frame], caption: Caption, fps: float) -> Iterator[Frame]:
    """The pictures (height, width, 3), with a band of BAND pixels below each, and its time in the band."""
    below: Frame | None = None
    for index, picture in enumerate(pictures):
        width = picture.shape[1]
        if below is None:
            below = _band(caption, width)
        made = np.concatenate([picture, below])
        clock = _text(f"{index / fps:.1f} s", SIZES[0])
        if clock.shape[1] + 2 * MARGIN <= width:
            _write(made, clock, picture.shape[0] + MARGIN // 2, width - MARGIN - clock.shape[1], INK)
        yield made


def _band(caption: Caption, width: int) -> Frame:
    made = np.full((BAND, width, 3), PAPER, np.uint8)
    room = width - 2 * MARGIN
    clock = _text("00.0 s", SIZES[0]).shape[1] + MARGIN
    for line, top, colour, free in ((caption.title, 5, INK, room - clock), (caption.told, 26, PALE, room)):
        masks = (_text(line, size) for size in SIZES[0 if colour == INK else 1 :])
        mask = next((mask for mask in masks if mask.shape[1] <= free), None)
        mask = _text(line, SIZES[-1])[:, :free] if mask is None else mask
        _write(made, mask, top, MARGIN, colour)
    return made


def _write(picture: Frame, mask: Grey, top: int, left: int, colour: tuple[int, int, int]) -> None:
    part = picture[top : top + mask.shape[0], left : left + mask.shape[1]]
    share = mask[: part.shape[0], : part.shape[1], None]
    part[:] = np.round(part + share * (np.array(colour) - part))


@functools.cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _text(text: str, size: int) -> Grey:
    """How much of each pixel letters of that size cover (height, width), 0 to 1."""
    from PIL import Image, ImageDraw

    font = _font(size)
    box = font.getbbox(text)
    image = Image.new("L", (max(1, round(box[2])), round(1.4 * size)))
    ImageDraw.Draw(image).text((0, 0), text, fill=255, font=font)
    return np.asarray(image, np.float32) / np.float32(255.0)

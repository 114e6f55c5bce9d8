"""Pictures that are drawn when somebody looks."""

import numpy as np

from sim.spec import Signal
from sim.tasks.picture_cache import PictureCache

CAMERA = Signal("camera", (2, 2, 3), "1", "", 0.0, 255.0, dtype="uint8")


def test_only_what_has_moved_is_drawn_and_who_was_shown_the_last_ones_keeps_them():
    pictures, drawn = PictureCache((CAMERA,), 3), list[int]()

    def look(row):
        drawn.append(row)
        return {"camera": np.full((2, 2, 3), 10 * row + len(drawn), np.uint8)}

    pictures.moved.update([0, 2])
    first = pictures.see(look)["camera"]
    assert drawn == [0, 2]
    assert first[:, 0, 0, 0].tolist() == [1, 0, 22]
    assert pictures.see(look)["camera"] is first
    pictures.moved.add(2)
    assert pictures.see(look)["camera"][:, 0, 0, 0].tolist() == [1, 0, 23]
    assert first[:, 0, 0, 0].tolist() == [1, 0, 22]


def test_without_cameras_nothing_is_drawn():
    pictures = PictureCache((), 2)
    pictures.moved.add(1)
    assert pictures.see(lambda row: {}["nobody looks"]) == {}

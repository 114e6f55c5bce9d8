"""The search for motions by keyframes: its evolution, its numbers, and its file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies import find_motions
from policies.find_motions import Body, Config, episodes_of, worth
from sim.tasks import make
from sim.tasks.legs.motions import Motion

QUICK: dict[str, Any] = {"generations": 1, "population": 4, "starts": 1, "keyframes": 2}


@pytest.fixture(scope="module")
def task() -> Any:
    return make("get_up", vary=0.0)


def test_left_and_right_do_the_same(task: Any) -> None:
    body = Body(task, 3, 2.2, symmetric=True)
    numbers = np.random.default_rng(0).normal(0.0, 1.0, len(body.begin()))
    motion = body.motion(numbers)
    places, signs = task.robot.reflected(True)
    np.testing.assert_allclose(motion.offsets[:, places] * signs, motion.offsets, atol=1e-12)
    assert motion.offsets.shape == (4, len(task.robot.actuators)) and not motion.offsets[-1].any()
    np.testing.assert_allclose(body.motion(body.numbers(motion)).offsets, motion.offsets)
    np.testing.assert_allclose(body.motion(body.numbers(motion)).seconds, motion.seconds)
    free = Body(task, 3, 2.2, symmetric=False)
    assert len(free.begin()) > 1.8 * len(body.begin())
    assert np.abs(body.motion(100.0 * numbers).offsets).max() <= 2.2


def test_it_is_judged_by_where_it_ends(task: Any) -> None:
    """Who goes on from standing is worth more than who lies; and who ends on his front when told to roll over."""
    starts = episodes_of(task, "back", 4, seed=0)
    env = task.open(len(starts), 0)
    env.reset(range(len(starts)), starts)
    gravity = env.truth()["projected_gravity"]
    assert len(starts) == 4 and (gravity[:, 0] < 0.0).all() and (gravity[:, 1] >= 0.0).all()
    env.close()
    waits = Motion(np.array([0.5]), np.zeros((1, len(task.robot.actuators))))
    value = worth(task, [waits, waits], starts, 0)
    assert value.shape == (2,) and value[0] == value[1] and 0.0 < value[0] < 3.0
    assert worth(task, [waits], starts[:1], 0, over=1.0)[0] < 0.5 < worth(task, [waits], starts[:1], 0, over=-1.0)[0]


def test_a_file_comes_out_that_the_task_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "m.yaml")
    with pytest.raises(ValueError, match="search for that first"):
        find_motions.find(Config(out=out, lying="front", over=True, **QUICK))
    find_motions.main([f"out={out}", *(f"{name}={value}" for name, value in QUICK.items())])
    assert "from the back in" in capsys.readouterr().out
    front = find_motions.find(Config(out=out, lying="front", over=True, **QUICK))
    task = make("get_up", motions=out)
    assert list(task.motions) == ["back", "front"]
    np.testing.assert_allclose(task.motions["front"].offsets, np.round(front.offsets, 3), atol=1e-3)
    np.testing.assert_allclose(task.motions["front"].offsets[-3:], task.motions["back"].offsets)  # it rolls over first
    again = find_motions.find(Config(out=out, refine=True, spread=1e-6, **QUICK))
    np.testing.assert_allclose(again.offsets, task.motions["back"].offsets, atol=1e-4)


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    fine = Config(out=str(tmp_path / "m.yaml"))
    wrong: dict[str, Any] = {"lying": "head", "keyframes": 0, "population": 1, "spread": 0.0, "out": "m.txt"}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(fine, **{name: value})
    with pytest.raises(ValueError, match="refine"):
        dataclasses.replace(fine, refine=True, over=True)
    with pytest.raises(ValueError, match="to go on from"):
        find_motions.find(dataclasses.replace(fine, refine=True))

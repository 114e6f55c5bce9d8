"""Films of policies that are told in words: the instruction and what was thought, below the pictures."""

from types import SimpleNamespace

import numpy as np
import pytest

from policies import evaluate
from policies.algorithms.vla import Vla, VlaConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.export import export
from policies.models.vision import EncoderConfig
from policies.reports import told
from policies.reports.told import CURVE, TEXT, TITLE, Heard, heard
from sim.language.wordpiece import BEGIN, END, PAD, UNKNOWN
from sim.spec import Signal
from sim.tasks import make
from tests.policies.language.spoken_words import encoder

WORDS = (PAD, UNKNOWN, BEGIN, END, "open", "close", "it")
STEPS, EVERY, RATE, SIDE = 10, 4, 80.0, 120


def policy(states):
    """One that is told in words, and thinks this at the present step: name -> (2, 1)."""
    signal = Signal("said", (5,), "1", "", 0.0, len(WORDS) - 1.0, dtype="int64")
    about = {"tokeniser": {"kind": "wordpiece", "signal": "said", "vocabulary": [*WORDS]}}
    return SimpleNamespace(path="policy.onnx", metadata=about, inputs=(signal,), states=lambda: states)


def film(first="open", thoughts=("entropy",), slope=0.1):
    """Of two robots, told "open it" and "close it", of which the second is done after five steps."""
    states = {}
    found, looked = Heard(policy(states), slice(0, 2)), []
    watch = found.watching(lambda draw, line, number: looked.append(number))
    for step in range(STEPS):
        states |= {name: np.array([[1.0], [2.0 + slope * step]], np.float32) for name in thoughts}
        watch(lambda side: None, "", step)
    assert looked == [*range(STEPS)]
    rows = np.array([[2, WORDS.index(first), 6, 3, 0], [2, 5, 6, 3, 0]])
    success = np.zeros((STEPS, 2, 1), np.float32)
    success[4, 1] = 1.0
    flight = {"said": np.repeat(rows[None], STEPS, 0), "success": success, "terminated": np.zeros_like(success)}
    flight["reward"] = np.linspace(0.0, 1.0, STEPS)[:, None, None].repeat(2, 1)
    pictures = [np.full((2, SIDE, SIDE, 3), 9, np.uint8)] * 4
    return np.stack(found.below(pictures, flight, RATE, EVERY))


def test_instruction_and_curves_are_below_the_pictures():
    shown = film()
    assert shown.shape == (4, 2, SIDE + TEXT + 2 * CURVE, SIDE, 3) and (shown[:, :, :SIDE] == 9).all()
    text = slice(SIDE, SIDE + TEXT)
    assert (shown[:, 0, text].min(axis=(1, 2, 3)) < 100).all() and (shown[:, 0, text] != shown[:, 1, text]).any()
    changed = (shown != film("close")).any(axis=(0, 3, 4))
    assert changed[0, text].any() and not changed[1].any() and not changed[0, SIDE + TEXT :].any()


def test_a_sentence_that_looks_like_a_formula_is_drawn_as_it_is():
    made = [told._panel(said, {}, {}, 1.0, 200) for said in (r"to $\foo{$ go", "to go")]
    assert made[0].shape == made[1].shape and not np.array_equal(*made)


def test_what_is_still_to_come_is_faint_and_what_was_is_not():
    shown = film().astype(int)
    curve = shown[:, 0, SIDE + TEXT + TITLE : SIDE + TEXT + CURVE]
    ink = (255 - curve).sum(axis=(1, 3))  # (pictures, columns)
    assert (np.diff(ink, axis=0)[:, told.LEFT + 12 :].sum(axis=1) > 0).all()  # more of it, picture by picture
    assert (ink[-1, told.LEFT + 2 : -10] > 2 * ink[0, told.LEFT + 2 : -10]).mean() > 0.9


def test_a_curve_ends_with_its_episode():
    one, other = film().astype(int), film(slope=0.2).astype(int)
    curve = slice(SIDE + TEXT + TITLE, SIDE + TEXT + CURVE - 8)
    done = told.LEFT + (SIDE - told.LEFT - told.RIGHT) * 5 // STEPS + 4
    assert (one[-1, 1, curve, :done] != other[-1, 1, curve, :done]).any()
    assert (one[-1, 1, curve, done:-10] == 255).all()


def test_what_a_file_does_not_say_is_not_shown():
    assert film(thoughts=()).shape[2] == SIDE + TEXT + CURVE  # the reward alone
    assert film(thoughts=("entropy", "value")).shape[2] == SIDE + TEXT + 3 * CURVE
    assert heard(policy({}), 0, 1) is None and heard(SimpleNamespace(metadata={}), 2, 1) is None


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    task = make("metaworld/words", tasks=["drawer-close-v3", "window-close-v3"], encoder=encoder(folder), steps=9)
    sight = EncoderConfig(channels=[4, 4], strides=[4, 2])
    network = TinyConfig(width=16, layers=1, heads=2, keypoints=4, parallel=True, sight=sight)
    return task, export(Vla(task, VlaConfig(bins=16, network=network), 0).controller(), folder / "policy.onnx")


def test_an_evaluation_films_what_was_told(spoken, tmp_path):
    task, file = spoken
    report = evaluate.evaluate(file, task=task, episodes=3, filmed=2)
    height, width = 240 + TEXT + 2 * CURVE, 240
    assert {shown.shape for shown in report.pictures} == {(2, height, width, 3)}
    assert evaluate.evaluate(file, task=task, episodes=1).pictures == []
    path = tmp_path / "film.mp4"
    evaluate.main([f"policy={file.path}", "episodes=2", f"video={path}", f"task.encoder={task.config.encoder}"])
    assert path.stat().st_size > 5_000

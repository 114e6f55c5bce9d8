"""An adviser's process: what it is asked, what is made of its answers, and what happens when it fails."""

import logging
import os
import pickle
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.advisers import AdviserConfig, make, process
from policies.advisers.advice import AdviceConfig
from policies.advisers.process import AdviserProcess, acceptable, understood
from policies.advisers.worker import LENGTH, SHAPE, Question
from sim.registry import StrangerError, names_from
from tests.policies.toy_advisers import NAME
from tests.policies.toy_reach import ToyReach
from tests.sim.test_workers import script, wait_until_gone
from tests.sim.toy_frail import Untold

PATIENCE = 20.0  # s: these machines are slow


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An adviser that listens to the files in `tmp_path`, begun anew at once; all of them end with the test."""
    monkeypatch.setattr(process, "FIRST", 0.05)
    begun = []

    def begin(**settings):
        config = AdviserConfig(adviser=NAME, policy=str(tmp_path), **settings)
        begun.append(AdviserProcess(ToyReach(), config))
        return begun[-1]

    yield begin
    for adviser in begun:
        adviser.close()


def question(first: int, count: int = 1) -> Question:
    """About transitions first, first + 1, ..., at the positions (number / 100, 0)."""
    serial = np.arange(first, first + count)
    position = np.stack([serial / 100.0, np.zeros(count)], 1).astype(np.float32)
    return Question(serial, {"position": position, "goal": position}, np.zeros((count, 2), np.float32))


def hear(adviser, until):
    """All answers until that is so."""
    heard, end = [], time.monotonic() + PATIENCE
    while not until(adviser):
        assert time.monotonic() < end, (adviser.counts, adviser.restarts)
        heard += adviser.poll()
        time.sleep(0.005)
    return heard


def nothing_waits(adviser):
    return not adviser.waiting


def check_counts(adviser, heard):
    """Every question is accounted for: who hears counts what is answered."""
    counts = adviser.counts
    assert counts["asked"] == sum(len(one.serial) for one in heard) + adviser.waiting + sum(
        counts[name] for name in ("refused", "dropped", "lost")
    )


def test_questions_are_answered_in_batches_of_the_oldest(begin):
    adviser = begin(batch=5)
    for first in (0, 2, 4, 6):
        adviser.submit(question(first, 2))
    heard = hear(adviser, nothing_waits)
    assert [one.serial.tolist() for one in heard] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for one in heard:
        np.testing.assert_allclose(one.action, np.stack([one.serial / 1000.0, 0.0 * one.serial], 1), atol=1e-6)
        np.testing.assert_allclose(one.score, one.serial / 100.0, rtol=1e-6)
        assert (one.weight == 1.0).all()
    check_counts(adviser, heard)


def test_a_full_queue_drops_the_oldest(begin):
    adviser = begin(batch=4, queue=6)
    for first in range(0, 20, 2):
        adviser.submit(question(first, 2))
    assert adviser.waiting == 6 and adviser.counts == {**adviser.counts, "asked": 20, "dropped": 14}
    heard = hear(adviser, nothing_waits)
    assert np.concatenate([one.serial for one in heard]).tolist() == [*range(14, 20)]


BAD = {
    "nan": (1, "it is not finite, or beyond the limits of the commands"),
    "shape": (3, r"it is of shape \(3, 3\), not \(3, 4\)"),
    "beyond": (1, "it is not finite, or beyond the limits of the commands"),
    "fewer": (3, r"it is of shape \(2, 4\), not \(3, 4\)"),
    "weight": (1, "it is not finite, or beyond the limits of the commands"),
    "words": (3, "ValueError: "),
    "score": (3, "it is not finite, or beyond the limits of the commands"),
    "raise": (3, "ArithmeticError: out of ideas"),
}


def test_an_answer_that_is_none_is_refused_and_the_next_is_heard(begin, tmp_path, caplog):
    adviser, first, heard = begin(), 0, []
    for how, (refused, said) in BAD.items():
        (tmp_path / how).touch()
        adviser.submit(question(first, 3))
        before = adviser.counts["refused"]
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = hear(adviser, nothing_waits)
        assert adviser.counts["refused"] - before == refused and adviser.restarts == 0
        assert [one.serial.tolist() for one in found] == ([[first + 1, first + 2]] if refused == 1 else [])
        assert re.search(rf"adviser={NAME} was refused: {said}.*; training goes on", caplog.text)
        (tmp_path / how).unlink()
        adviser.submit(question(first + 3, 3))
        (good,) = hear(adviser, nothing_waits)
        assert good.serial.tolist() == [first + 3, first + 4, first + 5]
        heard += [*found, good]
        first += 6
    check_counts(adviser, heard)


def test_the_same_complaint_is_made_once(begin, tmp_path, caplog):
    adviser = begin()
    (tmp_path / "raise").touch()
    with caplog.at_level(logging.WARNING):
        for first in range(3):
            adviser.submit(question(first))
            hear(adviser, nothing_waits)
    assert adviser.counts["refused"] == 3 and caplog.text.count("training goes on") == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("die", "was ended by SIGKILL"),
        ("leave", "left with status 3"),
        ("noise", "said something of"),
        ("hang", "took more than 0.5 s"),
        ("unready", "is not ready: RuntimeError: the model is nowhere"),
    ],
)
def test_a_process_that_fails_is_begun_anew(begin, tmp_path, how, said):
    adviser = begin(timeout=0.5, latency=0.0)
    (tmp_path / how).touch()
    adviser.submit(question(0, 3))
    adviser.poll()
    first = adviser.process
    heard = hear(adviser, lambda it: it.restarts == 2 or (it.restarts == 1 and how != "unready"))
    assert said in adviser._warned and adviser.counts["lost"] == (0 if how == "unready" else 3)
    (tmp_path / how).unlink()
    adviser.submit(question(3, 3))
    heard += hear(adviser, nothing_waits)
    assert [one.serial.tolist() for one in heard] == ([[0, 1, 2, 3, 4, 5]] if how == "unready" else [[3, 4, 5]])
    assert adviser.process != first
    check_counts(adviser, heard)
    wait_until_gone([first])


def test_a_process_that_fails_again_and_again_is_begun_ever_more_rarely(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "LAST", 0.3)
    adviser = begin()
    (tmp_path / "unready").touch()
    pauses: list[float] = []
    end = time.monotonic() + 3 * PATIENCE
    while len(pauses) < 4 and time.monotonic() < end:
        before, now = adviser.restarts, time.monotonic()
        adviser.poll()
        if adviser.restarts > before:
            pauses.append(adviser._again - now)
        time.sleep(0.005)
    np.testing.assert_array_less([0.05, 0.1, 0.2, 0.3], pauses)
    assert pauses[3] < 0.8  # a busy machine may take its time in between


def test_who_waits_does_not_wait_forever(begin, tmp_path):
    adviser = begin(synchronous=True)
    adviser.submit(question(0, 2))
    assert [one.serial.tolist() for one in adviser.wait()] == [[0, 1]]
    (tmp_path / "die").touch()
    for first in (2, 4, 6, 8):
        adviser.submit(question(first, 2))
        assert adviser.wait() == []
    assert adviser.counts == {**adviser.counts, "lost": 8} and adviser.restarts == process.FALLS


def test_asking_takes_no_time_whatever_the_adviser_does(begin, tmp_path):
    adviser = begin(timeout=0.5, latency=0.0)
    (tmp_path / "hang").touch()
    pause, end = 0.0, time.monotonic() + 3.0
    while time.monotonic() < end:
        began = time.thread_time()
        adviser.submit(question(0, 4))
        adviser.poll()
        pause = max(pause, time.thread_time() - began)
        time.sleep(0.002)
    assert adviser.restarts and pause < 0.2


@given(st.binary(max_size=200), st.integers(0, 5), st.integers(0, 5))
def test_bytes_that_are_no_answer_are_said_to_be_none(told, rows, columns):
    reason, values = understood(told, rows, columns)
    assert bool(reason) == (told[: SHAPE.size] != SHAPE.pack(rows, columns) or len(told) != 16 + 4 * rows * columns)
    assert values.shape == ((0, 0) if reason else (rows, columns))


@given(arrays(np.float32, (4, 5), elements=st.floats(width=32)))
def test_rows_that_are_accepted_can_be_learned_from(values):
    said = values.copy()
    fine = acceptable(values)
    assert np.isfinite(values[fine]).all() and (np.abs(values[fine, :3]) <= 1.0).all()
    assert ((values[fine, 3] >= 0.0) & (values[fine, 3] <= 1.0)).all()
    for row, kept in zip(said, fine, strict=True):
        good = np.isfinite(row).all() and (np.abs(row[:3]) <= 1.0).all() and 0.0 <= row[3] <= 1.0
        assert kept or not good


def test_what_only_who_learns_needs_to_know_is_not_told():
    """The settings of who learns are of a module that imports torch, which takes seconds and memory."""
    adviser = AdviserProcess(ToyReach(), AdviceConfig(levels=4, ask=3))
    _, told = pickle.loads(adviser._told[LENGTH.size :])
    assert type(told) is AdviserConfig and told == AdviserConfig(levels=4)


def test_what_cannot_be_asked_is_refused_at_once():
    with pytest.raises(ValueError, match="toy_frail cannot be told to another process .*, so nobody advises"):
        AdviserProcess(Untold(), AdviserConfig())
    with pytest.raises(ValueError, match=r"unknown adviser 'exprt' \(did you mean 'expert'\?\)"):
        make(ToyReach(), AdviserConfig(adviser="exprt"))
    with pytest.raises(ValueError, match="there is no file policy='nowhere.onnx'"):
        make(ToyReach(), AdviserConfig(adviser="policy", policy="nowhere.onnx"))
    for wrong in ({"latency": -1.0}, {"timeout": 0.1}, {"batch": 0}, {"batch": 300}, {"levels": 1}):
        with pytest.raises(ValueError, match="needs|levels"):
            AdviserConfig(**wrong)


def test_a_file_does_not_choose_who_advises():
    """A run that is continued may be another's."""
    named = {"policy": AdviserConfig(adviser="policy", policy="its.onnx"), "adviser": AdviserConfig(adviser=NAME)}
    for kind, config in named.items():
        with pytest.raises(StrangerError, match=f"config.yaml names the {kind}"), names_from("config.yaml"):
            make(ToyReach(), config)


PARENT = """
import sys, time
import numpy as np
from policies.advisers import AdviserConfig
from policies.advisers.process import AdviserProcess
from policies.advisers.worker import Question
from tests.policies.toy_advisers import NAME
from tests.policies.toy_reach import ToyReach
adviser = AdviserProcess(ToyReach(), AdviserConfig(adviser=NAME, policy=sys.argv[1]))
adviser.submit(Question(np.array([0]), {"position": np.zeros((1, 2), np.float32)}, np.zeros((1, 2), np.float32)))
while not adviser._ready:
    adviser.poll()
    time.sleep(0.01)
adviser.poll()
print(adviser.process, flush=True)
while True:
    adviser.poll()
    time.sleep(0.01)
"""


ENDS = [(number, how) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) for how in ("", "hang")]
OFTEN = {(signal.SIGKILL, "hang"), (signal.SIGINT, "")}  # the hardest, and the most frequent


@pytest.mark.parametrize(
    ("number", "how"), [pytest.param(*end, marks=[pytest.mark.long] * (end not in OFTEN)) for end in ENDS]
)
def test_whatever_ends_the_parent_ends_its_adviser(number: int, how: str, tmp_path: Path):
    """Even in the midst of an answer; nothing is shared that could be left behind."""
    if how:
        (tmp_path / how).touch()
    with script(PARENT, str(tmp_path)) as parent:
        adviser = int(parent.stdout.readline())
        assert "/dev/shm" not in Path(f"/proc/{adviser}/maps").read_text()
        os.killpg(parent.pid, number)  # as a terminal does
        parent.communicate(timeout=PATIENCE)
    wait_until_gone([adviser])

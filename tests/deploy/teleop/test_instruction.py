from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.drivers import Reading
from deploy.policy_file import PolicyFileError
from deploy.teleop.instruction import instructed, tokeniser_of
from sim.spec import Signal

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "open", "close", "the", "drawer"]
TOLD = Signal("instruction", (8,), "1", "", 0.0, 7.0, dtype="int64")
SEEN = Signal("position", (3,), "m", "world")
ABOUT = {"kind": "wordpiece", "signal": "instruction", "vocabulary": VOCABULARY}


def policy(about=ABOUT, inputs=(SEEN, TOLD)):
    return SimpleNamespace(path="p.onnx", inputs=inputs, metadata={} if about is None else {"tokeniser": about})


class Robot:
    num, rate_hz, real_time = 2, 20.0, True

    def __init__(self, signals=(SEEN,)):
        self.signals, self.events = signals, []

    def read(self):
        return Reading({"position": np.ones((2, 3), np.float32)}, {"position": 0.01})

    def write(self, commands):
        self.events.append(commands)

    def __enter__(self):
        self.events.append("connected")
        return self

    def __exit__(self, *error):
        self.events.append("stopped")


def test_what_is_said_is_one_more_signal():
    robot = Robot()
    told = instructed(robot, policy(), "Open the drawer")
    assert told.signals == (SEEN, TOLD) and (told.num, told.rate_hz, told.real_time) == (2, 20.0, True)
    with told as same:
        reading = same.read()
        same.write({"velocity": 1})
    assert reading.signals["instruction"].tolist() == [[2, 4, 6, 7, 3, 0, 0, 0]] * 2
    assert reading.age == {"position": 0.01, "instruction": 0.0}
    assert robot.events == ["connected", {"velocity": 1}, "stopped"]


def test_it_goes_before_what_a_simulated_task_says():
    told = instructed(Robot((TOLD, SEEN)), policy(), "close the drawer")
    assert told.signals == (SEEN, TOLD) and told.read().signals["instruction"][0, 1] == 5


def test_who_says_it_already_needs_no_sentence():
    robot = Robot((SEEN, TOLD))
    assert instructed(robot, policy(), None) is robot
    with pytest.raises(ValueError, match='has to be told what to do: instruction="..."'):
        instructed(Robot(), policy(), None)
    plain = Robot()
    assert instructed(plain, policy(None, (SEEN,)), None) is plain


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", "has no words"),
        ("open the window", "unknown word: 'window'"),
        ("open " * 9, "takes 11 tokens, and 8"),
        ("open " * 99, "has 495 characters, and 200 are the most"),
    ],
)
def test_a_sentence_that_cannot_be_told_is_named(sentence, message):
    with pytest.raises(ValueError, match=message):
        instructed(Robot(), policy(), sentence)


def test_a_driver_that_listens_is_told_first():
    class Listener(Robot):
        def tell(self, sentence):
            self.events.append(sentence)

    robot = Listener((SEEN, TOLD))
    assert instructed(robot, policy(), "open the drawer") is robot and robot.events == ["open the drawer"]


def test_a_policy_without_words_refuses_them():
    with pytest.raises(PolicyFileError, match="told nothing in words"):
        instructed(Robot(), policy(None, (SEEN,)), "open the drawer")


@pytest.mark.parametrize(
    "about",
    [
        [],
        "wordpiece",
        {},
        ABOUT | {"kind": "pickle"},
        ABOUT | {"signal": "position"},
        ABOUT | {"signal": ["instruction"]},
        ABOUT | {"vocabulary": VOCABULARY[:-1]},
        ABOUT | {"vocabulary": [*VOCABULARY[:-1], 7]},
        ABOUT | {"vocabulary": [f"w{k}" for k in range(8)]},
        ABOUT | {"vocabulary": "abcdefgh"},
    ],
)
def test_a_malformed_tokeniser_is_named(about):
    with pytest.raises(PolicyFileError, match=r"p\.onnx: its tokeniser is malformed"):
        tokeniser_of(policy(about))


PLAIN = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(about=JSON | st.fixed_dictionaries({"kind": st.just("wordpiece") | JSON, "signal": JSON, "vocabulary": JSON}))
def test_whatever_a_stranger_writes_is_refused_by_one_error(about):
    with pytest.raises(PolicyFileError):
        tokeniser_of(policy(about))

"""What a robot is told to do, in words: a sentence becomes a signal like any other, by a policy file's own tokeniser.

Such a file says in its metadata, under "tokeniser": "kind" (wordpiece), "signal", which one holds the tokens, and
"vocabulary". All of it is a stranger's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Driver, Reading
from deploy.policy_file import PolicyFile, PolicyFileError
from sim import spec
from sim.language.wordpiece import InstructionError, WordPiece
from sim.spec import Signal

KEY = "tokeniser"
LONGEST = 200  # characters of a sentence: what is longer is no instruction, and is not looked at


def tokeniser_of(policy: PolicyFile) -> tuple[Signal, WordPiece]:
    """The signal that holds what is said, and what makes it of a sentence; PolicyFileError where there is no such."""
    about = policy.metadata.get(KEY)
    told = {signal.name: signal for signal in spec.tokens(policy.inputs)}
    if about is None:
        raise PolicyFileError(f"{policy.path} is told nothing in words: it goes without instruction=")
    try:
        kind, name, vocabulary = about["kind"], about["signal"], about["vocabulary"]
        if kind != "wordpiece" or not (isinstance(vocabulary, list) and all(type(word) is str for word in vocabulary)):
            raise ValueError(f"its tokeniser is of kind {kind!r:.40}, and only wordpiece is known")
        signal = told[name]
        if len(signal.shape) != 1 or signal.low != 0 or signal.high != len(vocabulary) - 1:
            raise ValueError(f"{name!r} does not hold the {len(vocabulary)} tokens of its tokeniser")
        return signal, WordPiece(tuple(vocabulary))
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyFileError(f"{policy.path}: its tokeniser is malformed ({error}); export it again") from None


def tokenised(policy: PolicyFile, sentence: str) -> tuple[Signal, NDArray[np.int64]]:
    """The signal that holds what is said, and its tokens (words,); ValueError for what the policy cannot be told."""
    signal, words = tokeniser_of(policy)
    try:
        if len(sentence) > LONGEST:
            raise InstructionError(f"the instruction has {len(sentence)} characters, and {LONGEST} are the most")
        tokens, _ = words.encode([sentence], signal.shape[0])
    except InstructionError as error:
        raise ValueError(f"{policy.path}: {error}") from None
    return signal, tokens[0]


@runtime_checkable
class Listening(Protocol):
    """A driver that hears what its robot is told, also in flight."""

    def tell(self, sentence: str) -> None:
        """What it is told until it hears something else; ValueError for what its policy cannot be told."""


class Instructed:
    """A driver whose robots have been told something: one signal more, or another value of it."""

    def __init__(self, driver: Driver, signal: Signal, tokens: NDArray[np.int64]) -> None:
        self._driver, self._signal = driver, signal
        self._told = np.repeat(tokens[None], driver.num, axis=0)
        self.signals = (*(s for s in driver.signals if s.name != signal.name), signal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def read(self) -> Reading:
        """The newest measurement, and what was said, which does not age."""
        reading = self._driver.read()
        signals: Mapping[str, NDArray[Any]] = {**reading.signals, self._signal.name: self._told}
        return Reading(signals, {**reading.age, self._signal.name: 0.0}, reading.override)

    def __enter__(self) -> Self:
        self._driver.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._driver.__exit__(kind, error, traceback)


def instructed(driver: Driver, policy: PolicyFile, sentence: str | None) -> Driver:
    """The driver, whose robots have been told this; ValueError for a sentence that the policy cannot be told."""
    if sentence is None:
        missing = {s.name for s in spec.tokens(policy.inputs)} - {s.name for s in driver.signals}
        if missing and KEY in policy.metadata:
            raise ValueError(f'{policy.path} has to be told what to do: instruction="..."')
        return driver
    if isinstance(driver, Listening):
        driver.tell(sentence)
        return driver
    return cast(Driver, Instructed(driver, *tokenised(policy, sentence)))

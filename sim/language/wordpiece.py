"""WordPiece (Wu et al. 2016) as BERT's uncased models use it: numpy and a vocabulary, so that a robot can run it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST = 100  # characters of a word; BERT's
MOST = 24  # tokens of an instruction, begin and end included


class InstructionError(ValueError):
    """A sentence that a policy cannot be told, for a reason that one sentence explains."""


@dataclass(frozen=True)
class WordPiece:
    """Sentences to the numbers of the pieces that their words are made of; `##` begins a piece inside a word."""

    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        missing = [name for name in (PAD, UNKNOWN, BEGIN, END) if name not in self._number]
        if missing:
            raise ValueError(f"a vocabulary without {', '.join(missing)} is none of BERT's")

    def encode(self, sentences: Iterable[str], most: int = MOST) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Pieces (n, most) and which of them are there (n, most).

        InstructionError where a sentence is empty, has a word of which no piece is known, or is too long.
        """
        rows = [self._pieces(sentence, most) for sentence in sentences]
        lengths = np.array([len(row) for row in rows], np.int64)
        there = np.arange(most) < lengths[:, None]
        numbers = np.full((len(rows), most), self._number[PAD], np.int64)
        numbers[there] = [number for row in rows for number in row]
        return numbers, there

    def decode(self, numbers: Iterable[int]) -> str:
        """A sentence of these pieces (k,): words and marks with a blank between them. Encoded it is the same pieces."""
        ends = {self._number[name] for name in (PAD, BEGIN, END)}
        pieces = [self.vocabulary[number] for number in numbers if number not in ends]
        return " ".join(pieces).replace(" ##", "")

    def _pieces(self, sentence: str, most: int) -> list[int]:
        words = split(sentence)
        if not words:
            raise InstructionError(f"the instruction {sentence!r} has no words")
        found = [self._number[BEGIN]]
        for word in words:
            pieces = self._of_word(word)
            if pieces is None:
                raise InstructionError(f"the instruction {sentence!r} has an unknown word: {word!r}")
            found += pieces
        found.append(self._number[END])
        if len(found) > most:
            raise InstructionError(f"the instruction {sentence!r} takes {len(found)} tokens, and {most} are the most")
        return found

    def _of_word(self, word: str) -> list[int] | None:
        """The longest pieces from the left; none where they do not make up the word."""
        if len(word) > LONGEST:
            return None
        start, pieces = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._number.get(("##" if start else "") + word[start:end])
                if number is not None:
                    pieces.append(number)
                    start = end
                    break
            else:
                return None
        return pieces

    @cached_property
    def _number(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.vocabulary)}


def split(sentence: str) -> list[str]:
    """Words and marks of a sentence in small letters, without accents."""
    letters = unicodedata.normalize("NFD", sentence.lower())
    plain = "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
    return re.findall(r"[^\W_]+|[^\w\s]|_", plain)

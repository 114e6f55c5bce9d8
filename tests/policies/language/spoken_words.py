"""A small sentence encoder that knows every word that asks for a task."""

import tempfile
from functools import cache
from pathlib import Path

from sim.language import spoken
from sim.language.relations import COLOURS, instructions, things
from sim.language.wordpiece import split
from tests.policies.language.tiny_bert import written


def encoder(folder: Path) -> str:
    """Its folder."""
    known = (*spoken().values(), *(instructions(thing) for thing in things(COLOURS)))
    asked = [sentence for one in known for sentence in (*one.learned, *one.held_out)]
    return str(written(folder, {word for sentence in asked for word in split(sentence)}))


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def kept_encoder() -> str:
    """The folder of one that is there until the tests end."""
    return encoder(Path(_kept().name))

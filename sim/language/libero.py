"""LIBERO's sentences, and others that ask for the same and that no demonstration holds."""

from __future__ import annotations

import re

from sim.language import Instructions

# Said in their place, the first that fits: no longer than they, so that the longest sentence is still told.
OTHERWISE = (
    (r"\bpick up\b", "grab"),
    (r"\bplace\b", "set"),
    (r"\bput\b", "set"),
    (r"\bturn (on|off)\b", r"switch \1"),
    (r"\bopen\b", "pull open"),
    (r"\bclose\b", "shut"),
    (r"\bpush\b", "shove"),
    (r"\bstack\b", "pile"),
)
UNHEARD = ("", "could you ", "kindly ")  # before them
SCENE = re.compile(r"^[A-Z_]+_SCENE\d+_")


def sentence(name: str) -> str:
    """What a task of that name asks for, as LIBERO derives it: "KITCHEN_SCENE2_open_the_drawer" says the last three."""
    return " ".join(SCENE.sub("", name).split("_"))


def reworded(said: str) -> str:
    """The same with other verbs."""
    for pattern, verb in OTHERWISE:
        said = re.sub(pattern, verb, said)
    return said


def instructions(task: str, name: str) -> Instructions:
    """LIBERO's sentence for a task; held out: other verbs, some of them asked politely."""
    said = sentence(name)
    return Instructions(task, (said,), tuple(lead + reworded(said) for lead in UNHEARD))

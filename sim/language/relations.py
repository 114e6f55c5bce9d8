"""Coloured cubes and where to put one of them, in words: patterns of sentences, `{a}` goes to a place beside `{b}`.

Some colours are never moved to some places in learning: whoever puts the red cube left of another one has learned what
"red" means from other places, and "left" from other colours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sim.language import Instructions, expanded

COLOURS = ("red", "green", "blue", "yellow")
SAID_AS = {  # relation -> how it may be said, and how evaluations say it
    "left": (
        "(left of|to the left of|on the left of|further left than|next to and left of)",
        "(on the left side of|at the left hand of)",
    ),
    "front": (
        "(in front of|before|nearer than|closer to us than|on this side of)",
        "(on the near side of|at the front of)",
    ),
    "right": (
        "(right of|to the right of|on the right of|further right than|next to and right of)",
        "(on the right side of|at the right hand of)",
    ),
    "behind": (
        "(behind|at the back of|farther than|further away than|on the other side of)",
        "(on the far side of|beyond)",
    ),
}
RELATIONS = (*SAID_AS,)
OPPOSITES = {"left": "right", "front": "behind", "right": "left", "behind": "front"}
LEADS = ("", "please ", "now ", "go ahead and ", "you should ")
UNSEEN_LEADS = ("could you ", "i would like you to ")
LEARNED = (
    "(put|place|move|slide|lay) the {a} (cube|block|one|brick) {where} the {b} (one|cube|block|brick)",
    "(pick up|take|lift|get) the {a} (cube|block|brick) and (put|place|drop) it {where} the {b} (one|cube|block)",
)
EACH = 120  # sentences of a thing in learning, of all that these patterns make
HELD_OUT = (
    "(bring|set|carry) the {a} box {where} the {b} box",
    "grasp the {a} cube and set it down {where} the {b} block",
)


class Thing(NamedTuple):
    """What may be asked for: the cube of one colour, in a relation to that of another."""

    moved: str
    relation: str
    reference: str

    @property
    def converse(self) -> Thing:
        """What is so at the same time: where this one is left of the other, that one is right of this."""
        return Thing(self.reference, OPPOSITES[self.relation], self.moved)

    @property
    def unseen(self) -> bool:
        """Whether this colour in this relation is for evaluations only: one relation of each colour is."""
        return COLOURS.index(self.moved) == RELATIONS.index(self.relation)


def things(colours: Sequence[str]) -> tuple[Thing, ...]:
    """All that can be asked for where there is a cube of each of these colours, in their order."""
    return tuple(Thing(a, where, b) for a in colours for where in RELATIONS for b in colours if b != a)


@cache
def instructions(thing: Thing) -> Instructions:
    """The sentences that ask for it."""

    def said(patterns: tuple[str, ...], leads: tuple[str, ...], where: str) -> tuple[str, ...]:
        filled = (pattern.format(a=thing.moved, b=thing.reference, where=where) for pattern in patterns)
        return tuple(lead + sentence for sentence in expanded(filled) for lead in leads)

    learned, held_out = SAID_AS[thing.relation]
    undone = thing._replace(relation=OPPOSITES[thing.relation])
    # Others for each thing: words that ask for one are heard of another, too.
    seen = tuple(random.Random(" ".join(thing)).sample(said(LEARNED, LEADS, learned), EACH))
    unseen = said(HELD_OUT, UNSEEN_LEADS, held_out)
    return Instructions(" ".join(thing), seen, unseen, " ".join(undone))

"""What else the description of a policy of LeRobot could mean: cameras exchanged, elements permuted, other scales."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from policies.adoption.contract import Contract
from policies.adoption.lerobot.description import PlanDescription
from policies.adoption.readings import Reading
from policies.adoption.readings import readings as readings_of_numbers


def readings(described: PlanDescription, contract: Contract) -> Iterator[Reading]:
    """The likeliest mistakes first: of pictures, then of each command and of the numbers as of other policies."""
    for one, two in itertools.combinations(described.pictures, 2):
        other = {**described.pictures, one: described.pictures[two], two: described.pictures[one]}
        advice = f"{one}: {other[one]}, {two}: {other[two]}"
        yield Reading(f"pictures: {one} and {two} exchanged", advice, dataclasses.replace(described, pictures=other))
    known = set[str]()
    for k, action in enumerate(described.actions):
        own = dataclasses.replace(described, action=action)
        for reading in readings_of_numbers(own, contract):
            changed = reading.description
            assert isinstance(changed, PlanDescription)  # as `own` is
            actions = (*described.actions[:k], changed.action, *described.actions[k + 1 :])
            found = dataclasses.replace(changed, actions=actions, action=actions[0])
            name = reading.name.replace("action:", f"action[{k}] {action.command}:", 1)
            if name not in known:  # of the observation: once is enough
                known.add(name)
                yield Reading(name, reading.advice, found, reading.every)

"""Episodes out of a flight log of ours: what the controller saw and what was sent, at every control step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.recording import flight_log
from deploy.recording.flight_log import Flight, FlightLogError
from policies.datasets.features import Array, DatasetError, Feature
from sim import spec

STATE, ACTION, PICTURES = "observation.state", "action", "observation.images."  # as policies.collect names them


def rate(flight: Flight) -> int:
    """Control steps per second (Hz), as the policy in the log says."""
    try:
        rate_hz = PolicyFile.from_bytes(flight.policy, f"{flight.path}: the policy in it").rate_hz
    except PolicyFileError as error:
        raise DatasetError(f"{error}; say the rate: fps=HZ") from None
    if rate_hz != round(rate_hz):
        raise DatasetError(f"{flight.path}: {rate_hz:g} Hz is no whole number of frames per second")
    return round(rate_hz)


def read(path: str) -> Flight:
    """The log, whole or as far as it goes; DatasetError when there is nothing in it."""
    try:
        flight = flight_log.read(path)
    except FlightLogError as error:
        raise DatasetError(str(error)) from None
    if not len(flight.steps):
        raise DatasetError(f"{path}: no control step is in it")
    return flight


def features_of(flight: Flight, film: bool = False) -> dict[str, Feature]:
    """State and action as policies.collect lays them out, with the elements' names, and pictures."""
    layout = flight.layout
    seen = spec.numbers(layout.signals)
    made = {STATE: Feature("float32", (spec.size(seen),), _names(seen))}
    kind = "video" if film else "image"
    made |= {PICTURES + s.name: Feature(kind, s.shape) for s in spec.pictures(layout.signals)}
    return made | {ACTION: Feature("float32", (spec.size(layout.commands),), _names(layout.commands))}


def _names(group: spec.Group) -> tuple[str, ...]:
    return tuple(f"{s.name}.{k}" for s in group for k in range(s.size))


def episodes(flight: Flight, shortest: int = 2) -> Iterator[dict[str, Array] | int]:
    """Frames (steps, *shape) of each robot, from one gap in the log to the next, as long as all is finite.

    In the end the number of pieces that were shorter than `shortest`. The action is what was sent to the robot.
    """
    layout, dropped = flight.layout, 0
    seen = spec.numbers(layout.signals)
    for robot in range(flight.steps.shape[1]):
        columns = {
            STATE: _row([flight.values(f"signals.{s.name}")[:, robot] for s in seen]),
            **{PICTURES + s.name: flight.values(f"signals.{s.name}")[:, robot] for s in spec.pictures(layout.signals)},
            ACTION: _row([flight.values(f"sent.{s.name}")[:, robot] for s in layout.commands]),
        }
        numbers = np.concatenate([columns[STATE], columns[ACTION]], axis=1)
        good: Array = np.isfinite(numbers).all(axis=1)
        breaks = {index for index, _ in flight.gaps} | {*np.flatnonzero(np.diff(good, prepend=~good[:1]))}
        edges = [*sorted({0, *breaks}), len(good)]
        for begin, end in itertools.pairwise(edges):
            if not good[begin]:
                continue
            if end - begin < shortest:
                dropped += 1
                continue
            yield {name: values[begin:end] for name, values in columns.items()}
    yield dropped


def _row(parts: list[Array]) -> Array:
    """(steps, n) float32, one after the other."""
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(np.float32)

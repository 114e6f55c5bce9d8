"""A foreign network with everything around it: raw named signals in, commands out; see `policies.models.controller`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from policies.adoption.contract import Contract, pieces_of, response_of
from policies.adoption.description import Description, spread
from policies.adoption.fields import DescriptionError
from policies.adoption.readings import Reading, readings
from policies.adoption.terms import BEGUN, affine, clipped, picked, value, within, write_begun, write_value
from policies.models.controller import physical
from policies.models.graph import Graph
from policies.models.networks import Array, Network
from sim import spec
from sim.spec import Group, Signal

LAST = "last_action"  # state: what the network did before, in its own order and scale


class AdoptedPolicy:
    """A policy of somebody else as `policies.models.export` takes it. State: its last action and what it saw before."""

    def __init__(self, description: Description, contract: Contract, network: Network) -> None:
        """DescriptionError when terms, statistics or action do not fit the network, naming the field."""
        self.description, self.contract, self.network = description, contract, network
        self.name, self.task, self.robot = description.name, contract.task, contract.robot
        self.rate_hz, self.outputs = contract.rate_hz, contract.outputs
        self.settings, self.envelope = contract.settings, contract.envelope
        spec.limits(self.outputs)
        known = [s.name for s in contract.outputs]
        if known != [description.action.command]:
            raise DescriptionError(
                f"action.command: {description.action.command!r}: the commands are: {', '.join(known)}; an adopted "
                "policy of this kind gives one, which is all"
            )
        self.response = response_of((description.action,), contract)
        actions = spec.size(contract.outputs)
        if network.outputs != actions:
            raise DescriptionError(
                f"action: the network returns {network.outputs} numbers, {description.action.command} has {actions}"
            )
        self.pieces = pieces_of(description, contract, actions)
        used = {name for p in self.pieces for name in (*p.term.signals, p.term.minus)}
        self.inputs: Group = tuple(s for s in contract.inputs if s.name in used)
        if not self.inputs:
            raise DescriptionError("observation: no term reads a signal: the network would be blind")
        lengths = {p.term.history for p in self.pieces}
        if description.history.order == "frame" and len(lengths) > 1:
            raise DescriptionError(
                f"history.order: frame needs one history of all terms, not {', '.join(map(str, sorted(lengths)))}"
            )
        self._check_size()
        said = description.normalisation
        if said.mean and len(said.mean) not in (1, network.inputs):
            raise DescriptionError(
                f"normalisation.mean: has {len(said.mean)} numbers, the network takes {network.inputs}"
            )
        self._mean, self._std = (
            spread(v or (u,), network.inputs, "normalisation") for v, u in ((said.mean, 0.0), (said.std, 1.0))
        )

    def _check_size(self) -> None:
        """DescriptionError with what each term adds, unless they fill the network's input."""
        total = sum(p.size * p.term.history for p in self.pieces)
        if total != self.network.inputs:
            parts = ", ".join(
                f"{p.term.label} {p.size}" + (f" x {p.term.history}" if p.term.history > 1 else "") for p in self.pieces
            )
            raise DescriptionError(
                f"observation: the terms make {total} numbers ({parts}), the network takes {self.network.inputs}: "
                f"{abs(total - self.network.inputs)} {'too many' if total > self.network.inputs else 'are missing'}"
            )

    def readings(self) -> Iterator[Reading]:
        """What else its description could mean."""
        return readings(self.description, self.contract)

    def otherwise(self, description: Description) -> AdoptedPolicy:
        """The same network, read otherwise; DescriptionError where that does not fit."""
        return AdoptedPolicy(description, self.contract, self.network)

    @cached_property
    def _remembered(self) -> list[tuple[int, str, int]]:
        """Of each term with a history: its number, its state, and that state's length. Newest first in it."""
        found = [(k, p) for k, p in enumerate(self.pieces) if p.term.history > 1]
        return [(k, f"past_{k}", p.size * (p.term.history - 1)) for k, p in found]

    @property
    def _from_first(self) -> bool:
        return bool(self._remembered) and self.description.history.start == "first"

    @property
    def _looks_back(self) -> bool:
        return any(not p.term.signals and not p.term.constant for p in self.pieces)

    def state(self) -> Group:
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def limits(self) -> tuple[Array, Array]:
        return spec.limits(self.outputs)

    def initial_state(self, n: int) -> dict[str, Array]:
        made = {name: np.zeros((n, size), np.float32) for _, name, size in self._remembered}
        if self._from_first:
            made[BEGUN] = np.zeros((n, 1), np.float32)
        if self._looks_back:
            made[LAST] = np.full((n, self.network.outputs), self.description.action.initial, np.float32)
        return made | self.network.initial_state(n)

    def _frames(self, now: list[Any], past: Mapping[int, list[Any]]) -> list[Any]:
        """What is joined into the network's input: the frames of all terms (index 0 is newest) in the order told."""
        history, frames = self.description.history, [[value, *past.get(k, ())] for k, value in enumerate(now)]
        if history.newest == "last":
            frames = [each[::-1] for each in frames]
        if history.order == "frame":
            return [each[step] for step in range(len(frames[0])) for each in frames]
        return [frame for each in frames for frame in each]

    def see(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """What the network is fed (n, inputs), and the next state of what it remembers."""
        rows = len(np.asarray(signals[self.inputs[0].name]))
        now = [value(p, signals, state.get(LAST), rows) for p in self.pieces]
        past, after = {}, {}
        for k, name, _ in self._remembered:
            before = state[name]
            if self._from_first:
                begun = state[BEGUN]
                first = np.concatenate([now[k]] * (self.pieces[k].term.history - 1), axis=-1)
                before = begun * before + (np.float32(1.0) - begun) * first
            past[k] = np.split(before, self.pieces[k].term.history - 1, axis=-1)
            after[name] = np.concatenate([now[k], *past[k][:-1]], axis=-1)
        if self._from_first:
            after[BEGUN] = np.ones((rows, 1), np.float32)
        x = (np.concatenate(self._frames(now, past), axis=-1) - self._mean) / self._std
        clip = self.description.normalisation.clip
        return within(x, (-clip, clip)), after

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        x, after = self.see(signals, state)
        y, remembered = self.network.forward(x, state)
        after |= remembered
        if self.description.action.squash == "tanh":
            y = np.tanh(y)
        action = within(y, self.description.action.clip)
        if self._looks_back:
            after[LAST] = action
        return physical(self.outputs, action[:, self.response.order] * self.response.gain + self.response.bias), after

    def write(self, graph: Graph) -> str:
        x = self._write_seen(graph)
        y = self.network.write(graph, x)
        if self.description.action.squash == "tanh":
            y = graph.add("Tanh", y)
        y = clipped(graph, y, self.description.action.clip)
        if self._looks_back:
            graph.add("Identity", y, to=f"next_state.{LAST}")
        if self.response.order != list(range(self.network.outputs)):
            y = picked(graph, y, self.response.order)
        return affine(graph, y, self.response.gain, self.response.bias)

    def _write_seen(self, graph: Graph) -> str:
        now = [write_value(graph, p, self.inputs, f"state.{LAST}") for p in self.pieces]
        past: dict[int, list[Any]] = {}
        for k, name, _ in self._remembered:
            before, steps = f"state.{name}", self.pieces[k].term.history - 1
            if self._from_first:
                begun = f"state.{BEGUN}"
                first = graph.join([now[k]] * steps)
                waiting = graph.add("Sub", graph.constant([[1.0]]), begun)
                before = graph.add("Add", graph.add("Mul", begun, before), graph.add("Mul", waiting, first))
            past[k] = graph.split(before, [self.pieces[k].size] * steps) if steps > 1 else [before]
            graph.join([now[k], *past[k][:-1]], to=f"next_state.{name}")
        if self._from_first:
            write_begun(graph)
        x = graph.join(self._frames(now, past))
        said = self.description.normalisation
        if said.mean:
            x = graph.add("Div", graph.add("Sub", x, graph.constant(self._mean)), graph.constant(self._std))
        return clipped(graph, x, (-said.clip, said.clip))

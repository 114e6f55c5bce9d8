"""Networks that do in a mirror what they do without: whatever is mirrored to them, they answer with the mirror image.

Of k mirrors there are 2^k images, numbered by the bits that say which mirrors. Hidden units come in groups of as many,
and in image g unit u does what unit u xor g did. That is a linear condition on the weights, and holds as long as every
gradient is averaged over the images. It costs little, and saves learning everything 2^k times: a vehicle that is level
on its target cannot drift to one side. For quadrotors see "Morphological symmetries in robotics" (Ordonez-Apraez et
al. 2025); averaging gradients is the projection onto equivariant weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import kernel
from policies.learning.fused.network import BIAS, INPUTS, OUTPUTS, OUTS, WEIGHT, Net, Perceptron, adam, room
from policies.models.networks import Network
from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import ALL, LANES, exchanged_1, exchanged_2, exchanged_4
from sim.randomize import Array
from sim.tasks import Task, features_of, history_of, judged_costs, mirrors_of
from sim.terms import HISTORY, Mirror

MOST = 3  # mirrors


class Images(NamedTuple):
    """In image g, element i of a vector is signs[g, i] times element places[g, i]: both (2^k, size)."""

    places: NDArray[np.int64]
    signs: Array


def images(mirrors: Sequence[Mirror], parts: Sequence[tuple[str, int]]) -> Images:
    """Of the signals (name, size), one after the other."""
    width = sum(count for _, count in parts)
    places, signs = np.arange(width)[None], np.ones((1, width), np.float32)
    for mirror in mirrors:
        at, sign, first = [], [], 0
        for name, count in parts:
            where, factors = mirror.of(name, count)
            at += [first + k for k in where]
            sign += factors
            first += count
        places = np.concatenate([places, places[:, at]])
        signs = np.concatenate([signs, signs[:, at] * np.array(sign, np.float32)])
    return Images(places, signs)


def alike(network: Network, seen: Images, actions: Images) -> bool:
    """Whether what is mirrored to a network it answers with the mirror image, for three steps."""
    rng, near = np.random.default_rng(0), 1e-3
    features = rng.normal(size=(3, 16, network.inputs)).astype(np.float32)
    answers = []
    for places, signs in zip(seen.places, seen.signs, strict=True):
        state, answer = network.initial_state(16), np.zeros((16, network.outputs), np.float32)
        for step in features[..., places] * signs:
            answer, state = network.forward(step, state)
        answers.append(answer)
    pairs = zip(answers, actions.places, actions.signs, strict=True)
    return all(bool((np.abs(answer - answers[0][:, places] * signs) < near).all()) for answer, places, signs in pairs)


def task_images(task: Task) -> tuple[Images, Images, Images] | None:
    """Of what the actor sees, of what the critic sees, and of actions; None for a task without mirrors."""
    mirrors, commands = mirrors_of(task)[:MOST], [(c.name, c.size) for c in task.commands]
    if not mirrors:
        return None
    sizes = {s.name: s.size for s in task.policy}
    past = commands * history_of(task)
    seen = [
        part for f in features_of(task) for part in (past if f.signal == HISTORY else [(f.signal, sizes[f.signal])])
    ]
    hidden = [(s.name, s.size) for s in task.privileged]
    judged = images(mirrors, [*seen, *hidden])
    return images(mirrors, seen), beside(judged, constant(len(judged_costs(task)), judged)), images(mirrors, commands)


def privileged_images(task: Task) -> Images:
    """Of what is privileged."""
    return images(mirrors_of(task)[:MOST], [(s.name, s.size) for s in task.privileged])


def constant(count: int, of: Images) -> Images:
    """Of numbers that are the same in all of them."""
    many = len(of.places)
    return Images(np.zeros((many, count), np.int64) + np.arange(count), np.ones((many, count), np.float32))


def beside(*parts: Images) -> Images:
    """Of vectors that follow one another."""
    firsts = np.cumsum([0, *(part.places.shape[1] for part in parts)])
    places = [first + part.places for first, part in zip(firsts, parts, strict=False)]
    return Images(np.concatenate(places, axis=1), np.concatenate([part.signs for part in parts], axis=1))


class Symmetric:
    """Keeps a perceptron equivariant: see the module. ValueError where its layers are no multiples of the images."""

    def __init__(self, network: Perceptron, inputs: Images, outputs: Images) -> None:
        many = len(inputs.places)
        hidden = network.sizes[1:-1]
        if not hidden or any(units % many for units in hidden):
            raise ValueError(f"{many} mirror images need hidden layers of a multiple of {many} units, got {hidden}")
        self.network, self.inputs, self.outputs, self._room = network, inputs, outputs, room(network.size)
        self.average(network.net.weights)
        for weight, _ in network.views():
            weight *= np.sqrt(np.float32(many))  # an average of so many independent ones is that much smaller
        network.turn()

    def average(self, of: Array) -> None:
        """Over the images, in place: of weights, or of a gradient."""
        project(self.network.net, of, self._room, *self.inputs, *self.outputs, self.network.extra)

    def mean(self, values: NDArray[Any], inputs: bool = True, square: bool = False) -> NDArray[Any]:
        """Of a vector that the network sees, or says: its average over the images; of squares, without signs."""
        images = self.inputs if inputs else self.outputs
        found: NDArray[Any] = (values[images.places] * (1.0 if square else images.signs)).mean(axis=0)
        return found


@inlined
def _image(vector, g):
    """Hidden units in image g."""
    if g & 1:
        vector = exchanged_1(vector)
    if g & 2:
        vector = exchanged_2(vector)
    if g & 4:
        vector = exchanged_4(vector)
    return vector


@kernel
def project(net, flat, out, places, signs, ends, factors, extra):
    """Average what is laid out as the network's weights over the images; behind `extra` as outputs, without signs."""
    many, count = len(places), len(net.layers)
    share = np.float32(1.0 / many)
    numbers, made = flat.reshape(-1), out.reshape(-1)
    for index in range(count):
        layer = net.layers[index]
        weight, bias, outs = layer[WEIGHT], layer[BIAS], layer[OUTS]
        for i in range(layer[INPUTS]):
            for v in range(outs):
                if index == count - 1:
                    for k in range(layer[OUTPUTS]):
                        total = np.float32(0.0)
                        for g in range(many):
                            total += factors[g, k] * numbers[(weight + (i ^ g) * outs) * LANES + ends[g, k]]
                        made[(weight + i * outs) * LANES + k] = total * share
                else:
                    sum_ = flat[weight, ALL] * np.float32(0.0)
                    for g in range(many):
                        if index == 0:
                            sum_ += signs[g, i] * _image(flat[weight + places[g, i] * outs + v, ALL], g)
                        else:
                            sum_ += _image(flat[weight + (i ^ g) * outs + v, ALL], g)
                    out[weight + i * outs + v, ALL] = sum_ * share
        for v in range(outs):
            if index < count - 1:
                sum_ = flat[bias + v, ALL] * np.float32(0.0)
                for g in range(many):
                    sum_ += _image(flat[bias + v, ALL], g)
                out[bias + v, ALL] = sum_ * share
        if index == count - 1:
            for k in range(layer[OUTPUTS]):
                total, deviation = np.float32(0.0), np.float32(0.0)
                for g in range(many):
                    total += factors[g, k] * numbers[bias * LANES + ends[g, k]]
                    if extra < len(flat):
                        deviation += numbers[extra * LANES + ends[g, k]]
                made[bias * LANES + k] = total * share
                if extra < len(flat):
                    made[extra * LANES + k] = deviation * share
        for k in range(weight, weight + layer[INPUTS] * outs):
            flat[k, ALL] = out[k, ALL]
        for k in range(bias, bias + outs):
            flat[k, ALL] = out[k, ALL]
    for k in range(extra, len(flat)):
        flat[k, ALL] = out[k, ALL]


class Trained(NamedTuple):
    """A network, its gradient, what Adam remembers, room for images, and in which mirror images it learns."""

    net: Net
    gradient: Array
    first: Array
    second: Array
    room: Array
    inputs: Images
    outputs: Images
    extra: int  # where what is not of its layers begins


def trained(network: Perceptron, symmetry: Symmetric | None, gradient: Array | None = None) -> Trained:
    """As kernels see it; with a gradient elsewhere than its own, if given."""
    none = Images(np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
    images = (symmetry.inputs, symmetry.outputs) if symmetry else (none, none)
    found = network.gradient if gradient is None else gradient
    return Trained(network.net, found, network.first, network.second, room(network.size), *images, network.extra)


@inlined
def descend(trained, step, rate, clip):
    """A step of Adam, with the gradient averaged over the mirror images, of a norm of at most `clip`."""
    inputs, outputs = trained.inputs, trained.outputs
    if len(inputs.places) > 1:
        project(
            *(trained.net, trained.gradient, trained.room, inputs.places, inputs.signs, outputs.places, outputs.signs),
            trained.extra,
        )
    adam(trained.net, trained.gradient, trained.first, trained.second, step, rate, clip, 0.9, 0.999)

"""Controllers and damaged policy files for the tests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from deploy.policy_file import PolicyFile
from deploy.trust.content import KEY
from policies.models.controller import FeaturePolicy
from policies.models.export import export, serialise
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.spec import Signal
from sim.tasks import make
from sim.terms import Feature

CALM = {"tilt": 20.0, "velocity": 0.3, "body_rate": 0.3}  # starts that the linear controller below recovers from


def random_layer(rng, inputs, outputs):
    return rng.normal(size=(outputs, inputs)) / np.sqrt(inputs), 0.1 * rng.normal(size=outputs)


def random_mlp(rng, inputs, outputs, hidden=(8,), activation="tanh"):
    sizes = [inputs, *hidden, outputs]
    return Mlp([random_layer(rng, a, b) for a, b in itertools.pairwise(sizes)], activation)


def random_gru(rng, inputs, outputs, width=6, hidden=5):
    w_ih, b_ih = random_layer(rng, width, 3 * hidden)
    w_hh, b_hh = random_layer(rng, hidden, 3 * hidden)
    return Gru(random_layer(rng, inputs, width), w_ih, w_hh, b_ih, b_hh, random_layer(rng, hidden, outputs))


def small(network_of=random_mlp, seed=0, history=2, **network) -> FeaturePolicy:
    """A controller of two signals and two commands that belongs to no task."""
    rng = np.random.default_rng(seed)
    features = [Feature("near", minus="goal", squash=0.5), Feature("rate", scale=0.1)]
    features += [Feature("history")] if history else []
    outputs = (Signal("left", (2,), "rad", low=-3.0, high=1.0), Signal("right", (1,), "N", low=0.0, high=0.2))
    made: Network = network_of(rng, 6 + 2 + 3 * history, 3, **network)
    inputs = (
        Signal("near", (6,), "m", "world"),
        Signal("goal", (3,), "m", "world", max_age=1.0),
        Signal("rate", (2,), "rad/s", "body"),
    )
    return FeaturePolicy("small", "none", "bench", 50.0, inputs, outputs, tuple(features), history, 0.25, made)


def linear_hover(task: Any = None) -> FeaturePolicy:
    """A linear controller (found by random search) that hovers a Crazyflie from calm starts, without delay."""
    task = task or make("quad_hover", **CALM)
    p_gain, v_gain, lean, rate, height, climb, yaw, yaw_rate = 0.28, 0.28, 0.145, 0.0375, 0.5, 0.238, 0.03, 0.112
    roll, pitch, turn, up = np.zeros((4, 18))  # over the features position 0:3, rotation 3:12, velocity, rate / 10
    pitch[[0, 12, 5, 16]] = -lean * p_gain, -lean * v_gain, -lean, -10.0 * rate
    roll[[1, 13, 8, 15]] = lean * p_gain, lean * v_gain, lean, -10.0 * rate
    turn[[6, 17]] = -yaw, -10.0 * yaw_rate
    up[[2, 14]] = -height, -climb
    weight = np.zeros((4, 18 + 4 * task.history))
    forward, left, spin = np.array([[1, -1, -1, 1], [-1, -1, 1, 1], [-1, 1, -1, 1]])
    weight[:, :18] = np.outer(left, roll) + np.outer(-forward, pitch) + np.outer(spin, turn) + up
    return FeaturePolicy.from_task(task, Mlp([(weight, np.full(4, np.arctanh(task.initial_action)))]))


def resealed(policy: PolicyFile, path: Path, graph: Any = None, **changed: Any) -> Path:
    """Write a copy with other metadata or graph and a correct digest: damage that only a deeper look can find."""
    model = onnx.load(policy.path)
    if graph:
        graph(model)
    metadata = {
        k: v for k, v in {**policy.metadata, **changed}.items() if k not in ("schema", "digest") and v != "gone"
    }
    path.write_bytes(serialise(model, metadata))
    return path


def exported(path: Path, controller: FeaturePolicy | None = None, **options: Any) -> PolicyFile:
    return export(controller or small(), path, **options)


def metadata_text(path: Path) -> dict[str, Any]:
    found = {p.key: p.value for p in onnx.load(path).metadata_props}
    return json.loads(found[KEY])

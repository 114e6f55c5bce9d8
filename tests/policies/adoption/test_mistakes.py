"""Wrong mappings of a policy that flies: each is named by the check, or refused; the right one is left alone."""

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploy
from deploy.policy_file import PolicyFile
from policies.adoption import adopted, readings, trial
from policies.adoption.adopted import AdoptedPolicy
from policies.adoption.contract import contract_of
from policies.adoption.description import parse
from policies.adoption.fields import DescriptionError
from policies.adoption.layers import Chain, Gated
from policies.models.networks.feed_forward import FeedForward
from policies.models.reading import network_of
from sim.tasks import make
from sim.tasks.quad_hover import POSITION_SCALE, RATE_SCALE, VELOCITY_SCALE

EPISODES, SEED, PERIOD = 12, 0, 0.01  # s
STEPS = 4  # of the history
SIZES = (3, 9, 3, 3, 4)  # of the terms below
DEGREES = 180.0 / np.pi
SETTINGS: dict[str, Any] = {
    "robot": "crazyflie",
    "path": "hold",
    "tilt": 60.0,
    "noise": 0.0,
    "delay_high": 0.0,
    "episode_s": 2.0,
}
RIGHT = {
    "task": "quad_any",
    "task_settings": SETTINGS,
    "observation": [
        {"signal": "position", "minus": "target_position", "squash": POSITION_SCALE},
        {"signal": "rotation"},
        {"signal": "linear_velocity", "minus": "target_velocity", "squash": VELOCITY_SCALE},
        {"signal": "angular_velocity", "scale": RATE_SCALE},
        {"last_action": True},
    ],
    "action": {"command": "motor_command", "squash": "tanh", "scale": 0.5, "offset": 0.5},
}


@functools.cache
def trained():
    """The weights of quad_any, as somebody else's, and what stands for the action before the first one."""
    task = make("quad_any", **SETTINGS)
    file = Path(deploy.__file__).with_name("pretrained") / "quad_any.onnx"
    return network_of(PolicyFile.load(file), make("quad_any")), float(task.initial_action)


def network(first):
    gru = trained()[0]
    memory = Gated((gru.w_ih, gru.b_ih), (gru.w_hh, gru.b_hh), np.zeros(gru.hidden))
    return Chain([FeedForward([first], "identity", "relu"), memory, FeedForward([gru.output], "identity")])


def plain():
    """As it was trained."""
    return copy.deepcopy(RIGHT), network(trained()[0].input)


def normalised():
    """The same for a network that wants its inputs normalised."""
    weight, bias = trained()[0].input
    mean, std = np.linspace(-0.5, 0.5, 22), np.linspace(0.2, 3.0, 22)
    said = {**copy.deepcopy(RIGHT), "normalisation": {"mean": mean.tolist(), "std": std.tolist()}}
    return said, network((weight * std, bias + weight @ mean))


def remembering():
    """The same for a network that sees four steps of everything, and takes its velocity from positions."""
    weight, bias = trained()[0].input
    wide, said = np.zeros((len(weight), STEPS * sum(SIZES))), copy.deepcopy(RIGHT)
    said["observation"][2] = {"signal": "position", "minus": "target_position"}
    for k, term in enumerate(said["observation"]):
        term["history"], start, size = STEPS, sum(SIZES[:k]), SIZES[k]
        block, at = weight[:, start : start + size], STEPS * start
        share = block / ((STEPS - 1) * PERIOD) if k == 2 else block
        wide[:, at + (STEPS - 1) * size : at + STEPS * size] = share  # the newest is last
        if k == 2:
            wide[:, at : at + size] = -share
    return said, network((wide, bias))


def term(index, **fields):
    return lambda said: said["observation"][index].update(fields)


def action(**fields):
    return lambda said: said["action"].update(fields)


def exchanged(said):
    terms = said["observation"]
    terms[2], terms[3] = terms[3], terms[2]


# What is wrong -> the policy, how its description is spoilt, the reading that puts it right.
MISTAKES = {
    "permuted rotors": (plain, action(elements=[0, 3, 2, 1]), "action: elements as the robot has them"),
    "axes forward, right, down": (
        plain,
        term(3, scale=[RATE_SCALE, -RATE_SCALE, -RATE_SCALE]),
        "observation[3] angular_velocity: axes forward, right, down",
    ),
    "sign": (plain, term(0, scale=-1.0), "observation[0] position: sign"),
    "terms in another order": (plain, exchanged, "observation: angular_velocity and linear_velocity exchanged"),
    "scale of a term": (plain, term(1, scale=4.0), "observation[1] rotation: scale x 0.25"),
    "degrees for radians": (
        plain,
        term(3, scale=RATE_SCALE * DEGREES),
        "observation[3] angular_velocity: scale x 0.0175 (radians)",
    ),
    "normalised twice": (
        plain,
        lambda said: said.update(normalised()[0]),
        "normalisation: none",
    ),
    "history in reverse": (remembering, lambda said: said.update(history={"newest": "first"}), "history: newest last"),
    "history step by step": (remembering, lambda said: said.update(history={"order": "frame"}), "history: order term"),
    "scale of the action": (plain, action(scale=0.125), "action: scale x 4"),
    "four times the rate": (
        remembering,
        lambda said: said["task_settings"].update(rate_hz=400.0),
        "rate: every action held for 4 steps",
    ),
}


def policy(made, spoil=lambda said: None):
    said, net = made()
    said["action"]["initial"] = trained()[1]
    spoil(said)
    description = parse("a.yaml", said)
    return AdoptedPolicy(description, contract_of(description), net)


def fly(one, kinds, monkeypatch):
    """What the check finds, of the readings whose names begin so: the others are left out to save time."""
    every = readings.readings
    monkeypatch.setattr(adopted, "readings", lambda *a: [r for r in every(*a) if r.name.startswith(kinds)])
    return trial.compare(one, EPISODES, SEED)


SLOW = ("four times the rate",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in MISTAKES])
def test_a_wrong_mapping_is_named(name, monkeypatch):
    made, spoil, right = MISTAKES[name]
    better = trial.clearly_better(fly(policy(made, spoil), (right, right.partition(" ")[0]), monkeypatch))
    assert better is not None
    assert better.name == right


@pytest.mark.long
@pytest.mark.parametrize("made", [plain, normalised, remembering])
def test_the_right_mapping_stands(made, monkeypatch):
    kinds = ("action: elements from", "observation[0] position: s", "history: newest", "normalisation: none", "rate")
    tried = fly(policy(made), kinds, monkeypatch)
    assert len(tried) > len(kinds)
    assert trial.clearly_better(tried) is None
    assert tried[0].returns.mean() > 250.0


# What is refused before anything flies.
REFUSED = {
    "a joint twice": (action(elements=[0, 1, 2, 2]), "holds 2 twice; each element goes once"),
    "a term that is missing": (lambda said: said["observation"].pop(), "make 18 numbers .* the network takes 22"),
    "a term that is another's length": (term(0, elements=[0, 1]), "make 21 numbers .* 1 are missing"),
    "a history of one term": (term(3, history=2), "make 25 numbers .* 3 too many"),
    "another rate": (lambda said: said.update(rate_hz=50.0), "trained at 50 Hz, quad_any runs at 100"),
    "a normaliser that is not there": (
        lambda said: said.update(normalisation={"file": "?"}),
        "normalisation.file: there is no '\\?' beside",
    ),
    "what no robot senses": (term(1, signal="rotor_speed"), "rotor_speed'"),
    "what goes beyond the command": (action(elements=[0, 1, 2, 4]), "motor_command has no element 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    spoil, said = REFUSED[name]
    with pytest.raises(DescriptionError, match=said):
        policy(plain, spoil)

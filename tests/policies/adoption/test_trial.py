"""A check that flies: it names the joint order, the history or the scale that is read wrongly."""

import dataclasses

import numpy as np
import pytest

from policies.adoption import adopted, readings, trial
from policies.adoption.adopted import AdoptedPolicy
from policies.adoption.contract import contract_of
from policies.adoption.description import parse
from policies.models.networks.feed_forward import FeedForward

EASY = {"tilt": 20.0, "position": 0.3, "velocity": 0.2, "body_rate": 0.2, "noise": 0.0, "delay_high": 0.0}


def hovering(**action):
    """A linear controller of a quadrotor, found by trying: 138 of return, 178 steps in the air, of 6 episodes."""
    described = {
        "task": "quad_hover",
        "task_settings": EASY,
        "observation": [
            {"signal": "position", "minus": "target_position"},
            {"signal": "rotation"},
            {"signal": "linear_velocity"},
            {"signal": "angular_velocity"},
        ],
        "action": {"command": "motor_command", "clip": 1.0, "means": "range", **action},
    }
    description = parse("hover.yaml", described)
    contract = contract_of(description)
    pitch, roll, lift = np.zeros((3, 18))
    pitch[[5, 0, 12, 16]] = -0.081, -0.081 * 0.274, -0.081 * 0.741, -0.053
    roll[[8, 1, 13, 15]] = 0.081, 0.081 * 0.274, 0.081 * 0.741, -0.053
    lift[[2, 14]] = -0.415, -0.278
    weight = np.stack([lift + side * roll + back * pitch for side, back in ((-1, -1), (-1, 1), (1, 1), (1, -1))])
    hover = 2.0 * contract.made.robot.hover_command - 1.0
    return AdoptedPolicy(description, contract, FeedForward([(weight, np.full(4, hover))], "tanh"))


def few(policy, monkeypatch, kinds):
    """Only those other readings whose names contain one of these: the rest is left out to save time."""
    every = readings.readings

    def some(described, contract):
        return [r for r in every(described, contract) if any(kind in r[0] for kind in kinds)]

    monkeypatch.setattr(adopted, "readings", some)
    return trial.compare(policy, 20, 0)


def test_what_is_described_rightly_stands(monkeypatch):
    tried = few(hovering(), monkeypatch, ["action: elements", "degrees"])
    assert len(tried) > 4
    assert trial.clearly_better(tried) is None
    assert tried[0].returns.mean() > 1.5 * max(other.returns.mean() for other in tried[1:])


def test_rotors_in_a_wrong_order_are_found_and_the_right_one_is_named(monkeypatch):
    tried = few(hovering(elements=[0, 3, 2, 1]), monkeypatch, ["action: elements"])
    better = trial.clearly_better(tried)
    assert better is not None
    assert better.advice == "elements: [0, 1, 2, 3]"
    lines = trial.text(tried).splitlines()
    assert "as described" in lines[2]
    assert better.name in lines[3]


def test_a_scale_that_is_read_wrongly_comes_first_in_the_table(monkeypatch):
    policy = hovering()
    terms = list(policy.description.observation)
    terms[1] = dataclasses.replace(terms[1], scale=(4.0,))
    wrong = dataclasses.replace(policy.description, observation=tuple(terms))
    tried = few(AdoptedPolicy(wrong, policy.contract, policy.network), monkeypatch, ["observation[1]", "degrees"])
    best = max(tried, key=lambda each: each.returns.mean())
    assert (best.name, best.advice) == ("observation[1] rotation: scale x 0.25", "scale: 1")
    assert best.returns.mean() > 2.0 * tried[0].returns.mean()
    assert best.name in trial.text(tried).splitlines()[3]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        (np.full(20, 20.0), True),  # always, and by much
        (np.full(20, 11.0), False),  # always, but by little
        (np.r_[np.full(17, 12.0), 400.0, 5.0, 5.0], True),  # 18 of 20, with a long tail
        (np.r_[np.full(12, 30.0), np.full(8, 1.0)], False),  # luck
        (np.full(20, 2.0), False),
    ],
)
def test_what_is_clearly_better(others, found):
    def tried(name, returns):
        return trial.Tried(name, "", returns, np.zeros(20, bool), np.ones(20, int))

    described = tried(trial.DECLARED, np.linspace(9.9, 10.1, 20))
    assert (trial.clearly_better([described, tried("other", others)]) is not None) == found
    sunk = tried(trial.DECLARED, np.full(20, -10.0))  # where returns are negative, too
    assert (trial.clearly_better([sunk, tried("other", others - 20.0)]) is not None) == found


def test_of_joints_every_usual_order_is_tried():
    names = tuple(f"{leg}_{joint}" for leg in ("FR", "FL", "RR", "RL") for joint in ("hip", "thigh", "calf"))
    orders = readings._orders(names, names)
    by_joint = [f"{leg}_{joint}" for joint in ("hip", "thigh", "calf") for leg in ("FR", "FL", "RR", "RL")]
    assert [names[k] for k in orders["joint by joint, leg within it"]] == by_joint
    mixed = readings._orders(tuple(by_joint), names)
    assert [by_joint[k] for k in mixed["as the robot has them"]] == list(names)
    assert all(sorted(order) == list(range(12)) for order in (*orders.values(), *mixed.values()))
    swapped = [names[k] for k in orders["left and right exchanged"]]
    assert swapped[:3] == ["FL_hip", "FL_thigh", "FL_calf"]


def test_a_robot_of_others_has_no_simulator_here():
    policy = hovering()
    with pytest.raises(ValueError, match="check=true needs a task of ours"):
        trial.compare(
            AdoptedPolicy(policy.description, dataclasses.replace(policy.contract, made=None), policy.network), 2, 0
        )

"""Games in the engine, to compare with those of a page."""

import numpy as np

from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.tasks import make
from sim.terms import Feature

BALL = ("ball_position", "ball_velocity", "ball_rolling", "scored")
ROBOT = ("position", "heading", "velocity", "turning", "pan", "charge", "touched")


def state_of(pitch) -> np.ndarray:
    """(num, 27), as the page's C holds it."""
    ball = np.concatenate([pitch.read(name) for name in BALL], axis=1)
    robots = np.concatenate([pitch.read(name) for name in ROBOT], axis=2)
    return np.concatenate([ball, robots.reshape(len(ball), -1)], axis=1)


def linear_player(robot: str = "differential") -> FeaturePolicy:
    """A controller that drives to the ball as fast as it can, and kicks all the time."""
    task = make("soccer_1v1", robot=robot)
    seen = tuple(s for s in task.policy if s.name == "ball_position")
    outputs = sum(s.size for s in task.commands)
    weight = np.zeros((outputs, 2))
    weight[-2, 1] = 1.5  # turns to it
    bias = np.zeros(outputs)
    bias[[0, -1]] = 1.0, 2.0
    features = (Feature("ball_position"),)
    made = Mlp([(weight, bias)])
    return FeaturePolicy(
        "linear", task.name, task.robot.name, task.rate_hz, seen, task.commands, features, 0, 0.0, made
    )


def games(policy, count: int, opponent: str, robot: str = "differential", seed: int = 0):
    """Of a policy file from kickoffs, nothing varies: the states (steps + 1, count, 27), and each one's end."""
    task = make("soccer_1v1", vary=False, opponent=opponent, robot=robot)
    env = task.open(count, seed)
    env.reset(range(count), range(count))
    states, ended = [state_of(env.pitch)], np.full(count, task.episode_steps)
    policy.reset(count)
    for step in range(1, task.episode_steps + 1):
        seen = env.observe()
        env.step(policy.step({s.name: seen[s.name] for s in policy.inputs}))
        states.append(state_of(env.pitch))
        ended[(env.over != 0.0) & (ended == task.episode_steps)] = step
        if (env.over != 0.0).all():
            break
    env.close()
    return np.array(states), ended

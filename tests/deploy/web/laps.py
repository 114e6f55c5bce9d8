"""Laps in the engine, to compare with those of a page."""

import numpy as np

from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.tasks import make

STATES = ("position", "heading", "velocity", "turning", "steering_angle", "push", "touched", "impact")


def told_track(track) -> list:
    """What a page is told of a track."""
    return [track.centre.tolist(), track.left.tolist(), track.right.tolist()]


def state_of(cars) -> np.ndarray:
    """(num, 11), as the page's C holds it."""
    return np.concatenate([cars.read(name) for name in STATES], axis=1)


def linear_driver(speed: float = 3.0, gain: float = 0.9) -> FeaturePolicy:
    """A controller that steers to where the lidar sees further, at a constant speed."""
    task = make("car_race")
    lidar = next(s.size for s in task.policy if s.name == "lidar")
    angle = ((np.arange(lidar) + 0.5) / lidar - 0.5) * np.radians(270.0)
    weight = np.zeros((2, lidar + 3))
    weight[0, :lidar] = gain * np.sin(angle) * (np.abs(angle) < np.radians(100.0)) / 3.0
    low, high = task.commands[1].low, task.commands[1].high
    share = 2.0 * (speed - low) / (high - low) - 1.0
    return FeaturePolicy.from_task(task, Mlp([(weight, np.array([0.0, np.arctanh(share)]))]))


def laps(policy, count: int, seed: int = 0):
    """Of a policy file on `count` random tracks, with nothing that varies: (told, success, control steps).

    `told` is what tests/deploy/web/car.mjs wants for the same.
    """
    task = make("car_race", vary=False, tracks=count)
    env = task.open(count, seed)
    env.reset(range(count), range(count))
    start = state_of(env.cars)
    told = [{"track": told_track(env.tracks[env.track[k]]), "start": start[k].tolist()} for k in range(count)]
    done, success, steps = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, int)
    policy.reset(count)
    for step in range(1, task.episode_steps + 1):
        seen = env.observe()
        step_of = env.step(policy.step({s.name: seen[s.name] for s in policy.inputs}))
        now = ~done & (step_of.success | step_of.terminated)
        success[now], steps[now] = step_of.success[now], step
        done |= now
        if done.all():
            break
    steps[~done] = task.episode_steps
    env.close()
    return told, success, steps

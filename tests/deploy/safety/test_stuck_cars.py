"""Cars that stand against walls of tracks that nobody has seen free themselves, whoever drives.

    PYTHONPATH=. python tests/deploy/safety/test_stuck_cars.py gap human pursuit FILE.onnx
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from deploy.drivers.simulated import evaluation_seed
from deploy.guard import Guard
from deploy.policy_file import PolicyFile
from deploy.safety.recovery import Recovery, Rules
from sim.conditions import Conditions
from sim.env import evaluation_env
from sim.scenes.track import WIDTH
from sim.tasks import make

CONDITIONS: dict[str, dict[str, bool]] = {"as in training": {}, "reality": {"reality": True}}
SEEN, AFTER = 6.0, 20.0  # s in which it comes to stand, and in which it has to get free
SLOW, STANDS = 0.25, 1.5  # m/s, and s for which it is slower: it is stuck
WAY = 5.0  # m along the track, either way, that who is free has driven


@dataclass
class Outcome:
    """Of cars that were stuck (k,)."""

    free: Any  # in time
    seconds: Any  # until it had driven so far; NaN: never
    ahead: Any  # it drives on the way that the track is driven
    lost: Any


def driven_by(driver: str, condition: str, n: int, seed: int = 7) -> Outcome:
    """`n` cars at any angle against a wall, driven by a baseline or a policy file: those that got stuck there."""
    rules: dict[str, Any] = {"touch": "costs", "laps": 20, "steps": 10_000, **CONDITIONS[condition]}
    policy = PolicyFile.load(driver) if driver.endswith(".onnx") else None
    rules["told"] = policy is not None and any(s.name == "last_speed" for s in policy.inputs)
    task, ahead_only = make("car_race", **rules, reverse=1.0), make("car_race", **rules)
    env: Any = evaluation_env(task, n, evaluation_seed(seed), Conditions())
    env.reset(range(n), range(n))
    against_walls(env, np.random.default_rng(seed))
    play = policy.step if policy else ahead_only.baselines[driver]
    if policy:
        policy.reset(n)
    frees = Recovery(Rules.from_table(task.robot.recovery), task.rate_hz, task.robot.commands)
    guard = Guard(task.policy, ahead_only.commands, reach=task.robot.commands, recovery=frees)
    guard.reset(n)
    ages = dict.fromkeys((s.name for s in task.policy), 0.0)
    speeds, ways = [], []
    for _ in range(round((SEEN + AFTER) * task.rate_hz)):
        seen = env.observe()
        guard.screen({s.name: seen[s.name] for s in task.policy}, ages)
        wanted = play({s.name: seen[s.name] for s in policy.inputs} if policy else seen)
        env.step(guard.filter(wanted))
        speeds.append(np.linalg.norm(env.truth()["velocity"], axis=1))
        ways.append(env.place[:, 2].copy())
    return judged(np.array(speeds), np.cumsum(ways, axis=0), frees.state == 5, task.rate_hz)


def against_walls(env: Any, rng: np.random.Generator) -> None:
    """Stand them there, anywhere on their tracks, at any angle."""
    n, courses, car = env.num, env.courses, env.task.driven
    angle, side = rng.uniform(-np.pi, np.pi, n), rng.choice([-1.0, 1.0], n)
    at = courses.first[env.track] + (rng.random(n) * courses.points[env.track]).astype(int)
    (hx, hy), (cos, sin) = courses.heading[at].T, (np.cos(angle), np.sin(angle))
    aside = side * (0.5 * WIDTH - car.derived["radius"] - car.derived["reach"] * np.abs(sin))
    start = {
        "position": courses.centre[at] + aside[:, None] * np.stack([-hy, hx], axis=1),
        "heading": np.stack([hx * cos - hy * sin, hy * cos + hx * sin], axis=1),
        "velocity": np.zeros((n, 2)),
        **{name: env.cars.read(name) for name in car.parameters()},
    }
    env.cars.reset(np.arange(n), {name: np.asarray(value, np.float32) for name, value in start.items()})
    env.nearest[:] = -1
    env._look(np.arange(n))
    env._sensors.send(env._table)


def judged(speeds: Any, ways: Any, lost: Any, rate_hz: float) -> Outcome:
    """Of speeds and ways (steps, n): whoever stood in the first seconds, whatever anybody noticed."""
    long, n = round(STANDS * rate_hz), speeds.shape[1]
    still = np.cumsum(np.concatenate([np.zeros((1, n)), speeds < SLOW]), axis=0)
    stands = (still[long:] - still[:-long] == long)[: round((SEEN - STANDS) * rate_hz)]
    stuck, began = stands.any(axis=0), stands.argmax(axis=0) + long - 1
    far, row = np.abs(ways - ways[began, np.arange(n)]) > WAY, np.arange(len(ways))[:, None]
    far &= row > began
    took = np.where(far.any(axis=0), (far.argmax(axis=0) - began) / rate_hz, np.nan)
    ahead = ways[-1] > ways[began, np.arange(n)]
    return Outcome((took <= AFTER)[stuck], took[stuck], ahead[stuck], lost[stuck])


@pytest.mark.parametrize("driver", ["gap", "pursuit"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_cars_against_walls_free_themselves(driver, condition):
    outcome = driven_by(driver, condition, 100)
    assert len(outcome.free) >= 25 and outcome.free.mean() >= 0.95


def test_only_who_stood_and_drove_on_in_time_is_free():
    steps, rate = round((SEEN + AFTER) * 20.0), 20.0
    speeds, ways = np.ones((steps, 4)), np.zeros((steps, 4))
    speeds[:40, :3] = 0.0  # the last one drives
    ways[:, 0] = np.linspace(0.0, 12.0, steps)
    ways[:, 1] = -np.linspace(0.0, 12.0, steps)
    outcome = judged(speeds, ways, np.array([False, False, True, False]), rate)
    assert outcome.free.tolist() == [True, True, False] and outcome.ahead.tolist() == [True, False, False]
    assert outcome.lost.tolist() == [False, False, True]


def main(drivers: list[str], n: int = 600) -> None:
    """A line per driver and condition."""
    from policies.runner.report import wilson

    for driver in drivers:
        for condition in CONDITIONS:
            found = driven_by(driver, condition, n)
            k, stuck = int(found.free.sum()), len(found.free)
            low, high = wilson(k, stuck) if stuck else (0.0, 1.0)
            took = np.nanmedian(found.seconds) if k else float("nan")
            print(
                f"{driver}, {condition}: {k} of {stuck} = {100 * k / stuck:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
                f", median {took:.1f} s, {int(found.lost.sum())} lost, {100 * found.ahead.mean():.0f} % ahead",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])

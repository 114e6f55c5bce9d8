"""Cars that stand against walls of tracks that nobody has seen free themselves, whoever drives.

PYTHONPATH=. python tests/deploy/safety/test_stuck_cars.py [SEED] FILE.onnx gap
"""

import itertools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from deploy.drivers.simulated import evaluation_seed
from deploy.guard import Guard
from deploy.policy_file import PolicyFile
from deploy.safety.recovery import LOST, Recovery, Rules
from sim.conditions import Conditions
from sim.env import evaluation_env
from sim.scenes.track import WIDTH
from sim.tasks import make

CONDITIONS: dict[str, dict[str, bool]] = {"as in training": {}, "reality": {"reality": True}}
SECONDS = 20.0  # in which it has to get free
WAY = 5.0  # m along the track, either way, that who is free has driven
STANDS_S = 3.0  # s: nobody has a reason to stand on these tracks, so that who does so is stuck


@dataclass
class Outcome:
    """Of cars (n,)."""

    seconds: Any  # until it had driven so far; NaN: not in time
    ahead: Any  # it drives the way that the track is driven
    lost: Any

    @property
    def free(self) -> Any:
        """Those that had driven so far in time."""
        return np.isfinite(self.seconds)


def driven_by(driver: str, condition: str, n: int, recovery: bool = True, seed: int = 7) -> Outcome:
    """`n` cars that stand at any angle against a wall, driven by a baseline or a policy file."""
    rules: dict[str, Any] = {"touch": "costs", "laps": 20, "steps": 10_000, **CONDITIONS[condition]}
    policy = PolicyFile.load(driver) if driver.endswith(".onnx") else None
    rules["told"] = policy is not None and any(s.name == "last_speed" for s in policy.inputs)
    task: Any = make("car_race", **rules, reverse=1.0)
    forward: Any = make("car_race", **rules)
    env: Any = evaluation_env(task, n, evaluation_seed(seed), Conditions())
    env.reset(range(n), range(n))
    against_walls(env, np.random.default_rng(seed))
    play = policy.step if policy else forward.baselines[driver]
    if policy:
        policy.reset(n)
    frees = Recovery(Rules.from_table({**task.robot.recovery, "stands_s": STANDS_S}), task.rate_hz, task.robot.commands)
    guard = Guard(task.policy, forward.commands, reach=task.robot.commands, recovery=frees if recovery else None)
    guard.reset(n)
    ages = dict.fromkeys((s.name for s in task.policy), 0.0)
    ways = []
    for _ in range(round(SECONDS * task.rate_hz)):
        seen = env.observe()
        guard.screen({s.name: seen[s.name] for s in task.policy}, ages)
        wanted = play({s.name: seen[s.name] for s in policy.inputs} if policy else seen)
        env.step(guard.filter(wanted))
        ways.append(env.place[:, 2].copy())
    way = np.cumsum(ways, axis=0)
    return Outcome(first_at(np.abs(way) > WAY, task.rate_hz), way[-1] > 0.0, frees.state == LOST)


def first_at(far: Any, rate_hz: float) -> Any:
    """s (n,) until it was first so (steps, n); NaN where it never was."""
    return np.where(far.any(axis=0), (far.argmax(axis=0) + 1) / rate_hz, np.nan)


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


@pytest.mark.parametrize("condition", CONDITIONS)
def test_cars_against_walls_free_themselves(condition):
    alone = driven_by("gap", condition, 100, recovery=False)
    helped = driven_by("gap", condition, 100)
    assert (~alone.free).sum() > 25 and helped.free[~alone.free].mean() >= 0.95
    assert not helped.lost.any() and 0.3 < helped.ahead.mean() < 0.7  # no lidar tells which way round


def test_who_drives_so_far_in_time_is_free():
    far = np.array([[False, False], [True, False], [True, False]])
    assert np.array_equal(first_at(far, 20.0), [0.1, np.nan], equal_nan=True)


def main(asked: list[str], n: int = 400) -> None:
    """A line per driver and condition, for the seed that goes before them, or 7."""
    from policies.runner.report import wilson

    seed, drivers = (int(asked[0]), asked[1:]) if asked[:1] and asked[0].isdigit() else (7, asked)
    for driver, condition in itertools.product(drivers, CONDITIONS):
        stuck = ~driven_by(driver, condition, n, recovery=False, seed=seed).free
        found = driven_by(driver, condition, n, seed=seed)
        free, total = int(found.free[stuck].sum()), int(stuck.sum())
        low, high = wilson(free, total)
        print(
            f"{driver}, {condition}: {total} of {n} do not get away by themselves; with recovery {free} of these do = "
            f"{100 * free / total:.1f} % ({100 * low:.1f} to {100 * high:.1f}), after "
            f"{np.nanmedian(found.seconds[stuck]):.1f} s (median), {int(found.lost[stuck].sum())} lost; of all "
            f"{int(found.free.sum())} are free and {int(found.lost.sum())} lost, "
            f"{100 * found.ahead.mean():.0f} % the right way round",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])

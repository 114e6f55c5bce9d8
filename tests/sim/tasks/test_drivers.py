"""Who drives races by hand-written rules: what MPPI imagines is what comes, and each driver keeps its own pace."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies import collect
from policies.datasets import Dataset
from policies.evaluate import evaluate, main
from policies.reports.paired import Scripted
from sim.engines.car.lidar import angles
from sim.engines.car.plans import imagined
from sim.engines.vector.simd import LANES
from sim.env import make_env
from sim.experts.mppi import SPARE, STEPS, Mppi
from sim.rollout import rollout
from sim.scenes.track import WIDTH
from sim.tasks import make
from sim.tasks.abilities import baseline_of
from sim.tasks.race import BEAMS, EXPERTS, RATE, VIEW
from sim.tasks.race.world import Race

FEW = {"tracks": 6}


def opened(num: int, seed: int = 0, **settings: Any) -> Race:
    env = make_env(make("car_race", **{**FEW, **settings}), num, seed)
    env.reset(range(num), range(num))
    return env


def small(env: Race) -> Mppi:
    return Mppi(env.task, angles(BEAMS, VIEW), plans=64)


def driven(env: Race, act: Any, steps: int) -> list[Mapping[str, np.ndarray]]:
    told = []
    for _ in range(steps):
        told.append(act(env.observe()))
        env.step(told[-1])
    return told


@pytest.mark.parametrize(
    ("name", "least", "lap"),
    [
        ("pursuit", 1.0, (10.0, 14.0)),
        ("mppi", 0.75, (5.0, 8.0)),
        ("human", 0.75, (14.0, 24.0)),
        ("gap", 1.0, (10.0, 14.0)),
    ],
)
def test_each_drives_laps_at_its_own_pace(name: str, least: float, lap: tuple[float, float]):
    task = make("car_race", vary=False, **FEW)
    report = evaluate(Scripted(task, name), task=task, episodes=4)
    done = report.values["success"] > 0.0
    assert done.mean() >= least
    assert lap[0] < report.values["lap_time"][done].mean() < lap[1]


def test_what_is_imagined_is_what_comes():
    """Where nothing varies the model is the car: a plan's way along the path is the one that is then driven."""
    env = opened(4, vary=False)
    mppi = small(env)
    driven(env, mppi, 20)
    seen, begun = env.observe(), env.way.copy()
    model, before = mppi._model, mppi._push.copy()
    mppi(seen)
    mppi._push, plan = before, mppi._plan.copy()
    mppi._set(seen)
    np.testing.assert_allclose(model.read("push"), env.cars.read("push"), atol=0.02)  # no sensor tells it
    imaginary = []
    for row in range(4):
        own = [
            np.repeat(model.arrays()[name][:1, :, row, None], LANES, axis=2)[:, :, :]
            for name in ("state", "parameters")
        ]
        path = seen["path"][row].reshape(-1, 2)
        ways = np.append(0.0, np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()).astype(np.float32)
        laid = np.repeat(plan[row].reshape(1, -1, 1), LANES, axis=2)
        cost, wide = np.empty((1, LANES), np.float32), np.full(2, 5.0, np.float32)
        imagined(own[0], own[1], path, ways, wide, laid, model.shape, model._h, 2, np.empty_like(own[0]), cost)
        change = np.diff(plan[row, :, 0]) / env.task.robot.steering_limit
        imaginary.append(0.02 * (change**2).sum() - cost[0, 0])
    for k in range(STEPS):
        env.step({"steering": plan[:, k, :1], "speed": plan[:, k, 1:]})
    np.testing.assert_allclose(env.way - begun, imaginary, atol=0.15)


def test_plans_that_touch_walls_cost_more():
    env = opened(1, vary=False)
    mppi = small(env)
    mppi(env.observe())
    mppi._set(env.observe())
    own = [np.repeat(mppi._model.arrays()[name][:1, :, :1], LANES, axis=2) for name in ("state", "parameters")]
    path = np.stack([np.linspace(0.0, 9.6, 24), np.zeros(24)], axis=1).astype(np.float32)
    laid = np.zeros((1, 2 * STEPS, LANES), np.float32)
    laid[:, 1::2] = 3.0
    laid[:, 0::2, 1], laid[:, 0::2, 2] = 0.2, -0.2
    cost = np.empty((1, LANES), np.float32)
    room = np.array([0.8, 5.0], np.float32)  # to the left, to the right
    imagined(*own, path, path[:, 0].copy(), room, laid, mppi._model.shape, mppi._model._h, 2, own[0].copy(), cost)
    assert cost[0, 0] < -2.0 < 10.0 < cost[0, 1]
    assert cost[0, 2] < 0.0


def test_it_sees_how_far_walls_are():
    env = opened(8, vary=False)
    room = small(env)._room(env.observe())
    np.testing.assert_allclose(room + SPARE, 0.5 * WIDTH, atol=0.12)


@pytest.mark.parametrize("name", ["mppi", "human"])
def test_a_row_s_driver_knows_nothing_of_other_rows(name: str):
    """Nor of the episode before: the same one is driven again as it was."""
    env = opened(3)
    act = small(env) if name == "mppi" else baseline_of(env.task, name)
    first = driven(env, act, 12)
    env.reset(range(3), range(3))
    again = driven(env, act, 12)
    env = opened(2)
    env.reset([1, 0], [0, 2])
    other = driven(env, small(env) if name == "mppi" else baseline_of(env.task, name), 12)
    for one, two, three in zip(first, again, other, strict=True):
        for command, value in one.items():
            np.testing.assert_array_equal(value, two[command])
            np.testing.assert_array_equal(value[[0, 2]], three[command][[1, 0]])


def test_mppi_takes_whole_blocks_of_plans():
    with pytest.raises(ValueError, match="needs a multiple of 16 plans, got 20"):
        Mppi(make("car_race"), angles(BEAMS, VIEW), plans=20)


def test_a_careful_hand_is_late_and_trembles():
    told = {name: [] for name in ("pursuit", "human")}
    for name, steering in told.items():
        env = opened(8, vary=False)
        for command in driven(env, baseline_of(env.task, name), 60):
            steering.append(command["steering"][:, 0])
    jerks = {name: np.abs(np.diff(np.array(s), axis=0)).mean() for name, s in told.items()}
    assert jerks["human"] > 1.3 * jerks["pursuit"]


def test_the_expert_is_the_one_that_the_task_names(tmp_path: Path):
    assert make("car_race").config.expert == EXPERTS[0]
    task = make("car_race", expert="human", vary=False, **FEW)
    env = make_env(task, 2, 0)
    episodes = list(rollout(task, env, lambda seen, numbers, begun: task.expert(seen), range(4)))
    done = [len(e.reward) for e in episodes if e.succeeded]
    assert len(done) >= 3 and min(done) > 14.0 * RATE
    collect.main(["task=car_race", "task.expert=human", "task.tracks=4", "episodes=2", f"out={tmp_path / 'slow'}"])
    dataset = Dataset(str(tmp_path / "slow"))
    assert len(dataset) == 2 and dataset.episode(0)["action"][:, 1].max() < 4.5
    with pytest.raises(ValueError, match="expert 'racer' is not one of pursuit, mppi, human"):
        make("car_race", expert="racer")


def test_they_are_evaluated_beside_one_another(capsys: pytest.CaptureFixture[str]):
    main(["task=car_race", "task.tracks=4", "task.vary=false", "policy=human", "baseline=pursuit", "episodes=4"])
    said = capsys.readouterr().out
    assert "human beside pursuit: car_race, 4 episodes each" in said and "lap_time" in said

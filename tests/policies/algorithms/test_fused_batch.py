"""The trainer's vehicles: random ones, targets that move, and what changes within a flight."""

from __future__ import annotations

import numpy as np

from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg import fused_plan
from policies.algorithms.apg.fused_batch import Vehicles
from sim import tasks
from sim.engines.vector.blocks import from_lanes

WINDOW = 64


def vehicles(seed: int = 0, num: int = 16, **config: object) -> Vehicles:
    task = tasks.make("quad_any", **config)
    plan = fused_plan.make_plan(task)
    layout = network.gru_layout(len(plan.feature_row), 16, 16, plan.actions)
    return Vehicles(task, plan, layout, num, WINDOW, np.random.SeedSequence(seed))


def derived(batch: Vehicles) -> np.ndarray:
    return from_lanes(batch.batch.parameters, batch.num)


def test_every_vehicle_is_another_one_and_its_kernel_parameters_fit() -> None:
    batch = vehicles()
    assert len(np.unique(batch.parameters["mass"])) == 16
    expected = batch.dynamics.derive(batch.parameters, batch.dt)
    np.testing.assert_allclose(derived(batch), expected, rtol=1e-5)


def test_sluggish_vehicles_have_more_leeway() -> None:
    task = tasks.make("quad_any", range="wide")
    plan = fused_plan.make_plan(task)
    layout = network.gru_layout(len(plan.feature_row), 16, 16, plan.actions)
    batch = Vehicles(task, plan, layout, 64, WINDOW, np.random.SeedSequence(0), power=0.5)
    p = batch.parameters
    agility = 2.0 * p["thrust_curve"].sum(axis=1) * np.abs(p["rotor_position"][:, 1]) / p["inertia"][:, 0]
    np.testing.assert_allclose(from_lanes(batch.batch.leeway, 64)[:, 0], np.sqrt(300.0 / agility), rtol=1e-5)
    assert (vehicles(num=64).batch.leeway == 1.0).all()


def test_targets_move_with_time_or_stand_still() -> None:
    batch = vehicles(moving=0.5, num=64)
    steps = WINDOW + 1
    targets = from_lanes(batch.batch.exogenous.reshape(-1, steps * batch.plan.exogenous, 16), 64).reshape(64, steps, -1)
    for index in range(64):
        moves = batch.motion[index, :, 1:].any()
        time = np.arange(steps, dtype=np.float32) * np.float32(batch.dt)
        expected = batch.task.reference(np.repeat(batch.motion[index : index + 1], steps, axis=0), time)
        np.testing.assert_allclose(targets[index, :, :3], expected["target_position"], atol=1e-5)
        np.testing.assert_allclose(targets[index, :, 3:], expected["target_velocity"], atol=1e-5)
        assert moves == (np.ptp(targets[index, :, :3], axis=0).max() > 0.0)
    assert 0.2 < np.mean([batch.motion[i, :, 1:].any() for i in range(64)]) < 0.8


def test_gusts_change_vehicles_in_flight_and_a_copy_continues_alike() -> None:
    batch, other = vehicles(robust=True), vehicles(seed=9, robust=True)
    batch.task.bounds = ()
    before, wind, mass = derived(batch), batch.parameters["wind"].copy(), batch.parameters["mass"].copy()
    batch.after_window(10 * WINDOW)  # 0.64 s: nothing is due yet
    assert (derived(batch) == before).all()
    batch.after_window(10 * WINDOW)  # 1.28 s
    assert (batch.parameters["wind"] != wind).all() and (batch.parameters["mass"] == mass).all()
    np.testing.assert_allclose(derived(batch), batch.dynamics.derive(batch.parameters, batch.dt), rtol=1e-5)
    scale = batch.parameters["thrust_scale"].copy()
    other.load_state_dict(batch.state_dict())
    for _ in range(2):  # 2.56 s: the battery sags
        for one in (batch, other):
            one.task.bounds = ()
            one.after_window(10 * WINDOW)
    share = batch.parameters["thrust_scale"] / batch.base["thrust_scale"]
    np.testing.assert_allclose(share, np.broadcast_to(share[:, :1], share.shape), rtol=1e-6)
    assert (batch.parameters["thrust_scale"] != scale).all() and 0.9 <= share.min() <= share.max() <= 1.0
    assert (derived(batch) == derived(other)).all() and (batch.parameters["wind"] == other.parameters["wind"]).all()

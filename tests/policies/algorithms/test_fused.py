"""The fused trainer: gradient against finite differences, kernel against exported controller, exact resume."""

import os
import subprocess
import sys

import numpy as np
import pytest

from policies.algorithms.apg import Apg, ApgConfig, fused, fused_plan
from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg.fused_batch import Vehicles
from sim import tasks
from sim.engines.vector.blocks import from_lanes
from sim.engines.vector.simd import LANES
from sim.env import with_engine

WINDOW = 24


def small(kind: str, **changes) -> ApgConfig:
    hidden = {"gru": [8, 8], "mlp": [16, 12]}[kind]
    settings = {"network": kind, "hidden": hidden, "num_envs": LANES, "window": WINDOW, "updates": 6, **changes}
    return ApgConfig(path="fused", **settings)


def double(values):
    """The same arrays in float64; Numba compiles the kernel for them."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float64) if values.dtype == np.float32 else values
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(double(v) for v in values))
    return values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_name", "kind"),
    [
        ("quad_track", "mlp"),
        *(pytest.param(name, "gru", marks=pytest.mark.long) for name in ("quad_hover", "quad_any")),
    ],
)
def test_gradient_agrees_with_finite_differences(task_name: str, kind: str) -> None:
    """A gated unit takes 20 s to compile in double precision: test_apg_torch.py holds quad_hover's to torch's daily.

    That of quad_any with a gated unit is checked by `make test-all` alone: beside torch it takes 20 CPU-s, too.
    """
    trainer = Apg(tasks.make(task_name), small(kind), seed=3).path
    rng = np.random.default_rng(0)
    batch, plan = double(trainer.vehicles.batch), double(trainer.plan)
    start = double(trainer.vehicles.batch)
    weights = trainer.weights.astype(np.float64) + 0.1 * rng.normal(size=trainer.weights.shape) * (trainer.weights != 0)
    tape = double(trainer.tape)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        for name in ("state", "past", "hidden"):
            getattr(batch, name)[...] = getattr(start, name)
        gradient, totals = np.zeros_like(at), np.zeros(len(plan.cost_row))
        arguments = (plan, trainer.layout, batch, tape, at, gradient, totals, WINDOW, 0.01, 1e9, 0, True)
        assert trainer.kernel(*arguments) == 0
        return float(totals @ plan.cost_weight) / (LANES * WINDOW), gradient

    _, gradient = loss(weights)
    assert np.linalg.norm(gradient) > 1e-3
    # Among the weights that matter: an unused one has no gradient on either side.
    for k in rng.choice(np.flatnonzero(weights), 40, replace=False):
        step = np.zeros_like(weights)
        step[k] = 1e-5
        numeric = (loss(weights + step)[0] - loss(weights - step)[0]) / 2e-5
        # The kernel divides by vehicles * steps in float32: 1e-7 relative.
        assert gradient[k] == pytest.approx(numeric, rel=2e-4, abs=2e-7), f"weight {k}"


@pytest.mark.parametrize("kind", ["gru", "mlp"])
def test_exported_controller_acts_like_the_kernel(kind: str) -> None:
    task = tasks.make("quad_hover", noise=0.0)
    algorithm = Apg(task, small(kind), seed=1)
    trainer, vehicles = algorithm.path, algorithm.path.vehicles
    trainer.weights += 0.2 * np.random.default_rng(0).normal(size=trainer.weights.shape).astype(np.float32)
    motion = vehicles.motion.copy()
    trainer.window(vehicles, learn=False)
    controller = algorithm.controller()
    state = controller.initial_state(LANES)
    for t in range(WINDOW):
        signals = vehicles.dynamics.signals_of(from_lanes(trainer.tape.state[t : t + 1], LANES))
        signals |= task.reference(motion, np.full(LANES, t * vehicles.dt, np.float32))
        command, state = controller.act(signals, state)
        slot = fused_plan.past_slots(trainer.plan) + t
        action = from_lanes(trainer.tape.action[slot : slot + 1], LANES)
        np.testing.assert_allclose(command["motor_command"], 0.5 * (action + 1.0), atol=2e-5, err_msg=f"step {t}")


def run(algorithm: Apg) -> list[dict[str, float]]:
    return list(algorithm.learn())


@pytest.mark.parametrize("task_name", ["quad_hover", "quad_track", "quad_any"])
def test_resume_is_exact_and_seeds_decide(task_name: str) -> None:
    def make(seed: int = 0) -> Apg:
        return Apg(tasks.make(task_name), small("gru"), seed)

    whole, again, other = make(), make(), make(seed=1)
    metrics = run(whole)
    assert run(again) == metrics
    np.testing.assert_array_equal(whole.path.weights, again.path.weights)
    run(other)
    assert (other.path.weights != whole.path.weights).any()

    first = make()
    learning = first.learn()
    for _ in range(3):
        next(learning)
    second = make(seed=5)  # everything comes from the saved state
    second.load_state_dict(first.state_dict())
    assert run(second) == metrics[3:]
    np.testing.assert_array_equal(second.path.weights, whole.path.weights)


def test_lost_vehicles_are_replaced() -> None:
    vehicles: Vehicles = Apg(tasks.make("quad_hover"), small("gru"), seed=0).path.vehicles
    vehicles.batch.state[0, 0:3, 4] = 100.0  # far away
    vehicles.batch.state[0, 0, 9] = np.nan
    before = vehicles.batch.state.copy()
    assert vehicles.after_window(longest=1000) == 2
    changed = (vehicles.batch.state != before).any(axis=(0, 1))
    assert np.flatnonzero(changed).tolist() == [4, 9]
    assert np.isfinite(vehicles.batch.state).all()
    assert vehicles.age[[4, 9]].tolist() == [0, 0]
    assert set(np.delete(vehicles.age, [4, 9])) == {WINDOW}


def test_a_diverged_flight_is_counted_and_can_be_flown_again(tmp_path) -> None:
    algorithm = Apg(tasks.make("quad_hover"), small("gru"), seed=0)
    algorithm.dump_to(tmp_path / "diverged")
    trainer, vehicles = algorithm.path, algorithm.path.vehicles
    vehicles.batch.state[0, 7, 3] = np.inf
    trainer.window(vehicles)
    assert vehicles.after_window(longest=1000) >= 1
    assert vehicles.diverged == 1
    assert np.isfinite(vehicles.batch.state).all()
    with np.load(tmp_path / "diverged" / "diverged_0.npz") as saved:
        assert saved["state"][7] == np.inf
        for name in ("state", "past", "hidden", "parameters", "taps", "bias"):
            getattr(vehicles.batch, name)[0, :, 0] = saved[name]
    trainer.window(vehicles)
    assert not np.isfinite(vehicles.batch.state[0, :, 0]).all()
    assert np.isfinite(vehicles.batch.state[0, :, 1:]).all()


def test_a_block_that_is_not_finite_stays_out_of_the_gradient() -> None:
    trainer = Apg(tasks.make("quad_hover"), small("gru", num_envs=2 * LANES), seed=0).path
    trainer.vehicles.batch.state[1, 7, 3] = np.inf
    _, lost = trainer.window(trainer.vehicles)
    assert lost == 1
    assert np.isfinite(trainer.gradient).all()
    assert np.linalg.norm(trainer.gradient) > 0.0


def test_adam_discards_a_gradient_that_is_not_finite_and_clips_a_large_one() -> None:
    weights, first, second = np.ones(3, np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)
    norm = fused.adam(weights, np.array([np.nan, 1, 1], np.float32), first, second, 1, 0.1, 0.9, 0.99, 1.0)
    assert np.isnan(norm)
    np.testing.assert_array_equal(weights, 1.0)
    gradient = np.array([30.0, 40.0, 0.0], np.float32)
    assert fused.adam(weights, gradient, first, second, 1, 0.1, 0.9, 0.99, 1.0) == pytest.approx(50.0)
    np.testing.assert_allclose(first, [0.06, 0.08, 0.0], rtol=1e-5)
    np.testing.assert_allclose(weights, [0.9, 0.9, 1.0], rtol=1e-5)
    np.testing.assert_array_equal(gradient, 0.0)


def test_tanh_is_accurate_everywhere() -> None:
    x = np.linspace(-20.0, 20.0, 400_001).astype(np.float32)
    approximation = np.array([network.tanh(v) for v in x[::20]])
    assert np.abs(approximation - np.tanh(x[::20].astype(np.float64))).max() < 3e-7


def test_signals_with_delay_are_sent_to_the_torch_path() -> None:
    from dataclasses import replace

    from sim.randomize import Delay, Noise

    task = tasks.make("quad_hover")
    task.policy = (replace(task.policy[0], imperfections=(Delay(0.01, 0.02),)), *task.policy[1:])
    with pytest.raises(ValueError, match=r"algorithm\.path=torch"):
        fused_plan.make_plan(task)
    task = tasks.make("quad_hover")
    task.policy = (*task.policy[:-1], replace(task.policy[-1], imperfections=(Noise(0.1),)))
    with pytest.raises(ValueError, match=r"target_position.*algorithm\.path=torch"):
        fused_plan.make_plan(task)
    with pytest.raises(ValueError, match="no adjoint"):
        fused_plan.make_plan(with_engine(tasks.make("quad_hover"), "mujoco"))


FIRST_RUN = """
import hashlib
from policies.algorithms.apg import Apg, ApgConfig
from sim import tasks
algorithm = Apg(tasks.make("quad_hover"), ApgConfig(updates=3), seed=0)
list(algorithm.learn())
print(hashlib.sha256(algorithm.path.weights.tobytes()).hexdigest())
"""


@pytest.mark.long
def test_the_run_that_compiles_gives_what_later_runs_give(tmp_path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    runs = [
        subprocess.run([sys.executable, "-c", FIRST_RUN], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert any(tmp_path.rglob("*.nbi")), "nothing was cached: both runs compiled"
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.slow
def test_it_learns_to_hover() -> None:
    algorithm = Apg(tasks.make("quad_hover"), ApgConfig(updates=700), seed=0)
    run(algorithm)
    assert algorithm.path.measure() > 0.9


def test_curriculum_moves_the_weights_of_the_costs() -> None:
    config = small("gru", updates=2, num_envs=LANES)
    algorithm = Apg(tasks.make("quad_hover", reward="l2f"), config, seed=0)
    before = algorithm.path.plan.cost_weight.copy()
    algorithm.path.update = 1_000_000 // (LANES * WINDOW)  # a million steps later
    algorithm.path.config.updates = algorithm.path.update + 1
    run(algorithm)
    names = [c.name for c in algorithm.task.costs]
    after = dict(zip(names, algorithm.path.plan.cost_weight, strict=True))
    assert after["attitude"] == before[names.index("attitude")]
    assert after["position"] == pytest.approx(2.5 * 1.2**9, rel=1e-5)

"""apg on a swarm: its gradient from vehicle to vehicle, kernels that do as torch does, and a file that flies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy import PolicyFile
from policies.algorithms.apg import MEASURED, Apg, ApgConfig, Fused, windows
from policies.algorithms.apg.alone import learned_alone
from policies.algorithms.apg.fused_worlds import FusedWorlds
from policies.algorithms.apg.worlds import Worlds
from policies.evaluate import evaluate
from policies.models.export import export
from policies.runner import checkpoint
from sim.engines.flight.rows import BODY_RATE, POSITION, QUATERNION, VELOCITY
from sim.engines.vector.blocks import from_lanes
from sim.env import make_env
from sim.spec import size, slices
from sim.tasks import make

NEAR = np.array(
    [[0.0, 0.0, 1.5], [0.05, 0.03, 1.9], [0.3, -0.1, 1.6], [-0.1, 0.35, 1.2]]
)  # above one another, too near


MOVES = (POSITION, VELOCITY, BODY_RATE)
PILLARS = np.array([[0.2, 0.1, 0.1], [-0.3, 0.2, 0.15]], np.float32)


def start(path: str = "torch", vary: bool = False, obstacles: int = 0, **changes: Any) -> Any:
    settings = {"network": "mlp", "hidden": [16], "num_envs": 16, "window": 16, "updates": 4, "adjoint_clip": 1e9}
    radius = 1.5 if obstacles else 0.5  # with room for pillars
    task = make("quad_swarm", vehicles=4, radius=radius, vary=vary, episode_s=1.0, obstacles=obstacles)
    return Apg(task, ApgConfig(**{**settings, "path": path, **changes}), 0).path


def stand(world: Any, pillars: np.ndarray) -> None:
    """In each airspace; all are told of them."""
    world._pillars[:] = pillars
    world._look()
    world._sensors.send(world._table)


def crowded(path: Worlds) -> dict[str, Any]:
    """A policy that hovers, more or less, among vehicles that are too near; the state of its world."""
    generator, world = torch.Generator().manual_seed(0), path.world
    with torch.no_grad():
        parameters = [*path.policy.parameters()]
        for p in parameters:
            p.copy_(0.04 * torch.randn(p.shape, generator=generator))
        parameters[-1].fill_(0.347)
    places = np.tile(NEAR, (4, 1)) + 0.02 * np.random.default_rng(0).normal(size=(16, 3))
    world.flight.state[0, :3] = places.T
    stand(world, PILLARS[: world._pillars.shape[1]])
    state: dict[str, Any] = world.state_dict()
    return state


@pytest.mark.parametrize("obstacles", [0, 2])
def test_the_gradient_agrees_with_differences(obstacles: int) -> None:
    """Of the weights of a policy that all fly by, through downwash, and what is seen and avoided."""
    path, generator = start(obstacles=obstacles), torch.Generator().manual_seed(1)
    state = crowded(path)

    def cost() -> float:
        path.world.load_state_dict(state)
        found, counts = path.window()
        assert counts == 1.0
        return float(found.sum(dtype=np.float64))

    cost()
    assert path.world._crowd.max() > 0.2 and path.world.flight.washed.min() < -0.02
    gradient = [p.grad.clone() for p in path.policy.parameters()]
    pairs = []
    for _ in range(4):
        ways, ends = [torch.randn(p.shape, generator=generator) for p in path.policy.parameters()], []
        for step in (3e-3, -6e-3, 3e-3):
            with torch.no_grad():
                for p, way in zip(path.policy.parameters(), ways, strict=True):
                    p += step * way
            ends.append(cost())
        along = sum(float((g * way).sum()) for g, way in zip(gradient, ways, strict=True)) * 16 * 16
        pairs.append((along, (ends[0] - ends[1]) / 6e-3))
    found, numeric = np.array(pairs).T
    assert np.linalg.norm(found - numeric) < 0.05 * np.linalg.norm(numeric) and np.abs(numeric).max() > 5.0


def test_slopes_of_a_state_agree_with_differences() -> None:
    """Of the costs of each by where it is, how fast it moves and turns, and its attitude, far from its place."""
    world: Any = make("quad_swarm", vehicles=4, vary=False, crowd=0.0).rehearsal(16, 0, 4)
    rng = np.random.default_rng(2)
    ways = rng.normal(size=(16, 3))
    off = rng.uniform(1.0, 4.0, (16, 1)) * ways / np.linalg.norm(ways, axis=1, keepdims=True)
    turned = rng.normal(size=(16, 4))
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    begin = world.flight.state.copy()
    begin[0, POSITION : POSITION + 3] = (world.goal + off).T
    begin[0, VELOCITY : VELOCITY + 3], begin[0, BODY_RATE : BODY_RATE + 3] = rng.normal(size=(2, 3, 16))
    begin[0, QUATERNION : QUATERNION + 4] = turned.T

    def costs(state: np.ndarray) -> np.ndarray:
        world.flight.state[:] = state
        world._look()
        terms = world._terms(world.truth(), world._told, np.zeros(16, bool))
        named = ("away", "speed", "turning", "tilt")
        return np.sum([-world.weights[name] * terms[name].astype(np.float64) for name in named], axis=0)

    costs(begin)
    slope, now = np.zeros_like(begin), world.truth()
    world._slope(now, world._terms(now, world._told, np.zeros(16, bool))["away"], slope)
    others = rng.normal(size=(16, 4))
    tangent = others - (others * turned).sum(axis=1, keepdims=True) * turned  # a quaternion stays of unit length
    along = [(first + k, np.eye(3)[k : k + 1].repeat(16, 0), first) for first in MOVES for k in range(3)]
    for at, way, first in [*along, (QUATERNION, tangent, QUATERNION)]:
        rows = slice(first, first + way.shape[1])
        ends = [begin.copy(), begin.copy()]
        for end, sign in zip(ends, (1.0, -1.0), strict=True):
            end[0, rows] += np.float32(sign * 5e-3) * way.T.astype(np.float32)
        numeric = (costs(ends[0]) - costs(ends[1])) / 1e-2
        found = (slope[0, rows] * way.T).sum(axis=0)
        np.testing.assert_allclose(found, numeric, rtol=2e-3, atol=1e-3, err_msg=f"row {at}")


def test_the_gradient_passes_through_what_is_told_of_pillars() -> None:
    """Of costs by where all began, for commands that depend on the nearest surface only."""
    steps = 20
    world: Any = make("quad_swarm", vehicles=4, vary=False, crowd=0.0, obstacles=1).rehearsal(16, 0, steps)
    rng, where = np.random.default_rng(5), slices(world.task.policy)["obstacles"]
    gain = 0.1 * rng.normal(size=(where.stop - where.start, 4)).astype(np.float32)
    gain[2:] = 0.0  # of x and y of the nearest
    level = np.tile([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], (4, 1)) + rng.uniform(-0.1, 0.1, (16, 2))
    world.flight.state[0, :2] = level.T  # nobody blows on anybody
    stand(world, np.array([[0.1, 0.2, 0.3]], np.float32))
    state = world.state_dict()

    def flown(shift: np.ndarray) -> np.ndarray:
        world.load_state_dict(state)
        world.flight.state[0, POSITION : POSITION + 3] += np.float32(shift)[:, None]
        world._look()
        world._sensors.send(world._table)
        world._begin()
        for _ in range(steps):
            world.step({"motor_command": world.still + from_lanes(world.sensed(), 16)[:, where] @ gain})
        cost: np.ndarray = world.costs()[0].sum(axis=0, dtype=np.float64)
        return cost

    def gradient(looks: float) -> np.ndarray:
        """By the first position; looks = 0: as if nothing had been told."""
        flown(np.zeros(3))
        world.begin_pulling()
        for t in reversed(range(steps)):
            slopes = np.zeros((16, size(world.task.policy)), np.float32)
            slopes[:, where] = looks * world.pull(t, 1e9) @ gain.T
            world.pull_sensed(t, slopes)
        return from_lanes(world._pulled, 16)[:, POSITION : POSITION + 2].copy()

    found, blind = gradient(1.0), gradient(0.0)
    ways = np.eye(3)[:2] * 5e-3
    numeric = np.stack([(flown(way) - flown(-way)) / 1e-2 for way in ways], axis=1)
    assert np.linalg.norm(found - numeric) < 0.02 * np.linalg.norm(numeric)
    assert np.linalg.norm(found - blind) > 0.2 * np.linalg.norm(found)


@pytest.mark.parametrize(("kind", "hidden"), [("gru", [16, 16]), ("mlp", [16, 8])])
def test_kernels_do_as_torch_does(kind: str, hidden: list[int]) -> None:
    same = {"vary": True, "network": kind, "hidden": hidden, "window": 20, "ahead": 3}
    torchs, kernels = (start(path, obstacles=2, **same) for path in ("torch", "fused"))
    assert isinstance(torchs, Worlds) and isinstance(kernels, FusedWorlds)
    both: tuple[Any, ...] = (torchs, kernels)
    for path in both:  # within reach of the first two of each airspace
        places = path.world.truth()["position"].reshape(4, 4, 3)
        stand(path.world, np.concatenate([0.75 * places[:, :2, :2], np.full((4, 2, 1), 0.1)], axis=2))
        assert (path.world._crowd.reshape(4, 4)[:, :2] > 0.02).all() and path.world.truth()["obstacles"][0, 2] == 0.0
    for _ in range(2):
        (one, _), (other, _) = torchs.window(), kernels.window()
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert kernels.improve(1e-2) == pytest.approx(torchs.improve(1e-2), rel=1e-4)
        for path in both:
            path.update += 1
            path.forget(path.world.go_on(30)[1])


def practise(path: Any, updates: int) -> None:
    for _ in range(updates):
        path.window()
        path.improve(1e-2)
        path.update += 1
        path.forget(path.world.go_on(32)[1])


def test_it_goes_on_exactly(tmp_path: Path) -> None:
    whole, first, again = (start("fused", vary=True, network="gru", hidden=[16, 16]) for _ in range(3))
    practise(whole, 5)
    practise(first, 3)
    checkpoint.save(tmp_path / "state", first.state_dict())
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    practise(again, 2)
    assert again.update == 5
    np.testing.assert_array_equal(whole.weights, again.weights)


def test_who_began_alone_does_not_look_at_others_yet() -> None:
    """It acts as it did alone, wherever others are."""
    swarm = start("fused", vary=True, network="gru", hidden=[16, 8], solo=2)
    alone = Fused(swarm.task.alone(), ApgConfig(network="gru", hidden=[16, 8], num_envs=32, window=16), 0)
    before, seen = swarm.weights.copy(), swarm.sensed().copy()
    swarm.begin_with(learned_alone(swarm.task.alone(), swarm.config, 0, swarm.inputs()))
    assert (swarm.weights != before).mean() > 0.5
    network, rng = swarm.network(), np.random.default_rng(0)
    names = {f.signal for f in swarm.task.features[len(swarm.task.alone().features) :]}
    assert names == {"neighbours", "neighbours_velocity"}
    values = {k: np.repeat(seen[:, at, 0], 2, axis=0) for k, at in slices(swarm.task.policy).items()}
    values |= {name: rng.normal(size=values[name].shape).astype(np.float32) for name in names}
    features = np.concatenate([f.evaluate(values) for f in swarm.task.features], axis=1)
    action, _ = network.forward(features, network.initial_state(len(features)))
    np.testing.assert_array_equal(action[0], action[1])
    assert alone.layout.features == 18
    for own, shared in zip(swarm.task.alone().features, swarm.task.features, strict=False):
        assert (own.signal, own.scale, own.squash) == (shared.signal, shared.scale, shared.squash)


def test_both_paths_begin_alone() -> None:
    """And are the same policy then, and after a first update among others."""
    same = {"vary": True, "network": "gru", "hidden": [16, 8], "solo": 2, "updates": 1}
    learned = []
    for path in (start("torch", **same), start("fused", **same)):
        assert [m["env_steps"] for m in path.learn()] == [16 * 16]
        learned.append(path.network())
    for one, other in zip(*(vars(network).values() for network in learned), strict=True):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (one, other)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


def test_alone_it_learns_to_stay_at_its_place() -> None:
    """In half of the updates that the recipe has: seconds."""
    task = make("quad_swarm", vehicles=4)
    config = ApgConfig(path="fused", hidden=[48, 32], num_envs=32, updates=300)
    learned = [m["success"] for m in Fused(task.alone(), config, 0).learn() if "success" in m]
    assert learned[-1] > 0.9


def test_some_begin_while_others_hold() -> None:
    """Airspaces begin their second episodes one after the other, and then each as often."""
    world = make("quad_swarm", vehicles=4, radius=0.5).rehearsal(16, 0, 4)
    begun = []
    for _ in range(8):
        for _ in range(4):
            world.step({"motor_command": np.tile(world.still, (16, 1))})
        begun.append(world.go_on(16)[1].reshape(-1, 4).all(axis=1).tolist())
    assert [[k for k, over in enumerate(row) if over] for row in begun] == [[3], [2], [1], [0]] * 2


def test_its_file_flies_in_any_vehicle_and_in_larger_swarms(tmp_path: Path) -> None:
    task = make("quad_swarm", vehicles=4, episode_s=1.0)
    learner = Apg(task, ApgConfig(path="fused", hidden=[8, 8], num_envs=16, window=8, updates=1), 0)
    assert [*learner.learn()][-1]["env_steps"] == 16 * 8
    export(learner.controller(), tmp_path / "policy.onnx", training={"algorithm": "apg"})
    file = PolicyFile.load(tmp_path / "policy.onnx")
    env = make_env(task, 8, 0, several=True)
    env.reset(range(8), [0] * 4 + [1] * 4)
    seen, others = {s.name: env.observe()[s.name] for s in file.inputs}, [2, 0, 1, 3, 7, 5, 6, 4]

    def told(rows: list[int]) -> np.ndarray:
        file.reset(8)
        return file.step({name: value[rows] for name, value in seen.items()})["motor_command"]

    np.testing.assert_array_equal(told([*range(8)])[others], told(others))  # nobody knows which vehicle it is
    for vehicles in (4, 7):
        report = evaluate(file, task=make("quad_swarm", vehicles=vehicles, episode_s=1.0), episodes=2)
        assert {len(values) for values in report.values.values()} == {2 * vehicles}


def test_what_it_measures_as_it_learns_are_so_many_vehicles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not airspaces, whose vehicles would take longer than the training."""
    flown: list[tuple[int, int]] = []

    def measured(task: Any, policy: Any, seed: int, first: int, episodes: int) -> dict[str, float]:
        flown.append((first, episodes))
        return {}

    monkeypatch.setattr(windows, "measured", measured)
    [*start("fused", updates=2, window=2).learn()]
    assert flown == [(MEASURED // 4, MEASURED // 4), (MEASURED // 2, MEASURED // 4)]


def test_what_it_cannot_do_it_says() -> None:
    with pytest.raises(ValueError, match="quad_swarm rehearses in multiples of 16 and of 4 rows, got 8"):
        make("quad_swarm", vehicles=4).rehearsal(8, 0, 8)
    with pytest.raises(ValueError, match="algorithm.path=fused takes mlp or gru"):
        start("fused", network="my_module:Net")
    with pytest.raises(ValueError, match="algorithm.solo needs a task with its own world, and mlp or gru"):
        start("torch", solo=1, network="my_module:Net")
    with pytest.raises(ValueError, match="algorithm.solo: car_race does not say"):
        Apg(make("car_race", tracks=2), ApgConfig(path="fused", num_envs=16, solo=1), 0)
    with pytest.raises(ValueError, match="apg drives one car on each track: with opponent=self there are 3"):
        make("car_race_multi", opponent="self", tracks=2).rehearsal(16, 0, 8)
